"""What holds for a cluster of any kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.zoo.experiments.runner_helpers import running, without_seconds
from tests.zoo.experiments.toy_experiments import CELLS, declare
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce
from zoo.fitting.side_by_side import Workers


def assert_nothing_left(out: Path) -> None:
    assert running(out) == []
    assert list(out.glob(".cluster-*")) == []


def assert_results_are_those_of_this_machine(
    pool: Workers, cell: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a cell that may use the global generators; each has one thread, in another process than this."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    toy = declare("toy/global_numbers", cell)
    told = []
    reproduce(plan(toy), tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    reproduce(plan(toy), "there", workers=pool, on_progress=lambda todo, done: told.append(len(done)))
    assert without_seconds(tmp_path / "here") == without_seconds(tmp_path / "there")
    assert (tmp_path / "here" / "table.csv").read_bytes() == (tmp_path / "there" / "table.csv").read_bytes()
    assert told == list(range(CELLS + 1))
    threads = {path.read_text() for path in tmp_path.glob("there/cells/*/*/*/*/threads.txt")}
    assert threads == {"1 --xla_cpu_multi_thread_eigen=false False"}
    assert_nothing_left(tmp_path / "there")
