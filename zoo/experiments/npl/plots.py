"""Pictures of the flow experiments, from finished cells alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from zoo.evaluation.plots import arrange, finish, panels
from zoo.experiments.engine.declaration import Record

COLOURS = {
    "ml": "black", "wlb_shared": "tab:blue", "npl_gaussian": "tab:purple", "npl_empirical": "tab:red",
}  # fmt: skip
LABELS = {"ml": "maximum likelihood", "narrow": "base N(0, 1)", "wide": "base N(0, 16)"}
#: Half the width of a panel of points.
HALF = 8.0
MOST_COLUMNS = 3


def plot_clouds(path: Path, records: Sequence[Record]) -> None:
    """The first trial: data in black over samples, a panel a density; nothing when no cell is there."""
    shown = [record for record in records if record.ok and record.cell.trial == 0]
    if not shown:
        return
    rows, columns = arrange(len(shown), 4)
    figure, axes = panels(rows, columns, (2.2 * columns, 2.3 * rows + 0.4), sharex=True, sharey=True)
    for axis, record in zip(axes.ravel(), shown, strict=False):
        with np.load(record.folder / "cloud.npz") as cloud:
            axis.scatter(*cloud["samples"].T, s=2, color="tab:blue", alpha=0.5)
            axis.scatter(*cloud["data"].T, s=4, color="black")
        alpha = "" if record.cell.method == "ml" else f", alpha {record.cell.setting}"
        axis.set_title(LABELS[record.cell.method] + alpha, fontsize=8)
        axis.set(xlim=(-HALF, HALF), ylim=(-HALF, HALF))
    for axis in axes.ravel()[len(shown) :]:
        axis.set_visible(False)
    finish(figure, path, "100 rows (black) and samples of their densities (blue)")


def plot_curves(path: Path, records: Sequence[Record]) -> None:
    """Mean and standard error over the trials; nothing when no cell is there."""
    found = [record for record in records if record.ok]
    datasets = list(dict.fromkeys(record.cell.dataset for record in found))
    if not datasets:
        return
    rows, columns = arrange(len(datasets), MOST_COLUMNS)
    figure, axes = panels(rows, columns, (3.4 * columns, 2.8 * rows + 0.4))
    for axis, name in zip(axes.ravel(), datasets, strict=False):
        _panel(axis, [record for record in found if record.cell.dataset == name])
        axis.set_title(name, fontsize=9)
    for axis in axes.ravel()[len(datasets) :]:
        axis.set_visible(False)
    axes.ravel()[0].legend(fontsize=7, frameon=False)
    finish(figure, path, "Test log likelihood, nats a row, over the number of training rows")


def _panel(axis: Axes, records: Sequence[Record]) -> None:
    for method, colour in COLOURS.items():
        points = []
        for setting in sorted({r.cell.setting for r in records}, key=int):
            place = [r for r in records if (r.cell.method, r.cell.setting) == (method, setting)]
            values = [r.metrics["log_likelihood"] for r in place]
            if values:
                se = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
                points.append((int(setting), statistics.fmean(values), se))
        if points:
            n, mean, se = zip(*points, strict=True)
            axis.errorbar(n, mean, se, color=colour, label=method, marker="o", markersize=3, linewidth=1)
    axis.set_xscale("log")
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)
