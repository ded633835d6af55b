"""Declarations of the network tables beside the print."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from tests.marks import NEEDS_MIRROR
from zoo.cli.main import app
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.sspbp import declared

TABLES = [
    f"sspbp/table-{number}" for number in ("3.1", "3.2", "3.3", "3.4", "a1", "a2", "a3", "a4", "a5", "a6")
]


@pytest.mark.parametrize(
    "name", ["sspbp/figure-3.1", *TABLES, "sspbp/replay", "sspbp/apart", "sspbp/reference-program"]
)
def test_declarations(name):
    experiment = find_experiment(name)
    assert experiment.quick.trials <= experiment.full.trials
    assert "." in experiment.source.table or "runs" in experiment.source.table
    assert experiment.summary.endswith(".")
    if experiment.datasets == declared.DATASETS:
        assert len(list(experiment.combinations())) == 8 * 2 * 2
        why = experiment.explanation("energy", "pbp", experiment.settings[0], next(iter(experiment.metrics)))
        assert why.kind == "another task"
        assert experiment.full.trials == 20
        assert experiment.full.options["epochs"] == 40


def test_errors_of_the_print_get_the_usual_divisor():
    """Five runs: 0.179 sqrt(5 / 4)."""
    number = find_experiment("sspbp/table-3.3").published["boston", "pbp", "50", "rmse"]
    assert number.se == pytest.approx(0.20013, abs=1e-5)
    assert str(number) == "3.554 ± 0.179"


#: The number of the table, what it prints, its networks, and whether they have biases.
PRINTED = {
    "3.3": ("rmse", ("50", "10x10"), True),
    "3.4": ("rmse", ("50", "10x10"), False),
    "a1": ("rmse", ("10", "100"), True),
    "a2": ("log_likelihood", ("10", "100"), True),
    "a3": ("log_likelihood", ("50", "10x10"), True),
    "a4": ("rmse", ("10", "100"), False),
    "a5": ("log_likelihood", ("10", "100"), False),
    "a6": ("log_likelihood", ("50", "10x10"), False),
}


@pytest.mark.parametrize("number", PRINTED)
def test_every_table_shows_what_the_print_shows(number):
    figure, settings, bias = PRINTED[number]
    table = find_experiment(f"sspbp/table-{number}")
    words = number if "." in number else f"A.{number[1]}"
    assert table.source.table == f"Table {words}"
    assert table.settings == settings
    assert table.run.name == ("with_bias" if bias else "without_bias")
    assert next(iter(table.metrics)) == figure + ("" if bias else "_published")
    # the print of networks without biases is of the published evaluation
    beside = {place[3] for place in table.published}
    assert beside == ({"rmse", "log_likelihood"} if bias else set(declared.PUBLISHED_FIGURES))


def test_published_slab_probabilities_leave_no_run_out():
    table = find_experiment("sspbp/table-3.2")
    assert table.settings == ("5", "50", "5x5", "50x50", "5x5x5", "50x50x50")
    assert "left out" in table.explanation("boston", "sspbp", "5x5x5", "slab_layer_4").why
    assert table.explanation("boston", "sspbp", "5x5x5", "slab_layer_2") is None
    assert table.full.trials == 30


@NEEDS_MIRROR
@pytest.mark.slow
def test_a_real_table_of_one_set(tmp_path):
    call = "reproduce sspbp/table-3.4 --datasets yacht --settings 50 --trials 1 --budget quick --out"
    result = CliRunner().invoke(app, [*call.split(), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], row["metric"]) for row in rows} == {
        (method, metric)
        for method in declared.METHODS
        for metric in (*declared.FIGURES, *declared.PUBLISHED_FIGURES)
    }
    assert all(
        row["dataset"] == "yacht" and (row["published"] != "") == row["metric"].endswith("published")
        for row in rows
    )
