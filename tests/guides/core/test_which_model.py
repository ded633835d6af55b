"""A guide that runs its model itself trains that one: a loss with another model is refused."""

from __future__ import annotations

import copy
import functools
import pickle
from functools import partial

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, config_enumerate
from pyro.infer.reparam import LocScaleReparam

from guides import AutoMeanField
from guides.core import same_model
from guides.core.same_model import differ
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
    """A model with numbers, and something of a run."""

    def __init__(self, noise):
        self.noise, self._runs = noise, 0

    def __call__(self, x, y=None):
        self._runs += 1
        model(x, y, self.noise)

    def scaled(self, x, y=None):
        self(x / 2, y)


class Net(torch.nn.Module):
    def __init__(self, noise=1.0):
        super().__init__()
        self.noise, self.inner = noise, torch.nn.Linear(2, 2)

    def forward(self, x, y=None):
        model(x, y, self.noise)


class Counting:
    """What it has counted is no part of the model."""

    def __init__(self):
        self.calls, self.rate = 0, torch.ones(2, requires_grad=True)

    def __call__(self, x, y=None):
        self.calls += 1
        model(x, y)


def written(text):
    names = {"model": model}
    exec(text, names)  # noqa: S102
    return names["made"]


@functools.wraps(model)
def wrapped(*args, **kwargs):
    return model(*args, **kwargs)


def recursive():
    def made(x, y=None, again=True):
        if again:
            return made(x, y, False)
        return model(x, y)

    return made


def unfilled():
    """Whose cell is empty until somebody fills it."""

    def made(x, y=None):
        if len(x) > 1000:
            print(later)
        model(x, y)

    if len(X) > 1000:
        later = 1
    return made


def holding(value):
    def made(x, y=None):
        model(x, y, 1.0 if value is not None else 2.0)

    return made


def cyclic():
    table = {}
    table["itself"] = table
    return holding(table)


def with_default(noise):
    def made(x, y=None, noise=noise, *, more=noise):
        model(x, y, noise)

    return made


def with_keyword(noise):
    def made(x, y=None, *, noise=noise):
        model(x, y, noise)

    return made


def of_globals(noise):
    names = {"model": model, "NOISE": noise}
    exec("def made(x, y=None): model(x, y, NOISE)", names)  # noqa: S102
    return names["made"]


NET, OBJECT = Net(), Written(2.0)


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
    "objects": (Written(2.0), Written(2.0)),
    "a module and its method": (NET, NET.forward),
    "a method": (OBJECT.scaled, OBJECT.scaled),
    "looked at": (model, poutine.trace(config_enumerate(model))),
    "seeded": [poutine.seed(model, rng_seed=1) for _ in range(2)],
    "in another order": (
        poutine.scale(poutine.mask(model, mask=True), 0.5),
        poutine.mask(poutine.scale(model, 0.5), mask=True),
    ),
    "recursive": (recursive(), recursive()),
    "cyclic": (cyclic(), cyclic()),
    "unfilled": (unfilled(), unfilled()),
    "sparse": [holding(torch.eye(2).to_sparse()) for _ in range(2)],
    "meta": [holding(torch.ones(2, device="meta")) for _ in range(2)],
    "NaN": [holding(torch.tensor([1.0, torch.nan])) for _ in range(2)],
    "arrays": [holding(np.array([1.0, np.nan])) for _ in range(2)],
    "laws": [holding(dist.Normal(torch.zeros(2), 1.0)) for _ in range(2)],
    "modules": [holding(torch.nn.Linear(2, 2)) for _ in range(2)],
    "globals": (of_globals(2.0), of_globals(2.0)),
    "lambdas": (lambda x, y=None: model(x, y), lambda x, y=None: model(x, y)),
    "a line further down": [written(f"{gap}def made(x, y=None): model(x, y)") for gap in ("", "# more\n\n")],
    "a partial of nothing": (partial(model), model),
    "wrapped": (wrapped, model),
    "kinds of numbers": (holding(2.0), holding(np.float32(2.0))),
    "sets": (holding({1, 2}), holding({2, 1})),
    "modules alike": (Net(), Net()),
    "a module that is trained and one that is not": (Net().train(), Net().eval()),
    "copied": (poutine.scale(model, 0.1), copy.deepcopy(poutine.scale(model, 0.1))),
}
OTHER = {
    "conditioned": (model, poutine.condition(model, {"y": Y})),
    "scaled": (model, poutine.scale(model, 0.1)),
    "scaled otherwise": (poutine.scale(model, 0.2), poutine.scale(model, 0.1)),
    "not scaled": (poutine.scale(model, 0.1), model),
    "scaled twice": (poutine.scale(model, 0.1), poutine.scale(poutine.scale(model, 0.1), 0.1)),
    "another condition": [poutine.condition(model, {"y": y}) for y in (Y, Y + 1)],
    "more conditions": [poutine.condition(model, d) for d in ({"y": Y}, {"y": Y, "w": torch.ones(3)})],
    "hidden data": (model, poutine.block(model, expose=["w"])),
    "a number": (noisy(2.0), noisy(3.0)),
    "a tensor": (noisy(torch.tensor(2.0)), noisy(torch.tensor(3.0))),
    "a precision": [holding(torch.ones(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)],
    "arrays": [holding(np.array([1.0, value])) for value in (2.0, 3.0)],
    "sets": (holding({1, 2}), holding({1, 3})),
    "lists": [holding(value) for value in ([1, 2], [1, 2, 3])],
    "laws": [holding(dist.Normal(torch.zeros(2), value)) for value in (1.0, 2.0)],
    "arguments": (partial(model, noise=2.0), partial(model, noise=3.0)),
    "places of arguments": (partial(max, 2.0), partial(max, 3.0)),
    "defaults": (with_default(2.0), with_default(3.0)),
    "defaults of keywords": (with_keyword(2.0), with_keyword(3.0)),
    "globals": (of_globals(2.0), of_globals(3.0)),
    "objects": (Written(2.0), Written(3.0)),
    "classes": (Written(2.0), Counting()),
    "numbers of modules": (Net(2.0), Net(3.0)),
    "methods": (OBJECT.scaled, OBJECT.__call__),
    "functions": (model, lambda x, y=None: model(x, y)),
}


def data(trained):
    return (X,) if "y" in poutine.trace(trained).get_trace(X).observation_nodes else (X, Y)


@pytest.mark.one_in(4)  # of the five losses one or two a model
@pytest.mark.parametrize("elbo", LOSSES, ids=lambda elbo: type(elbo).__name__)
@pytest.mark.parametrize("name", SAME)
def test_its_own_model_is_trained(name, elbo):
    own, given = SAME[name]
    guide = AutoMeanField(own)
    assert elbo.loss_and_grads(given, guide, *data(given)) > 0


def test_the_same_reparametrization_again_is_the_same_model():
    own, given = (poutine.reparam(model, {"w": LocScaleReparam(0.5)}) for _ in range(2))
    assert Trace_ELBO().loss(given, AutoMeanField(own), X, Y) > 0


def test_a_copied_guide_trains_its_model():
    """The best one so far, kept for later."""
    scaled = poutine.scale(model, 0.1)
    guide = AutoMeanField(scaled)
    Trace_ELBO().loss(scaled, guide, X, Y)
    for kept in (copy.deepcopy(guide), pickle.loads(pickle.dumps(guide))):  # noqa: S301
        assert Trace_ELBO().loss(scaled, kept, X, Y) > 0
        with pytest.raises(ValueError, match="another model"):
            Trace_ELBO().loss(model, kept, X, Y)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("elbo", LOSSES, ids=lambda elbo: type(elbo).__name__)
@pytest.mark.parametrize("name", [name for name in OTHER if name != "places of arguments"])
def test_another_model_is_refused(name, elbo):
    own, given = OTHER[name]
    with pytest.raises(ValueError, match="another model than the guide was built on"):
        elbo.loss_and_grads(given, AutoMeanField(own), X, Y)


def test_what_is_around_the_guide_may_be_around_the_model():
    guide = AutoMeanField(model)
    guide.setup(X, Y)
    around = poutine.scale(guide, 0.1)
    assert Trace_ELBO().loss(poutine.scale(model, 0.1), around, X, Y) > 0
    for given in (model, poutine.mask(model, mask=True), poutine.scale(model, 0.2)):
        with pytest.raises(ValueError, match="another model"):
            Trace_ELBO().loss(given, around, X, Y)


def test_models_that_have_run_since_are_the_same():
    """A copied guide runs its own copy of a model; a model is compared once."""
    counting = Counting()
    guide = AutoMeanField(counting)
    Trace_ELBO().loss(counting, guide, X, Y)
    kept = copy.deepcopy(guide)
    for _ in range(3):
        assert Trace_ELBO().loss(counting, kept, X, Y) > 0


def test_models_are_compared_once(monkeypatch):
    """Tensors of an image set would cost more than a step; the plate of particles is another in each."""
    asked = []
    monkeypatch.setattr(same_model, "differ", lambda *pair: asked.append(pair))
    own, given = noisy(torch.ones(20)), noisy(torch.ones(20))
    guide = AutoMeanField(own)
    for _ in range(3):
        vectorized(Trace_ELBO, 3).loss(given, guide, X, Y)
    assert len(asked) == 1
    Trace_ELBO().loss(own, guide, X, Y)
    assert len(asked) == 2


class Odd:
    """Nothing of it can be read."""

    @property
    def __dict__(self):
        raise RuntimeError

    def __eq__(self, other):
        raise RuntimeError


def test_what_cannot_be_compared_is_the_same():
    chains = []
    for _ in range(2):
        chain = None
        for _ in range(5000):
            chain = [chain]
        chains.append(chain)
    for pair in (chains, (Odd(), Odd())):
        own, given = map(holding, pair)
        assert Trace_ELBO().loss(given, AutoMeanField(own), X, Y) > 0
        with pytest.raises(ValueError, match="another model"):  # by what is around it
            Trace_ELBO().loss(poutine.scale(given, 0.1), AutoMeanField(own), X, Y)


def test_positional_arguments_of_a_partial_count():
    assert differ(*OTHER["places of arguments"])
    assert not differ(partial(max, 2.0), partial(max, 2.0))


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


def test_plates_of_a_model_are_no_particles():
    """A plate far to the left, and laws with a dimension that no plate has."""

    def written(y):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("rows", 20, dim=-1), pyro.plate("far", 2, dim=-3):
            pyro.sample("y", dist.Normal(shift, 1.0), obs=y.expand(2, 1, 20))

    guide = AutoMeanField(written)
    assert guide.elbo(num_particles=3, vectorize_particles=True).loss(written, guide, Y) > 0
    with pyro.validation_enabled(False):
        free = lambda y: model(X, y.expand(2, 20))  # noqa: E731
        guide = AutoMeanField(free)
        assert guide.elbo().loss(free, guide, Y) > 0
