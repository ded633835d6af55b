"""Figures of a row of the scoreboard: their unit, those against a reference, and their errors."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from guides.posterior import Posterior
from zoo.commands.grading import (
    RERUNS,
    Graded,
    Scored,
    _difference,
    draw_errors,
    grade,
    inclusion_of,
    point_values,
)
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.repeats import Run, paired
from zoo.evaluation.scoreboard import Row

ROWS, COLUMNS, TESTED, DRAWS, REPEATS = 30, 5, 300, 400, 40
#: Of two coefficients, a quarter of the first zero.
FEW_DRAWS = 200


def line(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def problem_and_law() -> tuple[SimpleNamespace, dist.MultivariateNormal]:
    """Many test rows, and the posterior of ``w``."""
    torch.manual_seed(0)
    x, more = torch.randn(ROWS, COLUMNS), torch.randn(TESTED, COLUMNS)
    w = torch.randn(COLUMNS)
    y, seen = x @ w + torch.randn(ROWS), more @ w + torch.randn(TESTED)
    precision = torch.eye(COLUMNS) + x.T @ x
    law = dist.MultivariateNormal(torch.linalg.solve(precision, x.T @ y), precision_matrix=precision)
    rows = {"x_test": more, "y_test": seen, "evaluation_points": more}
    unit = SimpleNamespace(y_sd=1.0)
    return SimpleNamespace(task="regression", scale=unit, **rows), law


def two_samples(problem: SimpleNamespace, law: dist.MultivariateNormal, draws: int) -> list[Scored]:
    names = ("ours", "truth")
    posteriors = [Posterior.from_draws(line, {"w": law.sample((draws,))}) for _ in names]
    return [
        Scored(problem, Graded(name, "line", posterior, {}))
        for name, posterior in zip(names, posteriors, strict=True)
    ]


def test_the_error_of_a_difference_has_that_of_both_sides_draws():
    """Of rows sd 2 over 4, and of draws 0.3 and 0.4, which all rows share."""
    ours = SimpleNamespace(log_likelihood=torch.tensor([1.0, 5.0, 1.0, 5.0]), draw_error=0.3)
    truth = SimpleNamespace(log_likelihood=torch.tensor([0.0, 1.0, 0.0, 1.0]), draw_error=0.4)
    found = _difference(ours, truth)
    rows = np.std([1.0, 4.0, 1.0, 4.0], ddof=1) / 2
    assert found.value == pytest.approx(2.5)
    assert found.se == pytest.approx(math.hypot(rows, 0.5))


@pytest.mark.slow
def test_two_samples_of_one_posterior_are_seldom_told_apart():
    """Many test rows, which all share the draws: these are what likelihoods differ by.  An error over rows
    alone is beyond 2 in seven of ten repeats.
    """
    (problem, law), found = problem_and_law(), []
    for _ in range(REPEATS):
        found.append(_difference(*two_samples(problem, law, DRAWS)))
    far = sum(abs(one.value) > 2 * one.se for one in found)
    assert far / REPEATS < 0.05 + 4 * math.sqrt(0.05 * 0.95 / REPEATS)
    # nor is the error too large by more than the row part, which counts some of it twice, and chance
    scatter, claimed = np.std([one.value for one in found], ddof=1), np.mean([one.se for one in found])
    assert scatter / claimed > 1 / 1.5 - 4 / math.sqrt(2 * (REPEATS - 1))


def test_methods_that_differ_by_their_draws_alone_are_seldom_really_different():
    """By errors over rows alone seven of ten pairs are."""
    (problem, law), real, repeats = problem_and_law(), 0, 20
    for _ in range(repeats):
        pair = two_samples(problem, law, 100)
        points, errors = point_values(pair, None), draw_errors(pair)
        rows = [Row(scored.result.method, "line", log_likelihood=0.0) for scored in pair]
        real += paired([Run("d", 0, 0, rows, points, {}, errors)], "ours", "truth", "log_likelihood").real
    assert real / repeats < 0.05 + 4 * math.sqrt(0.05 * 0.95 / repeats)


def _closed_form_error(predictive, components_share: bool = False) -> float:
    problem = SimpleNamespace(x_test=torch.zeros(3, 1), y_test=torch.zeros(3))
    closed_form = SimpleNamespace(predictive=predictive, components_share=components_share)
    return Scored(problem, Graded("ours", "line", None, {}, closed_form=closed_form)).draw_error


def test_a_spike_beside_a_slab_is_no_draw():
    """The predictive distribution of messages has two components, whatever their weights, and no draws."""
    parts = Normal(torch.tensor([[0.0, 1.0]] * 3), torch.tensor([[0.5, 1.0]] * 3))
    law = MixtureSameFamily(Categorical(torch.tensor([[0.5, 0.5]] * 3)), parts)
    assert _closed_form_error(lambda x: law) == 0


def test_what_the_components_of_a_closed_form_share_is_in_its_error():
    """A seed moves all of them together; log N(0; shift, 1) of shifts with sd 1/2 about 1 has sd 0.5 to 0.6:
    ten seeds know it to 24 %.
    """

    def predictive(x, *, seed: int = 0):
        shift = 1 + 0.5 * torch.randn((), generator=torch.Generator().manual_seed(seed))
        noise = torch.randn(50, generator=torch.Generator().manual_seed(1))
        means = (shift + 1e-3 * noise).expand(len(x), 50)
        return MixtureSameFamily(Categorical(torch.ones(len(x), 50)), Normal(means, 1.0))

    expected = math.sqrt(0.5**2 + 0.5**4 / 2)
    found = _closed_form_error(predictive, components_share=True)
    assert found == pytest.approx(expected, rel=4 / math.sqrt(2 * 9))
    assert found > expected / 3
    # independent components are known by their own scatter, next to none here
    assert 0 < _closed_form_error(predictive) < 1e-3


# ------------------------------------------------------------------------------------------------- by hand


def graded(name: str, seed: int, **more) -> Graded:
    w = torch.randn(FEW_DRAWS, 2, generator=torch.Generator().manual_seed(seed))
    w[: FEW_DRAWS // 4, 0] = 0.0
    return Graded(name, "line", Posterior.from_draws(line, {"w": w}), {}, **more)


def problem(y_sd: float = 1.0) -> SimpleNamespace:
    x = torch.linspace(-1, 1, 10).reshape(5, 2)
    scale = SimpleNamespace(y_sd=y_sd)
    rows = {"x_test": x, "y_test": torch.arange(5.0), "evaluation_points": x}
    return SimpleNamespace(task="regression", scale=scale, **rows)


def test_figures_are_in_the_unit_of_the_target():
    one, three = (grade(Scored(problem(sd), graded("ours", 0)), None) for sd in (1.0, 3.0))
    for name in ("rmse", "rmse_se", "crps", "crps_se"):
        assert three.cell(name) == pytest.approx(3 * one.cell(name))
    assert three.log_likelihood == pytest.approx(one.log_likelihood - math.log(3))


def test_inclusion_of_draws_is_the_share_that_is_not_zero():
    shares, errors = inclusion_of(graded("ours", 0))
    assert shares["w"].tolist() == [0.75, 1.0]
    # never 0: Agresti and Coull
    middle = [(share * FEW_DRAWS + 2) / (FEW_DRAWS + 4) for share in (0.75, 1.0)]
    assert errors["w"].tolist() == pytest.approx([math.sqrt(m * (1 - m) / (FEW_DRAWS + 4)) for m in middle])


def test_an_inclusion_error_has_the_errors_of_both():
    """Off by 0.25 in the first of two, right in the second: the error is that of the first over root 2."""
    exact, mcse = torch.tensor([0.5, 1.0]), torch.tensor([0.04, 0.0])
    truth = graded("truth", 1, inclusion={"w": exact}, inclusion_mcse={"w": mcse})
    row = grade(Scored(problem(), graded("ours", 0)), Scored(problem(), truth))
    assert row.ref_pip_rmse == pytest.approx(0.25 / math.sqrt(2))
    ours = inclusion_of(graded("ours", 0))[1]["w"]
    both = math.hypot(ours[0], 0.04)
    assert row.standard_errors["ref_pip_rmse"] == pytest.approx(both / math.sqrt(2))
    assert row.noise_floors["ref_pip_rmse"] == pytest.approx(math.hypot(both, ours[1]) / math.sqrt(2))


def test_test_rows_are_predicted_once():
    """For the row, for the difference from the truth, and for the differences between methods."""
    calls = []

    def predictive(x):
        calls.append(len(x))
        return Normal(torch.zeros(len(x)), 1.0)

    closed_form = SimpleNamespace(predictive=predictive)
    truth, ours = (Scored(problem(), graded(n, i, closed_form=closed_form)) for i, n in enumerate("ab"))
    assert [grade(scored, truth).status for scored in (truth, ours)] == ["ok", "ok"]
    assert len(point_values([truth, ours], truth)) == 10
    assert draw_errors([truth, ours]) == {"a": 0.0, "b": 0.0}
    assert calls == [5, 5]


def test_the_error_of_draws_is_computed_once():
    """Of a law whose components share what they were drawn from, by predictions with other seeds."""
    calls = []

    def predictive(x, seed=0):
        calls.append(seed)
        return Normal(torch.full((len(x),), float(seed)), 1.0)

    closed_form = SimpleNamespace(predictive=predictive, components_share=True)
    truth = Scored(problem(), graded("nuts", 0))
    scored = Scored(problem(), graded("sip", 1, closed_form=closed_form))
    assert grade(scored, truth).status == "ok"
    first = draw_errors([scored])["sip"]
    assert first == scored.draw_error > 0
    assert calls == [0, *range(1, RERUNS + 1)]


def test_the_gap_to_the_evidence_has_the_errors_of_both():
    ours, truth = graded("ours", 0), graded("exact", 1)
    ours.figures["elbo"], truth.figures["elbo"] = Estimate(-5.0, 0.3), Estimate(-3.0, 0.4)
    row = grade(Scored(problem(), ours), Scored(problem(), truth))
    assert row.note.startswith("its ELBO is 2.00 ± 0.50 nats below the log evidence")
