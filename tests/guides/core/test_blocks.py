"""Guides on a part of a model: what is hidden keeps its prior or has another guide."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal

from guides import AutoMeanField, AutoSpikeSlab, UnsupportedSiteError
from guides.testing import NOISE, assert_same_mean, data, losses, normal, perturb, spike_slab, vectorized
from tests.guides.core.each import each_guide, each_guide_and_elbo


def two_part_model(x, y=None):
    w = pyro.sample("w", spike_slab([3]))
    v = pyro.sample("v", normal([3]))
    bias = pyro.sample("bias", dist.Normal(torch.zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w + x @ v + bias, NOISE), obs=y)


@pytest.mark.one_in(2)
@each_guide
def test_hidden_sites_keep_their_prior(make):
    """The bound of a guide on ``block(hide=[...])``: hidden sites are drawn from the prior, at no cost."""
    x, y = data()
    guide = make(poutine.block(two_part_model, hide=["bias"]))
    guide.setup(x, y)
    assert set(guide.sites) == {"w", "v"}
    whole = make(two_part_model)
    whole.setup(x, y)
    with torch.no_grad():  # the all-in-one guide with the prior as the law of the bias
        own = dict(zip(whole.sites, whole._views(*whole._parameters.values()).values(), strict=True))
        other = guide._views(*guide._parameters.values())
        for name, parts in own.items():
            source = other.get(name, (torch.zeros(()), torch.zeros(())))
            for mine, theirs in zip(parts, source, strict=True):
                mine.copy_(theirs)
    truth = losses(two_part_model, whole, vectorized(TraceMeanField_ELBO, 200), 25, x, y)
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        assert_same_mean(losses(two_part_model, guide, elbo(), 100, x, y), truth)
    svi = SVI(two_part_model, guide, guide.optimizer(), guide.elbo())
    assert math.isfinite(svi.step(x, y))


@pytest.mark.slow
@each_guide_and_elbo
def test_beside_a_pyro_autoguide(make, elbo):
    """In an AutoGuideList the bound has the expectation of the all-in-one guide's."""
    x, y = data()
    parts = AutoGuideList(two_part_model)
    mine = make(poutine.block(two_part_model, expose=["w"]))
    theirs = AutoNormal(poutine.block(two_part_model, expose=["v", "bias"]), init_scale=0.3)
    parts.append(mine)
    parts.append(theirs)
    parts(x, y)
    assert set(mine.sites) == {"w"}
    perturb(mine, 0.2)
    whole = make(two_part_model)
    whole.setup(x, y)
    centre, scale = theirs.median(), theirs.scales
    with torch.no_grad():
        views = whole._views(*whole._parameters.values())
        for mine_part, whole_part in zip(
            mine._views(*mine._parameters.values())["w"], views["w"], strict=True
        ):
            whole_part.copy_(mine_part)
        for name in ("v", "bias"):
            views[name][0].copy_(centre[name])
            views[name][1].copy_(getattr(scale, name).log())
    values = losses(two_part_model, parts, elbo(), 100, x, y)
    assert_same_mean(values, losses(two_part_model, whole, vectorized(elbo, 200), 25, x, y))
    svi = SVI(two_part_model, parts, pyro.optim.Adam({"lr": 0.05}), elbo())
    start = mine.loc.detach().clone()
    for _ in range(5):
        svi.step(x, y)
    assert (mine.loc != start).all()
    out = Predictive(two_part_model, guide=parts, num_samples=20)(x)
    assert out["w"].shape == (20, 1, 3)
    assert (out["w"] == 0).any() == (make is AutoSpikeSlab)


def test_a_guide_that_cannot_see_the_data_is_refused_alone():
    x, y = data()
    guide = AutoMeanField(poutine.block(two_part_model, expose=["w"]))
    with pytest.raises(ValueError, match="hides the data"):
        SVI(two_part_model, guide, guide.optimizer(), guide.elbo()).step(x, y)


def test_discrete_sites_are_refused_or_left_to_another_guide():
    def model(y):
        p = pyro.sample("p", dist.Normal(torch.zeros(()), 1.0))
        on = pyro.sample("on", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(p + on, 1.0), obs=y)

    y = torch.tensor(1.0)
    with pytest.raises(UnsupportedSiteError, match="site 'on' is discrete"):
        AutoMeanField(model)(y)
    assert set(AutoMeanField(poutine.block(model, hide=["on"]))(y)) == {"p"}
    delta = AutoGuideList(model)
    delta.append(AutoMeanField(poutine.block(model, expose=["p"])))
    assert delta(y)
    assert AutoDelta(poutine.block(model, hide=["on"]))(y)
