"""What the zoo knows about a model: how it is built, which options it takes, what a reader is told.

To describe a model imports nothing slow; to build it does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from zoo.models.traits import Inputs, Likelihood, Traits, Weights

if TYPE_CHECKING:
    import torch

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


LIKELIHOODS: dict[str, Likelihood] = {
    "regression": "normal",
    "binary": "bernoulli",
    "multiclass": "categorical",
}


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

    :ivar make: ``(shape of the data, *, options) -> model``; its keyword arguments are the options, and it
        imports the model's class
    :ivar paper: key of the family that it came with (:mod:`zoo.papers`)
    :ivar tasks: those it has a likelihood for
    :ivar references: the ground truths it has, the best first
    :ivar weights, inputs, activation, selects: as in :class:`Traits`, of what :attr:`make` builds; an option
        ``activation`` goes before
    :ivar citation: its own, where that is not the family's
    :ivar substitutes: kind of weights that a guide may need -> name of the model that has them in this one's
        place
    :ivar experiments: names of those that show it
    :ivar precision: of its data
    :ivar file: ``path`` and ``sha256`` of a model of one's own, else nothing
    """

    name: str
    summary: str
    make: Callable[..., Callable]
    paper: str
    tasks: tuple[str, ...]
    references: tuple[str, ...]
    weights: Weights
    card: Card
    inputs: Inputs = "rows"
    activation: str = ""
    selects: bool = False
    citation: str = ""
    substitutes: Mapping[Weights, str] = field(default_factory=dict)
    experiments: tuple[str, ...] = ()
    precision: Literal["float32", "float64"] = "float32"
    file: Mapping[str, str] = field(default_factory=dict)

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
        """Of the model for a task, its first by default; options that it does not take are left out."""
        activation = self.activation
        if "activation" in self.options:
            activation = options.get("activation", self.options["activation"])
        likelihood = LIKELIHOODS[task or self.tasks[0]]
        return Traits(self.weights, likelihood, self.inputs, activation, self.selects)

    @property
    def dtype(self) -> torch.dtype:
        """Of its data."""
        import torch

        return getattr(torch, self.precision)
