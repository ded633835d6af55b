"""Runs the cells of a request that have no result yet, and keeps what is finished however it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_loaders.errors import short_reason
from zoo.errors import UserError
from zoo.experiments.engine.declaration import Record
from zoo.experiments.engine.lines import Line
from zoo.experiments.engine.page import page
from zoo.experiments.engine.progress import OnProgress
from zoo.experiments.engine.records import RESULT, cell_folder, read_all, read_record, sweep
from zoo.experiments.engine.request import Request
from zoo.experiments.engine.tables import table_lines, write_tables
from zoo.experiments.engine.workers import compute, place_of
from zoo.files.output import output_folder, versions
from zoo.files.tables import write_text
from zoo.fitting.side_by_side import ALONE, CallEndedError, Workers

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
            compute(
                request.experiment.run,
                tuple(request.experiment.metrics),
                request.cells(),
                done,
                folder,
                workers,
                on_progress,
                together=request.experiment.together,
            )
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
    asked = {place_of(cell) for cell in request.cells()}
    mine = [record for record in records if place_of(record.cell) in asked]
    return Outcome(records, mine, len(done), damaged, lines)


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
