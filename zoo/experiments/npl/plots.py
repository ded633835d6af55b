"""Pictures of the flow experiments, from finished cells alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from zoo.evaluation.plots import arrange, finish, panels
from zoo.experiments.engine.declaration import Record
from zoo.experiments.engine.lines import summary
from zoo.experiments.engine.pictures import first_trials

COLOURS = {
    "ml": "black", "wlb_shared": "tab:blue", "npl_gaussian": "tab:purple", "npl_empirical": "tab:red",
}  # fmt: skip
LABELS = {"ml": "maximum likelihood", "narrow": "base N(0, 1)", "wide": "base N(0, 16)"}
#: Half the width of a panel of points.
HALF = 8.0
MOST_COLUMNS = 3


def plot_clouds(out: Path, records: Sequence[Record]) -> None:
    """``figure-4.1.png``: data of the first trial in black over samples, a panel a density; nothing when no
    cell is there.
    """
    shown = first_trials(records)
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
    finish(figure, out / "figure-4.1.png", "100 rows (black) and samples of their densities (blue)")


def plot_curves(out: Path, records: Sequence[Record]) -> None:
    """``figure-4.2.png``: mean and standard error over the trials; nothing when no cell is there."""
    title = "Test log likelihood, nats a row, over the number of training rows"
    _panels(out / "figure-4.2.png", records, _curves, 3.4, title)


def plot_variants(out: Path, records: Sequence[Record]) -> None:
    """``figure-b2.png``: as :func:`plot_curves`, kinds of flows side by side; an axis that leaves out the far
    end of the bad ones.
    """
    _panels(
        out / "figure-b2.png", records, _variants, 4.6, "Test log likelihood, nats a row, by kind of flow"
    )


def _panels(
    path: Path,
    records: Sequence[Record],
    draw: Callable[[Axes, Sequence[Record]], None],
    width: float,
    title: str,
) -> None:
    """A panel a data set."""
    found = [record for record in records if record.ok]
    datasets = list(dict.fromkeys(record.cell.dataset for record in found))
    if not datasets:
        return
    rows, columns = arrange(len(datasets), MOST_COLUMNS)
    figure, axes = panels(rows, columns, (width * columns, 2.8 * rows + 0.4))
    for axis, name in zip(axes.ravel(), datasets, strict=False):
        draw(axis, [record for record in found if record.cell.dataset == name])
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in axes.ravel()[len(datasets) :]:
        axis.set_visible(False)
    figure.legend(
        *axes.ravel()[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
    )
    finish(figure, path, title)


def _curves(axis: Axes, records: Sequence[Record]) -> None:
    settings = sorted({r.cell.setting for r in records}, key=int)
    for method, colour in COLOURS.items():
        points = [(int(setting), *_estimate(records, method, setting)) for setting in settings]
        _points(axis, [point for point in points if math.isfinite(point[1])], method, colour, linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks([int(setting) for setting in settings], settings)
    axis.minorticks_off()


def _variants(axis: Axes, records: Sequence[Record]) -> None:
    settings = list(dict.fromkeys(r.cell.setting for r in records))
    shown = []
    for i, (method, colour) in enumerate(COLOURS.items()):
        points = [(j + 0.15 * (i - 1.5), *_estimate(records, method, s)) for j, s in enumerate(settings)]
        points = [point for point in points if math.isfinite(point[1])]
        _points(axis, points, method, colour, linestyle="none")
        shown += [point[1] for point in points]
    axis.set_xticks(range(len(settings)), settings, rotation=60, ha="right")
    low, middle, high = np.quantile(shown, [0.0, 0.5, 1.0])
    margin = 0.1 * (high - middle) or 0.5
    axis.set_ylim(max(low, middle - 3 * (high - middle)) - margin, high + margin)


def _points(axis: Axes, points: Sequence[tuple], method: str, colour: str, **style: Any) -> None:
    if points:
        x, mean, se = zip(*points, strict=True)
        axis.errorbar(x, mean, se, color=colour, label=method, marker="o", markersize=3, **style)


def _estimate(records: Sequence[Record], method: str, setting: str) -> tuple[float, float]:
    """Mean over the trials and its standard error, 0 of one trial; nan without one."""
    place = [r for r in records if (r.cell.method, r.cell.setting) == (method, setting)]
    found = summary([r.metrics["log_likelihood"] for r in place])
    return (math.nan, math.nan) if found is None else (found.mean, found.se or 0.0)
