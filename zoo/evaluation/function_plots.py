"""Pictures of functions beside those of a reference: bands over one input, means and sds at test points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from zoo.evaluation.plots import REFERENCE_COLOUR, arrange, colours, finish, panels, reference_name, with_room

Band = tuple[np.ndarray, np.ndarray, np.ndarray]


def plot_bands_1d(
    x: np.ndarray,
    y: np.ndarray,
    grid: np.ndarray,
    bands: Mapping[str, Band],
    path: str | Path,
    labels: tuple[str, str] = ("x", "y"),
    title: str = "",
) -> None:
    """Predictive means and 90 % bands as small multiples with shared axes, the trusted one's in each.

    :param x, y: training data [n]
    :param grid: places of the curves [G], ascending
    :param bands: method -> (mean, lower, upper), each [G], unit of ``y``
    """
    reference = reference_name(bands)
    methods = [m for m in bands if m != reference] or [reference]
    lines, columns = arrange(len(methods), 3)
    figure, axes = panels(lines, columns, (4.0 * columns + 0.4, 2.9 * lines + 0.8), sharex=True, sharey=True)
    palette = colours(list(bands), reference)
    for axis, method in zip(axes.flat, methods, strict=False):
        axis.plot(x, y, ".", color="0.35", markersize=4.5, alpha=0.6, markeredgewidth=0, zorder=3)
        mean, lower, upper = bands[method]
        axis.fill_between(grid, lower, upper, color=palette[method], alpha=0.25, linewidth=0, zorder=2)
        axis.plot(grid, mean, color=palette[method], linewidth=2, zorder=4)
        if reference is not None and method != reference:
            _reference_curves(axis, grid, bands[reference])
        axis.set_title(method, fontsize=10, fontweight="bold", color=palette[method])
        axis.set_xlim(grid.min(), grid.max())
    for axis in axes.flat[len(methods) :]:
        axis.set_visible(False)
    axes.flat[0].set_ylim(*_range_of_bands(y, bands))
    for axis in axes.flat[max(0, len(methods) - columns) : len(methods)]:  # nothing below them
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(labels[0], fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel(labels[1], fontsize=9)
    dotted = f"; black dashes: {reference}" if reference is not None else ""
    finish(
        figure,
        path,
        title,
        caption=f"lines: predictive mean and central 90 % band{dotted}; dots: training data",
    )


def _reference_curves(axis: Axes, grid: np.ndarray, band: Band) -> None:
    mean, lower, upper = band
    axis.plot(grid, mean, color=REFERENCE_COLOUR, linewidth=1.3, linestyle=(0, (5, 2)), zorder=5)
    for edge in (lower, upper):
        axis.plot(grid, edge, color=REFERENCE_COLOUR, linewidth=0.9, linestyle=(0, (2, 1.5)), zorder=5)


def _range_of_bands(y: np.ndarray, bands: Mapping[str, Band]) -> tuple[float, float]:
    """Shared limits: data and all bands, but a band that explodes does not flatten the others."""
    low = np.median([np.min(b[1]) for b in bands.values()])
    high = np.median([np.max(b[2]) for b in bands.values()])
    return with_room(min(low, np.min(y)), max(high, np.max(y)), 0.06)


def plot_scatter(
    reference_mean: np.ndarray,
    reference_sd: np.ndarray,
    methods: Mapping[str, tuple[np.ndarray, np.ndarray]],
    path: str | Path,
    reference: str = "reference",
    unit: str = "",
    title: str = "",
) -> None:
    """Means (left) and sds (right) of the function at the test points, guide against reference: a pair of
    panels a method, on the same axes for all of them.

    Each panel has the identity line; the means have the slope of the guide's on the reference's, and their
    distance in sds of the reference (root mean square); the sds have the median of their ratios.

    :param reference_mean, reference_sd: [N]
    :param methods: name -> (mean, sd), each [N]
    """
    lines, pairs = arrange(len(methods), 1 if len(methods) <= 3 else 2 if len(methods) <= 8 else 3)
    side = 3.2 if pairs == 1 else 2.4
    figure, axes = panels(lines, 2 * pairs, (2 * pairs * side + 0.6, lines * side + 0.5))
    palette = colours(list(methods))
    suffix = f" ({unit})" if unit else ""
    references = [np.asarray(reference_mean), np.asarray(reference_sd)]
    limits = [_limits([x, *(values[i] for values in methods.values())]) for i, x in enumerate(references)]
    words = (_compare_means(*references), _compare_sds(references[1]))
    by_method = axes.reshape(-1, 2)
    for place, (name, values) in enumerate(methods.items()):
        for i, what in enumerate(("mean", "sd")):
            axis, y = by_method[place, i], np.asarray(values[i])
            _identity_panel(axis, references[i], y, limits[i], words[i](y), palette[name])
            if place < pairs:
                axis.set_title(f"{what} of the function", fontsize=10, fontweight="bold")
            if place + pairs >= len(methods):  # nothing below it
                axis.set_xlabel(f"{reference}{suffix}", fontsize=9)
        by_method[place, 0].set_ylabel(f"{name}{suffix}", fontsize=9)
    for axis in by_method[len(methods) :].flat:
        axis.set_visible(False)
    caption = "one dot a point of comparison; line: identity; error in sds of the reference; ratio: median"
    finish(figure, path, title, caption)


def _limits(parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """Of an axis that shows them all."""
    return with_room(min(np.min(part) for part in parts), max(np.max(part) for part in parts), 0.05)


def _compare_means(reference: np.ndarray, sd: np.ndarray) -> Callable[[np.ndarray], str]:
    """What sets a guide's means apart from those of the reference; both figures see scale and shift."""
    centred, moving = reference - reference.mean(), sd > 0

    def words(mean: np.ndarray) -> str:
        parts = []
        if centred.any():
            parts.append(f"slope {centred @ mean / (centred @ centred):.2f}")
        if moving.any():
            error = ((mean - reference)[moving] / sd[moving]) ** 2
            parts.append(f"error {np.sqrt(error.mean()):.2f}")
        return ", ".join(parts)

    return words


def _compare_sds(reference: np.ndarray) -> Callable[[np.ndarray], str]:
    moving = reference > 0
    return lambda sd: f"ratio {np.median(sd[moving] / reference[moving]):.2f}" if moving.any() else ""


def _identity_panel(
    axis: Axes, x: np.ndarray, y: np.ndarray, limits: tuple[float, float], text: str, colour: str
) -> None:
    axis.plot(limits, limits, color="0.5", linewidth=1, zorder=1)
    opacity = float(np.clip(60 / max(len(x), 1), 0.15, 0.75))
    axis.plot(x, y, "o", color=colour, markersize=4, alpha=opacity, markeredgewidth=0, zorder=2)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    axis.text(0.04, 0.95, text, transform=axis.transAxes, va="top", fontsize=8.5, bbox=box)
    axis.set(xlim=limits, ylim=limits, aspect="equal")
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.grid(color="0.93", linewidth=0.8)
    axis.set_axisbelow(True)
