"""All models by name.  A new family adds a module of entries and its name here."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from data_loaders.registered import Catalogue
from zoo.errors import UserError, unknown
from zoo.models import entries_graphs, entries_lbbnn, entries_sspbp
from zoo.models.densities import DENSITY_MODELS
from zoo.models.entries import DataShape, ModelEntry
from zoo.models.options import check_values
from zoo.models.own_files import is_own, own_entry
from zoo.papers import find_paper

MODELS = Catalogue(
    "models",
    ModelEntry,
    {
        entry.name: entry
        for module in (entries_lbbnn, entries_sspbp, entries_graphs)
        for entry in module.ENTRIES
    },
)


def find_model(name: str) -> ModelEntry:
    """One of the catalogue, or ``path/to/file.py:name``; :raises UserError: naming the nearest models"""
    if name in DENSITY_MODELS:
        raise UserError(
            f"model {name!r} is a density of tables without a target: zoo fit TABLE --model {name}"
        )
    if is_own(name):
        return own_entry(name)
    if name not in MODELS:
        if ":" in name:
            raise UserError(f"unknown model {name!r}; one of your own is named path/to/file.py:model")
        raise unknown("model", name, [*MODELS, *DENSITY_MODELS])
    return MODELS[name]


def names(paper: str | None = None) -> list[str]:
    """The names of all models, or of those that came with a family of papers.

    :raises UserError: for a family that there is not
    """
    if paper is not None:
        find_paper(paper)
    return [entry.name for entry in MODELS.values() if paper in (None, entry.paper)]


def create(
    name: str, in_features: int, *, task: str | None = None, num_classes: int = 0, **options: Any
) -> Callable:
    """A Pyro model by its name: ``create("spike-slab-bnn", in_features=13, inclusion=0.1)``.

    :param in_features: columns of ``x: [N, in]``
    :param task: ``regression``, ``binary`` or ``multiclass``; the model's first by default
    :param num_classes: of ``multiclass``
    :param options: the model's own: ``zoo show NAME`` names them
    :raises UserError: for a name, task or option that there is not, a value that the option cannot have, or
        a number of columns that is none
    """
    entry = find_model(name)
    if not isinstance(in_features, Integral) or in_features < 1:
        raise UserError(f"in_features must be a whole number, 1 or more, not {in_features!r}")
    task = entry.tasks[0] if task is None else task
    if task not in entry.tasks:
        raise UserError(f"model {name!r} is for {', '.join(entry.tasks)}, not for {task}")
    if task == "multiclass" and num_classes < 2:
        raise UserError(f"model {name!r} needs num_classes, 2 or more, not {num_classes}")
    for option in options:
        if option not in entry.options:
            takes = ", ".join(entry.options) or "none"
            raise UserError(f"model {name!r} has no option {option!r}; it takes: {takes}")
    check_values(options)
    return entry.build(DataShape(task, in_features, num_classes), options)
