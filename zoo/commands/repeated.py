"""One comparison on several splits and with several seeds: the scoreboard of their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from guides.posterior.files import json_safe
from zoo.commands.comparison import Comparison, ask
from zoo.commands.grid import GridCell, OnPiece, compute, label
from zoo.commands.options import check_counts
from zoo.evaluation.plots import plain
from zoo.evaluation.repeats import (
    Difference,
    Run,
    average,
    difference_frame,
    differences,
    failed,
    mean_over,
    student,
)
from zoo.evaluation.scoreboard import Row, wide_frame, write_scoreboard
from zoo.evaluation.scoreboard_plot import compared, plot_scoreboard
from zoo.evaluation.verdict import CLEAR, unsettled, verdict
from zoo.files.output import MOST_SHOWN, grid_folder
from zoo.files.tables import write_csv
from zoo.fitting.side_by_side import ALONE, Workers

#: What the standard errors are.
ERRORS = (
    "Means over splits and seeds. The error is that over splits, the seeds of a split averaged first; with "
    "one split that over seeds. Splits share training rows, so that it is a little too small. "
    "`differences.csv` pairs the methods; a difference is real beyond what Student's t allows at 5 %."
)


@dataclass(frozen=True)
class Repeated:
    """Means over all runs, paired differences, and what they say.

    :ivar notes: what the user should know about data and request
    """

    rows: list[Row]
    differences: list[Difference]
    words: list[str]
    notes: tuple[str, ...]


def compare_often(
    data: str,
    out: str | Path,
    *,
    split: int = 0,
    seed: int = 0,
    splits: int = 1,
    seeds: int = 1,
    workers: Workers = ALONE,
    on_piece: OnPiece | None = None,
    **wishes: object,
) -> Repeated:
    """A comparison (:mod:`zoo.commands.compare`) of every split and seed, in ``split-S-seed-K/``, and above
    them ``scoreboard.csv``, ``.md`` and ``.png`` of the means, ``standard_errors.csv``, ``differences.csv``
    (every pair of methods, paired; see :mod:`zoo.evaluation.repeats`) and ``config.json``.

    A second call goes on with what is there, also with more splits and seeds.

    :param splits: how many, from ``split`` on; so are ``seeds``
    :param workers: who computes (:func:`zoo.fitting.clusters.workers`)
    :param wishes: of :func:`zoo.commands.comparison.ask`
    :raises UserError: for what cannot be done, before any work
    """
    check_counts(splits=splits, seeds=seeds)
    cells = [
        _cell(ask(data, split=s, seed=k, **wishes))
        for s in range(split, split + splits)
        for k in range(seed, seed + seeds)
    ]
    with grid_folder(out, _config(cells), "scoreboard.csv") as folder:
        runs = compute(cells, folder, workers, on_piece)
        repeated = summarise(runs, _notes(cells))
        first = cells[0].comparison
        head = first.facts(folder, splits, seeds)
        _write(repeated, folder, f"{first.entry.name} on {cells[0].dataset}", head)
    return repeated


def _cell(comparison: Comparison) -> GridCell:
    dataset = comparison.problem.dataset
    return GridCell(dataset.name, dataset.split, comparison, label(dataset.split, comparison.seed))


def _config(cells: Sequence[GridCell]) -> dict:
    """What the folder of all belongs to; splits and seeds may be added to it."""
    config = {**cells[0].comparison.config(), "command": "compare --splits --seeds"}
    grid = {
        "splits": sorted({cell.split for cell in cells}),
        "seeds": sorted({cell.comparison.seed for cell in cells}),
    }
    own = ("split", "seed", "fingerprint")  # of the single comparisons, which hold them
    shared = {key: value for key, value in config.items() if key not in own}
    return {**shared, **_same_in_every_split(cells[0].comparison), "grid": grid}


def _same_in_every_split(comparison: Comparison) -> dict:
    """What was asked of model and table; training rows decide the unit of the noise and what is filled in."""
    problem, asked = comparison.problem, dict(comparison.options)
    if asked.get("noise_scale") is not None:
        asked["noise_scale"] = float(f"{asked['noise_scale'] * problem.scale.y_sd:.9g}")
    found: dict = {"task": problem.task, "options": json_safe({**comparison.entry.options, **asked})}
    if recipe := problem.dataset.recipe:
        kinds = {column.name: column.kind for column in recipe.columns}
        found["table"] = {"dropped": list(recipe.dropped), "kinds": kinds}
    return found


def _notes(cells: Sequence[GridCell]) -> tuple[str, ...]:
    """Those of all comparisons; then the first of those that some splits have, with their numbers."""
    splits: dict[str, dict[int, None]] = {}
    for cell in cells:
        for note in cell.comparison.notes:
            splits.setdefault(note, {})[cell.split] = None
    everywhere = {cell.split for cell in cells}
    shared = [note for note, found in splits.items() if set(found) == everywhere]
    some = [
        f"{'splits' if len(found) > 1 else 'split'} {', '.join(map(str, found))}: "
        f"{note.removeprefix('in this split ')}"
        for note, found in splits.items()
        if note not in shared
    ]
    more = [f"and {len(some) - MOST_SHOWN} more that some splits have"] if len(some) > MOST_SHOWN else []
    return (*shared, *some[:MOST_SHOWN], *more)


def summarise(runs: Sequence[Run], notes: tuple[str, ...] = ()) -> Repeated:
    rows, found = average(runs), differences(runs)
    # whether a fit has settled is a matter of each, not of a mean
    asked = [replace(row, bound_change=None) for row in rows]
    words = verdict(asked, found, {row.method: _clear(row.method, runs) for row in rows})
    words += [sentence for row in rows if (sentence := _moving(row.method, runs))]
    words += [f"{row.method} {failed(row)}." for row in rows if failed(row)]
    return Repeated(rows, found, words, notes)


def _moving(method: str, runs: Sequence[Run]) -> str:
    """In how many of its runs the bound of a method has not settled."""
    rows = [row for run in runs if (row := run.sound(method))]
    changes = [change for row in rows if (change := row.estimate("bound_change")) is not None]
    moving = [change.value for change in changes if unsettled(change)]
    if not moving:
        return ""
    return (
        f"{method}: the bound (without one: minus the loss) still moved at the end in {len(moving)} of "
        f"{len(changes)} runs, by {max(moving, key=abs):.2g} nats at most: more steps."
    )


def _clear(method: str, runs: Sequence[Run]) -> float:
    """Standard errors that tell a mean of a method's runs from chance; where it failed is no unit of it."""
    sound = {run.key: 0.0 for run in runs if run.sound(method)}
    units = mean_over(sound).units if sound else 1
    return student(units) if units > 1 else CLEAR


def _write(repeated: Repeated, folder: Path, title: str, head: Sequence[str]) -> None:
    write_csv(difference_frame(repeated.differences), folder / "differences.csv")
    if compared(repeated.rows):
        plot_scoreboard(repeated.rows, folder / "scoreboard.png", title=plain(title))
    write_scoreboard(repeated.rows, folder, repeated.words, ERRORS, head)


def frame(repeated: Repeated) -> pd.DataFrame:
    """For notebooks: that of :func:`zoo.compare`, with the differences in ``attrs["differences"]``."""
    table = wide_frame(repeated.rows)
    table.attrs["notes"] = list(repeated.notes)
    table.attrs["verdict"] = repeated.words
    table.attrs["differences"] = difference_frame(repeated.differences).to_dict("records")
    return table
