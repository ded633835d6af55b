"""Implicit posteriors of weights against closed forms, and on models of every kind of site."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import UnsupportedSiteError
from guides.core.course import Course
from guides.core.svi import DivergenceError
from guides.core.weight_sites import WeightSites, scores
from guides.implicit import AADM, AdversarialVariationalBayes, DiscriminatorKL, SaturationWarning
from guides.implicit.adversarial import Contrast
from guides.implicit.energy import power_mean
from guides.implicit.generator import Generator
from guides.implicit.moments import Correlated, Diagonal, contrast_law, newest_weight
from guides.posterior import fitted_guide, log_joint
from guides.truth import conjugate_linear_regression
from zoo.models import BNN

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
Y = X @ [1.0, -0.5] + 0.7 * RNG.standard_normal(40)
x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)


def regression(x, y=None, size=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", size or len(x), subsample=torch.arange(len(x)) if size else None):
        pyro.sample("y", dist.Normal(x @ w, 0.7), obs=y)


def supports(x, y=None):
    scale = pyro.sample("scale", dist.Gamma(2.0, 3.0))
    share = pyro.sample("share", dist.Beta(2.0, 2.0))
    with pyro.plate("units", 3):
        w = pyro.sample("w", dist.Normal(0.0, scale))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(share * w.sum() * x[:, 0], 1.0), obs=y)


# ------------------------------------------------------------------------------------------------- arithmetic


def test_scores_are_the_model_s_density():
    """With the volumes of the maps to the supports: by torch's own transformed laws."""
    sites = WeightSites.of(supports, (x, y))
    assert len(sites) == 5
    w = torch.randn(6, 5)
    found = scores(supports, sites, w, (x, y))
    values = sites.values(w)
    ((terms, scale),) = found.log_likelihoods
    assert terms.shape == (6, 40)
    assert scale == 1
    jacobian = values["scale"].log() + (values["share"] * (1 - values["share"])).log()
    expected = log_joint(supports, values, x, y) + jacobian
    torch.testing.assert_close(found.log_prior + terms.sum(1), expected, rtol=1e-4, atol=1e-4)


def test_with_alpha_one_what_belongs_to_a_row_is_one_observation_if_it_is_one_event():
    """And a number of it is one by itself, as documented, where it is not: in a plate or two sites."""

    def event(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w)[:, None].expand(-1, 2), 0.7).to_event(1), obs=y)

    def plates(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("outputs", 2, dim=-1), pyro.plate("data", len(x), dim=-2):
            pyro.sample("y", dist.Normal((x @ w)[:, None].expand(-1, 2), 0.7), obs=y)

    def two(x, y=(None, None)):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            for number in range(2):
                pyro.sample(f"y{number}", dist.Normal(x @ w, 0.7), obs=y[number])

    w, pairs = torch.randn(50, 2), torch.stack((y, y.flip(0)), 1)
    numbers = dist.Normal(w @ x.mT, 0.7).log_prob(pairs.mT.unsqueeze(1)).double()  # [2, S, N]
    of_rows = power_mean(numbers.sum(0), 1.0).sum()
    of_numbers = power_mean(numbers.movedim(1, 0), 1.0).sum()
    assert abs(of_rows - of_numbers) > 1
    cases = (event, pairs, of_rows), (plates, pairs, of_numbers), (two, pairs.mT, of_numbers)
    for model, data, expected in cases:
        found = scores(model, WeightSites.of(model, (x, data)), w, (x, data)).log_likelihoods
        total = sum(power_mean(terms.double(), 1.0).sum() for terms, _ in found)
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=0)


def test_minibatches_scale_the_likelihood_alone():
    sites = WeightSites.of(regression, (x, y))
    w = torch.randn(3, 2)
    whole = scores(regression, sites, w, (x, y))
    part = scores(regression, sites, w, (x[:10], y[:10], 40))
    torch.testing.assert_close(part.log_prior, whole.log_prior)
    torch.testing.assert_close(part.log_likelihoods[0][0], whole.log_likelihoods[0][0][:, :10])
    assert part.log_likelihoods[0][1] == 4
    # and so does the loss of a fit
    guide = AdversarialVariationalBayes(regression, num_particles=20, hidden=(5,)).fit(x, y, steps=1)
    torch.manual_seed(5)
    loss = guide._loss(Contrast(DiscriminatorKL((5,))), (x[:10], y[:10], 40), 0.0)
    torch.manual_seed(5)
    w = guide.generator(20)
    found = dist.Normal(w @ x[:10].mT, 0.7).log_prob(y[:10]).sum(1).mean()
    torch.testing.assert_close(loss, -4 * found.double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_loss_is_the_contrast_minus_the_prior_minus_the_energy(alpha):
    """By hand, with its gradient; the contrast is a known one."""

    class Known(Contrast):
        def __init__(self):
            pass

        def step(self, w):
            pass

        def log_density(self, w):
            return 3 * w.square().sum(1)

    guide = AdversarialVariationalBayes(regression, alpha=alpha, num_particles=20, hidden=(5,))
    guide.fit(x, y, steps=1)
    torch.manual_seed(5)
    loss = guide._loss(Known(), (x, y), 0.7)
    torch.manual_seed(5)
    w = guide.generator(20)
    terms = dist.Normal(w @ x.mT, 0.7).log_prob(y).double()
    energy = (alpha * terms).exp().mean(0).log().sum() / alpha if alpha else terms.mean(0).sum()
    log_prior = dist.Normal(0.0, 1.0).log_prob(w).sum(1)
    expected = 0.7 * (3 * w.square().sum(1) - log_prior).mean() - energy
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=0)
    weights = guide.generator.network[0].weight
    ours, by_hand = (torch.autograd.grad(value, weights)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, by_hand, rtol=1e-3, atol=1e-3)


def test_the_contrast_is_a_gaussian_and_what_a_classifier_of_white_draws_adds():
    seen = []

    class Known(DiscriminatorKL):
        def step(self, q, p):
            seen.append((q, p))

        def log_ratio(self, u):
            return u.sum(1) ** 2

    mix = torch.tensor([[2.0, 1.0], [0.0, 0.5]])
    w = 4 + torch.randn(2000, 2) @ mix
    contrast = Contrast(Known())
    contrast.step(w)
    ((white, normal),) = seen
    for draws, close in ((white, 1e-3), (normal, 0.15)):
        torch.testing.assert_close(draws.mean(0), torch.zeros(2), rtol=0, atol=close)
        torch.testing.assert_close(draws.mT.cov(), torch.eye(2), rtol=0, atol=close)
    law = dist.MultivariateNormal(w.mean(0), w.mT.cov())
    expected = law.log_prob(w) + white.sum(1) ** 2
    torch.testing.assert_close(contrast.log_density(w), expected, rtol=0, atol=0.02)


def test_the_noise_of_a_generator_has_a_mean_and_sds_of_its_own():
    """``network(m + exp(r) e)``, by hand from the same ``e``."""
    generator, mean, sd = Generator(2, 3, (4,)), torch.tensor([1.0, 2.0, -3.0]), torch.tensor([0.5, 2.0, 3.0])
    with torch.no_grad():
        generator.noise_mean.copy_(mean)
        generator.noise_log_sd.copy_(sd.log())
    torch.manual_seed(1)
    found = generator(6)
    torch.manual_seed(1)
    torch.testing.assert_close(found, generator.network(mean + sd * torch.randn(6, 3)))


def test_the_contrast_s_gradient_is_to_the_draws_alone():
    """And not to the moments that came from them."""
    w = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    contrast = Contrast(DiscriminatorKL())
    contrast.step(w)
    law = contrast_law(w).of(w.detach())
    expected = contrast.classifier.log_ratio(law.whiten(w)) + law.log_prob(w)
    found = contrast.log_density(w)
    torch.testing.assert_close(
        *(torch.autograd.grad(density.sum(), w)[0] for density in (found, expected)), rtol=0, atol=0
    )


# -------------------------------------------------------------------------------------------------- any model


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("model", [supports, BNN(2, widths=(4,))])
def test_fits_and_files(model, alpha, tmp_path):
    guide = AdversarialVariationalBayes(model, alpha=alpha, num_particles=8, hidden=(10,), noise_features=4)
    state = torch.random.get_rng_state()
    guide.fit(x, y, steps=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len(guide.losses) == 3
    assert all(map(math.isfinite, guide.losses))
    posterior = guide.posterior(20)
    assert posterior.predictive(x).log_prob(y).isfinite().all()
    positive = posterior.draws()["scale" if model is supports else "noise_precision"]
    assert (positive > 0).all()
    guide.save(tmp_path / "fit")
    again = AdversarialVariationalBayes.load(tmp_path / "fit", model)
    assert again.losses == guide.losses
    for name, value in again.draws(5).items():
        torch.testing.assert_close(value, guide.draws(5)[name], rtol=0, atol=0)
    same = AdversarialVariationalBayes(model, **asdict(guide.settings)).fit(x, y, steps=3)
    assert same.losses == guide.losses
    assert same.fit(x, y, steps=3, seed=1).losses != guide.losses


def test_minibatches():
    guide = AADM(BNN(2, widths=(4,)), num_particles=4, hidden=(5,)).fit(x, y, steps=5, batch_size=10)
    assert len(guide.losses) == 5
    assert guide.posterior(3).info["method"] == "AADM"


def test_the_classifier_s_learning_rate():
    """By default that of the generator."""

    def fit(**options):
        guide = AdversarialVariationalBayes(regression, num_particles=8, hidden=(5,), noise_features=4)
        return guide.fit(x, y, steps=5, lr=5e-3, **options)

    assert fit().facts["classifier_lr"] == 5e-3
    assert fit().losses == fit(classifier_lr=5e-3).losses != fit(classifier_lr=1e-3).losses


def test_every_fit_is_asked_whether_its_loss_fell(monkeypatch):
    asked = []
    monkeypatch.setattr(Course, "warn_unsettled", lambda course, losses: asked.append((losses, course)))
    guide = AdversarialVariationalBayes(regression, num_particles=5, hidden=(3,), noise_features=2)
    guide.fit(x, y, steps=2, lr=3e-3, batch_size=10)
    assert asked == [(guide.losses, Course(2, 3e-3, 0.1, 0, 10))]
    assert len(guide.losses) == 2


@pytest.mark.slow
def test_defaults_arrive_where_weights_are_few():
    """At a fifth of the learning rate sds were 1.6 to 2.1 times too wide, without a warning."""
    exact = conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=0.7)
    guide = AdversarialVariationalBayes(regression).fit(x, y)
    draws = guide.draws(10_000)["w"].double().numpy()
    sd = np.sqrt(np.diag(exact.covariance))
    np.testing.assert_allclose(draws.std(0) / sd, 1.0, atol=0.1)
    assert np.abs((draws.mean(0) - exact.mean) / sd).max() < 0.2


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_a_classifier_that_hardly_errs_is_reported():
    """Few draws of many weights are told from independent ones without fail."""
    guide = AdversarialVariationalBayes(BNN(2, widths=(40,)), num_particles=50, noise_features=2)
    with pytest.warns(SaturationWarning, match="penalty") as warned:
        guide.fit(x, y, steps=300, lr=1e-2)
    assert warned[0].filename == __file__
    assert guide.facts["saturated"]
    assert guide.facts["classifier_loss"] < 0.05


def test_divergence_names_the_step():
    guide = AADM(regression, num_particles=20, hidden=(5,))
    with pytest.raises(DivergenceError, match="step [1-9].*lower the learning rate"):
        guide.fit(x, y, steps=100, lr=1e30, classifier_lr=1e-3)


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="alpha must lie in"):
        AADM(regression, alpha=2.0)
    with pytest.raises(ValueError, match="num_particles"):
        AADM(regression, num_particles=1)
    with pytest.raises(RuntimeError, match="not fitted"):
        AADM(regression).draws(1)

    def discrete(x, y=None):
        pyro.sample("z", dist.Bernoulli(0.5))

    with pytest.raises(UnsupportedSiteError, match="site 'z' of a Bernoulli"):
        AADM(discrete).fit(x)
    with pytest.raises(UnsupportedSiteError, match="no latent site"):
        AADM(lambda x: None).fit(x)
    (tmp_path / "fit").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="truncated"):
        AdversarialVariationalBayes.load(tmp_path / "fit", regression)


def test_a_file_of_other_settings_is_refused_by_name(monkeypatch, tmp_path):
    """As those are that were saved before an argument had another name."""
    guide = AdversarialVariationalBayes(regression, num_particles=5, hidden=(3,)).fit(x, y, steps=1)
    guide.save(tmp_path / "fit")
    layout, state = fitted_guide.read_guide(tmp_path / "fit")
    layout["settings"]["num_samples"] = layout["settings"].pop("num_particles")
    monkeypatch.setattr(fitted_guide, "read_guide", lambda path: (layout, state))
    with pytest.raises(ValueError, match="fit is of another version, with 'num_samples': fit again"):
        AdversarialVariationalBayes.load(tmp_path / "fit", regression)


# ------------------------------------------------------------------------------------------------ correctness


def test_the_contrast_s_gaussian_is_that_of_the_draws():
    """With correlations where there are five draws a number, and none where there are fewer."""
    u = torch.randn(50, 3) @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.0, 0.0, 1.0]])
    for size in (50, 10):
        law = contrast_law(u[:size]).of(u[:size])
        covariance = u[:size].mT.cov() if size == 50 else u[:size].var(0).diag()
        expected = dist.MultivariateNormal(u[:size].mean(0), covariance).log_prob(u)
        torch.testing.assert_close(law.log_prob(u), expected, rtol=0, atol=5e-3)
        white = law.whiten(u[:size])
        torch.testing.assert_close(white.var(0), torch.ones(3), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("draws", "law"), [(14, Diagonal), (15, Correlated)])
def test_five_draws_a_number_tell_correlations(draws, law):
    assert contrast_law(torch.randn(draws, 3)) is law


def test_numbers_that_are_the_same_have_a_contrast_all_the_same():
    """A ten-thousandth of their variance is each one's own."""
    one = torch.randn(50, 1)
    law = contrast_law(one.expand(50, 2)).of(one.expand(50, 2))
    torch.testing.assert_close(law.root @ law.root.mT, one.var() * (torch.ones(2, 2) + 1e-4 * torch.eye(2)))
    assert law.log_prob(one.expand(50, 2)).isfinite().all()


@pytest.mark.parametrize("draws", [8, 50])
def test_a_number_that_does_not_vary_keeps_its_units_in_the_contrast(draws):
    u = torch.stack([torch.randn(draws), torch.full((draws,), 3.0)], 1)
    law = contrast_law(u).of(u)
    torch.testing.assert_close(law.whiten(u + torch.tensor([0.0, 2.0]))[:, 1], torch.full((draws,), 2.0))
    assert law.log_prob(u).isfinite().all()


@pytest.mark.slow
def test_conjugate_regression():
    """Mean and covariance, which is not diagonal: the correlation is -0.83."""
    exact = conjugate_linear_regression(X, Y, prior_scale=1.0, noise_scale=0.7)
    guide = AdversarialVariationalBayes(regression, num_particles=200, noise_features=4)
    guide.fit(x, y, steps=1000, lr=2e-3)
    w = guide.draws(20_000)["w"].double().numpy()
    sd = np.sqrt(np.diag(exact.covariance))
    correlation = exact.covariance[0, 1] / sd.prod()
    assert abs(correlation) > 0.5
    assert (np.abs(w.mean(0) - exact.mean) < 0.1 * sd).all()
    assert np.abs(np.log(w.std(0) / sd)).max() < 0.08
    assert np.corrcoef(w.T)[0, 1] == pytest.approx(correlation, abs=0.03)


@pytest.mark.slow
def test_five_draws_a_weight():
    """Of 30 weights: the objective stays below the evidence, which with fewer draws it does not."""
    weights, noise = 30, 0.7
    rng = np.random.default_rng(1)
    features = np.maximum(rng.standard_normal((200, 8)) @ rng.standard_normal((8, weights)), 0)
    target = features @ rng.standard_normal(weights) / weights**0.5 + noise * rng.standard_normal(200)
    scale = weights**-0.5
    exact = conjugate_linear_regression(features, target, prior_scale=scale, noise_scale=noise)
    data = torch.tensor(features, dtype=torch.float32), torch.tensor(target, dtype=torch.float32)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(weights), scale).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    guide = AdversarialVariationalBayes(model, num_particles=5 * weights)
    guide.fit(*data, steps=2000, lr=5e-3)
    assert not guide.facts["saturated"]
    # what a Gaussian q of these widths leaves is some 3 nats; the mean of 200 steps is known to 0.05
    assert -5 < -np.mean(guide.losses[-200:]) - exact.log_evidence < -1
    sd = np.sqrt(np.einsum("ni,ij,nj->n", features, exact.covariance, features))
    error = features @ (guide.draws(4000)["w"].double().numpy().mean(0) - exact.mean) / sd
    assert np.abs(error).mean() < 0.04  # of which 4000 draws account for 0.013

    few = AdversarialVariationalBayes(model, num_particles=40)
    with pytest.warns(SaturationWarning):
        few.fit(*data, steps=2000, lr=5e-3)
    assert -np.mean(few.losses[-200:]) > exact.log_evidence + 1


@pytest.mark.slow
def test_the_classifier_finds_what_the_moments_do_not_say():
    """Of a bent posterior: the objective is its log evidence, which a Gaussian's entropy would exceed."""

    def bent(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w[..., 1:] - w[..., :1] ** 2 + 1 + 0 * x[:, 0], 0.2), obs=y)

    grid = torch.linspace(-6, 6, 1201, dtype=torch.float64)
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    normal = dist.Normal(0.0, 1.0)
    log_joint = normal.log_prob(first) + normal.log_prob(second)
    log_joint = log_joint + dist.Normal(0.0, 0.2).log_prob(second - first**2 + 1)
    log_evidence = (log_joint.flatten().logsumexp(0) + 2 * math.log(0.01)).item()
    guide = AdversarialVariationalBayes(bent, num_particles=400)
    guide.fit(torch.zeros(1, 1), torch.zeros(1), steps=2000, lr=3e-3)
    objective = -np.mean(guide.losses[-200:])
    # the classifier's estimate leaves 0.06 to 0.08 (three seeds); without it 1.97 are missing
    assert objective == pytest.approx(log_evidence, abs=0.2)


def test_data_that_are_not_finite_are_not_blamed_on_the_rate():
    with pytest.raises(DivergenceError, match="step 0: the loss is nan; the data or the start"):
        AADM(regression, num_particles=20, hidden=(5,)).fit(x, torch.full_like(y, math.nan), steps=2)


def test_batches_of_a_running_average_count_alike_up_to_a_hundred():
    assert [newest_weight(before) for before in (0, 1, 3, 98)] == [1, 1 / 2, 1 / 4, 1 / 99]
    assert newest_weight(99) == newest_weight(5000) == 0.01


@pytest.mark.parametrize(
    ("alpha", "method"), [(0.0, "adversarial variational Bayes"), (0.5, "AADM"), (1.0, "AADM")]
)
def test_a_posterior_names_its_method(alpha, method):
    guide = AdversarialVariationalBayes(
        regression, alpha=alpha, num_particles=4, hidden=(4,), noise_features=2
    )
    assert guide.fit(x, y, steps=1).posterior(2).info["method"] == method


def test_five_draws_a_number_are_enough_for_correlations():
    """As the guide says: from five on, and not beyond."""
    assert contrast_law(torch.zeros(15, 3)) is Correlated
    assert contrast_law(torch.zeros(14, 3)) is Diagonal
