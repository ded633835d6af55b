"""Independent pieces of work: one after another here, or side by side in other processes."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from zoo.errors import FailedError, UserError
from zoo.fitting.threads import one_torch_thread

T = TypeVar("T")


class CallEndedError(FailedError):
    """The call could not go on, and what it has finished is kept; the command line exits with 1."""


class Workers(Protocol):
    """Who computes the pieces.

    :ivar count: how many work side by side
    """

    count: int

    def results_of(self, function: Callable[..., T], work: Sequence[tuple], folder: Path) -> Iterator[T]:
        """``function(*arguments)`` for each element of ``work``, as they come.

        :param folder: where the pieces leave what they find; all workers must see it
        :raises UserError: when a worker cannot do them, for what it must have and does not; before any work
        :raises CallEndedError: when a process died, or the cluster went away; else what the function raises
        """


@dataclass(frozen=True)
class Here:
    """This process, or several others of this machine."""

    count: int = 1

    def results_of(self, function: Callable[..., T], work: Sequence[tuple], folder: Path) -> Iterator[T]:
        """See :class:`Workers`."""
        jobs = min(self.count, len(work))
        if jobs <= 1:
            yield from (function(*arguments) for arguments in work)
            return
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky.process_executor import BrokenProcessPool

        from guides.core.processes import workers_may_leave

        threads = None if "OMP_NUM_THREADS" in os.environ else 1
        with parallel_config("loky", inner_max_num_threads=threads):
            parallel = Parallel(jobs, return_as="generator_unordered", batch_size=1)
        flags = os.environ.get("XLA_FLAGS", "")
        results = parallel(delayed(_run_in_worker)(os.getpid(), flags, function, *args) for args in work)
        try:
            with workers_may_leave():
                for result in results:  # noqa: UP028 (a delegated end would not be quiet below)
                    yield result
        except BrokenProcessPool:
            raise CallEndedError(
                "a process was killed, for want of memory perhaps: with fewer --jobs the same command goes "
                "on from what is finished"
            ) from None
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that what runs is given up
                results.close()


#: One piece after another.
ALONE = Here()


def number_of_jobs(jobs: int) -> int:
    """:raises UserError: unless it is a count, or -1 for one a core"""
    if jobs == -1:
        from joblib import cpu_count

        return cpu_count()
    if jobs < 1:
        raise UserError(f"--jobs must be at least 1, or -1 for one a core, not {jobs}")
    return jobs


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread a piece, here and in the processes that start within, so that they do not wait for each
    other and give the same numbers whatever their number; ``OMP_NUM_THREADS`` says otherwise.
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


def _run_in_worker(parent: int, flags: str, function: Callable[..., T], *arguments) -> T:
    os.environ["XLA_FLAGS"] = flags  # joblib may hand over a process that was started before they were set
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends the others
    _end_with(parent)
    return function(*arguments)


@functools.cache
def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone: after a kill, nobody would wait for what it computes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
