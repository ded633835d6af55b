"""A method that is no variational inference: what it cannot answer stays empty, what it knows better is used.

The methods here are made up, so that every number they say can be told from every other.  Figures are drawn
only where a test looks at them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyro import poutine
from torch.distributions import Normal

import zoo.commands.compare
from guides.posterior.draws import Posterior
from tests.zoo.cli_helpers import (
    ALWAYS,
    COLUMNS,
    PREDICTIVE,
    TINY,
    files,
    linear_rows,
    run_zoo,
    table_of,
    write_csv,
)
from zoo.budgets import BUDGETS
from zoo.commands.grading import TWO_LAWS, Graded, Scored, grade
from zoo.errors import FailedError, UserError
from zoo.files.sealed import is_finished, read_seal, seal_of, write_seal
from zoo.fitting.methods import UNWATCHED, Fitted, unfinished
from zoo.fitting.problem import load_problem
from zoo.models import create
from zoo.models.entries import Card
from zoo.registry.queries import GUIDES, GuideEntry, with_companions
from zoo.seeds import stable_seed

DRAWS = 20


@dataclass(frozen=True)
class Seeded:
    seed: int


def prior_draws(model: Callable, x: torch.Tensor, n: int, seed: int) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        traces = [poutine.trace(model).get_trace(x) for _ in range(n)]
    names = [name for name in traces[0].stochastic_nodes if name not in ("y", "data")]
    return {name: torch.stack([trace.nodes[name]["value"] for trace in traces]) for name in names}


@dataclass(frozen=True)
class DrawsOnly:
    """The prior, as a sampler would give it: draws and nothing else."""

    takes: tuple[str, ...] = ()

    def settings(self, rows: int, seed: int, **wishes: object) -> Seeded:
        return Seeded(seed)

    def fit(self, model, data, settings, *, file=None, watch=UNWATCHED) -> Fitted:
        return Fitted(
            model,
            lambda n, seed: prior_draws(model, data[0], n, seed),
            num_parameters=0,
            seconds=0.5,
            summary="drew the prior",
        )


@dataclass(frozen=True)
class Level:
    """Predicts one number everywhere, in closed form."""

    level: float

    def predictive(self, x: torch.Tensor) -> Normal:
        return Normal(torch.full((len(x),), self.level), torch.tensor(0.25))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"level": self.level}))


@dataclass(frozen=True)
class ClosedForm(DrawsOnly):
    """The same level for all data; kept in a file with a seal."""

    def fit(self, model, data, settings, *, file=None, watch=UNWATCHED) -> Fitted:
        guess = Level(0.375)
        if file is not None:
            guess.save(file.path)
            write_seal(file.path, file.about)
        return self._fitted(model, guess)

    def about(self, path: Path) -> dict:
        if not seal_of(path).exists():
            raise unfinished(path)
        return read_seal(path)

    def load(self, path: Path, model: Callable) -> Fitted:
        return self._fitted(model, Level(json.loads(path.read_text())["level"]))

    def _fitted(self, model: Callable, guess: Level) -> Fitted:
        x = torch.zeros(1, 2)
        return Fitted(
            model,
            lambda n, seed: prior_draws(model, x, n, seed),
            num_parameters=1,
            seconds=0.5,
            summary="guessed a level",
            closed_form=guess,
        )


def entry(name: str, method: DrawsOnly, **more: object) -> GuideEntry:
    card = Card(law="", assumes="", cost="", fails="")
    return GuideEntry(
        name, "made up", lambda: method, paper="sspbp", model="pbp-bnn", code="", card=card, **more
    )


@pytest.fixture(scope="module", autouse=True)
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUDGETS, "quick", replace(TINY, draws=DRAWS))
        patch.setitem(GUIDES.ours, "draws", entry("draws", DrawsOnly(), note="a sampler"))
        beside = ("level-too",)
        patch.setitem(GUIDES.ours, "level", entry("level", ClosedForm(), beside=beside))
        patch.setitem(GUIDES.ours, "level-too", entry("level-too", ClosedForm()))
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_csv(tmp_path_factory.mktemp("table") / "table.csv", linear_rows(40))


@pytest.fixture
def undrawn(monkeypatch) -> None:
    monkeypatch.setattr(zoo.commands.compare, "write_plots", lambda *args: None)


@pytest.fixture(scope="module")
def compared(table, tmp_path_factory):
    """The folder of a comparison, to be copied, and what was printed."""
    out = tmp_path_factory.mktemp("compared") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo.commands.compare, "write_plots", lambda *args: None)
        return out, compare(table, out, "level").stdout


def compare(table: Path, out: Path, guides: str, *options: object):
    words = ["--reference", "none", "--widths", 2, "--seed", 3, "--model", "pbp-bnn", *options]
    return run_zoo("compare", table, *words, "--guides", guides, "--out", out)


# ------------------------------------------------------------------------------------------ the scoreboard


@pytest.mark.slow
def test_what_a_sampler_cannot_say_is_empty(table, tmp_path):
    result = compare(table, tmp_path / "out", "draws")
    assert result.exit_code == 0, result.output
    row = table_of(tmp_path / "out")["draws"]
    assert row["status"] == "ok"
    assert row["note"] == "a sampler"
    expected = {*PREDICTIVE, "num_parameters", "fit_seconds"}
    assert {name for name in COLUMNS[4:] if row[name]} == expected
    assert (row["num_parameters"], row["fit_seconds"]) == ("0", "0.5")
    assert files(tmp_path / "out") == {*ALWAYS, "draws.nc"}
    posterior = Posterior.load(tmp_path / "out" / "draws.nc", None)
    assert posterior.info["settings"] == {"seed": stable_seed("fit", 3, "draws")}
    assert len(posterior) == DRAWS


def test_closed_form_makes_the_figures_on_test_rows(table, tmp_path, undrawn):
    """Not the draws: those of the prior are anywhere, the level is 0.375 sd above the mean."""
    assert compare(table, tmp_path / "out", "level-too").exit_code == 0
    row = table_of(tmp_path / "out")["level-too"]
    problem = load_problem(str(table))
    error = problem.scale.y_sd * (problem.y_test.double() - 0.375)
    sd = 0.25 * problem.scale.y_sd
    assert float(row["rmse"]) == pytest.approx(error.square().mean().sqrt().item(), rel=1e-6)
    log_density = Normal(0.0, sd).log_prob(error).mean().item()
    assert float(row["log_likelihood"]) == pytest.approx(log_density, rel=1e-6)
    assert row["num_parameters"] == "1"
    assert (row["elbo"], row["pareto_k"]) == ("", "")
    assert files(tmp_path / "out") == {*ALWAYS, "level-too.nc", "level-too.safetensors"} - {"scoreboard.png"}


def test_row_of_a_closed_form_says_that_its_distances_are_of_drawn_networks(table):
    problem = load_problem(str(table))
    model = create("pbp-bnn", in_features=2, widths=(2,))

    def scored(seed: int, closed_form: Level | None = None) -> Scored:
        draws = prior_draws(model, problem.x[:1], DRAWS, seed)
        posterior = Posterior.from_draws(model, draws)
        return Scored(problem, Graded("a", "pbp-bnn", posterior, {}, "one", closed_form=closed_form))

    truth = scored(0)
    assert grade(scored(1, Level(0.5)), truth).note == f"one; {TWO_LAWS}"
    assert grade(scored(1), truth).note == "one"
    assert grade(scored(1, Level(0.5)), None).note == "one"  # no distances


def test_bands_are_those_of_the_closed_form(tmp_path, monkeypatch):
    table = write_csv(tmp_path / "line.csv", [[row[0], row[2]] for row in linear_rows(30)], "x,y")
    seen = {}
    plot = "zoo.commands.comparison_plots.plot_bands_1d"
    monkeypatch.setattr(plot, lambda *args, **kwargs: seen.update(args[3]))
    method = ClosedForm()
    monkeypatch.setattr(ClosedForm, "_fitted", lambda self, model, guess: Fitted(
        model, lambda n, seed: prior_draws(model, torch.zeros(1, 1), n, seed), 1, 0.5, "", closed_form=guess
    ))  # fmt: skip
    monkeypatch.setitem(GUIDES.ours, "level", entry("level", method))
    assert compare(table, tmp_path / "out", "level").exit_code == 0
    mean, lower, upper = seen["level"]
    scale = load_problem(str(table)).scale
    assert mean == pytest.approx(np.full(200, scale.inverse_mean(np.array(0.375))), rel=1e-6)
    ninety = 2 * 1.6448536 * 0.25 * scale.y_sd
    assert upper - lower == pytest.approx(np.full(200, ninety), rel=1e-6)


@pytest.mark.slow
def test_guide_brings_its_companion_along(compared):
    assert list(table_of(compared[0])) == ["level", "level-too"]
    for asked, rows in {
        ("level", "draws"): ["level", "level-too", "draws"],
        ("level-too", "draws"): ["level-too", "draws"],
        ("level-too", "level"): ["level-too", "level"],
    }.items():
        assert list(with_companions(asked)) == rows


def test_method_that_diverges_is_a_failed_row(table, tmp_path, monkeypatch, undrawn):
    def diverge(self, *args, **kwargs):
        raise FailedError("site 'w1' is not finite after 3 passes")

    monkeypatch.setattr(ClosedForm, "fit", diverge)
    result = compare(table, tmp_path / "out", "level-too,draws")
    assert result.exit_code == 0
    assert "level-too failed: site 'w1' is not finite after 3 passes" in result.stderr
    rows = table_of(tmp_path / "out")
    assert rows["level-too"]["status"].startswith("failed: site 'w1'")
    assert rows["draws"]["status"] == "ok"
    assert "level-too.safetensors" not in files(tmp_path / "out")


def test_option_of_zoo_fit_that_changes_nothing_is_refused(table, tmp_path):
    for option, value in (("--steps", 5), ("--lr", 0.1), ("--batch-size", 5)):
        result = run_zoo("fit", table, "--guide", "level", option, value, "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert f"{option} does not apply to guide 'level'" in result.stderr
    assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------------------- nothing twice


@pytest.mark.slow
def test_second_comparison_reads_the_closed_form_back(table, compared, monkeypatch, undrawn):
    out, printed = compared
    before = (out / "scoreboard.csv").read_bytes()
    monkeypatch.setattr(ClosedForm, "fit", lambda *a, **k: pytest.fail("fitted again"))
    second = compare(table, out, "level")
    assert (second.exit_code, second.stdout) == (0, printed)
    assert (out / "scoreboard.csv").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        "state altered",
        *(
            pytest.param(damage, marks=pytest.mark.slow)
            for damage in ("state lost", "state truncated", "draws", "draws lost")
        ),
    ],
)
def test_damaged_result_is_fitted_again_and_the_others_kept(
    damage, table, compared, tmp_path, monkeypatch, undrawn
):
    out = shutil.copytree(compared[0], tmp_path / "out")
    before = table_of(out)
    state, draws = out / "level.safetensors", out / "level.nc"
    times = {name: (out / name).stat().st_mtime_ns for name in ("level-too.nc", "level-too.safetensors")}
    if "lost" in damage:
        (state if "state" in damage else draws).unlink()
    elif damage == "state altered":
        state.write_text(state.read_text().replace("0.375", "0.125"))
    else:
        path = draws if damage == "draws" else state
        path.write_bytes(path.read_bytes()[:-3])
    fitted = []
    fit = ClosedForm.fit
    monkeypatch.setattr(
        ClosedForm, "fit", lambda self, *a, **k: (fitted.append(k["watch"].label), fit(self, *a, **k))[1]
    )
    assert compare(table, out, "level").exit_code == 0
    assert fitted == ["level"]
    assert table_of(out) == before
    assert all((out / name).stat().st_mtime_ns == time for name, time in times.items())


@pytest.mark.slow
def test_state_of_another_result_is_not_taken(table, compared, tmp_path, undrawn):
    """A kill between the two files leaves the state of one fit beside the draws of another."""
    out = shutil.copytree(compared[0], tmp_path / "out")
    Level(0.5).save(out / "level-too.safetensors")  # as another fit would
    before = table_of(out)
    assert compare(table, out, "level").exit_code == 0
    assert table_of(out) == before
    assert json.loads((out / "level-too.safetensors").read_text()) == {"level": 0.375}


# ------------------------------------------------------------------------------------ fit and predict


def fit(table: Path, out: Path, *options: object):
    words = ["--model", "pbp-bnn", "--widths", 2, "--seed", 2, "--guide", "level", *options]
    return run_zoo("fit", table, *words, "--out", out)


def test_fit_and_predict_in_closed_form(table, tmp_path):
    result = fit(table, tmp_path / "fit")
    assert result.exit_code == 0, result.output
    assert "guessed a level; saved in" in result.stdout
    assert re.search(r"36 rows fitted, 4 held out: RMSE \S+ ± \S+, log-likelihood", result.stdout)
    assert files(tmp_path / "fit") == {"fit.safetensors", "fit.json", "config.json"}
    command = ["predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv", "--draws", 2]
    assert run_zoo(*command).exit_code == 0
    lines = (tmp_path / "p.csv").read_text().splitlines()
    scale = load_problem(str(table)).scale
    assert lines[0] == "mean,sd,q5,q50,q95"
    values = np.array([[float(cell) for cell in line.split(",")] for line in lines[1:]])
    level, sd = scale.inverse_mean(np.array(0.375)), 0.25 * scale.y_sd
    expected = [level, sd, level - 1.6448536 * sd, level, level + 1.6448536 * sd]
    np.testing.assert_allclose(values, np.tile(expected, (40, 1)), rtol=1e-6)


def test_fit_that_is_half_done_or_damaged_is_not_used(table, tmp_path):
    fit(table, tmp_path / "fit")
    command = ["predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv"]
    state, seal = tmp_path / "fit" / "fit.safetensors", tmp_path / "fit" / "fit.json"
    whole, sealed = state.read_bytes(), seal.read_text()
    state.write_bytes(whole.replace(b"0.375", b"0.75"))
    assert "fails its checksum" in refusal(run_zoo(*command))
    state.write_bytes(whole)
    seal.write_text(sealed[:30])
    assert "fit.json is truncated" in refusal(run_zoo(*command))
    seal.write_text(sealed.replace('"seed": 2', '"seed": 3'))
    assert "fails its checksum" in refusal(run_zoo(*command))
    seal.unlink()
    assert "not finished" in refusal(run_zoo(*command))
    assert not (tmp_path / "p.csv").exists()


def test_config_that_was_altered_is_seen(table, tmp_path):
    fit(table, tmp_path / "fit")
    path = tmp_path / "fit" / "config.json"
    config = json.loads(path.read_text())
    command = ["predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv"]
    config["standardisation"]["y_sd"] *= 2
    path.write_text(json.dumps(config))
    assert "'standardisation'" in refusal(run_zoo(*command))
    config["guide"] = "narrow"
    path.write_text(json.dumps(config))
    assert "guide 'narrow', which is not there: install the package" in refusal(run_zoo(*command))
    del config["guide"]
    path.write_text(json.dumps(config))
    assert "config.json was altered: it names no guide" in refusal(run_zoo(*command))


def refusal(result) -> str:
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_seal_is_of_the_file_and_of_what_it_is_about(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"123")
    write_seal(path, {"seed": 1})
    assert read_seal(path) == {"seed": 1}
    path.write_bytes(b"124")
    with pytest.raises(UserError, match="a.bin fails its checksum"):
        read_seal(path)
    path.unlink()
    with pytest.raises(UserError, match="a.bin fails its checksum"):
        read_seal(path)
    path.write_bytes(b"123")
    seal = json.loads(seal_of(path).read_text())
    seal_of(path).write_text(json.dumps({**seal, "about": {"seed": 2}}))
    with pytest.raises(UserError, match="a.bin fails its checksum"):
        read_seal(path)
    for damaged in ("{", "[1]", '{"about": {}}'):
        seal_of(path).write_text(damaged)
        with pytest.raises(UserError, match="a.json is truncated or damaged: delete it and fit again"):
            read_seal(path)
    seal_of(path).unlink()
    with pytest.raises(
        UserError, match="a.json is missing, without which a.bin may be half a fit: fit again"
    ):
        read_seal(path)


def test_a_fit_is_finished_once_it_is_sealed(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"123")
    assert not is_finished(path, {"seed": 1})
    write_seal(path, {"seed": 1})
    assert is_finished(path, {"seed": 1})
    with pytest.raises(UserError, match="a.bin belongs to another fit: choose another --out, or delete it"):
        is_finished(path, {"seed": 2})
