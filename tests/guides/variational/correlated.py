"""Guides with correlated inclusions, and nodes of quadrature, for the tests of AutoSpikeSlabMVN."""

import itertools
import math

import numpy as np
import pytest
import torch

from guides import AutoSpikeSlabMVN


def full(model, **kwargs):
    return AutoSpikeSlabMVN(model, rank=None, **kwargs)


def low_rank(model, **kwargs):
    return AutoSpikeSlabMVN(model, rank=2, **kwargs)


each_kind = pytest.mark.parametrize("make", [full, low_rank])


def nodes(n: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gauss-Hermite nodes ``[count^n, n]`` and weights for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    grid = torch.tensor(list(itertools.product(points, repeat=n)))
    return grid, torch.tensor([math.prod(w) for w in itertools.product(weights, repeat=n)])
