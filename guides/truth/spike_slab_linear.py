"""Variable selection in closed form, by counting all 2^p models of a linear regression.

Notation, everywhere: x [n, p], y [n], noise precision tau (tau = 1 / noise_scale^2), and no intercept unless
said.

    y | w, tau ~ N(x w, I / tau)

* :func:`enumerate_g_prior`: Bayes factors of all 2^p subsets under Zellner's g-prior, intercept integrated
  out.
* :func:`enumerate_spike_slab`: w_j = 0 or w_j | tau ~ N(0, s^2 / tau), independently; everything exact.

Float64 throughout, log space, no loop over models: subsets of one size are gathered and factorised in
batches. In a model's number, bit i says that column i is in.

Zellner (1986); Liang, Paulo, Molina, Clyde, Berger (2008), JASA
103(481), equation 6; George and McCulloch (1997), Statistica Sinica 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from guides.core.checks import check_counts, check_numbers, checked_data, checked_inclusion
from guides.posterior.draws import Posterior
from guides.posterior.regressions import linear_regression, spikes_and_slabs
from guides.truth.conjugate import gamma_law, log_noise_integral

__all__ = [
    "GPriorModels",
    "SpikeSlabPosterior",
    "enumerate_g_prior",
    "enumerate_spike_slab",
]

#: Most columns whose subsets are enumerated: 2^20 models take some seconds, 2^25 would take minutes and
#: gigabytes.
MAX_COLUMNS = 20
#: What to do about more of them.
FEWER = "leave some out, or take guides.JointSpikeSlab, which is near the exact probabilities"
#: Nats that rounding may change the evidence by.
SEEN = 1e-3
#: Condition number of columns whose products still have a root.
MOST_DEPENDENT = 1e7
#: Numbers held at a time by a batch of gathered submatrices (8 bytes each, a handful of such arrays: about
#: 100 MB).
_BATCH_NUMBERS = 2_000_000


def check_columns(p: int, remedy: str) -> None:
    """:raises ValueError: for more columns than are enumerated; ``remedy`` says what to do about it"""
    if p > MAX_COLUMNS:
        raise ValueError(
            f"{p} columns make 2^{p} models: at most {MAX_COLUMNS} columns are enumerated ({remedy})"
        )


# --------------------------------------------------------------------------------------- g-prior, all subsets


@dataclass(frozen=True)
class GPriorModels:
    """All 2^p linear models under Zellner's g-prior.

    :ivar log_bf: [2^p] log Bayes factors against the null model; bit i of the index = column i in.
    :ivar log_model_probs: [2^p] log posterior probabilities, uniform prior over models.
    :ivar inclusion: [p] posterior inclusion probabilities.
    """

    log_bf: np.ndarray
    log_model_probs: np.ndarray
    inclusion: np.ndarray


def enumerate_g_prior(x: np.ndarray, y: np.ndarray, g: float) -> GPriorModels:
    """Bayes factors and inclusion probabilities of all subsets of the columns of x.

    Prior of a model: p(intercept, tau) ~ 1/tau, w | tau ~ N(0, g (Xc'Xc)^-1 / tau), Xc the centred columns.
    Then

        log BF = (n - 1 - k)/2 log(1 + g) - (n - 1)/2 log(1 + g (1 - R^2))

    :raises ValueError: more than 20 columns; a constant column, and columns that are linearly dependent (the
        prior has no density there), or so nearly that rounding would be seen in the evidence; g <= 0; y that
        is constant.
    """
    x, y = checked_data(x, y)
    n, p = x.shape
    check_columns(p, FEWER)
    check_numbers(g=g)
    Xc, yc = x - x.mean(0), y - y.mean()
    scale = np.sqrt((Xc**2).sum(0))
    total = float(yc @ yc)
    # the mean of equal numbers may be off by a rounding error: what is left over is no predictor
    constant = np.flatnonzero(np.ptp(x, 0) <= 1e-13 * np.abs(x).max(0))
    if len(constant):
        raise ValueError(
            f"column {constant[0]} of x is constant, as the intercept is, and linearly dependent on it: no "
            "g-prior exists, leave it out"
        )
    if total <= 1e-24 * n * float(np.abs(y).max()) ** 2:
        raise ValueError("y is constant: R^2 does not exist")
    Xc = Xc / scale  # R^2 does not change, the conditioning does
    _check_dependence(Xc, yc, g)

    def score(gram: Tensor, moment: Tensor, subset: Tensor) -> Tensor:
        explained = _half_solve(torch.linalg.cholesky(gram), moment).square().sum(-1)
        unexplained = (1 - explained / total).clamp_min(0.0)  # rounding of a perfect fit
        size = subset.shape[-1]
        return (n - 1 - size) / 2 * math.log1p(g) - (n - 1) / 2 * torch.log1p(g * unexplained)

    log_bf = _score_models(torch.as_tensor(Xc.T @ Xc), torch.as_tensor(Xc.T @ yc), score)
    log_probs = torch.log_softmax(log_bf, 0)
    return GPriorModels(log_bf.numpy(), log_probs.numpy(), inclusion_of_columns(log_probs, p).numpy())


def _check_dependence(Xc: np.ndarray, yc: np.ndarray, g: float) -> None:
    """R^2 is computed from products of columns, whose condition number is the square of the columns' own.  Of
    all columns together, all but one and every two it is compared with that of a singular value
    decomposition.

    :param Xc: centred columns of length 1 ``[n, p]``; ``yc``: centred ``[n]``
    :raises ValueError: where a log Bayes factor is off by more than :data:`SEEN`
    """
    n, p = Xc.shape
    if p >= n:
        raise ValueError(
            f"{p} columns of {n} rows are linearly dependent with the intercept: no g-prior exists, leave at "
            f"least {p - n + 1} out"
        )
    condition = np.linalg.cond(Xc)
    if not condition < MOST_DEPENDENT:
        raise ValueError(
            "columns of x are linearly dependent (with the intercept), or all but "
            f"(condition number {condition:.1e}): no g-prior exists, leave one out"
        )
    total, every = float(yc @ yc), range(p)
    pairs = [*([i] for i in every), *combinations(every, 2)]
    subsets = [list(every), *([i for i in every if i != j] for j in every), *pairs]
    left = yc - Xc @ np.linalg.lstsq(Xc, yc, rcond=None)[0]
    rough = np.finfo(float).eps * p * math.sqrt(n)  # of products of columns that are far apart
    off = (n - 1) / 2 * math.log1p(g * rough / (1 + g * (left @ left) / total))
    for columns in map(list, filter(None, subsets)):
        chosen = Xc[:, columns]
        left = yc - chosen @ np.linalg.lstsq(chosen, yc, rcond=None)[0]
        gram, moment = torch.as_tensor(chosen.T @ chosen), torch.as_tensor(chosen.T @ yc)
        explained = _half_solve(torch.linalg.cholesky(gram), moment).square().sum().item() / total
        logs = [math.log1p(g * max(0.0, part)) for part in (left @ left / total, 1 - explained)]
        off = max(off, (n - 1) / 2 * abs(logs[0] - logs[1]))
    if off > SEEN:
        raise ValueError(
            f"columns of x are so nearly dependent (condition number {condition:.1e}), or g is so large, "
            f"that rounding changes a Bayes factor by {off:.1g} nats: leave one out, or take a smaller g"
        )


# -------------------------------------------------------------------------------- spike and slab, all subsets


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
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype) / self.slab_scale**2
        root = torch.linalg.cholesky(gram + eye)
        z = _half_solve(root, moment)
        return root, z, (self.total - z.square().sum(-1)).clamp_min(0.0)  # below 0 only by rounding

    def check_rounding(self) -> None:
        """:raises ValueError: where S, a difference, is so small beside y'y, or |z|^2 so rough where columns
        nearly depend on each other, that rounding is seen
        """
        root, z, left = self.factor(self.gram, self.moment)  # the least S of all models has all columns
        residual, w = left.item(), _half_solve(root, z, transposed=True).abs()
        # S = y'y - 2 w'x'y + w'A w, whose terms are as rough as they are large
        terms = self.total + 2 * w @ self.moment.abs() + w @ (root.abs() @ root.abs().mT) @ w
        rounding = torch.finfo(torch.float64).eps * len(w) * float(terms)
        known = self.noise_scale is not None
        slope = 0.5 / self.noise_scale**2 if known else 0.5 * self.rows / (2 * self.b + residual)
        nats = slope * rounding
        if nats > SEEN:
            raise ValueError(
                "y is so large beside its noise, or columns of x are so nearly dependent, that rounding may "
                f"change the evidence by {nats:.2g} nats: centre and scale x and y, leave a column out, or "
                "fix no noise as small as that"
            )

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
            for part in rows.split(max(1, _BATCH_NUMBERS // max(1, size) ** 2)):
                subset = torch.nonzero(included[part])[:, 1].reshape(len(part), size)
                root, z, residual = self.factor(*_gather(self.gram, self.moment, subset))
                tau[part] = self._sample_noise(residual, generator)
                noise = torch.randn(z.shape, generator=generator, dtype=z.dtype)
                # w = A^-1 x'y + L'^-1 z' / sqrt(tau) = L'^-1 (z + z' / sqrt(tau))
                values = _half_solve(root, z + noise / tau[part, None].sqrt(), transposed=True)
                w[part[:, None], subset] = values
        return w, tau

    def _sample_noise(self, residual: Tensor, generator: torch.Generator) -> Tensor:
        if self.noise_scale is not None:
            return torch.full_like(residual, self.noise_scale**-2)
        # torch's gamma sampler takes the generator by this private name only
        shape = torch.full_like(residual, self.a + self.rows / 2)
        return torch._standard_gamma(shape, generator=generator) / (self.b + residual / 2)


def draw_models(log_probs: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """The numbers of ``n`` models, drawn by the logarithms ``[models]`` of their probabilities: ``[n]``."""
    cumulative = log_probs.exp().cumsum(0)
    u = torch.rand(n, generator=generator, dtype=torch.float64) * cumulative[-1]
    return torch.searchsorted(cumulative, u, right=True).clamp_max(len(cumulative) - 1)


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
    evidence = _score_models(gram, moment, lambda part, xy, subset: problem.log_evidence(part, xy))
    prior = _score_models(gram, moment, lambda part, xy, subset: torch.logit(q)[subset].sum(-1))
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
    for models, subset in _subsets(p):
        weight = log_probs[models].exp()
        keep = weight > 1e-22  # 2^20 models of that size change nothing in float64
        subset, weight = subset[keep], weight[keep]
        root, z, residual = problem.factor(*_gather(problem.gram, problem.moment, subset))
        variance, precision = problem.noise(residual)
        tau += (weight * precision).sum().item()
        if subset.shape[1] == 0 or not len(subset):
            continue
        centre = _half_solve(root, z, transposed=True)
        inner = variance[:, None, None] * torch.cholesky_inverse(root)
        inner = inner + centre[:, :, None] * centre[:, None, :]
        mean.index_add_(0, subset.reshape(-1), (weight[:, None] * centre).reshape(-1))
        place = subset[:, :, None] * p + subset[:, None, :]
        second.index_add_(0, place.reshape(-1), (weight[:, None, None] * inner).reshape(-1))
    return mean, second.reshape(p, p) - torch.outer(mean, mean), tau


# ------------------------------------------------------------------------------------------------- arithmetic


def _half_solve(root: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """L^-1 r, or L'^-1 r, of a batch of lower triangles [..., k, k] and vectors [..., k]."""
    matrix = root.mT if transposed else root
    return torch.linalg.solve_triangular(matrix, right[..., None], upper=transposed)[..., 0]


def _gather(gram: Tensor, moment: Tensor, subset: Tensor) -> tuple[Tensor, Tensor]:
    """Submatrices [B, k, k] and subvectors [B, k] of the columns ``subset`` [B, k]."""
    return gram[subset[:, :, None], subset[:, None, :]], moment[subset]


def _subsets(p: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All subsets of p columns in batches of one size k: model numbers [B], columns [B, k]."""
    models = torch.arange(2**p)
    size = torch.zeros_like(models)
    for i in range(p):
        size += (models >> i) & 1
    for k in range(p + 1):
        for part in models[size == k].split(max(1, _BATCH_NUMBERS // max(1, k * k, p))):
            columns = torch.nonzero((part[:, None] >> torch.arange(p)) & 1)[:, 1]
            yield part, columns.reshape(len(part), k)


def _score_models(gram: Tensor, moment: Tensor, score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """``score(x'x of the subset, x'y of the subset, subset)`` of every model, [2^p]."""
    p = len(moment)
    out = torch.empty(2**p, dtype=torch.float64)
    for models, subset in _subsets(p):
        out[models] = score(*_gather(gram, moment, subset), subset)
    return out


def inclusion_of_columns(log_probs: Tensor, p: int) -> Tensor:
    """Sum of the probabilities of the models whose bit i is set, [p]."""
    probs = log_probs.exp()
    number = torch.arange(len(probs))
    return torch.stack([probs[(number >> i) & 1 == 1].sum() for i in range(p)])
