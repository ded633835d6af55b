"""Sparse implicit processes: arithmetic, predictions, files."""

from __future__ import annotations

import json
import math
import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from torch import nn
from torch.distributions import MixtureSameFamily, Normal

from guides.core.rng import seeded_rng
from guides.implicit import DiscriminatorKL, SaturationWarning, SparseImplicitProcess
from guides.implicit.fitted import remembered
from guides.posterior import Posterior
from tests.guides.implicit.sparse_processes import X, Y, fitted, network
from zoo.models import BNNProcess, NeuralSampler


@pytest.fixture(autouse=True)
def _quiet():
    """Saturation is the usual case, and of no interest here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        yield


# ------------------------------------------------------------------------------------------------------ fits


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("make", [network, lambda: NeuralSampler(1, (8,))])
def test_everything_moves(make, alpha):
    prior = make()
    before = {name: p.clone() for name, p in prior.named_parameters()}
    guide = fitted(prior, alpha=alpha)
    assert all((p != before[name]).any() for name, p in prior.named_parameters())
    start = fitted(make(), steps=1, alpha=alpha)
    for name in ("inducing", "log_noise", "generator.noise_mean", "generator.noise_log_sd"):
        assert (guide.get_parameter(name) != start.get_parameter(name)).any(), name
    assert len(guide.losses) == 3
    assert all(map(math.isfinite, guide.losses))
    law = guide.predictive(X)
    assert isinstance(law, MixtureSameFamily)
    assert law.batch_shape == (40,)
    assert law.log_prob(Y.double()).isfinite().all()


def test_fixed_parameters_stay():
    prior = network().requires_grad_(False)
    before = [p.clone() for p in prior.parameters()]
    fitted(prior)
    assert all(torch.equal(a, b) for a, b in zip(before, prior.parameters(), strict=True))


def test_seeds():
    state = torch.random.get_rng_state()
    first, again, other = fitted(), fitted(), fitted(seed=1)
    assert first.losses == again.losses
    assert first.losses != other.losses
    law, same = first.predictive(X), again.predictive(X)
    torch.testing.assert_close(law.mean, same.mean, rtol=0, atol=0)
    torch.testing.assert_close(first.predictive(X).mean, law.mean, rtol=0, atol=0)
    assert not torch.equal(first.predictive(X, seed=1).mean, law.mean)
    torch.manual_seed(0)
    network()  # which draws from the global generator
    after = torch.random.get_rng_state()
    fitted()
    assert torch.equal(torch.random.get_rng_state(), after)
    torch.random.set_rng_state(state)


def test_minibatches_scale_the_energy_alone():
    """The mean over all batches of one epoch is the loss of the whole data."""
    guide = fitted(steps=1)
    functions, moments = guide._prior_functions(0)
    u = guide.draws(7)["u"].double()

    def energy(rows: torch.Tensor) -> torch.Tensor:
        return (
            len(X) / len(rows) * guide._energy(moments.conditional(functions(X[rows])), u, Y[rows].double())
        )

    order = torch.randperm(40)
    parts = torch.stack([energy(rows) for rows in order.split(10)])
    torch.testing.assert_close(parts.mean(), energy(order))


def test_the_energy_integrates_what_u_leaves_open():
    """With alpha = 1: the log of the mixture's density, its variance that of f given u and the noise."""
    guide = fitted(alpha=1.0, steps=1)
    functions, moments = guide._prior_functions(0)
    given = moments.conditional(functions(X).detach())._replace(variance=torch.full((40,), 0.7).double())
    u = guide.draws(6)["u"].double()
    parts = Normal(given.mean(u), (0.7 + guide.noise_variance) ** 0.5).log_prob(Y.double())
    torch.testing.assert_close(guide._energy(given, u, Y.double()), (parts.logsumexp(0) - math.log(6)).sum())


def test_one_seed_gives_u_and_the_prior_numbers_of_their_own(monkeypatch):
    guide, seen = fitted(), []

    def draw(n):
        seen.append(torch.randn(3))
        return process(n)

    process = guide.prior.draw
    monkeypatch.setattr(guide.prior, "draw", draw)
    guide.generator.forward = lambda n: seen.append(torch.randn(3)) or torch.zeros(n, 5)
    for _ in range(2):
        guide.predictive(X, seed=4)
    assert not torch.equal(*seen[:2])
    assert torch.equal(torch.stack(seen[:2]), torch.stack(seen[2:]))


def test_warm_up_leaves_the_divergence_out_at_first(monkeypatch):
    seen = []

    def loss(guide, classifier, x, y, rows, weight):
        seen.append(weight)
        classifier.step(torch.randn(5, 2), torch.randn(5, 2))
        return guide.log_noise + 0.0

    monkeypatch.setattr(SparseImplicitProcess, "_loss", loss)
    SparseImplicitProcess(network(), 5).fit(X, Y, steps=10, warm_up=0.4)
    assert seen == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 7)


# ------------------------------------------------------------------------------------------------ predictions


def test_predictive_is_the_mixture_over_u():
    """Recomputed from its parts, and independent of what other inputs are asked for."""
    guide = fitted()
    law = guide.predictive(X, num_samples=6, seed=3)
    functions, moments = guide._prior_functions(3)
    given = moments.conditional(functions(X).detach())
    u = guide.draws(6, seed=3)["u"].double()
    parts = Normal(given.mean(u), (given.variance + guide.noise_variance).sqrt())
    expected = parts.log_prob(Y.double()).logsumexp(0) - math.log(6)
    torch.testing.assert_close(law.log_prob(Y.double()), expected)
    torch.testing.assert_close(guide.predictive(X[3:9], num_samples=6, seed=3).mean, law.mean[3:9])
    noiseless = guide.predictive(X, noise=False, num_samples=6, seed=3)
    torch.testing.assert_close(noiseless.mean, law.mean)
    torch.testing.assert_close(
        law.variance - noiseless.variance, torch.full((40,), guide.noise_variance).double()
    )


def test_chunks_of_rows_change_nothing(monkeypatch):
    guide = fitted()
    whole = guide.predictive(X)
    monkeypatch.setattr("guides.implicit.sparse_implicit_process.ROWS_AT_ONCE", 7)
    torch.testing.assert_close(guide.predictive(X).mean, whole.mean)


def test_posterior_answers_like_the_guide(tmp_path):
    guide = fitted()
    posterior = guide.posterior(60, seed=2)
    assert repr(posterior) == "Posterior(sparse implicit process: 60 draws; u [5], epsilon [30])"
    law = posterior.predictive(X)
    assert posterior.function(X).shape == (60, 40)
    idata = posterior.to_arviz(X, observed_data={"y": Y}, prior=3)
    assert idata["log_likelihood"]["y"].shape == (1, 60, 40)
    assert idata["prior"]["u"].shape == (1, 3, 5)
    posterior.save(tmp_path / "fit.nc", X, observed_data={"y": Y})
    again = Posterior.load(tmp_path / "fit.nc", posterior.model)
    assert again.info == posterior.info
    torch.testing.assert_close(again.predictive(X).mean, law.mean)


def test_functions_of_the_posterior_have_the_law_of_the_predictive():
    """Mean and variance of the mixture: far from the inducing inputs ``p(f | u)`` has a good part of it."""
    guide, n, x = fitted(seed=4), 4000, 3 * X
    functions = guide.posterior(n, seed=2).function(x)
    exact = guide.predictive(x, noise=False, num_samples=n, seed=2)
    error = (functions.var(0) / n).sqrt()
    assert ((functions.mean(0) - exact.mean).abs() < 4.5 * error).all()
    squares = (functions - exact.mean) ** 2
    spread = squares.std(0) / n**0.5
    assert ((squares.mean(0) - exact.variance).abs() < 4.5 * spread).all()
    means = exact.component_distribution.mean  # E[f | u] of every draw
    assert (means.var(-1) < exact.variance - 6 * spread).any()  # what draws of E[f | u] would lack
    assert not torch.equal(functions, guide.posterior(n, seed=3).function(x))


def test_the_remainder_has_random_numbers_of_its_own():
    """Neither those behind ``u`` nor those of the prior's functions, by the same seed: no correlation."""
    seed, guide = 2, fitted()
    epsilon = guide.posterior(300, seed=seed).draws()["epsilon"]
    of_prior = int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(seed)))
    for other in (seed, of_prior):
        with seeded_rng(other):
            numbers = torch.randn(epsilon.shape, dtype=epsilon.dtype)
        assert abs((epsilon * numbers).mean()) < 4.5 / epsilon.numel() ** 0.5


def test_runs_at_the_same_inputs_share_their_moments():
    asked = []
    twice = remembered(lambda x: asked.append(x) or 2 * x)
    a, b = torch.ones(2), torch.ones(2)
    assert torch.equal(twice(a), twice(a))
    assert len(asked) == 1
    twice(b)
    twice(a)
    assert len(asked) == 3


def test_posterior_has_no_prior_density():
    from guides.posterior import log_joint

    posterior = fitted().posterior(3)
    with pytest.raises(NotImplementedError, match="no density"):
        log_joint(posterior.model, posterior.draws(), X, Y)


def test_any_pyro_model(tmp_path):
    class Wave(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_scale = nn.Parameter(torch.zeros(()))

        def forward(self, x, y=None):
            a = pyro.sample("a", dist.Normal(torch.zeros(2), self.log_scale.exp()).to_event(1))
            pyro.deterministic("wave", a[0] * x[:, 0].sin() + a[1] * x[:, 0].cos())

    guide = fitted(Wave(), site="wave")
    assert guide.prior.model.log_scale != 0
    guide.save(tmp_path / "fit.safetensors")
    again = SparseImplicitProcess.load(tmp_path / "fit.safetensors", Wave(), site="wave")
    torch.testing.assert_close(again.predictive(X).mean, guide.predictive(X).mean, rtol=0, atol=0)
    posterior = guide.posterior(4)
    assert posterior.predictive(X).batch_shape == (40,)


def test_starts_elsewhere_and_what_is_held_stays():
    def start(guide):
        guide.inducing.data = torch.linspace(-1, 1, 5).unsqueeze(-1)
        guide.generator.requires_grad_(False)
        starts.append({name: p.clone() for name, p in guide.named_parameters()})

    starts: list = []
    guide = SparseImplicitProcess(network(), 5).fit(X, Y, steps=3, on_start=start)
    for name, p in guide.generator.named_parameters():
        assert torch.equal(p, starts[0][f"generator.{name}"])
    moved = guide.inducing - torch.linspace(-1, 1, 5).unsqueeze(-1)
    assert 0 < moved.abs().max() < 0.02


def test_terms_are_those_of_the_objective():
    """By the same random numbers, but for the classifier's step before."""
    guide = fitted()
    torch.manual_seed(5)
    energy, divergence = guide.terms(X, Y)
    torch.manual_seed(5)
    guide._classifier.step = lambda u, drawn: None
    loss = guide._loss(guide._classifier, X, Y, len(X), 0.3)
    torch.testing.assert_close(loss, 0.3 * divergence - energy)
    torch.manual_seed(6)
    energy, divergence = guide.terms(X[:10], Y[:10])
    torch.manual_seed(6)
    part = guide._loss(guide._classifier, X[:10], Y[:10], 40, 0.3)
    torch.testing.assert_close(part, 0.3 * divergence - 4 * energy)
    with pytest.raises(RuntimeError, match="no classifier"):
        SparseImplicitProcess(network()).terms(X, Y)


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_the_classifier_judges_q_against_the_prior_at_every_step():
    """By as many draws as each has; and the divergence has a gradient to all behind them."""
    guide, seen = fitted(steps=4, adaptive_contrast=True, num_particles=9), []
    assert guide._classifier.steps == 4
    assert guide._classifier.adaptive_contrast
    classifier = DiscriminatorKL((10,))
    monitored = classifier.step
    classifier.step = lambda q, p: seen.append((len(q), len(p))) or monitored(q, p)
    loss = guide._loss(classifier, X, Y, len(X), 1.0)
    assert seen == [(9, guide.settings.num_functions)] == [(9, 25)]
    assert loss.isfinite()
    u, drawn, _ = guide._drawn(X)
    parts = [*guide.prior.parameters(), guide.inducing, *guide.generator.parameters()]
    both = torch.autograd.grad(guide._divergence(classifier, u, drawn), parts, retain_graph=True)
    assert all(gradient.abs().sum() > 0 for gradient in both)
    torch.testing.assert_close(guide._divergence(classifier, u, drawn), classifier.symmetrised(u, drawn))
    one_sided = fitted(steps=1, symmetrised=False)
    torch.testing.assert_close(one_sided._divergence(classifier, u, drawn), classifier.log_ratio(u).mean())


def test_the_retained_variance_is_that_at_the_rows():
    guide = fitted()
    functions, moments = guide._prior_functions(0)
    given = moments.conditional(functions(X))
    expected = (given.variance.mean() / given.prior_variance.mean()).item()
    assert guide.facts["retained_variance"] == pytest.approx(expected)


def test_the_retained_variance_of_many_rows_is_that_at_rows_from_all_over(monkeypatch):
    """At every sixth of 40, where 7 are looked at together."""
    monkeypatch.setattr("guides.implicit.sparse_implicit_process.ROWS_AT_ONCE", 7)
    guide = fitted()
    functions, moments = guide._prior_functions(0)
    expected = moments.conditional(functions(X[::6])).retained.item()
    assert guide.facts["retained_variance"] == pytest.approx(expected)


def test_facts_of_the_fit():
    guide = fitted(steps=20)
    json.dumps(guide.facts)
    assert guide.facts["saturated"] == (guide.facts["classifier_loss"] < 0.05)
    assert 0 <= guide.facts["retained_variance"] < 1


def test_the_noise_has_a_start_and_a_rate_of_its_own():
    """Adam's first step goes as far as the learning rate, whatever the gradient."""
    starts, seen = {}, {}

    def note(guide):
        starts["noise"], starts["inducing"] = guide.log_noise.item(), guide.inducing.detach().clone()

    def moved(step, guide):
        if step == 1:
            seen["noise"] = abs(guide.log_noise.item() - starts["noise"])
            seen["inducing"] = (guide.inducing - starts["inducing"]).abs().max().item()

    guide = SparseImplicitProcess(network(), 5, hidden=(10,), init_noise_scale=0.5)
    guide.fit(X, Y, steps=2, lr=1e-3, noise_lr=0.3, on_start=note, on_step=moved)
    assert starts["noise"] == pytest.approx(2 * math.log(0.5))
    assert seen == {"noise": pytest.approx(0.3, rel=1e-3), "inducing": pytest.approx(1e-3, rel=1e-3)}
    assert guide.facts["noise_lr"] == 0.3
    fixed = SparseImplicitProcess(network(), 5, hidden=(10,), noise_scale=0.7, init_noise_scale=0.5)
    fixed.fit(X, Y, steps=2, noise_lr=0.3)
    assert fixed.noise_variance == pytest.approx(0.49)


# ------------------------------------------------------------------------------------------------------ files


def test_dropout_of_a_prior_is_for_the_fit(tmp_path):
    prior, modes = NeuralSampler(1, (8,), dropout=0.2), []

    def stop(step, guide):
        first, second = (guide.predictive(X).mean for _ in range(2))  # a look, without dropout
        assert torch.equal(first, second)
        posterior = guide.posterior(3)
        functions = posterior.function(X)
        prior.eval()
        assert torch.equal(first, guide.predictive(X).mean)
        assert torch.equal(functions, guide.posterior(3).function(X))
        prior.train()
        modes.append(prior.training)
        if step == 2:
            raise KeyboardInterrupt

    guide = SparseImplicitProcess(prior, 5, hidden=(10,))
    with pytest.raises(KeyboardInterrupt):
        guide.fit(X, Y, steps=3, on_step=stop)
    assert (modes, prior.training) == ([True, True], False)
    guide.fit(X, Y, steps=3).save(tmp_path / "fit.safetensors")
    assert not prior.training
    again = SparseImplicitProcess.load(
        tmp_path / "fit.safetensors", NeuralSampler(1, (8,), dropout=0.2).train()
    )
    assert torch.equal(again.predictive(X).mean, guide.predictive(X).mean)


def test_a_look_at_a_fit_leaves_it_its_dropout():
    seen = []

    def look(step, guide):
        before = guide.training
        guide.predictive(X, num_samples=2)
        seen.append((before, guide.training))

    guide = SparseImplicitProcess(NeuralSampler(1, (8,), dropout=0.5), 5, hidden=(10,))
    guide.fit(X, Y, steps=2, on_step=look)
    assert seen == [(True, True)] * 2
    guide.predictive(X, num_samples=2)
    assert not guide.training


def test_saved_and_loaded(tmp_path):
    guide, path = fitted(alpha=1.0), tmp_path / "fit.safetensors"
    guide.save(path)
    prior, state = network(), torch.random.get_rng_state()
    again = SparseImplicitProcess.load(path, prior)
    again.posterior(3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again.settings == guide.settings
    assert again.losses == guide.losses
    assert again.facts == guide.facts
    torch.testing.assert_close(again.predictive(X).mean, guide.predictive(X).mean, rtol=0, atol=0)
    with pytest.raises(ValueError, match="another prior"):
        SparseImplicitProcess.load(path, BNNProcess(1, (11,)))
    with pytest.raises(ValueError, match="another prior"):
        SparseImplicitProcess.load(path, NeuralSampler(1))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="truncated"):
        SparseImplicitProcess.load(path, network())


def test_by_default_the_noise_starts_small():
    """So that functions divide the data among themselves (alpha 1): a sd of exp(-2.5)."""
    starts = []
    SparseImplicitProcess(network(), 5).fit(
        X, Y, steps=1, on_start=lambda guide: starts.append(guide.log_noise.item())
    )
    assert starts == [pytest.approx(-5.0)]


def test_copies_of_a_row_start_a_hundredth_apart():
    starts = []
    SparseImplicitProcess(network(), 200, num_functions=210).fit(
        X[:4], Y[:4], steps=1, on_start=lambda guide: starts.append(guide.inducing.detach().clone())
    )
    away = (starts[0] - X[:4].T).abs().amin(1)
    assert (away < 0.05).all()
    assert 0.8 * 0.01 < away.square().mean().sqrt() < 1.2 * 0.01
