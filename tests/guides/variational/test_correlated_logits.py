"""Laws of correlated inclusion logits: q, and the reverse density r of the bound, by plain algebra."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from pyro import distributions as dist
from torch.nn import functional as F

from guides.core import moments
from guides.testing import assert_mean
from guides.variational.correlated_logits import (
    FINE,
    QUICK,
    CorrelatedSpikeSlabLaw,
    Layout,
    LogitGaussian,
    mean_sigmoid,
)
from tests.guides.variational.correlated import nodes

PATTERNS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=2)), dtype=torch.float64)


def gaussian(seed: int = 0, groups: tuple = (), n: int = 2, rank: int = 2) -> LogitGaussian:
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(*groups, n, generator=generator, dtype=torch.float64) for _ in range(5)]
    factor = torch.randn(*groups, n, rank, generator=generator, dtype=torch.float64)
    return LogitGaussian(draw[0], draw[1].exp(), factor, draw[2], draw[3].exp(), draw[4])


@pytest.mark.parametrize("rank", [1, 2])
def test_deviations_have_the_covariance(rank):
    law = gaussian(4, groups=(3,), rank=rank)
    draws = law.deviations((20_000,))
    assert draws.shape == (20_000, 3, 2)
    assert_mean(draws, 0.0)
    assert_mean(draws.unsqueeze(-1) * draws.unsqueeze(-2), law.covariance)


def reverse_law(law: LogitGaussian, gates: torch.Tensor) -> dist.MultivariateNormal:
    """``r(delta | gamma)`` as the docstring defines it, by plain matrix algebra."""
    precision = torch.linalg.inv(law.covariance) + torch.diag(law.curvature)
    covariance = torch.linalg.inv(precision)
    return dist.MultivariateNormal((law.pull * (gates - law.slope)) @ covariance, covariance)


@pytest.mark.parametrize("seed", range(5))
def test_ratio_is_that_of_two_normal_densities(seed):
    """So that r is normalised: the condition for a bound."""
    law = gaussian(seed)
    deviation = law.deviations((4,))
    forward = dist.MultivariateNormal(torch.zeros(2).double(), law.covariance).log_prob(deviation)
    for gates in PATTERNS:
        expected = forward - reverse_law(law, gates).log_prob(deviation)
        torch.testing.assert_close(law.log_ratio(gates, deviation), expected)


def test_expected_ratio_over_independent_indicators():
    law = gaussian(2)
    deviation = law.deviations()
    probs = torch.sigmoid(law.mean + deviation)
    weights = torch.exp(PATTERNS @ probs.log() + (1 - PATTERNS) @ (1 - probs).log())
    expected = (weights * law.log_ratio(PATTERNS, deviation)).sum()
    torch.testing.assert_close(law.log_ratio(probs, deviation, probs * (1 - probs)), expected)


def test_gradient_of_the_ratio():
    """Part of it is written by hand."""
    law = gaussian(groups=(2,), n=4)
    parts = [
        getattr(law, name).requires_grad_() for name in ("diagonal", "factor", "slope", "curvature", "pull")
    ]
    gates, variance = (torch.rand(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    deviation = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def ratio(gates, deviation, variance, *parts):
        return LogitGaussian(law.mean, *parts).log_ratio(gates, deviation, variance)

    assert torch.autograd.gradcheck(ratio, (gates, deviation, variance, *parts))


def pattern_probabilities(law: LogitGaussian) -> torch.Tensor:
    """``q(gamma)`` of :data:`PATTERNS` by quadrature, ``[4]``."""
    grid, weights = nodes(2, 60)
    logits = law.mean + grid @ torch.linalg.cholesky(law.covariance).T
    given = PATTERNS @ logits.T - F.softplus(logits).sum(-1)
    return given.exp() @ weights


@pytest.mark.parametrize("seed", range(5))
def test_surrogate_of_the_entropy_is_on_the_right_side(seed):
    """``E[log q(gamma | lambda) + log q(lambda) / r(lambda | gamma)]`` is above ``E log q(gamma)``."""
    law = gaussian(seed)
    grid, weights = nodes(2, 60)
    deviation = grid @ torch.linalg.cholesky(law.covariance).T
    logits = law.mean + deviation
    probs = torch.sigmoid(logits)
    surrogate = law.log_ratio(probs, deviation, probs * (1 - probs)) - moments.bernoulli_entropy(logits).sum(
        -1
    )
    truth = pattern_probabilities(law)
    assert truth.sum().item() == pytest.approx(1, abs=1e-9)
    assert (weights @ surrogate).item() > (truth * truth.log()).sum().item() - 1e-9


def test_surrogate_is_exact_without_spread():
    law = gaussian(1)
    small = LogitGaussian(
        law.mean, 1e-6 * law.diagonal, 1e-3 * law.factor, torch.sigmoid(law.mean), law.curvature,
        torch.ones(2).double(),
    )  # fmt: skip
    assert small.log_ratio(torch.sigmoid(law.mean), small.deviations()).abs().item() < 1e-4


def test_importance_estimate_of_the_density():
    probs = torch.sigmoid(gaussian(3).mean)
    law = replace(gaussian(3), slope=probs, curvature=probs * (1 - probs), pull=torch.ones(2).double())
    truth = pattern_probabilities(law)
    estimate = law.log_gates(PATTERNS, 100_000).exp()
    torch.testing.assert_close(estimate, truth, rtol=0.05, atol=0)


@pytest.mark.parametrize(("event", "unit_dim", "shape"), [
    ((), 0, (1,)), ((3,), 0, (3,)), ((2, 3), 0, (2, 3)), ((3, 2), 1, (2, 3)), ((2, 3, 4, 5), 0, (2, 60)),
])  # fmt: skip
def test_groups_are_output_units(event, unit_dim, shape):
    layout = Layout(event, unit_dim)
    tensor = torch.randn(7, *event)
    grouped = layout.to_groups(tensor)
    assert grouped.shape == (7, *shape)
    assert torch.equal(layout.from_groups(grouped), tensor)
    if len(event) == 2:
        assert torch.equal(grouped[0, 1], tensor[0].select(unit_dim, 1))


@pytest.mark.parametrize(
    ("rule", "widest", "relative", "absolute"), [(FINE, 30.0, 1e-5, 1e-7), (QUICK, 3.0, 1e-3, 0.0)]
)
def test_mean_sigmoids_are_right_where_inclusion_is_rare(rule, widest, relative, absolute):
    """A rule that cuts the tail has half of them at a mean of -10."""
    mean, sd = torch.meshgrid(torch.linspace(-10, 10, 11), torch.linspace(0.1, widest, 5), indexing="ij")
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    values = torch.sigmoid(mean.double()[..., None] + sd.double()[..., None] * z)
    exact = torch.trapezoid(values * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi), z)
    found = mean_sigmoid(mean.double(), sd.double().square(), rule)
    torch.testing.assert_close(found, exact, rtol=relative, atol=absolute)


@pytest.mark.parametrize("logit", [-200.0, 17.0, 90.0, 800.0])
def test_priors_are_learned_where_all_is_sure(logit):
    """In single precision weights that sum to one may sum to more."""
    mean = torch.full((3, 4), logit)
    flat = LogitGaussian(mean, torch.full_like(mean, 0.01), torch.zeros(3, 4, 1), mean, mean.exp(), mean)
    assert (flat.probs() <= 1).all()
    assert (mean_sigmoid(mean, torch.full_like(mean, 0.01), QUICK) <= 1).all()
    law = CorrelatedSpikeSlabLaw.__new__(CorrelatedSpikeSlabLaw)
    law.gaussian, law.layout = flat, Layout((3, 4))
    logits = law.mean_logits()()
    assert logits.isfinite().all()
    assert (logits.sign() == math.copysign(1.0, logit)).all()
