"""Variable selection: graded against the exact posterior of the same model."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

import zoo.commands.compare
from data_loaders import load_csv
from guides import AutoSpikeSlab
from guides.posterior import log_joint
from guides.truth.spike_slab_linear import enumerate_spike_slab
from tests.marks import NEEDS_MIRROR
from tests.zoo.cli_helpers import (
    ALWAYS,
    DISTANCES,
    PREDICTIVE,
    TINY,
    files,
    make_tiny,
    run_zoo,
    table_of,
    write_csv,
)
from tests.zoo.scoreboards import read_scoreboard
from zoo.budgets import BUDGETS, Budget
from zoo.commands import comparison_plots as plots
from zoo.commands.compare import fit_guide, run
from zoo.commands.comparison import plan
from zoo.commands.grading import Scored, grade
from zoo.commands.reference import reference_posterior
from zoo.evaluation.distances import compare_functions
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.scoreboard import format_figure
from zoo.fitting.methods import Variational
from zoo.fitting.problem import prepare
from zoo.models.latent_binary import SpikeSlabLinear


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    make_tiny(monkeypatch)


@pytest.fixture(scope="module")
def selection(tmp_path_factory):
    """Three of six columns matter; all rows train, as in the sets of variable selection."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 6))
    y = x @ [1.0, -0.7, 0.35, 0, 0, 0] + rng.normal(size=60)
    folder = tmp_path_factory.mktemp("selection")
    table = write_csv(folder / "select.csv", np.column_stack([x, y]).tolist(), "a,b,c,d,e,f,y")
    problem = prepare(load_csv(table, protocol="whole"))
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch, elbo_draws=200, pictures=True)
        patch.setitem(BUDGETS, "quick", Budget(steps=150, draws=400, warmup=5, mcmc_draws=5))
        comparison = plan(
            "select", problem, model="spike-slab-linear", guides=["mean-field", "spike-slab"], reference=None,
            budget="quick", seed=0, options={},
        )  # fmt: skip
        return comparison, run(comparison, folder / "out"), folder / "out"


def test_exact_reference_and_files_of_variable_selection(selection):
    _, rows, out = selection
    assert files(out) == ALWAYS | {
        "reference.nc", "mean-field.nc", "spike-slab.nc", "scatter.png", "inclusion.csv", "inclusion.png",
    }  # fmt: skip
    assert [row.method for row in rows] == ["exact", "mean-field", "spike-slab"]
    assert read_scoreboard(out) == rows
    for row in table_of(out).values():  # used whole: there is nothing to predict
        assert not any(row[name] for name in (*PREDICTIVE, "accuracy", "ece"))
        assert bool(row["ref_pip_rmse"]) == (row["method"] != "exact")


def test_inclusion_csv_has_a_line_for_every_method_and_column(selection):
    _, rows, out = selection
    with (out / "inclusion.csv").open() as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    assert reader.fieldnames == ["method", "site", "index", "name", "probability", "mcse"]
    assert [(line["method"], int(line["index"]), line["name"]) for line in lines] == [
        (row.method, i, "abcdef"[i]) for row in rows for i in range(6)
    ]
    assert {line["site"] for line in lines} == {"w"}
    exact, _, found = np.array([float(line["probability"]) for line in lines]).reshape(3, 6)
    assert (exact[:2] > 0.9).all()
    assert (exact[3:] < 0.5).all()
    assert rows[2].ref_pip_rmse == pytest.approx(np.sqrt(np.mean((found - exact) ** 2)), rel=1e-6)
    assert rows[2].ref_pip_rmse < 0.2
    assert rows[2].density_mean == pytest.approx(found.mean(), rel=1e-5)
    assert all(float(line["mcse"]) == 0 for line in lines)  # closed forms, all three


def test_probabilities_that_are_means_over_draws_have_their_error(selection, monkeypatch, tmp_path):
    """Of 4000 numbers between 0 and 1 below 0.008; the exact ones have none, so that it is the figure's."""
    monkeypatch.setitem(BUDGETS, "quick", Budget(steps=20, draws=50, warmup=5, mcmc_draws=5))
    comparison = replace(selection[0], guides=("joint-spike-slab",), budget=BUDGETS["quick"])
    _, row = run(comparison, tmp_path / "out")
    with (tmp_path / "out" / "inclusion.csv").open() as file:
        errors = [float(line["mcse"]) for line in csv.DictReader(file) if line["method"] == row.method]
    assert len(errors) == 6
    assert all(0 <= error < 0.008 for error in errors)
    assert max(errors) > 1e-4
    assert 0 < row.standard_errors["ref_pip_rmse"] <= max(errors)


def test_picture_of_inclusion_has_no_bars_for_what_does_not_select(selection, monkeypatch):
    """A mean field has every coefficient in: that is no inclusion probability."""
    comparison, rows, out = selection
    drawn = []
    monkeypatch.setattr(plots, "plot_scoreboard", lambda *args, **options: None)
    monkeypatch.setattr(plots, "plot_scatter", lambda *args, **options: None)
    monkeypatch.setattr(plots, "plot_inclusion", lambda *args, **options: drawn.append((args, options)))
    results = [
        reference_posterior(comparison, out),
        *(fit_guide(comparison, g, out) for g in comparison.guides),
    ]
    for shown in (results, results[1:2]):
        plots.write_plots(comparison, shown, rows, out)
    (((methods, names, path), options),) = drawn  # the second time there is nothing to draw
    assert list(methods) == ["exact", "spike-slab"]
    assert names == list("abcdef")
    assert path.name == "inclusion.png"
    assert options["caption"] == "without inclusion probabilities: mean-field"


def test_the_gap_between_bound_and_exact_evidence_is_told(selection):
    _, (exact, *fits), _ = selection
    assert exact.note.endswith("its ELBO is the log evidence")
    for fit in fits:
        gap = Estimate(exact.elbo - fit.elbo, fit.standard_errors["elbo"])
        assert fit.note == f"its ELBO is {format_figure(gap)} nats below the log evidence"


def test_no_elbo_exceeds_the_exact_evidence(selection):
    _, rows, _ = selection
    evidence, *bounds = (row.estimate("elbo") for row in rows)
    assert evidence.se == 0
    for bound in bounds:
        assert bound.value < evidence.value + 4 * bound.se
    assert bounds[1].value > evidence.value - 5  # and the spike and slab is close


@pytest.fixture(scope="module")
def references(selection, tmp_path_factory):
    """Two independent sets of draws from the exact posterior."""
    folder = tmp_path_factory.mktemp("references")
    return [reference_posterior(replace(selection[0], seed=seed), folder) for seed in (1, 2)]


def test_reference_against_itself_is_near_the_floor(selection, references):
    """The distances are noise and say so."""
    comparison, (first, second) = selection[0], references
    again = Scored(comparison.problem, replace(second, method="again"))
    row = grade(again, Scored(comparison.problem, first))
    for name in DISTANCES[::2]:
        figure = row.estimate(name)
        assert figure.value < 2 * figure.floor
        assert figure.value < 0.1
    assert abs(row.ref_sd_ratio - 1) < 4 * row.estimate("ref_sd_ratio").se
    assert row.ref_pip_rmse == 0
    # the same draws: no distance at all
    points = comparison.problem.evaluation_points
    values = first.posterior.function(points)
    assert compare_functions(values, values).ref_w1.value == 0


@pytest.mark.slow
@NEEDS_MIRROR
def test_a_real_set_of_variable_selection(tmp_path, monkeypatch):
    make_tiny(monkeypatch, elbo_draws=1000, pictures=True)
    monkeypatch.setitem(BUDGETS, "quick", replace(TINY, steps=800))
    options = ["--model", "spike-slab-linear", "--guides", "spike-slab", "--reference", "exact"]
    assert run_zoo("compare", "us_crime", *options, "--out", tmp_path / "out").exit_code == 0
    rows = {row.method: row for row in read_scoreboard(tmp_path / "out")}
    assert rows["spike-slab"].elbo < rows["exact"].elbo + 4 * rows["spike-slab"].estimate("elbo").se
    assert rows["spike-slab"].rmse is None
    assert rows["spike-slab"].ref_pip_rmse < 0.35
    assert rows["exact"].note.startswith("all 2^15 models")


def test_pareto_k_is_of_the_models_density_over_the_guides(selection, monkeypatch):
    """Importance weights p / q: the logarithms handed to PSIS are log p(y, theta) - log q(theta)."""
    problem, model = selection[0].problem, SpikeSlabLinear(6)
    method = Variational(AutoSpikeSlab)
    fitted = method.fit(model, (problem.x, problem.y), method.settings(60, seed=0, steps=50))
    seen = []
    monkeypatch.setattr(zoo.commands.compare, "pareto_k", lambda weights: seen.append(weights) or 0.5)
    posterior = zoo.commands.compare._posterior(fitted, problem, 30, seed=0)
    draws = posterior.draws()
    same, log_q = fitted.draws_with_log_prob(30, 0)
    assert torch.equal(same["w"], draws["w"])
    expected = log_joint(model, draws, problem.x, problem.y) - log_q
    torch.testing.assert_close(seen[0], expected.detach())
    assert posterior.info["figures"]["pareto_k"] == 0.5


def test_the_exact_reference_has_the_prior_inclusion_that_was_asked_for(selection, tmp_path):
    comparison = replace(selection[0], options={"inclusion": 0.1})
    problem = comparison.problem
    x, y = problem.x.double().numpy(), problem.y.double().numpy()
    truth = reference_posterior(comparison, tmp_path)
    expected = enumerate_spike_slab(x, y, inclusion_prob=0.1)
    np.testing.assert_allclose(truth.inclusion["w"].numpy(), expected.inclusion, rtol=1e-12)
    assert abs(truth.inclusion["w"].numpy() - enumerate_spike_slab(x, y).inclusion).max() > 0.01


@pytest.mark.slow
def test_points_that_cannot_be_compared_are_said_in_the_note(selection, references):
    """Without an intercept the function is zero, and does not vary, where every input is zero."""
    comparison, (first, second) = selection[0], references
    x = comparison.problem.x.clone()
    x[:2] = 0.0
    problem = replace(comparison.problem, train=(x, comparison.problem.y))
    again = Scored(problem, replace(second, method="again", note="a note"))
    row = grade(again, Scored(problem, first))
    assert row.note.startswith("a note; ")
    assert "; 2 point(s) left out" in row.note
