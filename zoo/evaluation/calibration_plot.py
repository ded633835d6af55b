"""The picture of a calibration: a line of panels a method, as those of :mod:`zoo.evaluation.plots`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from zoo.evaluation.calibration import LEVEL, ecdf, ecdf_band
from zoo.evaluation.plots import FAINT, colours, finish, panels, plain

#: Histograms in a line; bars of one, at most.
MOST_QUANTITIES, MOST_BARS = 8, 20

CAPTION = (
    "left: distribution function of the ranks minus the uniform one, with the band that holds all quantities "
    f"at once with probability {1 - LEVEL:g}; right: ranks of the truth among the draws, with the 95 % range "
    "of a bar"
)


def plot_ranks(
    ranks: Mapping[str, Mapping[str, np.ndarray]], draws: int, path: str | Path, title: str = ""
) -> None:
    """Ranks as differences of distribution functions, and as histograms of the first quantities.

    :param ranks: method -> quantity -> ranks ``[N]`` among so many draws; a method without any is left out,
        and without a method there is no picture
    """
    shown = {method: found for method, found in ranks.items() if found}
    if not shown:
        return
    names = list(dict.fromkeys(name for found in shown.values() for name in found))
    palette = colours(names)
    first = names[:MOST_QUANTITIES]
    size = (3.4 + 1.7 * len(first), 0.9 + 1.7 * len(shown))
    ratios = {"width_ratios": [2.0] + [1.0] * len(first)}
    figure, axes = panels(len(shown), 1 + len(first), size, gridspec_kw=ratios)
    for line, (method, found) in zip(axes, shown.items(), strict=True):
        _ecdf_panel(line[0], found, draws, palette)
        line[0].set_ylabel(plain(method), fontsize=10, fontweight="bold")
        for axis, name in zip(line[1:], first, strict=True):
            _histogram(axis, found.get(name), draws, palette[name])
    for axis, name in zip(axes[0, 1:], first, strict=True):
        axis.set_title(plain(name), fontsize=9)
    finish(figure, path, title, CAPTION)


def _ecdf_panel(axis: Axes, found: Mapping[str, np.ndarray], draws: int, palette: Mapping[str, str]) -> None:
    count = len(next(iter(found.values())))
    places, lower, upper = ecdf_band(count, draws, len(found))
    axis.fill_between(places, lower - places, upper - places, color="0.9", step="mid", zorder=0)
    axis.axhline(0, color=FAINT, linewidth=0.8)
    for name, values in found.items():
        axis.plot(places, ecdf(values, draws) - places, color=palette[name], linewidth=1.2)
    axis.set_xlim(0, 1)


def _histogram(axis: Axes, values: np.ndarray | None, draws: int, colour: str) -> None:
    if values is None:
        axis.set_visible(False)
        return
    most = min(MOST_BARS, max(4, len(values) // 5))
    bars = max(k for k in range(1, most + 1) if (draws + 1) % k == 0)
    counts = np.bincount(values * bars // (draws + 1), minlength=bars)
    low, high = stats.binom.interval(0.95, len(values), 1 / bars)
    axis.axhspan(low, high, color="0.9", zorder=0)
    axis.bar(np.arange(bars), counts, width=0.95, color=colour)
    axis.set_xticks([])
