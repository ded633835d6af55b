"""What a cluster's worker does and what its caller hears of it, whatever the kind of the cluster.

Every piece of work is a task of its own and runs alone in its process.  Before it starts, its worker is held
against the caller: the same versions, the same source, and the output folder in sight.  A worker that joins
later is held against it too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from zoo.errors import UserError
from zoo.files.output import versions
from zoo.fitting.side_by_side import CallEndedError

T = TypeVar("T")

#: Seconds until a cluster counts as out of reach.
PATIENCE = 10.0
#: Tasks that wait at the cluster at once; it need not hold those of a whole grid.
WAITING = 1000
#: In the place of a result: the worker was killed, each time.
KILLED = object()


# -------------------------------------------------------------------------------------------- on the worker


@dataclass(frozen=True)
class Code:
    """What numbers depend on.

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
        for path in sorted((*(root / package).rglob("*.py"), *(root / package).rglob("*.c"))):
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


def reach(cluster: str, host: str, port: int) -> socket.socket:
    """:raises UserError: where nobody listens"""
    try:
        return socket.create_connection((host.strip("[]"), port), timeout=PATIENCE)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no cluster answers at {cluster} ({error}): is it running, and is that its port?"
        ) from None


@contextlib.contextmanager
def going_away(cluster: str, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors:
        raise CallEndedError(
            f"the cluster {cluster} went away; when it is back, the same command goes on from what is "
            "finished"
        ) from None


def quiet(name: str) -> None:
    """What a cluster logs of its ends, by a logger a module, is said in a line of ours."""
    for known in (name, *logging.root.manager.loggerDict):
        if known == name or known.startswith(f"{name}."):
            logging.getLogger(known).setLevel(logging.CRITICAL)
            logging.getLogger(known).disabled = True  # Ray sets a level again
