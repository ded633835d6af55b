"""What a page says of its numbers: verdicts, explanations, notes, and the chance of a number that is far."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.zoo.experiments.engine.test_page import run, section
from tests.zoo.experiments.toy_experiments import declare
from zoo.experiments import Published
from zoo.experiments.engine.declaration import Explanation, Redrawn
from zoo.experiments.engine.lines import Line, summary
from zoo.experiments.engine.page import numbers as page_numbers
from zoo.experiments.engine.verdicts import Marks, verdict

pytestmark = pytest.mark.usefixtures("calls")


def test_verdict_counts_what_is_far_and_names_what_is_not_explained(tmp_path):
    published = {
        ("a", "m", "5", "error"): Published(9.0, 0.1),
        ("b", "m", "5", "error"): Published(9.0, 0.1),
        ("b", "n", "5", "error"): Published(-9.0, 0.1),
        ("a", "n", "5", "error"): Published(2.0, 0.1),
        ("a", "m", "5x5", "error"): Published(2.0),
    }
    explained = [
        Explanation(("b", "*", "*", "*"), "another task", "b was turned round"),
        Explanation(("a", "m", "*", "*"), "misprint", "not of the other"),
        Explanation(("a", "n", "*", "*"), "misprint", "not of the other"),
    ]
    lines = section(run(tmp_path, published=published, explained=explained[:1]), "error")
    assert lines[-1] == (
        "|z| > 2 in 3 of 4: 2 explained below (another task 2); 1 unexplained: a m 5 (z -7.5). "
        "Independent runs of one law would be so in 0.72 on average. "
        "No z for 1: a standard error, of ours or of the print, is missing or rounded to zero; printed "
        "digits in 1, within a tenth of the print in 1."
    )
    text = run(tmp_path, published=published, explained=explained)
    assert "|z| > 2 in 3 of 4: 3 explained below (misprint 1, another task 2)." in text
    assert section(text, "Why ours and the print differ")[:2] == [
        "- **another task**, b: b was turned round",
        "- **misprint**, a m; a n: not of the other",
    ]
    less = run(tmp_path / "less", published=published, explained=explained, axes={"budget": "quick"})
    assert section(less, "Why ours and the print differ")[0].startswith("- **other work**, all: less or more")


def test_verdict_names_the_farthest_by_metric_where_there_are_several():
    """A table of two metrics, twenty numbers: z is 3 to 22."""
    experiment = declare(
        metrics={"error": "e", "score": "s"}, questions={"Both": ("error", "score")}, notes={}
    )
    lines = [
        Line("a", "m", "5", metric, summary([z - 1.0, z + 1.0, z]), Published(z - (3 + i) * se, 1e-9))
        for i, (metric, z, se) in enumerate((m, 10.0, 1 / math.sqrt(3)) for m in ("error", "score") * 10)
    ]
    (verdict,) = [part for part in page_numbers(experiment, lines) if part.startswith("|z|")]
    assert verdict.startswith(
        "|z| > 2 in 20 of 20: 20 unexplained: a m 5 score (z 22.0), a m 5 error (z 21.0),"
    )
    assert "a m 5 error (z 11.0), and 8 nearer ones. Independent runs of one" in verdict


def test_one_run_is_held_against_the_spread_of_the_printed_runs(tmp_path):
    """Four runs of standard error 0.5 spread by 1, so that z divides by sqrt(1 + 1/4)."""
    published = {("a", "m", "5", "error"): Published(-2.0, 0.5, runs=4)}
    folder = tmp_path / "one"
    text = run(folder, published=published, axes={"trials": 1, "datasets": ["a"], "methods": ["m"]})
    ours = float(next(line for line in section(text, "error") if line.startswith("| a | 5 |")).split("|")[3])
    z = (ours + 2.0) / math.sqrt(1 + 0.25)
    assert f"| **{z:.1f}** |" in text
    words = "The z of one run takes the spread of the printed runs for its standard deviation."
    assert words in text
    assert words not in run(tmp_path / "three", published=published)


def test_a_table_says_where_data_drawn_anew_count(tmp_path):
    words = "z also counts the spread over 7 draws of the data"
    for redrawn in (Redrawn(0.3, 7), None):
        published = {("a", "m", "5", "error"): Published(-2.0, 0.5, runs=4, redrawn=redrawn)}
        assert (words in run(tmp_path / str(bool(redrawn)), published=published)) == (redrawn is not None)


def test_a_table_says_by_itself_what_has_not_settled():
    metrics = {"bound": "nats", "change": "how much it rose"}
    experiment = declare(metrics=metrics, settled={"change": 0.5}, notes={}, published={})

    def said(*changes: float) -> str:
        lines = [
            Line("a", method, "5", "change", summary([change]), None)
            for method, change in zip(("m", "n"), changes, strict=True)
        ]
        return page_numbers(experiment, lines)[3]

    assert said(0.4, 0.7) == "**Not settled**, `change` is beyond 0.5, in 1 of 2: a n 5 (0.7)."
    assert "in 2 of 2: a m 5 (-0.6), a n 5 (0.51)." in said(-0.6, 0.51)
    assert said(0.5, 0.1).startswith("`change` is beyond 0.5 in none of 2: these runs have ended;")


def test_numbers_of_fits_that_have_not_settled_are_marked():
    """Where they are read, and not where the change itself stands."""
    metrics = {"density": "share", "change": "how much it rose", "bound": "nats"}
    questions = {"density": ("density",), "bounds": ("change", "bound")}
    experiment = declare(
        metrics=metrics, questions=questions, settled={"change": 0.5}, notes={}, published={}
    )

    def parts(change: float) -> list[str]:
        lines = [
            Line("a", method, "5", metric, summary([value]), None)
            for method, rise in (("m", 0.1), ("n", change))
            for metric, value in (("density", 0.25), ("change", rise), ("bound", -1.5))
        ]
        return page_numbers(experiment, lines)

    _, _, densities, legend, _, _, changes, again, named, *_ = parts(0.7)
    assert "0.25 | 0.25‡ |" in densities.splitlines()[-1]
    assert legend.startswith("‡ the fit had not settled")
    assert changes.splitlines()[-1].endswith("| -1.5‡ |")
    assert "0.7 |" in changes
    assert again == legend
    assert "a n 5 (0.7)" in named
    assert "‡" not in "".join(parts(0.4))


def test_verdict_marks_what_has_not_settled():
    metrics = {"density": "share", "change": "how much it rose"}
    experiment = declare(metrics=metrics, settled={"change": 0.5}, notes={}, published={})
    values = [("m", "density", 0.25), ("m", "change", 0.1), ("n", "density", 0.25), ("n", "change", 0.7)]
    lines = [
        Line("a", method, "5", metric, summary([value, value]), Published(2.0, None, 1.0, 3.0))
        for method, metric, value in values
    ]
    assert "2 unexplained: a m 5, a n 5‡." in page_numbers(experiment, lines)[3]


def test_a_corrected_print_explains_what_it_brings_near():
    """Of two numbers that are far from a misprint one is near what was meant; the other stays unexplained."""
    misprint = Explanation(("a", "*", "5", "error"), "misprint", "e-4 and not e-5", factor=10.0)
    experiment = declare(metrics={"error": "m"}, notes={}, published={}, explained=[misprint])
    print_ = Published(0.1, 0.01)
    lines = [
        Line("a", method, "5", "error", summary(values), print_, explanation=misprint)
        for method, values in (("m", [0.95, 1.05]), ("n", [1.95, 2.05]))
    ]
    assert [line.far for line in lines] == [True, True]
    assert [line.corrected_z for line in lines] == pytest.approx([0.0, 1.0 / math.hypot(0.05, 0.1)])
    _, _, _, verdict, explained, *_ = page_numbers(experiment, lines)
    assert "in 2 of 2: 1 explained below (misprint 1); 1 unexplained: a n 5 (z 37.3)." in verdict
    assert explained.endswith("the print times 10 leaves far, and unexplained: a n 5 error (z 8.9)")


def test_numbers_of_fits_that_were_seen_to_go_on_are_marked_too():
    """With a note of how far, at every budget; what still moved has the stronger mark."""
    metrics = {"density": "share", "size": "bytes", "change": "how much it rose"}
    questions = {"density": ("density",), "size": ("size",), "changes": ("change",)}
    unarrived = {("*", method, "*", "density"): "doubled after twice as many epochs" for method in ("m", "n")}
    declared = {"metrics": metrics, "questions": questions, "notes": {}, "published": {}}
    experiment = declare(**declared, settled={"change": 0.5}, unarrived=unarrived)

    def parts(comparable: bool) -> list[str]:
        lines = [
            Line("a", method, "5", metric, summary([value]), None, comparable)
            for method, rise in (("m", 0.1), ("n", 0.7))
            for metric, value in (("density", 0.25), ("size", 8.0), ("change", rise))
        ]
        return page_numbers(experiment, lines)

    _, _, densities, legend, _, _, sizes, _, _, _, changes, _, notes, *_ = parts(comparable=True)
    assert densities.splitlines()[-1] == "| a | 5 | 0.25§ | 0.25‡ |"
    assert "§ this or a like fit was seen to go on, in a longer run or by other steps (**Notes**)" in legend
    assert sizes.splitlines()[-1] == "| a | 5 | 8 | 8‡ |"
    assert "§" not in changes
    assert "- § doubled after twice as many epochs" in notes
    assert parts(comparable=False) == parts(comparable=True)
    with pytest.raises(ValueError, match="'o' of .* is nowhere in the grid"):
        declare(**declared, unarrived={("*", "o", "*", "*"): "words"})


def test_verdict_on_ranges(tmp_path):
    published = {
        ("a", "m", "5", "error"): Published(2.0, None, 1.0, 3.0),
        ("b", "m", "5", "error"): Published(5.0, None, 4.0, 6.0),
    }
    lines = section(run(tmp_path, published=published), "error")
    words = "Our median is outside the printed range (min / median / max) in 1 of 2: 1 unexplained: b m 5."
    assert lines[-1] == words


def test_notes_stand_once_with_what_they_are_about(tmp_path):
    notes = {("b", "*", "*", "*"): "another b", ("*", "n", "5", "error"): "n|5", ("*",) * 4: "of all"}
    text = run(tmp_path, notes=notes, published={}, axes={"datasets": ["a"]})
    assert section(text, "Notes")[:2] == ["- n 5 error: n|5", "- of all"]
    assert "another b" not in text
    assert text.count("of all") == 1


def test_the_farthest_on_either_side_are_named_first():
    lines = [
        Line("a", name, "5", "error", summary([1.0, 2.0, 4.0]), Published(7 / 3 + gap, 0.1))
        for name, gap in (("near", -3.0), ("above", 9.0), ("below", -5.0))
    ]
    words = verdict(lines, Marks("", frozenset(), frozenset(), frozenset()))
    assert words.index("above") < words.index("below") < words.index("near")


def test_the_metric_is_named_where_a_table_has_several():
    """Though only one of them is far."""
    lines = [
        Line("a", "m", "5", metric, summary([1.0, 2.0, 4.0]), Published(value, 0.1))
        for metric, value in (("error", 9.0), ("score", 2.0))
    ]
    words = verdict(lines, Marks("", frozenset(), frozenset(), frozenset()))
    assert "1 unexplained: a m 5 error (z -7.5)." in words


def test_a_number_with_the_printed_digits_is_near_the_print():
    """A third beside a print of 0, of which no tenth is anything."""
    line = Line("a", "m", "5", "error", summary([1 / 3]), Published(0.0, printed="0"))
    words = verdict([line], Marks("", frozenset(), frozenset(), frozenset()))
    assert words.endswith("printed digits in 1, within a tenth of the print in 1.")


def test_a_correction_that_leaves_ours_far_below_is_not_enough_either():
    misprint = Explanation(("a", "*", "5", "error"), "misprint", "e-4 and not e-5", factor=10.0)
    experiment = declare(metrics={"error": "m"}, notes={}, published={}, explained=[misprint])
    line = Line("a", "m", "5", "error", summary([-0.05, 0.05]), Published(0.1, 0.01), explanation=misprint)
    assert line.corrected_z == pytest.approx(-1 / math.hypot(0.05, 0.1))
    assert not line.explained
    *_, explained = [part for part in page_numbers(experiment, [line]) if "unexplained" in part]
    assert explained.endswith("the print times 10 leaves far, and unexplained: a m 5 error (z -8.9)")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("ours", "theirs"), [(1, 4), (20, 5), (3, None)])
def test_chance_of_a_far_number_is_that_of_simulated_runs(ours, theirs):
    """By 2000 pairs of one law, to four standard errors; Welch's degrees of freedom are approximate, by 0.01
    at these numbers of runs.
    """
    rng, far, claimed = np.random.default_rng(0), [], []
    for _ in range(2000):
        mine, print_ = rng.normal(size=ours), rng.normal(size=theirs or 10_000)
        error = print_.std(ddof=1) / len(print_) ** 0.5
        line = Line(
            "a", "m", "5", "error", summary(mine.tolist()), Published(print_.mean(), error, runs=theirs)
        )
        far.append(line.far)
        claimed.append(line.by_chance)
    share = np.mean(far)
    assert np.mean(claimed) == pytest.approx(share, abs=4 * (share * (1 - share) / 2000) ** 0.5 + 0.01)


def test_chance_has_the_degrees_of_freedom_of_welch():
    """Those of SciPy's test of the runs themselves; of one run, those of the printed ones."""
    rng = np.random.default_rng(1)
    mine, print_ = rng.normal(size=20), rng.normal(size=5)
    published = Published(print_.mean(), print_.std(ddof=1) / 5**0.5, runs=5)
    freedom = stats.ttest_ind(mine, print_, equal_var=False).df
    line = Line("a", "m", "5", "error", summary(mine.tolist()), published)
    assert line.by_chance == pytest.approx(2 * stats.t.sf(2, freedom), rel=1e-9)
    alone = Line("a", "m", "5", "error", summary(mine[:1].tolist()), published)
    assert alone.by_chance == pytest.approx(2 * stats.t.sf(2, 4), rel=1e-9)
    alike = Line("a", "m", "5", "error", summary([1.0, 1.0]), published)  # no spread of ours
    assert alike.by_chance == pytest.approx(2 * stats.t.sf(2, 4), rel=1e-9)
    of_many = replace(alike, published=replace(published, runs=None))
    assert of_many.by_chance == pytest.approx(2 * stats.norm.sf(2), rel=1e-9)
