"""Samplers of many small data sets: the model's own prior, thinned chains, and when these have mixed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from zoo.fitting import samplers
from zoo.fitting.gated_function import gated_function
from zoo.fitting.samplers import CHAINS, ITERATIONS
from zoo.models.bnn import BNN
from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic

LENGTH = CHAINS * ITERATIONS
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] - 0.3 * X[:, 1]


def own_draws(model, y: torch.Tensor, name: str = "exact", n: int = 50) -> samplers.Sampled:
    return samplers.samplers(model)[name](model, X, y, n, 4)


def autoregression(phi: float, seed: int = 1) -> np.ndarray:
    """Stationary chains ``[CHAINS, ITERATIONS]`` of unit variance."""
    rng = np.random.default_rng(seed)
    noise, chain = rng.normal(size=(ITERATIONS, CHAINS)), [rng.normal(size=CHAINS)]
    for step in noise[1:]:
        chain.append(phi * chain[-1] + (1 - phi**2) ** 0.5 * step)
    return np.stack(chain, 1)


def use_chains(monkeypatch, energy: np.ndarray, diverging: np.ndarray | None = None) -> None:
    """In place of those of NUTS; every draw is its number in its chain, the chains one after the other."""
    numbers = np.arange(LENGTH, dtype=np.float32).reshape(CHAINS, ITERATIONS)
    diverging = np.zeros((CHAINS, ITERATIONS), bool) if diverging is None else diverging
    monkeypatch.setattr(
        samplers, "_compiled", lambda *_: lambda *data: ({"b1": numbers[..., None]}, diverging, energy)
    )


def test_counted_models_have_the_prior_of_the_model():
    found = own_draws(SpikeSlabLinear(3, inclusion=0.1), Y).draws
    exact = enumerate_spike_slab(X.double().numpy(), Y.double().numpy(), inclusion_prob=0.1).draws(50, 4)
    assert found.keys() == exact.keys()
    assert all(np.array_equal(found[name].numpy(), exact[name]) for name in exact)


def test_counted_logistic_models_have_the_prior_and_no_error_of_laplace():
    labels = (Y > 0).float()
    found = own_draws(SpikeSlabLogistic(3, inclusion=0.1), labels).draws
    exact = enumerate_spike_slab_logistic(X.double().numpy(), labels.double().numpy(), 0.1)
    for name, value in exact.draws(50, 4, resample=True).items():
        assert np.array_equal(found[name].numpy(), value)


@pytest.mark.parametrize("passed", [True, False])
def test_gibbs_is_asked_for_what_the_model_says(passed, monkeypatch):
    def sampled(x, y, **asked):
        seen.update(asked)
        return SimpleNamespace(draws={"b": np.arange(LENGTH).reshape(CHAINS, -1)}, passed=passed)

    seen: dict = {}
    monkeypatch.setattr(samplers, "spike_slab_logistic_gibbs", sampled)
    found = own_draws(SpikeSlabLogistic(3, inclusion=0.1), (Y > 0).float(), "gibbs")
    assert (seen["inclusion_prob"], seen["seed"], seen["draws"]) == (0.1, 4, ITERATIONS)
    assert (seen["warmup"], seen["chains"], seen["retries"]) == (ITERATIONS // 2, CHAINS, 0)
    assert seen["gates"].min_ess_bulk == 50
    assert found.converged == passed


@pytest.mark.parametrize("n", [3, 99, LENGTH])
def test_chains_are_thinned_evenly_and_whole(n, monkeypatch):
    use_chains(monkeypatch, autoregression(0.0))
    kept = own_draws(BNN(3, widths=()), Y, "nuts", n).draws["b1"].squeeze(1)
    assert (kept[0], kept[-1]) == (0, LENGTH - 1)
    assert kept.diff().max() - kept.diff().min() <= 1


def test_chains_count_as_mixed_where_they_have_the_draws(monkeypatch):
    """With phi 0.8 there are a ninth of 2000 effective draws: enough for 50, not for 1000."""
    model = BNN(3, widths=())
    for phi, n, converged in ((0.0, 1000, True), (0.8, 50, True), (0.8, 1000, False)):
        use_chains(monkeypatch, autoregression(phi))
        assert own_draws(model, Y, "nuts", n).converged == converged
    apart = autoregression(0.0) + np.array([[0.0], [1.0]])
    use_chains(monkeypatch, apart)
    assert not own_draws(model, Y, "nuts").converged
    for share, converged in ((0.01, True), (0.0105, False)):
        often = np.arange(LENGTH).reshape(CHAINS, -1) < share * LENGTH
        use_chains(monkeypatch, autoregression(0.0), often)
        assert own_draws(model, Y, "nuts").converged == converged


def test_warmup_is_left_out(monkeypatch):
    """Half as many iterations as are kept, and before them."""
    import jax

    scan = jax.lax.scan

    def numbered(step, start, xs, length=None, **others):
        if length != ITERATIONS // 2 + ITERATIONS:
            return scan(step, start, xs, length=length, **others)
        return start, jax.numpy.arange(length)

    monkeypatch.setattr(jax.lax, "scan", numbered)
    compiled = samplers._compiled.__wrapped__(BNN(3, widths=(), noise_scale=1.0))
    kept = compiled(jax.random.split(jax.random.PRNGKey(0), CHAINS), X.numpy(), Y.numpy())
    assert np.array_equal(kept, [range(ITERATIONS // 2, ITERATIONS // 2 + ITERATIONS)] * CHAINS)


def test_gates_see_the_function_and_the_precision_of_the_noise():
    """On whose mixing the predictive hangs as much."""
    model = BNN(3, widths=())
    draws = {"w1": np.ones((4, 1, 3)), "b1": np.zeros((4, 1)), "noise_precision": np.arange(1.0, 5.0)}
    values = gated_function(model, X[:2].double())(draws)
    np.testing.assert_allclose(values[:, :2], np.broadcast_to(X[:2].sum(1), (4, 2)), rtol=1e-6)
    np.testing.assert_array_equal(values[:, 2:], draws["noise_precision"][:, None])


@pytest.mark.parametrize(("apart", "converged"), [(0.1, True), (0.8, False)])
def test_chains_that_stand_apart_have_not_mixed(monkeypatch, apart, converged):
    """R-hat is 1.00 and 1.08 here, while few draws ask for no more than few effective ones."""
    energy = (
        np.random.default_rng(0).standard_normal((CHAINS, ITERATIONS)) + apart * np.arange(CHAINS)[:, None]
    )
    use_chains(monkeypatch, energy)
    assert own_draws(BNN(3, widths=(4,)), Y, "nuts", n=5).converged == converged
