"""What the command line shows: help that teaches, lists that fit a terminal, plain text in a pipe."""

from __future__ import annotations

import re

import pytest

from data_loaders import list_datasets
from tests.zoo.cli_helpers import fresh_process, linear_rows, run_zoo, write_csv
from zoo.budgets import BASELINES, BUDGETS
from zoo.registry.queries import GUIDES, MODELS
from zoo.version import __version__

COMMANDS = [[], ["list"], ["data"], ["data", "list"], ["data", "show"], ["fit"], ["predict"], ["compare"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command):
    result = run_zoo(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_help_of_compare_states_the_budgets_as_they_are():
    text = run_zoo("compare", "--help").stdout
    for name, budget in BUDGETS.items():
        assert f"{name}: {budget}" in text
        for number in (budget.steps, budget.draws, budget.warmup, budget.mcmc_draws, budget.chains):
            assert str(number) in str(budget)
    assert "zoo compare boston" in text  # examples keep their lines


def test_help_names_every_activation():
    from zoo.models.bnn import ACTIVATIONS

    text = run_zoo("fit", "--help").stdout
    assert all(name in text for name in ACTIVATIONS)


def test_baselines_are_guides():
    assert set(BASELINES) <= set(GUIDES)


def test_help_does_not_wait_for_torch():
    result = fresh_process("import sys, zoo.cli.main; sys.exit('torch' in sys.modules)")
    assert (result.returncode, result.stderr) == (0, "")


def test_version():
    assert run_zoo("--version").stdout.strip() == f"posterior-zoo {__version__}"


def test_list_fits_eighty_columns_and_cuts_no_name():
    result = run_zoo("list")
    assert max(map(len, result.stdout.splitlines())) <= 80
    for name in [*MODELS, *GUIDES]:
        assert re.search(rf"│ {name} ", result.stdout), name
    assert "bnn (as spike-slab-bnn)" in result.stdout
    assert "bnn (regression; relu, leaky-relu)" in result.stdout


def test_list_tells_where_a_guide_applies_once():
    """Guides that go where an earlier one goes name it; the models themselves are told in full once."""
    text = run_zoo("list").stdout
    words = {line.split("│")[1].strip(): "" for line in text.splitlines() if line.startswith("│")}
    name = ""
    for line in text.splitlines():
        if line.startswith("│"):
            first, rest = (cell.strip() for cell in line.split("│")[1:3])
            name = first or name
            words[name] = f"{words.get(name, '')} {rest}".strip()
    assert words["mean-field"].endswith("models: all")
    assert words["mnf"].endswith("models: those of spike-slab")
    assert words["deep-ensemble"].endswith("models: those of horseshoe")
    assert words["sspbp-1-epoch"].endswith("models: those of pbp")
    assert words["varbvs"].endswith("models: spike-slab-linear; spike-slab-logistic")


def test_data_list_fits_eighty_columns_and_cuts_no_name():
    lines = run_zoo("data", "list").stdout.splitlines()
    assert max(map(len, lines)) <= 90  # the last line explains
    assert max(map(len, lines[:-1])) <= 80
    assert [line.split()[0] for line in lines[1:-1]] == list_datasets()


def test_data_show_names_the_oddities():
    text = run_zoo("data", "show", "digits").stdout
    assert "multiclass, 1797 rows, 64 features" in text
    assert "pixel_0_0" in text
    assert "constant" in text


def test_data_fetch_prints_where_a_set_is():
    result = run_zoo("data", "fetch", "diabetes")
    assert result.exit_code == 0
    assert "sklearn" in result.stdout


def test_an_option_that_is_no_number_is_named():
    result = run_zoo("fit", "diabetes", "--seed", "abc", "--out", "nowhere")
    assert result.exit_code == 2
    assert "--seed" in result.stderr


def test_nothing_but_text_goes_into_a_pipe(tmp_path):
    """A fresh process whose output is no terminal: no escape sequences, no progress bar, no warnings."""
    table = write_csv(tmp_path / "table.csv", linear_rows())
    command = ["fit", table, "--steps", 30, "--widths", 3, "--out", tmp_path / "out"]
    result = fresh_process("from zoo.cli.main import main; main()", *command)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "30 steps" in result.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", result.stdout)


@pytest.mark.parametrize(("wanted", "threads"), [("", "1"), pytest.param("2", "2", marks=pytest.mark.slow)])
def test_torch_uses_one_thread_unless_told_otherwise(wanted, threads, tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows())
    code = """
import os, sys, torch
torch.set_num_threads(2)
os.environ.pop("OMP_NUM_THREADS", None)
if wanted := sys.argv.pop(1):
    os.environ["OMP_NUM_THREADS"] = wanted
from zoo.cli.main import app
app(standalone_mode=False)
print(torch.get_num_threads())
"""
    command = ["fit", table, "--steps", 2, "--widths", 2, "--out", tmp_path / "out"]
    result = fresh_process(code, wanted, *command)
    assert result.stdout.split()[-1] == threads


def test_fit_says_how_many_rows_it_held_out_and_how_well_it_predicts_them(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(60))
    result = run_zoo("fit", table, "--steps", 300, "--lr", 0.05, "--widths", 5, "--out", tmp_path / "out")
    assert re.search(r"54 rows fitted, 6 held out: RMSE \S+ ± \S+, log-likelihood \S+ ± \S+", result.stdout)
