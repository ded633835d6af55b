"""``zoo predict``: original units, the numbers of a closed form, identical in another process."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import zoo.cli.progress
import zoo.commands.predict
from data_loaders import load_csv
from guides.truth.spike_slab_linear import enumerate_spike_slab
from tests.zoo.cli_helpers import fresh_process, linear_rows, make_tiny, run_zoo, write_csv
from zoo.commands.predict import held_out, load_fit, predict
from zoo.errors import UserError
from zoo.fitting.problem import load_problem, prepare
from zoo.seeds import stable_seed

OPTIONS = ["--model", "spike-slab-linear", "--guide", "spike-slab", "--steps", 600, "--lr", 0.05]


def read(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, np.array(rows, dtype=float).T, strict=True))


def scaled_rows(count: int = 200) -> list[list[float]]:
    """``y = 5000 + 300 a - 600 b`` on features with odd means and scales."""
    rows = np.array(linear_rows(count, 0.01))
    return np.column_stack([rows[:, 0] * 40 + 1e3, rows[:, 1] * 0.01 - 5, rows[:, 2] * 300 + 5000]).tolist()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The spike-and-slab linear model, fitted to a nearly noiseless line, and predictions of its own rows."""
    folder = tmp_path_factory.mktemp("predict")
    table = write_csv(folder / "table.csv", scaled_rows())
    assert run_zoo("fit", table, *OPTIONS, "--out", folder / "fit").exit_code == 0
    result = run_zoo("predict", folder / "fit", "--input", table, "--out", folder / "p.csv")
    assert result.exit_code == 0
    assert "200 rows predicted" in result.stdout
    return folder


@pytest.mark.slow
def test_predictions_are_those_of_the_closed_form_in_original_units(fitted):
    found = read(fitted / "p.csv")
    assert list(found) == ["mean", "sd", "q5", "q50", "q95"]
    data = np.array(scaled_rows())
    problem = load_problem(str(fitted / "table.csv"))
    exact = enumerate_spike_slab(problem.x.double().numpy(), problem.y.double().numpy())
    mean, sd = exact.function_moments(problem.scale.transform_x(data[:, :2]))
    noise = 1 / exact.noise_precision_mean
    expected_sd = problem.scale.y_sd * np.sqrt(sd**2 + noise)
    assert np.abs(found["mean"] - problem.scale.inverse_mean(mean)).max() < 0.1 * expected_sd.min()
    assert found["sd"] == pytest.approx(expected_sd, rel=0.1)
    # ... which is the line itself, on the scale of thousands
    assert np.abs(found["mean"] - data[:, 2]).max() < 0.02 * np.ptp(data[:, 2])


def test_quantiles_are_in_order_and_those_of_draws(fitted):
    found = read(fitted / "p.csv")
    assert (found["q5"] < found["q50"]).all()
    assert (found["q50"] < found["q95"]).all()
    guide, _ = load_fit(fitted / "fit")
    problem = load_problem(str(fitted / "table.csv"))
    x = torch.as_tensor(problem.scale.transform_x(np.array(scaled_rows())[:, :2])[:5]).float()
    draws = guide.draws(40_000, seed=1)
    noise = torch.randn(40_000, 5) * draws["noise_precision"].rsqrt()[:, None]
    y = problem.scale.inverse_mean((draws["w"] @ x.T + noise).double().numpy())
    for name, level in (("q5", 0.05), ("q50", 0.5), ("q95", 0.95)):
        share = (y < found[name][:5]).mean(0)  # 1000 draws of the parameters stand behind the file
        assert share == pytest.approx(np.full(5, level), abs=0.02)
    assert found["mean"][:5] == pytest.approx(y.mean(0), abs=0.05 * found["sd"].max())
    assert found["sd"][:5] == pytest.approx(y.std(0), rel=0.03)


@pytest.mark.slow
def test_fresh_process_predicts_identical_numbers(fitted):
    command = ["predict", fitted / "fit", "--input", fitted / "table.csv", "--out", fitted / "fresh.csv"]
    result = fresh_process("from zoo.cli.main import main; main()", *command)
    assert (result.returncode, result.stderr) == (0, "")
    assert (fitted / "fresh.csv").read_bytes() == (fitted / "p.csv").read_bytes()


def test_seed_and_number_of_draws_matter(fitted, tmp_path):
    new = write_csv(tmp_path / "new.csv", [row[:2] for row in scaled_rows(5)], "a,b")
    files = []
    for name, options in (
        ("1", ["--seed", 1]),
        ("same", ["--seed", 1]),
        ("2", ["--seed", 2]),
        ("3", ["--draws", 50]),
    ):
        files.append(tmp_path / name)
        assert run_zoo("predict", fitted / "fit", "--input", new, "--out", files[-1], *options).exit_code == 0
    contents = [file.read_bytes() for file in files]
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3


def test_columns_in_any_order_and_a_target_that_is_ignored(fitted, tmp_path):
    rows = scaled_rows(5)
    write_csv(tmp_path / "a.csv", [row[:2] for row in rows], "a,b")
    write_csv(tmp_path / "b.csv", [[0, row[1], row[0]] for row in rows], "y,b,a")
    for name in ("a", "b"):
        command = ["--input", tmp_path / f"{name}.csv", "--out", tmp_path / f"{name}.out"]
        assert run_zoo("predict", fitted / "fit", *command).exit_code == 0
    assert (tmp_path / "a.out").read_bytes() == (tmp_path / "b.out").read_bytes()


def test_many_rows_are_predicted_piece_by_piece(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo.commands.predict, "ROWS", 70)
    command = ["--input", fitted / "table.csv", "--out", tmp_path / "p.csv"]
    assert run_zoo("predict", fitted / "fit", *command).exit_code == 0
    pieces, whole = read(tmp_path / "p.csv"), read(fitted / "p.csv")
    assert all(pieces[name] == pytest.approx(whole[name], rel=1e-6) for name in whole)


def test_a_log_tells_how_far_a_long_prediction_is(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo.commands.predict, "ROWS", 50)
    clock = itertools.count(0, 6)  # seconds; a part of the rows takes six
    monkeypatch.setattr(zoo.cli.progress.time, "monotonic", lambda: next(clock))
    command = ["--input", fitted / "table.csv", "--out", tmp_path / "p.csv"]
    result = run_zoo("predict", fitted / "fit", *command)
    assert result.stderr == "rows predicted: 100 of 200, about 12 s left\n"
    assert "200 rows predicted; written to" in result.stdout


def test_a_bar_shows_the_rows_on_a_terminal(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo.commands.predict, "ROWS", 70)
    told = []
    bar = SimpleNamespace(
        add_task=lambda label, total: told.append((label, total)),
        advance=lambda task, count: told.append(count),
    )
    predict(fitted / "fit", fitted / "table.csv", tmp_path / "p.csv", progress=bar)
    assert told == [("rows predicted", 200), 70, 70, 60]


def test_folder_and_table_can_move(fitted, tmp_path):
    """Paths are no part of what a fit is about."""
    (tmp_path / "table.csv").write_bytes((fitted / "table.csv").read_bytes())
    (tmp_path / "fit").mkdir()
    for file in (fitted / "fit").iterdir():
        (tmp_path / "fit" / file.name).write_bytes(file.read_bytes())
    assert run_zoo("fit", tmp_path / "table.csv", *OPTIONS, "--out", tmp_path / "fit").exit_code == 0
    command = ["--input", tmp_path / "table.csv", "--out", tmp_path / "p.csv"]
    assert run_zoo("predict", tmp_path / "fit", *command).exit_code == 0
    assert (tmp_path / "p.csv").read_bytes() == (fitted / "p.csv").read_bytes()


@pytest.mark.slow
def test_target_with_a_mean_far_above_its_sd_keeps_its_digits(tmp_path):
    """1e9 plus a number of the order 1: float32 alone would round to 64."""
    rows = [[*row[:2], row[2] + 1e9] for row in linear_rows(40)]
    table = write_csv(tmp_path / "table.csv", rows)
    run_zoo(
        "fit", table, "--steps", 400, "--lr", 0.05, "--model", "spike-slab-linear", "--out", tmp_path / "fit"
    )
    run_zoo("predict", tmp_path / "fit", "--input", table, "--draws", 200, "--out", tmp_path / "p.csv")
    found = read(tmp_path / "p.csv")
    assert np.abs(found["mean"] - np.array(rows)[:, 2]).max() < 2
    assert (found["q5"] < found["q50"]).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("task", "classes"), [("binary", 2), ("multiclass", 3)])
def test_classes_come_as_label_and_probabilities(task, classes, tmp_path):
    rows = [[a, b, int(y > 0) + int(task == "multiclass" and y > 1.5)] for a, b, y in linear_rows(80)]
    table = write_csv(tmp_path / "table.csv", rows)
    options = ["--task", task, "--widths", 4, "--steps", 80, "--lr", 0.05]
    assert run_zoo("fit", table, *options, "--out", tmp_path / "fit").exit_code == 0
    command = ["--input", table, "--draws", 200, "--out", tmp_path / "p.csv"]
    assert run_zoo("predict", tmp_path / "fit", *command).exit_code == 0
    found = read(tmp_path / "p.csv")
    assert list(found) == ["label", *(f"prob_{k}" for k in range(classes))]
    probabilities = np.stack([found[f"prob_{k}"] for k in range(classes)], 1)
    assert probabilities.sum(1) == pytest.approx(np.ones(80), abs=1e-6)
    assert (found["label"] == probabilities.argmax(1)).all()
    assert (found["label"] == np.array(rows)[:, 2]).mean() > 0.8


@pytest.mark.parametrize(
    "header",
    [
        '"a, the $first$ (€)","b ""q"" [bold]","price [$]"',
        pytest.param("x_{,$\\,{[/]}", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_odd_names_of_columns(header, tmp_path, monkeypatch):
    make_tiny(monkeypatch, pictures=True)
    table = write_csv(tmp_path / "odd [name] $_$.csv", linear_rows(20), header)
    out = tmp_path / "fit"
    assert run_zoo("fit", table, "--steps", 3, "--widths", 2, "--out", out).exit_code == 0
    command = ["--input", table, "--draws", 50, "--out", tmp_path / "p.csv"]
    assert run_zoo("predict", out, *command).exit_code == 0
    assert len(read(tmp_path / "p.csv")["mean"]) == 20
    result = run_zoo(
        "compare",
        table,
        "--reference",
        "none",
        "--guides",
        "mean-field",
        "--widths",
        2,
        "--out",
        tmp_path / "c",
    )
    assert result.exit_code == 0
    assert "odd [name] $_$" in result.stdout.replace("\n", "")


def test_target_names_the_column(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(20), "y,b,a")
    assert load_problem(str(table)).dataset.target_name == "a"
    problem = load_problem(str(table), target="y")
    assert problem.dataset.feature_names == ("b", "a")


def test_set_used_whole_is_compared_at_its_training_inputs(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(20))
    whole = prepare(load_csv(table, protocol="whole"))
    assert torch.equal(whole.evaluation_points, whole.x)
    split = load_problem(str(table))
    assert torch.equal(split.evaluation_points, split.x_test)


def test_what_is_held_out_is_scored_in_the_unit_of_the_target(tmp_path):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", scaled_rows(60))))
    by_mean = SimpleNamespace(predictor=lambda draws, seed: lambda x: Normal(torch.zeros(len(x)), 1.0))
    error = problem.scale.y_sd * problem.y_test.square().mean().sqrt().item()
    (shown,) = re.findall(r"RMSE (\S+) ±", held_out(problem, by_mean, seed=0))
    assert float(shown) == pytest.approx(error, rel=0.1)
    assert problem.scale.y_sd > 10


def test_rows_held_out_are_scored_by_the_draws_of_a_prediction(tmp_path):
    problem, asked = load_problem(str(write_csv(tmp_path / "table.csv", scaled_rows(60)))), []

    def predictor(draws, seed):
        asked.append((draws, seed))
        raise ValueError("not finite")

    told = held_out(problem, SimpleNamespace(predictor=predictor), seed=4)
    assert asked == [(zoo.commands.predict.DRAWS, stable_seed("draws", 4))]
    assert told == "54 rows fitted, 6 held out: cannot be scored (not finite)"


def test_a_number_far_outside_is_named_by_its_row(fitted, tmp_path):
    rows = [row[:2] for row in scaled_rows(5)]
    rows[3][1] = -1e30
    table = write_csv(tmp_path / "new.csv", rows, "a,b")
    result = run_zoo("predict", fitted / "fit", "--input", table, "--out", tmp_path / "p.csv")
    assert result.exit_code == 2
    assert f"{table}: column 'b', row 4: far outside the training data" in result.stderr.replace("\n", "")
    assert not (tmp_path / "p.csv").exists()


def test_results_that_are_no_fit_are_named(tmp_path):
    (tmp_path / "config.json").write_text('{"command": "compare"}')
    with pytest.raises(UserError, match="holds no fit but the output of zoo compare: give the --out of zoo"):
        load_fit(tmp_path)


def test_fingerprint_tells_data_apart(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(20))
    first = load_problem(str(table)).fingerprint()
    assert load_problem(str(table)).fingerprint() == first
    assert load_problem(str(table), split=1).fingerprint() != first
    write_csv(table, linear_rows(20, noise=0.11))
    assert load_problem(str(table)).fingerprint() != first
