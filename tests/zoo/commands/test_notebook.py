"""``zoo.compare``: the command's work and the command's refusals, and a data frame."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import zoo
import zoo.commands.compare
from tests.zoo.cli_helpers import COLUMNS, files, fresh_process, linear_rows, make_tiny, run_zoo, write_csv
from zoo.errors import UserError
from zoo.fitting.svi import Fit

LINEAR = {"model": "spike-slab-linear", "guides": "spike-slab"}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    make_tiny(monkeypatch)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The same question to the command and to the function, which keeps nothing."""
    folder = tmp_path_factory.mktemp("notebook")
    table = write_csv(folder / "table.csv", linear_rows(40))
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch)
        options = ["--model", LINEAR["model"], "--guides", LINEAR["guides"], "--out", folder / "out"]
        assert run_zoo("compare", table, *options).exit_code == 0
        (folder / "temporary").mkdir()
        patch.setattr(tempfile, "tempdir", str(folder / "temporary"))
        return folder, zoo.compare(table, **LINEAR)


@pytest.mark.slow
def test_frame_holds_what_the_command_writes(compared):
    folder, board = compared
    assert list(board.index) == ["exact", "spike-slab"]
    written = pd.read_csv(folder / "out" / "scoreboard.csv", index_col="method")
    assert list(board.columns[: len(COLUMNS) - 1]) == COLUMNS[1:]
    for column in set(COLUMNS[1:]) - {"fit_seconds"}:
        theirs = written[column].fillna("") if column == "note" else written[column]
        pd.testing.assert_series_equal(board[column], theirs.astype(board[column].dtype), rtol=1e-14)
    assert board.loc["spike-slab", "ref_w1"] > 0
    assert np.isnan(board.loc["exact", "ref_w1"])
    assert board["num_parameters"].dtype == "Int64"


def test_every_standard_error_is_in_the_frame(compared):
    folder, board = compared
    with (folder / "out" / "standard_errors.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    expected = {}
    for line in lines:
        for column, ending in (("standard_error", "se"), ("noise_floor", "floor")):
            if line[column]:
                expected[line["method"], f"{line['figure']}_{ending}"] = float(line[column])
    extra = board[board.columns[len(COLUMNS) - 1 :]]
    assert {
        (m, c): extra.loc[m, c] for m in extra.index for c in extra if pd.notna(extra.loc[m, c])
    } == expected
    assert {"ref_w1_se", "ref_w1_floor", "elbo_se", "coverage_90_se"} <= set(extra.columns)


def test_nothing_is_kept_unless_asked(compared):
    assert files(compared[0] / "temporary") == set()


def test_a_folder_is_resumed_and_is_that_of_the_command(compared, monkeypatch):
    folder, _ = compared
    monkeypatch.setattr(Fit, "run", lambda *a, **k: pytest.fail("a guide was fitted again"))
    before = (folder / "out" / "scoreboard.csv").read_bytes()
    board = zoo.compare(folder / "table.csv", **LINEAR, out=folder / "out")
    assert (folder / "out" / "scoreboard.csv").read_bytes() == before
    assert f",{float(board.loc['spike-slab', 'fit_seconds'])!r}\n".encode() in before
    with pytest.raises(UserError, match="belongs to another run .seed is 0 there, 1 here"):
        zoo.compare(folder / "table.csv", **LINEAR, out=folder / "out", seed=1)


def test_work_has_one_thread_and_the_caller_keeps_its_own(compared, monkeypatch):
    """As in the command: the same numbers, on however many cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    grade, seen = zoo.commands.compare.grade, []
    monkeypatch.setattr(
        zoo.commands.compare, "grade", lambda *args: (seen.append(torch.get_num_threads()), grade(*args))[1]
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        zoo.compare(compared[0] / "table.csv", **LINEAR, out=compared[0] / "out")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "wrong",
    [
        {"guides": ["mean-feld"]},
        {"guides": ["mean-field", "mean-field"]},
        {"model": "bn"},
        {"budget": "ful"},
        {"reference": "exact"},
        {"seed": -1},
        {"split": 99},
        {"target": "z"},
        {"task": "counting"},
        {"noise": -1.0},
        {"widths": [0]},
        {"activation": "rel"},
        {"inclusion": 1.5, "guides": ["spike-slab"]},
        {"model": "spike-slab-linear", "widths": [3]},
    ],
)
def test_refusals_are_those_of_the_command(wrong, compared, tmp_path):
    table = compared[0] / "table.csv"
    with pytest.raises(ValueError) as refused:  # noqa: PT011  (compared below)
        zoo.compare(table, **wrong, out=tmp_path / "out")
    words = []
    for name, value in wrong.items():
        words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else value]
    result = run_zoo("compare", table, *words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr == f"zoo: {refused.value}\n"
    assert files(tmp_path) == set()


def test_tables_and_classes_are_no_names():
    with pytest.raises(UserError, match="data: a name or a path .* not a DataFrame; write tables to CSV"):
        zoo.compare(pd.DataFrame({"a": [1.0], "y": [2.0]}))
    with pytest.raises(UserError, match="guides: a name or a path is needed, not a type; `zoo list` has"):
        zoo.leaderboard("diabetes", guides=[dict])
    with pytest.raises(UserError, match="guides: a list of names .* not a dict: its values would be lost"):
        zoo.leaderboard("diabetes", guides={"mean-field": {"lr": 1.0}})


def test_a_model_that_is_no_name_is_told_how_to_be_one():
    calls = (
        lambda: zoo.compare("diabetes", model=print),
        lambda: zoo.leaderboard("diabetes", model=print),
        lambda: zoo.calibrate(print),
    )
    for call in calls:
        with pytest.raises(UserError, match="model: a name .*; one of your own is .*file.py:model"):
            call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: zoo.compare("diabetes", drop=3), "columns are given by their names, not as 3"),
        (lambda: zoo.compare("diabetes", categories=["a", None]), "columns are .* names, not as None"),
        (lambda: zoo.compare("diabetes", seed=1.5), "seed: a whole number is needed, not 1.5"),
        (lambda: zoo.compare("diabetes", splits="3"), "splits: a whole number is needed, not '3'"),
        (lambda: zoo.compare("diabetes", split=None), "split: a whole number is needed, not None"),
        (lambda: zoo.compare("diabetes", seeds=[0, 1]), r"seeds: a whole number is needed, not \[0, 1\]"),
        (lambda: zoo.compare("diabetes", budget=100), "budget: text is needed, not 100"),
        (lambda: zoo.compare("diabetes", steps=9.5), "steps: a whole number is needed, not 9.5"),
        (lambda: zoo.leaderboard("diabetes", steps="9"), "steps: a whole number is needed, not '9'"),
        (lambda: zoo.compare("diabetes", reference=True), "reference: text is needed, not True"),
        (lambda: zoo.compare("diabetes", holdout="0.1"), "holdout: a number is needed, not '0.1'"),
        (lambda: zoo.compare("diabetes", out=3), "out: a path is needed, not 3"),
        (lambda: zoo.compare("diabetes", device=0), "--device takes cpu, cuda or cuda:N, not '0'"),
        (lambda: zoo.leaderboard("diabetes", jobs="2"), "jobs: a whole number is needed, not '2'"),
        (lambda: zoo.leaderboard("diabetes", cluster=1), "cluster: text is needed, not 1"),
        (lambda: zoo.calibrate("bnn", draws=9.5), "draws: a whole number is needed, not 9.5"),
        (lambda: zoo.calibrate("bnn", jobs=True), "jobs: a whole number is needed, not True"),
        (lambda: zoo.calibrate("bnn", noise="1"), "noise: a number is needed, not '1'"),
    ],
)
def test_arguments_of_another_kind_are_told(call, words):
    with pytest.raises(UserError, match=f"^{words}$"):
        call()


@pytest.mark.parametrize("call", [lambda **given: zoo.compare("diabetes", **given), zoo.calibrate])
def test_widths_that_are_no_whole_number_are_told(call):
    with pytest.raises(UserError, match=r"widths: a whole number is needed, or several, not 2\.5"):
        call(widths=2.5)


def test_an_unknown_argument_of_a_calibration_is_told_as_its_own():
    with pytest.raises(TypeError, match=r"^calibrate\(\) got an unexpected keyword argument 'sims'"):
        zoo.calibrate(sims=3)


def test_numbers_of_numpy_and_devices_of_torch_are_taken(compared, monkeypatch):
    monkeypatch.setattr("zoo.commands.comparison.MOST_LATENT", 5)
    options = {"seed": np.int64(0), "noise": np.float32(1.0), "widths": np.int64(2)}
    options["device"] = torch.device("cpu")
    assert list(zoo.compare(compared[0] / "table.csv", guides="map", **options).index) == ["map"]


def test_a_calibration_takes_them_too(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "zoo.commands.calibrate.run", lambda calibration, *rest, **more: asked.append(calibration)
    )
    zoo.calibrate(guides=np.array(["exact"]), widths=np.int64(0), noise=1.0, device=torch.device("cpu"))
    zoo.calibrate(guides="exact", widths=0, noise=1.0)
    assert asked[0] == asked[1]


def test_a_leaderboard_takes_an_array_of_names():
    with pytest.raises(UserError, match="unknown guide 'mean-feld'"):
        zoo.leaderboard("diabetes", guides=np.array(["mean-feld", "map"]))


def test_one_column_is_not_its_letters(tmp_path):
    path = write_csv(tmp_path / "table.csv", linear_rows(20))
    with pytest.raises(ValueError, match="'ab'"):
        zoo.compare(path, drop="ab")


def test_unknown_data_names_the_nearest():
    with pytest.raises(UserError, match="unknown data set 'diabetis'; nearest: diabetes"):
        zoo.compare("diabetis")


def test_remark_and_oddities_come_with_the_frame(compared, monkeypatch):
    monkeypatch.setattr("zoo.commands.comparison.MOST_LATENT", 5)
    board = zoo.compare(compared[0] / "table.csv", guides="map", widths=2)
    assert list(board.index) == ["map"]
    assert "no reference: NUTS over" in board.attrs["notes"][-1]


def test_import_is_cheap():
    """Nothing slow is imported, pandas included."""
    code = """
import sys
import zoo
assert callable(zoo.compare)
sys.exit(", ".join({"torch", "jax", "pyro", "numpy", "pandas", "guides", "typer"} & set(sys.modules)) or 0)
"""
    result = fresh_process(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_example_of_the_docstring_names_what_there_is():
    from zoo.registry.queries import GUIDES, MODELS

    example = [line for line in zoo.compare.__doc__.splitlines() if ">>>" in line]
    assert len(example) <= 3
    assert "pbp-bnn" in MODELS
    assert {"mean-field", "pbp"} <= set(GUIDES)
    assert Path(zoo.__file__).name == "__init__.py"
