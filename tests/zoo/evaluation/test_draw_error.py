"""The Monte Carlo error of a mean log predictive density, which all test rows share."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.evaluation.metrics import draw_error


def test_error_of_draws_is_the_scatter_of_fresh_draws():
    """Of a Gaussian mean with a known posterior: the mean log predictive density of S draws scatters by what
    one set of draws says; the mean over rows does not make it smaller, for all rows share the draws.
    """
    generator = torch.Generator().manual_seed(0)
    y, repeats, size = torch.linspace(-2.0, 2.0, 40), 200, 400
    w = 0.5 * torch.randn(repeats, size, generator=generator)
    log_likelihoods = torch.distributions.Normal(w[:, :, None], 1.0).log_prob(y)  # [repeats, size, 40]
    figures = (log_likelihoods.double().logsumexp(1) - math.log(size)).mean(1)
    errors = torch.tensor([draw_error(part.split(17, 1)) for part in log_likelihoods])
    # sd of a sd of R numbers over itself, and of the mean of R errors of 20 groups each
    tolerance = 4 * math.sqrt(1 / (2 * (repeats - 1)) + 1 / (2 * 19 * repeats))
    assert errors.square().mean().sqrt().item() == pytest.approx(figures.std().item(), rel=tolerance)


def test_error_of_two_draws_is_half_their_distance():
    """Of one row with densities 1 and 3: 0.5 and 1.5 in units of their mean, each a group of its own."""
    assert draw_error([torch.tensor([[1.0], [3.0]]).log()]) == pytest.approx(0.5)


def test_error_of_draws_of_a_chain_counts_what_hangs_together():
    """Every draw 20 times in a row: the error is that of the draws, not of a twentieth of it."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(40, 7, generator=generator)
    grouped = values.reshape(20, 2, 7)  # the 20 groups of 40 draws
    blocks = grouped.repeat_interleave(20, 1).reshape(-1, 7)
    assert draw_error([blocks]) == pytest.approx(draw_error([values]), rel=1e-9)
    assert draw_error([values[:1]]) == 0.0


def test_error_of_draws_is_by_the_means_of_twenty_groups():
    """Of one row, forty draws: by hand from the density of each, in units of their mean."""
    density = torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    groups = (density / density.mean()).reshape(20, 2).mean(1)
    expected = (groups.var() / 20).sqrt().item()
    assert draw_error([density.log()[:, None]]) == pytest.approx(expected, rel=1e-9)
