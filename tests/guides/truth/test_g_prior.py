"""Bayes factors under the g-prior against stored results, densities, another basis; what is refused."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import null_space

from guides.truth.g_prior import enumerate_g_prior
from tests.guides.truth.linear_problems import problem


def stored(name: str):
    root = os.environ.get("ZOO_DATA")
    if not root:
        pytest.skip("ZOO_DATA does not name the folder of the data sets")
    return np.load(Path(root) / "varsel" / name, allow_pickle=False)


@pytest.mark.parametrize("name", ["us_crime.npz", "mjmcmc_sim_linear.npz"])
def test_g_prior_reproduces_the_stored_enumeration(name):
    data = stored(name)
    models = enumerate_g_prior(data["X"], data["y"], float(data["g"]))
    np.testing.assert_allclose(models.log_bf, data["log_bf"], atol=1e-6)
    np.testing.assert_allclose(models.inclusion, data["pip_gprior"], atol=1e-6)


def test_g_prior_bayes_factors_are_ratios_of_densities_of_the_contrasts():
    """A flat intercept leaves n - 1 contrasts of y; with p(tau) ~ 1/tau they follow a t law of df -> 0."""
    X, y = problem(12, 2)
    g, tiny = 7.0, 1e-9
    contrasts = null_space(np.ones((1, 12))).T

    def log_marginal(columns):
        C = contrasts @ X[:, columns]
        V = np.eye(11) + (g * C @ np.linalg.inv(C.T @ C) @ C.T if columns else 0)
        return stats.multivariate_t.logpdf(contrasts @ y, shape=V, df=2 * tiny)

    models = enumerate_g_prior(X, y, g)
    for number, columns in enumerate([[], [0], [1], [0, 1]]):
        assert abs(log_marginal(columns) - log_marginal([]) - models.log_bf[number]) < 1e-6


def test_g_prior_of_one_column_by_hand():
    x, y = np.array([[0.0], [1.0], [3.0], [4.0]]), np.array([1.0, 2.0, 2.0, 5.0])
    r_squared = np.corrcoef(x[:, 0], y)[0, 1] ** 2
    expected = 0.5 * (2 * np.log(5) - 3 * np.log(1 + 4 * (1 - r_squared)))
    models = enumerate_g_prior(x, y, 4.0)
    np.testing.assert_allclose(models.log_bf, [0, expected], atol=1e-15)
    np.testing.assert_allclose(models.inclusion, [1 / (1 + np.exp(-expected))])


def test_g_prior_refusals_name_what_is_wrong():
    X, y = problem(30, 21)
    with pytest.raises(ValueError, match="21 columns make 2\\^21 models"):
        enumerate_g_prior(X, y, 10.0)
    X, y = problem(20, 3)
    with pytest.raises(ValueError, match="linearly dependent"):
        enumerate_g_prior(np.c_[X, X[:, 0] + 2], y, 10.0)
    with pytest.raises(ValueError, match="y is constant"):
        enumerate_g_prior(X, np.full(20, 3.3), 10.0)
    for value in (0.1, 0.7, 1.0, 3.3):  # whose mean is off by a rounding error, or not
        with pytest.raises(ValueError, match="column 3 of x is constant"):
            enumerate_g_prior(np.c_[X, np.full(20, value)], y, 10.0)
    rounded = np.where(np.arange(20) % 2, 0.3, 0.1 + 0.2)
    with pytest.raises(ValueError, match="column 3 of x is constant"):
        enumerate_g_prior(np.c_[X, rounded], y, 10.0)


def test_nearly_dependent_columns_are_refused_before_rounding_is_seen():
    X, y = problem(12, 2)
    noise = np.random.default_rng(3).standard_normal(12)
    for near in (1e-8, 1e-9, 1e-11):
        with pytest.raises(ValueError, match="linearly dependent.*condition number"):
            enumerate_g_prior(np.c_[X, X[:, 0] + near * noise], y, 10.0)
    # as in another basis of the same space, whose columns are far apart
    apart = enumerate_g_prior(np.c_[X, noise], y, 10.0).log_bf[-1]
    assert enumerate_g_prior(np.c_[X, X[:, 0] + 1e-5 * noise], y, 10.0).log_bf[-1] == pytest.approx(
        apart, abs=1e-3
    )


@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_the_better_the_fit_the_more_rounding_is_seen(noise):
    """Of columns ``a, a + eps z`` both together are ``a, z``; with eps of 2.5e-6 they were half a nat and 2.5
    nats off it.
    """
    a, z, rest = np.random.default_rng(0).standard_normal((3, 400))
    y = z + noise * rest
    with pytest.raises(ValueError, match="rounding changes a Bayes factor by [0-9.]+ nats"):
        enumerate_g_prior(np.c_[a, a + 2.5e-6 * z], y, 400.0)
    apart = enumerate_g_prior(np.c_[a, z], y, 400.0).log_bf[-1]
    assert enumerate_g_prior(np.c_[a, a + 1e-3 * z], y, 400.0).log_bf[-1] == pytest.approx(apart, abs=1e-3)


def test_more_columns_than_rows_carry_are_counted():
    X = np.random.default_rng(0).standard_normal((5, 6))
    with pytest.raises(ValueError, match="6 columns of 5 rows are linearly dependent.*at least 2 out"):
        enumerate_g_prior(X, X[:, 0], 5.0)
    with pytest.raises(ValueError, match="5 columns of 5 rows are linearly dependent.*at least 1 out"):
        enumerate_g_prior(X[:, :5], X[:, 5], 5.0)
    assert np.isfinite(enumerate_g_prior(X[:, :4], X[:, 5], 5.0).log_bf).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_perfect_fit_is_no_number_where_g_is_large(seed):
    """R^2 is one up to rounding, which ``g`` makes large: 1500 nats of it at n = 3000."""
    X = np.random.default_rng(seed).standard_normal((3000, 4))
    with pytest.raises(ValueError, match="g is so large"):
        enumerate_g_prior(X, 2 * X[:, 0], 1e12)
    found = enumerate_g_prior(X, 2 * X[:, 0], 3000.0).log_bf[1]
    assert found == pytest.approx((3000 - 2) / 2 * math.log1p(3000.0), abs=1e-3)


def test_columns_that_depend_where_the_target_is_not_are_counted():
    """Powers of a column up to the seventh, of a condition number of 6e4, against an orthogonal basis."""
    x = np.linspace(0, 1, 200)
    y = np.sin(6 * x) + 0.3 * np.random.default_rng(0).standard_normal(200)
    powers = np.stack([x**k for k in range(1, 8)], 1)
    basis = np.linalg.qr(powers - powers.mean(0))[0]
    found, expected = (enumerate_g_prior(columns, y, 200.0).log_bf[-1] for columns in (powers, basis))
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_hundredth_of_a_nat_of_rounding_is_seen_already():
    a, z, rest = np.random.default_rng(0).standard_normal((3, 400))
    with pytest.raises(ValueError, match="rounding changes a Bayes factor by 0.0[1-9] nats"):
        enumerate_g_prior(np.c_[a, a + 1e-5 * z], z + 0.1 * rest, 400.0)
