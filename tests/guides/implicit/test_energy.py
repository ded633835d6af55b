"""Alpha energies against their limits, quadrature and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from guides.implicit.energy import check_alpha, gaussian_log_power, power_mean

TERMS = torch.tensor([[-1.0, -30.0, 2.0], [-2.0, -800.0, 2.0], [0.5, -3.0, 2.0]], dtype=torch.float64)


def numbers(*values: float):
    return (torch.tensor(value, dtype=torch.float64) for value in values)


def test_power_mean_at_one_is_the_log_of_the_mean():
    first = math.log((math.exp(-1) + math.exp(-2) + math.exp(0.5)) / 3)
    expected = torch.tensor([first, -3 - math.log(3), 2], dtype=torch.float64)
    torch.testing.assert_close(power_mean(TERMS, 1.0), expected)


def test_power_mean_grows_with_alpha_from_the_mean():
    """Near 0 it is the mean plus alpha/2 times the variance, exactly to first order."""
    torch.testing.assert_close(power_mean(TERMS, 0.0), TERMS.mean(0))
    values = torch.stack([power_mean(TERMS, alpha) for alpha in (0.0, 1e-6, 1e-3, 0.1, 0.5, 1.0)])
    assert (values.diff(dim=0)[:, :2] > 0).all()
    alpha = 1e-4
    growth = (power_mean(TERMS[:, :1], alpha) - TERMS[:, :1].mean(0)) / alpha
    torch.testing.assert_close(growth, TERMS[:, :1].var(0, correction=0) / 2, rtol=1e-3, atol=0)
    torch.testing.assert_close(power_mean(TERMS[:, :1], 1e-8), TERMS[:, :1].mean(0), rtol=0, atol=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.5, 1.0])
@pytest.mark.parametrize("variance", [0.0, 0.3])
def test_gaussian_log_power_is_the_integral(alpha, variance):
    y, mean, variance, noise = numbers(1.2, 0.4, variance, 0.2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    f = mean + variance.sqrt() * torch.as_tensor(nodes)
    weights = torch.as_tensor(weights / weights.sum())
    log_terms = Normal(f, noise.sqrt()).log_prob(y)
    if alpha:
        exact = torch.logsumexp(alpha * log_terms + weights.log(), 0) / alpha
    else:
        exact = (weights * log_terms).sum()
    torch.testing.assert_close(gaussian_log_power(y, mean, variance, noise, alpha), exact, rtol=1e-6, atol=0)


def test_gaussian_log_power_at_one_is_the_predictive_density():
    y, mean, variance, noise = numbers(1.2, 0.4, 0.3, 0.2)
    expected = Normal(mean, (variance + noise).sqrt()).log_prob(y)
    torch.testing.assert_close(gaussian_log_power(y, mean, variance, noise, 1.0), expected)


def test_limit_is_continuous():
    """Of the energy of several draws, with its gradient."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(7, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    y, variance = torch.randn(3, generator=generator, dtype=torch.float64), torch.full((3,), 0.1).double()

    def energy(alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
        terms = gaussian_log_power(y, mean, variance, torch.tensor(0.3, dtype=torch.float64), alpha)
        value = power_mean(terms, alpha).sum()
        return value.detach(), torch.autograd.grad(value, mean)[0]

    limit = energy(0.0)
    sizes = [
        max((a - b).abs().max().item() for a, b in zip(energy(alpha), limit, strict=True))
        for alpha in (1e-2, 1e-4, 1e-6)
    ]
    assert sizes[1] == pytest.approx(sizes[0] / 100, rel=0.2)
    assert sizes[2] == pytest.approx(sizes[1] / 100, rel=0.2)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_outside_the_unit_interval(alpha):
    with pytest.raises(ValueError, match="alpha must lie in"):
        check_alpha(alpha)
