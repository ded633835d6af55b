"""What a call says about the seed and the model, checked.  Imports nothing slow by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zoo.errors import UserError, unknown

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.problem import Problem
    from zoo.models.entries import Options


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed must lie between 0 and 2^32 - 1, not {seed}")


def model_options(problem: Problem, model: str, guides: Sequence[str], given: dict[str, Any]) -> Options:
    """The model's options; the noise goes from the target's units to standardised ones.

    :param given: ``widths``, ``activation``, ``noise_scale`` and ``inclusion``, None where left out
    :raises UserError: for a value out of range, or an option that no model of this call takes
    """
    from zoo.models.bnn import ACTIVATIONS
    from zoo.registry.queries import check_options, find_guide, find_model

    given = {name: value for name, value in given.items() if value is not None}
    chosen = {}
    if "widths" in given:
        chosen["widths"] = tuple(given["widths"])
        if min(chosen["widths"], default=0) < 1:
            raise UserError(f"--widths must be at least 1, not {','.join(map(str, given['widths']))!r}")
    if "activation" in given:
        chosen["activation"] = given["activation"]
        if given["activation"] not in ACTIVATIONS:
            raise unknown("activation", given["activation"], ACTIVATIONS)
    if "inclusion" in given:
        chosen["inclusion"] = given["inclusion"]
        if not 0 < given["inclusion"] < 1:
            raise UserError(
                f"--inclusion must lie between 0 and 1, both excluded, not {given['inclusion']:g}"
            )
    if "noise_scale" in given:
        noise = given["noise_scale"]
        if problem.task != "regression":
            raise UserError(f"--noise is for regression only; {problem.dataset.name} is {problem.task}")
        if not (noise > 0 and math.isfinite(noise)):
            raise UserError(f"--noise must be a positive standard deviation, not {noise:g}")
        chosen["noise_scale"] = noise / problem.scale.y_sd
    check_options(find_model(model), [find_guide(name) for name in guides], given)
    return chosen
