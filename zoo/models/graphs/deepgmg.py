"""DeepGMG, a generative model of graphs node by node (Li et al. 2018), batched.

Each new node is joined to earlier ones: a decision whether there is to be another edge, then which node it
goes to; after every edge all nodes exchange two rounds of messages.  The number of nodes is given, as in
Ott 2022 (dissertation, chapter 5): the decision to add a node is not used.  Sizes are those of the DGL
library's example.  Messages are summed, so that gradients would explode: they pass a round scaled down
(:func:`~zoo.models.graphs.graph_states.steadily`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyro
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from torch import Tensor, nn

from data_loaders.graphs.edge_lists import EdgeList
from guides.core.rng import seeded_rng
from zoo.errors import UserError
from zoo.models.graphs.edge_batches import (
    Layout,
    by_length,
    check_room,
    in_batches,
    longest_first,
    of_each,
    padded,
)
from zoo.models.graphs.graph_states import fitted, folded, joined_to, round_of_messages, steadily, whole_graph

STATE, WHOLE, ROUNDS = 16, 32, 2
AT_ONCE = 128
#: For every node the earlier nodes that it is joined to, in the order of the choices.
Arrivals = Sequence[Sequence[int]]


def arrivals(graph: EdgeList) -> list[list[int]]:
    """Of the simple graph: loops and repeated edges are dropped, nodes stay in their order."""
    earlier: list[set[int]] = [set() for _ in range(graph.num_nodes)]
    for u, v in graph.edges.tolist():
        if u != v:
            earlier[max(u, v)].add(min(u, v))
    return [sorted(nodes) for nodes in earlier]


class _Plan(NamedTuple):
    """Steps of a batch; in each a node may come, then an edge may: ``[T, B]``, -1 for none.

    :ivar node: the newest one, and whether it ``comes`` in this step
    :ivar chosen: its neighbour
    :ivar adds: whether that is a new edge
    :ivar stops: whether the decision against another edge of the node before, ``node - comes``, was taken at
        the beginning of this step; after the last edge a step does nothing else
    """

    order: np.ndarray
    layout: Layout
    node: np.ndarray
    comes: np.ndarray
    chosen: np.ndarray
    adds: np.ndarray
    stops: np.ndarray


class Decisions(NamedTuple):
    """Of a batch: logits of another edge ``[D]`` and what was decided; logits of its end ``[E, K]`` and which
    it was; the graph of each.
    """

    another: Tensor
    taken: Tensor
    graph_of_decision: Tensor
    end: Tensor
    chosen: Tensor
    graph_of_end: Tensor


class DeepGMG(nn.Module):
    """Simple graphs without directions, given their number of nodes.

    A new node takes at most as many decisions for an edge as there are earlier nodes; to choose one twice
    adds nothing.  As a Pyro model of a list of graphs it has the observed sites ``another`` and ``end``.

    :param seed: of the start
    """

    #: Messages pass along all edges.
    window = None
    #: Their gradients, of sums, would explode.
    steady = True

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        with seeded_rng(seed):
            self.kind = nn.Parameter(torch.randn(STATE))
            self.gate, self.project = nn.Linear(STATE, 1), nn.Linear(STATE, WHOLE)
            self.start = nn.Linear(STATE + WHOLE, STATE)
            self.another, self.end = nn.Linear(WHOLE + STATE, 1), nn.Linear(2 * STATE, 1)
            self.messages = nn.ModuleList(nn.Linear(2 * STATE, WHOLE) for _ in range(ROUNDS))
            self.updates = nn.ModuleList(nn.GRUCell(WHOLE, STATE) for _ in range(ROUNDS))
            for message in self.messages:
                nn.init.normal_(message.weight, std=0.1)
                nn.init.normal_(message.bias, std=0.1)

    # ------------------------------------------------------------------------------------------- likelihood

    def forward(self, graphs: Sequence[EdgeList]) -> None:
        """The Pyro model of a batch of graphs; a site that would have no row, as both in graphs of one node,
        is left out.
        """
        pyro.module("deepgmg", self)
        found = self.decisions([arrivals(graph) for graph in graphs])
        if len(found.taken):
            with pyro.plate("decisions", len(found.taken)):
                pyro.sample("another", dist.Bernoulli(logits=found.another), obs=found.taken)
        if len(found.chosen):
            with pyro.plate("edges", len(found.chosen)):
                pyro.sample("end", dist.Categorical(logits=found.end), obs=found.chosen)

    def log_prob(self, graphs: Sequence[EdgeList]) -> Tensor:
        """Of one way to build every graph, given its number of nodes: nodes in their order, the earlier nodes
        that each is joined to in theirs: ``[n]``, nats.  The graph with its nodes in their order is more
        probable: the edges of a node may come in any order, and an edge may be chosen twice.
        """
        return in_batches(self.log_prob_of_batch, graphs, AT_ONCE)

    def log_prob_of_batch(self, graphs: Sequence[EdgeList]) -> Tensor:
        """As :meth:`log_prob`, all at once."""
        return self.log_prob_of_arrivals([arrivals(graph) for graph in graphs])

    def log_prob_of_arrivals(self, graphs: Sequence[Arrivals]) -> Tensor:
        """Of the choices of each graph: ``[n]``."""
        found = self.decisions(graphs)
        decided = -F.binary_cross_entropy_with_logits(found.another, found.taken, reduction="none")
        chosen = found.end.gather(1, found.chosen[:, None]).squeeze(1) - found.end.logsumexp(1)
        sums = decided.new_zeros(len(graphs)).index_add(0, found.graph_of_decision, decided)
        return sums.index_add(0, found.graph_of_end, chosen)

    def decisions(self, graphs: Sequence[Arrivals]) -> Decisions:
        """Logits of all decisions of a batch."""
        plan = _plan(graphs)
        layout, order = plan.layout, torch.as_tensor(plan.order)
        nodes, before, after = self._grown(plan)
        first, graph = torch.as_tensor(layout.first_cells()), order[torch.as_tensor(layout.graph_of_row())]
        newest, comes, chosen, stops = (
            torch.as_tensor(layout.rows(values))
            for values in (plan.node, plan.comes, plan.chosen, plan.stops)
        )
        edge = chosen >= 0
        deciding = torch.cat([before[stops], after[edge]])
        cells = torch.cat([(first + newest - comes.long())[stops], (first + newest)[edge]])
        another = self.another(torch.cat([deciding, nodes[cells]], 1)).squeeze(-1)
        taken = torch.cat([another.new_zeros(int(stops.sum())), another.new_ones(int(edge.sum()))])

        of_node, of_newest = self.end.weight.split(STATE, 1)
        scores = torch.cat([F.linear(nodes, of_node).squeeze(-1), nodes.new_full((1,), -torch.inf)])
        table = layout.candidates(layout.rows(plan.node), new=False)[edge]
        own = F.linear(nodes[(first + newest)[edge]], of_newest, self.end.bias)
        return Decisions(
            another,
            taken,
            torch.cat([graph[stops], graph[edge]]),
            scores[table] + own,
            chosen[edge],
            graph[edge],
        )

    def _grown(self, plan: _Plan) -> tuple[Tensor, Tensor, Tensor]:
        """States of the nodes once the new one is there ``[C, d]``, and of the whole graph before and after
        it came, ``[R, 2d]``.
        """
        layout = plan.layout
        cells, squares = layout.cells_of_step.tolist(), layout.squares_of_step.tolist()
        sender = np.where(plan.adds, plan.node, -1)
        messages = layout.messages(sender, plan.chosen, np.zeros(sender.shape))
        like = self.kind.new_zeros
        ones = self.kind.new_ones(len(messages.cell))
        degrees = like(sum(cells)).index_add(0, messages.cell, ones).split(cells)
        adjacencies = like(sum(squares)).index_add(0, messages.place, ones).split(squares)
        newest, comes, adds = (torch.as_tensor(values) for values in (plan.node, plan.comes, plan.adds))
        folds, place = self._folded(), torch.arange(max(layout.width))
        nodes = like(layout.alive[0], layout.width[0], STATE)
        states, befores, afters = [], [], []
        for t, (alive, width) in enumerate(zip(layout.alive, layout.width, strict=True)):
            nodes, number, new = fitted(nodes, alive, width), newest[t, :alive], comes[t, :alive]
            whole = self._whole(nodes, place[:width] <= (number - new.long())[:, None])
            befores.append(whole)
            if plan.comes[t, :alive].any():
                nodes = joined_to(nodes, self._begun(whole), place[:width], number, new)
                whole = self._whole(nodes, place[:width] <= number[:, None])
            afters.append(whole)
            states.append(nodes.reshape(-1, STATE))
            if plan.adds[t, :alive].any():
                neighbours = adjacencies[t].view(alive, width, width), degrees[t], folds
                passed = steadily(nodes, lambda nodes, given=neighbours: self._passed(nodes, *given))
                nodes = torch.where(adds[t, :alive, None, None], passed, nodes)
        return torch.cat(states), torch.cat(befores), torch.cat(afters)

    # ---------------------------------------------------------------------------------------------- one step

    def _folded(self) -> list[Tensor]:
        return [folded(message, update) for message, update in zip(self.messages, self.updates, strict=True)]

    def _passed(self, nodes: Tensor, adjacency: Tensor, degree: Tensor, folds: Sequence[Tensor]) -> Tensor:
        """All nodes after both rounds of messages."""
        for fold, update in zip(folds, self.updates, strict=True):
            nodes = round_of_messages(nodes, adjacency, degree, fold, update)
        return nodes

    def _begun(self, whole: Tensor) -> Tensor:
        """``[B, d]``: a new node."""
        return self.start(torch.cat([self.kind.expand(len(whole), -1), whole], 1))

    def _whole(self, nodes: Tensor, there: Tensor) -> Tensor:
        return whole_graph(nodes, there, self.gate, self.project)

    # ----------------------------------------------------------------------------------------------- drawing

    @torch.no_grad()
    def sample(
        self, num_graphs: int, num_nodes: int | Sequence[int], *, seed: int = 0
    ) -> list[list[list[int]]]:
        """Graphs of so many nodes, as :data:`Arrivals`: see :func:`to_networkx`.

        :param num_nodes: of every graph, or of each
        """
        sizes = of_each(num_graphs, num_nodes, "nodes")
        generator = torch.Generator().manual_seed(seed)

        def draw(places: Sequence[int]) -> list[list[list[int]]]:
            return self._draw([sizes[i] for i in places], generator)

        return longest_first(draw, sizes, AT_ONCE)

    def _draw(self, sizes: Sequence[int], generator: torch.Generator) -> list[list[list[int]]]:
        """Graphs by falling number of nodes: node after node, the edges of all graphs side by side."""
        picked: list[list[list[int]]] = [[[]] for _ in sizes]
        width, folds = sizes[0], self._folded()
        check_room(len(sizes), width)
        nodes = self.kind.new_zeros(len(sizes), width, STATE)
        adjacency, place = nodes.new_zeros(len(sizes), width, width), torch.arange(width)
        for node in range(width):
            alive = sum(size > node for size in sizes)
            nodes, adjacency, rows = nodes[:alive].clone(), adjacency[:alive], torch.arange(alive)
            nodes[:, node] = self._begun(self._whole(nodes, (place < node).expand(alive, -1)))
            going = torch.ones(alive, dtype=torch.bool)
            if node:
                for graph in picked[:alive]:
                    graph.append([])
            for _ in range(node):
                whole = self._whole(nodes, (place <= node).expand(alive, -1))
                own = nodes[:, node]
                another = torch.sigmoid(self.another(torch.cat([whole, own], 1)).squeeze(-1))
                going = going & (torch.rand(alive, generator=generator) < another)
                if not going.any():
                    break
                both = torch.cat([nodes[:, :node], own[:, None].expand(-1, node, -1)], 2)
                law = self.end(both).squeeze(-1).softmax(1)
                end = torch.multinomial(law, 1, generator=generator).squeeze(1)
                for row in going.nonzero().squeeze(1).tolist():
                    picked[row][node].append(int(end[row]))
                new = going & (adjacency[rows, node, end] == 0)
                adjacency[rows[new], node, end[new]] = 1
                adjacency[rows[new], end[new], node] = 1
                passed = self._passed(nodes, adjacency, adjacency.sum(2).flatten(), folds)
                nodes = torch.where(new[:, None, None], passed, nodes)
        return picked


def to_networkx(graph: Arrivals):
    """The simple graph."""
    import networkx as nx

    found = nx.empty_graph(len(graph))
    found.add_edges_from((node, other) for node, others in enumerate(graph) for other in others)
    return found


def _plan(graphs: Sequence[Arrivals]) -> _Plan:
    steps = [_steps(graph) for graph in graphs]
    order, _, alive = by_length([len(rows) for rows in steps])
    columns = [padded([np.array(steps[i])[:, k] for i in order]) for k in range(5)]
    node = columns[0]
    layout = Layout(alive, [int(node[t, :count].max()) + 1 for t, count in enumerate(alive)])
    return _Plan(
        order, layout, node, *(columns[k].astype(bool) if k != 2 else columns[k] for k in (1, 2, 3, 4))
    )


def _steps(graph: Arrivals) -> list[tuple[int, int, int, int, int]]:
    """Node, comes, chosen, adds, stops; see :class:`_Plan`."""
    rows = []
    for node, others in enumerate(graph):
        if len(others) > node or any(not 0 <= other < node for other in others):
            raise UserError(f"node {node} can be joined to the {node} before it, not to {list(others)}")
        stops = int(node > 0 and len(graph[node - 1]) < node - 1)
        for i, other in enumerate(others or [-1]):
            rows.append(
                (node, int(i == 0), other, int(other >= 0 and other not in others[:i]), stops * (i == 0))
            )
    last = len(graph) - 1
    rows.append((last, 0, -1, 0, int(len(graph[last]) < last)))
    return rows
