"""The battery: every case of :mod:`battery` through every law that a guide must obey."""

import copy
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Predictive, TraceGraph_ELBO, TraceMeanField_ELBO
from torch.distributions import kl_divergence
from torch.nn import functional as F

from guides import AutoMeanField, AutoSpikeSlab
from guides.core.flat_parameters import elementwise_law
from guides.testing import (
    ELBOS,
    NOISE,
    PRODUCTS,
    Noise,
    assert_drawn_particles_are_runs,
    assert_equal_results,
    assert_mean,
    assert_particles_are_runs,
    check_constrained,
    check_divergence,
    check_gradients,
    check_minibatches,
    check_particles,
    check_posterior,
    check_same_seed,
    check_saving,
    data,
    each_batch,
    exact_loss,
    fit,
    linear_model,
    loss_and_gradients,
    losses,
    mean_of,
    moments_in_training,
    network,
    normal,
    perturb,
    priors_only,
    product,
    repeats,
    spike_slab,
    vectorized,
    z_bound,
)
from guides.truth.conjugate import conjugate_linear_regression
from guides.truth.spike_slab_linear import enumerate_spike_slab
from tests.guides.battery import CASES, concrete, each_case, each_exact_case

RELAXED = [c for c in CASES if c.exact_loss_known and c.make is concrete]
each_relaxed_case = pytest.mark.parametrize("case", RELAXED, ids=str)
QUADRATIC = [c for c in CASES if c.exact_loss_known and c not in RELAXED]
each_quadratic_case = pytest.mark.parametrize("case", QUADRATIC, ids=str)
#: One case a guide.
LAWS = [c for c in CASES if c.name in ("mean-field", "spike-slab", "mnf", "concrete", "spike-slab-mvn")]
each_elbo = pytest.mark.parametrize("elbo", ELBOS)


# ---------------------------------------------------------------------- the exact posterior


def minimise_exactly(model, guide, monkeypatch, *args) -> float:
    """Minus the optimal bound, by L-BFGS on the exact loss.

    A Gaussian likelihood is quadratic in the noise of each row, so noise +1 and noise -1 average to the
    expectation.
    """
    elbo = guide.elbo()
    guide.setup(*args)

    def loss(sign: float) -> torch.Tensor:
        monkeypatch.setattr(torch, "randn", lambda shape, **kwargs: torch.full(shape, sign, **kwargs))
        return elbo.differentiable_loss(model, guide, *args) / 2

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        total = loss(1.0) + loss(-1.0)
        total.backward()
        return total

    optimizer = torch.optim.LBFGS(guide.parameters(), max_iter=500, tolerance_grad=1e-9, tolerance_change=0,
                                  line_search_fn="strong_wolfe")  # fmt: skip
    optimizer.step(closure)
    value = closure().item()
    monkeypatch.undo()
    return value


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("make", [AutoMeanField, AutoSpikeSlab])
def test_conjugate_regression_is_solved_exactly(make, monkeypatch):
    """Mean field reaches the posterior mean and the inverse of the *diagonal of the precision*."""
    x, y = data()
    model = linear_model(normal)
    guide = make(model)
    bound = -minimise_exactly(model, guide, monkeypatch, x, y)
    exact = conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=NOISE)
    precision = torch.eye(3) + x.T @ x / NOISE**2
    law = guide.site_distribution("w")
    torch.testing.assert_close(law.mean, torch.as_tensor(exact.mean), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(law.stddev, precision.diagonal() ** -0.5, rtol=1e-6, atol=1e-8)
    gap = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision)).item()
    assert gap > 0.01
    assert bound == pytest.approx(exact.log_evidence - gap, abs=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("_double")
def test_spike_slab_posterior_is_exact_on_an_orthogonal_design(monkeypatch):
    """There the exact posterior is a product of spikes and slabs, so the bound is the evidence itself."""
    x, y = data(rows=12, columns=4)
    x = torch.linalg.qr(x)[0] * 2
    model = linear_model(spike_slab)
    guide = AutoSpikeSlab(model, init_inclusion=(-0.5, 0.5))
    bound = -minimise_exactly(model, guide, monkeypatch, x, y)
    exact = enumerate_spike_slab(
        x.numpy(), y.numpy(), inclusion_prob=0.3, slab_scale=1 / NOISE, noise_scale=NOISE
    )
    inclusion = torch.as_tensor(exact.inclusion)
    torch.testing.assert_close(guide.inclusion_probabilities()["w"], inclusion, rtol=0, atol=1e-6)
    assert bound == pytest.approx(exact.log_evidence, abs=1e-7)
    # Given inclusion, each slab is the one-variable posterior.
    precision = 1 + 4 / NOISE**2
    law = guide.site_distribution("w")
    torch.testing.assert_close(law.loc, x.T @ y / NOISE**2 / precision, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(law.scale, torch.full((4,), precision**-0.5), rtol=1e-5, atol=0)


HOLDS_THE_POSTERIOR = dict.fromkeys(("mean-field-draws", "mnf-on-normal"), pytest.mark.slow)
HOLDS_THE_POSTERIOR |= {"spike-slab": ()}


@pytest.mark.filterwarnings("ignore:draws of mnf.* are not weighed")
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=HOLDS_THE_POSTERIOR[c.name]) for c in CASES if c.name in HOLDS_THE_POSTERIOR],
    ids=str,
)
def test_fit_by_svi_reaches_the_posterior(case):
    check_posterior(case)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", LAWS, ids=str)
def test_posteriors_of_constrained_sites_are_reached(case):
    check_constrained(case)


@each_quadratic_case
@each_elbo
def test_loss_and_gradient_are_their_expectations(case, elbo):
    """Without Monte Carlo error: the loss is quadratic in the noise of the rows, or of the weights."""
    x, y = data()
    model = linear_model(case.prior)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide)
    runs = Noise.two_level(32).each(lambda: loss_and_gradients(model, guide, elbo(), x, y))
    assert_equal_results(mean_of(runs), expected_loss_and_gradients(guide, case.prior, x, y))


@each_relaxed_case
@each_elbo
def test_loss_and_gradient_are_unbiased(case, elbo):
    x, y = data()
    model = linear_model(case.prior)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide)
    truth = expected_loss_and_gradients(guide, case.prior, x, y)
    runs = [loss_and_gradients(model, guide, vectorized(elbo, 200), x, y) for _ in range(40)]
    for name, expected in truth.items():
        assert_mean(torch.stack([run[name] for run in runs]).double(), expected.double())


def expected_loss_and_gradients(guide, prior, x, y) -> dict[str, torch.Tensor]:
    guide.zero_grad()
    _differentiable_loss(guide, prior, x, y).backward()
    truth = {name: p.grad.clone() for name, p in guide.named_parameters()}
    assert all((value != 0).all() for value in truth.values())
    return {"loss": exact_loss(guide, prior, x, y)} | truth


def _differentiable_loss(guide, prior, x, y):
    """:func:`battery.exact_loss` with the gradient on: ``site_distribution`` detaches."""
    parts = dict(guide.named_parameters())
    logits = parts.get("logits")
    probs = torch.sigmoid(logits) if logits is not None and len(logits) else torch.ones(())
    loc, variance = parts["loc"], torch.exp(2 * parts["log_scale"])
    mean, spread = moments_in_training(guide, elementwise_law(*guide._views(**parts)["w"]))
    errors = ((y - x @ mean) ** 2).sum() + (x**2 @ spread).sum()
    slab = 0.5 * (variance + loc**2 - 1) - parts["log_scale"]
    kl = probs * slab
    if prior is spike_slab:
        own, out = math.log(0.3), math.log(0.7)
        entropy = -(dist.Bernoulli(probs=probs).entropy() if logits is not None else 0.0)
        kl = kl + entropy - probs * own - (1 - probs) * out
    return kl.sum() + 0.5 * errors / NOISE**2


@each_case
def test_gradient_reaches_every_parameter_of_a_network(case):
    check_gradients(case)


# ---------------------------------------------------------------------- equal expectations


@each_quadratic_case
def test_minibatch_bound_is_unbiased(case):
    """The mean over all minibatches, each in expectation over its noise, is the bound of the whole."""
    x, y = data(rows=12)
    model = linear_model(case.prior, batch_size=3)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide, 0.2)
    noise = Noise.two_level(4)

    def batch() -> dict[str, torch.Tensor]:
        return mean_of(noise.each(lambda: loss_and_gradients(model, guide, guide.elbo(), x, y)))

    truth = expected_loss_and_gradients(guide, case.prior, x, y)
    assert_equal_results(mean_of(each_batch(12, 3, batch)), truth)


@each_relaxed_case
def test_minibatch_bound_is_that_of_all_rows_given_the_weights(case):
    x, y = data(rows=12)
    model, batches = linear_model(case.prior), linear_model(case.prior, batch_size=3)
    whole, guide = case.make(model), case.make(batches)
    whole.setup(x, y)
    perturb(whole, 0.2)
    guide.setup(x, y)
    guide.load_state_dict(whole.state_dict())
    noise = Noise.random(particles=1)

    def run(model, guide) -> dict[str, torch.Tensor]:
        with noise.of(0):
            return loss_and_gradients(model, guide, guide.elbo(), x, y)

    assert_equal_results(mean_of(each_batch(12, 3, lambda: run(batches, guide))), run(model, whole))


each_latent_case = pytest.mark.parametrize("case", [c for c in CASES if not c.exact_loss_known], ids=str)


@pytest.mark.one_in(3)
@each_latent_case
def test_minibatches_of_guides_with_latent_variables(case):
    check_minibatches(case)


@each_latent_case
def test_divergence_of_guides_with_latent_variables(case):
    check_divergence(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if not c.particles_are_runs], ids=str)
def test_vectorized_particles_have_the_mean_of_runs(case):
    check_particles(case)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("case", [c for c in CASES if c.particles_are_runs], ids=str)
def test_vectorized_particles_are_sequential_runs(case, name):
    """Number for number, with gradients and without."""
    x, y = data(rows=6)
    model = product(name, case.prior)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide, 0.2)
    for elbo in ELBOS:
        assert_particles_are_runs(model, guide, elbo, x, y)
    assert_drawn_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)


@each_exact_case
def test_weights_in_a_plate_of_their_own(case):
    """The particle dimension stands left of the weights' plate, the data plate takes its place."""
    x, y = data(rows=6)

    def model(x, y):
        with pyro.plate("columns", x.shape[-1]):
            w = pyro.sample("w", case.prior([]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide, 0.2)
    assert_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)
    assert_drawn_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)
    truth = exact_loss(guide, case.prior, x, y)
    assert_mean(losses(model, guide, vectorized(TraceMeanField_ELBO, 200), 25, x, y), truth)


def test_particles_that_collide_with_rows_are_refused():
    x, y = data(rows=6)

    def model(x, y):
        w = pyro.sample("w", normal([3]))
        pyro.sample("y", dist.Normal(x @ w, NOISE).to_event(1), obs=y)

    guide = AutoMeanField(model)
    with pytest.raises(ValueError, match=r"put the data in a pyro\.plate"):
        guide.elbo(5, vectorize_particles=True, max_plate_nesting=0).loss_and_grads(model, guide, x, y)


@pytest.mark.parametrize("filters", [False, True])
def test_vectorized_prediction_is_refused_with_a_remedy(filters):
    def model(x):
        w = pyro.sample("w", normal([2, 3, 1, 1] if filters else [2, 3]))
        with pyro.plate("data", len(x)):
            f = F.conv2d(x[..., None, None], w).flatten(1) if filters else F.linear(x, w)
            pyro.sample("y", dist.Normal(f.sum(-1), NOISE))

    x = data(rows=6)[0]
    guide = AutoMeanField(poutine.block(model, hide=["y"]), lrt=not filters)
    guide.setup(x)
    with pytest.raises(ValueError, match=r"\(to Predictive: parallel=False\)"):
        Predictive(model, guide=guide, num_samples=5, parallel=True)(x)
    assert Predictive(model, guide=guide, num_samples=5)(x)["y"].shape == (5, 6)


@each_exact_case
@pytest.mark.parametrize("elbo", [*ELBOS, TraceGraph_ELBO])
def test_without_data_the_loss_is_the_kl_and_has_no_noise(case, elbo):
    model = priors_only(case.prior)
    guide = case.make(model)
    guide.setup()
    perturb(guide)
    kinds = [elbo(), elbo(num_particles=3)]
    if elbo is not TraceGraph_ELBO:
        kinds.append(elbo(num_particles=3, vectorize_particles=True, max_plate_nesting=1))
    values = torch.cat([losses(model, guide, kind, 1) for kind in kinds])
    torch.testing.assert_close(values, values[:1].expand(len(values)), rtol=1e-6, atol=0)
    single = losses(model, guide, elbo(), 2)
    assert (single == single[0]).all()
    rate = guide.site_distribution("rate")
    kl = kl_divergence(guide.site_distribution("w"), case.prior([4, 3]).base_dist).sum()
    kl = kl + kl_divergence(guide.site_distribution("b"), dist.Normal(torch.arange(4.0), 0.5)).sum()
    prior = dist.Gamma(torch.tensor([2.0, 3.0]), 1.5)
    kl = kl + kl_divergence(dist.LogNormal(rate.loc, rate.scale), prior).sum()
    kl = kl + kl_divergence(guide.site_distribution("shift"), dist.Normal(torch.zeros(2), 2.0)).sum()
    assert single[0].item() == pytest.approx(kl.item(), rel=1e-5)


# ---------------------------------------------------------------------- independence of fits


@pytest.mark.one_in(3)
@each_case
def test_same_seed_same_fit(case):
    check_same_seed(case)


@pytest.mark.one_in(2)
@each_case
def test_saved_and_loaded_fits_have_the_same_draws(case):
    check_saving(case)


@pytest.mark.one_in(3)
@each_case
def test_two_fits_live_side_by_side(case):
    x, y = data()
    model = network(case.prior)
    first, second = case.make(model), case.make(model)
    alone = case.make(model)
    pyro.set_rng_seed(5)
    for guide in (first, alone):
        pyro.set_rng_seed(6)
        guide.setup(x, y)
    second.setup(x, y)
    one = SVI(model, first, first.optimizer(), first.elbo())
    two = SVI(model, second, second.optimizer(), second.elbo())
    reference = SVI(model, alone, alone.optimizer(), alone.elbo())
    for seed in repeats(3):
        pyro.set_rng_seed(seed)
        one.step(x, y)
        two.step(x, -y)
    for seed in repeats(3):
        pyro.set_rng_seed(seed)
        reference.step(x, y)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), alone.parameters(), strict=True))
    assert not any(
        torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True) if len(p)
    )
    owners = [name.partition(".")[0] for name in pyro.get_param_store()]
    assert len(set(owners)) == 3  # names of its own for each


@pytest.mark.one_in(2)
@each_case
def test_deepcopy_is_a_fit_of_its_own(case):
    x, y = data()
    model = network(case.prior)
    guide = case.make(model)
    fit(model, guide, x, y, steps=2)
    before = guide.draws(2, seed=1)
    clone = copy.deepcopy(guide)
    assert torch.equal(clone.draws(2, seed=1)["w1"], before["w1"])
    fit(model, clone, x, y, steps=2)
    assert torch.equal(guide.draws(2, seed=1)["w1"], before["w1"])
    assert not torch.equal(clone.draws(2, seed=1)["w1"], before["w1"])


# ---------------------------------------------------------------------- draws and quantiles


@each_exact_case
def test_draws_quantiles_and_log_prob_tell_one_story(case):
    x, y = data()
    model = network(case.prior)
    guide = case.make(model)
    fit(model, guide, x, y, steps=3)
    draws = guide.draws(4000, seed=2)
    levels = [0.05, 0.3, 0.5, 0.9]
    quantiles = guide.quantiles(levels)
    for name, median in guide.median().items():
        assert torch.equal(median, quantiles[name][2])
        assert (quantiles[name].diff(dim=0) >= 0).all()
        for level, value in zip(levels, quantiles[name], strict=True):
            # At an atom the quantile is any level in between.
            below, upto = (draws[name] < value).double(), (draws[name] <= value).double()
            bound = z_bound(100) * math.sqrt(level * (1 - level) / 4000)
            assert (below.mean(0) - level < bound).all()
            assert (level - upto.mean(0) < bound).all()
    assert guide.log_prob(draws).shape == (4000,)
    truth = 0.0
    for name in draws:
        law = guide.site_distribution(name)
        value = draws[name].log() if name == "precision" else draws[name]
        total = law.log_prob(value) - (value if name == "precision" else 0.0)
        truth = truth + total.reshape(4000, -1).sum(-1)
    torch.testing.assert_close(guide.log_prob(draws), truth)
    assert guide.draws(3)["w1"].shape == (3, 4, 3)


def test_without_local_reparameterization_rows_share_their_weights():
    x, y = data()
    guide = AutoMeanField(linear_model(normal), lrt=False)
    guide.setup(x, y)
    w = guide(x, y)["w"]
    model_trace, _ = guide.get_traces()
    torch.testing.assert_close(model_trace.nodes["y"]["fn"].loc, x @ w)
