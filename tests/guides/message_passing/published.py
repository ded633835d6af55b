"""Probabilistic backpropagation as it was published: literal, slow, in float64; the yardstick of other tests.

The formulas stand as printed (Hernandez-Lobato and Adams 2015; the spike-and-slab form of Ott and Williamson
2022), none rearranged for accuracy, so they lose runs that the package must not lose.  Gradients come from
torch's autograd through the printed formulas, one row at a time.  Nothing here is shared with the package.

Three things the printed formulas leave open are settled as the published programs settle them: the normal
CDF is an accurate one, the hazard ``phi / Phi`` is replaced by three terms of its asymptotic series below
-30 (the other branch adds nothing to the gradient), and a weight whose new variance is not above 1e-100
keeps its mean and variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SWITCH = -30.0
SMALLEST_VARIANCE = 1e-100
LARGEST_CAVITY = 1e6
GAMMA_START = 6.0


class Output(NamedTuple):
    """What a network says about one row or many, in the unit of the targets it was trained on.

    ``slabs`` are the slab probabilities of the linear layers, first layer first; ones for Gaussian messages.
    """

    mean: np.ndarray
    variance: np.ndarray
    slabs: np.ndarray


class Published:
    """A network ``W [z; 1] / sqrt(in + 1)`` (or, without biases, ``W z / sqrt(in)``) with ReLU between.

    :param means: start values of the posterior means, one ``[out, in']`` a layer, the bias last
    :param messages: ``gaussian`` or ``spike-slab``
    :param bias: whether ``in'`` counts a bias

    State: ``means`` and ``variances`` (a list of ``[out, in']``), the Gammas ``noise`` and ``prior`` as
    (shape, rate), and the sites of the prior factors.
    """

    def __init__(self, means: Sequence[np.ndarray], messages: str = "gaussian", bias: bool = True) -> None:
        self.messages, self.bias = messages, bias
        self.noise = (GAMMA_START, GAMMA_START)
        self.prior = (GAMMA_START, GAMMA_START)
        start = GAMMA_START / (GAMMA_START - 1)
        self.means = [np.array(m, dtype=np.float64) for m in means]
        self.variances = [np.full_like(m, start) for m in self.means]
        self.site_means = [np.zeros_like(m) for m in self.means]
        self.site_precisions = [np.full_like(m, 1 / start) for m in self.means]
        self.site_shapes = [np.zeros_like(m) for m in self.means]
        self.site_rates = [np.zeros_like(m) for m in self.means]

    @property
    def noise_variance(self) -> float:
        shape, rate = self.noise
        return rate / (shape - 1)

    def epoch(self, x: np.ndarray, y: np.ndarray, order: Sequence[int], refine: bool = True) -> None:
        """ADF steps for rows of ``x: [N, d]``, ``y: [N]`` in the order given, then a sweep over the prior."""
        for row in order:
            self.step(x[row], float(y[row]))
        if refine:
            self.refine()

    def predict(self, x: np.ndarray) -> Output:
        """Of the rows ``x: [N, d]``, noise left out."""
        with torch.no_grad():
            means = [torch.as_tensor(m) for m in self.means]
            variances = [torch.as_tensor(v) for v in self.variances]
            rows = [self._forward(torch.as_tensor(row), means, variances) for row in x]
        mean, variance, slabs = zip(*rows, strict=True)
        return Output(
            np.array([float(m) for m in mean]),
            np.array([float(v) for v in variance]),
            np.array([[float(s) for s in layer] for layer in slabs]),
        )

    # one ADF step -------------------------------------------------------------------------------------------

    def step(self, x: np.ndarray, y: float) -> None:
        """Moves every weight and the noise by one row ``x: [d]``, all from the old state."""
        means = [torch.tensor(m, requires_grad=True) for m in self.means]
        variances = [torch.tensor(v, requires_grad=True) for v in self.variances]
        mean, variance, slabs = self._forward(torch.as_tensor(x), means, variances)
        shape, rate = self.noise
        log_z = [self._evidence(y, mean, variance, slabs[-1], rate / (shape + k - 1)) for k in range(3)]
        log_z[0].backward()
        for layer, (m, v) in enumerate(zip(means, variances, strict=True)):
            self._move(layer, m.grad.numpy(), v.grad.numpy())
        self.noise = moment_matched(*(value.item() for value in log_z), shape, rate)

    def _forward(self, x: Tensor, means: list[Tensor], variances: list[Tensor]):
        propagate = self._gaussian_layer if self.messages == "gaussian" else self._spike_slab_layer
        slab, mean, variance = torch.ones_like(x), x, torch.zeros_like(x)
        slabs = []
        for layer, (m, v) in enumerate(zip(means, variances, strict=True)):
            if self.bias:
                one = torch.ones(1, dtype=x.dtype)
                slab, mean, variance = (
                    torch.cat((a, b)) for a, b in ((slab, one), (mean, one), (variance, 0 * one))
                )
            slab, mean, variance, linear_slab = propagate(
                slab, mean, variance, m, v, last=layer == len(means) - 1
            )
            slabs.append(linear_slab)
        return mean[0], variance[0], slabs

    @staticmethod
    def _gaussian_layer(slab, mean, variance, m, v, last):
        width = m.shape[1]
        mean_a = m @ mean / math.sqrt(width)
        variance_a = ((m * m) @ variance + v @ (mean * mean) + v @ variance) / width
        if last:
            return slab[:1], mean_a, variance_a, torch.ones(())
        alpha = mean_a / variance_a.sqrt()
        below, gamma = normal_cdf(alpha), hazard(alpha)
        u = mean_a + variance_a.sqrt() * gamma
        mean_b = below * u
        variance_b = mean_b * u * normal_cdf(-alpha) + below * variance_a * (1 - gamma * (gamma + alpha))
        return torch.ones_like(mean_b), mean_b, variance_b, torch.ones(())

    @staticmethod
    def _spike_slab_layer(slab, mean, variance, m, v, last):
        width = m.shape[1]
        pi = 1 - (1 - slab).prod()
        mean_a = m @ (slab * mean) / (pi * math.sqrt(width))
        square = slab * mean * mean
        c = v @ square + (m * m) @ (slab * variance) + v @ (slab * variance) + (m * m) @ ((1 - slab) * square)
        variance_a = c / (width * pi) - (1 - pi) * mean_a**2
        if last:
            return slab[:1], mean_a, variance_a, pi
        alpha = mean_a / variance_a.sqrt()
        gamma = hazard(alpha)
        mean_b = mean_a + gamma * variance_a.sqrt()
        return pi * normal_cdf(alpha), mean_b, variance_a * (1 - gamma * (gamma + alpha)), pi

    def _evidence(self, y: float, mean: Tensor, variance: Tensor, slab: Tensor, noise: float) -> Tensor:
        """``log Z`` without ``-log(2 pi) / 2``."""
        total = variance + noise
        if self.messages == "gaussian":
            return -0.5 * (total.log() + (y - mean) ** 2 / total)
        spike = math.exp(-0.5 * y * y / noise) / math.sqrt(noise)
        return ((1 - slab) * spike + slab * torch.exp(-0.5 * (y - mean) ** 2 / total) / total.sqrt()).log()

    def _move(self, layer: int, by_mean: np.ndarray, by_variance: np.ndarray) -> None:
        m, v = self.means[layer], self.variances[layer]
        new_mean = m + v * by_mean
        new_variance = v - v**2 * (by_mean**2 - 2 * by_variance)
        good = (new_variance > SMALLEST_VARIANCE) & ~np.isnan(new_mean)  # NaN is not above anything
        self.means[layer] = np.where(good, new_mean, m)
        self.variances[layer] = np.where(good, new_variance, v)

    # the prior ----------------------------------------------------------------------------------------------

    def refine(self) -> None:
        """One expectation-propagation sweep over the prior factors, weight after weight, row by row."""
        for layer, means in enumerate(self.means):
            for index in np.ndindex(means.shape):
                self._refine_weight(layer, index)

    def _refine_weight(self, layer: int, index: tuple[int, ...]) -> None:
        m, v = self.means[layer][index], self.variances[layer][index]
        shape, rate = self.prior
        precision = 1 / v - self.site_precisions[layer][index]
        if precision == 0:
            return  # an infinite cavity variance
        cavity_variance = 1 / precision
        cavity_mean = (m / v - self.site_means[layer][index]) * cavity_variance
        cavity_shape = shape - self.site_shapes[layer][index]
        cavity_rate = rate + self.site_rates[layer][index]
        if not (cavity_variance > 0 and cavity_rate > 0 and cavity_shape > 1):
            return
        if not cavity_variance < LARGEST_CAVITY:
            return
        totals = [cavity_variance + cavity_rate / (cavity_shape - 1 + k) for k in range(3)]
        log_z = [-0.5 * math.log(t) - cavity_mean**2 / (2 * t) for t in totals]
        by_mean = -cavity_mean / totals[0]
        by_variance = -1 / (2 * totals[0]) + cavity_mean**2 / (2 * totals[0] ** 2)
        new_mean = cavity_mean + cavity_variance * by_mean
        new_variance = cavity_variance - cavity_variance**2 * (by_mean**2 - 2 * by_variance)
        self.prior = moment_matched(*log_z, cavity_shape, cavity_rate)
        self.site_means[layer][index] = new_mean / new_variance - cavity_mean / cavity_variance
        self.site_precisions[layer][index] = 1 / new_variance - 1 / cavity_variance
        self.site_shapes[layer][index] = self.prior[0] - cavity_shape
        self.site_rates[layer][index] = -self.prior[1] + cavity_rate
        self.means[layer][index], self.variances[layer][index] = new_mean, new_variance


def start_means(sizes: Sequence[int], bias: bool, rng: np.random.Generator) -> list[np.ndarray]:
    """Posterior means to start from, ``N(0, 1/in')``, of a network with layers of the sizes given."""
    shapes = [(b, a + bias) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
    return [rng.normal(size=shape) / math.sqrt(shape[1]) for shape in shapes]


def moment_matched(log_z0, log_z1, log_z2, shape: float, rate: float) -> tuple[float, float]:
    """The Gamma with the mean and the second moment of (old Gamma times likelihood): (shape, rate)."""
    new_shape = 1 / (math.exp(log_z2 - 2 * log_z1 + log_z0) * (shape + 1) / shape - 1)
    by_second = math.exp(log_z2 - log_z1) * (shape + 1) / rate
    return new_shape, 1 / (by_second - math.exp(log_z1 - log_z0) * shape / rate)


def normal_cdf(alpha: Tensor) -> Tensor:
    return torch.special.erfc(-alpha / math.sqrt(2)) / 2


def hazard(alpha: Tensor) -> Tensor:
    """``phi / Phi``, by its asymptotic series below -30; only the branch taken is differentiated."""
    far = alpha < SWITCH
    near = torch.where(far, torch.zeros_like(alpha), alpha)
    ratio = torch.exp(-0.5 * near**2) / math.sqrt(2 * math.pi) / normal_cdf(near)
    away = torch.where(far, alpha, torch.full_like(alpha, SWITCH))
    return torch.where(far, -away - 1 / away + 2 / away**3, ratio)
