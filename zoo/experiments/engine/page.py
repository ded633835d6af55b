"""``table.md``: what an experiment is, how it was made, what is missing, a table a question, and the notes.

Every number of ours that is in print stands beside it, with its z; under each table stands how many are far
from the print, and for how many of these we know why.
"""

from __future__ import annotations

import itertools
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
    Record,
)
from zoo.experiments.engine.lines import Line, Summary, z_text
from zoo.experiments.engine.records import RESULT
from zoo.experiments.engine.request import WORDS, Request
from zoo.experiments.engine.tables import is_published_effort
from zoo.experiments.engine.verdicts import ONE_RUN, Marks, explanations, notes, settled, verdict
from zoo.files.output import read_config
from zoo.files.tables import markdown_table

#: Of a number without a standard error that says where it ends: that of one trial, or of equal ones.
DIGITS = 4
#: A table with more metrics than this has a row a metric.
MOST_COLUMNS = 6
_NUMBER = re.compile(r"\d+")
#: On a page of other options than those of the full budget.
PARTIAL_EFFORT = "not the work of the full budget"
ERRORS_IN_PRINT = "published standard errors: "
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
    marks = Marks.of(experiment, lines)
    questions = experiment.questions or {metric: (metric,) for metric in experiment.metrics}
    for title, metrics in questions.items():
        about = [line for line in lines if line.metric in metrics]
        if about:
            parts += [f"## {title}", _definitions(experiment, title, about)]
            parts += [
                *_tables(experiment, metrics, about, marks),
                verdict(about, marks),
                marks.legend(about),
            ]
            parts += settled(experiment, about)
    parts += [explanations(experiment, lines), notes(experiment, lines), _unmeasured(experiment, lines)]
    parts.append("All numbers, with their notes, are in the CSV file beside this page.")
    return [part for part in parts if part]


def _unmeasured(experiment: Experiment, lines: Sequence[Line]) -> str:
    """What the experiment measures, and the cells behind this page did not."""
    missing = experiment.metrics.keys() - {line.metric for line in lines}
    names = ", ".join(f"`{metric}`" for metric in experiment.metrics if metric in missing)
    return f"Measured in no cell of this page: {names}." if missing else ""


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
class _Layout:
    """How lines become a table: the names that make a row, those that make a column, and what the column of
    the published numbers is headed.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    beside: str

    def row(self, line: Line) -> tuple[str, ...]:
        return tuple(getattr(line, name) for name in self.rows)

    def column(self, line: Line) -> tuple[str, ...]:
        return tuple(getattr(line, name) for name in self.columns)


def _tables(
    experiment: Experiment, metrics: Sequence[str], lines: Sequence[Line], marks: Marks
) -> Iterator[str]:
    """One metric of several data sets: one table, a column a method.  Else a table a data set: a row a method
    and setting and a column a metric, or the other way round where there are many metrics.
    """
    setting = ("setting",) if len(experiment.settings) > 1 else ()
    if len(metrics) == 1 and len(experiment.datasets) > 1:
        yield _table(lines, _Layout(("dataset", *setting), ("method",), experiment.beside), marks)
        return
    layout = _Layout(("method", *setting), ("metric",), experiment.beside)
    if len(metrics) > MOST_COLUMNS:
        layout = replace(layout, rows=layout.columns, columns=layout.rows)
    for dataset in experiment.datasets:
        of_this = [line for line in lines if line.dataset == dataset]
        if of_this:
            title = f"**{dataset}**\n\n" if len(experiment.datasets) > 1 else ""
            yield title + _table(of_this, layout, marks)


def _table(lines: Sequence[Line], layout: _Layout, marks: Marks) -> str:
    """Ours in a column, and beside it what is printed and z where a number of the column has them."""
    rows = list(dict.fromkeys(layout.row(line) for line in lines))
    cells = {(layout.row(line), layout.column(line)): line for line in lines}
    table = [list(row) for row in rows]
    headings = [WORDS.get(name, name) for name in layout.rows]
    for column in dict.fromkeys(layout.column(line) for line in lines):
        found = [cells.get((row, column)) for row in rows]
        for heading, texts in _columns(" ".join(column), layout.beside, found, marks):
            headings.append(heading)
            for row, text in zip(table, texts, strict=True):
                row.append(text)
    sides = "l" * len(layout.rows) + "r" * (len(headings) - len(layout.rows))
    return markdown_table(pd.DataFrame(table, columns=headings), sides)


def _columns(
    name: str, beside: str, lines: Sequence[Line | None], marks: Marks
) -> Iterator[tuple[str, list[str]]]:
    yield name, [ours(line) + marks.behind(line) if line else "" for line in lines]
    if any(line and line.published for line in lines):
        yield beside, [str(line.published or "") if line else "" for line in lines]
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
