"""Models of growing graphs trained on a set and compared with it: Tables 5.3 and 5.4, Figure 5.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from data_loaders.graphs.edge_lists import EdgeList
from data_loaders.graphs.graph_sets import GRAPH_SETS
from zoo.evaluation.graphs import VALID, describe, novel_share, scores, unique_share, valid_share
from zoo.experiments.engine.declaration import Cell, stable_seed
from zoo.experiments.graphs.plots import EXAMPLES
from zoo.experiments.graphs.sets import Parts, split
from zoo.fitting.graphs import GraphTraining, median_gap, nats, train
from zoo.models.graphs.deepgmg import DeepGMG, to_networkx
from zoo.models.graphs.edge_graph import EdgeGraphModel


@dataclass(frozen=True)
class Drawn:
    """:ivar figures: of the training, empty without one"""

    graphs: Sequence[nx.Graph]
    figures: Mapping[str, float]


def compare(cell: Cell) -> Mapping[str, float]:
    """The cell of a table: distances of all drawn graphs to the test graphs, those of as many drawn as there
    are test graphs, shares, and what the training says.
    """
    parts = _parts(cell)
    drawn = _drawn(cell, parts)
    real = describe([graph.simple() for graph in parts.test])
    even = scores(describe(drawn.graphs[: len(parts.test)]), real)
    distances = scores(describe(drawn.graphs), real) | {f"even_{name}": even[name] for name in even}
    return distances | _shares(cell, parts, drawn.graphs) | drawn.figures


def draw(cell: Cell) -> Mapping[str, float]:
    """Leaves some graphs in ``examples.npz``."""
    parts = _parts(cell)
    graphs = _drawn(cell, parts).graphs
    shown = {f"graph_{i}": np.array(list(graph.edges)) for i, graph in enumerate(graphs[:EXAMPLES])}
    np.savez(cell.folder / "examples.npz", **shown)
    return _shares(cell, parts, graphs)


def _parts(cell: Cell) -> Parts:
    return split(cell.dataset, cell.options["graphs"], cell.split_seed, doubled=cell.setting == "doubled")


def _shares(cell: Cell, parts: Parts, graphs: Sequence[nx.Graph]) -> dict[str, float]:
    found = {
        "unique": unique_share(graphs),
        "novel": novel_share(graphs, [graph.simple() for graph in parts.training]),
    }
    return found | ({"valid": valid_share(graphs, cell.dataset)} if cell.dataset in VALID else {})


def _drawn(cell: Cell, parts: Parts) -> Drawn:
    """As many graphs as the option ``drawn`` says."""
    rng = np.random.default_rng(stable_seed("drawn", cell.seed))
    if cell.method == "perfect":
        return Drawn([graph.simple() for graph in _of_the_same_law(cell, parts, rng)], {})
    copied = [parts.training[i] for i in rng.integers(len(parts.training), size=cell.options["drawn"])]
    settings = GraphTraining(
        **{name: cell.options[name] for name in ("epochs", "lr", "batch")},
        seed=stable_seed("orders", cell.seed),
    )
    model = (
        DeepGMG(seed=stable_seed("make", cell.seed)) if cell.method == "deepgmg" else _edge_model(cell, parts)
    )
    fit = train(model, parts.training, parts.validation, settings)
    figures = {
        "nats": float(nats(model, parts.test).mean()),
        "gradient": max(fit.gradient),
        "skipped": float(fit.skipped),
        "epoch": float(fit.best),
    } | fit.ended
    return Drawn(_copies(model, copied, stable_seed("draws", cell.seed)), figures)


def _of_the_same_law(cell: Cell, parts: Parts, rng: np.random.Generator) -> Sequence[EdgeList]:
    """As many as are drawn, if there are so many; of a real set different training graphs."""
    drawn = cell.options["drawn"]
    if cell.dataset not in GRAPH_SETS:
        return parts.fresh[:drawn]
    return [parts.training[i] for i in rng.permutation(len(parts.training))[:drawn]]


def _edge_model(cell: Cell, parts: Parts) -> EdgeGraphModel:
    model = EdgeGraphModel(
        aggregation=cell.setting if cell.setting in ("mean", "sum") else "log",
        timed=cell.method == "ours_time",
        sees_end=cell.method == "ours_end",
        window=cell.options["window"] if cell.setting == "window" else None,
        seed=stable_seed("make", cell.seed),
    )
    model.unit.fill_(median_gap(parts.training))
    return model


def _copies(model: EdgeGraphModel | DeepGMG, copied: Sequence[EdgeList], seed: int) -> list[nx.Graph]:
    """Graphs with the numbers of nodes, or of edges and their times, of others."""
    if isinstance(model, DeepGMG):
        return [
            to_networkx(graph)
            for graph in model.sample(len(copied), [g.num_nodes for g in copied], seed=seed)
        ]
    times = [graph.times for graph in copied]
    drawn = model.sample(len(copied), [len(graph) for graph in copied], times=times, seed=seed)
    return [graph.simple() for graph in drawn]
