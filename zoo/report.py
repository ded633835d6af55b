"""The pictures of a comparison, from its finished results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure

from guides.storage import write_atomically
from zoo.evaluation.mixtures import mixture_quantiles
from zoo.evaluation.plots import plot_bands_1d, plot_inclusion, plot_scatter, plot_scoreboard
from zoo.evaluation.scoreboard import Row

if TYPE_CHECKING:
    from zoo.compare import Comparison, Graded


def write_plots(comparison: Comparison, results: Sequence[Graded], rows: Sequence[Row], folder: Path) -> None:
    """``scoreboard.png``, and ``bands.png`` for one input, else ``scatter.png``; ``inclusion.png`` for variable
    selection.  What has no result to show is not drawn.
    """
    results = [result for result in results if result.posterior.sites]
    if not results:
        return
    title = f"{comparison.entry.name} on {comparison.problem.dataset.name}"
    plot_scoreboard(rows, folder / "scoreboard.png", title=title)
    if comparison.problem.dataset.num_features == 1 and comparison.problem.task == "regression":
        _bands(comparison, results, folder / "bands.png", title)
    else:
        _scatter(comparison, results, folder / "scatter.png", title)
    if comparison.entry.name == "spike-slab-linear":
        _inclusion(comparison, results, folder / "inclusion.png", title)


def _bands(comparison: Comparison, results: Sequence[Graded], path: Path, title: str) -> None:
    problem = comparison.problem
    data, scale = problem.dataset, problem.scale
    low, high = data.x_train.min(), data.x_train.max()
    grid = np.linspace(low - 0.15 * (high - low), high + 0.15 * (high - low), 200)
    bands = {}
    for result in results:
        predictive = result.posterior.predictive(problem.inputs(grid[:, None]))
        lower, upper = scale.inverse_mean(mixture_quantiles(predictive, [0.05, 0.95]).numpy())
        bands[result.method] = (scale.inverse_mean(predictive.mean.numpy()), lower, upper)
    labels = (data.feature_names[0], data.target_name)
    plot_bands_1d(data.x_train[:, 0], data.y_train, grid, bands, path, labels=labels, title=title)


def _scatter(comparison: Comparison, results: Sequence[Graded], path: Path, title: str) -> None:
    """Function means and sds at the points of comparison, in units of the target (log-odds for classes)."""
    from zoo.compare import evaluation_points

    truth, *others = results
    if truth.method not in ("nuts", "exact") or truth.status != "ok" or not others:
        return
    scale = comparison.problem.scale

    def summary(result: Graded) -> tuple[np.ndarray, np.ndarray]:
        values = result.posterior.function(evaluation_points(comparison.problem)).flatten(1).double()
        mean, sd = values.mean(0), torch.std(values, 0)
        return scale.inverse_mean(mean.numpy()), scale.inverse_sd(sd.numpy())

    methods = {result.method: summary(result) for result in others}
    unit = comparison.problem.dataset.target_name if comparison.problem.task == "regression" else "log-odds"
    plot_scatter(*summary(truth), methods, path, reference=truth.method, unit=unit, title=title)


def _inclusion(comparison: Comparison, results: Sequence[Graded], path: Path, title: str) -> None:
    from zoo.compare import inclusion_of

    methods = {result.method: inclusion_of(result)[0]["w"].numpy() for result in results}
    plot_inclusion(methods, comparison.problem.dataset.feature_names, path, title=title)


def plot_loss(losses: np.ndarray, path: Path, title: str = "") -> None:
    """The loss of every step ``[steps]`` (grey) and its running mean over a fiftieth of the fit."""
    window = max(1, len(losses) // 50)
    running = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.plot(losses, color="0.8", linewidth=0.5)
    axis.plot(np.arange(window - 1, len(losses)), running, color="#0072B2")
    low, high = np.quantile(losses, [0.001, 0.95])
    axis.set(xlabel="step", ylabel="minus ELBO (nats)", title=title, ylim=(low - 0.05 * (high - low), high))
    write_atomically(path, lambda target: figure.savefig(target, format="png", dpi=150))
