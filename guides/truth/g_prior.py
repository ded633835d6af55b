"""Bayes factors of all 2^p subsets of the columns of a linear regression under Zellner's g-prior, with the
intercept integrated out.

Float64 throughout, in log space (:mod:`guides.truth.subsets`).

Zellner (1986); Liang, Paulo, Molina, Clyde, Berger (2008), JASA 103(481), equation 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from guides.core.checks import check_numbers, checked_data
from guides.truth.subsets import (
    FEWER,
    SEEN,
    check_columns,
    half_solve,
    inclusion_of_columns,
    score_models,
)

__all__ = ["GPriorModels", "enumerate_g_prior"]

#: Condition number of columns whose products still have a root.
MOST_DEPENDENT = 1e7


@dataclass(frozen=True)
class GPriorModels:
    """All 2^p linear models under Zellner's g-prior.

    :ivar log_bf: [2^p] log Bayes factors against the null model; bit i of the index = column i in.
    :ivar log_model_probs: [2^p] log posterior probabilities, uniform prior over models.
    :ivar inclusion: [p] posterior inclusion probabilities.
    """

    log_bf: np.ndarray
    log_model_probs: np.ndarray
    inclusion: np.ndarray


def enumerate_g_prior(x: np.ndarray, y: np.ndarray, g: float) -> GPriorModels:
    """Bayes factors and inclusion probabilities of all subsets of the columns of x.

    Prior of a model: p(intercept, tau) ~ 1/tau, w | tau ~ N(0, g (Xc'Xc)^-1 / tau), Xc the centred columns.
    Then

        log BF = (n - 1 - k)/2 log(1 + g) - (n - 1)/2 log(1 + g (1 - R^2))

    :raises ValueError: more than 20 columns; a constant column, and columns that are linearly dependent (the
        prior has no density there), or so nearly that rounding would be seen in the evidence; g <= 0; y that
        is constant.
    """
    x, y = checked_data(x, y)
    n, p = x.shape
    check_columns(p, FEWER)
    check_numbers(g=g)
    Xc, yc = x - x.mean(0), y - y.mean()
    scale = np.sqrt((Xc**2).sum(0))
    total = float(yc @ yc)
    # the mean of equal numbers may be off by a rounding error: what is left over is no predictor
    constant = np.flatnonzero(np.ptp(x, 0) <= 1e-13 * np.abs(x).max(0))
    if len(constant):
        raise ValueError(
            f"column {constant[0]} of x is constant, as the intercept is, and linearly dependent on it: no "
            "g-prior exists, leave it out"
        )
    if total <= 1e-24 * n * float(np.abs(y).max()) ** 2:
        raise ValueError("y is constant: R^2 does not exist")
    Xc = Xc / scale  # R^2 does not change, the conditioning does
    _check_dependence(Xc, yc, g)

    def score(gram: Tensor, moment: Tensor, subset: Tensor) -> Tensor:
        explained = half_solve(torch.linalg.cholesky(gram), moment).square().sum(-1)
        unexplained = (1 - explained / total).clamp_min(0.0)  # rounding of a perfect fit
        size = subset.shape[-1]
        return (n - 1 - size) / 2 * math.log1p(g) - (n - 1) / 2 * torch.log1p(g * unexplained)

    log_bf = score_models(torch.as_tensor(Xc.T @ Xc), torch.as_tensor(Xc.T @ yc), score)
    log_probs = torch.log_softmax(log_bf, 0)
    return GPriorModels(log_bf.numpy(), log_probs.numpy(), inclusion_of_columns(log_probs, p).numpy())


def _check_dependence(Xc: np.ndarray, yc: np.ndarray, g: float) -> None:
    """R^2 is computed from products of columns, whose condition number is the square of the columns' own.  Of
    all columns together, all but one and every two it is compared with that of a singular value
    decomposition.

    :param Xc: centred columns of length 1 ``[n, p]``; ``yc``: centred ``[n]``
    :raises ValueError: where a log Bayes factor is off by more than :data:`SEEN`
    """
    n, p = Xc.shape
    if p >= n:
        raise ValueError(
            f"{p} columns of {n} rows are linearly dependent with the intercept: no g-prior exists, leave at "
            f"least {p - n + 1} out"
        )
    condition = np.linalg.cond(Xc)
    if not condition < MOST_DEPENDENT:
        raise ValueError(
            "columns of x are linearly dependent (with the intercept), or all but "
            f"(condition number {condition:.1e}): no g-prior exists, leave one out"
        )
    total, every = float(yc @ yc), range(p)
    pairs = [*([i] for i in every), *combinations(every, 2)]
    subsets = [list(every), *([i for i in every if i != j] for j in every), *pairs]
    left = yc - Xc @ np.linalg.lstsq(Xc, yc, rcond=None)[0]
    rough = np.finfo(float).eps * p * math.sqrt(n)  # of products of columns that are far apart
    off = (n - 1) / 2 * math.log1p(g * rough / (1 + g * (left @ left) / total))
    for columns in map(list, filter(None, subsets)):
        chosen = Xc[:, columns]
        left = yc - chosen @ np.linalg.lstsq(chosen, yc, rcond=None)[0]
        gram, moment = torch.as_tensor(chosen.T @ chosen), torch.as_tensor(chosen.T @ yc)
        explained = half_solve(torch.linalg.cholesky(gram), moment).square().sum().item() / total
        logs = [math.log1p(g * max(0.0, part)) for part in (left @ left / total, 1 - explained)]
        off = max(off, (n - 1) / 2 * abs(logs[0] - logs[1]))
    if off > SEEN:
        raise ValueError(
            f"columns of x are so nearly dependent (condition number {condition:.1e}), or g is so large, "
            f"that rounding changes a Bayes factor by {off:.1g} nats: leave one out, or take a smaller g"
        )
