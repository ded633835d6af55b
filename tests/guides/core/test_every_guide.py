"""Pyro's contract, for every guide: what a user of Pyro may do with any autoguide, or a refusal by name."""

from __future__ import annotations

import copy
import functools
import gc
import io
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import (
    SVI,
    JitTrace_ELBO,
    JitTraceMeanField_ELBO,
    Predictive,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceMeanField_ELBO,
    config_enumerate,
)
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from pyro.infer.inspect import get_model_relations

from guides import (
    AutoConcrete,
    AutoConcreteDropout,
    AutoDropout,
    AutoGroupNormalJeffreys,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
    SpikeSlab,
    UnsupportedSiteError,
)

WITH_SPIKES = [AutoSpikeSlab, AutoConcrete, AutoMNF, AutoSpikeSlabMVN]
GUIDES = [AutoMeanField, *WITH_SPIKES, AutoDropout, AutoConcreteDropout, AutoGroupNormalJeffreys]
each_guide = pytest.mark.parametrize("make", GUIDES, ids=lambda make: make.__name__)
ROWS = 30


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 3, generator=generator)
    return x, x[:, 0] - x[:, 2] + 0.1 * torch.randn(ROWS, generator=generator)


def prior_of(make, shape):
    base = SpikeSlab(0.5) if make in WITH_SPIKES else dist.Normal(0.0, 1.0)
    return base.expand(shape).to_event(len(shape))


def network(make, batch_size=None):
    def model(x, y=None):
        w = pyro.sample("w", prior_of(make, [4, 3]))
        v = pyro.sample("v", prior_of(make, [1, 4]))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        mean = (torch.tanh(x @ w.mT) @ v.mT).squeeze(-1) + b
        with pyro.plate("data", len(x), subsample_size=batch_size if y is not None else None) as rows:
            return pyro.sample("y", dist.Normal(mean[..., rows], 0.5), obs=None if y is None else y[rows])

    return model


def trained(make, steps=3, **kwargs):
    model = network(make, **kwargs)
    guide = make(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    assert all(math.isfinite(svi.step(*data())) for _ in range(steps))
    return model, guide


LEARNED = [
    functools.partial(make, empirical_bayes=True)
    for make in (AutoMeanField, AutoSpikeSlab, AutoMNF, AutoSpikeSlabMVN)
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "make", [*LEARNED, *GUIDES], ids=lambda make: getattr(make, "__name__", "learned prior")
)
def test_steps_leave_nothing_in_memory(make):
    """What a step's graph holds must go with it: a cycle through autograd is never collected."""
    model = network(getattr(make, "func", make))
    guide = make(model)
    svi = SVI(model, guide, guide.optimizer(0.01), guide.elbo())
    counts = []
    for _ in range(3):
        for _ in range(3):
            svi.step(*data())
        gc.collect()
        counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    assert counts[2] <= counts[1]


# ------------------------------------------------------------------------------------------ stores and names


@pytest.mark.one_in(2)
@each_guide
def test_parameters_are_in_the_store_under_the_guides_name(make, tmp_path):
    model, guide = trained(make)
    own = {name: part for name, part in guide.state_dict().items() if name != "_extra_state"}
    store = pyro.get_param_store()
    assert set(store) == {f"{make.__name__}.{name}" for name in (*own, "layout")}
    store.save(tmp_path / "store.pt")
    pyro.clear_param_store()
    store.load(tmp_path / "store.pt")
    again = make(model)
    again(*data())
    loaded = again.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in own.items())


@pytest.mark.one_in(2)
@each_guide
def test_rates_and_optimiser_states_go_by_name(make):
    model = network(make)
    guide = make(model)
    optimizer = pyro.optim.Adam(lambda name: {"lr": 0.0 if name == f"{make.__name__}.loc" else 0.05})
    guide.setup(*data())
    before = {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}
    svi = SVI(model, guide, optimizer, Trace_ELBO())
    for _ in range(2):  # a gradient may vanish in one step (a last layer that starts at zero)
        svi.step(*data())
    still = {name for name, p in guide.named_parameters() if torch.equal(p, before[name])}
    assert still == {"loc"}
    assert set(optimizer.get_state()) == {f"{make.__name__}.{name}" for name in before}


@pytest.mark.one_in(2)
@each_guide
def test_copies_pickles_and_state_dicts_are_the_same_fit(make):
    model, guide = trained(make)
    loaded = make(model)
    loaded.load_state_dict(guide.state_dict())
    for again in (copy.deepcopy(guide), loaded):
        again.setup(*data())
        for name, values in guide.draws(3, seed=2).items():
            assert torch.equal(again.draws(3, seed=2)[name], values)


@pytest.mark.one_in(2)
@each_guide
def test_a_loaded_fit_predicts_the_same_with_the_same_seed(make):
    """Its first call sets it up, of which the draws are to know nothing."""
    model, guide = trained(make)
    loaded = make(model)
    loaded.load_state_dict(guide.state_dict())

    def predicted(fit):
        pyro.set_rng_seed(3)
        return Predictive(model, guide=fit, num_samples=3)(data()[0])

    expected = predicted(guide)
    for name, values in predicted(loaded).items():
        assert torch.equal(values, expected[name]), name


def model_of_the_module(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal((x @ w.mT).squeeze(-1), 0.5), obs=y)


@pytest.mark.parametrize("make", [AutoMeanField, AutoDropout, AutoConcreteDropout, AutoGroupNormalJeffreys])
def test_a_whole_guide_is_saved_where_its_model_can_be_imported(make):
    guide, file = make(model_of_the_module), io.BytesIO()
    SVI(model_of_the_module, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO()).step(*data())
    torch.save(guide, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded.draws(3, seed=1)["w"], guide.draws(3, seed=1)["w"])
    SVI(model_of_the_module, loaded, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO()).step(*data())


# ------------------------------------------------------------------------------------------ questions


@pytest.mark.one_in(2)
@each_guide
def test_questions_of_an_autoguide(make):
    _, guide = trained(make)
    x, y = data()
    latent = {"w", "v", "b"}
    assert set(guide(x, y)) == set(guide.median(x, y)) == set(guide.quantiles([0.1, 0.9], x, y)) == latent
    with torch.no_grad():
        assert [value.shape for value in guide.call(x, y)] == [(), (1, 4), (4, 3)]  # b, v, w
    assert guide.quantiles([0.1, 0.9])["w"].shape == (2, 4, 3)
    with pytest.raises(ValueError, match=r"levels from 0 to 1, not \[0.5, 1.5\]"):
        guide.quantiles([0.5, 1.5])


@pytest.mark.one_in(4)
@each_guide
@pytest.mark.parametrize("parallel", [False, True], ids=["in turn", "parallel"])
def test_predictive(make, parallel):
    model, guide = trained(make)
    x, _ = data()
    predictive = Predictive(model, guide=guide, num_samples=6, parallel=parallel)
    found = predictive(x)
    assert found["y"].shape == (6, ROWS)
    assert found["w"].reshape(6, 4, 3).isfinite().all()
    only = Predictive(model, guide=guide, num_samples=6, return_sites=["y"], parallel=parallel)(x[:5])
    assert {name: values.shape for name, values in only.items()} == {"y": (6, 5)}
    drawn = Predictive(model, posterior_samples=guide.draws(6, seed=0))(x)
    assert drawn["y"].shape == (6, ROWS)


@pytest.mark.one_in(2)
@each_guide
def test_relations_of_a_guide_can_be_drawn(make):
    """What ``pyro.render_model(guide)`` asks for."""
    _, guide = trained(make)
    found = get_model_relations(guide, data())
    assert set(found["sample_sample"]) == {"w", "v", "b"}
    assert found["observed"] == []


# ------------------------------------------------------------------------------------------ compiled losses


@pytest.mark.one_in(3)
@each_guide
@pytest.mark.parametrize("elbo", [JitTrace_ELBO, JitTraceMeanField_ELBO])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_compiled_losses_are_refused_by_name(make, elbo):
    model = network(make)
    guide = make(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo())
    with pytest.raises(NotImplementedError, match=f"{make.__name__} cannot be compiled.*Trace_ELBO"):
        svi.step(*data())
    with pytest.raises(NotImplementedError, match=f"TorchScript cannot export {make.__name__}"):
        torch.jit.script(guide)


# ------------------------------------------------------------------------------------------ other latents


@pytest.mark.one_in(4)
@each_guide
@pytest.mark.parametrize("first", [False, True], ids=["after ours", "before ours"])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.filterwarnings("ignore:Failed to verify mean field restriction")  # the order of the parts
def test_a_local_site_beside_us_sees_the_same_minibatch(make, first, elbo):
    """Every run of the model in a step is on the same rows."""
    seen = []

    def model(x, y=None):
        w = pyro.sample("w", prior_of(make, [1, 3]))
        with pyro.plate("data", len(x), subsample_size=7) as rows:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            seen.append(rows.tolist())
            pyro.sample("y", dist.Normal((x[rows] @ w.mT).squeeze(-1) + z, 0.5), obs=y[rows])

    guide = AutoGuideList(model)
    other = AutoNormal(poutine.block(model, expose=["z"]))
    ours = make(poutine.block(model, hide=["z"]))
    for part in (other, ours) if first else (ours, other):
        guide.append(part)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo())
    if make is AutoGroupNormalJeffreys:
        with pytest.raises(NotImplementedError, match="site 'w': its prior is improper"):
            svi.step(*data())
        return
    svi.step(*data())
    seen.clear()
    svi.step(*data())
    assert len(seen) == 2  # the guide's run and the model's
    assert seen[0] == seen[1]
    assert set(guide.median()) == {"w", "z"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [AutoMeanField, AutoSpikeSlab, AutoConcrete], ids=lambda make: make.__name__)
@pytest.mark.parametrize("how", [{"expose": ["w"]}, {"hide": ["z"]}], ids=str)
def test_enumerated_sites_beside_us(make, how):
    """At a guide without spread the loss is minus the log of the mixture, and the divergence."""

    @config_enumerate
    def model(x, y=None):
        w = pyro.sample("w", prior_of(make, [1, 3]))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Bernoulli(0.3))
            pyro.sample("y", dist.Normal((x @ w.mT).squeeze(-1) + 2 * z, 0.5), obs=y)

    x, y = data()
    guide = AutoGuideList(model)
    ours = make(poutine.block(model, **how))
    guide.append(ours)
    guide(x, y)
    sd, loc = 1e-4, torch.tensor([[1.0, 0.5, -1.0]])
    with torch.no_grad():
        ours.loc.copy_(loc.flatten())
        ours.log_scale.fill_(math.log(sd))
        if make is not AutoMeanField:
            ours.logits.fill_(30.0)
    loss = TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(model, guide, x, y).item()
    mean = (x @ loc.mT).squeeze(-1)
    parts = [math.log(p) + dist.Normal(mean + 2 * z, 0.5).log_prob(y) for z, p in ((0, 0.7), (1, 0.3))]
    divergence = (0.5 * (sd**2 + loc**2 - 1) - math.log(sd)).sum()
    if make is not AutoMeanField:
        divergence = divergence - 3 * math.log(0.5)
    expected = divergence - torch.stack(parts).logsumexp(0).sum()
    # the prior is scored at the draw: log q has the noise of a chi-square of three coordinates at most
    assert loss == pytest.approx(expected.item(), abs=0.05 if make is not AutoMeanField else 6.0)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), TraceEnum_ELBO(max_plate_nesting=1)).step(x, y)


def test_a_hidden_markov_model_beside_us():
    """States under ``pyro.markov`` are hidden from the guide; the loss has their exact sum in it."""
    stay, y = torch.tensor([[0.8, 0.2], [0.3, 0.7]]), torch.tensor([0.1, 0.9, 1.2, -0.2])

    @config_enumerate
    def model(y):
        means = pyro.sample("means", dist.Normal(torch.tensor([0.0, 1.0]), 1.0).to_event(1))
        state = 0
        for t in pyro.markov(range(len(y))):
            state = pyro.sample(f"z_{t}", dist.Categorical(stay[state]))
            pyro.sample(f"y_{t}", dist.Normal(means[state], 0.5), obs=y[t])

    ours = AutoMeanField(poutine.block(model, hide_fn=lambda site: site["name"].startswith("z_")))
    guide = AutoGuideList(model)
    guide.append(ours)
    elbo = TraceEnum_ELBO(max_plate_nesting=0, num_particles=10)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo).step(y)
    sd, loc = 1e-4, torch.tensor([0.2, 0.8])
    with torch.no_grad():
        ours.loc.copy_(loc)
        ours.log_scale.fill_(math.log(sd))
    forward = stay[0]
    for t, value in enumerate(y):
        forward = (forward if t == 0 else forward @ stay) * dist.Normal(loc, 0.5).log_prob(value).exp()
    divergence = (0.5 * (sd**2 + (loc - torch.tensor([0.0, 1.0])) ** 2 - 1) - math.log(sd)).sum()
    loss = elbo.differentiable_loss(model, guide, y).item()
    assert loss == pytest.approx((divergence - forward.sum().log()).item(), abs=2.0)


# ------------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize("make", [AutoMeanField, *WITH_SPIKES], ids=lambda make: make.__name__)
def test_a_single_number_as_the_only_weight(make):
    """A slope without ``to_event``: its loss and the densities of its draws are of one law."""

    def model(x, y=None):
        w = pyro.sample("w", prior_of(make, []))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x[:, :1] @ w.reshape(1), 0.5), obs=y)

    guide = make(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    assert math.isfinite(svi.step(*data()))
    draws, log_prob = guide.draws_with_log_prob(7, seed=0)
    assert draws["w"].shape == log_prob.shape == guide.log_prob(draws).shape == (7,)
    assert log_prob.isfinite().all()


@pytest.mark.parametrize("make", [AutoMeanField, AutoConcrete], ids=lambda make: make.__name__)
@pytest.mark.parametrize("parallel", [False, True], ids=["in turn", "parallel"])
def test_bare_sites_under_particles(make, parallel):
    """Sites without ``to_event`` or matrix: particles are in their shape, in ``view`` and in ``reshape``."""
    bare = SpikeSlab(0.5) if make is AutoConcrete else dist.Normal(0.0, 1.0)

    def model(x, y=None):
        scalar = pyro.sample("scalar", bare)
        w = pyro.sample("w", bare.expand([3]).to_event(1))
        flat = w.view(w.shape[:-1] + (3, 1)).reshape(w.shape)
        assert flat.shape == w.shape
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal((x * flat).sum(-1) + scalar, 0.5), obs=y)

    guide = make(model)
    elbo = Trace_ELBO(num_particles=4, vectorize_particles=parallel, max_plate_nesting=1)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo).step(*data())
    found = Predictive(model, guide=guide, num_samples=4, parallel=parallel)(data()[0])
    assert found["y"].shape == (4, ROWS)
    assert found["scalar"].numel() == 4


@pytest.mark.one_in(2)
@each_guide
def test_a_plate_of_another_size_is_named(make):
    def model(group, x, y=None):
        w = pyro.sample("w", prior_of(make, [4, 3]))
        with pyro.plate("groups", int(group.max()) + 1):
            a = pyro.sample("a", dist.Gamma(2.0, 2.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal((x @ w.mT).sum(-1) + a[..., group], 0.5), obs=y)

    x, y = data()
    guide = make(model)
    guide(torch.arange(ROWS) % 5, x, y)
    with pytest.raises(ValueError, match="site 'a': the guide was fitted with 5 of plate 'groups'.*has 2"):
        Predictive(model, guide=guide, num_samples=2)(torch.tensor([0, 1]), x[:2])
    rows = torch.tensor([0, 4])  # new rows of the same groups
    assert Predictive(model, guide=guide, num_samples=2)(rows, x[:2])["y"].shape == (2, 2)


@each_guide
def test_supports_without_a_map_are_refused_by_name(make):
    def model(x, y=None):
        w = pyro.sample("w", prior_of(make, [4, 3]))
        direction = pyro.sample("direction", dist.ProjectedNormal(torch.ones(3)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w.mT).sum(-1) + x @ direction, 0.5), obs=y)

    with pytest.raises(UnsupportedSiteError, match="site 'direction'.*ProjectedNormal"):
        make(model)(*data())
