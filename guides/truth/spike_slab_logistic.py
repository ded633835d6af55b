"""Variable selection in logistic regression, by counting all 2^p models.

Notation, everywhere: x [n, p], y [n] of zeros and ones; in a model's number, bit j says that column j is in.

    y_i ~ Bernoulli(sigmoid(b + x_i w)),   b ~ N(0, bias_scale^2),
    w_j = gamma_j v_j,   gamma_j ~ Bernoulli(inclusion_prob),   v_j ~ N(0, slab_scale^2)

:func:`enumerate_spike_slab_logistic` gives every model its Laplace evidence, and the sums over models that
follow.  :meth:`SpikeSlabLogisticPosterior.importance` then says, with standard errors, how far the Laplace
approximation is from the truth: its draws are weighted by the exact density, so its numbers are exact up to
Monte Carlo error.

How 2^20 models become feasible is in :mod:`guides.truth.laplace_of_models`.

Tierney and Kadane (1986), JASA 81; George and McCulloch (1997), Statistica Sinica 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from scipy.linalg import cho_solve
from torch import Tensor

from guides.core.checks import (
    check_counts,
    check_numbers,
    check_positive,
    check_two,
    checked_inclusion,
    checked_logistic,
    checked_vector,
)
from guides.posterior.draws import Posterior
from guides.posterior.regressions import logistic_regression, spikes_and_slabs
from guides.truth.laplace_of_models import Design, Groups, Moments
from guides.truth.subsets import SEEN, check_columns, draw_models, inclusion_of_columns

__all__ = [
    "ImportanceCheck",
    "SpikeSlabLogisticPosterior",
    "enumerate_spike_slab_logistic",
    "spike_slab_logistic_model",
]

#: Degrees of freedom of the proposals of importance sampling: tails above those of any posterior here, whose
#: slabs are Gaussian.
_PROPOSAL_DF = 8.0


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
    _design: Design = field(repr=False)
    _prior_odds: Tensor = field(repr=False)

    def draws(self, n: int, seed: int = 0, *, resample: bool = False) -> dict[str, np.ndarray]:
        """``n`` draws: ``w`` [n, p] with exact zeros, ``b`` [n].

        A model is drawn by its Laplace probability, then its coefficients from the Gaussian of its mode and
        curvature.  With ``resample`` the draws are picked out of ``8 n`` by their importance weights, which
        takes the Laplace error out (a draw may then come twice).

        :raises ValueError: for less than one draw
        """
        check_counts(n=n)
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
        check_two("a single draw has no standard error", n=n)
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
    """Posterior of a spike-and-slab logistic regression (see the head of this module) over all 2^p models, by
    Laplace's approximation within each.

    That is good where rows are many.  Where labels are few or nearly separable and the slab is wide it is
    not (of 15 rows and a slab of 5 the mean of a coefficient may be 20 % off):
    :meth:`~SpikeSlabLogisticPosterior.importance` says how far off it is, and
    :meth:`~SpikeSlabLogisticPosterior.posterior` draws without the error.

    Standardise x first: the slab is in the units of the columns.

    :param inclusion_prob: a number or [p], strictly inside (0, 1).
    :param slab_scale: sd of the slab, a number or [p].
    :param bias_scale: sd of the prior of the intercept.
    :param on_progress: called again and again with how many more of the 2^p models are done.
    :raises ValueError: more than 20 columns; shapes that do not fit; labels other than 0 and 1; values
        outside their range; columns that depend on each other so nearly, for such a slab, that rounding is
        seen.
    """
    x, y = checked_logistic(x, y)
    p = x.shape[1]
    check_columns(p, "use guides.truth.spike_slab_logistic_gibbs")
    check_positive(slab_scale=slab_scale)
    check_numbers(bias_scale=bias_scale)
    check_dependence(x, np.append(checked_vector("slab_scale", slab_scale, p), bias_scale))
    odds = torch.logit(torch.as_tensor(checked_inclusion(inclusion_prob, p)))
    design = Design.build(x, y, slab_scale, bias_scale)
    number, sums = torch.arange(2**p), Moments(p + 1)
    prior = sum((((number >> j) & 1) * odds[j] for j in range(p)), -F.softplus(odds).sum())
    evidence = torch.full((2**p,), -math.inf, dtype=torch.float64)
    for models, columns, found, settled in Groups(design, prior):
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


def check_dependence(x: np.ndarray, scales: np.ndarray) -> None:
    """:param scales: of the slabs and of the intercept, [p + 1]
    :raises ValueError: where rounding may move the log determinant of the largest curvature that all columns
        can have, x'x / 4 + 1 / scales^2, by more than :data:`~guides.truth.subsets.SEEN` nats
    """
    rows = np.c_[x, np.ones(len(x))] * scales
    curvature = rows.T @ rows / 4 + np.eye(len(scales))
    try:
        root = np.linalg.cholesky(curvature)
        inverse = cho_solve((root, True), np.eye(len(root)))
        nats = 0.5 * np.finfo(float).eps * float(np.sum(np.abs(inverse) * np.abs(curvature)))
    except np.linalg.LinAlgError:  # of what is positive in exact numbers
        nats = math.inf
    if not nats <= SEEN:
        said = f"by {nats:.2g} nats" if math.isfinite(nats) else "without end"
        raise ValueError(
            "columns of x are so nearly dependent, for slabs as wide as these, that rounding may change the "
            f"evidence {said}: leave a column out, centre and scale x, or take a smaller slab"
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
