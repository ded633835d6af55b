"""``zoo fit --model maf``: a table without a target is fitted, scored and drawn from."""

from __future__ import annotations

import csv
import json
import re
import shutil

import numpy as np
import pytest
import torch

from data_loaders import DensityData
from tests.zoo.cli_helpers import refused, run_zoo
from zoo.commands.density import _scores, _words, doubts
from zoo.files.output import sole_folder


def write(path, x, names="a,b,c"):
    lines = [names, *(",".join(f"{value:.6g}" for value in row) for row in x)]
    path.write_text("\n".join(lines) + "\n")
    return path


def cloud(rows=120, seed=0):
    """Far from standardised."""
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return x @ np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 0.5], [0.0, 0.0, 0.1]]) + [100, -5, 0]


def read(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("density")
    table = write(folder / "table.csv", cloud())
    result = run_zoo("fit", table, "--model", "maf", "--steps", 60, "--lr", 0.01, "--out", folder / "fit")
    assert result.exit_code == 0, result.stderr
    return folder, table, result.stdout


def test_a_fit_says_what_it_found(fitted):
    folder, _, words = fitted
    assert "96 rows fitted, 12 to stop by, 12 held out: mean log density" in words
    assert {path.name for path in (folder / "fit").iterdir()} == {
        "config.json", "fit.safetensors", "fit.json", "losses.csv", "loss.png",
    }  # fmt: skip


def test_a_fit_keeps_its_units_and_weighs_the_base_as_a_tenth_of_the_rows(fitted):
    config = json.loads((fitted[0] / "fit" / "config.json").read_text())
    rows = cloud()[np.random.RandomState(0).permutation(120)[:96]]
    assert config["concentration"] == pytest.approx(9.6)
    assert config["standardisation"]["x_mean"] == pytest.approx(rows.mean(0).tolist(), rel=1e-4)
    assert config["standardisation"]["x_sd"] == pytest.approx(rows.std(0).tolist(), rel=1e-4)


def test_scores_are_of_the_mixture_of_the_draws():
    """Three draws of two rows."""
    of_draws = torch.tensor([[0.0, -1.0], [1.0, -1.0], [3.0, -1.0]], dtype=torch.float64)
    found = _scores(of_draws)
    assert found["log_density"].tolist() == pytest.approx([np.log((1 + np.e + np.e**3) / 3), -1])
    assert found["q50"].tolist() == [1, -1]
    assert found["q5"].tolist() == pytest.approx([0.1, -1])
    assert found["q95"].tolist() == pytest.approx([2.8, -1])


def test_words_of_the_figures_name_rows_of_next_to_no_density():
    figures = {"mixture": -1.0, "log_likelihood": -2.0, "points_se": 0.25, "median": -0.5, "below_100": 0.0}
    words = (
        "mean log density -1.000 by the mixture of the draws, -2.000 ± 0.250 by one of them, median -0.500"
    )
    assert _words(figures) == words
    assert _words({**figures, "below_100": 0.125}) == f"{words}, 12.5 % below -100"


def test_a_fit_that_has_not_settled_says_so(fitted, tmp_path):
    _, table, words = fitted
    assert "is kept, their score was still rising: more --steps; saved in" in words
    settled = run_zoo("fit", table, "--model", "maf", "--steps", 60, "--lr", 0.5, "--out", tmp_path / "fit")
    assert " is kept; saved in" in settled.stdout


def test_a_single_row_held_out_has_no_standard_error(tmp_path):
    table = write(tmp_path / "table.csv", cloud(15))
    result = run_zoo("fit", table, "--model", "maf", "--steps", 2, "--out", tmp_path / "fit")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"1 held out: .*the draws, -?\d+\.\d+ by one of them, median", result.stdout)


def test_scores_are_log_densities_in_the_tables_units(fitted):
    folder, table, words = fitted
    out = folder / "scores.csv"
    assert run_zoo("predict", folder / "fit", "--input", table, "--out", out).exit_code == 0
    found = read(out)
    assert list(found) == ["log_density", "q5", "q50", "q95"]
    x = cloud()
    z = np.linalg.solve(np.cov(x.T), (x - x.mean(0)).T)
    gaussian = -0.5 * ((x - x.mean(0)) * z.T).sum(1) - 0.5 * np.linalg.slogdet(2 * np.pi * np.cov(x.T))[1]
    assert abs(found["log_density"].mean() - gaussian.mean()) < 1.0
    assert np.corrcoef(found["log_density"], gaussian)[0, 1] > 0.7
    assert (found["q5"] <= found["q95"]).all()
    held_out = np.random.RandomState(0).permutation(120)[-12:]  # what the fit has printed of these
    printed = float(re.search(r"mean log density (-?[\d.]+)", words)[1])
    assert found["log_density"][held_out].mean() == pytest.approx(printed, abs=1e-3)


def test_samples_are_in_the_tables_units(fitted):
    folder, *_ = fitted
    run_zoo("sample", folder / "fit", "--rows", 50, "--seed", 3, "--out", folder / "few.csv")
    drawn, x = np.column_stack(list(read(folder / "few.csv").values())), cloud()
    assert drawn.shape == (50, 3)
    run_zoo("sample", folder / "fit", "--rows", 50, "--seed", 4, "--out", folder / "others.csv")
    assert (folder / "few.csv").read_bytes() != (folder / "others.csv").read_bytes()
    assert (abs(drawn.mean(0) - x.mean(0)) < 2 * x.std(0)).all()
    assert (abs(np.log(drawn.std(0) / x.std(0))) < 1).all()


@pytest.mark.slow
def test_samples_look_like_the_table(fitted):
    folder, _, _ = fitted
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        run_zoo("sample", folder / "fit", "--rows", 400, "--seed", seed, "--out", folder / f"{name}.csv")
    assert (folder / "one.csv").read_bytes() == (folder / "same.csv").read_bytes()
    assert (folder / "one.csv").read_bytes() != (folder / "other.csv").read_bytes()
    drawn, x = np.column_stack(list(read(folder / "one.csv").values())), cloud()
    assert drawn.shape == (400, 3)
    assert (abs(drawn.mean(0) - x.mean(0)) < x.std(0)).all()


def test_the_same_call_again_goes_on_with_what_is_there(fitted):
    folder, table, words = fitted
    before = (folder / "fit" / "fit.safetensors").stat().st_mtime_ns
    again = run_zoo("fit", table, "--model", "maf", "--steps", 60, "--lr", 0.01, "--out", folder / "fit")
    assert again.stdout == words
    assert (folder / "fit" / "fit.safetensors").stat().st_mtime_ns == before


def test_more_steps_start_again_in_the_same_folder(tmp_path):
    table = write(tmp_path / "table.csv", cloud())

    def fit(out, steps):
        return run_zoo("fit", table, "--model", "maf", "--steps", steps, "--out", tmp_path / out)

    assert fit("long", 2).exit_code == 0
    told = fit("long", 3)
    assert (told.exit_code, told.stderr) == (
        0,
        f"zoo: {tmp_path / 'long'} held a fit of 2 steps; it cannot be continued, so that one of 3 starts "
        "again\n",
    )
    assert fit("fresh", 3).stderr == ""
    for name in ("losses.csv", "config.json"):
        assert (tmp_path / "long" / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    assert "settings steps is 3 there, 2 here" in fit("long", 2).stderr


def test_ctrl_c_says_that_nothing_is_kept_and_a_call_at_work_is_not_disturbed(tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    command = ("fit", write(tmp_path / "table.csv", cloud()), "--model", "maf", "--out", tmp_path / "fit")
    monkeypatch.setattr("zoo.commands.density.shared_bootstrap", stopped)
    told = run_zoo(*command)
    assert told.exit_code == 130
    assert told.stderr == "zoo: interrupted; nothing is kept yet: the same command starts again\n"
    with sole_folder(tmp_path / "fit"):
        told = run_zoo(*command)
    assert (told.exit_code, "another call is at work in" in told.stderr) == (2, True)


def test_columns_without_a_density_are_named():
    x = cloud(400)
    names = ("a", "b", "c")
    assert doubts(DensityData("t", x, x, x, names)) == []
    flags = np.column_stack([x, x[:, 0] > 100])
    assert doubts(DensityData("t", flags, flags, flags, (*names, "flag"))) == [
        "column 'flag' has 2 different values and no density: leave it out"
    ]
    twice = np.column_stack([x, 3 - 2 * x[:, 0] + x[:, 1]])
    (said,) = doubts(DensityData("t", twice, twice, twice, (*names, "sum")))
    assert "linear combination of others" in said
    rain = np.column_stack([x, np.where(np.arange(400) % 4, 0.0, x[:, 2])])
    assert doubts(DensityData("t", rain, rain, rain, (*names, "rain"))) == [
        "column 'rain' is 0 in 300 of 400 rows and has no density there"
    ]
    few = np.random.default_rng(0).normal(size=(8, 8))  # rows, which alone make columns depend on others
    assert doubts(DensityData("t", few, few, few, tuple("abcdefgh"))) == []
    months = np.column_stack([x, np.arange(400) % 60])  # as many as a real column may have
    assert doubts(DensityData("t", months, months, months, (*names, "month"))) == []


def test_a_fit_says_what_has_no_density(tmp_path):
    x = cloud(100)
    table = write(tmp_path / "t.csv", np.column_stack([x[:, :2], x[:, 2] > 0]))
    told = run_zoo("fit", table, "--model", "maf", "--steps", 2, "--out", tmp_path / "fit")
    assert told.exit_code == 0
    assert "\nnote: column 'c' has 2 different values and no density: leave it out" in told.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--guide", "map"], "--guide does not apply to model 'maf', a density"),
        (["--target", "a"], "--target does not apply"),
        (["--widths", "20"], "--widths does not apply"),
        (["--concentration", "-1"], "--concentration must be a number of rows, zero or more, not -1"),
        (["--concentration", "nan"], "--concentration must be a number of rows"),
        (["--concentration", "inf"], "--concentration must be a number of rows"),
        (["--lr", "0"], "--lr must be a positive number"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--split", "-1"], "--split must lie between 0 and 2^32 - 1, not -1"),
    ],
)
def test_options_that_cannot_be(options, words, tmp_path):
    table = write(tmp_path / "t.csv", cloud(20))
    assert words in refused("fit", table, "--model", "maf", "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[:1], "has 1 data rows; a density needs at least 10"),
        (lambda x: x * [1, 0, 1], "column 'b' is constant"),
        (lambda x: x * [1, 1e200, 1], "column 'b' holds numbers too large to be squared"),
        (lambda x: np.where(np.arange(20)[:, None] == 3, np.nan, x), "column 'a', row 4: missing value"),
    ],
)
def test_tables_that_cannot_be(change, words, tmp_path):
    table = write(tmp_path / "t.csv", change(cloud(20)))
    assert words in refused("fit", table, "--model", "maf", "--out", tmp_path / "out")


@pytest.mark.parametrize("change", [{"x_mean": [0, 0, 0], "x_sd": [100, 100, 100]}, None])
def test_units_that_were_altered_are_refused(change, fitted, tmp_path):
    folder, table, _ = fitted
    shutil.copytree(folder / "fit", tmp_path / "fit")
    config = json.loads((tmp_path / "fit" / "config.json").read_text())
    (tmp_path / "fit" / "config.json").write_text(json.dumps({**config, "standardisation": change}))
    assert "was altered: it lacks 'standardisation', or differs there" in refused(
        "predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "scores.csv"
    )


def test_what_is_no_density_says_so(fitted, tmp_path):
    folder, table, _ = fitted
    one = write(tmp_path / "one.csv", cloud(20)[:, :1], "a")
    for command, words in (
        (["fit", one, "--model", "maf", "--out", tmp_path / "o"], "has one column"),
        (["fit", "sach", "--model", "maf", "--out", tmp_path / "o"], "neither a CSV file nor one of"),
        (["fit", table, "--model", "mafs", "--out", tmp_path / "o"], "unknown model 'mafs'; nearest: maf"),
        (["fit", "diabetes", "--concentration", "3", "--out", tmp_path / "o"], "is for densities: maf"),
        (["compare", "boston", "--model", "maf", "--out", tmp_path / "o"], "is a density of tables"),
        (["sample", tmp_path, "--out", tmp_path / "x.csv"], "holds no config.json"),
        (["predict", folder / "fit", "--input", one, "--out", tmp_path / "p.csv"], "missing columns: b, c"),
        (["predict", folder / "fit", "--input", table, "--out", table / "p.csv"], "cannot write to"),
        (["sample", folder / "fit", "--rows", "2", "--out", table / "new.csv"], "cannot write to"),
        (
            ["fit", table, "--model", "maf", "--guide", "mean-field", "--out", tmp_path / "o"],
            "does not apply",
        ),
    ):
        assert words in refused(*command)


@pytest.mark.parametrize("changed", [lambda data: b"half of it", lambda data: data[:-4] + b"\0\0\0\0"])
def test_a_damaged_file_is_named(changed, fitted, tmp_path):
    """That is no density any more, or one of another number."""
    folder, table, _ = fitted
    shutil.copytree(folder / "fit", tmp_path / "fit")
    file = tmp_path / "fit" / "fit.safetensors"
    file.write_bytes(changed(file.read_bytes()))
    for command in (
        ["predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv"],
        ["fit", table, "--model", "maf", "--steps", 60, "--lr", 0.01, "--out", tmp_path / "fit"],
    ):
        assert "it was altered: delete it and fit.json, and fit again" in refused(*command)


@pytest.mark.parametrize("name", ["fit.safetensors", "fit.json"])
def test_scores_and_samples_do_not_replace_the_fit(name, fitted):
    folder, table, _ = fitted
    path = folder / "fit" / name
    before = path.read_bytes()
    for call in (["predict", folder / "fit", "--input", table], ["sample", folder / "fit"]):
        assert "is part of the fit in" in refused(*call, "--out", path)
    assert path.read_bytes() == before


def test_scores_and_samples_do_not_replace_tables(fitted, tmp_path):
    folder, table, _ = fitted
    notes = tmp_path / "notes.csv"
    notes.write_text("my,notes\n1,2\n")
    new, before = write(tmp_path / "new.csv", cloud(5)), table.read_bytes()
    for call in (["predict", folder / "fit", "--input", new], ["sample", folder / "fit"]):
        for out in (table, notes):
            refused(*call, "--out", out)
    assert (table.read_bytes(), notes.read_text()) == (before, "my,notes\n1,2\n")
    for _ in range(2):  # written, and replaced
        assert run_zoo("sample", folder / "fit", "--rows", 2, "--out", tmp_path / "s.csv").exit_code == 0


def test_half_a_fit_is_no_fit(fitted, tmp_path):
    """One that was killed before it was sealed is fitted again."""
    folder, table, _ = fitted
    shutil.copytree(folder / "fit", tmp_path / "fit")
    (tmp_path / "fit" / "fit.json").unlink()
    (tmp_path / "fit" / "fit.safetensors").write_bytes(b"another")
    assert "is not finished: call zoo fit again" in refused(
        "predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv"
    )
    run_zoo("fit", table, "--model", "maf", "--steps", 60, "--lr", 0.01, "--out", tmp_path / "fit")
    whole = (folder / "fit" / "fit.safetensors").read_bytes()
    assert (tmp_path / "fit" / "fit.safetensors").read_bytes() == whole


def test_densities_are_listed_and_shown():
    assert "maf" in run_zoo("list", "--paper", "npl").stdout
    shown = run_zoo("show", "maf").stdout
    assert "masked autoregressive flow" in shown
    assert "zoo fit table.csv --model maf" in shown
    assert "11 columns, no target" in " ".join(run_zoo("show", "sachs").stdout.split())


def test_a_held_out_number_far_outside_is_refused(tmp_path):
    x = cloud()
    x[np.random.RandomState(0).permutation(len(x))[-20], 1] = 1e25  # of those that stop the training
    result = run_zoo("fit", write(tmp_path / "t.csv", x), "--model", "maf", "--out", tmp_path / "fit")
    assert result.exit_code != 0
    assert "held out is far outside" in result.stderr
