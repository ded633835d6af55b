"""Several comparisons of the same methods as one: means over data sets, splits and seeds, and differences
between methods that are paired.

**Errors.** Runs on one split share their data, those of one data set their rows.  So a mean is taken step by
step, over the seeds of a split, over the splits of a data set, over data sets; and its standard error is that
of the outermost step with more than one unit, whose units are the only ones that may pass for independent
(splits of one data set share training rows, so that theirs is a little too small).  A difference between two
methods is taken within a run, where both have the same rows and the same reference, before anything is
averaged: what is hard for both cancels.  Of a single run the units are its test rows; beside the error over
rows stand the Monte Carlo errors of both methods, for all rows share the draws.  A difference is
real when it is farther from 0 than Student's t with as many units allows at 5 %; of a single run with as many
as it has rows, though errors of 20 groups of draws have 19 degrees of freedom: where these have most of the
error, 3 % of no differences are called real at 10 rows, 5 to 6.4 % at 100 or more.  Over several data sets it
is the mean of theirs, with the errors that it has within each (:func:`over_these`).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from zoo.evaluation.estimates import Estimate
from zoo.evaluation.scoreboard import LEGEND, Row

#: What tells runs apart, outermost first.
LEVELS = ("dataset", "split", "seed")
#: Figures by which methods are paired: those of a row of the test set, and those of a run alone.
BY_ROW, BY_RUN = ("ref_w1", "log_likelihood"), ("ref_pip_rmse",)
#: How a note begins, or goes on, about runs that failed.
LOST = "failed in"
#: Chance of calling a difference real that is none.
CHANCE = 0.05

#: data set, split, seed
RunKey = tuple[str, int, int]


@dataclass(frozen=True)
class Run:
    """One comparison of many.

    :ivar rows: of its scoreboard
    :ivar points: columns ``method``, ``row`` and :data:`BY_ROW`, a line for every method and test row
    :ivar cpu_seconds: of the fits, by method
    :ivar draw_errors: Monte Carlo standard errors of the mean log likelihood, by method
    """

    dataset: str
    split: int
    seed: int
    rows: Sequence[Row]
    points: pd.DataFrame
    cpu_seconds: Mapping[str, float]
    draw_errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> RunKey:
        return self.dataset, self.split, self.seed

    def sound(self, method: str) -> Row | None:
        """The row of a method that has not failed."""
        return next((row for row in self.rows if row.method == method and row.status == "ok"), None)


@dataclass(frozen=True)
class Mean:
    """A mean of independent units.

    :ivar se: None of one unit
    :ivar over: what the units are: ``dataset``, ``split``, ``seed`` or ``row``; empty for one unit
    """

    value: float
    se: float | None
    units: int
    over: str

    @property
    def real(self) -> bool:
        """Whether it is not 0 by chance."""
        if self.se is None or not math.isfinite(self.se):
            return False
        return abs(self.value) > student(self.units) * self.se


def student(units: int) -> float:
    """Standard errors that a mean of so many units (two at least) may be off, but for :data:`CHANCE`."""
    from scipy.stats import t

    return float(t.ppf(1 - CHANCE / 2, units - 1))


def mean_of(values: Sequence[float], over: str) -> Mean:
    """Of units that are independent; :raises ValueError: of none"""
    if not len(values):
        raise ValueError("a mean of nothing")
    if len(values) == 1:
        return Mean(float(values[0]), None, 1, "")
    numbers = np.asarray(values, float)
    if not np.isfinite(numbers).all():
        return Mean(float(numbers.mean()), None, len(values), over)
    return Mean(
        numbers.mean().item(), statistics.stdev(numbers.tolist()) / math.sqrt(len(values)), len(values), over
    )


def mean_over(values: Mapping[RunKey, float]) -> Mean:
    """The mean of a number of every run, step by step; see the head of this module."""
    for depth, level in enumerate(LEVELS):
        units: dict[object, dict[RunKey, float]] = {}
        for place, value in values.items():
            units.setdefault(place[depth], {})[place] = value
        if len(units) > 1:
            return mean_of([mean_over(unit).value for unit in units.values()], level)
    return mean_of(list(values.values()), "")


def over_these(parts: Sequence[Mean]) -> Mean | None:
    """The mean of several means with what is known of each, their own errors: of these data sets, and no
    others.  None unless every part has an error.  Degrees of freedom by Welch and Satterthwaite, rounded
    down: where one part of few units has most of the error, the units of the others do not help.
    """
    if not parts or any(part.se is None for part in parts):
        return None
    squares = [part.se**2 for part in parts]
    total, spare = sum(squares), [part.units - 1 for part in parts]
    weighed = sum(square**2 / n for square, n in zip(squares, spare, strict=True))
    freedom = math.floor(total**2 / weighed * (1 + 1e-12)) if 0 < weighed < math.inf else sum(spare)
    value = statistics.fmean(part.value for part in parts)
    return Mean(value, math.sqrt(total) / len(parts), freedom + 1, parts[0].over)


def methods_of(runs: Sequence[Run]) -> list[str]:
    """In the order of their first appearance."""
    return list(dict.fromkeys(row.method for run in runs for row in run.rows))


def average(runs: Sequence[Run]) -> list[Row]:
    """One scoreboard of all: the mean of every figure and its standard error over the units; that of a single
    run is its own.  A run in which a method has failed is not in its means, and its note says so.
    """
    if len(runs) == 1:
        return list(runs[0].rows)
    return [_averaged(method, runs) for method in methods_of(runs)]


def _averaged(method: str, runs: Sequence[Run]) -> Row:
    mine = {run.key: row for run in runs for row in run.rows if row.method == method}
    sound = {place: row for place, row in mine.items() if row.status == "ok"}
    failures = [row.status for row in mine.values() if row.status != "ok"]
    first = next(iter(sound.values()), next(iter(mine.values())))
    lost = f"{LOST} {len(failures)} of {len(mine)} runs, the first time: {failures[0]}" if failures else ""
    if not sound:
        return Row(method, first.model, failures[0], first.note)
    figures = {name: _figure(name, sound) for name in LEGEND}
    notes = [*_common(row.note for row in sound.values()), lost]
    return Row.from_figures(method, first.model, figures, note="; ".join(filter(None, notes)))


def _common(notes: Iterable[str]) -> list[str]:
    """The parts that all notes have: figures of a run differ, what a method is does not."""
    first, *others = (note.split("; ") for note in notes)
    return [part for part in first if all(part in other for other in others)]


def failed(row: Row) -> str:
    """In how many of its runs a method has failed, and of what; empty for none, of a row of means."""
    return row.note[at:] if (at := row.note.find(LOST)) >= 0 else ""


def _figure(name: str, rows: Mapping[RunKey, Row]) -> Estimate | int | None:
    values = {place: value for place, row in rows.items() if (value := getattr(row, name)) is not None}
    if not values:
        return None
    if name == "num_parameters" and len(set(values.values())) == 1:
        return next(iter(values.values()))
    mean = mean_over(values)
    return Estimate(round(mean.value) if name == "num_parameters" else mean.value, mean.se)


@dataclass(frozen=True)
class Difference:
    """The first method's figure minus the second's."""

    first: str
    second: str
    figure: str
    mean: Mean


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Of every pair of methods in every figure that both have in some run, paired."""
    found = []
    for first, second in itertools.combinations(methods_of(runs), 2):
        for name in (*BY_ROW, *BY_RUN):
            mean = paired(runs, first, second, name)
            if mean is not None:
                found.append(Difference(first, second, name, mean))
    return found


def paired(runs: Sequence[Run], first: str, second: str, figure: str) -> Mean | None:
    """``first`` minus ``second`` within every run; of a single run within every row of its test set.  None
    where no run has both.
    """
    both = {run.key: (run, run.sound(first), run.sound(second)) for run in runs}
    values = {
        place: getattr(one, figure) - getattr(other, figure)
        for place, (_, one, other) in both.items()
        if one and other and None not in (getattr(one, figure), getattr(other, figure))
    }
    if not values:
        return None
    if len(values) > 1:
        return mean_over(values)
    (place,) = values
    if figure in BY_RUN:
        return mean_of(list(values.values()), "")
    run, *rows = both[place]
    mean = _over_rows(run.points, first, second, figure)
    if mean is None or mean.se is None:
        return mean
    if figure == "log_likelihood":  # its own error is that over rows
        errors = [run.draw_errors.get(name, 0.0) for name in (first, second)]
    else:
        errors = [row.estimate(figure).se for row in rows]
        if None in errors:
            return replace(mean, se=None)
    return replace(mean, se=math.hypot(mean.se, *errors))


def _over_rows(points: pd.DataFrame, first: str, second: str, figure: str) -> Mean | None:
    table = points.pivot(index="row", columns="method", values=figure)
    if not {first, second} <= set(table.columns):
        return None
    values = (table[first] - table[second]).dropna()
    return mean_of(values.to_list(), "row") if len(values) else None


def difference_frame(found: Sequence[Difference]) -> pd.DataFrame:
    """The columns of ``differences.csv``; figures have the names of the scoreboard's columns."""
    lines = [
        (d.first, d.second, d.figure, d.mean.value, d.mean.se, d.mean.units, d.mean.over, d.mean.real)
        for d in found
    ]
    columns = ["first", "second", "figure", "difference", "standard_error", "units", "over", "real"]
    return pd.DataFrame(lines, columns=columns)
