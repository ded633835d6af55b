"""What one call of ``zoo reproduce`` asks for: a part of an experiment's grid, checked before any work."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zoo.errors import UserError, unknown
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.engine.declaration import AXES, Cell, Effort, Experiment

WORDS = {"dataset": "data set", "method": "method", "setting": "setting"}


@dataclass(frozen=True)
class Request:
    """The cells that one call wants.

    :ivar chosen: dataset, method, setting -> names; an axis that is left out is taken whole
    :ivar trials: of every combination; the budget's if None was given
    :ivar changed: options of the budget that have another value in this call
    """

    experiment: Experiment
    budget: str
    chosen: dict[str, tuple[str, ...]]
    trials: int
    seed: int
    changed: dict[str, object] = field(default_factory=dict)

    @property
    def effort(self) -> Effort:
        effort = self.experiment.efforts[self.budget]
        return replace(effort, options={**effort.options, **self.changed})

    def cells(self) -> list[Cell]:
        """In the order of work: a first trial of everything comes first, so that mistakes show early."""
        options = dict(self.effort.options)
        return [
            Cell(self.experiment.name, *combination, trial, self.seed, options)
            for trial in range(self.trials)
            for combination in self.experiment.combinations()
            if all(
                name in self.chosen.get(axis, (name,)) for axis, name in zip(AXES, combination, strict=True)
            )
        ]

    def config(self, packages: dict[str, str]) -> dict:
        """What all results in one folder share; the axes are not among it, so that a grid can grow."""
        return {
            "command": "reproduce",
            "experiment": self.experiment.name,
            "revision": self.experiment.revision,
            "seed": self.seed,
            **{f"option {name}": value for name, value in self.effort.options.items()},
            **{f"version of {name}": value for name, value in packages.items()},
        }

    def command(self, out: str | Path) -> str:
        """The command line that asks for this."""
        words = ["zoo", "reproduce", self.experiment.name]
        for axis, names in self.chosen.items():
            words += [f"--{axis}s", ",".join(names)]
        if self.trials != self.effort.trials:
            words += ["--trials", str(self.trials)]
        if self.seed:
            words += ["--seed", str(self.seed)]
        for name, value in self.changed.items():
            words += ["--set", f"{name}={value}"]
        return shlex.join([*words, "--budget", self.budget, "--out", str(out)])


def plan(
    experiment: str | Experiment,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    trials: int | None = None,
    seed: int = 0,
    budget: str = "full",
    options: Mapping[str, str] | None = None,
) -> Request:
    """A checked request.

    :param datasets: part of the axis, in any order; None for all of it; so are ``methods`` and ``settings``
    :param options: values, as text, for some of the budget's options
    :raises UserError: for a name that the experiment does not know, a value that is none for its option, or a
        choice that is empty
    """
    found = find_experiment(experiment) if isinstance(experiment, str) else experiment
    if budget not in found.efforts:
        raise unknown("budget", budget, found.efforts)
    if trials is not None and trials < 1:
        raise UserError(f"--trials must be at least 1, not {trials}")
    chosen = {}
    for axis, names in zip(AXES, (datasets, methods, settings), strict=True):
        if names is not None:
            chosen[axis] = _choose(found, axis, names)
    effort = found.efforts[budget]
    changed = {name: _option(found, effort, name, text) for name, text in (options or {}).items()}
    changed = {name: value for name, value in changed.items() if value != effort.options[name]}
    if found.check is not None:
        found.check({**effort.options, **changed})
    for name, value in changed.items():
        _check_range(found, name, value)
    request = Request(found, budget, chosen, effort.trials if trials is None else trials, seed, changed)
    if not request.cells():
        raise UserError(f"{found.name} has no cell with this combination of names: nothing to do")
    return request


def _option(experiment: Experiment, effort: Effort, name: str, text: str) -> object:
    """The value that a text stands for, of the type that the budget's own value has."""
    if name not in effort.options:
        if not effort.options:
            raise UserError(f"{experiment.name} has no options to set")
        raise unknown(f"option of {experiment.name}", name, effort.options)
    kind = type(effort.options[name])
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise UserError(
            f"option {name} of {experiment.name} is of type {kind.__name__} (its value is "
            f"{effort.options[name]}), not {text!r}"
        ) from None


def _check_range(experiment: Experiment, name: str, value: object) -> None:
    """:raises UserError: for a number that is negative or not finite, a whole one that is 0 where no budget
    has it so, and a learning rate of 0
    """
    if isinstance(value, bool | str):
        return
    usual = [effort.options[name] for effort in experiment.efforts.values() if name in effort.options]
    least = 1 if isinstance(value, int) and 0 not in usual else 0
    if not (math.isfinite(value) and value >= least):
        raise UserError(f"option {name} of {experiment.name} must be at least {least}, not {value}")
    if name == "lr" and value == 0:
        raise UserError(f"option lr of {experiment.name} must be positive, not {value}")


def _choose(experiment: Experiment, axis: str, names: Sequence[str]) -> tuple[str, ...]:
    known = experiment.axis(axis)
    for name in names:
        if name not in known:
            raise unknown(f"{WORDS[axis]} of {experiment.name}", name, known)
    if not names:
        raise UserError(f"--{axis}s names nothing; known: {', '.join(known)}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{WORDS[axis]} {twice!r} is named twice")
    return tuple(name for name in known if name in names)
