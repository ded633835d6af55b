"""Models that the guides take: plates, hierarchies, constraints, modules, dtypes; and those they refuse."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import init_to_value
from pyro.nn import PyroModule, PyroSample

from guides import AutoMeanField, Horseshoe, SpikeSlab, UnsupportedSiteError, init_to_he
from guides.posterior import Posterior
from guides.testing import (
    NOISE,
    assert_drawn_particles_are_runs,
    assert_particles_are_runs,
    assert_same_mean,
    data,
    each_batch,
    fit,
    losses,
    normal,
    perturb,
    vectorized,
)
from tests.guides.battery import each_case
from tests.guides.core.each import each_guide, each_guide_and_elbo


def local_model(batch_size=None):
    """One latent for each data row: ``z_i ~ N(0, 1)``, ``y_i ~ N(z_i + w, NOISE)``."""

    def model(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", len(y), subsample_size=batch_size) as rows:
            z = pyro.sample("z", dist.Normal(torch.zeros(()), 1.0))
            rate = pyro.sample("rate", dist.Gamma(torch.tensor(4.0), 4.0))
            pyro.sample("y", dist.Normal(z * rate + w, NOISE), obs=y[rows])

    return model


@each_guide_and_elbo
def test_local_sites_in_a_subsampled_plate(make, elbo):
    y = torch.randn(8)
    batches, whole = local_model(2), local_model()
    guide = make(batches)
    guide.setup(y)
    assert guide.sites["z"].shape == (8,)
    perturb(guide, 0.3)
    full_guide = make(whole)
    full_guide.load_state_dict(guide.state_dict())
    full = losses(whole, full_guide, vectorized(elbo, 500), 25, y)
    assert_particles_are_runs(whole, full_guide, elbo, y)
    assert_drawn_particles_are_runs(whole, full_guide, elbo, y)
    parts = each_batch(8, 2, lambda: losses(batches, guide, vectorized(elbo, 500), 25, y))
    assert_same_mean(torch.stack(list(parts)).mean(0), full)
    for check in (assert_particles_are_runs, assert_drawn_particles_are_runs):
        list(each_batch(8, 2, lambda check=check: check(batches, guide, elbo, y)))
    history = fit(batches, guide, y, steps=5)
    assert all(map(math.isfinite, history))
    assert Predictive(batches, guide=guide, num_samples=3)(y)["z"].shape == (3, 2)


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


def units_in_plates(x, y=None):
    """Weights of two outputs in plates, which the units of the layer's output stand in too."""
    outputs = pyro.plate("outputs", 2, dim=-1)
    with pyro.plate("inputs", 3, dim=-2), outputs:
        w = pyro.sample("w", dist.Normal(torch.tensor(0.0), 1.0))
    with pyro.plate("data", len(x), dim=-2), outputs:
        return pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


@pytest.mark.parametrize("elbo", [Trace_ELBO, pytest.param(TraceMeanField_ELBO, marks=pytest.mark.slow)])
def test_particles_of_weights_whose_outputs_are_a_plate(elbo):
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    guide = AutoMeanField(units_in_plates)
    guide.setup(x, y)
    perturb(guide, 0.3)
    together = elbo(num_particles=50, vectorize_particles=True, max_plate_nesting=2)
    runs = losses(units_in_plates, guide, elbo(num_particles=50), 20, x, y)
    assert_same_mean(losses(units_in_plates, guide, together, 20, x, y), runs)
    drawn = Predictive(units_in_plates, guide=guide, num_samples=5, parallel=True)(x)
    assert drawn["y"].shape == (5, 20, 2)


def named_function(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 0.5), obs=y)


def half_observed(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y, obs_mask=torch.arange(len(x)) < 4)


@Horseshoe(["other"])
def beside_a_horseshoe(x, y):
    other = pyro.sample("other", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w + (x * other).sum(-1), 0.5), obs=y)


@pytest.mark.parametrize(
    "model", [named_function, half_observed, pytest.param(beside_a_horseshoe, marks=pytest.mark.slow)]
)
def test_particles_of_models_with_deterministic_sites(model):
    """They have more numbers with more particles, and are no data."""
    x, y = torch.randn(6, 3), torch.randn(6)
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert guide.sites["w"].by_moments
    together = Trace_ELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=1)
    runs = losses(model, guide, Trace_ELBO(num_particles=50), 10, x, y)
    assert_same_mean(losses(model, guide, together, 10, x, y), runs)
    together.loss_and_grads(model, guide, x, y)
    assert guide.loc.grad.isfinite().all()


def test_what_a_run_shows_is_asked_about_once(monkeypatch):
    """Also where the run within looks otherwise: here it has other data."""
    asked, within = [], []
    guide = AutoMeanField(named_function)
    record = guide._record_uses

    def recorded(*args):
        asked.append(within.append(1))
        record(*args)
        within.clear()

    monkeypatch.setattr(guide, "_record_uses", recorded)
    monkeypatch.setattr("guides.core.flat_guide.data_of", lambda trace: ({"y"}, 6 if within else 20))
    guide(torch.randn(6, 3), torch.randn(6))
    assert len(asked) == 2  # the set-up's, and one more


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


def test_quantiles_of_a_number_below_a_bound_rise_with_their_level():
    """The map to such numbers falls."""

    def model():
        below = dist.constraints.less_than(torch.tensor(2.0))
        debts = pyro.sample("debts", dist.ImproperUniform(below, (), (2,)))
        pyro.factor("density", dist.Gamma(3.0, 1.0).log_prob(2.0 - debts).sum())

    guide = AutoMeanField(model, init_loc_fn=init_to_value(values={"debts": torch.zeros(2)}))
    guide.setup()
    perturb(guide, 0.5)
    levels = [0.05, 0.5, 0.9]
    drawn = guide.draws(4000, seed=1)["debts"].quantile(torch.tensor(levels), 0)
    quantiles = guide.quantiles(levels)["debts"]
    assert (quantiles.diff(dim=0) > 0).all()
    torch.testing.assert_close(quantiles, drawn, rtol=0.05, atol=0.02)
    torch.testing.assert_close(guide.quantiles([0.0, 1.0])["debts"][:, 0], torch.tensor([-math.inf, 2.0]))


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


@pytest.mark.one_in(2)
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
    with pytest.raises(ValueError, match="the posterior holds no site"):
        Posterior.from_guide(guide, 2).predictive(y)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [(0,), (0, 2)], ids=str)
@each_case
def test_a_layer_without_inputs_or_outputs_changes_nothing(case, shape):
    """As a group of columns of which a data set has none."""
    x, y = data()

    def model(x, y, empty):
        w = pyro.sample("w", case.prior([x.shape[1]]))
        mean = x @ w
        if empty:
            inputs = torch.ones(len(x), shape[-1])
            none = pyro.sample("none", case.prior(list(shape)))
            output = torch.nn.functional.linear(inputs, none)
            mean = mean + (output if len(shape) == 1 else output.sum(-1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, NOISE), obs=y)

    found, start = [], None
    for empty in (False, True):
        guide = case.make(model)
        guide.setup(x, y, empty)
        numbers = dict(guide.named_parameters()) | dict(guide.named_buffers())
        start = start or {name: value.clone() for name, value in numbers.items()}
        with torch.no_grad():
            for name, value in numbers.items():
                value.copy_(start[name])
        torch.manual_seed(1)
        found.append([fit(model, guide, x, y, empty, steps=1), guide.draws(4, seed=0)["w"]])
    torch.testing.assert_close(found[1], found[0])
    assert guide.draws(4)["none"].shape == (4, *shape)
    assert Predictive(model, guide=guide, num_samples=2)(x, None, True)["none"].numel() == 0


def test_an_empty_layer_starts_at_he_and_learns_no_prior():
    def model(x, y):
        w = pyro.sample("w", normal([2, x.shape[1]]))
        none = pyro.sample("none", normal([2, 0]))
        mean = (torch.nn.functional.linear(x, w) + torch.nn.functional.linear(x[:, :0], none)).sum(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, NOISE), obs=y)

    guide = AutoMeanField(model, init_loc_fn=init_to_he, empirical_bayes=True)
    fit(model, guide, *data(), steps=12)
    assert all(value.isfinite().all() for value in guide.draws(2).values())
    assert guide.elbo().loss(model, guide, *data()) < math.inf


def test_a_parameter_that_is_lifted_to_a_site():
    """``poutine.lift`` gives parameters priors; against the same model with sites."""

    def lifted(x, y):
        scale = pyro.param("scale", torch.tensor(1.0), constraint=dist.constraints.positive)
        w = pyro.sample("w", normal((2,)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    def stated(x, y):
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        w = pyro.sample("w", normal((2,)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    torch.manual_seed(0)
    x = torch.randn(30, 2)
    y = x[:, 0] + 0.5 * torch.randn(30)
    start, found = {"scale": torch.tensor(1.0), "w": torch.zeros(2)}, []
    for model in (poutine.lift(lifted, prior={"scale": dist.HalfNormal(1.0)}), stated):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        guide = AutoMeanField(model, init_loc_fn=init_to_value(values=start))
        fit(model, guide, x, y, steps=50, lr=0.05)
        found.append(guide.median())
    assert found[0].keys() == found[1].keys() == {"scale", "w"}
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name])


def test_sequential_plates_are_refused():
    def model():
        for i in pyro.plate("steps", 2):
            pyro.sample(f"z{i}", dist.Normal(0.0, 1.0))

    with pytest.raises(UnsupportedSiteError, match="site 'z0'.*'steps'"):
        AutoMeanField(model)()
