"""The layers of AutoMNF against drawn networks, given one draw of z and marginally."""

import pytest
import torch
from pyro.infer import Predictive
from torch.nn import functional as F

from guides import AutoMNF
from guides.testing import (
    Noise,
    assert_mean,
    assert_same_moments,
    assert_share,
    assert_variance,
    data,
    network,
    normal,
)
from guides.variational.multipliers import Multipliers
from tests.guides.variational.multiplied import each_prior, law_given

LAYERS = {
    "dense": ((3, 200), 1, (4, 200), lambda x, w: F.linear(x, w)),
    "columns": ((200, 3), 0, (4, 200), lambda x, w: x @ w),
    "conv": ((3, 4, 5, 5), 0, (2, 4, 6, 6), lambda x, w: F.conv2d(x, w)),
}
each_layer = pytest.mark.parametrize("name", LAYERS)
each_family = pytest.mark.parametrize("kind", ["gaussian", "spike-slab"])


@each_family
@each_layer
def test_layers_have_the_moments_given_z(name, kind):
    """The output where the rows' noise is zero, and what noise one adds."""
    shape, axis, inputs, layer = LAYERS[name]
    x, outputs = torch.randn(inputs), []
    of_z = torch.randn(1, shape[axis])
    for level in (0.0, 1.0):
        law = law_given(0.4, kind, shape, axis)
        with Noise(torch.cat([of_z, torch.full((1, 1000), level)], 1)).of(0):
            outputs.append(layer(x, law.rsample()).detach())
    mean = layer(x, law.mean).detach()
    added = layer(x, law.variance.sqrt()) if name == "conv" else layer(x**2, law.variance).sqrt()
    torch.testing.assert_close(outputs[0], mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs[1], mean + added.detach(), rtol=1e-4, atol=1e-4)


@each_family
@each_layer
def test_layers_cover_drawn_networks_given_z(name, kind):
    shape, axis, inputs, layer = LAYERS[name]
    x, law = torch.randn(inputs), law_given(1e-6, kind, shape, axis)  # z is nearly fixed
    with torch.no_grad():
        drawn = torch.vmap(lambda w: layer(x, w))(law.sample([1500]))
        mean, variance = layer(x, law.mean), layer(x**2, law.variance)
    inside = ((drawn - mean).abs() < 1.644854 * variance.sqrt()).double().flatten(1)
    assert_share(inside[:, ::7], 0.9)
    assert_mean(drawn.flatten(1)[:, ::5], mean.flatten()[::5])
    assert_variance(drawn.flatten(1)[:, ::5], variance.flatten()[::5])


@each_family
def test_layers_have_the_moments_of_drawn_networks(kind):
    """Marginally: every particle has a z of its own, which serves all rows."""
    shape, axis, inputs, layer = LAYERS["dense"]
    x = torch.randn(inputs)
    by_lrt = layer(x, law_given(0.4, kind, shape, axis).expand([600, 1]).rsample()).detach()
    with torch.no_grad():
        drawn = torch.vmap(lambda w: layer(x, w))(law_given(0.4, kind, shape, axis).sample([1500]))
    assert_same_moments(by_lrt.flatten(1), drawn.flatten(1))


@pytest.mark.slow
@each_family
@each_layer
def test_executions_have_the_moments_of_drawn_networks(name, kind):
    """Marginally, one execution at a time; one z serves all rows, so outputs are compared over executions."""
    shape, axis, inputs, layer = LAYERS[name]
    x = torch.randn(inputs)
    by_lrt = torch.stack([layer(x, law_given(0.4, kind, shape, axis).rsample()).detach() for _ in range(250)])
    with torch.no_grad():
        drawn = torch.vmap(lambda w: layer(x, w))(law_given(0.4, kind, shape, axis).sample([1500]))
    assert_same_moments(by_lrt.flatten(1)[:, ::5], drawn.flatten(1)[:, ::5])


@each_prior
def test_one_draw_of_z_serves_the_whole_step(prior, monkeypatch):
    calls = []
    forward = Multipliers.forward
    monkeypatch.setattr(Multipliers, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    x, y = data()
    model = network(prior)
    guide = AutoMNF(model)
    guide.setup(x, y)
    calls.clear()
    guide.elbo().loss_and_grads(model, guide, x, y)
    assert len(calls) == 2  # two layers


def test_really_drawn_networks_share_z_along_inputs():
    """The correlation of two weights of one input comes from their common multiplier alone."""
    x, y = data()
    guide = AutoMNF(network(normal), init_z_scale=0.5)
    guide.setup(x, y)
    with torch.no_grad():
        guide.loc.fill_(1.0)
        guide.log_scale.fill_(-4.0)
    w = guide.draws(4000, seed=1)["w1"]
    same, other = torch.corrcoef(w[:, :2, 0].T)[0, 1], torch.corrcoef(w[:, 0, :2].T)[0, 1]
    assert same > 0.95
    assert other.abs() < 0.2
    sequential = Predictive(network(normal), guide=guide, num_samples=100)(x)["w1"].reshape(100, 4, 3)
    assert torch.corrcoef(sequential[:, :2, 0].T)[0, 1] > 0.9
