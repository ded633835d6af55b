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


def pareto_k(log_weights: Tensor | np.ndarray) -> float:
    """Tail index of the importance weights p(theta, y)/q(theta) of draws theta from the guide q; lower is
    better.

    Below 0.5 the weights have a finite variance and the guide is close to the posterior; up to 0.7 importance
    sampling from it still works; above 0.7 the guide misses part of the posterior.  Many weights make a large
    k even for a decent guide, so it is a statement about the joint posterior, not about predictions.

    :param log_weights: [S], ``log p(theta_s, y) - log q(theta_s)``, up to a constant; minus infinity is a
        weight of 0
    :return: k; ``inf`` when a log weight is NaN or plus infinity, when all weights are 0, or when so few
        draws carry all the weight that there is no tail to fit; 0.0 when all weights are equal (the guide is
        exact)
    :raises ValueError: fewer than 25 draws, or not one dimension
    """
    values = torch.as_tensor(log_weights).detach().cpu().double().numpy()
    if values.ndim != 1 or len(values) < FEWEST_DRAWS:
        raise ValueError(f"Pareto k needs at least {FEWEST_DRAWS} log weights [S], got shape {values.shape}")
    top = values.max()
    if not math.isfinite(top):  # NaN wins the maximum
        return math.inf
    if values.min() == top:
        return 0.0
    with np.errstate(all="ignore"):
        k = float(import_arviz().psislw(values - top)[1])
    return k if math.isfinite(k) else math.inf
