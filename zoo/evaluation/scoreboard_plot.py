"""The picture of a scoreboard: a panel a figure, a dot a method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from zoo.budgets import REFERENCES
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.plots import FAINT, REFERENCE_COLOUR, arrange, colours, finish, panels
from zoo.evaluation.scoreboard import LEGEND, Row

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
