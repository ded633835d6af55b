"""The cells of the network tables of spike-and-slab probabilistic backpropagation: fit, predict, score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_loaders import Standardizer, load
from data_loaders.splits import split_80_20
from guides import ProbabilisticBackpropagation
from zoo.evaluation.metrics import log_likelihood, rmse
from zoo.experiments.engine.declaration import Cell
from zoo.models.bnn import PBPNetwork
from zoo.seeds import stable_seed

MESSAGES = {"pbp": "gaussian", "sspbp": "spike-slab"}
REFERENCE_WIDTHS = (50,)


class Task(NamedTuple):
    """Standardised training and test data in float64; ``y_test`` raw.

    ``x: [n, in]``, ``y: [n]``, ``x_test: [m, in]``, ``y_test: [m]``
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: np.ndarray
    scale: Standardizer


def task_80_20(data: str, trial: int) -> Task:
    """A random 80/20 split: the five of the ``80/20`` protocol, and on by its rule."""
    whole = load(data, protocol="whole")
    train, test = split_80_20(len(whole.y_train), trial)
    x, y = whole.x_train, whole.y_train
    return standardised(x[train], y[train], x[test], y[test])


def task_90_10(data: str, trial: int) -> Task:
    """One of the usual 90/10 splits."""
    split = load(data, split=trial)
    return standardised(split.x_train, split.y_train, split.x_test, split.y_test)


def standardised(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> Task:
    """By the mean and sd of the training rows; a constant column, by more than rounding too, is zeros."""
    scale = Standardizer.fit(x, y)
    inputs = (torch.as_tensor(scale.transform_x(part)) for part in (x, x_test))
    x, x_test = inputs
    return Task(x, torch.as_tensor(scale.transform_y(y)), x_test, y_test, scale)


def fit(cell: Cell, task: Task, widths: tuple[int, ...], bias: bool) -> ProbabilisticBackpropagation:
    """Fits a cell's network.  The seed depends on the fit alone: the same fit in two tables is the same."""
    seed = stable_seed("sspbp", cell.base_seed, cell.dataset, cell.method, widths, bias, cell.trial)
    model = PBPNetwork(task.x.shape[1], widths=widths, bias=bias)
    guide = ProbabilisticBackpropagation(model, MESSAGES[cell.method])
    return guide.fit(task.x, task.y, epochs=cell.options["epochs"], seed=seed)


def with_bias(cell: Cell) -> Mapping[str, float]:
    """RMSE and log likelihood on an 80/20 split."""
    task = task_80_20(cell.dataset, cell.trial)
    return figures(fit(cell, task, _widths(cell), True), task)


def without_bias(cell: Cell) -> Mapping[str, float]:
    """The same of a network without biases, and by the published evaluation."""
    task = task_80_20(cell.dataset, cell.trial)
    guide = fit(cell, task, _widths(cell), False)
    found = figures(guide, task)
    if cell.method == "pbp":  # Gaussian messages have no spike to put in a wrong place
        return found | {f"{name}_published": value for name, value in found.items()}
    return found | published_figures(guide, task)


def _widths(cell: Cell) -> tuple[int, ...]:
    """Hidden units of each layer: ``10x10`` are two layers of ten."""
    return tuple(map(int, cell.setting.split("x")))


def reference_figures(cell: Cell) -> Mapping[str, float]:
    """RMSE and log likelihood of one layer of 50 with biases; the setting names the kind of split."""
    task = {"80-20": task_80_20, "90-10": task_90_10}[cell.setting](cell.dataset, cell.trial)
    return figures(fit(cell, task, REFERENCE_WIDTHS, bias=True), task)


def mean_slabs(cell: Cell) -> Mapping[str, float]:
    """Mean over the test rows of the slab probability of every linear layer."""
    task = task_80_20(cell.dataset, cell.trial)
    slabs = fit(cell, task, _widths(cell), bias=False).slab_probabilities(task.x_test)
    return {f"slab_layer_{layer}": slab.mean().item() for layer, slab in enumerate(slabs, start=1)}


def figures(guide: ProbabilisticBackpropagation, task: Task) -> dict[str, float]:
    """RMSE and log likelihood of the test rows, in the target's unit."""
    predictive = guide.predictive(task.x_test)
    y = torch.as_tensor(task.scale.transform_y(task.y_test))
    return {
        "rmse": rmse(predictive, y, task.scale.y_sd).value,
        "log_likelihood": log_likelihood(predictive, y, task.scale.y_sd).value,
    }


def published_figures(guide: ProbabilisticBackpropagation, task: Task) -> dict[str, float]:
    """The same by the published evaluation, of spike-and-slab messages."""
    law = guide.predictive(task.x_test, noise=False)
    scale, square = task.scale, task.scale.y_sd**2
    return published_evaluation(
        task.y_test,
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
