"""The variance of a spike-and-slab layer: the exact one covers drawn networks, the thesis' does not."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from torch.nn import functional as F

from guides import AutoSpikeSlab
from guides.testing import (
    assert_share,
    data,
    fit,
    linear_model,
    network,
    spike_slab,
)

INPUTS, OUTPUTS = 200, 3


def layer(x, y=None):
    w = pyro.sample("w", spike_slab([OUTPUTS, INPUTS]))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(F.linear(x, w), 1.0).to_event(1), obs=y)


def started_as_published(variance: str) -> AutoSpikeSlab:
    """The thesis' starting values: mu U(-.2, .2), rho U(-5, -4), lambda U(0, 1)."""
    guide = AutoSpikeSlab(layer, variance=variance)
    guide.setup(torch.rand(4, INPUTS), torch.zeros(4, OUTPUTS))
    with torch.no_grad():
        guide.loc.uniform_(-0.2, 0.2)
        guide.log_scale.copy_(F.softplus(torch.empty_like(guide.log_scale).uniform_(-5, -4)).log())
        guide.logits.uniform_(0, 1)
    return guide


def covered(variance: str) -> torch.Tensor:
    """Which of 4000 drawn networks have their activation in the layer's nominal 90 % interval."""
    guide, x = started_as_published(variance), torch.rand(1, INPUTS)
    w = guide(x, torch.zeros(1, OUTPUTS))["w"]
    mean, scale = F.linear(x, w.law.mean), F.linear(x**2, w.law.variance).sqrt()
    activations = x @ guide.draws(4000, seed=1)["w"].mT
    return ((activations - mean).abs() < 1.644854 * scale).double().flatten(1).detach()


def test_exact_variance_covers_drawn_networks():
    assert_share(covered("exact"), 0.9)


def test_thesis_variance_covers_few_of_them():
    assert covered("thesis").mean() < 0.2


def test_thesis_option_changes_the_variance_and_nothing_else():
    x, y = data()
    exact, thesis = (AutoSpikeSlab(linear_model(spike_slab), variance=v) for v in ("exact", "thesis"))
    pyro.set_rng_seed(0)
    exact.setup(x, y)
    thesis.load_state_dict(exact.state_dict())
    thesis.setup(x, y)
    one, two = exact(x, y)["w"].law, thesis(x, y)["w"].law
    assert torch.equal(one.mean, two.mean)
    torch.testing.assert_close(one.kl, two.kl)
    probs, scale = torch.sigmoid(exact.logits), exact.log_scale.exp()
    torch.testing.assert_close(two.variance, probs**2 * scale**2)
    assert (one.variance > two.variance).all()
    assert torch.equal(exact.draws(5, seed=1)["w"], thesis.draws(5, seed=1)["w"])


def test_thesis_option_trains_and_others_are_refused():
    x, y = data()
    model = network(spike_slab)
    guide = AutoSpikeSlab(model, variance="thesis")
    history = fit(model, guide, x, y, steps=40)
    assert sum(history[-5:]) < sum(history[:5])
    with pytest.raises(ValueError, match="'exact' or 'thesis'"):
        AutoSpikeSlab(model, variance="published")
