"""References that the package brings with it: used for what they are of, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import zoo.commands.reference
from guides.posterior.evaluate import prior_draws
from guides.truth.gates import MCMCResult
from tests.zoo.cli_helpers import linear_rows, make_tiny, run_zoo, table_of, write_csv
from zoo.commands import stored_reference as stored
from zoo.commands.compare import run
from zoo.commands.comparison import ask

FOUND = {"max_rhat": 1.004, "min_ess_bulk": 55.0, "divergences": 0, "attempts": 1, "draws": 30}
NOTE = "R-hat 1.004, bulk ESS 55, 0 divergences, 1 attempt"


@pytest.fixture
def tiny(monkeypatch):
    make_tiny(monkeypatch)


@pytest.fixture
def table(tiny, tmp_path):
    return write_csv(tmp_path / "table.csv", linear_rows(40))


@pytest.fixture
def runs(tiny, monkeypatch):
    """In place of NUTS: draws of the prior, which are as good to be recognised.  What it was asked for."""
    found = []

    def sample(comparison, model, cache):
        found.append(comparison)
        result = made_up(comparison)
        if cache is not None:
            result.save(cache)
        return result

    monkeypatch.setattr(zoo.commands.reference, "run_nuts", sample)
    return found


@pytest.fixture
def kept(table, runs, tmp_path, monkeypatch):
    """Folder with the reference of :func:`wish`, where comparisons look for it."""
    folder = tmp_path / "kept"
    folder.mkdir()
    stored.store(made_up(wish(table)), wish(table), folder)
    monkeypatch.setattr(stored, "STORED", folder)
    return folder


def wish(table, **changes):
    return ask(str(table), **{"guides": ["mean-field"], "widths": (2,), **changes})


def made_up(comparison) -> MCMCResult:
    model = comparison.build(comparison.entry)
    names = ["w1", "b1", "w2", "b2", "noise_precision"]
    draws = prior_draws(model, names, ["y"], 60, *comparison.problem.train[:1])[0]
    by_chain = {name: value.reshape(2, 30, *value.shape[1:]).numpy() for name, value in draws.items()}
    stats = {"diverging": np.zeros((2, 30), bool)}
    settings = {"sampler": "numpyro", "chains": 2, "draws": 30}
    return MCMCResult(by_chain, stats, dict(FOUND), settings, 1.5, True, "")


def nuts_note(folder) -> str:
    return table_of(folder)["nuts"]["note"]


def without_seconds(rows):
    return [replace(row, fit_seconds=None, note="") for row in rows]


@pytest.mark.slow
def test_the_same_scoreboard_as_from_the_draws_that_were_stored(table, runs, tmp_path, monkeypatch):
    fresh = run(wish(table), tmp_path / "fresh")
    assert nuts_note(tmp_path / "fresh") == NOTE  # nothing is stored of these data: nothing is said
    stored.store(MCMCResult.load(tmp_path / "fresh" / "reference.nc"), wish(table), tmp_path)
    monkeypatch.setattr(stored, "STORED", tmp_path)
    used = run(wish(table), tmp_path / "used")
    assert without_seconds(used) == without_seconds(fresh)
    assert [row.noise_floors for row in used] == [row.noise_floors for row in fresh]
    assert used[1].noise_floors["ref_w1"] > 0
    assert nuts_note(tmp_path / "used") == f"stored reference, 2 x 30 draws, {NOTE}"
    assert run(wish(table), tmp_path / "used")[0].note == nuts_note(tmp_path / "used")
    assert len(runs) == 1
    assert run(wish(table), tmp_path / "fresh")[0].note == NOTE  # what the sampler left comes first
    assert len(runs) == 2


@pytest.mark.slow
def test_a_fresh_one_can_be_had(table, kept, runs, tmp_path):
    run(wish(table), tmp_path / "out")
    assert not runs
    told = run_zoo(
        "compare", table, "--guides", "map", "--widths", 2, "--fresh-reference", "--out", tmp_path / "b"
    )
    assert told.exit_code == 0, told.output
    assert nuts_note(tmp_path / "b") == NOTE
    assert len(runs) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 3}, "seed 0 there, 3 here"),
        ({"split": 2}, "split 0 there, 2 here"),
        ({"budget": "full"}, "warm-up 20 there, 600 here"),
        ({"weight_scale": 1.01}, "options weight_scale 1.0 there, 1.01 here"),
        ({"widths": (3,)}, "options widths [2] there, [3] here"),
    ],
)
def test_other_settings_are_not_matched(changes, words, table, kept):
    comparison = wish(table, **changes)
    result, remark = stored.stored_reference(comparison, comparison.build(comparison.entry))
    assert result is None
    assert remark == f"stored reference not used: {words}"


def test_other_rows_are_not_matched(table, kept):
    rows = linear_rows(40)
    rows[-1][0] += 1e-6
    comparison = wish(write_csv(table, rows))
    result, remark = stored.stored_reference(comparison, comparison.build(comparison.entry))
    assert result is None
    assert remark == "stored reference not used: training rows differ"


def test_another_model_of_that_name_is_not_matched(table, kept):
    """What its settings do not say, the density does."""
    comparison = wish(table)
    own = comparison.build(comparison.entry)
    assert stored.stored_reference(comparison, own)[0] is not None
    other = wish(table, weight_scale=1.01)
    result, remark = stored.stored_reference(comparison, other.build(other.entry))
    assert result is None
    assert remark.startswith(
        "stored reference not used: the model has changed, the log joint density of its draws is off by "
    )


@pytest.mark.parametrize("change", [np.nan, 1.0])
def test_one_draw_with_another_density_is_enough(change, table, kept, monkeypatch):
    """No number, or a change that another draw makes up for in the mean."""
    log_joint = stored._log_joint

    def changed(*arguments):
        values = log_joint(*arguments)
        step = 0.01 * np.abs(values).max() * change
        return values + step * np.array([1, -1] + [0] * (len(values) - 2))

    monkeypatch.setattr(stored, "_log_joint", changed)
    comparison = wish(table)
    result, remark = stored.stored_reference(comparison, comparison.build(comparison.entry))
    assert result is None
    assert "the model has changed" in remark


def test_one_that_has_failed_its_gates_is_not_used(table, kept):
    """However it came there."""
    (path,) = kept.iterdir()
    replace(MCMCResult.load(path), passed=False, reason="R-hat 1.3").save(path)
    comparison = wish(table)
    result, remark = stored.stored_reference(comparison, comparison.build(comparison.entry))
    assert result is None
    assert remark == "stored reference not used: it has failed its gates: R-hat 1.3"


@pytest.mark.slow
def test_a_truncated_file_is_a_line_and_a_fresh_run(table, kept, runs, tmp_path):
    (path,) = kept.iterdir()
    path.write_bytes(path.read_bytes()[:2000])
    rows = run(wish(table), tmp_path / "out")
    assert [row.status for row in rows] == ["ok"] * 2
    remark = rows[0].note.removeprefix(f"{NOTE}; stored reference not used: ")
    assert remark.startswith(f"{path}: not a readable netCDF file")
    assert "\n" not in remark
    assert len(runs) == 1


def test_a_file_of_others_is_a_line(table, kept):
    (path,) = kept.iterdir()
    comparison = wish(table)
    made_up(comparison).save(path)
    result, remark = stored.stored_reference(comparison, comparison.build(comparison.entry))
    assert result is None
    assert remark == f"stored reference not used: {path} does not say what its draws are of"


def test_only_what_has_passed_its_gates_is_kept(table, runs, tmp_path, monkeypatch):
    told = run_zoo("reference", table, "--out", tmp_path / "kept")
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("R-hat 1.004, bulk ESS 55, 0 divergences; 0.")
    assert (tmp_path / "kept" / "table-bnn.nc").exists()
    monkeypatch.setattr(
        zoo.commands.reference,
        "run_nuts",
        lambda comparison, *_: replace(made_up(comparison), passed=False, reason="R-hat 1.3"),
    )
    told = run_zoo("reference", table, "--out", tmp_path / "failed")
    assert told.exit_code == 1
    assert "failed its gates is not kept: R-hat 1.3" in told.stderr
    assert list((tmp_path / "failed").iterdir()) == []


def test_those_of_the_package_are_of_the_models_of_today():
    """Small too; the models that they are of are built as :command:`zoo compare` builds them."""
    found = sorted(stored.STORED.iterdir())
    assert [path.name for path in found] == ["diabetes-bnn.nc"]
    assert sum(path.stat().st_size for path in found) < 3e6
    comparison = ask("diabetes")
    result, remark = stored.stored_reference(comparison, comparison.build(comparison.entry))
    assert remark == ""
    assert result.passed
    assert (result.diagnostics["max_rhat"] < 1.01, result.diagnostics["divergences"]) == (True, 0)
    assert {value.dtype for value in result.draws.values()} == {np.dtype("float32")}
