"""Conjugate regressions against independent formulas and numerical integration."""

import itertools
import math
from fractions import Fraction
from operator import mul

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy import stats

from guides.testing import z_bound
from guides.testing.yardsticks import FAMILY_WISE
from guides.truth.conjugate import conjugate_linear_regression, normal_gamma_regression
from guides.truth.spike_slab_linear import enumerate_spike_slab
from tests.guides.truth.linear_problems import problem


def elbo(X, y, prior_precision, noise_scale, mean, sd):
    """E_q[log p(y, w)] + entropy of q = N(mean, diag sd^2), term by term."""
    n, p = X.shape
    errors = np.sum((y - X @ mean) ** 2) + np.sum(X**2 @ sd**2)
    likelihood = -0.5 * n * np.log(2 * np.pi * noise_scale**2) - 0.5 * errors / noise_scale**2
    second = mean @ prior_precision @ mean + np.diag(prior_precision) @ sd**2
    prior = 0.5 * np.linalg.slogdet(prior_precision)[1] - 0.5 * p * np.log(2 * np.pi) - 0.5 * second
    return likelihood + prior + np.sum(np.log(sd)) + 0.5 * p * (1 + np.log(2 * np.pi))


@pytest.mark.parametrize("prior", ["number", "diagonal", "matrix", "scale"])
def test_conjugate_regression_is_gaussian_conditioning(prior):
    X, y = problem(30, 3)
    matrix = {"number": 2.0 * np.eye(3), "diagonal": np.diag([1.0, 2.0, 3.0]), "scale": np.eye(3) / 0.25,
              "matrix": np.array([[2.0, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 3]])}[prior]  # fmt: skip
    given = {"number": 2.0, "diagonal": np.array([1.0, 2.0, 3.0]), "matrix": matrix}
    arguments = {"prior_scale": 0.5} if prior == "scale" else {"prior_precision": given[prior]}
    fit = conjugate_linear_regression(X, y, **arguments, noise_scale=0.7)
    prior_cov = np.linalg.inv(matrix)
    marginal = 0.49 * np.eye(30) + X @ prior_cov @ X.T
    gain = prior_cov @ X.T @ np.linalg.inv(marginal)  # joint Gaussian of (w, y), conditioned on y
    np.testing.assert_allclose(fit.mean, gain @ y, rtol=1e-9)
    np.testing.assert_allclose(fit.covariance, prior_cov - gain @ X @ prior_cov, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(fit.precision @ fit.covariance, np.eye(3), atol=1e-10)
    expected = stats.multivariate_normal.logpdf(y, cov=marginal)
    np.testing.assert_allclose(fit.log_evidence, expected, rtol=1e-10)


def test_mean_field_is_the_best_and_its_elbo_exact():
    X, y = problem(30, 3)
    fit = conjugate_linear_regression(X, y, prior_precision=2.0, noise_scale=0.7)
    best = elbo(X, y, 2 * np.eye(3), 0.7, fit.mean, fit.mean_field_sd)
    np.testing.assert_allclose(fit.mean_field_elbo, best, rtol=1e-12)
    assert fit.mean_field_elbo < fit.log_evidence
    assert np.all(fit.mean_field_sd < np.sqrt(np.diag(fit.covariance)))  # correlated columns
    for j, step in itertools.product(range(3), (-0.02, 0.02)):
        e = np.eye(3)[j] * step
        assert elbo(X, y, 2 * np.eye(3), 0.7, fit.mean + e, fit.mean_field_sd) < best
        assert elbo(X, y, 2 * np.eye(3), 0.7, fit.mean, fit.mean_field_sd * np.exp(e)) < best


def test_without_information_the_posterior_is_the_prior():
    X, y = np.zeros((4, 2)), np.zeros(4)
    fit = conjugate_linear_regression(X, y, prior_scale=[0.5, 2.0], noise_scale=1.0)
    np.testing.assert_allclose(fit.mean, 0)
    np.testing.assert_allclose(fit.covariance, np.diag([0.25, 4.0]))
    slab = enumerate_spike_slab(X, y, inclusion_prob=[0.2, 0.7], noise_scale=1.0, slab_scale=3.0)
    np.testing.assert_allclose(slab.inclusion, [0.2, 0.7])
    np.testing.assert_allclose(slab.sd, 3 * np.sqrt([0.2, 0.7]))


def test_normal_gamma_evidence_and_marginals():
    X, y = problem(25, 3)
    fit = normal_gamma_regression(X, y, prior_scale=[0.5, 1.0, 2.0], a=2.5, b=1.5)
    shape = 1.5 / 2.5 * (np.eye(25) + X @ np.diag([0.25, 1, 4]) @ X.T)
    expected = stats.multivariate_t.logpdf(y, shape=shape, df=5.0)
    np.testing.assert_allclose(fit.log_evidence, expected, rtol=1e-10)
    draws = fit.draws(40_000, seed=1)
    sd = np.sqrt(np.diag(fit.covariance))
    z_mean = (draws["w"].mean(0) - fit.mean) / (sd / 200)
    tau = stats.gamma(fit.a, scale=1 / fit.b)
    z_tau = (draws["noise_precision"].mean() - tau.mean()) / (tau.std() / 200)
    assert np.abs([*z_mean, z_tau]).max() < z_bound(7)
    # w_j is a Student t with 2a degrees of freedom
    scale = np.sqrt(np.diag(np.linalg.inv(fit.precision)) * fit.b / fit.a)
    for j in range(3):
        law = stats.t(2 * fit.a, fit.mean[j], scale[j])
        assert stats.kstest(draws["w"][:, j], law.cdf).pvalue > FAMILY_WISE / 7


def test_an_infinite_variance_is_refused():
    """Of one row and a prior shape of a half or less; a negative number was given."""
    X, y = problem(1, 1)
    for a in (0.3, 0.5):
        fit = normal_gamma_regression(X, y, a=a)
        with pytest.raises(ValueError, match="must be above 1: the posterior variance is infinite"):
            _ = fit.covariance
    assert normal_gamma_regression(X, y, a=0.6).covariance > 0


@pytest.mark.parametrize("noise", ["known", "unknown"])
def test_predictive_densities_are_ratios_of_evidences(noise):
    X, y = problem(12, 3)
    fit = {
        "known": lambda X, y: conjugate_linear_regression(X, y, prior_scale=0.5, noise_scale=0.7),
        "unknown": lambda X, y: normal_gamma_regression(X, y, prior_scale=0.5, a=1.5, b=0.4),
    }[noise]
    found = fit(X, y)
    rows = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    for value in (-1.5, 0.3, 4.0):
        expected = [
            fit(np.r_[X, row[None]], np.r_[y, value]).log_evidence - found.log_evidence for row in rows
        ]
        density = found.predictive(rows).log_prob(torch.full((2,), value, dtype=torch.float64))
        np.testing.assert_allclose(density, expected, rtol=1e-10)
    # of the function itself: that of the target, less the noise
    bare, full = found.predictive(rows, noise=False), found.predictive(rows)
    np.testing.assert_allclose(bare.mean, full.mean)
    less = 0.7**2 if noise == "known" else found.b / (found.a - 1)
    np.testing.assert_allclose(bare.variance, full.variance - less, rtol=1e-10)


def test_the_model_of_unknown_noise_is_that_of_its_evidence():
    """Joint density of the Pyro model over the posterior's, at any weights and noise: ``p(y)``."""
    X, y = problem(12, 2)
    found = normal_gamma_regression(X, y, prior_scale=[0.5, 2.0], a=1.5, b=0.4)
    for w, tau in (([0.3, -1.0], 0.4), ([2.0, 0.1], 3.0)):
        sites = {"w": torch.tensor(w, dtype=torch.float64), "noise_precision": torch.tensor(tau).double()}
        model = poutine.condition(found.model, sites)
        joint = poutine.trace(model).get_trace(torch.as_tensor(X), torch.as_tensor(y)).log_prob_sum()
        weights = stats.multivariate_normal(found.mean, np.linalg.inv(tau * found.precision)).logpdf(w)
        precision = stats.gamma(found.a, scale=1 / found.b).logpdf(sites["noise_precision"].item())
        assert joint.item() - weights - precision == pytest.approx(found.log_evidence, rel=1e-6)


def test_numbers_of_regressions_that_are_not_positive_are_refused():
    X, y = problem(10, 2)
    for fit, words in [
        (lambda: conjugate_linear_regression(X, y, prior_scale=1.0, noise_scale=0.0), "noise_scale must be"),
        (lambda: normal_gamma_regression(X, y, a=0.0), "a must be positive"),
        (lambda: normal_gamma_regression(X, y, b=-1.0), "b must be positive"),
    ]:
        with pytest.raises(ValueError, match=words):
            fit()


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ([[1.0, 0.0], [0.0, -1.0]], "positive definite, its least eigenvalue is -1"),
        ([[1.0, 2.0], [2.0, 1.0]], "positive definite, its least eigenvalue is -1"),
        ([[1.0, math.nan], [math.nan, 1.0]], "finite"),
        ([[2.0, 0.0], [5.0, 20.0]], "symmetric"),
    ],
)
def test_a_matrix_that_is_no_precision_is_refused(matrix, said):
    X, y = problem(10, 2)
    with pytest.raises(ValueError, match=f"prior_precision must be {said}"):
        conjugate_linear_regression(X, y, prior_precision=np.array(matrix), noise_scale=1.0)


def exact_of_two_columns(x, y, noise):
    """Mean, sds and log evidence of weights N(0, 100^2), by fractions."""
    tau, prior = 1 / Fraction(noise) ** 2, Fraction(1, 100**2)
    columns, targets = [[Fraction(v) for v in column] for column in x.T], [Fraction(v) for v in y]
    (a, b), (_, c) = [[tau * sum(map(mul, u, v)) + prior * (u is v) for v in columns] for u in columns]
    first, second = (tau * sum(map(mul, column, targets)) for column in columns)
    det = a * c - b * b
    mean = (c * first - b * second) / det, (a * second - b * first) / det
    left = tau * sum(v * v for v in targets) - mean[0] * first - mean[1] * second
    constant = 0.5 * len(y) * math.log(tau / (2 * Fraction(math.pi))) + math.log(prior)
    return mean, (c / det, a / det), constant - 0.5 * math.log(det) - 0.5 * float(left)


@pytest.mark.parametrize(("offset", "noise"), [(0.0, 1.0), (1e6, 1e-3), (1e8, 1.0)])
def test_columns_far_from_zero(offset, noise):
    """x'x, which squares their size, would be rounded by many sds of the posterior."""
    rng = np.random.default_rng(0)
    x = offset + rng.standard_normal((20, 2))
    y = x @ [1, 0.5] + noise * rng.standard_normal(20)
    mean, variance, evidence = exact_of_two_columns(x, y, noise)
    found = conjugate_linear_regression(x, y, prior_scale=100.0, noise_scale=noise)
    sd = np.sqrt(np.array(variance, float))
    shift = [float(Fraction(m) - exact) for m, exact in zip(found.mean, mean, strict=True)]
    assert np.abs(shift / sd).max() < 1e-5
    np.testing.assert_allclose(np.sqrt(np.diag(found.covariance)), sd, rtol=1e-6)
    assert found.log_evidence == pytest.approx(evidence, abs=1e-5)


def test_rounding_that_would_be_seen_is_refused():
    rng = np.random.default_rng(0)
    x = 1e12 + rng.standard_normal((20, 2))
    with pytest.raises(ValueError, match="centre and scale x and y"):
        conjugate_linear_regression(x, x @ [1, 0.5], prior_scale=100.0, noise_scale=1e-3)
    with pytest.raises(ValueError, match="centre and scale x and y"):
        normal_gamma_regression(x, x @ [1, 0.5], prior_scale=100.0)


@pytest.mark.parametrize("law", [conjugate_linear_regression, normal_gamma_regression])
def test_a_row_of_zeros_is_predicted_to_be_zero(law):
    rng = np.random.default_rng(0)
    options = {"noise_scale": 0.5} if law is conjugate_linear_regression else {}
    found = law(rng.standard_normal((9, 2)), rng.standard_normal(9), prior_scale=1.0, **options)
    assert found.predictive(np.zeros((1, 2)), noise=False).mean.item() == 0
    assert found.predictive(np.zeros((1, 2)), noise=False).scale.item() < 1e-20


def test_many_rows_are_no_rounding():
    """A million rows that are standardised, and 500,000 years beside an intercept: right to ten digits."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1_000_000, 5))
    y = x @ [0.5, 0.5, 0.4, 0.3, 0.2] + 0.3 * rng.standard_normal(len(x))
    y /= y.std()
    conjugate_linear_regression(x, y, prior_scale=1.0, noise_scale=0.3)
    normal_gamma_regression(x, y)
    years = np.c_[1998 + 9.5 * rng.standard_normal(500_000), np.ones(500_000)]
    target = 0.1 * years[:, 0] + rng.standard_normal(len(years))
    conjugate_linear_regression(years, target, prior_scale=10.0, noise_scale=1.0)
    normal_gamma_regression(years, target, prior_scale=10.0)


def test_one_column_twice_is_seen_in_the_evidence_where_the_prior_is_wide():
    x, y = np.random.default_rng(0).standard_normal((20, 1)), np.zeros(20)
    one = conjugate_linear_regression(x, y, prior_scale=1e8 * math.sqrt(2), noise_scale=1.0)
    both = conjugate_linear_regression(np.c_[x, x], y, prior_scale=1e8, noise_scale=1.0)
    assert both.log_evidence == pytest.approx(one.log_evidence, abs=1e-5)
    with pytest.raises(ValueError, match="nearly dependent"):
        conjugate_linear_regression(np.c_[x, x], y, prior_scale=1e13, noise_scale=1.0)


def test_a_large_misfit_makes_rounding_seen_sooner():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 2)), rng.standard_normal(20)
    conjugate_linear_regression(x, 1e10 * (x @ [1.0, 0.5]) + y, prior_scale=1e11, noise_scale=1.0)
    with pytest.raises(ValueError, match="so large beside its noise"):
        conjugate_linear_regression(x, 1e10 * y, prior_scale=1e11, noise_scale=1.0)


def test_a_prior_that_is_nearly_singular_is_refused():
    """Differences of neighbours are all that it knows: the evidence was off by up to a nat, in silence."""
    X, y = problem(20, 3)
    contrasts = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    prior = contrasts.T @ contrasts
    with pytest.raises(ValueError, match="prior_precision is so nearly singular"):
        conjugate_linear_regression(X, y, prior_precision=3e15 * prior + np.eye(3), noise_scale=1.0)
    conjugate_linear_regression(X, y, prior_precision=1e9 * prior + np.eye(3), noise_scale=1.0)


def test_units_of_the_prior_do_not_make_it_singular():
    X, y = problem(20, 3)
    units = np.diag([1e-9, 1.0, 1e9])
    shape = 0.5 * np.eye(3) + 0.5
    found = conjugate_linear_regression(X @ units, y, prior_precision=units @ shape @ units, noise_scale=1.0)
    plain = conjugate_linear_regression(X, y, prior_precision=shape, noise_scale=1.0)
    assert found.log_evidence == pytest.approx(plain.log_evidence, rel=1e-9)
    np.testing.assert_allclose(units @ found.mean, plain.mean, rtol=1e-7)
