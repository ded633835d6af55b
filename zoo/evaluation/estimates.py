"""A figure with its standard error, and the few ways in which the evaluation gets one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Groups of draws that follow each other, of the jackknife: its own relative error is about
#: 1/sqrt(2 * (groups - 1)), 16 %.
GROUPS = 20
#: Numbers a chunk of test points may hold at once: 2**22 float64 are 32 MiB, and some four such arrays live
#: at the same time.
CHUNK_NUMBERS = 2**22


@dataclass(frozen=True)
class Estimate:
    """A figure of the scoreboard.

    :param value: the figure
    :param se: its standard error, in the same unit; None where there is none (a single test point)
    :param floor: the value that no error at all would show (Monte Carlo noise alone), where that is not zero
    """

    value: float
    se: float | None = None
    floor: float | None = None


def mean_estimate(values: Tensor) -> Estimate:
    """Mean of independent ``values`` [N] and its standard error ``sd / sqrt(N)``."""
    values = values.double()
    size = values.numel()
    se = None if size < 2 else (values.std() / math.sqrt(size)).item()
    return Estimate(values.mean().item(), se)


def share_estimate(hits: Tensor) -> Estimate:
    """Share of True in ``hits`` [N], with its :func:`share_error`."""
    return Estimate(hits.double().mean().item(), share_error(hits.flatten()).item())


def share_error(hits: Tensor) -> Tensor:
    """Standard errors of the shares of True in independent ``hits`` [N, ...] over the first axis, [...].

    Those of Agresti & Coull (1998, The American Statistician 52), with two successes and two failures added:
    the plain ones are 0 when all or none are True, which would claim certainty.
    """
    size = len(hits)
    middle = (hits.double().sum(0) + 2) / (size + 4)
    return (middle * (1 - middle) / (size + 4)).sqrt()


def jackknife_variance(values: Tensor) -> float:
    """Of a statistic, from what it is without each group of a sample, ``values`` [G] (Kott 2001, J. Official
    Statistics 17).
    """
    return ((len(values) - 1) / len(values) * (values - values.mean()).square().sum()).item()


def check_finite(values: Tensor, what: str) -> None:
    """:raises ValueError: saying what is not finite, how often and at which test point first; ``values`` [N,
    ...]
    """
    bad = ~torch.isfinite(values)
    if bad.any():
        first = bad.nonzero()[0, 0].item()
        raise ValueError(
            f"{what}: {int(bad.sum())} of {bad.numel()} values are NaN or infinite, "
            f"the first at test point {first}"
        )
