"""Variable selection in closed form: a spike and a slab on every coefficient of a linear regression.

Notation: x [n, p], y [n], noise precision tau (tau = 1 / noise_scale^2), and no intercept.

    y | w, tau ~ N(x w, I / tau),   w_j = 0 or w_j | tau ~ N(0, s^2 / tau), independently

All 2^p models are counted (:mod:`guides.truth.subsets`), and everything is exact.  Float64 throughout, in log
space.

George and McCulloch (1997), Statistica Sinica 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from guides.core.checks import check_counts, check_numbers, checked_data, checked_inclusion
from guides.posterior.draws import Posterior
from guides.posterior.regressions import linear_regression, spikes_and_slabs
from guides.truth.conjugate import gamma_law, log_noise_integral
from guides.truth.subsets import (
    BATCH_NUMBERS,
    FEWER,
    SEEN,
    all_subsets,
    check_columns,
    draw_models,
    gather,
    half_solve,
    inclusion_of_columns,
    score_models,
)

__all__ = ["SpikeSlabPosterior", "enumerate_spike_slab"]


@dataclass(frozen=True)
class SpikeSlabPosterior:
    """Exact posterior of a spike-and-slab linear regression.

    :ivar log_evidence: log p(y), summed over all 2^p models.
    :ivar model_log_evidence: [2^p] log p(y | model); bit i of the index = column i in.
    :ivar log_model_probs: [2^p] log posterior probabilities.
    :ivar inclusion: [p] posterior inclusion probabilities.
    :ivar mean: [p] posterior mean of the coefficients, ``sd`` [p], ``covariance`` [p, p] (spikes included).
    :ivar noise_precision_mean: E[tau | y].
    :ivar model: the Pyro model, sites ``w`` and, where the noise is unknown, ``noise_precision``.
    """

    log_evidence: float
    model_log_evidence: np.ndarray
    log_model_probs: np.ndarray
    inclusion: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    covariance: np.ndarray
    noise_precision_mean: float
    model: Callable = field(repr=False)
    _problem: _SpikeSlab = field(repr=False)

    def function_moments(self, X_new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd, each [m], of the noiseless function X_new w at ``X_new`` [m, p]."""
        X_new = np.asarray(X_new, dtype=float)
        variance = np.einsum("mi,ij,mj->m", X_new, self.covariance, X_new)
        return X_new @ self.mean, np.sqrt(np.maximum(variance, 0.0))  # 0 up to rounding at X_new = 0

    def draws(self, n: int, seed: int = 0) -> dict[str, np.ndarray]:
        """``n`` independent draws: ``w`` [n, p] with exact zeros, ``noise_precision`` [n]."""
        check_counts(n=n)
        generator = torch.Generator().manual_seed(seed)
        models = draw_models(torch.as_tensor(self.log_model_probs), n, generator)
        w, tau = self._problem.sample_given(models, generator)
        return {"w": w.numpy(), "noise_precision": tau.numpy()}

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` draws that answer all questions of a posterior."""
        draws = self.draws(n, seed)
        if self._problem.noise_scale is not None:
            del draws["noise_precision"]  # known: no site of the model
        info = {"method": "enumeration", "draw_seed": seed, "log_evidence": self.log_evidence}
        return Posterior.from_draws(self.model, draws, info | {"inclusion": {"w": self.inclusion.tolist()}})


@dataclass(frozen=True)
class _SpikeSlab:
    """Sufficient statistics and prior: gram x'x [p, p], moment x'y [p], y'y."""

    gram: Tensor
    moment: Tensor
    total: float
    rows: int
    slab_scale: float
    a: float
    b: float
    noise_scale: float | None

    def factor(self, gram: Tensor, moment: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of A = x'x + I/s^2 (batch of submatrices): L with A = L L', z = L^-1 x'y, S = y'y - |z|^2."""
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype) * self.slab_scale**-2
        root = torch.linalg.cholesky(gram + eye)
        z = half_solve(root, moment)
        return root, z, (self.total - z.square().sum(-1)).clamp_min(0.0)  # below 0 only by rounding

    def check_rounding(self) -> None:
        """:raises ValueError: where S, a difference, is so small beside y'y, or |z|^2 and det A so rough
        where columns nearly depend on each other, that rounding is seen
        """
        try:
            root, z, left = self.factor(self.gram, self.moment)  # the least S of all models has all columns
        except torch.linalg.LinAlgError:  # of what is positive in exact numbers
            raise _rounded(math.inf) from None
        residual, w = left.item(), half_solve(root, z, transposed=True).abs()
        size = root.abs() @ root.abs().mT
        # S = y'y - 2 w'x'y + w'A w, whose terms are as rough as they are large
        terms = self.total + 2 * w @ self.moment.abs() + w @ size @ w
        eps = torch.finfo(torch.float64).eps
        rounding = eps * len(w) * float(terms)
        known = self.noise_scale is not None
        slope = 0.5 / self.noise_scale**2 if known else 0.5 * self.rows / (2 * self.b + residual)
        # log det A moves by the trace of A^-1 E, where E is what A is rounded by
        volume = 0.5 * eps * float((torch.cholesky_inverse(root).abs() * size).sum())
        nats = slope * rounding + volume
        if not nats <= SEEN:
            raise _rounded(nats)

    def log_evidence(self, gram: Tensor, moment: Tensor) -> Tensor:
        """log p(y | model) = -log det(I + s^2 x'x) / 2 + the integral over tau."""
        root, _, residual = self.factor(gram, moment)
        size = gram.shape[-1]
        half_logdet = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + size * math.log(self.slab_scale)
        return log_noise_integral(residual, self.rows, self.a, self.b, self.noise_scale) - half_logdet

    def noise(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """E[1/tau] and E[tau] given the model, from S."""
        if self.noise_scale is not None:
            variance, precision = self.noise_scale**2, self.noise_scale**-2
            return torch.full_like(residual, variance), torch.full_like(residual, precision)
        a, b = self.a + self.rows / 2, self.b + residual / 2
        return b / (a - 1), a / b

    def sample_given(self, models: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One draw (w [n, p], tau [n]) for each of the model numbers [n]."""
        p = len(self.moment)
        w = torch.zeros(len(models), p, dtype=torch.float64)
        tau = torch.empty(len(models), dtype=torch.float64)
        included = (models[:, None] >> torch.arange(p)) & 1
        sizes = included.sum(1)
        for size in sizes.unique().tolist():
            rows = torch.nonzero(sizes == size)[:, 0]
            for part in rows.split(max(1, BATCH_NUMBERS // max(1, size) ** 2)):
                subset = torch.nonzero(included[part])[:, 1].reshape(len(part), size)
                root, z, residual = self.factor(*gather(self.gram, self.moment, subset))
                tau[part] = self._sample_noise(residual, generator)
                noise = torch.randn(z.shape, generator=generator, dtype=z.dtype)
                # w = A^-1 x'y + L'^-1 z' / sqrt(tau) = L'^-1 (z + z' / sqrt(tau))
                values = half_solve(root, z + noise / tau[part, None].sqrt(), transposed=True)
                w[part[:, None], subset] = values
        return w, tau

    def _sample_noise(self, residual: Tensor, generator: torch.Generator) -> Tensor:
        if self.noise_scale is not None:
            return torch.full_like(residual, self.noise_scale**-2)
        # torch's gamma sampler takes the generator by this private name only
        shape = torch.full_like(residual, self.a + self.rows / 2)
        return torch._standard_gamma(shape, generator=generator) / (self.b + residual / 2)


def _rounded(nats: float) -> ValueError:
    said = f"by {nats:.2g} nats" if math.isfinite(nats) else "without end"
    return ValueError(
        "y is so large beside its noise, or columns of x are so nearly dependent, that rounding may change "
        f"the evidence {said}: centre and scale x and y, leave a column out, take a smaller slab, or fix no "
        "noise as small as that"
    )


def enumerate_spike_slab(
    x: np.ndarray,
    y: np.ndarray,
    *,
    inclusion_prob: float | np.ndarray = 0.5,
    slab_scale: float = 1.0,
    a: float = 1.0,
    b: float = 1.0,
    noise_scale: float | None = None,
) -> SpikeSlabPosterior:
    """Exact posterior of y ~ N(x w, I / tau) with a spike and a slab on every coefficient,

        w_j = gamma_j v_j,  gamma_j ~ Bernoulli(inclusion_prob),  v_j | tau ~ N(0, slab_scale^2 / tau).

    No intercept: standardise x and y first.  Needs a + n/2 > 1 for the posterior sd.

    :param inclusion_prob: a number or [p], strictly inside (0, 1).
    :param slab_scale: sd of the slab in units of the noise sd.
    :param a, b: tau ~ Gamma(a, b), rate b; ignored if ``noise_scale`` is given (known noise sd).
    :raises ValueError: more than 20 columns; shapes that do not fit; values outside their range; a target so
        far from 0 beside its noise that rounding would be seen in the evidence.
    """
    x, y = checked_data(x, y)
    n, p = x.shape
    check_columns(p, FEWER)
    check_numbers(slab_scale=slab_scale, a=a, b=b, noise_scale=1.0 if noise_scale is None else noise_scale)
    q = torch.as_tensor(checked_inclusion(inclusion_prob, p))
    if noise_scale is None and a + n / 2 <= 1:
        raise ValueError(f"a + n/2 = {a + n / 2} must be above 1: the posterior variance is infinite")
    gram, moment = torch.as_tensor(x.T @ x), torch.as_tensor(x.T @ y)
    problem = _SpikeSlab(gram, moment, float(y @ y), n, slab_scale, a, b, noise_scale)
    problem.check_rounding()
    evidence = score_models(gram, moment, lambda part, xy, subset: problem.log_evidence(part, xy))
    prior = score_models(gram, moment, lambda part, xy, subset: torch.logit(q)[subset].sum(-1))
    joint = evidence + prior + torch.log1p(-q).sum()
    log_evidence = torch.logsumexp(joint, 0)
    log_probs = joint - log_evidence
    mean, covariance, noise_precision = _moments(problem, log_probs)
    return SpikeSlabPosterior(
        log_evidence=log_evidence.item(),
        model_log_evidence=evidence.numpy(),
        log_model_probs=log_probs.numpy(),
        inclusion=inclusion_of_columns(log_probs, p).numpy(),
        mean=mean.numpy(),
        sd=covariance.diagonal().sqrt().numpy(),
        covariance=covariance.numpy(),
        noise_precision_mean=noise_precision,
        model=linear_regression(
            lambda sd: spikes_and_slabs(q, slab_scale * sd),
            gamma_law(a, b) if noise_scale is None else noise_scale,
        ),
        _problem=problem,
    )


def _moments(problem: _SpikeSlab, log_probs: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean [p] and covariance [p, p] of w, and E[tau], averaged over the models."""
    p = len(problem.moment)
    mean, second, tau = torch.zeros(p, dtype=torch.float64), torch.zeros(p * p, dtype=torch.float64), 0.0
    for models, subset in all_subsets(p):
        weight = log_probs[models].exp()
        keep = weight > 1e-22  # 2^20 models of that size change nothing in float64
        subset, weight = subset[keep], weight[keep]
        root, z, residual = problem.factor(*gather(problem.gram, problem.moment, subset))
        variance, precision = problem.noise(residual)
        tau += (weight * precision).sum().item()
        if subset.shape[1] == 0 or not len(subset):
            continue
        centre = half_solve(root, z, transposed=True)
        inner = variance[:, None, None] * torch.cholesky_inverse(root)
        inner = inner + centre[:, :, None] * centre[:, None, :]
        mean.index_add_(0, subset.reshape(-1), (weight[:, None] * centre).reshape(-1))
        place = subset[:, :, None] * p + subset[:, None, :]
        second.index_add_(0, place.reshape(-1), (weight[:, None, None] * inner).reshape(-1))
    return mean, second.reshape(p, p) - torch.outer(mean, mean), tau
