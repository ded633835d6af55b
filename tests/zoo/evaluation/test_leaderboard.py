"""Ranks and sentences from runs that are made up, so that what they must say is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from zoo.evaluation.estimates import Estimate
from zoo.evaluation.leaderboard import plot
from zoo.evaluation.leaderboard.page import page
from zoo.evaluation.leaderboard.plot import plot_leaderboard
from zoo.evaluation.leaderboard.standings import COLUMNS, Refusal, leaderboard_frame, standings
from zoo.evaluation.leaderboard.words import Gaps, when, words
from zoo.evaluation.repeats import Run
from zoo.evaluation.scoreboard import Row
from zoo.evaluation.verdict import verdict

NOTES = {"near": "", "far": "", "cheap": "", "other": "another posterior"}
#: W1, sd ratio, log likelihood beside the truth's, CPU seconds.
FIGURES = {
    "near": (0.2, 0.9, 0.0, 9.0),
    "far": (2.0, 0.3, -0.5, 8.0),
    "cheap": (0.6, 1.1, -0.1, 0.1),
    "other": (0.1, 0.8, 0.2, 20.0),
}


def one_run(dataset: str, *, scale: float = 1.0, without: str = "", noise: float = 0.01) -> Run:
    rng = np.random.default_rng(len(dataset))
    rows, lines = [Row("nuts", "bnn")], []
    for name, (w1, ratio, predicted, _) in FIGURES.items():
        if name == without:
            rows.append(Row(name, "bnn", "failed: the loss is nan"))
            continue
        figures = {
            "ref_w1": scale * w1,
            "ref_sd_ratio": ratio,
            "ref_mean_error": w1,
            "ref_log_likelihood": predicted,
        }
        rows.append(Row.from_figures(name, "bnn", {key: Estimate(v, 0.01) for key, v in figures.items()}))
        points = zip(
            scale * w1 + noise * rng.normal(size=30), predicted + noise * rng.normal(size=30), strict=True
        )
        lines += [(name, i, *pair) for i, pair in enumerate(points)]
    table = pd.DataFrame(lines, columns=["method", "row", "ref_w1", "log_likelihood"])
    return Run(dataset, 0, 0, rows, table, {name: figures[3] for name, figures in FIGURES.items()})


@pytest.fixture
def runs():
    return [one_run("a"), one_run("bb", scale=3.0)]


def test_ranks_seconds_and_figures(runs):
    table = leaderboard_frame(standings(runs, NOTES), [])
    assert tuple(table.columns) == COLUMNS
    assert table["guide"].tolist() == ["other", "near", "cheap", "far"]  # no reference among them
    assert table["rank"].tolist() == [1, 2, 3, 4]
    assert table["ref_w1"].tolist() == pytest.approx([0.2, 0.4, 1.2, 4.0])
    assert table["ref_w1_se"].tolist() == pytest.approx([0.1, 0.2, 0.6, 2.0])  # over the two data sets
    assert table["cpu_seconds"].tolist() == [20.0, 9.0, 0.1, 8.0]
    assert table["datasets"].tolist() == [2] * 4


def test_equal_distances_share_their_ranks(monkeypatch):
    monkeypatch.setitem(FIGURES, "cheap", FIGURES["near"])
    table = leaderboard_frame(standings([one_run("a")], NOTES), []).set_index("guide")
    assert table["rank"].to_dict() == {"other": 1, "near": 2.5, "cheap": 2.5, "far": 4}


def test_fields_of_different_size_are_told():
    runs = [one_run("a"), one_run("bb"), one_run("ccc", without="far")]
    sentence = "Guides that are ranked: 4 on a, bb; 3 on ccc. A rank among few is a smaller number."
    assert sentence in words(standings(runs, NOTES), runs)
    again = [*runs, replace(one_run("a", without="far"), split=1)]  # the larger field of a data set counts
    assert sentence in words(standings(again, NOTES), again)
    assert not any("are ranked:" in text for text in words(standings(runs[:2], NOTES), runs[:2]))


def test_one_run_with_a_warning_is_no_uncertainty_to_rely_on(runs):
    first, second = runs
    off = [replace(row, ref_mean_error=1.5) if row.method == "near" else row for row in second.rows]
    runs = [first, replace(second, rows=off)]
    answers = dict(when(standings(runs, NOTES), runs))
    (safe,) = (answer for title, answer in answers.items() if title.startswith("an uncertainty"))
    assert safe == "other†, cheap"


def test_what_is_really_farther_is_so_than_the_first_of_its_part():
    """The second cannot be told from its neighbours, the third is farther than the first all the same."""
    laws = {"first": (0.5, 0.001), "second": (0.6, 1.0), "third": (0.7, 0.001)}
    rows = [Row.from_figures(name, "bnn", {"ref_w1": Estimate(w1, 0.001)}) for name, (w1, _) in laws.items()]
    lines = [
        (name, i, w1 + noise * value, 0.0)
        for name, (w1, noise) in laws.items()
        for i, value in enumerate(np.linspace(-1, 1, 30))
    ]
    points = pd.DataFrame(lines, columns=["method", "row", "ref_w1", "log_likelihood"])
    runs = [Run("a", 0, 0, rows, points, {})]
    order = words(standings(runs, dict.fromkeys(laws, "")), runs)[0]
    assert order.endswith(": first 1, second 2; then third 3.")


def test_which_guide_when(runs):
    answers = dict(when(standings(runs, NOTES), runs))
    # the second data set has three times the distances of the first: two such say nothing of a third
    here = "behind it on these data sets, which may be chance on others"
    assert answers["nearest to the posterior"] == f"other† (W1 0.20 ± 0.10); {here}: near, cheap, far"
    assert answers["nearest, of those without †"] == f"near (W1 0.40 ± 0.20); {here}: cheap, far"
    assert answers["best predictions"].startswith("other† (vs truth 0.2")
    (safe,) = (answer for title, answer in answers.items() if title.startswith("an uncertainty"))
    assert safe == "other†, near, cheap"
    (frontier,) = (answer for title, answer in answers.items() if title.startswith("little time"))
    assert frontier == "cheap (0.1 CPU s, W1 1.2), near (9 CPU s, W1 0.4), other† (20 CPU s, W1 0.2)"


def test_predictions_are_told_apart_by_their_own_differences():
    """And not by distances, of which the best predictions need not have the smallest."""

    def predicting(run: Run) -> Run:
        rows = [replace(row, log_likelihood=row.ref_log_likelihood) for row in run.rows]
        return replace(run, rows=rows)

    runs = [predicting(one_run(name, noise=1e-4)) for name in ("a", "bb")]
    answers = dict(when(standings(runs, NOTES), runs))
    assert answers["best predictions"] == "other† (vs truth 0.2)"
    noisy = [predicting(one_run("a", noise=1.0))]
    answers = dict(when(standings(noisy, NOTES), noisy))
    assert answers["best predictions"].startswith("other† (vs truth 0.2); not told apart from it: near")


def test_a_guide_is_not_left_out_for_a_data_set_without_predictions():
    """Fitted whole, it has no test rows: a guide that does not apply to it predicts wherever any does."""
    whole = one_run("bb", without="far")
    rows = [replace(row, ref_log_likelihood=None, log_likelihood=None) for row in whole.rows]
    points = whole.points.assign(log_likelihood=np.nan)
    runs = [one_run("a", noise=1.0), replace(whole, rows=rows, points=points)]
    answers = dict(when(standings(runs, NOTES), runs))
    assert answers["best predictions (of a alone)"].endswith("not told apart from it: near, cheap, far")
    left = answers["left out of these answers, for they are not ranked in all 2 runs"]
    assert left == "far (1 of 2; compared by predictions)"
    assert "far" not in answers["nearest to the posterior"]
    three = [*runs, one_run("ccc", noise=1.0, without="cheap")]  # a set that has predictions
    left = dict(when(standings(three, NOTES), three))
    title = "left out of these answers, for they are not ranked in all 3 runs"
    assert left[title] == "cheap (2 of 3), far (2 of 3; compared by predictions)"


def test_a_guide_that_does_not_predict_everywhere_is_named():
    def mute(row):
        return replace(row, ref_log_likelihood=None) if row.method == "near" else row

    runs = [one_run("a"), one_run("bb")]
    runs[1] = replace(runs[1], rows=[mute(row) for row in runs[1].rows])
    answers = dict(when(standings(runs, NOTES), runs))
    assert answers["left out of predictions, of which they have none in some run"] == "near"
    assert "near" not in answers["best predictions"]


def test_a_page_names_data_sets_without_test_rows():
    whole = one_run("bb")
    rows = [replace(row, ref_log_likelihood=None, log_likelihood=None) for row in whole.rows]
    runs = [one_run("a"), replace(whole, rows=rows, points=whole.points.assign(log_likelihood=np.nan))]
    text = page(standings(runs, NOTES), runs, [], "zoo leaderboard", "1 step")
    assert "**vs truth** is over a: there is none of bb, which is fitted whole" in text
    assert "there is none of" not in page(
        standings(runs[:1], NOTES), runs[:1], [], "zoo leaderboard", "1 step"
    )


def test_what_is_dearer_and_no_nearer_is_left_out(monkeypatch):
    monkeypatch.setitem(FIGURES, "far", (0.7, 0.3, -0.5, 8.0))
    runs = [one_run("a")]
    (frontier,) = (a for title, a in when(standings(runs, NOTES), runs) if title.startswith("little time"))
    assert frontier == "cheap (0.1 CPU s, W1 0.6), near (9 CPU s, W1 0.2), other† (20 CPU s, W1 0.1)"


def test_splits_of_one_data_set_say_nothing_of_another():
    """On the second data set one of the two has failed."""
    runs = [replace(one_run("a", scale=1 + k / 100), split=k) for k in range(4)]
    gaps = Gaps([*runs, one_run("bb", without="far")])
    assert gaps.larger("near", "far", "ref_w1")
    assert not gaps.larger_elsewhere("near", "far", "ref_w1")


def test_a_guide_that_failed_is_not_trusted(runs):
    failing = [*runs, one_run("ccc", without="near")]
    trusted = [
        {standing.guide: standing.trusted for standing in standings(found, NOTES)}["near"]
        for found in (runs, failing)
    ]
    assert trusted == [True, False]


def test_answers_follow_the_figures(runs, monkeypatch):
    """Nothing is said of a guide by its name."""
    monkeypatch.setitem(FIGURES, "far", (0.01, 1.0, 1.0, 0.01))
    changed = [one_run("a"), one_run("bb", scale=3.0)]
    for _, answer in when(standings(changed, NOTES), changed)[:3]:
        assert answer.startswith("far (")


def test_a_guide_that_fails_somewhere_is_no_answer():
    runs = [one_run("a"), one_run("bb", without="near")]
    found = standings(runs, NOTES)
    *answers, (left_out, names) = when(found, runs)
    assert all("near" not in answer for _, answer in answers)
    assert (left_out.endswith("not ranked in all 2 runs"), names) == (True, "near (1 of 2)")
    line = leaderboard_frame(found, []).set_index("guide").loc["near"]
    assert (line["status"], line["runs"], line["failed"], line["datasets"]) == ("ok", 2, 1, 1)
    assert "near 2 (in 1 of 2 runs)" in words(found, runs)[0]

    assert words(found, runs)[3].endswith("; failed fits do not count: near in 1 of 1 run.")
    assert "failed" not in words(found, runs)[2]


def test_what_has_not_settled_is_said(runs):
    """As the verdict of a scoreboard judges it: beyond half a nat and two standard errors."""
    rising = {"near": (0.4, 0.1), "far": (7.0, 0.2), "cheap": (3.0, 1.5), "other": (-2.0, 0.1)}
    both = [
        replace(
            run,
            rows=[
                row
                if row.method not in rising or (run.dataset == "a" and row.method == "cheap")
                else replace(
                    row,
                    bound_change=factor * rising[row.method][0],
                    standard_errors={**row.standard_errors, "bound_change": rising[row.method][1]},
                )
                for row in run.rows
            ],
        )
        for run, factor in zip(runs, (1.0, 0.05), strict=True)
    ]
    found = standings(both, NOTES)
    table = leaderboard_frame(found, []).set_index("guide")
    assert table["unsettled"].to_dict() == {"other": 1, "near": 0, "cheap": 0, "far": 1}
    assert table["bound_change"].to_dict() == pytest.approx(
        {"other": -2.0, "near": 0.4, "cheap": 0.15, "far": 7.0}
    )
    assert words(found, both)[1] == (
        "Not settled, so that more steps may change the order: in the last tenth of the learning the bound "
        "(without one: minus the loss) still moved, by nats at most, of other† -2 (1 of 2 runs), far 7 (1 of "
        "2 runs); where it has a minus it fell."
    )
    assert [verdict([row])[-1:] for run in both for row in run.rows if row.method == "far"][0][0].endswith(
        "its loss was still falling (7.00 ± 0.20 nats in the last tenth: more steps)."
    )
    text = page(found, both, [], "zoo leaderboard ...", "quick")
    assert "| no (7; 1 of 2 runs) |" in text
    assert "| yes (0.4) |" in text
    assert not any("Not settled" in sentence for sentence in words(standings(runs, NOTES), runs))
    assert leaderboard_frame(standings(runs, NOTES), [])["unsettled"].isna().all()


def test_what_is_not_told_apart_is_said_so(monkeypatch):
    monkeypatch.setitem(FIGURES, "other", (0.25, 0.8, 0.2, 20.0))
    clear, noisy = ([one_run(name, noise=noise) for name in ("a", "bb")] for noise in (1e-4, 1.0))
    assert dict(when(standings(clear, NOTES), clear))["nearest to the posterior"] == "near (W1 0.2)"
    answer = dict(when(standings(noisy, NOTES), noisy))["nearest to the posterior"]
    assert answer.startswith("near (W1 0.2); not told apart from it: other†")
    assert words(standings(clear, NOTES), clear)[0].endswith(
        ": near 1; then other† 2; then cheap 3; then far 4."
    )
    assert words(standings(clear, NOTES), clear)[1] == "a: nearest is near (W1 0.200 ± 0.010)."


def test_a_reference_that_fails_ranks_nothing(runs):
    lost = Run("c", 0, 0, [Row("nuts", "bnn", "failed: R-hat 1.2"), Row("near", "bnn")], runs[0].points, {})
    found = standings([*runs, lost], NOTES)
    assert {standing.guide: len(standing.ranks) for standing in found} == dict.fromkeys(NOTES, 2)
    assert words(found, [*runs, lost])[-1] == (
        "c, split 0, seed 0: nuts failed: R-hat 1.2; no guide is ranked there."
    )
    only = standings([lost], NOTES)
    assert words(only, [lost]) == [words(found, [*runs, lost])[-1]]
    again = replace(lost, dataset="a", seed=1)
    assert not any(
        "failed fits" in sentence for sentence in words(standings([*runs, again], NOTES), [*runs, again])
    )
    assert when(only, [lost]) == [("no answer", "no run ranks any guide; the table has what there is")]


def test_the_page_and_the_refused(runs, tmp_path):
    refusals = [Refusal("pbp", name, "it is for others") for name in ("a", "bb")]
    found = standings(runs, NOTES)
    text = page(found, runs, refusals, "zoo leaderboard ...", "quick")
    assert "- pbp (a, bb): it is for others" in text
    assert "- other: another posterior" in text
    assert "| other† | 1 | 0.20 ± 0.10 |" in text
    last = leaderboard_frame(found, refusals).iloc[-1]
    assert (last["guide"], last["status"]) == ("pbp", "refused: it is for others")
    plot_leaderboard(found, tmp_path / "board.png")
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_the_distance_on_each_of_several_data_sets(runs):
    """With the error that it has there; empty where a guide failed."""
    runs = [runs[0], one_run("bb", scale=3.0, without="far")]
    text = page(standings(runs, NOTES), runs, [], "zoo leaderboard ...", "quick")
    _, _, section = text.partition("## W1 on each data set\n\n")
    table = section.split("\n\n")[0].splitlines()
    assert table[0] == "| guide | a | bb |"
    assert "| near | 0.200 ± 0.010 | 0.600 ± 0.010 |" in table
    assert "| far | 2.000 ± 0.010 |  |" in table
    one = page(standings(runs[:1], NOTES), runs[:1], [], "zoo leaderboard ...", "quick")
    assert "## W1 on each data set" not in one


def test_bars_are_two_standard_errors_to_either_side(runs, monkeypatch, tmp_path):
    """Of the second, whose W1 is 0.4 +- 0.2."""
    shown = {}
    monkeypatch.setattr(plot, "finish", lambda figure, *_, **__: shown.update(axes=figure.axes))
    plot_leaderboard(standings(runs, NOTES), tmp_path / "board.png")
    _, distances, *_ = shown["axes"]
    ((left, _), (right, _)) = distances.containers[1].lines[2][0].get_segments()[0]
    assert (left, right) == pytest.approx((0.0, 0.8))


@pytest.mark.parametrize(("predicted", "scale"), [(-0.5, "linear"), (-500.0, "symlog")])
def test_one_guide_that_is_far_off_leaves_room_for_the_others(predicted, scale, monkeypatch, tmp_path):
    monkeypatch.setitem(FIGURES, "far", (2.0, 0.3, predicted, 8.0))
    shown = {}
    monkeypatch.setattr(plot, "finish", lambda figure, *_, **__: shown.update(axes=figure.axes))
    runs = [one_run("a"), one_run("bb")]
    plot_leaderboard(standings(runs, NOTES), tmp_path / "board.png")
    assert shown["axes"][3].get_title().startswith("vs truth")
    assert shown["axes"][3].get_xscale() == scale


@pytest.mark.parametrize(
    ("figure", "value", "trusted"),
    [
        ("ref_mean_error", 1.0, True),
        ("ref_mean_error", 1.01, False),
        ("ref_sd_ratio", 0.5, True),
        ("ref_sd_ratio", 0.49, False),
        ("ref_sd_ratio", 2.0, True),
        ("ref_sd_ratio", 2.01, False),
    ],
)
def test_limits_of_an_uncertainty_to_rely_on_are_those_of_the_verdict(runs, figure, value, trusted):
    first, second = runs
    moved = [replace(row, **{figure: value}) if row.method == "near" else row for row in second.rows]
    found = standings([first, replace(second, rows=moved)], NOTES)
    (near,) = (standing for standing in found if standing.guide == "near")
    assert near.trusted == trusted
    said = " ".join(verdict([row for row in moved if row.method == "near"]))
    assert ("its mean is off" in said or "its uncertainty is" in said) != trusted


def test_splits_are_no_data_sets_and_a_guide_that_always_fails_says_why():
    runs = [replace(one_run("a", without="far"), split=split) for split in (0, 1)]
    table = leaderboard_frame(standings(runs, NOTES), []).set_index("guide")
    assert table["datasets"].to_dict() == {"other": 1, "near": 1, "cheap": 1, "far": 0}
    assert table["status"].to_dict() == dict.fromkeys(NOTES, "ok") | {"far": "failed: the loss is nan"}


def test_what_is_really_nearer_is_not_farther():
    gaps = Gaps([one_run("a")])
    assert gaps.larger("near", "far", "ref_w1")
    assert not gaps.larger("far", "near", "ref_w1")


def test_the_nearest_of_a_data_set_is_that_of_the_smallest_distance(runs):
    said = words(standings(runs, NOTES), runs)
    assert [text.partition(" (")[0] for text in said if "nearest is" in text] == [
        "a: nearest is other",
        "bb: nearest is other",
    ]
