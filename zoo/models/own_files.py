"""A Pyro model of one's own, ``path/to/file.py:name``, as an entry like those of the catalogue.

Imports nothing slow by itself; to look a model up runs its file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.errors import UserError, nearest, where
from zoo.models.entries import LIKELIHOODS, Card, DataShape, ModelEntry

if TYPE_CHECKING:  # slow to import
    from zoo.models.own_model import OwnModel

#: What follows the name of a model in that of its NumPyro version.
TWIN = "_twin"
FORM = "write it as model(x, y=None), or model(x, y=None, size=None)"


def is_own(name: str) -> bool:
    """Whether the name of a model is that of a file, ``models.py`` or ``models.py:name``."""
    return name.endswith(".py") or name.rpartition(":")[0].endswith(".py")


def own_entry(text: str) -> ModelEntry:
    """The model of a file, ``path/to/file.py:name``.

    :raises UserError: in one line, for a file that is missing or does not run, and a name that is none, or
        no model
    """
    path, _, name = text.rpartition(":")
    if not path.endswith(".py"):
        raise UserError(f"--model {text}: say which function is the model, as in {text}:model")
    file = Path(path).resolve()
    checksum = file_checksum(file)
    function, twin = _find(file, name, checksum)
    takes_size = _takes_size(function, f"{file.name}:{name}")

    def make(shape: DataShape) -> OwnModel:
        from zoo.models.own_model import OwnModel

        return OwnModel(f"{file.name}:{name}", function, twin, takes_size, checksum)

    return ModelEntry(
        name=f"{file.name}:{name}",
        summary=f"a model of {file}",
        make=make,
        paper="",
        tasks=tuple(LIKELIHOODS),
        references=("nuts",),
        weights="own",
        inputs="own",
        card=Card("", "", "", ""),
        file={"path": str(file), "sha256": checksum},
    )


def file_checksum(file: Path) -> str:
    """:raises UserError: for a file that is not there, or cannot be read"""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


@functools.cache
def _find(file: Path, name: str, checksum: str) -> tuple[Callable, Callable | None]:
    """The model, and its NumPyro version if the file has one; a file runs once as long as it is the same."""
    module = _run(file, checksum)
    if not hasattr(module, name):
        models = [n for n, value in vars(module).items() if callable(value) and _is_here(value, module)]
        has = f"what it has: {', '.join(models) or 'no function'}"
        raise UserError(f"{file} has no {name!r}; {nearest(name, models, has)}")
    function = getattr(module, name)
    if isinstance(function, type):
        raise UserError(f"{name!r} of {file} is a class: make an instance (model = {name}()) and name that")
    if not callable(function):
        raise UserError(f"{name!r} of {file} is no function, but a {type(function).__name__}: {FORM}")
    return function, getattr(module, f"{name}{TWIN}", None)


def _is_here(value: object, module: object) -> bool:
    return getattr(value, "__module__", None) == module.__name__


#: Attribute of the module of a file: its folder, and the names of the neighbours that it has imported.
_IMPORTED = "__imported_neighbours__"


@functools.cache
def _run(file: Path, checksum: str) -> object:
    """The module of a file, whose neighbours it may import.

    What it draws is the same whenever it runs, for the process that uses a fit is another.
    """
    _forget_neighbours(file.parent)
    spec = importlib.util.spec_from_file_location(f"own_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    sys.path.insert(0, str(file.parent))
    try:
        with _same_numbers():
            before = set(sys.modules)
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise UserError(f"{file} cannot be imported: {where(error, file)}") from error
    finally:
        sys.path.remove(str(file.parent))
    new = {name for name in set(sys.modules) - before if name.partition(".")[0] not in before}
    setattr(module, _IMPORTED, (file.parent, {name for name in new if _is_neighbour(name, file.parent)}))
    return module


def _forget_neighbours(folder: Path) -> None:
    """What files of other folders have imported from there: this one may have others of the same names."""
    for own in [module for name, module in sys.modules.items() if name.startswith("own_")]:
        place, names = getattr(own, _IMPORTED, (folder, ()))
        if place != folder:
            for name in names:
                sys.modules.pop(name, None)


def _is_neighbour(name: str, folder: Path) -> bool:
    """Whether a module, or its package, stands in the folder itself: an environment may lie deeper in it."""
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and Path(file).resolve() in (folder / f"{top}.py", folder / top / "__init__.py")


@contextlib.contextmanager
def _same_numbers() -> Iterator[None]:
    """What the global generators draw within; they end as they began."""
    import random

    import numpy as np

    from guides.core.rng import seeded_rng

    states = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        with seeded_rng(0):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _takes_size(function: Callable, name: str) -> bool:
    """Whether a model knows of minibatches; :raises UserError: for one that takes other arguments"""
    signature = inspect.signature(function)
    try:
        signature.bind("x", "y")
        signature.bind("x")
    except TypeError:
        raise UserError(f"{name} takes {signature}: {FORM}") from None
    return "size" in signature.parameters
