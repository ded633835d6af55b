"""Updates against numerical integration, and what the guards refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from guides.message_passing.updates import (
    PriorSite,
    adf_update,
    batch_update,
    cavity,
    gamma_update,
    proper_gamma,
    refine_precision,
)


def double(value) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def quadrature_moments(density, low: float, high: float) -> tuple[float, float, float]:
    """Integral, mean and variance of an unnormalised density."""
    points = np.linspace(low, high, 200_001)
    values = density(points)
    z, first, second = (integrate.simpson(values * points**k, x=points) for k in range(3))
    return z, first / z, second / z - (first / z) ** 2


@pytest.mark.parametrize(("x", "y", "noise"), [(1.3, 0.7, 0.5), (-0.4, 3.0, 0.01), (5.0, -20.0, 2.0)])
def test_one_weight_one_point(x, y, noise):
    """``y = w x + noise``: ADF is exact, and equals the integral."""
    mean, variance = double(0.3), double(1.2)
    m, v = (t.clone().requires_grad_() for t in (mean, variance))
    torch.distributions.Normal(m * x, (v * x * x + noise).sqrt()).log_prob(double(y)).backward()
    new_mean, new_variance, accepted = adf_update(mean, variance, m.grad, v.grad)

    def posterior(w):
        return stats.norm.pdf(w, 0.3, math.sqrt(1.2)) * stats.norm.pdf(y, w * x, math.sqrt(noise))

    centre, width = float(new_mean), 12 * math.sqrt(float(new_variance))
    _, right_mean, right_variance = quadrature_moments(posterior, centre - width, centre + width)
    assert accepted
    assert float(new_mean) == pytest.approx(right_mean, rel=1e-9)
    assert float(new_variance) == pytest.approx(right_variance, rel=1e-8)


@pytest.mark.parametrize(("a", "b"), [(6.0, 6.0), (40.0, 11.0), (1.5, 0.2)])
@pytest.mark.parametrize("shift", [0.0, 1.0, -0.3])
def test_gamma_update_matches_two_moments(a, b, shift):
    """The evidence ``exp(shift t)``, for which ``Z_k = (b / (b - shift))^(a + k)``."""
    if shift >= b:
        shift = b / 2
    log_z = [double((a + k) * math.log(b / (b - shift))) for k in range(3)]
    new_a, new_b, accepted = gamma_update(*log_z, double(a), double(b))
    assert accepted
    # the product is Gamma(a, b - shift) itself
    assert float(new_a) == pytest.approx(a, rel=1e-10)
    assert float(new_b) == pytest.approx(b - shift, rel=1e-10)


@pytest.mark.parametrize(("a", "b", "error", "variance"), [(6.0, 6.0, 0.5, 0.3), (9.0, 3.0, 2.5, 0.0)])
def test_gamma_update_against_quadrature(a, b, error, variance):
    """Moments of ``Gamma(t; a, b) N(error; 0, variance + 1/t)``; the ``Z_k`` are integrated too."""

    def density(t):
        return stats.norm.pdf(error, 0, np.sqrt(variance + 1 / t))

    log_z = []
    for k in range(3):
        z, *_ = quadrature_moments(
            lambda t, k=k: stats.gamma.pdf(t, a + k, scale=1 / b) * density(t), 1e-9, 60
        )
        log_z.append(double(math.log(z)))
    new_a, new_b, _ = gamma_update(*log_z, double(a), double(b))

    def product(t):
        return stats.gamma.pdf(t, a, scale=1 / b) * density(t)

    _, mean, spread = quadrature_moments(product, 1e-9, 60)
    assert float(new_a / new_b) == pytest.approx(mean, rel=1e-7)
    assert float(new_a / new_b**2) == pytest.approx(spread, rel=1e-6)


def test_gamma_update_keeps_its_digits_when_the_shape_is_large():
    """a = 1e5, as after many passes: there the printed difference has lost five digits."""
    import mpmath

    a, b, error, variance = 1e5, 3e4, 0.9, 0.05
    with mpmath.workdps(40):
        s = [mpmath.mpf(b) / (mpmath.mpf(a) + k - 1) + variance for k in range(3)]
        exact = [-(mpmath.log(t) + mpmath.mpf(error) ** 2 / t) / 2 for t in s]
        right_a = 1 / (mpmath.exp(exact[2] - 2 * exact[1] + exact[0]) * (a + 1) / a - 1)
        right_b = right_a * b / (a * mpmath.exp(exact[1] - exact[0]))
    new_a, new_b, accepted = gamma_update(*(double(float(z)) for z in exact), double(a), double(b))
    assert accepted
    assert float(new_a) == pytest.approx(float(right_a), rel=1e-10)
    assert float(new_b) == pytest.approx(float(right_b), rel=1e-10)


def test_guards_keep_the_old_values():
    nan, inf = math.nan, math.inf
    mean, variance = double([1.0] * 7), double([2.0] * 7)
    by_mean = double([nan, 0.0, inf, 5.0, 0.1, 0.0, 0.0])
    by_variance = double([0.0, nan, inf, 0.0, 0.0, -0.25, inf])
    new_mean, new_variance, accepted = adf_update(mean, variance, by_mean, by_variance)
    assert accepted.tolist() == [False, False, False, False, True, False, False]
    assert new_mean[~accepted].tolist() == [1.0] * 6
    assert new_variance[~accepted].tolist() == [2.0] * 6
    assert new_mean[4] == pytest.approx(1.2)
    assert new_variance[4] == pytest.approx(2 - 4 * 0.01)


@pytest.mark.parametrize("log_z", [(0.0, 0.0, -1.0), (0.0, math.nan, 0.0), (0.0, 800.0, 0.0), (0, -800.0, 0)])
def test_gamma_guard(log_z):
    a, b, accepted = gamma_update(*map(double, log_z), double(6.0), double(5.0))
    assert not accepted
    assert (float(a), float(b)) == (6.0, 5.0)


@settings(deadline=None, max_examples=200)
@given(
    gradient=st.tuples(st.floats(width=64), st.floats(width=64)),
    log_z=st.tuples(*[st.floats(width=64)] * 3),
    start=st.tuples(st.floats(1.01, 1e8), st.floats(1e-6, 1e8)),
)
def test_any_numbers_leave_a_finite_state(gradient, log_z, start):
    mean, variance, _ = adf_update(double([0.5]), double([start[1]]), *(double([g]) for g in gradient))
    assert torch.isfinite(variance)
    assert variance > 0
    assert not torch.isnan(mean)
    assert proper_gamma(*gamma_update(*map(double, log_z), *map(double, start))[:2])
    site = PriorSite(double(1.0), double(0.0), double(0.0))
    cavity_mean = double(gradient[0])
    refined = refine_precision(cavity_mean, double(start[1]), double(1) > 0, site, *map(double, start))
    assert all(torch.isfinite(p) for p in refined[1:3])  # proper or not: the published sweep goes on
    assert all(torch.isfinite(p) for p in refined[0])


def test_a_batch_of_one_is_the_single_update():
    rng = np.random.default_rng(0)
    mean, variance = double(rng.normal(size=(3, 4))), double(rng.uniform(0.1, 1, (3, 4)))
    gradients = [double(rng.normal(size=(3, 4))) for _ in range(2)]
    gradients[1] -= 3  # some variances would turn negative
    single = adf_update(mean, variance, *gradients)
    batch = batch_update(mean, variance, *(g[None] for g in gradients))
    for a, b in zip(single, batch, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert not single[2].all()


def test_a_batch_adds_natural_parameters():
    """Three points matched against the same state: precisions and precision-weighted means add."""
    rng = np.random.default_rng(1)
    mean, variance = double(0.4), double(0.8)
    by_mean, by_variance = double(rng.normal(size=3)), double(-rng.uniform(0, 0.2, 3))
    each = [adf_update(mean, variance, g, h) for g, h in zip(by_mean, by_variance, strict=True)]
    precision = 1 / variance + sum(1 / v - 1 / variance for _, v, _ in each)
    pull = mean / variance + sum(m / v - mean / variance for m, v, _ in each)
    new_mean, new_variance, accepted = batch_update(mean, variance, by_mean, by_variance)
    assert accepted
    torch.testing.assert_close(new_variance, 1 / precision)
    torch.testing.assert_close(new_mean, pull / precision)


def test_cavity_times_site_is_the_posterior():
    rng = np.random.default_rng(2)
    mean, variance = double(rng.normal(size=50)), double(rng.uniform(0.05, 0.8, 50))
    site = double(rng.uniform(0.1, 1.2, 50))
    without = cavity(mean, variance, site)
    assert without.informative.all()
    back = without.variance / (1 + without.variance * site)
    torch.testing.assert_close(back, variance)
    torch.testing.assert_close(without.mean * back / without.variance, mean)


def test_cavity_without_information_is_not_refined():
    """Posterior equal to its prior, wider than it, and nearly equal (variance of the cavity above 1e6)."""
    variance = double([0.5, 0.7, 0.5 - 1e-8, 0.4])
    without = cavity(double([0.1] * 4), variance, double([2.0] * 4))
    assert without.informative.tolist() == [False, False, False, True]
    assert torch.isfinite(without.mean).all()


@pytest.mark.parametrize(("mean", "variance", "a", "b"), [(0.8, 0.3, 7.0, 5.0), (-2.5, 1.0, 3.0, 9.0)])
def test_refinement_against_integration(mean, variance, a, b):
    """The precision of one weight: mean and second moment of ``t``, with the paper's ``Z``, a normal of the
    expected prior variance; and the weight: ``N(u; cavity) N(u; 0, b / (a - 1))``."""
    old = PriorSite(double(1.1), double(0.2), double(0.1))
    site, new_a, new_b, refined, _ = refine_precision(
        double(mean), double(variance), double(1) > 0, old, double(a + 0.2), double(b + 0.1)
    )
    assert refined
    z = [stats.norm.pdf(mean, 0, math.sqrt(variance + b / (a + k - 1))) for k in range(3)]
    first, second = a / b * z[1] / z[0], a * (a + 1) / b**2 * z[2] / z[0]
    assert float(new_a / new_b) == pytest.approx(first, rel=1e-10)
    assert float(new_a * (new_a + 1) / new_b**2) == pytest.approx(second, rel=1e-10)
    # the cavity of the next sweep takes off what this one put in
    assert float(new_a - site.concentration) == pytest.approx(a, rel=1e-12)
    assert float(new_b - site.rate) == pytest.approx(b, rel=1e-12)

    def tilted(u):
        return stats.norm.pdf(u, mean, math.sqrt(variance)) * stats.norm.pdf(u, 0, math.sqrt(b / (a - 1)))  # noqa: E731

    _, right_mean, right_variance = quadrature_moments(tilted, -15, 15)
    precision = 1 / variance + float(site.precision)
    assert 1 / precision == pytest.approx(right_variance, rel=1e-8)
    assert mean / variance / precision == pytest.approx(right_mean, rel=1e-8)


def test_refusal_leaves_site_and_precision_alone():
    old = PriorSite(double(1.1), double(0.2), double(0.1))
    # no information; and a cavity of the precision with a shape below 1, which only its own test catches
    for informative, a, variance in ((False, 7.0, 0.5), (True, 1.1, 60.0)):
        site, *gamma, refined, _ = refine_precision(
            double(0.5), double(variance), torch.tensor(informative), old, double(a), double(5.0)
        )
        assert not refined
        assert [float(g) for g in gamma] == [a, 5.0]
        assert site == old


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1.0, 1e6])
def test_units_of_a_weight_do_not_matter(unit, dtype):
    """A weight in other units has its update in these, however small its variance is then."""
    mean, variance, grad_mean, grad_variance = torch.tensor([0.3, 1.2, 0.2, -0.2], dtype=dtype)
    updates = (adf_update, lambda m, v, *grads: batch_update(m, v, *(g[None] for g in grads)))
    for update in updates:
        new_mean, new_variance, _ = update(mean, variance, grad_mean, grad_variance)
        found = update(mean * unit, variance * unit**2, grad_mean / unit, grad_variance / unit**2)
        assert found[2]
        torch.testing.assert_close(found[0] / unit, new_mean)
        torch.testing.assert_close(found[1] / unit**2, new_variance)


def test_a_cavity_is_informative_up_to_a_million_times_the_prior():
    site = double(0.5)
    for spread, informative in ((0.9e6, True), (1.1e6, False)):
        found = cavity(double(0.3), 1 / (site + 1 / spread), site)
        assert bool(found.informative) == informative
        assert float(found.variance) == pytest.approx(spread if informative else 1.0, rel=1e-6)
