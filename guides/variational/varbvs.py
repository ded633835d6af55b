"""Variational Bayes variable selection (Carbonetto and Stephens 2012), linear and logistic.

Notation: x [n, p], y [n], linear predictor eta = b + x w.

    w_j = gamma_j v_j,   gamma_j ~ Bernoulli(inclusion_prob),   b ~ N(0, bias_scale^2)
    linear:    y ~ N(eta, noise_scale^2),     v_j ~ N(0, (slab_scale noise_scale)^2)
    logistic:  y ~ Bernoulli(sigmoid(eta)),   v_j ~ N(0, slab_scale^2)

The approximation: (gamma_j, w_j) independent over j, a spike and a Gaussian each; b, given w, its exact
Gaussian.  The logistic likelihood is bounded by Jaakkola and Jordan's quadratic, one free number a row, so
that both families are a quadratic with precisions ``d`` [n] in eta; the intercept is then integrated out of
it, which in the linear case with a flat prior is the paper's centring of x and y.  Coordinate ascent raises
the bound at every step.

Hyper-parameters are numbers, or grids of numbers: then every combination is fitted and the fits are averaged
with weights proportional to exp(bound), uniform prior over the grid, as in the paper's importance sampling.

Carbonetto and Stephens (2012), Bayesian Analysis 7(1); Jaakkola and Jordan (2000), Statistics and Computing
10.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from scipy.special import expit, xlogy
from torch import Tensor

from guides.core.checks import check_counts, check_positive, checked_data, checked_inclusion, checked_logistic
from guides.posterior.draws import Posterior
from guides.posterior.regressions import linear_regression, logistic_regression, spikes_and_slabs

__all__ = ["VARBVS", "VariationalFit"]

Family = Literal["linear", "logistic"]


@dataclass(frozen=True)
class VariationalFit:
    """The best approximation found at one setting of the hyper-parameters.

    :ivar alpha: [p] inclusion probabilities; ``mu`` [p] and ``s`` [p], mean and sd of w_j given inclusion.
    :ivar elbo: the bound on log p(y); ``trace``, its value after every round of coordinate ascent.
    :ivar converged: the last round changed no inclusion probability by more than the tolerance.
    :ivar noise_scale: linear: given or estimated; logistic: 1.
    """

    inclusion_prob: float
    slab_scale: float
    noise_scale: float
    alpha: np.ndarray
    mu: np.ndarray
    s: np.ndarray
    elbo: float
    trace: tuple[float, ...]
    converged: bool
    _law: _Quadratic

    @property
    def mean(self) -> np.ndarray:
        """E[w] [p]."""
        return self.alpha * self.mu

    @property
    def variance(self) -> np.ndarray:
        """Var[w] [p], spikes included."""
        return _variance(self.alpha, self.mu, self.s)

    @property
    def bias_law(self) -> tuple[float, np.ndarray, float]:
        """``(m, k [p], sd)``: b given w is N(m - k . w, sd^2)."""
        return self._law.bias_mean, self._law.bias_slope, math.sqrt(self._law.bias_variance)


class VARBVS:
    """Fit with :meth:`fit`, then read the averages over the grid of hyper-parameters.

    Standardise x first (and y, in the linear case, unless ``bias_scale`` is infinite).

    :param family: ``linear`` or ``logistic``.
    :param inclusion_prob: a number strictly inside (0, 1), or several: a grid.
    :param slab_scale: sd of the slab, or a grid; in units of the noise sd in the linear case.
    :param noise_scale: linear only: the noise sd, a grid, or None: estimated by maximising the bound.
    :param bias_scale: sd of the prior of b; ``inf`` for a flat one (density 1), 0 for no intercept.
    :param starts: fits for each setting, the first from the prior and the others from random points; the one
        with the largest bound counts (correlated columns have many optima, nats apart).  All settings of a
        grid then start once more from the best of all.
    :param tol: largest change of an inclusion probability in the last round.
    :param max_rounds: of coordinate ascent.
    :param seed: of the random starting points.

    After the fit: ``inclusion`` [p], ``mean`` [p], ``sd`` [p] of w; ``elbo``, a lower bound of log p(y) (of
    the grid's mixture; at an estimated noise_scale, of its value there); ``fits``, one
    :class:`VariationalFit` a setting, and ``weights``; ``converged``.
    """

    inclusion: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    elbo: float
    fits: list[VariationalFit]
    weights: np.ndarray
    converged: bool

    def __init__(
        self,
        family: Family = "linear",
        *,
        inclusion_prob: float | Sequence[float] = 0.25,
        slab_scale: float | Sequence[float] = 1.0,
        noise_scale: float | Sequence[float] | None = None,
        bias_scale: float = 1.0,
        starts: int = 10,
        tol: float = 1e-6,
        max_rounds: int = 2000,
        seed: int = 0,
    ) -> None:
        if family not in ("linear", "logistic"):
            raise ValueError(f"family must be 'linear' or 'logistic', not {family!r}")
        if family == "logistic" and noise_scale is not None:
            raise ValueError("noise_scale is for the linear family only")
        check_counts(starts=starts, max_rounds=max_rounds)
        if not bias_scale >= 0:
            raise ValueError("bias_scale must be positive, infinite (flat prior) or 0 (no intercept)")
        q, slab = _grid("inclusion_prob", inclusion_prob), _grid("slab_scale", slab_scale)
        checked_inclusion(q, len(q))
        noise = [None] if noise_scale is None else _grid("noise_scale", noise_scale).tolist()
        check_positive(slab_scale=slab, noise_scale=1.0 if noise_scale is None else noise_scale, tol=tol)
        self.family, self.bias_scale = family, float(bias_scale)
        self.grid = list(itertools.product(q.tolist(), slab.tolist(), noise))
        self.starts, self.tol, self.max_rounds, self.seed = starts, tol, max_rounds, seed

    def __getattr__(self, name: str):
        remedy = ": call fit(x, y) first" if name in VARBVS.__annotations__ else ""
        raise AttributeError(f"VARBVS has no {name}{remedy}")

    def fit(self, x: np.ndarray, y: np.ndarray) -> VARBVS:
        """Fit to x [n, p] and y [n] (labels 0 and 1 in the logistic case); returns itself.

        :raises ValueError: shapes that do not fit, numbers that are not finite, other labels; a constant y
            where the noise is unknown, of which the bound has no largest value.
        """
        x, y = checked_logistic(x, y) if self.family == "logistic" else checked_data(x, y)
        flat = np.ptp(y) == 0 and (self.bias_scale > 0 or y[0] == 0)  # all of it may be explained
        if flat and self.family == "linear" and None in {noise for *_, noise in self.grid}:
            raise ValueError(f"y is constant ({y[0]:g}), and its noise cannot be estimated: give noise_scale")
        rng, p = np.random.default_rng(self.seed), x.shape[1]

        def climb(
            setting: tuple, alpha: np.ndarray, mu: np.ndarray, law: _Quadratic | None
        ) -> VariationalFit:
            return _Ascent(x, y, self.family, self.bias_scale, *setting, alpha, mu, law).run(
                self.tol, self.max_rounds
            )

        fits = []
        for setting in self.grid:
            tries = [climb(setting, np.full(p, setting[0]), np.zeros(p), None)]
            for _ in range(self.starts - 1):
                alpha, mu = rng.random(p), setting[1] * rng.standard_normal(p)
                tries.append(climb(setting, alpha, mu, None))
            fits.append(max(tries, key=lambda fit: fit.elbo))
        if len(fits) > 1:
            best = max(fits, key=lambda fit: fit.elbo)
            again = [climb(setting, best.alpha, best.mu, best._law) for setting in self.grid]
            fits = [max(pair, key=lambda fit: fit.elbo) for pair in zip(fits, again, strict=True)]
        bounds = np.array([fit.elbo for fit in fits])
        self.weights = np.exp(bounds - np.logaddexp.reduce(bounds))
        self.fits, self.elbo = fits, float(np.logaddexp.reduce(bounds) - math.log(len(bounds)))
        self.inclusion = self.weights @ np.stack([fit.alpha for fit in fits])
        self.mean = self.weights @ np.stack([fit.mean for fit in fits])
        second = self.weights @ np.stack([fit.variance + fit.mean**2 for fit in fits])
        self.sd = np.sqrt(np.maximum(second - self.mean**2, 0.0))
        self.converged = all(fit.converged for fit in fits)
        return self

    def draws(self, n: int, seed: int = 0) -> dict[str, np.ndarray]:
        """``n`` independent draws of the approximation: ``w`` [n, p] with exact zeros, ``b`` [n], and of a
        grid ``setting`` [n], the number in :attr:`fits`.

        :raises RuntimeError: before :meth:`fit`.
        """
        check_counts(n=n)
        self._require_fit()
        rng = np.random.default_rng(seed)
        which = rng.choice(len(self.fits), size=n, p=self.weights)
        u, z = rng.random((n, len(self.mean))), rng.standard_normal((n, len(self.mean)))
        alpha, mu, s = (np.stack([getattr(fit, name) for fit in self.fits]) for name in ("alpha", "mu", "s"))
        w = np.where(u < alpha[which], mu[which] + s[which] * z, 0.0)
        b, noise = np.empty(n), rng.standard_normal(n)
        for k, fit in enumerate(self.fits):
            rows = which == k
            b[rows] = fit._law.bias_given(w[rows], noise[rows])
        draws = {"w": w, "b": b}
        return draws | {"setting": which} if len(self.fits) > 1 else draws

    @property
    def model(self) -> Callable:
        """The Pyro model at the head of this module, sites ``w``, ``b`` (unless ``bias_scale`` is 0) and of a
        grid ``setting``; an estimated noise is the estimate.

        :raises RuntimeError: before :meth:`fit`.
        """
        self._require_fit()
        numbers = [(fit.inclusion_prob, fit.slab_scale, fit.noise_scale) for fit in self.fits]
        table, columns = torch.tensor(numbers, dtype=torch.float64), len(self.mean)
        bias = self._prior_of_bias()

        def model(x: Tensor, y: Tensor | None = None) -> Tensor:
            row = torch.tensor(0)
            if len(table) > 1:
                row = pyro.sample("setting", dist.Categorical(torch.ones(len(table))))
            q, slab, noise = table.index_select(0, row.reshape(1)).squeeze(0).unbind()
            q = q.expand(columns)
            if self.family == "logistic":
                return logistic_regression(spikes_and_slabs(q, slab), bias)(x, y)
            return linear_regression(lambda sd: spikes_and_slabs(q, slab * sd), noise, bias)(x, y)

        return model

    def _prior_of_bias(self) -> dist.TorchDistribution | None:
        if self.bias_scale == 0:
            return None
        if math.isinf(self.bias_scale):
            return dist.ImproperUniform(dist.constraints.real, (), ())
        return dist.Normal(*torch.tensor([0.0, self.bias_scale], dtype=torch.float64))

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` draws that answer all questions of a posterior.

        :raises RuntimeError: before :meth:`fit`.
        """
        draws = self.draws(n, seed)
        if self.bias_scale == 0:
            del draws["b"]
        info = {"method": "varbvs", "draw_seed": seed, "elbo": self.elbo, "converged": self.converged}
        return Posterior.from_draws(self.model, draws, info | {"inclusion": {"w": self.inclusion.tolist()}})

    def _require_fit(self) -> None:
        if not hasattr(self, "fits"):
            raise RuntimeError("call fit(x, y) first")


# ------------------------------------------------------------------------------------------------- arithmetic


def _grid(name: str, value: float | Sequence[float]) -> np.ndarray:
    """The values of a hyper-parameter, [k]; :raises ValueError: for none of them, and for a matrix."""
    values = np.atleast_1d(value)
    if values.ndim > 1 or not len(values):
        raise ValueError(f"{name} must be a number or a list of them (a grid), got shape {values.shape}")
    return values


def _variance(alpha: np.ndarray, mu: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Variance of a spike and slab [p]: alpha (s^2 + (1 - alpha) mu^2)."""
    return alpha * (s**2 + (1 - alpha) * mu**2)


@dataclass(frozen=True)
class _Quadratic:
    """log-likelihood >= constant + kappa . eta - sum d eta^2 / 2, with the intercept integrated out:
    constant + moment . w - w' Q w / 2.

    ``Q`` [p, p], ``moment`` [p]; b given w is N(bias_mean - bias_slope . w, bias_variance).
    """

    Q: np.ndarray
    moment: np.ndarray
    constant: float
    bias_mean: float
    bias_slope: np.ndarray
    bias_variance: float

    @classmethod
    def build(
        cls, x: np.ndarray, d: np.ndarray, kappa: np.ndarray, constant: float, bias_scale: float
    ) -> _Quadratic:
        weighted = x * d[:, None]
        total, column = d.sum(), weighted.sum(0)
        if math.isinf(bias_scale):
            v = 1 / total
            constant += 0.5 * math.log(2 * math.pi * v)
        else:
            v = bias_scale**2 / (1 + bias_scale**2 * total)
            constant -= 0.5 * math.log1p(bias_scale**2 * total)
        constant += 0.5 * v * kappa.sum() ** 2
        moment = x.T @ kappa - column * (v * kappa.sum())
        Q = x.T @ weighted - v * np.outer(column, column)
        return cls(Q, moment, float(constant), float(v * kappa.sum()), v * column, float(v))

    def bias_given(self, w: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """b [m] for w [m, p] and standard normal ``noise`` [m]."""
        return self.bias_mean - w @ self.bias_slope + math.sqrt(self.bias_variance) * noise

    def predictor(
        self, x: np.ndarray, mean: np.ndarray, variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of eta [n], each, when w has independent entries with these moments."""
        centred = x - self.bias_slope
        return self.bias_mean + centred @ mean, centred**2 @ variance + self.bias_variance

    def expectation(self, mean: np.ndarray, variance: np.ndarray) -> float:
        """E of the quadratic."""
        value = self.constant + self.moment @ mean - 0.5 * mean @ self.Q @ mean
        return float(value - 0.5 * np.diag(self.Q) @ variance)


class _Ascent:
    """Coordinate ascent at one setting of the hyper-parameters."""

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        family: Family,
        bias_scale: float,
        inclusion_prob: float,
        slab_scale: float,
        noise_scale: float | None,
        alpha: np.ndarray,
        mu: np.ndarray,
        law: _Quadratic | None,
    ) -> None:
        self.x, self.y, self.family, self.bias_scale = x, y, family, bias_scale
        self.q, self.slab_scale = inclusion_prob, slab_scale
        self.noise_is_free = family == "linear" and noise_scale is None
        self.alpha, self.mu, self.s = alpha.copy(), mu.copy(), np.zeros(x.shape[1])
        # before anything is known: the spread of y around its mean, or around 0 without an intercept
        centre = 0.0 if bias_scale == 0 else y.mean()
        guess = math.sqrt(np.mean((y - centre) ** 2)) or 1.0
        self.noise = noise_scale or (guess if family == "linear" else 1.0)
        self.xi = np.zeros(len(y))
        if law is not None:
            self.law = law  # of another setting: gives the predictor at alpha and mu
            self._tighten()
        self.law = self._law()

    @property
    def slab(self) -> float:
        """sd of the slab in the units of w."""
        return self.slab_scale * self.noise if self.family == "linear" else self.slab_scale

    def run(self, tol: float, max_rounds: int) -> VariationalFit:
        trace, converged = [], False
        for _ in range(max_rounds):
            before = self.alpha.copy(), self.alpha * self.mu
            self._round()
            self._tighten()
            trace.append(self.law.expectation(self.alpha * self.mu, _variance(self.alpha, self.mu, self.s)))
            trace[-1] -= self._divergence()
            moved = np.abs(self.alpha - before[0]).max()
            scale = self.s.max() + np.abs(self.mu).max()
            if moved <= tol and np.abs(self.alpha * self.mu - before[1]).max() <= tol * scale:
                converged = True
                break
        return VariationalFit(
            inclusion_prob=self.q,
            slab_scale=self.slab_scale,
            noise_scale=self.noise,
            alpha=self.alpha,
            mu=self.mu,
            s=self.s,
            elbo=trace[-1],
            trace=tuple(trace),
            converged=converged,
            _law=self.law,
        )

    def _round(self) -> None:
        """Every coordinate once, to its optimum given the others."""
        Q, mean = self.law.Q, self.alpha * self.mu
        self.s = (np.diag(Q) + self.slab**-2.0) ** -0.5
        constant = math.log(self.q) - math.log1p(-self.q) + np.log(self.s / self.slab)
        for j in range(len(mean)):
            self.mu[j] = self.s[j] ** 2 * (self.law.moment[j] - Q[j] @ mean + Q[j, j] * mean[j])
            self.alpha[j] = expit(constant[j] + 0.5 * (self.mu[j] / self.s[j]) ** 2)
            mean[j] = self.alpha[j] * self.mu[j]

    def _tighten(self) -> None:
        """The bound's free numbers, or an unknown noise sd, to their optimum given the law of (w, b)."""
        mean, variance = self.alpha * self.mu, _variance(self.alpha, self.mu, self.s)
        centre, spread = self.law.predictor(self.x, mean, variance)
        if self.family == "logistic":
            self.xi = np.sqrt(centre**2 + spread)
            self.law = self._law()
        elif self.noise_is_free:
            slab = (self.alpha * (self.s**2 + self.mu**2)).sum() / self.slab_scale**2
            errors = ((self.y - centre) ** 2 + spread).sum()
            self.noise = math.sqrt((errors + slab) / (len(self.y) + self.alpha.sum()))
            self.law = self._law()

    def _law(self) -> _Quadratic:
        n = len(self.y)
        if self.family == "linear":
            tau = self.noise**-2.0
            constant = 0.5 * n * math.log(tau / (2 * math.pi)) - 0.5 * tau * (self.y @ self.y)
            return _Quadratic.build(self.x, np.full(n, tau), tau * self.y, constant, self.bias_scale)
        xi = self.xi
        small = xi < 1e-6  # tanh(x/2) / (2x) -> 1/4
        d = np.where(small, 0.25, np.tanh(xi / 2) / np.where(small, 1.0, 2 * xi))
        # log sigmoid(m) >= log sigmoid(xi) + (m - xi)/2 - d (m^2 - xi^2)/2 for m = (2y - 1) eta
        constant = np.sum(-np.log1p(np.exp(-xi)) - 0.5 * xi + 0.5 * d * xi**2)
        return _Quadratic.build(self.x, d, self.y - 0.5, float(constant), self.bias_scale)

    def _divergence(self) -> float:
        """KL of the law of (gamma, w) to its prior."""
        a, ratio = self.alpha, (self.s**2 + self.mu**2) / self.slab**2
        slabs = a @ (math.log(self.slab) - np.log(self.s) - 0.5 + 0.5 * ratio)
        spikes = xlogy(a, a / self.q) + xlogy(1 - a, (1 - a) / (1 - self.q))
        return float(slabs + spikes.sum())
