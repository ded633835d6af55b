"""Means over splits and seeds, and paired differences, against numbers worked out by hand or by SciPy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from zoo.commands.repeated import summarise
from zoo.evaluation.distances import compare_functions, pointwise_w1
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.repeats import (
    Mean,
    Run,
    average,
    difference_frame,
    differences,
    mean_of,
    mean_over,
    over_these,
    paired,
)
from zoo.evaluation.scoreboard import Row
from zoo.evaluation.verdict import verdict


def run(w1: dict[str, float], dataset="d", split=0, seed=0, points=None, **failed) -> Run:
    rows = [Row.from_figures(name, "m", {"ref_w1": Estimate(value, 0.01)}) for name, value in w1.items()]
    rows += [Row(name, "m", f"failed: {why}") for name, why in failed.items()]
    columns = ["method", "row", "ref_w1", "log_likelihood"]
    return Run(dataset, split, seed, rows, pd.DataFrame(points or [], columns=columns), {})


def hard_and_easy(gap: float, sd: float) -> list[tuple]:
    """Two methods on twenty rows that differ a hundred times as much as the methods do."""
    rng = np.random.default_rng(0)
    common, apart = 100 * gap * rng.normal(size=20), rng.normal(gap, sd, size=20)
    lines = [("a", i, value, 0.0) for i, value in enumerate(common)]
    return lines + [("b", i, value, 0.0) for i, value in enumerate(common + apart)]


def test_seeds_of_a_split_are_averaged_before_splits_are_compared():
    """Four runs on two splits are two units: as many seeds as you like make no error smaller."""
    values = {("d", 0, 0): 1.0, ("d", 0, 1): 3.0, ("d", 1, 0): 5.0, ("d", 1, 1): 7.0}
    mean = mean_over(values)
    assert (mean.value, mean.units, mean.over) == (4.0, 2, "split")
    assert mean.se == pytest.approx(np.std([2.0, 6.0], ddof=1) / math.sqrt(2))
    again = mean_over({(d, split, 2 * seed + k): v for (d, split, seed), v in values.items() for k in (0, 1)})
    assert again == mean


def test_units_are_the_outermost_that_differ():
    assert mean_over({("d", 0, k): float(k) for k in range(3)}).over == "seed"
    two = mean_over({("d", 0, 0): 1.0, ("d", 1, 0): 3.0, ("e", 0, 0): 4.0})
    assert (two.value, two.units, two.over) == (3.0, 2, "dataset")  # not the mean of all three
    assert mean_over({("d", 0, 0): 1.0}) == Mean(1.0, None, 1, "")


def test_a_difference_is_real_where_the_paired_t_test_says_so():
    rng = np.random.default_rng(1)
    verdicts = set()
    for shift in np.linspace(0, 1, 21):
        values = rng.normal(shift, 1.0, size=12)
        mean = mean_of(values.tolist(), "row")
        assert mean.real == (stats.ttest_1samp(values, 0.0).pvalue < 0.05)
        verdicts.add(mean.real)
    assert verdicts == {True, False}


def test_equal_methods_are_called_different_one_time_in_twenty():
    rng = np.random.default_rng(2)
    share = np.mean([mean_of(rng.normal(size=3).tolist(), "split").real for _ in range(2000)])
    assert 0.035 < share < 0.065  # two standard errors in place of Student's t: 0.18


def test_rows_of_one_run_are_paired():
    """The difference is a hundredth of what the rows differ by, and is found; unpaired it would be lost."""
    lines = hard_and_easy(gap=0.1, sd=0.05)
    swapped = [(name, i, 1.0, value) for name, i, value, _ in lines]
    one = run({"a": 1.0, "b": 1.1}, points=swapped)
    one = replace(
        one,
        rows=[replace(row, log_likelihood=0.0, standard_errors={"log_likelihood": 3.0}) for row in one.rows],
    )
    mean = paired([one], "b", "a", "log_likelihood")
    table = pd.DataFrame(lines, columns=["method", "row", "value", "_"]).pivot(index="row", columns="method")
    a, b = table["value"]["a"], table["value"]["b"]
    assert mean.real
    assert (mean.units, mean.over) == (20, "row")
    assert mean.value / mean.se == pytest.approx(stats.ttest_rel(b, a).statistic)
    assert stats.ttest_ind(b, a).pvalue > 0.5
    distance = paired([run({"a": 1.0, "b": 1.1}, points=lines)], "b", "a", "ref_w1")
    assert distance.value == pytest.approx(mean.value)
    assert distance.se == pytest.approx(math.hypot(mean.se, 0.01, 0.01))


def test_a_likelihood_of_one_run_has_the_errors_of_its_draws_beside_that_over_rows():
    lines = [(name, i, 1.0, value) for name, i, value, _ in hard_and_easy(gap=0.1, sd=0.05)]
    one = run({"a": 1.0, "b": 1.1}, points=lines)
    one = replace(one, rows=[replace(row, log_likelihood=0.0) for row in one.rows])
    over_rows = paired([one], "a", "b", "log_likelihood").se
    noisy = replace(one, draw_errors={"a": 0.3, "b": 0.4})
    assert paired([noisy], "a", "b", "log_likelihood").se == pytest.approx(math.hypot(over_rows, 0.5))


def test_rows_where_the_reference_does_not_vary_are_no_units():
    """Their distances are NaN: the difference is that of the other rows."""
    lines = [line if line[1] != 7 else (*line[:2], math.nan, 0.0) for line in hard_and_easy(gap=1.0, sd=0.1)]
    mean = paired([run({"a": 1.0, "b": 2.0}, points=lines)], "b", "a", "ref_w1")
    values = pd.DataFrame(lines).pivot(index=1, columns=0, values=2).dropna()
    assert mean.units == 19
    assert mean.value == pytest.approx((values["b"] - values["a"]).mean())


def test_two_samples_of_one_law_are_seldom_told_apart():
    """All rows see the same draws: what is accident in one is in the others too."""
    generator, found = torch.Generator().manual_seed(0), 0
    for _ in range(20):
        slopes = torch.randn(2, 20, generator=generator)  # the function has two directions, and twenty rows

        def draws(number: int, slopes: torch.Tensor = slopes) -> torch.Tensor:
            return torch.randn(number, 2, generator=generator) @ slopes

        reference, lines, rows = draws(200), [], []
        for name in ("a", "b"):
            values = 1.3 * draws(100)
            rows.append(Row.from_figures(name, "m", compare_functions(reference, values).figures()))
            lines += [(name, i, w1, 0.0) for i, w1 in enumerate(pointwise_w1(reference, values).tolist())]
        points = pd.DataFrame(lines, columns=["method", "row", "ref_w1", "log_likelihood"])
        found += paired([Run("d", 0, 0, rows, points, {})], "a", "b", "ref_w1").real
    assert found <= 3  # by the errors over rows alone, 14


def test_runs_are_paired_too():
    """Splits differ by much, the methods by little on each."""
    runs = [run({"a": w1, "b": w1 + gap}, split=k) for k, (w1, gap) in enumerate(zip(
        (1.0, 3.0, 9.0, 4.0), (0.10, 0.11, 0.09, 0.10), strict=True))]  # fmt: skip
    rows = average(runs)
    assert rows[0].standard_errors["ref_w1"] > 1
    (difference,) = differences(runs)
    assert difference.mean.real
    assert difference.mean.value == pytest.approx(-0.1)
    words = verdict(rows, [difference], dict.fromkeys("ab", 3.18))
    assert "a (W1 4.2 ± 1.7), then b (4.3 ± 1.7)" in words[0]
    assert "not told apart" in verdict(rows, [], dict.fromkeys("ab", 3.18))[0]


def test_what_is_nearer_in_the_same_runs_is_not_called_farther():
    """It has run where the other failed, and the mean of all its runs is the larger one."""
    runs = [run({"a": 0.2 + k / 100, "b": 0.1 + k / 100}, split=k) for k in range(4)]
    runs.append(run({"b": 2.0}, split=4, a="the loss is nan"))
    (difference,) = differences(runs)
    assert difference.mean.real
    assert difference.mean.value > 0
    assert "then b" not in verdict(average(runs), [difference], dict.fromkeys("ab", 3.18))[0]


def test_a_method_that_failed_is_warned_of_by_the_runs_that_it_has():
    """Two of five runs, off by 3.9 standard errors: plenty for five, next to nothing for two."""
    runs = [run({"a": 1.0}, split=k, b="the loss is nan") for k in range(3)]
    runs += [run({"a": 1.0, "b": 1.0}, split=k) for k in (3, 4)]
    for k, one in enumerate(runs):
        rows = [replace(row, ref_log_likelihood=-0.2 - 0.138 * (k % 2)) for row in one.rows]
        runs[k] = replace(one, rows=rows)
    words = summarise(runs).words
    assert any(sentence.startswith("a predicts worse than the truth") for sentence in words)
    assert any(sentence.startswith("b is not told apart from the truth by its") for sentence in words)


def test_runs_that_have_not_settled_are_counted_one_by_one():
    """A mean of two that moved by 100 and 140 nats is not told from 0 by the errors of two units."""

    def words(*changes):
        runs = []
        for seed, change in enumerate(changes):
            one = run({"a": 1.0, "b": 1.0}, seed=seed)
            errors = {"ref_w1": 0.01, "bound_change": 2.0}
            moved = replace(one.rows[0], bound_change=change, standard_errors=errors)
            runs.append(replace(one, rows=[moved, one.rows[1]]))
        return summarise(runs).words[1:]

    said = (
        "a: the bound (without one: minus the loss) still moved at the end in {} runs, by {} nats at most: "
    )
    assert words(100.0, 140.0) == [said.format("2 of 2", "1.4e+02") + "more steps."]
    assert words(9.0, -30.0, 3.0) == [said.format("2 of 3", "-30") + "more steps."]
    assert words(3.0, -3.0) == []


def test_only_runs_with_both_count():
    runs = [
        run({"a": 1.0, "b": 2.0}),
        run({"a": 5.0}, split=1, b="the loss is nan"),
        run({"a": 1.0, "b": 2.5}, split=2),
    ]
    mean = paired(runs, "a", "b", "ref_w1")
    assert (mean.value, mean.units) == (-1.25, 2)
    a, b = average(runs)
    assert a.ref_w1 == pytest.approx(7 / 3)
    assert (b.ref_w1, b.status) == (2.25, "ok")
    assert b.note == "failed in 1 of 3 runs, the first time: failed: the loss is nan"


def test_a_mean_keeps_what_is_said_of_a_method_in_every_run():
    """Figures of a run go; a caveat of the method stays, and the reason of a failure stays whole."""
    whose, why = "another posterior: of the law of the data", "the loss is nan; a smaller --lr may help"
    runs = [run({"a": 1.0}, split=0), run({"a": 2.0}, split=1), run({}, split=2, a=why)]
    for k, one in enumerate(runs[:2]):
        one.rows[0] = replace(one.rows[0], note=f"{whose}; its ELBO is {k}.5 nats below")
    (row,) = average(runs)
    lost = f"failed in 1 of 3 runs, the first time: failed: {why}"
    assert row.note == f"{whose}; {lost}"
    assert f"a {lost}." in summarise(runs).words
    (sound,) = average(runs[:2])
    assert sound.note == whose


def test_what_fails_everywhere_is_a_failed_row_and_one_run_is_itself():
    runs = [run({"a": 1.0}, split=k, b="the loss is nan") for k in range(2)]
    assert average(runs)[1].status == "failed: the loss is nan"
    assert average(runs[:1]) == list(runs[0].rows)
    assert paired(runs, "a", "b", "ref_w1") is None


def test_a_mean_number_of_parameters_is_whole():
    def of(count: int, split: int) -> Run:
        one = run({"a": 1.0}, split=split)
        return replace(one, rows=[replace(one.rows[0], num_parameters=count)])

    (row,) = average([of(3, 0), of(8, 1)])
    assert (row.num_parameters, type(row.num_parameters)) == (6, int)
    (row,) = average([of(3, 0), of(3, 1)])
    assert row.num_parameters == 3
    assert "num_parameters" not in row.standard_errors  # the same in all runs


def test_over_these_data_sets_errors_within_them_count():
    parts = [Mean(1.0, 0.3, 10, "row"), Mean(3.0, 0.4, 20, "row")]
    assert over_these(parts) == Mean(2.0, pytest.approx(0.25), 28, "row")  # 27.8 degrees of freedom
    assert over_these([*parts, Mean(1.0, None, 1, "")]) is None
    assert over_these([]) is None


def test_over_these_data_sets_few_units_with_all_of_the_error_stay_few():
    """Two noisy splits beside two sets of twenty quiet ones: what is real by accident stays one in twenty."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        noisy = mean_of(rng.normal(0, 10, 2).tolist(), "split")
        quiet = [mean_of(rng.normal(0, 0.1, 20).tolist(), "split") for _ in range(2)]
        found += over_these([noisy, *quiet]).real
    assert found < 37  # binomial, 0.0005
    same = Mean(1.0, 0.2, 10, "split")
    assert over_these([same, same]).units == 19
    assert over_these([Mean(1.0, 0.0, 3, "split"), Mean(1.0, 0.0, 4, "split")]).units == 6


def test_an_infinite_figure_is_no_error():
    assert mean_of([1.0, math.inf], "split") == Mean(math.inf, None, 2, "split")


def test_table_of_differences():
    table = difference_frame(differences([run({"a": 1.0, "b": 1.1}, points=hard_and_easy(0.1, 0.05))]))
    line = table.set_index("figure").loc["ref_w1"]
    assert (line["first"], line["second"], line["units"], line["over"], line["real"]) == (
        "a",
        "b",
        20,
        "row",
        True,
    )
    assert line["difference"] < 0


@pytest.mark.parametrize("classes", [(), (3,)])
def test_points_average_to_the_distance(classes):
    torch.manual_seed(0)
    reference, draws = torch.randn(60, 5, *classes), 1 + 2 * torch.randn(40, 5, *classes)
    if not classes:
        reference[:, 3] = 1.0  # the reference does not vary there
    values = pointwise_w1(reference, draws)
    assert values.shape == (5,)
    assert values.isnan().tolist() == [False, False, False, not classes, False]
    assert values.nanmean().item() == pytest.approx(compare_functions(reference, draws).ref_w1.value)


def test_a_class_that_does_not_vary_at_a_point_is_left_out_of_its_mean():
    reference, draws = torch.randn(60, 2, 3), torch.randn(40, 2, 3)
    reference[:, 1, 2] = 1.0
    values = pointwise_w1(reference, draws)
    assert values[1] == pointwise_w1(reference[..., :2], draws[..., :2])[1]
