"""Fits on a GPU: what can be seen without one, and with one that they answer on the CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from guides import AutoMeanField, AutoSpikeSlab
from tests.pretended_gpu import pretended_gpu
from tests.zoo.cli_helpers import linear_rows, run_zoo, write_csv
from zoo.budgets import BUDGETS
from zoo.commands.compare import fit_guide
from zoo.commands.leaderboard import plan
from zoo.errors import UserError
from zoo.fitting.devices import check_device, device_of, moved
from zoo.fitting.methods import FitFile, Variational, Watch
from zoo.fitting.svi import FitSettings
from zoo.models import create

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.tensor(linear_rows(40))
    return table[:, :2], table[:, 2] / table[:, 2].std()


@pytest.fixture
def pretended(monkeypatch) -> Iterator[list[torch.Tensor]]:
    """What was sent to a GPU that is pretended."""
    for module in ("commands.comparison", "commands.calibration", "fitting.devices"):
        monkeypatch.setattr(f"zoo.{module}.check_device", lambda name: None)
    with pretended_gpu() as sent:
        yield sent


@without_gpu
@pytest.mark.parametrize(
    "command",
    [
        ("fit", "diabetes"),
        ("compare", "diabetes"),
        ("leaderboard", "--datasets", "diabetes"),
        ("calibrate",),
        ("reproduce", "lbbnn/mnist"),
        ("predict", "nothing", "--input", "nothing"),
    ],
    ids=lambda command: command[0],
)
def test_a_gpu_that_is_not_there_is_refused_in_a_line(command, tmp_path):
    told = run_zoo(*command, "--device", "cuda", "--out", tmp_path / "out")
    assert told.exit_code == 2
    assert told.stderr == (
        "zoo: --device cuda: this machine has no such device (torch finds no GPU); leave it out for the CPU\n"
    )
    assert not (tmp_path / "out").exists()


def test_devices_and_guides_that_make_no_sense(tmp_path):
    for name in ("tpu", "cuda:", "cuda:-1", "cpu:0"):
        with pytest.raises(UserError, match="takes cpu, cuda or cuda:N"):
            check_device(name)
    check_device("cpu")
    with pytest.raises(UserError, match="cuda:99: this machine has no such device"):
        check_device("cuda:99")
    told = run_zoo("fit", "diabetes", "--guide", "pbp", "--device", "cuda", "--out", tmp_path / "out")
    assert "--device cuda does not apply to guide 'pbp': it is fitted on the CPU" in told.stderr
    table = write_csv(tmp_path / "table.csv", linear_rows(12))
    told = run_zoo("fit", table, "--model", "maf", "--device", "cuda", "--out", tmp_path / "out")
    assert (told.exit_code, "--device does not apply to model 'maf'" in told.stderr) == (2, True)


def test_devices_of_experiments(tmp_path):
    told = run_zoo("reproduce", "example/dice", "--device", "cuda", "--out", tmp_path / "out")
    assert (told.exit_code, "--device does not apply to example/dice" in told.stderr) == (2, True)
    both = ("--device", "cpu", "--set", "device=cpu")
    told = run_zoo("reproduce", "lbbnn/mnist", *both, "--out", tmp_path / "out")
    assert (told.exit_code, "are one option" in told.stderr) == (2, True)
    told = run_zoo("reproduce", "lbbnn/mnist", "--device", "tpu", "--out", tmp_path / "out")
    assert (told.exit_code, "takes cpu, cuda or cuda:N" in told.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


@without_gpu
@pytest.mark.slow
def test_predictions_on_a_device_are_of_the_same_networks(tmp_path, pretended):
    table, fit = write_csv(tmp_path / "table.csv", linear_rows(12)), tmp_path / "fit"
    assert run_zoo("fit", table, "--steps", 5, "--widths", 3, "--out", fit).exit_code == 0
    predict = ("predict", fit, "--input", table, "--draws", 7, "--out")
    assert run_zoo(*predict, tmp_path / "here.csv").exit_code == 0
    assert not pretended
    assert run_zoo(*predict, tmp_path / "there.csv", "--device", "cuda").exit_code == 0
    assert {len(value) for value in pretended} == {7, 12}  # draws, and rows
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()
    assert run_zoo("fit", table, "--guide", "pbp", "--out", tmp_path / "pbp").exit_code == 0
    told = run_zoo("predict", tmp_path / "pbp", *predict[2:], tmp_path / "p.csv", "--device", "cuda")
    assert (told.exit_code, "guide 'pbp': it predicts on the CPU" in told.stderr) == (2, True)


@without_gpu
@pytest.mark.slow
def test_calibration_and_leaderboard_fit_on_a_device(tmp_path, pretended):
    small = ("--simulations", 1, "--rows", 5, "--steps", 3, "--widths", 0, "--noise", 1, "--device", "cuda")
    told = run_zoo("calibrate", "--guide", "mean-field,exact", *small, "--out", tmp_path / "calibration")
    assert told.exit_code == 0, told.output
    assert [value.shape for value in pretended] == [(5, 2), (5,)]  # of the guide alone
    assert json.loads((tmp_path / "calibration" / "config.json").read_text())["device"] == "cuda"
    pretended.clear()
    asked = plan(["diabetes"], ["mean-field"], device="cuda")
    assert asked.config()["device"] == "cuda"
    assert "--device cuda" in asked.command("out")
    short = replace(asked.cells[0].comparison, budget=replace(BUDGETS["quick"], steps=3, draws=30))
    fit_guide(short, "mean-field", tmp_path)
    assert len(pretended) == 2
    assert "device" not in plan(["diabetes"], ["mean-field"]).config()


def test_lists_stay_where_they_are():
    x, graphs = torch.zeros(2), ["a graph"]
    assert moved((graphs, x), "cpu") == (graphs, x)
    assert device_of((graphs,)) == device_of((graphs, x)) == torch.device("cpu")


@pytest.mark.parametrize(
    ("build", "name"), [(AutoMeanField, "pbp-bnn"), (AutoSpikeSlab, "spike-slab-bnn")], ids=["mean", "slab"]
)
def test_a_guide_that_comes_back_gives_the_same_draws(build, name):
    model, method = create(name, in_features=2, widths=(3,)), Variational(build)
    guide = build(model)
    guide.setup(*rows())
    torch.nn.init.normal_(guide.loc)
    copy = method.on_cpu(guide, model, rows())
    ours, theirs = copy.draws(5, seed=1), guide.draws(5, seed=1)
    assert all(torch.equal(ours[site], theirs[site]) for site in theirs)
    assert not set(map(id, copy.parameters())) & set(map(id, guide.parameters()))


@needs_gpu
def test_a_fit_on_a_gpu_goes_on_where_it_was_and_answers_on_the_cpu(tmp_path, monkeypatch):
    model, method, data = create("bnn", 2, widths=(3,)), Variational(AutoMeanField), moved(rows(), "cuda")
    settings = FitSettings(steps=60, lr=0.05)
    whole = method.fit(model, data, settings)
    monkeypatch.setattr("zoo.fitting.svi.SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    seen = []

    def interrupt(task):
        seen.append(task)
        if len(seen) == 30:
            raise KeyboardInterrupt

    bar = SimpleNamespace(add_task=lambda label, total, completed: 0, advance=interrupt)
    file = FitFile(tmp_path / "fit.safetensors")
    with pytest.raises(KeyboardInterrupt):
        method.fit(model, data, settings, file=file, watch=Watch(bar))
    resumed = method.fit(model, data, settings, file=file)
    assert list(resumed.losses) == pytest.approx(list(whole.losses), rel=1e-4)
    draws = resumed.draws(5, 1)
    assert {value.device.type for value in draws.values()} == {"cpu"}
    assert resumed.predictor(20, 0)(rows()[0]).mean.isfinite().all()
    state = torch.cuda.get_rng_state()
    assert math.isfinite(whole.elbo(20)[0])
    assert torch.equal(state, torch.cuda.get_rng_state())
    read = method.load(file.path, model)
    assert all(torch.equal(read.draws(5, 1)[site], draws[site]) for site in draws)


@needs_gpu
def test_a_fit_of_the_command_line_on_a_gpu_is_read_on_the_cpu(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(60))
    options = ("--steps", 500, "--widths", 5, "--device", "cuda", "--out", tmp_path / "fit")
    told = run_zoo("fit", table, *options)
    assert told.exit_code == 0, told.output
    assert json.loads((tmp_path / "fit" / "config.json").read_text())["device"] == "cuda"
    predict = ("predict", tmp_path / "fit", "--input", table, "--out")
    assert run_zoo(*predict, tmp_path / "p.csv").exit_code == 0
    assert pd.read_csv(tmp_path / "p.csv")["mean"].corr(pd.Series([row[2] for row in linear_rows(60)])) > 0.9
    assert run_zoo(*predict, tmp_path / "there.csv", "--device", "cuda").exit_code == 0
    here, there = (pd.read_csv(tmp_path / name) for name in ("p.csv", "there.csv"))
    pd.testing.assert_frame_equal(here, there, rtol=1e-4)
