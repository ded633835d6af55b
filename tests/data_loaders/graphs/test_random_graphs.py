"""Random graphs: the laws and sizes of their families."""

from __future__ import annotations

import math
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from scipy.stats import chisquare

from data_loaders import DataError
from data_loaders.graphs import random_graphs
from data_loaders.graphs.random_graphs import barabasi_albert, dnnd, draw_graphs


@pytest.mark.parametrize(
    ("family", "sizes", "twin"),
    [
        ("cycles", range(10, 41), nx.cycle_graph),
        ("ladders", range(10, 41, 2), lambda nodes: nx.ladder_graph(nodes // 2)),
    ],
)
def test_cycles_and_ladders_are_those_of_networkx(family, sizes, twin):
    """From ten nodes to forty, both included."""
    graphs = draw_graphs(family, 600, seed=0)
    assert {graph.num_nodes for graph in graphs} == set(sizes)
    for graph in graphs[:3]:
        assert nx.is_isomorphic(graph.simple(), twin(graph.num_nodes))


def law_of_dnnd(num_edges: int, alpha, gamma, tau, sigma, window) -> Counter:
    """Probabilities of the edges of short graphs, by all that can be drawn on the way."""
    found: Counter = Counter()

    def from_base(tables):
        total = gamma + sum(tables)
        for node, count in enumerate(tables):
            yield node, (*tables[:node], count + 1, *tables[node + 1 :]), (count - sigma) / total
        yield len(tables), (*tables, 1), (gamma + sigma * len(tables)) / total

    def from_urn(urn, now, tables):
        recent = [node for when, node in urn if now - when <= window]
        yield from ((node, tables, 1 / (len(recent) + tau)) for node in recent)
        for node, more, probability in from_base(tables):
            yield node, more, tau * probability / (len(recent) + tau)

    def grow(edges, clusters, senders, recipients, tables, probability):
        now = len(edges)
        if now == num_edges:
            found[edges] += probability
            return
        for cluster in range(max(clusters, default=-1) + 2):
            weight = clusters.count(cluster) or alpha
            sent, received = senders.get(cluster, ()), recipients.get(cluster, ())
            for sender, after, p in from_urn(sent, now, tables):
                for recipient, last, q in from_urn(received, now, after):
                    grow(
                        (*edges, (sender, recipient)),
                        (*clusters, cluster),
                        {**senders, cluster: (*sent, (now, sender))},
                        {**recipients, cluster: (*received, (now, recipient))},
                        last,
                        probability * p * q * weight / (now + alpha),
                    )

    grow((), (), {}, {}, (), 1.0)
    return found


def test_dynamic_graphs_have_the_law_of_their_definition():
    """Of three edges: with a window of one what was two edges ago is forgotten."""
    options = {"alpha": 0.7, "gamma": 1.5, "tau": 0.6, "sigma": 0.4, "window": 1}
    law, number, rng = law_of_dnnd(3, **options), 8000, np.random.default_rng(0)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    counts = Counter(tuple(map(tuple, dnnd(3, rng, **options).edges.tolist())) for _ in range(number))
    assert counts.keys() <= law.keys()
    often = [edges for edges, probability in law.items() if number * probability >= 5]
    seen, expected = [counts[edges] for edges in often], [number * law[edges] for edges in often]
    assert chisquare([*seen, number - sum(seen)], [*expected, number - sum(expected)]).pvalue > 1e-3


def test_hollywood_graphs_have_fifty_to_five_hundred_edges():
    """Each number as likely: mean and sd to 4.5 standard errors (kurtosis 1.8)."""
    lengths, sd = np.array([len(graph) for graph in draw_graphs("hollywood", 300, seed=4)]), 451 / 12**0.5
    assert 50 <= lengths.min() < 60
    assert 490 < lengths.max() <= 500
    assert abs(lengths.mean() - 275) < 4.5 * sd / 300**0.5
    assert lengths.std() == pytest.approx(sd, rel=4.5 * 0.45 / 300**0.5)


def test_hollywood_graphs_may_have_the_fewest_and_the_most_edges(monkeypatch):
    monkeypatch.setattr(random_graphs, "HOLLYWOOD_EDGES", (2, 4))
    assert {len(graph) for graph in draw_graphs("hollywood", 60, seed=0)} == {2, 3, 4}


def test_preferential_attachment_is_told_from_any_node():
    """The root has the mean degree, in the mean; the one that was there first has more."""
    rng = np.random.default_rng(0)
    graphs = [barabasi_albert(30, rng).edges for _ in range(150)]
    excess = np.array([(edges == 0).sum() - 2 * len(edges) / 30 for edges in graphs])
    assert abs(excess.mean()) < 4.5 * excess.std() / 150**0.5


def test_families_meet_the_published_sizes():
    """Means over the law of the sizes, to four standard errors: Table 5.1."""
    for family, nodes, edges in (("ba", 25, 84), ("cycles", 25, 25), ("ladders", 25, 35.5)):
        graphs = draw_graphs(family, 150, seed=4)
        for found, mean in (([g.num_nodes for g in graphs], nodes), ([len(g) for g in graphs], edges)):
            assert abs(np.mean(found) - mean) < 4 * np.std(found) / math.sqrt(150)
    graphs = [dnnd(200, np.random.default_rng(i)) for i in range(60)]
    assert abs(np.mean([g.num_nodes for g in graphs]) - 18.44) < 4
    with pytest.raises(DataError, match="unknown family of graphs 'bar'; known: ba, cycles"):
        draw_graphs("bar", 1, 0)
