"""Pictures of saved results: the scoreboard, bands of one-dimensional functions, guide against reference.

Only arrays and rows come in; no model, no posterior.  Every function writes one PNG (whole or not at all),
draws on its own ``Figure`` (never pyplot: no window, no shared state) and leaves matplotlib's settings as
they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.budgets import REFERENCES
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.scoreboard import LEGEND, Row
from zoo.files.tables import write_figure

#: Okabe & Ito (2008): told apart with every common kind of colour blindness.  The reference is black.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#F0E442")
REFERENCE_COLOUR, FAINT = "black", "0.65"
DPI = 130
#: Where a figure would be for a method that is right.
RIGHT_VALUES = {"coverage_90": 0.9, "ref_sd_ratio": 1.0}
#: What a figure can be; no error bar and no tick goes beyond.
LIMITS = {
    **dict.fromkeys(("accuracy", "coverage_90", "ece", "ref_pip_rmse"), (0.0, 1.0)),
    **dict.fromkeys(("rmse", "crps", "ref_mean_error", "ref_sd_ratio", "ref_w1"), (0.0, math.inf)),
}
ENDLESS = (-math.inf, math.inf)
#: Figures that have no panel on the picture of a scoreboard, and panels side by side on it.
READ = ("ref_log_likelihood", "bound_change", "density_mean", "density_half", "num_parameters", "fit_seconds")
MOST_COLUMNS = 4
Band = tuple[np.ndarray, np.ndarray, np.ndarray]


def colours(methods: Sequence[str], reference: str | None = None) -> dict[str, str]:
    """One colour a method, the reference black; from the ninth method on the palette begins again."""
    others = [m for m in methods if m != reference]
    named = {m: PALETTE[i % len(PALETTE)] for i, m in enumerate(others)}
    return named | ({reference: REFERENCE_COLOUR} if reference is not None else {})


# ------------------------------------------------------------------------------------------------ scoreboards


def plot_scoreboard(rows: Sequence[Row], path: str | Path, title: str = "") -> None:
    """One panel a figure by which methods compare: a dot with ± 2 standard errors per method, the reference
    marked.  Sizes, densities and seconds are numbers to read, not to compare by; they stand in the table.

    Methods named "nuts", "exact" or "gibbs" are the reference: a black diamond and a line through their
    panels.  Failed methods keep their line, marked as failed.  Panels of distances carry the noise floor as
    a grey band where it is known.

    :raises ValueError: when no row has such a figure
    """
    names = compared(rows)
    if not names:
        raise ValueError("no row of the scoreboard has a figure to plot")
    lines, columns = arrange(len(names), MOST_COLUMNS)
    # room for the names of the methods on the left, and a constant height a method
    width = 0.075 * max(len(_label(row, rows)) for row in rows) + 2.5 * columns + 0.4
    height = lines * (0.95 + 0.27 * len(rows)) + (0.75 if title else 0.45)
    figure, axes = panels(lines, columns, (width, height), sharey=True)
    palette = colours([row.method for row in rows if row.method not in REFERENCES])
    for axis, name in zip(axes.flat, names, strict=False):
        _score_panel(axis, rows, name, palette)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for line in axes:
        line[0].set_yticks(range(len(rows)), [_label(row, rows) for row in rows])
        for row, text in zip(rows, line[0].get_yticklabels(), strict=True):
            text.set_color("black" if row.status == "ok" else "#B00020")
    axes.flat[0].set_ylim(len(rows) - 0.4, -0.6)  # the first row on top
    finish(figure, path, title, _scoreboard_caption(rows, names))


def compared(rows: Sequence[Row]) -> list[str]:
    """The figures that :func:`plot_scoreboard` has a panel for."""
    return [n for n in LEGEND if n not in READ and any(_plottable(getattr(row, n)) for row in rows)]


def _plottable(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _scoreboard_caption(rows: Sequence[Row], names: Sequence[str]) -> str:
    cut = any(_is_cut(row.estimate(name), name) for row in rows for name in names)
    parts = ["bars: ± 2 standard errors" + (", cut at what is possible" if cut else "")]
    if any(row.method in REFERENCES for row in rows):
        parts.append("◆ and dotted line: reference")
    if any(row.noise_floors for row in rows):
        parts.append("grey band: what noise alone would give")
    if {*RIGHT_VALUES, "pareto_k"} & {*names}:
        parts.append(
            "grey line: right value" + (", for Pareto k the limit 0.7" if "pareto_k" in names else "")
        )
    return "; ".join(parts)


def _label(row: Row, rows: Sequence[Row]) -> str:
    several = len({r.model for r in rows}) > 1
    return row.method + (f" ({row.model})" if several else "") + ("" if row.status == "ok" else "  failed")


def _score_panel(axis: Axes, rows: Sequence[Row], name: str, palette: Mapping[str, str]) -> None:
    floors = []
    for place, row in enumerate(rows):
        estimate = row.estimate(name)
        if estimate is None:
            continue
        if _plottable(estimate.value):
            colour = palette.get(row.method, REFERENCE_COLOUR)
            _score_dot(axis, place, row, estimate.value, _bar(estimate, name), colour)
        else:
            where = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
            axis.annotate("∞", (0.98, place), color=palette.get(row.method, REFERENCE_COLOUR), **where)
        if estimate.floor is not None:
            floors.append(estimate.floor)
    _mark_right_values(axis, name, max(floors, default=None))
    arrow = {"lower": "← better", "higher": "better →"}.get(LEGEND[name].better, LEGEND[name].better)
    axis.set_title(LEGEND[name].heading, fontsize=10, fontweight="bold", pad=14 if arrow else 6)
    axis.text(
        0.5, 1.015, arrow, transform=axis.transAxes, ha="center", va="bottom", fontsize=7.5, color="0.4"
    )
    axis.xaxis.set_major_locator(_Within(4, *LIMITS.get(name, ENDLESS)))
    axis.margins(x=0.12)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="both", color="0.92", linewidth=0.8)
    axis.set_axisbelow(True)


class _Within(MaxNLocator):
    """At most so many ticks, and none outside the limits."""

    def __init__(self, count: int, low: float, high: float):
        super().__init__(count)
        self.low, self.high = low, high

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        ticks = super().tick_values(vmin, vmax)
        slack = 1e-9 * (vmax - vmin)
        return ticks[(ticks >= self.low - slack) & (ticks <= self.high + slack)]


def _bar(estimate: Estimate, name: str) -> list[list[float]] | None:
    """Two standard errors to the left and to the right, but not beyond the limits of the figure."""
    if estimate.se is None or not math.isfinite(estimate.se):
        return None
    low, high = LIMITS.get(name, ENDLESS)
    value, half = estimate.value, 2 * estimate.se
    return [[max(0.0, min(half, value - low))], [max(0.0, min(half, high - value))]]


def _is_cut(estimate: Estimate | None, name: str) -> bool:
    bar = None if estimate is None else _bar(estimate, name)
    return bar is not None and min(*bar)[0] < 2 * estimate.se


def _score_dot(
    axis: Axes, place: int, row: Row, value: float, bar: list[list[float]] | None, colour: str
) -> None:
    reference = row.method in REFERENCES
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.6, "alpha": 1 if row.status == "ok" else 0.4}
    shape = {"fmt": "D" if reference else "o", "markersize": 6, "elinewidth": 1.8, "capsize": 2.5}
    axis.errorbar(value, place, xerr=bar, color=colour, **shape, **edge)
    if reference and row.status == "ok":  # a failed reference is shown, and nothing is read against it
        axis.axvline(value, color=colour, linewidth=1, linestyle=":", zorder=1)


def _mark_right_values(axis: Axes, name: str, floor: float | None) -> None:
    if name in RIGHT_VALUES:
        axis.axvline(RIGHT_VALUES[name], color=FAINT, linewidth=1.2, zorder=1)
    if name in ("ref_mean_error", "ref_w1"):
        axis.axvspan(0, floor or 0, color="0.88", linewidth=0, zorder=0.4)
    if name == "pareto_k":
        axis.axvline(0.7, color=FAINT, linewidth=1.2, zorder=1)


# ------------------------------------------------------------------------------------------- one-dimensional


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
    low, high = min(low, np.min(y)), max(high, np.max(y))
    room = 0.06 * (high - low)
    return float(low - room), float(high + room)


# ---------------------------------------------------------------------------------------- guide against guide


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
    low, high = min(float(np.min(part)) for part in parts), max(float(np.max(part)) for part in parts)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


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


# ------------------------------------------------------------------------------------------------------ loss


def plot_loss(losses: np.ndarray, path: str | Path, title: str = "") -> None:
    """The loss of every step ``[steps]`` (grey) and its running mean over a fiftieth of the fit."""
    window = max(1, len(losses) // 50)
    running = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.plot(losses, color="0.8", linewidth=0.5)
    axis.plot(np.arange(window - 1, len(losses)), running, color="#0072B2")
    low, high = np.quantile(losses, [0.001, 0.95])
    if low < high:  # the first steps would flatten the rest
        axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="step", ylabel="loss (nats)", title=plain(title))
    write_figure(figure, path, dpi=150)


# ----------------------------------------------------------------------------------------------------- shared


def plain(text: str) -> str:
    """A name that matplotlib shows as it stands: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def reference_name(methods: Mapping[str, object]) -> str | None:
    """The trusted one among the methods, if any.

    :raises ValueError: when there is no method
    """
    if not methods:
        raise ValueError("no method to plot")
    return next((m for m in REFERENCES if m in methods), None)


def arrange(count: int, most: int) -> tuple[int, int]:
    """Rows and columns of so many panels, at most so many side by side, the rows as even as can be."""
    rows = math.ceil(count / most)
    return rows, math.ceil(count / max(1, rows))


def panels(rows: int, columns: int, size: tuple[float, float], **shared) -> tuple[Figure, np.ndarray]:
    """A figure of ``size`` inches and its axes ``[rows, columns]``; :raises ValueError: for no rows"""
    if rows < 1:
        raise ValueError("no method to plot")
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8.5)
    return figure, axes


def finish(figure: Figure, path: str | Path, title: str, caption: str = "") -> None:
    """Writes a figure with a title over it and a caption under it."""
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold")
    if caption:
        # under everything: constrained layout keeps no room for figure texts, so the file's box is widened
        # for it
        figure.text(0.5, -0.01, caption, ha="center", va="top", fontsize=8, color="0.35")
    write_figure(figure, path, dpi=DPI, bbox_inches="tight", pad_inches=0.12)
