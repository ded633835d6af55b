"""Dropout and group sparsity."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import Predictive, TraceMeanField_ELBO
from torch.nn import functional as F

from guides import (
    AutoConcreteDropout,
    AutoDropout,
    AutoGroupNormalJeffreys,
    FlatPriors,
    UnsupportedSiteError,
    fit_ensemble,
)
from guides.posterior.draws import Posterior
from guides.posterior.files import load_guide, save_guide
from guides.testing import (
    NOISE,
    Noise,
    assert_drawn_particles_are_runs,
    assert_mean,
    assert_particles_are_runs,
    assert_same_mean,
    assert_share,
    data,
    fit,
    linear_model,
    loss_and_gradients,
    network,
    normal,
    perturb,
    spike_slab,
    vectorized,
)
from guides.variational.concrete import relaxed_moments
from tests.guides.variational.one_unit import assert_expectations, errors_of, layer, local_weights

GUIDES = [AutoDropout, AutoConcreteDropout, AutoGroupNormalJeffreys]
each_guide = pytest.mark.parametrize("make", GUIDES)


def dropout_loss(guide, x, y):
    """Likelihood through the mask's first two moments, and the papers' regulariser."""
    point, logit = guide._views(**dict(guide.named_parameters()))["w"]
    rate = torch.sigmoid(logit)
    first, second = 1 - rate, 1 - rate
    if guide.temperature is not None:
        first, second = relaxed_moments(-logit, guide.temperature)
    likelihood = errors_of(first * point, (second - first**2) * point**2, x, y)
    decay = (1 - rate) / 2 * (point**2).sum() + point.numel() * 0.5 * math.log(2 * math.pi)
    return likelihood + decay - 3 * dist.Bernoulli(rate).entropy()


def checked_guide(make, x, y):
    """Away from its start; its particles are those of single runs."""
    guide = make(layer)
    guide.setup(x, y)
    perturb(guide, 0.3)
    assert_particles_are_runs(layer, guide, TraceMeanField_ELBO, x, y)
    assert_drawn_particles_are_runs(layer, guide, TraceMeanField_ELBO, x, y)
    return guide


def test_loss_and_gradient_of_dropout_are_expectations():
    """Over all masks of three inputs, each as often as its probability asks."""
    x, y = data()
    guide = checked_guide(AutoDropout, x, y)
    tenths = torch.cartesian_prod(*[torch.arange(10)] * 3) / 10 + 0.05
    masks = Noise(torch.zeros(1000, 0), tenths)
    together = vectorized(TraceMeanField_ELBO, 1000)
    with masks.of():
        run = loss_and_gradients(layer, guide, together, x, y)
    assert_expectations([run], dropout_loss(guide, x, y).sum(), guide)


def test_loss_and_gradient_of_concrete_dropout_are_unbiased():
    x, y = data()
    guide = checked_guide(AutoConcreteDropout, x, y)
    truth = dropout_loss(guide, x, y)
    together = vectorized(TraceMeanField_ELBO, 200)
    runs = [loss_and_gradients(layer, guide, together, x, y) for _ in range(40)]
    guide.zero_grad()
    truth.backward()
    expected = {"loss": truth.detach()} | {name: p.grad for name, p in guide.named_parameters()}
    for name, value in expected.items():
        assert (value != 0).all(), name
        assert_mean(torch.stack([run[name] for run in runs]).double(), value.double())


@each_guide
def test_same_seed_same_fit_and_a_saved_fit_is_the_same(make, tmp_path):
    x, y = data()
    model, results = network(normal), []
    for _ in range(2):
        pyro.set_rng_seed(4)
        guide = make(model)
        history = fit(model, guide, x, y, steps=5)
        results.append((history, guide.draws(3, seed=1)["w1"]))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    save_guide(guide, tmp_path / "guide.safetensors")
    loaded = load_guide(make(model), tmp_path / "guide.safetensors")
    loaded.setup(x, y)
    assert {n for n, _ in loaded.named_parameters()} == {n for n, _ in guide.named_parameters()}
    for name, value in guide.draws(3, seed=1).items():
        assert torch.equal(loaded.draws(3, seed=1)[name], value)
    for name, value in guide.median().items():
        torch.testing.assert_close(loaded.median()[name], value)


@pytest.mark.one_in(3)
@each_guide
def test_fits_a_network_and_predicts(make):
    x, y = data(rows=60)
    model = network(normal)
    guide = make(model)
    history = fit(model, guide, x, y, steps=80, lr=0.1)
    assert np.mean(history[-20:]) < np.mean(history[:10]) - 5
    posterior = Posterior.from_draws(model, guide.draws(60, seed=1))
    law = posterior.predictive(x)
    assert law.log_prob(y).mean() > dist.Normal(y.mean(), y.std()).log_prob(y).mean() + 0.1
    pyro.set_rng_seed(1)
    samples = Predictive(model, guide=guide, num_samples=60)(x)
    assert_same_mean(samples["w1"].squeeze(1).double(), guide.draws(4000, seed=3)["w1"].double())


def filters(x, y=None):
    w = pyro.sample("w", normal([2, 3, 2, 2]))
    v = pyro.sample("v", normal([2, 4]))
    hidden = F.conv2d(x, w).flatten(2).mean(-1)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((hidden @ v).sum(-1), NOISE), obs=y)


@each_guide
def test_groups_are_inputs_of_layers_and_channels_of_filters(make):
    """``v`` is used as ``x @ v``, so its inputs are its first dimension."""
    x, y = torch.randn(5, 3, 4, 4), torch.randn(5)
    guide = make(filters)
    fit(filters, guide, x, y, steps=3)
    assert guide._axes == {"w": 1, "v": 0}
    if make is AutoGroupNormalJeffreys:
        assert {name: tuple(v.shape) for name, v in guide.log_alpha().items()} == {"w": (3,), "v": (2,)}
        return
    in_model = Predictive(filters, guide=guide, num_samples=100, return_sites=["w", "v"])(x)
    for draws in (guide.draws(100, seed=1), in_model):
        shapes = {"w": (100, 2, 3, 2, 2), "v": (100, 2, 4)}
        on = {name: draws[name].reshape(shape) != 0 for name, shape in shapes.items()}
        for channels in (on["w"].movedim(2, 1).flatten(2), on["v"].flatten(2)):
            assert (channels.all(-1) | ~channels.any(-1)).all()
            assert_share(channels[:, 0, :1].double(), 1 - guide.dropout_rates()["w"])
        assert not torch.equal(on["w"][:, 0, 0, 0, 0], on["w"][:, 0, 1, 0, 0])


# ---------------------------------------------------------------------- dropout


@pytest.mark.slow
def test_learnt_rate_follows_the_evidence():
    """Strong data switch dropout off; weights that are not needed are dropped."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    rates = {}
    for name, y in (("signal", x @ torch.tensor([1.0, -1.0, 0.7])), ("none", torch.zeros(200))):
        guide = AutoConcreteDropout(layer, rate=0.3)
        fit(layer, guide, x, y + NOISE * torch.randn(200, generator=generator), steps=200, lr=0.15)
        rates[name] = guide.dropout_rates()["w"]
    assert rates["signal"] < 0.06
    assert rates["none"] > 0.35


def test_a_file_holds_the_rate_of_dropout(tmp_path):
    x, y = data()
    guide = AutoDropout(network(normal), rate=0.4)
    guide.setup(x, y)
    save_guide(guide, tmp_path / "guide.safetensors")
    loaded = load_guide(AutoDropout(network(normal), rate=0.1), tmp_path / "guide.safetensors")
    assert loaded.dropout_rates() == guide.dropout_rates()
    assert torch.equal(loaded.draws(9, seed=1)["w1"], guide.draws(9, seed=1)["w1"])


@pytest.mark.parametrize("make", [AutoDropout, AutoConcreteDropout])
def test_a_file_holds_which_sites_lose_inputs(make, tmp_path):
    guide = make(network(normal), sites=["w1"])
    guide.setup(*data())
    save_guide(guide, tmp_path / "guide.safetensors")
    loaded = load_guide(make(network(normal)), tmp_path / "guide.safetensors")
    assert loaded.dropout_rates() == pytest.approx({"w1": 0.1})
    for name, drawn in guide.draws(9, seed=1).items():
        assert torch.equal(loaded.draws(9, seed=1)[name], drawn)


def test_mc_dropout_keeps_its_rate_and_points():
    x, y = data()
    model = network(normal)
    guide = AutoDropout(model, rate=0.4)
    fit(model, guide, x, y, steps=20)
    assert guide.dropout_rates() == pytest.approx({"w1": 0.4, "w2": 0.4})
    draws = guide.draws(300, seed=1)
    assert (draws["b1"] == draws["b1"][0]).all()  # biases are points
    assert (draws["precision"] > 0).all()
    assert_share((draws["w1"] == 0)[:, 0].double(), 0.4)
    chosen = AutoDropout(linear_model(normal), sites=["w"])
    chosen(x, y)
    assert chosen.dropout_rates() == pytest.approx({"w": 0.1})


@pytest.mark.parametrize("make", [AutoDropout, AutoConcreteDropout])
def test_regulariser_of_dropout_is_the_papers(make):
    """``(1 - p)/2 |M|^2 - K H(p)`` with ``K`` inputs, and the Gaussian's constant for every weight."""
    x, y = data()
    guide = make(network(normal), rate=0.3)
    guide(x, y)
    law, point = guide.trace.nodes["w1"]["fn"], guide.trace.nodes["w1"]["fn"].loc
    constant = 12 * math.log(0.7 * math.sqrt(2 * math.pi))
    expected = 0.7 / 2 * (point / 0.7).square().sum() + constant - 3 * dist.Bernoulli(0.3).entropy()
    torch.testing.assert_close(law.kl, expected)
    bias = guide.trace.nodes["b1"]["fn"]
    torch.testing.assert_close(bias.kl, -dist.Normal(0.0, 1.0).log_prob(bias.value).sum())


@pytest.mark.parametrize("make", [AutoDropout, AutoConcreteDropout])
def test_quantiles_of_dropout_are_those_of_its_draws(make):
    x, y = data()
    guide = make(network(normal), rate=0.3)
    guide.setup(x, y)
    draws, levels = guide.draws(4000, seed=1), [0.1, 0.25, 0.5, 0.75, 0.9]
    for name, values in guide.quantiles(levels).items():
        for level, value in zip(levels, values, strict=True):  # at an atom any level in between
            bound = 4.5 * math.sqrt(level * (1 - level) / 4000)
            assert ((draws[name] < value).double().mean(0) - level < bound).all(), name
            assert (level - (draws[name] <= value).double().mean(0) < bound).all(), name


def test_elements_of_a_plate_lose_inputs_of_their_own():
    def model(x, y=None):
        with pyro.plate("networks", 2):
            w = pyro.sample("w", normal([4, 3]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w.mT).sum((0, -1)), NOISE), obs=y)

    x, y = data()
    guide = AutoDropout(model, rate=0.5)
    guide.setup(x, y)
    seen = Predictive(model, guide=guide, num_samples=200, return_sites=["w"])(x)["w"]
    for draws in (seen, guide.draws(200, seed=1)["w"]):
        on = (draws != 0).reshape(200, 2, 4, 3)
        assert torch.equal(on, on[:, :, :1].expand_as(on))
        assert_share((on[:, 0, 0] == on[:, 1, 0]).double(), 0.5)


def test_moments_of_dropout_are_those_of_its_draws():
    x, y = data()
    guide = AutoDropout(layer, rate=0.3)
    guide(x, y)
    law, draws = guide.trace.nodes["w"]["fn"], guide.draws(4000, seed=1)["w"].double()
    assert_mean(draws, law.mean.detach().double())
    assert_mean((draws - law.mean) ** 2, law.variance.detach().double())


def test_dropout_refuses():
    x, y = data()
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match="rate"):
            AutoDropout(layer, rate=wrong)
    with pytest.raises(ValueError, match="temperature"):
        AutoConcreteDropout(layer, temperature=0.0)
    guide = AutoDropout(layer)
    guide(x, y)
    with pytest.raises(NotImplementedError, match="no density"):
        guide.log_prob(guide.draws(2))
    with pytest.raises(UnsupportedSiteError, match="event dimension"):
        AutoDropout(network(normal), sites=["precision"])(x, y)


def rates_of_inputs(x, y=None):
    """A weight matrix whose prior is not Gaussian."""
    w = pyro.sample("w", dist.Gamma(2.0, 1.0).expand([1, x.shape[-1]]).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(F.linear(x, w).squeeze(-1), NOISE), obs=y)


@pytest.mark.parametrize("make", [AutoDropout, AutoConcreteDropout])
def test_points_under_a_scale_that_is_trained_are_a_warning(make):
    """As a mode they are at zero, both of them."""

    def model(x, y=None):
        scale = pyro.param("scale", torch.tensor(0.5), constraint=dist.constraints.positive)
        w = pyro.sample("w", dist.Normal(0.0, scale).expand([2, 3]).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(F.linear(x, w).sum(-1), NOISE), obs=y)

    with pytest.warns(UserWarning, match=rf"'w': the scale of its prior is trained too, and {make.__name__}"):
        make(model)(torch.randn(5, 3), torch.randn(5))


@pytest.mark.parametrize("make", [AutoDropout, AutoConcreteDropout])
def test_dropout_refuses_sites_that_it_would_ignore(make):
    x, y = data()
    with pytest.raises(ValueError, match=r"got a string; write sites=\['w1'\]"):
        make(network(normal), sites="w1")
    with pytest.raises(ValueError, match="no latent site 'nope'; it has w1, b1, w2, b2, precision"):
        make(network(normal), sites=["w1", "nope"])(x, y)
    with pytest.raises(UnsupportedSiteError, match="'w' has no Normal prior; leave it out"):
        make(rates_of_inputs, sites=["w"])(x, y)
    for model in (linear_model(normal), rates_of_inputs):
        with pytest.raises(ValueError, match=rf"{make.__name__}: no site of the model \(w\).*sites=\(\)"):
            make(model)(x, y)
        points = make(model, sites=())
        points(x, y)
        assert points.dropout_rates() == {}
    with pytest.raises(UnsupportedSiteError, match="subsampled plate 'data'; run the model on the whole"):
        make(local_weights)(x, y)


def test_points_under_a_spike_and_slab_are_refused():
    """Their score would reward a weight for being exactly zero by no more than a constant."""
    x, y = data()
    refusal = pytest.raises(UnsupportedSiteError, match="'w1' has a spike and slab.*use AutoSpikeSlab")
    for options in ({}, {"sites": ["w1"]}, {"sites": ()}):
        for make in (AutoDropout, AutoConcreteDropout):
            with refusal:
                make(network(spike_slab), **options)(x, y)
    with refusal:
        fit_ensemble(network(spike_slab), x, y, members=1, steps=1)
    # A score without the prior's density has nothing to refuse.
    assert AutoDropout(FlatPriors()(network(spike_slab)), sites=())(x, y)["w1"].shape == (4, 3)
    assert len(fit_ensemble(network(spike_slab), x, y, members=1, steps=1, prior=False)) == 1


@pytest.mark.parametrize("inputs", [1, 3])
def test_inputs_of_a_product_are_dropped_whole(inputs):
    """``x @ w``, of one input too: its weights to all outputs go together."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.ones(inputs, 4), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w).sum(-1), 1.0), obs=y)

    guide = AutoDropout(model, rate=0.5)
    guide.setup(torch.ones(5, inputs), torch.zeros(5))
    there = guide.draws(200, seed=0)["w"] != 0
    assert (there == there[..., :1]).all()
    assert 0 < there.float().mean() < 1
