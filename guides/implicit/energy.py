"""Black-box alpha energies: how well several draws of a function explain data, as a mean of power ``alpha``.

``(1/alpha) log mean_s p(y | f_s)^alpha`` runs from the expected log likelihood of variational inference at
``alpha = 0``, to which it tends, to the log of the predictive density at ``alpha = 1`` (Hernandez-Lobato et
al. 2016, "Black-Box Alpha Divergence Minimization", ICML).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from guides.core.moments import LOG_2PI


def check_alpha(alpha: float) -> None:
    """:raises ValueError: for a number outside [0, 1]"""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha}")


def power_mean(log_terms: Tensor, alpha: float) -> Tensor:
    """``(1/alpha) log mean_s exp(alpha l_s)`` over the first axis of ``l: [S, ...]``; for ``alpha = 0`` its
    limit, the mean.

    The logarithm is of a number near 1 where alpha is small, and keeps some ``16 + log10(alpha)`` digits in
    float64.
    """
    if alpha == 0:
        return log_terms.mean(0)
    return (torch.logsumexp(alpha * log_terms, 0) - math.log(len(log_terms))) / alpha


def gaussian_log_power(y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor, alpha: float) -> Tensor:
    """``(1/alpha) log E[N(y; f, noise)^alpha]`` of ``f ~ N(mean, variance)``, elementwise.

    For ``alpha = 1`` the log density of ``N(mean, variance + noise)``; for ``alpha = 0`` the limit,
    ``E[log N(y; f, noise)]``.

    :param noise: variance of the noise
    """
    ratio = variance / noise
    spread = 0.5 * ratio if alpha == 0 else torch.log1p(alpha * ratio) / (2 * alpha)
    misfit = (y - mean) ** 2 / (2 * noise * (1 + alpha * ratio))
    return -0.5 * (LOG_2PI + noise.log()) - spread - misfit
