"""Published tables and figures as grids of cells: declared as data, run by ``zoo reproduce``.

One module a paper declares its experiments (``EXPERIMENTS``); ``catalogue`` names the modules; ``runner``
runs a grid with ``workers``; ``records`` keeps one result a cell; ``published`` reads what is in print,
``tables`` puts ours beside it, ``page`` writes that for people.
``example`` shows the whole of a declaration.  A module that declares must not import torch: ``zoo reproduce
--list`` imports them all.
"""

from zoo.experiments.engine.declaration import Cell, Effort, Experiment, Published, Source

__all__ = ["Cell", "Effort", "Experiment", "Published", "Source"]
