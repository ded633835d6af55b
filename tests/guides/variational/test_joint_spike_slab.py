"""The joint law of inclusion and weights, against enumeration."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from scipy import stats
from torch.distributions import MultivariateNormal

from guides import JointSpikeSlab, SpikeSlab
from guides.core.course import Course
from guides.core.settling import UnsettledWarning
from guides.core.sites import UnsupportedSiteError
from guides.testing import assert_mean, perturb, z_bound
from guides.testing.yardsticks import FAMILY_WISE
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from guides.variational import joint_spike_slab
from guides.variational.joint_spike_slab import _warn_of_rise
from zoo.models import SpikeSlabWeights, from_module

NOISE, SLAB, INCLUSION = 0.7, 1.5, 0.3


def regression(x, y=None, size=None):
    """Linear regression of two columns with known noise."""
    prior = SpikeSlab(x.new_tensor(INCLUSION), x.new_tensor(0.0), x.new_tensor(SLAB))
    w = pyro.sample("w", prior.expand([x.shape[1]]).to_event(1))
    batch = None if size is None else torch.arange(len(x))
    with pyro.plate("data", size or len(x), subsample=batch):
        pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


@pytest.fixture(scope="module")
def data():
    """Two columns with a correlation of 0.95, either of which explains the target."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    x[:, 1] = 0.95 * x[:, 0] + math.sqrt(1 - 0.95**2) * x[:, 1]
    y = 0.5 * x.sum(1) + NOISE * torch.randn(30, generator=generator, dtype=torch.float64)
    return x, y


def models(count):
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)), dtype=torch.float64)


def given(x, y, gamma):
    """``log p(gamma, y)``, mean and covariance of the weights that are in."""
    keep = gamma > 0
    z, size = x[:, keep], int(keep.sum())
    covariance = NOISE**2 * torch.eye(len(x), dtype=x.dtype) + SLAB**2 * z @ z.T
    evidence = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    prior = size * math.log(INCLUSION) + (len(gamma) - size) * math.log(1 - INCLUSION)
    precision = z.T @ z / NOISE**2 + torch.eye(size, dtype=x.dtype) / SLAB**2
    inverse = torch.linalg.inv(precision)
    return evidence + prior, inverse @ z.T @ y / NOISE**2, inverse


@pytest.fixture(scope="module")
def exact(data):
    """Log evidence and model probabilities."""
    logs = torch.stack([given(*data, gamma)[0] for gamma in models(2)])
    return logs.logsumexp(0).item(), logs.softmax(0)


@pytest.fixture(scope="module")
def fitted(data):
    return JointSpikeSlab(regression, num_particles=16).fit(*data, steps=900, seed=3)


# ------------------------------------------------------------------------------------------ what it must find


@pytest.mark.slow
def test_it_is_the_exact_posterior_of_correlated_columns(data, exact, fitted):
    """Its family holds the posterior: bound, model probabilities, means, sds and the correlation."""
    (x, y), (log_evidence, probs) = data, exact
    bound, error = fitted.elbo(*data)
    assert bound <= log_evidence + 4 * error
    gap = log_evidence - bound
    assert gap < 0.01 + 4 * error
    found = fitted.law.log_prob_of_indicators(models(2)).exp()
    # Pinsker: half the sum of differences is at most the root of half the divergence, which the gap bounds
    assert (found - probs).abs().sum() / 2 < math.sqrt((gap + 4 * error) / 2)
    for gamma, prob in zip(models(2), found, strict=True):
        if gamma.any():  # the gap is the divergence of the models and, on average, that within each
            assert prob * _divergence(fitted.law, gamma, *given(x, y, gamma)[1:]) <= gap + 4 * error
    w = fitted.draws(20_000, seed=1)["w"]
    assert np.corrcoef(w.T)[0, 1] < -0.5  # one or the other: what independent weights cannot say


@pytest.mark.slow
def test_inclusion_probabilities_are_those_of_the_draws(fitted):
    n = 40_000
    share = (fitted.draws(n, seed=2)["w"] != 0).double().mean(0)
    probs = fitted.inclusion_probabilities()["w"]
    error = (probs * (1 - probs)).sqrt() * (n**-0.5 + 4000**-0.5)
    assert ((share - probs).abs() < z_bound(2) * error).all()


def test_standard_errors_of_inclusion_are_those_of_its_seeds(data):
    guide = JointSpikeSlab(regression, num_particles=2).fit(*data, steps=1, seed=0)
    with torch.no_grad():
        guide.logits.zero_()
        guide.pulls.fill_(2.0)  # so that the second has odds of e or of 1/e
    probs = torch.stack([guide.inclusion_probabilities(seed)["w"] for seed in range(40)])
    error = guide.inclusion_standard_errors()["w"]
    assert error[0] < 1e-9 < 1e-3 < error[1]  # nothing comes before the first
    _assert_error_of_means(probs[:, 1].double(), error[1].double())


def test_standard_error_of_the_bound_is_that_of_its_seeds(data):
    guide = JointSpikeSlab(regression, num_particles=2).fit(*data, steps=1, seed=0)
    bounds, errors = torch.tensor([guide.elbo(*data, num_samples=200, seed=s) for s in range(40)]).double().T
    _assert_error_of_means(bounds, errors.square().mean().sqrt())


def _assert_error_of_means(means, error):
    """Means of many draws are Gaussian; by 40 squares alone, no claimed error would be too small."""
    ratio = (means.var() / error**2).item() * (len(means) - 1)
    low, high = stats.chi2(len(means) - 1).interval(1 - FAMILY_WISE)
    assert low < ratio < high


@pytest.mark.slow
def test_the_gradient_is_that_of_the_bound(data):
    """Mean of many estimates against the exact gradient: all models summed, slabs in closed form."""
    x, y = data
    guide = JointSpikeSlab(regression, num_particles=32).fit(x, y, steps=3, seed=0)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    parameters = dict(guide.named_parameters())

    def gradients(loss):
        found = torch.autograd.grad(loss, parameters.values(), allow_unused=True)
        return torch.cat([
            (torch.zeros_like(p) if g is None else g).flatten()
            for g, p in zip(found, parameters.values(), strict=True)
        ])  # fmt: skip

    wanted = gradients(-_exact_bound(guide.law, x, y))
    with pyro.validation_enabled(False):
        estimates = torch.stack([gradients(guide._loss((x, y))) for _ in range(700)])
    assert_mean(estimates, wanted)
    error = estimates.std(0) / math.sqrt(len(estimates))
    assert (wanted.abs() > 10 * error).sum() > len(wanted) // 2  # it could have been told from zero


def _exact_bound(law, x, y):
    """``E_q[log p(y, w) - log q]``, model by model."""
    total = 0.0
    for gamma in models(2):
        log_q = law.log_prob_of_indicators(gamma[None])[0]
        log_p, mean, inverse = given(x, y, gamma)
        divergence = _divergence(law, gamma, mean, inverse) if gamma.any() else 0.0
        total = total + log_q.exp() * (log_p - log_q - divergence)
    return total


def _divergence(law, gamma, mean, covariance):
    """KL of the law's weights given their indicators to a Gaussian."""
    keep = gamma > 0
    own = (law.root @ law.root.T)[keep][:, keep]
    q = MultivariateNormal(torch.linalg.solve(own, law.linear[keep]), precision_matrix=own)
    return torch.distributions.kl_divergence(q, MultivariateNormal(mean, covariance))


def test_a_draw_is_measured_by_the_others_and_not_by_itself(data):
    """The logits have a part in the score alone: the gradient of the loss is minus
    ``mean_s (f_s - mean_{t != s} f_t) (gamma_s - P(gamma_s = 1 | those before))``, here of three draws.
    """
    x, y = data
    guide = JointSpikeSlab(regression, num_particles=3).fit(x, y, steps=1, seed=0)
    perturb(guide, 0.3)
    torch.manual_seed(5)
    (found,) = torch.autograd.grad(guide._loss((x, y)), guide.logits)
    torch.manual_seed(5)  # the same draws
    with torch.no_grad():
        law = guide.law
        gamma = law.indicators(3)
        w, _ = law.weights(gamma)
        slabs = dist.Normal(w.new_tensor(0.0), SLAB).log_prob(w) + math.log(INCLUSION)
        log_p = torch.where(gamma > 0, slabs, math.log(1 - INCLUSION)).sum(1)
        log_p = log_p + dist.Normal(w @ x.T, NOISE).log_prob(y).sum(1)
        a, b, c = (log_p - law.log_prob(w)).tolist()
        ahead = gamma.new_tensor([a - (b + c) / 2, b - (a + c) / 2, c - (a + b) / 2])
        steps = gamma - torch.sigmoid(law.conditional_logits(gamma))
        wanted = -(ahead @ steps) / 3
    assert len(gamma.unique(dim=0)) > 1
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)
    assert (found.abs() > 0.01).all()


def test_minibatches_have_the_loss_of_all_rows(data):
    x, y = data
    guide = JointSpikeSlab(regression, num_particles=4).fit(x, y, steps=1, seed=0)

    def loss(*args):
        torch.manual_seed(7)  # the same draws
        return guide._loss(args).item()

    parts = [loss(x[i : i + 10], y[i : i + 10], 30) for i in (0, 10, 20)]
    assert np.mean(parts) == pytest.approx(loss(x, y), rel=1e-10)


@pytest.mark.slow
def test_fits_by_minibatches_too(data, exact):
    guide = JointSpikeSlab(regression, num_particles=16).fit(*data, steps=1000, batch_size=15, seed=0)
    bound, error = guide.elbo(*data)
    assert exact[0] - 0.2 - 4 * error < bound < exact[0] + 4 * error


# ------------------------------------------------------------------------------------------------ densities


def unknown_noise(x, y=None):
    tau = pyro.sample("tau", dist.Gamma(x.new_tensor(3.0), x.new_tensor(2.0)))
    prior = SpikeSlab(x.new_tensor(0.5), x.new_tensor(0.0), x.new_tensor(1.0))
    w = pyro.sample("w", prior.expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, tau.rsqrt()), obs=y)


def test_density_of_a_law_without_correlations(data):
    """It is the product of Bernoulli indicators, Normal slabs and the LogNormal of a positive site."""
    guide = JointSpikeSlab(unknown_noise, num_particles=2).fit(*data, steps=1, seed=0)
    with torch.no_grad():
        guide.pulls.zero_()
        guide.below.zero_()
        guide.logits.copy_(torch.tensor([-0.4, 0.8]))
        law = guide.law
    draws, log_q = guide.draws_with_log_prob(50, seed=4)
    sd = 1 / law.root.diagonal()
    mean = law.linear * sd**2
    w, inside = draws["w"], draws["w"] != 0
    assert 0 < inside.double().mean() < 1
    wanted = dist.LogNormal(mean[0], sd[0]).log_prob(draws["tau"])
    wanted = wanted + torch.where(inside, dist.Normal(mean[1:], sd[1:]).log_prob(w), 0.0).sum(1)
    wanted = wanted + dist.Bernoulli(logits=law.logits).log_prob(inside.to(w)).sum(1)
    torch.testing.assert_close(log_q, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_densities_are_on_the_supports(data):
    """A site without a spike: its density is that of the mapped Gaussian, by a histogram-free identity: the
    mean of ``p / q`` over draws is the integral of any normalised ``p``.
    """

    guide = JointSpikeSlab(unknown_noise, num_particles=8).fit(*data, steps=200, seed=0)
    draws, log_q = guide.draws_with_log_prob(20_000, seed=4)
    assert (draws["tau"] > 0).all()
    # a target narrower than the guide: its two marginals, shrunk
    w = draws["w"]
    log_tau = draws["tau"].log()
    target = dist.Normal(log_tau.mean(), 0.5 * log_tau.std()).log_prob(log_tau) - log_tau
    both = (w != 0).all(1)
    centre, spread = w[both].mean(0), 0.4 * w[both].std(0)
    target = target + dist.Normal(centre, spread).log_prob(w).sum(1)
    ratio = torch.where(both, (target - log_q).exp(), 0.0)
    assert ratio.mean().item() == pytest.approx(1, abs=4 * (ratio.std() / len(ratio) ** 0.5).item())


# ------------------------------------------------------------------------------------------- the contract


def test_same_seed_same_result_and_other_generators_stay(data):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    a, b = (JointSpikeSlab(regression, num_particles=4).fit(*data, steps=5, seed=2) for _ in range(2))
    assert a.losses == b.losses
    assert torch.equal(a.draws(5, seed=1)["w"], b.draws(5, seed=1)["w"])
    assert not torch.equal(a.draws(5, seed=1)["w"], a.draws(5, seed=2)["w"])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_round_trip_through_a_file(data, tmp_path):
    fitted = JointSpikeSlab(regression, num_particles=16).fit(*data, steps=20, seed=3)
    fitted.save(tmp_path / "joint.safetensors")
    loaded = JointSpikeSlab.load(tmp_path / "joint.safetensors", regression)
    assert torch.equal(loaded.draws(7, seed=1)["w"], fitted.draws(7, seed=1)["w"])
    assert loaded.elbo(*data) == fitted.elbo(*data)
    assert loaded.facts["seed"] == 3
    assert loaded.posterior(9, seed=1).draws()["w"].shape == (9, 2)


def test_a_hierarchy_whose_density_is_unbounded_starts_beside_its_singularity():
    """The bound of AutoSpikeSlab is -37.1 there; a start at a scale of nearly zero ended below -600."""
    generator = torch.Generator().manual_seed(0)
    x, group = torch.randn(40, 4, generator=generator), torch.arange(40) % 8
    effects, noise = torch.randn(8, generator=generator), torch.randn(40, generator=generator)
    y = x[:, 0] + 0.3 * effects[group] + 0.5 * noise

    def groups(x, group, y=None):
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        w = pyro.sample("w", SpikeSlab(probs=0.2).expand([4]).to_event(1))
        a = pyro.sample("a", dist.Normal(torch.zeros(8), tau).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w + a[group], 0.5), obs=y)

    guide = JointSpikeSlab(groups).fit(x, group, y, steps=150, seed=0)
    assert max(guide.losses) < 500
    assert guide.facts["elbo"][0] > -40


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
def test_a_start_whose_bound_is_no_number_is_the_worst(broken, data, monkeypatch):
    guide = JointSpikeSlab(regression)
    monkeypatch.setattr(guide, "_loss", lambda args: torch.tensor(broken))
    assert guide._loss_here(data) == math.inf


def test_a_loss_that_ends_above_its_start_is_a_warning():
    generator = torch.Generator().manual_seed(0)
    level = torch.randn(200, generator=generator)
    with pytest.warns(UnsettledWarning, match="nats above its first steps.*lower lr"):
        _warn_of_rise((level + torch.linspace(0, 9, 200)).tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_rise(level.tolist())
        _warn_of_rise((level - torch.linspace(0, 9, 200)).tolist())
        _warn_of_rise([0.0, 100.0])


def test_a_rise_is_beyond_its_noise_by_the_error_of_a_mean():
    """Ten steps of sd 1.05 at each end: their means differ by ± 0.47, of which two are no rise."""
    noise = [1.0, -1.0] * 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_rise(noise + [0.0] * 180 + [v + 1.4 for v in noise])
    with pytest.warns(UnsettledWarning, match="above its first steps"):
        _warn_of_rise(noise + [0.0] * 180 + [v + 1.5 for v in noise])


def test_every_fit_is_asked_whether_its_loss_rose_or_fell(data, monkeypatch):
    asked = []
    monkeypatch.setattr(joint_spike_slab, "_warn_of_rise", lambda losses: asked.append((losses, None)))
    monkeypatch.setattr(Course, "warn_unsettled", lambda course, losses: asked.append((losses, course)))
    guide = JointSpikeSlab(regression, num_particles=4).fit(*data, steps=3, lr=0.02)
    assert asked == [(guide.losses, None), (guide.losses, Course(3, 0.02, 0.0, 0, None))]


def test_refusals(data):
    x, y = data

    def plain(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match="num_particles must be 2"):
        JointSpikeSlab(regression, num_particles=1)
    with pytest.raises(UnsupportedSiteError, match="AutoMeanField"):
        JointSpikeSlab(plain).fit(x, y, steps=1)
    with pytest.raises(UnsupportedSiteError, match="301 latent numbers.*AutoSpikeSlab"):
        JointSpikeSlab(regression).fit(torch.randn(4, 301), torch.randn(4), steps=1)
    with pytest.raises(RuntimeError, match="not fitted"):
        JointSpikeSlab(regression).draws(1)


def test_data_that_are_not_finite_are_told(data):
    """Not by the linear algebra that they break."""
    x, y = data
    x = x.clone()
    x[3, 1] = math.nan
    with pytest.raises(ValueError, match="argument 0 of the model is NaN in row 3"):
        JointSpikeSlab(regression).fit(x, y, steps=1)


def test_a_model_that_is_in_float32_is_told_what_to_do(data):
    """Torch's own words name two precisions, and neither where they meet nor what helps."""
    slab = torch.ones(2, dtype=torch.float32)

    def outside(x, y=None):
        w = pyro.sample("w", SpikeSlab(INCLUSION, scale=slab).to_event(1))
        pyro.sample("y", dist.Normal(x @ w, NOISE).to_event(1), obs=y)

    def broken(x, y=None):
        raise RuntimeError("mine")

    for model in (
        outside,
        from_module(torch.nn.Linear(2, 1), prior=SpikeSlabWeights(INCLUSION), noise_scale=NOISE),
    ):
        with pytest.raises(TypeError, match=r"float64.*net\.double\(\).*dtype=torch\.float64"):
            JointSpikeSlab(model).fit(*data, steps=1)
    with pytest.raises(RuntimeError, match="^mine"):
        JointSpikeSlab(broken).fit(*data, steps=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none")
def test_it_is_where_its_data_are(data):
    there = [part.cuda() for part in data]
    guide = JointSpikeSlab(regression, num_particles=16).fit(*there, steps=900, seed=3)
    here = JointSpikeSlab(regression, num_particles=16).fit(*data, steps=900, seed=3)
    (bound, error), (other, other_error) = guide.facts["elbo"], here.facts["elbo"]
    assert abs(bound - other) < 0.02 + 4 * (error + other_error)
    assert guide.draws(3)["w"].is_cuda
    assert guide.inclusion_probabilities()["w"].is_cuda


# ----------------------------------------------------------------------------------- a likelihood of classes


@pytest.mark.slow
def test_inclusion_of_correlated_columns_in_a_logistic_regression():
    """Eight columns, two of them nearly a third: against all 256 models, to a root mean square of 0.05."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((300, 8))
    x[:, 1:3] = 0.9 * x[:, :1] + 0.44 * x[:, 1:3]
    x = (x - x.mean(0)) / x.std(0)
    y = (rng.random(300) < 1 / (1 + np.exp(-(1.2 * x[:, 0] - 0.7 * x[:, 4])))).astype(float)
    exact = enumerate_spike_slab_logistic(x, y, inclusion_prob=0.25)

    def model(x, y=None):
        prior = SpikeSlab(x.new_tensor(0.25), x.new_tensor(0.0), x.new_tensor(1.0))
        w = pyro.sample("w", prior.expand([8]).to_event(1))
        b = pyro.sample("b", dist.Normal(x.new_tensor(0.0), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)

    guide = JointSpikeSlab(model).fit(*map(torch.as_tensor, (x, y)), steps=1500, seed=0)
    found = guide.inclusion_probabilities()["w"].numpy()
    assert np.sqrt(np.mean((found - exact.inclusion) ** 2)) < 0.05
    bound, error = guide.facts["elbo"]
    assert exact.log_evidence - 0.3 < bound < exact.log_evidence + 0.05 + 4 * error  # Laplace's own error
