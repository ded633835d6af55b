"""The Monte Carlo error of a mean log predictive density, which all test rows share."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.evaluation.metrics import draw_error


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sd", [0.3, 2.0])
def test_error_of_draws_is_the_scatter_of_fresh_draws(sd):
    """Of log densities that are Gaussian over draws, even ones and such that few draws have most of the
    weight: the mean log predictive density of S draws scatters by what one set of draws says; the mean over
    rows does not make it smaller, for all rows share the draws.
    """
    generator = torch.Generator().manual_seed(0)
    repeats, size, rows = 400, 300, 10
    shared = torch.randn(repeats, size, 1, generator=generator)
    own = torch.randn(repeats, size, rows, generator=generator)
    log_likelihoods = sd * math.sqrt(0.5) * (shared + own)
    figures = (log_likelihoods.double().logsumexp(1) - math.log(size)).mean(1)
    errors = torch.tensor([draw_error(part.split(7, 1)) for part in log_likelihoods])
    # sd of a sd of R numbers over itself, and of the mean of R errors of 20 groups each
    tolerance = 3 * math.sqrt(1 / (2 * (repeats - 1)) + 1 / (2 * 19 * repeats))
    assert errors.square().mean().sqrt().item() == pytest.approx(figures.std().item(), rel=tolerance)


def test_error_of_two_draws_is_half_the_distance_of_their_logarithms():
    """Of one row with densities 1 and 3: without either the other is left."""
    assert draw_error([torch.tensor([[1.0], [3.0]]).log()]) == pytest.approx(0.5 * math.log(3))


def test_error_of_draws_of_a_chain_counts_what_hangs_together():
    """Every draw 20 times in a row: the error is that of the draws, not of a twentieth of it."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(40, 7, generator=generator)
    grouped = values.reshape(20, 2, 7)  # the 20 groups of 40 draws
    blocks = grouped.repeat_interleave(20, 1).reshape(-1, 7)
    assert draw_error([blocks]) == pytest.approx(draw_error([values]), rel=1e-9)
    assert draw_error([values[:1]]) == 0.0


def test_a_row_that_one_draw_alone_knows_leaves_no_finite_error():
    assert draw_error([torch.tensor([[0.0], [-math.inf]])]) == math.inf


def test_error_of_draws_is_by_leaving_each_of_twenty_groups_out():
    """Of two rows, 43 draws, three of which make their groups longer: by hand."""
    density = torch.rand(43, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    groups = torch.arange(43).tensor_split(20)
    kept = [density[~torch.isin(torch.arange(43), group)].mean(0) for group in groups]
    without = torch.stack(kept).log().mean(1)
    expected = ((without - without.mean()).square().sum() * 19 / 20).sqrt().item()
    assert draw_error([density.log()]) == pytest.approx(expected, rel=1e-9)
