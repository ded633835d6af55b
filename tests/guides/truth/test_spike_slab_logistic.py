"""Enumeration of logistic models against numerical integration, an optimiser, and published truths."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import expit

from guides.testing import z_bound
from guides.truth import laplace_of_models
from guides.truth import spike_slab_logistic as exact_logistic
from guides.truth.polya_gamma import spike_slab_logistic_gibbs
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from tests.guides.truth.logistic_problems import by_quadrature, problem, real
from tests.guides.truth.over_models import averaged


def by_loop(X, y, q, slab, bias):
    """Laplace's evidence model by model, with scipy's optimiser and the curvature written out."""
    n, p = X.shape
    logs, moments = [], []
    for number in range(2**p):
        columns = [j for j in range(p) if number >> j & 1]
        D = np.c_[X[:, columns], np.ones(n)]
        sd = np.append(slab[columns], bias)

        def loss(w, D=D, sd=sd):
            eta = D @ w
            value = np.logaddexp(0, eta).sum() - y @ eta - stats.norm(0, sd).logpdf(w).sum()
            return value, D.T @ (expit(eta) - y) + w / sd**2

        found = optimize.minimize(loss, np.zeros(len(sd)), jac=True, method="BFGS", options={"gtol": 1e-9})
        v = expit(D @ found.x)
        H = (D.T * (v * (1 - v))) @ D + np.diag(sd**-2.0)
        evidence = -found.fun + 0.5 * len(sd) * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(H)[1]
        prior = sum(np.log(q[j] if j in columns else 1 - q[j]) for j in range(p))
        at = [*columns, p]
        mean, second = np.zeros(p + 1), np.zeros((p + 1, p + 1))
        mean[at] = found.x
        second[np.ix_(at, at)] = np.linalg.inv(H)
        logs.append((evidence, evidence + prior))
        moments.append((mean, second + np.outer(mean, mean)))
    return averaged(logs, moments)


@pytest.fixture(scope="module")
def looped():
    """A question, and the answer of :func:`by_loop`."""
    X, y = problem(25, 5)
    question = X, y, np.array([0.5, 0.3, 0.6, 0.2, 0.5]), np.array([1.0, 2.0, 0.5, 1.5, 1.0]), 1.3
    return question, by_loop(*question)


@pytest.mark.parametrize("numbers", [2**17, 100, 1], ids=["one group", "some groups", "a group a model"])
def test_equals_a_loop_with_an_optimiser(numbers, looped, monkeypatch):
    monkeypatch.setattr(laplace_of_models, "_GROUP_NUMBERS", numbers)
    question, (evidence, total, inclusion, mean, covariance) = looped
    exact = enumerate_spike_slab_logistic(*question)
    np.testing.assert_allclose(exact.model_log_evidence, evidence, atol=4e-5)
    np.testing.assert_allclose(exact.log_evidence, total, atol=4e-5)
    np.testing.assert_allclose(exact.inclusion, inclusion, atol=4e-5)
    np.testing.assert_allclose(np.append(exact.mean, exact.bias_mean), mean, atol=4e-5)
    np.testing.assert_allclose(exact.covariance, covariance[:-1, :-1], atol=4e-5)
    np.testing.assert_allclose(exact.sd**2, np.diag(covariance)[:-1], atol=4e-5)
    np.testing.assert_allclose(exact.bias_sd**2, covariance[-1, -1], atol=4e-5)
    np.testing.assert_allclose(np.exp(exact.log_model_probs).sum(), 1)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_importance_is_the_exact_posterior(p, seed):
    """Few rows and a wide slab: Laplace is visibly off, its importance-weighted draws are not."""
    X, y = problem(12, p, seed)
    settings = (0.3, 1.5, 0.8)
    evidence, total, inclusion, mean = by_quadrature(X, y, *settings)
    laplace = enumerate_spike_slab_logistic(X, y, *settings)
    exact = laplace.importance(40_000, seed=3)
    z = [(exact.log_evidence - total) / exact.log_evidence_se]
    z += ((exact.inclusion - inclusion) / exact.inclusion_se).tolist()
    z += ((exact.mean - mean) / exact.mean_se).tolist()
    assert np.abs(z).max() < z_bound(4 * len(z)), z
    assert exact.log_evidence_se < 0.01
    assert exact.ess > 20_000
    # Laplace: near, and not so near that the check above would have nothing to find
    np.testing.assert_allclose(laplace.model_log_evidence, evidence, atol=0.2)
    assert abs(laplace.log_evidence - total) > 5 * exact.log_evidence_se
    # resampled draws; the error of the pool of 8 times as many comes on top of that of 20 000 draws
    values = np.concatenate([(w := laplace.draws(20_000, seed=5, resample=True)["w"]), w != 0], axis=1)
    z = (values.mean(0) - np.concatenate([mean, inclusion])) / (values.std(0) * np.sqrt(1.5 / 20_000))
    assert np.abs(z).max() < z_bound(4 * len(z)), z
    plain = laplace.draws(20_000, seed=5)["w"]
    assert np.abs((plain.mean(0) - mean) / (plain.std(0) * np.sqrt(1.5 / 20_000))).max() > 6


def test_standard_errors_are_those_of_weighted_means():
    """With shares s_i the variance of m = sum_i s_i v_i is sum_i s_i^2 (v_i - m)^2.  That of n equal shares,
    sum_i s_i (v_i - m)^2 / n, is another: of six rows and a wide slab less than half the draws are effective.
    """
    laplace = enumerate_spike_slab_logistic(*problem(6, 2), 0.3, 10.0, 10.0)
    n, seed = 2000, 4
    exact = laplace.importance(n, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    full, log_weight = laplace._propose(n, generator, exact_logistic._PROPOSAL_DF)
    w, share = full[:, :-1].numpy(), torch.softmax(log_weight, 0).numpy()
    assert exact.ess == pytest.approx(1 / (share**2).sum(), rel=1e-10)
    assert exact.ess < n / 2
    for values, mean, error in (
        (w != 0, exact.inclusion, exact.inclusion_se),
        (w, exact.mean, exact.mean_se),
    ):
        np.testing.assert_allclose(mean, share @ values, rtol=1e-10)
        np.testing.assert_allclose(error**2, share**2 @ (values - mean) ** 2, rtol=1e-10)


def test_without_information_the_posterior_is_the_prior():
    X, y = np.zeros((6, 2)), np.array([0.0, 1, 1, 0, 1, 1])
    exact = enumerate_spike_slab_logistic(X, y, [0.2, 0.7], 3.0, 1.0)
    np.testing.assert_allclose(exact.inclusion, [0.2, 0.7])
    np.testing.assert_allclose(exact.sd, 3 * np.sqrt([0.2, 0.7]))
    np.testing.assert_allclose(exact.mean, 0, atol=1e-12)


def test_laplace_draws_follow_their_own_law():
    X, y = problem(25, 4)
    exact = enumerate_spike_slab_logistic(X, y, 0.4, 1.5, 1.0)
    n = 40_000
    draws = exact.draws(n, seed=3)
    w = draws["w"]
    assert (w.shape, draws["b"].shape) == ((n, 4), (n,))
    second = exact.covariance + np.outer(exact.mean, exact.mean)
    values = np.concatenate(
        [w, w != 0, draws["b"][:, None], *(w[:, [i]] * w[:, i:] for i in range(4))], axis=1
    ).astype(float)
    truth = [exact.mean, exact.inclusion, [exact.bias_mean], *(second[i, i:] for i in range(4))]
    z = (values.mean(0) - np.concatenate(truth)) / (values.std(0) / np.sqrt(n))
    assert np.abs(z).max() < z_bound(len(z))
    assert abs(draws["b"].std() / exact.bias_sd - 1) < 0.03
    np.testing.assert_array_equal(exact.draws(n, seed=3)["w"], w)
    assert not np.array_equal(exact.draws(n, seed=4)["w"], w)


def test_steps_that_overshoot_are_halved():
    """Separable classes, columns of very different size and a vague slab: plain Newton runs away."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 3)) * [100.0, 1.0, 0.01]
    y = (X[:, 0] + X[:, 1] > 0).astype(float)
    exact = enumerate_spike_slab_logistic(X, y, 0.5, 50.0, 50.0)
    evidence = by_loop(X / [100, 1, 0.01], y, np.full(3, 0.5), 50 * np.array([100, 1, 0.01]), 50.0)[0]
    np.testing.assert_allclose(exact.model_log_evidence, evidence, atol=1e-3)
    design = laplace_of_models.Design.build(X, y, 50.0, 50.0)
    start = torch.tensor([[-1.0, 30.0, -500.0, 80.0]], dtype=torch.float64)
    far = design.solve(start, torch.ones_like(start), torch.arange(4))
    np.testing.assert_allclose(far.log_evidence, evidence[-1], atol=1e-3)


def test_labels_may_be_of_any_type_of_number():
    X, y = problem(20, 2)
    for labels in (y.astype(int), y.astype(bool), y.astype(np.float32)):
        assert enumerate_spike_slab_logistic(X, labels).log_evidence == pytest.approx(
            enumerate_spike_slab_logistic(X, y).log_evidence
        )


def test_refusals_name_what_is_wrong():
    X, y = problem(10, 2)
    with pytest.raises(ValueError, match="21 columns.*at most 20.*spike_slab_logistic_gibbs"):
        enumerate_spike_slab_logistic(np.ones((5, 21)), np.ones(5))
    with pytest.raises(ValueError, match="strictly inside"):
        enumerate_spike_slab_logistic(X, y, 1.0)
    with pytest.raises(ValueError, match="slab_scale must be positive"):
        enumerate_spike_slab_logistic(X, y, 0.5, 0.0)
    for options in ({"slab_scale": [1.0, 2.0, 3.0]}, {"inclusion_prob": [0.1, 0.2, 0.3]}):
        with pytest.raises(ValueError, match=rf"{next(iter(options))} must be.* 2 columns, got shape \(3,\)"):
            enumerate_spike_slab_logistic(X, y, **options)
    with pytest.raises(ValueError, match="bias_scale must be a number"):
        enumerate_spike_slab_logistic(X, y, bias_scale=[1.0, 2.0])
    posterior = enumerate_spike_slab_logistic(X, y)
    for question in (posterior.draws, lambda n: posterior.draws(n, resample=True), posterior.importance):
        with pytest.raises(ValueError, match="n must be a positive whole number|n must be 2 at least"):
            question(0)
    with pytest.raises(ValueError, match="n must be 2 at least: a single draw has no standard error"):
        posterior.importance(1)
    with pytest.raises(ValueError, match="bias_scale must be positive"):
        enumerate_spike_slab_logistic(X, y, 0.5, 1.0, -1.0)
    with pytest.raises(ValueError, match="labels 0 and 1"):
        enumerate_spike_slab_logistic(X, 2 * y)
    with pytest.raises(ValueError, match="shapes"):
        enumerate_spike_slab_logistic(X, y[:-1])


@pytest.mark.parametrize("enumerated", [True, False])
def test_columns_that_depend_are_refused_before_rounding_is_seen(enumerated):
    """Two equal columns are one with a slab wider by the root of two, as long as the slab is not too wide."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(100)
    y = (rng.random(100) < expit(x)).astype(float)
    if enumerated:
        both = enumerate_spike_slab_logistic(np.c_[x, x], y, slab_scale=1e5)
        one = enumerate_spike_slab_logistic(x[:, None], y, slab_scale=1e5 * math.sqrt(2))
        assert both.model_log_evidence[3] == pytest.approx(one.model_log_evidence[1], abs=1e-3)
        with pytest.raises(ValueError, match="nearly dependent.*change the evidence by"):
            enumerate_spike_slab_logistic(np.c_[x, x], y, slab_scale=1e7)
        enumerate_spike_slab_logistic(rng.standard_normal((100, 2)), y, slab_scale=1e7)
    else:
        with pytest.raises(ValueError, match="nearly dependent.*change the evidence without end"):
            spike_slab_logistic_gibbs(np.c_[x, x], y, slab_scale=1e9)


def test_a_column_of_ones_depends_on_the_intercept():
    rng = np.random.default_rng(0)
    x, y = np.c_[rng.standard_normal(50), np.ones(50)], (rng.random(50) < 0.5).astype(float)
    assert math.isfinite(enumerate_spike_slab_logistic(x, y, slab_scale=1e9, bias_scale=1.0).log_evidence)
    with pytest.raises(ValueError, match="nearly dependent"):
        enumerate_spike_slab_logistic(x, y, slab_scale=1e9, bias_scale=1e9)


@pytest.mark.slow
def test_raisin_is_near_its_exact_posterior():
    X, y = real("raisin")
    laplace = enumerate_spike_slab_logistic(X, y, 0.25, 1.0, 1.0)
    exact = laplace.importance(60_000, seed=0)
    assert exact.inclusion_se.max() < 0.003
    assert np.abs(laplace.inclusion - exact.inclusion).max() < 0.01 + 4 * exact.inclusion_se.max()
    assert abs(laplace.log_evidence - exact.log_evidence) < 0.05


@pytest.mark.slow
def test_simulation_of_the_thesis():
    """Twelve of its columns; all 2^20 models are counted in tests/zoo/experiments/lbbnn/test_selection.py."""
    X, y = real("mjmcmc_sim_logistic")
    laplace = enumerate_spike_slab_logistic(X[:, :12], y, 0.25, 1.0, 1.0)
    exact = laplace.importance(20_000, seed=0)
    assert exact.inclusion_se.max() < 0.005
    np.testing.assert_allclose(laplace.inclusion, exact.inclusion, atol=0.01 + 4 * exact.inclusion_se.max())
    assert abs(laplace.log_evidence - exact.log_evidence) < 0.05


@pytest.mark.parametrize("numbers", [9000, 3000], ids=["eight models a group", "four"])
def test_models_that_are_ruled_out_move_no_sum(numbers, monkeypatch):
    """Models without column 3 are far away, those without column 5 less so; column 0 is in every group."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((700, 6))
    y = (rng.random(700) < expit(2.5 * X[:, 0] + 3 * X[:, 3] + 1.2 * X[:, 5])).astype(float)
    monkeypatch.setattr(laplace_of_models, "_GROUP_NUMBERS", numbers)
    told = {}
    found = {}
    for far in (60.0, np.inf):
        monkeypatch.setattr(laplace_of_models, "_NEGLIGIBLE", far)
        told[far] = []
        found[far] = enumerate_spike_slab_logistic(
            X, y, [0.9, 0.1, 0.2, 0.3, 0.4, 0.5], 2.0, on_progress=told[far].append
        )
        assert sum(told[far]) == 2**6
    some, all_ = found.values()
    assert len(told[60.0]) < len(told[np.inf])
    kept = np.isfinite(some.model_log_evidence)
    assert np.isfinite(all_.model_log_evidence).all()
    np.testing.assert_array_equal(some.model_log_evidence[kept], all_.model_log_evidence[kept])
    assert (all_.log_model_probs[~kept] < all_.log_model_probs.max() - 60).all()
    np.testing.assert_array_equal(kept, (np.arange(64) & 8) != 0)
    for name in ("log_evidence", "inclusion", "mean", "sd", "covariance", "bias_mean", "bias_sd"):
        np.testing.assert_array_equal(getattr(some, name), getattr(all_, name))
    for resample in (False, True):
        few, many = (posterior.draws(200, resample=resample)["w"] for posterior in (some, all_))
        np.testing.assert_array_equal(few, many)


def test_what_is_ruled_out_does_not_hang_on_a_factor_of_the_prior(monkeypatch):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((700, 6))
    y = (rng.random(700) < expit(3 * x[:, 3] + 1.2 * x[:, 5])).astype(float)
    monkeypatch.setattr(laplace_of_models, "_GROUP_NUMBERS", 9000)  # eight models a group
    design = laplace_of_models.Design.build(x, y, 1.0, 1.0)
    whole, *others = (
        [
            group.models.tolist()
            for group in laplace_of_models.Groups(design, torch.full((64,), level).double())
        ]
        for level in (0.0, -50.0, 50.0)
    )
    assert len(whole) == 4  # of eight: column 3 is in all
    assert others == [whole, whole]


def test_progress_counts_every_model():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 5))
    told = []
    enumerate_spike_slab_logistic(x, (x[:, 0] > 0).astype(float), on_progress=told.append)
    assert sum(told) == 2**5


def test_progress_counts_what_is_ruled_out_beneath_a_group(monkeypatch):
    """Columns 3 and 4 are all but one: without both nothing matters, with column 5 or without it."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((700, 6))
    x[:, 4] = x[:, 3] + 0.01 * x[:, 4]
    y = (rng.random(700) < expit(3 * x[:, 3] + 0.2 * x[:, 5])).astype(float)
    monkeypatch.setattr(laplace_of_models, "_GROUP_NUMBERS", 9000)  # eight models a group
    told = []
    found = enumerate_spike_slab_logistic(x, y, on_progress=told.append)
    lacking = (np.arange(64) & 0b111000) == 0
    np.testing.assert_array_equal(np.isfinite(found.model_log_evidence), ~lacking)
    assert sum(told) == 2**6


def test_error_of_the_evidence_follows_from_the_effective_draws():
    """Of weights with mean m and n / ess of their second moment over m^2."""
    check = enumerate_spike_slab_logistic(*problem(30, 3)).importance(2000)
    assert check.log_evidence_se == pytest.approx(((2000 / check.ess - 1) / 1999) ** 0.5)


def test_resampled_draws_are_picked_out_of_eight_times_as_many(monkeypatch):
    """By the weights of Student proposals; plain draws are Laplace's, as many as asked for."""
    exact, asked = enumerate_spike_slab_logistic(*problem(30, 2)), []
    real = type(exact)._propose
    monkeypatch.setattr(
        type(exact), "_propose", lambda self, n, g, df: asked.append((n, df)) or real(self, n, g, df)
    )
    for resample in (True, False):
        assert exact.draws(10, resample=resample)["w"].shape == (10, 2)
    assert asked == [(80, 8.0), (10, math.inf)]


def test_draws_of_a_posterior_have_none_of_laplaces_error():
    exact = enumerate_spike_slab_logistic(*problem(12, 2, 0))
    resampled, plain = (exact.draws(50, seed=3, resample=resample) for resample in (True, False))
    found = exact.posterior(50, seed=3).draws()
    for name in ("w", "b"):
        np.testing.assert_array_equal(found[name], resampled[name])
        assert not np.array_equal(resampled[name], plain[name])
