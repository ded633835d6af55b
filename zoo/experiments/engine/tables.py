"""``results.csv``: every result; ``table.csv`` and ``table.md``: ours beside the published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from zoo.experiments.engine.declaration import Combination, Place, Published, Record
from zoo.experiments.engine.lines import Line, Summary, line_at, summary
from zoo.experiments.engine.request import Request
from zoo.files.tables import write_csv

RESULT_COLUMNS = (
    "experiment", "dataset", "method", "setting", "trial", "seed", "metric", "value", "seconds", "status",
)  # fmt: skip
LINE_COLUMNS = (
    "dataset", "method", "setting", "metric", "mean", "se", "n", "min", "median", "max", "published",
    "published_se", "published_min", "published_max", "z", "note",
)  # fmt: skip


def write_tables(folder: Path, records: Sequence[Record], lines: Sequence[Line]) -> None:
    """``results.csv`` and ``table.csv``, each whole or not at all, from all results of the folder."""
    write_csv(pd.DataFrame(_result_rows(records), columns=RESULT_COLUMNS), folder / "results.csv")
    write_csv(line_table(lines), folder / "table.csv")


def line_table(lines: Sequence[Line]) -> pd.DataFrame:
    """A row a line."""
    return pd.DataFrame([_row(line) for line in lines], columns=LINE_COLUMNS)


def _row(line: Line) -> tuple:
    """What stands in :data:`LINE_COLUMNS`."""
    nothing, bare = Summary(*[None] * 6), Published(*[None] * 4)
    ours, published = line.ours or nothing, line.published or bare
    numbers = (ours.mean, ours.se, ours.n or 0, ours.lowest, ours.median, ours.highest)
    printed = (published.value, published.se, published.lowest, published.highest)
    return *line.place, *numbers, *printed, line.z, line.note


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


def is_published_effort(request: Request) -> bool:
    """Whether the cells do the work of the full budget, so that published numbers can be compared."""
    return request.effort.options == request.experiment.full.options
