"""Pareto k: known tail indices, a guide that is too narrow, and weights that are no numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from zoo.evaluation.pareto import pareto_k


@pytest.mark.parametrize("index", [0.2, 0.5, 0.7, 1.0])
def test_pareto_weights_have_their_tail_index(index):
    """Weights U**-k are Pareto with index k; mean of eight estimates, each with an sd of some 0.1."""
    g = torch.Generator().manual_seed(0)
    estimates = [
        pareto_k(index * torch.empty(4000, dtype=torch.float64).exponential_(generator=g)) for _ in range(8)
    ]
    assert np.mean(estimates) == pytest.approx(index, abs=0.13)


def test_a_narrow_guide_is_worse_than_a_wide_one():
    """Target N(0, 1), guide N(0, s): the tail index is 1 - s**2 for s < 1, and bounded weights for s > 1."""
    torch.manual_seed(0)
    ks = []
    for s in (0.4, 0.9, 1.5):
        guide = Normal(torch.tensor(0.0), torch.tensor(s))
        x = guide.sample((20_000,))
        ks.append(pareto_k(Normal(0.0, 1.0).log_prob(x) - guide.log_prob(x)))
    assert ks[0] == pytest.approx(1 - 0.4**2, abs=0.25)
    assert ks[0] > 0.5 > ks[1] > ks[2]


def test_a_constant_does_not_matter():
    x = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert pareto_k(x + 1e4) == pytest.approx(pareto_k(x), abs=1e-6)
    assert pareto_k(x.numpy()) == pareto_k(x)


@pytest.mark.parametrize(
    ("change", "expected"), [(math.nan, math.inf), (math.inf, math.inf), (1e6, math.inf), (-math.inf, None)]
)
def test_one_strange_weight(change, expected):
    x = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = x.clone()
    x[7] = change
    k = pareto_k(x)
    assert k == expected if expected is not None else k == pytest.approx(pareto_k(before), abs=0.05)


def test_weights_that_are_nearly_equal_have_the_tail_of_what_they_differ_by():
    """Only equal ones have none: of ``1 + 1e-6 t`` it is that of ``t``."""
    index, g = 0.6, torch.Generator().manual_seed(0)
    tail = torch.rand(4000, generator=g, dtype=torch.float64).pow(-index)
    assert pareto_k((1e-6 * tail).log1p()) == pytest.approx(index, abs=0.25)


def test_all_equal_and_all_zero_weights():
    assert pareto_k(torch.full((100,), -3.0)) == 0
    assert pareto_k(torch.full((100,), -math.inf)) == math.inf
    assert pareto_k(300 * torch.randn(100, generator=torch.Generator().manual_seed(0))) > 0.7


@pytest.mark.parametrize("rest", [-math.inf, -1000.0])
@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("carriers", [1, 5, 20, 95])
def test_no_more_draws_with_weight_than_a_tail_has(carriers, spread, rest):
    """A k of the few that there are was as that of an excellent guide: -5 for 50 of 1000 draws."""
    x = torch.full((1000,), rest, dtype=torch.float64)
    x[:carriers] = spread * torch.randn(carriers, generator=torch.Generator().manual_seed(0))
    assert pareto_k(x) == math.inf


@pytest.mark.parametrize(("draws", "tail"), [(1000, 95), (100, 20)])
def test_the_tail_is_what_arviz_fits(draws, tail):
    """One draw more than a tail has: its weight is the threshold, and the tail is fitted."""
    x = torch.full((draws,), -math.inf, dtype=torch.float64)
    x[: tail + 1] = 0.3 * torch.randn(tail + 1, generator=torch.Generator().manual_seed(0))
    assert math.isfinite(pareto_k(x))
    x[0] = -math.inf
    assert pareto_k(x) == math.inf


@pytest.mark.parametrize("carriers", [96, 500, 999])
def test_weights_that_are_equal_or_nothing_have_no_tail(carriers):
    """Their variance is finite, whatever share of the draws has them."""
    x = torch.full((1000,), -math.inf, dtype=torch.float64)
    x[:carriers] = 2.0
    assert pareto_k(x) == 0.0


@pytest.mark.parametrize("shape", [(0,), (24,), (30, 2)])
def test_too_few_weights_are_refused(shape):
    with pytest.raises(ValueError, match="at least 25"):
        pareto_k(torch.zeros(shape))
    assert math.isfinite(pareto_k(torch.randn(25, generator=torch.Generator().manual_seed(0))))
