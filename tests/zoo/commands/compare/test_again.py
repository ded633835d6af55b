"""Work that is never done twice: the same call again, damaged results, calls that were killed or stopped."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import guides.truth.mcmc
import zoo.commands.compare
import zoo.files.kept
from guides.posterior.draws import Posterior
from tests.marks import SLOW
from tests.zoo.cli_helpers import (
    files,
    fresh_process,
    linear_rows,
    make_tiny,
    run_zoo,
    table_of,
    write_csv,
)
from tests.zoo.commands.compare.tables import compare_again
from zoo.budgets import BUDGETS, Budget
from zoo.commands.compare import _load, _posterior, _start_again, _telling_what_is_kept
from zoo.commands.comparison import plan
from zoo.errors import Interrupted, UserError
from zoo.evaluation.estimates import Estimate
from zoo.files.output import output_folder
from zoo.fitting.methods import Fitted
from zoo.fitting.problem import load_problem
from zoo.fitting.svi import Fit
from zoo.models import BNN

NETWORK = BNN(2, widths=(2,))


@pytest.mark.slow
def test_second_call_reads_everything(graded, monkeypatch):
    folder, first = graded
    before = (folder / "out" / "scoreboard.csv").read_bytes()
    monkeypatch.setattr(Fit, "run", lambda *a, **k: pytest.fail("a guide was fitted again"))
    monkeypatch.setattr(guides.truth.mcmc, "_gated", lambda *a, **k: pytest.fail("NUTS ran again"))
    result = compare_again(folder, folder / "out", monkeypatch)
    assert result.exit_code == 0
    assert (folder / "out" / "scoreboard.csv").read_bytes() == before
    assert result.stdout == first.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["empty", SLOW("lost"), SLOW("truncated"), SLOW("altered"), SLOW("other versions")]
)
def test_damaged_result_is_made_again_and_the_others_kept(graded, damage, tmp_path, monkeypatch):
    make_tiny(monkeypatch, pictures=damage == "lost")
    folder, _ = graded
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    whole = (out / "mean-field.nc").read_bytes()
    kept = {name: (out / name).stat().st_mtime_ns for name in ("spike-slab.nc", "reference.nc")}
    if damage == "lost":
        (out / "mean-field.nc").unlink()
        for name in ("scoreboard.csv", "scoreboard.png", "scatter.png"):
            (out / name).unlink()
    elif damage == "other versions":
        monkeypatch.setattr(zoo.files.kept, "versions", lambda: {"torch": "0"})
        kept.pop("spike-slab.nc")
    else:
        altered = re.sub(rb'"fit_seconds": \d', b'"fit_seconds": 9', whole)
        content = {"truncated": whole[: len(whole) // 2], "empty": b"", "altered": altered}[damage]
        assert content != whole
        (out / "mean-field.nc").write_bytes(content)
        (out / "scoreboard.csv").write_text("method,mo")
    fitted = []
    fit = Fit.run
    monkeypatch.setattr(Fit, "run", lambda self, **k: (fitted.append(k["label"]), fit(self, **k))[1])
    assert compare_again(folder, out, monkeypatch).exit_code == 0
    assert fitted == (["mean-field", "spike-slab"] if damage == "other versions" else ["mean-field"])
    assert all((out / name).stat().st_mtime_ns == time for name, time in kept.items())
    assert files(out) == files(folder / "out")
    before, after = table_of(folder / "out"), table_of(out)
    assert float(after["mean-field"]["fit_seconds"]) < 9
    for method, row in after.items():  # the same seed: the same figures
        row["fit_seconds"] = before[method]["fit_seconds"]
    assert after == before


def test_folder_of_another_question_is_refused_and_untouched(graded, monkeypatch):
    folder, _ = graded
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    for changed in (["--seed", 8], ["--widths", 4], ["--guides", "mean-field"], ["--split", 1]):
        options = {"--seed": 7, "--widths": 3, **dict([changed])}
        words = [word for pair in options.items() for word in pair]
        result = run_zoo("compare", folder / "table.csv", *words, "--out", folder / "out")
        assert result.exit_code == 2
        assert "belongs to another run" in result.stderr
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == before


KILLED = """
import os, signal
from zoo.budgets import BUDGETS, Budget
BUDGETS["quick"] = Budget(steps=20, draws=50, warmup=5, mcmc_draws=5)
import zoo.commands.compare
fit = zoo.commands.compare.fit_guide

def fit_guide(comparison, name, *args):
    if name == "spike-slab":
        os.kill(os.getpid(), signal.SIGKILL)
    return fit(comparison, name, *args)

zoo.commands.compare.fit_guide = fit_guide
from zoo.cli.main import main
main()
"""


@pytest.mark.slow
def test_killed_comparison_keeps_the_finished_guides(tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", Budget(steps=20, draws=50, warmup=5, mcmc_draws=5))
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    command = ["compare", table, "--reference", "none", "--widths", 2, "--out", tmp_path / "out"]
    result = fresh_process(KILLED, *command)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert "Traceback" not in result.stderr
    assert_resumed(command, tmp_path / "out")


STOPPED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from zoo.budgets import BUDGETS, Budget
BUDGETS["quick"] = Budget(steps=20, draws=50, warmup=100_000, mcmc_draws=100)
from guides.truth import samplers
at = sys.argv.pop(1)
step = getattr(samplers, at)

def marked(*args):
    os.write(1, b"here\\n")  # whole lines, also of two chains
    return step(*args)

setattr(samplers, at, marked)
from zoo.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("at", "presses"), [("_compile", 1), ("_run_chain", 3)])
def test_ctrl_c_in_nuts_ends_cleanly_and_says_what_is_kept(at, presses, tmp_path):
    table, out = write_csv(tmp_path / "table.csv", linear_rows(30)), tmp_path / "out"
    words = ["-W", "error", "-c", STOPPED, at, "compare", str(table), "--widths", "3", "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *words], **pipes) as process:
        assert process.stdout.readline() == "here\n"
        for _ in range(presses):
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    kept = f"{out} keeps config.json, the same command begins again"
    assert (process.returncode, errors) == (130, f"zoo: interrupted before a result was finished: {kept}\n")
    assert files(out) == {"config.json"}


@pytest.mark.slow
def test_comparison_that_is_stopped_goes_on_from_the_finished_guides(tmp_path, monkeypatch):
    """In this process; others end one from outside."""
    fit = zoo.commands.compare.fit_guide

    def stop(comparison, name, *args):
        if name == "spike-slab":
            raise KeyboardInterrupt
        return fit(comparison, name, *args)

    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    command = ["compare", table, "--reference", "none", "--widths", 2, "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr(zoo.commands.compare, "fit_guide", stop)
        result = run_zoo(*command)
    assert (result.exit_code, result.stdout) == (130, "")
    out = tmp_path / "out"
    kept = f"{out} keeps mean-field.nc, and the same command goes on from there"
    assert result.stderr == f"zoo: interrupted; {kept}\n"
    assert_resumed(command, tmp_path / "out")


def assert_resumed(command: list, out: Path) -> None:
    """The first guide is finished and alone; the same call fits the second one and no other."""
    assert files(out) == {"config.json", "mean-field.nc"}
    before = (out / "mean-field.nc").stat().st_mtime_ns
    assert run_zoo(*command).exit_code == 0
    assert (out / "mean-field.nc").stat().st_mtime_ns == before
    assert list(table_of(out)) == ["mean-field", "spike-slab"]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (["a.nc", "b.nc"], "interrupted; {} keeps a.nc, b.nc, and the same command goes on from there"),
        ([], "interrupted before a result was finished: {} keeps config.json, the same command begins again"),
    ],
)
def test_who_stops_a_comparison_is_told_what_is_kept(kept, words, tmp_path):
    """Half a file is nothing that is kept."""
    for name in (*kept, ".c.nc.0a1b2c3d.half.nc", "config.json"):
        (tmp_path / name).touch()
    with pytest.raises(Interrupted) as told, _telling_what_is_kept(tmp_path):
        raise KeyboardInterrupt
    assert str(told.value) == words.format(tmp_path)


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        *[({}, False), ({"steps": 3, "draws": 9}, False), ({"steps": 9}, False)],
        *[({"steps": 3}, True), ({"steps": 3, "warmup": 3}, True), ({"draws": 3}, True)],
    ],
)
def test_only_a_smaller_budget_is_started_again(changed, again, tmp_path):
    """No part of it larger; what the smaller one has left goes, its reference where that becomes longer."""
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    words = {"model": "bnn", "guides": ["map"], "reference": "none", "options": {}, "seed": 0}
    asked = plan("t", problem, budget="quick", **words)
    asked = replace(asked, budget=Budget(steps=6, draws=6, warmup=6, mcmc_draws=6))
    there, told, out = replace(asked, budget=replace(asked.budget, **changed)), [], tmp_path / "out"
    with output_folder(out, there.config()):
        for name in ("map.nc", "reference.nc", "scoreboard.csv", "letter.txt"):
            (out / name).touch()
    _start_again(asked, out, told.append)
    gone = {"map.nc", "scoreboard.csv"} if again else set()
    gone |= {"reference.nc"} if changed.keys() & {"warmup", "draws"} and again else set()
    kept = {"config.json", "letter.txt", "map.nc", "reference.nc", "scoreboard.csv"} - gone
    assert files(out) == kept
    why = "the learning rate falls to zero over all steps, so that one of 6"
    if "steps" not in changed:
        why = "its draws cannot be continued, so that this one"
    assert told == again * [f"{out} held a comparison of {there.budget.steps} steps; {why} starts again"]


def test_a_kept_law_is_used_only_with_the_state_that_belongs_to_it(tmp_path, monkeypatch):
    path, state, told = tmp_path / "vip.nc", tmp_path / "vip.safetensors", []
    posterior = Posterior(None, {}, {"state": hashlib.sha256(b"whole").hexdigest()})
    monkeypatch.setattr(zoo.commands.compare, "load_kept", lambda path, model: posterior)

    def load(path, model):
        if told:
            raise ValueError(*told)
        return SimpleNamespace(model="functions", closed_form="law")

    guide = SimpleNamespace(method=SimpleNamespace(load=load))
    assert _load(path, guide, None) is None
    state.write_bytes(b"altered")
    assert _load(path, guide, None) is None
    state.write_bytes(b"whole")
    found, law = _load(path, guide, None)
    assert (found.model, law) == ("functions", "law")
    told.append("no such key")
    with pytest.raises(
        UserError, match="vip.safetensors is of another version of the code: delete it .no such"
    ):
        _load(path, guide, None)


def test_draws_are_as_many_as_there_are_and_as_memory_holds(monkeypatch):
    """Seven members of an ensemble are seven draws; a large network gets fewer, but not fewer than 50."""
    fitted = Fitted(
        NETWORK,
        lambda n, seed: {"w": torch.full((n, 10), float(seed))},
        20,
        1.5,
        "",
        inclusion={"w": torch.tensor([0.5, 0.6, 0.1, 0.0])},
        bound_change=Estimate(3.0, 0.5),
    )
    found = _posterior(fitted, None, 100, 4)
    assert (len(found), found.draws()["w"].unique().tolist()) == (100, [4.0])
    assert found.info["figures"] == {
        "num_parameters": 20, "fit_seconds": 1.5, "bound_change": (3.0, 0.5),
        "density_mean": pytest.approx(0.3), "density_half": 0.25,
    }  # fmt: skip
    assert len(_posterior(replace(fitted, most_draws=7), None, 100, 4)) == 7
    monkeypatch.setattr(zoo.commands.compare, "MOST_NUMBERS", 600)
    assert len(_posterior(fitted, None, 100, 4)) == 60
    monkeypatch.setattr(zoo.commands.compare, "MOST_NUMBERS", 60)
    assert len(_posterior(fitted, None, 100, 4)) == 50


@pytest.mark.slow
def test_other_seed_other_figures(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    found = []
    for seed, name in ((1, "a"), (2, "b")):
        options = ["--reference", "none", "--guides", "mean-field", "--widths", 2, "--seed", seed]
        run_zoo("compare", table, *options, "--out", tmp_path / name)
        row = table_of(tmp_path / name)["mean-field"]
        row.pop("fit_seconds")
        found.append(row)
    assert found[0]["elbo"] != found[1]["elbo"]
