"""The horseshoe as a method for any model of Gaussian weights: another prior, fitted by mean field."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from guides import Horseshoe


def with_horseshoe(model: Callable) -> Callable:
    """The model with horseshoe weights."""
    return Horseshoe()(model)


def product_weights(draws: dict[str, Tensor]) -> dict[str, Tensor]:
    """Draws of the factors ``w_raw, w_local, w_global`` of horseshoe weights -> draws of ``w``."""
    result = {
        name: value for name, value in draws.items() if not name.endswith(("_raw", "_local", "_global"))
    }
    for name, raw in draws.items():
        if name.endswith("_raw"):
            weight = name.removesuffix("_raw")
            shrink = draws[f"{weight}_global"]
            result[weight] = raw * draws[f"{weight}_local"] * shrink.reshape(-1, *(1,) * (raw.dim() - 1))
    return result
