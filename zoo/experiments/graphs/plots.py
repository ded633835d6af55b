"""The pictures of growing graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zoo.evaluation.plots import DPI, colours
from zoo.experiments.engine.declaration import Record
from zoo.files.tables import write_figure

LABELS = {"process": "Hollywood process", "ours_no_time": "edge model", "ours_time": "edge model with time"}


def plot_senders(path: Path, records: Sequence[Record]) -> None:
    """Step against node: the exact probabilities of the next sender and those of the models."""
    found = [record for record in records if record.ok and record.cell.trial == 0]
    if not found:
        return
    panels = []
    for record in found:
        with np.load(record.folder / "senders.npz") as stored:
            if not panels:
                panels.append(("exact", stored["exact"]))
            panels.append((LABELS[record.cell.method], stored["ours"]))
    figure = Figure(figsize=(3.2 * len(panels), 3.4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, probabilities) in zip(axes, panels, strict=True):
        shown = np.log10(np.maximum(probabilities, 1e-4))
        image = axis.imshow(shown.T, aspect="auto", origin="lower", vmin=-4, vmax=0, cmap="viridis")
        axis.set(title=title, xlabel="edges so far")
    axes[0].set_ylabel("sender, by first appearance")
    figure.colorbar(image, ax=axes, label="log10 probability")
    write_figure(figure, path, dpi=DPI, bbox_inches="tight", pad_inches=0.12)


def plot_growth(path: Path, records: Sequence[Record]) -> None:
    """Nodes against edges: the exact mean, and half and nine tenths of the graphs of each kind."""
    found = [record for record in records if record.ok and record.cell.trial == 0]
    if not found:
        return
    figure = Figure(figsize=(5.2, 3.8), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    palette = colours([record.cell.method for record in found], reference="process")
    for record in found:
        with np.load(record.folder / "growth.npz") as stored:
            nodes, expected = stored["nodes"], stored["expected"]
        edges, colour = np.arange(1, nodes.shape[1] + 1), palette[record.cell.method]
        for low, high, alpha in ((5, 95, 0.15), (25, 75, 0.3)):
            axis.fill_between(
                edges, *np.percentile(nodes, (low, high), axis=0), color=colour, alpha=alpha, lw=0
            )
        axis.plot(edges, nodes.mean(0), color=colour, label=LABELS[record.cell.method])
    axis.plot(edges, expected, color="black", linestyle="--", label="exact mean")
    axis.set(xlabel="edges", ylabel="nodes")
    axis.legend(frameon=False, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    write_figure(figure, path, dpi=DPI, bbox_inches="tight", pad_inches=0.12)
