"""The scoreboard: columns, round trip, rounding, files that are whole or refused."""

from __future__ import annotations

import csv
import io
import math

import pytest
import torch
from rich.console import Console
from torch.distributions import Normal

from tests.zoo.scoreboards import read_scoreboard
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.metrics import predictive_figures
from zoo.evaluation.scoreboard import (
    COLUMNS,
    LEGEND,
    Row,
    format_figure,
    markdown,
    rich_table,
    write_scoreboard,
)

PROMISED = (
    "method,model,status,note,rmse,rmse_se,log_likelihood,log_likelihood_se,crps,crps_se,coverage_90,accuracy,ece,"
    "ref_log_likelihood,ref_mean_error,ref_sd_ratio,ref_w1,ref_pip_rmse,elbo,bound_change,pareto_k,density_mean,density_half,num_parameters,fit_seconds"
)


@pytest.fixture
def rows() -> list[Row]:
    figures = predictive_figures(
        Normal(torch.zeros(9), torch.ones(9)), torch.linspace(-2, 3, 9), "regression", 9.2
    )
    more = {"ref_w1": Estimate(1 / 3, 0.01, 0.07), "elbo": Estimate(-1e5 / 7, 3.3), "pareto_k": math.inf}
    return [
        Row.from_figures("nuts", "bnn", {**figures, "num_parameters": 7, "fit_seconds": 3.25}),
        Row.from_figures("mean-field", "bnn", {**figures, **more}, note='says "a, b"\nand | more [x]'),
        Row("flow", "bnn", "failed: NaN at step 3, site w1"),
    ]


def test_columns_are_the_promised_ones():
    assert ",".join(COLUMNS) == PROMISED
    assert {name for name in COLUMNS if not name.endswith("_se")} == {
        "method",
        "model",
        "status",
        "note",
        *LEGEND,
    }


def test_round_trip(rows, tmp_path):
    write_scoreboard(rows, tmp_path / "new")
    assert read_scoreboard(tmp_path / "new") == rows
    with (tmp_path / "new" / "scoreboard.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert ",".join(lines[0]) == PROMISED
    assert lines[0]["elbo"] == "" == lines[2]["rmse"]
    assert float(lines[1]["ref_w1"]) == 1 / 3
    assert lines[0]["num_parameters"] == "7"
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "scoreboard.csv", "scoreboard.md", "standard_errors.csv",
    ]  # fmt: skip


def test_every_figure_has_its_error_in_one_of_the_files(rows, tmp_path):
    write_scoreboard(rows, tmp_path)
    with (tmp_path / "standard_errors.csv").open(newline="") as file:
        errors = {(e["method"], e["figure"]): e for e in csv.DictReader(file)}
    assert set(errors) == {("nuts", "coverage_90"), ("mean-field", "coverage_90"), ("mean-field", "ref_w1"),
                           ("mean-field", "elbo")}  # fmt: skip
    assert errors["mean-field", "ref_w1"] == {"method": "mean-field", "model": "bnn", "figure": "ref_w1",
                                              "standard_error": "0.01", "noise_floor": "0.07"}  # fmt: skip
    assert rows[1].estimate("ref_w1") == Estimate(1 / 3, 0.01, 0.07)
    assert rows[0].estimate("rmse").se == rows[0].cell("rmse_se") > 0
    assert rows[0].estimate("elbo") is None


def test_no_rows_and_rows_without_figures(tmp_path):
    for rows in ([], [Row("flow", "bnn", "failed: why")]):
        write_scoreboard(rows, tmp_path)
        assert read_scoreboard(tmp_path) == rows
        Console(quiet=True).print(rich_table(rows))


def test_markdown_drops_empty_columns_and_explains_the_others(rows):
    text = markdown(rows)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 3
    bars = {line.replace("\\|", "").count("|") for line in table}
    assert len(bars) == 1
    assert "ECE" not in text
    assert "accuracy" not in text
    for heading in ("RMSE", "CRPS", "W1", "Pareto k"):
        assert heading in table[0]
        assert f"- **{heading}**: " in text
    assert "0.333 ± 0.010" in text
    assert "failed: NaN at step 3" in text


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (None, ""), (Estimate(1.23456, 0.0123), "1.235 ± 0.012"), (Estimate(-14285.7, 3.3), "-14285.7 ± 3.3"),
        (Estimate(1234.5, 120.0), "1234 ± 120"), (Estimate(0.5, None), "0.5"), (Estimate(0.5, 0.0), "0.5"),
        (Estimate(math.inf), "inf"), (Estimate(1502), "1502"), (Estimate(123456.7), "123457"),
        (Estimate(0.25, 1e-12), "0.25 ± 1e-12"), (Estimate(0.12345), "0.123"),
    ],
)  # fmt: skip
def test_figures_are_rounded_by_their_error(estimate, text):
    assert format_figure(estimate) == text


def test_terminal_table_shows_brackets_and_every_method(rows):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(rich_table(rows, title="boston"))
    text = console.export_text()
    assert "[x]" in text
    for word in ("boston", "nuts", "mean-field", "flow", "RMSE", "0.333 ± 0.010"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_terminal_table_breaks_no_word(rows, width):
    """More methods than have room: they go on in a table below, where everything has its heading again."""
    many = [*rows, *(Row.from_figures(f"mean-field-{i}", "spike-slab-bnn", {"rmse": 1.0}) for i in range(9))]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(rich_table(many, "boston", width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    words = text.replace("│", " ").replace("┃", " ").split()
    for row in many:
        assert row.method in words
        assert row.model in words
    assert words.count("RMSE") == words.count("status") >= len(many) * 15 / width
    assert text.index("boston") < text.index("nuts")


def test_terminal_table_of_three_methods_is_one():
    """Labels are broken between words before a method is moved."""
    figures = {"coverage_90": Estimate(0.98, 0.031), "log_likelihood": Estimate(-2.358, 0.083)}
    three = [Row.from_figures(name, "spike-slab-bnn", figures) for name in ("nuts", "mean-field", "mnf")]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(rich_table(three, width=80))
    text = console.export_text()
    assert text.count("status") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert "right)" in text


def test_bad_rows_are_refused(rows, tmp_path):
    with pytest.raises(ValueError, match="pbp: 'rmsee' is no column"):
        Row.from_figures("pbp", "bnn", {"rmsee": 1.0})
    with pytest.raises(ValueError, match="pbp: rmse is NaN"):
        Row.from_figures("pbp", "bnn", {"rmse": math.nan})
    with pytest.raises(ValueError, match="both nuts on bnn"):
        write_scoreboard([rows[0], rows[0]], tmp_path)
    assert not list(tmp_path.iterdir())


def test_torch_and_none_figures_become_plain():
    row = Row.from_figures("pbp", "bnn", {"density_mean": torch.tensor(0.25), "elbo": None})
    assert row.density_mean == 0.25
    assert type(row.density_mean) is float
    assert row.elbo is None


def test_a_failed_write_leaves_the_old_scoreboard(rows, tmp_path, monkeypatch):
    write_scoreboard(rows[:1], tmp_path)
    before = (tmp_path / "scoreboard.csv").read_bytes()
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_scoreboard(rows, tmp_path)
    assert (tmp_path / "scoreboard.csv").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3
