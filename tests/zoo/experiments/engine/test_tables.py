"""The CSV files: means and errors by hand, published numbers beside them, z, and what is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import stats

from tests.zoo.experiments.runner_helpers import rows
from tests.zoo.experiments.toy_experiments import declare
from zoo.experiments import Published
from zoo.experiments.engine.declaration import Effort, Explanation, Redrawn
from zoo.experiments.engine.lines import Line, summary
from zoo.experiments.engine.records import read_all
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce
from zoo.experiments.engine.tables import is_published_effort

pytestmark = pytest.mark.usefixtures("calls")
COLUMNS = (
    "dataset,method,setting,metric,mean,se,n,min,median,max,published,published_se,published_min,"
    "published_max,z,note"
)
PLACE = ("a", "m", "5", "error")
#: Of 1, 2, 4: squares 16/9 + 1/9 + 25/9 = 14/3, over 2, over 3, root.
SE = math.sqrt(14 / 3 / 2 / 3)


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
    row = run(tmp_path)[PLACE]
    assert ",".join(row) == COLUMNS
    assert float(row["mean"]) == pytest.approx(7 / 3, rel=1e-15)
    assert float(row["se"]) == pytest.approx(SE, rel=1e-15)
    assert [row[name] for name in ("n", "min", "median", "max")] == ["3", "1.0", "2.0", "4.0"]
    found = summary([1.0, 2.0, 4.0])
    assert (found.mean, found.se) == (float(row["mean"]), float(row["se"]))


def test_one_trial_has_no_standard_error_and_none_no_mean(tmp_path):
    row = run(tmp_path, axes={"trials": 1})[PLACE]
    assert (row["mean"], row["se"], row["n"], row["z"]) == ("1.0", "", "1", "")
    assert summary([]) is None


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
    assert given == {PLACE: ("1.5", "0.01"), ("b", "n", "5x5", "score"): ("0.3", "")}


def test_z_by_hand(tmp_path):
    """Ours minus theirs: positive when ours is larger."""
    row = run(tmp_path, published={PLACE: Published(3.0, 0.4)})[PLACE]
    assert float(row["z"]) == pytest.approx((7 / 3 - 3) / math.sqrt(SE**2 + 0.4**2), rel=1e-14)


@pytest.mark.parametrize(
    "published", [Published(2.0), Published(2.0, None, 1.0, 3.0)], ids=["no error", "range"]
)
def test_no_z_without_both_errors(published, tmp_path):
    lines = run(tmp_path, published={PLACE: published, ("a", "m", "5", "score"): Published(-1.0, 0.0)})
    assert lines[PLACE]["z"] == ""
    assert lines["a", "m", "5", "score"]["z"] == ""  # no error on either side
    assert lines[PLACE]["published_max"] == ("" if published.highest is None else "3.0")


@pytest.mark.parametrize(("value", "far"), [(7 / 3 + 1.7, False), (7 / 3 + 1.9, True), (7 / 3 - 1.9, True)])
def test_far_is_two_standard_errors_on_either_side(value, far):
    """That of the difference is sqrt(7/9 + 0.01) = 0.8876."""
    assert Line(*PLACE, summary([1.0, 2.0, 4.0]), Published(value, 0.1)).far == far


@pytest.mark.parametrize(("lowest", "highest", "outside"), [(2, 3, False), (1, 1.9, True), (2.1, 3, True)])
def test_outside_is_the_median_outside_the_range(lowest, highest, outside):
    line = Line(*PLACE, summary([1.0, 2.0, 4.0]), Published(2.5, None, lowest, highest))
    assert line.ranged
    assert line.outside == outside
    assert not Line(*PLACE, summary([1.0, 2.0, 4.0]), Published(9.0, 0.1)).ranged


@pytest.mark.parametrize(
    ("ours", "printed", "same", "near"),
    [
        (2.3449, "2.34 ± 0.10", True, True),
        (2.3451, "2.34", False, True),
        (0.155, "0.15", True, True),  # half a unit, which rounding makes a little more
        (-0.0351, "-0.03", False, False),
        (3.024e-5, "3.02e-5", True, True),
        (3.026e-5, "3.02e-5", False, True),
        (44.0, "40", False, True),
        (44.1, "40", False, False),
        (0.3, "0", True, False),
    ],
)
def test_how_near_a_number_is_that_has_no_z(ours, printed, same, near):
    value = float(printed.split()[0])
    line = Line(*PLACE, summary([ours]), Published(value, printed=printed))
    assert (line.has_printed_digits, line.is_near) == (same, near)
    assert Line(*PLACE, summary([value]), Published(value)).has_printed_digits
    assert not Line(*PLACE, summary([value]), Published(value), comparable=False).has_printed_digits


def test_less_work_than_published_is_not_compared(tmp_path):
    far = {PLACE: Published(100.0, 0.1), ("b", "m", "5", "error"): Published(100.0, None, 90.0, 110.0)}
    lines = run(tmp_path, published=far, quick=Effort(3, "", {"epochs": 1}), axes={"budget": "quick"})
    assert (lines[PLACE]["published"], lines[PLACE]["z"]) == ("100.0", "")
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "**not the work of the full budget, which is epochs 4; no z and no verdict beside" in text
    assert "|z|" not in text
    assert "outside" not in text


def test_notes_stand_in_the_lines_they_are_about(tmp_path):
    lines = run(tmp_path, notes=declare().notes, published={})
    assert lines["b", "n", "5", "error"]["note"] == "another b; n|5"
    assert lines["a", "n", "5", "error"]["note"] == "n|5"
    assert lines[PLACE]["note"] == ""


def test_remark_of_the_print_and_explanation_are_in_the_note_of_what_is_printed(tmp_path):
    explained = [Explanation(("a", "*", "*", "*"), "misprint", "two digits swapped")]
    published = {PLACE: Published(1.5, remark="dagger"), ("b", "m", "5", "error"): Published(1.5)}
    lines = run(tmp_path, published=published, explained=explained)
    assert lines[PLACE]["note"] == "print: dagger; misprint: two digits swapped"
    assert lines["b", "m", "5", "error"]["note"] == lines["a", "n", "5", "error"]["note"] == ""


def test_a_corrected_print_has_its_own_z_in_the_note(tmp_path):
    explained = [Explanation(("a", "*", "*", "*"), "misprint", "e-4", factor=10.0)]
    row = run(tmp_path, published={PLACE: Published(0.1, 0.01)}, explained=explained)[PLACE]
    z = (float(row["mean"]) - 1.0) / math.hypot(float(row["se"]), 0.1)
    assert row["note"] == f"misprint: e-4 (z {z:.1f} from the print times 10)"


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


def test_metric_that_a_method_does_not_have_is_no_failure(tmp_path):
    def some(cell):
        return numbers(cell) if cell.method == "m" else {"error": 1.0}

    lines = run(tmp_path, run=some, published={})
    assert ("a", "m", "5", "score") in lines
    assert ("a", "n", "5", "score") not in lines
    assert "failed" not in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_file_of_csv_reads_back_exactly(tmp_path):
    request = plan(declare())
    reproduce(request, tmp_path)
    records = read_all(tmp_path, request.experiment, 0, request.effort.options)
    values = [value for record in records for value in record.metrics.values()]
    assert [float(row["value"]) for row in rows(tmp_path)] == values


def test_seconds_are_told_to_the_millisecond(tmp_path):
    reproduce(plan(declare(), trials=1), tmp_path)
    seconds = [row["seconds"] for row in rows(tmp_path)]
    assert all(math.isfinite(float(value)) and len(value.partition(".")[2]) <= 3 for value in seconds)


@pytest.mark.parametrize(
    ("budget", "options", "same"),
    [
        ("full", {}, True),
        ("full", {"epochs": "1"}, False),
        ("quick", {}, False),
        ("quick", {"epochs": "4"}, True),
    ],
)
def test_work_is_that_of_the_print_by_its_options_and_not_by_its_name(budget, options, same):
    experiment = declare(quick=Effort(1, "", {"epochs": 1}), full=Effort(3, "", {"epochs": 4}))
    assert is_published_effort(plan(experiment, budget=budget, options=options)) == same


@pytest.mark.parametrize(("ours", "near"), [(-1.05, True), (-0.95, True), (-1.2, False), (1.05, False)])
def test_numbers_below_zero_are_near_by_their_size(ours, near):
    """Log likelihoods, say."""
    line = Line(*PLACE, summary([ours]), Published(-1.0, printed="-1.00"))
    assert line.is_near == near


def test_several_runs_of_ours_have_a_spread_of_their_own():
    """That of the printed runs stands in for one run alone."""
    several, one = summary([1.0, 2.0, 4.0]), summary([7 / 3])
    printed = Published(2.0, 0.1, runs=5)
    assert Line(*PLACE, several, printed).z == pytest.approx((7 / 3 - 2) / math.hypot(SE, 0.1))
    assert Line(*PLACE, summary([1.0, 4.0]), printed).z == pytest.approx((2.5 - 2) / math.hypot(1.5, 0.1))
    assert Line(*PLACE, one, printed).z == pytest.approx((7 / 3 - 2) / math.hypot(5**0.5 * 0.1, 0.1))
    assert not Line(*PLACE, several, printed).borrowed


def test_data_drawn_anew_count_on_both_sides_of_one_run_and_once_of_several():
    """Our own runs draw data anew each, so that their spread has it already; the print's have not."""
    printed = Published(2.0, 0.1, runs=5, redrawn=Redrawn(0.7, 4))
    one, several = (Line(*PLACE, summary(ours), printed) for ours in ([7 / 3], [1.0, 2.0, 4.0]))
    assert one.z == pytest.approx((7 / 3 - 2) / math.sqrt(0.06 + 2 * 0.49))
    assert several.z == pytest.approx((7 / 3 - 2) / math.sqrt(SE**2 + 0.01 + 0.49))
    freedom = 1.04**2 / (0.06**2 / 4 + 0.98**2 / 3)
    assert one.by_chance == pytest.approx(2 * stats.t.sf(2, freedom))
    corrected = replace(one, explanation=Explanation(("*",) * 4, "another unit", "halves", factor=0.5))
    assert corrected.corrected_z == pytest.approx((7 / 3 - 1) / math.sqrt(6 * 0.05**2 + 2 * 0.49))


def test_the_median_of_an_even_number_is_between_the_middle_two():
    found = summary([8.0, 1.0, 4.0, 2.0])
    assert (found.lowest, found.median, found.highest, found.n) == (1.0, 3.0, 8.0, 4)


def test_what_is_printed_and_not_measured_has_its_line(tmp_path):
    """A page that left it out would hide it."""
    lines = run(
        tmp_path, run=lambda cell: {"error": 1.0}, published={("a", "m", "5", "score"): Published(3.0)}
    )
    line = lines["a", "m", "5", "score"]
    assert (line["mean"], line["n"], line["published"]) == ("", "0", "3.0")
    assert ("a", "n", "5", "score") not in lines


@pytest.mark.parametrize(("factor", "explained"), [(1.0, True), (0.1, True), (0.4, False), (1e-3, False)])
def test_a_correction_explains_what_it_brings_near(factor, explained):
    """The print is ten times ours: a factor of 0.1 is near it, others are no explanation."""
    found = Explanation(("*",) * 4, "another unit", "tens", factor=factor)
    line = Line(*PLACE, summary([1.0, 2.0, 4.0]), Published(22.0, 5.0), explanation=found)
    expected = (7 / 3 - factor * 22) / math.hypot(SE, factor * 5)
    assert line.corrected_z == pytest.approx(expected, rel=1e-12)
    assert line.far
    assert line.explained == explained
