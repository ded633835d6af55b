"""``results.csv``: every result; ``table.csv`` and ``table.md``: ours beside the published numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import pandas as pd
from scipy.special import stdtr

from zoo.experiments.engine.declaration import (
    Combination,
    Experiment,
    Explanation,
    Place,
    Published,
    Record,
)
from zoo.experiments.engine.request import Request
from zoo.files.tables import write_csv

RESULT_COLUMNS = (
    "experiment", "dataset", "method", "setting", "trial", "seed", "metric", "value", "seconds", "status",
)  # fmt: skip
LINE_COLUMNS = (
    "dataset", "method", "setting", "metric", "mean", "se", "n", "min", "median", "max", "published",
    "published_se", "published_min", "published_max", "z", "note",
)  # fmt: skip
#: A z beyond this is far: it asks for an explanation.
FAR = 2.0


@dataclass(frozen=True)
class Summary:
    """Of a number over the trials.

    :ivar se: sample standard deviation (divisor ``n - 1``) over the trials, divided by ``sqrt(n)``; None for
        one trial
    :ivar n: trials that are in the mean; failed ones are not
    """

    mean: float
    se: float | None
    n: int
    lowest: float
    median: float
    highest: float


@dataclass(frozen=True)
class Line:
    """A number of ours beside the published one.

    :ivar ours: None where every trial failed
    :ivar published: None where nothing is in print
    :ivar comparable: whether ours is the work of the full budget
    :ivar explanation: why the two may differ
    :ivar note: all that a reader must know of this number
    """

    dataset: str
    method: str
    setting: str
    metric: str
    ours: Summary | None
    published: Published | None
    comparable: bool = True
    explanation: Explanation | None = None
    note: str = ""

    @property
    def place(self) -> Place:
        return self.dataset, self.method, self.setting, self.metric

    @property
    def combination(self) -> Combination:
        return self.dataset, self.method, self.setting

    @property
    def z(self) -> float | None:
        """Ours minus the published value, over the root of the summed squares of both standard errors; None
        unless both exist.

        One run of ours has the spread of the published ones for its own, the root of their number times
        their standard error, where that number is known.
        """
        return self._z(1.0)

    @property
    def corrected_z(self) -> float | None:
        """The same of a print that its explanation has corrected."""
        return self._z(self.explanation.factor if self.explanation else 1.0)

    def _z(self, factor: float) -> float | None:
        """Of the print times a factor."""
        if not self.compared or not self.published.se:
            return None
        error, published_error = self.ours.se, factor * self.published.se
        if self.ours.n == 1 and self.published.runs:
            error = math.sqrt(self.published.runs) * published_error
        if error is None:
            return None
        return (self.ours.mean - factor * self.published.value) / math.hypot(error, published_error)

    @property
    def by_chance(self) -> float:
        """Probability that z is far where both are means of Gaussian runs of one law: by Student's t with
        Welch's degrees of freedom, a print of so many runs that nobody tells taken for one of many.
        """
        if self.z is None:
            return 0.0
        theirs, spare = self.published.se**2, (self.published.runs or math.inf) - 1
        ours = self.ours.se**2 if self.ours.n > 1 else 0.0
        if not ours:  # one run with the print's spread, or runs that are all alike
            return 2 * float(stdtr(spare, -FAR))
        freedom = (ours + theirs) ** 2 / (ours**2 / (self.ours.n - 1) + theirs**2 / spare)
        return 2 * float(stdtr(freedom, -FAR))

    @property
    def borrowed(self) -> bool:
        """Whether z rests on the spread of the published runs."""
        return self.z is not None and self.ours.n == 1

    @property
    def compared(self) -> bool:
        """Whether both numbers are there and of the same work."""
        return self.comparable and self.ours is not None and self.published is not None

    @property
    def far(self) -> bool:
        return self.z is not None and abs(self.z) > FAR

    @property
    def explained(self) -> bool:
        """Whether a number that is far has an explanation, and one that brings it near where it corrects the
        print.
        """
        if not self.explanation or self.explanation.factor == 1.0:
            return bool(self.explanation)
        return self.corrected_z is not None and abs(self.corrected_z) <= FAR

    @property
    def outside(self) -> bool:
        """Whether our median lies outside the range in print."""
        return self.ranged and not self.published.lowest <= self.ours.median <= self.published.highest

    @property
    def has_printed_digits(self) -> bool:
        """Whether ours is the printed number to its last digit."""
        if not self.compared:
            return False
        digits, *_ = (self.published.printed or f"{self.published.value:g}").split()
        unit = 10.0 ** Decimal(digits).as_tuple().exponent
        return abs(self.ours.mean - self.published.value) <= unit / 2 * (1 + 1e-9)

    @property
    def is_near(self) -> bool:
        """Whether ours is within a tenth of the printed number."""
        if not self.compared:
            return False
        return abs(self.ours.mean - self.published.value) <= 0.1 * abs(self.published.value)

    @property
    def ranged(self) -> bool:
        """Whether the print has smallest, median and largest value, to set ours beside."""
        return self.compared and self.published.lowest is not None

    def row(self) -> tuple:
        """Of ``table.csv``."""
        nothing, bare = Summary(*[None] * 6), Published(*[None] * 4)
        ours, published = self.ours or nothing, self.published or bare
        numbers = (ours.mean, ours.se, ours.n or 0, ours.lowest, ours.median, ours.highest)
        printed = (published.value, published.se, published.lowest, published.highest)
        return *self.place, *numbers, *printed, self.z, self.note


def write_tables(folder: Path, records: Sequence[Record], lines: Sequence[Line]) -> None:
    """``results.csv`` and ``table.csv``, each whole or not at all, from all results of the folder."""
    write_csv(pd.DataFrame(_result_rows(records), columns=RESULT_COLUMNS), folder / "results.csv")
    write_csv(line_table(lines), folder / "table.csv")


def line_table(lines: Sequence[Line]) -> pd.DataFrame:
    """A row a line."""
    return pd.DataFrame([line.row() for line in lines], columns=LINE_COLUMNS)


def _result_rows(records: Sequence[Record]) -> Iterable[Sequence[object]]:
    """A row a metric; a failed cell has one, without metric and value."""
    for record in records:
        cell = record.cell
        for metric, value in record.metrics.items() if record.ok else [("", None)]:
            place = (cell.experiment, *cell.combination, cell.trial, cell.seed)
            yield (*place, metric, value, round(record.seconds, 3), record.status)


def table_lines(request: Request, records: Sequence[Record]) -> list[Line]:
    """One line a combination and metric, in the order of the grid; combinations without any result are left
    out.
    """
    experiment = request.experiment
    grouped: dict[Combination, list[Record]] = {}
    measured: dict[str, set[str]] = {}
    for record in records:
        grouped.setdefault(record.cell.combination, []).append(record)
        measured.setdefault(record.cell.setting, set()).update(record.metrics)
    lines = []
    for combination in experiment.combinations():
        group = grouped.get(combination)
        if group is None:
            continue
        wanted = measured[combination[2]] or set(experiment.metrics)
        if all(record.ok for record in group):  # else what is missing is missing because a trial failed
            wanted = wanted & {metric for record in group for metric in record.metrics}
        published = {place[3] for place in experiment.published if place[:3] == combination}
        for metric in experiment.metrics:
            if metric in wanted | published:
                lines.append(_line(request, (*combination, metric), group))
    return lines


def _line(request: Request, place: Place, group: Sequence[Record]) -> Line:
    ours = summary([record.metrics[place[3]] for record in group if place[3] in record.metrics])
    failed = sum(not record.ok for record in group)
    lost = f"{failed} of {len(group)} trials failed" if failed else ""
    return line_at(request.experiment, place, ours, is_published_effort(request), lost)


def line_at(
    experiment: Experiment, place: Place, ours: Summary | None, comparable: bool, lost: str = ""
) -> Line:
    """A number of ours beside what the declaration has for its place; ``lost`` says which trials failed."""
    published = experiment.published.get(place)
    explanation = experiment.explanation(*place) if published else None
    notes = [experiment.note(*place), experiment.further(*place), lost]
    if published and published.remark:
        notes.append(f"print: {published.remark}")
    line = Line(*place, ours, published, comparable, explanation)
    if explanation:
        notes.append(f"{explanation.kind}: {explanation.why}{_as_corrected(line)}")
    return replace(line, note="; ".join(filter(None, notes)))


def _as_corrected(line: Line) -> str:
    """How far ours is from the print that an explanation has corrected."""
    if line.explanation.factor == 1.0 or line.corrected_z is None:
        return ""
    return f" (z {line.corrected_z:.1f} from the print times {line.explanation.factor:g})"


def summary(values: Sequence[float]) -> Summary | None:
    """None of no values; the standard error needs two."""
    if not values:
        return None
    se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    mean, median = statistics.fmean(values), statistics.median(values)
    return Summary(mean, se, len(values), min(values), median, max(values))


def is_published_effort(request: Request) -> bool:
    """Whether the cells do the work of the full budget, so that published numbers can be compared."""
    return request.effort.options == request.experiment.full.options
