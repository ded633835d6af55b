"""The Pareto k diagnostic of a variational posterior, through ArviZ.

Sources: Yao, Vehtari, Simpson, Gelman (2018, ICML), "Yes, but did it work?"; Vehtari, Simpson, Gelman, Yao,
Gabry (2024, JMLR 25:72) for the smoothing itself.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from guides.posterior.arviz_io import import_arviz

#: The tail is a fifth of the draws, and ArviZ fits it only when it holds at least five.
FEWEST_DRAWS = 25
#: Log weight, relative to the largest, below which ArviZ takes a weight for 0.
SMALLEST = math.log(np.finfo(float).tiny)


def pareto_k(log_weights: Tensor | np.ndarray) -> float:
    """Tail index of the importance weights p(theta, y)/q(theta) of draws theta from the guide q; lower is
    better.

    Below 0.5 the weights have a finite variance and the guide is close to the posterior; up to 0.7 importance
    sampling from it still works; above 0.7 the guide misses part of the posterior.  Many weights make a large
    k even for a decent guide, so it is a statement about the joint posterior, not about predictions.

    :param log_weights: [S], ``log p(theta_s, y) - log q(theta_s)``, up to a constant; minus infinity is a
        weight of 0
    :return: k; ``inf`` when a log weight is NaN or plus infinity, or when no more draws carry weight than
        a tail has (three times the root of the number of draws, at most a fifth of them): there is none to
        fit; 0.0 when the weights of the tail and the next are all equal, as those of an exact guide are
    :raises ValueError: fewer than 25 draws, or not one dimension
    """
    values = torch.as_tensor(log_weights).detach().cpu().double().numpy()
    if values.ndim != 1 or len(values) < FEWEST_DRAWS:
        raise ValueError(f"Pareto k needs at least {FEWEST_DRAWS} log weights [S], got shape {values.shape}")
    top = values.max()
    if not math.isfinite(top):  # NaN wins the maximum
        return math.inf
    values = values - top
    below = np.sort(values)[-_tail(len(values)) - 1]  # the largest weight that is not in the tail
    if below < SMALLEST:
        return math.inf  # ArviZ fits a tail of what there is, five draws
    if below == 0:
        return 0.0
    with np.errstate(all="ignore"):
        k = float(import_arviz().psislw(values)[1])
    return k if math.isfinite(k) else math.inf


def _tail(draws: int) -> int:
    """How many weights ArviZ fits, as Vehtari et al. say."""
    return math.ceil(min(draws / 5, 3 * draws**0.5))
