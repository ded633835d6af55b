"""What ``zoo compare`` writes: every file, every column, true statuses."""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

import guides.truth.mcmc
import zoo.commands.comparison
import zoo.files.output
from data_loaders import TableOptions
from guides.core.flat_guide import FlatGuide
from guides.posterior.arviz_io import group_names, load_netcdf, save_netcdf
from guides.posterior.draws import Posterior
from tests.zoo.cli_helpers import (
    ALWAYS,
    COLUMNS,
    DISTANCES,
    PREDICTIVE,
    TINY,
    files,
    linear_rows,
    run_zoo,
    table_of,
    write_csv,
)
from tests.zoo.commands.compare.tables import compare_again
from tests.zoo.scoreboards import read_scoreboard
from zoo.commands.comparison import ask, plan
from zoo.evaluation.verdict import verdict
from zoo.files.output import differences, output_folder
from zoo.fitting.problem import load_problem
from zoo.models import create
from zoo.seeds import stable_seed


@pytest.mark.slow
def test_every_file_is_there(graded):
    folder, result = graded
    assert files(folder / "out") == ALWAYS | {"reference.nc", "mean-field.nc", "spike-slab.nc", "scatter.png"}
    for path in (folder / "out").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert "# " not in (folder / "out" / "scoreboard.md").read_text()[:2]
    assert result.stderr == ""


def test_scoreboard_says_how_it_was_made(graded):
    """No command of a file of the user's: what was said about its columns is not known."""
    folder, _ = graded
    first, second, third, blank, table = (folder / "out" / "scoreboard.md").read_text().splitlines()[:5]
    assert first.startswith("- data table, target y, 10 % held out; model bnn, ")
    assert "widths [3]" in first
    assert second.startswith("- reference nuts; ")
    assert second.endswith("; one fit of each guide, split 0, seed 7")
    assert "torch 2." in third
    assert blank == ""
    assert table.startswith("| method |")


def test_the_share_held_out_is_part_of_the_question(tmp_path):
    asked = {"guides": ["mean-field"], "reference": "none"}
    usual, fifth = ask("diabetes", **asked), ask("diabetes", **asked, holdout=0.2)
    assert "--holdout" not in usual.facts(tmp_path)[0]
    assert "--holdout 0.2 " in fifth.facts(tmp_path)[0]
    assert fifth.facts(tmp_path)[1].startswith("data diabetes, 20 % held out; model bnn, ")
    whole = ask("raisin", **asked)
    assert "--holdout" not in whole.facts(tmp_path)[0]  # nobody can hold out any
    assert "held out" not in whole.facts(tmp_path)[1]
    assert fifth.config()["protocol"] == "80/20"
    first, second = differences(usual.config(), fifth.config()), differences(fifth.config(), usual.config())
    assert first[0] == "protocol is not set there, 80/20 here"
    assert second[0] == "protocol is 80/20 there, not set here"


def test_another_target_of_a_table_is_refused_by_its_name(tmp_path):
    rows = [[a, "yx"[a > 0], b, y] for a, b, y in linear_rows(30)]
    table = write_csv(tmp_path / "reg.csv", rows, "a,kind,b,price")

    def asked(**options):
        return ask(str(table), guides=["mean-field"], reference="none", **options)

    fifth = asked(holdout=0.2)
    assert fifth.facts(tmp_path)[0].startswith("data reg, target price, 20 % held out; model bnn, ")
    assert fifth.config()["table"] == fifth.problem.dataset.recipe.to_dict()
    assert differences(asked().config(), asked(target="a").config())[0] == "target is price there, a here"
    dropped = asked(table=TableOptions(drop=("b",)))
    assert "table dropped is none there, b here" in differences(asked().config(), dropped.config())
    plain = asked(table=TableOptions(drop=("kind",)), target="a").config()
    with output_folder(tmp_path / "out", plain):
        pass
    told = run_zoo("compare", table, "--drop", "kind", "--reference", "none", "--out", tmp_path / "out")
    assert (told.exit_code, "another run (target is a there, price here;" in told.stderr) == (2, True)


def test_scoreboard_tells_all_versions_of_its_folder(tmp_path, monkeypatch):
    asked = ask("diabetes", guides=["mean-field"], reference="none")
    for number in ("2.11.0", "2.13.0+cpu"):
        monkeypatch.setattr(zoo.files.output, "versions", lambda number=number: {"torch": number})
        with output_folder(tmp_path / "out", asked.config()) as folder:
            facts = asked.facts(folder)
    assert facts[-1] == "torch 2.11.0, 2.13.0+cpu"


@pytest.mark.parametrize("steps", [None, 70])
def test_command_of_a_scoreboard_asks_for_the_same(steps):
    wishes = {"guides": ["mean-field", "pbp"], "model": "pbp-bnn", "reference": "none", "steps": steps}
    asked = ask("diabetes", **wishes, seed=3, split=1)
    command = asked.facts(Path("out/x"))[0].removeprefix("made by: `").removesuffix("`")
    words = command.split()
    assert words[:3] == ["zoo", "compare", "diabetes"]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert flags.pop("--out") == "out/x"
    wishes = {name.removeprefix("--"): value for name, value in flags.items()}
    assert wishes.get("steps") == (steps and str(steps))
    wishes |= {name: int(wishes[name]) for name in ("seed", "split", "steps") if name in wishes}
    wishes["guides"] = wishes["guides"].split(",")
    assert ask("diabetes", **wishes).config() == asked.config()
    assert not any("zoo compare" in line for line in ask("diabetes", widths=[3]).facts(Path("out/x")))


def test_command_of_several_splits_and_seeds_names_them():
    head = ask("diabetes", guides=["pbp"], model="pbp-bnn", reference="none", split=1).facts(Path("x"), 3, 2)
    assert head[0].endswith("--split 1 --splits 3 --seeds 2 --out x`")
    assert head[2].endswith("; splits 1 to 3, seeds 0 to 1")


def test_rows_columns_and_statuses(graded):
    table = table_of(graded[0] / "out")
    assert list(table) == ["nuts", "mean-field", "spike-slab"]
    assert [row["model"] for row in table.values()] == ["bnn", "bnn", "spike-slab-bnn"]
    assert [row["status"] for row in table.values()] == ["ok", "ok", "ok"]
    assert re.fullmatch(r"R-hat .*, bulk ESS .*, \d+ divergences, 1 attempt", table["nuts"]["note"])
    assert table["mean-field"]["note"] == ""
    assert table["spike-slab"]["note"] == "fits spike-slab-bnn: the guide needs a spike-and-slab prior"


def test_a_figure_that_does_not_exist_is_empty(graded):
    table = table_of(graded[0] / "out")
    for method, row in table.items():
        guide = method != "nuts"
        expected = {*PREDICTIVE, "fit_seconds"}
        expected |= (
            {*DISTANCES, "ref_log_likelihood", "elbo", "bound_change", "pareto_k", "num_parameters"}
            if guide
            else set()
        )
        expected |= {"density_mean", "density_half"} if method == "spike-slab" else set()
        assert {name for name in COLUMNS[4:] if row[name]} == expected, method
        assert all(math.isfinite(float(row[name])) for name in expected - {"pareto_k"})


@pytest.mark.slow
def test_figures_are_in_units_of_the_target(tmp_path):
    """The target times 1024: rmse and crps as many times as large, distances and coverage the same."""
    tables = []
    for factor in (1, 1024):
        rows = [[a, b, factor * y] for a, b, y in linear_rows(40)]
        table = write_csv(tmp_path / f"t{factor}.csv", rows)
        out = tmp_path / f"out{factor}"
        options = ["--model", "spike-slab-linear", "--guides", "spike-slab", "--out", out]
        assert run_zoo("compare", table, *options).exit_code == 0
        tables.append(table_of(out)["spike-slab"])
    small, large = ({name: float(row[name]) for name in COLUMNS[4:] if row[name]} for row in tables)
    for name in ("rmse", "rmse_se", "crps", "crps_se"):
        assert large[name] == pytest.approx(1024 * small[name], rel=1e-4)
    assert large["log_likelihood"] == pytest.approx(small["log_likelihood"] - math.log(1024), rel=1e-4)
    for name in ("coverage_90", *DISTANCES, "ref_pip_rmse", "elbo"):
        assert large[name] == pytest.approx(small[name], rel=1e-4)


def test_config_carries_the_question_and_the_versions(graded):
    config = json.loads((graded[0] / "out" / "config.json").read_text())
    assert config["seed"] == 7
    assert config["budget"]["steps"] == TINY.steps
    assert config["options"]["widths"] == [3]
    assert config["guides"] == ["mean-field", "spike-slab"]
    assert config["reference"] == "nuts"
    assert {"python", "torch", "pyro-ppl", "numpyro", "jax", "arviz"} <= set(config["versions"])


def test_table_on_the_terminal_fits_eighty_columns(graded):
    _, result = graded
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80
    assert "\x1b" not in result.output
    for word in ("nuts", "mean-field", "spike-slab", "RMSE", "sd ratio"):
        assert word in result.stdout


def test_verdict_stands_on_the_terminal_and_below_the_table(graded):
    folder, result = graded
    sentences = verdict(read_scoreboard(folder / "out"))
    assert sentences[0].startswith("Nearest to the truth: ")
    text = (folder / "out" / "scoreboard.md").read_text()
    printed = " ".join(result.stdout.split())
    for sentence in sentences:
        assert sentence in text
        assert sentence in printed


def test_difference_to_the_truth_is_paired(graded):
    table = table_of(graded[0] / "out")
    errors = read_scoreboard(graded[0] / "out")
    for row in errors[1:]:
        gap = float(table[row.method]["log_likelihood"]) - float(table["nuts"]["log_likelihood"])
        assert row.ref_log_likelihood == pytest.approx(gap, abs=1e-9)
        assert row.standard_errors["ref_log_likelihood"] > 0


def test_saved_draws_are_an_arviz_posterior(graded):
    out = graded[0] / "out"
    model = create("spike-slab-bnn", in_features=2, widths=(3,))
    posterior = Posterior.load(out / "spike-slab.nc", model)
    assert len(posterior) == TINY.draws
    assert (posterior.draws()["w1"] == 0).any()  # exact zeros
    assert posterior.info["settings"]["seed"] == stable_seed("fit", 7, "spike-slab")
    reference = Posterior.load(out / "reference.nc", model)
    assert reference.sites["w1"].shape[0] == TINY.chains


@pytest.mark.slow
def test_no_two_guides_and_no_two_purposes_share_a_seed(graded, tmp_path, monkeypatch, seeds_given):
    """Of fits, of draws from them, of bounds and of replicates."""
    seeds, draw = seeds_given, FlatGuide._generator
    monkeypatch.setattr(FlatGuide, "_generator", lambda self, seed: (seeds.append(seed), draw(self, seed))[1])
    words = ["--widths", 3, "--reference", "none", "--out", tmp_path / "out"]
    assert run_zoo("compare", graded[0] / "table.csv", *words).exit_code == 0
    found = set(seeds) - {0}  # 0: of set-up runs that are compared with each other
    assert len(found) == 2 * 4
    for name in ("mean-field", "spike-slab"):
        assert {stable_seed("steps", stable_seed("fit", 0, name)), stable_seed("draws", 0, name)} < found


GROUPS = ("log_likelihood", "posterior_predictive", "observed_data", "prior", "prior_predictive")


@pytest.fixture
def arviz():
    """Made quiet: these chains are far too short for its checks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        matplotlib.use("Agg")

        yield arviz


def test_every_file_of_draws_is_ready_for_arviz(graded, arviz):
    """Model comparison and predictive checks, the reference beside the guides."""
    folder, _ = graded
    problem = load_problem(str(folder / "table.csv"))
    found = {name: arviz.from_netcdf(folder / "out" / f"{name}.nc") for name in ("reference", "mean-field")}
    for name, idata in found.items():
        chains, draws = (TINY.chains, TINY.mcmc_draws) if name == "reference" else (1, TINY.draws)
        shape = (chains, draws, problem.size)
        assert idata["log_likelihood"]["y"].shape == idata["posterior_predictive"]["y"].shape == shape
        np.testing.assert_array_equal(idata["observed_data"]["y"], problem.y)
        assert idata["prior"]["w1"].shape == (1, TINY.draws, 3, 2)
        assert idata["prior_predictive"]["y"].shape == (1, TINY.draws, problem.size)
    model = create("bnn", in_features=2, widths=(3,))
    reference = Posterior.load(folder / "out" / "reference.nc", model)
    expected = reference.log_likelihood(problem.x, observed_data={"y": problem.y})["y"]
    stored = found["reference"]["log_likelihood"]["y"].values
    np.testing.assert_allclose(stored.reshape(-1, problem.size), expected, rtol=1e-5)
    assert set(arviz.compare(found).index) == set(found)
    arviz.plot_ppc(found["reference"], num_pp_samples=5)
    arviz.plot_ppc(found["reference"], group="prior", num_pp_samples=5)
    matplotlib.pyplot.close("all")


@pytest.mark.slow
def test_a_reference_of_an_earlier_call_gets_the_groups_that_it_lacks(graded, tmp_path, monkeypatch):
    folder, _ = graded
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    whole = load_netcdf(out / "reference.nc")
    for group in GROUPS:
        del whole[group]
    save_netcdf(whole, out / "reference.nc")
    monkeypatch.setattr(guides.truth.mcmc, "_gated", lambda *a, **k: pytest.fail("NUTS ran again"))
    assert compare_again(folder, out, monkeypatch).exit_code == 0
    again, first = load_netcdf(out / "reference.nc"), load_netcdf(folder / "out" / "reference.nc")
    assert set(GROUPS) < set(group_names(again))
    for group in group_names(first):  # replicates and prior draws have a seed
        assert again[group].equals(first[group])


def test_many_rows_are_scored_for_evenly_spaced_draws(tmp_path, monkeypatch):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(40))))
    words = {"model": "spike-slab-linear", "guides": ["spike-slab"], "reference": "none", "budget": "quick"}
    comparison = plan("table", problem, options={}, seed=0, **words)
    draws = {"w": torch.randn(3, 50, 2), "noise_precision": torch.ones(3, 50)}
    posterior = Posterior(comparison.build(comparison.entry), draws)
    monkeypatch.setattr(zoo.commands.comparison, "LARGEST_GROUP", problem.size * 60)
    monkeypatch.setattr(zoo.commands.comparison, "FEWEST_DRAWS", 60)
    comparison.save(posterior, tmp_path / "some.nc")
    some = load_netcdf(tmp_path / "some.nc")
    assert some["posterior"]["w"].shape == (3, 50, 2)
    assert list(some["log_likelihood"]["draw"].values) == list(range(0, 50, 3))
    kept = Posterior(posterior.model, {name: value[:, ::3] for name, value in draws.items()})
    expected = kept.log_likelihood(problem.x, observed_data={"y": problem.y})["y"].reshape(3, 17, -1)
    np.testing.assert_allclose(some["log_likelihood"]["y"], expected, rtol=1e-5)
    monkeypatch.setattr(zoo.commands.comparison, "FEWEST_DRAWS", 61)
    comparison.save(posterior, tmp_path / "none.nc")
    assert group_names(load_netcdf(tmp_path / "none.nc")) == ["posterior"]
