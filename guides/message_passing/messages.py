"""The two message families: how a distribution over activations passes through the layers of a network.

A message stands for independent random activations.  ``GAUSSIAN`` (probabilistic backpropagation,
Hernandez-Lobato and Adams 2015) describes each by mean and variance.  ``SPIKE_SLAB`` (Ott and Williamson
2022) says: with probability ``1 - rho`` exactly 0 (the spike), else normal (the slab).  A ReLU makes exact
zeros, hence the spike.

Every operation returns the message with the same first two moments as the exact result (for spike and slab:
the same probability of 0, and the same two moments of the rest).  The functions take torch tensors and JAX
arrays; leading dimensions are batch dimensions.  Variances are sums of non-negative terms, so they are
never negative.

Symbols: ``M``, ``V`` mean and variance of the weights, ``rho``, ``m``, ``v`` of the activations (index i),
``pi`` the slab probability of a whole layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from guides.message_passing.arrays import Array, operations
from guides.message_passing.rectified import rectified_moments, rectified_slab

LOG_HALF = math.log(0.5)
Bias = tuple[Array, Array]


class GaussianMessage(NamedTuple):
    """Independent normal activations; each array ``[..., k]``."""

    mean: Array
    variance: Array


class SpikeSlabMessage(NamedTuple):
    """Independent activations that are 0 or normal; ``mean``, ``variance`` of the slab ``[..., k]``.

    ``log_slab = log rho`` and ``log_spike = log(1 - rho)`` broadcast to that.  Both are kept, because
    neither can be computed from the other where it is near 0.
    """

    log_slab: Array
    log_spike: Array
    mean: Array
    variance: Array


class Gaussian:
    """Messages of probabilistic backpropagation."""

    name = "gaussian"

    def constant(self, values: Array) -> GaussianMessage:
        """Known numbers ``[..., k]``."""
        return GaussianMessage(values, operations(values).zeros_like(values))

    def linear(
        self, m: GaussianMessage, mean: Array, variance: Array, bias: Bias | None = None
    ) -> GaussianMessage:
        """``W z (+ b)`` for independent ``W`` (moments ``[out, in]``), ``z`` and ``b`` (moments ``[out]``).

        ``mean = M m``,  ``variance = (M^2 + V) v + V m^2``.
        """
        out = m.mean @ mean.T
        spread = m.variance @ (mean * mean + variance).T + (m.mean * m.mean) @ variance.T
        return _with_bias(out, spread, bias)

    def linear_of_numbers(
        self, x: Array, mean: Array, variance: Array, bias: Bias | None = None
    ) -> GaussianMessage:
        """``W x (+ b)`` for known ``x`` ``[..., in]``: ``mean = M x``, ``variance = V x^2``."""
        return _with_bias(x @ mean.T, (x * x) @ variance.T, bias)

    def scale(self, m: GaussianMessage, factor: Any) -> GaussianMessage:
        """``factor * z``; ``factor`` a number or ``[k]``."""
        factor = operations(m.mean).like(factor, m.mean)
        return GaussianMessage(factor * m.mean, factor * factor * m.variance)

    def shift(self, m: GaussianMessage, offset: Any) -> GaussianMessage:
        """``z + offset`` for a known ``offset``, which broadcasts."""
        return _with_bias(m.mean + operations(m.mean).like(offset, m.mean), m.variance, None)

    def relu(self, m: GaussianMessage) -> GaussianMessage:
        """``max(z, 0)``."""
        return self.leaky_relu(m, 0.0)

    def leaky_relu(self, m: GaussianMessage, slope: float) -> GaussianMessage:
        """``max(z, 0) + slope * min(z, 0)``."""
        return GaussianMessage(*rectified_moments(float(slope))(m.mean, m.variance))

    def add(self, m1: GaussianMessage, m2: GaussianMessage) -> GaussianMessage:
        """The sum of two branches, taken as independent."""
        return GaussianMessage(m1.mean + m2.mean, m1.variance + m2.variance)

    def concatenate(self, ms: Sequence[GaussianMessage]) -> GaussianMessage:
        """Along the last dimension."""
        join = operations(ms[0].mean).concatenate
        return GaussianMessage(join([m.mean for m in ms]), join([m.variance for m in ms]))

    def log_evidence(self, m: GaussianMessage, y: Array, noise_variance: Array) -> Array:
        """``log E[N(y; z, noise_variance)] + log(2 pi) / 2``; ``m`` and ``y`` of one shape ``[...]``."""
        return _log_normal(y - m.mean, m.variance + noise_variance)

    def mean_and_variance(self, m: GaussianMessage) -> tuple[Array, Array]:
        """Of the activations."""
        return m.mean, m.variance


class SpikeSlab:
    """Messages of spike-and-slab probabilistic backpropagation; same operations as :class:`Gaussian`."""

    name = "spike-slab"

    def constant(self, values: Array) -> SpikeSlabMessage:
        return self._certain(GAUSSIAN.constant(values))

    def linear(
        self, m: SpikeSlabMessage, mean: Array, variance: Array, bias: Bias | None = None
    ) -> SpikeSlabMessage:
        """``W z (+ b)``: all units share one spike, that every ``z_i`` is 0; with a bias there is none.

        With ``R_i = rho_i / pi = P(z_i is in its slab | some z is)`` the slab has

            mean_j = sum_i M_ji R_i m_i
            var_j  = sum_i [ V_ji R_i (v_i + m_i^2) + M_ji^2 R_i v_i ]
                     + { sum_i M_ji^2 R_i (1 - rho_i) m_i^2 - (1 - pi) mean_j^2 }

        The braces are a variance too (of the mean given which ``z_i`` are 0), so ``var_j`` is at least its
        first term; that bound catches rounding.

        The ``z_i`` count as independent even where they share a spike, as they do after another linear layer
        or its ReLU; and a unit counts all of them, those too for which its weight is known to be 0.  The
        spike is then too small; the mean of the whole is right all the same.
        """
        ops = operations(m.mean)
        log_rho = ops.broadcast_to(m.log_slab, m.mean.shape)
        log_zero = ops.broadcast_to(m.log_spike, m.mean.shape)
        all_zero = ops.sum(log_zero)  # log(1 - pi)
        if bias is None:
            log_pi = _log_any(all_zero, ops.logsumexp(log_rho))
        else:
            log_pi, all_zero = ops.zeros_like(all_zero), ops.full_like(all_zero, -math.inf)
        conditional = ops.exp(ops.clip(log_rho - log_pi, high=0.0))  # R

        first = conditional * m.mean
        second = first * m.mean
        spread = conditional * m.variance
        out = first @ mean.T
        least = (spread + second) @ variance.T
        total = least + (spread + ops.exp(log_zero) * second) @ (mean * mean).T
        total = total - ops.exp(all_zero) * out * out
        slab = _with_bias(out, ops.where(total > least, total, least), bias)
        return SpikeSlabMessage(log_pi, all_zero, *slab)

    def linear_of_numbers(
        self, x: Array, mean: Array, variance: Array, bias: Bias | None = None
    ) -> SpikeSlabMessage:
        return self._certain(GAUSSIAN.linear_of_numbers(x, mean, variance, bias))

    def scale(self, m: SpikeSlabMessage, factor: Any) -> SpikeSlabMessage:
        return SpikeSlabMessage(m.log_slab, m.log_spike, *GAUSSIAN.scale(_slab(m), factor))

    def shift(self, m: SpikeSlabMessage, offset: Any) -> SpikeSlabMessage:
        """``z + offset``.  The spike must stay at 0: an offset is like a bias, its result all slab."""
        if isinstance(offset, int | float | np.ndarray) and not np.any(offset):
            return m
        return self._certain(GAUSSIAN.shift(GaussianMessage(*self.mean_and_variance(m)), offset))

    def relu(self, m: SpikeSlabMessage) -> SpikeSlabMessage:
        """``rho' = rho Phi(alpha)``; the slab is the part above 0."""
        ops = operations(m.mean)
        log_above, log_below, mean, variance = rectified_slab(m.mean, m.variance)
        log_rho = m.log_slab + log_above
        # 1 - rho' = 1 - rho Phi(alpha) = (1 - rho) + rho Phi(-alpha): exact for large rho' only in the
        # second form, for small rho' only in the first
        few = ops.log1p(-ops.exp(ops.clip(log_rho, high=LOG_HALF)))
        many = ops.logaddexp(m.log_spike, m.log_slab + log_below)
        return SpikeSlabMessage(log_rho, ops.where(log_rho < LOG_HALF, few, many), mean, variance)

    def leaky_relu(self, m: SpikeSlabMessage, slope: float) -> SpikeSlabMessage:
        """The spike stays where it is; the slab becomes the normal with the moments of the rectified slab."""
        return SpikeSlabMessage(m.log_slab, m.log_spike, *GAUSSIAN.leaky_relu(_slab(m), slope))

    def add(self, m1: SpikeSlabMessage, m2: SpikeSlabMessage) -> SpikeSlabMessage:
        """The sum is 0 only if both are; else its mean is one of three, with probabilities p1, p2, p12."""
        ops = operations(m1.mean)
        both_zero = m1.log_spike + m2.log_spike
        log_pi = _log_any(both_zero, ops.logaddexp(*ops.broadcast(m1.log_slab, m2.log_slab)))
        r1, r2 = (ops.exp(ops.clip(m.log_slab - log_pi, high=0.0)) for m in (m1, m2))
        p1, p2, p12 = r1 * ops.exp(m2.log_spike), r2 * ops.exp(m1.log_spike), r1 * ops.exp(m2.log_slab)
        # Var = sum over pairs of cases of p p' (difference of their means)^2: no cancellation
        between = p1 * p2 * (m1.mean - m2.mean) ** 2 + p12 * (p1 * m2.mean**2 + p2 * m1.mean**2)
        mean = r1 * m1.mean + r2 * m2.mean
        return SpikeSlabMessage(log_pi, both_zero, mean, r1 * m1.variance + r2 * m2.variance + between)

    def concatenate(self, ms: Sequence[SpikeSlabMessage]) -> SpikeSlabMessage:
        ops = operations(ms[0].mean)
        full = [[ops.broadcast_to(a, m.mean.shape) for a in m] for m in ms]
        return SpikeSlabMessage(*(ops.concatenate(column) for column in zip(*full, strict=True)))

    def log_evidence(self, m: SpikeSlabMessage, y: Array, noise_variance: Array) -> Array:
        """As for :class:`Gaussian`; with weight ``1 - rho`` the noise is around 0."""
        spike = m.log_spike + _log_normal(y, noise_variance)
        slab = m.log_slab + _log_normal(y - m.mean, m.variance + noise_variance)
        return operations(m.mean).logaddexp(spike, slab)

    def mean_and_variance(self, m: SpikeSlabMessage) -> tuple[Array, Array]:
        """Of the whole, spike included: ``rho m`` and ``rho v + rho (1 - rho) m^2``."""
        ops = operations(m.mean)
        rho, zero = ops.exp(m.log_slab), ops.exp(m.log_spike)
        return rho * m.mean, rho * (m.variance + zero * m.mean * m.mean)

    def _certain(self, slab: GaussianMessage) -> SpikeSlabMessage:
        """No spike: slab probability 1."""
        ops = operations(slab.mean)
        zero = ops.zeros_like(slab.mean[..., :1])
        return SpikeSlabMessage(zero, ops.full_like(zero, -math.inf), *slab)


GAUSSIAN, SPIKE_SLAB = Gaussian(), SpikeSlab()
FAMILIES = {family.name: family for family in (GAUSSIAN, SPIKE_SLAB)}


def _slab(m: SpikeSlabMessage) -> GaussianMessage:
    return GaussianMessage(m.mean, m.variance)


def _with_bias(mean: Array, variance: Array, bias: Bias | None) -> GaussianMessage:
    if bias is None:
        return GaussianMessage(mean, variance)
    return GaussianMessage(mean + bias[0], variance + bias[1])


def _log_normal(error: Array, variance: Array) -> Array:
    """``log N(error; 0, variance)`` without its constant ``-log(2 pi) / 2``."""
    return -0.5 * (operations(variance).log(variance) + error * error / variance)


def _log_any(all_zero: Array, log_total: Array) -> Array:
    """``log pi = log(1 - prod_i (1 - rho_i))`` from ``sum_i log(1 - rho_i)`` and ``log sum_i rho_i``.

    Where every ``rho_i`` is tiny the product rounds to 1, but then the sum of the ``rho_i`` is exact.
    """
    ops = operations(all_zero)
    limit = -1e-12 if all_zero.dtype.itemsize == 8 else -1e-6
    usual = ops.log(-ops.expm1(ops.clip(all_zero, high=limit)))
    return ops.where(all_zero < limit, usual, log_total)
