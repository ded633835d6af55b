"""The joint law of spikes and slabs: all models sum to one, draws follow it, weights given indicators."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributions import MultivariateNormal

from guides.testing import assert_mean
from guides.variational.joint_law import JointLaw


@pytest.fixture
def law():
    generator = torch.Generator().manual_seed(2)
    spikes = torch.tensor([True, False, True, True])
    random = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(random @ random.T + torch.eye(4))
    pulls = 1.5 * torch.randn(3, 3, generator=generator, dtype=torch.float64).tril(-1)
    logits, linear = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, 4))
    return JointLaw(spikes, logits, pulls, root, linear)


def test_probabilities_of_all_models_sum_to_one_and_are_those_of_the_draws(law):
    gammas = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.float64)
    probs = law.log_prob_of_indicators(gammas).exp()
    assert probs.sum().item() == pytest.approx(1, rel=1e-12)
    torch.manual_seed(0)
    n = 20_000
    drawn = law.indicators(n) @ torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    counts = torch.bincount(drawn.long(), minlength=8)
    assert ((counts - n * probs).square() / (n * probs)).sum() < 26.1  # chi-square, 7 degrees, 0.0005


def test_weights_given_indicators_are_gaussian_in_what_is_in(law):
    gamma = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    inside = [0, 1, 3]  # the site without a spike always is
    precision = (law.root @ law.root.T)[inside][:, inside]
    normal = MultivariateNormal(torch.linalg.solve(precision, law.linear[inside]), precision_matrix=precision)
    torch.manual_seed(1)
    w, log_q = law.weights(gamma.expand(30_000, 3))
    assert (w[:, 2] == 0).all()
    assert torch.allclose(log_q, normal.log_prob(w[:, inside]))
    assert torch.allclose(law.log_prob(w[:9]), log_q[:9] + law.log_prob_of_indicators(gamma))
    w = w[:, inside]
    assert_mean(w, normal.mean)
    products = (w - normal.mean)[:, :, None] * (w - normal.mean)[:, None, :]
    assert_mean(products, normal.covariance_matrix)
