"""Linear regression in closed form, with known and with unknown noise.

Notation: x [n, p], y [n], noise precision tau (tau = 1 / noise_scale^2), no intercept.

    y | w, tau ~ N(x w, I / tau)

* :func:`conjugate_linear_regression`: w ~ N(0, P^-1), tau known; with the best mean-field Gaussian and its
  ELBO.
* :func:`normal_gamma_regression`: w | tau ~ N(0, s^2 / tau), tau ~ Gamma(a, b) (rate b).

Bishop (2006), sections 3.3 and 10.1.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from pyro import distributions as dist
from scipy.linalg import solve_triangular
from torch import Tensor
from torch.distributions import Normal, StudentT

from guides.core.checks import check_counts, check_numbers, check_positive, checked_data, checked_vector
from guides.core.moments import LOG_2PI
from guides.posterior.draws import Posterior
from guides.posterior.regressions import linear_regression
from guides.truth.subsets import SEEN

__all__ = ["ConjugateRegression", "NormalGamma", "conjugate_linear_regression", "normal_gamma_regression"]

#: Keeps a law proper where it is a known number.
TINY = 1e-60


@dataclass(frozen=True)
class ConjugateRegression:
    """Posterior N(mean, covariance) of the weights, known noise.

    :ivar mean: [p].
    :ivar covariance: [p, p].
    :ivar root: [p, p], upper triangular: ``precision = root' root`` is the inverse of the covariance.
    :ivar log_evidence: log p(y).
    :ivar mean_field_sd: [p], sd of the mean-field Gaussian with the largest ELBO; its mean is ``mean`` and
        its variances are 1 / diag(precision), *not* diag(covariance).
    :ivar mean_field_elbo: its ELBO, log p(y) - (sum_j log precision_jj - log det precision) / 2.
    :ivar model: the Pyro model, site ``w``.
    """

    mean: np.ndarray
    covariance: np.ndarray
    root: np.ndarray = field(repr=False)
    log_evidence: float
    mean_field_sd: np.ndarray
    mean_field_elbo: float
    noise_scale: float
    model: Callable = field(repr=False)

    @property
    def precision(self) -> np.ndarray:
        """[p, p]."""
        return self.root.T @ self.root

    def draws(self, n: int, seed: int = 0) -> dict[str, np.ndarray]:
        """``n`` independent draws: ``w`` [n, p]."""
        check_counts(n=n)
        return {"w": self.mean + _gaussian(self.root, n, np.random.default_rng(seed))}

    def predictive(self, x: np.ndarray, noise: bool = True) -> Normal:
        """Law of y at ``x`` [m, p], in closed form, batch shape [m]; without ``noise`` that of x w."""
        x = np.asarray(x, dtype=float)
        variance = _spread(self.root, x) + noise * self.noise_scale**2
        return Normal(torch.as_tensor(x @ self.mean), torch.as_tensor(np.sqrt(variance.clip(TINY))))

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` draws that answer all questions of a posterior."""
        info = {"method": "conjugate", "draw_seed": seed, "log_evidence": self.log_evidence}
        return Posterior.from_draws(self.model, self.draws(n, seed), info)


def conjugate_linear_regression(
    x: np.ndarray,
    y: np.ndarray,
    *,
    prior_precision: float | np.ndarray | None = None,
    prior_scale: float | np.ndarray | None = None,
    noise_scale: float,
) -> ConjugateRegression:
    """Exact posterior of w ~ N(0, P^-1) given y ~ N(x w, noise_scale^2 I).

    :param prior_precision: P as a number, a diagonal [p] or a matrix [p, p] ...
    :param prior_scale: ... or its standard deviations, a number or [p]; exactly one of the two.
    :raises ValueError: both or neither prior given; shapes that do not fit; values that are not positive or
        finite; a matrix that is not symmetric, or not positive definite; numbers so far apart in size that
        rounding is seen.
    """
    x, y = checked_data(x, y)
    n, p = x.shape
    if (prior_precision is None) == (prior_scale is None):
        raise ValueError("give exactly one of prior_precision and prior_scale")
    if prior_scale is None and np.shape(prior_precision) == (p, p):
        prior = _checked_precision(np.asarray(prior_precision, dtype=float))
    elif prior_scale is None:
        prior = np.diag(checked_vector("prior_precision", prior_precision, p))
    else:
        prior = np.diag(checked_vector("prior_scale", prior_scale, p) ** -2.0)
    check_numbers(noise_scale=noise_scale)
    check_positive(prior=np.diag(prior))
    tau = noise_scale**-2.0
    # sqrt(tau) y ~ N(sqrt(tau) x w, I) and 0 ~ N(P^(1/2) w, I): least squares of both
    prior_root = np.linalg.cholesky(prior).T
    root, mean, quadratic = _least_squares(x / noise_scale, y / noise_scale, prior_root)
    _check_rounding(root, mean, y / noise_scale, quadratic)
    half_logdet, mean_field_sd = _half_logdet(root), 1 / np.linalg.norm(root, axis=0)
    # y'(I/tau + x P^-1 x')^-1 y = tau |y - x m|^2 + m' P m : no difference of large numbers
    log_evidence = 0.5 * (n * (math.log(tau) - LOG_2PI) - quadratic) + _half_logdet(prior_root) - half_logdet
    gap = -np.log(mean_field_sd).sum() - half_logdet
    return ConjugateRegression(
        mean=mean,
        covariance=_inverse(root),
        root=root,
        log_evidence=float(log_evidence),
        mean_field_sd=mean_field_sd,
        mean_field_elbo=float(log_evidence - gap),
        noise_scale=noise_scale,
        model=linear_regression(lambda sd: _centred(torch.as_tensor(prior)), noise_scale),
    )


@dataclass(frozen=True)
class NormalGamma:
    """Posterior w | tau ~ N(mean, (tau precision)^-1), tau ~ Gamma(a, b) with rate b.

    :ivar mean: [p].
    :ivar root: [p, p], upper triangular: ``precision = root' root``, in units of the noise precision.
    :ivar a: shape; ``b`` rate.
    :ivar log_evidence: log p(y).
    :ivar model: the Pyro model, sites ``w`` and ``noise_precision``.
    """

    mean: np.ndarray
    root: np.ndarray = field(repr=False)
    a: float
    b: float
    log_evidence: float
    model: Callable = field(repr=False)

    @property
    def precision(self) -> np.ndarray:
        """[p, p]."""
        return self.root.T @ self.root

    @property
    def covariance(self) -> np.ndarray:
        """Marginal covariance of w [p, p]: E[1/tau] precision^-1.

        :raises ValueError: for an ``a`` of 1 or less, as of one row and a prior shape of a half or less
        """
        if self.a <= 1:
            raise ValueError(f"a = {self.a:g} must be above 1: the posterior variance is infinite")
        return _inverse(self.root) * self.b / (self.a - 1)

    def draws(self, n: int, seed: int = 0) -> dict[str, np.ndarray]:
        """``n`` independent draws: ``w`` [n, p], ``noise_precision`` [n]."""
        check_counts(n=n)
        rng = np.random.default_rng(seed)
        tau = rng.gamma(self.a, 1 / self.b, size=n)
        w = self.mean + _gaussian(self.root, n, rng) / np.sqrt(tau)[:, None]
        return {"w": w, "noise_precision": tau}

    def predictive(self, x: np.ndarray, noise: bool = True) -> StudentT:
        """Law of y at ``x`` [m, p], in closed form, batch shape [m]; without ``noise`` that of x w."""
        x = np.asarray(x, dtype=float)
        scale = np.sqrt((self.b / self.a * (_spread(self.root, x) + noise)).clip(TINY))
        return StudentT(2 * self.a, torch.as_tensor(x @ self.mean), torch.as_tensor(scale))

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` draws that answer all questions of a posterior."""
        info = {"method": "normal-gamma", "draw_seed": seed, "log_evidence": self.log_evidence}
        return Posterior.from_draws(self.model, self.draws(n, seed), info)


def normal_gamma_regression(
    x: np.ndarray, y: np.ndarray, *, prior_scale: float | np.ndarray = 1.0, a: float = 1.0, b: float = 1.0
) -> NormalGamma:
    """Exact posterior of w | tau ~ N(0, prior_scale^2 / tau), tau ~ Gamma(a, b) given y ~ N(x w, I / tau).

    :param prior_scale: in units of the noise sd; a number or [p].
    :raises ValueError: shapes that do not fit; values that are not positive or finite; numbers so far apart
        in size that rounding is seen.
    """
    x, y = checked_data(x, y)
    n, p = x.shape
    check_positive(prior_scale=prior_scale)
    check_numbers(a=a, b=b)
    prior = checked_vector("prior_scale", prior_scale, p) ** -2.0
    root, mean, residual = _least_squares(x, y, np.diag(np.sqrt(prior)))
    log_det = 0.5 * np.log(prior).sum() - _half_logdet(root)
    log_evidence = (
        log_det + log_noise_integral(torch.tensor(residual, dtype=torch.float64), n, a, b, None).item()
    )
    prior = torch.as_tensor(prior)
    model = linear_regression(lambda sd: _centred(torch.diag(prior) / sd**2), gamma_law(a, b))
    a, b = a + n / 2, b + residual / 2
    sd = math.sqrt(b / a)
    _check_rounding(root, mean / sd, y / sd, residual / sd**2)
    return NormalGamma(mean, root, a, b, float(log_evidence), model)


# ------------------------------------------------------------------------------------------------- arithmetic


def log_noise_integral(residual: Tensor, n: int, a: float, b: float, noise_scale: float | None) -> Tensor:
    """log of (tau / 2 pi)^(n/2) exp(-tau S / 2), at the known tau or integrated over tau ~ Gamma(a, b)."""
    if noise_scale is not None:
        return -0.5 * n * (LOG_2PI + 2 * math.log(noise_scale)) - 0.5 * residual / noise_scale**2
    constant = a * math.log(b) - math.lgamma(a) + math.lgamma(a + n / 2) - 0.5 * n * LOG_2PI
    return constant - (a + n / 2) * torch.log(b + residual / 2)


def gamma_law(a: float, b: float) -> dist.Gamma:
    """Of a noise precision, float64; b is the rate."""
    return dist.Gamma(*torch.tensor([a, b], dtype=torch.float64))


def _centred(precision: Tensor) -> dist.MultivariateNormal:
    """N(0, precision^-1) of a matrix [p, p]."""
    return dist.MultivariateNormal(torch.zeros_like(precision[0]), precision_matrix=precision)


def _least_squares(x: np.ndarray, y: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """R [p, p] with R'R = x'x + prior' prior, the minimum m of S(w) = |y - x w|^2 + |prior w|^2, and S(m).

    By QR: x'x, which squares the ratio of large and small, is never solved for.
    """
    rows, target = np.concatenate([x, prior]), np.concatenate([y, np.zeros(len(prior))])
    q, root = np.linalg.qr(rows)
    signs = np.where(np.diag(root) < 0, -1.0, 1.0)
    root, q = signs[:, None] * root, signs * q
    mean = solve_triangular(root, q.T @ target)
    return root, mean, float(np.sum((target - rows @ mean) ** 2))


def _check_rounding(root: np.ndarray, mean: np.ndarray, y: np.ndarray, least: float) -> None:
    """:raises ValueError: where rounding moves the mean by more than :data:`SEEN` sds of the posterior, or
        the evidence by as many nats

    :param y: in units of the noise sd, as ``mean``; ``least``: S(m) in these
    """
    eps, size = np.finfo(float).eps, np.abs(root)
    # root @ mean, whose posterior is N(., I), moves by a few roundings of what it is a sum of (2.2 at most of
    # 60 problems against 70 digits, the evidence by a tenth of the third)
    terms = np.linalg.norm(size @ np.abs(mean)) + np.linalg.norm(y)
    # log det root, by row norms of the inverse and column norms of what the columns are rounded by
    inverse = solve_triangular(root, np.eye(len(root)))
    volume = np.linalg.norm(inverse, axis=1) @ np.linalg.norm(root, axis=0)
    off = eps * max(10 * terms, volume, terms * (1 + math.sqrt(least)))
    if not off <= SEEN:
        raise ValueError(
            "y is so large beside its noise, or columns of x are so nearly dependent, that rounding may move "
            f"the posterior by {off:.2g} sds or nats: centre and scale x and y, leave a column out, take a "
            "tighter prior, or fix no noise as small as that"
        )


def _gaussian(root: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """``n`` draws of N(0, (root' root)^-1), [n, p]."""
    return solve_triangular(root, rng.standard_normal((len(root), n))).T


def _spread(root: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x_i' (root' root)^-1 x_i of every row, [m]."""
    return np.sum(solve_triangular(root, x.T, trans="T") ** 2, axis=0)


def _inverse(root: np.ndarray) -> np.ndarray:
    """(root' root)^-1."""
    inverse = solve_triangular(root, np.eye(len(root)))
    return inverse @ inverse.T


def _checked_precision(matrix: np.ndarray) -> np.ndarray:
    """:raises ValueError: unless it is finite, symmetric up to rounding and positive definite"""
    if not np.isfinite(matrix).all():
        raise ValueError("prior_precision must be finite")
    size = np.abs(matrix).max()
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-6 * size):
        raise ValueError("prior_precision must be symmetric: as a matrix it is P itself, no root of it")
    matrix = (matrix + matrix.T) / 2
    diagonal = np.diag(matrix)
    # in units in which its diagonal is one: units say nothing of whether it is definite
    scale = np.sqrt(diagonal) if (diagonal > 0).all() else np.ones(len(matrix))
    unit = matrix / np.outer(scale, scale)
    smallest = np.linalg.eigvalsh(unit)[0]
    if not smallest > 0:
        raise ValueError(f"prior_precision must be positive definite, its least eigenvalue is {smallest:.3g}")
    off = 0.5 * np.finfo(float).eps * np.sum(np.abs(np.linalg.inv(unit) * unit))
    if not off <= SEEN:
        raise ValueError(
            f"prior_precision is so nearly singular that rounding may change the evidence by {off:.2g} nats: "
            "leave out what nothing determines, or add to its diagonal"
        )
    return matrix


def _half_logdet(root: np.ndarray) -> float:
    """log det(root' root) / 2 of a triangular matrix with a positive diagonal."""
    return float(np.log(np.diag(root)).sum())
