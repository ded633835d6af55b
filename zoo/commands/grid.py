"""Comparisons side by side: of several data sets, splits and seeds, a folder each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from data_loaders.errors import short_reason
from guides.posterior.draws import Posterior
from zoo.commands.compare import Concluded, conclude, fit_guide
from zoo.commands.comparison import Comparison
from zoo.commands.grading import POINT_COLUMNS, Graded, draw_errors, point_values
from zoo.commands.reference import reference_posterior
from zoo.errors import Interrupted, UserError
from zoo.evaluation.repeats import Run
from zoo.files.output import output_folder
from zoo.fitting.side_by_side import Workers, one_thread

#: Told how many pieces of work are finished, and how many there are.
OnPiece = Callable[[int, int], None]


@dataclass(frozen=True)
class GridCell:
    """One comparison of a grid.

    :ivar dataset: its name in tables and folders
    :ivar folder: relative to that of the grid
    """

    dataset: str
    split: int
    comparison: Comparison
    folder: str


def label(split: int, seed: int) -> str:
    """The folder of a split and seed."""
    return f"split-{split}-seed-{seed}"


def compute(
    cells: Sequence[GridCell], folder: Path, workers: Workers, on_piece: OnPiece | None = None
) -> list[Run]:
    """Fits what is missing, a reference or a guide a piece, then grades every comparison.

    What is finished stays in the folders of the comparisons however the call ends, and is not computed again.
    Results do not depend on the workers.

    :param folder: of this call alone, see :func:`zoo.files.output.sole_folder`
    :raises UserError: before any work, when the folder of a comparison belongs to another one
    :param workers: who computes (:func:`zoo.fitting.clusters.workers`)
    :raises CallEndedError: when a process died, or a cluster went away
    :raises Interrupted: at Ctrl-C
    """
    folder = folder.absolute()  # workers have another place to start from
    for cell in cells:
        with output_folder(folder / cell.folder, cell.comparison.config()):
            pass
    work = [(i, cell.comparison, name, folder / cell.folder) for i, cell, name in _pieces(cells)]
    total, done = len(work) + len(cells), 0
    failed: dict[int, dict[str, str]] = {}
    runs: dict[int, Run] = {}
    try:
        with one_thread(), contextlib.closing(workers.results_of(_fit, work, folder)) as fits:
            for i, name, status in fits:
                done += 1
                if status != "ok":
                    failed.setdefault(i, {})[name] = status
                if on_piece:
                    on_piece(done, total)
        gradings = [(i, cell, folder, failed.get(i, {})) for i, cell in enumerate(cells)]
        with one_thread(), contextlib.closing(workers.results_of(_grade, gradings, folder)) as grades:
            for i, run in grades:
                done += 1
                runs[i] = run
                if on_piece:
                    on_piece(done, total)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after {done} of {total} pieces; {folder} keeps them, and the same command goes on "
            "from there"
        ) from None
    return [runs[i] for i in range(len(cells))]


def _pieces(cells: Sequence[GridCell]) -> list[tuple[int, GridCell, str]]:
    """The references first: they take longest.  ``""`` names a reference."""
    references = [(i, cell, "") for i, cell in enumerate(cells)]
    return references + [(i, cell, name) for i, cell in enumerate(cells) for name in cell.comparison.guides]


def _fit(i: int, comparison: Comparison, name: str, folder: Path) -> tuple[int, str, str]:
    """Leaves the file of one result; its status.  What a guide raises is a failure of that guide alone."""
    if not name:
        reference_posterior(comparison, folder)
        return i, name, "ok"  # what may be thought of it is read again with it
    try:
        return i, name, fit_guide(comparison, name, folder).status
    except (UserError, OSError):
        raise
    except Exception as error:
        return i, name, f"failed: {short_reason(error)}"


def _grade(i: int, cell: GridCell, folder: Path, failed: Mapping[str, str]) -> tuple[int, Run]:
    comparison = cell.comparison
    lost = {name: _failure(comparison, name, status) for name, status in failed.items()}
    concluded = conclude(comparison, folder / cell.folder, failed=lost)
    results = [scored.result for scored in concluded.results]
    seconds = {
        result.method: float(result.posterior.info["cpu_seconds"])
        for result in results
        if "cpu_seconds" in result.posterior.info
    }
    points, errors = _points(concluded), draw_errors(concluded.results)
    return i, Run(cell.dataset, cell.split, comparison.seed, concluded.rows, points, seconds, errors)


def _failure(comparison: Comparison, name: str, status: str) -> Graded:
    entry, note = comparison.fitted_model(name)
    return Graded(name, entry.name, Posterior(comparison.build(entry), {}), {}, note, status)


def _points(concluded: Concluded) -> pd.DataFrame:
    if not concluded.results:
        return pd.DataFrame(columns=POINT_COLUMNS)
    return point_values(concluded.results, concluded.truth)
