"""The guides inside Pyro: losses, optimisers, handlers, starting values, uses of a weight."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import init_to_mean, init_to_value
from torch.nn import functional as F

from guides import (
    AutoConcrete,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
    PathwiseGradientError,
    SpikeSlab,
)
from guides.core.random_tensors import RandomTensor
from guides.testing import (
    NOISE,
    Noise,
    assert_equal_results,
    assert_mean,
    assert_same_mean,
    data,
    exact_loss,
    exact_loss_of_draws,
    fit,
    linear_model,
    loss_and_gradients,
    network,
    normal,
    perturb,
    spike_slab,
    vectorized,
)
from tests.guides.battery import CASES, each_case, each_exact_case
from tests.guides.core.each import each_guide

# ---------------------------------------------------------------------- SVI


TRAINING_ELBOS = [Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO]


def combination(i: int, j: int):
    """Every case meets every ELBO, half of them with Pyro's validation; one in three of them is fast, so that
    each case meets an ELBO, and every ELBO laws of several kinds.
    """
    marks = [] if (i + j) % 3 == 0 else pytest.mark.slow
    return pytest.param(CASES[i], TRAINING_ELBOS[j], (i + j) % 2 == 0, marks=marks)


@pytest.mark.parametrize(
    ("case", "elbo", "validation"),
    [combination(i, j) for i in range(len(CASES)) for j in range(len(TRAINING_ELBOS))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_trains_under_every_elbo(case, elbo, validation):
    x, y = data(rows=40)
    model = network(case.prior)
    with pyro.validation_enabled(validation):
        guide = case.make(model)
        svi = SVI(model, guide, guide.optimizer(0.05), elbo(num_particles=2))

        def loss() -> float:
            pyro.set_rng_seed(1)  # the same noise before and after
            return sum(svi.evaluate_loss(x, y) for _ in range(5))

        before = loss()
        for _ in range(12):
            svi.step(x, y)
        assert loss() < before


@pytest.mark.parametrize("optimizer", [pyro.optim.Adam, pyro.optim.ClippedAdam])
@each_guide
def test_trains_with_pyro_optimisers(make, optimizer):
    x, y = data()
    model = linear_model(normal)
    guide = make(model)
    svi = SVI(model, guide, optimizer({"lr": 0.05}), Trace_ELBO())
    guide.setup(x, y)
    start = exact_loss(guide, normal, x, y)
    for _ in range(40):
        svi.step(x, y)
    assert exact_loss(guide, normal, x, y) < start - 1


@each_exact_case
def test_scale_around_model_and_guide(case):
    x, y = data()
    model = linear_model(case.prior)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide)
    scaled_model, scaled_guide = poutine.scale(model, 0.1), poutine.scale(guide, 0.1)
    noise = Noise.random(particles=1)
    for elbo in (Trace_ELBO(), TraceMeanField_ELBO()):
        with noise.of(0):
            whole = loss_and_gradients(model, guide, elbo, x, y)
        with noise.of(0):
            scaled = loss_and_gradients(scaled_model, guide, _Scaled(elbo, scaled_guide), x, y)
        assert_equal_results(scaled, {name: 0.1 * value for name, value in whole.items()})


class _Scaled:
    """An ELBO of a guide in a handler, which has no parameters to ask for."""

    def __init__(self, elbo, guide):
        self.elbo, self.guide = elbo, guide

    def loss_and_grads(self, model, _, *args):
        return self.elbo.loss_and_grads(model, self.guide, *args)


@each_exact_case
def test_bound_without_gradients_is_the_same(case):
    """Of drawn networks, with real indicators."""
    x, y = data()
    model = linear_model(case.prior)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide)
    svi = SVI(model, guide, guide.optimizer(), vectorized(TraceMeanField_ELBO, 200))
    values = torch.tensor([svi.evaluate_loss(x, y) for _ in range(25)], dtype=torch.float64)
    assert_mean(values, exact_loss_of_draws(guide, case.prior, x, y))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("elbo", "write"),
    [
        (Trace_ELBO, lambda x, w: x @ w),
        pytest.param(Trace_ELBO, lambda x, w: F.linear(x, w), marks=pytest.mark.slow),
        pytest.param(TraceMeanField_ELBO, lambda x, w: x @ w, marks=pytest.mark.slow),
        (TraceMeanField_ELBO, lambda x, w: F.linear(x, w)),
    ],
    ids=["matmul-Trace", "linear-Trace", "matmul-TraceMeanField", "linear-TraceMeanField"],
)
def test_support_of_a_sparse_linear_model_is_found(elbo, write):
    x = torch.randn(100, 12)
    truth = torch.tensor([2.0, -1.5, 1.0] + [0.0] * 9)
    y = x @ truth + 0.5 * torch.randn(100)

    def model(x, y):
        w = pyro.sample("w", SpikeSlab(torch.tensor(0.2)).expand([12]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(write(x, w), 0.5), obs=y)

    guide = AutoSpikeSlab(model, init_inclusion="mild")
    fit(model, guide, x, y, steps=250, lr=0.2, elbo=elbo())
    inclusion = guide.inclusion_probabilities()["w"]
    assert torch.equal(inclusion > 0.5, truth != 0)
    assert (inclusion[:3] > 0.99).all()
    mean, above_half = guide.density()
    assert above_half == 3 / 12
    assert mean == pytest.approx(inclusion.mean().item())


@pytest.mark.one_in(2)
@each_guide
def test_a_models_own_parameters_train_too(make):
    x, y = data(rows=50)

    def model(x, y):
        w = pyro.sample("w", normal([3]))
        noise = pyro.param("noise", torch.tensor(5.0), constraint=constraints.positive)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    guide = make(model)
    fit(model, guide, x, y, steps=150, lr=0.2)
    assert pyro.param("noise").item() == pytest.approx(NOISE, abs=0.2)
    own = {f"{make.__name__}.{name}" for name in (*dict(guide.named_parameters()), "layout")}
    assert set(pyro.get_param_store()) == {"noise", *own}


class _Shifted(AutoMeanField):
    """All means are moved by a module of its own, of which one parameter is fixed."""

    def __init__(self, model):
        super().__init__(model)
        self.shift = torch.nn.Linear(1, 1)
        self.shift.bias.requires_grad_(False)

    def get_posterior(self, *args):
        law = super().get_posterior(*args)
        law.loc = law.loc + self.shift(law.loc.new_ones(1))
        return law


def test_parameters_of_a_guides_own_module_train_too():
    x, y = data()
    model = linear_model(normal)
    guide = _Shifted(model)
    before = {name: parameter.clone() for name, parameter in guide.shift.named_parameters()}
    fit(model, guide, x, y, steps=3)
    assert (guide.shift.weight != before["weight"]).all()
    assert torch.equal(guide.shift.bias, before["bias"])


@each_guide
def test_parameters_of_the_prior_train_too(make):
    """The fused KL passes the gradient on to a learned prior."""
    x, y = data()

    def model(x, y):
        scale = pyro.param("scale", torch.tensor(1.0), constraint=constraints.positive)
        logit = pyro.param("logit", torch.tensor(0.0))
        w = pyro.sample("w", SpikeSlab(logits=logit, scale=scale).expand([3]).to_event(1))
        v = pyro.sample("v", dist.Normal(0.0, scale).expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w + x @ v, NOISE), obs=y)

    guide = make(model)
    guide.setup(x, y)
    fit(model, guide, x, y, steps=3)
    assert pyro.param("scale").item() != 1.0
    assert pyro.param("logit").item() != 0.0


# ---------------------------------------------------------------------- Predictive


@pytest.mark.one_in(3)
@each_case
def test_predictive_draws_the_networks_of_the_guide_and_predicts_from_them(case):
    x, y = data()
    model = network(case.prior)
    guide = case.make(model)
    fit(model, guide, x, y, steps=3)
    out = Predictive(model, guide=guide, num_samples=50)(x)
    assert out["w1"].shape == (50, 1, 4, 3)  # Pyro puts the data plate's dimension in front of the event
    out = {name: value.squeeze(1) for name, value in out.items()}
    assert type(out["w1"]) is torch.Tensor
    assert (out["w1"] == 0).any() == ("logits" in dict(guide.named_parameters()))
    for name, direct in guide.draws(4000, seed=7).items():
        one, other = out[name].double(), direct.double()
        assert_same_mean(one, other)
        assert_same_mean(one**2, other**2)
    hidden = torch.relu(torch.einsum("nd,shd->snh", x, out["w1"]) + out["b1"][:, None])
    f = torch.einsum("snh,soh->sn", hidden, out["w2"]) + out["b2"]
    standard = (out["y"] - f) * out["precision"].sqrt().unsqueeze(-1)
    assert_mean(standard.reshape(-1), 0.0)
    assert_mean(standard.reshape(-1) ** 2, 1.0)


@each_guide
def test_call_returns_the_latent_sites(make):
    x, y = data()
    guide = make(network(normal))
    sites = guide(x, y)
    assert set(sites) == {"w1", "b1", "w2", "b2", "precision"}
    assert isinstance(sites["w1"], RandomTensor)
    trace = poutine.trace(guide).get_trace(x, y)
    assert {n for n, node in trace.nodes.items() if node["type"] == "sample"} == set(sites) | {"data"}


# ---------------------------------------------------------------------- starting values


@pytest.mark.one_in(2)
@each_case
def test_starting_values(case):
    x, y = data()
    model = linear_model(case.prior)
    value = torch.tensor([0.5, -1.0, 2.0])
    guide = case.make(model, init_loc_fn=init_to_value(values={"w": value}), init_scale=0.2)
    guide.setup(x, y)
    torch.testing.assert_close(guide.loc.detach(), value)
    torch.testing.assert_close(guide.log_scale.exp().detach(), torch.full((3,), 0.2))
    if case.exact_loss_known and "logits" not in dict(guide.named_parameters()):
        torch.testing.assert_close(guide.median()["w"], value)
    zero = case.make(model, init_loc_fn=init_to_mean)
    zero.setup(x, y)
    assert (zero.loc == 0).all()
    default = case.make(model)
    default.setup(x, y)
    assert (default.loc != 0).all()


@pytest.mark.parametrize(
    ("start", "low", "high"),
    [
        ("mild", -3, 3),
        ("polarised", -10, 10),
        ("dense", 1.5, 2.5),
        ((-1, -0.5), -1, -0.5),
        ([0.5, 1.0], 0.5, 1),
    ],
)
def test_starting_inclusion(start, low, high):
    guide = AutoSpikeSlab(linear_model(spike_slab), init_inclusion=start)
    guide.setup(torch.randn(5, 300), torch.randn(5))
    assert low <= guide.logits.min() < low + 0.1 * (high - low)
    assert high >= guide.logits.max() > high - 0.1 * (high - low)


def test_density_is_the_mean_inclusion_and_the_share_above_one_half():
    guide = AutoSpikeSlab(linear_model(spike_slab))
    guide.setup(torch.randn(5, 4), torch.randn(5))
    with torch.no_grad():
        guide.logits.copy_(torch.tensor([0.1, 0.45, 0.55, 0.9]).logit())
    assert guide.density() == (pytest.approx(0.5), 0.5)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="init_scale must be positive"):
        AutoMeanField(lambda: None, init_scale=0.0)
    for wrong in ("sparse", 0.5, [0.0, 1.0, 2.0], (1.0, 0.5), (math.nan, 1.0), (0.0, math.inf)):
        for make in (AutoSpikeSlab, AutoConcrete, AutoMNF, AutoSpikeSlabMVN):
            with pytest.raises(ValueError, match=r"mild, polarised, dense or a pair \(low, high\)"):
                make(lambda: None, init_inclusion=wrong)
    guide = AutoSpikeSlab(linear_model(normal))
    guide.setup(*data())
    with pytest.raises(ValueError, match="no spike-and-slab site"):
        guide.density()
    with pytest.raises(RuntimeError, match="no parameters yet"):
        AutoMeanField(linear_model(normal)).draws(3)


# ---------------------------------------------------------------------- uses of a weight


def used(write):
    def model(x, y=None):
        w = pyro.sample("w", model.prior([3]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(write(x, w), NOISE), obs=y)

    return model


WRITINGS = {
    "mul": lambda x, w: (x * w).sum(-1),
    "exp": lambda x, w: x @ w.exp(),
    "einsum": lambda x, w: torch.einsum("nd,d->n", x, w),
    "pow": lambda x, w: x @ w**2,
    "getitem": lambda x, w: x @ w[torch.tensor([0, 1, 2])],
    "2 products": lambda x, w: x @ w + x[:, :1].squeeze(-1) * (x @ w),
    "nothing at all": lambda x, w: x[:, 0],
}


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("name", WRITINGS)
def test_uses_without_a_gradient_are_refused_at_the_first_call(name, elbo):
    x, y = data()
    model = used(WRITINGS[name])
    model.prior = spike_slab
    guide = AutoSpikeSlab(model)
    with pytest.raises(PathwiseGradientError, match=rf"site 'w'.*{name}.*F\.linear"):
        SVI(model, guide, guide.optimizer(), elbo()).step(x, y)


@pytest.mark.parametrize("prior", [normal, spike_slab])
@pytest.mark.parametrize("name", WRITINGS)
def test_a_gaussian_is_right_in_every_use(name, prior):
    """Including the weight used twice, where independent noise would shrink the expected loss.  Loss and
    gradient are written out again for the weights that the noise gives.
    """
    x, y = data(rows=6)
    model = used(WRITINGS[name])
    model.prior = prior
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert not guide.sites["w"].by_moments
    perturb(guide, 0.2)
    noise = Noise.random()
    runs = list(noise.each(lambda: loss_and_gradients(model, guide, guide.elbo(), x, y)))
    for row, run in zip(noise.normal, runs, strict=True):
        guide.zero_grad()
        law = dist.Normal(guide.loc, guide.log_scale.exp())
        w = law.loc + law.scale * row[:3]
        kl = torch.distributions.kl_divergence(law, prior([3]).base_dist).sum()
        loss = kl - dist.Normal(WRITINGS[name](x, w), NOISE).log_prob(y).sum()
        loss.backward()
        truth = {"loss": loss.detach(), "loc": guide.loc.grad, "log_scale": guide.log_scale.grad}
        assert_equal_results(run, {name: truth[name].clone() for name in run})


@each_guide
def test_a_use_that_appears_later_is_caught(make):
    x, y = data()

    def model(x, y, again=False):
        w = pyro.sample("w", (spike_slab if make is AutoSpikeSlab else normal)([3]))
        f = x @ w
        if again:
            f = f + x @ w
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    guide = make(model)
    svi = SVI(model, guide, guide.optimizer(), guide.elbo())
    svi.step(x, y)
    with pytest.raises(RuntimeError, match="site 'w' is used more often"):
        svi.step(x, y, again=True)


@each_guide
def test_forgotten_data_are_refused(make):
    x, y = data()
    model = network(normal)
    guide = make(model)
    svi = SVI(model, guide, guide.optimizer(), guide.elbo())
    svi.step(x, y)
    with pytest.raises(ValueError, match="site 'y' was observed"):
        svi.step(x)


@each_guide
def test_setting_up_again_keeps_the_fit(make):
    x, y = data()
    model = network(normal)
    guide = make(model)
    fit(model, guide, x, y, steps=3)
    before = guide.draws(2, seed=1)
    guide.setup(x[:5], y[:5])
    assert all(torch.equal(value, before[name]) for name, value in guide.draws(2, seed=1).items())
