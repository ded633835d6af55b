"""Shared by the tests of logistic variable selection: data, and exact answers by quadrature."""

import itertools
import os

import numpy as np
import pytest
from scipy.special import expit

from data_loaders import Standardizer, describe, load

#: Inclusion probabilities on mjmcmc_sim_logistic (slab N(0, 1), inclusion .25, intercept N(0, 1)), found by
#: another Polya-Gamma sampler that agreed with another enumeration to .007.
SIMULATION = [
    *(0.147, 0.127, 0.192, 0.048, 0.068, 0.064, 1.0, 0.043, 0.454, 0.074),
    *(0.579, 0.053, 1.0, 0.046, 0.224, 1.0, 1.0, 1.0, 1.0, 0.073),
]


def problem(n: int, p: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) @ (np.eye(p) + 0.4)
    w = np.where(np.arange(p) % 2 == 0, 1.0, 0.0)
    return X, (rng.random(n) < expit(0.5 + X @ w)).astype(float)


def real(name: str):
    """Standardised columns and labels of a set."""
    if describe(name).file and not os.environ.get("ZOO_DATA"):
        pytest.skip("ZOO_DATA does not name the folder of the data sets")
    data = load(name)
    return Standardizer.of(data).transform_x(data.x_train), data.y_train


def by_quadrature(X, y, q, slab, bias, nodes=40):
    """From Gauss-Hermite sums over (b, w), p <= 2: log evidences [2^p], log p(y), inclusion [p], E[w] [p]."""
    p = X.shape[1]
    x, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = weight / weight.sum()
    evidence, first = np.zeros(2**p), np.zeros((2**p, p))
    prior = np.ones(2**p)
    for number in range(2**p):
        inside = [j for j in range(p) if number >> j & 1]
        grid = np.array(list(itertools.product(x, repeat=1 + len(inside))))
        mass = np.prod(list(itertools.product(weight, repeat=1 + len(inside))), axis=1)
        w = np.zeros((len(grid), p))
        w[:, inside] = slab * grid[:, 1:]
        eta = bias * grid[:, :1] + w @ X.T
        mass = mass * np.prod(np.where(y == 1, expit(eta), expit(-eta)), axis=1)
        evidence[number], first[number] = mass.sum(), mass @ w
        prior[number] = q ** len(inside) * (1 - q) ** (p - len(inside))
    total = prior @ evidence
    inclusion = [sum(prior[k] * evidence[k] for k in range(2**p) if k >> j & 1) / total for j in range(p)]
    return np.log(evidence), np.log(total), np.array(inclusion), prior @ first / total
