"""What the latent binary experiments declare, and what their options may be."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.zoo.experiments.lbbnn.tiny_cells import BY_NAME, OPTIONS
from zoo.cli.main import app
from zoo.errors import UserError
from zoo.experiments import Cell
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.engine.request import plan
from zoo.experiments.lbbnn import declared, networks, selection
from zoo.experiments.lbbnn.declared import EXPERIMENTS
from zoo.experiments.lbbnn.options import RATES

pytestmark = pytest.mark.usefixtures("small_and_real")


def test_all_experiments_are_there():
    expected = (
        "simulation correlations digits mnist fmnist kmnist thesis cnn common frontier variance "
        "decisions entropy training pictures export cost"
    )
    assert set(BY_NAME) == {f"lbbnn/{name}" for name in expected.split()}
    assert all(find_experiment(name) is experiment for name, experiment in BY_NAME.items())


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_methods_settings_and_data_exist(experiment):
    if "mjmcmc" in experiment.datasets[0]:
        assert set(experiment.methods) <= {"exact", "varbvs", *selection.GUIDES}
        return
    assert {setting.partition("-kl")[0] for setting in experiment.settings} <= set(networks.PRIORS)
    assert set(experiment.datasets) <= {"digits", *networks.OUTSIDE}
    for _, method, setting in experiment.combinations():
        if "epochs" in experiment.full.options:
            place = Cell("x", "mnist", method, setting, 0, options=experiment.full.options)
            networks.training_of(place, 1000, 0)
        networks.make_guide(method, networks.BNN(4, outputs=10, likelihood="categorical"), setting)
    work = "steps" if "cost" in experiment.name else "epochs"
    assert experiment.full.options[work] > experiment.quick.options[work]


def test_printed_ensemble_stands_beside_passes_of_the_printed_recipe_and_drawn_networks_of_the_right_one():
    table = BY_NAME["lbbnn/thesis"].published
    ensemble = table["kmnist", "lrt-thesis", "thesis", "accuracy_lrt"]
    assert ensemble == table["kmnist", "lrt", "thesis", "accuracy"]
    assert ("kmnist", "lrt-thesis", "thesis", "accuracy") not in table
    assert ensemble != table["kmnist", "lrt-thesis", "thesis", "accuracy_mean"]
    assert {place[1] for place in table} == {"lrt-thesis", "lrt", "mnf", "concrete"}


def test_priors_that_do_not_differ_are_run_once():
    combinations = list(BY_NAME["lbbnn/cnn"].combinations())
    assert [c[2] for c in combinations if c[:2] == ("mnist", "mlp")] == ["default"]
    gaussian = [c[2] for c in combinations if c[:2] == ("mnist", "gaussian")]
    assert gaussian == ["default", "pi0.1-sd1", "pi0.1-sd0.1"]
    assert len([c for c in combinations if c[:2] == ("mnist", "lrt")]) == 4


def test_posteriors_and_cold_ones_stand_apart_on_the_frontier():
    experiment = BY_NAME["lbbnn/frontier"]
    found = {(method, setting) for _, method, setting in experiment.combinations()}
    assert len(found) == 2 * 4 * 5
    whole = {setting for method, setting in found if method == "lrt"}
    assert whole == {"learned-kl1", "rates-kl1", "fixed-kl1", "pi0.1-sd1-kl1"}
    assert "a cold posterior" in experiment.note("mnist", "cold-lrt", "learned-kl0.1", "ece")
    assert experiment.note("mnist", "lrt", "learned-kl1", "ece") == ""


@pytest.mark.slow
def test_through_the_command_line(monkeypatch, tmp_path):
    experiment = BY_NAME["lbbnn/digits"]
    small = replace(experiment, quick=replace(experiment.quick, options=OPTIONS))
    monkeypatch.setattr(declared, "EXPERIMENTS", (small,))
    out = tmp_path / "out"
    words = ["reproduce", "lbbnn/digits", "--methods", "lrt,mlp", "--trials", "2", "--budget", "quick"]
    outcome = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert outcome.exit_code == 0, outcome.output
    page = (out / "table.md").read_text()
    assert "## How many weights are needed" in page
    assert "density_half" in page


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_deferred_functions_are_there(experiment):
    for function in (experiment.run, experiment.finish):
        if function is not None:
            assert callable(
                getattr(importlib.import_module(f"zoo.experiments.{function.module}"), function.name)
            )


@pytest.mark.parametrize(
    ("name", "option", "words"),
    [
        ("mnist", "epochs=0", "epochs must be at least 1, not 0"),
        ("mnist", "members=0", "members must be at least 1, not 0"),
        ("mnist", "members=-1", "members must be at least 1, not -1"),
        ("mnist", "rows=-5", "rows must be a count of training images, or 0 for all, not -5"),
        ("mnist", "widths=abc", "400-600 for instance, not 'abc'"),
        ("mnist", "widths=400-0", "400-600 for instance, not '400-0'"),
        ("mnist", "device=mps", "device takes cpu, cuda or cuda:N, not 'mps'"),
        ("cost", "steps=0", "steps must be at least 1, not 0"),
        ("cost", "epochs=3", "epochs"),
        ("cnn", "widths=400-600", "widths"),
        ("correlations", "draws=0", "draws must be at least 1, not 0"),
    ],
)
def test_options_that_no_cell_can_have_are_refused_at_once(name, option, words, tmp_path):
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["reproduce", f"lbbnn/{name}", "--set", option, "--out", str(out)])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert not out.exists()


def test_pages_have_the_rates_that_they_name():
    """Those that arrive; the thesis's recipe, timings and regressions have rates of their own."""
    none = {"thesis", "variance", "cost", "simulation", "correlations"}
    for name, experiment in BY_NAME.items():
        page = name.removeprefix("lbbnn/")
        expected = {} if page in none else RATES
        for effort in (experiment.quick, experiment.full):
            assert {key: effort.options[key] for key in RATES if key in effort.options} == expected, name


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "2"])
def test_a_rate_that_no_fit_could_have_is_refused(rate):
    with pytest.raises(UserError, match="option rate"):
        plan("lbbnn/mnist", budget="full", options={"rate": rate})


def test_a_reach_below_one_is_refused():
    with pytest.raises(UserError, match="option reach must be at least 1 and finite, not 0.5"):
        plan("lbbnn/mnist", budget="full", options={"reach": "0.5"})
    assert plan("lbbnn/mnist", budget="full", options={"reach": "8"}).effort.options["reach"] == 8
