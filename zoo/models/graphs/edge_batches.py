"""Batches of growing graphs laid out so that a model can be run over all of them at once.

Graphs are sorted by falling length; at step t the first ``alive[t]`` of them still grow, and the widest has
``width[t]`` nodes after that step.  Nodes of all graphs and steps lie one after the other in *cells*: step by
step, graph by graph, node by node.  Edges lie in *rows*: step by step, graph by graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from data_loaders.graphs.edge_lists import EdgeList
from zoo.errors import UserError

Drawn = TypeVar("Drawn")
#: Numbers that a batch may keep at once (4 bytes each, 400 MB), and a single graph (5 GB).
MOST_NUMBERS, MOST_OF_ONE = 100_000_000, 1_200_000_000
#: Numbers that are kept for a node and a step, about, beside its row of the adjacency matrix; and for a pair
#: of edges, each with each, of which the earlier one sends when the later one has come: measured where
#: messages are weighed by age and no two ages are alike, half of that where they are not weighed.
A_NODE, A_PAIR = 400, 18


@dataclass(frozen=True)
class Layout:
    """Where the nodes and edges of a batch lie.

    :ivar alive, width: of every step
    """

    alive: list[int]
    width: list[int]

    @property
    def cells_of_step(self) -> np.ndarray:
        """``[T]``"""
        return np.array(self.alive) * np.array(self.width)

    @property
    def squares_of_step(self) -> np.ndarray:
        """``[T]``: numbers in the adjacency matrices."""
        return self.cells_of_step * np.array(self.width)

    def rows(self, values: np.ndarray) -> np.ndarray:
        """``[T, B] -> [R]``"""
        return np.concatenate([values[t, :count] for t, count in enumerate(self.alive)])

    def graph_of_row(self) -> np.ndarray:
        """``[R]``: place of the graph of an edge."""
        return np.concatenate([np.arange(count) for count in self.alive])

    def first_cells(self) -> np.ndarray:
        """``[R]``: where the nodes of an edge's graph begin at its step."""
        steps = zip(_starts(self.cells_of_step), self.width, self.alive, strict=True)
        return np.concatenate([start + width * np.arange(count) for start, width, count in steps])

    def row_of_cell(self) -> Tensor:
        """``[C]``"""
        widths = np.repeat(self.width, self.alive)
        return torch.as_tensor(np.repeat(np.arange(len(widths)), widths))

    def candidates(self, nodes: np.ndarray, *, new: bool) -> Tensor:
        """``[R, K]``: for the nodes ``[R]`` that may be chosen, cells; then, if there may be a ``new`` one,
        ``C + row``; then the last place, nothing: ``C + R``, or ``C``.
        """
        cells, rows = int(self.cells_of_step.sum()), len(nodes)
        place = np.arange(int(nodes.max()) + new)
        nothing = cells + rows if new else cells
        table = np.where(place < nodes[:, None], self.first_cells()[:, None] + place, nothing)
        if new:
            table[np.arange(rows), nodes] = cells + np.arange(rows)
        return torch.as_tensor(table)

    def messages(
        self, sender: np.ndarray, recipient: np.ndarray, times: np.ndarray, window: int | None = None
    ) -> Messages:
        """Which edges ``[T, B]`` send messages at which step: all that are there, or the last ``window`` of
        them; a negative sender is no edge.
        """
        lengths = np.bincount(self.graph_of_row())
        found = [
            self._messages_of(b, sender[:length, b], recipient[:length, b], times[:length, b], window)
            for b, length in enumerate(lengths)
        ]
        return Messages(*(torch.as_tensor(np.concatenate(parts)) for parts in zip(*found, strict=True)))

    def _messages_of(
        self, b: int, sender: np.ndarray, recipient: np.ndarray, times: np.ndarray, window: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the graph at place ``b``; places are short integers, for there are as many as pairs of edges."""
        squares, wide, steps = self.squares_of_step, np.array(self.width), slice(len(sender))
        integer = np.int32 if squares.sum() < 2**31 else np.int64
        cell = (_starts(self.cells_of_step) + b * wide)[steps].astype(integer)
        square = (_starts(squares) + b * wide**2)[steps].astype(integer)
        wide, ends = wide.astype(integer), np.stack([sender, recipient]).astype(integer)
        now, edge = _pairs(len(sender), window)
        if (sender < 0).any():
            real = sender[edge] >= 0
            now, edge = now[real], edge[real]
        cells, places = cell[now] + ends[:, edge], ends[:, edge]
        places *= wide[now]
        places += square[now]
        places += ends[::-1, edge]
        return cells.ravel(), places.ravel(), np.tile(times[now] - times[edge], 2)


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)[:-1]])


@dataclass(frozen=True)
class Messages:
    """One entry for each end of an edge that receives at a step.

    :ivar cell: ``[E]``, the node that receives
    :ivar place: ``[E]``, in the adjacency matrices of all steps and graphs, one after the other
    :ivar lag: ``[E]``, time since the edge came
    """

    cell: Tensor
    place: Tensor
    lag: Tensor


@dataclass(frozen=True)
class Plan:
    """The growth of a batch of graphs, step by step.

    :ivar order: ``[B]``, which graph stands at which place
    :ivar sender, recipient, times: ``[T, B]``
    :ivar before: ``[T, B]``, nodes before the step
    :ivar after_sender: ``[T, B]``, nodes once the sender is there
    :ivar left: ``[R]``, edges that are still to come, this one included
    :ivar graph_of_row: ``[R]``, place of the graph of an edge
    """

    order: np.ndarray
    layout: Layout
    sender: np.ndarray
    recipient: np.ndarray
    times: np.ndarray
    before: np.ndarray
    after_sender: np.ndarray
    left: Tensor
    graph_of_row: Tensor

    @classmethod
    def of(cls, graphs: Sequence[EdgeList]) -> Plan:
        """:raises UserError: for graphs of another kind"""
        check_kind(graphs)
        order, lengths, alive = by_length([len(graph) for graph in graphs])
        sender, recipient = (padded([graphs[i].edges[:, end] for i in order]) for end in (0, 1))
        after = np.maximum.accumulate(np.maximum(sender, recipient), 0) + 1
        before = np.concatenate([np.zeros_like(after[:1]), after[:-1]])
        layout = Layout(alive, [int(after[t, :count].max()) for t, count in enumerate(alive)])
        graph_of_row = layout.graph_of_row()
        step_of_row = np.repeat(np.arange(len(alive)), alive)
        return cls(
            order=order,
            layout=layout,
            sender=sender,
            recipient=recipient,
            times=padded([graphs[i].times for i in order]),
            before=before,
            after_sender=before + (sender == before),
            left=torch.as_tensor(lengths[graph_of_row] - step_of_row),
            graph_of_row=torch.as_tensor(graph_of_row),
        )


def check_kind(graphs: Sequence[EdgeList]) -> None:
    """:raises UserError: unless all are growing graphs"""
    for graph in graphs:
        if not isinstance(graph, EdgeList):
            raise UserError(
                f"a {type(graph).__name__} is no growing graph: edge_list and from_networkx "
                "(data_loaders.graphs.edge_lists) make one of it"
            )


def by_length(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Order by falling length, lengths in that order, and how many there are that long, of each step."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    falling = np.asarray(lengths)[order]
    return order, falling, (np.arange(falling[0])[:, None] < falling).sum(1).tolist()


def _pairs(length: int, window: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the edges that send at them."""
    if window is None or window >= length:
        return tuple(rows.astype(np.int32) for rows in np.tril_indices(length))
    ages = np.arange(window)
    now = np.repeat(np.arange(length), window)
    edge = now - np.tile(ages, length)
    return now[edge >= 0], edge[edge >= 0]


def padded(columns: Sequence[np.ndarray]) -> np.ndarray:
    """``[T, B]``, the last value repeated, so that no padded end is a new node."""
    longest = max(map(len, columns))
    return np.stack([np.pad(column, (0, longest - len(column)), mode="edge") for column in columns], 1)


def batches(graphs: Sequence[EdgeList], size: int, window: int | None = None) -> Iterator[list[int]]:
    """Places of graphs of like length, at most so many a batch, and fewer where memory would not do.

    :param window: messages pass along the last so many edges only

    :raises UserError: for a graph that is too large alone, or of another kind
    """
    check_kind(graphs)
    batch: list[int] = []
    most = 0
    for place in sorted(range(len(graphs)), key=lambda i: (len(graphs[i]), graphs[i].num_nodes)):
        numbers = _numbers(graphs[place], window)
        if numbers > MOST_OF_ONE:
            graph = graphs[place]
            raise UserError(
                f"a graph of {len(graph)} edges and {graph.num_nodes} nodes needs {numbers * 4 / 1e9:.0f} "
                "GB: cut it into shorter ones"
            )
        most = max(most, numbers)
        if batch and (len(batch) == size or most * (len(batch) + 1) > MOST_NUMBERS):
            yield batch
            batch, most = [], numbers
        batch.append(place)
    if batch:
        yield batch


def in_batches(
    score: Callable[[Sequence[EdgeList]], Tensor],
    graphs: Sequence[EdgeList],
    size: int,
    window: int | None = None,
) -> Tensor:
    """``score``, which takes the graphs of a batch at once, of all of them: ``[n]``.

    :raises UserError: for a graph that is too large alone
    """
    groups = list(batches(graphs, size, window))
    if not groups:
        return torch.zeros(0)
    scores = torch.cat([score([graphs[i] for i in group]) for group in groups])
    return scores[torch.as_tensor(np.argsort(np.concatenate(groups)))]


def longest_first(
    draw: Callable[[Sequence[int]], Sequence[Drawn]], lengths: Sequence[int], size: int
) -> list[Drawn]:
    """``draw``, which takes places by falling length, at most ``size`` at once, for all places in order."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    blocks = (order[begin : begin + size] for begin in range(0, len(order), size))
    drawn = dict(zip(order, (graph for block in blocks for graph in draw(block)), strict=True))
    return [drawn[i] for i in range(len(lengths))]


def of_each(num_graphs: int, number: int | Sequence[int], what: str) -> list[int]:
    """:raises UserError: where ``number`` is neither one of 1 or more nor as many of them as graphs"""
    found = [number] * num_graphs if isinstance(number, Integral) else list(number)
    if len(found) != num_graphs or not all(isinstance(n, Integral) and n >= 1 for n in found):
        raise UserError(f"{num_graphs} graphs need {num_graphs} numbers of {what}, whole and 1 or more")
    return [int(n) for n in found]


def check_room(graphs: int, nodes: int) -> None:
    """:raises UserError: for so many graphs of so many nodes whose adjacency matrices are too large"""
    numbers = graphs * nodes**2
    if numbers > MOST_OF_ONE:
        raise UserError(
            f"{graphs} graphs that are drawn at once have grown to {nodes} nodes and need "
            f"{numbers * 4 / 1e9:.0f} GB: draw shorter ones"
        )


def _numbers(graph: EdgeList, window: int | None = None) -> int:
    """That are kept for the gradient of one graph, about."""
    nodes = np.maximum.accumulate(graph.edges.max(1)) + 1
    partners = len(graph) if window is None else min(len(graph), 2 * window)
    return int((nodes * (nodes + A_NODE)).sum()) + A_PAIR * len(graph) * partners
