"""Sparse implicit processes against an exact Gaussian process, and on two branches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from guides.implicit import SparseImplicitProcess

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::guides.implicit.SaturationWarning")]


class Line(nn.Module):
    """``f(x) = a + b x`` with standard normal a and b: a Gaussian process of two degrees of freedom."""

    @staticmethod
    def features(x):
        return torch.cat((torch.ones_like(x), x), 1)

    def draw(self, n):
        w = torch.randn(n, 2)
        return lambda x: w @ self.features(x).mT


def test_a_gaussian_process_is_found():
    """With KL(q || p), alpha = 0 and a known noise the objective is the bound, and the exact posterior its
    optimum.
    """
    x = torch.linspace(-1.5, 1.5, 12).unsqueeze(-1)
    y = 0.5 * x[:, 0] + 0.6 * torch.randn(12)
    guide = SparseImplicitProcess(
        Line(), 2, alpha=0.0, num_functions=200, num_particles=200, symmetrised=False, noise_scale=0.6
    ).fit(x, y, steps=1500, batch_size=12, lr=2e-3, classifier_lr=5e-3)
    assert guide.noise_variance == pytest.approx(0.36)
    assert not guide.facts["saturated"]
    at = torch.linspace(-1.8, 1.8, 30).unsqueeze(-1)
    phi, psi = Line.features(x).double(), Line.features(at).double()
    gram = phi @ phi.mT + 0.36 * torch.eye(12, dtype=torch.float64)
    gain = torch.linalg.solve(gram, phi @ psi.mT)
    mean, sd = gain.mT @ y.double(), (psi @ psi.mT - psi @ phi.mT @ gain).diagonal().sqrt()
    law = guide.predictive(at, noise=False, num_samples=4000)
    assert ((law.mean - mean) / sd).abs().max() < 0.15
    assert (law.variance.sqrt() / sd).log().abs().max() < 0.15


def test_two_branches_are_found():
    """y = -1 or 1 whatever x is, noise 0.1: no predictive that is Gaussian has more than -1.42 nats."""
    x, sign = torch.randn(600, 1), torch.randint(2, (600,)) * 2.0 - 1
    y = sign + 0.1 * torch.randn(600)
    guide = SparseImplicitProcess(Line(), 2, alpha=1.0, hidden=(20,), noise_features=5, num_functions=20)
    guide.fit(x[:300], y[:300], steps=800, batch_size=50, lr=1e-2)
    law = guide.predictive(x[300:])
    assert law.log_prob(y[300:].double()).mean() > -0.9
    assert law.cdf(torch.zeros(300, dtype=torch.float64)).mean() == pytest.approx(0.5, abs=0.15)
