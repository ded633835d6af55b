"""Guides over orders of edges: laws that sum to one, bounds that hold and are reached."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

from data_loaders.graphs.edge_lists import edge_list
from guides.variational.orderings import (
    BreadthFirst,
    LearnedOrders,
    OrderedGraph,
    OrderScorer,
    UniformOrders,
    bound,
    enumerated,
    features,
    orders,
)
from tests.zoo.models.graphs.test_hollywood_process import growths
from zoo.models.graphs.hollywood_process import HollywoodProcess

GRAPHS = {
    "path": torch.tensor([(0, 1), (1, 2), (2, 3)]),
    "triangle-and-tail": torch.tensor([(0, 1), (1, 2), (0, 2), (2, 3)]),
    "two-parts": torch.tensor([(0, 1), (2, 3), (3, 4)]),
}


def grown(every: Tensor) -> Tensor:
    """A made-up model: new senders are rare, and so are edges between two new nodes; ``[S]``."""
    values = []
    for order in every.tolist():
        there: set[int] = set()
        total = 0.0
        for sender, recipient in order:
            total += math.log(0.1 if sender not in there else 0.9 / max(1, len(there)))
            there.add(sender)
            total += math.log(0.6 if recipient not in there else 0.4 / len(there))
            there.add(recipient)
        values.append(total)
    return torch.tensor(values)


def scorer(seed: int) -> OrderScorer:
    torch.manual_seed(seed)
    found = OrderScorer()
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter)
    return found


LAWS = {
    "uniform": UniformOrders,
    "breadth-first": BreadthFirst,
    "learned": lambda edges: LearnedOrders(edges, scorer(1)),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_laws_sum_to_one_and_their_bounds_hold(law, graph):
    edges = GRAPHS[graph]
    every, _, evidence = enumerated(edges, grown)
    count = math.factorial(len(edges)) * 2 ** len(edges)
    assert len(every) == len({str(order) for order in every.tolist()}) == count
    q = LAWS[law](edges)
    with torch.no_grad():
        assert q.log_prob(every).exp().sum().item() == pytest.approx(1, abs=1e-5)
        value = bound(q, grown, every)
    assert value < evidence - 1e-5


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_exact_posterior_is_the_law_whose_bound_is_the_evidence(graph):
    every, posterior, evidence = enumerated(GRAPHS[graph], grown)
    assert posterior.sum().item() == pytest.approx(1, abs=1e-5)
    exact = SimpleNamespace(log_prob=lambda value: posterior.log())
    assert bound(exact, grown, every).item() == pytest.approx(evidence.item(), abs=1e-5)


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_the_law(law):
    edges = GRAPHS["path"][:2]
    q, every = LAWS[law](edges), torch.tensor(list(orders(edges)))
    torch.manual_seed(3)
    drawn = q.sample((800,))
    shares = (drawn[:, None] == every[None]).all(-1).all(-1).float().mean(0)
    with torch.no_grad():
        torch.testing.assert_close(shares, q.log_prob(every).exp(), atol=0.06, rtol=0)
    assert q.sample().shape == (2, 2)


PROCESS = HollywoodProcess(5.0, 0.3)


def of_process(every: Tensor) -> Tensor:
    return torch.stack([PROCESS.log_prob(edge_list(order)) for order in every.numpy()])


def test_a_single_edge_has_the_probability_of_its_second_end():
    """``(alpha + sigma) / (1 + alpha)``: it is no loop."""
    value = enumerated(torch.tensor([(0, 1)]), of_process)[2]
    assert value.item() == pytest.approx(math.log(5.3 / 6), abs=1e-12)


@pytest.mark.parametrize("number", [2, 3])
def test_probabilities_of_all_labelled_graphs_sum_to_that_of_no_loop_or_repeat(number):
    total = 0.0
    for nodes in range(2, 2 * number + 1):
        for edges in itertools.combinations(itertools.combinations(range(nodes), 2), number):
            if len({node for edge in edges for node in edge}) == nodes:
                total += enumerated(torch.tensor(edges), of_process)[2].exp().item()
    sequences = [np.array(ends).reshape(-1, 2) for ends in growths(2 * number)]
    simple = [
        edges
        for edges in sequences
        if (edges[:, 0] != edges[:, 1]).all() and len({frozenset(pair) for pair in edges.tolist()}) == number
    ]
    expected = sum(PROCESS.log_prob(edges).exp().item() for edges in simple)
    assert 0.1 < expected < 1
    assert total == pytest.approx(expected, abs=1e-12)


def test_breadth_first_finishes_a_node_before_the_next():
    torch.manual_seed(0)
    law = BreadthFirst(GRAPHS["triangle-and-tail"])
    for order in law.sample((20,)).tolist():
        found: list[int] = []
        for sender, recipient in order:
            found += [node for node in (sender, recipient) if node not in found]
        senders = [found.index(sender) for sender, _ in order]
        assert senders == sorted(senders)
        assert senders[0] == 0


def test_breadth_first_starts_at_any_node_alike():
    edges = GRAPHS["two-parts"]
    options, logs = BreadthFirst(edges).options([])
    starts = {node: sum(logs[i].exp() for i, e in enumerate(options) if e[0] == node) for node in range(5)}
    assert starts == pytest.approx(dict.fromkeys(range(5), 0.2), abs=1e-6)


def test_what_a_learned_law_sees_of_both_ends():
    """There, age, share of the edges so far: of nodes 2, 1, 5, which came in this order, and of a new one."""
    found = features([(2, 1), (5, 7)], [(2, 1), (1, 5), (2, 5), (2, 1)])
    third = 1 / 3
    expected = [[1, 2 * third, 0.75, 1, third, 0.75], [1, 0, 0.5, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_the_model_scores_an_order_by_its_growth_alone():
    """Over ``n!``; the uniform law that its site has is taken out."""
    edges = GRAPHS["path"]
    every = torch.tensor(list(itertools.islice(orders(edges), 5)))
    for order, growth in zip(every, grown(every), strict=True):
        model = pyro.condition(OrderedGraph(grown), {"order": order})
        score = pyro.poutine.trace(model).get_trace(edges).log_prob_sum()
        assert score.item() == pytest.approx(growth.item() - math.log(24), abs=1e-5)


@pytest.mark.slow
def test_training_by_svi_raises_the_bound():
    edges = GRAPHS["path"]
    every, _, evidence = enumerated(edges, grown)
    torch.manual_seed(2)
    pyro.clear_param_store()
    module = OrderScorer()

    def guide(edges: Tensor) -> None:
        pyro.module("scorer", module)
        pyro.sample("order", LearnedOrders(edges, module))

    with torch.no_grad():
        before = bound(LearnedOrders(edges, module), grown, every)
        uniform = bound(UniformOrders(edges), grown, every)
    assert before.item() == pytest.approx(uniform.item(), abs=1e-5)
    svi = SVI(OrderedGraph(grown), guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO(num_particles=4))
    losses = [svi.step(edges) for _ in range(60)]
    with torch.no_grad():
        after = bound(LearnedOrders(edges, module), grown, every)
    assert evidence >= after > before + 0.6 * (evidence - before)
    assert -sum(losses[-10:]) / 10 == pytest.approx(after.item(), abs=0.8)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="without loops and repeated"):
        UniformOrders(torch.tensor([(0, 1), (1, 0)]))
    with pytest.raises(ValueError, match="without loops"):
        UniformOrders(torch.tensor([(0, 0)]))
    with pytest.raises(ValueError, match="without edges"):
        BreadthFirst(torch.empty(0, 2, dtype=torch.int64))
    for edges in ([(0, 0)], [(0, 1), (1, 0)]):
        with pytest.raises(ValueError, match="without loops and repeated"):
            enumerated(torch.tensor(edges), grown)
    with pytest.raises(ValueError, match="7 edges have too many orders"):
        next(orders(torch.tensor([(i, i + 1) for i in range(7)])))
    assert len(next(orders(torch.tensor([(i, i + 1) for i in range(6)])))) == 6
    assert UniformOrders(GRAPHS["path"]).log_prob(torch.tensor([[(0, 1), (0, 1), (0, 1)]])) == -math.inf
    with pytest.raises(NotImplementedError, match="one order at a time"):
        UniformOrders(GRAPHS["path"]).expand((2,))
