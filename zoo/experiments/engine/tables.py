"""``results.csv``: every result; ``table.csv`` and ``table.md``: ours beside the published numbers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

import pandas as pd
from rich.markup import escape
from rich.table import Table

from zoo.evaluation.estimates import Estimate
from zoo.evaluation.scoreboard import format_figure
from zoo.experiments.engine.declaration import AXES, Combination, Experiment, Record
from zoo.experiments.engine.records import RESULT
from zoo.experiments.engine.request import WORDS, Request
from zoo.files.output import read_config
from zoo.files.tables import markdown_table, write_csv, write_text

RESULT_COLUMNS = (
    "experiment", "dataset", "method", "setting", "trial", "seed", "metric", "value", "seconds", "status",
)  # fmt: skip
#: A difference of that many standard errors is told in the note.
FAR = 2.0
#: Up to so many metrics have a table each.
MOST_METRICS = 4
#: Of a number without a standard error that says where it ends: that of one trial, or of equal ones.
DIGITS = 4


@dataclass(frozen=True)
class Line:
    """A line of ``table.csv``; None is a number that does not exist.

    :ivar se: sample standard deviation (divisor ``n - 1``) over the trials, divided by ``sqrt(n)``
    :ivar n: trials that are in the mean; failed ones are not, and the note counts them
    """

    dataset: str
    method: str
    setting: str
    metric: str
    mean: float | None
    se: float | None
    n: int
    published: float | None
    published_se: float | None
    note: str

    @property
    def ours(self) -> str:
        if self.mean is None or self.se:
            return format_figure(None if self.mean is None else Estimate(self.mean, self.se))
        return f"{self.mean:.{DIGITS}g}" if abs(self.mean) < 10**DIGITS else f"{self.mean:.0f}"

    @property
    def theirs(self) -> str:
        if self.published is None:
            return ""
        if not self.published_se:
            return f"{self.published:g}"  # as many digits as there are
        return format_figure(Estimate(self.published, self.published_se))

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the tables for people."""
        return self.dataset, self.method, self.setting, self.metric, self.ours, str(self.n), self.theirs

    @property
    def both(self) -> str:
        return f"{self.ours or 'failed'} ({self.theirs})" if self.theirs else self.ours or "failed"


#: Of the tables for people.
HEADINGS = ("data set", "method", "setting", "metric", "ours", "n", "published")
LINE_COLUMNS = tuple(f.name for f in fields(Line))


def write_tables(request: Request, folder: Path, records: Sequence[Record]) -> list[Line]:
    """Writes the three files, each whole or not at all, from all results of the folder."""
    lines = table_lines(request, records)
    write_csv(pd.DataFrame(_result_rows(records), columns=RESULT_COLUMNS), folder / "results.csv")
    write_text(folder / "table.md", markdown(request, folder, records, lines))
    write_csv(pd.DataFrame(lines, columns=LINE_COLUMNS), folder / "table.csv")
    return lines


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
                lines.append(_line(request, combination, metric, group))
    return lines


def _line(request: Request, combination: Combination, metric: str, group: Sequence[Record]) -> Line:
    experiment = request.experiment
    values = [record.metrics[metric] for record in group if metric in record.metrics]
    mean, se = mean_and_se(values)
    published, published_se = experiment.published.get((*combination, metric), (None, None))
    notes = [experiment.note(*combination, metric)]
    failed = sum(not record.ok for record in group)
    if failed:
        notes.append(f"{failed} of {len(group)} trials failed")
    if is_published_effort(request):
        notes.append(_distance(mean, se, published, published_se))
    note = "; ".join(filter(None, notes))
    return Line(*combination, metric, mean, se, len(values), published, published_se, note)


def mean_and_se(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean, and sample standard deviation (divisor ``n - 1``) over ``sqrt(n)``, which needs two values."""
    if not values:
        return None, None
    se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), se


def is_published_effort(request: Request) -> bool:
    """Whether the cells do the work of the full budget, so that published numbers can be compared."""
    return request.effort.options == request.experiment.full.options


def _distance(
    mean: float | None, se: float | None, published: float | None, published_se: float | None
) -> str:
    if mean is None or se is None or published is None or published_se is None:
        return ""
    error = math.hypot(se, published_se)
    if error == 0 or abs(mean - published) <= FAR * error:
        return ""
    side = "above" if mean > published else "below"
    return f"{abs(mean - published) / error:.1f} standard errors of the difference {side} the published value"


# ------------------------------------------------------------------------------------------- for people


def markdown(request: Request, folder: Path, records: Sequence[Record], lines: Sequence[Line]) -> str:
    """The table as a page: what it is, how it was made, what is missing, then the numbers."""
    experiment = request.experiment
    parts = [
        f"# {experiment.name}\n\n{experiment.summary}",
        "\n".join(_facts(request, folder, records)),
        "\n".join(_completeness(request, records)),
        *_failures(folder, records),
        *_tables(experiment, lines),
        _whole_table(lines),
        _extremes(experiment, records),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _facts(request: Request, folder: Path, records: Sequence[Record]) -> Iterable[str]:
    experiment, effort = request.experiment, request.effort
    found = read_config(folder)["versions"]
    yield f"- published in: {experiment.source}"
    yield f"- {_made_by(request, folder, records)}"
    options = ", ".join(f"{name} {value}" for name, value in effort.options.items())
    yield f"- seed {request.seed}" + (f"; {options}" if options else "")
    yield "- " + ", ".join(f"{name} {version}" for name, version in found.items())
    yield "- ours: mean ± standard error, the sample standard deviation (divisor n - 1) over the root of n"
    if experiment.published:
        yield f"- published standard errors: {experiment.published_error}"
    if not is_published_effort(request):
        full = ", ".join(f"{name} {value}" for name, value in experiment.full.options.items())
        if experiment.published:
            yield f"- **not comparable with the published numbers, which need {full}**"
        else:
            yield f"- **not the work of the full budget, which is {full}**"


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
    """Names of combinations; a data set all of whose combinations are meant stands for them."""
    if len(part) == len(grid):
        return "every combination"
    names = []
    for dataset in dict.fromkeys(combination[0] for combination in part):
        meant = [combination for combination in part if combination[0] == dataset]
        whole = len(meant) == sum(combination[0] == dataset for combination in grid)
        names += [dataset] if whole else [" ".join(combination) for combination in meant]
    return ", ".join(names)


def _failures(folder: Path, records: Sequence[Record]) -> Iterable[str]:
    failed = [record for record in records if not record.ok]
    if failed:
        lines = [f"**{len(failed)} of {len(records)} cells failed**; `--retry-failed` computes them again:\n"]
        for record in failed:
            where = record.folder.relative_to(folder) / RESULT
            lines.append(f"- {record.cell.name}: {record.status} (traceback in `{where}`)")
        yield "\n".join(lines)


def _tables(experiment: Experiment, lines: Sequence[Line]) -> Iterable[str]:
    """A table a metric, or where these are many a table a data set; a column a method and setting in both,
    and in a cell ours, with the published number in brackets.
    """
    if len(experiment.metrics) > MOST_METRICS:
        return (_dataset_table(experiment, name, lines) for name in experiment.datasets)
    return (_metric_table(experiment, metric, lines) for metric in experiment.metrics)


def _dataset_table(experiment: Experiment, dataset: str, lines: Sequence[Line]) -> str:
    lines = [line for line in lines if line.dataset == dataset]
    if not lines:
        return ""
    table = _cross_table(experiment, lines, "metric", experiment.metrics)
    table["what it is"] = [experiment.metrics[metric] for metric in table.index]
    brackets = "published in brackets\n\n" if _has_published(lines) else ""
    return f"## {dataset}\n\n{brackets}" + markdown_table(table, "l" + "r" * (table.shape[1] - 2) + "l")


def _metric_table(experiment: Experiment, metric: str, lines: Sequence[Line]) -> str:
    lines = [line for line in lines if line.metric == metric]
    if len({(line.method, line.setting) for line in lines}) < 2:
        return ""
    table = _cross_table(experiment, lines, "dataset", experiment.datasets)
    brackets = "; published in brackets" if _has_published(lines) else ""
    title = f"## {metric}\n\n{experiment.metrics[metric]}{brackets}\n\n"
    return title + markdown_table(table, "l" + "r" * (table.shape[1] - 1))


def _has_published(lines: Sequence[Line]) -> bool:
    return any(line.theirs for line in lines)


def _cross_table(
    experiment: Experiment, lines: Sequence[Line], axis: str, order: Iterable[str]
) -> pd.DataFrame:
    """A row a name of the axis, a column a method and setting, both in the order of the grid and where there
    is a result; the names are the index and stand in the first column.

    :param axis: dataset or metric
    :param order: all names of the axis
    """
    columns = [axis, "method", "setting", "both"]
    found = pd.DataFrame([[getattr(line, name) for name in columns] for line in lines], columns=columns)
    cells = found.pivot(index=axis, columns=["method", "setting"], values="both")
    places = [place for place in product(experiment.methods, experiment.settings) if place in cells.columns]
    table = cells.reindex(index=[name for name in order if name in cells.index], columns=places).fillna("")
    table.columns = [" ".join(place if len(experiment.settings) > 1 else place[:1]) for place in places]
    table.insert(0, WORDS.get(axis, axis), table.index, allow_duplicates=True)  # a method may have this name
    return table


def _whole_table(lines: Sequence[Line]) -> str:
    table = pd.DataFrame([(*line.cells, line.note) for line in lines], columns=[*HEADINGS, "note"])
    return "## All numbers\n\n" + markdown_table(table, "llllrrrl")


def _extremes(experiment: Experiment, records: Sequence[Record]) -> str:
    """Smallest, median and largest value over the trials of every combination that has several."""
    if not experiment.extremes:
        return ""
    rows = []
    for combination in experiment.combinations():
        group = [record for record in records if record.cell.combination == combination]
        for metric in experiment.metrics:
            values = [record.metrics[metric] for record in group if metric in record.metrics]
            if len(values) > 1:
                three = min(values), statistics.median(values), max(values)
                rows.append(
                    [*combination, metric, *(f"{value:.{DIGITS}g}" for value in three), str(len(values))]
                )
    if not rows:
        return ""
    table = pd.DataFrame(rows, columns=[*HEADINGS[:4], "smallest", "median", "largest", "n"])
    return "## Over the trials\n\n" + markdown_table(table, "llllrrrr")


def rich_table(lines: Sequence[Line]) -> Table:
    """The same for a terminal, without the notes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 4 else "right", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line.cells))
    return table
