"""``table.md``: what an experiment is, how it was made, what is missing, a table a question, and the notes.

Every number of ours that is in print stands beside it, with its z; under each table stands how many are far
from the print, and for how many of these we know why.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich.markup import escape
from rich.table import Table

from zoo.evaluation.estimates import Estimate
from zoo.evaluation.scoreboard import format_figure
from zoo.experiments.engine.declaration import (
    AXES,
    UNPUBLISHED,
    Combination,
    Experiment,
    Place,
    Record,
    matches,
)
from zoo.experiments.engine.records import RESULT
from zoo.experiments.engine.request import WORDS, Request
from zoo.experiments.engine.tables import FAR, Line, Summary, is_published_effort
from zoo.files.output import read_config
from zoo.files.tables import markdown_table

#: Of a number without a standard error that says where it ends: that of one trial, or of equal ones.
DIGITS = 4
#: A table with more metrics than this has a row a metric.
MOST_COLUMNS = 6
#: Numbers that a verdict names, the farthest of all.
MOST_NAMED = 12
_NUMBER = re.compile(r"\d+")
#: On a page of other options than those of the full budget.
PARTIAL_EFFORT = "not the work of the full budget"
ERRORS_IN_PRINT = "published standard errors: "
#: Behind a number of one run, where others have several.
ONE_RUN = "†"
#: Behind a number of a fit whose objective still moved at its end.
MOVING = "‡"
#: Of the table for a terminal.
HEADINGS = ("data set", "method", "setting", "metric", "ours", "n", "published", "z")


def page(request: Request, folder: Path, records: Sequence[Record], lines: Sequence[Line]) -> str:
    """The whole page."""
    experiment = request.experiment
    head = [
        f"# {experiment.name}\n\n{experiment.summary}",
        "\n".join(_facts(request, folder, records, lines)),
        "\n".join(_completeness(request, records)),
        *_failures(folder, records),
    ]
    return "\n\n".join([*head, *numbers(experiment, lines)]) + "\n"


def numbers(experiment: Experiment, lines: Sequence[Line]) -> list[str]:
    """The parts of a page that depend on the numbers alone: tables, verdicts, explanations, notes."""
    parts = []
    marks = _Marks.of(experiment, lines)
    questions = experiment.questions or {metric: (metric,) for metric in experiment.metrics}
    for title, metrics in questions.items():
        about = [line for line in lines if line.metric in metrics]
        if about:
            parts += [f"## {title}", _definitions(experiment, title, about)]
            parts += [
                *_tables(experiment, metrics, about, marks),
                _verdict(about, marks),
                marks.legend(about),
            ]
            parts += _settled(experiment, about)
    parts += [_explanations(experiment, lines), _notes(experiment, lines)]
    parts.append("All numbers, with their notes, are in the CSV file beside this page.")
    return [part for part in parts if part]


# ------------------------------------------------------------------------------ what was made, and how


def _facts(request: Request, folder: Path, records: Sequence[Record], lines: Sequence[Line]) -> Iterable[str]:
    experiment, effort = request.experiment, request.effort
    found = read_config(folder)["versions"]
    yield f"- published in: {experiment.source}"
    yield f"- {_made_by(request, folder, records)}"
    options = ", ".join(f"{name} {value}" for name, value in effort.options.items())
    yield f"- seed {request.seed}" + (f"; {options}" if options else "")
    yield "- " + ", ".join(f"{name} {version}" for name, version in found.items())
    yield f"- ours: {_errors(lines)}"
    in_print = any(line.published for line in lines)
    if in_print:
        yield f"- {ERRORS_IN_PRINT}{experiment.published_error}"
    elif experiment.published:
        yield "- no print beside ours: the source has numbers only of what is missing below"
    elif experiment.source != UNPUBLISHED:  # a picture, words, or other data
        yield "- no print beside ours: the source has no table of this"
    if not is_published_effort(request):
        full = ", ".join(f"{name} {value}" for name, value in experiment.full.options.items())
        missing = "; no z and no verdict beside what is published" if in_print else ""
        yield f"- **{PARTIAL_EFFORT}, which is {full}{missing}**"


def _errors(lines: Sequence[Line]) -> str:
    """What stands behind our numbers, and whether that allows standard errors."""
    counts = sorted({line.ours.n for line in lines if line.ours})
    several = [n for n in counts if n > 1]
    if not several:
        return "one run each, so no standard errors"
    over = str(several[0]) if len(several) == 1 else f"{several[0]} to {several[-1]}"
    words = (
        f"mean ± standard error over {over} trials, the sample standard deviation (divisor n - 1) over the "
        "root of n"
    )
    if any(line.published and line.published.lowest is not None for line in lines):
        words += "; beside a printed range smallest / median / largest"
    return words + (f"; {ONE_RUN} one run, which has no standard error" if counts[0] == 1 else "")


def _made_by(request: Request, folder: Path, records: Sequence[Record]) -> str:
    """The one call that makes all that the folder holds, whichever calls have made it; and that it makes more
    where it does.
    """
    chosen = {}
    for axis in AXES:
        seen = {getattr(record.cell, axis) for record in records}
        names = tuple(name for name in request.experiment.axis(axis) if name in seen)
        if len(names) < len(request.experiment.axis(axis)):
            chosen[axis] = names
    trials = 1 + max(record.cell.trial for record in records)
    whole = replace(request, chosen=chosen, trials=trials)
    words = "made by" if len(whole.cells()) == len(records) else "made by a part of"
    return f"{words}: `{whole.command(folder)}`"


def _completeness(request: Request, records: Sequence[Record]) -> Iterable[str]:
    """How much of the whole grid there is, and what is missing."""
    grid = list(request.experiment.combinations())
    asked = {cell.combination for cell in request.cells()}
    have = Counter(record.cell.combination for record in records)
    missing: dict[str, list[Combination]] = {}
    total = 0
    for combination in grid:
        trials = request.experiment.full.trials
        if combination in asked:
            trials = max(trials, request.trials)
        lack = max(0, trials - have[combination])
        total += lack
        if lack:
            count = f"{lack} of {trials} trials" if have[combination] else "all trials"
            missing.setdefault(count, []).append(combination)
    if not missing:
        yield f"Complete: {len(records)} cells, {len(grid)} combinations."
        return
    yield f"**Partial: {len(records)} of {len(records) + total} cells.** Missing:\n"
    for count, combinations in missing.items():
        yield f"- {count} of {_summary(grid, combinations)}"


def _summary(grid: Sequence[Combination], part: Sequence[Combination]) -> str:
    """Names of combinations; a data set, method or setting all of whose combinations are meant stands for
    them.
    """
    if len(part) == len(grid):
        return "every combination"
    names, left = [], set(part)
    for axis in range(len(AXES)):
        for name in dict.fromkeys(combination[axis] for combination in grid):
            meant = {combination for combination in grid if combination[axis] == name}
            if meant <= set(part) and meant & left:
                names.append(name)
                left -= meant
    return ", ".join([*names, *(" ".join(combination) for combination in part if combination in left)])


def _failures(folder: Path, records: Sequence[Record]) -> Iterable[str]:
    failed = [record for record in records if not record.ok]
    if failed:
        lines = [f"**{len(failed)} of {len(records)} cells failed**; `--retry-failed` computes them again:\n"]
        for record in failed:
            where = record.folder.relative_to(folder) / RESULT
            lines.append(f"- {record.cell.name}: {record.status} (traceback in `{where}`)")
        yield "\n".join(lines)


# ---------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class _Marks:
    """What stands behind numbers.

    :ivar one_run: behind those of one run; nothing where all are
    :ivar moving: combinations whose fits still moved at their end
    :ivar changes: metrics that say so themselves, whose numbers need no mark
    """

    one_run: str
    moving: frozenset[Combination]
    changes: frozenset[str]

    @classmethod
    def of(cls, experiment: Experiment, lines: Sequence[Line]) -> _Marks:
        one_run = ONE_RUN if len({line.ours.n > 1 for line in lines if line.ours}) == 2 else ""
        moving = frozenset(line.combination for line in lines if _moved(experiment, line))
        return cls(one_run, moving, frozenset(experiment.settled))

    def behind(self, line: Line) -> str:
        one_run = self.one_run if line.ours and line.ours.n == 1 else ""
        return one_run + (MOVING if self.is_moving(line) else "")

    def is_moving(self, line: Line) -> bool:
        return line.combination in self.moving and line.metric not in self.changes

    def legend(self, lines: Sequence[Line]) -> str:
        if not any(map(self.is_moving, lines)):
            return ""
        return f"{MOVING} the fit still moved at its end (**Not settled**): a figure of this budget."


@dataclass(frozen=True)
class _Layout:
    """How lines become a table: the names that make a row, and those that make a column."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def row(self, line: Line) -> tuple[str, ...]:
        return tuple(getattr(line, name) for name in self.rows)

    def column(self, line: Line) -> tuple[str, ...]:
        return tuple(getattr(line, name) for name in self.columns)


def _tables(
    experiment: Experiment, metrics: Sequence[str], lines: Sequence[Line], marks: _Marks
) -> Iterator[str]:
    """One metric of several data sets: one table, a column a method.  Else a table a data set: a row a method
    and setting and a column a metric, or the other way round where there are many metrics.
    """
    setting = ("setting",) if len(experiment.settings) > 1 else ()
    if len(metrics) == 1 and len(experiment.datasets) > 1:
        yield _table(lines, _Layout(("dataset", *setting), ("method",)), marks)
        return
    layout = _Layout(("method", *setting), ("metric",))
    if len(metrics) > MOST_COLUMNS:
        layout = _Layout(layout.columns, layout.rows)
    for dataset in experiment.datasets:
        of_this = [line for line in lines if line.dataset == dataset]
        if of_this:
            title = f"**{dataset}**\n\n" if len(experiment.datasets) > 1 else ""
            yield title + _table(of_this, layout, marks)


def _table(lines: Sequence[Line], layout: _Layout, marks: _Marks) -> str:
    """Ours in a column, and beside it what is printed and z where a number of the column has them."""
    rows = list(dict.fromkeys(layout.row(line) for line in lines))
    cells = {(layout.row(line), layout.column(line)): line for line in lines}
    table = [list(row) for row in rows]
    headings = [WORDS.get(name, name) for name in layout.rows]
    for column in dict.fromkeys(layout.column(line) for line in lines):
        found = [cells.get((row, column)) for row in rows]
        for heading, texts in _columns(" ".join(column), found, marks):
            headings.append(heading)
            for row, text in zip(table, texts, strict=True):
                row.append(text)
    sides = "l" * len(layout.rows) + "r" * (len(headings) - len(layout.rows))
    return markdown_table(pd.DataFrame(table, columns=headings), sides)


def _columns(name: str, lines: Sequence[Line | None], marks: _Marks) -> Iterator[tuple[str, list[str]]]:
    yield name, [ours(line) + marks.behind(line) if line else "" for line in lines]
    if any(line and line.published for line in lines):
        yield "printed", [str(line.published or "") if line else "" for line in lines]
    if any(line and line.z is not None for line in lines):
        yield "z", [z_text(line) if line else "" for line in lines]


def ours(line: Line) -> str:
    """Our number as text; beside a printed range smallest, median and largest of ours."""
    found = line.ours
    if found is None:
        return "failed"
    if line.published and line.published.lowest is not None and found.n > 1:
        return " / ".join(_plain(value) for value in (found.lowest, found.median, found.highest))
    return _mean(found)


def _mean(found: Summary) -> str:
    return format_figure(Estimate(found.mean, found.se)) if found.se else _plain(found.mean)


def _plain(value: float) -> str:
    return f"{value:.{DIGITS}g}" if abs(value) < 10**DIGITS else f"{value:.0f}"


def z_text(line: Line) -> str:
    if line.z is None:
        return ""
    words = f"{round(line.z, 1) + 0.0:.1f}"  # no -0.0
    return f"**{words}**" if line.far else words


def _definitions(experiment: Experiment, title: str, lines: Sequence[Line]) -> str:
    """What the metrics of a table are; of a series that differ by a number alone, the first."""
    seen = [metric for metric in experiment.metrics if any(line.metric == metric for line in lines)]
    if seen == [title]:
        return experiment.metrics[title]
    parts = []
    for _, group in itertools.groupby(seen, lambda metric: _NUMBER.sub("", experiment.metrics[metric])):
        first, *others = group
        names = f"`{first}` to `{others[-1]}`" if others else f"`{first}`"
        parts.append(f"- {names}: {experiment.metrics[first]}")
    return "\n".join(parts)


# --------------------------------------------------------------------- what to make of the comparison


def _verdict(lines: Sequence[Line], marks: _Marks) -> str:
    """How many numbers of a table are far from the print, and for how many of them we know why."""
    measured = [line for line in lines if line.z is not None]
    ranged = [line for line in lines if line.ranged]
    bare = sum(line.compared for line in lines) - len(measured) - len(ranged)
    words = []
    if measured:
        words.append(_count(f"|z| > {FAR:g}", measured, [line for line in measured if line.far], marks))
    if any(line.borrowed for line in measured):
        words.append(
            "The z of one run takes the spread of the printed runs for its standard deviation; where "
            "these are few, chance alone takes it beyond 2 more often (of four in one of seven)."
        )
    if ranged:
        outside = [line for line in ranged if line.outside]
        what = "Our median is outside the printed range (min / median / max)"
        words.append(_count(what, ranged, outside, marks))
    if bare:
        words.append(
            f"No z for {bare}: a standard error, of ours or of the print, is missing or rounded to zero."
        )
    return " ".join(words)


def _settled(experiment: Experiment, lines: Sequence[Line]) -> Iterator[str]:
    """Which fits still moved at their end, by the metrics of a table that tell."""
    for metric, limit in experiment.settled.items():
        measured = [line for line in lines if line.metric == metric and line.ours]
        moving = [line for line in measured if _moved(experiment, line)]
        what = f"`{metric}` is beyond {limit:g}"
        if moving:
            names = ", ".join(f"{_words(line)} ({line.ours.mean:.3g})" for line in moving)
            yield f"**Not settled**, {what}, in {len(moving)} of {len(measured)}: {names}."
        elif measured:
            yield f"{what} in none of {len(measured)}: these runs have ended; longer ones may end elsewhere."


def _moved(experiment: Experiment, line: Line) -> bool:
    """Whether this is the change of a fit that still moved at its end."""
    return bool(line.ours) and abs(line.ours.mean) > experiment.settled.get(line.metric, math.inf)


def _count(what: str, compared: Sequence[Line], far: Sequence[Line], marks: _Marks) -> str:
    """``what in 3 of 32: 2 explained (another task 2), unexplained: naval pbp 50 (z 2.9).``"""
    words = f"{what} in {len(far)} of {len(compared)}"
    kinds = Counter(line.explanation.kind for line in far if line.explanation)
    parts = []
    if kinds:
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        parts.append(f"{kinds.total()} explained below ({listed})")
    unexplained = [line for line in far if not line.explanation]
    if unexplained:
        unexplained.sort(key=lambda line: -abs(line.z or 0))
        named, more = unexplained[:MOST_NAMED], len(unexplained) - MOST_NAMED
        several = len({line.metric for line in compared}) > 1
        names = ", ".join(_name(line, several, marks) for line in named)
        rest = f", and {more} nearer ones" if more > 0 else ""
        parts.append(f"{len(unexplained)} unexplained: {names}{rest}")
    return f"{words}: {'; '.join(parts)}." if parts else f"{words}."


def _name(line: Line, metric: bool, marks: _Marks) -> str:
    what = f"{_words(line)} {line.metric}" if metric else _words(line)
    what += MOVING if marks.is_moving(line) else ""
    return what + ("" if line.z is None else f" (z {line.z:.1f})")


def _words(line: Line) -> str:
    return " ".join(name for name in line.combination if name != "default")


def _explanations(experiment: Experiment, lines: Sequence[Line]) -> str:
    used = [found for found in experiment.explained if any(line.explanation is found for line in lines)]
    if not used:
        return ""
    scopes: dict[tuple[str, str], list[str]] = {}
    for found in used:
        scopes.setdefault((found.kind, found.why), []).append(_scope(found.place))
    return "\n".join(
        ["## Why ours and the print differ\n"]
        + [f"- **{kind}**, {'; '.join(places)}: {why}" for (kind, why), places in scopes.items()]
    )


def _notes(experiment: Experiment, lines: Sequence[Line]) -> str:
    scopes: dict[str, list[str]] = {}
    for place, text in experiment.notes.items():
        if any(matches(place, line.place) for line in lines):
            scopes.setdefault(text, []).append(_scope(place))
    used = [
        f"- {text}" if places == ["all"] else f"- {'; '.join(places)}: {text}"
        for text, places in scopes.items()
    ]
    return "\n".join(["## Notes\n", *used]) if used else ""


def _scope(pattern: Place) -> str:
    return " ".join(name for name in pattern if name != "*") or "all"


# ------------------------------------------------------------------------------------- on a terminal


def rich_table(lines: Sequence[Line]) -> Table:
    """The same for a terminal, without the notes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 4 else "right", overflow="fold")
    for line in lines:
        found = line.ours
        z = z_text(line).strip("*")
        cells = (*line.place, _mean(found) if found else "", str(found.n if found else 0))
        table.add_row(*map(escape, (*cells, str(line.published or ""), z)))
    return table
