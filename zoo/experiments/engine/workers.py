"""How cells are computed: one after another here, or side by side in other processes."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_loaders import DataError
from data_loaders.errors import short_reason
from zoo.errors import DivergenceError, UserError
from zoo.experiments.engine.declaration import Cell, CellFunction, Record
from zoo.experiments.engine.records import publish, read_record, workplace
from zoo.fitting.threads import one_torch_thread


class CallEndedError(DivergenceError):
    """The call could not go on, and what it has finished is kept; the command line exits with 1."""


def results_of(work: Sequence[tuple], jobs: int) -> Iterator[Record]:
    """Results as they come; each element of ``work`` is what :func:`run_cell` takes.

    :raises UserError: that a cell met
    :raises CallEndedError: when a process died
    """
    jobs = min(jobs, len(work))
    if jobs == 1:
        yield from (run_cell(*arguments) for arguments in work)
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import BrokenProcessPool

    threads = None if "OMP_NUM_THREADS" in os.environ else 1
    with parallel_config("loky", inner_max_num_threads=threads):
        parallel = Parallel(jobs, return_as="generator_unordered", batch_size=1)
    flags = os.environ.get("XLA_FLAGS", "")
    records = parallel(delayed(_run_in_worker)(os.getpid(), flags, *arguments) for arguments in work)
    try:
        for record in records:  # noqa: UP028 (a delegated end would not be quiet below)
            yield record
    except BrokenProcessPool:
        raise CallEndedError(
            "a process was killed, for want of memory perhaps: with fewer --jobs the same command goes on "
            "from what is finished"
        ) from None
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that what runs is given up
            records.close()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread a cell, here and in the processes that start within, so that they do not wait for each other
    and give the same numbers whatever their number; ``OMP_NUM_THREADS`` says otherwise.
    """
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    flags = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{flags or ''} --xla_cpu_multi_thread_eigen=false".strip()
    try:
        with one_torch_thread():
            yield
    finally:
        del os.environ["XLA_FLAGS"]
        if flags is not None:
            os.environ["XLA_FLAGS"] = flags


def _run_in_worker(parent: int, flags: str, *arguments) -> Record:
    os.environ["XLA_FLAGS"] = flags  # joblib may hand over a process that was started before they were set
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends the others
    _end_with(parent)
    return run_cell(*arguments)


@functools.cache
def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone: after a kill, nobody would wait for what it computes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
            reason = str(error) if isinstance(error, DivergenceError) else short_reason(error)
            status, trace = f"failed: {' '.join(reason.split())}", traceback.format_exc()
        seconds = time.perf_counter() - start
        return publish(out, Record(cell, status, values, seconds, folder, trace))


def _seed_everything(seed: int) -> None:
    """A cell that forgets a seed somewhere gives the same numbers again nevertheless."""
    import pyro

    pyro.set_rng_seed(seed)  # of torch, numpy and Python
    pyro.clear_param_store()


def _checked(values: Mapping[str, float], metrics: Sequence[str]) -> dict[str, float]:
    """:raises DivergenceError: for a number that is not finite
    :raises ValueError: for no metrics, or others
    """
    foreign = [name for name in values if name not in metrics]
    if foreign or not values:
        raise ValueError(f"the cell measured {', '.join(foreign) or 'nothing'}, not {', '.join(metrics)}")
    numbers = {name: float(values[name]) for name in metrics if name in values}
    bad = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise DivergenceError(", ".join(bad))
    return numbers
