"""What a call says about the seed, the budget and the model, checked.  Imports nothing slow by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zoo.budgets import BUDGETS, Budget
from zoo.errors import UserError, unknown

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.problem import Problem
    from zoo.models.entries import Options


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed must lie between 0 and 2^32 - 1, not {seed}")


def check_counts(**counts: int | None) -> None:
    """:raises UserError: for one below 1; None is left out"""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"--{name} must be at least 1, not {count}")


def find_budget(name: str, steps: int | None = None) -> Budget:
    """The budget of that name, with other steps where these are given.

    :raises UserError: for an unknown name, or no step at all
    """
    if name not in BUDGETS:
        raise unknown("budget", name, BUDGETS)
    check_counts(steps=steps)
    return BUDGETS[name] if steps is None else replace(BUDGETS[name], steps=steps)


def check_names(option: str, names: Sequence[str]) -> None:
    """:raises UserError: for a name given twice, or no name at all"""
    if not names:
        raise UserError(f"--{option} names nothing")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{twice!r} is named twice in --{option} {','.join(names)}")


def check_alone(jobs: int, cluster: str | None) -> None:
    """:raises UserError: for more than this process where there is a single comparison"""
    for name, given in (("jobs", jobs != 1), ("cluster", cluster is not None)):
        if given:
            raise UserError(f"--{name} is for several --splits or --seeds: one comparison is one process")


def model_options(problem: Problem, model: str, guides: Sequence[str], given: dict[str, Any]) -> Options:
    """The model's options; the noise goes from the target's units to standardised ones.

    :param given: ``widths``, ``activation``, ``noise_scale``, ``inclusion``, ``weight_scale`` and
        ``bias_scale``, None where left out
    :raises UserError: for a value out of range, or an option that no model of this call takes
    """
    from zoo.models.options import LARGEST, SMALLEST, check_values
    from zoo.registry.queries import check_options, find_guide, find_model, flag

    chosen = {name: value for name, value in given.items() if value is not None}
    if "noise_scale" in chosen and problem.task != "regression":
        raise UserError(f"--noise is for regression only; {problem.dataset.name} is {problem.task}")
    if "widths" in chosen:
        chosen["widths"] = tuple(chosen["widths"])
    for name in ("weight_scale", "bias_scale"):
        if isinstance(chosen.get(name), Sequence):
            chosen[name] = tuple(chosen[name])
    check_values(chosen, flag)
    check_options(find_model(model), [find_guide(name) for name in guides], chosen)
    if "noise_scale" in chosen:
        chosen["noise_scale"] /= problem.scale.y_sd
        if not SMALLEST <= chosen["noise_scale"] <= LARGEST:
            raise UserError(
                f"--noise {given['noise_scale']:g} is {chosen['noise_scale']:.1g} sds of the target: it must "
                f"lie between {SMALLEST:g} and {LARGEST:g} of them"
            )
    return chosen
