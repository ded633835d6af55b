"""What the zoo knows about a model: how it is built, which options it takes, what a reader is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from zoo.models.traits import Traits, Weights

Options = Mapping[str, Any]
NO_OPTIONS: Options = MappingProxyType({})


@dataclass(frozen=True)
class DataShape:
    """What a model has to know of the data.

    :ivar num_classes: 0 where there are none
    """

    task: str
    in_features: int
    num_classes: int = 0


#: Eight by eight pixels: rows for any model, images for those that see images.
EXAMPLE_COLUMNS = 64


@dataclass(frozen=True)
class Card:
    """What ``zoo show`` tells of a model or a guide, in plain text.

    :ivar law: its equations, a line each
    :ivar assumes: what must hold
    :ivar cost: of one fit or one row, and how it grows
    :ivar fails: what is known to go wrong
    """

    law: str
    assumes: str
    cost: str
    fails: str


@dataclass(frozen=True)
class ModelEntry:
    """One model.

    :ivar make: ``(shape of the data, *, options) -> model``; its keyword arguments are the options
    :ivar paper: key of the family that it came with (:mod:`zoo.papers`)
    :ivar tasks: those it has a likelihood for
    :ivar references: the ground truths it has, the best first
    :ivar citation: its own, where that is not the family's
    :ivar substitutes: kind of weights that a guide may need -> name of the model that has them in this one's
        place
    :ivar experiments: names of those that show it
    :ivar dtype: of its data
    """

    name: str
    summary: str
    make: Callable[..., Callable]
    paper: str
    tasks: tuple[str, ...]
    references: tuple[str, ...]
    card: Card
    citation: str = ""
    substitutes: Mapping[Weights, str] = field(default_factory=dict)
    experiments: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32

    @cached_property
    def options(self) -> Options:
        """What may be chosen about it, and what it is when nothing is."""
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def build(self, shape: DataShape, options: Options = NO_OPTIONS) -> Callable:
        """The Pyro model.

        :param options: those that it does not take are left out: they are for a model that a guide fits in
            its place; lists, as JSON gives them, are taken for tuples
        """
        taken = {name: value for name, value in options.items() if name in self.options}
        return self.make(shape, **{k: tuple(v) if isinstance(v, list) else v for k, v in taken.items()})

    def traits(self, task: str | None = None, options: Options = NO_OPTIONS) -> Traits:
        """Of the model for a task, its first by default."""
        return self.build(DataShape(task or self.tasks[0], EXAMPLE_COLUMNS, 2), options).traits

    @property
    def selects(self) -> bool:
        return self.traits().selects


def to_json(options: Options) -> dict[str, Any]:
    """Options as JSON gives them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
