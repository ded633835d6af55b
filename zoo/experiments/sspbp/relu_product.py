"""``T = max(X W, 0)`` of two independent normals of variance one, and what one ReLU message makes of it.

Both message families start from the exact mean and variance of ``X W`` and take the ReLU of a normal with
these; what they get wrong is that ``X W`` is not normal.  How wrong is measured by the squared maximum mean
discrepancy (MMD) with the kernel ``exp(-(s - t)^2)``, of draws and, by quadrature, of the laws themselves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, wofz

#: The kernel is the characteristic function of a normal with this variance.
KERNEL_VARIANCE = 2.0
FREQUENCIES, LARGEST_FREQUENCY = 600, 12.0
NODES, REACH = 600, 10.0  # of the quadrature over |X|, and how many sds of X it covers
LOG_NODES = 1500
ROWS = 20  # of a kernel at once


class Pair(NamedTuple):
    """Means of ``X`` and ``W``; both have variance one."""

    x_mean: float
    w_mean: float


class Mixture(NamedTuple):
    """Zero with probability ``1 - slab``, else normal with this mean and variance."""

    slab: float
    mean: float
    variance: float


def product_moments(pair: Pair) -> tuple[float, float]:
    """Mean and variance of ``X W``."""
    return pair.x_mean * pair.w_mean, 1 + pair.w_mean**2 + pair.x_mean**2


def message(pair: Pair, method: str) -> Mixture:
    """What the ReLU message of ``pbp`` or ``sspbp`` says of ``T``."""
    import torch

    from guides.message_passing.messages import GAUSSIAN, SPIKE_SLAB, GaussianMessage, SpikeSlabMessage

    mean, variance = (torch.tensor([value], dtype=torch.float64) for value in product_moments(pair))
    if method == "pbp":
        after = GAUSSIAN.relu(GaussianMessage(mean, variance))
        return Mixture(1.0, after.mean.item(), after.variance.item())
    sure = torch.zeros_like(mean)
    after = SPIKE_SLAB.relu(SpikeSlabMessage(sure, sure - math.inf, mean, variance))
    return Mixture(after.log_slab.exp().item(), after.mean.item(), after.variance.item())


def law_moments(pair: Pair) -> Mixture:
    """Of ``T`` itself: the probability of ``T > 0``, and the mean and variance of ``T`` given that."""
    (above_x, below_x), (above_w, below_w) = _halves(pair.x_mean), _halves(pair.w_mean)
    slab, first, second = (
        a * b + c * d for a, b, c, d in zip(above_x, above_w, below_x, below_w, strict=True)
    )
    return Mixture(slab, first / slab, second / slab - (first / slab) ** 2)


def _halves(mean: float) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """``E[|Z|^k; Z > 0]`` and ``E[|Z|^k; Z < 0]`` of ``Z ~ N(mean, 1)``, k = 0, 1, 2."""
    above, density = float(ndtr(mean)), math.exp(-0.5 * mean**2) / math.sqrt(2 * math.pi)
    below = float(ndtr(-mean))
    square = mean**2 + 1
    return (
        (above, mean * above + density, square * above + mean * density),
        (below, density - mean * below, square * below - mean * density),
    )


def draw_law(pair: Pair, count: int, rng: np.random.Generator) -> np.ndarray:
    """``[count]`` draws of ``T``."""
    x, w = (rng.normal(mean, 1.0, size=count) for mean in pair)
    return np.maximum(x * w, 0.0)


def draw_mixture(mixture: Mixture, count: int, rng: np.random.Generator) -> np.ndarray:
    """``[count]`` draws of a message."""
    slab = rng.normal(mixture.mean, math.sqrt(mixture.variance), size=count)
    return np.where(rng.random(count) < mixture.slab, slab, 0.0)


def biased_mmd2(s: np.ndarray, t: np.ndarray) -> float:
    """Squared MMD of draws ``s: [n]``, ``t: [m]``: means over all kernel entries, the diagonal too."""
    return _mean_kernel(s, s) + _mean_kernel(t, t) - 2 * _mean_kernel(s, t)


def _mean_kernel(s: np.ndarray, t: np.ndarray) -> float:
    total = 0.0
    for start in range(0, len(s), ROWS):
        kernel = s[start : start + ROWS, None] - t
        np.multiply(kernel, -kernel, out=kernel)
        total += np.exp(kernel, out=kernel).sum()  # in place and within the cache: three times faster
    return float(total) / (len(s) * len(t))


def population_mmd2(pair: Pair, mixture: Mixture) -> float:
    """Squared MMD of the law of ``T`` and a message, by quadrature.

    ``E_u |phi_T(u) - phi_M(u)|^2`` over ``u ~ N(0, 2)``, of which the kernel is the characteristic function
    (Bochner); nothing cancels and nothing can get negative.
    """
    nodes, weights = _quadrature(FREQUENCIES, LARGEST_FREQUENCY)
    gap = characteristic_of_law(pair, nodes) - characteristic_of_mixture(mixture, nodes)
    density = np.exp(-0.5 * nodes**2 / KERNEL_VARIANCE) / math.sqrt(2 * math.pi * KERNEL_VARIANCE)
    return float(2 * np.sum(weights * density * np.abs(gap) ** 2))  # even in u


def characteristic_of_mixture(mixture: Mixture, frequency: np.ndarray) -> np.ndarray:
    slab = np.exp(1j * frequency * mixture.mean - 0.5 * frequency**2 * mixture.variance)
    return 1 - mixture.slab + mixture.slab * slab


def characteristic_of_law(pair: Pair, frequency: np.ndarray) -> np.ndarray:
    """``E[exp(i u T)]`` at ``u: [n]``.

    Given ``X = x > 0`` the part with ``W > 0`` is ``exp(-w_mean^2 / 2) w(z) / 2`` with
    ``z = (u x - i w_mean) / sqrt(2)`` and the Faddeeva function ``w``; negative ``x`` and ``W`` mirror that.
    """
    size, weights = _quadrature(NODES, abs(pair.x_mean) + REACH)
    total = np.full(frequency.shape, 1 - law_moments(pair).slab, dtype=complex)
    for sign in (1, -1):
        density = np.exp(-0.5 * (size - sign * pair.x_mean) ** 2) / math.sqrt(2 * math.pi)
        mean = sign * pair.w_mean
        inner = wofz((frequency[:, None] * size - 1j * mean) / math.sqrt(2)) * math.exp(-0.5 * mean**2) / 2
        total += inner @ (weights * density)
    return total


def density_of_law(pair: Pair, t: np.ndarray) -> np.ndarray:
    """Density of ``T`` at ``t: [n]``, all above 0; it integrates to the probability of ``T > 0``."""
    log_size = np.linspace(-14.0, 4.0, LOG_NODES)
    size = np.exp(log_size)
    total = np.zeros_like(t)
    for sign in (1, -1):
        of_x = np.exp(-0.5 * (size - sign * pair.x_mean) ** 2)
        of_w = np.exp(-0.5 * (t[:, None] / size - sign * pair.w_mean) ** 2)
        total += of_w @ of_x
    return total * (log_size[1] - log_size[0]) / (2 * math.pi)  # the integrand is flat at both ends


def density_of_mixture(mixture: Mixture, t: np.ndarray) -> np.ndarray:
    """Density of a message's slab at ``t: [n]``, times the probability of the slab."""
    scaled = (t - mixture.mean) / math.sqrt(mixture.variance)
    return mixture.slab * np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi * mixture.variance)


def _quadrature(count: int, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss and Legendre on ``[0, end]``."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) * end / 2, weights * end / 2
