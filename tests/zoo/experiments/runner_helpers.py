"""Reading what a run has written, and a real `zoo reproduce` in a process of its own."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
# What runs in the background of a shell ignores Ctrl-C and hands that down, so it is switched on again.
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import zoo.experiments.engine.catalogue
zoo.experiments.engine.catalogue.MODULES = ("tests.zoo.experiments.toy_experiments",)
from zoo.cli.main import main
main()
"""


def rows(folder: Path, name: str = "results.csv") -> list[dict[str, str]]:
    with (folder / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_seconds(folder: Path) -> list[dict[str, str]]:
    """`results.csv` but for the times, which differ from run to run."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows(folder)]


def start_zoo(*arguments: object, seconds: float = 0.0) -> subprocess.Popen[str]:
    """A call on the toys; a cell of `toy/slow` takes that many seconds."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "reproduce", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TOY_SECONDS": str(seconds)},
        start_new_session=True,  # so that a test can send Ctrl-C to the whole group
    )


def results(folder: Path) -> list[Path]:
    while True:
        with contextlib.suppress(FileNotFoundError):  # a hidden folder that got its name meanwhile
            return sorted(folder.glob("cells/*/*/*/*/result.json"))


def running(folder: Path) -> list[Path]:
    return list(folder.glob("cells/.running-*"))


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)
