"""Exact arithmetic of Gaussian mixtures with many components: CDF, quantiles and CRPS, in bounded memory.

A posterior predictive is a mixture with one component a draw, so a few thousand test points times a thousand
components are usual.  Everything runs over chunks of test points, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scoringrules
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from zoo.evaluation.estimates import CHUNK_NUMBERS, check_finite

#: Components of the rows whose quantiles are sought at a time: 2**16 float64 are half a megabyte, and some
#: ten such arrays live.
CACHED_NUMBERS = 2**16
#: Up to this many components the CRPS is taken over all pairs by scoringrules (its memory grows with the
#: square).
PAIRS_BY_SCORINGRULES = 64
#: Distance of the quadrature nodes in units of the smallest component sd, and the reach of the grid beyond
#: the outermost components in units of theirs (see :func:`_spread`).
NODE_SPACING, REACH = 0.6, 8.0
#: Time of one pair of components in units of the time of one component at one node (measured: 2.4 to 5.8).
PAIR_COST = 4


class Mixture(NamedTuple):
    """Weights, means and sds of Gaussian mixtures, each [N, C], float64; weights sum to 1 over C."""

    weights: Tensor
    means: Tensor
    sds: Tensor

    def distribution(self) -> MixtureSameFamily:
        components = Normal(self.means, self.sds, validate_args=False)
        return MixtureSameFamily(
            Categorical(self.weights, validate_args=False), components, validate_args=False
        )

    def cdf(self, x: Tensor) -> Tensor:
        """CDF at ``x`` [N, G] -> [N, G]."""
        z = (x.unsqueeze(-1) - self.means.unsqueeze(-2)) / (self.sds.unsqueeze(-2) * math.sqrt(2))
        # the weights sum to one only up to rounding; the clamp keeps 1 - cdf from turning negative
        return (0.5 + 0.5 * (torch.erf(z) @ self.weights.unsqueeze(-1)).squeeze(-1)).clamp(0, 1)


def chunks(distribution: Distribution, copies: int = 1) -> Iterator[tuple[slice, Mixture]]:
    """Slices of the test points with their mixtures, at most ``CHUNK_NUMBERS / copies`` components a time.

    :param distribution: ``Normal`` or ``MixtureSameFamily`` of ``Normal``, batch shape [N]
    :raises TypeError: for another family
    :raises ValueError: when a mean or an sd is not finite, or an sd not positive
    """
    parameters = _parameters(distribution)
    size, components = parameters[0].shape
    step = max(1, CHUNK_NUMBERS // (components * copies))
    for start in range(0, size, step):
        part = slice(start, start + step)
        yield part, _checked(Mixture(*(p[part].detach().cpu().double() for p in parameters)))


def is_gaussian(distribution: Distribution) -> bool:
    """Whether the closed forms of this module apply."""
    if isinstance(distribution, MixtureSameFamily):
        distribution = distribution.component_distribution
    return isinstance(distribution, Normal)


def _parameters(distribution: Distribution) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and sds, each [N, C], in the distribution's own precision."""
    if not is_gaussian(distribution):
        raise TypeError(
            f"closed forms exist for Normal and mixtures of Normals, not for {type(distribution).__name__}"
        )
    if len(distribution.batch_shape) != 1:
        raise ValueError(
            f"one distribution a test point is needed, batch shape is {tuple(distribution.batch_shape)}"
        )
    if isinstance(distribution, Normal):
        means, sds = (
            p.expand(distribution.batch_shape).unsqueeze(-1) for p in (distribution.loc, distribution.scale)
        )
        return torch.ones_like(means), means, sds
    parts, shape = distribution.component_distribution, distribution.component_distribution.batch_shape
    weights = distribution.mixture_distribution.probs
    return weights.expand(shape), parts.loc.expand(shape), parts.scale.expand(shape)


def _checked(mixture: Mixture) -> Mixture:
    check_finite(mixture.means, "predictive mean")
    check_finite(mixture.sds, "predictive sd")
    if not (mixture.sds > 0).all():
        raise ValueError("predictive sd: not positive")
    return Mixture(mixture.weights / mixture.weights.sum(-1, keepdim=True), mixture.means, mixture.sds)


# -------------------------------------------------------------------------------------------------- quantiles


def mixture_quantiles(distribution: Distribution, levels: Sequence[float]) -> Tensor:
    """Quantiles of ``Normal`` or a mixture of Normals (batch shape [N]): [len(levels), N], float64.

    Root of the exact CDF, bracketed by the smallest and the largest quantile among the components, sought
    from the quantile of a Gaussian with the mixture's moments.  Halley steps that stay inside the bracket;
    where a step did not halve the error the next one is a bisection, so that it ends for every shape.  Error
    below 1e-13 in probability.

    :raises ValueError: for a level outside (0, 1)
    """
    if not all(0 < level < 1 for level in levels):
        raise ValueError(f"quantile levels lie strictly between 0 and 1, got {list(levels)}")
    target = torch.tensor(levels, dtype=torch.float64)
    parts = [
        _quantiles(block, target)
        for _, mixture in chunks(distribution, copies=len(levels))
        for block in _blocks(mixture)
    ]
    return torch.cat(parts).T if parts else torch.empty(len(levels), 0, dtype=torch.float64)


def _blocks(mixture: Mixture) -> Iterator[Mixture]:
    """Some rows at a time, whose arrays stay in the processor's cache."""
    step = max(1, CACHED_NUMBERS // mixture.means.shape[-1])
    for start in range(0, len(mixture.means), step):
        yield Mixture(*(p[start : start + step] for p in mixture))


def _quantiles(mixture: Mixture, levels: Tensor) -> Tensor:
    """[n, L] for one block; see :func:`mixture_quantiles`.  Rows are left alone as soon as they are found."""
    low, high, x = _bracket(mixture, levels)
    tolerance = 4 * torch.finfo(torch.float64).eps * torch.maximum(low.abs(), high.abs())
    rates = Rates.of(mixture)
    before, rows, found = torch.full_like(x, torch.inf), torch.arange(len(x)), torch.empty_like(x)
    for _ in range(80):  # the most that mixtures over six orders of magnitude took is 59
        z = rates.standardised(x)
        excess = rates.cdf(z) - levels
        low, high = torch.where(excess <= 0, x, low), torch.where(excess >= 0, x, high)
        done = (excess.abs() < 1e-13) | (high - low <= tolerance)
        ready = done.all(-1)
        if ready.any():
            found[rows[ready]] = x[ready]
            if ready.all():
                return found
            rest = ~ready
            x, z, rows, excess, done = x[rest], z[rest], rows[rest], excess[rest], done[rest]
            low, high, before, tolerance = low[rest], high[rest], before[rest], tolerance[rest]
            rates = Rates(*(part[rest] for part in rates))
        step = x - rates.halley(z, excess)  # inf or nan in a gap between components: bisected then
        trusted = (step > low) & (step < high) & (excess.abs() <= 0.5 * before)
        x = torch.where(done, x, torch.where(trusted, step, 0.5 * (low + high)))
        before = excess.abs()
    found[rows] = x
    return found


def _bracket(mixture: Mixture, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest and the largest quantile among the components, and where to begin between them: [n, L]."""
    normal = torch.special.ndtri(levels)
    ends = [mixture.means + mixture.sds * z for z in normal]
    low, high = (torch.stack([bound(end, -1) for end in ends], -1) for bound in (torch.amin, torch.amax))
    mean = (mixture.weights * mixture.means).sum(-1, keepdim=True)
    square = mixture.sds**2 + (mixture.means - mean) ** 2
    sd = (mixture.weights * square).sum(-1, keepdim=True).sqrt()
    return low, high, (mean + sd * normal).clamp(low, high)


class Rates(NamedTuple):
    """A mixture made ready for many places: means, 1 / sd, the weights times its powers 0 to 2; [n, C]."""

    means: Tensor
    inverse: Tensor
    weights: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, mixture: Mixture) -> Rates:
        inverse = 1 / mixture.sds
        first = mixture.weights * inverse
        return cls(mixture.means, inverse, mixture.weights, first, first * inverse)

    def standardised(self, x: Tensor) -> Tensor:
        """Places ``x`` [n, L] as the components see them: [n, L, C]."""
        return (x.unsqueeze(-1) - self.means.unsqueeze(-2)).mul_(self.inverse.unsqueeze(-2))

    def cdf(self, z: Tensor) -> Tensor:
        """[n, L]"""
        return 0.5 + 0.5 * _weighted((z * math.sqrt(0.5)).erf_(), self.weights)

    def halley(self, z: Tensor, excess: Tensor) -> Tensor:
        """How far a root of ``cdf - level`` is away, from its value and two derivatives: [n, L]."""
        bells = (z * z).mul_(-0.5).exp_()
        density = _weighted(bells, self.first) / math.sqrt(2 * math.pi)
        slope = _weighted(bells.mul_(z), self.second) / -math.sqrt(2 * math.pi)
        newton = excess / density
        return newton / (1 - 0.5 * newton * slope / density)


def _weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Sums over the components: [n, L, C] and [n, C] -> [n, L]."""
    return (values @ weights.unsqueeze(-1)).squeeze(-1)


# -----------------------------------------------------------------------------------------------------------


def crps_values(distribution: Distribution, y: Tensor) -> Tensor:
    """CRPS of every test point, [N], float64, for ``y`` [N] in the distribution's own unit.

    Normals and mixtures of up to ``PAIRS_BY_SCORINGRULES`` components: scoringrules, closed form.  Larger
    mixtures: ``E|X - y| - E|X - X'| / 2``, the first term in closed form and the second by :func:`_spread`,
    whose cost grows with C and not with C squared; where that would need more nodes than pairs save, all
    pairs in chunks.  No component is left out.  Both agree to 1e-9 relative.
    """
    y = y.detach().cpu().double()
    parts = [_crps(mixture, y[part]) for part, mixture in chunks(distribution)]
    return torch.cat(parts) if parts else y


def _crps(mixture: Mixture, y: Tensor) -> Tensor:
    components = mixture.means.shape[-1]
    if components == 1:
        scores = scoringrules.crps_normal(*(t.numpy() for t in (y, mixture.means[:, 0], mixture.sds[:, 0])))
        return torch.as_tensor(scores)
    if components <= PAIRS_BY_SCORINGRULES:
        step = max(1, CHUNK_NUMBERS // components**2)
        blocks = [slice(i, i + step) for i in range(0, len(y), step)]
        scores = [_crps_by_scoringrules(y[b], *(t[b] for t in mixture)) for b in blocks]
        return torch.as_tensor(np.concatenate(scores))
    return _crps_of_many(mixture, y)


def _crps_by_scoringrules(y: Tensor, weights: Tensor, means: Tensor, sds: Tensor) -> np.ndarray:
    return scoringrules.crps_mixnorm(y.numpy(), means.numpy(), sds.numpy(), weights.numpy())


def _crps_of_many(mixture: Mixture, y: Tensor) -> Tensor:
    distance = (mixture.weights * _mean_absolute(y.unsqueeze(-1) - mixture.means, mixture.sds)).sum(-1)
    nodes = _node_counts(mixture)
    by_pairs = nodes > PAIR_COST * mixture.means.shape[-1]
    spread = torch.empty_like(y)
    # similar node counts side by side, so that no point pays for another's; the largest first bounds the
    # memory
    order = torch.argsort(nodes, descending=True)
    order = order[~by_pairs[order]]
    while len(order):
        step = max(1, int(CHUNK_NUMBERS // (mixture.means.shape[-1] * nodes[order[0]])))
        rows, order = order[:step], order[step:]
        spread[rows] = _spread(Mixture(*(t[rows] for t in mixture)), int(nodes[rows].max()))
    for row in by_pairs.nonzero().flatten().tolist():
        spread[row] = _spread_by_pairs(Mixture(*(t[row] for t in mixture)))
    return distance - 0.5 * spread


def _mean_absolute(mean: Tensor, sd: Tensor) -> Tensor:
    """``E|X|`` of ``X ~ Normal(mean, sd)``."""
    z = mean / sd
    return mean * torch.erf(z / math.sqrt(2)) + sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z * z)


def _ends(mixture: Mixture) -> tuple[Tensor, Tensor]:
    return (mixture.means - REACH * mixture.sds).amin(-1), (mixture.means + REACH * mixture.sds).amax(-1)


def _node_counts(mixture: Mixture) -> Tensor:
    """Nodes that :func:`_spread` needs, [n], as float64 (a tiny sd beside a wide range overflows an
    integer).
    """
    low, high = _ends(mixture)
    return ((high - low) / (NODE_SPACING * mixture.sds.amin(-1))).ceil() + 1


def _spread(mixture: Mixture, nodes: int) -> Tensor:
    """``E|X - X'| = 2 * integral of F (1 - F)`` of two independent draws, [n], by the trapezoidal rule.

    The rule converges geometrically for an analytic integrand that vanishes at both ends (Trefethen &
    Weideman 2014, SIAM Review 56).  With the narrowest component's sd s and spacing h the relative error is
    of the order ``exp(-(pi s / h)**2)``, 1e-12 at h = 0.6 s; 8 sds beyond the outermost components F(1 - F)
    is below 1e-15.
    """
    low, high = _ends(mixture)
    places = torch.linspace(0, 1, nodes, dtype=torch.float64)
    f = mixture.cdf(low.unsqueeze(-1) + (high - low).unsqueeze(-1) * places)
    return 2 * (f * (1 - f)).sum(-1) * (high - low) / (nodes - 1)


def _spread_by_pairs(mixture: Mixture) -> Tensor:
    """``E|X - X'|`` over all pairs of components of one mixture ([C] each), some rows a time."""
    weights, means, sds = mixture
    total = torch.zeros((), dtype=torch.float64)
    step = max(1, CHUNK_NUMBERS // len(means))
    for start in range(0, len(means), step):
        rows = slice(start, start + step)
        pairs = _mean_absolute(means[rows, None] - means, torch.hypot(sds[rows, None], sds))
        total += weights[rows] @ pairs @ weights
    return total
