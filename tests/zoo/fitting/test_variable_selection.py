"""VARBVS as a method: its density, its bound and its draws against the exact posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from guides.posterior import log_joint
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from guides.variational.joint_spike_slab import INCLUSION_DRAWS
from guides.variational.varbvs import VARBVS
from zoo.errors import FailedError
from zoo.fitting import variable_selection
from zoo.fitting.methods import FitFile
from zoo.fitting.reach import half_cosine_change
from zoo.fitting.variable_selection import JointSelection, SelectionLaw, VarbvsSettings, VariationalSelection
from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic

DRAWS = 600


@pytest.fixture(scope="module")
def table() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Independent standardised columns, a numeric target and labels."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(150, 5))
    x = (x - x.mean(0)) / x.std(0)
    eta = x @ [1.5, -0.8, 0, 0.25, 0] + 0.5
    numbers = eta + rng.normal(size=150)
    numbers = (numbers - numbers.mean()) / numbers.std()
    labels = rng.random(150) < 1 / (1 + np.exp(-eta))
    return tuple(torch.as_tensor(v, dtype=torch.float32) for v in (x, numbers, labels))


def fit(model, x, y, seed: int = 0, file=None):
    method = VariationalSelection()
    return method.fit(model, (x, y), method.settings(len(x), seed, steps=3), file=file)


def test_logistic_bound_is_below_the_evidence_and_close(table):
    x, _, labels = table
    fitted = fit(SpikeSlabLogistic(5), x, labels)
    exact = enumerate_spike_slab_logistic(x.double().numpy(), labels.double().numpy(), 0.25)
    bound, error = fitted.elbo()
    assert error == 0
    assert exact.log_evidence - 3 < bound < exact.log_evidence
    np.testing.assert_allclose(fitted.inclusion["w"].numpy(), exact.inclusion, atol=0.08)
    assert fitted.num_parameters == 3 * 5 + 150
    assert fitted.losses == ()


def test_density_is_that_of_the_draws(table):
    """E_q[log p - log q] over them lies between the method's own, looser bound and the evidence."""
    x, _, labels = table
    model = SpikeSlabLogistic(5)
    fitted = fit(model, x, labels)
    draws, log_q = fitted.draws_with_log_prob(DRAWS, 1)
    ratios = log_joint(model, draws, x, labels).double() - log_q
    error = ratios.std().item() / math.sqrt(DRAWS)
    exact = enumerate_spike_slab_logistic(x.double().numpy(), labels.double().numpy(), 0.25)
    assert fitted.elbo()[0] - 4 * error < ratios.mean() < exact.log_evidence + 4 * error
    # importance weights give the evidence
    weights = (ratios - exact.log_evidence).exp()
    assert abs(weights.mean().item() - 1) < 5 * weights.std().item() / math.sqrt(DRAWS) + 0.02


def test_draws_have_the_laws_of_the_fit(table):
    x, _, labels = table
    fitted = fit(SpikeSlabLogistic(5, inclusion=0.4), x, labels)
    own = VARBVS("logistic", inclusion_prob=0.4).fit(x.double().numpy(), labels.double().numpy())
    theirs = own.draws(20_000, seed=1)
    ours = fitted.draws(20_000, 1)
    assert ours["w"].dtype == ours["b"].dtype == torch.float32
    for name in ("w", "b"):
        a, b = ours[name].double().numpy(), theirs[name]
        se = np.sqrt((a.var(0) + b.var(0)) / 20_000)
        assert (abs(a.mean(0) - b.mean(0)) < 5 * se).all()
        np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.06)
    np.testing.assert_allclose(fitted.inclusion["w"].numpy(), own.inclusion, rtol=1e-6)
    assert fitted.elbo()[0] == pytest.approx(own.elbo)
    shared = np.corrcoef(ours["b"].numpy(), ours["w"].numpy()[:, 0])[0, 1]
    assert shared == pytest.approx(np.corrcoef(theirs["b"], theirs["w"][:, 0])[0, 1], abs=0.03)


def test_linear_has_the_models_prior_and_no_bound(table):
    x, numbers, _ = table
    fitted = fit(SpikeSlabLinear(5, inclusion=0.3), x, numbers)
    exact = enumerate_spike_slab(x.double().numpy(), numbers.double().numpy(), inclusion_prob=0.3)
    np.testing.assert_allclose(fitted.inclusion["w"].numpy(), exact.inclusion, atol=0.06)
    assert (fitted.elbo, fitted.draws_with_log_prob) == (None, None)
    draws = fitted.draws(4000, 0)
    assert set(draws) == {"w", "noise_precision"}
    assert len(draws["noise_precision"].unique()) == 1
    assert draws["noise_precision"][0].item() == pytest.approx(exact.noise_precision_mean, rel=0.1)
    np.testing.assert_allclose(draws["w"].double().mean(0).numpy(), exact.mean, atol=0.03)
    np.testing.assert_allclose(draws["w"].double().std(0).numpy(), exact.sd, atol=0.03)
    assert fitted.num_parameters == 3 * 5 + 1


def test_joint_law_tells_what_its_bound_gained_and_draws_by_the_seed(table):
    x, _, labels = table
    method = JointSelection()
    fitted = method.fit(SpikeSlabLogistic(5), (x, labels), method.settings(150, 0, steps=30))
    assert len(fitted.losses) == 30
    assert fitted.bound_change == half_cosine_change(fitted.losses)
    p, error = fitted.inclusion["w"].double(), fitted.inclusion_mcse["w"].double()
    assert error.max() > 0
    # of means of probabilities, which vary less than the indicators themselves
    assert (error <= (p * (1 - p) / (INCLUSION_DRAWS - 1)).sqrt() + 1e-6).all()
    first, again, other = (fitted.draws(9, seed)["w"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, fitted.draws_with_log_prob(9, 1)[0]["w"])
    assert not torch.equal(first, other)


def test_fit_on_disk_is_the_fit(table, tmp_path):
    x, _, labels = table
    model, path = SpikeSlabLogistic(5), tmp_path / "fit.safetensors"
    fitted = fit(model, x, labels, file=FitFile(path))
    loaded = VariationalSelection().load(path, model)
    for (draws, log_q), (again, log_q_again) in [
        (fitted.draws_with_log_prob(9, 4), loaded.draws_with_log_prob(9, 4))
    ]:
        assert all(torch.equal(draws[name], again[name]) for name in draws)
        assert torch.equal(log_q, log_q_again)
    assert loaded.elbo() == fitted.elbo()
    assert loaded.summary == fitted.summary
    assert torch.equal(loaded.inclusion["w"], fitted.inclusion["w"])


def test_seed_is_of_the_starts_and_steps_are_no_option(table):
    method = VariationalSelection(starts=4)
    assert method.settings(10, 7, steps=99) == VarbvsSettings(4, 7)
    assert method.takes == ()
    x, _, labels = table
    first, again = (fit(SpikeSlabLogistic(5), x, labels, seed=1) for _ in range(2))
    assert torch.equal(first.inclusion["w"], again.inclusion["w"])


def test_starts_and_their_seed_are_handed_on(table, monkeypatch):
    asked = []

    def noted(*likelihood, **options):
        asked.append((options["starts"], options["seed"]))
        return VARBVS(*likelihood, **options)

    monkeypatch.setattr(variable_selection, "VARBVS", noted)
    x, _, labels = table
    method = VariationalSelection(starts=2)
    method.fit(SpikeSlabLogistic(5), (x, labels), method.settings(len(x), 7))
    assert asked == [(2, 7)]


def test_batches_of_the_joint_law_are_as_wished_and_no_larger_than_the_data():
    method = JointSelection()
    sizes = [method.settings(30, 0, batch_size=size).batch_size for size in (None, 7, 900)]
    assert sizes == [None, 7, 30]


def test_numbers_that_are_not_finite_are_a_divergence(table, monkeypatch):
    x, _, labels = table
    law = (math.nan, np.zeros(5), 1.0)
    monkeypatch.setattr("guides.variational.varbvs.VariationalFit.bias_law", law)
    with pytest.raises(FailedError, match="bias is not finite"):
        fit(SpikeSlabLogistic(5), x, labels)


def test_law_by_hand():
    tensors = {
        "alpha": torch.tensor([1.0 - 1e-12, 0.5], dtype=torch.float64),
        "mu": torch.tensor([2.0, -1.0], dtype=torch.float64),
        "s": torch.tensor([0.5, 0.1], dtype=torch.float64),
        "slope": torch.tensor([3.0, 1.0], dtype=torch.float64),
        "bias": torch.tensor([0.25, 0.125], dtype=torch.float64),
    }
    law = SelectionLaw(tensors, noise_scale=0.5)
    assert law.linear(3, 0)["noise_precision"].tolist() == [4.0] * 3
    draws, log_q = law.logistic_with_log_prob(500, 0)
    w, b = draws["w"].double(), draws["b"].double()
    expected = Normal(2.0, 0.5).log_prob(w[:, 0])
    on = Normal(-1.0, 0.1).log_prob(w[:, 1])
    expected = expected + math.log(0.5) + torch.where(w[:, 1] == 0, torch.zeros_like(on), on)
    expected = expected + Normal(0.25 - 3 * w[:, 0] - w[:, 1], 0.125).log_prob(b)
    torch.testing.assert_close(log_q, expected, rtol=1e-4, atol=1e-4)
    assert 0.4 < (w[:, 1] == 0).double().mean() < 0.6
    residual = (b - 0.25 + 3 * w[:, 0] + w[:, 1]) / 0.125
    assert residual.mean().abs() < 0.2
    assert residual.std().item() == pytest.approx(1, abs=0.15)
