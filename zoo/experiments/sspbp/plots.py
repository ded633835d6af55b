"""The picture of ``max(X W, 0)`` and its two messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from zoo.evaluation.plots import arrange, bare_panels, colours, finish
from zoo.experiments.engine.declaration import Record
from zoo.experiments.engine.pictures import by_dataset, first_trials

MOST_COLUMNS = 3  # pairs side by side
LABELS = {"exact": "max(X W, 0)", "pbp": "Gaussian message (PBP)", "sspbp": "spike-and-slab message (SSPBP)"}


def plot_densities(path: Path, records: Sequence[Record], pairs: Mapping[str, tuple[float, float]]) -> None:
    """One panel a pair: densities as lines, the probability of exactly 0 as a bar on an axis of its own.

    Draws what is there; nothing when no cell is.
    """
    found = by_dataset(first_trials(records))
    shown = [name for name in pairs if name in found]
    if not shown:
        return
    rows, columns = arrange(len(shown), MOST_COLUMNS)
    size = 3.6 * columns, 3.1 * rows + 0.3
    figure, axes = bare_panels(rows, 2 * columns, size, width_ratios=[0.22, 1] * columns)
    axes = axes.ravel()
    for axis in axes[2 * len(shown) :]:
        axis.set_visible(False)
    for name, spikes, densities in zip(shown, axes[::2], axes[1::2], strict=False):
        _panel(spikes, densities, found[name])
        x, w = pairs[name]
        densities.set_title(f"X ~ N({x:g}, 1), W ~ N({w:g}, 1)", fontsize=9)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    finish(figure, path)


def _panel(spikes: Axes, densities: Axes, records: Sequence[Record]) -> None:
    palette = colours(list(LABELS), reference="exact")
    for place, method in enumerate(LABELS):
        for record in records:
            if record.cell.method != method:
                continue
            t, density = np.load(record.folder / "density.npy")
            style = {"color": palette[method], "linewidth": 2.2 if method == "exact" else 1.5}
            densities.plot(t, density, label=LABELS[method], **style)
            spikes.bar(place, 1 - record.metrics["slab"], color=palette[method], width=0.8)
    spikes.set(xticks=[], ylim=(0, 1), xlim=(-0.6, len(LABELS) - 0.4))
    spikes.set_title("P(T = 0)", fontsize=8)
    # the exact density of the pair X0-W0 is infinite at 0
    highest = max(np.quantile(line.get_ydata(), 0.995) for line in densities.lines)
    densities.set(ylim=(0, 1.1 * highest), xlabel="T", ylabel="density beside 0")
    for axis in (spikes, densities):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
