"""A number of ours beside the published one: how far apart they are, and what explains it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from scipy.special import stdtr

from zoo.experiments.engine.declaration import Combination, Experiment, Explanation, Place, Published

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
        their standard error, where that number is known.  Where these share their data and ours have drawn
        others, the variance of such a draw is added: once for the print, and for one run of ours, whose
        borrowed spread lacks it.
        """
        return self._z(1.0)

    @property
    def corrected_z(self) -> float | None:
        """The same of a print that its explanation has corrected."""
        return self._z(self.explanation.factor if self.explanation else 1.0)

    def _z(self, factor: float) -> float | None:
        """Of the print times a factor."""
        total = math.hypot(*(error for error, _ in self._errors(factor)))
        return (self.ours.mean - factor * self.published.value) / total if total else None

    def _errors(self, factor: float) -> list[tuple[float, float]]:
        """Standard errors of the difference from the print times a factor, part by part, each with its
        degrees of freedom, a print of so many runs that nobody tells taken for one of many; none where one is
        missing.
        """
        if not self.compared or not self.published.se:
            return []
        theirs, runs = factor * self.published.se, self.published.runs or math.inf
        if self.ours.n > 1:
            parts = [(self.ours.se, self.ours.n - 1), (theirs, runs - 1)]
        elif self.published.runs:
            parts = [(math.hypot(math.sqrt(runs) * theirs, theirs), runs - 1)]
        else:
            return []
        redrawn = self.published.redrawn
        if redrawn:
            sides = 2 if self.ours.n == 1 else 1
            parts.append((math.sqrt(sides) * redrawn.sd, redrawn.draws - 1))
        return parts

    @property
    def by_chance(self) -> float:
        """Probability that z is far where both are means of Gaussian runs of one law: by Student's t with
        Welch's degrees of freedom.
        """
        errors = self._errors(1.0)
        total = math.hypot(*(error for error, _ in errors))
        if not total:
            return 0.0
        spare = sum((error / total) ** 4 / freedom for error, freedom in errors)
        return 2 * float(stdtr(1 / spare if spare else math.inf, -FAR))

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


def z_text(line: Line) -> str:
    if line.z is None:
        return ""
    words = f"{round(line.z, 1) + 0.0:.1f}"  # no -0.0
    return f"**{words}**" if line.far else words
