"""Compiled steps of a flow: the numbers and derivatives of the eager ones in double precision."""

import math

import pytest
import torch

from guides.core import kernels
from guides.flows import fused
from guides.flows.gated import FLOWS, make_flow

needs_compiler = pytest.mark.skipif(kernels._library() is None, reason="no C compiler")


def flow_of(kind: str, dim: int, spread: float):
    torch.manual_seed(dim)
    flow = make_flow(kind, dim, 3, (13,))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += spread * torch.randn_like(parameter)
    return flow


@needs_compiler
@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize(("dim", "spread"), [(2, 0.3), (31, 0.3), (64, 0.3), (31, 8.0)])
def test_values_and_derivatives_are_those_of_the_eager_flow(kind, dim, spread):
    """With the large spread gates are shut or open to the last bit."""
    flow = flow_of(kind, dim, spread)
    z, d_y, d_log_det = 1 + torch.randn(dim), torch.randn(dim), -0.7
    steps = flow.steps()
    y, log_det, kept = fused.forward(z, steps)
    d_z, d_weights = fused.backward(steps, kept, d_y, d_log_det)
    weights = [tensor for step in steps for tensor in step.weights]
    ours = y, log_det, d_z, *torch.autograd.grad(weights, list(flow.parameters()), d_weights)

    z = z.double().requires_grad_()
    y, log_det = flow.double().with_log_det(z)
    loss = d_y.double().dot(y) + d_log_det * log_det
    exact = y, log_det, *torch.autograd.grad(loss, [z, *flow.parameters()])
    for got, expected in zip(ours, exact, strict=True):
        assert got.isfinite().all()
        rounding = 1e-5 * expected.abs().max().item() + 1e-12
        torch.testing.assert_close(got.double(), expected.double(), rtol=1e-4, atol=rounding)


@needs_compiler
def test_which_flows_have_a_kernel(monkeypatch):
    z, steps = torch.ones(400), make_flow("rnvp", 400, 2, (50,)).steps()
    assert fused.has_kernel(z, steps)
    assert not fused.has_kernel(torch.ones(3, 400), steps)
    assert not fused.has_kernel(z.double(), steps)
    assert fused.has_kernel(z[:2], make_flow("rnvp", 2, 2, (50,)).steps())
    assert not fused.has_kernel(z[:1], make_flow("rnvp", 1, 2, (50,)).steps())  # sees a constant
    for kind in FLOWS:
        assert not fused.has_kernel(z[:20], make_flow(kind, 30, 2, (50,)).steps())  # beyond its end
    assert not fused.has_kernel(z, make_flow("rnvp", 400, 2, (50, 50)).steps())
    assert not fused.has_kernel(z, make_flow("rnvp", 400, 2, ()).steps())
    monkeypatch.setattr(kernels, "_library", lambda: None)
    assert not fused.has_kernel(z, steps)


@needs_compiler
def test_the_log_determinant_is_right_however_small():
    """Gates that are nearly open, or half: to rounding of each step's own."""
    for logit in (0.0, 3.0, 8.0):
        flow = make_flow("rnvp", 6, 1, (4,))
        with torch.no_grad():
            last = flow.parts[0].layers[-1]
            last.weight.zero_()
            last.bias.chunk(2)[1].fill_(logit)
        moved = len(flow.parts[0].moved)
        _, log_det, _ = fused.forward(torch.randn(6), flow.steps())
        expected = -moved * math.log1p(math.exp(-logit))
        assert log_det.item() == pytest.approx(expected, rel=1e-6)
