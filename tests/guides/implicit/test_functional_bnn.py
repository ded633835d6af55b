"""Functional BNNs: Gaussian-process priors, the fit of a prior, the divergence's gradient, and fits."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from guides.core.svi import DivergenceError
from guides.implicit import (
    FunctionalBNN,
    GaussianProcess,
    VariationalImplicitProcess,
    evidence,
    functional_bnn,
)
from guides.implicit.evidence import FUNCTIONS, START_LOG_NOISE, fit_by_evidence, log_evidence, moments
from zoo.models import BNNProcess
from zoo.models.implicit_process import posterior_network

X = torch.linspace(-2, 2, 40).unsqueeze(-1)
Y = X[:, 0].sin() + 0.2 * torch.randn(40, generator=torch.Generator().manual_seed(0))


def network() -> BNNProcess:
    torch.manual_seed(0)
    return posterior_network(1, (10,))


def fitted(prior=None, steps: int = 3, seed: int = 0, **options) -> FunctionalBNN:
    options = {"num_particles": 20, "num_measured": 4, **options}
    guide = FunctionalBNN(network(), prior or GaussianProcess(1), **options)
    return guide.fit(X, Y, steps=steps, batch_size=10, prior_steps=5, seed=seed)


# ----------------------------------------------------------------------------------------- Gaussian processes


def test_a_gaussian_process_has_its_kernel():
    process = GaussianProcess(2, length_scale=1.5, scale=2.0)
    x = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    mean, covariance = process.moments(x)
    assert mean.tolist() == [0, 0]
    assert covariance[0, 0].item() == pytest.approx(4)
    assert covariance[0, 1].item() == pytest.approx(4 * math.exp(-0.5 * 5 / 1.5**2))


def test_drawn_functions_have_its_moments():
    process = GaussianProcess(1, length_scale=0.7)
    functions = process.draw(1000)
    x = torch.tensor([[0.0], [0.5], [3.0]])
    f = functions(x)
    torch.testing.assert_close(functions(x[1:]), f[:, 1:])
    torch.testing.assert_close(f.mT.cov().double(), process.moments(x)[1], rtol=0, atol=0.15)


def test_its_score_is_the_gradient_of_its_density():
    process, x = GaussianProcess(1), torch.tensor([[0.0], [0.5], [3.0]])
    mean, covariance = process.moments(x)
    f = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    law = MultivariateNormal(mean, covariance + (0.3 + 1e-4 * covariance.diagonal()).diag())
    (gradient,) = torch.autograd.grad(law.log_prob(f).sum(), f)
    torch.testing.assert_close(process.score(f.detach(), x, 0.3), gradient)


def test_moments_of_drawn_functions_are_those_of_a_sample():
    """Of a process that cannot tell its own."""

    class Drawn:
        def draw(self, count):
            return lambda x: torch.randn(count, len(x), generator=torch.Generator().manual_seed(0))

    mean, covariance = moments(Drawn(), X[:3])
    f = Drawn().draw(FUNCTIONS)(X[:3]).double()
    torch.testing.assert_close(mean, f.mean(0))
    torch.testing.assert_close(covariance, f.mT.cov())


def test_evidence_is_the_density_of_the_data():
    process, noise = GaussianProcess(1), torch.tensor(0.3, dtype=torch.float64)
    mean, covariance = moments(process, X[:5])
    law = MultivariateNormal(mean, covariance + 0.3 * torch.eye(5))
    torch.testing.assert_close(log_evidence(mean, covariance, noise, Y[:5].double()), law.log_prob(Y[:5]))


@pytest.mark.parametrize("make", [lambda: GaussianProcess(1, length_scale=0.1), network])
def test_a_prior_is_fitted_by_evidence(make):
    """From a kernel that is far too narrow, or a network of functions that are far from the data."""
    process = make()

    def evidence(noise: float) -> float:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(1)
            parts = moments(process, X)
            return log_evidence(*parts, torch.tensor(noise).double(), Y.double()).item()

    before = evidence(0.1)
    noise = fit_by_evidence(process, X, Y, steps=60, lr=5e-2, seed=0)
    assert evidence(noise) > before + 5
    assert abs(math.log(noise) - START_LOG_NOISE) > 0.1


# -------------------------------------------------------------------------------------------------- the guide


@pytest.mark.parametrize("make", [lambda: GaussianProcess(1), lambda: BNNProcess(1, (8,))])
def test_everything_moves(make):
    prior = make()
    before = [p.clone() for p in prior.parameters()]
    guide = fitted(prior)
    assert all((a != b).any() for a, b in zip(before, prior.parameters(), strict=True))
    start = dict(network().named_parameters())
    assert all((p != start[name]).any() for name, p in guide.network.named_parameters())
    assert all(map(math.isfinite, guide.losses))
    assert guide.predictive(X).log_prob(Y.double()).isfinite().all()


def test_the_gradient_is_that_of_the_divergence():
    """Of ``N(0, sd^2)`` from ``N(0, 1)`` with respect to ``log sd``: ``sd^2 - 1``."""
    guide, x = FunctionalBNN(network(), GaussianProcess(1)), torch.zeros(1, 1)
    log_sd = torch.tensor(0.5, requires_grad=True)
    for _ in range(20):
        f = log_sd.exp() * torch.randn(300, 1)
        loss = guide._divergence(f, x)
        assert loss == 0
        loss.backward()
    assert log_sd.grad.item() / 20 == pytest.approx(math.exp(1.0) - 1, rel=0.15)


def test_the_gradient_by_draws_of_the_prior():
    """The same where ``N(0, 1)`` can only be drawn from."""

    class Normal:
        def draw(self, n):
            return lambda x: torch.randn(n, len(x))

    guide, x = FunctionalBNN(network(), Normal(), num_particles=300), torch.zeros(1, 1)
    log_sd = torch.tensor(-0.7, requires_grad=True)
    torch.manual_seed(0)
    for _ in range(10):
        guide._divergence(log_sd.exp() * torch.randn(300, 1), x).backward()
    assert log_sd.grad.item() / 10 == pytest.approx(math.exp(-1.4) - 1, abs=0.12)


def test_minibatches_scale_the_likelihood():
    guide, box = fitted(steps=1), (X.amin(0), X.amax(0))
    losses = []
    for rows in (10, 40):
        torch.manual_seed(0)
        losses.append(guide._loss(box, X[:10], Y[:10], rows, 1.0).item())
    assert losses[1] == pytest.approx(4 * losses[0])


def test_the_divergence_counts_once_however_many_rows():
    guide, box = fitted(steps=1), (X.amin(0), X.amax(0))
    parameters = list(guide.network.parameters())

    def gradient(rows: int, weight: float) -> torch.Tensor:
        torch.manual_seed(0)
        loss = guide._loss(box, X[:10], Y[:10], rows, weight)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])

    few = gradient(10, 1.0) - gradient(10, 0.0)
    many = gradient(40, 1.0) - gradient(40, 0.0)
    assert few.abs().max() > 0.1
    torch.testing.assert_close(few, many, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(gradient(10, 0.5) - gradient(10, 0.0), few / 2, rtol=1e-2, atol=1e-2)


def test_it_is_measured_at_the_rows_and_in_their_box(monkeypatch):
    guide, seen = fitted(steps=1, num_measured=30), []
    monkeypatch.setattr(guide, "_divergence", lambda f, at: seen.append(at) or f.sum() * 0)
    guide._loss((torch.tensor([-1.0]), torch.tensor([3.0])), X[:10], Y[:10], 40, 1.0)
    (at,) = seen
    assert torch.equal(at[:10], X[:10])
    assert at[10:].shape == (30, 1)
    assert -1 <= at[10:].min() < 0
    assert 2 < at[10:].max() <= 3


def test_both_laws_get_white_noise(monkeypatch):
    """Of a law that is a point, the score is that of the noise; so is the prior's."""
    seen = []

    def score(draws, at=None):
        seen.append(draws)
        return torch.zeros_like(draws if at is None else at)

    monkeypatch.setattr("guides.implicit.functional_bnn.stein_score", score)

    class Point:
        def draw(self, n):
            return lambda x: torch.zeros(n, len(x))

    guide = FunctionalBNN(network(), Point(), num_particles=400, injected_noise=0.5)
    guide._score(torch.zeros(400, 3), X[:3])
    assert len(seen) == 2
    for draws in seen:
        torch.testing.assert_close(draws.std(0), torch.full((3,), 0.5), rtol=0, atol=0.08)
    process = GaussianProcess(1)
    guide = FunctionalBNN(network(), process, injected_noise=0.5)
    found = guide._score(torch.zeros(400, 3), X[:3])
    torch.testing.assert_close(found, -process.score(seen[2], X[:3], 0.25))


def test_the_predictive_has_the_noise_of_the_fit():
    guide = fitted()
    law, noiseless = guide.predictive(X, num_samples=20), guide.predictive(X, False, num_samples=20)
    torch.testing.assert_close(law.mean, noiseless.mean)
    added = torch.full((40,), guide.noise_variance, dtype=torch.float64)
    torch.testing.assert_close(law.variance - noiseless.variance, added)


def test_seeds():
    state = torch.random.get_rng_state()
    first = fitted().losses
    assert fitted().losses == first
    assert fitted(seed=1).losses != first
    torch.random.set_rng_state(state)


def test_posterior_and_file(tmp_path):
    guide = fitted(BNNProcess(1, (8,)))
    law = guide.predictive(X, num_samples=20, seed=3)
    posterior = guide.posterior(20, seed=3)
    assert repr(posterior).startswith("Posterior(functional BNN: 20 draws; w1 [10, 1]")
    torch.testing.assert_close(posterior.predictive(X).mean.double(), law.mean)
    guide.save(tmp_path / "fit")
    again = FunctionalBNN.load(tmp_path / "fit", network(), BNNProcess(1, (8,)))
    torch.testing.assert_close(again.predictive(X, num_samples=20, seed=3).mean, law.mean, rtol=0, atol=0)
    with pytest.raises(ValueError, match="another prior"):
        FunctionalBNN.load(tmp_path / "fit", network(), GaussianProcess(1))
    with pytest.raises(ValueError, match="of a FunctionalBNN, not of a Variational"):
        VariationalImplicitProcess.load(tmp_path / "fit", network())


def test_divergence_names_the_step():
    for options in ({"lr": 1e30}, {"prior_lr": 1e30, "prior_steps": 50}):
        guide = FunctionalBNN(network(), GaussianProcess(1), num_particles=10)
        with pytest.raises(DivergenceError, match="lower"):
            guide.fit(X, Y, steps=100, batch_size=10, **{"prior_steps": 1, **options})


def test_refusals():
    with pytest.raises(ValueError, match="num_particles"):
        FunctionalBNN(network(), GaussianProcess(1), num_particles=1)
    with pytest.raises(ValueError, match="num_measured must be a positive whole number, got 2.5"):
        FunctionalBNN(network(), GaussianProcess(1), num_measured=2.5)
    for x in (X.repeat(1, 2), X[:0]):
        with pytest.raises(ValueError, match=r"x must be \[m, 1\], one row at least"):
            fitted(steps=1).predictive(x)
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="^x must be finite$"):
            fitted(steps=1).predictive(X.clone().fill_(number))
    with pytest.raises(ValueError, match="network must be a torch module"):
        FunctionalBNN(lambda x: x, GaussianProcess(1))
    with pytest.raises(ValueError, match="injected_noise"):
        FunctionalBNN(network(), GaussianProcess(1), injected_noise=0.0)
    with pytest.raises(ValueError, match="constant"):
        FunctionalBNN(network(), GaussianProcess(1)).fit(X, torch.ones(40))
    with pytest.raises(RuntimeError, match="not fitted"):
        FunctionalBNN(network(), GaussianProcess(1)).predictive(X)
    with pytest.raises(ValueError, match="length_scale"):
        GaussianProcess(1, length_scale=-1.0)
    for question in (GaussianProcess(1).moments, GaussianProcess(1).draw(3)):
        with pytest.raises(ValueError, match=r"process of 1 column\(s\) needs x \[N, 1\], got \[40, 2\]"):
            question(X.repeat(1, 2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_a_sine_is_learned():
    """Under a prior of networks, whose score is estimated; that of a Gaussian process is compared above."""
    guide = FunctionalBNN(posterior_network(1, (30,)), BNNProcess(1, (20,)), num_particles=50)
    guide.fit(X, Y, steps=1500, lr=1e-2, prior_steps=200)
    law = guide.predictive(X)
    assert (law.mean - X[:, 0].sin()).square().mean().sqrt() < 0.15
    assert guide.noise_variance**0.5 == pytest.approx(0.2, rel=0.4)


def test_the_gradient_is_a_sum_over_places_and_a_mean_over_functions(monkeypatch):
    """Of a score that is known: with three places the divergence counts three times what it does at one."""
    guide, score = FunctionalBNN(network(), GaussianProcess(1)), torch.randn(5, 3)
    monkeypatch.setattr(guide, "_score", lambda f, x: score)
    f = torch.randn(5, 3, requires_grad=True)
    guide._divergence(f, torch.zeros(3, 1)).backward()
    torch.testing.assert_close(f.grad, score / 5)


def test_the_rate_of_a_priors_own_fit_is_that_of_the_step(monkeypatch):
    """One that is zero all along moves nothing."""
    process, asked = GaussianProcess(1), []
    monkeypatch.setattr(evidence, "half_cosine", lambda *step: asked.append(step) or 0.0)
    noise = fit_by_evidence(process, X, Y, steps=3, lr=5e-2, seed=0)
    assert asked == [(5e-2, step, 3) for step in range(3)]
    assert noise == pytest.approx(math.exp(START_LOG_NOISE))
    assert process.log_scale == 0


def test_the_seed_of_a_priors_own_fit_is_that_of_its_minibatches(monkeypatch):
    """Of thirty of the forty rows, which come in another order."""
    seen, real = [], evidence.moments
    monkeypatch.setattr(evidence, "moments", lambda process, x: seen.append(x) or real(process, x))
    for seed in (0, 0, 1):
        fit_by_evidence(GaussianProcess(1), X, Y, steps=1, lr=1e-3, seed=seed)
    assert seen[0].shape == (30, 1)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_a_step_of_a_priors_own_fit_has_its_own_gradient(monkeypatch):
    """Nothing moves: after three steps it is that of one."""
    monkeypatch.setattr(evidence, "half_cosine", lambda *step: 0.0)
    process, noise = GaussianProcess(1), torch.tensor(START_LOG_NOISE, dtype=torch.float64).exp()
    fit_by_evidence(process, X[:30], Y[:30], steps=3, lr=5e-2, seed=0)
    loss = -log_evidence(*moments(process, X[:30]), noise, Y[:30].double())
    (expected,) = torch.autograd.grad(loss, process.log_scale)
    torch.testing.assert_close(process.log_scale.grad, expected, rtol=1e-3, atol=0)


def test_the_box_is_that_of_the_training_rows(monkeypatch):
    """From the smallest to the largest of every column, of all rows and not of a minibatch."""
    boxes, real = [], FunctionalBNN._loss
    monkeypatch.setattr(
        FunctionalBNN, "_loss", lambda guide, box, *others: boxes.append(box) or real(guide, box, *others)
    )
    fitted(steps=2)
    for low, high in boxes:
        assert torch.equal(low, X.amin(0))
        assert torch.equal(high, X.amax(0))
    assert len(boxes) == 2


def test_moments_of_drawn_functions_are_of_a_hundred():
    asked = []

    class Drawn:
        def draw(self, count):
            asked.append(count)
            return lambda x: torch.randn(count, len(x))

    moments(Drawn(), X[:3])
    assert asked == [100]


def test_a_gaussian_process_starts_with_lengths_of_standardised_rows():
    """Which are the root of twice their number of columns apart."""
    torch.testing.assert_close(GaussianProcess(9).log_lengths.exp(), torch.full((9,), 3.0))
    assert GaussianProcess(9, length_scale=0.5).log_lengths.exp().allclose(torch.tensor(0.5))


def test_the_likelihood_is_at_the_rows_and_not_at_what_else_is_measured(monkeypatch):
    """Of a network whose value is its input, by hand: what is measured beside counts in no scale either."""
    guide = fitted(steps=1)
    monkeypatch.setattr(guide, "_functions", lambda: lambda x: x[:, 0].expand(20, -1))
    sd = (0.5 * guide.log_noise.double()).exp()  # the logarithm is the variance's
    expected = -4 * Normal(X[:10, 0].double(), sd).log_prob(Y[:10].double()).sum()
    torch.testing.assert_close(guide._loss((X.amin(0), X.amax(0)), X[:10], Y[:10], 40, 0.0), expected)


def test_a_posterior_has_the_noise_of_the_fit():
    """Its sd, which is far from its variance here: by both ways to predict, and in the facts."""
    guide = fitted(noise_scale=0.2)
    law, posterior = guide.predictive(X, num_samples=20, seed=3), guide.posterior(20, seed=3)
    torch.testing.assert_close(posterior.predictive(X).variance.double(), law.variance, rtol=1e-4, atol=0)
    given = Normal(posterior.function(X).double(), 0.2).log_prob(Y.double())
    found = posterior.log_likelihood(X, observed_data={"y": Y})["y"].double()
    torch.testing.assert_close(found, given, rtol=1e-4, atol=1e-4)
    assert guide.facts["noise_variance"] == pytest.approx(0.04)


def test_a_prior_that_is_not_fitted_tells_no_noise():
    """And stays as it is."""
    prior = GaussianProcess(1)
    guide = FunctionalBNN(network(), prior, num_particles=5)
    guide.fit(X, Y, steps=1, batch_size=10, prior_steps=0)
    assert "noise_variance_of_prior" not in guide.facts
    assert prior.log_scale == 0


def test_drawn_functions_are_as_wide_as_their_scale():
    """Those of sd 1, three times; they have the kernel's moments (above)."""
    drawn = []
    for scale in (1.0, 3.0):
        torch.manual_seed(0)
        drawn.append(GaussianProcess(1, scale=scale).draw(4)(X))
    torch.testing.assert_close(drawn[1], 3 * drawn[0])


def test_the_white_noise_of_a_score_is_a_share_of_the_process_s_own():
    """One in ten thousand, of whatever the function's units are: tests above have a scale of 1."""
    process, x = GaussianProcess(1, scale=20.0), torch.tensor([[0.0], [0.01], [0.02]])
    mean, covariance = process.moments(x)
    law = MultivariateNormal(mean, covariance + 1e-4 * covariance.diagonal().diag())
    f = (20 * torch.randn(5, 3)).double().requires_grad_()
    (gradient,) = torch.autograd.grad(law.log_prob(f).sum(), f)
    torch.testing.assert_close(process.score(f.detach(), x), gradient)


def test_the_end_of_a_fit_is_looked_at(monkeypatch):
    """All losses, by the course that they took."""
    seen = []
    monkeypatch.setattr(functional_bnn, "warn_unsettled", lambda *of: seen.append(of))
    guide = fitted(steps=3)
    ((losses, course, rows),) = seen
    assert losses == guide.losses
    assert (len(losses), course.steps, rows) == (3, 3, len(X))
