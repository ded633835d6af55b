"""The scoreboard in words."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from data_loaders import load
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.metrics import log_likelihood, log_likelihood_values
from zoo.evaluation.repeats import Difference, Mean
from zoo.evaluation.scoreboard import Row
from zoo.evaluation.verdict import verdict


def row(method: str, **figures) -> Row:
    return Row.from_figures(method, "bnn", figures)


def test_ranking_says_what_is_told_apart():
    rows = [
        row("nuts"),
        row("far", ref_w1=Estimate(1.04, 0.01, 0.05)),
        row("near", ref_w1=Estimate(0.77, 0.01, 0.05)),
        row("as-near", ref_w1=Estimate(0.79, 0.01, 0.05)),  # 0.02 apart, its error 0.014
        row("same", ref_w1=Estimate(0.06, 0.01, 0.05)),
    ]
    assert verdict(rows) == [
        "Nearest to the truth: same (W1 0.060 ± 0.010), then near (0.770 ± 0.010), not told apart from it "
        "as-near (0.790 ± 0.010), then far (1.040 ± 0.010). By W1 not told apart from the truth itself by "
        "these draws: same."
    ]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Estimate(0.95, 0.012), "joint (by its sd ratio, 0.950 ± 0.012, it is)."),
        (Estimate(1.05, 0.012), "joint (by its sd ratio, 1.050 ± 0.012, it is)."),
        (Estimate(0.95, 0.026), "joint."),
        (Estimate(0.95), "joint."),
    ],
)
def test_a_wrong_spread_tells_from_the_truth_what_the_distance_does_not(ratio, words):
    (sentence,) = verdict([row("joint", ref_w1=Estimate(0.056, 0.005, 0.047), ref_sd_ratio=ratio)])
    assert sentence.endswith(f" By W1 not told apart from the truth itself by these draws: {words}")


def test_groups_are_told_apart_from_their_first():
    """The last is, though each is near the one before."""
    errors = {"a": (0.1, 0.01), "b": (0.2, 0.2), "c": (0.3, 0.01)}
    (sentence,) = verdict([row(name, ref_w1=Estimate(*pair)) for name, pair in errors.items()])
    assert sentence.endswith("not told apart from it b (0.20 ± 0.20), then c (0.300 ± 0.010).")


def test_warnings_name_their_figure():
    rows = [
        row(
            "narrow",
            ref_log_likelihood=Estimate(-0.1, 0.06),
            ref_mean_error=1.2,
            ref_sd_ratio=0.33,
            pareto_k=4.07,
            elbo=-300.0,
            bound_change=Estimate(2.0, 0.5),
        )
    ]
    assert verdict(rows) == [
        "narrow is not told apart from the truth by its predictions (log-likelihood -0.100 ± 0.060 nats a "
        "test point), its mean is off by 1.2 sds of the truth (mean error), its uncertainty is 3 times too "
        "small (sd ratio 0.33), its draws cannot be reweighted to the posterior (Pareto k 4.1), its bound "
        "was still rising (2.00 ± 0.50 nats in the last tenth: more steps)."
    ]


@pytest.mark.parametrize(("elbo", "what"), [(-300.0, "bound fell"), (None, "loss rose")])
def test_a_fit_that_got_worse_has_not_settled(elbo, what):
    (said,) = verdict([row("worse", ref_mean_error=0.1, elbo=elbo, bound_change=Estimate(-30.5, 0.7))])
    assert said.endswith(f"its {what} at the end (30.50 ± 0.70 nats in the last tenth: it has not settled).")


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"ref_log_likelihood": Estimate(-0.2, 0.06)}, "worse than the truth (log-likelihood lower by 0.200"),
        ({"ref_log_likelihood": Estimate(0.2, 0.06)}, "better than the truth (log-likelihood higher by"),
        ({"ref_sd_ratio": 2.5}, "2.5 times too large (sd ratio 2.5)"),
        ({"ref_sd_ratio": 0.0}, "no uncertainty"),
    ],
)
def test_each_warning(figures, words):
    (sentence,) = verdict([row("some", **figures)])
    assert words in sentence


def test_few_units_need_more_standard_errors():
    rows = [row("some", ref_log_likelihood=Estimate(-0.2, 0.06), bound_change=Estimate(2.0, 0.5))]
    (two,), (four,) = verdict(rows), verdict(rows, clear={"some": 4.0})
    assert "predicts worse than the truth" in two
    assert "its loss was still falling (2.00 ± 0.50 nats in the last tenth: more steps)" in two  # no bound
    assert four.startswith("some is not told apart from the truth by its predictions")
    assert "still falling" not in four


def test_of_two_the_one_that_needs_more_standard_errors_decides():
    rows = [row("a", ref_w1=Estimate(1.0, 0.1)), row("b", ref_w1=Estimate(1.5, 0.1))]
    for needed in ({"a": 2.0, "b": 4.3}, {"a": 4.3, "b": 2.0}):
        assert verdict(rows, (), needed)[0].endswith("not told apart from it b (1.50 ± 0.10).")
    assert verdict(rows, (), {"a": 2.0, "b": 2.0})[0].endswith("then b (1.50 ± 0.10).")


@pytest.mark.parametrize(("value", "apart"), [(1.27, False), (1.3, True)])
def test_errors_of_two_figures_add_up_by_their_squares(value, apart):
    """Twice the root of 0.1^2 + 0.1^2 is 0.283."""
    (sentence,) = verdict([row("a", ref_w1=Estimate(1.0, 0.1)), row("b", ref_w1=Estimate(value, 0.1))])
    assert ("not told apart from it b" in sentence) != apart


@pytest.mark.parametrize("errors", [(None, 0.1), (0.1, None), (None, None)])
def test_an_error_that_is_unknown_tells_nothing_apart(errors):
    """As of two draws, of which none can be left out."""
    near, far = (Estimate(value, se) for value, se in zip((1.0, 9.0), errors, strict=True))
    (sentence,) = verdict([row("a", ref_w1=near), row("b", ref_w1=far)])
    assert "not told apart from it b" in sentence


@pytest.mark.parametrize(("real", "words"), [(True, ", then far"), (False, ", not told apart from it far")])
@pytest.mark.parametrize("order", [("near", "far"), ("far", "near")])
def test_a_difference_counts_where_it_is_real_whichever_comes_first(order, real, words):
    """Against the errors of the rows alone, which say the opposite."""
    mean = Mean(-0.1 if order[0] == "near" else 0.1, 0.01 if real else 0.2, 20, "row")
    error = 1.0 if real else 0.001
    rows = [row(name, ref_w1=Estimate(value, error)) for name, value in (("near", 0.1), ("far", 0.2))]
    assert words in verdict(rows, [Difference(*order, "ref_w1", mean)])[0]


@pytest.mark.parametrize("order", [("near", "far"), ("far", "near")])
def test_what_is_really_nearer_by_pairs_is_not_called_farther(order):
    """Where a method has failed in some runs, the means of the others may say the opposite."""
    mean = Mean(0.1 if order[0] == "near" else -0.1, 0.01, 20, "split")
    rows = [row(name, ref_w1=Estimate(value, 0.001)) for name, value in (("near", 0.1), ("far", 0.2))]
    assert ", not told apart from it far" in verdict(rows, [Difference(*order, "ref_w1", mean)])[0]


def test_differences_are_those_of_the_figure_that_ranks():
    rows = [row(name, ref_pip_rmse=Estimate(value, 0.01)) for name, value in (("one", 0.1), ("two", 0.2))]
    apart, same = Mean(-0.1, 0.01, 20, "row"), Mean(-0.1, 0.2, 20, "row")
    given = [Difference("one", "two", "ref_w1", apart), Difference("one", "two", "ref_pip_rmse", same)]
    assert "not told apart from it two" in verdict(rows, given)[0]


def test_nothing_is_said_where_nothing_is_known_and_failures_are():
    quiet = {"ref_mean_error": 0.9, "ref_sd_ratio": 0.6, "pareto_k": 0.6, "bound_change": Estimate(0.9, 0.5)}
    assert verdict([row("fine", **quiet)]) == []
    assert verdict([Row("broken", "bnn", status="failed: the loss is nan")]) == [
        "broken failed: the loss is nan."
    ]


def test_a_sentence_without_a_prediction_names_its_method_first():
    said = verdict([Row("nuts", "bnn"), Row("flow", "bnn", pareto_k=1.5)])
    assert said == ["flow: its draws cannot be reweighted to the posterior (Pareto k 1.5)."]


def test_selection_is_ranked_by_inclusion_where_there_is_no_function():
    rows = [row("one", ref_pip_rmse=Estimate(0.2, 0.001)), row("two", ref_pip_rmse=Estimate(0.1, 0.001))]
    (sentence,) = verdict(rows)
    assert sentence.startswith("Nearest to the truth: two (inclusion error 0.1000 ± 0.0010), then one")


def test_differences_are_paired():
    """Two methods that err on the same points differ by a constant, known without error."""
    y = torch.as_tensor(load("diabetes").y_test)
    y = (y - y.mean()) / y.std()
    values = [log_likelihood_values(Normal(torch.zeros(len(y)), sd), y) for sd in (1.0, 2.0)]
    assert values[0].mean().item() == pytest.approx(log_likelihood(Normal(torch.zeros(len(y)), 1.0), y).value)
    assert (values[0] - values[1]).std() < values[0].std()


@pytest.mark.parametrize(
    ("figure", "quiet", "said", "words"),
    [
        ("pareto_k", 0.7, 0.71, "cannot be reweighted"),
        ("ref_sd_ratio", 0.5, 0.49, "too small"),
        ("ref_sd_ratio", 2.0, 2.01, "too large"),
        ("ref_mean_error", 1.0, 1.01, "mean is off"),
    ],
)
def test_warnings_begin_beyond_their_limits(figure, quiet, said, words):
    assert verdict([row("some", **{figure: quiet})]) == []
    (sentence,) = verdict([row("some", **{figure: said})])
    assert words in sentence
