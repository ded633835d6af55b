"""The page for people: how it was made, what is missing, and a table a question."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.zoo.experiments.engine.test_tables import PLACE, numbers
from tests.zoo.experiments.toy_experiments import declare
from zoo.experiments import Published
from zoo.experiments.engine.declaration import UNPUBLISHED, Source
from zoo.experiments.engine.lines import Line, summary
from zoo.experiments.engine.page import numbers as page_numbers
from zoo.experiments.engine.page import ours
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce

pytestmark = pytest.mark.usefixtures("calls")


def run(folder, *, axes=None, **changes) -> str:
    changes = {"run": numbers, "notes": {}, **changes}
    reproduce(plan(declare(**changes), **(axes or {})), folder)
    return read(folder)


def read(folder) -> str:
    return (folder / "table.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> list[str]:
    """The lines between a heading and the next one."""
    return text.split(f"## {title}\n")[1].split("\n## ")[0].strip().splitlines()


# ------------------------------------------------------------------------------------- how it was made


def test_page_says_what_it_is_and_how_it_was_made(tmp_path):
    text = run(tmp_path)
    assert text.startswith("# toy/plain\n\nA toy.\n")
    for words in (
        "published in: Nobody 1999, Table 1, page 7",
        f"made by: `zoo reproduce toy/plain --budget full --out {tmp_path}`",
        "seed 0; epochs 4",
        "torch 2.",
        "ours: mean ± standard error over 3 trials, the sample standard deviation (divisor n - 1)",
        "published standard errors: population standard deviation over root n",
        "Complete: 24 cells, 8 combinations.",
        "All numbers, with their notes, are in the CSV file beside this page.",
    ):
        assert words in text, words
    assert "Partial" not in text
    assert "failed" not in text


def test_a_page_without_print_says_why(tmp_path):
    """Of what is our own the source says so itself."""
    assert "no print beside ours" not in run(tmp_path / "printed")
    assert "no print beside ours" not in run(tmp_path / "own", published={}, source=UNPUBLISHED)
    text = run(tmp_path / "drawn", published={}, source=Source("Nobody 1999", "Figure 1"))
    assert "- no print beside ours: the source has no table of this\n" in text
    of_b = {("b", "n", "5x5", "score"): Published(0.3)}
    text = run(tmp_path / "elsewhere", published=of_b, axes={"datasets": ["a"], "budget": "quick"})
    assert "- no print beside ours: the source has numbers only of what is missing below" in text
    assert "published standard errors" not in text
    assert "no z and no verdict" not in text


def test_one_run_promises_no_standard_error(tmp_path):
    text = run(tmp_path, axes={"trials": 1}, published={})
    assert "- ours: one run each, so no standard errors\n" in text
    assert "±" not in text
    assert "†" not in text


def test_one_run_among_several_is_marked(tmp_path):
    run(tmp_path, axes={"datasets": ["a"]}, published={})
    text = run(tmp_path, axes={"datasets": ["b"], "trials": 1}, published={})
    assert "over 3 trials" in text
    assert "; † one run, which has no standard error\n" in text
    assert "| a | 5 | 2.33 ± 0.88 | 2.33 ± 0.88 |" in text
    assert "| b | 5 | 1† | 1† |" in text


def test_other_work_is_told_where_no_number_was_published(tmp_path):
    text = run(tmp_path, published={}, axes={"budget": "quick"})
    assert "**not the work of the full budget, which is epochs 4**" in text
    assert "no z" not in text


def test_failures_are_told(tmp_path):
    reproduce(plan("toy/troubled"), tmp_path)
    text = read(tmp_path)
    assert "**5 of 24 cells failed**" in text
    words = "- b m 5 trial 1: failed: ZeroDivisionError: one line and another (traceback in `cells/b/m/5/1"
    assert words in text
    assert any(line.startswith("| b | 5 | failed |") for line in section(text, "error"))


def test_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reproduce(plan("toy/troubled"), "out/b c")
    text = read(tmp_path / "out" / "b c")
    assert "--out 'out/b c'`" in text
    assert "`cells/b/m/5/0/result.json`" in text


def test_command_of_the_page_makes_all_that_is_there(tmp_path):
    """Whatever calls have made it."""
    run(tmp_path, axes={"datasets": ["a"], "methods": ["m"], "trials": 2})
    text = run(tmp_path, axes={"datasets": ["a"], "methods": ["n"], "trials": 5})
    words = "- made by a part of: `zoo reproduce toy/plain"  # the first call made two trials, not five
    assert f"{words} --datasets a --trials 5 --budget full --out {tmp_path}`\n" in text
    text = run(tmp_path, axes={"settings": ["5"], "trials": 5})
    assert f"{words} --trials 5 --budget full --out {tmp_path}`\n" in text
    text = run(tmp_path, axes={"trials": 5})
    assert f"- made by: `zoo reproduce toy/plain --trials 5 --budget full --out {tmp_path}`\n" in text


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"datasets": ["a"]}, ["**Partial: 12 of 24 cells.** Missing:\n\n- all trials of b\n"]),
        ({"trials": 1}, ["**Partial: 8 of 24 cells.**", "- 2 of 3 trials of every combination\n"]),
        (
            {"methods": ["m"], "settings": ["5"]},
            ["- all trials of n, 5x5\n"],
        ),
        (
            {"methods": ["m"], "settings": ["5"], "datasets": ["a"]},
            ["- all trials of b, n, 5x5\n"],
        ),
        ({"trials": 4}, ["Complete: 32 cells"]),
    ],
)
def test_page_of_a_part_says_so(axes, words, tmp_path):
    text = run(tmp_path, axes=axes)
    assert all(word in text for word in words), text


def test_what_is_missing_with_its_data_set_is_not_named_again(tmp_path):
    """All that there is of n."""

    def exists(dataset: str, method: str, setting: str) -> bool:
        return (dataset, method) != ("b", "n")

    assert "- all trials of a\n" in run(tmp_path, axes={"datasets": ["b"]}, exists=exists, published={})


def test_more_trials_than_published_are_missed_when_the_call_was_stopped(tmp_path):
    def stop(todo, finished):
        if len(finished) == 4 * 8 - 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(plan(declare(run=numbers), trials=4), tmp_path, on_progress=stop)
    assert "**Partial: 30 of 32 cells.** Missing:\n\n- 1 of 4 trials of b n 5x5, b n 5\n" in read(tmp_path)


# ------------------------------------------------------------------------------------------ the tables


def test_a_metric_of_several_data_sets_has_ours_printed_and_z_a_method(tmp_path):
    published = {("a", "n", "5", "error"): Published(1.5, 0.25), ("b", "n", "5", "error"): Published(2.5, 9)}
    text = run(tmp_path, published=published)
    lines = section(text, "error")
    assert lines[0] == "an error, lower is better"
    assert lines[2:8] == [
        "| data set | setting | m | n | printed | z |",
        "|---|---|---:|---:|---:|---:|",
        "| a | 5x5 | 2.33 ± 0.88 | 2.33 ± 0.88 |  |  |",
        "| a | 5 | 2.33 ± 0.88 | 2.33 ± 0.88 | 1.5 ± 0.25 | 0.9 |",
        "| b | 5x5 | 2.33 ± 0.88 | 2.33 ± 0.88 |  |  |",
        "| b | 5 | 2.33 ± 0.88 | 2.33 ± 0.88 | 2.5 ± 9 | 0.0 |",
    ]
    assert lines[-1].startswith("|z| > 2 in 0 of 2. Independent runs of one law would be so in ")
    assert "printed" not in "".join(section(text, "score"))


def test_a_question_of_several_metrics_has_a_table_a_data_set_and_a_row_a_method(tmp_path):
    published = {("a", "m", "5", "error"): Published(2.0, None, 1.0, 3.0, "1.0 / 2.0 / 3.0")}
    text = run(tmp_path, questions={"How good?": ("error", "score")}, published=published)
    lines = section(text, "How good?")
    assert lines[:2] == ["- `error`: an error, lower is better", "- `score`: a score, higher is better"]
    assert lines[3:9] == [
        "**a**",
        "",
        "| method | setting | error | printed | score |",
        "|---|---|---:|---:|---:|",
        "| m | 5x5 | 2.33 ± 0.88 |  | -1 |",
        "| m | 5 | 1 / 2 / 4 | 1.0 / 2.0 / 3.0 | -1 |",
    ]
    assert lines.index("**a**") < lines.index("**b**")


def test_many_metrics_have_a_row_each(tmp_path):
    metrics = {name: f"the {name}" for name in ("error", "score", "c", "d", "e", "f", "g")}
    text = run(tmp_path, metrics=metrics, published={}, questions={"All": tuple(metrics)}, settings=("5",))
    assert "| metric | m | n |" in text
    assert "| error | 2.33 ± 0.88 | 2.33 ± 0.88 |" in text


def test_a_series_of_metrics_is_defined_once(tmp_path):
    metrics = {"error": "an error", "score": "a score", **{f"c{i}": f"column {i} is in" for i in (1, 2, 3)}}
    lines = section(run(tmp_path, metrics=metrics, published={}, questions={"All": tuple(metrics)}), "All")
    assert lines[:3] == ["- `error`: an error", "- `score`: a score", ""]

    def all_of_them(cell):
        return dict.fromkeys(metrics, 1.0)

    text = run(
        tmp_path / "x", run=all_of_them, metrics=metrics, published={}, questions={"All": tuple(metrics)}
    )
    assert section(text, "All")[2] == "- `c1` to `c3`: column 1 is in"


def test_one_number_has_its_table_too(tmp_path):
    text = run(tmp_path, methods=("m",), datasets=("a",), settings=("default",), published={})
    assert section(text, "error")[2:] == ["| method | error |", "|---|---:|", "| m | 2.33 ± 0.88 |"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.98046, "0.9805"),
        (-186.95026, "-187"),
        (2.0, "2"),
        (123456.7, "123457"),
        (-123456.7, "-123457"),
        (math.inf, "inf"),
    ],
)
def test_number_without_an_error_has_four_digits(value, words):
    line = Line(*PLACE, summary([value]), None)
    assert ours(line) == words
    assert ours(replace(line, ours=replace(line.ours, se=0.0, n=3))) == words


def test_a_page_says_what_its_cells_did_not_measure():
    metrics = {"density": "share", "change": "how much it rose"}
    experiment = declare(metrics=metrics, notes={}, published={})
    density = Line("a", "m", "5", "density", summary([0.25]), None)
    words = "Measured in no cell of this page: `change`."
    assert words in page_numbers(experiment, [density])
    change = Line("a", "m", "5", "change", summary([0.1]), None)
    assert "Measured in no cell" not in "".join(page_numbers(experiment, [density, change]))


def test_what_no_paper_printed_has_another_heading(tmp_path):
    published = {("a", "m", "5", "error"): Published(2.0)}
    assert " | other program |" in run(tmp_path, published=published, beside="other program")
