"""The rectified normal against 60 digits, Monte Carlo, autodiff of the printed formulas, and any input."""

from __future__ import annotations

import functools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guides.message_passing.arrays import double_precision
from guides.message_passing.rectified import lower_tail, rectified_moments, rectified_slab

ALPHAS = np.concatenate([-np.logspace(4, -3, 57), [0.0], np.logspace(-3, math.log10(40), 33)])
DTYPES = {"float64": (torch.float64, 5e-13), "float32": (torch.float32, 9e-6)}
SMALLEST = {torch.float64: 1e-290, torch.float32: 1e-30}  # below, results may be denormal


@functools.cache
def exact(alpha: float) -> dict[str, mpmath.mpf]:
    """``Phi``, ``log Phi``, ``g``, ``h``, ``s`` at ``alpha``, in enough digits for the cancellation."""
    with mpmath.workdps(60):
        a = mpmath.mpf(alpha)
        cdf, tail = (mpmath.erfc(x / mpmath.sqrt(2)) / 2 for x in (-a, a))
        g = mpmath.npdf(a) / cdf
        h = g + a
        log_cdf = mpmath.log(cdf) if a < 0 else mpmath.log1p(-tail)
        return {"cdf": cdf, "tail": tail, "log": log_cdf, "g": g, "h": h, "s": 1 - g * h}


def worst(values, expected, smallest: float = 0.0) -> float:
    """Largest relative error; where less than ``smallest`` is expected, anything up to it is right."""
    error = 0.0
    for value, right in zip(values.tolist(), expected, strict=True):
        if abs(right) > smallest:
            error = max(error, float(abs(mpmath.mpf(value) / right - 1)))
        else:
            assert abs(value) <= 2 * smallest
    return error


@pytest.fixture(params=list(DTYPES))
def precision(request):
    return DTYPES[request.param]


def at(alphas, dtype) -> tuple[torch.Tensor, list[dict]]:
    tensor = torch.tensor(alphas, dtype=dtype)
    return tensor, [exact(a) for a in tensor.double().tolist()]


def test_slab_is_accurate_from_minus_ten_thousand_to_forty(precision):
    dtype, tolerance = precision
    alpha, right = at(ALPHAS, dtype)
    log_above, log_below, mean, variance = rectified_slab(alpha, torch.ones_like(alpha))
    assert worst(mean, [r["h"] for r in right]) < tolerance
    assert worst(variance, [r["s"] for r in right]) < tolerance
    assert worst(log_above, [r["log"] for r in right], SMALLEST[dtype]) < tolerance
    below = [exact(-a)["log"] for a in alpha.double().tolist()]
    assert worst(log_below, below, SMALLEST[dtype]) < tolerance


def test_float64_has_two_digits_to_spare():
    alpha, right = at(ALPHAS, torch.float64)
    _, _, mean, variance = rectified_slab(alpha, torch.ones_like(alpha))
    assert worst(mean, [r["h"] for r in right]) < 2e-15
    assert worst(variance, [r["s"] for r in right]) < 5e-15


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, 1.0, 2.0, -0.5])
def test_moments_are_accurate(precision, slope):
    dtype, tolerance = precision
    alpha, right = at(ALPHAS, dtype)
    mean, variance = rectified_moments(slope)(alpha, torch.ones_like(alpha))
    means, variances = [], []
    with mpmath.workdps(60):
        for a, r in zip(alpha.double().tolist(), right, strict=True):
            other, c = exact(-a), mpmath.mpf(slope)
            # a mixture of two truncated normals
            means.append(r["cdf"] * r["h"] - c * r["tail"] * other["h"])
            between = r["cdf"] * r["tail"] * (r["h"] + c * other["h"]) ** 2
            variances.append(r["cdf"] * r["s"] + c * c * r["tail"] * other["s"] + between)
    # the mean of a leaky ReLU crosses 0, where only the absolute error is small
    scale = [max(abs(m), abs(mpmath.mpf(slope)) * mpmath.mpf("0.1")) for m in means]
    errors = [
        float(abs(m - e) / s)
        for m, e, s in zip(mean.tolist(), means, scale, strict=True)
        if s > SMALLEST[dtype]
    ]
    assert max(errors) < tolerance
    assert worst(variance, variances, SMALLEST[dtype]) < tolerance


def test_hazard_and_bend(precision):
    dtype, tolerance = precision
    x = -np.asarray([a for a in ALPHAS if a <= 0])
    tail = lower_tail(torch.tensor(x, dtype=dtype))
    right = [exact(-a) for a in torch.tensor(x, dtype=dtype).double().tolist()]
    with mpmath.workdps(60):
        assert worst(tail.bend, [r["h"] ** 2 - r["s"] for r in right]) < tolerance
        assert worst(tail.mass, [r["cdf"] for r in right], SMALLEST[dtype]) < 10 * tolerance


@pytest.mark.parametrize("variance", [0.3, 7.0])
def test_slab_partials_are_exact_everywhere(variance):
    """``d/dm`` and ``d/dv`` of all four outputs in closed form, 60 digits, no autodiff."""
    sd = math.sqrt(variance)
    alphas = ALPHAS[np.abs(ALPHAS) < 2e3]
    m = torch.tensor(alphas * sd, requires_grad=True)
    v = torch.full_like(m, variance, requires_grad=True)
    rows = []
    for output in rectified_slab(m, v):
        rows.append(torch.autograd.grad(output.sum(), (m, v), retain_graph=True))
    for i, mean in enumerate(m.tolist()):
        with mpmath.workdps(60):
            root = mpmath.sqrt(variance)
            a = mean / root
            r, b = exact(float(a)), exact(-float(a))
            g, h, s = r["g"], r["h"], r["s"]
            bend = g * (h * h - s)
            expected = [
                (g / root, -g * a / (2 * variance)),
                (-b["g"] / root, b["g"] * a / (2 * variance)),
                (s, (h - a * s) / (2 * root)),
                (root * bend, s - a * bend / 2),
            ]
        for (in_m, in_v), (right_m, right_v) in zip(rows, expected, strict=True):
            assert float(in_m[i]) == pytest.approx(float(right_m), rel=3e-11, abs=1e-13)
            assert float(in_v[i]) == pytest.approx(float(right_v), rel=3e-11, abs=1e-13)


def printed_moments(m, v, slope, erfc, sqrt, exp):
    """The formulas as they are usually written, differentiable by any library."""
    sd = sqrt(v)
    alpha = m / sd
    cdf, tail = 0.5 * erfc(-alpha / math.sqrt(2)), 0.5 * erfc(alpha / math.sqrt(2))
    density = exp(-0.5 * alpha * alpha) / math.sqrt(2 * math.pi)
    above, below = m * cdf + sd * density, m * tail - sd * density
    second = (m * m + v) * (cdf + slope**2 * tail) + m * sd * density * (1 - slope**2)
    mean = above + slope * below
    return mean, second - mean * mean


def printed_slab(m, v, erfc, sqrt, exp, log):
    sd = sqrt(v)
    alpha = m / sd
    cdf, tail = 0.5 * erfc(-alpha / math.sqrt(2)), 0.5 * erfc(alpha / math.sqrt(2))
    g = exp(-0.5 * alpha * alpha) / math.sqrt(2 * math.pi) / cdf
    return log(cdf), log(tail), m + sd * g, v * (1 - g * (g + alpha))


GRID = [(float(a) * math.sqrt(v), v) for a in np.linspace(-4, 5, 19) for v in (0.05, 1.0, 30.0)]


@pytest.mark.parametrize("slope", [None, 0.0, 0.1, -0.7])
def test_derivatives_equal_autodiff_of_the_printed_formulas_in_torch(slope):
    m, v = (torch.tensor(c, dtype=torch.float64, requires_grad=True) for c in zip(*GRID, strict=True))
    if slope is None:
        ours, theirs = (
            rectified_slab(m, v),
            printed_slab(m, v, torch.special.erfc, torch.sqrt, torch.exp, torch.log),
        )
    else:
        ours = rectified_moments(slope)(m, v)
        theirs = printed_moments(m, v, slope, torch.special.erfc, torch.sqrt, torch.exp)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        for x, y in zip(
            *(torch.autograd.grad(out.sum(), (m, v), retain_graph=True) for out in (a, b)), strict=True
        ):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "slope", [pytest.param(None, marks=pytest.mark.slow), pytest.param(0.0, marks=pytest.mark.slow), 0.1]
)
def test_derivatives_equal_autodiff_of_the_printed_formulas_in_jax(slope):
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import erfc

    with double_precision():
        m, v = (jnp.asarray(c) for c in zip(*GRID, strict=True))
        if slope is None:
            ours, theirs = rectified_slab, lambda m, v: printed_slab(m, v, erfc, jnp.sqrt, jnp.exp, jnp.log)
        else:
            ours = rectified_moments(slope)
            theirs = lambda m, v: printed_moments(m, v, slope, erfc, jnp.sqrt, jnp.exp)  # noqa: E731
        a, b = (np.asarray(jax.jit(jax.vmap(jax.jacrev(f, (0, 1))))(m, v)) for f in (ours, theirs))
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)


def test_torch_and_jax_agree():
    import jax
    import jax.numpy as jnp

    m, v = torch.tensor(ALPHAS), torch.linspace(1e-3, 20.0, len(ALPHAS), dtype=torch.float64)
    with double_precision():
        for function in (rectified_slab, rectified_moments(0.0), rectified_moments(0.2)):
            compiled = jax.jit(function)(jnp.asarray(m.numpy()), jnp.asarray(v.numpy()))
            for a, b in zip(function(m, v), compiled, strict=True):
                np.testing.assert_allclose(a.numpy(), np.asarray(b), rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize(("mean", "variance"), [(0.4, 2.0), (-1.5, 1.0), (2.0, 0.5)])
@pytest.mark.parametrize("slope", [0.0, 0.01, 0.4, -0.6])
def test_moments_against_monte_carlo(mean, variance, slope):
    n = 400_000
    a = np.random.default_rng(4).normal(mean, math.sqrt(variance), n)
    z = np.where(a > 0, a, slope * a)
    m, v = (float(t) for t in rectified_moments(slope)(torch.tensor(mean), torch.tensor(variance)))
    assert abs(z.mean() - m) < 5 * z.std() / math.sqrt(n)
    squares = (z - m) ** 2
    assert abs(squares.mean() - v) < 5 * squares.std() / math.sqrt(n)


@pytest.mark.parametrize(("mean", "variance"), [(0.4, 2.0), (-1.5, 1.0), (2.0, 0.5)])
def test_slab_against_monte_carlo(mean, variance):
    n = 400_000
    a = np.random.default_rng(5).normal(mean, math.sqrt(variance), n)
    above = a[a > 0]
    log_above, log_below, m, v = (
        float(t)
        for t in rectified_slab(
            torch.tensor(mean, dtype=torch.float64), torch.tensor(variance, dtype=torch.float64)
        )
    )
    share = len(above) / n
    error = 5 * math.sqrt(share * (1 - share) / n)
    assert abs(math.exp(log_above) - share) < error
    assert abs(math.exp(log_below) - (1 - share)) < error
    assert abs(above.mean() - m) < 5 * above.std() / math.sqrt(len(above))
    squares = (above - m) ** 2
    assert abs(squares.mean() - v) < 5 * squares.std() / math.sqrt(len(above))


def numbers(bound: float):
    return st.floats(-bound, bound, allow_nan=False)


EXTREMES = dict(m=numbers(1e30), v=st.floats(0, 1e30), slope=st.sampled_from([0.0, 0.01, 0.5]))


@settings(deadline=None, max_examples=100)
@given(**EXTREMES)
def test_no_input_gives_nan_or_a_negative_variance(m, v, slope):
    never_nan_or_negative(m, v, slope)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(**EXTREMES)
def test_no_input_gives_nan_or_a_negative_variance_at_length(m, v, slope):
    never_nan_or_negative(m, v, slope)


def never_nan_or_negative(m, v, slope):
    for dtype, bound in ((torch.float64, math.inf), (torch.float32, 1e12)):
        if abs(m) > bound or v > bound:
            continue
        mean_in = torch.tensor([m], dtype=dtype, requires_grad=True)
        variance_in = torch.tensor([v], dtype=dtype, requires_grad=True)
        for outputs in (rectified_slab(mean_in, variance_in), rectified_moments(slope)(mean_in, variance_in)):
            assert all(torch.isfinite(o).all() for o in outputs)
            assert float(outputs[-1].detach()) >= 0
            for o in outputs:
                gradients = torch.autograd.grad(o.sum(), (mean_in, variance_in), retain_graph=True)
                assert all(torch.isfinite(g).all() for g in gradients)


def test_a_known_number_stays_known():
    m = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    mean, variance = rectified_moments(0.0)(m, torch.zeros_like(m))
    torch.testing.assert_close(mean, torch.relu(m), rtol=0, atol=1e-49)
    assert float(variance.max()) <= 1e-99
