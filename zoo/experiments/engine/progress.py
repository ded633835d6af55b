"""How far a run is and how long it still takes: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from zoo.experiments.engine.declaration import Cell

if TYPE_CHECKING:  # slow to import
    from zoo.experiments.engine.declaration import Record

#: Called with the cells that are still to do and the results there are: at the start and after every piece of
#: work, most of which are a cell.
OnProgress = Callable[[Sequence[Cell], Sequence["Record"]], None]

SECONDS_BETWEEN_LINES = 60.0


def seconds_left(todo: Sequence[Cell], finished: Sequence[Record], jobs: int) -> float | None:
    """An estimate: a cell takes as long as its like has taken on average; None where nothing is known.

    Like is a cell of the same combination, else of the same data set, else any.
    """
    taken: dict[object, list[float]] = defaultdict(list)
    for record in finished:
        if record.ok:
            for key in _alike(record.cell):
                taken[key].append(record.seconds)
    means = {key: statistics.fmean(seconds) for key, seconds in taken.items()}
    if todo and not means:
        return None
    total = sum(next(means[key] for key in _alike(cell) if key in means) for cell in todo)
    return total / max(1, min(jobs, len(todo)))


def _alike(cell: Cell) -> tuple[object, ...]:
    return cell.combination, cell.dataset, None


def duration(seconds: float) -> str:
    """``40 s``, ``7 min``, ``2 h 10 min``."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


@contextlib.contextmanager
def show_progress(label: str, jobs: int) -> Iterator[OnProgress]:
    """What :func:`zoo.experiments.engine.runner.reproduce` takes as ``on_progress``; writes to stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(label, jobs)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Left())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(escape(label), total=None)

        def update(todo: Sequence[Cell], finished: Sequence[Record]) -> None:
            failed = sum(not record.ok for record in finished)
            text = f"{label}, {failed} failed" if failed else label
            left = seconds_left(todo, finished, jobs)
            until = None if left is None else time.monotonic() + left
            total = len(todo) + len(finished)
            bar.update(task, description=escape(text), completed=len(finished), total=total, until=until)

        yield update


class _Left(ProgressColumn):
    """The time left, which goes on falling while a cell is computed."""

    def render(self, task: Task) -> Text:
        until = task.fields.get("until")
        if until is None:
            return Text("")
        return Text(f"about {duration(max(0.0, until - time.monotonic()))} left")


def _lines(label: str, jobs: int) -> OnProgress:
    last = time.monotonic()

    def update(todo: Sequence[Cell], finished: Sequence[Record]) -> None:
        nonlocal last
        if not todo or time.monotonic() - last < SECONDS_BETWEEN_LINES:
            return
        last = time.monotonic()
        failed = sum(not record.ok for record in finished)
        parts = [f"{len(finished)} of {len(todo) + len(finished)} cells"]
        parts += [f"{failed} failed"] if failed else []
        left = seconds_left(todo, finished, jobs)
        parts += [] if left is None else [f"about {duration(left)} left"]
        print(f"{label}: {', '.join(parts)}", file=sys.stderr, flush=True)

    return update
