"""What the command line shows: help that teaches, lists that fit a terminal, plain text in a pipe."""

from __future__ import annotations

import re

import pytest

from data_loaders import list_datasets
from data_loaders.densities import DENSITIES
from data_loaders.graphs.graph_sets import GRAPH_SETS
from tests.zoo.cli_helpers import fresh_process, linear_rows, run_zoo, write_csv
from zoo.budgets import BASELINES, BUDGETS
from zoo.cli.lists import shortened, width
from zoo.experiments.engine.catalogue import experiments
from zoo.models.densities import DENSITY_MODELS
from zoo.models.graphs.growth_models import GROWTH_MODELS
from zoo.papers import PAPERS
from zoo.registry.queries import GUIDES, MODELS
from zoo.version import __version__

COMMANDS = [
    [], ["list"], ["show"], ["data"], ["data", "list"], ["data", "show"], ["fit"], ["predict"],
    ["sample"], ["compare"],
]  # fmt: skip


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


def test_help_and_lists_do_not_wait_for_what_is_slow_to_import():
    code = """
import sys
from zoo.cli.main import app
for command in (
    ["--help"], ["compare", "--help"], ["list"], ["list", "--paper", "lbbnn"], ["show", "spike-slab-bnn"],
    ["data", "list"], ["data", "show", "boston"], ["reproduce", "--list"],
    ["reproduce", "sspbp/table-3.1", "--list"],
):
    app(command, standalone_mode=False)
slow = {"torch", "jax", "pyro", "numpyro", "sklearn", "scipy", "pandas", "arviz", "matplotlib", "guides"}
sys.exit(", ".join(sorted(slow & set(sys.modules))) or 0)
"""
    result = fresh_process(code)
    assert (result.returncode, result.stderr) == (0, "")
    for word in ("spike-slab-lenet", "sspbp-1-epoch", "gallstone", "lbbnn/simulation"):
        assert word in result.stdout


def test_version():
    assert run_zoo("--version").stdout.strip() == f"posterior-zoo {__version__}"


# ------------------------------------------------------------------------------------------ lists and show


def test_help_shows_the_main_job_and_every_list():
    text = run_zoo("--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    for words in ("compare diabetes", "list --paper", "data list", "reproduce --list", "show NAME"):
        assert f"zoo {words}" in text


def test_list_is_one_screen_with_a_line_an_entry():
    lines = run_zoo("list").stdout.splitlines()
    assert len(lines) <= 50  # five papers, at one line an entry
    assert max(map(len, lines)) <= 100
    first = [line.split()[0] for line in lines if line.startswith("  ")]
    assert first == [*PAPERS, *MODELS, *DENSITY_MODELS, *GROWTH_MODELS, *GUIDES]
    for entry in (*MODELS.values(), *GUIDES.values()):  # nothing is cut short
        (line,) = (line for line in lines if line.endswith(f"  {entry.summary}"))
        assert line.split()[:2] == [entry.name, entry.paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_list_of_a_paper_holds_all_that_came_with_it_and_nothing_else(paper):
    lines = run_zoo("list", "--paper", paper).stdout.splitlines()
    assert len(lines) <= 50  # five papers, at one line an entry
    assert max(map(len, lines)) <= 100
    first = {line.split()[0] for line in lines if line.startswith("  ")}
    entries = (*MODELS.values(), *DENSITY_MODELS.values(), *GROWTH_MODELS.values(), *GUIDES.values())
    expected = {entry.name for entry in entries if entry.paper == paper}
    assert first == {paper} | expected | {name for name in experiments() if name.startswith(f"{paper}/")}
    assert PAPERS[paper].citation in " ".join(" ".join(lines).split())


def test_unknown_paper_is_one_line_with_the_nearest():
    result = run_zoo("list", "--paper", "lbbn")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "zoo: unknown paper 'lbbn'; nearest: lbbnn\n"


def test_data_list_is_one_screen():
    lines = run_zoo("data", "list").stdout.splitlines()
    assert len(lines) <= 50  # five papers, at one line an entry
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines[2:] if line.startswith("  ")] == list_datasets()
    assert all(name in " ".join(lines[-6:]) for name in (*DENSITIES, *GRAPH_SETS))


def test_lists_are_cut_between_words_at_the_width_of_a_terminal(monkeypatch):
    assert shortened("one two", 7) == "one two"
    assert shortened("one two three", 11) == "one two ..."
    assert shortened("one, two three", 10) == "one ..."
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for columns, expected in (("90", 90), ("200", 100), ("40", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        assert width() == expected


def shown(name: str) -> str:
    """The card of a name on one line."""
    result = run_zoo("show", name)
    assert (result.exit_code, result.stderr) == (0, "")
    return " ".join(result.stdout.split())


def test_a_name_of_two_things_shows_both():
    cards = run_zoo("show", "concrete").stdout.split("\n\n")
    headings = [card.split("\n")[0].split() for card in cards]
    assert headings == [["data", "set", "concrete"], ["guide", "concrete"]]


def test_show_tells_all_of_a_model():
    text = shown("spike-slab-bnn")
    card = MODELS["spike-slab-bnn"].card
    for part in (card.law, card.assumes, card.cost, card.fails, PAPERS["lbbnn"].citation):
        assert " ".join(part.split()) in text
    assert text.startswith("model spike-slab-bnn is bnn with a spike and slab")
    assert "options --widths 50, --activation relu, --noise (not set), --inclusion 0.5" in text
    assert "--inclusion 0.5, --weight-scale 1.0, --bias-scale (not set) truth none" in text
    assert "guides mean-field, spike-slab, mnf, mnf-iaf, concrete, mvn published lbbnn/digits" in text
    assert 'zoo.models.create("spike-slab-bnn", in_features=13)' in text
    text = shown("bnn")
    assert "spike-slab (as spike-slab-bnn)" in text
    assert "pbp (regression; relu, leaky-relu)" in text


def test_show_tells_all_of_a_guide():
    text = shown("varbvs")
    card = GUIDES["varbvs"].card
    for part in (card.law, card.assumes, card.cost, card.fails, "Carbonetto and Stephens 2012"):
        assert " ".join(part.split()) in text
    assert "came with spike-slab-logistic" in text
    assert "models spike-slab-linear, spike-slab-logistic options none" in text
    assert "published lbbnn/simulation, lbbnn/correlations use" in text
    assert "note 40 passes over the data count it 40 times" in shown("pbp")
    assert "published lbbnn/simulation, lbbnn/correlations, lbbnn/digits" in shown("spike-slab")


def test_show_tells_all_of_a_data_set():
    text = shown("digits")
    assert "data set digits is multiclass, 1797 rows, 64 features" in text
    assert "pixel_0_0" in text
    assert "constant" in text
    assert "published lbbnn/digits" in text
    assert text == " ".join(run_zoo("data", "show", "digits").stdout.split())
    assert "published lbbnn/fmnist" in shown("fashion_mnist")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gas", "table gas is 8 columns, no target; 852174 rows"),
        ("dblp", "graphs dblp is 755 graphs, edges with times, 241674 lines of the file"),
        ("grid", "100 graphs, edges without times, 40333 lines of the file source github.com/harryjo97"),
    ],
)
def test_every_name_of_the_list_of_data_has_a_card(name, words):
    assert words in shown(name)
    assert shown(name) == " ".join(run_zoo("data", "show", name).stdout.split())


def test_data_show_takes_a_name_before_a_folder(tmp_path, monkeypatch):
    (tmp_path / "grid").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run_zoo("data", "show", "grid").stdout.startswith("graphs      grid")


def test_data_show_names_the_nearest_set():
    result = run_zoo("data", "show", "dbpl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "zoo: unknown data set 'dbpl'; nearest: dblp\n"


def test_show_tells_all_of_an_experiment():
    text = shown("sspbp/table-3.1")
    assert "Table 3.1" in text
    assert "methods pbp, sspbp, same" in text
    assert "mmd2: biased estimate" in text
    assert "numbers 15 published" in text
    assert text == " ".join(run_zoo("reproduce", "sspbp/table-3.1", "--list").stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *GUIDES, *experiments(), *list_datasets()])
def test_every_card_fits_a_hundred_columns(name):
    lines = [line for line in run_zoo("show", name).stdout.splitlines() if "http" not in line]
    assert lines
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("spike-slab-bn", "spike-slab-bnn"),
        ("mean-feld", "mean-field"),
        ("bostn", "boston"),
        ("sspbp/tabel-3.3", "sspbp/table-3.3"),
    ],
)
def test_show_of_an_unknown_name_is_one_line_with_the_nearest_of_all_kinds(name, nearest):
    result = run_zoo("show", name)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"zoo: unknown name '{name}'; nearest: ")
    assert nearest in line


def test_show_of_a_name_that_is_near_to_none_says_where_names_are():
    assert "zoo list" in run_zoo("show", "qqqqqq").stderr


def test_data_fetch_prints_where_a_set_is():
    result = run_zoo("data", "fetch", "diabetes")
    assert result.exit_code == 0
    assert "sklearn" in result.stdout


def test_an_option_that_is_no_number_is_named():
    result = run_zoo("fit", "diabetes", "--seed", "abc", "--out", "nowhere")
    assert result.exit_code == 2
    assert "--seed" in result.stderr


def test_ctrl_c_before_the_command_begins_is_a_line():
    code = """
import builtins
kept = builtins.__import__
def interrupted(name, *args, **kwargs):
    if name == "typer":
        raise KeyboardInterrupt
    return kept(name, *args, **kwargs)
builtins.__import__ = interrupted
from zoo.__main__ import main
main()
"""
    told = fresh_process(code, "list")
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "zoo: interrupted\n")


@pytest.mark.slow
def test_nothing_but_text_goes_into_a_pipe(tmp_path):
    """A fresh process whose output is no terminal: no escape sequences, no progress bar, no warnings."""
    table = write_csv(tmp_path / "table.csv", linear_rows())
    command = ["fit", table, "--steps", 30, "--widths", 3, "--out", tmp_path / "out"]
    result = fresh_process("from zoo.cli.main import main; main()", *command)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "30 steps" in result.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", result.stdout)


@pytest.mark.slow
def test_torch_uses_one_thread_unless_told_otherwise(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows())
    code = """
import os, sys, torch
torch.set_num_threads(2)
os.environ.pop("OMP_NUM_THREADS", None)
import zoo.commands.predict
from zoo.cli.main import app
zoo.commands.predict.held_out = lambda *args: torch.get_num_threads()
app(standalone_mode=False)
print(torch.get_num_threads())
os.environ["OMP_NUM_THREADS"] = "2"
sys.argv[-1] += "-2"
app(standalone_mode=False)
"""
    command = ["fit", table, "--steps", 2, "--widths", 2, "--out", tmp_path / "out"]
    done = fresh_process(code, *command)
    words = [line for line in done.stdout.splitlines() if line in ("1", "2")]
    assert done.returncode == 0, done.stderr
    assert words == ["1", "2", "2"]  # while it works, afterwards, and where torch was told at its import


def test_fit_says_what_it_has_done_and_what_is_odd(tmp_path):
    """Rows held out, how well they are predicted; a constant column is told, and used."""
    table = write_csv(tmp_path / "table.csv", [[row[0], 7.0, row[2]] for row in linear_rows(60)])
    result = run_zoo("fit", table, "--steps", 5, "--widths", 2, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert re.search(r"54 rows fitted, 6 held out: RMSE \S+ ± \S+, log-likelihood \S+ ± \S+", result.stdout)
    assert "constant columns: b" in result.stdout


def test_reference_of_a_table_takes_its_target(tmp_path, monkeypatch):
    asked = []

    def keep(comparison, folder):
        asked.append(comparison)
        (folder / "a.nc").write_bytes(b"")
        return folder / "a.nc", {"max_rhat": 1.0, "min_ess_bulk": 500.0, "divergences": 0}

    monkeypatch.setattr("zoo.commands.reference.keep_reference", keep)
    table = write_csv(tmp_path / "table.csv", linear_rows())
    assert run_zoo("reference", table, "--target", "a", "--out", tmp_path).exit_code == 0
    assert asked[0].problem.dataset.target_name == "a"
