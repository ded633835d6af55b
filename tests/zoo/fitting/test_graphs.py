"""Training of models of growing graphs: what is minimised, what chooses, what is told; with a model of one
number, whose losses are known.
"""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

from data_loaders.graphs.edge_lists import EdgeList, edge_list
from zoo.errors import FailedError, UserError
from zoo.fitting import graphs as fitting
from zoo.fitting.graphs import GraphFit, GraphTraining, fit_graphs, median_gap, nats_an_edge, train
from zoo.models.graphs import edge_batches
from zoo.models.graphs.edge_batches import batches
from zoo.models.graphs.edge_graph import EdgeGraphModel

VALIDATION = 9


class OneNumber(nn.Module):
    """An edge costs ``(number - aim)^2`` nats, the aim 1 in graphs of VALIDATION edges and 3 in others; each
    graph its number of edges more, so that no two batches cost the same.
    """

    window = None

    def __init__(self) -> None:
        super().__init__()
        self.number, self.seen = nn.Parameter(torch.zeros(())), []

    def log_prob_of_batch(self, graphs):
        if torch.is_grad_enabled():
            self.seen.append(tuple(len(graph) for graph in graphs))
        sizes = torch.tensor([float(len(graph)) for graph in graphs])
        aim = torch.where(sizes == VALIDATION, 1.0, 3.0)
        return -sizes * (self.number - aim) ** 2 - sizes * self.number * sizes / 4 - sizes**2


def path(edges: int) -> EdgeList:
    return edge_list([(i, i + 1) for i in range(edges)])


def test_validation_graphs_choose_the_parameters_that_are_left():
    """Training goes on past the number that is best for them."""
    model = OneNumber()
    fit = train(model, [path(1)], [path(VALIDATION)], GraphTraining(epochs=6, lr=0.5))
    assert fit.best == 1 + int(np.argmin(fit.validation)) < 6
    assert fit.training == sorted(fit.training, reverse=True)
    assert nats_an_edge(model, [path(VALIDATION)]) == pytest.approx(min(fit.validation), abs=1e-6)


def test_figures_of_an_epoch_are_of_all_its_batches():
    """Nothing moves: the mean is over edges, and the largest norm need not be the last one."""
    model, training = OneNumber(), [path(m) for m in (1, 2, 3, 4, 5, 6, 7)]
    settings = GraphTraining(epochs=5, lr=0.0, batch=2)
    fit = train(model, training, [path(VALIDATION)], settings)
    assert fit.training == pytest.approx([nats_an_edge(model, training)] * 5, rel=1e-6)
    sizes = [np.array([len(training[i]) for i in group]) for group in batches(training, 2)]
    slopes = [abs((m * -6 + m * m / 4).sum() / m.sum()) for m in sizes]
    assert fit.gradient == pytest.approx([max(slopes)] * 5, rel=1e-5)
    epochs = [model.seen[4 * i : 4 * i + 4] for i in range(5)]
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1
    assert len({tuple(epoch) for epoch in epochs}) > 2  # batches come in another order
    again = OneNumber()
    train(again, training, [path(VALIDATION)], settings)
    assert again.seen == model.seen


def test_graphs_with_and_without_times_are_refused():
    timed = nx.path_graph(3)
    nx.set_edge_attributes(timed, {edge: 3600.0 * i for i, edge in enumerate(timed.edges)}, "time")
    with pytest.raises(UserError, match="some of the graphs have edges with an attribute time"):
        fit_graphs([timed, nx.path_graph(4), nx.path_graph(5)])


@pytest.mark.parametrize(("number", "held_out"), [(5, 1), (20, 2), (39, 3)])
def test_a_tenth_of_ones_own_graphs_validates_and_trains_not(number, held_out, monkeypatch):
    asked = []
    monkeypatch.setattr(fitting, "train", lambda model, *parts: asked.extend(parts) or GraphFit())
    fit_graphs([nx.path_graph(2 + i) for i in range(number)])
    training, validation = asked[:2]
    assert len(validation) == held_out
    assert sorted(len(graph) for graph in [*training, *validation]) == list(range(1, number + 1))


def test_the_seed_chooses_the_graphs_that_validate(monkeypatch):
    held_out = []

    def kept(model, training, validation, *others):
        held_out.append([len(graph) for graph in validation])
        return GraphFit()

    monkeypatch.setattr(fitting, "train", kept)
    for seed in (0, 0, 1, 2):
        fit_graphs([nx.path_graph(2 + i) for i in range(40)], settings=GraphTraining(seed=seed))
    assert held_out[0] == held_out[1]
    assert not any(one == other for one, other in itertools.combinations(held_out[1:], 2))


def test_the_seed_chooses_where_a_model_of_ones_own_graphs_starts(monkeypatch):
    monkeypatch.setattr(fitting, "train", lambda model, *parts: GraphFit())
    starts = []
    for seed in (0, 0, 1):
        model, _ = fit_graphs([nx.path_graph(3)] * 2, settings=GraphTraining(seed=seed))
        starts.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_graphs_are_as_large_as_the_window_of_the_model_makes_them(monkeypatch):
    """30 edges of two nodes: 40320 numbers without one, 26280 with the last two."""
    monkeypatch.setattr(edge_batches, "MOST_OF_ONE", 30_000)
    graphs, settings = [edge_list([(0, 1)] * 30)], GraphTraining(epochs=1)
    assert np.isfinite(train(EdgeGraphModel(window=2), graphs, graphs, settings).validation).all()
    with pytest.raises(UserError, match="a graph of 30 edges and 2 nodes"):
        train(EdgeGraphModel(), graphs, graphs, settings)


def test_a_validation_graph_that_is_too_large_is_told_before_the_training(monkeypatch):
    model = OneNumber()
    monkeypatch.setattr(edge_batches, "MOST_OF_ONE", 10_000)
    with pytest.raises(UserError, match="a graph of 9 edges and 10 nodes needs 0 GB: cut it"):
        train(model, [path(1)], [path(VALIDATION)], GraphTraining(epochs=1))
    assert model.seen == []


def test_a_likelihood_that_is_not_finite_names_the_remedy():
    model = OneNumber()
    with pytest.raises(FailedError, match="validation graphs is not finite: lower lr"):
        train(model, [path(1)], [path(VALIDATION)], GraphTraining(epochs=2, lr=1e30))


def test_change_is_that_of_the_last_tenth_of_the_epochs():
    assert GraphFit(validation=[float(i * i) for i in range(20)]).change == 19**2 - 17**2


def test_the_rate_falls_over_the_batches_of_all_epochs(monkeypatch):
    """Two epochs of three batches: half a cosine of six steps."""
    rates, step = [], torch.optim.Adam.step

    def watched(adam, *args, **kwargs):
        rates.append(adam.param_groups[0]["lr"])
        return step(adam, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    settings = GraphTraining(epochs=2, lr=0.1, batch=1)
    train(OneNumber(), [path(1), path(2), path(3)], [path(VALIDATION)], settings)
    assert rates == pytest.approx([0.05 * (1 + np.cos(np.pi * i / 6)) for i in range(6)])


def test_training_ends_when_patience_does():
    """Nothing moves: the first epoch stays the best, and so many follow."""
    fit = train(OneNumber(), [path(1)], [path(VALIDATION)], GraphTraining(epochs=9, lr=0.0, patience=3))
    assert (fit.best, len(fit.validation)) == (1, 4)


def test_a_unit_of_time_is_the_median_of_gaps_that_are_not_zero():
    graphs = [edge_list([(0, 1)] * 5, [0, 0, 0, 0, 2.0]), edge_list([(0, 1)] * 3, [5.0, 9.0, 19.0])]
    assert median_gap(graphs) == 4.0
    assert median_gap([edge_list([(0, 1)] * 4, [0, 0, 7, 10]), edge_list([(0, 1)])]) == 5.0
    assert median_gap([edge_list([(0, 1)] * 2, [3.0, 3.0])]) == 1.0


def test_ones_own_graphs_set_the_unit_of_time(monkeypatch):
    monkeypatch.setattr(fitting, "train", lambda model, *parts: GraphFit())
    graphs = [edge_list([(0, 1)] * 3, [0.0, 60.0, 120.0]) for _ in range(2)]
    model, _ = fit_graphs(graphs)
    assert model.unit.item() == 60.0


class Overflowing(OneNumber):
    """The slope of one batch is no number, though its loss is one."""

    def log_prob_of_batch(self, graphs):
        found = super().log_prob_of_batch(graphs)
        return found - (self.number * 0).sqrt() if len(graphs[0]) == 2 else found


def test_a_step_without_a_slope_moves_nothing():
    """And the model is steady from then on."""
    model = Overflowing()
    model.steady = False
    settings = GraphTraining(epochs=1, lr=0.5, batch=1)
    fit = train(model, [path(1), path(2)], [path(VALIDATION)], settings)
    assert fit.skipped == 1
    assert model.steady
    assert model.number.isfinite()
    before = model.number.item()
    loss, norm = fitting._step(model, [path(2)], torch.optim.Adam(model.parameters(), 0.5), 1.0)
    assert np.isfinite(loss)
    assert not np.isfinite(norm)
    assert model.number.item() == before
