"""``zoo reproduce`` as a user meets it: help, list, messages, exit codes, Ctrl-C and kill -9."""

from __future__ import annotations

import os
import re
import shutil
import signal

import pytest

import zoo.experiments.engine.catalogue
from tests.zoo.cli_helpers import refused, run_zoo
from tests.zoo.experiments.runner_helpers import results, rows, running, start_zoo, wait_for, without_seconds
from tests.zoo.experiments.toy_experiments import CELLS
from zoo.experiments.engine.catalogue import experiments

pytestmark = pytest.mark.usefixtures("calls")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["toy/mesure"], ["unknown experiment 'toy/mesure'", "nearest: toy/measure"]),
        (["toy/measure", "--datasets", "a,c"], ["unknown data set of toy/measure 'c'", "known: a, b"]),
        (["toy/measure", "--methods", "mm"], ["unknown method of toy/measure 'mm'", "nearest: m"]),
        (["toy/measure", "--settings", "5x"], ["unknown setting of toy/measure '5x'", "5x5"]),
        (["toy/measure", "--methods", "m,m"], ["method 'm' is named twice"]),
        (["toy/measure", "--datasets", ","], ["--datasets names nothing", "known: a, b"]),
        (["toy/measure", "--datasets", ""], ["--datasets names nothing"]),
        (["toy/measure", "--trials", 0], ["--trials must be at least 1, not 0"]),
        (["toy/measure", "--trials", -1], ["--trials must be at least 1, not -1"]),
        (["toy/measure", "--jobs", 0], ["--jobs must be at least 1, or -1 for one a core, not 0"]),
        (["toy/measure", "--jobs", -2], ["--jobs must be at least 1", "not -2"]),
        (["toy/measure", "--seed", -1], ["--seed", "not -1"]),
        (["toy/measure", "--budget", "ful"], ["unknown budget 'ful'", "nearest: full"]),
        (["toy/measure", "--set", "epoch=2"], ["unknown option of toy/measure 'epoch'", "nearest: epochs"]),
        (["toy/measure", "--set", "epochs=two"], ["option epochs of toy/measure is of type int", "'two'"]),
        (["toy/measure", "--set", "epochs"], ["--set takes NAME=VALUE", "'epochs'"]),
        (["toy/measure", "--set", "epochs=3", "--set", "epochs=4"], ["--set epochs is given twice"]),
        (["toy/measure", "--set", "epochs=0"], ["option epochs of toy/measure must be at least 1, not 0"]),
        ([], ["which experiment?", "--list"]),
    ],
)
def test_request_that_makes_no_sense(arguments, words, tmp_path):
    line = refused("reproduce", *arguments, "--out", tmp_path / "a" / "b")
    assert all(word in line for word in words), line
    assert list(tmp_path.iterdir()) == []


def test_out_is_asked_for():
    assert "give --out, as in: zoo reproduce toy/measure --out" in refused("reproduce", "toy/measure")


def test_name_is_checked_before_out_is_asked_for():
    line = refused("reproduce", "toy/measur")
    assert "unknown experiment 'toy/measur'; nearest: toy/measure" in line
    assert "known: " in refused("reproduce", "nope")


def test_out_that_cannot_be_one(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    assert "is a file, not a folder" in refused("reproduce", "toy/measure", "--out", file)
    assert "cannot write to" in refused("reproduce", "toy/measure", "--out", file / "below")
    assert "holds no config.json" in refused("reproduce", "toy/measure", "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_out_of_something_else(tmp_path):
    run_zoo("reproduce", "toy/measure", "--trials", 1, "--out", tmp_path)
    for options, difference in (
        (["--seed", 1], "seed is 0 there, 1 here"),
        (["--budget", "quick"], "option epochs is 4 there, 1 here"),
    ):
        line = refused("reproduce", "toy/measure", *options, "--out", tmp_path)
        assert f"belongs to another run ({difference})" in line
    (tmp_path / "config.json").write_text('{"command": "compare"}')
    line = refused("reproduce", "toy/measure", "--out", tmp_path)
    assert "belongs to another run (command is compare there, reproduce here)" in line


def test_missing_data_is_one_line(tmp_path):
    line = refused("reproduce", "toy/refused", "--datasets", "b", "--out", tmp_path / "out")
    assert "b m 5x5 trial 0: the file of b is missing" in line
    assert list(tmp_path.iterdir()) == []


def test_run_prints_the_table_and_where_it_is(tmp_path):
    result = run_zoo("reproduce", "toy/measure", "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert re.split(r"\s{2,}", lines[0].strip()) == [
        "data set", "method", "setting", "metric", "ours", "n", "published", "z",
    ]  # fmt: skip
    assert "1.5 ± 0.01" in result.stdout
    assert "24 cells, 0 of them from earlier calls" in result.stdout
    assert str(tmp_path / "table.md") in result.stdout.replace("\n", "")
    assert max(map(len, lines[:-1])) <= 80


def test_second_run_computes_nothing_and_says_what_the_folder_has(calls, tmp_path):
    run_zoo("reproduce", "toy/measure", "--out", tmp_path)
    calls.clear()
    result = run_zoo("reproduce", "toy/measure", "--datasets", "a, b", "--trials", 2, "--out", tmp_path)
    assert "16 cells, 16 of them from earlier calls; the folder has 8 more" in result.stdout
    assert calls == []


def test_options_choose_the_cells(calls, tmp_path):
    options = ["--datasets", "b", "--methods", "n", "--settings", "5,5x5", "--trials", 2, "--seed", 7]
    assert (
        run_zoo("reproduce", "toy/measure", *options, "--budget", "quick", "--out", tmp_path).exit_code == 0
    )
    assert {(*cell.combination, cell.trial) for cell in calls} == {
        ("b", "n", setting, trial) for setting in ("5", "5x5") for trial in (0, 1)
    }
    assert {(cell.base_seed, *cell.options.items()) for cell in calls} == {(7, ("epochs", 1))}


def test_an_option_in_another_value_reaches_the_cells_the_page_and_the_command(calls, tmp_path):
    arguments = ["toy/measure", "--datasets", "b", "--trials", 1, "--set", "epochs=9", "--out", tmp_path]
    assert run_zoo("reproduce", *arguments).exit_code == 0
    assert {cell.options["epochs"] for cell in calls} == {9}
    page = (tmp_path / "table.md").read_text()
    assert "epochs 9" in page
    assert "--set epochs=9" in page
    calls.clear()
    assert run_zoo("reproduce", *arguments).exit_code == 0
    assert calls == []
    assert "option epochs is 9 there, 4 here" in refused("reproduce", *arguments[:5], "--out", tmp_path)


def test_failures_are_told_and_end_with_one_only_if_nothing_else_is_there(calls, monkeypatch, tmp_path):
    result = run_zoo("reproduce", "toy/troubled", "--out", tmp_path)
    assert result.exit_code == 0
    assert len(result.stderr.splitlines()) == 1
    assert "zoo: 5 of 24 cells failed (--retry-failed" in result.stderr
    assert "b m 5 trial 0 failed: error is nan" in result.stderr
    only = ["--datasets", "b", "--methods", "m", "--settings", "5", "--out", tmp_path]
    assert run_zoo("reproduce", "toy/troubled", *only).exit_code == 1
    monkeypatch.setenv("TOY_MENDED", "1")
    calls.clear()
    result = run_zoo("reproduce", "toy/troubled", *only, "--retry-failed")
    assert (result.exit_code, result.stderr, len(calls)) == (0, "", 3)


# ----------------------------------------------------------------------------------------- help and list


def test_list_says_what_there_is(calls, tmp_path):
    result = run_zoo("reproduce", "--list")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert calls == []
    lines = [line.split() for line in result.stdout.splitlines()]
    for name in experiments():
        assert [name, "no", "time", "either", "A", "toy."] in lines
    assert list(tmp_path.iterdir()) == []


def test_list_of_one():
    text = " ".join(run_zoo("reproduce", "toy/measure", "--list").stdout.split())
    assert "experiment toy/measure is A toy. published Nobody 1999, Table 1, page 7 data sets a, b" in text
    assert "settings 5x5, 5 measures" in text
    assert "quick no time (1 trial, epochs=1) full no time either (3 trials, epochs=4)" in text
    assert "toy/slow" not in text
    assert "unknown experiment" in refused("reproduce", "toy/mesure", "--list")


def test_list_of_the_real_experiments_fits_a_terminal_and_cuts_no_name(monkeypatch):
    monkeypatch.undo()
    assert "tests.zoo.experiments.toy_experiments" not in zoo.experiments.engine.catalogue.MODULES
    lines = run_zoo("reproduce", "--list").stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 51  # five papers, at one line an experiment
    assert [line.split()[0] for line in lines[1:-1]] == list(experiments())


def test_help_teaches():
    text = run_zoo("reproduce", "--help").stdout
    for words in (
        "zoo reproduce --list",
        "--out out/dice",
        "--jobs -1",
        "--retry-failed",
        "table.md",
        "full",
    ):
        assert words in text
    assert "reproduce" in run_zoo("--help").stdout


def test_examples_of_the_help_name_experiments_that_exist(monkeypatch):
    monkeypatch.undo()
    text = run_zoo("reproduce", "--help").stdout
    names = set(re.findall(r"zoo reproduce (\w+/\S+)", text))
    assert "example/dice" in names
    assert names <= set(experiments())


def test_example_works_as_shown(monkeypatch, tmp_path):
    monkeypatch.undo()
    result = run_zoo("reproduce", "example/dice", "--budget", "quick", "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert len(rows(tmp_path)) == 24
    assert len(list(tmp_path.glob("cells/*/*/*/*/throws.npy"))) == 24


# -------------------------------------------------------------------------------------- killed and stopped


@pytest.mark.slow  # in this process: test_interrupted_run_writes_the_tables_of_what_is_finished
@pytest.mark.parametrize("jobs", [1, 2])
def test_kill_loses_the_running_cells_alone(jobs, calls, tmp_path):
    out = tmp_path / "killed"
    process = start_zoo("toy/slow", "--jobs", jobs, "--out", out, seconds=0.2)
    wait_for(lambda: len(results(out)) >= 5)
    wait_for(lambda: running(out))
    process.kill()
    process.communicate()
    if jobs > 1:  # the others follow
        workers = {int(path.name.split("-")[-2]) for path in running(out)}
        wait_for(lambda: not any(map(alive, workers)), seconds=10)
    finished = len(results(out))
    assert 5 <= finished < CELLS
    result = run_zoo("reproduce", "toy/slow", "--out", out)
    assert result.exit_code == 0
    assert len(calls) == CELLS - finished
    assert running(out) == []
    run_zoo("reproduce", "toy/slow", "--out", tmp_path / "whole")
    assert without_seconds(out) == without_seconds(tmp_path / "whole")
    assert (out / "table.csv").read_bytes() == (tmp_path / "whole" / "table.csv").read_bytes()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])  # the cells of two jobs run in processes that ignore it
def test_ctrl_c_is_one_line_and_writes_the_tables(jobs, calls, tmp_path):
    out = tmp_path / "stopped"
    # cells so long that the grid cannot end before a busy machine has noticed that three are finished
    process = start_zoo("toy/slow", "--jobs", jobs, "--out", out, seconds=0.6)
    wait_for(lambda: len(results(out)) >= 3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == "zoo: interrupted; the same command goes on from what is finished\n"
    assert stdout == ""
    finished = len(results(out))
    assert 3 <= finished < CELLS
    assert len({row["seed"] for row in rows(out)}) == finished
    assert f"**Partial: {finished} of {CELLS} cells.**" in (out / "table.md").read_text()
    assert running(out) == []
    run_zoo("reproduce", "toy/slow", "--out", out)
    assert len(calls) == CELLS - finished
    assert "Complete" in (out / "table.md").read_text()


@pytest.mark.slow
def test_two_calls_in_one_folder_at_once(tmp_path):
    out = tmp_path / "shared"
    processes = [start_zoo("toy/slow", "--out", out, seconds=0.05) for _ in range(2)]
    for process in processes:
        stdout, stderr = process.communicate(timeout=100)
        assert (process.returncode, stderr) == (0, "")
        assert "24 cells" in stdout
    assert running(out) == []
    shutil.rmtree(out / "cells" / "a" / "m" / "5" / "0")
    run_zoo("reproduce", "toy/slow", "--out", out)
    run_zoo("reproduce", "toy/slow", "--out", tmp_path / "whole")
    assert without_seconds(out) == without_seconds(tmp_path / "whole")
