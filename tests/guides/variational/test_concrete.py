"""Relaxed indicators; the laws that all guides obey are in the battery."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from torch.nn import functional as F

from guides import AutoConcrete, AutoSpikeSlab, PathwiseGradientError, SpikeSlab
from guides.core import moments
from guides.core.fused import ConcreteSite
from guides.posterior.files import load_guide, save_guide
from guides.testing import (
    NOISE,
    assert_drawn_particles_are_runs,
    assert_mean,
    assert_particles_are_runs,
    assert_share,
    data,
    drawn_losses,
    exact_loss,
    exact_loss_of_draws,
    fit,
    gradients,
    linear_model,
    losses,
    network,
    perturb,
    spike_slab,
    vectorized,
    z_bound,
)
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.variational.concrete import relaxed_moments

LOGITS = torch.tensor([-4.0, -1.0, 0.3, 2.0, 6.0], dtype=torch.float64)


# ---------------------------------------------------------------------- the relaxation and its bias


@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.05])
def test_moments_of_a_relaxed_indicator(temperature):
    noise = torch.logit(torch.rand(100_000, 1, dtype=torch.float64))
    gate = torch.sigmoid((LOGITS + noise) / temperature)
    first, second = relaxed_moments(LOGITS, temperature)
    assert_mean(gate, first)
    assert_mean(gate**2, second)


def test_bias_is_of_second_order_in_the_mean_and_of_first_order_in_the_variance():
    alpha = torch.sigmoid(LOGITS)
    spread = alpha * (1 - alpha)
    for temperature in (0.1, 0.05):
        first, second = relaxed_moments(LOGITS, temperature)
        predicted = temperature**2 * math.pi**2 / 6 * spread * (1 - 2 * alpha)
        torch.testing.assert_close(first - alpha, predicted, rtol=0.15, atol=2e-5)
        torch.testing.assert_close(alpha - second, temperature * spread, rtol=0.35, atol=1e-4)


def test_bias_of_the_loss_shrinks_with_the_temperature_and_evaluation_has_none():
    x, y = data()
    model = linear_model(spike_slab)
    guide = AutoConcrete(model)
    guide.setup(x, y)
    perturb(guide, 0.3)
    with torch.no_grad():
        guide.logits.copy_(torch.tensor([-0.5, 0.2, 0.4]))
    law = guide.site_distribution("w")
    relaxed, real = [], exact_loss_of_draws(guide, spike_slab, x, y)
    for temperature in (1.0, 0.3, 0.1, 0.03):
        guide.temperature = temperature
        relaxed.append((exact_loss(guide, spike_slab, x, y) - real).item())
    assert relaxed[0] < relaxed[1] < relaxed[2] < relaxed[3] < 0  # the loss in training looks too good
    alpha = law.probs
    slope = 0.5 / NOISE**2 * (x**2).sum(0) @ (alpha * (1 - alpha) * (law.loc**2 + law.scale**2))
    assert relaxed[3] == pytest.approx(-0.03 * slope.item(), rel=0.1)
    guide.temperature = 1.0
    assert_mean(drawn_losses(model, guide, x, y), real)


def by_weight(shape, scale=1.0):
    """The battery's prior, its parameters written out for every weight: nothing is shared by the site."""
    prior = SpikeSlab(torch.full(tuple(shape), 0.3), torch.zeros(()), torch.tensor(scale))
    return prior.to_event(len(shape))


@pytest.mark.parametrize("temperature", [0.3, 1.5])
@pytest.mark.parametrize("prior", [spike_slab, by_weight])
def test_loss_in_training_has_the_temperature_on_both_paths(prior, temperature):
    """At temperature 1 a forgotten division would not be seen."""
    x, y = data()
    model = linear_model(prior)
    guide = AutoConcrete(model, temperature=temperature)
    guide.setup(x, y)
    perturb(guide, 0.3)
    with torch.no_grad():
        guide.logits.copy_(torch.tensor([-0.5, 0.2, 0.4]))
        guide.loc.copy_(torch.tensor([0.8, 0.5, -0.6]))
    assert_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)
    assert_drawn_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)
    many = losses(model, guide, vectorized(TraceMeanField_ELBO, 400), 30, x, y)
    assert_mean(many, exact_loss(guide, spike_slab, x, y))


@pytest.mark.slow
def test_training_finds_the_exact_inclusion_up_to_a_bias_that_shrinks():
    """An orthogonal design, where the best mean-field law is the posterior; deterministic optimisation."""
    torch.set_default_dtype(torch.float64)
    try:
        x, y = data(rows=12, columns=4)
        x = torch.linalg.qr(x)[0] * 2
        exact = enumerate_spike_slab(
            x.numpy(), y.numpy(), inclusion_prob=0.3, slab_scale=1 / NOISE, noise_scale=NOISE
        )
        errors = {}
        for temperature in (1.0, 0.1):
            logits, loc, log_scale = (torch.zeros(4, requires_grad=True) for _ in range(3))
            optimizer = torch.optim.LBFGS(
                [logits, loc, log_scale], max_iter=20, line_search_fn="strong_wolfe"
            )

            def closure(parts=(logits, loc, log_scale), temperature=temperature, optimizer=optimizer):
                optimizer.zero_grad()
                logits, loc, log_scale = parts
                gate, square = relaxed_moments(logits, temperature)
                mean, size = gate * loc, square * (loc**2 + torch.exp(2 * log_scale))
                errors = ((y - x @ mean) ** 2).sum() + (x**2 @ (size - mean**2)).sum()
                prior = torch.logit(torch.tensor(0.3)), torch.tensor(0.0), torch.tensor(1.0)
                loss = 0.5 * errors / NOISE**2 + moments.spike_slab_kl(logits, loc, log_scale, *prior).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
            probs = torch.sigmoid(logits.detach()).numpy()
            errors[temperature] = np.abs(probs - exact.inclusion).max()
    finally:
        torch.set_default_dtype(torch.float32)
    assert errors[1.0] > 0.05
    assert errors[0.1] < min(errors[1.0] / 2, 0.06)


def test_fused_site_has_the_written_value_divergence_and_gradient():
    def leaves():
        generator = torch.Generator().manual_seed(0)
        return [
            torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
            for shape in [(3, 5)] * 3 + [()] * 3
        ]

    *site, prior_logits, prior_loc, log_prior_scale = fused = leaves()
    value, gate, kl = ConcreteSite.apply(*site, 0.7, prior_logits, prior_loc, log_prior_scale.exp())
    with torch.no_grad():
        logits, loc, log_scale = site
        noise = (value / gate - loc) / log_scale.exp()
        logistic = 0.7 * torch.logit(gate) - logits
    weights = torch.randn(3, 5, dtype=torch.float64)
    ((value * weights).sum() + 1.7 * kl).backward()

    *site, prior_logits, prior_loc, log_prior_scale = plain = leaves()
    logits, loc, log_scale = site
    again = torch.sigmoid((logits + logistic) / 0.7) * (loc + log_scale.exp() * noise)
    divergence = moments.spike_slab_kl(*site, prior_logits, prior_loc, log_prior_scale.exp()).sum()
    torch.testing.assert_close(value, again)
    torch.testing.assert_close(kl, divergence)
    ((again * weights).sum() + 1.7 * divergence).backward()
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_priors_that_differ_by_weight_take_the_plain_path():
    def prior(shape, scale=1.0):
        return SpikeSlab(torch.linspace(0.2, 0.4, shape[-1]), 0.0, scale).expand(shape).to_event(len(shape))

    x, y = data()
    model = linear_model(prior)
    guide = AutoConcrete(model, temperature=0.5)
    guide.setup(x, y)
    law = guide.site_distribution("w")
    errors = ((y - x @ law.mean) ** 2).sum() + (x**2 @ law.variance).sum()
    kl = moments.spike_slab_kl(
        law.logits,
        law.loc,
        law.scale.log(),
        torch.logit(torch.linspace(0.2, 0.4, 3)),
        *torch.tensor([0.0, 1]),
    ).sum()
    truth = kl + 0.5 * errors / NOISE**2 + 0.5 * len(y) * math.log(2 * math.pi * NOISE**2)
    assert_mean(drawn_losses(model, guide, x, y), truth)
    assert_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)
    assert_drawn_particles_are_runs(model, guide, TraceMeanField_ELBO, x, y)
    assert all((g != 0).all() for g in gradients(model, guide, guide.elbo(), x, y).values())


# ---------------------------------------------------------------------- real networks


def test_drawn_networks_have_exact_zeros_and_trained_ones_none():
    x, y = data()
    model = network(spike_slab)
    guide = AutoConcrete(model)
    fit(model, guide, x, y, steps=20)
    assert (guide(x, y)["w1"] != 0).all()
    samples = Predictive(model, guide=guide, num_samples=100, return_sites=["w1", "y"])(x)
    assert samples["y"].shape == (100, 20)
    on = (samples["w1"] != 0).double()
    for probability, column in zip(
        guide.inclusion_probabilities()["w1"].flatten().tolist(), on.flatten(1).T, strict=True
    ):
        assert_share(column[:, None], probability)
    assert ((guide.draws(50)["w1"] == 0).double().mean() > 0.02).item()


# ---------------------------------------------------------------------- where the moments do not serve


def used_twice(x, y=None):
    w = pyro.sample("w", spike_slab([3]))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w + (x**2) @ w, NOISE), obs=y)


def rows_meet(x, y=None):
    w = pyro.sample("w", spike_slab([3]))
    pyro.sample("y", dist.Categorical(logits=x @ w), obs=None if y is None else torch.tensor(3))


def filters(x, y=None):
    w = pyro.sample("w", spike_slab([2, 1, 3, 3]))
    image = x.reshape(5, 1, 3, 4)
    f = F.conv2d(image, w, padding=1).flatten(1).abs().sum(1)
    pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=None if y is None else y[:5])


@pytest.mark.parametrize("model", [used_twice, rows_meet])
def test_uses_that_the_moments_refuse(model):
    x, y = data()
    with pytest.raises(PathwiseGradientError, match="AutoConcrete"):
        AutoSpikeSlab(model).setup(x, y)
    guide = AutoConcrete(model)
    assert all((g != 0).all() for g in gradients(model, guide, guide.elbo(), x, y).values())
    history = fit(model, guide, x, y, steps=60, lr=0.1)
    assert np.mean(history[-20:]) < np.mean(history[:10])


def test_convolution_shares_its_weights_between_positions():
    """One set of filters serves all positions of a step: the likelihood of the weights that it drew."""
    x, y = data()
    guide = AutoConcrete(filters, temperature=0.3)
    guide.setup(x[:, :3], y)
    w = guide(x, y)["w"]
    model_trace, _ = guide.get_traces()
    image = x.reshape(5, 1, 3, 4)
    expected = dist.Normal(F.conv2d(image, w, padding=1).flatten(1).abs().sum(1), 1.0).log_prob(y[:5]).sum()
    torch.testing.assert_close(model_trace.nodes["y"]["fn"].log_prob(y[:5]).sum(), expected)


@pytest.mark.slow
def test_convolution_has_the_loss_of_drawn_networks():
    """The loss of a sum over positions needs their correlation, which noise of each position's own drops."""
    x, y = data()
    guide = AutoConcrete(filters, temperature=0.02, init_inclusion=(-1.0, 1.0))
    guide.setup(x[:, :3], y)
    svi = SVI(filters, guide, guide.optimizer(), guide.elbo())
    real = torch.tensor([svi.evaluate_loss(x, y) for _ in range(600)]).double()
    trained = torch.tensor([guide.elbo().loss(filters, guide, x, y) for _ in range(600)]).double()
    error = trained.mean() - real.mean()
    spread = ((trained.var() + real.var()) / 600).sqrt()
    assert error.abs() < z_bound() * spread + 0.03 * real.std()


# ---------------------------------------------------------------------- temperature


def test_schedule():
    guide = AutoConcrete(used_twice, temperature=(2.0, 0.02))
    assert guide.temperature == 2.0
    assert guide.anneal(0.5) == pytest.approx(0.2)
    assert guide.anneal(1.0) == pytest.approx(0.02)
    assert guide.temperature == pytest.approx(0.02)
    assert AutoConcrete(used_twice, temperature=0.3).anneal(0.7) == pytest.approx(0.3)
    assert AutoConcrete(used_twice, temperature=[1.0, 0.1]).schedule == (1.0, 0.1)
    for wrong in (0.0, -1.0, (1.0, -1.0), [1.0], (1.0, 0.5, 0.1), math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature must be a positive number, or a pair"):
            AutoConcrete(used_twice, temperature=wrong)
    with pytest.raises(ValueError, match="progress"):
        guide.anneal(1.5)
    with pytest.raises(ValueError, match="objective"):
        AutoConcrete(used_twice, objective="wrong")
    with pytest.raises(ValueError, match="anneal_runs must be a positive whole number, got 0"):
        AutoConcrete(used_twice, anneal_runs=0)


def test_plain_svi_anneals_by_the_number_of_runs():
    """Three lines of Pyro are enough; evaluations do not count."""
    x, y = data()
    model = network(spike_slab)
    guide = AutoConcrete(model, anneal_runs=20)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO(num_particles=2))
    temperatures = []
    for _ in range(12):
        svi.step(x, y)
        temperatures.append(guide.temperature)
        svi.evaluate_loss(x, y)
    expected = [0.1 ** min(1.0, (2 * step + 1) / 20) for step in range(12)]  # of the second particle
    assert temperatures == pytest.approx(expected)


def test_who_anneals_by_hand_is_left_alone():
    x, y = data()
    model = network(spike_slab)
    guide = AutoConcrete(model, anneal_runs=20)
    guide.anneal(0.5)
    fit(model, guide, x, y, steps=30)
    assert guide.temperature == pytest.approx(0.1**0.5)


def test_saved_fit_keeps_its_temperature(tmp_path):
    x, y = data()
    model = network(spike_slab)
    guide = AutoConcrete(model)
    fit(model, guide, x, y, steps=3)
    guide.anneal(0.4)
    save_guide(guide, tmp_path / "guide.safetensors")
    with pytest.raises(TypeError, match="takes a guide first, not a PosixPath"):
        load_guide(tmp_path / "guide.safetensors", AutoConcrete(model))
    loaded = load_guide(AutoConcrete(model), tmp_path / "guide.safetensors")
    loaded.setup(x, y)
    assert loaded.temperature == guide.temperature
    assert torch.equal(loaded.draws(3, seed=1)["w1"], guide.draws(3, seed=1)["w1"])


def test_a_saved_schedule_goes_on_where_it_was(tmp_path):
    x, y = data()
    model = network(spike_slab)
    guide = AutoConcrete(model, anneal_runs=20)
    fit(model, guide, x, y, steps=7)
    save_guide(guide, tmp_path / "guide.safetensors")
    loaded = load_guide(AutoConcrete(model, anneal_runs=20), tmp_path / "guide.safetensors")
    loaded.setup(x, y)
    for each in (guide, loaded):
        fit(model, each, x, y, steps=1)
        assert each.temperature == pytest.approx(0.1 ** (7 / 20))
