"""Workers on other machines: a Dask cluster in place of the processes of this machine.

Every piece of work is a task of its own and runs alone in its process.  Before it starts, its worker is held
against the caller: the same versions, the same source, and the output folder in sight.  A worker that joins
later is held against it too.

Joblib's backend for Dask loses a task whose worker is killed again and again, and waits for it for ever; so
tasks are handed over by Dask's own interface.  :class:`guides.PosteriorBootstrap`, whose draws
need no folder, goes through ``joblib.parallel_config(backend="dask")``.

A worker of Dask has a thread that draws of Python's global generator ``random``: pieces use those of torch
and numpy, or generators of their own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import itertools
import logging
import os
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from zoo.errors import UserError
from zoo.files.output import versions
from zoo.fitting.side_by_side import CallEndedError, Here, Workers, number_of_jobs

T = TypeVar("T")

AUTO = "auto"
SCHEME = "dask"
#: Seconds until a cluster counts as out of reach.
PATIENCE = 10.0
#: Tasks that wait at the cluster at once; it need not hold those of a whole grid.
WAITING = 1000
#: In the place of a result: the worker was killed, each time.
KILLED = object()


@contextlib.contextmanager
def workers(jobs: int = 1, cluster: str | None = None) -> Iterator[Workers]:
    """Who computes: processes of this machine, or the workers of a cluster.

    :param jobs: processes side by side; -1 is one a core.  Clusters of other machines have what they have
    :param cluster: None, ``auto`` (a Dask cluster of ``jobs`` processes, which lives as long as this),
        ``dask://HOST:PORT``
    :raises UserError: for an address that is none, a package that is missing, a cluster that does not answer,
        has no workers or has others than the caller could use
    """
    jobs = number_of_jobs(jobs)
    if cluster is None:
        yield Here(jobs)
        return
    host, port = _parts(cluster)
    try:
        importlib.import_module("distributed")
    except ImportError:
        raise UserError(
            f"--cluster {cluster} needs distributed: pip install 'posterior-zoo[cluster]'"
        ) from None
    if cluster == AUTO:
        with _own_dask(jobs) as found:
            yield found
        return
    if jobs != 1:
        raise UserError(f"--jobs is for this machine and --cluster auto: {cluster} has the workers it has")
    _knock(cluster, host, port)
    with _dask(cluster, f"tcp://{host}:{port}") as found:
        yield found


def _parts(cluster: str) -> tuple[str, int]:
    """``dask://host:8786`` -> host, 8786; :raises UserError: for anything else but ``auto``"""
    if cluster == AUTO:
        return "", 0
    scheme, _, place = cluster.partition("://")
    host, _, port = place.rpartition(":")
    if scheme != SCHEME or not host or not port.isdecimal():
        raise UserError(f"--cluster is dask://HOST:PORT or auto, not {cluster!r}")
    return host, int(port)


def _knock(cluster: str, host: str, port: int) -> None:
    """:raises UserError: where nobody listens, or one that does not greet: Dask would wait for ever"""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=PATIENCE) as line:
            greeted = b"compression" in line.recv(1000)
    except TimeoutError:
        greeted = False
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no cluster answers at {cluster} ({error}): is its scheduler running, and is that its port?"
        ) from None
    if not greeted:
        raise UserError(f"what listens at {cluster} is no Dask scheduler: is that its port?")


# -------------------------------------------------------------------------------------------- on the worker


@dataclass(frozen=True)
class Code:
    """What numbers hang on.

    :ivar versions: of the packages
    :ivar source: checksum of this project's code: two checkouts have one version
    """

    versions: dict[str, str]
    source: str


@functools.cache
def own_code() -> Code:
    """Of this process, whose code stays what it was."""
    root = Path(__file__).parents[2]
    mark = hashlib.sha256()
    for package in ("data_loaders", "guides", "zoo"):
        for path in sorted((root / package).rglob("*.py")):
            mark.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return Code(versions(), mark.hexdigest())


def check_code(wanted: Code) -> None:
    """:raises UserError: where this worker has other code than the caller"""
    own = own_code()
    mixed = [
        f"{name} is {own.versions[name]} there, {version} here"
        for name, version in wanted.versions.items()
        if own.versions[name] != version
    ]
    if own.source != wanted.source:
        mixed = mixed or ["posterior-zoo of the same version has other code there"]
    if mixed:
        raise UserError(
            f"the worker on {socket.gethostname()} would give other numbers: {'; '.join(mixed)}; install the "
            "same on all machines"
        )


@dataclass(frozen=True)
class Token:
    """A file in the output folder, and what it says."""

    path: Path
    text: str


def check_folder(token: Token) -> None:
    """:raises UserError: where this worker does not see the caller's folder, or cannot write to it"""
    folder = token.path.parent
    try:
        seen = token.path.read_text("utf-8") == token.text and os.access(folder, os.W_OK)
    except OSError:
        seen = False
    if not seen:
        raise UserError(
            f"the worker on {socket.gethostname()} cannot write to {folder}: with --cluster, --out is a "
            "folder that all machines share, under one path"
        )


@dataclass(frozen=True)
class _Raised:
    """What a piece of work has raised, so that it is not taken for an error of the cluster."""

    error: Exception


_ALONE = threading.Lock()


@dataclass(frozen=True)
class _Task:
    """A piece of work for a worker, which computes it as a process of the caller's machine would."""

    function: Callable
    code: Code
    token: Token
    threads: int
    flags: str

    def __call__(self, *arguments: Any) -> Any:
        import torch

        with _ALONE:  # generators of random numbers and Pyro's parameters are the process's, not the thread's
            try:
                check_code(self.code)
                check_folder(self.token)
                os.environ["XLA_FLAGS"] = self.flags
                torch.set_num_threads(self.threads)
                return self.function(*arguments)
            except Exception as error:
                return _Raised(error)


# -------------------------------------------------------------------------------------------- for the caller


@dataclass(frozen=True)
class Cluster:
    """The workers of a cluster (:class:`zoo.fitting.side_by_side.Workers`).

    :ivar name: as ``--cluster`` gives it
    :ivar outcomes: what a task returns for each of some arguments, as they come, and :data:`KILLED` for one
        whose worker was killed each time; an error is one of the cluster
    """

    name: str
    count: int
    outcomes: Callable[[Callable, Iterator[tuple]], Iterator]

    def results_of(self, function: Callable[..., T], work: Sequence[tuple], folder: Path) -> Iterator[T]:
        """See :class:`zoo.fitting.side_by_side.Workers`.  A piece whose worker is killed is tried again
        elsewhere; one that is killed each time is told of when all others are finished.
        """
        import torch

        killed = 0
        with _token(folder) as token:
            flags = os.environ.get("XLA_FLAGS", "")
            task = _Task(function, own_code(), token, torch.get_num_threads(), flags)
            with contextlib.closing(self.outcomes(task, iter(work))) as outcomes:
                for outcome in outcomes:
                    if isinstance(outcome, _Raised):
                        raise outcome.error
                    if outcome is KILLED:
                        killed += 1
                    else:
                        yield outcome
        if killed:
            raise CallEndedError(
                f"{killed} of {len(work)} pieces lost one worker after another, for want of memory perhaps: "
                "the same command tries them again"
            )


@contextlib.contextmanager
def _token(folder: Path) -> Iterator[Token]:
    """Lies in the folder while there is work."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".cluster-")
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(path.name)
        path.chmod(0o644)
        yield Token(path, path.name)
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _going_away(cluster: str, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors:
        raise CallEndedError(
            f"the cluster {cluster} went away; when it is back, the same command goes on from what is "
            "finished"
        ) from None


def _quiet(name: str) -> None:
    """What a cluster logs of its ends, by a logger a module, is said in a line of ours."""
    for known in (name, *logging.root.manager.loggerDict):
        if known == name or known.startswith(f"{name}."):
            logging.getLogger(known).setLevel(logging.CRITICAL)


# ------------------------------------------------------------------------------------------------------ Dask


@contextlib.contextmanager
def _own_dask(jobs: int) -> Iterator[Cluster]:
    """A cluster on this machine, gone afterwards."""
    from distributed import LocalCluster

    _quiet("distributed")
    options = {"threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
    with (
        LocalCluster(n_workers=jobs, processes=True, silence_logs=logging.CRITICAL, **options) as own,
        _dask(AUTO, own.scheduler_address) as found,
    ):
        yield found


@contextlib.contextmanager
def _dask(cluster: str, address: str) -> Iterator[Cluster]:
    from distributed import Client

    _quiet("distributed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions are our own business
            client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        raise UserError(f"what answers at {cluster} is no Dask scheduler ({error})") from None
    try:
        yield Cluster(
            cluster, _dask_workers(cluster, client), functools.partial(_dask_outcomes, cluster, client)
        )
    finally:
        client.close(timeout=2)  # gives up what waits


def _dask_workers(cluster: str, client: Any) -> int:
    """How many there are; :raises UserError: for none, or some that cannot be used"""
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise UserError(f"{cluster} has no workers: start some, dask worker HOST:PORT --nthreads 1") from None
    threads = client.nthreads().values()
    if max(threads) > 1:
        raise UserError(
            f"a worker of {cluster} has {max(threads)} threads, and every piece needs a process of its own: "
            "start workers with --nthreads 1"
        )
    client.run(check_code, own_code())
    return len(threads)


def _dask_outcomes(cluster: str, client: Any, task: Callable, work: Iterator[tuple]) -> Iterator:
    from distributed import CancelledError, KilledWorker, as_completed
    from distributed.comm import CommClosedError

    def hand_over(count: int) -> list:
        return [client.submit(task, *piece, pure=False) for piece in itertools.islice(work, count)]

    with _going_away(cluster, CancelledError, CommClosedError, TimeoutError):
        running = as_completed(hand_over(WAITING), loop=client.loop)
        for future in running:
            try:
                yield future.result()
            except KilledWorker:
                yield KILLED
            running.update(hand_over(1))
