"""Simulation-based calibration: are ranks of true values among posterior draws uniform, and if not, how.

Parameters drawn from the prior, data drawn from them, a posterior fitted to the data and ``L`` draws from it:
if all of it is right, every rank 0, ..., L of the truth among the draws is as likely as any other (Talts,
Betancourt, Simpson, Vehtari and Gelman 2018, arXiv 1804.06788).  Whether they are is judged by the empirical
distribution function of all ranks at once (Saeilynoja, Buerkner and Vehtari 2022, Statistics and Computing
32); how they are not, by a Gaussian fitted to the normal scores of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats
from scipy.optimize import minimize, minimize_scalar
from scipy.special import ndtr

#: Family-wise error of the verdict on one method, over all its quantities.
LEVEL = 0.05
#: Sets of uniform ranks that a p value is counted in.
NULL_SETS = 20_000
#: As many of them at a time: of a thousand draws, some ten megabytes.
NULL_PART = 1000
#: Quantities that can be judged together: of more, no p value that is counted so can be below the level.
MOST_QUANTITIES = math.floor(LEVEL * (NULL_SETS + 1))
#: Twice a log likelihood ratio beyond which a deviation is named: 1 in 100 by accident.
NAMED = 6.63
#: How far shifts, and logarithms of spreads, are told apart: beyond, all ranks are at the ends.
FARTHEST = (8.0, 3.0)


@dataclass(frozen=True)
class Verdict:
    """On the ranks of one quantity.

    :ivar simulations: ranks there are
    :ivar p: of ranks as far from uniform as these, by the place where their distribution function is worst
    :ivar words: ``uniform``, or what is wrong with the posterior
    :ivar shift: how far the draws lie above the truth, in sds of the draws
    :ivar spread: sd of the draws over that of the truth about their mean, 1 is right
    :ivar shift_se, spread_se: standard errors; NaN where ranks at the ends leave them open
    """

    simulations: int
    p: float
    words: str
    shift: float
    shift_se: float
    spread: float
    spread_se: float


def rank(truth: float, draws: np.ndarray, rng: np.random.Generator) -> int:
    """How many of ``draws [L]`` lie below the truth; among ties (exact zeros of a spike, say) a random place,
    so that a right posterior with atoms has uniform ranks too.
    """
    below, ties = int((draws < truth).sum()), int((draws == truth).sum())
    return below + int(rng.integers(ties + 1))


def judge(ranks: np.ndarray, draws: int, quantities: int = 1) -> Verdict:
    """Of ``ranks [N]`` among so many draws.

    :param quantities: that are judged together: each at :data:`LEVEL` over their number (Bonferroni)
    :raises ValueError: without a rank, for one that is none, or of more than :data:`MOST_QUANTITIES`
    """
    if quantities > MOST_QUANTITIES:
        raise ValueError(f"at most {MOST_QUANTITIES} quantities can be judged together, not {quantities}")
    ranks = np.asarray(ranks, dtype=int)
    if not len(ranks) or ranks.min() < 0 or ranks.max() > draws:
        raise ValueError(f"there must be ranks, between 0 and {draws}")
    n = len(ranks)
    p = p_value(ranks, draws)
    law, words = _ScoreLaw.fitted(ranks, draws), "uniform"
    if p < LEVEL / quantities:
        words = law.words()
    return Verdict(n, p, words, -law.mean, law.mean_se, 1 / law.sd, law.log_sd_se / law.sd)


def p_value(ranks: np.ndarray, draws: int) -> float:
    """Of ``ranks [N]`` as far from uniform as these, where their distribution function is worst."""
    n = len(ranks)
    depth = _depth(_counts_up_to(ranks[None], draws), n, draws)[0]
    below = np.searchsorted(_null(n, draws), depth * (1 + 1e-9), side="right")
    return float((below + 1) / (NULL_SETS + 1))


def ecdf_band(n: int, draws: int, quantities: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the distribution function of ``n`` uniform ranks lies, all of it at once, with probability one
    minus :data:`LEVEL` over the number of quantities: places ``[K]`` inside (0, 1), lower and upper ends,
    which belong to it.  Ranks are judged uniform where theirs stays there (:func:`judge`).
    """
    places = np.arange(1, draws + 1) / (draws + 1)
    deeper = math.ceil(LEVEL / quantities * (NULL_SETS + 1)) - 1  # sets, where the p value is at the level
    worst = _null(n, draws)[deeper - 1] if deeper else 0.0
    inside = _tails(n, draws) * (1 + 1e-9) >= worst
    lower, upper = inside.argmax(0), n - inside[::-1].argmax(0)
    return places, lower / n, upper / n


def ecdf(ranks: np.ndarray, draws: int) -> np.ndarray:
    """The share of ranks below each of the places of :func:`ecdf_band`, ``[K]``."""
    return _counts_up_to(np.asarray(ranks)[None], draws)[0] / len(ranks)


# ------------------------------------------------------------------------- what is wrong with a posterior


@dataclass(frozen=True)
class _ScoreLaw:
    """The truth in sds of the draws from their mean, as a Gaussian: of N draws' quantiles between which the
    truth lies, those at the ends open.  Right is mean 0, sd 1.

    :ivar minus: ``(mean, log sd) ->`` minus the log likelihood
    """

    mean: float
    sd: float
    mean_se: float
    log_sd_se: float
    minus: Callable[[np.ndarray], float]

    @classmethod
    def fitted(cls, ranks: np.ndarray, draws: int) -> _ScoreLaw:
        counts = np.bincount(ranks, minlength=draws + 1)
        edges = stats.norm.ppf(np.arange(draws + 2) / (draws + 1))

        def minus(at: np.ndarray) -> float:
            low, high = (edges[:-1] - at[0]) / np.exp(at[1]), (edges[1:] - at[0]) / np.exp(at[1])
            upper = low > 0  # mirrored, where differences of probabilities near 1 would be lost
            low, high = np.where(upper, -high, low), np.where(upper, -low, high)
            return float(-counts @ np.log(np.maximum(ndtr(high) - ndtr(low), 1e-300)))

        best = minimize(minus, [0.0, 0.0], method="L-BFGS-B", bounds=[(-far, far) for far in FARTHEST]).x
        mean_se, log_sd_se = _standard_errors(minus, best)
        return cls(float(best[0]), math.exp(best[1]), mean_se, log_sd_se, minus)

    def words(self) -> str:
        best, found = self.minus(np.array([self.mean, math.log(self.sd)])), []

        def matters(kept: int) -> bool:
            """Whether the likelihood falls where only one of the two is free."""
            place, far = (lambda v: np.array([v, 0.0]) if kept == 0 else np.array([0.0, v])), FARTHEST[kept]
            least = minimize_scalar(lambda v: self.minus(place(v)), bounds=(-far, far), method="bounded").fun
            return 2 * (least - best) > NAMED

        if matters(kept=0):
            found.append("too narrow" if self.sd > 1 else "too wide")
        if matters(kept=1):
            found.append("shifted left" if self.mean > 0 else "shifted right")
        return ", ".join(found) or "of another shape"


def _standard_errors(minus: Callable[[np.ndarray], float], best: np.ndarray) -> tuple[float, float]:
    """From the curvature at the best place; NaN at a bound, or where it is flat."""
    if (np.abs(best) > 0.999 * np.array(FARTHEST)).any():
        return math.nan, math.nan
    step = 1e-2 * np.eye(2)
    curvature = np.array(
        [
            [
                minus(best + a + b) - minus(best + a - b) - minus(best - a + b) + minus(best - a - b)
                for b in step
            ]
            for a in step
        ]
    ) / (4 * 1e-2**2)
    if not np.linalg.det(curvature) > 1e-6:
        return math.nan, math.nan
    variances = np.linalg.inv(curvature).diagonal()
    return tuple(float(np.sqrt(v)) if v > 0 else math.nan for v in variances)


# ------------------------------------------------------------------------------------------ how unlikely


def _counts_up_to(ranks: np.ndarray, draws: int) -> np.ndarray:
    """Of sets of ranks ``[M, N]``: how many lie below 1, ..., L, ``[M, L]``."""
    sets, n = ranks.shape
    cells = np.zeros((sets, draws + 1), dtype=int)
    np.add.at(cells, (np.repeat(np.arange(sets), n), ranks.ravel()), 1)
    return cells.cumsum(1)[:, :-1]


def _depth(counts: np.ndarray, n: int, draws: int) -> np.ndarray:
    """The smaller binomial tail of each set's counts ``[M, L]`` at its worst place, ``[M]``."""
    tail = _tails(n, draws)
    return tail[counts, np.arange(draws)].min(1)


@cache
def _tails(n: int, draws: int) -> np.ndarray:
    """The smaller tail of every count and place, ``[N + 1, L]``."""
    counts, places = np.arange(n + 1)[:, None], np.arange(1, draws + 1) / (draws + 1)
    return np.minimum(stats.binom.cdf(counts, n, places), stats.binom.sf(counts - 1, n, places))


@cache
def _null(n: int, draws: int) -> np.ndarray:
    """Depths of sets of uniform ranks, sorted; the same in every call."""
    rng, even, depths = np.random.default_rng(0), np.full(draws + 1, 1 / (draws + 1)), []
    for _ in range(NULL_SETS // NULL_PART):
        cells = rng.multinomial(n, even, size=NULL_PART)
        depths.append(_depth(cells.cumsum(1)[:, :-1], n, draws))
    return np.sort(np.concatenate(depths))
