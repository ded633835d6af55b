"""Which values the options of models may have: asked by the catalogue and by the commands alike.

Imports nothing slow by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from zoo.errors import UserError, unknown

#: Sds in single precision whose squares and logarithms are numbers.
SMALLEST, LARGEST = 1e-12, 1e12


def check_values(options: Mapping[str, Any], called: Callable[[str], str] = str) -> None:
    """Of options that are not here any value goes.

    :param called: what the user calls an option
    :raises UserError: for a value out of range, or of another kind
    """
    for name, value in options.items():
        if name in CHECKS:
            CHECKS[name](called(name), value)


def _check_widths(name: str, widths: Any) -> None:
    if not (isinstance(widths, tuple | list) and all(isinstance(width, Integral) for width in widths)):
        raise UserError(f"{name} takes whole numbers, (50,) or (20, 20) for instance, not {widths!r}")
    if min(widths, default=0) < 1:
        raise UserError(f"{name} must be at least 1, not {','.join(map(str, widths))!r}")


def _check_activation(name: str, activation: Any) -> None:
    from zoo.models.bnn import ACTIVATIONS

    if activation not in ACTIVATIONS:
        raise unknown("activation", str(activation), ACTIVATIONS)


def _check_inclusion(name: str, inclusion: Any) -> None:
    if not (isinstance(inclusion, Real) and 0 < inclusion < 1):
        raise UserError(f"{name} must lie between 0 and 1, both excluded, not {_short(inclusion)}")


def _check_sizes(name: str, sizes: Any) -> None:
    """One number, or one a layer, whose count the model checks; None: the model's own."""
    for size in sizes if isinstance(sizes, tuple | list) else () if sizes is None else (sizes,):
        if not (isinstance(size, Real) and SMALLEST <= size <= LARGEST):
            raise UserError(
                f"{name} takes positive numbers from {SMALLEST:g} to {LARGEST:g}, one or one a layer, not "
                f"{_short(size)}"
            )


def _check_noise_scale(name: str, scale: Any) -> None:
    """None: it is inferred."""
    if scale is not None and not (isinstance(scale, Real) and 0 < scale < math.inf):
        raise UserError(f"{name} must be a positive standard deviation, not {_short(scale)}")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, Real) else repr(value)


CHECKS: dict[str, Callable[[str, Any], None]] = {
    "widths": _check_widths,
    "activation": _check_activation,
    "inclusion": _check_inclusion,
    "noise_scale": _check_noise_scale,
    "weight_scale": _check_sizes,
    "bias_scale": _check_sizes,
}
