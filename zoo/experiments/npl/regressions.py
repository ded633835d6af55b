"""The posterior bootstrap of regressions beside NUTS: a network, and logistic regression with heavy tails."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyro
from pyro import distributions as dist
from torch import Tensor

from guides import AutoMeanField, PosteriorBootstrap
from guides.bootstrap.base_measures import PredictiveBase
from guides.core.settling import UnsettledWarning
from guides.posterior.draws import Posterior
from guides.truth.mcmc import nuts
from zoo.errors import FailedError
from zoo.evaluation.distances import compare_functions
from zoo.evaluation.metrics import predictive_figures
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.splits import random_80_20
from zoo.fitting.gated_function import gated_function
from zoo.fitting.problem import Problem, load_problem
from zoo.fitting.svi import Fit, FitSettings
from zoo.models.bnn import BNN
from zoo.seeds import stable_seed

#: A coefficient nearer to zero than this, in standardised units, counts as zero.
NEAR_ZERO = 0.1


# ------------------------------------------------------------------------------------------------- a network


def network(cell: Cell) -> Mapping[str, float]:
    """Scores of test rows, and distances from NUTS on the same rows in units of its sd."""
    options = cell.options
    problem = load_problem(cell.dataset, split=cell.trial)
    model = BNN(problem.dataset.num_features, widths=(options["width"],))
    truth = _reference(cell.dataset, cell.trial, cell.base_seed, *_sampling(cell), options["width"])
    posterior, steps = (truth, {}) if cell.method == "nuts" else _fitted(cell, model, problem)
    found = predictive_figures(
        posterior.predictive(problem.x_test), problem.y_test, "regression", problem.scale.y_sd
    )
    figures = {name: estimate.value for name, estimate in found.items()} | steps
    if cell.method != "nuts":
        points = problem.x_test
        distances = compare_functions(truth.function(points), posterior.function(points)).figures()
        figures |= {name: estimate.value for name, estimate in distances.items()}
    return figures


def _sampling(cell: Cell) -> tuple[int, int]:
    return cell.options["warmup"], cell.options["nuts"]


@functools.lru_cache(maxsize=1)
def _reference(data: str, trial: int, seed: int, warmup: int, draws: int, width: int) -> Posterior:
    """NUTS behind its gates, once for all methods that a process meets on the same rows.

    :raises FailedError: when it does not pass
    """
    problem = load_problem(data, split=trial)
    model = BNN(problem.dataset.num_features, widths=(width,))
    x, y = (value.numpy() for value in problem.train)
    return _sampled(model, (x, y), problem.x_test, warmup, draws, stable_seed("npl nuts", seed, data, trial))


def _sampled(model: Callable, data: tuple, points: Tensor, warmup: int, draws: int, seed: int) -> Posterior:
    function = gated_function(model, points)
    result = nuts(model.twin, data, function=function, warmup=warmup, draws=draws, seed=seed, progress=False)
    if not result.passed:
        raise FailedError(f"the reference failed: {result.reason}; take more than {draws} draws")
    return result.posterior(model)


def _fitted(cell: Cell, model: Callable, problem: Problem) -> tuple[Posterior, dict[str, float]]:
    """By the guide or the bootstrap of a cell."""
    options = cell.options
    if cell.method == "mean-field":
        guide = AutoMeanField(model)
        Fit(guide, model, problem.train, FitSettings(options["elbo_steps"], seed=cell.seed)).run()
        return Posterior.from_guide(guide, options["draws"], seed=cell.seed), {}
    loss = "mle" if cell.method == "bootstrap-mle" else "map"
    process = {}
    if cell.method == "bootstrap-prior":
        base = PredictiveBase(model, (problem.x,), "y")
        process = {
            "concentration": options["alpha"] * problem.size, "base_measure": base,
            "num_pseudo": options["pseudo"],
        }  # fmt: skip
    return _bootstrapped(cell, PosteriorBootstrap(model, loss=loss, **process), problem.train)


def _bootstrapped(
    cell: Cell, bootstrap: PosteriorBootstrap, data: tuple
) -> tuple[Posterior, dict[str, float]]:
    settings = {name: cell.options[name] for name in ("steps", "lr")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsettledWarning)  # a figure says it
        posterior = bootstrap.fit(*data, num_draws=cell.options["draws"], seed=cell.seed, **settings)
    return posterior, {"last_tenth": float(np.mean(posterior.info["last_tenth"]))}


# ------------------------------------------------------------------------------------- logistic regression


@dataclass(frozen=True)
class HeavyLogistic:
    """``w_j ~ t_2(0, 1)``: Gaussian given a precision Gamma(1, 1) of its own; a flat intercept, nearly.

    Sites: ``w: [in]``, ``b: []``, observed ``y: [N]``.
    """

    in_features: int

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.StudentT(2.0, x.new_zeros(self.in_features), 1.0).to_event(1)
        output = x @ pyro.sample("w", prior) + pyro.sample("b", dist.Normal(x.new_zeros(()), 10.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=output), obs=y)
        return output

    def twin(self, x, y=None):
        """The same model in NumPyro."""
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as ndist

        prior = ndist.StudentT(2.0, jnp.zeros(self.in_features), 1.0).to_event(1)
        output = x @ numpyro.sample("w", prior) + numpyro.sample("b", ndist.Normal(0.0, 10.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", ndist.Bernoulli(logits=output), obs=y)
        return output


def logistic(cell: Cell) -> Mapping[str, float]:
    """Scores of test rows of a random 80/20 split, and how many coefficients are near zero."""
    problem = random_80_20(cell.dataset, cell.trial)
    model, steps = HeavyLogistic(problem.x.shape[1]), {}
    if cell.method == "nuts":
        data = tuple(value.numpy() for value in problem.train)
        posterior = _sampled(model, data, problem.x_test, *_sampling(cell), cell.seed % 2**31)
    else:
        posterior, steps = _fitted(cell, model, problem)
    found = predictive_figures(posterior.predictive(problem.x_test), problem.y_test, "binary")
    w = posterior.draws()["w"]
    return {
        **{name: found[name].value for name in ("log_likelihood", "accuracy")},
        "near_zero": (w.mean(0).abs() < NEAR_ZERO).double().mean().item(),
        "sd": w.std(0).median().item(),
        **steps,
    }
