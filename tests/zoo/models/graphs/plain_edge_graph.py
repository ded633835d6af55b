"""The edge model written plainly: one graph, one edge after the other, one message after the other.

The oracle of the batched model, and what the benchmark measures it against.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from data_loaders.graphs.edge_lists import EdgeList
from zoo.models.graphs.edge_graph import EdgeGraphModel


def whole(model: EdgeGraphModel, nodes: Tensor) -> Tensor:
    return (torch.sigmoid(model.gate(nodes)) * model.project(nodes)).sum(0)


def begun(model: EdgeGraphModel, nodes: Tensor) -> Tensor:
    return torch.cat([nodes, model.start(whole(model, nodes))[None]])


def messages(model: EdgeGraphModel, nodes: Tensor, edges: list[list[int]], ages: list[float]) -> Tensor:
    """One round along the edges."""
    ends = torch.tensor([pair for u, v in edges for pair in ((u, v), (v, u))])
    weights = nodes.new_ones(len(ends))
    if model.timed:
        recent = nodes.new_tensor([1 / (age / model.unit.item() + 1) for age in ages for _ in (0, 1)])
        weights = F.softplus(model.age(recent[:, None])).squeeze(1)
    sent = weights[:, None] * model.message(torch.cat([nodes[ends[:, 0]], nodes[ends[:, 1]]], 1))
    total = torch.zeros(len(nodes), sent.shape[1], dtype=nodes.dtype).index_add(0, ends[:, 0], sent)
    if model.aggregation != "sum":
        received = torch.zeros(len(nodes), dtype=nodes.dtype).index_add(0, ends[:, 0], weights)
        total = total / received.clamp_min(1e-300)[:, None]
        total = total * received.log1p()[:, None] if model.aggregation == "log" else total
    return model.update(total, nodes)


def log_prob(model: EdgeGraphModel, graph: EdgeList) -> Tensor:
    """Of one graph: ``[]``."""
    edges, times = graph.edges.tolist(), graph.times.tolist()
    nodes = torch.zeros(0, model.state, dtype=model.gate.weight.dtype)
    total = nodes.new_zeros(())
    for t, (sender, recipient) in enumerate(edges):
        end = nodes.new_tensor([1 / (len(edges) - t)] if model.sees_end else [])
        new = model.new_sender(torch.cat([whole(model, nodes), end]))
        total = total + torch.cat([model.sender(nodes), new[None]]).log_softmax(0)[sender]
        if sender == len(nodes):
            nodes = begun(model, nodes)
        sending = nodes[sender]
        old = model.recipient(torch.cat([nodes, sending.expand_as(nodes)], 1))
        new = model.new_recipient(torch.cat([whole(model, nodes), sending, end]))
        total = total + torch.cat([old, new[None]]).log_softmax(0)[recipient]
        if recipient == len(nodes):
            nodes = begun(model, nodes)
        first = 0 if model.window is None else max(0, t + 1 - model.window)
        ages = [times[t] - time for time in times[first : t + 1]]
        nodes = messages(model, nodes, edges[first : t + 1], ages)
    return total
