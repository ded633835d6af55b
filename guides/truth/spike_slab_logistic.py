"""Variable selection in logistic regression, by counting all 2^p models.

Notation, everywhere: x [n, p], y [n] of zeros and ones; in a model's number, bit j says that column j is in.

    y_i ~ Bernoulli(sigmoid(b + x_i w)),   b ~ N(0, bias_scale^2),
    w_j = gamma_j v_j,   gamma_j ~ Bernoulli(inclusion_prob),   v_j ~ N(0, slab_scale^2)

:func:`enumerate_spike_slab_logistic` gives every model its Laplace evidence, and the sums over models that
follow.  :meth:`SpikeSlabLogisticPosterior.importance` then says, with standard errors, how far the Laplace
approximation is from the truth: its draws are weighted by the exact density, so its numbers are exact up to
Monte Carlo error.

How 2^20 models become feasible (2 000 rows, a minute or two on two cores where all of them matter): the
models go in groups that share their upper columns, so that values, gradients and Hessians of a group are
products of whole matrices (the Hessians with the products of pairs of columns); a group starts where the
group with one more column ended, moved by that model's own quadratic, which mostly leaves one or two Newton
steps.  Models that lack what the labels cannot be explained without are ruled out together, without being
fitted: no model fits better than one that contains it.

Tierney and Kadane (1986), JASA 81; George and McCulloch (1997), Statistica Sinica 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from torch import Tensor

from guides.core.checks import (
    check_numbers,
    check_positive,
    checked_inclusion,
    checked_logistic,
    checked_vector,
)
from guides.posterior.draws import Posterior
from guides.posterior.regressions import logistic_regression, spikes_and_slabs
from guides.truth.spike_slab_linear import check_columns, draw_models, inclusion_of_columns

__all__ = [
    "ImportanceCheck",
    "SpikeSlabLogisticPosterior",
    "enumerate_spike_slab_logistic",
    "spike_slab_logistic_model",
]

#: Numbers in one array [models, rows] of a group: a few such arrays should fit the cache.
_GROUP_NUMBERS = 2**17
#: Newton's iteration ends when the gain that the next step promises is below this, in nats; the step is
#: taken, but the curvature is not evaluated again, which leaves some 1e-5 nats in a model's evidence.
_TOLERANCE = 1e-9
_MAX_STEPS = 200
#: Degrees of freedom of the proposals of importance sampling: tails above those of any posterior here, whose
#: slabs are Gaussian.
_PROPOSAL_DF = 8.0
#: Models that weigh less than this, in nats below the best, move no sum that is kept in double precision.
_NEGLIGIBLE = 60.0


@dataclass(frozen=True)
class ImportanceCheck:
    """Exact numbers up to Monte Carlo error; every ``_se`` is one standard error.

    :ivar log_evidence: log p(y), with ``log_evidence_se``.
    :ivar inclusion: [p], with ``inclusion_se`` [p].
    :ivar mean: [p] posterior mean of w, with ``mean_se`` [p].
    :ivar ess: effective number of the draws; far below their number, the Laplace approximation is poor.
    """

    log_evidence: float
    log_evidence_se: float
    inclusion: np.ndarray
    inclusion_se: np.ndarray
    mean: np.ndarray
    mean_se: np.ndarray
    ess: float


@dataclass(frozen=True)
class SpikeSlabLogisticPosterior:
    """Posterior of a spike-and-slab logistic regression, Laplace's approximation within each model.

    :ivar log_evidence: log p(y), summed over all 2^p models.
    :ivar model_log_evidence: [2^p] log p(y | model); bit j of the index = column j in.  Minus infinity for a
        model that was ruled out: its probability is below e^-60 of the best one's.
    :ivar log_model_probs: [2^p] log posterior probabilities.
    :ivar inclusion: [p] posterior inclusion probabilities.
    :ivar mean: [p] posterior mean of w, ``sd`` [p], ``covariance`` [p, p] (spikes included).
    :ivar bias_mean: posterior mean of b, ``bias_sd`` its sd.
    :ivar model: the Pyro model, sites ``w`` and ``b``.
    """

    log_evidence: float
    model_log_evidence: np.ndarray
    log_model_probs: np.ndarray
    inclusion: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    covariance: np.ndarray
    bias_mean: float
    bias_sd: float
    model: Callable = field(repr=False)
    _design: _Design = field(repr=False)
    _prior_odds: Tensor = field(repr=False)

    def draws(self, n: int, seed: int = 0, *, resample: bool = False) -> dict[str, np.ndarray]:
        """``n`` draws: ``w`` [n, p] with exact zeros, ``b`` [n].

        A model is drawn by its Laplace probability, then its coefficients from the Gaussian of its mode and
        curvature.  With ``resample`` the draws are picked out of ``8 n`` by their importance weights, which
        takes the Laplace error out (a draw may then come twice).

        :raises ValueError: for less than one draw
        """
        if n < 1:
            raise ValueError(f"at least 1 draw is needed, got n={n}")
        generator = torch.Generator().manual_seed(seed)
        if not resample:
            full, _ = self._propose(n, generator, math.inf)
        else:
            full, log_weight = self._propose(8 * n, generator, _PROPOSAL_DF)
            chosen = torch.multinomial(torch.softmax(log_weight, 0), n, replacement=True, generator=generator)
            full = full[chosen]
        return {"w": full[:, :-1].numpy(), "b": full[:, -1].numpy()}

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` draws that answer all questions of a posterior.  They are ``draws(n, seed, resample=True)``:
        who grades by them wants none of Laplace's error, which the plain :meth:`draws` have in common with
        the sums of this class.
        """
        draws = self.draws(n, seed, resample=True)
        info = {"method": "enumeration", "draw_seed": seed, "log_evidence": self.log_evidence}
        return Posterior.from_draws(self.model, draws, info | {"inclusion": {"w": self.inclusion.tolist()}})

    def importance(self, n: int = 20_000, seed: int = 0) -> ImportanceCheck:
        """The same sums by ``n`` draws, models by Laplace probability and coefficients from Student's t at
        the mode, weighted by the exact joint density: right whatever the quality of Laplace's approximation.

        A model that Laplace gives no chance is missed; with ``n`` draws, models below about 1 / n are.

        :raises ValueError: for less than two draws, which have no standard error
        """
        if n < 2:
            raise ValueError(f"at least 2 draws are needed for standard errors, got n={n}")
        generator = torch.Generator().manual_seed(seed)
        full, log_weight = self._propose(n, generator, _PROPOSAL_DF)
        top = log_weight.max()
        weight = (log_weight - top).exp()
        share = weight / weight.sum()
        inside = (full[:, :-1] != 0).double()

        def average(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
            mean = share @ values  # self-normalised; delta method
            return mean.numpy(), (share.square() @ (values - mean).square()).sqrt().numpy()

        inclusion, inclusion_se = average(inside)
        mean, mean_se = average(full[:, :-1])
        return ImportanceCheck(
            log_evidence=(top + weight.mean().log()).item(),
            log_evidence_se=(weight.std() / weight.mean() / math.sqrt(n)).item(),
            inclusion=inclusion,
            inclusion_se=inclusion_se,
            mean=mean,
            mean_se=mean_se,
            ess=(1 / share.square().sum()).item(),
        )

    def _propose(self, n: int, generator: torch.Generator, df: float) -> tuple[Tensor, Tensor]:
        """Draws [n, p + 1] (the bias last) and the logs of exact joint density / proposal density [n].

        :param df: of the Student t within a model; infinite: Gaussian.
        """
        log_probs = torch.as_tensor(self.log_model_probs)
        models = draw_models(log_probs, n, generator)
        z = torch.randn(n, self._design.size, generator=generator, dtype=torch.float64)
        stretch = torch.ones(n, dtype=torch.float64)
        if math.isfinite(df):
            # torch's gamma sampler takes the generator by this private name only
            half_chi = torch._standard_gamma(stretch * (df / 2), generator=generator)
            stretch = (df / (2 * half_chi)).sqrt()
        unique, place = models.unique(return_inverse=True)
        mask = self._design.masks(unique)
        found = self._design.solve(torch.zeros_like(mask), mask, torch.arange(self._design.size))
        # w = mode + L'^-1 z: the precision is L L'
        root, mask = found.root[place], mask[place]
        direction = torch.linalg.solve_triangular(root.mT, (z * mask)[..., None], upper=True)[..., 0]
        full = (found.mode[place] + stretch[:, None] * direction) * mask
        proposal = _log_spherical((z * mask).square().sum(-1) * stretch.square(), mask.sum(-1), df)
        proposal = proposal + root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + log_probs[models]
        prior = (mask[:, :-1] * self._prior_odds).sum(-1) - F.softplus(self._prior_odds).sum()
        return full, self._design.log_joint(full, mask) + prior - proposal


def enumerate_spike_slab_logistic(
    x: np.ndarray,
    y: np.ndarray,
    inclusion_prob: float | np.ndarray = 0.25,
    slab_scale: float | np.ndarray = 1.0,
    bias_scale: float = 1.0,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> SpikeSlabLogisticPosterior:
    """Posterior of a spike-and-slab logistic regression (see the head of this module) over all 2^p models.

    Standardise x first: the slab is in the units of the columns.

    :param inclusion_prob: a number or [p], strictly inside (0, 1).
    :param slab_scale: sd of the slab, a number or [p].
    :param bias_scale: sd of the prior of the intercept.
    :param on_progress: called again and again with how many more of the 2^p models are done.
    :raises ValueError: more than 20 columns; shapes that do not fit; labels other than 0 and 1; values
        outside their range.
    """
    x, y = checked_logistic(x, y)
    p = x.shape[1]
    check_columns(p, "use guides.truth.spike_slab_logistic_gibbs")
    check_positive(slab_scale=slab_scale)
    check_numbers(bias_scale=bias_scale)
    odds = torch.logit(torch.as_tensor(checked_inclusion(inclusion_prob, p)))
    design = _Design.build(x, y, slab_scale, bias_scale)
    number, sums = torch.arange(2**p), _Moments(p + 1)
    prior = sum((((number >> j) & 1) * odds[j] for j in range(p)), -F.softplus(odds).sum())
    evidence = torch.full((2**p,), -math.inf, dtype=torch.float64)
    for models, columns, found, settled in _Groups(design, prior):
        evidence[models] = found.log_evidence
        sums.add(found, columns, found.log_evidence + prior[models])
        if on_progress is not None:
            on_progress(settled)
    joint = evidence + prior
    log_evidence = torch.logsumexp(joint, 0)
    log_probs = joint - log_evidence
    mean, covariance = sums.result(log_evidence)
    sd = covariance.diagonal().sqrt()
    return SpikeSlabLogisticPosterior(
        log_evidence=log_evidence.item(),
        model_log_evidence=evidence.numpy(),
        log_model_probs=log_probs.numpy(),
        inclusion=inclusion_of_columns(log_probs, p).numpy(),
        mean=mean[:-1].numpy(),
        sd=sd[:-1].numpy(),
        covariance=covariance[:-1, :-1].numpy(),
        bias_mean=mean[-1].item(),
        bias_sd=sd[-1].item(),
        model=spike_slab_logistic_model(p, inclusion_prob, slab_scale, bias_scale),
        _design=design,
        _prior_odds=odds,
    )


def spike_slab_logistic_model(
    columns: int,
    inclusion_prob: float | np.ndarray = 0.25,
    slab_scale: float | np.ndarray = 1.0,
    bias_scale: float = 1.0,
) -> Callable:
    """The Pyro model at the head of this module, sites ``w`` [columns] and ``b``; also that of
    :mod:`guides.truth.polya_gamma`.
    """
    scales = torch.as_tensor(checked_vector("slab_scale", slab_scale, columns))
    bias = dist.Normal(*torch.tensor([0.0, bias_scale], dtype=torch.float64))
    return logistic_regression(spikes_and_slabs(checked_inclusion(inclusion_prob, columns), scales), bias)


def _log_spherical(square: Tensor, size: Tensor, df: float) -> Tensor:
    """Log density at distance^2 ``square`` [B] of a standard Gaussian (``df`` infinite) or Student t in
    ``size`` [B] dimensions."""
    if math.isinf(df):
        return -0.5 * (square + size * math.log(2 * math.pi))
    constant = torch.lgamma((df + size) / 2) - math.lgamma(df / 2) - 0.5 * size * math.log(df * math.pi)
    return constant - 0.5 * (df + size) * torch.log1p(square / df)


# -------------------------------------------------------------------------------------------- Newton, batched


@dataclass(frozen=True)
class _Fits:
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
class _Design:
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
    def build(
        cls, x: np.ndarray, y: np.ndarray, slab_scale: float | np.ndarray, bias_scale: float
    ) -> _Design:
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

    def solve(self, start: Tensor, mask: Tensor, columns: Tensor) -> _Fits:
        """Modes of the models ``mask`` [B, c] over ``columns`` [c], from ``start`` [B, c]."""
        step = max(1, _GROUP_NUMBERS // self.rows.shape[1])
        curve = _Curve(self, columns)
        parts = [curve.climb(*part) for part in zip(start.split(step), mask.split(step), strict=True)]
        return _Fits(*(torch.cat(values) for values in zip(*parts, strict=True)))


class _Curve:
    """The log posterior density of models over some columns, with gradient and curvature."""

    def __init__(self, design: _Design, columns: Tensor) -> None:
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
        """Newton's iteration with step halving; the fields of :class:`_Fits`."""
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


class _Group(NamedTuple):
    """Models that share their columns above the lowest ones, of which they have every choice.

    :ivar models: [B] numbers
    :ivar columns: [c] that the group shares, the intercept last
    :ivar settled: how many models are settled with it: its own and those ruled out beside or beneath it
    """

    models: Tensor
    columns: Tensor
    found: _Fits
    settled: int


class _Groups:
    """All models that matter, in groups: every choice among the ``low`` first columns beside one choice among
    the upper ones.

    :param prior: [2^p] log prior probabilities of the models.
    """

    def __init__(self, design: _Design, prior: Tensor) -> None:
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

    def __iter__(self) -> Iterator[_Group]:
        return self._visit(self.upper, None, self.free)

    def _visit(self, upper: list[int], start: Tensor | None, free: list[int]) -> Iterator[_Group]:
        """This group, then those that lack some of its free columns: every group is met once."""
        columns, found = self._fit(upper, start)
        beneath = free if self._matters(found) else []
        ruled_out = len(self.upper) - len(self.free) + len(free) - len(beneath)
        yield _Group(self._models(upper), columns, found, 2 ** (self.low + ruled_out))
        for i, j in enumerate(beneath):
            yield from self._visit(*self._without(j, upper, found), beneath[i + 1 :])

    def _models(self, upper: list[int]) -> Tensor:
        """Numbers [B] of the models of a group."""
        return self.choice + sum(1 << j for j in upper)

    def _fit(self, upper: list[int], start: Tensor | None) -> tuple[Tensor, _Fits]:
        """Columns [c] of a group and its modes, sought from ``start`` [B, c]."""
        columns = torch.tensor([*range(self.low), *upper, self.design.size - 1])
        mask = F.pad(self.bits, (0, len(upper) + 1), value=1.0)
        return columns, self.design.solve(torch.zeros_like(mask) if start is None else start, mask, columns)

    def _without(self, j: int, upper: list[int], found: _Fits) -> tuple[list[int], Tensor]:
        """The group that lacks column j, and where the quadratic at the mode then puts the rest."""
        at = self.low + upper.index(j)
        shift = found.mode[:, at, None] / found.inverse[:, at, at, None] * found.inverse[:, at]
        keep = torch.arange(found.mode.shape[1]) != at
        return [k for k in upper if k != j], (found.mode - shift)[:, keep]

    def _matters(self, found: _Fits) -> bool:
        """Whether a model of this group, or one that it contains, can have a probability to speak of."""
        return bool(found.height.max() >= self.least)


class _Moments:
    """Sums of probability, coefficients and their products over models, relative to the best so far."""

    def __init__(self, size: int) -> None:
        self.top = -math.inf
        self.first = torch.zeros(size, dtype=torch.float64)
        self.second = torch.zeros(size, size, dtype=torch.float64)

    def add(self, found: _Fits, columns: Tensor, log_joint: Tensor) -> None:
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
