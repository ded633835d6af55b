"""Running a grid: what is there is not computed again, what fails is a row, what is finished stays."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch

import zoo.experiments.engine.runner
from tests.zoo.experiments.runner_helpers import results, rows, running, without_seconds
from tests.zoo.experiments.toy_experiments import CELLS, declare
from zoo.errors import UserError
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce
from zoo.experiments.engine.workers import run_cell
from zoo.fitting.side_by_side import ALONE, CallEndedError, Here
from zoo.fitting.threads import one_torch_thread

pytestmark = pytest.mark.usefixtures("calls")


def test_every_cell_once_and_never_again(calls, tmp_path):
    out = tmp_path / "out"
    first = reproduce(plan("toy/measure"), out)
    assert len(calls) == len(first.asked) == len(first.records) == CELLS
    assert (first.reused, first.failed) == (0, [])
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    again = reproduce(plan("toy/measure"), out)
    assert len(calls) == CELLS
    assert again.records == first.records
    assert again.reused == CELLS
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_results_are_in_the_order_of_the_grid(tmp_path):
    reproduce(plan("toy/measure"), tmp_path)
    found = rows(tmp_path)
    assert ",".join(found[0]) == "experiment,dataset,method,setting,trial,seed,metric,value,seconds,status"
    assert len(found) == CELLS * 3 // 2  # one setting has two metrics
    assert [(row["dataset"], row["setting"], row["trial"], row["metric"]) for row in found[:8]] == [
        *(("a", "5x5", str(trial), metric) for trial in range(3) for metric in ("error", "score")),
        ("a", "5", "0", "error"),
        ("a", "5", "1", "error"),
    ]
    cell = plan("toy/measure").cells()[0]
    assert float(found[1]["value"]) == cell.seed / 2**32
    assert int(found[1]["seed"]) == cell.seed
    assert {row["status"] for row in found} == {"ok"}


def test_folder_grows_along_every_axis(calls, tmp_path):
    request = plan("toy/measure", datasets=["b"], methods=["n"], settings=["5"], trials=1)
    reproduce(request, tmp_path)
    for count, axes in (
        (2, {"datasets": ["b"], "methods": ["m", "n"], "settings": ["5"], "trials": 1}),
        (4, {"datasets": ["b"], "settings": ["5"], "trials": 2}),
        (8, {"datasets": ["b"], "trials": 2}),
        (8 + 8, {"trials": 2}),
        (CELLS, {}),
        (CELLS, {"datasets": ["a"], "trials": 1}),
        (CELLS + 4, {"datasets": ["a"], "trials": 4}),
    ):
        outcome = reproduce(plan("toy/measure", **axes), tmp_path)
        assert len(calls) == len(outcome.records) == count
    other = tmp_path / "other"
    reproduce(plan("toy/measure"), other)
    reproduce(plan("toy/measure", datasets=["a"], trials=4), other)
    assert without_seconds(tmp_path) == without_seconds(other)


def test_budget_that_does_the_same_work_extends_and_another_is_refused(calls, tmp_path):
    same = declare(quick=declare().full.__class__(1, "no time", {"epochs": 4}))
    reproduce(plan(same, budget="quick"), tmp_path)
    reproduce(plan(same, budget="full"), tmp_path)
    assert len(calls) == CELLS
    with pytest.raises(UserError, match="belongs to another run .option epochs is 4 there, 1 here"):
        reproduce(plan(declare(), budget="quick"), tmp_path)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (lambda: plan("toy/measure", seed=1), "seed"),
        (lambda: plan("toy/slow"), "experiment"),
        (lambda: plan(declare("toy/measure", revision=2)), "revision"),
    ],
)
def test_folder_of_another_run_is_refused_and_untouched(other, word, tmp_path):
    reproduce(plan("toy/measure", trials=1), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"belongs to another run .{word} is .* there, .* here"):
        reproduce(other(), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_results_of_other_versions_are_not_mixed_in(monkeypatch, tmp_path):
    reproduce(plan("toy/measure", trials=1), tmp_path)
    newer = {**zoo.experiments.engine.runner.versions(), "torch": "99.0", "arviz": "99.0"}
    monkeypatch.setattr(zoo.experiments.engine.runner, "versions", lambda: newer)
    with pytest.raises(UserError, match=r"another run \(version of torch is .* there, 99.0 here\)"):
        reproduce(plan("toy/measure", trials=1), tmp_path)


def test_damaged_cell_is_computed_again_and_no_other(calls, tmp_path):
    reproduce(plan("toy/measure"), tmp_path)
    whole = without_seconds(tmp_path)
    paths = results(tmp_path)
    paths[3].write_text(paths[3].read_text()[:50])
    shutil.rmtree(paths[7].parent)
    shutil.copy(paths[0], paths[9])
    calls.clear()
    outcome = reproduce(plan("toy/measure"), tmp_path)
    assert len(calls) == 3
    assert (outcome.reused, outcome.damaged) == (CELLS - 3, 2)  # one is gone and one is of another cell
    assert without_seconds(tmp_path) == whole


def test_files_of_a_cell_stay_with_its_result(tmp_path):
    for record in reproduce(plan("toy/measure", trials=1), tmp_path).records:
        assert (record.folder / "left.txt").read_text() == record.cell.name
        assert record.folder == tmp_path / "cells" / "/".join([*record.cell.combination, "0"])


# --------------------------------------------------------------------------------------------- failures


def test_failures_are_rows_with_their_reason(tmp_path):
    outcome = reproduce(plan("toy/troubled"), tmp_path)
    failed = {
        (record.cell.method, record.cell.trial): record.status for record in outcome.records if not record.ok
    }
    assert failed == {
        ("m", 0): "failed: error is nan",
        ("m", 1): "failed: ZeroDivisionError: one line and another",
        ("m", 2): "failed: the loss is not finite",
        ("n", 1): "failed: ValueError: the cell measured surprise, not error, score",
        ("n", 2): "failed: ValueError: the cell measured nothing, not error, score",
    }
    assert outcome.failed == [record for record in outcome.records if not record.ok]
    found = [row for row in rows(tmp_path) if row["status"] != "ok"]
    assert {(row["method"], int(row["trial"])): row["status"] for row in found} == failed
    assert all((row["metric"], row["value"]) == ("", "") and row["seed"] for row in found)
    assert len(found) == 5
    record = json.loads((tmp_path / "cells/b/m/5/1/result.json").read_text())
    assert "toy_experiments.py" in record["traceback"]
    assert record["metrics"] == {}


def test_failures_are_computed_again_only_when_that_is_asked_for(calls, monkeypatch, tmp_path):
    reproduce(plan("toy/troubled"), tmp_path)
    monkeypatch.setenv("TOY_MENDED", "1")
    calls.clear()
    assert len(reproduce(plan("toy/troubled"), tmp_path).failed) == 5
    assert calls == []
    assert reproduce(plan("toy/troubled"), tmp_path, retry_failed=True).failed == []
    assert len(calls) == 5
    reproduce(plan("toy/troubled"), tmp_path, retry_failed=True)
    assert len(calls) == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_number_that_is_not_finite_fails_the_cell(value, tmp_path):
    experiment = declare(run=lambda cell: {"error": 1.0, "score": value})
    outcome = reproduce(plan(experiment, trials=1), tmp_path)
    assert {record.status for record in outcome.records} == {f"failed: score is {float(value)}"}


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path):
    experiment = declare(run=lambda cell: {"error": np.float32(0.1), "score": torch.tensor(2)})
    outcome = reproduce(plan(experiment, trials=1), tmp_path)
    assert outcome.records[0].metrics == {"error": float(np.float32(0.1)), "score": 2.0}


def test_cell_that_exits_has_failed(tmp_path):
    def leave(cell):
        raise SystemExit(3)

    outcome = reproduce(plan(declare(run=leave), trials=1), tmp_path)
    assert outcome.records[0].status == "failed: SystemExit: 3"


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_bad_input_ends_the_call_and_keeps_what_is_finished(jobs, calls, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="b . 5x?5? trial 0: the file of b is missing"):
        reproduce(plan("toy/refused"), tmp_path / "out", workers=Here(jobs))
    if jobs == 1:
        assert len(results(tmp_path / "out")) == len(calls) == 4
        assert len(rows(tmp_path / "out", "table.csv")) == 6
    assert running(tmp_path / "out") == []
    monkeypatch.setenv("TOY_MENDED", "1")
    assert len(reproduce(plan("toy/refused"), tmp_path / "out").records) == CELLS


def test_bad_input_in_the_first_cell_leaves_no_folder(tmp_path):
    with pytest.raises(UserError, match="the file of b is missing"):
        reproduce(plan("toy/refused", datasets=["b"]), tmp_path / "a" / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("together", [1, 2])
def test_interrupted_run_writes_the_tables_of_what_is_finished(together, calls, monkeypatch, tmp_path):
    """In the middle of a piece too: of two trials together the second is interrupted."""
    request = plan(replace(find_experiment("toy/interrupted"), together=together))
    with pytest.raises(KeyboardInterrupt):
        reproduce(request, tmp_path)
    finished = len(results(tmp_path))
    assert finished == len(calls) == (8 + 4 if together == 1 else 4 * 2 + 1)
    assert len({row["seed"] for row in rows(tmp_path)}) == finished
    assert f"**Partial: {finished} of 24 cells.**" in (tmp_path / "table.md").read_text()
    assert running(tmp_path) == []
    monkeypatch.setenv("TOY_MENDED", "1")
    reproduce(request, tmp_path)
    assert len(calls) == CELLS


def test_interrupted_once_more_while_a_folder_is_removed(monkeypatch, tmp_path):
    remove = os.rmdir

    def stop(*arguments, **options):
        monkeypatch.setattr(os, "rmdir", remove)
        raise KeyboardInterrupt

    def begin_to_remove(todo, finished):
        if len(finished) == 12:  # the next cell is interrupted
            monkeypatch.setattr(os, "rmdir", stop)

    with pytest.raises(KeyboardInterrupt):
        reproduce(plan("toy/interrupted"), tmp_path, on_progress=begin_to_remove)
    assert os.rmdir is remove
    assert running(tmp_path) == []


@pytest.mark.slow
def test_interrupted_between_two_results_gives_the_rest_up_quietly(recwarn, tmp_path):
    def stop(todo, finished):
        if finished:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(plan("toy/slow"), tmp_path, workers=Here(2), on_progress=stop)
    assert list(recwarn) == []
    assert (tmp_path / "table.md").exists()


def test_full_disk_is_a_user_error_and_keeps_what_is_finished(monkeypatch, tmp_path):
    import zoo.experiments.engine.records as records

    write = records.write_json

    def refuse(path, content):
        if content["cell"]["dataset"] == "b":
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(records, "write_json", refuse)
    with pytest.raises(UserError, match="cannot write to .*No space left"):
        reproduce(plan("toy/measure"), tmp_path)
    assert len(results(tmp_path)) == 4
    assert running(tmp_path) == []


# ------------------------------------------------------------------------------------------- side by side


@pytest.mark.slow
def test_side_by_side_is_one_after_another(monkeypatch, tmp_path):
    """Even when a cell uses the global generators; and a process has one thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("TOY_PARENT", str(os.getpid()))
    reproduce(plan("toy/random_numbers"), tmp_path / "one")
    seen = []
    reproduce(
        plan("toy/random_numbers"),
        tmp_path / "two",
        workers=Here(2),
        on_progress=lambda todo, finished: seen.append((len(todo), len(finished))),
    )
    assert without_seconds(tmp_path / "one") == without_seconds(tmp_path / "two")
    assert len({row["value"] for row in rows(tmp_path / "one")}) == 2 * CELLS
    assert seen == [(CELLS - done, done) for done in range(CELLS + 1)]
    threads = {path.read_text() for path in tmp_path.glob("two/cells/*/*/*/*/threads.txt")}
    assert threads == {"1 --xla_cpu_multi_thread_eigen=false False"}


def test_trials_that_belong_together_are_one_piece_of_work(calls, tmp_path):
    """Of three trials two and one; what is there already is left out."""
    request = plan(replace(declare("toy/measure"), together=2), datasets=["a"], settings=["5"])
    reproduce(replace(request, trials=1), tmp_path)
    given = []

    class Noted:
        count = 1

        def results_of(self, function, work, folder):
            given.extend([(cell.method, cell.trial) for cell in cells] for _, _, cells, _ in work)
            return ALONE.results_of(function, work, folder)

    outcome = reproduce(request, tmp_path, workers=Noted())
    assert given == [[("m", 1)], [("n", 1)], [("m", 2)], [("n", 2)]]
    assert (outcome.reused, len(outcome.asked)) == (2, 6)
    given.clear()
    reproduce(request, tmp_path / "whole", workers=Noted())
    assert given == [[("m", 0), ("m", 1)], [("n", 0), ("n", 1)], [("m", 2)], [("n", 2)]]
    assert without_seconds(tmp_path / "whole") == without_seconds(tmp_path)


def test_order_of_the_cells_does_not_matter(tmp_path):
    for axes in ({"datasets": ["b"]}, {"methods": ["n"]}, {}):
        reproduce(plan("toy/random_numbers", **axes), tmp_path / "parts")
    reproduce(plan("toy/random_numbers"), tmp_path / "whole")
    assert without_seconds(tmp_path / "parts") == without_seconds(tmp_path / "whole")


@pytest.mark.slow
def test_process_that_is_killed_ends_the_call_and_loses_nothing_else(tmp_path):
    with pytest.raises(CallEndedError, match="a process was killed.*fewer --jobs"):
        reproduce(plan("toy/dies"), tmp_path, workers=Here(2))
    assert len(results(tmp_path)) >= 8
    assert (tmp_path / "table.md").exists()
    assert running(tmp_path) == []


def test_what_a_killed_call_left_is_gone_while_the_cells_run(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = tmp_path / "cells" / f".running-{socket.gethostname()}-{dead.pid}-x"
    reproduce(plan("toy/measure", trials=1), tmp_path)
    folder.mkdir()
    seen = []
    request = plan("toy/measure", trials=2)
    reproduce(request, tmp_path, on_progress=lambda todo, finished: seen.append(folder.exists()))
    assert len(seen) > 1
    assert not any(seen)


def threads_here(cell) -> dict[str, float]:
    return {"error": torch.get_num_threads(), "score": "multi_thread_eigen=false" in os.environ["XLA_FLAGS"]}


def test_a_cell_has_one_thread_and_the_caller_gets_its_own_back(monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outcome = reproduce(plan(declare(run=threads_here), trials=1), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert outcome.records[0].metrics == {"error": 1.0, "score": 1.0}
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to="


def test_threads_are_those_that_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_torch_thread():
            assert torch.get_num_threads() == 2
        outcome = reproduce(plan(declare(run=threads_here), trials=1), tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert outcome.records[0].metrics == {"error": 2.0, "score": 0.0}


# --------------------------------------------------------------------------------------- what comes after


def test_finish_sees_all_results_after_the_tables(tmp_path):
    seen = []

    def finish(folder, records):
        assert (folder / "table.md").exists()
        seen.append([(record.folder / "left.txt").read_text() for record in records])

    experiment = declare(finish=finish)
    reproduce(plan(experiment, datasets=["a"]), tmp_path)
    reproduce(plan(experiment, datasets=["b"]), tmp_path)
    assert [len(names) for names in seen] == [CELLS // 2, CELLS]


def test_finish_that_fails_leaves_the_tables(tmp_path):
    def finish(folder, records):
        raise ValueError("no picture")

    with pytest.raises(CallEndedError, match="tables are written, but .*ValueError: no picture"):
        reproduce(plan(declare(finish=finish)), tmp_path)
    assert (tmp_path / "table.md").exists()


def test_a_cell_that_forgets_its_seed_has_one_of_its_own(tmp_path):
    """Again the same numbers, and others in another trial."""

    def careless(cell):
        return {"error": torch.rand(()).item() + np.random.rand()}

    values = []
    for name, trial in (("first", 0), ("again", 0), ("other", 1)):
        (tmp_path / name).mkdir()
        cell = Cell("toy/plain", "a", "m", "5", trial)
        values.append(run_cell(careless, ("error",), cell, tmp_path / name).metrics["error"])
    assert values[0] == values[1] != values[2]


def test_a_cell_does_not_see_parameters_of_the_one_before(tmp_path):
    """In the store that Pyro has for a whole process."""

    def counting(cell):
        count = pyro.param("count", lambda: torch.zeros(()))
        with torch.no_grad():
            count += 1
        return {"error": count.item()}

    found = [
        run_cell(counting, ("error",), Cell("toy/plain", "a", "m", "5", trial), tmp_path) for trial in (0, 1)
    ]
    assert [record.metrics for record in found] == [{"error": 1.0}] * 2
