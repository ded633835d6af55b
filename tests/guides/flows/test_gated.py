"""Flows: exact log-determinants before and after training, inverses, structure, refusals."""

import copy
import functools

import pytest
import torch
from torch import nn

from guides.flows.gated import FLOWS, make_flow

pytestmark = pytest.mark.usefixtures("_double")
each_flow = pytest.mark.parametrize("kind", FLOWS)
each_dim = pytest.mark.parametrize("dim", [1, 2, 5, 8])


@functools.cache
def trained(kind: str, dim: int, steps: int = 2, iterations: int = 60):
    """A flow after Adam has pushed its claimed volume up, which is how a wrong determinant is exploited."""
    torch.manual_seed(dim)
    flow = make_flow(kind, dim, steps, (6, 4))
    optimizer = torch.optim.Adam(flow.parameters(), lr=0.05)
    for _ in range(iterations):
        z, log_det = flow.with_log_det(1 + torch.randn(16, dim))
        target = (z - torch.linspace(-1, 2, dim)).square().sum(-1) + (z[:, 0] * z[:, -1] - 1).square()
        optimizer.zero_grad()
        (target - log_det).mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    return flow


@pytest.mark.one_in(4)
@each_flow
@each_dim
@pytest.mark.parametrize("iterations", [0, 60])
def test_log_determinant_is_that_of_the_jacobian(kind, dim, iterations):
    flow = trained(kind, dim, iterations=iterations)
    for z in 1 + torch.randn(4, dim):
        jacobian = torch.autograd.functional.jacobian(flow, z)
        assert (jacobian.slogdet().logabsdet - flow.with_log_det(z)[1]).abs() < 1e-10
        assert (flow.log_abs_det_jacobian(z, flow(z)) - flow.with_log_det(z)[1]).abs() < 1e-12


@pytest.mark.one_in(3)
@each_flow
@each_dim
def test_inverse_undoes_the_flow_in_batches(kind, dim):
    flow = trained(kind, dim)
    z = 1 + torch.randn(3, 2, dim)
    y, log_det = flow.with_log_det(z)
    assert y.shape == z.shape
    assert log_det.shape == (3, 2)
    torch.testing.assert_close(flow.inv(y), z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(y[1, 0], flow(z[1, 0]))


@each_flow
def test_density_integrates_to_one(kind):
    flow = trained(kind, 2)
    line = torch.linspace(-8, 10, 301)
    z = torch.cartesian_prod(line, line)
    start = flow.inv(z)
    base = torch.distributions.Normal(1.0, 1.0).log_prob(start).sum(-1)
    density = (base - flow.with_log_det(start)[1]).exp()
    total = density.sum().item() * (line[1] - line[0]).item() ** 2
    assert total == pytest.approx(1.0, abs=1e-3)


@each_flow
def test_each_step_starts_near_the_identity_around_its_centre(kind):
    flow = make_flow(kind, 30, 2, (50,), centre=1.0)
    y = flow(torch.ones(30) + 0.1 * torch.randn(200, 30))
    assert (y.mean(0) - 1).abs().max() < 0.2
    assert (y.std(0) / 0.1 - 0.85).abs().max() < 0.3


def test_steps_alternate():
    rnvp, iaf = make_flow("rnvp", 5, 4, (3,)), make_flow("iaf", 5, 4, (3,))
    for first, second in (rnvp.parts[:2], rnvp.parts[2:]):
        assert sorted([*first.moved.tolist(), *second.moved.tolist()]) == list(range(5))
    assert not torch.equal(iaf.parts[0].order, iaf.parts[2].order)
    for first, second in (iaf.parts[:2], iaf.parts[2:]):
        assert torch.equal(first.order + second.order, torch.full((5,), 4))


@each_flow
def test_far_draws_are_moved_no_farther_than_they_are(kind):
    """Its density then falls no faster than the base's: networks that are straight lines far out compound."""
    flow = copy.deepcopy(trained(kind, 6))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter *= 5
    direction = torch.randn(50, 6)
    (near, near_det), (far, far_det) = (flow.with_log_det(size * direction) for size in (1e4, 1e8))
    largest = direction.abs().amax()
    assert (far.abs() <= 1e8 * largest + near.abs().max()).all()
    torch.testing.assert_close(far_det, near_det, rtol=1e-2, atol=1e-2)


@each_flow
def test_every_coordinate_is_moved_by_others(kind):
    flow = trained(kind, 6)
    jacobian = torch.autograd.functional.jacobian(flow, torch.ones(6))
    assert ((jacobian != 0).sum(-1) > 1).all()


def test_gradient_reaches_every_parameter():
    flow = trained("rnvp", 5, iterations=3)
    z, log_det = flow.with_log_det(torch.randn(9, 5))
    (z.square().sum() + log_det.sum()).backward()
    assert all((p.grad != 0).all() for p in flow.parameters())
    flow = trained("iaf", 5, iterations=3)
    z, log_det = flow.with_log_det(torch.randn(9, 5))
    (z.square().sum() + log_det.sum()).backward()
    for part in flow.parts:
        for number, layer in enumerate(part.layers):
            assert torch.equal(layer.weight.grad != 0, getattr(part, f"mask{number}") != 0)


@each_flow
def test_a_flow_is_a_module_and_a_torch_transform(kind):
    flow = make_flow(kind, 4, 2, (3,))
    assert isinstance(flow, nn.Module)
    assert isinstance(flow, torch.distributions.Transform)
    base = torch.distributions.Independent(torch.distributions.Normal(torch.ones(4), 1.0), 1)
    law = torch.distributions.TransformedDistribution(base, flow)
    z = law.sample()
    start = flow.inv(z)
    expected = torch.distributions.Normal(1.0, 1.0).log_prob(start).sum() - flow.with_log_det(start)[1]
    torch.testing.assert_close(law.log_prob(z), expected)


@pytest.mark.parametrize("arguments", [("maf", 3, 2, (4,)), ("rnvp", 3, 0, (4,)), ("iaf", 3, 2, (0,))])
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError, match="flow"):
        make_flow(*arguments)


@pytest.mark.parametrize("kind", FLOWS)
def test_last_layers_start_at_a_tenth_of_torchs_own(kind):
    """Whose weights are uniform up to one over the root of the inputs; shifts at the centre, gates at 2."""
    for part in make_flow(kind, 40, 2, (50,), centre=-0.5).parts:
        last = part.layers[-1]
        largest = 0.1 / last.in_features**0.5
        assert 0.9 * largest < last.weight.abs().max() <= largest
        shift, logits = last.bias.chunk(2)
        assert (shift == -0.5).all()
        assert (logits == 2).all()
