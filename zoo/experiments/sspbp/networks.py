"""The cells of the network tables of spike-and-slab probabilistic backpropagation: fit, predict, score."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from data_loaders import load
from guides import ProbabilisticBackpropagation
from zoo.evaluation.metrics import log_likelihood, rmse
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.splits import random_80_20
from zoo.fitting.problem import Problem, prepare
from zoo.models.bnn import PBPNetwork
from zoo.seeds import stable_seed

MESSAGES = {"pbp": "gaussian", "sspbp": "spike-slab"}
REFERENCE_WIDTHS = (50,)


def problem_80_20(data: str, trial: int) -> Problem:
    return random_80_20(data, trial, torch.float64)


def fit(cell: Cell, problem: Problem, widths: tuple[int, ...], bias: bool) -> ProbabilisticBackpropagation:
    """Fits a cell's network.  The seed depends on the fit alone: the same fit in two tables is the same."""
    seed = stable_seed("sspbp", cell.base_seed, cell.dataset, cell.method, widths, bias, cell.trial)
    model = PBPNetwork(problem.x.shape[1], widths=widths, bias=bias)
    guide = ProbabilisticBackpropagation(model, MESSAGES[cell.method])
    return guide.fit(*problem.train, epochs=cell.options["epochs"], seed=seed)


def with_bias(cell: Cell) -> Mapping[str, float]:
    """RMSE and log likelihood on an 80/20 split."""
    problem = problem_80_20(cell.dataset, cell.trial)
    return figures(fit(cell, problem, _widths(cell), True), problem)


def without_bias(cell: Cell) -> Mapping[str, float]:
    """The same of a network without biases, and by the published evaluation."""
    problem = problem_80_20(cell.dataset, cell.trial)
    guide = fit(cell, problem, _widths(cell), False)
    found = figures(guide, problem)
    if cell.method == "pbp":  # Gaussian messages have no spike to put in a wrong place
        return found | {f"{name}_published": value for name, value in found.items()}
    return found | published_figures(guide, problem)


def _widths(cell: Cell) -> tuple[int, ...]:
    """Hidden units of each layer: ``10x10`` are two layers of ten."""
    return tuple(map(int, cell.setting.split("x")))


def reference_figures(cell: Cell) -> Mapping[str, float]:
    """RMSE and log likelihood of one layer of 50 with biases; the setting names the kind of split."""
    if cell.setting == "80-20":
        problem = problem_80_20(cell.dataset, cell.trial)
    else:
        problem = prepare(load(cell.dataset, split=cell.trial), torch.float64)
    return figures(fit(cell, problem, REFERENCE_WIDTHS, bias=True), problem)


def mean_slabs(cell: Cell) -> Mapping[str, float]:
    """Mean over the test rows of the slab probability of every linear layer."""
    problem = problem_80_20(cell.dataset, cell.trial)
    slabs = fit(cell, problem, _widths(cell), bias=False).slab_probabilities(problem.x_test)
    return {f"slab_layer_{layer}": slab.mean().item() for layer, slab in enumerate(slabs, start=1)}


def figures(guide: ProbabilisticBackpropagation, problem: Problem) -> dict[str, float]:
    """RMSE and log likelihood of the test rows, in the target's unit."""
    arguments = guide.predictive(problem.x_test), problem.y_test, problem.scale.y_sd
    return {"rmse": rmse(*arguments).value, "log_likelihood": log_likelihood(*arguments).value}


def published_figures(guide: ProbabilisticBackpropagation, problem: Problem) -> dict[str, float]:
    """The same by the published evaluation, of spike-and-slab messages."""
    law = guide.predictive(problem.x_test, noise=False)
    scale, square = problem.scale, problem.scale.y_sd**2
    return published_evaluation(
        problem.dataset.y_test,
        slab=law.probs.numpy(),
        mean=scale.inverse_mean(law.loc.numpy()),
        variance=scale.inverse_variance(law.scale.numpy() ** 2),
        noise_variance=guide.noise_variance * square,
    )


def published_evaluation(
    y: np.ndarray, slab: np.ndarray, mean: np.ndarray, variance: np.ndarray, noise_variance: float
) -> dict[str, float]:
    """RMSE of the slab's mean, and log likelihood with the spike at 0 in the unit of the target.

    Everything is in the target's unit: ``y: [m]``, and of the function ``slab``, ``mean``, ``variance``,
    each ``[m]``.
    """
    with np.errstate(divide="ignore"):  # no spike at all
        spikes = np.log1p(-slab) + _log_normal(y, noise_variance)
    slabs = np.log(slab) + _log_normal(y - mean, variance + noise_variance)
    return {
        "rmse_published": float(np.sqrt(np.mean((y - mean) ** 2))),
        "log_likelihood_published": float(np.mean(np.logaddexp(spikes, slabs))),
    }


def _log_normal(deviation: np.ndarray, variance: np.ndarray | float) -> np.ndarray:
    return -0.5 * (np.log(2 * math.pi * variance) + deviation**2 / variance)
