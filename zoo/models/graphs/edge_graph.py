"""A generative model of growing graphs, edge by edge (Ott 2022, dissertation, chapter 5).

Every node has a state of d numbers.  An edge is drawn in two choices, its sender and then its recipient, each
an existing node or a new one; then all nodes exchange one round of messages along all edges so far.  Given
the edges, states do not depend on the choices: they are computed one step after the other, and all choices of
all graphs are scored at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, NamedTuple

import numpy as np
import pyro
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from torch import Tensor, nn

from data_loaders.graphs.edge_lists import EdgeList, edge_list
from guides.core.rng import seeded_rng
from zoo.errors import UserError
from zoo.models.graphs.edge_batches import Plan, check_room, in_batches, longest_first, of_each
from zoo.models.graphs.graph_states import fitted, folded, joined_to, round_of_messages, steadily, whole_graph

Aggregation = Literal["mean", "log", "sum"]
#: Graphs that grow at once when they are drawn or scored.
AT_ONCE = 128
HIDDEN = 32
#: Last layers of the heads by name: weights ``[HIDDEN + 1]``, the bias last.
LastLayers = dict[str, Tensor]


class Choices(NamedTuple):
    """Of all edges of a batch, R rows.

    :ivar sender, recipient: logits ``[R, K]``; nodes, then a new one, minus infinity from there on
    :ivar sent, received: ``[R]``, what was chosen
    """

    sender: Tensor
    recipient: Tensor
    sent: Tensor
    received: Tensor


class Features(NamedTuple):
    """What the last layers of the heads see of a batch.

    :ivar hidden: head -> ``[C, HIDDEN]``, or ``[R, HIDDEN]`` of new nodes
    :ivar senders, recipients: ``[R, K]``, candidates: places in nodes, new ones and nothing, one after the
        other
    :ivar sent, received: ``[R]``, which of them was chosen
    """

    hidden: dict[str, Tensor]
    senders: Tensor
    recipients: Tensor
    sent: Tensor
    received: Tensor


class Head(nn.Module):
    """One hidden layer, one number."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, last: Tensor | None = None) -> Tensor:
        """``[..., inputs] -> [...]``; ``last``: ``[HIDDEN + 1]`` in place of its own."""
        return self.finish(self.hidden(x), last)

    def finish(self, hidden: Tensor, last: Tensor | None) -> Tensor:
        hidden = torch.relu(hidden)
        if last is None:
            return self.last(hidden).squeeze(-1)
        return F.linear(hidden, last[None, :-1]).squeeze(-1) + last[-1]


HEADS = ("sender", "new_sender", "recipient", "new_recipient")


class EdgeGraphModel(nn.Module):
    """Growing graphs with loops and repeated edges.

    :param state: d, numbers a node
    :param aggregation: of the messages that a node receives: their mean times ``log(1 + number)``; their
        mean, which does not tell how many there are; or their sum, as in the dissertation
    :param timed: whether a message is weighed by a function of ``1 / (age of its edge + 1)``, the age in
        units of :attr:`unit`
    :param window: messages pass along the last so many edges only
    :param sees_end: whether the choice of a new node sees how many edges are left.  The dissertation's does
        not, and cannot know when to close a cycle
    :param seed: of the start
    :ivar steady: whether gradients pass a round of messages scaled down where they would grow
        (:func:`~zoo.models.graphs.graph_states.steadily`), as those of sums do from the start: they would
        explode in graphs with many edges

    As a Pyro model of a list of graphs it has the observed sites ``sender`` and ``recipient``, a row an edge.
    """

    def __init__(
        self,
        *,
        state: int = 16,
        aggregation: Aggregation = "log",
        timed: bool = False,
        window: int | None = None,
        sees_end: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if aggregation not in ("mean", "log", "sum"):
            raise UserError(f"messages are aggregated by mean, log or sum, not {aggregation!r}")
        if window is not None and not (isinstance(window, Integral) and window >= 1):
            raise UserError(f"a window is a whole number of edges, at least one, not {window}")
        self.state, self.aggregation, self.timed, self.window = state, aggregation, timed, window
        self.sees_end, self.steady = sees_end, aggregation == "sum"
        whole, end = 2 * state, int(sees_end)
        with seeded_rng(seed):
            self.gate, self.project = nn.Linear(state, 1), nn.Linear(state, whole)
            self.start = nn.Sequential(nn.Linear(whole, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, state))
            self.sender, self.new_sender = Head(state), Head(whole + end)
            self.recipient, self.new_recipient = Head(2 * state), Head(whole + state + end)
            self.message = nn.Linear(2 * state, whole)
            nn.init.normal_(self.message.weight, std=0.1)
            nn.init.normal_(self.message.bias, std=0.1)
            self.update = nn.GRUCell(whole, state)
            self.age = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)) if timed else None
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))

    # ------------------------------------------------------------------------------------------- likelihood

    def forward(self, graphs: Sequence[EdgeList], last: LastLayers | None = None) -> None:
        """The Pyro model of a batch of graphs."""
        pyro.module("edge_graph", self)
        choices = self.choices(Plan.of(graphs), last)
        with pyro.plate("edges", len(choices.sent)):
            pyro.sample("sender", dist.Categorical(logits=choices.sender), obs=choices.sent)
            pyro.sample("recipient", dist.Categorical(logits=choices.recipient), obs=choices.received)

    def log_prob(self, graphs: Sequence[EdgeList], last: LastLayers | None = None) -> Tensor:
        """Of every graph's edges in their order, given their number and times: ``[n]``, nats.

        :raises UserError: for a graph that is too large
        """
        return in_batches(lambda batch: self.log_prob_of_batch(batch, last), graphs, AT_ONCE, self.window)

    def log_prob_of_orders(self, orders: Tensor) -> Tensor:
        """Of the edges of a graph in several orders ``[S, m, 2]``, any labels, one :attr:`unit` apart:
        ``[S]``; what guides over orders ask for (:mod:`guides.variational.orderings`).
        """
        times = np.arange(orders.shape[1]) * self.unit.item()
        return self.log_prob([edge_list(order, times) for order in orders.numpy()])

    def log_prob_of_batch(self, graphs: Sequence[EdgeList], last: LastLayers | None = None) -> Tensor:
        """As :meth:`log_prob`, all at once."""
        plan = Plan.of(graphs)
        sender, recipient, sent, received = self.choices(plan, last)
        rows = _chosen(sender, sent) + _chosen(recipient, received)
        sums = rows.new_zeros(len(graphs)).index_add(0, plan.graph_of_row, rows)
        return sums[torch.as_tensor(np.argsort(plan.order))]

    def choices(self, plan: Plan, last: LastLayers | None = None) -> Choices:
        """Logits of all choices of a batch."""
        return self.scored(self.features(plan), last)

    def features(self, plan: Plan) -> Features:
        """What the last layers see: it does not depend on them."""
        nodes, whole, whole_with_sender = self._grown(plan)
        layout = plan.layout
        sent, received = (torch.as_tensor(layout.rows(ends)) for ends in (plan.sender, plan.recipient))
        sending = nodes[torch.as_tensor(layout.first_cells()) + sent]
        ending = self._ending(plan.left, nodes)
        of_node, of_sender = self.recipient.hidden.weight.split(self.state, 1)
        by_sender = F.linear(sending, of_sender, self.recipient.hidden.bias)
        hidden = {
            "sender": self.sender.hidden(nodes),
            "new_sender": self.new_sender.hidden(torch.cat([whole, *ending], 1)),
            "recipient": F.linear(nodes, of_node) + by_sender[layout.row_of_cell()],
            "new_recipient": self.new_recipient.hidden(torch.cat([whole_with_sender, sending, *ending], 1)),
        }
        tables = (layout.candidates(layout.rows(n), new=True) for n in (plan.before, plan.after_sender))
        return Features(hidden, *tables, sent, received)

    def scored(self, features: Features, last: LastLayers | None = None) -> Choices:
        """Logits from what the last layers see."""
        old, new, old_recipient, new_recipient = (
            getattr(self, name).finish(features.hidden[name], (last or {}).get(name)) for name in HEADS
        )
        never = old.new_full((1,), -torch.inf)
        return Choices(
            torch.cat([old, new, never])[features.senders],
            torch.cat([old_recipient, new_recipient, never])[features.recipients],
            features.sent,
            features.received,
        )

    def _grown(self, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """States of the nodes once both ends of the edge are there, ``[C, d]``, and of the whole graph before
        the edge and with its sender, ``[R, 2d]`` each.
        """
        layout = plan.layout
        cells, squares = layout.cells_of_step.tolist(), layout.squares_of_step.tolist()
        messages = layout.messages(plan.sender, plan.recipient, plan.times, self.window)
        adjacency, degree = self._received(
            messages.cell, messages.place, messages.lag, sum(cells), sum(squares)
        )
        adjacencies, degrees = adjacency.split(squares), degree.split(cells)
        fold, place = folded(self.message, self.update), torch.arange(max(layout.width))
        before, with_sender = torch.as_tensor(plan.before), torch.as_tensor(plan.after_sender)
        opens = plan.sender == plan.before, plan.recipient == plan.after_sender
        nodes = adjacency.new_zeros(layout.alive[0], layout.width[0], self.state)
        states, wholes, wholes_with_sender = [], [], []
        for t, (alive, width) in enumerate(zip(layout.alive, layout.width, strict=True)):
            nodes = fitted(nodes, alive, width)
            whole = self._whole(nodes, place[:width] < before[t, :alive, None])
            wholes.append(whole)
            if opens[0][t, :alive].any():
                nodes = self._opened(nodes, whole, place[:width], before[t, :alive], opens[0][t, :alive])
                whole = self._whole(nodes, place[:width] < with_sender[t, :alive, None])
            wholes_with_sender.append(whole)
            if opens[1][t, :alive].any():
                nodes = self._opened(nodes, whole, place[:width], with_sender[t, :alive], opens[1][t, :alive])
            states.append(nodes.reshape(-1, self.state))
            received = adjacencies[t].view(alive, width, width), degrees[t], fold, self.update
            if self.steady:
                nodes = steadily(nodes, lambda nodes, given=received: round_of_messages(nodes, *given))
            else:
                nodes = round_of_messages(nodes, *received)
        return torch.cat(states), torch.cat(wholes), torch.cat(wholes_with_sender)

    # ---------------------------------------------------------------------------------------------- one step

    def _received(
        self, cell: Tensor, place: Tensor, lag: Tensor, cells: int, places: int
    ) -> tuple[Tensor, Tensor]:
        """Adjacency matrices, flat, and how much every node receives, ``[C]``: the row sums."""
        like = self.gate.weight
        weight = self._weights(lag) if self.timed else like.new_ones(len(cell))
        degree = like.new_zeros(cells).index_add(0, cell, weight)
        if self.aggregation != "sum":
            received = (degree > 0).to(like.dtype) if self.aggregation == "mean" else degree.log1p()
            weight, degree = weight * (received / degree.clamp_min(1e-30))[cell], received
        return like.new_zeros(places).index_add(0, place, weight), degree

    def _weights(self, lag: Tensor) -> Tensor:
        """Of messages along edges of some age; few ages differ."""
        ages, which = torch.unique(lag / self.unit, return_inverse=True)
        recent = (1 / (ages + 1)).to(self.gate.weight.dtype)
        return F.softplus(self.age(recent[:, None])).squeeze(-1)[which]

    def _whole(self, nodes: Tensor, there: Tensor) -> Tensor:
        return whole_graph(nodes, there, self.gate, self.project)

    def _opened(
        self, nodes: Tensor, whole: Tensor, place: Tensor, number: Tensor, opens: np.ndarray
    ) -> Tensor:
        return joined_to(nodes, self.start(whole), place, number, torch.as_tensor(opens))

    def _ending(self, left: Tensor, like: Tensor) -> list[Tensor]:
        """How near the end is, ``[R, 1]``, if it is seen."""
        return [(1 / left.to(like.dtype))[:, None]] if self.sees_end else []

    # ------------------------------------------------------------------------------------------------ drawing

    @torch.no_grad()
    def sample(
        self,
        num_graphs: int,
        num_edges: int | Sequence[int],
        *,
        times: Sequence[np.ndarray] | None = None,
        seed: int = 0,
        last: LastLayers | None = None,
    ) -> list[EdgeList]:
        """Graphs of so many edges.

        :param num_edges: of every graph, or of each
        :param times: of the edges of each graph; one unit apart by default
        :raises UserError: for numbers and times that do not fit, graphs that grow too large
        """
        lengths = of_each(num_graphs, num_edges, "edges")
        if times is None:
            times = [np.arange(m, dtype=np.float64) * self.unit.item() for m in lengths]
        if [len(when) for when in times] != lengths:
            raise UserError("every edge needs its time")
        if not all(np.isfinite(when).all() and (np.diff(when) >= 0).all() for when in times):
            raise UserError("times of edges are finite and never fall")
        generator = torch.Generator().manual_seed(seed)

        def draw(places: Sequence[int]) -> list[np.ndarray]:
            return self._draw([times[i] for i in places], generator, last or {})

        drawn = longest_first(draw, lengths, AT_ONCE)
        return [
            EdgeList(edges, np.asarray(when, dtype=np.float64))
            for edges, when in zip(drawn, times, strict=True)
        ]

    def _draw(
        self, times: Sequence[np.ndarray], generator: torch.Generator, last: LastLayers
    ) -> list[np.ndarray]:
        """Edges ``[m, 2]`` of graphs by falling length."""
        lengths = np.array([len(when) for when in times])
        now = torch.as_tensor(
            np.stack([np.pad(when, (0, lengths[0] - len(when)), mode="edge") for when in times])
        )
        edges = torch.zeros(len(times), lengths[0], 2, dtype=torch.int64)
        count, fold = torch.zeros(len(times), dtype=torch.int64), folded(self.message, self.update)
        nodes = fold.new_zeros(len(times), 0, self.state)
        for t in range(lengths[0]):
            alive = int((lengths > t).sum())
            count, width = count[:alive], int(count[:alive].max()) + 2
            check_room(alive, width)
            nodes, rows, place = fitted(nodes, alive, width), torch.arange(alive), torch.arange(width)
            ending = self._ending(torch.as_tensor(lengths[:alive] - t), fold)

            whole = self._whole(nodes, place < count[:, None])
            new = self.new_sender(torch.cat([whole, *ending], 1), last.get("new_sender"))
            sender = _drawn(self.sender(nodes, last.get("sender")), new, count, generator)
            nodes, whole, count = self._joined(nodes, whole, place, sender, count)

            sending = nodes[rows, sender]
            both = torch.cat([nodes, sending[:, None].expand_as(nodes)], -1)
            new = self.new_recipient(torch.cat([whole, sending, *ending], 1), last.get("new_recipient"))
            recipient = _drawn(self.recipient(both, last.get("recipient")), new, count, generator)
            nodes, whole, count = self._joined(nodes, whole, place, recipient, count)

            edges[:alive, t] = torch.stack([sender, recipient], 1)
            begin = 0 if self.window is None else max(0, t + 1 - self.window)
            lag = now[:alive, t, None] - now[:alive, begin : t + 1]
            received = self._received_along(edges[:alive, begin : t + 1], lag, width)
            nodes = round_of_messages(nodes, *received, fold, self.update)
        return [found[:length].numpy().copy() for found, length in zip(edges, lengths, strict=True)]

    def _received_along(self, edges: Tensor, lag: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Adjacency matrices ``[B, W, W]`` and degrees ``[B W]`` of edges ``[B, m, 2]`` of ages
        ``[B, m]``.
        """
        alive = len(edges)
        cell = (width * torch.arange(alive)[:, None, None] + edges).flatten()
        place = cell * width + edges.flip(-1).flatten()
        ages = lag[..., None].expand_as(edges).flatten()
        adjacency, degree = self._received(cell, place, ages, alive * width, alive * width**2)
        return adjacency.view(alive, width, width), degree

    def _joined(
        self, nodes: Tensor, whole: Tensor, place: Tensor, chosen: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes, graph and numbers of nodes once the chosen ones are there."""
        opens = chosen == count
        nodes = self._opened(nodes, whole, place, count, opens.numpy())
        count = count + opens
        return nodes, self._whole(nodes, place < count[:, None]), count


def _chosen(logits: Tensor, choice: Tensor) -> Tensor:
    """Log probabilities ``[R]`` of choices."""
    return logits.gather(1, choice[:, None]).squeeze(1) - logits.logsumexp(1)


def _drawn(old: Tensor, new: Tensor, count: Tensor, generator: torch.Generator) -> Tensor:
    """A node of ``count: [B]`` or, equal to it, a new one; logits ``[B, W]`` and ``[B]``."""
    place = torch.arange(old.shape[1])
    logits = torch.where(place < count[:, None], old, -torch.inf)
    logits = torch.where(place == count[:, None], new[:, None], logits)
    return torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
