"""The pictures of a comparison, from its finished results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zoo.budgets import REFERENCES
from zoo.commands.comparison import Comparison
from zoo.commands.grading import Graded, inclusion_of, selects
from zoo.evaluation.function_plots import plot_bands_1d, plot_scatter
from zoo.evaluation.inclusion_plot import plot_inclusion
from zoo.evaluation.mixtures import mixture_quantiles
from zoo.evaluation.plots import plain, with_room
from zoo.evaluation.scoreboard import Row
from zoo.evaluation.scoreboard_plot import compared, plot_scoreboard


def write_plots(comparison: Comparison, results: Sequence[Graded], rows: Sequence[Row], folder: Path) -> None:
    """``scoreboard.png``; ``bands.png`` for one input, else ``scatter.png``; for variable selection
    ``inclusion.png``.

    :param results: those that have not failed; what has no result to show is not drawn
    :param rows: of all methods
    """
    title = plain(f"{comparison.entry.name} on {comparison.problem.dataset.name}")
    if compared(rows):
        plot_scoreboard(rows, folder / "scoreboard.png", title=title)
    if not results:
        return
    if comparison.problem.dataset.num_features == 1 and comparison.problem.task == "regression":
        _bands(comparison, results, folder / "bands.png", title)
    else:
        _scatter(comparison, results, folder / "scatter.png", title)
    if comparison.entry.selects:
        _inclusion(comparison, results, folder / "inclusion.png", title)


def _bands(comparison: Comparison, results: Sequence[Graded], path: Path, title: str) -> None:
    problem = comparison.problem
    data, scale = problem.dataset, problem.scale
    grid = np.linspace(*with_room(data.x_train.min(), data.x_train.max(), 0.15), 200)
    bands = {}
    for result in results:
        predictive = result.predictive(problem.inputs(grid[:, None]))
        lower, upper = scale.inverse_mean(mixture_quantiles(predictive, [0.05, 0.95]).numpy())
        bands[result.method] = (scale.inverse_mean(predictive.mean.double().numpy()), lower, upper)
    labels = (plain(data.feature_names[0]), plain(data.target_name))
    plot_bands_1d(data.x_train[:, 0], data.y_train, grid, bands, path, labels=labels, title=title)


def _scatter(comparison: Comparison, results: Sequence[Graded], path: Path, title: str) -> None:
    """Function means and sds at the points of comparison, in units of the target (log-odds for classes)."""
    truth, *others = results
    if truth.method not in REFERENCES or not others:
        return
    problem = comparison.problem

    def summary(result: Graded) -> tuple[np.ndarray, np.ndarray]:
        values = result.posterior.function(problem.evaluation_points).flatten(1).double().numpy()
        return problem.scale.inverse_mean(values.mean(0)), problem.scale.inverse_sd(values.std(0))

    methods = {result.method: summary(result) for result in others}
    unit = plain(problem.dataset.target_name) if problem.task == "regression" else "log-odds"
    plot_scatter(*summary(truth), methods, path, reference=truth.method, unit=unit, title=title)


def _inclusion(comparison: Comparison, results: Sequence[Graded], path: Path, title: str) -> None:
    """Of the methods that select; the others are named below."""
    methods = {result.method: inclusion_of(result)[0]["w"].numpy() for result in results if selects(result)}
    others = [result.method for result in results if not selects(result)]
    if not methods:
        return
    names = [plain(name) for name in comparison.problem.dataset.feature_names]
    caption = f"without inclusion probabilities: {', '.join(others)}" if others else ""
    plot_inclusion(methods, names, path, title=title, caption=caption)
