"""Guides over the order in which the edges of a graph came.

A model of growing graphs has a likelihood of sequences of edges, whose nodes it numbers as they come; of a
graph whose order is not known, the order is latent.  An order of m edges here says, for each step, which edge
comes and which of its two ends sends: ``[m, 2]`` rows of nodes, the sender first.  The graph is one of n
labelled nodes, the labels put on at random once it has grown, so that each of its ``m! 2^m`` orders has
``1 / n!`` of the probability of its sequence:

    log p(graph) = log sum_O p(order) / n! >= E_q [log p(order) - log n! - log q(order)],

with equality for ``q`` in proportion to ``p``.  The graph without labels is more probable, by the number of
ways to label it, ``n!`` over that of its automorphisms.  :func:`enumerated` sums all orders of a small graph.
The laws are Pyro distributions, so that a guide that samples one trains by :class:`pyro.infer.Trace_ELBO`::

    def guide(graph):
        pyro.sample("order", BreadthFirst(graph))

    model = OrderedGraph(log_prob)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import constraints

#: Orders ``[S, m, 2]`` -> log probabilities ``[S]``, of a model of growing graphs.
LogProb = Callable[[Tensor], Tensor]
#: More than this many edges are not enumerated: 8! 2^8 is ten million.
MOST_ENUMERATED = 6


def _simple(edges: Tensor) -> list[tuple[int, int]]:
    """The edges of a graph without loops and repeated edges, whose orders are all different."""
    pairs = [tuple(pair) for pair in torch.as_tensor(edges).tolist()]
    if not pairs:
        raise ValueError("a graph without edges has no order of them")
    if len({frozenset(pair) for pair in pairs}) < len(pairs) or any(u == v for u, v in pairs):
        raise ValueError("orders are of graphs without loops and repeated edges")
    return pairs


def _log_labellings(edges: Tensor) -> float:
    """``log n!`` of a graph of n nodes, from its edges in any order."""
    return math.lgamma(len(edges.unique()) + 1)


class _Orders(TorchDistribution):
    """Law of an order that is built edge by edge, each step a choice among some edges and directions.

    :param edges: ``[m, 2]`` nodes of a graph without repeated edges
    """

    arg_constraints = {}  # noqa: RUF012  (torch's own habit)
    support = constraints.independent(constraints.nonnegative_integer, 2)
    has_rsample = False

    def __init__(self, edges: Tensor, validate_args: bool | None = None) -> None:
        self.edges = _simple(edges)
        super().__init__(event_shape=torch.Size((len(self.edges), 2)), validate_args=validate_args)

    def options(self, before: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], Tensor]:
        """What may come after some edges, and the log probabilities of it."""
        raise NotImplementedError

    def expand(self, batch_shape, _instance=None):
        if torch.Size(batch_shape):
            raise NotImplementedError("one order at a time: use sample(shape)")
        return self

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008  (torch's signature)
        count = math.prod(sample_shape)
        drawn = torch.tensor([self._draw() for _ in range(count)], dtype=torch.int64)
        return drawn.reshape(*sample_shape, len(self.edges), 2)

    def _draw(self) -> list[tuple[int, int]]:
        order: list[tuple[int, int]] = []
        with torch.no_grad():
            for _ in self.edges:
                options, logs = self.options(order)
                order.append(options[int(torch.multinomial(logs.exp(), 1))])
        return order

    def log_prob(self, value: Tensor) -> Tensor:
        rows = value.reshape(-1, len(self.edges), 2).tolist()
        return torch.stack([self._log_prob([tuple(pair) for pair in order]) for order in rows]).reshape(
            value.shape[:-2]
        )

    def _log_prob(self, order: Sequence[tuple[int, int]]) -> Tensor:
        total = torch.zeros(())
        for step, edge in enumerate(order):
            options, logs = self.options(order[:step])
            if edge not in options:
                return torch.tensor(-math.inf)
            total = total + logs[options.index(edge)]
        return total

    def left(self, before: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Edges that have not come."""
        gone = {frozenset(edge) for edge in before}
        return [edge for edge in self.edges if frozenset(edge) not in gone]


class UniformOrders(_Orders):
    """Every order and direction alike: ``q = 1 / (m! 2^m)``."""

    def options(self, before: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], Tensor]:
        left = self.left(before)
        both = [*left, *((v, u) for u, v in left)]
        return both, torch.full((len(both),), -math.log(len(both)))


class BreadthFirst(_Orders):
    """Breadth-first from a node chosen at random: the next edge is one of those of the node that was found
    first of all that have any left, which sends it; a new start where a component is finished.
    """

    def options(self, before: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], Tensor]:
        left = self.left(before)
        for node in dict.fromkeys(itertools.chain.from_iterable(before)):
            mine = [(node, v if u == node else u) for u, v in left if node in (u, v)]
            if mine:
                return mine, torch.full((len(mine),), -math.log(len(mine)))
        starts = sorted({node for edge in left for node in edge})
        found, logs = [], []
        for node in starts:
            mine = [(node, v if u == node else u) for u, v in left if node in (u, v)]
            found += mine
            logs += [-math.log(len(starts) * len(mine))] * len(mine)
        return found, torch.tensor(logs)


class LearnedOrders(_Orders):
    """A softmax over what is left, both directions, of scores that a network gives.

    :param scorer: ``[options, 6] -> [options]``; see :func:`features`
    """

    def __init__(self, edges: Tensor, scorer: Callable[[Tensor], Tensor], validate_args: bool | None = None):
        super().__init__(edges, validate_args)
        self.scorer = scorer

    def options(self, before: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], Tensor]:
        left = self.left(before)
        both = [*left, *((v, u) for u, v in left)]
        return both, self.scorer(features(both, before)).log_softmax(0)


class OrderScorer(nn.Module):
    """Scores of what may come next: one hidden layer of :func:`features`; begins with all alike."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


def features(options: Sequence[tuple[int, int]], before: Sequence[tuple[int, int]]) -> Tensor:
    """``[options, 6]``: of sender and recipient, whether it is there already, its age as a share of the nodes
    that are there (0: the newest), and its share of the edges that have come.
    """
    there = list(dict.fromkeys(itertools.chain.from_iterable(before)))
    place = {node: i for i, node in enumerate(there)}
    count = {node: sum(node in edge for edge in before) for node in there}

    def of_node(node: int) -> tuple[float, float, float]:
        if node not in place:
            return 0.0, 0.0, 0.0
        return 1.0, 1 - (place[node] + 1) / len(there), count[node] / len(before)

    return torch.tensor([(*of_node(u), *of_node(v)) for u, v in options])


class OrderedGraph:
    """The Pyro model of a labelled graph without order: of every order the likelihood of the model of growing
    graphs, over ``n!``.

    Sites: ``order: [m, 2]``; the factor ``growth``.
    """

    def __init__(self, log_prob: LogProb) -> None:
        self.log_prob = log_prob

    def __call__(self, edges: Tensor) -> None:
        uniform = UniformOrders(edges)
        order = pyro.sample("order", uniform)
        grown = self.log_prob(order[None]).squeeze(0) - _log_labellings(edges)
        pyro.factor("growth", grown - uniform.log_prob(order))


def orders(edges: Tensor) -> Iterator[list[tuple[int, int]]]:
    """All ``m! 2^m`` orders of a graph.

    :raises ValueError: for more than MOST_ENUMERATED edges, loops or repeated edges
    """
    pairs = _simple(edges)
    if len(pairs) > MOST_ENUMERATED:
        raise ValueError(f"{len(pairs)} edges have too many orders: {MOST_ENUMERATED} are enumerated at most")
    for permuted in itertools.permutations(pairs):
        for turns in itertools.product((False, True), repeat=len(pairs)):
            yield [edge[::-1] if turn else edge for edge, turn in zip(permuted, turns, strict=True)]


def enumerated(edges: Tensor, log_prob: LogProb) -> tuple[Tensor, Tensor, Tensor]:
    """All orders ``[O, m, 2]``, the exact posterior over them ``[O]``, and the log probability of the
    labelled graph, ``[]``.
    """
    every = torch.tensor(list(orders(edges)))
    logs = log_prob(every) - _log_labellings(every[0])
    total = logs.logsumexp(0)
    return every, (logs - total).exp(), total


def bound(law: TorchDistribution, log_prob: LogProb, every: Tensor) -> Tensor:
    """The ELBO of a law over the orders of a labelled graph, exactly, from all orders ``[O, m, 2]``: ``[]``,
    nats.
    """
    log_q = law.log_prob(every)
    gap = log_prob(every) - _log_labellings(every[0]) - log_q
    return (log_q.exp() * torch.where(log_q > -math.inf, gap, 0.0)).sum()
