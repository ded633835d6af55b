"""A Dask cluster: a scheduler and workers of one thread, here or on other machines.

Joblib's backend for Dask loses a task whose worker is killed again and again, and waits for it for ever; so
tasks are handed over by Dask's own interface.  :class:`guides.PosteriorBootstrap`, whose draws
need no folder, goes through ``joblib.parallel_config(backend="dask")``.

A worker of Dask has a thread that draws of Python's global generator ``random``: pieces use those of torch
and numpy, or generators of their own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from zoo.errors import UserError
from zoo.fitting.cluster_tasks import (
    KILLED,
    PATIENCE,
    WAITING,
    Cluster,
    check_code,
    going_away,
    own_code,
    quiet,
    reach,
)


@contextlib.contextmanager
def own_dask(jobs: int) -> Iterator[Cluster]:
    """A cluster on this machine, gone afterwards."""
    from distributed import LocalCluster

    quiet("distributed")
    options = {"threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
    with (
        LocalCluster(n_workers=jobs, processes=True, silence_logs=logging.CRITICAL, **options) as own,
        _dask("auto", own.scheduler_address) as found,
    ):
        yield found


@contextlib.contextmanager
def connect_dask(cluster: str, host: str, port: int) -> Iterator[Cluster]:
    """The cluster of the scheduler that listens there."""
    _knock(cluster, host, port)
    with _dask(cluster, f"tcp://{host}:{port}") as found:
        yield found


def _knock(cluster: str, host: str, port: int) -> None:
    """:raises UserError: where nobody listens, or one that does not greet: Dask would wait for ever"""
    with reach(cluster, host, port) as line:
        try:
            greeted = b"compression" in line.recv(1000)
        except OSError:
            greeted = False
    if not greeted:
        raise UserError(f"what listens at {cluster} is no Dask scheduler: is that its port?")


@contextlib.contextmanager
def _dask(cluster: str, address: str) -> Iterator[Cluster]:
    from distributed import Client

    quiet("distributed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions are our own business
            client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        raise UserError(f"what answers at {cluster} is no Dask scheduler ({error})") from None
    try:
        yield Cluster(cluster, _count(cluster, client), functools.partial(_outcomes, cluster, client))
    finally:
        client.close(timeout=2)  # gives up what waits


def _count(cluster: str, client: Any) -> int:
    """How many there are; :raises UserError: for none, or some that cannot be used"""
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise UserError(f"{cluster} has no workers: start some, dask worker HOST:PORT --nthreads 1") from None
    with going_away(cluster, *_lost()):
        threads = client.nthreads().values()
    if max(threads, default=0) > 1:
        raise UserError(
            f"a worker of {cluster} has {max(threads)} threads, and every piece needs a process of its own: "
            "start workers with --nthreads 1"
        )
    with going_away(cluster, *_lost()):
        client.run(check_code, own_code())
    return len(threads)


def _lost() -> tuple[type[Exception], ...]:
    """What a scheduler or workers that are gone raise."""
    from distributed import CancelledError
    from distributed.comm import CommClosedError

    return CancelledError, CommClosedError, TimeoutError


def _outcomes(cluster: str, client: Any, task: Callable, work: Iterator[tuple]) -> Iterator:
    from distributed import KilledWorker, as_completed

    def hand_over(count: int) -> list:
        return [client.submit(task, *piece, pure=False) for piece in itertools.islice(work, count)]

    with going_away(cluster, *_lost()):
        running = as_completed(hand_over(WAITING), loop=client.loop)
        for future in running:
            try:
                yield future.result()
            except KilledWorker:
                yield KILLED
            running.update(hand_over(1))
