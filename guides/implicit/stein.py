"""The score of a law that can only be drawn from: the spectral Stein gradient estimator.

Shi, Sun and Zhu 2018, "A Spectral Approach to Gradient Estimation for Implicit Distributions", ICML: SSGE.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from guides.core.checks import check_numbers


def stein_score(draws: Tensor, at: Tensor | None = None, *, kept: float = 0.99) -> Tensor:
    """Estimate of ``grad log q(u)`` at ``at: [N, D]``, by default at the draws themselves: ``[N, D]``.

    The score is expanded in the eigenfunctions of a Gaussian kernel under ``q`` (Nystroem's approximation of
    them), whose coefficients Stein's identity gives.  The kernel's width in a coordinate is the median
    distance of draws there, times ``sqrt(D)``.  Its bias grows with the dimension: far from the draws, and
    in directions that the kept eigenfunctions do not see, the estimate tends to 0.  No gradient flows.

    :param draws: of ``q``, ``[S, D]``, S at least 2
    :param kept: share of the kernel's trace that the eigenfunctions must make up.  How many that are is found
        anew for every set of draws
    :raises ValueError: for ``kept`` outside (0, 1), other shapes, numbers that are not finite, or draws that
        all coincide
    """
    check_numbers(kept=kept)
    if kept >= 1:  # the last eigenvalues are rounding errors, and are divided by
        raise ValueError(f"kept must be below 1, got {kept}")
    if draws.dim() != 2 or len(draws) < 2:
        raise ValueError(f"draws must be [S, D], two at least, got {tuple(draws.shape)}")
    if not draws.isfinite().all():
        raise ValueError("draws must be finite")
    draws, width = draws.detach(), _width(draws.detach())
    centre = draws.mean(0)  # the score depends on differences alone, and rounding on how far away they are
    scaled, places = ((points - centre) / width for points in (draws, draws if at is None else at.detach()))
    values, vectors = torch.linalg.eigh(_kernel(scaled, scaled).double())
    values, vectors = values.flip(0), vectors.flip(1)
    share = values.cumsum(0) / values.sum()
    number = min(int((share < kept).sum()) + 1, len(values))
    values, vectors = (part[..., :number].to(draws.dtype) for part in (values, vectors))
    expansion = vectors * (math.sqrt(len(draws)) / values)
    coefficients = -expansion.mT @ _kernel_gradient(scaled) / len(draws)
    return (_kernel(places, scaled) @ expansion @ coefficients) / width


def _width(draws: Tensor) -> Tensor:
    """Of the kernel, ``[D]``; a coordinate that does not vary has width 1."""
    first, second = torch.triu_indices(len(draws), len(draws), 1)
    width = (draws[first] - draws[second]).abs().median(0).values * math.sqrt(draws.shape[1])
    if not (width > 0).any():
        raise ValueError("all draws coincide: their law has no score")
    return torch.where(width > 0, width, 1.0)


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    """``[N, D], [S, D] -> [N, S]``"""
    return torch.exp(-0.5 * torch.cdist(a, b) ** 2)


def _kernel_gradient(u: Tensor) -> Tensor:
    """Sum over ``m`` of the gradient of ``k(u_m, u_n)`` with respect to ``u_m``, for every n: ``[S, D]``."""
    kernel = _kernel(u, u)
    return kernel.sum(0).unsqueeze(-1) * u - kernel.mT @ u
