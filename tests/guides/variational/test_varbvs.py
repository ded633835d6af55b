"""VARBVS against exact posteriors, its own definition of the bound, and its own draws."""

import itertools
import math

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy import stats
from scipy.special import expit

from guides.testing import z_bound
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from guides.variational.varbvs import VARBVS
from tests.guides.truth.logistic_problems import by_quadrature, problem, real


def linear(n: int = 40, p: int = 5, seed: int = 0, noise: float = 0.8):
    """Correlated columns, a mean far from zero."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) @ (np.eye(p) + 0.3)
    w = np.where(np.arange(p) % 2 == 0, 0.6, 0.0)
    return X, 3 + X @ w + noise * rng.standard_normal(n)


def orthogonal(n: int = 32, p: int = 4):
    rng = np.random.default_rng(1)
    X = np.linalg.qr(rng.standard_normal((n, p)))[0] * [3.0, 5.0, 4.0, 6.0]
    return X, X @ [0.5, 0.0, 0.2, 0.0] + 0.8 * rng.standard_normal(n)


# ----------------------------------------------------------------------------------------------------- linear


def test_orthogonal_columns_give_the_exact_posterior():
    """Then the posterior is a product, so mean field is the posterior and the bound the evidence."""
    X, y = orthogonal()
    exact = enumerate_spike_slab(X, y, inclusion_prob=0.3, slab_scale=0.7, noise_scale=0.8)
    fit = VARBVS(inclusion_prob=0.3, slab_scale=0.7, noise_scale=0.8, bias_scale=0).fit(X, y)
    assert fit.converged
    np.testing.assert_allclose(fit.inclusion, exact.inclusion, rtol=1e-7)
    np.testing.assert_allclose(fit.mean, exact.mean, rtol=1e-7)
    np.testing.assert_allclose(fit.sd, exact.sd, rtol=1e-7)
    assert fit.elbo == pytest.approx(exact.log_evidence, rel=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_bound_stays_below_the_evidence_of_correlated_columns(seed):
    X, y = linear(seed=seed)
    y = y - y.mean()
    exact = enumerate_spike_slab(X, y, inclusion_prob=0.3, slab_scale=0.7, noise_scale=0.8)
    fit = VARBVS(inclusion_prob=0.3, slab_scale=0.7, noise_scale=0.8, bias_scale=0).fit(X, y)
    assert exact.log_evidence - 3 < fit.elbo < exact.log_evidence
    # its neighbours are worse: the bound of an altered law, from draws-free formulas written anew
    best = fit.fits[0]
    q = (best.alpha, best.mu, best.s)
    assert linear_bound(X, y, *q, 0.3, 0.7 * 0.8, 0.8) == pytest.approx(fit.elbo, rel=1e-10)
    for i, j in itertools.product(range(3), range(5)):
        for factor in (0.97, 1.03):
            altered = [v.copy() for v in q]
            altered[i][j] = min(altered[i][j] * factor, 0.999999)
            assert linear_bound(X, y, *altered, 0.3, 0.7 * 0.8, 0.8) <= fit.elbo + 1e-9


def linear_bound(X, y, alpha, mu, s, q, slab, noise):
    """E log p(y | w) - KL, no intercept."""
    mean, second = alpha * mu, alpha * (mu**2 + s**2)
    errors = ((y - X @ mean) ** 2).sum() + (X**2).sum(0) @ (second - mean**2)
    value = -0.5 * len(y) * math.log(2 * math.pi * noise**2) - 0.5 * errors / noise**2
    value -= (alpha * np.log(alpha / q) + (1 - alpha) * np.log((1 - alpha) / (1 - q))).sum()
    return value - alpha @ (np.log(slab / s) - 0.5 + (s**2 + mu**2) / (2 * slab**2))


def test_flat_intercept_is_the_centring_of_the_paper():
    X, y = linear()
    flat = VARBVS(noise_scale=0.8, bias_scale=math.inf).fit(X, y)
    centred = VARBVS(noise_scale=0.8, bias_scale=0).fit(X - X.mean(0), y - y.mean())
    np.testing.assert_allclose(flat.inclusion, centred.inclusion, rtol=1e-6)
    np.testing.assert_allclose(flat.mean, centred.mean, rtol=1e-6, atol=1e-9)
    # y = mean + rest: the flat prior (density 1) takes the mean's density out, N(mean; b, noise^2 / n)
    assert flat.elbo == pytest.approx(centred.elbo + 0.5 * math.log(2 * math.pi * 0.8**2 / len(y)), rel=1e-9)
    wide = VARBVS(noise_scale=0.8, bias_scale=1e4).fit(X, y)
    np.testing.assert_allclose(wide.inclusion, flat.inclusion, rtol=1e-4)
    # its draws of b follow y - X w
    draws = flat.draws(20_000)
    shifted = draws["b"] - (y.mean() - draws["w"] @ X.mean(0))
    assert abs(shifted.mean()) < z_bound(1) * 0.8 / np.sqrt(len(y) * 20_000)
    assert shifted.std() == pytest.approx(0.8 / np.sqrt(len(y)), rel=0.03)


@pytest.mark.parametrize("slab_scale", [1.0, 0.4])
def test_unknown_noise_is_where_the_bound_is_largest(slab_scale):
    X, y = linear(n=60)
    free = VARBVS(bias_scale=math.inf, slab_scale=slab_scale).fit(X, y)
    sd = free.fits[0].noise_scale
    assert 0.5 < sd < 1.2
    assert np.diff(free.fits[0].trace).min() > -1e-9
    for factor in (0.95, 1.0, 1.05):
        fixed = VARBVS(bias_scale=math.inf, slab_scale=slab_scale, noise_scale=factor * sd).fit(X, y)
        assert fixed.elbo <= free.elbo + 1e-6
        if factor == 1:
            assert fixed.elbo == pytest.approx(free.elbo, abs=1e-6)


def test_climbing_goes_on_until_means_have_settled_too():
    """Of columns that are surely in, and alike, inclusion settles rounds before the means do."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 1)) + 0.2 * rng.standard_normal((60, 4))
    y = X @ [2.0, 1.0, 3.0, 2.0] + 0.1 * rng.standard_normal(60)
    fit = VARBVS(inclusion_prob=0.999, slab_scale=30.0, noise_scale=0.1, bias_scale=0, starts=1).fit(X, y)
    assert fit.converged
    assert fit.inclusion.min() > 1 - 1e-9
    ridge = np.linalg.solve(X.T @ X + np.eye(4) / 900, X.T @ y)
    np.testing.assert_allclose(fit.mean, ridge, atol=2e-4)


# --------------------------------------------------------------------------------------------------- logistic


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_logistic_bound_stays_below_the_evidence(p, seed):
    X, y = problem(12, p, seed)
    _, log_evidence, inclusion, _ = by_quadrature(X, y, 0.3, 1.5, 0.8)
    fit = VARBVS("logistic", inclusion_prob=0.3, slab_scale=1.5, bias_scale=0.8).fit(X, y)
    assert fit.converged
    assert log_evidence - 1 < fit.elbo < log_evidence
    assert np.abs(fit.inclusion - inclusion).max() < 0.25


def test_logistic_bound_is_what_its_draws_say():
    """E[log bound of the likelihood + log prior - log q] over draws of (w, b), with the row numbers xi found
    anew as the best ones for those draws' law."""
    X, y = problem(30, 3)
    q, slab, bias = 0.3, 1.5, 0.8
    fit = VARBVS("logistic", inclusion_prob=q, slab_scale=slab, bias_scale=bias).fit(X, y)
    best = fit.fits[0]
    n = 100_000
    draws = fit.draws(n, seed=1)
    w, b = draws["w"], draws["b"]
    eta = w @ X.T + b[:, None]
    xi = np.sqrt((eta**2).mean(0))
    d = np.tanh(xi / 2) / (2 * xi)
    quadratic = np.log(expit(xi)) + ((2 * y - 1) * eta - xi) / 2 - d / 2 * (eta**2 - xi**2)
    exact = np.log(expit((2 * y - 1) * eta))
    assert (quadratic <= exact + 1e-9).all()
    inside = w != 0
    value = stats.norm(0, bias).logpdf(b) - stats.norm(
        best._law.bias_mean - w @ best._law.bias_slope, math.sqrt(best._law.bias_variance)
    ).logpdf(b)
    slabs = stats.norm(0, slab).logpdf(w) - stats.norm(best.mu, best.s).logpdf(w)
    value += np.where(inside, np.log(q / best.alpha) + slabs, np.log((1 - q) / (1 - best.alpha))).sum(1)
    bound, tighter = value + quadratic.sum(1), value + exact.sum(1)
    assert abs(bound.mean() - fit.elbo) < z_bound(1) * bound.std() / np.sqrt(n) + 1e-3
    assert tighter.mean() > fit.elbo


def test_bound_never_falls():
    for seed in range(5):
        X, y = problem(40, 6, seed)
        trace = VARBVS("logistic").fit(X, y).fits[0].trace
        assert len(trace) > 5
        assert np.diff(trace).min() > -1e-9
        X, y = linear(seed=seed)
        assert np.diff(VARBVS(noise_scale=0.5).fit(X, y).fits[0].trace).min() > -1e-9


@pytest.mark.slow
def test_bound_below_the_laplace_evidence_on_raisin():
    X, y = real("raisin")
    fit = VARBVS("logistic").fit(X, y)
    exact = enumerate_spike_slab_logistic(X, y)
    assert fit.converged
    assert fit.elbo < exact.log_evidence
    # mean field decides between columns of correlation .98 and more: a known failure, stated in the docs
    assert np.abs(fit.inclusion - exact.inclusion).max() > 0.3


# ------------------------------------------------------------------------------------ grids, starts and draws


def test_grid_is_averaged_with_weights_from_the_bounds():
    X, y = orthogonal()
    grid = {"inclusion_prob": [0.1, 0.4], "slab_scale": [0.3, 0.7, 2.0], "noise_scale": [0.6, 0.9]}
    fit = VARBVS(**grid, bias_scale=0).fit(X, y)
    settings = list(itertools.product(*grid.values()))
    exact = [
        enumerate_spike_slab(X, y, inclusion_prob=q, slab_scale=slab, noise_scale=noise)
        for q, slab, noise in settings
    ]
    evidence = np.array([e.log_evidence for e in exact])
    weights = np.exp(evidence - np.logaddexp.reduce(evidence))
    assert [(f.inclusion_prob, f.slab_scale, f.noise_scale) for f in fit.fits] == settings
    np.testing.assert_allclose(fit.weights, weights, rtol=1e-6)
    np.testing.assert_allclose(fit.inclusion, weights @ [e.inclusion for e in exact], rtol=1e-6)
    mean = weights @ [e.mean for e in exact]
    np.testing.assert_allclose(fit.mean, mean, rtol=1e-6, atol=1e-10)
    second = weights @ [e.sd**2 + e.mean**2 for e in exact]
    np.testing.assert_allclose(fit.sd, np.sqrt(second - mean**2), rtol=1e-6)
    assert fit.elbo == pytest.approx(np.logaddexp.reduce(evidence) - np.log(12), rel=1e-9)


def test_a_grid_has_converged_where_all_its_settings_have():
    X, y = linear()
    short = VARBVS(slab_scale=[1e-9, 1.0], noise_scale=0.8, max_rounds=2).fit(X, y)
    assert [fit.converged for fit in short.fits] == [True, False]
    assert not short.converged


def test_intercepts_of_a_grid_are_drawn_by_the_law_of_their_own_setting():
    X, y = linear()
    fit = VARBVS(noise_scale=[0.8, 0.9], bias_scale=math.inf).fit(X, y)
    draws = fit.draws(4000, seed=3)
    for k, noise in enumerate((0.8, 0.9)):
        rows = draws["setting"] == k
        left = draws["b"][rows] - (y.mean() - draws["w"][rows] @ X.mean(0))
        z = left * math.sqrt(len(y)) / noise
        assert rows.sum() > 500
        assert abs((z**2).mean() - 1) < z_bound(2) * math.sqrt(2 / rows.sum())


@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_draws_have_the_moments_that_are_reported(family):
    X, y = linear() if family == "linear" else problem(40, 5)
    fit = VARBVS(family, inclusion_prob=[0.2, 0.5], slab_scale=[0.5, 1.5]).fit(X, y)
    n = 40_000
    draws = fit.draws(n, seed=2)
    assert (draws["w"].shape, draws["b"].shape) == ((n, 5), (n,))
    values = np.concatenate([draws["w"], draws["w"] ** 2, draws["w"] != 0], axis=1).astype(float)
    truth = np.concatenate([fit.mean, fit.sd**2 + fit.mean**2, fit.inclusion])
    spread = values.std(0)
    z = (values.mean(0) - truth)[spread > 0] / (spread[spread > 0] / np.sqrt(n))
    assert np.abs(z).max() < z_bound(2 * len(z))
    np.testing.assert_array_equal(fit.draws(7, seed=2)["w"], fit.draws(7, seed=2)["w"])


def test_more_starts_are_never_worse():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((60, 1)) + 0.3 * rng.standard_normal((60, 8))
    y = X @ np.r_[0.3, 0.3, 0.3, 0, 0, 0, 0.3, 0.3] + rng.standard_normal(60)
    one = VARBVS(noise_scale=1.0, starts=1).fit(X, y)
    many = VARBVS(noise_scale=1.0, starts=20, seed=1).fit(X, y)
    assert many.elbo > one.elbo + 1  # columns this alike have several optima
    exact = enumerate_spike_slab(X, y, inclusion_prob=0.25, noise_scale=1.0)
    assert VARBVS(noise_scale=1.0, starts=20, bias_scale=0).fit(X, y).elbo < exact.log_evidence


def test_warm_start_belongs_to_its_own_setting():
    """Every setting of a grid ends where it would end alone, or higher."""
    X, y = linear()
    for family, noise in (("linear", [0.5, 1.5]), ("logistic", None)):
        labels = y if family == "linear" else (y > np.median(y)).astype(float)
        grid = VARBVS(family, inclusion_prob=[0.05, 0.5], noise_scale=noise).fit(X, labels)
        for fit in grid.fits:
            setting = {"inclusion_prob": fit.inclusion_prob, "noise_scale": noise and fit.noise_scale}
            alone = VARBVS(family, **setting).fit(X, labels)
            assert fit.elbo >= alone.elbo - 1e-6
            assert fit.elbo < alone.elbo + 3


def test_settings_of_a_grid_start_from_the_best_of_all_too():
    """Of columns this alike one setting finds by itself what another does not."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 1)) + 0.3 * rng.standard_normal((60, 8))
    y = X @ np.r_[0.3, 0.3, 0.3, 0, 0, 0, 0.3, 0.3] + rng.standard_normal(60)
    grid = VARBVS(inclusion_prob=[0.02, 0.25, 0.7], noise_scale=1.0, starts=1).fit(X, y)
    alone = [
        VARBVS(inclusion_prob=fit.inclusion_prob, noise_scale=1.0, starts=1).fit(X, y) for fit in grid.fits
    ]
    gains = [together.elbo - one.elbo for together, one in zip(grid.fits, alone, strict=True)]
    assert min(gains) > -1e-6
    assert max(gains) > 1


@pytest.mark.parametrize(
    ("family", "bias_scale"), [("linear", 2.0), ("linear", math.inf), ("linear", 0), ("logistic", 0.5)]
)
def test_the_model_has_the_density_at_the_head_of_the_module(family, bias_scale):
    """Against numbers, at every setting of a grid; slabs of the linear model are in units of the noise."""
    X, y = linear() if family == "linear" else problem(40, 5)
    noise = [0.8, 1.7] if family == "linear" else None
    fit = VARBVS(
        family, inclusion_prob=[0.2, 0.6], slab_scale=0.7, noise_scale=noise, bias_scale=bias_scale, starts=1
    ).fit(X, y)
    w, b = np.array([0.5, 0.0, -0.3, 0.0, 0.1]), 0.4 if bias_scale else 0.0
    given = {"w": torch.from_numpy(w)} | ({"b": torch.tensor(b, dtype=torch.float64)} if bias_scale else {})
    for k, setting in enumerate(fit.fits):
        q, sd = setting.inclusion_prob, setting.noise_scale
        found = poutine.trace(poutine.condition(fit.model, given | {"setting": torch.tensor(k)})).get_trace(
            X, torch.from_numpy(y)
        )
        slab = 0.7 * sd if family == "linear" else 0.7
        expected = -math.log(len(fit.fits)) + 2 * math.log(1 - q) + 3 * math.log(q)
        expected += stats.norm(0, slab).logpdf(w[w != 0]).sum()
        expected += stats.norm(0, bias_scale).logpdf(b) if 0 < bias_scale < math.inf else 0.0
        eta = X @ w + b
        if family == "linear":
            expected += stats.norm(eta, sd).logpdf(y).sum()
        else:
            expected += np.log(expit((2 * y - 1) * eta)).sum()
        assert found.log_prob_sum().item() == pytest.approx(expected, rel=1e-6)


def test_a_posterior_has_an_intercept_where_its_model_has_one():
    X, y = linear()
    for bias_scale, sites in ((1.0, {"w", "b"}), (0, {"w"})):
        fit = VARBVS(bias_scale=bias_scale, starts=1).fit(X, y)
        posterior = fit.posterior(3)
        assert posterior.draws().keys() == sites
        assert (posterior.info["elbo"], posterior.info["converged"]) == (fit.elbo, fit.converged)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_constant_target_has_no_noise_to_estimate(value):
    """The bound rose for ever as the noise went to zero."""
    x, y = np.random.default_rng(0).standard_normal((20, 2)), np.full(20, value)
    with pytest.raises(ValueError, match=rf"y is constant \({value:g}\), and its noise .* give noise_scale"):
        VARBVS(starts=1).fit(x, y)
    assert VARBVS(noise_scale=1.0, starts=1).fit(x, y).converged
    without = VARBVS(bias_scale=0, starts=1)
    if value:  # and nothing explains it
        assert without.fit(x, y).fits[0].noise_scale > 0.5 * value
    else:
        with pytest.raises(ValueError, match="y is constant"):
            without.fit(x, y)


def test_without_information_the_law_is_the_prior():
    y = np.array([0.0, 1, 1, 0, 1, 1])
    for family in ("linear", "logistic"):
        fit = VARBVS(family, inclusion_prob=0.3, noise_scale=1.0 if family == "linear" else None)
        fit.fit(np.zeros((6, 2)), y)
        np.testing.assert_allclose(fit.inclusion, 0.3)
        np.testing.assert_allclose(fit.sd, np.sqrt(0.3))


def test_refusals_name_what_is_wrong():
    X, y = linear()
    for options, words in [
        ({"family": "poisson"}, "family must be"),
        ({"family": "logistic", "noise_scale": 1.0}, "linear family only"),
        ({"inclusion_prob": [0.2, 1.0]}, "strictly inside"),
        ({"slab_scale": 0.0}, "slab_scale must be positive"),
        ({"noise_scale": -1.0}, "noise_scale must be positive"),
        ({"bias_scale": -1.0}, "bias_scale"),
        ({"bias_scale": math.nan}, "bias_scale must be positive, infinite"),
        ({"starts": 0}, "starts"),
        ({"max_rounds": 0}, "max_rounds must be a positive whole number"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"inclusion_prob": []}, r"inclusion_prob must be a number or a list.*got shape \(0,\)"),
        ({"slab_scale": [[1.0, 2.0]]}, r"slab_scale must be a number or a list"),
        ({"noise_scale": []}, r"noise_scale must be a number or a list"),
    ]:
        with pytest.raises(ValueError, match=words):
            VARBVS(**options)
    with pytest.raises(ValueError, match="labels 0 and 1"):
        VARBVS("logistic").fit(X, y)
    with pytest.raises(ValueError, match="finite"):
        VARBVS().fit(X, np.where(y > 3, np.nan, y))
    with pytest.raises(AttributeError, match=r"has no inclusion: call fit\(x, y\) first"):
        VARBVS().inclusion  # noqa: B018
    assert not hasattr(VARBVS(), "alpha")
    with pytest.raises(RuntimeError, match="fit"):
        VARBVS().draws(3)
