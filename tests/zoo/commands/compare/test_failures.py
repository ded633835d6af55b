"""What fails is a row that says why, and nothing is graded by it."""

from __future__ import annotations

import csv
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import zoo.commands.compare
import zoo.commands.reference
from guides.posterior.draws import Posterior
from guides.truth.mcmc import nuts
from tests.zoo.cli_helpers import (
    COLUMNS,
    DISTANCES,
    files,
    linear_rows,
    make_tiny,
    run_zoo,
    table_of,
    write_csv,
)
from tests.zoo.commands.compare.tables import NO_GATES
from zoo.commands.compare import conclude
from zoo.commands.comparison import plan
from zoo.commands.grading import Graded, Scored, grade
from zoo.errors import FailedError
from zoo.evaluation.scoreboard import Row
from zoo.fitting.problem import load_problem
from zoo.fitting.svi import Fit
from zoo.models import create


@pytest.mark.slow
def test_reference_that_fails_its_gates_is_shown_and_never_used(graded, tmp_path, monkeypatch, pictures):
    """The chains of the comparison that passed, judged otherwise."""
    folder, _ = graded
    shutil.copytree(folder / "out", tmp_path / "out")
    for name in ("scoreboard.png", "scatter.png"):
        (tmp_path / "out" / name).unlink()

    def judged_otherwise(*args, **kwargs):
        result = nuts(*args, **kwargs, gates=NO_GATES)
        found = result.diagnostics | {"attempts": 2}
        return replace(result, passed=False, reason="bulk ESS 30 not above 400", diagnostics=found)

    monkeypatch.setattr(zoo.commands.reference, "nuts", judged_otherwise)
    assert_failed_reference_is_not_used(folder, tmp_path / "out")


@pytest.mark.slow
def test_reference_that_fails_the_real_gates_is_shown_and_never_used(graded, tmp_path, pictures):
    """Thirty draws cannot have a bulk ESS of 400."""
    assert_failed_reference_is_not_used(graded[0], tmp_path / "out")


def assert_failed_reference_is_not_used(folder: Path, out: Path) -> None:
    result = run_zoo("compare", folder / "table.csv", "--widths", 3, "--seed", 7, "--out", out)
    assert result.exit_code == 0
    assert re.search(r"^zoo: nuts failed: .*bulk ESS .* not above 400.*--budget full", result.stderr)
    table = table_of(out)
    assert table["nuts"]["status"].startswith("failed: ")
    assert "2 attempts" in table["nuts"]["note"]
    for method in ("mean-field", "spike-slab"):
        assert table[method]["status"] == "ok"
        assert not any(table[method][name] for name in DISTANCES)
        assert table[method]["rmse"] == table_of(folder / "out")[method]["rmse"]
    assert not (out / "scatter.png").exists()
    assert (out / "scoreboard.png").exists()


@pytest.mark.slow
def test_reference_that_cannot_start_is_a_failed_row(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("no starting point with a finite log density was found")

    monkeypatch.setattr(zoo.commands.reference, "nuts", broken)
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    options = ["--guides", "mean-field", "--widths", 2, "--out", tmp_path / "out"]
    assert run_zoo("compare", table, *options).exit_code == 0
    assert table_of(tmp_path / "out")["nuts"]["status"].startswith("failed: no starting point")
    assert table_of(tmp_path / "out")["mean-field"]["status"] == "ok"


@pytest.mark.slow
def test_guide_that_diverges_is_a_failed_row_and_the_others_stay(tmp_path, monkeypatch, pictures):
    fit = Fit.run

    def run_hot(self, *, label, **kwargs):
        if label == "mean-field":
            self.settings = replace(self.settings, lr=1e6)
        return fit(self, label=label, **kwargs)

    monkeypatch.setattr(Fit, "run", run_hot)
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    command = ["compare", table, "--model", "spike-slab-linear", "--out", tmp_path / "out"]
    result = run_zoo(*command)
    assert result.exit_code == 0
    assert re.fullmatch(
        r"zoo: mean-field failed: step 1: .*'noise_precision'.*learning rate .*\n", result.stderr
    )
    rows = table_of(tmp_path / "out")
    assert rows["mean-field"]["status"].startswith("failed: step 1: the loss is")
    assert not any(rows["mean-field"][name] for name in COLUMNS[4:])
    assert rows["exact"]["status"] == rows["spike-slab"]["status"] == "ok"
    assert rows["spike-slab"]["ref_w1"]
    with (tmp_path / "out" / "inclusion.csv").open() as file:
        assert {line["method"] for line in csv.DictReader(file)} == {"exact", "spike-slab"}
    assert {"scoreboard.png", "scatter.png", "inclusion.png"} <= files(tmp_path / "out")
    # mended, the same folder gets the missing row
    make_tiny(monkeypatch)
    monkeypatch.setattr(Fit, "run", fit)
    assert run_zoo(*command).stderr == ""
    assert all(row["status"] == "ok" for row in table_of(tmp_path / "out").values())


def test_comparison_without_a_sound_row_ends_with_1(tmp_path, monkeypatch):
    def diverge(self, **kwargs):
        raise FailedError("step 3: the loss is nan")

    monkeypatch.setattr(Fit, "run", diverge)
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    result = run_zoo("compare", table, "--reference", "none", "--widths", 2, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert [row["status"][:6] for row in table_of(tmp_path / "out").values()] == ["failed", "failed"]


@pytest.mark.parametrize("status", ["ok", "failed: bulk ESS 30 not above 400"])
def test_nothing_is_graded_by_a_reference_that_has_failed(status, tmp_path, monkeypatch):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    words = {"model": "bnn", "reference": "nuts", "budget": "quick", "options": {}, "seed": 0}
    comparison, graded = plan("t", problem, guides=["mean-field", "map"], **words), []
    truth, fitted, broken = (
        Graded(name, "bnn", Posterior(None, {}), {}, status=status)
        for name, status in (("nuts", status), ("map", "ok"), ("mean-field", "failed: nan"))
    )

    def grade(scored, truth):
        graded.append((scored.result.method, truth and truth.result))
        return Row(scored.result.method, "bnn", status=scored.result.status)

    monkeypatch.setattr(zoo.commands.compare, "reference_posterior", lambda *parts: truth)
    monkeypatch.setattr(
        zoo.commands.compare, "fit_guide", lambda comparison, name, *parts: {"map": fitted}[name]
    )
    monkeypatch.setattr(zoo.commands.compare, "grade", grade)
    found = conclude(comparison, tmp_path, failed={"mean-field": broken})
    trusted = truth if status == "ok" else None
    assert graded == [("nuts", trusted), ("mean-field", trusted), ("map", trusted)]
    assert (found.truth and found.truth.result) is trusted
    assert [scored.result for scored in found.results] == ([truth, fitted] if status == "ok" else [fitted])
    assert list(table_of(tmp_path)) == ["nuts", "mean-field", "map"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_predictions_that_are_not_finite_make_a_failed_row(value, tmp_path):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    model = create("spike-slab-linear", in_features=2)
    draws = {"w": torch.randn(50, 2), "noise_precision": torch.ones(50)}
    good = Scored(problem, Graded("good", "m", Posterior.from_draws(model, draws), {"elbo": -1.0}))
    assert grade(good, None).status == "ok"
    draws["w"][3, 1] = value
    bad = Graded("bad", "m", Posterior.from_draws(model, draws), {"elbo": -1.0})
    row = grade(Scored(problem, bad), good)
    assert row.status.startswith("failed: ")
    assert "finite" in row.status
    assert (row.rmse, row.ref_w1, row.elbo) == (None, None, None)
