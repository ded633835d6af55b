"""The multipliers' compiled nodes against autograd of their formulas in double precision."""

import pytest
import torch

from guides.core import kernels
from guides.flows.gated import FLOWS
from guides.variational.multipliers import Multipliers


@pytest.mark.skipif(kernels._library() is None, reason="no C compiler")
@pytest.mark.parametrize("far", [1.0, 1e4])
@pytest.mark.parametrize("kind", FLOWS)
def test_compiled_nodes_have_the_gradients_of_the_formulas(kind, far):
    """Of draws far out too, where tanh is constant."""
    torch.manual_seed(5)
    module = Multipliers(31, kind, 2, (13,), 1.0, 0.3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    noise, seen, weight = far * torch.randn(31), torch.randn(9, requires_grad=True), torch.randn(31)

    def results(noise, seen, weight):
        z, density = module(noise, expected=True)
        score = module.log_auxiliary(z, seen)
        loss = z.dot(weight) + 0.7 * density - 0.3 * score
        compiled = {type(t.grad_fn).__name__ for t in (density, score)}
        return compiled, [z, density, score, *torch.autograd.grad(loss, [seen, *module.parameters()])]

    names, ours = results(noise, seen, weight)
    assert names == {"_DrawBackward", "_AuxiliaryScoreBackward"}
    module.double()
    names, exact = results(noise.double(), seen.detach().double().requires_grad_(), weight.double())
    assert names == {"SubBackward0"}
    # A slope of tanh falls by exp(-2 |a|): its relative error is twice the absolute one of a, a sum of terms
    # as large as the draws, whose rounding differs between processors.
    relative = 1e-4 + 2 * far * torch.finfo(torch.float32).eps
    for got, expected in zip(ours, exact, strict=True):
        rounding = 1e-5 * expected.abs().max().item() + 1e-20  # far out slopes are below what float32 has
        torch.testing.assert_close(got.double(), expected, rtol=relative, atol=rounding)


@pytest.mark.parametrize("kind", FLOWS)
def test_a_rare_draw_far_out_costs_its_square_and_no_more(kind):
    """A density that falls faster makes the bound depend on draws that nobody sees."""
    torch.manual_seed(3)
    module = Multipliers(20, kind, 2, (50,), 1.0, 0.1).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
        z, seen = 1e6 * torch.randn(100, 20).double(), torch.randn(100, 3).double()
        cost = -module.log_auxiliary(z, seen)
        variance = module._auxiliary_normal(seen)[1].exp()
    assert (cost <= 1.01 * 0.5 * (z.square() / variance).sum(-1)).all()


@pytest.mark.skipif(kernels._library() is None, reason="no C compiler")
@pytest.mark.parametrize("node", ["draw", "score"])
def test_weights_that_change_before_backward_are_refused(node):
    """As torch refuses it for the formulas; the gradient would be another one."""
    module = Multipliers(8, "rnvp", 2, (5,), 1.0, 0.3)
    z = torch.randn(8)
    loss = module(z, expected=True)[1] if node == "draw" else module.log_auxiliary(z, torch.randn(3))
    with torch.no_grad():
        for parameter in (*module.flow.parameters(), *module.auxiliary_flow.parameters()):
            parameter *= 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_noise_with_a_gradient_gets_it():
    module = Multipliers(8, "rnvp", 2, (5,), 1.0, 0.3)
    noise = torch.randn(8, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(noise, expected=True)[0].sum(), noise)
    assert (gradient != 0).all()
