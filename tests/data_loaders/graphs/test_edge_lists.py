"""Growing graphs: nodes by first appearance, edges by time, bad input refused in one line."""

from __future__ import annotations

from datetime import datetime

import networkx as nx
import numpy as np
import pytest

from data_loaders import DataError
from data_loaders.graphs.edge_lists import EdgeList, breadth_first, edge_list, first_appearance, from_networkx


def test_labels_of_any_kind_are_numbered_by_first_appearance():
    graph = edge_list([("b", "a"), ("a", 3), ("b", (1, 2))])
    assert graph.edges.tolist() == [[0, 1], [1, 2], [0, 3]]
    assert graph.times.tolist() == [0, 1, 2]
    assert (len(graph), graph.num_nodes) == (3, 4)
    np.testing.assert_array_equal(first_appearance(np.array([[7, 7], [2, 7]])), [[0, 0], [1, 0]])


@pytest.mark.parametrize(
    ("edges", "times", "words"),
    [
        ([(0, 2), (0, 1)], [0, 1], "numbered from 0 by first appearance"),
        ([(5, 7)], [0], "numbered from 0 by first appearance"),
        ([(0.0, 1.5)], [0], "numbered from 0 by first appearance"),
        ([(0, 1, 2)], [0], r"pairs of nodes, \[m, 2\], not \[1, 3\]"),
        ([], [], "a graph without edges"),
        ([(0, 1), (1, 2)], [0], r"2 edges need as many times, not \[1\]"),
        ([(0, 1), (1, 2)], [[0], [1]], r"2 edges need as many times, not \[2, 1\]"),
        ([(0, 1), (1, 2)], [5, 1], "times must be finite floats and never fall"),
        ([(0, 1), (1, 2)], [0, np.nan], "times must be finite floats and never fall"),
    ],
)
def test_an_edge_list_that_is_none_is_refused(edges, times, words):
    with pytest.raises(DataError, match=words):
        EdgeList(np.array(edges), np.array(times, dtype=float))


def test_an_edge_list_is_of_arrays():
    for edges, times in (([(0, 1)], np.zeros(1)), (np.array([(0, 1)]), [0.0])):
        with pytest.raises(DataError, match="edges and times are numpy arrays: edge_list makes them"):
            EdgeList(edges, times)
    with pytest.raises(DataError, match="times must be finite floats"):
        EdgeList(np.array([(0, 1)] * 2), np.array([5, 1], dtype=np.uint8))


def test_edges_are_sorted_by_time_and_ties_stay_in_order():
    graph = edge_list([(0, 1), (5, 6), (2, 3), (3, 4)], times=[2.0, -1.0, 0.5, 0.5])
    assert graph.edges.tolist() == [[0, 1], [2, 3], [3, 4], [5, 6]]
    assert graph.times.tolist() == [-1, 0.5, 0.5, 2]


def test_loops_and_repeated_edges_stay_in_the_list_and_leave_the_simple_graph():
    graph = edge_list([(0, 0), (0, 1), (1, 0), (2, 2)])
    assert len(graph) == 4
    assert sorted(graph.simple().edges) == [(0, 1)]
    assert graph.simple().number_of_nodes() == 3
    assert graph.to_networkx().number_of_edges() == 4


def test_networkx_and_back():
    graph = nx.MultiDiGraph()
    graph.add_edge("x", "y", time=3)
    graph.add_edge("y", "z", time=1)
    found = from_networkx(graph)
    assert found.edges.tolist() == [[0, 1], [2, 0]]
    assert found.times.tolist() == [1, 3]
    again = from_networkx(found.to_networkx())
    assert again.edges.tolist() == found.edges.tolist()
    assert from_networkx(nx.path_graph(3)).times.tolist() == [0, 1]
    added = nx.Graph([("c", "d"), ("a", "b"), ("c", "e")])
    assert from_networkx(added).edges.tolist() == [[0, 1], [0, 2], [3, 4]]  # node by node: c, d, a


def test_breadth_first_order():
    graph = breadth_first(nx.Graph([("a", "b"), ("b", "c"), ("a", "d"), ("d", "c")]), "a")
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    with pytest.raises(DataError, match="connected graph; 0 does not reach"):
        breadth_first(nx.Graph([(0, 1), (2, 3)]), 0)
    with pytest.raises(DataError, match="'z' is none"):
        breadth_first(nx.Graph([(0, 1)]), "z")


def test_breadth_first_order_keeps_edges_that_repeat():
    found = breadth_first(nx.MultiGraph([(0, 1), (0, 1), (1, 2)]), 0)
    assert found.edges.tolist() == [[0, 1], [0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("edges", "times", "words"),
    [
        ([], None, "without edges"),
        (np.empty((0, 2), dtype=np.int64), None, "without edges"),
        ([(0, 1, 2)], None, r"an edge is a pair of nodes, not \(0, 1, 2\)"),
        ([0, 1], None, r"an edge is a pair of nodes, not \(0,\)"),
        ([([1], 2)], None, r"a node is labelled \[1\], and a label must not change"),
        ([(0, 1)], [1.0, 2.0], "1 edges need 1 times, not 2"),
        ([("a", float("nan"))], None, "labelled nan"),
        ([(0, 1)], [float("nan")], "time nan of an edge is not finite"),
        ([(0, 1), (1, 2)], [1, "noon"], "time 'noon' of an edge is no number"),
        ([(0, 1)], [datetime(2020, 1, 1)], r"time datetime.datetime\(2020, 1, 1, 0, 0\) of an edge is no"),
        ([(0, 1)], [-1e308], r"no larger than 1e\+300: choose another unit"),
    ],
)
def test_bad_edges_are_refused(edges, times, words):
    with pytest.raises(DataError, match=words):
        edge_list(edges, times)


def test_bad_graphs_are_refused():
    with pytest.raises(DataError, match="without edges"):
        from_networkx(nx.empty_graph(3))
    with pytest.raises(DataError, match="a list is no networkx graph"):
        from_networkx([(0, 1)])
    graph = nx.Graph([("a", "b")])
    graph.add_node("c")
    with pytest.raises(DataError, match="node 'c' has no edge"):
        from_networkx(graph)
    graph = nx.Graph([("a", "b"), ("b", "c")])
    graph["a"]["b"]["time"] = 0.0
    with pytest.raises(DataError, match=r"edge \('b', 'c'\) has no attribute 'time', which others have"):
        from_networkx(graph)


def test_edges_of_one_time_keep_their_order():
    """Of hundreds: a sort that is not stable keeps that of a few."""
    edges, times = [(0, i) for i in range(1, 201)], [i % 2 for i in range(1, 201)]
    found = edge_list(edges, times=times)
    early, late = ([edge for edge, time in zip(edges, times, strict=True) if time == t] for t in (0, 1))
    np.testing.assert_array_equal(found.edges, edge_list([*early, *late]).edges)


def test_edges_of_one_time_stay_in_their_order():
    pairs = [(i, i + 1) for i in np.random.default_rng(0).permutation(200)]
    tied = edge_list(pairs, np.arange(200) % 2)
    np.testing.assert_array_equal(tied.edges, edge_list(pairs[::2] + pairs[1::2]).edges)


def test_breadth_first_edges_come_with_their_later_end():
    found = breadth_first(nx.Graph([(0, 1), (0, 2), (0, 3), (1, 2)]), 0)
    assert found.edges.tolist() == [[0, 1], [0, 2], [1, 2], [0, 3]]
