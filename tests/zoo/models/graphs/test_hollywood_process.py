"""The Hollywood process: its probabilities sum to one, its draws follow them, and its model is it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from numpyro.infer.util import log_density
from pyro import poutine
from scipy.special import gamma
from scipy.stats import chisquare

from data_loaders import DataError
from data_loaders.graphs.random_graphs import hollywood_picks, picks
from zoo.models.graphs.hollywood_process import HollywoodModel, HollywoodProcess

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


@pytest.mark.parametrize(
    ("alpha", "sigma"), [(1e8, 0.5), (1e12, 0.5), (1.0, 1e-12), (1.0, 1e-14), (1e9, 1e-9), (-0.4, 0.5)]
)
def test_mean_number_of_nodes_is_exact_at_the_ends_of_the_parameters(alpha, sigma):
    test_mean_number_of_nodes_is_exact(alpha, sigma)


def test_numbers_of_edges_may_be_of_any_whole_kind():
    process = HollywoodProcess()
    for kind in (np.uint8, np.int8, np.int16, np.uint64):
        np.testing.assert_array_equal(
            process.expected_nodes(np.array([3, 100], kind)), process.expected_nodes([3, 100])
        )
    assert process.expected_nodes(np.array([], int)).shape == (0,)


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
    for none in (0, -3, 2.5, np.array([3, 0])):
        with pytest.raises(DataError, match="numbers of edges are whole and 1 or more, not"):
            process.expected_nodes(none)
    assert [len(graph) for graph in process.sample(2, np.int64(3))] == [3, 3]


def test_what_is_no_sequence_is_refused():
    with pytest.raises(DataError, match="numbered from 0"):
        HollywoodProcess().next_end([0, 2])
    with pytest.raises(DataError, match=r"pairs of nodes, \[m, 2\], not \[1, 3\]"):
        HollywoodProcess().log_prob(np.array([[0, 1, 2]]))


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


def test_model_returns_the_log_odds_of_a_new_node():
    """With the counts of ``0 1 1 2``: those of the process's own rule."""
    values = {"alpha": torch.tensor(0.4), "sigma": torch.tensor(0.3)}
    found = poutine.condition(HollywoodModel(), values)(torch.tensor([[4.0, 3.0, 0.0], [4.0, 3.0, 2.0]]))
    new = HollywoodProcess(0.4, 0.3).next_end([0, 1, 1, 2])[-1].item()
    assert found.tolist() == pytest.approx([math.log(new / (1 - new))] * 2, rel=1e-5)


def test_draws_are_those_of_the_seed():
    drawn = [HollywoodProcess().sample(1, 40, seed=seed)[0].edges.tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_picks_are_counts_before_the_pick():
    x = hollywood_picks().x
    assert x.shape == (990, 3)
    np.testing.assert_array_equal(picks(np.array([[0, 1], [0, 0]])), [[1, 1, 0], [2, 2, 1], [3, 2, 2]])
