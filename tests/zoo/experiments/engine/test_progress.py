"""The estimate of the time left, and who gets to see it."""

from __future__ import annotations

from pathlib import Path

import pytest

import zoo.experiments.engine.progress
from zoo.experiments.engine.declaration import Cell, Record
from zoo.experiments.engine.progress import duration, seconds_left, show_progress


def cell(dataset: str = "a", method: str = "m", trial: int = 0) -> Cell:
    return Cell("toy/plain", dataset, method, "5", trial)


def record(seconds: float, *place, status: str = "ok") -> Record:
    return Record(cell(*place), status, {}, seconds, Path())


@pytest.mark.parametrize(
    ("todo", "finished", "jobs", "seconds"),
    [
        ([cell(trial=1)], [], 1, None),
        ([], [], 1, 0.0),
        ([], [record(9.0)], 1, 0.0),
        ([cell(trial=2)], [record(2.0), record(4.0, "a", "m", 1), record(90.0, "b")], 1, 3.0),
        ([cell("a", "n")], [record(2.0), record(90.0, "b")], 1, 2.0),  # as long as the data set's others
        ([cell("c")], [record(2.0), record(90.0, "b")], 1, 46.0),  # as long as any
        ([cell(trial=t) for t in range(1, 5)], [record(3.0)], 2, 6.0),
        ([cell(trial=1)], [record(3.0)], 8, 3.0),  # more processes than cells
        ([cell(trial=1)], [record(3.0), record(0.1, "a", "m", 2, status="failed: x")], 1, 3.0),
        ([cell(trial=1)], [record(0.1, status="failed: x")], 1, None),
    ],
)
def test_time_left(todo, finished, jobs, seconds):
    assert seconds_left(todo, finished, jobs) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89.4, "89 s"),
        (95, "2 min"),
        (7000, "117 min"),
        (7800, "2 h 10 min"),
        (1e5, "27 h 47 min"),
    ],
)
def test_duration_for_people(seconds, text):
    assert duration(seconds) == text


def test_lines_are_sparse_where_there_is_no_terminal(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(zoo.experiments.engine.progress.time, "monotonic", lambda: clock[0])
    finished = [record(30.0), record(1.0, "b", status="failed: x")]
    with show_progress("toy", 1) as update:
        update([cell(trial=1)], [])
        clock[0] = 59.0
        update([cell(trial=t) for t in range(1, 9)], finished)
        assert capsys.readouterr().err == ""
        clock[0] = 61.0
        update([cell(trial=t) for t in range(1, 9)], finished)
        update([cell(trial=t) for t in range(2, 9)], finished)
        assert capsys.readouterr().err == "toy: 2 of 10 cells, 1 failed, about 4 min left\n"
        clock[0] = 200.0
        update([], finished)  # the summary follows
        assert capsys.readouterr() == ("", "")


def test_bar_on_a_terminal_shows_failures_and_the_time_left(capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress("toy/[b]", 1) as update:
        update([cell(trial=1)], [])
        update([cell(trial=t) for t in range(1, 5)], [record(60.0), record(1.0, "b", status="failed: x")])
    text = capsys.readouterr().err
    assert "toy/[b], 1 failed" in text
    assert "2/6" in text
    assert "about 4 min left" in text
