"""A call for more steps takes the folder of a shorter one over; any other difference is refused by name."""

from __future__ import annotations

import pytest

from tests.zoo.cli_helpers import linear_rows, make_tiny, run_zoo, table_of, write_csv
from zoo.budgets import BUDGETS, Budget


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "table.csv", linear_rows(30))


def fit(table, out, *options: object):
    return run_zoo("fit", table, "--widths", 3, *options, "--out", out)


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="default rate"),
        pytest.param(["--lr", 0.02], id="rate", marks=pytest.mark.slow),
        pytest.param(["--guide", "map"], id="map", marks=pytest.mark.slow),
    ],
)
def test_more_steps_give_the_fit_of_a_folder_of_its_own(table, tmp_path, options):
    assert fit(table, tmp_path / "long", "--steps", 6, *options).exit_code == 0
    result = fit(table, tmp_path / "long", "--steps", 9, *options)
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert "held a fit of 6 steps; the learning rate falls to zero" in line
    assert "one of 9 starts again" in line
    fresh = fit(table, tmp_path / "fresh", "--steps", 9, *options)
    assert fresh.stderr == ""
    ours, theirs = contents(tmp_path / "long"), contents(tmp_path / "fresh")
    assert ours.keys() == theirs.keys()
    assert ours.get("losses.csv") == theirs.get("losses.csv")
    new = write_csv(tmp_path / "new.csv", [row[:2] for row in linear_rows(5)], "a,b")
    for name in ("long", "fresh"):
        predicted = run_zoo("predict", tmp_path / name, "--input", new, "--out", tmp_path / f"{name}.csv")
        assert predicted.exit_code == 0
    assert (tmp_path / "long.csv").read_bytes() == (tmp_path / "fresh.csv").read_bytes()
    assert fit(table, tmp_path / "long", "--steps", 9, *options).stderr == ""  # and goes on as ever


def test_other_differences_of_a_fit_are_named_with_both_values(table, tmp_path):
    out = tmp_path / "out"
    assert fit(table, out, "--steps", 6, "--lr", 0.02).exit_code == 0
    before = contents(out)
    for options, words in (
        (["--steps", 5, "--lr", 0.02], ["settings steps is 6 there, 5 here"]),
        (
            ["--steps", 9, "--lr", 0.03],
            ["settings steps is 6 there, 9 here", "settings lr is 0.02 there, 0.03 here"],
        ),
        (["--steps", 6, "--lr", 0.02, "--seed", 1], ["seed is 0 there, 1 here"]),
        (["--steps", 9, "--lr", 0.02, "--widths", 4], ["options widths is 3 there, 4 here"]),
        (["--steps", 9, "--lr", 0.02, "--guide", "map"], ["guide is mean-field there, map here"]),
    ):
        result = fit(table, out, *options)
        assert result.exit_code == 2
        assert all(word in result.stderr for word in (*words, "choose another --out")), result.stderr
        assert contents(out) == before


@pytest.mark.slow
def test_a_larger_budget_gives_the_comparison_of_a_folder_of_its_own(table, tmp_path, monkeypatch):
    make_tiny(monkeypatch)
    monkeypatch.setitem(BUDGETS, "quick", Budget(steps=4, draws=30, warmup=1, mcmc_draws=1))
    monkeypatch.setitem(BUDGETS, "full", Budget(steps=7, draws=40, warmup=1, mcmc_draws=1))

    def compare(out, budget):
        options = ["--guides", "mean-field", "--reference", "none", "--widths", 3, "--budget", budget]
        return run_zoo("compare", table, *options, "--out", tmp_path / out)

    assert compare("long", "quick").exit_code == 0
    result = compare("long", "full")
    assert (result.exit_code, len(result.stderr.splitlines())) == (0, 1)
    assert "held a comparison of 4 steps" in result.stderr
    assert compare("fresh", "full").stderr == ""
    assert contents(tmp_path / "long").keys() == contents(tmp_path / "fresh").keys()
    long, fresh = (table_of(tmp_path / name)["mean-field"] for name in ("long", "fresh"))
    assert {**long, "fit_seconds": ""} == {**fresh, "fit_seconds": ""}
    before = contents(tmp_path / "long")
    result = compare("long", "quick")
    assert result.exit_code == 2
    assert "budget steps is 7 there, 4 here; budget draws is 40 there, 30 here" in result.stderr
    assert contents(tmp_path / "long") == before


def test_more_steps_of_a_comparison_fit_again_and_keep_the_reference(tmp_path, monkeypatch):
    make_tiny(monkeypatch)
    table = write_csv(tmp_path / "table.csv", linear_rows(30))

    def compare(out, *steps):
        options = ["--model", "spike-slab-linear", "--guides", "spike-slab", *steps, "--out", tmp_path / out]
        result = run_zoo("compare", table, *options)
        assert result.exit_code == 0, result.output
        return contents(tmp_path / out)

    first = compare("long")
    longer = compare("long", "--steps", 70)
    assert longer["reference.nc"] == first["reference.nc"]
    assert longer["spike-slab.nc"] != first["spike-slab.nc"]
    compare("fresh", "--steps", 70)
    long, fresh = (table_of(tmp_path / name)["spike-slab"] for name in ("long", "fresh"))
    assert {**long, "fit_seconds": ""} == {**fresh, "fit_seconds": ""}
