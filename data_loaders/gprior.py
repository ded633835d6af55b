"""Exact inclusion probabilities of linear regression under Zellner's g-prior, by visiting all 2^p models."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from data_loaders.errors import DataError

_MOST_COLUMNS = 20


def enumerate_g_prior(x: np.ndarray, y: np.ndarray, g: float) -> tuple[np.ndarray, np.ndarray]:
    """Log Bayes factors [2^p] against the empty model, and inclusion probabilities [p], for x [n, p] and y
    [n].

    Model number k contains column i when bit i of k is set. The intercept is in every model and integrated
    out under a flat prior, the noise variance under 1/sigma^2, the coefficients have the g-prior, and all
    models are equally likely beforehand, so that log BF = ((n - 1 - q) log(1 + g) - (n - 1) log(1 + g (1 -
    R^2))) / 2 with q columns in the model (Liang et al. 2008, Mixtures of g priors for Bayesian variable
    selection). Meant for p up to about 15: time and memory double with every column; DataError above 20.
    """
    rows, columns = x.shape
    if columns > _MOST_COLUMNS:
        raise DataError(f"{columns} columns make 2^{columns} models: too many to visit one by one")
    x = x - x.mean(axis=0)
    y = y - y.mean()
    gram, cross, total = x.T @ x, x.T @ y, float(y @ y)
    log_bf = np.zeros(2**columns)
    for size in range(1, columns + 1):
        chosen = np.array(list(combinations(range(columns), size)))
        block = gram[chosen[:, :, None], chosen[:, None, :]]
        right = cross[chosen]
        r_squared = (np.linalg.solve(block, right[:, :, None])[:, :, 0] * right).sum(axis=1) / total
        numbers = (1 << chosen).sum(axis=1)
        log_bf[numbers] = 0.5 * (
            (rows - 1 - size) * np.log1p(g) - (rows - 1) * np.log1p(g * (1.0 - r_squared))
        )
    weight = np.exp(log_bf - log_bf.max())
    weight /= weight.sum()
    bits = (np.arange(2**columns)[:, None] >> np.arange(columns)) & 1
    return log_bf, weight @ bits
