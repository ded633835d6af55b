"""Simulation-based calibration: are ranks of true values among posterior draws uniform, and if not, how.

Parameters drawn from the prior, data drawn from them, a posterior fitted to the data and ``L`` draws from it:
if all of it is right, every rank 0, ..., L of the truth among the draws is as likely as any other (Talts,
Betancourt, Simpson, Vehtari and Gelman 2018, arXiv 1804.06788).  Whether they are is judged by the empirical
distribution function of all ranks at once (Saeilynoja, Buerkner and Vehtari 2022, Statistics and Computing
32); how they are not, by the normal scores of the ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

#: Family-wise error of the verdict on one method, over all its quantities.
LEVEL = 0.05
#: Sets of uniform ranks that a p value is counted in.
NULL_SETS = 20_000
#: Standard errors beyond which a deviation is named.
NAMED = 2.6


@dataclass(frozen=True)
class Verdict:
    """On the ranks of one quantity.

    :ivar simulations: ranks there are
    :ivar p: of ranks as far from uniform as these, by the place where their distribution function is worst
    :ivar words: ``uniform``, or what is wrong with the posterior
    :ivar shift: how far the draws lie above the truth, in sds of the draws; ``shift_se`` its standard error
    :ivar spread: sd of the draws over that of the truth about their mean, 1 is right; ``spread_se`` its
        standard error.  A rank knows no distance: what is several times too narrow looks no narrower than
        ``L`` draws can tell
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
    :raises ValueError: without a rank, or for one that is none
    """
    ranks = np.asarray(ranks, dtype=int)
    if not len(ranks) or ranks.min() < 0 or ranks.max() > draws:
        raise ValueError(f"there must be ranks, between 0 and {draws}")
    n = len(ranks)
    p = _p_value(_depth(_counts_up_to(ranks[None], draws), n, draws)[0], n, draws)
    scores = stats.norm.ppf((ranks + 0.5) / (draws + 1))
    wide = math.sqrt((scores**2).mean() - scores.mean() ** 2) / _score_sd(draws)
    shift, spread = -float(scores.mean()), math.inf if wide == 0 else 1 / wide
    shift_se, spread_se = wide / math.sqrt(n), spread / math.sqrt(2 * n)
    words = "uniform" if p >= LEVEL / quantities else _words(shift, shift_se, wide, n)
    return Verdict(n, p, words, shift, shift_se, spread, spread_se)


def ecdf_band(n: int, draws: int, quantities: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the distribution function of ``n`` uniform ranks lies, all of it at once, with probability one
    minus :data:`LEVEL` over the number of quantities: places ``[K]`` inside (0, 1), lower and upper ends.
    """
    from arviz.stats.ecdf_utils import ecdf_confidence_band

    places = np.arange(1, draws + 1) / (draws + 1)
    lower, upper = ecdf_confidence_band(n, places, places, prob=1 - LEVEL / quantities, method="optimized")
    return places, lower, upper


def ecdf(ranks: np.ndarray, draws: int) -> np.ndarray:
    """The share of ranks below each of the places of :func:`ecdf_band`, ``[K]``."""
    return _counts_up_to(np.asarray(ranks)[None], draws)[0] / len(ranks)


def _words(shift: float, shift_se: float, wide: float, n: int) -> str:
    """What is wrong with a posterior whose ranks are not uniform."""
    found = []
    if abs(math.log(max(wide, 1e-9))) * math.sqrt(2 * n) > NAMED:
        found.append("too narrow" if wide > 1 else "too wide")
    if abs(shift) > NAMED * shift_se:
        found.append("shifted right" if shift > 0 else "shifted left")
    return ", ".join(found) or "of another shape"


@cache
def _score_sd(draws: int) -> float:
    """Of normal scores of uniform ranks; below 1, for there are but so many ranks."""
    return float(stats.norm.ppf((np.arange(draws + 1) + 0.5) / (draws + 1)).std())


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
    rng = np.random.default_rng(0)
    cells = rng.multinomial(n, np.full(draws + 1, 1 / (draws + 1)), size=NULL_SETS)
    return np.sort(_depth(cells.cumsum(1)[:, :-1], n, draws))


def _p_value(depth: float, n: int, draws: int) -> float:
    below = np.searchsorted(_null(n, draws), depth * (1 + 1e-9), side="right")
    return float((below + 1) / (NULL_SETS + 1))
