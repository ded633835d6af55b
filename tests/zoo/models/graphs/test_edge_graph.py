"""The batched model of growing graphs against the plain one, and as a probability distribution."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI

from data_loaders.graphs.edge_lists import edge_list, first_appearance
from data_loaders.graphs.random_graphs import draw_graphs, hollywood
from guides import AutoMeanField
from guides.variational.orderings import BreadthFirst, UniformOrders, bound, enumerated
from tests.zoo.models.graphs import plain_edge_graph
from tests.zoo.models.graphs.drawn_counts import assert_counts
from tests.zoo.models.graphs.test_hollywood_process import growths
from zoo.errors import UserError
from zoo.models.graphs import edge_batches, edge_graph
from zoo.models.graphs.bayesian_heads import BayesianHeads, last_layers
from zoo.models.graphs.deepgmg import DeepGMG
from zoo.models.graphs.edge_batches import A_PAIR, Plan, batches, check_room
from zoo.models.graphs.edge_graph import HEADS, EdgeGraphModel

KINDS = {
    "log": {},
    "mean": {"aggregation": "mean"},
    "sum": {"aggregation": "sum"},
    "timed": {"timed": True},
    "mean-window": {"aggregation": "mean", "timed": True, "window": 4},
    "timed-sum": {"timed": True, "aggregation": "sum"},
    "window": {"window": 3},
    "end": {"sees_end": True, "timed": True, "window": 5},
}


def double(seed: int = 1, **kind) -> EdgeGraphModel:
    model = EdgeGraphModel(state=6, seed=seed, **kind).double()
    for parameter in model.parameters():  # away from the start, where all choices are alike
        parameter.data *= 1.5
    return model


def mixed_graphs() -> list:
    """Loops, repeats, tied times, of several lengths."""
    graphs = hollywood([9, 1, 14, 5, 9], 0.5, 0.4, np.random.default_rng(2))
    times = np.array([0, 0, 1, 1, 1, 4, 4.5, 9, 9])
    return [
        *graphs,
        edge_list([(0, 0), (0, 1), (1, 0), (2, 2), (3, 0), (0, 1), (4, 3), (4, 4), (0, 3)], times),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_likelihood_is_that_of_the_plain_model(kind):
    model, graphs = double(**KINDS[kind]), mixed_graphs()
    model.unit.fill_(2.0)
    with torch.no_grad():
        plain = torch.stack([plain_edge_graph.log_prob(model, graph) for graph in graphs])
        torch.testing.assert_close(model.log_prob(graphs), plain, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["mean", "timed-sum", "end", "mean-window"])
def test_gradient_is_that_of_the_plain_model(kind, monkeypatch):
    """That of sums where it is not scaled down."""
    monkeypatch.setattr("zoo.models.graphs.edge_graph.steadily", lambda nodes, turn: turn(nodes))
    model, graphs = double(**KINDS[kind]), mixed_graphs()[:4]
    model.log_prob(graphs).sum().backward()
    batched = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    sum(plain_edge_graph.log_prob(model, graph) for graph in graphs).backward()
    for parameter, found in zip(model.parameters(), batched, strict=True):
        torch.testing.assert_close(found, parameter.grad, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_all_continuations_sum_to_one(kind):
    model = double(**KINDS[kind])
    graphs = [edge_list(np.array(ends).reshape(-1, 2)) for ends in growths(6)]
    with torch.no_grad():
        probabilities = model.log_prob(graphs).exp()
    assert len(graphs) == 203
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-12)
    assert probabilities.max() > 2 * probabilities.min()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["timed", "window", "end"])
def test_drawn_graphs_follow_the_likelihood(kind):
    kind = KINDS[kind] | {"window": 1} if "window" in KINDS[kind] else KINDS[kind]
    model, number = double(seed=3, **kind), 4000
    drawn = Counter(tuple(graph.edges.ravel().tolist()) for graph in model.sample(number, 3, seed=5))
    keys = [tuple(ends) for ends in growths(6)]
    with torch.no_grad():
        expected = number * model.log_prob([edge_list(np.array(ends).reshape(-1, 2)) for ends in keys]).exp()
    found, expected = np.array([drawn[key] for key in keys]), expected.numpy()
    assert found.sum() == number
    assert_counts(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_drawn_with_the_probabilities_of_the_likelihood(kind, monkeypatch):
    """What was drawn, added up, is the likelihood of the graphs: of several lengths, times far from even."""
    model, lengths, rng = double(**KINDS[kind]), [2, 7, 4, 7], np.random.default_rng(4)
    if model.timed:
        model.age[0].weight.data *= 10  # ages matter
    sums, drawn = torch.zeros(len(lengths), dtype=torch.float64), edge_graph._drawn

    def watched(old, new, count, generator):
        chosen = drawn(old, new, count, generator)
        for row, node in enumerate(chosen.tolist()):
            logits = torch.cat([old[row, : count[row]], new[row : row + 1]])
            sums[row] += logits.log_softmax(0)[node]
        return chosen

    monkeypatch.setattr(edge_graph, "_drawn", watched)
    times = [np.sort(rng.exponential(5.0, m)) for m in lengths]
    graphs = model.sample(len(lengths), lengths, times=times, seed=1)
    assert [len(graph) for graph in graphs] == lengths
    with torch.no_grad():
        falling = model.log_prob([graphs[i] for i in (1, 3, 2, 0)])
        torch.testing.assert_close(falling, sums, atol=1e-10, rtol=0)


def test_labels_of_nodes_do_not_matter():
    model, generator = double(), np.random.default_rng(1)
    for graph in mixed_graphs():
        labels = generator.permutation(graph.num_nodes + 5)
        again = edge_list(labels[graph.edges], graph.times)
        torch.testing.assert_close(model.log_prob([graph]), model.log_prob([again]), atol=0, rtol=0)
        assert np.array_equal(first_appearance(labels[graph.edges]), graph.edges)


def test_batches_do_not_matter():
    model, graphs = double(), mixed_graphs()
    alone = torch.cat([model.log_prob_of_batch([graph]) for graph in graphs])
    torch.testing.assert_close(model.log_prob_of_batch(graphs), alone, atol=1e-12, rtol=0)
    assert sorted(i for batch in batches(graphs, 2) for i in batch) == list(range(len(graphs)))
    assert max(len(batch) for batch in batches(graphs, 2)) == 2


def test_long_graphs_come_in_smaller_batches():
    """A contact sequence of 20 nodes and 6726 edges, the longest of the real sets, goes alone."""
    short, long = (edge_list(np.arange(2 * m).reshape(-1, 2) % 20) for m in (100, 6726))
    assert list(batches([long, short, long, short], 32)) == [[1, 3], [0], [2]]


def test_memory_of_messages_is_counted():
    """Peak and total of what is laid out for each pair of edges, beside what is counted for it."""
    graph = edge_list(np.arange(1200).reshape(-1, 2) % 2)
    plan = Plan.of([graph])
    tracemalloc.start()
    plan.layout.messages(plan.sender, plan.recipient, plan.times)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * A_PAIR * len(graph) ** 2


def test_long_sequences_are_refused_but_for_a_window():
    graph = edge_list(np.arange(40_000).reshape(-1, 2) % 2)
    with pytest.raises(UserError, match="a graph of 20000 edges and 2 nodes needs 29 GB: cut it"):
        EdgeGraphModel().log_prob([graph])
    assert list(batches([graph, graph], 2, window=20)) == [[0, 1]]


def test_a_graph_that_is_too_large_is_scored_along_a_window(monkeypatch):
    """30 edges of two nodes: 40320 numbers without one, 26280 with the last two."""
    monkeypatch.setattr(edge_batches, "MOST_OF_ONE", 30_000)
    graph = edge_list([(0, 1)] * 30)
    assert [edge_batches._numbers(graph, window) for window in (None, 2)] == [40320, 26280]
    with torch.no_grad():
        assert EdgeGraphModel(window=2).log_prob([graph]).isfinite().all()
    with pytest.raises(UserError, match="a graph of 30 edges and 2 nodes"):
        EdgeGraphModel().log_prob([graph])


def test_graphs_that_grow_too_large_are_not_drawn(monkeypatch):
    """A cell of either adjacency matrix is one number: two graphs of at most three nodes have 18."""
    monkeypatch.setattr("zoo.models.graphs.edge_batches.MOST_OF_ONE", 18)
    assert len(EdgeGraphModel().sample(2, 1)) == 2
    with pytest.raises(UserError, match="2 graphs that are drawn at once have grown to .* nodes and need"):
        EdgeGraphModel().sample(2, 9)
    with pytest.raises(UserError, match="2 graphs that are drawn at once have grown to 4 nodes"):
        DeepGMG().sample(2, 4)


def test_pyro_sites_hold_the_likelihood():
    model, graphs = double(), mixed_graphs()
    trace = poutine.trace(model).get_trace(graphs)
    assert trace.observation_nodes == ["sender", "recipient"]
    torch.testing.assert_close(trace.log_prob_sum(), model.log_prob(graphs).sum(), atol=1e-10, rtol=0)


def test_age_of_edges_matters_only_where_it_is_asked_for():
    edges, slow = [(0, 1), (1, 2), (0, 2), (2, 3)], [0.0, 1.0, 10.0, 40.0]
    for timed in (False, True):
        model = double(timed=timed)
        values = model.log_prob([edge_list(edges), edge_list(edges, slow)])
        assert (values[0] != values[1]).item() == timed
        model.unit.fill_(10.0)
        scaled = model.log_prob([edge_list(edges, 10 * np.array(slow))])
        torch.testing.assert_close(scaled, values[1:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("aggregation", ["log", "sum"])
def test_gradients_stay_finite_on_many_repeated_edges(aggregation):
    """Where the dissertation's aggregation, a sum, explodes if its gradient is not scaled down."""
    graph = draw_graphs("dnnd", 1, seed=1)[0]
    assert gradient(EdgeGraphModel(aggregation=aggregation), [graph]) < 5e3


def gradient(model: EdgeGraphModel, graphs: list) -> float:
    model.log_prob(graphs).sum().backward()
    return torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()


@pytest.mark.parametrize("steady", [False, True])
def test_only_gradients_of_a_steady_model_do_not_explode(steady):
    """With weights twice as large as at the start."""
    model = EdgeGraphModel(seed=2).double()
    for parameter in model.parameters():
        parameter.data *= 2
    model.steady = steady
    norm = gradient(model, draw_graphs("dnnd", 1, seed=1))
    assert norm < 1e4 if steady else norm > 1e20


def test_lengths_and_times_of_drawn_graphs():
    model = EdgeGraphModel(timed=True)
    times = [np.array([0.0, 3.0]), np.array([1.0, 2.0, 2.0])]
    drawn = model.sample(2, [2, 3], times=times)
    assert [graph.times.tolist() for graph in drawn] == [[0, 3], [1, 2, 2]]
    again = model.sample(2, [2, 3], times=times)
    assert all(np.array_equal(a.edges, b.edges) for a, b in zip(drawn, again, strict=True))
    assert model.sample(0, 3) == []
    model.unit.fill_(60.0)  # by which edges are apart where nothing is said
    assert model.sample(1, 3)[0].times.tolist() == [0, 60, 120]


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="by mean, log or sum, not 'max'"):
        EdgeGraphModel(aggregation="max")
    with pytest.raises(UserError, match="a window is a whole number of edges, at least one, not 0"):
        EdgeGraphModel(window=0)
    with pytest.raises(UserError, match=r"a window is a whole number of edges, at least one, not 2\.5"):
        EdgeGraphModel(window=2.5)
    model = EdgeGraphModel()
    for score in (model.log_prob, model):
        with pytest.raises(UserError, match="a Graph is no growing graph: edge_list and from_networkx"):
            score([nx.path_graph(3)])
    with pytest.raises(UserError, match="2 graphs need 2 numbers of edges"):
        model.sample(2, [3])
    with pytest.raises(UserError, match="2 graphs need 2 numbers of edges, whole"):
        model.sample(2, [2.7, 3.9])
    with pytest.raises(UserError, match="2 graphs need 2 numbers of edges, whole and 1 or more"):
        model.sample(2, 0)
    with pytest.raises(UserError, match="needs its time"):
        model.sample(1, 2, times=[np.zeros(3)])
    with pytest.raises(UserError, match="times of edges are finite and never fall"):
        model.sample(1, 3, times=[np.array([5.0, 4.0, 3.0])])
    with pytest.raises(UserError, match="times of edges are finite"):
        model.sample(1, 2, times=[np.array([0.0, np.inf])])
    with pytest.raises(UserError, match="times of edges are finite"):
        model.sample(1, 1, times=[np.array([np.nan])])
    assert model.log_prob([]).shape == (0,)
    assert len(model.sample(2, np.int64(3))[1]) == 3
    huge = edge_list(np.stack([np.arange(6000), np.arange(1, 6001)], 1))
    with pytest.raises(UserError, match="a graph of 6000 edges and 6001 nodes needs 320 GB: cut it"):
        model.log_prob([huge])  # nodes come one by one, and their states are kept for those there are
    with pytest.raises(UserError, match="grown to 30000 nodes and need 7 GB: draw shorter ones"):
        check_room(2, 30_000)


def test_plan_of_a_batch():
    plan = Plan.of([edge_list([(0, 1), (2, 2)]), edge_list([(0, 0), (0, 1), (0, 2)])])
    assert plan.order.tolist() == [1, 0]
    assert (plan.layout.alive, plan.layout.width) == ([2, 2, 1], [2, 3, 3])
    assert plan.before.tolist() == [[0, 0], [1, 2], [2, 3]]
    assert plan.after_sender[:2].tolist() == [[1, 1], [1, 3]]
    assert plan.left.tolist() == [3, 2, 2, 1, 1]


# ------------------------------------------------------------------------------------------- guides compose


def test_bayesian_last_layers_have_the_prior_and_the_likelihood_of_the_model():
    graphs, model = draw_graphs("cycles", 3, 1), double()
    trace = poutine.trace(BayesianHeads(model, graphs, scale=0.3)).get_trace()
    weights = {f"{name}_weights": trace.nodes[f"{name}_weights"]["value"] for name in HEADS}
    law = torch.distributions.Normal(0.0, torch.tensor(0.3, dtype=torch.float64))
    prior = sum(law.log_prob(value).sum() for value in weights.values())
    with torch.no_grad():
        likelihood = model.log_prob(graphs, last_layers(weights)).sum()
    torch.testing.assert_close(trace.log_prob_sum(), prior + likelihood, atol=1e-8, rtol=0)


def test_what_lies_below_bayesian_last_layers_is_numbers():
    """No gradient reaches the model, however often a guide takes one."""
    heads = BayesianHeads(double(), draw_graphs("cycles", 2, 1))
    assert not any(numbers.requires_grad for numbers in heads.features.hidden.values())


def test_last_layers_that_are_given_stand_in_for_those_of_the_model():
    """Each for its own head, biases too, in likelihoods and in draws."""
    model, graphs = double(), mixed_graphs()
    last = {name: 2 * torch.randn(33, dtype=torch.float64) for name in HEADS}
    with torch.no_grad():
        given, drawn = model.log_prob(graphs, last), model.sample(20, 6, seed=1, last=last)
        own = model.sample(20, 6, seed=1)
        for name, numbers in last.items():
            layer = getattr(model, name).last
            layer.weight.copy_(numbers[:-1])
            layer.bias.copy_(numbers[-1])
            assert not torch.equal(model.log_prob(graphs), given) or name == HEADS[-1]
        torch.testing.assert_close(model.log_prob(graphs), given, atol=1e-10, rtol=0)
        assert as_lists(drawn) == as_lists(model.sample(20, 6, seed=1)) != as_lists(own)


def as_lists(graphs: list) -> list:
    return [graph.edges.tolist() for graph in graphs]


@pytest.mark.parametrize("make", [EdgeGraphModel, DeepGMG])
def test_seeds_are_those_of_the_start_and_of_the_draws(make):
    def start(seed: int) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(make(seed=seed).parameters())

    assert torch.equal(start(1), start(1))
    assert not torch.equal(start(1), start(2))
    drawn = [make().sample(5, 6, seed=seed) for seed in (1, 1, 2)]
    if make is EdgeGraphModel:
        drawn = [as_lists(graphs) for graphs in drawn]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("make", [EdgeGraphModel, DeepGMG])
def test_messages_start_small(make):
    """An sd of 0.1, to 4.5 standard errors of 1024 weights and 32 biases."""
    message = make(seed=3).messages[0] if make is DeepGMG else make(seed=3).message
    for numbers in (message.weight, message.bias):
        assert abs(numbers.std() / 0.1 - 1) < 4.5 / (2 * numbers.numel()) ** 0.5


def test_models_of_sums_are_steady_from_the_start():
    steady = {kind: EdgeGraphModel(aggregation=kind).steady for kind in ("mean", "log", "sum")}
    assert steady == {"mean": False, "log": False, "sum": True}
    assert DeepGMG().steady


@pytest.mark.slow
def test_a_guide_fits_bayesian_last_layers():
    """The bound rises, and draws make models that are as good as the one that was trained."""
    graphs = draw_graphs("cycles", 12, 1)
    model = EdgeGraphModel(seed=2)
    heads = BayesianHeads(model, graphs)
    guide = AutoMeanField(heads)
    torch.manual_seed(1)
    guide.setup()
    svi = SVI(heads, guide, guide.optimizer(0.05), guide.elbo())
    losses = [svi.step() for _ in range(150)]
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:5])
    draws = guide.draws(3, seed=1)
    assert {name: value.shape for name, value in draws.items()} == {f"{h}_weights": (3, 33) for h in HEADS}
    with torch.no_grad():
        untrained = model.log_prob(graphs).sum()
        for i in range(3):
            last = last_layers({name: value[i] for name, value in draws.items()})
            assert model.log_prob(graphs, last).sum() > 0.7 * untrained
            assert len(model.sample(2, 5, last=last)) == 2


def test_orders_are_a_unit_of_time_apart():
    model, edges = double(timed=True), np.array([(0, 1), (1, 2), (0, 2), (0, 1)])
    model.unit.fill_(3600.0)
    apart = edge_list(edges, np.arange(4) * 3600.0)
    with torch.no_grad():
        ours, true = model.log_prob_of_orders(torch.as_tensor(edges)[None]), model.log_prob([apart])
        at_once = model.log_prob([edge_list(edges)])
    assert ours.item() == pytest.approx(true.item(), abs=1e-9)
    assert abs(ours - at_once) > 1e-6


def test_order_of_edges_as_a_latent_variable():
    """Of a triangle with the model's own likelihood: bounds hold, and the exact posterior reaches the sum."""
    model, triangle = double(timed=True), torch.tensor([(0, 1), (1, 2), (0, 2)])
    with torch.no_grad():
        every, posterior, evidence = enumerated(triangle, model.log_prob_of_orders)
        exact = SimpleNamespace(log_prob=lambda value: posterior.log())
        laws = UniformOrders(triangle), BreadthFirst(triangle), exact
        values = [bound(law, model.log_prob_of_orders, every) for law in laws]
    assert len(every) == 48
    assert max(values) <= evidence + 1e-9
    assert values[-1].item() == pytest.approx(evidence.item(), abs=1e-9)
    assert values[0] < evidence - 1e-6


def test_a_batch_holds_no_more_numbers_than_it_may(monkeypatch):
    """Of five graphs alike, in room for two and a half."""
    graphs = [edge_list(np.array([[0, 1], [1, 2], [2, 0]]), np.arange(3.0))] * 5
    monkeypatch.setattr(edge_batches, "MOST_NUMBERS", int(2.5 * edge_batches._numbers(graphs[0])))
    assert [len(batch) for batch in edge_batches.batches(graphs, 100)] == [2, 2, 1]
    assert [len(batch) for batch in edge_batches.batches(graphs, 1)] == [1] * 5


def test_a_large_graph_leaves_room_in_the_batches_after_it(monkeypatch):
    """Of as many edges and nodes, which come sooner."""
    late = np.array([[0, 1]] * 5 + [[2, 3]])
    graphs = [edge_list(edges, np.arange(6.0)) for edges in (late[[0, 5, 1, 2, 3, 4]], late, late)]
    monkeypatch.setattr(edge_batches, "MOST_NUMBERS", 2 * edge_batches._numbers(graphs[1]))
    assert list(edge_batches.batches(graphs, 100)) == [[0], [1, 2]]
