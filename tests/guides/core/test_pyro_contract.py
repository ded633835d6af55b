"""The guides inside Pyro: losses, optimisers, handlers, plates, priors, and what is refused by name."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal, init_to_mean, init_to_value
from pyro.nn import PyroModule, PyroSample
from torch.nn import functional as F

from guides import (
    AutoConcrete,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
    PathwiseGradientError,
    RandomTensor,
    SpikeSlab,
    UnsupportedSiteError,
)
from guides.testing import (
    NOISE,
    Noise,
    assert_drawn_particles_are_runs,
    assert_equal_results,
    assert_mean,
    assert_particles_are_runs,
    assert_same_mean,
    data,
    each_batch,
    exact_loss,
    exact_loss_of_draws,
    fit,
    linear_model,
    loss_and_gradients,
    losses,
    network,
    normal,
    perturb,
    spike_slab,
    vectorized,
)
from tests.guides.battery import CASES

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_exact_case = pytest.mark.parametrize("case", [c for c in CASES if c.exact_loss_known], ids=str)
each_guide = pytest.mark.parametrize("make", [AutoMeanField, AutoSpikeSlab])


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
    model, guide = linear_model(case.prior), case.make(linear_model(case.prior))
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
    model, guide = linear_model(case.prior), case.make(linear_model(case.prior))
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
    model, guide = network(case.prior), case.make(network(case.prior))
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


# ---------------------------------------------------------------------- kinds of models


def local_model(batch_size=None):
    """One latent for each data row: ``z_i ~ N(0, 1)``, ``y_i ~ N(z_i + w, NOISE)``."""

    def model(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", len(y), subsample_size=batch_size) as rows:
            z = pyro.sample("z", dist.Normal(torch.zeros(()), 1.0))
            rate = pyro.sample("rate", dist.Gamma(torch.tensor(4.0), 4.0))
            pyro.sample("y", dist.Normal(z * rate + w, NOISE), obs=y[rows])

    return model


each_guide_and_elbo = pytest.mark.parametrize(
    ("make", "elbo"),
    [
        (AutoMeanField, Trace_ELBO),
        pytest.param(AutoMeanField, TraceMeanField_ELBO, marks=pytest.mark.slow),
        pytest.param(AutoSpikeSlab, Trace_ELBO, marks=pytest.mark.slow),
        (AutoSpikeSlab, TraceMeanField_ELBO),
    ],
)


@each_guide_and_elbo
def test_local_sites_in_a_subsampled_plate(make, elbo):
    y = torch.randn(8)
    guide = make(local_model(2))
    guide.setup(y)
    assert guide.sites["z"].shape == (8,)
    perturb(guide, 0.3)
    full_guide = make(local_model())
    full_guide.load_state_dict(guide.state_dict())
    full = losses(local_model(), full_guide, vectorized(elbo, 500), 25, y)
    assert_particles_are_runs(local_model(), full_guide, elbo, y)
    assert_drawn_particles_are_runs(local_model(), full_guide, elbo, y)
    batches = each_batch(8, 2, lambda: losses(local_model(2), guide, vectorized(elbo, 500), 25, y))
    assert_same_mean(torch.stack(list(batches)).mean(0), full)
    for check in (assert_particles_are_runs, assert_drawn_particles_are_runs):
        list(each_batch(8, 2, lambda check=check: check(local_model(2), guide, elbo, y)))
    history = fit(local_model(2), guide, y, steps=5)
    assert all(map(math.isfinite, history))
    assert Predictive(local_model(2), guide=guide, num_samples=3)(y)["z"].shape == (3, 2)


@each_guide
def test_local_vectors_in_a_subsampled_plate(make):
    """A row of the plate is a whole vector, at the start and in every minibatch."""

    def model(y):
        with pyro.plate("data", len(y), subsample_size=2) as rows:
            z = pyro.sample("z", normal([3]))
            pyro.sample("y", dist.Normal((+z).sum(-1), NOISE), obs=y[rows])

    y, start = torch.randn(8), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    guide = make(model, init_loc_fn=init_to_value(values={"z": start}))
    guide.setup(y)
    assert guide.sites["z"].shape == (8, 3)
    assert torch.equal(guide.median()["z"], start.repeat(4, 1))
    perturb(guide, 0.3)
    for i, mean in enumerate(each_batch(8, 2, lambda: guide(y)["z"].mean_)):
        assert torch.equal(mean, guide.loc.view(8, 3)[2 * i : 2 * i + 2])


def test_a_subsample_given_by_hand_or_hidden():
    def model(rows):
        with pyro.plate("data", 8, subsample=rows):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    for rows in (torch.tensor([1, 3]), [1, 3]):
        guide = AutoMeanField(model)
        assert guide(rows)["z"].shape == (2,)
        assert torch.equal(guide(rows)["z"].mean_, guide.loc[[1, 3]])
    guide = AutoMeanField(poutine.block(model, expose=["z"]))
    with pytest.raises(UnsupportedSiteError, match="site 'z'.*plate 'data'.*expose the plate too"):
        guide(torch.tensor([1, 3]))


@each_guide
def test_hierarchical_priors(make):
    """The scale of the weights is latent: its KL is averaged over its draws, one number a weight."""
    x, y = data()

    def model(x, y):
        tau = pyro.sample("tau", dist.Gamma(torch.tensor(5.0), 5.0))
        centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        scale = tau.rsqrt()[..., None] if tau.dim() else tau.rsqrt()
        loc = centre[..., None] if tau.dim() else centre + torch.zeros(())
        w = pyro.sample("w", dist.Normal(loc, scale).expand(loc.shape[:-1] + (3,)).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    guide = make(model)
    guide.setup(x, y)
    perturb(guide, 0.3)
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        assert_particles_are_runs(model, guide, elbo, x, y)
        assert_drawn_particles_are_runs(model, guide, elbo, x, y)
    values = losses(model, guide, vectorized(TraceMeanField_ELBO, 200), 25, x, y)
    # The same bound by drawing everything and scoring it.
    draws = guide.draws(10_000, seed=1)
    tau, centre, w = draws["tau"], draws["centre"], draws["w"]
    joint = dist.Gamma(5.0, 5.0).log_prob(tau) + dist.Normal(0.0, 1.0).log_prob(centre)
    joint = joint + dist.Normal(centre[:, None], tau.rsqrt()[:, None]).log_prob(w).sum(-1)
    joint = joint + dist.Normal(w @ x.T, NOISE).log_prob(y).sum(-1)
    assert_same_mean(values, (guide.log_prob(draws) - joint).double())
    assert all(map(math.isfinite, fit(model, guide, x, y, steps=5)))


def constrained_model(y):
    shares = pyro.sample("shares", dist.Dirichlet(torch.ones(3)))
    root = pyro.sample("root", dist.LKJCholesky(2, torch.tensor(2.0)))
    low = pyro.sample("low", dist.Uniform(-1.0, 2.0))
    scale = pyro.sample("scale", dist.HalfNormal(torch.ones(2)).to_event(1))
    with pyro.plate("groups", 2):
        share = pyro.sample("share", dist.Beta(2.0, torch.tensor([1.0, 3.0])))
    with pyro.plate("data", len(y)):
        loc = (shares[..., 0] * low + share.sum(-1, keepdim=True)).unsqueeze(-1)
        law = dist.MultivariateNormal(
            loc.expand(loc.shape[:-1] + (2,)), scale_tril=scale.unsqueeze(-1) * root
        )
        pyro.sample("y", law, obs=y)


@each_guide
def test_constrained_sites_go_through_their_bijection(make):
    y = torch.randn(6, 2)
    guide = make(constrained_model)
    guide.setup(y)
    perturb(guide, 0.3)
    draws = guide.draws(600, seed=2)
    assert ((draws["shares"] > 0) & (draws["shares"] < 1)).all()
    torch.testing.assert_close(draws["shares"].sum(-1), torch.ones(600))
    torch.testing.assert_close(draws["root"].norm(dim=-1), torch.ones(600, 2))
    assert ((draws["low"] > -1) & (draws["low"] < 2)).all()
    particles = {name: value.unsqueeze(1) for name, value in draws.items()}  # [600, data plate, ...]
    particles["share"] = draws["share"]
    with pyro.plate("particles", 600, dim=-2):
        trace = poutine.trace(poutine.condition(constrained_model, particles)).get_trace(y)
    trace.compute_log_prob()
    sites = [node for node in trace.nodes.values() if node["type"] == "sample" and "log_prob" in node]
    joint = sum(node["log_prob"].reshape(600, -1).sum(-1) for node in sites if node["log_prob"].dim())
    truth = (guide.log_prob(draws) - joint).double()
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        assert_particles_are_runs(constrained_model, guide, elbo, y)
        assert_drawn_particles_are_runs(constrained_model, guide, elbo, y)
        assert_same_mean(losses(constrained_model, guide, vectorized(elbo, 100), 20, y), truth)
    assert all(map(math.isfinite, fit(constrained_model, guide, y, steps=5)))
    quantiles = guide.quantiles([0.1, 0.9])
    assert (quantiles["low"][0] < quantiles["low"][1]).all()
    torch.testing.assert_close(guide.median()["shares"].sum(-1), torch.ones(()))


class Net(PyroModule):
    def __init__(self):
        super().__init__()
        self.layer = PyroModule[torch.nn.Linear](3, 4)
        self.layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2))
        self.layer.bias = PyroSample(dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        self.out = PyroModule[torch.nn.Linear](4, 1)
        self.out.weight = PyroSample(SpikeSlab(torch.tensor(0.5)).expand([1, 4]).to_event(2))

    def forward(self, x, y=None):
        f = self.out(torch.relu(self.layer(x))).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, NOISE), obs=y)


@each_guide
def test_pyro_modules(make):
    x, y = data()
    model = Net()
    guide = make(model)
    before = model.out.bias.item()
    fit(model, guide, x, y, steps=20)
    assert set(guide.sites) == {"layer.weight", "layer.bias", "out.weight"}
    assert guide.sites["layer.weight"].by_moments
    assert model.out.bias.item() != before
    assert Predictive(model, guide=guide, num_samples=4)(x)["y"].shape == (4, len(x))


@each_case
def test_float64(case):
    x, y = (t.double() for t in data())

    def model(x, y):
        prior = case.prior([3]).base_dist
        p = {"scale": torch.ones((), dtype=torch.float64), "loc": torch.zeros((), dtype=torch.float64)}
        prior = SpikeSlab(0.3, **p) if isinstance(prior, SpikeSlab) else dist.Normal(**p)
        w = pyro.sample("w", prior.expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    guide = case.make(model)
    fit(model, guide, x, y, steps=3)
    assert all(p.dtype == torch.float64 for p in guide.parameters())
    assert guide.draws(2)["w"].dtype == guide.median()["w"].dtype == torch.float64


@each_guide
def test_mixed_dtypes_are_refused(make):
    def model():
        pyro.sample("a", dist.Normal(torch.zeros(()), 1.0))
        pyro.sample("b", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))

    with pytest.raises(UnsupportedSiteError, match="mix dtypes"):
        make(model)()


@each_guide
def test_a_model_without_latent_sites(make):
    def model(y):
        loc = pyro.param("loc", torch.tensor(0.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    y = torch.ones(5)
    guide = make(model)
    expected = -dist.Normal(0.0, 1.0).log_prob(y).sum()
    assert guide.elbo().loss(model, guide, y) == pytest.approx(expected.item())
    fit(model, guide, y, steps=50, lr=0.1)
    assert pyro.param("loc").item() > 0.5
    assert guide.draws(2) == guide.median() == {}


# ---------------------------------------------------------------------- starting values


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


# ---------------------------------------------------------------------- block and expose


def two_part_model(x, y=None):
    w = pyro.sample("w", spike_slab([3]))
    v = pyro.sample("v", normal([3]))
    bias = pyro.sample("bias", dist.Normal(torch.zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w + x @ v + bias, NOISE), obs=y)


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


def test_sequential_plates_are_refused():
    def model():
        for i in pyro.plate("steps", 2):
            pyro.sample(f"z{i}", dist.Normal(0.0, 1.0))

    with pytest.raises(UnsupportedSiteError, match="site 'z0'.*'steps'"):
        AutoMeanField(model)()


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
