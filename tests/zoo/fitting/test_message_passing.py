"""Probabilistic backpropagation on the scoreboard, on disk and in predictions.

Figures are drawn once, in the comparison that most tests look at.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Gamma, Normal

import zoo.commands.compare
import zoo.commands.reference
from guides.message_passing import ProbabilisticBackpropagation
from guides.posterior import Posterior, function_values, observed_laws
from guides.truth.gates import Gates
from guides.truth.mcmc import nuts
from tests.zoo.cli_helpers import (
    ALWAYS,
    COLUMNS,
    DISTANCES,
    PREDICTIVE,
    TINY,
    files,
    fresh_process,
    linear_rows,
    run_zoo,
    table_of,
    write_csv,
)
from zoo.budgets import BUDGETS
from zoo.commands.grading import TWO_LAWS
from zoo.errors import UserError
from zoo.evaluation.distances import compare_functions
from zoo.evaluation.metrics import predictive_figures
from zoo.evaluation.pareto import pareto_k
from zoo.fitting.message_passing import MessagePassing
from zoo.fitting.methods import FitFile, Watch
from zoo.fitting.problem import load_problem
from zoo.models import create
from zoo.models.bnn import PBPNetwork
from zoo.seeds import stable_seed

NO_GATES = Gates(max_rhat=99, min_ess_bulk=0, max_divergence_share=1)
FORTY = "40 passes over the data count it 40 times: no approximation of the posterior"
SEED = 7


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", TINY)


@pytest.fixture
def undrawn(monkeypatch) -> None:
    monkeypatch.setattr(zoo.commands.compare, "write_plots", lambda *args: None)


@pytest.fixture(scope="module", params=["none", pytest.param("nuts", marks=pytest.mark.slow)])
def reference(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def graded(tmp_path_factory, reference):
    """``zoo compare`` of messages without bias; slow: of both kinds, beside another guide, against chains
    that every gate lets pass."""
    folder = tmp_path_factory.mktemp("graded")
    table = write_csv(folder / "table.csv", linear_rows(40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUDGETS, "quick", TINY)
        patch.setattr(zoo.commands.reference, "nuts", functools.partial(nuts, gates=NO_GATES))
        result = compare(table, folder / "out", GRADED[reference], "--reference", reference)
    assert result.exit_code == 0, result.output
    return folder, result


def compare(table: Path, out: Path, guides: str, *options: object):
    words = ["--model", "pbp-bnn-no-bias", "--widths", 3, "--seed", SEED, *options]
    return run_zoo("compare", table, *words, "--guides", guides, "--out", out)


@functools.cache
def guide_of(folder: Path, name: str) -> ProbabilisticBackpropagation:
    """The guide by itself, on the same data."""
    problem = load_problem(str(folder / "table.csv"))
    messages, epochs = METHODS[name]
    guide = ProbabilisticBackpropagation(PBPNetwork(2, widths=(3,), bias=False), messages)
    return guide.fit(problem.x, problem.y, epochs=epochs, seed=stable_seed("fit", SEED, name))


GRADED = {"none": "sspbp", "nuts": "pbp,sspbp,mean-field"}
METHODS = {
    "pbp": ("gaussian", 40),
    "pbp-1-epoch": ("gaussian", 1),
    "sspbp": ("spike-slab", 40),
    "sspbp-1-epoch": ("spike-slab", 1),
}


# ------------------------------------------------------------------------------------------ the scoreboard


def methods_in(table: dict) -> list[str]:
    return [name for name in table if name in METHODS]


def test_rows_notes_and_files(graded, reference):
    folder, result = graded
    table = table_of(folder / "out")
    assert {row["status"] for row in table.values()} == {"ok"}
    notes = {name: row["note"] for name, row in table.items() if name != "nuts"}
    states = {f"{name}.{kind}" for name in methods_in(table) for kind in ("nc", "safetensors")}
    printed = re.sub(r"\s+", " ", result.stdout)
    if reference == "none":
        assert list(notes.items()) == [("sspbp", FORTY), ("sspbp-1-epoch", "one pass")]
        assert f"sspbp: {FORTY}" in printed
        assert files(folder / "out") == {*ALWAYS, *states}
    else:
        assert list(table) == ["nuts", *METHODS, "mean-field"]
        both = [f"{note}; {TWO_LAWS}" for note in (FORTY, "one pass")]  # figures of messages and of networks
        assert list(notes.values()) == [*both, *both, ""]
        assert f"pbp, sspbp: {FORTY}" in printed
        assert files(folder / "out") == {*ALWAYS, *states, "reference.nc", "mean-field.nc", "scatter.png"}


def test_figures_that_messages_have(graded, reference):
    """Everything but an ELBO; two numbers a weight (2 x 3 + 3) and two a precision."""
    table = table_of(graded[0] / "out")
    expected = {*PREDICTIVE, "pareto_k", "num_parameters", "fit_seconds"}
    expected |= {"ref_log_likelihood", *DISTANCES} if reference == "nuts" else set()
    for name in methods_in(table):
        assert {column for column in COLUMNS[4:] if table[name][column]} == expected
        assert table[name]["num_parameters"] == str(2 * 9 + 2 * 2)


def test_predictive_figures_are_those_of_the_messages(graded):
    folder, _ = graded
    table = table_of(folder / "out")
    for name in methods_in(table):
        check_predictive_figures(folder, name, table[name])


def check_predictive_figures(folder: Path, name: str, row: dict[str, str]) -> None:
    guide, problem = guide_of(folder, name), load_problem(str(folder / "table.csv"))
    predictive = guide.predictive(problem.x_test)
    figures = predictive_figures(predictive, problem.y_test, "regression", problem.scale.y_sd)
    for column, figure in figures.items():
        assert float(row[column]) == pytest.approx(figure.value, rel=1e-9), column
    # by hand, without the evaluation: mean and density of the messages in units of the target
    error = problem.scale.y_sd * (predictive.mean - problem.y_test.double())
    assert float(row["rmse"]) == pytest.approx(error.square().mean().sqrt().item(), rel=1e-9)
    density = predictive.log_prob(problem.y_test.double()).mean().item() - np.log(problem.scale.y_sd)
    assert float(row["log_likelihood"]) == pytest.approx(density, rel=1e-9)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("none", "sspbp-1-epoch"),
        *(pytest.param("nuts", name, marks=pytest.mark.slow) for name in ("pbp", "sspbp-1-epoch")),
    ],
    indirect=["reference"],
)
def test_distances_and_pareto_k_are_of_drawn_networks(graded, reference, name):
    folder, _ = graded
    guide, problem = guide_of(folder, name), load_problem(str(folder / "table.csv"))
    draws = guide.draws(TINY.draws, np.random.default_rng(stable_seed("draws", SEED, name)))
    row = table_of(folder / "out")[name]
    log_weights = log_density(draws, problem.x, problem.y) - guide.log_prob(draws)
    assert float(row["pareto_k"]) == pytest.approx(pareto_k(log_weights), rel=1e-3)
    if reference == "none":
        return
    reference = Posterior.load(folder / "out" / "reference.nc", guide.model)
    ours = function_values(observed_laws(guide.model, draws, problem.x_test))
    for column, figure in compare_functions(reference.function(problem.x_test), ours).figures().items():
        assert float(row[column]) == pytest.approx(figure.value, rel=1e-6), column


def log_density(draws: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of data and parameters of the network with three hidden units and no bias, by hand: ``[n]``."""
    draws = {name: value.double() for name, value in draws.items()}
    precision, noise = draws["weight_precision"], draws["noise_precision"]
    hidden = torch.relu(x.double() @ draws["w1"].transpose(1, 2) / 2**0.5)
    mean = (hidden @ draws["w2"].transpose(1, 2)).squeeze(-1) / 3**0.5
    total = Gamma(6.0, 6.0).log_prob(precision) + Gamma(6.0, 6.0).log_prob(noise)
    for name in ("w1", "w2"):
        prior = Normal(0.0, precision[:, None, None].rsqrt())
        total = total + prior.log_prob(draws[name]).flatten(1).sum(1)
    return total + Normal(mean, noise[:, None].rsqrt()).log_prob(y.double()).sum(1)


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["nuts"], indirect=True)
def test_messages_differ_only_where_there_is_no_bias(graded, tmp_path, monkeypatch):
    """From one start and order, which they do not share by themselves."""
    without = table_of(graded[0] / "out")
    assert without["pbp"]["log_likelihood"] != without["sspbp"]["log_likelihood"]
    options = ["--model", "pbp-bnn", "--reference", "none"]
    monkeypatch.setattr(zoo.commands.compare, "stable_seed", lambda kind, seed, name: seed)
    assert compare(graded[0] / "table.csv", tmp_path / "out", "pbp,sspbp", *options).exit_code == 0
    rows = table_of(tmp_path / "out")
    assert rows["pbp"]["num_parameters"] == str(2 * (3 * 3 + 4) + 2 * 2)
    for name in PREDICTIVE:
        assert float(rows["pbp"][name]) == pytest.approx(float(rows["sspbp"][name]), rel=1e-8)


def test_one_pass_alone_when_it_alone_is_named(graded, tmp_path, undrawn):
    options = ["--reference", "none"]
    assert compare(graded[0] / "table.csv", tmp_path / "out", "sspbp-1-epoch", *options).exit_code == 0
    row = table_of(tmp_path / "out")
    assert list(row) == ["sspbp-1-epoch"]
    whole = table_of(graded[0] / "out")["sspbp-1-epoch"]
    assert all(row["sspbp-1-epoch"][name] == whole[name] for name in PREDICTIVE)


@pytest.mark.parametrize("activation", [pytest.param("relu", marks=pytest.mark.slow), "leaky-relu"])
def test_plain_network_with_known_noise(graded, activation, tmp_path, undrawn):
    """The prior of its weights is fixed: no precision is left, two numbers a weight and a bias."""
    options = ["--model", "bnn", "--activation", activation, "--noise", 0.2, "--reference", "none"]
    result = compare(graded[0] / "table.csv", tmp_path / "out", "pbp-1-epoch", *options)
    assert result.exit_code == 0
    row = table_of(tmp_path / "out")["pbp-1-epoch"]
    assert (row["status"], row["num_parameters"]) == ("ok", str(2 * (3 * 2 + 3 + 3 + 1)))


# ---------------------------------------------------------------------------------------- nothing twice


def test_second_comparison_reads_the_messages_back(graded, reference, monkeypatch, undrawn):
    folder, first = graded
    before = (folder / "out" / "scoreboard.csv").read_bytes()
    monkeypatch.setattr(zoo.commands.reference, "nuts", functools.partial(nuts, gates=NO_GATES))
    monkeypatch.setattr(MessagePassing, "fit", lambda *a, **k: pytest.fail("fitted again"))
    second = compare(folder / "table.csv", folder / "out", GRADED[reference], "--reference", reference)
    assert (second.exit_code, second.stdout) == (0, first.stdout)
    assert (folder / "out" / "scoreboard.csv").read_bytes() == before


def test_flipped_bit_in_the_messages_is_found(graded, tmp_path, undrawn):
    table, out = graded[0] / "table.csv", tmp_path / "out"
    options = ["--reference", "none"]
    compare(table, out, "sspbp-1-epoch", *options)
    before, state = table_of(out)["sspbp-1-epoch"], out / "sspbp-1-epoch.safetensors"
    whole = state.read_bytes()
    damaged = bytearray(whole)
    damaged[-3] ^= 1
    state.write_bytes(damaged)
    assert compare(table, out, "sspbp-1-epoch", *options).exit_code == 0
    after = table_of(out)["sspbp-1-epoch"]
    after["fit_seconds"] = before["fit_seconds"]
    assert after == before
    repaired = ProbabilisticBackpropagation.load(state, None)
    assert repaired.epochs == 1


# ------------------------------------------------------------------------------------ fit and predict


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    table = write_csv(folder / "table.csv", linear_rows(40))
    result = fit(table, folder / "fit")
    assert result.exit_code == 0, result.output
    return folder, result


def fit(table: Path, out: Path, *options: object):
    words = ["--model", "pbp-bnn-no-bias", "--widths", 3, "--seed", SEED, "--guide", "sspbp", *options]
    return run_zoo("fit", table, *words, "--out", out)


def test_fit_says_what_it_did_and_leaves_a_guide(fitted):
    folder, result = fitted
    assert re.search(r"40 passes in \S+ s, \d+ updates refused; saved in", result.stdout)
    assert re.search(r"36 rows fitted, 4 held out: RMSE \S+ ± \S+, log-likelihood", result.stdout)
    assert files(folder / "fit") == {"fit.safetensors", "fit.json", "config.json"}
    config = json.loads((folder / "fit" / "config.json").read_text())
    seed = stable_seed("fit", SEED, "sspbp")
    assert (config["settings"], config["note"]) == ({"epochs": 40, "seed": seed}, FORTY)
    model = create("pbp-bnn-no-bias", in_features=2, widths=(3,))
    guide = ProbabilisticBackpropagation.load(folder / "fit" / "fit.safetensors", model)
    alone = guide_of(folder, "sspbp")
    for name, site in alone.sites.items():
        torch.testing.assert_close(guide.sites[name].mean, site.mean, rtol=1e-9, atol=1e-12)


def test_predictions_are_the_messages_in_original_units(fitted):
    folder, _ = fitted
    command = ["predict", folder / "fit", "--input", folder / "table.csv", "--out"]
    assert run_zoo(*command, folder / "p.csv").exit_code == 0
    with (folder / "p.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["mean", "sd", "q5", "q50", "q95"]
    mean, sd, q5, q50, q95 = np.array(rows, dtype=float).T
    problem = load_problem(str(folder / "table.csv"))
    data = np.array(linear_rows(40))
    predictive = guide_of(folder, "sspbp").predictive(problem.inputs(data[:, :2]))
    scale = problem.scale
    np.testing.assert_allclose(mean, scale.inverse_mean(predictive.mean.numpy()), rtol=1e-9)
    np.testing.assert_allclose(sd, scale.inverse_sd(predictive.stddev.numpy()), rtol=1e-9)
    for level, quantile in ((0.05, q5), (0.5, q50), (0.95, q95)):
        standardised = torch.as_tensor(scale.transform_y(quantile))
        np.testing.assert_allclose(predictive.cdf(standardised).numpy(), level, atol=1e-9)
    # draws and a seed are not used: the same bytes
    assert run_zoo(*command, folder / "again.csv", "--seed", 3, "--draws", 2).exit_code == 0
    assert (folder / "again.csv").read_bytes() == (folder / "p.csv").read_bytes()


@pytest.mark.slow
def test_predictions_are_the_same_in_a_fresh_process(fitted):
    folder, _ = fitted
    command = ["predict", folder / "fit", "--input", folder / "table.csv", "--out"]
    assert run_zoo(*command, folder / "p.csv").exit_code == 0
    result = fresh_process(
        "from zoo.cli.main import main; main()", *command, folder / "fresh.csv", "--seed", 3
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert (folder / "fresh.csv").read_bytes() == (folder / "p.csv").read_bytes()


def test_finished_fit_is_read_and_not_fitted_again(fitted, monkeypatch):
    folder, result = fitted
    monkeypatch.setattr(ProbabilisticBackpropagation, "fit", lambda *a, **k: pytest.fail("fitted again"))
    again = fit(folder / "table.csv", folder / "fit")
    assert (again.exit_code, again.stdout) == (0, result.stdout)


def test_fit_that_was_killed_before_its_seal_begins_again(fitted, tmp_path):
    folder, _ = fitted
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / "config.json").write_bytes((folder / "fit" / "config.json").read_bytes())
    (tmp_path / "fit" / "fit.safetensors").write_bytes(
        (folder / "fit" / "fit.safetensors").read_bytes()[:700]
    )
    command = ["predict", tmp_path / "fit", "--input", folder / "table.csv", "--out", tmp_path / "p.csv"]
    result = run_zoo(*command)
    assert result.exit_code == 2
    assert "is not finished: call zoo fit again" in result.stderr
    assert fit(folder / "table.csv", tmp_path / "fit").exit_code == 0
    assert run_zoo(*command).exit_code == 0


def test_damaged_or_foreign_fit_is_refused_and_kept(fitted, tmp_path):
    folder, _ = fitted
    out = tmp_path / "fit"
    out.mkdir()
    for path in (folder / "fit").iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    state = out / "fit.safetensors"
    damaged = state.read_bytes()[:-9] + b"123456789"
    state.write_bytes(damaged)
    command = ["predict", out, "--input", folder / "table.csv", "--out", tmp_path / "p.csv"]
    for result in (run_zoo(*command), fit(folder / "table.csv", out)):
        assert result.exit_code == 2
        assert "fit.safetensors fails its checksum" in result.stderr
    assert state.read_bytes() == damaged
    method, problem = MessagePassing("spike-slab", 1), load_problem(str(folder / "table.csv"))
    file = FitFile(folder / "fit" / "fit.safetensors", {"data": "others"})
    with pytest.raises(UserError, match="belongs to another fit"):
        method.fit(PBPNetwork(2), (problem.x, problem.y), method.settings(36, 0), file=file)


# -------------------------------------------------------------------------------------------- the method


def test_progress_is_counted_in_passes(fitted):
    """As a terminal would show it: forty steps to go, one after every pass."""
    problem = load_problem(str(fitted[0] / "table.csv"))
    seen = []
    progress = SimpleNamespace(
        add_task=lambda label, total: seen.append((label, total)) or 5, advance=lambda task: seen.append(task)
    )
    method = MessagePassing("spike-slab", 40)
    settings = method.settings(36, seed=SEED)
    model = PBPNetwork(2, widths=(3,), bias=False)
    watched = method.fit(model, (problem.x, problem.y), settings, watch=Watch(progress, "pbp"))
    assert seen == [("pbp", 40), *[5] * 40]
    alone = method.fit(model, (problem.x, problem.y), settings)
    expected, found = (fit.predictor(1, 0)(problem.x_test).mean for fit in (alone, watched))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_moments_that_are_not_finite_are_a_divergence(fitted, monkeypatch, tmp_path):
    moments = SimpleNamespace(mean=torch.tensor([torch.nan]), variance=torch.ones(1))
    monkeypatch.setattr(ProbabilisticBackpropagation, "sites", {"w1": moments})
    result = fit(fitted[0] / "table.csv", tmp_path / "fit")
    assert result.exit_code == 1
    assert "site 'w1' is not finite after 40 passes" in result.stderr
    assert not (tmp_path / "fit").exists()
