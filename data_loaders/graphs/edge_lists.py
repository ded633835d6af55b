"""Growing graphs: edges in the order in which they came.  networkx graphs at the interface, arrays within.

A graph may have several edges between two nodes, and edges from a node to itself.  It has no node without an
edge: such a node has no place in an order of edges.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from data_loaders.errors import DataError

if TYPE_CHECKING:  # slow to import
    import networkx as nx

#: Larger times are refused: their differences would overflow.
MOST_TIME = 1e300


@dataclass(frozen=True, eq=False)
class EdgeList:
    """A graph as it grew.

    `edges` is [m, 2] int64, sender and recipient of every edge, m >= 1; nodes are numbered from 0 in the
    order of their first appearance, the sender of an edge before its recipient. `times` is [m] float64,
    finite, and never falls; without known times edges are one unit apart. :func:`edge_list` puts both right.

    :raises DataError: for anything else
    """

    edges: np.ndarray
    times: np.ndarray

    def __post_init__(self) -> None:
        if not (isinstance(self.edges, np.ndarray) and isinstance(self.times, np.ndarray)):
            raise DataError("edges and times are numpy arrays: edge_list makes them of anything else")
        check_ends(self.edges)
        if self.times.shape != (len(self.edges),):
            raise DataError(f"{len(self.edges)} edges need as many times, not {list(self.times.shape)}")
        times = self.times
        if times.dtype.kind != "f" or not np.isfinite(times).all() or (np.diff(times) < 0).any():
            raise DataError("times must be finite floats and never fall: edge_list sorts edges by theirs")

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def num_nodes(self) -> int:
        return int(self.edges.max()) + 1

    def to_networkx(self) -> nx.MultiDiGraph:
        """All edges, with the attribute `time`."""
        import networkx as nx

        graph = nx.MultiDiGraph()
        for (sender, recipient), time in zip(self.edges.tolist(), self.times.tolist(), strict=True):
            graph.add_edge(sender, recipient, time=time)
        return graph

    def simple(self) -> nx.Graph:
        """Which nodes are joined: no directions, no repeated edges, no loops; all nodes stay."""
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(range(self.num_nodes))
        graph.add_edges_from((u, v) for u, v in self.edges.tolist() if u != v)
        return graph


def check_ends(edges: np.ndarray) -> None:
    """:raises DataError: unless these are pairs ``[m, 2]``, one at least, of numbers by first appearance"""
    if edges.size == 0:
        raise DataError("a graph without edges: there is nothing that grows")
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise DataError(f"edges are pairs of nodes, [m, 2], not {list(edges.shape)}")
    check_numbering(edges.ravel())


def check_numbering(ends: np.ndarray) -> None:
    """:raises DataError: unless nodes ``[n]`` are whole numbers, from 0 on by first appearance"""
    highest = np.maximum.accumulate(ends)
    if ends.dtype.kind not in "iu" or ends[0] != 0 or ends.min() < 0 or (np.diff(highest) > 1).any():
        raise DataError(
            "nodes must be numbered from 0 by first appearance (data_loaders.graphs.edge_lists.edge_list)"
        )


def edge_list(
    edges: Iterable[Sequence[Hashable]] | np.ndarray, times: Iterable[float] | None = None
) -> EdgeList:
    """The growing graph of some pairs (sender, recipient).

    :param edges: nodes may have labels of any kind
    :param times: of the edges; these are sorted by them, ties stay in order.  Only differences count, so that
        times may be negative
    :raises DataError: no edge, pairs that are none, labels that are nan, times that are no finite numbers or
        not one an edge
    """
    numbers = _numbered(edges)
    when = np.arange(len(numbers), dtype=np.float64) if times is None else _checked(times, len(numbers))
    order = np.argsort(when, kind="stable")
    return EdgeList(first_appearance(numbers[order]), when[order])


def first_appearance(edges: np.ndarray) -> np.ndarray:
    """`edges` [m, 2] with nodes numbered by first appearance, the sender before the recipient."""
    _, first, inverse = np.unique(edges.ravel(), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse].reshape(-1, 2)


def from_networkx(graph: nx.Graph, time: str = "time") -> EdgeList:
    """The edges of a networkx graph of any kind: by their attribute `time`, else node by node, as networkx
    lists them, whatever the order in which they were added (:func:`edge_list` takes pairs in theirs).

    :raises DataError: what is no graph, a graph without edges, with a node that has none, or with times for
        some of its edges only
    """
    import networkx as nx

    if not isinstance(graph, nx.Graph):  # as all kinds of them are
        raise DataError(f"a {type(graph).__name__} is no networkx graph")
    alone = [node for node in graph if graph.degree(node) == 0]
    if alone and graph.number_of_edges():
        raise DataError(f"node {alone[0]!r} has no edge, and nodes come with edges: remove isolated nodes")
    found = [data.get(time) for _, _, data in graph.edges(data=True)]
    pairs = [(u, v) for u, v, _ in graph.edges(data=True)]
    known = [when for when in found if when is not None]
    if 0 < len(known) < len(found):
        raise DataError(f"edge {pairs[found.index(None)]} has no attribute {time!r}, which others have")
    return edge_list(pairs, known or None)


def has_times(graph: nx.Graph, time: str = "time") -> bool:
    """Whether edges of a networkx graph have the attribute that :func:`from_networkx` sorts them by."""
    return any(data.get(time) is not None for _, _, data in graph.edges(data=True))


def breadth_first(graph: nx.Graph, root: Hashable) -> EdgeList:
    """Nodes in breadth-first order from a root; edges by their later end, then by the earlier one, which is
    the sender.

    :raises DataError: a graph that is not connected, or has no such root
    """
    import networkx as nx

    if root not in graph:
        raise DataError(f"breadth-first order begins at a node of the graph, and {root!r} is none")
    order = [root, *(child for _, child in nx.bfs_edges(graph, root))]
    if len(order) < len(graph):
        raise DataError(f"breadth-first order needs a connected graph; {root!r} does not reach all nodes")
    place = {node: i for i, node in enumerate(order)}
    ends = sorted((sorted((place[u], place[v])) for u, v in graph.edges()), key=lambda pair: pair[::-1])
    return edge_list(np.array(ends))


def _numbered(edges: Iterable) -> np.ndarray:
    """Labels as numbers, [m, 2] int64."""
    if isinstance(edges, np.ndarray) and edges.ndim == 2 and edges.shape[1] == 2 and edges.dtype.kind in "iu":
        numbers = edges.astype(np.int64)
    else:
        pairs = [tuple(pair) if isinstance(pair, Iterable) else (pair,) for pair in edges]
        wrong = next((pair for pair in pairs if len(pair) != 2), None)
        if wrong is not None:
            raise DataError(f"an edge is a pair of nodes, not {wrong!r}")
        label = next((node for pair in pairs for node in pair if not isinstance(node, Hashable)), None)
        if label is not None:
            raise DataError(f"a node is labelled {label!r}, and a label must not change: use a tuple, say")
        if any(node != node for pair in pairs for node in pair):
            raise DataError("a node is labelled nan, which is no label: nan is not equal to itself")
        known: dict[Hashable, int] = {}
        numbers = np.array(
            [[known.setdefault(v, len(known)) for v in pair] for pair in pairs], dtype=np.int64
        )
    if len(numbers) == 0:
        raise DataError("a graph without edges: there is nothing that grows")
    return numbers


def _checked(times: Iterable[float], count: int) -> np.ndarray:
    given = list(times)
    try:
        when = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        wrong = next((time for time in given if not isinstance(time, Real)), given)
        raise DataError(f"time {wrong!r} of an edge is no number") from None
    if when.shape != (count,):
        raise DataError(f"{count} edges need {count} times, not {len(when)}")
    if not np.isfinite(when).all():
        raise DataError(f"time {when[~np.isfinite(when)][0]} of an edge is not finite")
    if np.abs(when).max() > MOST_TIME:
        raise DataError(f"times of edges are no larger than {MOST_TIME:g}: choose another unit")
    return when
