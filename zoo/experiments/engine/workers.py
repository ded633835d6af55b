"""How cells are computed, and their results kept."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_loaders import DataError
from data_loaders.errors import short_reason
from zoo.errors import FailedError, UserError
from zoo.experiments.engine.declaration import Cell, CellFunction, Record
from zoo.experiments.engine.progress import OnProgress
from zoo.experiments.engine.records import publish, read_record, workplace
from zoo.fitting.side_by_side import Workers, one_thread


def run_cell(run: CellFunction, metrics: Sequence[str], cell: Cell, out: Path) -> Record:
    """Computes a cell and keeps the result, a failure too.

    :param metrics: names that the result may have
    :raises UserError: when the cell met bad input; nothing is kept then
    """
    known = read_record(out, cell)
    if known is not None and known.ok:  # another call has been faster
        return known
    _seed_everything(cell.seed)
    with workplace(out) as folder:
        values: dict[str, float] = {}
        status, trace, start = "ok", "", time.perf_counter()
        try:
            values = _checked(run(replace(cell, folder=folder)), metrics)
        except (UserError, DataError) as error:
            raise UserError(f"{cell.name}: {error}") from None
        except (Exception, SystemExit) as error:
            reason = str(error) if isinstance(error, FailedError) else short_reason(error)
            status, trace = f"failed: {' '.join(reason.split())}", traceback.format_exc()
        seconds = time.perf_counter() - start
        return publish(out, Record(cell, status, values, seconds, folder, trace))


def run_cells(run: CellFunction, metrics: Sequence[str], cells: Sequence[Cell], out: Path) -> list[Record]:
    """:func:`run_cell` of one after another."""
    return [run_cell(run, metrics, cell, out) for cell in cells]


def place_of(cell: Cell) -> tuple:
    """What tells a cell from the others of a grid."""
    return (*cell.combination, cell.trial)


def compute(
    run: CellFunction,
    metrics: Sequence[str],
    cells: Sequence[Cell],
    done: Sequence[Record],
    out: Path,
    workers: Workers,
    on_progress: OnProgress | None,
    *,
    together: int = 1,
) -> None:
    """All cells but those that are done; raises what :meth:`Workers.results_of` does.

    :param done: results of earlier calls
    :param together: trials of one combination that a process computes one after another
    """
    finished = {place_of(record.cell): record for record in done}
    todo = {place_of(cell): cell for cell in cells if place_of(cell) not in finished}
    tell = on_progress or (lambda todo, finished: None)
    tell(list(todo.values()), list(finished.values()))
    if not todo:
        return
    out = out.absolute()  # workers have another place to start from
    work = [(run, metrics, piece, out) for piece in _pieces(todo.values(), together)]
    with one_thread(), contextlib.closing(workers.results_of(run_cells, work, out)) as results:
        for records in results:
            for record in records:
                del todo[place_of(record.cell)]
                finished[place_of(record.cell)] = record
            tell(list(todo.values()), list(finished.values()))


def _pieces(cells: Iterable[Cell], together: int) -> list[list[Cell]]:
    """Cells that one process computes, in the order of the first of each."""
    pieces: dict[tuple, list[Cell]] = {}
    for cell in cells:
        pieces.setdefault((*cell.combination, cell.trial // together), []).append(cell)
    return list(pieces.values())


def _seed_everything(seed: int) -> None:
    """A cell that forgets a seed somewhere gives the same numbers again nevertheless."""
    import pyro

    pyro.set_rng_seed(seed)  # of torch, numpy and Python
    pyro.clear_param_store()


def _checked(values: Mapping[str, float], metrics: Sequence[str]) -> dict[str, float]:
    """:raises FailedError: for a number that is not finite
    :raises ValueError: for no metrics, or others
    """
    foreign = [name for name in values if name not in metrics]
    if foreign or not values:
        raise ValueError(f"the cell measured {', '.join(foreign) or 'nothing'}, not {', '.join(metrics)}")
    numbers = {name: float(values[name]) for name in metrics if name in values}
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise FailedError(", ".join(bad))
    return numbers
