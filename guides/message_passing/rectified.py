"""What a ReLU or a leaky ReLU does to a normal variable, without cancellation, with exact derivatives.

Let ``a ~ N(m, v)``, ``alpha = m / sqrt(v)``, and ``phi``, ``Phi`` the standard normal density and
distribution function.  A standard normal variable cut off below ``-alpha``, and shifted by ``alpha``, has

    mean      h = g + alpha,      g = phi(alpha) / Phi(alpha)
    variance  s = 1 - g h

For ``alpha << 0`` both differences lose every digit: in float64 the published code has a negative variance
below -1e4, and in float32 noise below -30.  With ``x = -alpha >= 0`` the continued fraction of Laplace,

    g = x + 1/(x + 2/(x + 3/(x + ...))) ,

gives them as products and quotients of positive numbers.  Name its tails ``T = 2/(x + U)`` and
``U = 3/(x + ...)``:

    h = 1/(x + T),    s = h (T - h),    h^2 - s = h^2 T (U - T),    Phi(-x) = phi(x) / (x + h).

``U`` is all that has to be approximated, by one ratio of polynomials for all ``x >= 0``.  ``alpha > 0``
follows by symmetry.  Derivatives: ``dh/dalpha = s``, ``ds/dalpha = g (h^2 - s)``, ``dlogPhi/dalpha = g``.

Symbols: ``m``, ``v`` the incoming mean and variance, primes (here ``new_``) the outgoing ones, as in
Hernandez-Lobato and Adams (2015), section 3.2, and Ott and Williamson (2022), chapter 3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from guides.message_passing.arrays import Array, largest_ratio, operations, smallest_variance, with_partials

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)

# U(x) = 3 y P(y) / Q(y) with y = 1 / (x + 2), constant terms first.  Least squares in the relative error,
# weighted towards minimax, in 80 digits; every coefficient is positive, so nothing cancels.
P_OF_Y = (
    1.0,
    13.75505392080474,
    155.03368968732008,
    1206.8855960385256,
    7618.943002810719,
    38456.58989276722,
    158024.17799743338,
    519890.08763443306,
    1324737.1746951877,
    2410217.6054132846,
    2517961.0323274024,
)
Q_OF_Y = (
    1.0,
    11.75505392080511,
    131.52358184546415,
    959.83843241119,
    5931.346992107364,
    29143.496296687044,
    119215.23586033245,
    398182.6560808023,
    1073005.5572811172,
    2234646.3054455,
    3293474.401663356,
    2693646.769708226,
)


class LowerTail(NamedTuple):
    """A standard normal cut off below ``x >= 0`` and shifted to start at 0; one number for each ``x``."""

    density: Array  #: phi(x)
    mass: Array  #: Phi(-x), at most 1/2; 0 where it underflows
    mean: Array  #: h
    variance: Array  #: s
    bend: Array  #: h^2 - s


def lower_tail(x: Array) -> LowerTail:
    """The pair ``h``, ``s`` at ``alpha = -x <= 0``, relative error below 1e-14 (float64)."""
    y = 1 / (x + 2)
    u = 3 * y * horner(P_OF_Y, y) / horner(Q_OF_Y, y)
    t = 2 / (x + u)
    h = 1 / (x + t)
    density = INV_SQRT_2PI * operations(x).exp(-0.5 * x * x)
    return LowerTail(density, density / (x + h), h, h * (t - h), h * h * t * (u - t))


def horner(coefficients: tuple[float, ...], y: Array) -> Array:
    """The polynomial with these coefficients, constant term first."""
    return functools.reduce(lambda value, c: value * y + c, reversed(coefficients))


def standardise(m: Array, v: Array) -> tuple[Array, Array, Array]:
    """``(v, sqrt(v), alpha)``, the variance large and the ratio small enough to be squared."""
    ops = operations(m)
    v = ops.clip(v, smallest_variance(v))
    sd = ops.sqrt(v)
    bound = largest_ratio(m)
    return v, sd, ops.clip(m / sd, -bound, bound)


@functools.cache
def rectified_moments(slope: float) -> Callable[[Array, Array], tuple[Array, Array]]:
    """The function ``(m, v) -> (mean, variance)`` of ``max(a, 0) + slope min(a, 0)``, ``a ~ N(m, v)``.

    ``slope = 0`` is the ReLU.  With ``t(alpha) = E[max(a, 0)] / sd = alpha Phi + phi`` and
    ``w(alpha) = Var[max(a, 0)] / v = Phi (s + Phi(-alpha) h^2)``, both at ``-|alpha|``, where they are
    products of positive numbers, the other side follows from ``max(a, 0) - max(-a, 0) = a``:

        t(|alpha|) = |alpha| + t,     w(|alpha|) = 1 - w - 2 t(|alpha|) t        (in [0.34, 1])
    """
    c = slope

    @with_partials
    def moments(m: Array, v: Array):
        v, sd, alpha = standardise(m, v)
        ops = operations(m)
        x, positive = abs(alpha), m > 0
        phi, mass, h, s, _ = lower_tail(x)
        small = mass * h  # t(-x)
        large = x + small  # t(x)
        w = mass * (s + (1 - mass) * h * h)

        mean = ops.where(positive, m, c * m) + (1 - c) * sd * small
        # Var = w(alpha) + c^2 w(-alpha) + 2 c t(alpha) t(-alpha): the two sides exclude each other
        other = 1 - w - 2 * large * small
        cross = 2 * c * large * small
        variance = v * (ops.where(positive, other + c * c * w, w + c * c * other) + cross)

        above = ops.where(positive, 1 - mass, mass)  # Phi(alpha)
        t_above, t_below = ops.where(positive, large, small), ops.where(positive, small, large)
        mean_partials = (above + c * (1 - above), (1 - c) * phi / (2 * sd))
        variance_partials = (
            2 * (1 - c) * sd * (t_above * (1 - above) + c * t_below * above),
            above + c * c * (1 - above) - (1 - c) * (t_above - c * t_below) * phi,
        )
        return (mean, variance), (mean_partials, variance_partials)

    return moments


@with_partials
def rectified_slab(m: Array, v: Array):
    """A ReLU splits ``N(m, v)``: ``(log Phi(alpha), log Phi(-alpha), m', v')``.

    ``Phi(alpha)`` is the probability of the part above 0, the rest becomes a spike at 0.

    ``m' = sqrt(v) h`` and ``v' = v s`` are mean and variance of the part above 0.
    """
    v, sd, alpha = standardise(m, v)
    ops = operations(m)
    x, positive = abs(alpha), m > 0
    phi, mass, h_below, s, bend = lower_tail(x)
    hazard = x + h_below  # g(-x)
    log_mass = -0.5 * x * x - HALF_LOG_2PI - ops.log(hazard)
    log_rest = ops.log1p(-mass)
    # the same four at alpha = x, where the plain formulas are exact
    g_above = phi / (1 - mass)
    h_above = x + g_above
    s_above = 1 - g_above * h_above
    # (h - alpha s), which is the derivative of sqrt(v) h in sqrt(v)
    lag = ops.where(positive, g_above * (1 + x * h_above), h_below + x * s)
    g, g_below = ops.where(positive, g_above, hazard), ops.where(positive, hazard, g_above)
    bend = ops.where(positive, h_above * h_above - s_above, bend)
    s = ops.where(positive, s_above, s)
    values = (
        ops.where(positive, log_rest, log_mass),
        ops.where(positive, log_mass, log_rest),
        ops.clip(m, 0.0) + sd * ops.where(positive, g_above, h_below),
        v * s,
    )
    in_m, in_v = 1 / sd, -alpha / (2 * v)  # dalpha/dm, dalpha/dv
    partials = (
        (g * in_m, g * in_v),
        (-g_below * in_m, -g_below * in_v),
        (s, lag / (2 * sd)),
        (sd * g * bend, s - 0.5 * alpha * g * bend),
    )
    return values, partials
