"""DeepGMG, batched, against a plain loop and as a probability distribution."""

from __future__ import annotations

import itertools
from collections import Counter

import networkx as nx
import numpy as np
import pytest
import torch
from pyro import poutine

from data_loaders.graphs.edge_lists import edge_list
from data_loaders.graphs.random_graphs import draw_graphs
from tests.zoo.models.graphs import plain_deepgmg
from tests.zoo.models.graphs.drawn_counts import assert_counts
from zoo.errors import UserError
from zoo.models.graphs.deepgmg import DeepGMG, arrivals, to_networkx


def double(seed: int = 1) -> DeepGMG:
    model = DeepGMG(seed=seed).double()
    for parameter in model.parameters():
        parameter.data *= 1.5
    return model


GRAPHS = [
    [[], [0], [0, 1], [2], []],
    [[]],
    [[], [], [1, 0], [2, 2, 0]],
    [[], [0]],
    [[], [], []],
]


def test_likelihood_is_that_of_the_plain_loop():
    model = double()
    with torch.no_grad():
        plain = torch.stack([plain_deepgmg.log_prob(model, graph) for graph in GRAPHS])
        torch.testing.assert_close(model.log_prob_of_arrivals(GRAPHS), plain, atol=1e-10, rtol=0)


def choices(nodes: int) -> list[list[list[int]]]:
    """All that can be chosen, repetitions included."""
    of_node = [
        [list(picked) for count in range(node + 1) for picked in itertools.product(range(node), repeat=count)]
        for node in range(nodes)
    ]
    return [list(graph) for graph in itertools.product(*of_node)]


def test_all_graphs_of_a_size_sum_to_one():
    graphs = choices(4)
    with torch.no_grad():
        total = double().log_prob_of_arrivals(graphs).exp().sum()
    assert len(graphs) == 2 * 7 * 40
    assert total.item() == pytest.approx(1, abs=1e-12)


def assert_graphs_follow(model: DeepGMG, graphs: list, drawn: list) -> None:
    counts, number = Counter(str(graph) for graph in drawn), len(drawn)
    with torch.no_grad():
        expected = number * model.log_prob_of_arrivals(graphs).exp().numpy()
    found = np.array([counts[str(graph)] for graph in graphs])
    assert found.sum() == number
    assert_counts(found, expected)


def test_drawn_graphs_follow_the_likelihood():
    model = double(seed=2)
    assert_graphs_follow(model, choices(3), model.sample(3000, 3, seed=4))


def test_an_edge_that_is_drawn_again_passes_no_message():
    """Every node picks as often as it may, so that most picks are repetitions."""
    model = double(seed=2)
    model.another.bias.data.fill_(1e3)
    busy = [graph for graph in choices(4) if all(len(picked) == node for node, picked in enumerate(graph))]
    assert len(busy) == 4 * 27
    assert_graphs_follow(model, busy, model.sample(5000, 4, seed=4))


def test_graphs_keep_their_places():
    """Of several sizes, which are sorted to be grown side by side."""
    sizes = [2, 5, 1, 3, 5]
    assert [len(graph) for graph in DeepGMG().sample(5, sizes, seed=1)] == sizes
    model, graphs = double(), [edge_list(edges) for edges in ([(0, 1), (1, 2), (0, 2)], [(0, 1)])]
    with torch.no_grad():
        alone = torch.cat([model.log_prob_of_batch([graph]) for graph in graphs])
        torch.testing.assert_close(model.log_prob(graphs), alone, atol=1e-12, rtol=0)


def test_gradient_of_large_hubs_does_not_explode(monkeypatch):
    """Sums over many neighbours, with the parameters of a training that has begun."""
    graph = draw_graphs("ba", 1, seed=1)[0]
    model = DeepGMG()
    for parameter in model.parameters():
        parameter.data *= 2

    def norm() -> float:
        model.zero_grad()
        model.log_prob([graph]).sum().backward()
        return torch.stack([p.grad.double().norm() for p in model.parameters()]).norm().item()

    steady = norm()
    monkeypatch.setattr("zoo.models.graphs.deepgmg.steadily", lambda nodes, turn: turn(nodes))
    assert steady < 1e4 < 1e8 < norm()


def test_arrivals_are_those_of_the_simple_graph():
    graph = edge_list([(0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 3)])
    assert arrivals(graph) == [[], [0], [0, 1], []]
    assert nx.is_isomorphic(to_networkx(arrivals(graph)), graph.simple())


def test_pyro_sites_hold_the_likelihood():
    model, graphs = double(), draw_graphs("ba", 3, seed=1)
    trace = poutine.trace(model).get_trace(graphs)
    assert trace.observation_nodes == ["another", "end"]
    torch.testing.assert_close(trace.log_prob_sum(), model.log_prob(graphs).sum(), atol=1e-8, rtol=0)
    model.zero_grad()
    trace.log_prob_sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_graphs_of_loops_alone_have_a_likelihood_too():
    model, alone, apart = double(), edge_list([(0, 0)]), edge_list([(0, 0), (1, 1)])
    for graphs, sites in (([alone, alone], []), ([alone, apart], ["another"])):
        with torch.no_grad():
            trace = poutine.trace(model).get_trace(graphs)
            assert trace.observation_nodes == sites
            assert float(trace.log_prob_sum()) == pytest.approx(model.log_prob(graphs).sum().item(), abs=1e-8)


def test_bad_input_is_refused():
    with pytest.raises(UserError, match=r"node 1 can be joined to the 1 before it, not to \[1\]"):
        DeepGMG().log_prob_of_arrivals([[[], [1]]])
    with pytest.raises(UserError, match=r"node 1 can be joined to the 1 before it, not to \[0, 0\]"):
        DeepGMG().log_prob_of_arrivals([[[], [0, 0]]])  # one draw for each node before it
    with pytest.raises(UserError, match=r"node 1 can be joined to the 1 before it, not to \[-1\]"):
        DeepGMG().log_prob_of_arrivals([[[], [-1]]])
    with pytest.raises(UserError, match="2 graphs need 2 numbers of nodes"):
        DeepGMG().sample(2, [3])
    assert DeepGMG().sample(0, 3) == []
