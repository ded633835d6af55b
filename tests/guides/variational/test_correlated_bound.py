"""The bound of correlated inclusion: its losses given the logits, and against quadrature and enumeration."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import TraceMeanField_ELBO

from guides import AutoSpikeSlab, AutoSpikeSlabMVN, SpikeSlab
from guides.core import moments
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
    linear_model,
    loss_and_gradients,
    losses,
    mean_of,
    network,
    perturb,
    product,
    spike_slab,
    vectorized,
)
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.variational.correlated_logits import LogitGaussian
from tests.guides.variational.correlated import each_kind, full, nodes


def losses_given(guide, x, y, deviation: torch.Tensor) -> torch.Tensor:
    """The loss of :func:`guides.testing.linear_model` at deviations ``[k, n]`` of the logits, ``[k]``, each
    in expectation over the noise of the rows.
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


def fixed_deviations(law: LogitGaussian, leading: tuple = (), generator=None) -> torch.Tensor:
    """In place of draws, the same for all particles."""
    generator = torch.Generator().manual_seed(9)
    own = torch.randn(law.diagonal.shape, generator=generator)
    shared = torch.randn(law.factor.shape[:-2] + law.factor.shape[-1:], generator=generator)
    deviation = law.diagonal.sqrt() * own + (law.factor @ shared.unsqueeze(-1)).squeeze(-1)
    return deviation.expand(*leading, *deviation.shape)


@pytest.mark.one_in(3)
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


@pytest.mark.one_in(2)
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


def optimum(guide, loss, iterations: int = 80) -> float:
    optimizer = torch.optim.LBFGS(guide.parameters(), max_iter=iterations, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    return -loss().item()


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


def mean_field_loss(guide, x, y):
    loc, log_scale, logits = guide._views(**dict(guide.named_parameters()))["w"]
    probs = torch.sigmoid(logits)
    variance = moments.spike_slab_variance(probs, loc, torch.exp(2 * log_scale))
    errors = ((y - x @ (probs * loc)) ** 2).sum() + (x**2 @ variance).sum()
    prior = torch.logit(torch.tensor(0.3)), torch.tensor(0.0), torch.tensor(1.0)
    kl = moments.spike_slab_kl(logits, loc, log_scale, *prior).sum()
    return kl + 0.5 * errors / NOISE**2 + 0.5 * len(y) * math.log(2 * math.pi * NOISE**2)


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
