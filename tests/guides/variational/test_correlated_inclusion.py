"""Correlated inclusion: the bound, by quadrature and by enumeration; common laws are in the battery."""

import math

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
from guides.testing import (
    ELBOS,
    NOISE,
    PRODUCTS,
    Noise,
    assert_equal_results,
    assert_mean,
    assert_particles_are_runs,
    assert_same_mean,
    data,
    each_batch,
    fit,
    linear_model,
    loss_and_gradients,
    losses,
    mean_of,
    network,
    normal,
    perturb,
    product,
    spike_slab,
    vectorized,
)
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.variational.correlated_logits import (
    FINE,
    QUICK,
    CorrelatedSpikeSlabLaw,
    Layout,
    LogitGaussian,
    mean_sigmoid,
)
from tests.guides.variational.correlated import each_kind, full, low_rank, nodes


def test_predictions_in_parallel_have_logits_of_their_own():
    """Logits that are almost wholly one deviation: in or out together, in half of the draws."""
    x, y = data()
    model = linear_model(spike_slab)
    guide = low_rank(model)
    guide.setup(x, y)
    with torch.no_grad():
        guide.logits.zero_()
        for name, value in (("factor", 6.0), ("log_diagonal", -10.0)):
            getattr(guide, name).fill_(value)
    w = Predictive(model, guide=guide, num_samples=2000, parallel=True, return_sites=["w"])(x)["w"]
    inside = (w != 0).double().flatten(1)
    assert_mean(inside, torch.full(inside.shape[1:], 0.5, dtype=torch.float64))


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


def test_filters_have_a_group_for_every_output_channel():
    def model(images, y):
        f = F.conv2d(images, pyro.sample("w", spike_slab([2, 3, 2, 2]))).sum((-3, -2, -1))
        with pyro.plate("data", len(images)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    for make in (full, low_rank):
        guide = make(model)
        guide(torch.rand(5, 3, 4, 4), torch.randn(5))
        assert guide.logit_covariance("w").shape == (2, 12, 12)


@each_kind
def test_logits_start_with_the_spread_that_is_asked_for(make):
    """By low rank half of the variance is shared; of a full factor the entries below are a tenth."""
    guide = make(linear_model(spike_slab), init_spread=0.7)
    guide.setup(*data(columns=100))
    law = guide._detached()["w"][3]
    if make is low_rank:
        torch.testing.assert_close(law.diagonal, torch.full((100,), 0.5 * 0.7**2))
        assert_mean(law.factor.double().flatten() ** 2, 0.25 * 0.7**2)
        return
    torch.testing.assert_close(law.factor.diagonal(), torch.full((100,), 0.7))
    rows, columns = torch.tril_indices(100, 100, -1)
    assert_mean(law.factor[rows, columns].double() ** 2, 0.07**2)


@each_kind
def test_the_reverse_density_starts_at_the_parabola_of_the_softplus(make):
    """That in its middle, at ``m``, with the indicators' own pull."""
    guide = make(linear_model(spike_slab))
    guide.setup(*data(columns=5))
    law = guide._detached()["w"][3]
    probs = torch.sigmoid(law.mean)
    torch.testing.assert_close(law.slope, probs)
    torch.testing.assert_close(law.curvature, probs * (1 - probs))
    assert (law.pull == 1).all()


# ---------------------------------------------------------------------- the bound


def losses_given(guide, x, y, deviation: torch.Tensor) -> torch.Tensor:
    """The loss of :func:`battery.linear_model` at deviations ``[k, n]`` of the logits, ``[k]``, each in
    expectation over the noise of the rows.
    """
    loc, log_scale, _, law = guide._views(**dict(guide.named_parameters()))["w"]
    logits = law.mean + deviation
    probs = torch.sigmoid(logits)
    mean, variance = probs * loc, moments.spike_slab_variance(probs, loc, torch.exp(2 * log_scale))
    errors = ((y[:, None] - x @ mean.T) ** 2).sum(0) + (x**2 @ variance.T).sum(0)
    prior = torch.logit(torch.tensor(0.3)).to(loc), torch.zeros(()).to(loc), torch.ones(()).to(loc)
    kl = moments.spike_slab_kl(logits, loc, log_scale, *prior).sum(-1)
    ratio = law.log_ratio(probs, deviation, probs * (1 - probs))
    return kl + ratio + 0.5 * errors / NOISE**2 + 0.5 * len(y) * math.log(2 * math.pi * NOISE**2)


def expected_loss(guide, x, y) -> torch.Tensor:
    """The expectation of the loss, by quadrature over the logits."""
    loc, _, _, law = guide._views(**dict(guide.named_parameters()))["w"]
    grid, weights = nodes(len(loc), 24)
    full = (law.diagonal == 0).all()
    root = law.factor if full else torch.linalg.cholesky(law.covariance)
    return weights.to(loc) @ losses_given(guide, x, y, grid.to(loc) @ root.T)


class GivenLogits:
    """Runs that draw these deviations of the logits, each with noise of both signs in its rows.

    :ivar noise: reads the logits' own and shared part, then ``rows`` numbers
    """

    def __init__(self, rows: int, draws: int = 6):
        generator = torch.Generator().manual_seed(8)
        self.own = torch.randn(draws, 2, generator=generator)
        self.shared = torch.randn(draws, 2, generator=generator)
        runs = [torch.cat([self.own, self.shared, torch.full((draws, rows), s)], 1) for s in (1.0, -1.0)]
        self.noise = Noise(torch.cat(runs))

    def expected(self, guide, x, y) -> dict[str, torch.Tensor]:
        """The mean loss, and the gradient of it."""
        law = guide._views(**dict(guide.named_parameters()))["w"][3]
        deviation = law.diagonal.sqrt() * self.own + self.shared @ law.factor.T
        guide.zero_grad()
        loss = losses_given(guide, x, y, deviation).mean()
        loss.backward()
        truth = {name: p.grad.clone() for name, p in guide.named_parameters()}
        assert all((value != 0).any() for value in truth.values())
        return {"loss": loss.detach()} | truth


@each_kind
@pytest.mark.parametrize("elbo", ELBOS)
def test_loss_and_gradient_are_expectations_given_the_logits(make, elbo):
    """That the logits have the law they should: ``test_deviations_have_the_covariance`` of the law itself."""
    x, y = data(columns=2)
    model = linear_model(spike_slab)
    guide = make(model, init_spread=0.7)
    guide.setup(x, y)
    perturb(guide, 0.3)
    given = GivenLogits(len(x))
    runs = given.noise.each(lambda: loss_and_gradients(model, guide, elbo(), x, y))
    assert_equal_results(mean_of(runs), given.expected(guide, x, y), rtol=1e-4)


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("elbo", ELBOS)
def test_loss_is_unbiased(make, elbo):
    """With the noise as it comes, against quadrature."""
    x, y = data(columns=2)
    model = linear_model(spike_slab)
    guide = make(model, init_spread=0.7)
    guide.setup(x, y)
    perturb(guide, 0.3)
    assert_mean(losses(model, guide, elbo(), 400, x, y), expected_loss(guide, x, y).item())


@each_kind
def test_minibatch_bound_is_unbiased(make):
    x, y = data(rows=12, columns=2)
    batches = linear_model(spike_slab, batch_size=3)
    guide = make(batches)
    guide.setup(x, y)
    perturb(guide, 0.2)
    given = GivenLogits(3, draws=2)

    def batch() -> dict[str, torch.Tensor]:
        return mean_of(given.noise.each(lambda: loss_and_gradients(batches, guide, guide.elbo(), x, y)))

    assert_equal_results(mean_of(each_batch(12, 3, batch)), given.expected(guide, x, y), rtol=1e-4)


def fixed_deviations(law: LogitGaussian, leading: tuple = (), generator=None) -> torch.Tensor:
    """In place of draws, the same for all particles."""
    generator = torch.Generator().manual_seed(9)
    own = torch.randn(law.diagonal.shape, generator=generator)
    shared = torch.randn(law.factor.shape[:-2] + law.factor.shape[-1:], generator=generator)
    deviation = law.diagonal.sqrt() * own + (law.factor @ shared.unsqueeze(-1)).squeeze(-1)
    return deviation.expand(*leading, *deviation.shape)


@each_kind
@pytest.mark.parametrize("name", PRODUCTS)
def test_vectorized_particles_are_sequential_runs_given_the_logits(make, name, monkeypatch):
    """Number for number; vectorised particles share their logits in training."""
    x, y = data(rows=6)
    model = product(name, spike_slab)
    guide = make(model)
    guide.setup(x, y)
    perturb(guide, 0.2)
    monkeypatch.setattr(LogitGaussian, "deviations", fixed_deviations)
    assert_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_vectorized_particles_have_the_loss_of_sequential_ones(name):
    x, y = data(rows=6)
    model = product(name, spike_slab)
    guide = AutoSpikeSlabMVN(model)
    guide.setup(x, y)
    perturb(guide, 0.2)
    sequential = losses(model, guide, TraceMeanField_ELBO(), 120, x, y)
    for elbo in ELBOS:
        assert_same_mean(losses(model, guide, vectorized(elbo, 40), 40, x, y), sequential)


@each_kind
def test_weights_in_a_plate_have_logits_of_their_own(make, monkeypatch):
    x, y = data(rows=12, columns=2)

    def in_plate(x, y):
        with pyro.plate("columns", 2):
            w = pyro.sample("w", spike_slab([]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    guide = make(in_plate)
    guide.setup(x, y)
    assert guide.logit_covariance("w").shape == (2, 1, 1)
    perturb(guide, 0.2)
    one = losses(in_plate, guide, guide.elbo(), 60, x, y)
    assert_same_mean(losses(in_plate, guide, vectorized(TraceMeanField_ELBO, 20), 60, x, y), one)
    monkeypatch.setattr(LogitGaussian, "deviations", fixed_deviations)
    assert_particles_are_runs(in_plate, guide, TraceMeanField_ELBO, x, y)


def evidence(x, y):
    return enumerate_spike_slab(
        x.double().numpy(), y.double().numpy(), inclusion_prob=0.3, slab_scale=1 / NOISE, noise_scale=NOISE
    )


@pytest.mark.slow
@pytest.mark.usefixtures("_double")
@each_kind
@pytest.mark.parametrize("seed", range(8))
def test_bound_never_exceeds_the_evidence(make, seed):
    """At arbitrary parameters and after some training, which would exploit any slack; by quadrature."""
    x, y = data(rows=10, seed=seed)
    x, x[:, 1] = x[:, :2], 0.95 * x[:, 0] + 0.3 * x[:, 1]
    exact = evidence(x, y).log_evidence
    guide = make(linear_model(spike_slab))
    guide.setup(x, y)
    perturb(guide, 1.0, seed)
    start = -expected_loss(guide, x, y).item()
    assert start < exact
    assert start < optimum(guide, lambda: expected_loss(guide, x, y), iterations=12) < exact


def correlated_design():
    generator, rho = torch.Generator().manual_seed(5), 0.98
    x = torch.randn(30, 2, generator=generator)
    x[:, 1] = rho * x[:, 0] + math.sqrt(1 - rho**2) * x[:, 1]
    return x, 0.6 * x[:, 0] + NOISE * torch.randn(30, generator=generator)


def optimum(guide, loss, iterations: int = 80) -> float:
    optimizer = torch.optim.LBFGS(guide.parameters(), max_iter=iterations, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    return -loss().item()


@pytest.fixture(scope="module")
def both_fits() -> tuple[AutoSpikeSlab, float, AutoSpikeSlabMVN, float]:
    """The best of mean field and of correlated inclusion on :func:`correlated_design`, noise-free, each from
    the same plain starts.
    """
    torch.set_default_dtype(torch.float64)
    x, y = correlated_design()
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
    torch.set_default_dtype(torch.float32)
    return *best[AutoSpikeSlab], *best[full]


def mean_field_loss(guide, x, y):
    loc, log_scale, logits = guide._views(**dict(guide.named_parameters()))["w"]
    probs = torch.sigmoid(logits)
    variance = moments.spike_slab_variance(probs, loc, torch.exp(2 * log_scale))
    errors = ((y - x @ (probs * loc)) ** 2).sum() + (x**2 @ variance).sum()
    prior = torch.logit(torch.tensor(0.3)), torch.tensor(0.0), torch.tensor(1.0)
    kl = moments.spike_slab_kl(logits, loc, log_scale, *prior).sum()
    return kl + 0.5 * errors / NOISE**2 + 0.5 * len(y) * math.log(2 * math.pi * NOISE**2)


@pytest.mark.slow
@pytest.mark.usefixtures("_double")
def test_one_of_two_correlated_columns(both_fits):
    """The exact posterior takes one column or the other.  Mean field must settle for one; this guide has both
    modes, a higher bound, negatively correlated inclusion and better inclusion probabilities.
    """
    x, y = correlated_design()
    exact = evidence(x, y)
    only_first, only_second = np.exp(exact.log_model_probs)[[1, 2]]
    assert min(only_first, only_second) > 0.25
    mean_field, lower, guide, bound = both_fits
    assert lower + 0.15 < bound < exact.log_evidence
    on = (guide.draws(5000, seed=1)["w"] != 0).double().numpy()
    assert np.corrcoef(on.T)[0, 1] < -0.7
    np.testing.assert_allclose(on.mean(0), guide.inclusion_probabilities()["w"].numpy(), atol=0.03)

    def error(guide):
        return np.abs(guide.inclusion_probabilities()["w"].numpy() - exact.inclusion).max()

    assert error(mean_field) > 0.25
    assert error(guide) < 0.7 * error(mean_field)


@pytest.mark.slow
@pytest.mark.usefixtures("_double")
def test_without_the_ratio_correlation_wins_nothing(both_fits):
    """The published loss stops at the spike and slab of the drawn logits: an average of mean-field bounds."""
    _, lower, guide, bound = both_fits
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
        samples = Predictive(model, guide=guide, num_samples=30, return_sites=["w"])(x)
        networks.append(samples["w"] != 0)
        with torch.no_grad():
            guide.factor += 3.0
    assert not torch.equal(guide.draws(400, seed=1)["w"] != 0, before)
    assert not torch.equal(*networks)


@pytest.mark.slow
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
    samples = Predictive(model, guide=guide, num_samples=100)(x)
    assert_same_mean((samples["w1"].squeeze(1) != 0).double(), (draws["w1"] != 0).double())
    with torch.no_grad():  # vectorized particles without gradients: each has logits of its own
        guide(x, y)
        particles = guide.trace.nodes["w1"]["fn"].expand((3000,)).draw("test") != 0
    assert_same_mean(particles.double(), (draws["w1"] != 0).double())
    pairs = [(on[:, 0, :1] & on[:, 0, 1:]).double() for on in (particles, draws["w1"] != 0)]
    assert_same_mean(*pairs)
    assert guide.log_prob({name: value[:50] for name, value in draws.items()}).shape == (50,)


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
    model = linear_model(normal)
    gaussians = AutoSpikeSlabMVN(model)  # no spike and slab: a mean-field guide
    gaussians(*data())
    assert gaussians.inclusion_probabilities() == {}
    assert TraceMeanField_ELBO().loss(model, gaussians, *data()) > 0


# ---------------------------------------------------------------------- other priors, matrices, draws


def by_weight(shape):
    """The battery's prior, its parameters written out for every weight: nothing is shared by the site."""
    shape = tuple(shape)
    return SpikeSlab(torch.full(shape, 0.3), torch.zeros(shape), torch.ones(shape)).to_event(len(shape))


def inclusion_by_weight(shape):
    """The same, only the inclusion probabilities written out."""
    prior = SpikeSlab(torch.full(tuple(shape), 0.3), torch.zeros(()), torch.ones(()))
    return prior.to_event(len(shape))


@each_kind
@pytest.mark.parametrize(("prior", "fused"), [(by_weight, False), (inclusion_by_weight, True)])
def test_priors_written_out_by_weight_have_the_same_bound(make, prior, fused):
    """Past the fused node and through the one for learned inclusions: the correction has to be there too."""
    x, y = data(columns=2)
    model = linear_model(prior)
    guide = make(model, init_spread=0.7)
    guide.setup(x, y)
    perturb(guide, 0.3)
    guide(x, y)
    law = guide.trace.nodes["w"]["fn"]
    assert (law.moments_and_kl[2] is not None) == fused
    prior = torch.logit(torch.tensor(0.3)), torch.tensor(0.0), torch.tensor(1.0)
    kl = moments.spike_slab_kl(law.logits, law.loc, law.log_scale, *prior).sum()
    probs = torch.sigmoid(law.logits)
    ratio = law.gaussian.log_ratio(probs, law.deviation, probs * (1 - probs))
    assert ratio.abs() > 0.01
    torch.testing.assert_close(law.kl, kl + ratio)
    given = GivenLogits(len(x))
    runs = given.noise.each(lambda: loss_and_gradients(model, guide, guide.elbo(), x, y))
    assert_equal_results(mean_of(runs), given.expected(guide, x, y), rtol=1e-4)


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


@pytest.mark.parametrize("shape", [(1, 4), (3, 2)])
def test_columns_of_a_product_have_a_group_each(shape):
    """``x @ w``, of one input too."""

    def model(x, y):
        w = pyro.sample("w", SpikeSlab(probs=0.5).expand(list(shape)).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w).sum(-1), 1.0), obs=y)

    guide = AutoSpikeSlabMVN(model)
    guide.setup(torch.ones(5, shape[0]), torch.zeros(5))
    inputs, units = shape
    assert guide.logit_covariance("w").shape == (units, inputs, inputs)


@each_kind
def test_layers_of_either_way_round_have_groups_of_their_own_sizes(make):
    """``x @ w1`` of three inputs and two units, and ``F.linear`` with two inputs and four units."""

    def model(x, y):
        w1 = pyro.sample("w1", SpikeSlab(probs=0.5).expand([3, 2]).to_event(2))
        w2 = pyro.sample("w2", SpikeSlab(probs=0.5).expand([4, 2]).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(F.linear(torch.tanh(x @ w1), w2).sum(-1), 1.0), obs=y)

    guide = make(model)
    guide.setup(torch.ones(5, 3), torch.zeros(5))
    assert guide.logit_covariance("w1").shape == (2, 3, 3)
    assert guide.logit_covariance("w2").shape == (4, 2, 2)
    assert {name: draws.shape[1:] for name, draws in guide.draws(2).items()} == {"w1": (3, 2), "w2": (4, 2)}


@pytest.mark.parametrize(
    ("rule", "widest", "relative", "absolute"), [(FINE, 30.0, 1e-5, 1e-7), (QUICK, 3.0, 1e-3, 0.0)]
)
def test_mean_sigmoids_are_right_where_inclusion_is_rare(rule, widest, relative, absolute):
    """A rule that cuts the tail has half of them at a mean of -10."""
    mean, sd = torch.meshgrid(torch.linspace(-10, 10, 11), torch.linspace(0.1, widest, 5), indexing="ij")
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    values = torch.sigmoid(mean.double()[..., None] + sd.double()[..., None] * z)
    exact = torch.trapezoid(values * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi), z)
    found = mean_sigmoid(mean.double(), sd.double().square(), rule)
    torch.testing.assert_close(found, exact, rtol=relative, atol=absolute)


@pytest.mark.parametrize("logit", [-200.0, 17.0, 90.0, 800.0])
def test_priors_are_learned_where_all_is_sure(logit):
    """In single precision weights that sum to one may sum to more."""
    mean = torch.full((3, 4), logit)
    flat = LogitGaussian(mean, torch.full_like(mean, 0.01), torch.zeros(3, 4, 1), mean, mean.exp(), mean)
    assert (flat.probs() <= 1).all()
    assert (mean_sigmoid(mean, torch.full_like(mean, 0.01), QUICK) <= 1).all()
    law = CorrelatedSpikeSlabLaw.__new__(CorrelatedSpikeSlabLaw)
    law.gaussian, law.layout = flat, Layout((3, 4))
    logits = law.mean_logits()()
    assert logits.isfinite().all()
    assert (logits.sign() == math.copysign(1.0, logit)).all()
