"""posterior-zoo: models, registry, evaluation and the command line."""

from zoo.version import __version__

__all__ = ["__version__"]
