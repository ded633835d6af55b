"""Regressions with correlated columns, for the tests of exact posteriors."""

import numpy as np


def problem(n: int, p: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) @ (np.eye(p) + 0.4)
    w = np.where(np.arange(p) % 2 == 0, 1.0, 0.0)
    return X, X @ w + rng.standard_normal(n)
