"""Laplace's evidence of every model of a logistic regression with spikes and slabs, by Newton's iteration.

Notation of :mod:`guides.truth.spike_slab_logistic`.  How 2^20 models become feasible (2 000 rows, a minute or
two on two cores where all of them matter): the models go in groups that share their upper columns, so that
values, gradients and Hessians of a group are products of whole matrices (the Hessians with the products of
pairs of columns); a group starts where the group with one more column ended, moved by that model's own
quadratic, which mostly leaves one or two Newton steps.  Models that lack what the labels cannot be explained
without are ruled out together, without being fitted: no model fits better than one that contains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from guides.core.checks import checked_vector

#: Numbers in one array [models, rows] of a group: a few such arrays should fit the cache.
_GROUP_NUMBERS = 2**17
#: Newton's iteration ends when the gain that the next step promises is below this, in nats; the step is
#: taken, but the curvature is not evaluated again, which leaves some 1e-5 nats in a model's evidence.
_TOLERANCE = 1e-9
_MAX_STEPS = 200
#: Models that weigh less than this, in nats below the best, move no sum that is kept in double precision.
_NEGLIGIBLE = 60.0


@dataclass(frozen=True)
class Fits:
    """Modes of a batch of B models over c shared columns (the intercept last); excluded entries are zero.

    ``mask`` [B, c], 1 where a column is in; ``mode`` [B, c]; ``root`` [B, c, c], the Cholesky factor of the
    curvature (ones for excluded columns); ``inverse`` [B, c, c] of the curvature; ``height`` [B], the
    greatest log density, without constants; ``log_evidence`` [B], Laplace's, which is never above it.
    """

    mask: Tensor
    mode: Tensor
    root: Tensor
    inverse: Tensor
    height: Tensor
    log_evidence: Tensor


@dataclass(frozen=True)
class Design:
    """Rows [x_i, 1] times the sign of y_i: then the log-likelihood is the sum of log sigmoid(row . w).

    ``rows`` [p + 1, n] (transposed, so that a choice of columns is a choice of rows); ``pairs`` [.., n], the
    products of all pairs of columns, at the places that ``pair_at`` [p + 1, p + 1] says; ``precision``
    [p + 1] of the prior.
    """

    rows: Tensor
    pairs: Tensor
    pair_at: Tensor
    precision: Tensor

    @classmethod
    def build(cls, x: np.ndarray, y: np.ndarray, slab_scale: float | np.ndarray, bias_scale: float) -> Design:
        n, p = x.shape
        scales = np.append(checked_vector("slab_scale", slab_scale, p), bias_scale)
        rows = torch.as_tensor(np.c_[x, np.ones(n)].T * (2 * y - 1)).contiguous()
        first, second = torch.triu_indices(p + 1, p + 1)
        pair_at = torch.empty(p + 1, p + 1, dtype=torch.long)
        pair_at[first, second] = pair_at[second, first] = torch.arange(len(first))
        return cls(rows, rows[first] * rows[second], pair_at, torch.as_tensor(scales**-2.0))

    @property
    def size(self) -> int:
        """p + 1."""
        return len(self.rows)

    def masks(self, models: Tensor) -> Tensor:
        """[B, p + 1]: 1 where a column is in, the intercept always."""
        bits = (models[:, None] >> torch.arange(self.size - 1)) & 1
        return F.pad(bits.double(), (0, 1), value=1.0)

    def log_joint(self, full: Tensor, mask: Tensor) -> Tensor:
        """log p(y, w | model) [B] at the coefficients ``full`` [B, p + 1] of models ``mask`` [B, p + 1]."""
        step = max(1, _GROUP_NUMBERS // self.rows.shape[1])
        likelihood = torch.cat([F.logsigmoid(part @ self.rows).sum(-1) for part in full.split(step)])
        scale = self.precision.log() - math.log(2 * math.pi) - self.precision * full.square()
        return likelihood + 0.5 * (mask * scale).sum(-1)

    def solve(self, start: Tensor, mask: Tensor, columns: Tensor) -> Fits:
        """Modes of the models ``mask`` [B, c] over ``columns`` [c], from ``start`` [B, c]."""
        step = max(1, _GROUP_NUMBERS // self.rows.shape[1])
        curve = _Curve(self, columns)
        parts = [curve.climb(*part) for part in zip(start.split(step), mask.split(step), strict=True)]
        return Fits(*(torch.cat(values) for values in zip(*parts, strict=True)))


class _Curve:
    """The log posterior density of models over some columns, with gradient and curvature."""

    def __init__(self, design: Design, columns: Tensor) -> None:
        self.rows = design.rows[columns]
        self.precision = design.precision[columns]
        first, second = torch.triu_indices(len(columns), len(columns))
        self.pairs = design.pairs[design.pair_at[columns[first], columns[second]]].T
        self.at = torch.empty(len(columns), len(columns), dtype=torch.long)
        self.at[first, second] = self.at[second, first] = torch.arange(len(first))

    def expand(self, w: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """At w [B, c]: value (without constants) [B], gradient [B, c], curvature [B, c, c] (ones for excluded
        columns)."""
        hit = torch.sigmoid(w @ self.rows)
        # the clamp matters only at margins below -690, which no mode has: it keeps the logarithm finite
        value = hit.clamp_min(1e-300).log_().sum(-1) - 0.5 * (self.precision * w.square()).sum(-1)
        miss = 1 - hit
        gradient = (miss @ self.rows.T - self.precision * w) * mask
        weight = hit.mul_(miss)
        curvature = (weight @ self.pairs)[:, self.at] * (mask[:, :, None] * mask[:, None, :])
        curvature.diagonal(dim1=-2, dim2=-1).add_(mask * self.precision + (1 - mask))
        return value, gradient, curvature

    def climb(self, start: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Newton's iteration with step halving; the fields of :class:`Fits`."""
        mode, best = torch.empty_like(start), torch.empty_like(start[:, 0])
        root = torch.empty(*start.shape, start.shape[1], dtype=start.dtype)
        inverse = torch.empty_like(root)
        todo, left, w = torch.arange(len(start)), mask, start * mask
        old_w, old_value = w, torch.full_like(best, -math.inf)
        for _ in range(_MAX_STEPS):
            value, gradient, curvature = self.expand(w, left)
            factor = torch.linalg.cholesky(curvature)
            inner = torch.cholesky_inverse(factor)
            step = (inner @ gradient[..., None])[..., 0]
            gain = 0.5 * (gradient * step).sum(-1)
            # a step that went down is halved; the slack is the rounding of a sum of n terms
            down = value < old_value - 1e-9 * (1 + value.abs())
            done = (gain < _TOLERANCE) & ~down
            if done.any():
                here = todo[done]
                mode[here], best[here] = (w + step)[done], (value + gain)[done]
                root[here], inverse[here] = factor[done], inner[done]
                if done.all():
                    break
            keep = ~done
            todo, left = todo[keep], left[keep]
            new_w = torch.where(down[:, None], (w + old_w) / 2, w + step)[keep]
            old_w = torch.where(down[:, None], old_w, w)[keep]
            old_value = torch.where(down, old_value, value)[keep]
            w = new_w
        else:
            raise RuntimeError(f"Newton's iteration did not end within {_MAX_STEPS} steps: scale the columns")
        # the powers of 2 pi of Laplace's Gaussian and of the prior cancel
        half_logdet = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - 0.5 * mask @ self.precision.log()
        return mask, mode, root, inverse, best, best - half_logdet


# -------------------------------------------------------------------------------------- all models, in groups


class Group(NamedTuple):
    """Models that share their columns above the lowest ones, of which they have every choice.

    :ivar models: [B] numbers
    :ivar columns: [c] that the group shares, the intercept last
    :ivar settled: how many models are settled with it: its own and those ruled out beside or beneath it
    """

    models: Tensor
    columns: Tensor
    found: Fits
    settled: int


class Groups:
    """All models that matter, in groups: every choice among the ``low`` first columns beside one choice among
    the upper ones.

    :param prior: [2^p] log prior probabilities of the models.
    """

    def __init__(self, design: Design, prior: Tensor) -> None:
        n, p = design.rows.shape[1], design.size - 1
        self.design = design
        self.low = min(p, 9, max(0, int(math.log2(max(1, _GROUP_NUMBERS // n)))))
        self.choice = torch.arange(2**self.low)
        self.bits = ((self.choice[:, None] >> torch.arange(self.low)) & 1).double()
        self.upper = list(range(self.low, p))
        full = self._fit(self.upper, None)[1]
        # A model's mode is no higher than that of a model that contains it, and its evidence is below its
        # mode.
        best = (full.log_evidence + prior[self._models(self.upper)]).max()
        self.least = best - _NEGLIGIBLE - prior.max()
        self.free = [
            j for j in self.upper if self._matters(self._fit(*self._without(j, self.upper, full))[1])
        ]

    def __iter__(self) -> Iterator[Group]:
        return self._visit(self.upper, None, self.free)

    def _visit(self, upper: list[int], start: Tensor | None, free: list[int]) -> Iterator[Group]:
        """This group, then those that lack some of its free columns: every group is met once."""
        columns, found = self._fit(upper, start)
        beneath = free if self._matters(found) else []
        ruled_out = len(self.upper) - len(self.free) + len(free) - len(beneath)
        yield Group(self._models(upper), columns, found, 2 ** (self.low + ruled_out))
        for i, j in enumerate(beneath):
            yield from self._visit(*self._without(j, upper, found), beneath[i + 1 :])

    def _models(self, upper: list[int]) -> Tensor:
        """Numbers [B] of the models of a group."""
        return self.choice + sum(1 << j for j in upper)

    def _fit(self, upper: list[int], start: Tensor | None) -> tuple[Tensor, Fits]:
        """Columns [c] of a group and its modes, sought from ``start`` [B, c]."""
        columns = torch.tensor([*range(self.low), *upper, self.design.size - 1])
        mask = F.pad(self.bits, (0, len(upper) + 1), value=1.0)
        return columns, self.design.solve(torch.zeros_like(mask) if start is None else start, mask, columns)

    def _without(self, j: int, upper: list[int], found: Fits) -> tuple[list[int], Tensor]:
        """The group that lacks column j, and where the quadratic at the mode then puts the rest."""
        at = self.low + upper.index(j)
        shift = found.mode[:, at, None] / found.inverse[:, at, at, None] * found.inverse[:, at]
        keep = torch.arange(found.mode.shape[1]) != at
        return [k for k in upper if k != j], (found.mode - shift)[:, keep]

    def _matters(self, found: Fits) -> bool:
        """Whether a model of this group, or one that it contains, can have a probability to speak of."""
        return bool(found.height.max() >= self.least)


class Moments:
    """Sums of probability, coefficients and their products over models, relative to the best so far."""

    def __init__(self, size: int) -> None:
        self.top = -math.inf
        self.first = torch.zeros(size, dtype=torch.float64)
        self.second = torch.zeros(size, size, dtype=torch.float64)

    def add(self, found: Fits, columns: Tensor, log_joint: Tensor) -> None:
        """A group of models with their log p(y, model) [B]."""
        best = log_joint.max().item()
        if best < self.top - _NEGLIGIBLE:
            return
        if best > self.top:
            shrink = math.exp(self.top - best)
            self.first *= shrink
            self.second *= shrink
            self.top = best
        weight = (log_joint - self.top).exp()
        products = torch.einsum("b,bi,bj->ij", weight, found.mode, found.mode)
        # an excluded column has variance one in `inverse`, and no covariance
        products += torch.einsum("b,bi,bij->ij", weight, found.mask, found.inverse)
        self.first[columns] += weight @ found.mode
        self.second[columns[:, None], columns] += products

    def result(self, log_evidence: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [size] and covariance [size, size]."""
        share = math.exp(self.top - log_evidence.item())
        mean = self.first * share
        return mean, self.second * share - torch.outer(mean, mean)
