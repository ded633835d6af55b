"""Runs the cells of a request that have no result yet, and keeps what is finished however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_loaders.errors import short_reason
from zoo.errors import UserError
from zoo.experiments.engine.declaration import Cell, Record
from zoo.experiments.engine.page import page
from zoo.experiments.engine.progress import OnProgress
from zoo.experiments.engine.records import RESULT, cell_folder, read_all, read_record, sweep
from zoo.experiments.engine.request import Request
from zoo.experiments.engine.tables import Line, table_lines, write_tables
from zoo.experiments.engine.workers import run_cells
from zoo.files.output import output_folder, versions
from zoo.files.tables import write_text
from zoo.fitting.side_by_side import ALONE, CallEndedError, Workers, one_thread

#: Packages whose versions change numbers.
PACKAGES = ("posterior-zoo", "numpy", "torch", "jax", "pyro-ppl", "numpyro")


@dataclass(frozen=True)
class Outcome:
    """Of one call.

    :ivar records: all results in the folder, those of earlier calls too
    :ivar asked: those that this call asked for
    :ivar reused: how many of these were there before
    :ivar damaged: how many were there and could not be read, or were of another cell; they are computed again
    :ivar lines: the table
    """

    records: list[Record]
    asked: list[Record]
    reused: int
    damaged: int
    lines: list[Line]

    @property
    def failed(self) -> list[Record]:
        return [record for record in self.asked if not record.ok]


def reproduce(
    request: Request,
    out: str | Path,
    *,
    workers: Workers = ALONE,
    retry_failed: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Computes what is missing, and writes the tables of all that is there.

    :param workers: who computes (:func:`zoo.fitting.clusters.workers`)
    :param retry_failed: compute failed cells again
    :raises UserError: when the folder cannot be written or belongs to another run, or a cell met bad input
    :raises CallEndedError: when a process died, or the pictures could not be made
    """
    ended: Exception | None = None
    packages = {name: version for name, version in versions().items() if name in PACKAGES}
    with output_folder(out, request.config(packages)) as folder:
        sweep(folder)
        known = [read_record(folder, cell) for cell in request.cells()]
        there = [(cell_folder(folder, cell) / RESULT).exists() for cell in request.cells()]
        damaged = sum(was and record is None for was, record in zip(there, known, strict=True))
        done = [record for record in known if record is not None and (record.ok or not retry_failed)]
        try:
            _compute(request, folder, done, workers, on_progress)
        except (UserError, CallEndedError) as error:
            ended = error  # raised below, where it takes no folder away
        finally:
            sweep(folder, own=True)
            records = read_all(folder, request.experiment, request.seed, request.effort.options)
            lines = _write(request, folder, records) if records else []
        if ended and not records:
            raise ended
    if ended:
        raise ended
    if request.experiment.finish:
        _finish(request, folder, records)
    asked = {_place(cell) for cell in request.cells()}
    mine = [record for record in records if _place(record.cell) in asked]
    return Outcome(records, mine, len(done), damaged, lines)


def _place(cell: Cell) -> tuple:
    return (*cell.combination, cell.trial)


def _compute(
    request: Request, out: Path, done: Sequence[Record], workers: Workers, on_progress: OnProgress | None
) -> None:
    """All cells but those that are done; raises what :meth:`Workers.results_of` does."""
    finished = {_place(record.cell): record for record in done}
    todo = {_place(cell): cell for cell in request.cells() if _place(cell) not in finished}
    tell = on_progress or (lambda todo, finished: None)
    tell(list(todo.values()), list(finished.values()))
    if not todo:
        return
    run, metrics = request.experiment.run, tuple(request.experiment.metrics)
    out = out.absolute()  # workers have another place to start from
    work = [(run, metrics, cells, out) for cells in _pieces(todo.values(), request.experiment.together)]
    with one_thread(), contextlib.closing(workers.results_of(run_cells, work, out)) as results:
        for records in results:
            for record in records:
                del todo[_place(record.cell)]
                finished[_place(record.cell)] = record
            tell(list(todo.values()), list(finished.values()))


def _pieces(cells: Iterable[Cell], together: int) -> list[list[Cell]]:
    """Cells that one process computes, in the order of the first of each."""
    pieces: dict[tuple, list[Cell]] = {}
    for cell in cells:
        pieces.setdefault((*cell.combination, cell.trial // together), []).append(cell)
    return list(pieces.values())


def _write(request: Request, folder: Path, records: Sequence[Record]) -> list[Line]:
    """The three files of tables, each whole or not at all."""
    lines = table_lines(request, records)
    write_tables(folder, records, lines)
    write_text(folder / "table.md", page(request, folder, records, lines))
    return lines


def _finish(request: Request, folder: Path, records: Sequence[Record]) -> None:
    try:
        request.experiment.finish(folder, records)
    except Exception as error:
        reason = short_reason(error)
        raise CallEndedError(f"the tables are written, but not what follows them: {reason}") from error
