"""The tables: means and errors by hand, published numbers beside them, and what is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.zoo.experiments.runner_helpers import rows
from tests.zoo.experiments.toy_experiments import declare
from zoo.experiments.engine.declaration import Effort
from zoo.experiments.engine.records import read_all
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce
from zoo.experiments.engine.tables import Line, mean_and_se

pytestmark = pytest.mark.usefixtures("calls")
COLUMNS = "dataset,method,setting,metric,mean,se,n,published,published_se,note"


def numbers(cell) -> dict[str, float]:
    """1, 2, 4 over the trials, for every combination."""
    return {"error": 2.0**cell.trial, "score": -1.0}


def table(folder) -> dict[tuple[str, ...], dict[str, str]]:
    found = rows(folder, "table.csv")
    return {tuple(row[name] for name in COLUMNS.split(",")[:4]): row for row in found}


def run(folder, *, axes=None, **changes):
    reproduce(plan(declare(**{"run": numbers, "notes": {}, **changes}), **(axes or {})), folder)
    return table(folder)


def test_mean_and_standard_error_by_hand(tmp_path):
    """Mean 7/3, squares 16/9 + 1/9 + 25/9 = 14/3, over 2, over 3, root."""
    row = run(tmp_path)["a", "m", "5", "error"]
    assert ",".join(row) == COLUMNS
    assert float(row["mean"]) == pytest.approx(7 / 3, rel=1e-15)
    assert float(row["se"]) == pytest.approx(math.sqrt(14 / 3 / 2 / 3), rel=1e-15)
    assert row["n"] == "3"
    assert mean_and_se([1.0, 2.0, 4.0]) == (float(row["mean"]), float(row["se"]))


def test_one_trial_has_no_standard_error_and_none_no_mean(tmp_path):
    row = run(tmp_path, axes={"trials": 1})["a", "m", "5", "error"]
    assert (row["mean"], row["se"], row["n"]) == ("1.0", "", "1")
    assert mean_and_se([]) == (None, None)


def test_lines_are_in_the_order_of_the_grid(tmp_path):
    assert list(run(tmp_path))[:5] == [
        ("a", "m", "5x5", "error"),
        ("a", "m", "5x5", "score"),
        ("a", "m", "5", "error"),
        ("a", "m", "5", "score"),
        ("a", "n", "5x5", "error"),
    ]


def test_published_numbers_stand_in_their_lines_and_no_others(tmp_path):
    lines = run(tmp_path)
    given = {
        place: (row["published"], row["published_se"]) for place, row in lines.items() if row["published"]
    }
    assert given == {("a", "m", "5", "error"): ("1.5", "0.01"), ("b", "n", "5x5", "score"): ("0.3", "")}


@pytest.mark.parametrize(
    ("published", "note"),
    [
        # the standard error of ours is sqrt(7/9) = 0.882
        ((7 / 3 + 1.5, 0.1), ""),
        ((7 / 3 + 2.0, 0.1), "2.3 standard errors of the difference below the published value"),
        ((7 / 3 - 2.0, 0.1), "2.3 standard errors of the difference above the published value"),
        ((7 / 3 - 2.0, 1.0), ""),
        ((7 / 3 + 100.0, None), ""),
    ],
)
def test_number_far_from_the_published_one_is_told(published, note, tmp_path):
    lines = run(tmp_path, published={("a", "m", "5", "error"): published})
    assert lines["a", "m", "5", "error"]["note"] == note
    assert {row["note"] for place, row in lines.items() if place != ("a", "m", "5", "error")} == {""}


def test_less_work_than_published_is_not_compared(tmp_path):
    far = {("a", "m", "5", "error"): (100.0, 0.1)}
    lines = run(tmp_path, published=far, quick=Effort(3, "", {"epochs": 1}), axes={"budget": "quick"})
    assert lines["a", "m", "5", "error"]["note"] == ""
    assert "**not comparable with the published numbers, which need epochs 4**" in page(tmp_path)


def test_other_work_is_told_where_no_number_was_published(tmp_path):
    run(tmp_path, published={}, axes={"budget": "quick"})
    assert "**not the work of the full budget, which is epochs 4**" in page(tmp_path)
    assert "not comparable" not in page(tmp_path)


def page(folder) -> str:
    return (folder / "table.md").read_text(encoding="utf-8")


def test_notes_stand_in_the_lines_they_are_about(tmp_path):
    lines = run(tmp_path, notes=declare().notes, published={})
    assert lines["b", "n", "5", "error"]["note"] == "another b; n|5"
    assert lines["a", "n", "5", "error"]["note"] == "n|5"
    assert lines["a", "m", "5", "error"]["note"] == ""
    assert r"n\|5" in page(tmp_path)


def test_failures_are_counted_and_not_averaged(tmp_path):
    reproduce(plan("toy/troubled"), tmp_path)
    lines = table(tmp_path)
    row = lines["b", "m", "5", "error"]
    assert (row["mean"], row["se"], row["n"]) == ("", "", "0")
    assert row["note"] == "another b; 3 of 3 trials failed"
    row = lines["b", "n", "5", "error"]
    assert row["n"] == "1"
    assert row["note"] == "another b; n|5; 2 of 3 trials failed"
    assert ("b", "m", "5", "score") not in lines  # nobody measures it there
    text = page(tmp_path)
    assert "**5 of 24 cells failed**" in text
    assert (
        "- b m 5 trial 1: failed: ZeroDivisionError: one line and another (traceback in `cells/b/m/5/1"
        in text
    )
    assert "| b | " in text
    assert "failed" in next(line for line in text.splitlines() if line.startswith("| b | "))


def test_page_says_what_it_is_and_how_it_was_made(tmp_path):
    run(tmp_path)
    text = page(tmp_path)
    assert text.startswith("# toy/plain\n\nA toy.\n")
    for words in (
        "published in: Nobody 1999, Table 1, page 7",
        f"made by: `zoo reproduce toy/plain --budget full --out {tmp_path}`",
        "seed 0; epochs 4",
        "torch 2.",
        "divisor n - 1",
        "published standard errors: population standard deviation over root n",
        "Complete: 24 cells, 8 combinations.",
    ):
        assert words in text, words
    assert "Partial" not in text
    assert "failed" not in text


def test_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reproduce(plan("toy/troubled"), "out/b c")
    text = page(tmp_path / "out" / "b c")
    assert "--out 'out/b c'`" in text
    assert "`cells/b/m/5/0/result.json`" in text


def test_command_of_the_page_makes_all_that_is_there(tmp_path):
    """Whatever calls have made it."""
    run(tmp_path, axes={"datasets": ["a"], "methods": ["m"], "trials": 2})
    run(tmp_path, axes={"datasets": ["a"], "methods": ["n"], "trials": 5})
    words = "- made by a part of: `zoo reproduce toy/plain"  # the first call made two trials, not five
    assert f"{words} --datasets a --trials 5 --budget full --out {tmp_path}`\n" in page(tmp_path)
    run(tmp_path, axes={"settings": ["5"], "trials": 5})
    assert f"{words} --trials 5 --budget full --out {tmp_path}`\n" in page(tmp_path)
    run(tmp_path, axes={"trials": 5})
    assert f"- made by: `zoo reproduce toy/plain --trials 5 --budget full --out {tmp_path}`\n" in page(
        tmp_path
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.98046, "0.9805"), (-186.95026, "-187"), (2.0, "2"), (123456.7, "123457"), (math.inf, "inf")],
)
def test_number_without_an_error_has_four_digits(value, words):
    line = Line("a", "m", "5", "error", value, None, 1, None, None, "")
    assert line.ours == words
    assert replace(line, se=0.0, n=3).ours == words


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"datasets": ["a"]}, ["**Partial: 12 of 24 cells.** Missing:\n\n- all trials of b\n"]),
        ({"trials": 1}, ["**Partial: 8 of 24 cells.**", "- 2 of 3 trials of every combination\n"]),
        (
            {"methods": ["m"], "settings": ["5"]},
            ["of a m 5x5, a n 5x5, a n 5, b m 5x5, b n 5x5"],
        ),
        ({"trials": 4}, ["Complete: 32 cells"]),
    ],
)
def test_page_of_a_part_says_so(axes, words, tmp_path):
    run(tmp_path, axes=axes)
    assert all(word in page(tmp_path) for word in words), page(tmp_path)


def test_more_trials_than_published_are_missed_when_the_call_was_stopped(tmp_path):
    def stop(todo, finished):
        if len(finished) == 4 * 8 - 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(plan(declare(run=numbers), trials=4), tmp_path, on_progress=stop)
    text = page(tmp_path)
    assert "**Partial: 30 of 32 cells.** Missing:\n\n- 1 of 4 trials of b n 5x5, b n 5\n" in text


def test_cross_table_has_a_row_a_data_set_and_a_column_a_method_and_setting(tmp_path):
    run(tmp_path, published={("a", "n", "5", "error"): (1.5, 0.25)})
    text = page(tmp_path)
    table = text[text.index("## error") : text.index("## score")].splitlines()
    assert table[2] == "an error, lower is better; published in brackets"
    assert table[4] == "| data set | m 5x5 | m 5 | n 5x5 | n 5 |"
    ours = "2.33 ± 0.88"
    assert table[6] == f"| a | {ours} | {ours} | {ours} | {ours} (1.50 ± 0.25) |"
    assert table[7].startswith("| b |")
    assert "published" not in text[text.index("## score") : text.index("## All")]


def test_metric_that_a_method_does_not_have_is_no_failure(tmp_path):
    def some(cell):
        return numbers(cell) if cell.method == "m" else {"error": 1.0}

    lines = run(tmp_path, run=some, published={})
    assert ("a", "m", "5", "score") in lines
    assert ("a", "n", "5", "score") not in lines
    assert "failed" not in page(tmp_path)


def test_many_metrics_have_a_table_a_data_set(tmp_path):
    metrics = {name: f"the {name}" for name in ("error", "score", "c", "d", "e")}
    run(tmp_path, run=numbers, metrics=metrics, published={})
    text = page(tmp_path)
    assert "## error" not in text
    start = text.index("## a")
    assert text[start:].splitlines()[2:6] == [
        "| metric | m 5x5 | m 5 | n 5x5 | n 5 | what it is |",
        "|---|---:|---:|---:|---:|---|",
        "| error | 2.33 ± 0.88 | 2.33 ± 0.88 | 2.33 ± 0.88 | 2.33 ± 0.88 | the error |",
        "| score | -1 | -1 | -1 | -1 | the score |",
    ]
    assert text.index("## a\n") < text.index("## b\n") < text.index("## All numbers")


def test_one_column_needs_no_cross_table(tmp_path):
    run(tmp_path, methods=("m",), settings=("default",), published={})
    assert "## error" not in page(tmp_path)
    assert "| a | m | default | error | 2.33 ± 0.88 | 3 |  |  |" in page(tmp_path)


def test_published_number_without_error_keeps_its_digits(tmp_path):
    run(tmp_path, published={("a", "m", "5", "error"): (-2.7834, None)})
    assert "| 3 | -2.7834 |" in page(tmp_path)


def test_file_of_csv_reads_back_exactly(tmp_path):
    request = plan(declare())
    reproduce(request, tmp_path)
    records = read_all(tmp_path, request.experiment, 0, request.effort.options)
    values = [value for record in records for value in record.metrics.values()]
    assert [float(row["value"]) for row in rows(tmp_path)] == values


def test_smallest_median_and_largest_over_the_trials(tmp_path):
    run(tmp_path / "with", extremes=True)
    text = page(tmp_path / "with")
    assert "| a | m | 5 | error | 1 | 2 | 4 | 3 |" in text.split("## Over the trials")[1]
    run(tmp_path / "without")
    assert "Over the trials" not in page(tmp_path / "without")
    run(tmp_path / "one", axes={"trials": 1}, extremes=True)
    assert "Over the trials" not in page(tmp_path / "one")
