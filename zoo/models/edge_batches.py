"""Batches of growing graphs laid out so that a model can be run over all of them at once.

Graphs are sorted by falling length; at step t the first ``alive[t]`` of them still grow, and the widest has
``width[t]`` nodes after that step.  Nodes of all graphs and steps lie one after the other in *cells*: step by
step, graph by graph, node by node.  Edges lie in *rows*: step by step, graph by graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data_loaders.edge_lists import EdgeList
from zoo.errors import UserError

#: Numbers that a batch may keep at once (4 bytes each, 400 MB), and a single graph (2 GB).
MOST_NUMBERS, MOST_OF_ONE = 100_000_000, 500_000_000
#: Numbers that are kept for a node and a step, about, beside its row of the adjacency matrix.
A_NODE = 300


@dataclass(frozen=True)
class Plan:
    """The growth of a batch of graphs, step by step.

    :ivar order: ``[B]``, which graph stands at which place
    :ivar alive, width: of every step
    :ivar sender, recipient: ``[T, B]``
    :ivar before: ``[T, B]``, nodes before the step
    :ivar after_sender: ``[T, B]``, nodes once the sender is there
    :ivar times: ``[T, B]``
    :ivar left: ``[R]``, edges that are still to come, this one included
    :ivar graph_of_row: ``[R]``, place of the graph of an edge
    """

    order: np.ndarray
    alive: list[int]
    width: list[int]
    sender: np.ndarray
    recipient: np.ndarray
    before: np.ndarray
    after_sender: np.ndarray
    times: np.ndarray
    left: Tensor
    graph_of_row: Tensor

    @classmethod
    def of(cls, graphs: Sequence[EdgeList]) -> Plan:
        lengths = np.array([len(graph) for graph in graphs])
        order = np.argsort(-lengths, kind="stable")
        lengths = lengths[order]
        steps = np.arange(lengths[0])
        alive = (steps[:, None] < lengths).sum(1)
        sender, recipient = (_padded([graphs[i].edges[:, end] for i in order]) for end in (0, 1))
        after = np.maximum.accumulate(np.maximum(sender, recipient), 0) + 1
        before = np.concatenate([np.zeros_like(after[:1]), after[:-1]])
        rows = [(t, b) for t, count in enumerate(alive.tolist()) for b in range(count)]
        step_of_row, graph_of_row = np.array(rows).T
        return cls(
            order=order,
            alive=alive.tolist(),
            width=[int(after[t, :count].max()) for t, count in enumerate(alive)],
            sender=sender,
            recipient=recipient,
            before=before,
            after_sender=before + (sender == before),
            times=_padded([graphs[i].times for i in order]),
            left=torch.as_tensor(lengths[graph_of_row] - step_of_row),
            graph_of_row=torch.as_tensor(graph_of_row),
        )

    @property
    def steps(self) -> int:
        return len(self.alive)

    @property
    def cells_of_step(self) -> np.ndarray:
        """``[T]``"""
        return np.array(self.alive) * np.array(self.width)

    def rows(self, values: np.ndarray) -> np.ndarray:
        """``[T, B] -> [R]``"""
        return np.concatenate([values[t, :count] for t, count in enumerate(self.alive)])

    def first_cells(self) -> np.ndarray:
        """``[R]``: where the nodes of an edge's graph begin at its step."""
        starts = np.concatenate([[0], np.cumsum(self.cells_of_step)[:-1]])
        return np.concatenate(
            [
                start + width * np.arange(count)
                for start, width, count in zip(starts, self.width, self.alive, strict=True)
            ]
        )

    def row_of_cell(self) -> Tensor:
        """``[C]``"""
        widths = np.repeat(self.width, self.alive)
        return torch.as_tensor(np.repeat(np.arange(len(widths)), widths))

    def candidates(self, nodes: np.ndarray) -> Tensor:
        """``[R, K]``: for the nodes ``[R]`` that may be chosen, cells; then ``C + row``, the new one; then
        ``C + R``, nothing.
        """
        cells, rows = int(self.cells_of_step.sum()), len(nodes)
        place = np.arange(int(nodes.max()) + 1)
        table = np.where(place < nodes[:, None], self.first_cells()[:, None] + place, cells + rows)
        table[np.arange(rows), nodes] = cells + np.arange(rows)
        return torch.as_tensor(table)

    def messages(self, window: int | None) -> Messages:
        """Which edges send messages at which step: all that are there, or the last ``window`` of them."""
        starts = np.concatenate([[0], np.cumsum(self.cells_of_step)[:-1]])
        wide = np.array(self.width)
        squares = np.concatenate([[0], np.cumsum(self.cells_of_step * wide)[:-1]])
        ends, places, lags = [], [], []
        for b, length in enumerate(np.bincount(self.graph_of_row.numpy())):
            now, edge = _pairs(length, window)
            one, other = self.sender[edge, b], self.recipient[edge, b]
            node, neighbour = np.concatenate([one, other]), np.concatenate([other, one])
            now2 = np.concatenate([now, now])
            in_step = b * wide[now2] + node
            ends.append(starts[now2] + in_step)
            places.append(squares[now2] + in_step * wide[now2] + neighbour)
            lag = self.times[now, b] - self.times[edge, b]
            lags.append(np.concatenate([lag, lag]))
        return Messages(*(torch.as_tensor(np.concatenate(parts)) for parts in (ends, places, lags)))


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


def _pairs(length: int, window: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the edges that send at them."""
    if window is None or window >= length:
        return np.tril_indices(length)
    ages = np.arange(window)
    now = np.repeat(np.arange(length), window)
    edge = now - np.tile(ages, length)
    return now[edge >= 0], edge[edge >= 0]


def _padded(columns: Sequence[np.ndarray]) -> np.ndarray:
    """``[T, B]``, the last value repeated, so that no padded end is a new node."""
    longest = max(map(len, columns))
    return np.stack([np.pad(column, (0, longest - len(column)), mode="edge") for column in columns], 1)


def batches(graphs: Sequence[EdgeList], size: int) -> Iterator[list[int]]:
    """Places of graphs of like length, at most so many a batch, and fewer where memory would not do.

    :raises UserError: for a graph that is too large alone
    """
    batch: list[int] = []
    most = 0
    for place in sorted(range(len(graphs)), key=lambda i: (len(graphs[i]), graphs[i].num_nodes)):
        numbers = _numbers(graphs[place])
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


def _numbers(graph: EdgeList) -> int:
    """That are kept for the gradient of one graph: an upper bound."""
    return len(graph) * graph.num_nodes * (graph.num_nodes + A_NODE)
