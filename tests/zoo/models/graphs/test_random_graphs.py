"""Random graph processes: their densities sum to one and their draws follow them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import networkx as nx
import numpy as np
import pytest
import torch
from numpyro.infer.util import log_density
from pyro import poutine
from scipy.special import gamma
from scipy.stats import chisquare

from data_loaders import DataError
from data_loaders.graphs import random_graphs
from data_loaders.graphs.edge_lists import edge_list
from data_loaders.graphs.random_graphs import barabasi_albert, dnnd, draw_graphs, hollywood_picks, picks
from zoo.models.graphs.random_graphs import (
    CYCLES,
    LADDERS,
    BarabasiAlbert,
    HollywoodModel,
    HollywoodProcess,
    StochasticBlocks,
    erdos_renyi,
)

PARAMETERS = [(1.0, 0.7), (5.0, 0.3), (-0.2, 0.5), (0.0, 0.9)]


def growths(ends: int) -> list[list[int]]:
    """All sequences of so many ends, numbered by first appearance."""
    found = [[0]]
    for _ in range(ends - 1):
        found = [[*before, node] for before in found for node in range(max(before) + 2)]
    return found


# ------------------------------------------------------------------------------- the binary Hollywood process


@pytest.mark.parametrize(("alpha", "sigma"), PARAMETERS)
def test_rule_of_the_next_end_gives_the_exact_formula(alpha, sigma):
    process = HollywoodProcess(alpha, sigma)
    (graph,) = process.sample(1, 60, seed=3)
    ends = graph.edges.ravel().tolist()
    sequential = sum(process.next_end(ends[:k])[node].log() for k, node in enumerate(ends))
    assert process.log_prob(graph).item() == pytest.approx(sequential.item(), abs=1e-10)


@pytest.mark.parametrize(("alpha", "sigma"), PARAMETERS)
def test_probabilities_of_all_graphs_sum_to_one(alpha, sigma):
    process = HollywoodProcess(alpha, sigma)
    total = sum(process.log_prob(np.array(ends).reshape(-1, 2)).exp() for ends in growths(6))
    assert total.item() == pytest.approx(1, abs=1e-12)


def test_draws_follow_the_law():
    process, number = HollywoodProcess(0.6, 0.4), 20_000
    counts = Counter(tuple(graph.edges.ravel()) for graph in process.sample(number, 2, seed=1))
    expected = [process.log_prob(np.array(ends).reshape(-1, 2)).exp().item() for ends in growths(4)]
    found = [counts[tuple(ends)] for ends in growths(4)]
    assert sum(found) == number
    assert chisquare(found, number * np.array(expected)).pvalue > 1e-3


@pytest.mark.parametrize(("alpha", "sigma"), PARAMETERS)
def test_mean_number_of_nodes_is_exact(alpha, sigma):
    """Against the recursion ``E N' = E N + (alpha + sigma E N) / (M + alpha)``."""
    nodes = 1.0
    for seen in range(1, 200):
        nodes += (alpha + sigma * nodes) / (seen + alpha)
    assert HollywoodProcess(alpha, sigma).expected_nodes(100) == pytest.approx(nodes, rel=1e-10)


def test_simulated_growth_meets_the_exact_mean():
    process = HollywoodProcess()
    graphs = process.sample(600, 300, seed=0)
    for edges in (1, 30, 300):
        nodes = np.array([graph.edges[:edges].max() + 1 for graph in graphs])
        error = nodes.std() / math.sqrt(len(nodes))
        assert abs(nodes.mean() - process.expected_nodes(edges)) < 4 * error + 1e-9


def test_equation_5_8_has_gamma_of_alpha_plus_one():
    process, edges = HollywoodProcess(1.0, 0.7), 1000
    of_many = process.expected_nodes_of_many(edges)
    assert of_many == pytest.approx(gamma(2.0) / (0.7 * gamma(1.7)) * 2000**0.7, rel=1e-12)
    assert of_many == pytest.approx(process.expected_nodes(edges), rel=0.005)
    printed = of_many * gamma(1.7) / gamma(2.0)
    assert printed < 0.93 * process.expected_nodes(edges)
    np.testing.assert_allclose(process.expected_nodes_of_many(np.array([500])), 197.9, atol=0.05)
    np.testing.assert_allclose(process.expected_nodes(np.array([500])), 196.6, atol=0.05)


@pytest.mark.parametrize(
    ("alpha", "sigma"), [(1.0, 0.0), (1.0, 1.0), (-0.5, 0.5), (math.nan, 0.5), (1.0, math.nan)]
)
def test_parameters_that_are_none_are_refused(alpha, sigma):
    with pytest.raises(DataError, match="needs 0 < sigma < 1 and alpha > -sigma"):
        HollywoodProcess(alpha, sigma)


@pytest.mark.parametrize("edges", [[[1, 0]], [[0, 2]], [[0, 1], [3, 2]], [[0, -1]]])
def test_nodes_must_be_numbered_by_first_appearance(edges):
    with pytest.raises(DataError, match="numbered from 0 by first appearance"):
        HollywoodProcess().log_prob(np.array(edges))


def test_other_bad_input_is_refused():
    process = HollywoodProcess()
    with pytest.raises(DataError, match="without edges"):
        process.log_prob(np.empty((0, 2), dtype=np.int64))
    with pytest.raises(DataError, match="at least one edge, not 0"):
        process.sample(2, 0)
    with pytest.raises(DataError, match="3 graphs need 3 numbers of edges, not 2"):
        process.sample(3, [1, 2])
    assert process.sample(0, 5) == []
    assert [len(graph) for graph in process.sample(2, np.int64(3))] == [3, 3]


# ------------------------------------------------------------------------------------ its model in Pyro


def _rows(graphs):
    x = torch.as_tensor(np.concatenate([picks(graph.edges) for graph in graphs])).double()
    return x, (x[:, 2] == 0).double()


def test_likelihood_of_the_model_is_that_of_the_process():
    graphs = HollywoodProcess().sample(3, [1, 7, 20], seed=2)
    x, y = _rows(graphs)
    values = {
        "alpha": torch.tensor(1.7, dtype=torch.float64),
        "sigma": torch.tensor(0.35, dtype=torch.float64),
    }
    trace = poutine.trace(poutine.condition(HollywoodModel(), values)).get_trace(x, y)
    trace.compute_log_prob()
    likelihood = trace.nodes["y"]["log_prob_sum"] + trace.nodes["which"]["log_prob_sum"]
    exact = sum(HollywoodProcess(1.7, 0.35).log_prob(graph) for graph in graphs)
    assert likelihood.item() == pytest.approx(exact.item(), abs=1e-10)


@pytest.mark.parametrize(("alpha", "sigma"), [(0.3, 0.2), (4.0, 0.9), (1.0, 0.5), (0.05, 0.7), (9.0, 0.05)])
def test_twin_has_the_same_density(alpha, sigma):
    """The reference of every approximation is NUTS on the twin; of graphs with nodes that return."""
    x, y = _rows(HollywoodProcess().sample(2, 9, seed=5))
    assert 5 < y.sum() < len(y) - 5
    values = {
        "alpha": torch.tensor(alpha, dtype=torch.float64),
        "sigma": torch.tensor(sigma, dtype=torch.float64),
    }
    ours = poutine.trace(poutine.condition(HollywoodModel(), values)).get_trace(x, y).log_prob_sum()
    theirs, _ = log_density(
        HollywoodModel().twin, (x.float().numpy(), y.float().numpy()), {}, {"alpha": alpha, "sigma": sigma}
    )
    assert ours.item() == pytest.approx(float(theirs), rel=1e-5)


def test_minibatches_are_scaled_up():
    x, y = _rows(HollywoodProcess().sample(1, 10, seed=5))
    values = {
        "alpha": torch.tensor(1.0, dtype=torch.float64),
        "sigma": torch.tensor(0.5, dtype=torch.float64),
    }
    model = poutine.condition(HollywoodModel(), values)
    whole = poutine.trace(model).get_trace(x, y).log_prob_sum()
    halves = [poutine.trace(model).get_trace(x[i:j], y[i:j], size=len(x)) for i, j in ((0, 10), (10, 19))]
    weighted = sum(n / 19 * part.log_prob_sum() for n, part in zip((10, 9), halves, strict=True))
    assert weighted.item() == pytest.approx(whole.item(), abs=1e-9)


def test_picks_are_counts_before_the_pick():
    x = hollywood_picks().x
    assert x.shape == (990, 3)
    np.testing.assert_array_equal(picks(np.array([[0, 1], [0, 0]])), [[1, 1, 0], [2, 2, 1], [3, 2, 2]])


# ------------------------------------------------------------------------------------------------ the others


def test_shapes_are_those_of_networkx():
    for graph in CYCLES.sample(3, seed=1):
        assert nx.is_isomorphic(graph.simple(), nx.cycle_graph(graph.num_nodes))
    for graph in LADDERS.sample(3, seed=1):
        assert nx.is_isomorphic(graph.simple(), nx.ladder_graph(graph.num_nodes // 2))
    assert CYCLES.log_prob(CYCLES.sample(1)[0]).item() == pytest.approx(-3.434, abs=1e-3)
    assert LADDERS.log_prob(CYCLES.sample(1)[0]) == -math.inf
    assert CYCLES.log_prob(edge_list([(0, 1), (1, 2), (2, 0)])) == -math.inf


@pytest.mark.parametrize(
    ("family", "law", "sizes"),
    [("cycles", CYCLES, range(10, 41)), ("ladders", LADDERS, range(10, 41, 2))],
)
def test_families_of_shapes_have_the_sizes_of_their_laws(family, law, sizes):
    """From ten nodes to forty, both included."""
    assert law.sizes == tuple(sizes)
    assert {graph.num_nodes for graph in draw_graphs(family, 600, seed=0)} == set(sizes)


def test_preferential_attachment_sums_to_one():
    """All ways in which two nodes may arrive after the first three."""
    law, first = BarabasiAlbert(2), [0, 1]
    total = sum(
        law.log_prob(np.array([first, a, b])).exp()
        for a in itertools.combinations(range(3), 2)
        for b in itertools.combinations(range(4), 2)
    )
    assert total.item() == pytest.approx(1, abs=1e-12)
    with pytest.raises(DataError, match="node 3 must join 2 different nodes"):
        law.log_prob(np.array([first, [1, 1]]))


def test_preferential_attachment_is_that_of_networkx():
    """It starts from a star whose centre, its node 0, is our first new node."""
    law, number = BarabasiAlbert(2), 1500
    sets = list(itertools.combinations(range(4), 2))
    counts: Counter = Counter()
    for seed in range(number):
        graph = nx.relabel_nodes(nx.barabasi_albert_graph(5, 2, seed=seed), {0: 2, 1: 0, 2: 1})
        counts[tuple(tuple(sorted(v for v in graph[new] if v < new)) for new in (3, 4))] += 1
    keys = [(a, b) for a in itertools.combinations(range(3), 2) for b in sets]
    expected = [number * law.log_prob(np.array([[0, 1], *key])).exp().item() for key in keys]
    assert chisquare([counts[key] for key in keys], expected).pvalue > 1e-3


@pytest.mark.parametrize(
    "law", [erdos_renyi(4, 0.3), StochasticBlocks((0, 0, 1, 1), ((0.9, 0.1), (0.1, 0.5)))]
)
def test_independent_pairs(law):
    graphs = []
    for bits in itertools.product((0.0, 1.0), repeat=6):
        above = torch.zeros(4, 4, dtype=torch.float64)
        above[tuple(torch.triu_indices(4, 4, 1))] = torch.tensor(bits, dtype=torch.float64)
        graphs.append(above + above.mT)
    probabilities = law.log_prob(torch.stack(graphs)).exp()
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-12)
    drawn = law.sample(4000, seed=1)
    assert torch.equal(drawn, drawn.mT)
    mean = sum(p * g for p, g in zip(probabilities, graphs, strict=True))
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.035, rtol=0)


def test_what_is_no_sequence_or_probability_is_refused():
    with pytest.raises(DataError, match="numbered from 0"):
        HollywoodProcess().next_end([0, 2])
    for law in (HollywoodProcess(), CYCLES):
        with pytest.raises(DataError, match=r"pairs of nodes, \[m, 2\], not \[1, 3\]"):
            law.log_prob(np.array([[0, 1, 2]]))
        with pytest.raises(DataError, match="without edges"):
            law.log_prob(np.empty((0, 2), dtype=np.int64))
    with pytest.raises(DataError, match="from 0 to 1, not 1.5"):
        erdos_renyi(3, 1.5)


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
