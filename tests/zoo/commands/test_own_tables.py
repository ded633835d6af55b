"""A table as people have it, from ``zoo data show`` to the predictions of new rows."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

import zoo
from data_loaders.tables.cells import _MISSING
from tests.zoo.cli_helpers import linear_rows, make_tiny, run_zoo, write_csv
from zoo.cli.fit import FIT_HELP
from zoo.cli.options import split_names
from zoo.commands.predict import load_fit
from zoo.errors import UserError
from zoo.fitting.problem import load_problem

OPTIONS = ("--target", "risk", "--drop", "id,name", "--missing", "impute")


def people() -> pd.DataFrame:
    """Who smokes, or is old and from the north, is at risk."""
    rng, rows = np.random.default_rng(1), 80
    age = rng.integers(20, 80, rows).astype(float)
    smoker = np.where(rng.random(rows) < 0.4, "yes", "no")
    region = rng.choice(["north", "south", "east"], rows)
    risk = np.where((smoker == "yes") | ((age > 60) & (region == "north")), "high", "low")
    age[3] = np.nan
    return pd.DataFrame(
        {
            "id": np.arange(rows), "name": [f"Ms {i}" for i in range(rows)], "risk": risk, "age": age,
            "smoker": smoker, "region": region, "seen": pd.date_range("2020-01-01", periods=rows).astype(str),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The table and a fit of it."""
    folder = tmp_path_factory.mktemp("own")
    people().to_csv(folder / "people.csv", index=False)
    told = run_zoo(
        "fit", folder / "people.csv", *OPTIONS, "--steps", 60, "--widths", 5, "--out", folder / "fit"
    )
    assert told.exit_code == 0, told.output
    assert "column 'age': 1 missing, taken for" in told.stdout
    assert "classes: high = 0, low = 1" in told.stdout
    return folder


def predicted(folder, table: pd.DataFrame, path):
    table.to_csv(path / "new.csv", index=False)
    told = run_zoo("predict", folder / "fit", "--input", path / "new.csv", "--out", path / "out.csv")
    return told, pd.read_csv(path / "out.csv") if told.exit_code == 0 else None


@pytest.mark.slow
def test_predictions_have_the_names_of_the_classes(folder, tmp_path):
    told, found = predicted(folder, people(), tmp_path)
    assert told.stderr.startswith("zoo: note: column 'age': 1 missing value filled in by ")
    assert list(found) == ["label", "prob_high", "prob_low"]
    assert (found.label == people().risk).mean() > 0.9
    assert (found.label == np.where(found.prob_high > 0.5, "high", "low")).all()


@pytest.mark.slow
def test_columns_in_another_order_and_without_those_that_are_not_used(folder, tmp_path):
    _, whole = predicted(folder, people(), tmp_path)
    _, less = predicted(folder, people()[["seen", "region", "smoker", "age"]], tmp_path)
    pd.testing.assert_frame_equal(less, whole)


def test_a_new_category_is_told_in_a_line(folder, tmp_path):
    told, found = predicted(folder, people().head(3).assign(region=["west", "north", "west"]), tmp_path)
    assert len(found) == 3
    assert told.stderr == (
        "zoo: note: column 'region': no training row has west; 2 rows with 0 for all its categories\n"
    )


def test_columns_that_do_not_fit_are_refused(folder, tmp_path):
    for table, words in (
        (people().head(3).drop(columns=["age", "seen"]), "missing columns: age, seen"),
        (people().head(3).assign(height=1), "extra columns: height"),
        (people().head(3).assign(age="old"), "column 'age', row 1: 'old' is not a number"),
    ):
        told, _ = predicted(folder, table, tmp_path)
        assert (told.exit_code, words in told.stderr, told.stderr.count("\n")) == (2, True, 1)


def test_what_was_done_to_the_columns_is_in_the_fit(folder, tmp_path):
    kept = json.loads((folder / "fit" / "config.json").read_text())["table"]
    assert [column["name"] for column in kept["columns"]] == ["age", "smoker", "region", "seen"]
    assert kept["dropped"] == ["id", "name"]
    again = run_zoo(
        "fit", folder / "people.csv", "--target", "risk", "--drop", "id,name,seen", "--missing", "impute",
        "--steps", 60, "--widths", 5, "--out", folder / "fit",
    )  # fmt: skip
    assert (again.exit_code, "belongs to another run" in again.stderr) == (2, True)


def test_a_fit_of_numbers_keeps_nothing_more_than_it_did(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    assert run_zoo("fit", table, "--steps", 5, "--widths", 2, "--out", tmp_path / "fit").exit_code == 0
    assert "table" not in json.loads((tmp_path / "fit" / "config.json").read_text())


def test_holdout_says_how_many_rows_are_fitted(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    for share, fitted in ((0, 30), (0.1, 27), (0.2, 24)):
        assert load_problem(str(table), holdout=share).size == fitted
    assert load_problem("diabetes", holdout=0).size == 442
    told = run_zoo("fit", table, "--holdout", 0, "--steps", 5, "--widths", 2, "--out", tmp_path / "all")
    assert "30 rows fitted, 0 held out" in told.stdout
    assert load_fit(tmp_path / "all")[1]["split"] == 0
    told = run_zoo("fit", table, "--holdout", 0.5, "--out", tmp_path / "half")
    assert told.stderr == "zoo: --holdout takes 0, 0.1, 0.2, not 0.5\n"


def test_all_columns_are_refused_in_one_line(folder, tmp_path):
    told = run_zoo("fit", folder / "people.csv", "--target", "risk", "--out", tmp_path / "fit")
    assert (told.exit_code, told.stderr.count("\n"), (tmp_path / "fit").exists()) == (2, 1, False)
    assert "column 'name', a category of its own in every row, as an id has" in told.stderr
    assert "column 'age', row 4: missing value ('')" in told.stderr
    assert "(--drop name leaves it out, --missing impute fills in what is missing" in told.stderr


@pytest.mark.parametrize("option", [["--drop", "a"], ["--categories", "a"], ["--missing", "impute"]])
def test_options_of_tables_are_for_tables(option, tmp_path):
    for command in ("fit", "compare"):
        told = run_zoo(command, "diabetes", *option, "--out", tmp_path / "out")
        assert (told.exit_code, "are for CSV files" in told.stderr) == (2, True)
    write_csv(tmp_path / "table.csv", linear_rows(30))
    told = run_zoo("fit", tmp_path / "table.csv", "--model", "maf", *option, "--out", tmp_path / "out")
    assert (told.exit_code, f"{option[0]} does not apply" in told.stderr) == (2, True)


def test_data_show_tells_what_columns_are_taken_for(folder):
    told = run_zoo("data", "show", folder / "people.csv")
    assert told.exit_code == 0
    lines = {line.split()[0]: line for line in told.stdout.splitlines()[1:]}
    assert "category of 80 levels  unusable: a category of its own in every row" in lines["name"]
    assert "1 missing" in lines["age"]
    assert "flag of 2 levels" in lines["smoker"]
    assert "date" in lines["seen"]
    (folder / "same.csv").write_text("a,k\n1,5\n2,5\n")
    told = run_zoo("data", "show", folder / "same.csv").stdout.splitlines()
    assert told[2].split() == ["k", "number", "constant:", "it", "tells", "nothing"]
    assert "constant" not in told[1]


def test_data_show_takes_any_file_that_fit_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("table.txt", "diabetes"):
        write_csv(tmp_path / name, linear_rows(8))
    assert [line.split()[0] for line in run_zoo("data", "show", "table.txt").stdout.splitlines()[1:]] == [
        "a", "b", "y",
    ]  # fmt: skip
    assert run_zoo("data", "show", "diabetes").stdout.startswith("data set    diabetes")
    told = run_zoo("data", "show", "nowhere")
    assert (told.exit_code, "unknown data set 'nowhere'" in told.stderr) == (2, True)


def test_help_says_what_is_missing():
    written = " ".join(FIT_HELP.split()).partition("A missing value (")[2].partition(")")[0].lower()
    assert "an empty cell" in written
    assert "a full stop" in written
    for text in {text.lstrip("+-") for text in _MISSING} - {"", "."}:
        assert text in re.split(r",? or |,? in |, ", written), text


def test_names_with_commas_are_quoted_as_in_a_line_of_csv():
    assert split_names('"note, long",id , a') == ["note, long", "id", "a"]
    assert (split_names(""), split_names(" , ")) == ([], [])
    with pytest.raises(UserError, match="is no list of names as in id,name"):
        split_names('"note, long')


def test_a_column_with_a_comma_can_be_dropped(tmp_path):
    rows = [[i, *row] for i, row in enumerate(linear_rows(20))]
    table = write_csv(tmp_path / "table.csv", rows, '"note, long",a,b,y')
    command = ("fit", table, "--drop", '"note, long"', "--steps", 2, "--widths", 2, "--out", tmp_path / "fit")
    assert run_zoo(*command).exit_code == 0
    assert load_fit(tmp_path / "fit")[1]["features"] == ["a", "b"]


def test_a_constant_column_with_other_values_in_new_rows_is_told(tmp_path):
    """One whose sd is 1 by chance, which is what a constant one's is taken for, is none."""
    rows = [[0.1, (-1) ** i, y] for i, (*_, y) in enumerate(linear_rows(20))]
    table = write_csv(tmp_path / "table.csv", rows, "same,sign,y")
    command = ("fit", table, "--holdout", 0, "--steps", 2, "--widths", 2, "--out", tmp_path / "fit")
    assert run_zoo(*command).exit_code == 0
    assert load_fit(tmp_path / "fit")[1]["standardisation"]["x_sd"] == [1, 1]
    for value, said in ((0.1, ""), (3, "zoo: note: constant in all training rows, but not here: same\n")):
        new = write_csv(tmp_path / "new.csv", [[0.1, 1], [value, 2]], "same,sign")
        told = run_zoo("predict", tmp_path / "fit", "--input", new, "--out", tmp_path / "p.csv")
        assert (told.exit_code, told.stderr) == (0, said)


def test_values_that_are_filled_in_are_told(folder, tmp_path):
    told, _ = predicted(folder, people().head(3).assign(age=[40, None, None]), tmp_path)
    age = next(
        column for column in load_fit(folder / "fit")[1]["table"]["columns"] if column["name"] == "age"
    )
    said = f"note: column 'age': 2 missing values filled in by {age['fill']:g}"
    assert told.stderr == f"zoo: {said}\n"


@pytest.mark.slow
def test_a_comparison_takes_the_same_tables(folder, monkeypatch):
    make_tiny(monkeypatch)
    board = zoo.compare(
        folder / "people.csv", target="risk", drop=["id", "name"], missing="impute", holdout=0.2,
        guides="mean-field", reference="none", widths=3,
    )  # fmt: skip
    assert board.loc["mean-field", "status"] == "ok"
    assert "classes: high = 0, low = 1" in board.attrs["notes"]
