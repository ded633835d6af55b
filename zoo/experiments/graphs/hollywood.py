"""The edge model on graphs of the Hollywood process, whose law is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from data_loaders.graphs.edge_lists import EdgeList
from zoo.experiments.engine.declaration import Cell, stable_seed
from zoo.fitting.graphs import GraphFit, GraphTraining, nats, train
from zoo.models.graphs.edge_batches import Plan, batches
from zoo.models.graphs.edge_graph import EdgeGraphModel
from zoo.models.graphs.hollywood_process import HollywoodProcess

PROCESS = HollywoodProcess()
#: Test graph whose sender probabilities are drawn.
SHOWN = 0


def graphs_of(cell: Cell) -> list[list[EdgeList]]:
    """To train, to validate and to test: five to one to one."""
    number, options = cell.options["graphs"], cell.options
    sizes = (number, max(1, number // 5), max(1, number // 5))
    rng = np.random.default_rng(cell.split_seed)
    lengths = rng.integers(options["lowest"], options["highest"] + 1, sum(sizes))
    drawn = PROCESS.sample(sum(sizes), lengths.tolist(), seed=stable_seed("graphs", cell.split_seed))
    ends = np.cumsum(sizes)
    return [drawn[i:j] for i, j in zip([0, *ends[:-1]], ends, strict=True)]


def trained(
    cell: Cell, training: Sequence[EdgeList], validation: Sequence[EdgeList]
) -> tuple[EdgeGraphModel, GraphFit]:
    """The edge model of a cell."""
    model = EdgeGraphModel(
        aggregation="mean" if cell.method == "ours_mean" else "log",
        timed=cell.method == "ours_time",
        seed=cell.seed,
    )
    settings = GraphTraining(
        **{name: cell.options[name] for name in ("epochs", "lr", "batch")}, seed=cell.seed
    )
    return model, train(model, training, validation, settings)


def grade_senders(cell: Cell) -> Mapping[str, float]:
    """Likelihood and sender probabilities; leaves those of one test graph in ``senders.npz``."""
    training, validation, test = graphs_of(cell)
    model, fit = trained(cell, training, validation)
    edges = sum(map(len, test))
    exact = -sum(PROCESS.log_prob(graph).item() for graph in test) / edges
    ours = sender_probabilities(model, test)
    truth = [exact_senders(graph) for graph in test]
    away = [np.abs(a - b).sum(1) / 2 for a, b in zip(ours, truth, strict=True)]
    np.savez(cell.folder / "senders.npz", ours=ours[SHOWN], exact=truth[SHOWN])
    return {
        "gap": float(nats(model, test).sum() / edges - exact),
        "exact": exact,
        "senders": float(np.concatenate(away).mean()),
        "gradient": max(fit.gradient),
    } | fit.ended


def grade_growth(cell: Cell) -> Mapping[str, float]:
    """Nodes along the growth of as many graphs as are tested, all of the largest length; left in
    ``growth.npz``.
    """
    training, validation, test = graphs_of(cell)
    length = cell.options["highest"]
    training_figures = {}
    if cell.method == "process":
        drawn = PROCESS.sample(len(test), length, seed=cell.seed)
    else:
        model, fit = trained(cell, training, validation)
        training_figures = fit.ended
        drawn = model.sample(len(test), length, seed=stable_seed("draws", cell.seed))
    nodes = np.stack([np.maximum.accumulate(graph.edges.max(1)) + 1 for graph in drawn])
    expected = PROCESS.expected_nodes(np.arange(1, length + 1))
    ratio = nodes.mean(0) / expected
    np.savez(cell.folder / "growth.npz", nodes=nodes, expected=expected)
    return {"nodes": float(ratio[-1]), "worst": float(np.abs(ratio - 1).max())} | training_figures


def exact_senders(graph: EdgeList) -> np.ndarray:
    """Probabilities of the sender of every edge, ``[m, N + 1]``: nodes, then a new one at its place."""
    ends = graph.edges.ravel().tolist()
    found = np.zeros((len(graph), graph.num_nodes + 1))
    for t in range(len(graph)):
        row = PROCESS.next_end(ends[: 2 * t])
        found[t, : len(row)] = row
    return found


@torch.no_grad()
def sender_probabilities(model: EdgeGraphModel, graphs: Sequence[EdgeList]) -> list[np.ndarray]:
    """As :func:`exact_senders`, of the model."""
    found: list[np.ndarray] = [np.empty(0)] * len(graphs)
    for batch in batches(graphs, 32):
        plan = Plan.of([graphs[i] for i in batch])
        probabilities = model.choices(plan).sender.softmax(1).numpy()
        for place, graph in enumerate(plan.order):
            mine = probabilities[plan.graph_of_row.numpy() == place]
            columns = graphs[batch[graph]].num_nodes + 1
            padded = np.zeros((len(mine), columns))
            padded[:, : mine.shape[1]] = mine[:, :columns]
            found[batch[graph]] = padded
    return found
