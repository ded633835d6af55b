"""Correlated inclusion: the bound, by quadrature and by enumeration; common laws are in the battery."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import Predictive, TraceMeanField_ELBO
from torch.nn import functional as F

from guides import AutoSpikeSlab, AutoSpikeSlabMVN, SpikeSlab, UnsupportedSiteError
from guides.core import moments
from guides.posterior.files import load_guide, save_guide
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.variational.correlated_inclusion import Layout, LogitGaussian
from tests.guides.battery import (
    ELBOS,
    NOISE,
    assert_mean,
    assert_same_mean,
    data,
    fit,
    gradients,
    linear_model,
    losses,
    network,
    normal,
    perturb,
    spike_slab,
    z_bound,
)

PATTERNS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=2)), dtype=torch.float64)


def full(model, **kwargs):
    return AutoSpikeSlabMVN(model, rank=None, **kwargs)


def low_rank(model, **kwargs):
    return AutoSpikeSlabMVN(model, rank=2, **kwargs)


each_kind = pytest.mark.parametrize("make", [full, low_rank])


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------------- q and r of the logits


def gaussian(seed: int = 0, groups: tuple = (), n: int = 2, rank: int = 2) -> LogitGaussian:
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(*groups, n, generator=generator, dtype=torch.float64) for _ in range(5)]
    factor = torch.randn(*groups, n, rank, generator=generator, dtype=torch.float64)
    return LogitGaussian(draw[0], draw[1].exp(), factor, draw[2], draw[3].exp(), draw[4])


def nodes(n: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gauss-Hermite nodes ``[count^n, n]`` and weights for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    grid = torch.tensor(list(itertools.product(points, repeat=n)))
    return grid, torch.tensor([math.prod(w) for w in itertools.product(weights, repeat=n)])


def reverse_law(law: LogitGaussian, gates: torch.Tensor) -> dist.MultivariateNormal:
    """``r(delta | gamma)`` as the docstring defines it, by plain matrix algebra."""
    precision = torch.linalg.inv(law.covariance) + torch.diag(law.curvature)
    covariance = torch.linalg.inv(precision)
    return dist.MultivariateNormal((law.pull * (gates - law.slope)) @ covariance, covariance)


@pytest.mark.parametrize("seed", range(5))
def test_ratio_is_that_of_two_normal_densities(seed):
    """So that r is normalised: the condition for a bound."""
    law = gaussian(seed)
    deviation = law.deviations((4,))
    forward = dist.MultivariateNormal(torch.zeros(2).double(), law.covariance).log_prob(deviation)
    for gates in PATTERNS:
        expected = forward - reverse_law(law, gates).log_prob(deviation)
        torch.testing.assert_close(law.log_ratio(gates, deviation), expected)


def test_expected_ratio_over_independent_indicators():
    law = gaussian(2)
    deviation = law.deviations()
    probs = torch.sigmoid(law.mean + deviation)
    weights = torch.exp(PATTERNS @ probs.log() + (1 - PATTERNS) @ (1 - probs).log())
    expected = (weights * law.log_ratio(PATTERNS, deviation)).sum()
    torch.testing.assert_close(law.log_ratio(probs, deviation, probs * (1 - probs)), expected)


def pattern_probabilities(law: LogitGaussian, count: int = 60) -> torch.Tensor:
    """``q(gamma)`` of :data:`PATTERNS` by quadrature, ``[4]``."""
    grid, weights = nodes(2, count)
    logits = law.mean + grid @ torch.linalg.cholesky(law.covariance).T
    given = PATTERNS @ logits.T - F.softplus(logits).sum(-1)
    return given.exp() @ weights


@pytest.mark.parametrize("seed", range(5))
def test_surrogate_of_the_entropy_is_on_the_right_side(seed):
    """``E[log q(gamma | lambda) + log q(lambda) / r(lambda | gamma)]`` is above ``E log q(gamma)``."""
    law = gaussian(seed)
    grid, weights = nodes(2, 60)
    deviation = grid @ torch.linalg.cholesky(law.covariance).T
    logits = law.mean + deviation
    probs = torch.sigmoid(logits)
    surrogate = law.log_ratio(probs, deviation, probs * (1 - probs)) - moments.bernoulli_entropy(logits).sum(
        -1
    )
    truth = pattern_probabilities(law)
    assert truth.sum().item() == pytest.approx(1, abs=1e-9)
    assert (weights @ surrogate).item() > (truth * truth.log()).sum().item() - 1e-9


def test_surrogate_is_exact_without_spread():
    law = gaussian(1)
    small = LogitGaussian(
        law.mean, 1e-6 * law.diagonal, 1e-3 * law.factor, torch.sigmoid(law.mean), law.curvature,
        torch.ones(2).double(),
    )  # fmt: skip
    assert small.log_ratio(torch.sigmoid(law.mean), small.deviations()).abs().item() < 1e-4


def test_importance_estimate_of_the_density():
    probs = torch.sigmoid(gaussian(3).mean)
    law = replace(gaussian(3), slope=probs, curvature=probs * (1 - probs), pull=torch.ones(2).double())
    truth = pattern_probabilities(law)
    estimate = law.log_gates(PATTERNS, 100_000).exp()
    torch.testing.assert_close(estimate, truth, rtol=0.05, atol=0)


@pytest.mark.parametrize(("event", "unit_dim", "shape"), [
    ((), 0, (1,)), ((3,), 0, (3,)), ((2, 3), 0, (2, 3)), ((3, 2), 1, (2, 3)), ((2, 3, 4, 5), 0, (2, 60)),
])  # fmt: skip
def test_groups_are_output_units(event, unit_dim, shape):
    layout = Layout(event, unit_dim)
    tensor = torch.randn(7, *event)
    grouped = layout.to_groups(tensor)
    assert grouped.shape == (7, *shape)
    assert torch.equal(layout.from_groups(grouped), tensor)
    if len(event) == 2:
        assert torch.equal(grouped[0, 1], tensor[0].select(unit_dim, 1))


def test_matrix_products_either_way_round_have_the_same_groups():
    x, y = data()

    def model(x, y):
        first = torch.tanh(x @ pyro.sample("a", spike_slab([3, 5])))
        f = F.linear(first, pyro.sample("b", spike_slab([2, 5]))).sum(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    for make in (full, low_rank):
        guide = make(model)
        guide(x, y)
        assert guide.logit_covariance("a").shape == (5, 3, 3)
        assert guide.logit_covariance("b").shape == (2, 5, 5)


# ---------------------------------------------------------------------- the bound


def expected_loss(guide, x, y, count: int = 24) -> torch.Tensor:
    """The expectation of the loss of :func:`battery.linear_model`, by quadrature over the logits."""
    loc, log_scale, _, law = guide._views(**dict(guide.named_parameters()))["w"]
    grid, weights = nodes(len(loc), count)
    full = (law.diagonal == 0).all()
    root = law.factor if full else torch.linalg.cholesky(law.covariance)
    deviation = grid.to(loc) @ root.T
    logits = law.mean + deviation
    probs = torch.sigmoid(logits)
    mean, variance = probs * loc, moments.spike_slab_variance(probs, loc, torch.exp(2 * log_scale))
    errors = ((y[:, None] - x @ mean.T) ** 2).sum(0) + (x**2 @ variance.T).sum(0)
    prior = torch.logit(torch.tensor(0.3)).to(loc), torch.zeros(()).to(loc), torch.ones(()).to(loc)
    kl = moments.spike_slab_kl(logits, loc, log_scale, *prior).sum(-1)
    ratio = law.log_ratio(probs, deviation, probs * (1 - probs))
    constant = 0.5 * len(y) * math.log(2 * math.pi * NOISE**2)
    return (weights.to(loc) * (kl + ratio + 0.5 * errors / NOISE**2)).sum() + constant


@each_kind
@pytest.mark.parametrize("elbo", ELBOS)
def test_loss_and_gradient_are_unbiased(make, elbo):
    x, y = data(columns=2)
    model, guide = linear_model(spike_slab), make(linear_model(spike_slab), init_spread=0.7)
    guide.setup(x, y)
    perturb(guide, 0.3)
    truth = expected_loss(guide, x, y)
    assert_mean(losses(model, guide, elbo(), 400, x, y), truth.item())
    guide.zero_grad()
    truth.backward()
    expected = {name: p.grad.clone() for name, p in guide.named_parameters()}
    draws = [gradients(model, guide, elbo(), x, y) for _ in range(250)]
    for name, value in expected.items():
        assert (value != 0).all(), name
        assert_mean(torch.stack([draw[name] for draw in draws]).double(), value.double())


@each_kind
def test_minibatches_plates_and_particles_have_the_same_expectation(make):
    x, y = data(rows=12, columns=2)

    def in_plate(x, y):
        with pyro.plate("columns", 2):
            w = pyro.sample("w", spike_slab([]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    batches = linear_model(spike_slab, batch_size=3)
    guide = make(batches)
    guide.setup(x, y)
    perturb(guide, 0.2)
    assert_mean(losses(batches, guide, guide.elbo(), 400, x, y), expected_loss(guide, x, y).item())
    guide = make(in_plate)
    guide.setup(x, y)
    assert guide.logit_covariance("w").shape == (2, 1, 1)
    perturb(guide, 0.2)
    one = losses(in_plate, guide, guide.elbo(), 300, x, y)
    many = guide.elbo(20, vectorize_particles=True, max_plate_nesting=1)
    assert_same_mean(losses(in_plate, guide, many, 100, x, y), one)


def evidence(x, y):
    return enumerate_spike_slab(
        x.double().numpy(), y.double().numpy(), inclusion_prob=0.3, slab_scale=1 / NOISE, noise_scale=NOISE
    )


@each_kind
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))])
def test_bound_never_exceeds_the_evidence(make, seed):
    """At arbitrary parameters and after some training, which would exploit any slack."""
    x, y = data(rows=10, seed=seed)
    x[:, 1] = 0.95 * x[:, 0] + 0.3 * x[:, 1]
    exact = evidence(x, y).log_evidence
    model = linear_model(spike_slab)
    guide = make(model)
    guide.setup(x, y)
    perturb(guide, 1.0, seed)
    for steps in (0, 150):
        fit(model, guide, x, y, steps=steps)
        bounds = -losses(model, guide, guide.elbo(), 400, x, y)
        assert bounds.mean() < exact + z_bound(32) * bounds.std() / 20


def correlated_design(seed: int = 5, rho: float = 0.98):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(30, 2, generator=generator)
    x[:, 1] = rho * x[:, 0] + math.sqrt(1 - rho**2) * x[:, 1]
    return x, 0.6 * x[:, 0] + NOISE * torch.randn(30, generator=generator)


def optimum(guide, loss) -> float:
    optimizer = torch.optim.LBFGS(guide.parameters(), max_iter=150, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    return -loss().item()


def both_fits(x, y) -> tuple[AutoSpikeSlab, float, AutoSpikeSlabMVN, float]:
    """The best of mean field and of correlated inclusion, noise-free, each from the same plain starts."""
    model = linear_model(spike_slab)
    best = {}
    for make in (AutoSpikeSlab, full):
        for seed in range(3):
            pyro.set_rng_seed(seed)
            guide = make(model, init_inclusion=(-1.0, 1.0))
            guide.setup(x, y)
            if make is full:
                bound = optimum(guide, lambda guide=guide: expected_loss(guide, x, y))
            else:
                bound = optimum(guide, lambda guide=guide: mean_field_loss(guide, x, y))
            if make not in best or bound > best[make][1]:
                best[make] = guide, bound
    return *best[AutoSpikeSlab], *best[full]


def mean_field_loss(guide, x, y):
    loc, log_scale, logits = guide._views(**dict(guide.named_parameters()))["w"]
    probs = torch.sigmoid(logits)
    variance = moments.spike_slab_variance(probs, loc, torch.exp(2 * log_scale))
    errors = ((y - x @ (probs * loc)) ** 2).sum() + (x**2 @ variance).sum()
    prior = torch.logit(torch.tensor(0.3)), torch.tensor(0.0), torch.tensor(1.0)
    kl = moments.spike_slab_kl(logits, loc, log_scale, *prior).sum()
    return kl + 0.5 * errors / NOISE**2 + 0.5 * len(y) * math.log(2 * math.pi * NOISE**2)


@pytest.mark.usefixtures("_double")
def test_one_of_two_correlated_columns():
    """The exact posterior takes one column or the other.  Mean field must settle for one; this guide has both
    modes, a higher bound, negatively correlated inclusion and better inclusion probabilities.
    """
    x, y = correlated_design()
    exact = evidence(x, y)
    only_first, only_second = np.exp(exact.log_model_probs)[[1, 2]]
    assert min(only_first, only_second) > 0.25
    mean_field, lower, guide, bound = both_fits(x, y)
    assert lower + 0.15 < bound < exact.log_evidence
    on = (guide.draws(5000, seed=1)["w"] != 0).double().numpy()
    assert np.corrcoef(on.T)[0, 1] < -0.7
    np.testing.assert_allclose(on.mean(0), guide.inclusion_probabilities()["w"].numpy(), atol=0.03)

    def error(guide):
        return np.abs(guide.inclusion_probabilities()["w"].numpy() - exact.inclusion).max()

    assert error(mean_field) > 0.25
    assert error(guide) < 0.7 * error(mean_field)


@pytest.mark.usefixtures("_double")
def test_without_the_ratio_correlation_wins_nothing():
    """The published loss stops at the spike and slab of the drawn logits: an average of mean-field bounds."""
    x, y = correlated_design()
    *_, lower, guide, bound = both_fits(x, y)
    law = guide._views(**dict(guide.named_parameters()))["w"][3]
    grid, weights = nodes(2, 24)
    deviation = grid @ law.factor.T
    probs = torch.sigmoid(law.mean + deviation)
    won = -(weights * law.log_ratio(probs, deviation, probs * (1 - probs))).sum().item()
    assert won > 0.3
    assert bound - won < lower


# ---------------------------------------------------------------------- use


@each_kind
def test_updates_of_the_covariance_change_the_samples(make):
    x, y = data()
    model = linear_model(spike_slab)
    guide = make(model)
    guide.setup(x, y)
    before, networks = guide.draws(400, seed=1)["w"] != 0, []
    for _ in range(2):
        pyro.set_rng_seed(0)
        samples = Predictive(model, guide=guide, num_samples=100, return_sites=["w"])(x)
        networks.append(samples["w"] != 0)
        with torch.no_grad():
            guide.factor += 3.0
    assert not torch.equal(guide.draws(400, seed=1)["w"] != 0, before)
    assert not torch.equal(*networks)


@each_kind
def test_draws_have_the_inclusion_and_the_marginals_that_are_reported(make):
    x, y = data()
    model = network(spike_slab)
    guide = make(model)
    guide.setup(x, y)
    perturb(guide, 0.5)
    draws = guide.draws(4000, seed=2)
    for name, probs in guide.inclusion_probabilities().items():
        assert_mean((draws[name] != 0).double(), probs.double())
        assert_mean(draws[name].double(), guide.site_distribution(name).mean.double())
    pyro.set_rng_seed(3)
    samples = Predictive(model, guide=guide, num_samples=300)(x)
    assert_same_mean((samples["w1"] != 0).double(), (draws["w1"] != 0).double())
    with torch.no_grad():  # vectorized particles without gradients: each has logits of its own
        guide(x, y)
        particles = guide.trace.nodes["w1"]["fn"].expand((3000,)).draw("test") != 0
    assert_same_mean(particles.double(), (draws["w1"] != 0).double())
    pairs = [(on[:, 0, :1] & on[:, 0, 1:]).double() for on in (particles, draws["w1"] != 0)]
    assert_same_mean(*pairs)
    assert guide.log_prob(draws).shape == (4000,)


@each_kind
def test_importance_weights_are_unbiased(make):
    """Prior over law averages to one, as does each pattern's share to the prior's probability of it."""
    x, y = data(columns=2)
    guide = make(linear_model(spike_slab), init_spread=1.0, init_inclusion=(-1.0, 0.0))
    guide.setup(x, y)
    with torch.no_grad():
        guide.loc.zero_()
        guide.log_scale.fill_(0.1)
    draws, log_q = guide.draws_with_log_prob(20_000, seed=1)
    weights = (spike_slab([2]).log_prob(draws["w"]) - log_q).exp().double()
    on = (draws["w"] != 0).double()
    shares = torch.stack([weights, weights * on[:, 0], weights * on.prod(-1)], -1)
    assert_mean(shares, torch.tensor([1.0, 0.3, 0.09]).double())


@each_kind
def test_saved_and_loaded_fits_agree(make, tmp_path):
    x, y = data()
    model = network(spike_slab)
    guide = make(model)
    fit(model, guide, x, y, steps=3)
    save_guide(guide, tmp_path / "guide.safetensors")
    loaded = load_guide(AutoSpikeSlabMVN(model), tmp_path / "guide.safetensors")
    assert loaded.rank == guide.rank
    loaded.setup(x, y)
    assert torch.equal(loaded.draws(3, seed=1)["w1"], guide.draws(3, seed=1)["w1"])
    torch.testing.assert_close(loaded.logit_covariance("w1"), guide.logit_covariance("w1"))


def test_wrong_arguments_and_sites():
    model = linear_model(spike_slab)
    for wrong in (0, 1.5, "2"):
        with pytest.raises(ValueError, match="rank must be a positive int"):
            AutoSpikeSlabMVN(model, rank=wrong)
    with pytest.raises(ValueError, match="init_spread"):
        AutoSpikeSlabMVN(model, init_spread=0.0)

    def local(x, y):
        with pyro.plate("data", len(x), subsample_size=2) as rows:
            w = pyro.sample("w", spike_slab([]))
            pyro.sample("y", dist.Normal(x[rows, 0] * w, NOISE), obs=y[rows])

    with pytest.raises(
        UnsupportedSiteError, match="'w' lies in the subsampled plate 'data'.*use AutoSpikeSlab"
    ):
        AutoSpikeSlabMVN(local)(*data())
    gaussians = AutoSpikeSlabMVN(linear_model(normal))  # no spike and slab: a mean-field guide
    gaussians(*data())
    assert gaussians.inclusion_probabilities() == {}
    assert TraceMeanField_ELBO().loss(linear_model(normal), gaussians, *data()) > 0


# ---------------------------------------------------------------------- other priors, matrices, draws


def by_weight(shape):
    """The battery's prior, its parameters written out for every weight: nothing is shared by the site."""
    prior = SpikeSlab(torch.full(tuple(shape), 0.3), torch.zeros(()), torch.ones(()))
    return prior.to_event(len(shape))


@each_kind
def test_priors_written_out_by_weight_have_the_same_bound(make):
    """They go past the fused node: the correction has to be there too."""
    x, y = data(columns=2)
    model, guide = linear_model(by_weight), make(linear_model(by_weight), init_spread=0.7)
    guide.setup(x, y)
    perturb(guide, 0.3)
    guide(x, y)
    law = guide.trace.nodes["w"]["fn"]
    assert law.moments_and_kl[2] is None
    prior = torch.logit(torch.tensor(0.3)), torch.tensor(0.0), torch.tensor(1.0)
    kl = moments.spike_slab_kl(law.logits, law.loc, law.log_scale, *prior).sum()
    probs = torch.sigmoid(law.logits)
    ratio = law.gaussian.log_ratio(probs, law.deviation, probs * (1 - probs))
    assert ratio.abs() > 0.01
    torch.testing.assert_close(law.kl, kl + ratio)
    assert_mean(losses(model, guide, guide.elbo(), 400, x, y), expected_loss(guide, x, y).item())


@each_kind
@pytest.mark.parametrize("prior", [spike_slab, lambda shape, scale: by_weight(shape)])
def test_divergence_of_a_matrix_counts_every_unit(make, prior):
    """Given the drawn logits: spike and slab, and the ratio of every output unit's group."""
    x, y = data()
    guide = make(network(prior))
    guide.setup(x, y)
    perturb(guide, 0.3)
    guide(x, y)
    law = guide.trace.nodes["w1"]["fn"]
    scale = torch.tensor(0.7 if prior is spike_slab else 1.0)
    own = torch.logit(torch.tensor(0.3)), torch.tensor(0.0), scale
    kl = moments.spike_slab_kl(law.logits, law.loc, law.log_scale, *own).sum()
    probs = torch.sigmoid(law.logits)  # [4, 3]: a group for each row
    ratio = law.gaussian.log_ratio(probs, law.deviation, probs * (1 - probs))
    assert ratio.shape == (4,)
    assert (ratio.abs() > 1e-3).all()
    torch.testing.assert_close(law.kl, kl + ratio.sum())


@each_kind
def test_draws_are_scored_with_the_reverse_density_in(make):
    """Without ``r(lambda | gamma)`` importance weights are unbiased just the same (then ``r = q(lambda)``),
    but their logarithms belong to another bound than that of training.
    """
    guide = make(linear_model(spike_slab), init_spread=2.0, init_inclusion=(-0.5, 0.5))
    guide.setup(*data(columns=2))
    perturb(guide, 0.3)
    _, log_q = guide.draws_with_log_prob(40_000, seed=1)
    _, log_scale, _, law = guide._detached()["w"]
    grid, weights = nodes(2, 24)
    deviation = grid.float() @ torch.linalg.cholesky(law.covariance).T
    logits = law.mean + deviation
    probs = torch.sigmoid(logits)
    ratio = law.log_ratio(probs, deviation, probs * (1 - probs)) @ weights.float()
    assert ratio.abs() > 0.1
    entropy = moments.spike_slab_entropy(logits, log_scale).sum(-1) @ weights.float()
    assert_mean(log_q.double(), (ratio - entropy).item())
