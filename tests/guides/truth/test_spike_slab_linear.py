"""The enumeration of spikes and slabs against independent formulas, numerical integration, loops."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from guides.testing import z_bound
from guides.testing.yardsticks import FAMILY_WISE
from guides.truth.conjugate import conjugate_linear_regression, normal_gamma_regression
from guides.truth.spike_slab_linear import enumerate_spike_slab
from tests.guides.truth.linear_problems import problem
from tests.guides.truth.over_models import averaged


def by_loop(X, y, q, s, a, b, noise_scale):
    """The same posterior model by model, with evidences from scipy's densities of y."""
    n, p = X.shape
    logs, moments = [], []
    for number in range(2**p):
        columns = [j for j in range(p) if number >> j & 1]
        C = X[:, columns]
        V = np.eye(n) + s**2 * C @ C.T
        if noise_scale is None:
            evidence = stats.multivariate_t.logpdf(y, shape=b / a * V, df=2 * a)
        else:
            evidence = stats.multivariate_normal.logpdf(y, cov=noise_scale**2 * V)
        prior = sum(np.log(q[j] if j in columns else 1 - q[j]) for j in range(p))
        A = C.T @ C + np.eye(len(columns)) / s**2
        mean, second = np.zeros(p), np.zeros((p, p))
        mean[columns] = np.linalg.solve(A, C.T @ y)
        S = y @ np.linalg.solve(V, y)
        noise = noise_scale**2 if noise_scale else (b + S / 2) / (a + n / 2 - 1)
        second[np.ix_(columns, columns)] = noise * np.linalg.inv(A)
        moments.append((mean, second + np.outer(mean, mean)))
        logs.append((evidence, evidence + prior))
    return averaged(logs, moments)


@pytest.mark.parametrize("noise_scale", [None, 0.8])
@pytest.mark.parametrize("blocks", ["one batch", "many batches"])
def test_spike_slab_equals_a_loop_over_models(noise_scale, blocks, monkeypatch):
    if blocks == "many batches":
        monkeypatch.setattr("guides.truth.subsets.BATCH_NUMBERS", 20)
    X, y = problem(15, 5)
    q = np.array([0.5, 0.3, 0.6, 0.2, 0.5])
    exact = enumerate_spike_slab(
        X, y, inclusion_prob=q, slab_scale=1.3, a=2.0, b=0.7, noise_scale=noise_scale
    )
    evidence, total, inclusion, mean, covariance = by_loop(X, y, q, 1.3, 2.0, 0.7, noise_scale)
    np.testing.assert_allclose(exact.model_log_evidence, evidence, rtol=1e-9)
    np.testing.assert_allclose(exact.log_evidence, total, rtol=1e-10)
    np.testing.assert_allclose(exact.inclusion, inclusion, rtol=1e-9)
    np.testing.assert_allclose(exact.mean, mean, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(exact.covariance, covariance, rtol=1e-7, atol=1e-11)
    np.testing.assert_allclose(exact.sd, np.sqrt(np.diag(covariance)), rtol=1e-8)
    x_new = np.array([[1.0, -2, 0.5, 0, 1], [0, 0, 0, 0, 0]])
    f_mean, f_sd = exact.function_moments(x_new)
    np.testing.assert_allclose(f_mean, x_new @ mean, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(f_sd**2, np.diag(x_new @ covariance @ x_new.T), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("p", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_spike_slab_against_numerical_integration(p):
    """The joint density as written in the docstring, summed on a grid over (w, log tau); nothing shared."""
    X, y = problem(6, p)
    q, s, a, b = 0.3, 1.5, 2.0, 1.2
    w = np.linspace(-9, 9, 241 if p == 2 else 4001)
    log_tau = np.linspace(-7, 5, 241)
    tau = np.exp(log_tau)
    weight = np.exp(stats.gamma(a, scale=1 / b).logpdf(tau)) * tau * (log_tau[1] - log_tau[0])
    evidence, first = np.zeros(2**p), np.zeros((2**p, p))
    squares = np.zeros((2**p, p))
    for number in range(2**p):
        inside = [j for j in range(p) if number >> j & 1]
        grid = np.array(list(itertools.product(*[w] * len(inside))))
        full = np.zeros((len(grid), p))
        full[:, inside] = grid
        errors = ((y - full @ X.T) ** 2).sum(1)
        for t, dt in zip(tau, weight, strict=True):
            log = -0.5 * t * errors + 0.5 * len(y) * np.log(t / (2 * np.pi))
            log += stats.norm(0, s / np.sqrt(t)).logpdf(grid).sum(1) if inside else 0
            mass = np.exp(log) * dt * (w[1] - w[0]) ** len(inside)
            evidence[number] += mass.sum()
            first[number] += mass @ full
            squares[number] += mass @ full**2
    exact = enumerate_spike_slab(X, y, inclusion_prob=q, slab_scale=s, a=a, b=b)
    np.testing.assert_allclose(exact.model_log_evidence, np.log(evidence), atol=1e-6)
    prior = np.array([q ** bin(k).count("1") * (1 - q) ** (p - bin(k).count("1")) for k in range(2**p)])
    total = prior @ evidence
    np.testing.assert_allclose(exact.log_evidence, np.log(total), atol=1e-6)
    np.testing.assert_allclose(exact.mean, prior @ first / total, atol=1e-6)
    np.testing.assert_allclose(exact.sd**2 + exact.mean**2, prior @ squares / total, rtol=1e-5)


def test_slabs_only_is_the_normal_gamma_regression():
    X, y = problem(20, 4)
    slab = enumerate_spike_slab(X, y, inclusion_prob=1 - 1e-13, slab_scale=0.7, a=3.0, b=2.0)
    fit = normal_gamma_regression(X, y, prior_scale=0.7, a=3.0, b=2.0)
    np.testing.assert_allclose(slab.mean, fit.mean, rtol=1e-7)
    np.testing.assert_allclose(slab.covariance, fit.covariance, rtol=1e-7)
    np.testing.assert_allclose(slab.log_evidence, fit.log_evidence, rtol=1e-9)
    np.testing.assert_allclose(slab.noise_precision_mean, fit.a / fit.b, rtol=1e-7)


@pytest.mark.parametrize("noise_scale", [None, 0.8])
def test_spike_slab_draws_follow_the_exact_posterior(noise_scale):
    X, y = problem(15, 5)
    exact = enumerate_spike_slab(X, y, slab_scale=1.3, a=2.0, b=0.7, noise_scale=noise_scale)
    n = 40_000
    draws = exact.draws(n, seed=3)
    w = draws["w"]
    assert w.shape == (n, 5)
    assert draws["noise_precision"].shape == (n,)
    # independent draws: standard errors straight from the draws (of w, w^2, inclusion, products, tau)
    x_new = np.array([1.0, -2, 0.5, 0, 1])
    f_mean, f_sd = exact.function_moments(x_new[None])
    columns = [w, w**2, w != 0, (w @ x_new)[:, None], ((w @ x_new) ** 2)[:, None]]
    truth = [exact.mean, exact.sd**2 + exact.mean**2, exact.inclusion, f_mean, f_sd**2 + f_mean**2]
    if noise_scale is None:
        columns.append(draws["noise_precision"][:, None])
        truth.append([exact.noise_precision_mean])
    else:
        np.testing.assert_allclose(draws["noise_precision"], noise_scale**-2.0)
    values = np.concatenate(columns, 1).astype(float)
    error, spread = values.mean(0) - np.concatenate(truth), values.std(0)
    assert np.abs(error[spread == 0]).max(initial=0) < 20 / n  # always included, out of n draws
    z = error[spread > 0] / (spread[spread > 0] / np.sqrt(n))
    assert np.abs(z).max() < z_bound(2 * len(z))
    again = exact.draws(n, seed=3)
    np.testing.assert_array_equal(again["w"], w)
    assert not np.array_equal(exact.draws(n, seed=4)["w"], w)
    # which models are drawn, all 32 at once
    models = ((w != 0) @ 2 ** np.arange(5)).astype(int)
    probs = np.exp(exact.log_model_probs)
    common = probs * n > 5
    counts = np.bincount(models, minlength=32)
    observed = [*counts[common], counts[~common].sum()]
    expected = np.array([*probs[common], probs[~common].sum()]) * n
    assert stats.chisquare(observed, expected * (sum(observed) / expected.sum())).pvalue > FAMILY_WISE


def test_refusals_name_what_is_wrong():
    X, y = problem(10, 2)
    with pytest.raises(ValueError, match="21 columns.*at most 20"):
        enumerate_spike_slab(np.ones((5, 21)), np.ones(5))
    with pytest.raises(ValueError, match="strictly inside"):
        enumerate_spike_slab(X, y, inclusion_prob=1.0)
    with pytest.raises(ValueError, match="slab_scale must be positive"):
        enumerate_spike_slab(X, y, slab_scale=0.0)
    for name, value in [("slab_scale", [1.0, 2.0]), ("a", [1.0]), ("noise_scale", [0.5, 0.5])]:
        with pytest.raises(ValueError, match=f"{name} must be a number"):
            enumerate_spike_slab(X, y, **{name: value})
    with pytest.raises(ValueError, match=r"inclusion_prob must be.* 2 columns, got shape \(3,\)"):
        enumerate_spike_slab(X, y, inclusion_prob=[0.1, 0.2, 0.3])
    for name in ("prior_scale", "prior_precision"):
        with pytest.raises(ValueError, match=rf"{name} must be.* 2 columns, got shape \(3,\)"):
            conjugate_linear_regression(X, y, noise_scale=1.0, **{name: [1.0, 1.0, 1.0]})
    with pytest.raises(ValueError, match="prior_scale must be.* 2 columns"):
        normal_gamma_regression(X, y, prior_scale=[1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="exactly one"):
        conjugate_linear_regression(X, y, noise_scale=1.0)
    with pytest.raises(ValueError, match="shapes"):
        normal_gamma_regression(X, y[:-1])
    y[4], X[3, 1], X[7, 0] = np.inf, np.nan, np.nan
    with pytest.raises(
        ValueError, match=r"x must be finite, and row 3, column 1 is nan \(first of 2\); drop"
    ):
        normal_gamma_regression(X, y)
    with pytest.raises(ValueError, match=r"y must be finite, and row 4 is inf \(first of 1\)"):
        normal_gamma_regression(np.ones((10, 2)), y)


@pytest.mark.slow
def test_twenty_columns_fit_in_memory_and_agree_with_their_marginals():
    X, y = problem(60, 20)
    exact = enumerate_spike_slab(X, y)
    np.testing.assert_allclose(np.exp(exact.log_model_probs).sum(), 1.0, rtol=1e-10)
    k = int(np.argmax(exact.log_model_probs))
    C = X[:, [j for j in range(20) if k >> j & 1]]
    expected = stats.multivariate_t.logpdf(y, shape=np.eye(60) + C @ C.T, df=2.0)
    np.testing.assert_allclose(exact.model_log_evidence[k], expected, rtol=1e-9)


@pytest.mark.parametrize("noise_scale", [None, 0.5])
def test_a_target_far_from_zero_is_refused_before_rounding_is_seen(noise_scale):
    rng = np.random.default_rng(0)
    x, noise = np.c_[np.ones(50), rng.standard_normal((50, 2))], 0.5 * rng.standard_normal(50)
    near, far = 1e3 + noise, 1e8 + noise
    assert math.isfinite(enumerate_spike_slab(x, near, slab_scale=1e3, noise_scale=noise_scale).log_evidence)
    with pytest.raises(ValueError, match="rounding may change the evidence.*centre and scale"):
        enumerate_spike_slab(x, far, slab_scale=1e8, noise_scale=noise_scale)


@pytest.mark.parametrize("n", [0, -1, 2.0])
def test_numbers_of_draws_are_checked(n):
    X, y = problem(12, 2)
    for found in (enumerate_spike_slab(X, y), normal_gamma_regression(X, y)):
        with pytest.raises(ValueError, match="n must be a positive whole number"):
            found.draws(n)


def test_a_posterior_says_how_likely_columns_are_in():
    """The enumeration's own probabilities: what the scoreboard holds other methods against."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 3))
    exact = enumerate_spike_slab(X, X[:, 0] + rng.standard_normal(20))
    np.testing.assert_allclose(exact.posterior(5).info["inclusion"]["w"], exact.inclusion)
    assert ((exact.inclusion > 0.01) & (exact.inclusion < 0.999)).any()


def test_a_variance_that_is_just_infinite_is_refused():
    """One row and a = 1/2: the posterior of the noise has a shape of one."""
    with pytest.raises(ValueError, match=r"a \+ n/2 = 1.0 must be above 1"):
        enumerate_spike_slab(np.ones((1, 1)), np.ones(1), a=0.5)
    assert np.isfinite(enumerate_spike_slab(np.ones((1, 1)), np.ones(1), a=0.51).sd).all()


def test_columns_that_nearly_depend_are_refused_before_rounding_is_seen():
    rng = np.random.default_rng(0)
    z, noise = rng.standard_normal(40), 0.1 * rng.standard_normal(40)
    near, far = (np.c_[np.ones(40), offset + z] for offset in (10.0, 1e7))
    assert math.isfinite(enumerate_spike_slab(near, z + noise, slab_scale=1e3, noise_scale=0.1).log_evidence)
    with pytest.raises(ValueError, match="nearly dependent, that rounding may change"):
        enumerate_spike_slab(far, z + noise, slab_scale=1e8, noise_scale=0.1)


@pytest.mark.parametrize("noise_scale", [None, 0.1])
def test_a_column_that_stands_twice_is_no_rounding(noise_scale):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 4))
    y = x[:, 0] + 0.1 * rng.standard_normal(2000)
    found = enumerate_spike_slab(np.c_[x, x[:, 0]], y, slab_scale=1e3, noise_scale=noise_scale)
    np.testing.assert_allclose(found.inclusion[0], found.inclusion[4], rtol=1e-6)


@pytest.mark.parametrize("slab_scale", [1.0, 1e4, 1e5])
def test_twins_have_the_inclusion_of_their_closed_form(slab_scale):
    """Of a column that stands twice: two models with one of them and one with both, which is that of one
    column with a slab sqrt(2) as wide.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 1))
    y = x[:, 0] + 0.3 * rng.standard_normal(40)
    evidence = [
        enumerate_spike_slab(x, y, slab_scale=scale, noise_scale=0.3).model_log_evidence
        for scale in (slab_scale, math.sqrt(2) * slab_scale)
    ]
    none, one, both = np.exp([evidence[0][0], evidence[0][1], evidence[1][1]] - evidence[0][1])
    found = enumerate_spike_slab(np.c_[x, x], y, slab_scale=slab_scale, noise_scale=0.3)
    np.testing.assert_allclose(found.inclusion, (one + both) / (none + 2 * one + both), rtol=1e-3)


@pytest.mark.parametrize("slab_scale", [1e7, 2e7, 1e8, 1e12])
def test_slabs_so_wide_that_a_determinant_is_rounded_are_refused(slab_scale):
    """Two columns that are one: at 2e7 inclusions of 0.631 would come out as 0.655."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 1))
    y = x[:, 0] + 0.3 * rng.standard_normal(40)
    with pytest.raises(ValueError, match="rounding may change the evidence .*take a smaller slab"):
        enumerate_spike_slab(np.c_[x, x], y, slab_scale=slab_scale, noise_scale=0.3)


def test_a_target_that_no_column_explains_is_refused_too():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 2)), 1e8 + rng.standard_normal(50)
    with pytest.raises(ValueError, match="rounding may change the evidence"):
        enumerate_spike_slab(x, y, slab_scale=1e-5, noise_scale=0.5)


def test_rounding_counts_by_the_noise_that_is_known_or_found():
    rng = np.random.default_rng(0)
    x, noise = np.c_[np.ones(50), rng.standard_normal((50, 2))], 0.5 * rng.standard_normal(50)
    target = 1e4 + 0.01 * noise
    with pytest.raises(ValueError, match="rounding may change the evidence by 0.0[1-9]"):
        enumerate_spike_slab(x, target, slab_scale=1e4, noise_scale=0.01)
    assert math.isfinite(enumerate_spike_slab(x, 1e4 + noise, slab_scale=1e4, noise_scale=0.5).log_evidence)
    assert math.isfinite(enumerate_spike_slab(x, 1e4 + noise, slab_scale=1e4, b=1e-9).log_evidence)


def test_a_known_noise_is_no_site_of_the_posterior():
    X, y = problem(12, 2)
    assert enumerate_spike_slab(X, y, noise_scale=0.5).posterior(3).draws().keys() == {"w"}
    assert enumerate_spike_slab(X, y).posterior(3).draws().keys() == {"w", "noise_precision"}
