"""The main job: every file, every column, true statuses, and work that is never done twice."""

from __future__ import annotations

import csv
import functools
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

import guides.truth.mcmc
import zoo.commands.compare
import zoo.commands.comparison
import zoo.commands.reference
import zoo.files.kept
from guides.core.flat_guide import FlatGuide
from guides.posterior.arviz_io import group_names, load_netcdf, save_netcdf
from guides.posterior.draws import Posterior
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
    make_tiny,
    run_zoo,
    table_of,
    write_csv,
)
from zoo.budgets import BUDGETS, Budget
from zoo.commands.comparison import ask, plan
from zoo.commands.grading import Graded, grade
from zoo.errors import FailedError, UserError
from zoo.evaluation.scoreboard import read_scoreboard
from zoo.evaluation.verdict import verdict
from zoo.fitting.problem import load_problem
from zoo.fitting.svi import Fit
from zoo.models import create
from zoo.seeds import stable_seed

NO_GATES = Gates(max_rhat=99, min_ess_bulk=0, max_divergence_share=1)
SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    make_tiny(monkeypatch)


@pytest.fixture
def pictures(_tiny, monkeypatch):
    """This test looks at the pictures."""
    make_tiny(monkeypatch, pictures=True)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """``zoo compare`` on a table of two features, with gates that every chain passes."""
    folder = tmp_path_factory.mktemp("graded")
    table = write_csv(folder / "table.csv", linear_rows(40))
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch, pictures=True)
        patch.setattr(zoo.commands.reference, "nuts", functools.partial(nuts, gates=NO_GATES))
        result = run_zoo("compare", table, "--widths", 3, "--seed", 7, "--out", folder / "out")
    assert result.exit_code == 0, result.output
    return folder, result


def compare_again(folder: Path, out: Path, monkeypatch):
    monkeypatch.setattr(zoo.commands.reference, "nuts", functools.partial(nuts, gates=NO_GATES))
    return run_zoo("compare", folder / "table.csv", "--widths", 3, "--seed", 7, "--out", out)


# ------------------------------------------------------------------------------------- what is written


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
    assert first.startswith("- data table; model bnn, ")
    assert "widths [3]" in first
    assert second.startswith("- reference nuts; ")
    assert second.endswith("; one fit of each guide, split 0, seed 7")
    assert "torch 2." in third
    assert blank == ""
    assert table.startswith("| method |")


def test_command_of_a_scoreboard_asks_for_the_same():
    asked = ask("diabetes", guides=["mean-field", "pbp"], model="pbp-bnn", reference="none", seed=3, split=1)
    command = asked.facts(Path("out/x"))[0].removeprefix("made by: `").removesuffix("`")
    words = command.split()
    assert words[:3] == ["zoo", "compare", "diabetes"]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert flags.pop("--out") == "out/x"
    wishes = {name.removeprefix("--"): value for name, value in flags.items()}
    wishes |= {name: int(wishes[name]) for name in ("seed", "split")}
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
def test_no_two_guides_and_no_two_purposes_share_a_seed(graded, tmp_path, monkeypatch):
    """Of fits, of draws from them, of bounds and of replicates."""
    seeds, seed_torch = [], torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: (seeds.append(seed), seed_torch(seed))[1])
    draw = FlatGuide._generator
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


# ------------------------------------------------------------------------------------- nothing twice


@pytest.mark.slow
def test_second_call_reads_everything(graded, monkeypatch):
    folder, first = graded
    before = (folder / "out" / "scoreboard.csv").read_bytes()
    monkeypatch.setattr(Fit, "run", lambda *a, **k: pytest.fail("a guide was fitted again"))
    monkeypatch.setattr(guides.truth.mcmc, "_gated", lambda *a, **k: pytest.fail("NUTS ran again"))
    result = compare_again(folder, folder / "out", monkeypatch)
    assert result.exit_code == 0
    assert (folder / "out" / "scoreboard.csv").read_bytes() == before
    assert result.stdout == first.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["empty", SLOW("lost"), SLOW("truncated"), SLOW("altered"), SLOW("other versions")]
)
def test_damaged_result_is_made_again_and_the_others_kept(graded, damage, tmp_path, monkeypatch):
    make_tiny(monkeypatch, pictures=damage == "lost")
    folder, _ = graded
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    whole = (out / "mean-field.nc").read_bytes()
    kept = {name: (out / name).stat().st_mtime_ns for name in ("spike-slab.nc", "reference.nc")}
    if damage == "lost":
        (out / "mean-field.nc").unlink()
        for name in ("scoreboard.csv", "scoreboard.png", "scatter.png"):
            (out / name).unlink()
    elif damage == "other versions":
        monkeypatch.setattr(zoo.files.kept, "versions", lambda: {"torch": "0"})
        kept.pop("spike-slab.nc")
    else:
        altered = re.sub(rb'"fit_seconds": \d', b'"fit_seconds": 9', whole)
        content = {"truncated": whole[: len(whole) // 2], "empty": b"", "altered": altered}[damage]
        assert content != whole
        (out / "mean-field.nc").write_bytes(content)
        (out / "scoreboard.csv").write_text("method,mo")
    fitted = []
    fit = Fit.run
    monkeypatch.setattr(Fit, "run", lambda self, **k: (fitted.append(k["label"]), fit(self, **k))[1])
    assert compare_again(folder, out, monkeypatch).exit_code == 0
    assert fitted == (["mean-field", "spike-slab"] if damage == "other versions" else ["mean-field"])
    assert all((out / name).stat().st_mtime_ns == time for name, time in kept.items())
    assert files(out) == files(folder / "out")
    before, after = table_of(folder / "out"), table_of(out)
    assert float(after["mean-field"]["fit_seconds"]) < 9
    for method, row in after.items():  # the same seed: the same figures
        row["fit_seconds"] = before[method]["fit_seconds"]
    assert after == before


def test_folder_of_another_question_is_refused_and_untouched(graded, monkeypatch):
    folder, _ = graded
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    for changed in (["--seed", 8], ["--widths", 4], ["--guides", "mean-field"], ["--split", 1]):
        options = {"--seed": 7, "--widths": 3, **dict([changed])}
        words = [word for pair in options.items() for word in pair]
        result = run_zoo("compare", folder / "table.csv", *words, "--out", folder / "out")
        assert result.exit_code == 2
        assert "belongs to another run" in result.stderr
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == before


KILLED = """
import os, signal
from zoo.budgets import BUDGETS, Budget
BUDGETS["quick"] = Budget(steps=20, draws=50, warmup=5, mcmc_draws=5)
import zoo.commands.compare
fit = zoo.commands.compare.fit_guide

def fit_guide(comparison, name, *args):
    if name == "spike-slab":
        os.kill(os.getpid(), signal.SIGKILL)
    return fit(comparison, name, *args)

zoo.commands.compare.fit_guide = fit_guide
from zoo.cli.main import main
main()
"""


@pytest.mark.slow
def test_killed_comparison_keeps_the_finished_guides(tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", Budget(steps=20, draws=50, warmup=5, mcmc_draws=5))
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    command = ["compare", table, "--reference", "none", "--widths", 2, "--out", tmp_path / "out"]
    result = fresh_process(KILLED, *command)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert "Traceback" not in result.stderr
    assert_resumed(command, tmp_path / "out")


STOPPED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from zoo.budgets import BUDGETS, Budget
BUDGETS["quick"] = Budget(steps=20, draws=50, warmup=100_000, mcmc_draws=100)
from guides.truth import samplers
at = sys.argv.pop(1)
step = getattr(samplers, at)

def marked(*args):
    os.write(1, b"here\\n")  # whole lines, also of two chains
    return step(*args)

setattr(samplers, at, marked)
from zoo.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("at", "presses"), [("_compile", 1), ("_run_chain", 3)])
def test_ctrl_c_in_nuts_ends_cleanly_and_says_what_is_kept(at, presses, tmp_path):
    table, out = write_csv(tmp_path / "table.csv", linear_rows(30)), tmp_path / "out"
    words = ["-W", "error", "-c", STOPPED, at, "compare", str(table), "--widths", "3", "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *words], **pipes) as process:
        assert process.stdout.readline() == "here\n"
        for _ in range(presses):
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    kept = f"{out} keeps config.json, the same command begins again"
    assert (process.returncode, errors) == (130, f"zoo: interrupted before a result was finished: {kept}\n")
    assert files(out) == {"config.json"}


@pytest.mark.slow
def test_comparison_that_is_stopped_goes_on_from_the_finished_guides(tmp_path, monkeypatch):
    """In this process; others end one from outside."""
    fit = zoo.commands.compare.fit_guide

    def stop(comparison, name, *args):
        if name == "spike-slab":
            raise KeyboardInterrupt
        return fit(comparison, name, *args)

    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    command = ["compare", table, "--reference", "none", "--widths", 2, "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr(zoo.commands.compare, "fit_guide", stop)
        result = run_zoo(*command)
    assert (result.exit_code, result.stdout) == (130, "")
    out = tmp_path / "out"
    kept = f"{out} keeps mean-field.nc, and the same command goes on from there"
    assert result.stderr == f"zoo: interrupted; {kept}\n"
    assert_resumed(command, tmp_path / "out")


def assert_resumed(command: list, out: Path) -> None:
    """The first guide is finished and alone; the same call fits the second one and no other."""
    assert files(out) == {"config.json", "mean-field.nc"}
    before = (out / "mean-field.nc").stat().st_mtime_ns
    assert run_zoo(*command).exit_code == 0
    assert (out / "mean-field.nc").stat().st_mtime_ns == before
    assert list(table_of(out)) == ["mean-field", "spike-slab"]


@pytest.mark.slow
def test_other_seed_other_figures(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    found = []
    for seed, name in ((1, "a"), (2, "b")):
        options = ["--reference", "none", "--guides", "mean-field", "--widths", 2, "--seed", seed]
        run_zoo("compare", table, *options, "--out", tmp_path / name)
        row = table_of(tmp_path / name)["mean-field"]
        row.pop("fit_seconds")
        found.append(row)
    assert found[0]["elbo"] != found[1]["elbo"]


# ------------------------------------------------------------------------------------- failures are rows


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


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_predictions_that_are_not_finite_make_a_failed_row(value, tmp_path):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    model = create("spike-slab-linear", in_features=2)
    draws = {"w": torch.randn(50, 2), "noise_precision": torch.ones(50)}
    good = Graded("good", "m", Posterior.from_draws(model, draws), {"elbo": -1.0})
    assert grade(problem, good, None).status == "ok"
    draws["w"][3, 1] = value
    row = grade(problem, Graded("bad", "m", Posterior.from_draws(model, draws), {"elbo": -1.0}), good)
    assert row.status.startswith("failed: ")
    assert "finite" in row.status
    assert (row.rmse, row.ref_w1, row.elbo) == (None, None, None)


# ------------------------------------------------------------------------------------- other kinds of data


@pytest.mark.parametrize("constant", [SLOW(False), True])
@pytest.mark.slow
def test_one_input_gets_bands_even_if_it_is_constant(constant, tmp_path, pictures):
    rows = [[5.0 if constant else a, y] for a, _, y in linear_rows(30)]
    table, out = write_csv(tmp_path / "table.csv", rows, "x,y"), tmp_path / "out"
    options = ["--reference", "none", "--widths", 2, "--guides", "mean-field", "--out", out]
    assert run_zoo("compare", table, *options).exit_code == 0
    assert files(out) == ALWAYS | {"mean-field.nc", "bands.png"}


@pytest.mark.slow
@pytest.mark.parametrize(("data", "classes"), [("breast_cancer", 2), SLOW("digits", 10)])
def test_classes_have_accuracy_and_calibration(data, classes, tmp_path):
    options = ["--reference", "none", "--widths", 3, "--out", tmp_path / "out"]
    assert run_zoo("compare", data, *options).exit_code == 0
    for row in table_of(tmp_path / "out").values():
        assert row["status"] == "ok"
        assert all(row[name] for name in ("log_likelihood", "accuracy", "ece", "elbo"))
        assert not any(row[name] for name in ("rmse", "crps", "coverage_90"))
        assert float(row["log_likelihood"]) > -2 * math.log(classes)


@pytest.mark.slow
def test_model_without_a_second_guide_is_compared_with_the_one_that_applies(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    options = ["--model", "pbp-bnn", "--reference", "none", "--widths", 2, "--out", tmp_path / "out"]
    assert run_zoo("compare", table, *options).exit_code == 0
    assert list(table_of(tmp_path / "out")) == ["mean-field"]


@pytest.mark.slow
def test_known_noise_is_given_in_units_of_the_target(tmp_path):
    rows = [[a, b, 100 * y] for a, b, y in linear_rows(40)]
    table = write_csv(tmp_path / "table.csv", rows)
    options = [
        "--reference",
        "none",
        "--guides",
        "mean-field",
        "--noise",
        10,
        "--widths",
        2,
        "--out",
        tmp_path / "out",
    ]
    assert run_zoo("compare", table, *options).exit_code == 0
    scale = load_problem(str(table)).scale
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["options"]["noise_scale"] * scale.y_sd == pytest.approx(10)
    posterior = Posterior.load(tmp_path / "out" / "mean-field.nc", None)
    assert "noise_precision" not in posterior.sites


def test_plan_refuses_before_anything_is_written(tmp_path):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    words = {"model": "bnn", "guides": ["mean-field"], "reference": None, "budget": "quick", "seed": 0}
    for key, value in (("model", "x"), ("guides", ["x"]), ("reference", "exact"), ("budget", "x")):
        with pytest.raises(UserError):
            plan("table", problem, options={}, **{**words, key: value})


def test_the_gates_look_at_the_precisions_too(monkeypatch, tmp_path):
    seen = []

    def look(twin, args, *, function, **settings):
        draws = {"w1": np.zeros((4, 3, 2)), "b1": np.zeros((4, 3)), "w2": np.zeros((4, 1, 3))}
        draws |= {"b2": np.zeros((4, 1)), "noise_precision": np.array([1.0, 2.0, 3.0, 4.0])}
        seen.append(function({name: value.astype(np.float32) for name, value in draws.items()}))
        raise ValueError("seen")

    monkeypatch.setattr(zoo.commands.reference, "nuts", look)
    table = write_csv(tmp_path / "table.csv", linear_rows(40))
    problem = load_problem(str(table))
    options = {"widths": (3,)}
    comparison = plan(
        "t", problem, model="bnn", guides=[], reference="nuts", budget="quick", seed=0, options=options
    )
    assert zoo.commands.reference.reference_posterior(comparison, tmp_path).status == "failed: seen"
    assert seen[0].shape == (4, len(problem.x_test) + 1)
    np.testing.assert_array_equal(seen[0][:, -1], [1, 2, 3, 4])
