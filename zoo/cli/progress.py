"""How far a command is: a bar on a terminal; in a file or a pipe nothing, or a line every so often."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console

#: Seconds between two lines where there is no terminal.
SECONDS_BETWEEN_LINES = 10.0
SECONDS_OF_A_LONG_RUN = 60.0


@contextlib.contextmanager
def progress_bar() -> Iterator:
    """A progress bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


@contextlib.contextmanager
def progress_bar_or_lines() -> Iterator:
    """A progress bar on a terminal, :class:`LogLines` elsewhere."""
    with progress_bar() as progress:
        yield LogLines() if progress is None else progress


@contextlib.contextmanager
def piece_counter(label: str) -> Iterator[Callable[[int, int], None]]:
    """What is told, after every piece of work, how many are finished and how many there are."""
    with progress_bar() as bar:
        progress = LogLines(SECONDS_OF_A_LONG_RUN) if bar is None else bar
        tasks: list[int] = []

        def on_piece(done: int, total: int) -> None:
            if not tasks:
                tasks.append(progress.add_task(label, total=total))
            progress.advance(tasks[0])

        yield on_piece


class LogLines:
    """In the place of a progress bar of one task: a line on stderr every so many seconds, none for less
    work.
    """

    def __init__(self, seconds: float = SECONDS_BETWEEN_LINES) -> None:
        self.seconds = seconds
        self.start = self.last = time.monotonic()
        self.label, self.total, self.done = "", 0, 0

    def add_task(self, label: str, *, total: int) -> int:
        self.label, self.total, self.done = label, total, 0
        self.start = self.last = time.monotonic()
        return 0

    def advance(self, task: int, count: int = 1) -> None:
        from zoo.experiments.engine.progress import duration

        self.done += count
        now = time.monotonic()
        if now - self.last < self.seconds or self.done >= self.total:
            return
        self.last = now
        left = duration((now - self.start) / self.done * (self.total - self.done))
        line = f"{self.label}: {self.done} of {self.total}, about {left} left"
        print(line, file=sys.stderr, flush=True)
