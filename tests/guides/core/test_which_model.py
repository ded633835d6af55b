"""A guide that runs its model itself trains that one: a loss with another model is refused."""

from __future__ import annotations

from functools import partial

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO

from guides import AutoMeanField
from guides.testing import vectorized

X, Y = torch.randn(20, 3), torch.randn(20)


def model(x, y=None, noise=1.0):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def noisy(noise):
    def made(x, y=None):
        model(x, y, noise)

    return made


class Written:
    """A model with a name."""

    def __init__(self, noise):
        self.noise = noise

    def __call__(self, x, y=None):
        model(x, y, self.noise)


LOSSES = [
    Trace_ELBO(),
    TraceMeanField_ELBO(),
    TraceGraph_ELBO(),
    RenyiELBO(num_particles=2),
    vectorized(Trace_ELBO, 3),
]
SAME = {
    "itself": (model, model),
    "the same condition again": [poutine.condition(model, {"y": Y.clone()}) for _ in range(2)],
    "made again": (noisy(2.0), noisy(2.0)),
    "the same arguments": (partial(model, noise=2.0), partial(model, noise=2.0)),
    "less than it": (poutine.block(model, hide=["nothing"]), model),
}
OTHER = {
    "conditioned": (model, poutine.condition(model, {"y": Y})),
    "scaled": (model, poutine.scale(model, 0.1)),
    "scaled otherwise": (poutine.scale(model, 0.2), poutine.scale(model, 0.1)),
    "not scaled": (poutine.scale(model, 0.1), model),
    "another condition": [poutine.condition(model, {"y": y}) for y in (Y, Y + 1)],
    "a number": (noisy(2.0), noisy(3.0)),
    "a tensor": (noisy(torch.tensor(2.0)), noisy(torch.tensor(3.0))),
    "arguments": (partial(model, noise=2.0), partial(model, noise=3.0)),
    "objects": (Written(2.0), Written(2.0)),
    "functions": (model, lambda x, y=None: model(x, y)),
}


def data(trained):
    return (X,) if "y" in poutine.trace(trained).get_trace(X).observation_nodes else (X, Y)


@pytest.mark.parametrize("elbo", LOSSES, ids=lambda elbo: type(elbo).__name__)
@pytest.mark.parametrize("name", SAME)
def test_its_own_model_is_trained(name, elbo):
    own, given = SAME[name]
    guide = AutoMeanField(own)
    assert elbo.loss_and_grads(given, guide, *data(given)) > 0


@pytest.mark.parametrize("elbo", LOSSES, ids=lambda elbo: type(elbo).__name__)
@pytest.mark.parametrize("name", OTHER)
def test_another_model_is_refused(name, elbo):
    own, given = OTHER[name]
    with pytest.raises(ValueError, match="another model than the guide was built on"):
        elbo.loss_and_grads(given, AutoMeanField(own), X, Y)


def test_what_is_around_the_guide_may_be_around_the_model():
    guide = AutoMeanField(model)
    guide.setup(X, Y)
    around = poutine.scale(guide, 0.1)
    assert Trace_ELBO().loss(poutine.scale(model, 0.1), around, X, Y) > 0
    for given in (model, poutine.mask(model, mask=True)):
        with pytest.raises(ValueError, match="another model"):
            Trace_ELBO().loss(given, around, X, Y)


def test_particles_that_meet_are_refused():
    """``[..., None]`` of a number outside the plates, ``[particles, 1]`` by then."""

    def shifted(x, y=None):
        b = pyro.sample("b", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x[:, 0] + b[..., None], 1.0), obs=y)

    guide = AutoMeanField(shifted)
    assert guide.elbo().loss(shifted, guide, X, Y) > 0
    with pytest.raises(ValueError, match=r"'y' has shape \(3, 3, 20\).*\(3,\) too many.*\[particles, 1\]"):
        guide.elbo(num_particles=3, vectorize_particles=True).loss(shifted, guide, X, Y)
