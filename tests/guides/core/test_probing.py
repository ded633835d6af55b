"""Runs that look leave parameters and running statistics as they were, and see what a gate at zero hides."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro.nn import PyroModule, PyroParam
from torch import nn
from torch.distributions import constraints

from guides import AutoMeanField, AutoSpikeSlab
from tests.guides.core.one_site import observe, weights


class Gated(PyroModule):
    """Errors that follow each other, by a coefficient that starts at zero: then no two rows meet."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, zero = kind, torch.zeros(1)
        if kind == "parameter":
            self.rho = nn.Parameter(zero)
        elif kind == "constrained":
            self.rho = PyroParam(zero, constraints.interval(-1.0, 1.0))
        elif kind == "module":
            self.inner = nn.ParameterList([nn.Parameter(zero)])

    def coefficient(self) -> torch.Tensor:
        if self.kind == "statement":
            return pyro.param("rho", torch.zeros(1))
        return self.inner[0] if self.kind == "module" else self.rho

    def forward(self, x, y):
        if self.kind == "module":
            pyro.module("inner", self.inner)
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        f = x @ w
        mean = torch.cat([f[:1], f[1:] + self.coefficient() * (y[:-1] - f[:-1])])
        observe(dist.Normal(mean, 1.0), y, len(x))


@pytest.mark.parametrize("kind", ["statement", "parameter", "constrained", "module"])
def test_what_a_trained_gate_hides_at_zero_is_seen(kind):
    """And the gate is as it was afterwards."""
    model, x, y = Gated(kind), torch.randn(20, 2), torch.randn(20)
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert not guide.sites["w"].by_moments
    assert (model.coefficient() == 0).all()


def test_a_parameter_at_the_edge_of_its_support_hides_nothing_and_refuses_nothing():
    """A gate that may not be negative starts at minus infinity in unconstrained space."""

    def model(x, y):
        gate = pyro.param("gate", torch.zeros(2), constraint=constraints.nonnegative)
        observe(dist.Normal((x * (1 + gate)) @ weights(True, 2), 1.0), y, len(x))

    guide = AutoSpikeSlab(model)
    guide.setup(torch.randn(9, 2), torch.zeros(9))
    assert guide.sites["w"].by_moments
    assert (pyro.param("gate") == 0).all()


def test_set_up_leaves_running_statistics_alone():
    norm = nn.BatchNorm1d(3, affine=False)

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        observe(dist.Normal(norm(F.linear(x, w)).sum(-1), 1.0), y, len(x))

    x, y = torch.randn(9, 2), torch.zeros(9)
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert norm.num_batches_tracked == 0
    assert (norm.running_var == 1).all()
    guide(x, y)
    assert norm.num_batches_tracked == 1


def test_statistics_of_a_functional_call_are_its_own():
    """The module's are not touched, and the call's are put back."""
    norm = nn.BatchNorm1d(3, affine=False)
    buffers = {name: value.clone() for name, value in norm.named_buffers()}
    own = norm.running_mean

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        f = torch.func.functional_call(norm, buffers, F.linear(x, w))
        observe(dist.Normal(f.sum(-1), 1.0), y, len(x))

    AutoMeanField(model).setup(torch.randn(9, 2), torch.zeros(9))
    assert norm.running_mean is own
    assert (own == 0).all()
    assert (buffers["running_mean"] == 0).all()
