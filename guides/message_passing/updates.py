"""One step of assumed density filtering, and the refinement of the prior, as functions of numbers.

Paper symbols (Hernandez-Lobato and Adams 2015, section 3): ``Z`` the normaliser of a tilted distribution,
``m``, ``v`` mean and variance of a weight, ``alpha``, ``beta`` shape and rate of a Gamma (here
``concentration``, ``rate``).

Nothing is stored unless it is finite and a proper distribution: every function says what it accepted.  The
values that it puts in place of a refused one are the old ones.
"""

from __future__ import annotations

from typing import NamedTuple

from guides.message_passing.arrays import Array, operations

#: a cavity variance above this (in units of the prior) says that the data have not met the weight
WIDEST_CAVITY = 1e6


def adf_update(
    mean: Array, variance: Array, grad_mean: Array, grad_variance: Array
) -> tuple[Array, Array, Array]:
    """Moments of ``N(w; m, v) * evidence(w) / Z`` from the gradient of ``log Z`` in ``m`` and ``v``.

        m' = m + v dlogZ/dm,    v' = v - v^2 [ (dlogZ/dm)^2 - 2 dlogZ/dv ]

    :returns: ``(m', v', accepted)``, elementwise; accepted where finite and ``v' > 1e-100`` (float32: 1e-30)
    """
    new_mean = mean + variance * grad_mean
    new_variance = variance - variance * variance * (grad_mean * grad_mean - 2 * grad_variance)
    return _accept(mean, variance, new_mean, new_variance)


def batch_update(
    mean: Array, variance: Array, grads_mean: Array, grads_variance: Array
) -> tuple[Array, Array, Array]:
    """Several data points at once: each is matched against the same old state, then all are multiplied.

    With ``c = (dlogZ/dm)^2 - 2 dlogZ/dv`` a point changes the precision ``1/v`` by ``c / (1 - v c)``, and
    ``m/v`` by ``(dlogZ/dm + m c) / (1 - v c)``; the sum of these changes gives

        v' = v / (1 + v sum c / (1 - v c)),    m' = m + v' sum dlogZ/dm / (1 - v c).

    One point gives :func:`adf_update`.  A point that would make the variance of a weight negative on its own
    (``1 - v c <= 0``), or is not finite, is left out for this weight.

    :param grads_mean: ``[points, *weights]``, as ``grads_variance``
    :returns: ``(m', v', accepted)``; accepted ``[*weights]`` only if every point was
    """
    ops = operations(mean)
    curvature = grads_mean * grads_mean - 2 * grads_variance
    shrink = 1 - variance * curvature
    usable = (shrink > _smallest(variance) / variance) & ops.isfinite(shrink) & ops.isfinite(grads_mean)
    shrink = ops.where(usable, shrink, ops.full_like(shrink, 1.0))
    zero = ops.zeros_like(shrink)
    precision = ops.where(usable, curvature / shrink, zero).sum(0)
    pull = ops.where(usable, grads_mean / shrink, zero).sum(0)
    new_variance = variance / (1 + variance * precision)
    new_mean, new_variance, accepted = _accept(mean, variance, mean + new_variance * pull, new_variance)
    return new_mean, new_variance, accepted & usable.all(0)


def gamma_update(
    log_z0: Array, log_z1: Array, log_z2: Array, concentration: Array, rate: Array
) -> tuple[Array, Array, Array]:
    """The Gamma with the mean and second moment of ``Gamma(t; a, b) * evidence(t) / Z``; all in float64.

    ``log_zk`` is ``log Z`` with the shape ``a + k`` in place of ``a`` (up to a constant common to the
    three), because ``t Gamma(t; a, b) = a/b Gamma(t; a + 1, b)``.  So ``E[t] = a/b Z_1/Z_0`` and ``E[t^2] =
    a(a+1)/b^2 Z_2/Z_0``, and

        1/a' = E[t^2] / E[t]^2 - 1,     b' = a' / E[t].

    :returns: ``(a', b', accepted)``; accepted if both are finite, ``a' > 1`` and ``b' > 0``
    """
    ops = operations(concentration)
    ratio = log_z1 - log_z0
    new = match_gamma(ops.exp(ratio), ops.expm1((log_z2 - log_z1) - ratio), concentration, rate)
    accepted = proper_gamma(*new)
    return *(ops.where(accepted, n, old) for n, old in zip(new, (concentration, rate), strict=True)), accepted


def match_gamma(ratio: Array, excess: Array, concentration: Array, rate: Array) -> tuple[Array, Array]:
    """``(a', b')`` of :func:`gamma_update` from ``ratio = Z_1/Z_0`` and ``excess = Z_2 Z_0 / Z_1^2 - 1``.

    ``E[t^2] / E[t]^2 - 1 = (1 + excess)(1 + 1/a) - 1``, so ``a' = a / (1 + (a + 1) excess)`` without
    cancellation.
    """
    new_concentration = concentration / (1 + (concentration + 1) * excess)
    return new_concentration, new_concentration * rate / (concentration * ratio)


def proper_gamma(concentration: Array, rate: Array) -> Array:
    """Finite, with ``a > 1`` (else ``E[1/t]``, the variance it stands for, does not exist) and ``b > 0``."""
    ops = operations(concentration)
    return ops.isfinite(concentration) & ops.isfinite(rate) & (concentration > 1) & (rate > 0)


def expected_variance(concentration: Array, rate: Array, k: int = 0) -> Array:
    """``E[1/t] = b / (a + k - 1)`` of a precision ``t ~ Gamma(a + k, b)``."""
    return rate / (concentration + (k - 1))


class PriorSite(NamedTuple):
    """The factor that stands for ``N(u; 0, 1/t)`` in the posterior of a weight ``u`` and its precision ``t``.

    Up to a constant ``exp(-precision u^2 / 2) t^concentration exp(-rate t)``.  The published algorithm also
    keeps a linear term in ``u``; it is always 0, because the expected prior is symmetric.
    """

    precision: Array
    concentration: Array
    rate: Array


class Cavity(NamedTuple):
    """The posterior of weights without their own prior factors."""

    mean: Array
    variance: Array
    informative: Array  #: boolean: 0 < variance < WIDEST_CAVITY; only such a weight is refined


def cavity(mean: Array, variance: Array, site_precision: Array) -> Cavity:
    """``1/v_c = 1/v - site``, ``m_c/v_c = m/v``; elementwise, in units where the prior is ``N(0, 1/t)``."""
    ops = operations(mean)
    precision = 1 / variance - site_precision
    informative = (precision > 1 / WIDEST_CAVITY) & ops.isfinite(precision) & ops.isfinite(mean)
    wide = ops.where(informative, 1 / precision, ops.full_like(precision, 1.0))
    return Cavity(mean / variance * wide, wide, informative)


def refine_precision(
    mean: Array, variance: Array, informative: Array, site: PriorSite, concentration: Array, rate: Array
) -> tuple[PriorSite, Array, Array, Array, Array]:
    """Redo the prior factor of one weight against its cavity ``N(mean, variance)``.

    The weight's own part of ``Gamma(t; a, b)`` is taken off, ``N(u; 0, 1/t)`` multiplied in, and the
    moments of ``t`` matched.  Its normaliser is ``Z_k = N(mean; 0, variance + b_c/(a_c + k - 1))``; the
    expected prior of the weight itself is then ``N(u; 0, b_c/(a_c - 1))``, the new Gaussian part of the
    site.

    Only the cavity must be proper.  What comes out need not be: in wide, deep networks ``a'`` falls below
    1 and even below 0, and most cavities of the following weights then fail their test.  The published
    program goes on like this, and so do we: a sweep that keeps its Gamma proper lets the expected prior
    variance grow without end there (predictions of 50x50x50 networks are then lost, though all is finite).

    :returns: ``(new site, a', b', refined, refused)``; the old ones unless refined.  Weights whose cavity
        fails its test are neither refined nor refused; refused is what would not be finite
    """
    ops = operations(concentration)
    a, b = concentration - site.concentration, rate - site.rate  # the cavity of t
    half_square = 0.5 * mean * mean
    prior_variances = [expected_variance(a, b, k) for k in range(3)]
    # Z_k^2 is w_k exp(-mean^2 w_k), up to a constant
    w0, w1, w2 = (1 / (variance + s) for s in prior_variances)
    ratio = ops.sqrt(w1 / w0) * ops.exp(half_square * (w0 - w1))
    next_ratio = ops.sqrt(w2 / w1) * ops.exp(half_square * (w1 - w2))
    new_a, new_b = match_gamma(ratio, next_ratio / ratio - 1, a, b)
    tried = informative & proper_gamma(a, b)
    refined = tried & ops.isfinite(new_a) & ops.isfinite(new_b)
    new = PriorSite(1 / prior_variances[0], new_a - a, new_b - b)
    site = PriorSite(*(ops.where(refined, n, old) for n, old in zip(new, site, strict=True)))
    return (
        site,
        ops.where(refined, new_a, concentration),
        ops.where(refined, new_b, rate),
        refined,
        tried & ~refined,
    )


def _accept(mean: Array, variance: Array, new_mean: Array, new_variance: Array) -> tuple[Array, Array, Array]:
    """A gradient that is not finite shows in the variance, which has its square; so only that is tested."""
    ops = operations(mean)
    accepted = (new_variance > _smallest(variance)) & ops.isfinite(new_variance)
    return ops.where(accepted, new_mean, mean), ops.where(accepted, new_variance, variance), accepted


def _smallest(variance: Array) -> float:
    return 1e-100 if variance.dtype.itemsize == 8 else 1e-30
