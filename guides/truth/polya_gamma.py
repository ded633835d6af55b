"""Ground truth for spike-and-slab logistic regression by Gibbs sampling, for any number of columns.

Notation: x [n, p], y [n] of zeros and ones.

    y_i ~ Bernoulli(sigmoid(b + x_i w)),   b ~ N(0, bias_scale^2),
    w_j = gamma_j v_j,   gamma_j ~ Bernoulli(inclusion_prob),   v_j ~ N(0, slab_scale^2)

With a Polya-Gamma variable omega_i ~ PG(1, b + x_i w) for every row the posterior of (b, w) given gamma is
Gaussian, so w and b can be *integrated out* while the indicators move (collapsed sampling).  One iteration:

1. omega given (b, w);
2. ``sweeps`` rounds over the indicators given omega, coefficients integrated out: every column in random
   order is proposed to be added or deleted, then pairs of columns are proposed to be *swapped*, correlated
   pairs more often: between two columns that can stand in for each other, single changes hardly ever find
   the way;
3. (b, w) given gamma and omega, then proposals to stretch or shrink all of it with omega integrated out: with
   well separated classes the size of the coefficients is what a Polya-Gamma sampler is slowest to find.

Step 2 works on a tableau of the precision matrix in which the odds of any change can be read off and a change
is one pivot.  Its conditional probabilities P(gamma_j = 1 | omega, other gammas), averaged, are the estimates
of the inclusion probabilities (Rao-Blackwell): :func:`inclusion_probabilities`.

Polson, Scott and Windle (2013), JASA 108; George and McCulloch (1997), Statistica Sinica 7; on the principal
pivot transform Tsatsomeros (2000), Linear Algebra and its Applications 307.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version

import joblib
import numpy as np
from polyagamma import random_polyagamma

from guides.core.checks import (
    check_numbers,
    check_positive,
    checked_inclusion,
    checked_logistic,
    checked_vector,
)
from guides.core.processes import workers_may_leave
from guides.posterior import arviz_io
from guides.posterior.fingerprint import fingerprint
from guides.truth.gates import Gates, MCMCResult, judge, load_if_same
from guides.truth.spike_slab_logistic import check_dependence

__all__ = ["inclusion_probabilities", "sample_polya_gamma", "spike_slab_logistic_gibbs"]

#: From here on the law is an inverse Gaussian to all digits; `polyagamma` 2.0.2 is wrong above some 150.
_LARGE = 50.0
#: Sds of the logarithms of the factors by which (b, w) is proposed to be stretched, one after the other.
_STRETCHES = (0.03, 0.1, 0.3)
#: Chance of a pair of uncorrelated columns to be proposed for a swap, relative to a pair that is equal.
_LEAST_PAIR = 0.01


def sample_polya_gamma(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One draw of PG(1, z) for every entry of ``z`` (any shape, any sign), exactly.

    Mean tanh(z/2) / (2z); Laplace transform E exp(-t omega) = cosh(z/2) / cosh(sqrt(z^2/4 + t/2)).  Where
    ``|z| > 50`` all terms but the first of the alternating series of the density are below 1e-40 of it: what
    is left is an inverse Gaussian.
    """
    tilt = np.abs(np.asarray(z, dtype=float))
    out = np.asarray(random_polyagamma(1.0, np.minimum(tilt, _LARGE), random_state=rng, method="devroye"))
    large = tilt > _LARGE
    if large.any():
        out[large] = rng.wald(2 / tilt[large], 1.0) / 4
    return out


def spike_slab_logistic_gibbs(
    x: np.ndarray,
    y: np.ndarray,
    inclusion_prob: float | np.ndarray = 0.25,
    slab_scale: float | np.ndarray = 1.0,
    bias_scale: float = 1.0,
    *,
    warmup: int = 500,
    draws: int = 4000,
    chains: int = 4,
    sweeps: int = 2,
    seed: int = 0,
    gates: Gates = Gates(),  # noqa: B008  (frozen)
    retries: int = 2,
    jobs: int = 1,
    cache: str | os.PathLike | None = None,
) -> MCMCResult:
    """Sample the posterior (see the head of this module) and judge the draws.

    The gates act on the indicators and on the log-likelihood.  Chains that fail go on for as many draws again
    as they have, at most ``retries`` times; what still fails is returned, and stored, as failed.  Standardise
    x first: the slab is in the units of the columns.

    :param inclusion_prob: a number or [p], strictly inside (0, 1).
    :param slab_scale: sd of the slab, a number or [p].
    :param bias_scale: sd of the prior of the intercept.
    :param warmup, draws: iterations a chain; chains start at models and coefficients drawn at random.
    :param sweeps: rounds over the indicators for one draw of the n Polya-Gamma variables.
    :param jobs: processes that share the chains; the draws do not depend on it.
    :param cache: netCDF file, as :func:`guides.truth.mcmc.nuts` takes it.
    :returns: sites ``w`` [chain, draw, p] with exact zeros and ``b`` [chain, draw]; ``sample_stats`` holds
        ``inclusion_probability`` [chain, draw, p], ``log_likelihood`` and ``swaps`` (those that the
        last sweep accepted).
    :raises ValueError: shapes that do not fit; labels other than 0 and 1; values outside their range; fewer
        than two chains.
    """
    x, y = checked_logistic(x, y)
    q = checked_inclusion(inclusion_prob, x.shape[1])
    scales = checked_vector("slab_scale", slab_scale, x.shape[1])
    check_positive(slab_scale=scales)
    check_numbers(bias_scale=bias_scale)
    check_dependence(x, np.append(scales, bias_scale))
    if chains < 2 or draws < 4 or warmup < 0 or sweeps < 1:
        raise ValueError("at least 2 chains of 4 draws and 1 sweep are needed, and warmup >= 0")
    asked = {"sampler": "polya-gamma", "warmup": warmup, "draws": draws, "chains": chains, "sweeps": sweeps}
    asked |= {"seed": seed, "gates": asdict(gates), "retries": retries, "bias_scale": float(bias_scale)}
    mark = "" if cache is None else fingerprint(asked, x, y, q, scales)
    if cache is not None and (known := load_if_same(cache, mark)) is not None:
        return known
    problem = _Problem.build(x, y, q, np.append(scales, bias_scale))
    streams = np.random.SeedSequence(seed).spawn(chains)
    states = [_Chain.start(problem, np.random.default_rng(stream), sweeps) for stream in streams]
    result = _gated(problem, states, warmup, draws, gates, retries, jobs, asked)
    if cache is not None:
        result.save(cache, fingerprint=mark)
    return result


def inclusion_probabilities(result: MCMCResult) -> tuple[np.ndarray, np.ndarray]:
    """Inclusion probabilities [p] and their Monte Carlo standard errors [p] from a run of the sampler."""
    values = result.sample_stats["inclusion_probability"]
    return values.mean((0, 1)), arviz_io.mcse(values)


def _gated(
    problem: _Problem,
    states: list[_Chain],
    warmup: int,
    draws: int,
    gates: Gates,
    retries: int,
    jobs: int,
    asked: dict,
) -> MCMCResult:
    """Let the chains run until the gates pass or the retries are used up."""
    begin = time.perf_counter()
    pool = joblib.Parallel(n_jobs=jobs)
    parts: list[list[_Draws]] = [[] for _ in states]
    length = draws
    for attempt in range(retries + 1):
        skip = warmup if attempt == 0 else 0
        with workers_may_leave():
            outcome = pool(joblib.delayed(chain.run)(problem, skip, length) for chain in states)
        states = [chain for chain, _ in outcome]
        for kept, (_, new) in zip(parts, outcome, strict=True):
            kept.append(new)
        merged = _merged(parts)
        values = np.concatenate([merged.w != 0, merged.log_likelihood[..., None]], axis=-1).astype(float)
        found, problems = judge(values, np.zeros(values.shape[:2], dtype=bool), gates)
        if not problems:
            break
        length = merged.w.shape[1]  # as many again
    for key in ("divergences", "divergence_share"):
        del found[key]  # a matter of Hamiltonian sampling
    found |= {"attempts": attempt + 1, "draws": merged.w.shape[1]}
    stats = {
        "inclusion_probability": merged.inclusion,
        "log_likelihood": merged.log_likelihood,
        "swaps": merged.swaps,
    }
    settings = asked | {"versions": {package: version(package) for package in ("polyagamma", "numpy")}}
    seconds = time.perf_counter() - begin
    reason = "; ".join(problems.values())
    return MCMCResult({"w": merged.w, "b": merged.b}, stats, found, settings, seconds, not problems, reason)


def _merged(parts: list[list[_Draws]]) -> _Draws:
    """The draws of all chains [chain, draw, ...], of parts one after another."""

    def joined(name: str) -> np.ndarray:
        return np.stack([np.concatenate([getattr(part, name) for part in kept]) for kept in parts])

    return _Draws(*(joined(field.name) for field in fields(_Draws)))


# -------------------------------------------------------------------------------------------------- the chain


@dataclass(frozen=True)
class _Problem:
    """``columns`` [p + 1, n] (the ones of the intercept last), ``moment`` [p + 1] = columns (y - 1/2),
    ``sign`` [n] = 2y - 1, ``precision`` [p + 1] of the prior, ``odds`` [p] log prior odds of inclusion, and
    the pairs that may be swapped: ``pairs`` [K, 2] with cumulative probabilities ``cumulative`` [K].
    """

    columns: np.ndarray
    moment: np.ndarray
    sign: np.ndarray
    precision: np.ndarray
    odds: np.ndarray
    pairs: np.ndarray
    cumulative: np.ndarray

    @classmethod
    def build(cls, x: np.ndarray, y: np.ndarray, q: np.ndarray, scales: np.ndarray) -> _Problem:
        n, p = x.shape
        columns = np.ascontiguousarray(np.c_[x, np.ones(n)].T)
        centred = x - x.mean(0)
        norm = np.sqrt((centred**2).sum(0))
        unit = centred / np.where(norm > 0, norm, 1.0)
        pairs = np.stack(np.triu_indices(p, 1), axis=-1)
        weight = _LEAST_PAIR + ((unit.T @ unit) ** 2)[pairs[:, 0], pairs[:, 1]]
        odds = np.log(q) - np.log1p(-q)
        cumulative = np.cumsum(weight) / max(weight.sum(), 1e-300)
        return cls(columns, columns @ (y - 0.5), 2 * y - 1, scales**-2.0, odds, pairs, cumulative)


@dataclass
class _Draws:
    """``w`` [D, p], ``b`` [D], ``inclusion`` [D, p], ``log_likelihood`` [D], ``swaps`` [D] of one chain; of
    several chains, merged, every array has the chains as one more axis in front.
    """

    w: np.ndarray
    b: np.ndarray
    inclusion: np.ndarray
    log_likelihood: np.ndarray
    swaps: np.ndarray


class _Tableau:
    """The Gaussian of (w, b) given omega, seen from the model ``inside``, coefficients integrated out.

    Of A = x' diag(omega) x + prior precision and r = x'(y - 1/2), with G the columns that are in and O the
    others, ``table`` [p + 1, p + 2] holds

        A_GG^-1         A_GG^-1 A_GO                  | A_GG^-1 r_G
        -A_OG A_GG^-1   A_OO - A_OG A_GG^-1 A_GO      | r_O - A_OG A_GG^-1 r_G

    A column enters or leaves by one pivot on its own diagonal entry, the same formula for both.
    """

    def __init__(self, problem: _Problem, omega: np.ndarray, inside: np.ndarray) -> None:
        columns = problem.columns
        A = (columns * omega) @ columns.T
        A[np.diag_indices_from(A)] += problem.precision
        full = np.c_[A, problem.moment]
        g, o = np.flatnonzero(np.append(inside, True)), np.flatnonzero(~np.append(inside, True))
        self.table = np.empty_like(full)
        inverse = np.linalg.inv(A[np.ix_(g, g)])
        solved = inverse @ full[g]
        self.table[g] = solved
        self.table[o] = full[o] - full[np.ix_(o, g)] @ solved
        self.table[np.ix_(g, g)] = inverse
        self.table[np.ix_(o, g)] = -solved[:, o].T
        self.inside = inside
        self.odds = (problem.odds + 0.5 * np.log(problem.precision[:-1])).tolist()

    def log_odds(self, j: int) -> float:
        """log P(column j in) / P(column j out), all other indicators and omega given."""
        x, u = float(self.table[j, j]), float(self.table[j, -1])
        return self.odds[j] + 0.5 * ((math.log(x) if self.inside[j] else -math.log(x)) + u * u / x)

    def log_odds_of_swap(self, j: int, k: int) -> float:
        """log odds of the model with k in the place of j, which is in, against the one as it is."""
        table = self.table
        v, mean, slope = float(table[j, j]), float(table[j, -1]), float(table[j, k])
        # entry and right side of k once j has left
        x, u = float(table[k, k]) + slope * slope / v, float(table[k, -1]) + slope * mean / v
        return self.odds[k] + 0.5 * (u * u / x - math.log(x)) - self.log_odds(j)

    def flip(self, j: int) -> None:
        table = self.table
        pivot = table[j, j]
        row, column = table[j] / pivot, table[:, j].copy()
        table -= np.outer(column, row)
        table[j] = row
        table[:, j] = -column / pivot
        table[j, j] = 1 / pivot
        self.inside[j] = not self.inside[j]

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Coefficients [p + 1] given the model, zero where a column is out."""
        g = np.flatnonzero(np.append(self.inside, True))
        full = np.zeros(len(self.table))
        root = np.linalg.cholesky(self.table[np.ix_(g, g)])
        full[g] = self.table[g, -1] + root @ rng.standard_normal(len(g))
        return full


def _log_sigmoid_sum(margin: np.ndarray) -> float:
    """Sum of log sigmoid(margin) [n]; numpy's logaddexp would take several times as long."""
    return float(np.minimum(margin, 0.0).sum() - np.log1p(np.exp(-np.abs(margin))).sum())


@dataclass
class _Chain:
    """State of one chain: its random stream, indicators [p] and coefficients [p + 1]."""

    rng: np.random.Generator
    inside: np.ndarray
    full: np.ndarray
    sweeps: int

    @classmethod
    def start(cls, problem: _Problem, rng: np.random.Generator, sweeps: int) -> _Chain:
        """A model out of all with equal chances, coefficients from the prior."""
        inside = rng.random(len(problem.odds)) < 0.5
        full = rng.standard_normal(len(problem.precision)) * problem.precision**-0.5
        return cls(rng, inside, full * np.append(inside, True), sweeps)

    def run(self, problem: _Problem, skip: int, draws: int) -> tuple[_Chain, _Draws]:
        """``skip`` iterations, then ``draws`` that are kept."""
        p = len(problem.odds)
        out = _Draws(*(np.empty((draws, *s)) for s in ((p,), (), (p,), (), ())))
        for i in range(-skip, draws):
            eta = self.full @ problem.columns
            tableau = _Tableau(problem, sample_polya_gamma(eta, self.rng), self.inside)
            for _ in range(self.sweeps):
                probability = self._sweep(tableau)
                swaps = self._swap(problem, tableau)
            self.full = tableau.draw(self.rng)
            log_likelihood = self._stretch(problem)
            if i >= 0:
                out.w[i], out.b[i], out.log_likelihood[i] = self.full[:-1], self.full[-1], log_likelihood
                out.inclusion[i], out.swaps[i] = probability, swaps
        return self, out

    def _stretch(self, problem: _Problem) -> float:
        """Propose to multiply (b, w) by exp(s), s ~ N(0, .): Metropolis, with the Jacobian exp(s size).

        Returns the log-likelihood where it ends.
        """
        margin = problem.sign * (self.full @ problem.columns)
        square = float(problem.precision @ self.full**2)
        size, here = int(self.inside.sum()) + 1, _log_sigmoid_sum(margin)
        for s, u in zip(self.rng.normal(0.0, _STRETCHES), self.rng.random(len(_STRETCHES)), strict=True):
            factor = math.exp(s)
            there = _log_sigmoid_sum(factor * margin)
            ratio = there - here - 0.5 * square * (factor**2 - 1) + size * s
            if ratio >= 0 or u < math.exp(ratio):
                here, square, margin = there, square * factor**2, margin * factor
                self.full = self.full * factor
        return here

    def _sweep(self, tableau: _Tableau) -> np.ndarray:
        """Propose to flip every column; P(column in | the others, omega) [p] as met on the way."""
        p = len(self.inside)
        found, uniform = np.empty(p), self.rng.random(p).tolist()
        for j, u in zip(self.rng.permutation(p).tolist(), uniform, strict=True):
            odds = tableau.log_odds(j)
            found[j] = odds
            # Metropolis' rule leaves more often than drawing from the conditional would (Peskun)
            ratio = -odds if tableau.inside[j] else odds
            if ratio >= 0 or u < math.exp(ratio):
                tableau.flip(j)
        return np.exp(-np.logaddexp(0.0, -found))

    def _swap(self, problem: _Problem, tableau: _Tableau) -> int:
        """Propose p swaps; how many were made.  The pairs are chosen blindly, so proposals are symmetric."""
        p = len(self.inside)
        if p < 2:
            return 0
        at = np.searchsorted(problem.cumulative, self.rng.random(p)).clip(max=len(problem.pairs) - 1)
        made = 0
        for (j, k), u in zip(problem.pairs[at].tolist(), self.rng.random(p).tolist(), strict=True):
            if tableau.inside[j] == tableau.inside[k]:
                continue
            j, k = (j, k) if tableau.inside[j] else (k, j)
            ratio = tableau.log_odds_of_swap(j, k)
            if ratio >= 0 or u < math.exp(ratio):
                tableau.flip(j)
                tableau.flip(k)
                made += 1
        return made
