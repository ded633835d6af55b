"""Tables on disk: every digit, nothing half written, and Markdown that stays a table."""

from __future__ import annotations

import csv
import math

import matplotlib.figure
import pandas as pd
import pytest

from zoo.files.tables import markdown_table, write_csv, write_figure, write_text


def test_floats_are_the_shortest_text_that_reads_back(tmp_path):
    values = [0.1 + 0.2, 1 / 3, 1e22, 5e-324, -0.0, 123456789.123456789, math.inf, 2.0]
    write_csv(pd.DataFrame({"x": values}), tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines == ["x", *map(repr, values)]
    assert [float(line) for line in lines[1:]] == values


def test_missing_values_are_empty_and_counts_stay_whole(tmp_path):
    table = pd.DataFrame({"a": [1.5, None], "n": pd.array([7, None], dtype="Int64"), "text": ["x", ""]})
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes() == b"a,n,text\n1.5,7,x\n,,\n"


def test_any_text_reads_back(tmp_path):
    texts = ['a, "b"', "two\nlines", "µ ± σ", "", " space ", "NaN"]
    write_csv(pd.DataFrame({"text": texts, "end": "."}), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        assert [line[0] for line in list(csv.reader(file))[1:]] == texts


def test_line_ends_are_those_of_the_text(tmp_path):
    write_text(tmp_path / "a" / "t.md", "µ\nb\r\n")
    assert (tmp_path / "a" / "t.md").read_bytes() == "µ\nb\r\n".encode()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_text(path, "new"),
        lambda path: write_csv(pd.DataFrame({"a": [1]}), path),
        lambda path: write_figure(matplotlib.figure.Figure(figsize=(1, 1)), path, dpi=20),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(write, tmp_path, monkeypatch):
    path = tmp_path / "t"
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            write(path)
    assert path.read_text() == "old"
    write(path)
    assert path.read_bytes() != b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def test_markdown_is_one_line_a_row_whatever_the_cells_hold():
    table = pd.DataFrame([["a|b", "two\n  lines"], ["", "1"]], columns=["x|y", "same"])
    assert markdown_table(table, "lr").split("\n") == [
        r"| x\|y | same |",
        "|---|---:|",
        r"| a\|b | two lines |",
        "|  | 1 |",
    ]
    twice = pd.DataFrame([["1", "2"]], columns=["same", "same"])
    assert markdown_table(twice, "ll").endswith("| 1 | 2 |")
    assert markdown_table(table.iloc[:0], "lr").count("\n") == 1
