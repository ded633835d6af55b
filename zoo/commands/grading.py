"""From a method's draws to its row of the scoreboard."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from guides.posterior.draws import Posterior
from zoo.evaluation.distances import compare_functions, inclusion_error, pointwise_w1
from zoo.evaluation.estimates import Estimate, mean_estimate, share_error
from zoo.evaluation.metrics import draw_error, log_likelihood_values, predictive_figures
from zoo.evaluation.mixtures import chunks, is_gaussian
from zoo.evaluation.scoreboard import Row, format_figure
from zoo.files.tables import write_csv
from zoo.fitting.methods import ClosedForm
from zoo.fitting.problem import Problem

#: Of a row whose figures are not all of one law.
TWO_LAWS = (
    "RMSE, likelihood, CRPS and coverage are those of its own predictive distribution, mean error, sd ratio "
    "and W1 those of its draws"
)
#: Predictive distributions by other seeds: their sd is known to 24 %.
RERUNS = 10
#: Test points whose likelihoods are made float64 together.
POINTS_AT_ONCE = 1000
POINT_COLUMNS = ("method", "row", "ref_w1", "log_likelihood")
INCLUSION_COLUMNS = ("method", "site", "index", "name", "probability", "mcse")


@dataclass(frozen=True)
class Graded:
    """One method after its fit: draws, and figures that no draws can give.

    :ivar posterior: without sites when the method has failed
    :ivar status: ``ok``, or ``failed: why``
    :ivar inclusion: inclusion probabilities by site, ``{name: [*site]}``
    :ivar inclusion_mcse: their Monte Carlo standard errors
    :ivar closed_form: the method's own predictive distribution; else it is that of the draws
    """

    method: str
    model_name: str
    posterior: Posterior
    figures: dict[str, Estimate | float]
    note: str = ""
    status: str = "ok"
    inclusion: dict[str, Tensor] | None = None
    inclusion_mcse: dict[str, Tensor] | None = None
    closed_form: ClosedForm | None = None

    def predictive(self, x: Tensor) -> Distribution:
        """Predictive distribution of the standardised target at ``x: [N, in]``; batch shape ``[N]``."""
        return (self.closed_form or self.posterior).predictive(x)


@dataclass(frozen=True)
class Scored:
    """A result and what it comes to on the rows of a problem, each computed once, and when it is asked for.

    What is kept has a number a row: predictive distributions and functions may be large.
    """

    problem: Problem
    result: Graded

    @property
    def has_test(self) -> bool:
        """Whether there are test rows to predict: not in a set that is used whole."""
        return len(self.problem.x_test) > 0

    @property
    def figures(self) -> dict[str, Estimate]:
        """Figures over the test rows."""
        return self._of_rows[0]

    @property
    def log_likelihood(self) -> Tensor:
        """Log predictive density of every test row, ``[N]``, nats of the standardised target."""
        return self._of_rows[1]

    @cached_property
    def _of_rows(self) -> tuple[dict[str, Estimate], Tensor]:
        """Both of one predictive distribution."""
        problem, result = self.problem, self.result
        predictive, y = result.predictive(problem.x_test), problem.y_test
        scale = {"target_scale": problem.scale.y_sd}
        figures = predictive_figures(predictive, y, problem.task, **scale, method=result.method)
        return figures, log_likelihood_values(predictive, y)

    @cached_property
    def draw_error(self) -> float:
        """Monte Carlo standard error of the mean log predictive density, nats; a law that draws nothing has
        none.
        """
        x, y, closed_form = self.problem.x_test, self.problem.y_test, self.result.closed_form
        if getattr(closed_form, "components_share", False):
            return _rerun_error(closed_form, x, y)
        if closed_form and "seed" not in inspect.signature(closed_form.predictive).parameters:
            return 0.0
        predictive = self.result.predictive(x)
        if is_gaussian(predictive):
            return draw_error(
                Normal(mixture.means, mixture.sds).log_prob(y[part].double().unsqueeze(-1)).T
                for part, mixture in chunks(predictive)
            )
        found = self.result.posterior.log_likelihood(x, observed_data={"y": y})
        return draw_error(found["y"].split(POINTS_AT_ONCE, 1))

    def function(self) -> Tensor:
        """Draws of the noiseless function at the points of comparison, ``[S, N]`` or ``[S, N, K]``."""
        return self.result.posterior.function(self.problem.evaluation_points)


def grade(scored: Scored, truth: Scored | None) -> Row:
    """One row of the scoreboard; a figure that is not finite makes it a failed one.

    :param truth: a reference that has passed its gates, or None
    """
    result = scored.result
    names = {"method": result.method, "model": result.model_name, "note": result.note}
    sites = result.posterior.sites
    if not sites:
        return Row(**names, status=result.status)
    bad = [name for name, value in sites.items() if not value.isfinite().all()]
    if bad:
        return Row(**names, status=f"failed: draws of site {bad[0]!r} are not finite")
    try:
        figures = dict(result.figures) | (scored.figures if scored.has_test else {})
        remarks = [result.note]
        if truth is not None and result is not truth.result:
            distances, left_out = _distances(scored, truth)
            figures |= distances
            remarks.append(_gap(result, truth.result))
            if left_out:
                remarks.append(
                    f"{left_out} point(s) left out of the distances: the reference does not vary there"
                )
            if result.closed_form:
                remarks.append(TWO_LAWS)
        names["note"] = "; ".join(filter(None, remarks))
        return Row.from_figures(figures=figures, status=result.status, **names)
    except ValueError as error:  # a prediction that is not finite, say; the evaluation names it
        return Row(**names, status=f"failed: {str(error).splitlines()[0]}")


def _gap(result: Graded, truth: Graded) -> str:
    """How far a bound is below the exact log evidence: the KL divergence from the posterior, of a bad fit or
    of a guide that can do no better; nothing where either number is not known.
    """
    bound, evidence = (graded.figures.get("elbo") for graded in (result, truth))
    if result.model_name != truth.model_name or bound is None or evidence is None:
        return ""
    gap = Estimate(evidence.value - bound.value, math.hypot(evidence.se or 0.0, bound.se or 0.0))
    return f"its ELBO is {format_figure(gap)} nats below the log evidence"


def _difference(scored: Scored, truth: Scored) -> Estimate:
    """How much better it predicts than the truth, row by row: what both find hard cancels.  Its error is
    that over rows, and those of the draws of both, which all rows share.
    """
    over_rows = mean_estimate(scored.log_likelihood - truth.log_likelihood)
    if over_rows.se is None:
        return over_rows
    return replace(over_rows, se=math.hypot(over_rows.se, scored.draw_error, truth.draw_error))


def _rerun_error(closed_form: ClosedForm, x: Tensor, y: Tensor) -> float:
    """By other seeds: components that share drawn functions of a prior (sparse implicit processes) are no
    independent draws, and their scatter is less than half of it.
    """
    means = [
        log_likelihood_values(closed_form.predictive(x, seed=seed), y).mean() for seed in range(1, RERUNS + 1)
    ]
    return torch.stack(means).std().item()


def draw_errors(scores: Sequence[Scored]) -> dict[str, float]:
    """Of every result the Monte Carlo standard error of its mean log likelihood; none without test rows."""
    return {scored.result.method: scored.draw_error for scored in scores if scored.has_test}


def _distances(scored: Scored, truth: Scored) -> tuple[dict[str, Estimate], int]:
    """Figures against the reference, and how many points could not be compared."""
    result, trusted = scored.result, truth.result
    distances = compare_functions(truth.function(), scored.function(), result.method)
    figures = distances.figures()
    if scored.has_test:
        figures["ref_log_likelihood"] = _difference(scored, truth)
    if trusted.inclusion:
        ours, mcse = inclusion_of(result)
        site = next(iter(trusted.inclusion))
        noise = torch.hypot(mcse[site].double(), trusted.inclusion_mcse[site].double())
        figures["ref_pip_rmse"] = inclusion_error(ours[site], trusted.inclusion[site], noise)
    return figures, distances.left_out


def point_values(scores: Sequence[Scored], truth: Scored | None) -> pd.DataFrame:
    """What differences between methods are paired by: a line for every sound result and point of comparison,
    with the columns ``method``, ``row``, ``ref_w1`` (missing where there is no trusted reference) and
    ``log_likelihood`` (missing where there is no test row), whose means are those of the scoreboard.
    """
    parts, trusted = [], None if truth is None else truth.function()
    for scored in scores:
        result = scored.result
        values = {"method": result.method, "row": range(len(scored.problem.evaluation_points))}
        if trusted is not None and result is not truth.result:
            values["ref_w1"] = pointwise_w1(trusted, scored.function(), result.method).numpy()
        if scored.has_test:
            values["log_likelihood"] = scored.log_likelihood.double().numpy()
        parts.append(pd.DataFrame(values))
    return pd.concat(parts, ignore_index=True).reindex(columns=POINT_COLUMNS)


def inclusion_of(result: Graded) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inclusion probabilities and their Monte Carlo errors: the method's own, or shares of non-zero draws."""
    if result.inclusion:
        return result.inclusion, result.inclusion_mcse
    draws = result.posterior.draws()
    included = {name: value != 0 for name, value in draws.items()}
    shares = {name: hits.double().mean(0) for name, hits in included.items()}
    if all(hits.all() for hits in included.values()):  # a law without spikes leaves nothing out, for certain
        return shares, {name: torch.zeros_like(share) for name, share in shares.items()}
    return shares, {name: share_error(hits) for name, hits in included.items()}


def selects(result: Graded) -> bool:
    """Whether a method can leave coefficients of the site ``w`` out: by inclusion probabilities, or in draws
    that are exactly zero.
    """
    return bool(result.inclusion) or bool((result.posterior.sites["w"] == 0).any())


def write_inclusion(results: Sequence[Graded], names: Sequence[str], folder: Path) -> None:
    """``inclusion.csv``: a line for every method and coefficient of the site ``w``."""
    lines = []
    for result in results:
        probabilities, errors = inclusion_of(result)
        for i, name in enumerate(names):
            lines.append((result.method, "w", i, name, probabilities["w"][i].item(), errors["w"][i].item()))
    write_csv(pd.DataFrame(lines, columns=INCLUSION_COLUMNS), folder / "inclusion.csv")
