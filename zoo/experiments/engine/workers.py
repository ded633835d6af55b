"""How a cell is computed, and its result kept."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_loaders import DataError
from data_loaders.errors import short_reason
from zoo.errors import FailedError, UserError
from zoo.experiments.engine.declaration import Cell, CellFunction, Record
from zoo.experiments.engine.records import publish, read_record, workplace


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
