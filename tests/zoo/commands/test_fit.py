"""``zoo fit``: it goes on where it was cut short, keeps its loss trace, leaves nothing where it diverges."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from pyro.infer import SVI

import zoo.fitting.svi
from tests.zoo.cli_helpers import fresh_process, linear_rows, run_zoo, write_csv
from zoo.cli.fit import FIT_HELP
from zoo.commands import predict
from zoo.files.output import sole_folder
from zoo.fitting.checkpoints import read_checkpoint
from zoo.fitting.methods import Variational
from zoo.fitting.stored import Stored
from zoo.registry.queries import GUIDES
from zoo.seeds import stable_seed


@pytest.mark.parametrize("guide", GUIDES)
def test_help_names_the_guides_that_start_again(guide):
    _, sentence = FIT_HELP.split("Graphs and densities start\nagain, and so do")
    named = re.split(r",\s+|\s+", sentence.partition(". ")[0].replace(" and ", " "))
    assert (guide in named) == isinstance(GUIDES[guide].method, Stored)


KILLED_FIT = """
import os, signal, sys
from pyro.infer import SVI
import zoo.fitting.svi

zoo.fitting.svi.SECONDS_BETWEEN_CHECKPOINTS = -1.0
take, taken = SVI.step, []

def step(self, *batch):
    if len(taken) == 12:
        {end}
    taken.append(batch)
    return take(self, *batch)

SVI.step = step
from zoo.cli.main import main
main()
"""


@pytest.fixture
def few_draws(monkeypatch):
    """For the figures of the rows held out, which cost more than so small a fit."""
    monkeypatch.setattr(predict, "DRAWS", 20)


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize(
    ("end", "code"), [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("raise KeyboardInterrupt", 130)]
)
def test_zoo_fit_goes_on_after_a_kill(tmp_path, end, code):
    command, table = fit_command(tmp_path)
    result = fresh_process(KILLED_FIT.format(end=end), *command, tmp_path / "killed")
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert_goes_on(command, table, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_zoo_fit_goes_on_after_an_interruption(tmp_path, monkeypatch):
    """The same in this process."""
    command, table = fit_command(tmp_path)
    take, taken = SVI.step, []

    def step(self, *batch):
        if len(taken) == 12:
            raise KeyboardInterrupt
        taken.append(batch)
        return take(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(zoo.fitting.svi, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
        patch.setattr(SVI, "step", step)
        assert run_zoo(*command, tmp_path / "killed").exit_code == 130
    _, tensors = read_checkpoint(tmp_path / "killed" / "fit.safetensors")
    assert len(tensors["losses"]) == 12
    assert_goes_on(command, table, tmp_path)


def test_ctrl_c_waits_for_the_end_of_a_step_and_keeps_it(tmp_path, monkeypatch):
    """Long before a checkpoint is due."""
    command, _ = fit_command(tmp_path)
    take, taken = SVI.step, []

    def step(self, *batch):
        taken.append(batch)
        if len(taken) == 3:
            signal.raise_signal(signal.SIGINT)
        return take(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(SVI, "step", step)
        patch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)  # pytest has its own
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            told = run_zoo(*command, tmp_path / "killed")
        finally:
            signal.signal(signal.SIGINT, before)
    keeps = f"{tmp_path / 'killed'} keeps the fit so far, and the same command goes on from there"
    assert (told.exit_code, told.stderr) == (130, f"zoo: interrupted; {keeps}\n")
    _, tensors = read_checkpoint(tmp_path / "killed" / "fit.safetensors")
    assert len(tensors["losses"]) == 3


@pytest.mark.parametrize(
    ("guide", "method"), [("mean-field", Variational), ("bootstrap", type(GUIDES["bootstrap"].method))]
)
def test_ctrl_c_before_anything_is_kept_says_so(guide, method, tmp_path, monkeypatch):
    def stopped(self, model, data, settings, *, file, **_):
        if guide == "bootstrap":  # half a fit: its seal is written last
            file.path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(method, "fit", stopped)
    table = write_csv(tmp_path / "table.csv", linear_rows())
    told = run_zoo("fit", table, "--widths", 3, "--guide", guide, "--out", tmp_path / "fit")
    assert told.exit_code == 130
    assert told.stderr == "zoo: interrupted; nothing is kept yet: the same command starts again\n"


def test_ctrl_c_elsewhere_claims_nothing(monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("zoo.cli.show.show", stopped)
    told = run_zoo("show", "bnn")
    assert (told.exit_code, told.stderr) == (130, "zoo: interrupted\n")


def test_a_folder_is_of_one_fit_at_a_time(tmp_path):
    command, _ = fit_command(tmp_path)
    with sole_folder(tmp_path / "fit"):
        told = run_zoo(*command, tmp_path / "fit")
    assert told.exit_code == 2
    assert f"another call is at work in {tmp_path / 'fit'}: wait for its end" in told.stderr


def fit_command(tmp_path) -> tuple[list, Path]:
    """``zoo fit`` of a small table, without its folder; and the table."""
    table = write_csv(tmp_path / "table.csv", linear_rows())
    return ["fit", table, "--steps", 25, "--widths", 3, "--guide", "spike-slab", "--out"], table


def assert_goes_on(command, table, tmp_path) -> None:
    """A fit cut short is told, then ends as one that never was, file by file."""
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {"config.json", "fit.safetensors"}
    early = run_zoo("predict", tmp_path / "killed", "--input", table, "--out", tmp_path / "p.csv")
    assert early.exit_code == 2
    assert "is not finished: call zoo fit again" in early.stderr
    assert run_zoo(*command, tmp_path / "killed").exit_code == 0
    assert run_zoo(*command, tmp_path / "whole").exit_code == 0
    (_, killed), (_, whole) = (
        read_checkpoint(tmp_path / name / "fit.safetensors") for name in ("killed", "whole")
    )
    assert killed.keys() == whole.keys()
    assert all(torch.equal(killed[name], whole[name]) for name in whole)
    trace = (tmp_path / "whole" / "losses.csv").read_text()
    assert (tmp_path / "killed" / "losses.csv").read_text() == trace


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_zoo_fit_keeps_its_loss_trace_and_says_how_it_was_made(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows())
    command = ["fit", table, "--steps", 25, "--seed", 5, "--widths", 3, "--out", tmp_path / "out"]
    assert "25 steps" in run_zoo(*command).stdout
    lines = (tmp_path / "out" / "losses.csv").read_text().splitlines()
    assert lines[0] == "step,loss"
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(25))
    _, tensors = read_checkpoint(tmp_path / "out" / "fit.safetensors")
    assert [float(line.split(",")[1]) for line in lines[1:]] == tensors["losses"].tolist()
    assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["seed"], config["settings"]["seed"]) == (5, stable_seed("fit", 5, "mean-field"))
    assert config["settings"]["steps"] == 25
    assert config["options"]["widths"] == [3]
    assert {"torch", "pyro-ppl", "python"} <= set(config["versions"])
    assert config["features"] == ["a", "b"]
    # a lost trace is written again
    (tmp_path / "out" / "losses.csv").unlink()
    run_zoo(*command)
    assert (tmp_path / "out" / "losses.csv").read_text().splitlines() == lines


def test_zoo_fit_that_diverges_ends_with_1_and_leaves_nothing(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows())
    result = run_zoo("fit", table, "--lr", 1e6, "--steps", 20, "--out", tmp_path / "a" / "b")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in ("step 1", "'w1'", "learning rate"))
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
