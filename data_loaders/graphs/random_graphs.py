"""Random growing graphs, drawn: processes whose laws are known, and families of known shape.

Exact probabilities are in `zoo.models.graphs.hollywood_process`; this module draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from data_loaders.errors import DataError
from data_loaders.graphs.edge_lists import EdgeList, breadth_first, edge_list
from data_loaders.records import Whole

#: Nodes of the graphs of known shape: uniform between these, both included.
FEWEST, MOST = 10, 40
#: Edges of a Hollywood graph: uniform between these, both included; and its parameters.
HOLLYWOOD_EDGES, HOLLYWOOD_ALPHA, HOLLYWOOD_SIGMA = (50, 500), 1.0, 0.7
#: Edges that a new node of a Barabasi-Albert graph brings.
ATTACHED = 4
DNND_EDGES = 200


# ------------------------------------------------------------------------------- the binary Hollywood process


def hollywood(
    num_edges: Sequence[int] | np.ndarray, alpha: float, sigma: float, rng: np.random.Generator
) -> list[EdgeList]:
    """A graph for each number of edges (Crane and Dempsey 2018, with two ends an edge).

    All graphs grow at once.  An existing node v is picked in proportion to its appearances D(v) less sigma:
    with weight M - N one of the picks that were no first appearances, of M picks of N nodes, or with weight
    N (1 - sigma) any node.
    """
    check_hollywood(alpha, sigma)
    lengths = np.asarray(num_edges, dtype=np.int64)
    if lengths.size and lengths.min() < 1:
        raise DataError(f"a Hollywood graph has at least one edge, not {lengths.min()}")
    picks = np.zeros((len(lengths), 2 * lengths.max(initial=1)), dtype=np.int64)
    repeats = np.zeros_like(picks)
    rows, nodes = np.arange(len(lengths)), np.ones(len(lengths), dtype=np.int64)
    for seen in range(1, picks.shape[1]):
        u = rng.random((3, len(lengths)))
        new = u[0] * (seen + alpha) < alpha + sigma * nodes
        again = u[1] * (seen - sigma * nodes) < seen - nodes
        copied = repeats[rows, (u[2] * (seen - nodes)).astype(np.int64)]
        picked = np.where(new, nodes, np.where(again, copied, (u[2] * nodes).astype(np.int64)))
        picks[:, seen] = picked
        repeats[rows, seen - nodes] = picked  # a new node is overwritten: it does not count
        nodes += new
    pairs = (row[: 2 * m].reshape(-1, 2).copy() for row, m in zip(picks, lengths, strict=True))
    return [EdgeList(edges, np.arange(len(edges), dtype=np.float64)) for edges in pairs]


def check_hollywood(alpha: float, sigma: float) -> None:
    """:raises DataError: for parameters that are none"""
    if not (0 < sigma < 1 and -sigma < alpha < np.inf):
        raise DataError(f"the Hollywood process needs 0 < sigma < 1 and alpha > -sigma, not {alpha}, {sigma}")


def picks(edges: np.ndarray) -> np.ndarray:
    """What the Hollywood process knows at each pick of an end but the first, [2m - 1, 3]: ends seen before,
    nodes seen before, and how often the node that is picked was seen before, 0 if it is new.
    """
    ends = np.asarray(edges).ravel()
    counts: dict[int, int] = {}
    rows = []
    for seen, node in enumerate(ends.tolist()):
        rows.append((seen, len(counts), counts.get(node, 0)))
        counts[node] = counts.get(node, 0) + 1
    return np.array(rows[1:], dtype=np.int64).reshape(-1, 3)


def hollywood_picks() -> Whole:
    """The rows of the set `hollywood`: always the same ten graphs of 50 edges."""
    graphs = hollywood([50] * 10, HOLLYWOOD_ALPHA, HOLLYWOOD_SIGMA, np.random.default_rng(0))
    x = np.concatenate([picks(graph.edges) for graph in graphs]).astype(np.float64)
    return Whole(x, (x[:, 2] == 0).astype(np.float64), ("ends", "nodes", "appearances"), "new node")


# --------------------------------------------------------------- dynamic nonparametric network distribution


def dnnd(
    num_edges: int,
    rng: np.random.Generator,
    *,
    alpha: float = 1.0,
    gamma: float = 1.0,
    tau: float = 0.2,
    sigma: float = 0.7,
    window: int = 20,
) -> EdgeList:
    """A dynamic graph of clusters of edges with a memory of their own, as defined here (the published text
    leaves the generator open; this reading meets its table's nodes and repeated edges).

    An edge joins a cluster by a Chinese restaurant process (alpha) over all earlier edges.  Its sender is one
    of those that the cluster had in the last `window` edges, in proportion to their number, or with weight
    tau one from a base measure; its recipient likewise, from an urn of its own.  The base measure is shared:
    a Pitman-Yor process (gamma, sigma) that counts only how often a node was drawn from it.
    """
    uniform = iter(rng.random(8 * num_edges).tolist()).__next__
    clusters: list[int] = []
    urns: tuple[list[list[tuple[int, int]]], ...] = ([], [])
    tables: list[int] = []

    def from_base() -> int:
        place = uniform() * (gamma + sum(tables))
        for node, count in enumerate(tables):
            place -= count - sigma
            if place < 0:
                tables[node] += 1
                return node
        tables.append(1)
        return len(tables) - 1

    def from_urn(urn: list[tuple[int, int]], now: int) -> int:
        recent = [node for when, node in urn[-window:] if now - when <= window]
        place = uniform() * (len(recent) + tau)
        node = recent[int(place)] if place < len(recent) else from_base()
        urn.append((now, node))
        return node

    edges = []
    for now in range(num_edges):
        place = uniform() * (now + alpha)
        cluster = clusters[int(place)] if place < now else len(urns[0])
        if cluster == len(urns[0]):
            for urn in urns:
                urn.append([])
        clusters.append(cluster)
        edges.append([from_urn(urns[end][cluster], now) for end in (0, 1)])
    return edge_list(np.array(edges))


# ------------------------------------------------------------------------------------ graphs of known shape


def cycle(num_nodes: int) -> EdgeList:
    """Around: edge i joins node i to the next."""
    _at_least(3, num_nodes, "cycle")
    around = np.arange(num_nodes)
    return edge_list(np.stack([around, (around + 1) % num_nodes], 1))


def ladder(num_nodes: int) -> EdgeList:
    """Upwards: the lowest rung, then for each further rung its two stiles and itself."""
    if num_nodes < 2 or num_nodes % 2:
        raise DataError(f"a ladder has an even number of nodes, not {num_nodes}")
    steps = [
        ((2 * i, 2 * i + 2), (2 * i + 1, 2 * i + 3), (2 * i + 2, 2 * i + 3))
        for i in range(num_nodes // 2 - 1)
    ]
    return edge_list(np.array([(0, 1), *(edge for step in steps for edge in step)]))


def barabasi_albert(num_nodes: int, rng: np.random.Generator, attached: int = ATTACHED) -> EdgeList:
    """Preferential attachment, breadth-first from a random node: the order in which it grew is lost."""
    import networkx as nx

    _at_least(attached + 1, num_nodes, "Barabasi-Albert graph")
    graph = nx.barabasi_albert_graph(num_nodes, attached, seed=random.Random(int(rng.integers(2**63))))
    return breadth_first(graph, int(rng.integers(num_nodes)))


def _at_least(fewest: int, nodes: int, kind: str) -> None:
    if nodes < fewest:
        raise DataError(f"a {kind} has at least {fewest} nodes, not {nodes}")


# --------------------------------------------------------------------------------------------- sets of graphs


def _sizes(number: int, rng: np.random.Generator) -> list[int]:
    return rng.integers(FEWEST, MOST + 1, number).tolist()


def _cycles(number: int, rng: np.random.Generator) -> list[EdgeList]:
    return [cycle(n) for n in _sizes(number, rng)]


def _ladders(number: int, rng: np.random.Generator) -> list[EdgeList]:
    return [ladder(2 * int(n)) for n in rng.integers(FEWEST // 2, MOST // 2 + 1, number)]


def _ba(number: int, rng: np.random.Generator) -> list[EdgeList]:
    return [barabasi_albert(n, rng) for n in _sizes(number, rng)]


def _dnnd(number: int, rng: np.random.Generator) -> list[EdgeList]:
    return [dnnd(DNND_EDGES, rng) for _ in range(number)]


def _hollywood(number: int, rng: np.random.Generator) -> list[EdgeList]:
    low, high = HOLLYWOOD_EDGES
    return hollywood(rng.integers(low, high + 1, number), HOLLYWOOD_ALPHA, HOLLYWOOD_SIGMA, rng)


FAMILIES: Mapping[str, Callable[[int, np.random.Generator], list[EdgeList]]] = {
    "ba": _ba,
    "cycles": _cycles,
    "dnnd": _dnnd,
    "ladders": _ladders,
    "hollywood": _hollywood,
}


def draw_graphs(family: str, number: int, seed: int) -> list[EdgeList]:
    """Graphs of one of the FAMILIES: sizes, parameters and order of edges are those of Ott (2022), chapter 5.

    The first graphs of a larger number are other graphs.
    """
    if family not in FAMILIES:
        raise DataError(f"unknown family of graphs {family!r}; known: {', '.join(FAMILIES)}")
    return FAMILIES[family](number, np.random.default_rng(seed))
