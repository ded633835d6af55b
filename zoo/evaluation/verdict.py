"""The scoreboard in words: which method is nearest to the truth, which differences are real, and what should
not be trusted.  A function of the rows alone, so that a scoreboard that is read back has the same verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from guides.core.settling import still_moving
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.repeats import Difference
from zoo.evaluation.scoreboard import LEGEND, Row, format_figure

#: Standard errors by which two figures must differ to be told apart.
CLEAR = 2.0
#: Figures by which methods are ranked, the first that two of them have; lower is better in all.
RANKED = ("ref_w1", "ref_pip_rmse")
#: Where a figure begins to say something (sources: Vehtari, Simpson, Gelman, Yao and Gabry 2024 for Pareto k;
#: the others are what a user would notice: half or twice the sd, a mean off by one sd).
WORST_PARETO_K, SMALLEST_SD_RATIO, LARGEST_SD_RATIO, LARGEST_MEAN_ERROR = 0.7, 0.5, 2.0, 1.0


def verdict(
    rows: Sequence[Row], differences: Sequence[Difference] = (), clear: Mapping[str, float] | None = None
) -> list[str]:
    """Sentences, the ranking first, then one for each method that has something to be warned of.

    Differences count as real beyond two standard errors.  Those of distances are Monte Carlo errors of the
    draws, of one fit on one split: other seeds and splits may change an order (``seed`` and ``split`` of a
    comparison do).

    :param differences: between methods, paired; a pair that is not there is told apart by its rows' errors
    :param clear: by method, standard errors in place of two, where its figures are means of few units
    """
    clear = clear or {}
    sound = [row for row in rows if row.status == "ok"]
    farther = {(d.figure, d.first, d.second): d.mean.real and d.mean.value < 0 for d in differences}
    farther |= {(d.figure, d.second, d.first): d.mean.real and d.mean.value > 0 for d in differences}
    words = [_ranking(_groups(sound, name, farther, clear), name) for name in RANKED if _ranked(sound, name)][
        :1
    ]
    words += [sentence for row in sound if (sentence := _warnings(row, clear.get(row.method, CLEAR)))]
    words += [f"{row.method} {row.status}." for row in rows if row.status != "ok"]
    return words


def _ranked(rows: Sequence[Row], name: str) -> list[tuple[Row, Estimate]]:
    """The methods that have the figure, best first."""
    found = [(row, estimate) for row in rows if (estimate := row.estimate(name)) is not None]
    return sorted(found, key=lambda pair: pair[1].value)


#: Figure and two methods -> whether the second is really farther.
Farther = Mapping[tuple[str, str, str], bool]


def _groups(
    rows: Sequence[Row], name: str, farther: Farther, clear: Mapping[str, float]
) -> list[list[tuple[Row, Estimate]]]:
    """Best first; what is not clearly farther than the first of a group belongs to the group."""
    found: list[list[tuple[Row, Estimate]]] = []
    for row, estimate in _ranked(rows, name):
        if found:
            leader, least = found[-1][0]
            known = farther.get((name, leader.method, row.method))
            errors = max(clear.get(method, CLEAR) for method in (leader.method, row.method))
            if not (_apart(least, estimate, errors) if known is None else known):
                found[-1].append((row, estimate))
                continue
        found.append([(row, estimate)])
    return found


def _ranking(found: Sequence[Sequence[tuple[Row, Estimate]]], name: str) -> str:
    (first, least), *_ = found[0]
    text = ""
    for (leader, estimate), *others in found:
        text += (
            f", then {_named(leader, estimate)}"
            if text
            else (f"{first.method} ({LEGEND[name].heading} {format_figure(least)})")
        )
        text += "".join(f", not told apart from it {_named(*other)}" for other in others)
    same = [_as_true(row) for group in found for row, estimate in group if _is_noise(estimate)]
    heading = LEGEND[name].heading
    floor = f" By {heading} not told apart from the truth itself by these draws: {', '.join(same)}."
    return f"Nearest to the truth: {text}.{floor if same else ''}"


def _as_true(row: Row) -> str:
    """A method whose distance is noise; a distance of whole laws has little power against a wrong spread."""
    ratio = row.estimate("ref_sd_ratio")
    if ratio is None or not ratio.se or abs(ratio.value - 1.0) <= CLEAR * ratio.se:
        return row.method
    return f"{row.method} (by its {LEGEND['ref_sd_ratio'].heading}, {format_figure(ratio)}, it is)"


def _named(row: Row, estimate: Estimate) -> str:
    return f"{row.method} ({format_figure(estimate)})"


def _apart(first: Estimate, second: Estimate, clear: float) -> bool:
    """Whether the second is clearly larger; never, where an error is unknown.  Both have the reference's
    errors, which cancel in truth: counted twice, they make this the more careful.
    """
    if first.se is None or second.se is None:
        return False
    return second.value - first.value > clear * math.hypot(first.se, second.se)


def _is_noise(estimate: Estimate) -> bool:
    return estimate.floor is not None and estimate.value - CLEAR * (estimate.se or 0.0) <= estimate.floor


def _warnings(row: Row, clear: float) -> str:
    """What the figures of one method warn of, each named; empty where there is nothing."""
    prediction = _prediction(row, clear)
    parts = [prediction, _mean(row), _spread(row), _weights(row), _rise(row, clear)]
    beginning = row.method if prediction else f"{row.method}:"
    return f"{beginning} {', '.join(filter(None, parts))}." if any(parts) else ""


def _prediction(row: Row, clear: float) -> str:
    """Paired over the test points, so that what all methods find hard cancels."""
    difference = row.estimate("ref_log_likelihood")
    if difference is None or difference.se is None:
        return ""
    if abs(difference.value) <= clear * difference.se:
        size = f"{format_figure(difference)} nats a test point"
        return f"is not told apart from the truth by its predictions (log-likelihood {size})"
    size = f"{format_figure(Estimate(abs(difference.value), difference.se))} nats a test point"
    if difference.value < 0:
        return f"predicts worse than the truth (log-likelihood lower by {size})"
    return f"predicts better than the truth (log-likelihood higher by {size})"


def _mean(row: Row) -> str:
    error = row.ref_mean_error
    if error is None or error <= LARGEST_MEAN_ERROR:
        return ""
    return f"its mean is off by {error:.2g} sds of the truth (mean error)"


def _spread(row: Row) -> str:
    ratio = row.ref_sd_ratio
    if ratio is None or SMALLEST_SD_RATIO <= ratio <= LARGEST_SD_RATIO:
        return ""
    if ratio == 0:
        return "it has no uncertainty (sd ratio 0)"
    size, words = (1 / ratio, "too small") if ratio < 1 else (ratio, "too large")
    return f"its uncertainty is {size:.2g} times {words} (sd ratio {ratio:.2g})"


def _weights(row: Row) -> str:
    if row.pareto_k is None or row.pareto_k <= WORST_PARETO_K:
        return ""
    return f"its draws cannot be reweighted to the posterior (Pareto k {row.pareto_k:.2g})"


def unsettled(change: Estimate | None, clear: float = CLEAR) -> bool:
    """Whether a bound has not settled, by its change in the last tenth of a fit; where there is none, no."""
    return change is not None and still_moving(abs(change.value), change.se, clear)


def _rise(row: Row, clear: float) -> str:
    rise = row.estimate("bound_change")
    if not unsettled(rise, clear):
        return ""
    if rise.value < 0:
        what, fall = "loss rose" if row.elbo is None else "bound fell", replace(rise, value=-rise.value)
        return f"its {what} at the end ({format_figure(fall)} nats in the last tenth: it has not settled)"
    what = "loss was still falling" if row.elbo is None else "bound was still rising"
    return f"its {what} ({format_figure(rise)} nats in the last tenth: more steps)"
