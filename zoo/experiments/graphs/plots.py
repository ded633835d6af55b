"""The pictures of growing graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import numpy as np

from zoo.evaluation.plots import bare_panels, colours, finish
from zoo.experiments.engine.declaration import Record
from zoo.experiments.engine.pictures import first_trials

#: Graphs a panel of Figure 5.4.
EXAMPLES = 3
LABELS = {
    "process": "Hollywood process",
    "ours_no_time": "edge model",
    "ours_time": "edge model with time",
    "ours_mean": "edge model, mean of messages",
}


def plot_senders(out: Path, records: Sequence[Record]) -> None:
    """``figure-5.2.png``: step against node, probabilities of the next sender, exact and by the models."""
    found = first_trials(records)
    if not found:
        return
    panels = []
    for record in found:
        with np.load(record.folder / "senders.npz") as stored:
            if not panels:
                panels.append(("exact", stored["exact"]))
            panels.append((LABELS[record.cell.method], stored["ours"]))
    figure, (axes,) = bare_panels(1, len(panels), (3.2 * len(panels), 3.4), sharey=True)
    for axis, (title, probabilities) in zip(axes, panels, strict=True):
        shown = np.log10(np.maximum(probabilities, 1e-4))
        image = axis.imshow(shown.T, aspect="auto", origin="lower", vmin=-4, vmax=0, cmap="viridis")
        axis.set(title=title, xlabel="edges so far")
    axes[0].set_ylabel("sender, by first appearance")
    figure.colorbar(image, ax=axes, label="log10 probability")
    finish(figure, out / "figure-5.2.png")


def plot_growth(out: Path, records: Sequence[Record]) -> None:
    """``figure-5.3.png``: nodes against edges, the exact mean, and half and nine tenths of the graphs of each
    kind.
    """
    found = first_trials(records)
    if not found:
        return
    figure, ((axis,),) = bare_panels(1, 1, (5.2, 3.8))
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
    finish(figure, out / "figure-5.3.png")


def plot_examples(out: Path, records: Sequence[Record]) -> None:
    """``figure-5.4.png``: a row a set, columns of graphs a method."""
    found = {r.cell.combination[:2]: r for r in first_trials(records)}
    if not found:
        return
    sets, methods = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    columns = EXAMPLES * len(methods)
    figure, axes = bare_panels(len(sets), columns, (1.3 * columns, 1.5 * len(sets)))
    palette = colours(methods, reference="perfect")
    for axis in axes.ravel():
        axis.set_axis_off()
    for (name, method), record in found.items():
        with np.load(record.folder / "examples.npz") as stored:
            graphs = [stored[f"graph_{i}"] for i in range(min(EXAMPLES, len(stored.files)))]
        first = EXAMPLES * methods.index(method)
        for axis, edges in zip(axes[sets.index(name), first:], graphs, strict=False):
            graph = nx.Graph(edges.tolist())
            places = nx.kamada_kawai_layout(graph)
            nx.draw_networkx_edges(graph, places, ax=axis, edge_color="0.6", width=0.7)
            nx.draw_networkx_nodes(graph, places, ax=axis, node_size=7, node_color=palette[method])
            axis.set_axis_off()
        if sets.index(name) == 0:
            axes[0, first + EXAMPLES // 2].set_title(f"{method}", fontsize=10)
        axes[sets.index(name), first].text(
            0, 1, name, fontsize=8, transform=axes[sets.index(name), first].transAxes
        )
    finish(figure, out / "figure-5.4.png")
