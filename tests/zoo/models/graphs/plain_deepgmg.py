"""DeepGMG written plainly: one graph, one choice after the other, messages along the list of edges.

The oracle of the batched model, and what the benchmark measures it against.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.models.graphs.deepgmg import ROUNDS, STATE, WHOLE, DeepGMG


def whole(model: DeepGMG, nodes: Tensor) -> Tensor:
    return (torch.sigmoid(model.gate(nodes)) * model.project(nodes)).sum(0)


def passed(model: DeepGMG, nodes: Tensor, edges: Sequence[tuple[int, int]]) -> Tensor:
    ends = torch.tensor([pair for u, v in edges for pair in ((u, v), (v, u))])
    for i in range(ROUNDS):
        sent = model.messages[i](torch.cat([nodes[ends[:, 0]], nodes[ends[:, 1]]], 1))
        received = nodes.new_zeros(len(nodes), WHOLE).index_add(0, ends[:, 0], sent)
        nodes = model.updates[i](received, nodes)
    return nodes


def log_prob(model: DeepGMG, graph: Sequence[Sequence[int]]) -> Tensor:
    """Of one graph's choices: ``[]``."""
    nodes, edges = model.kind.new_zeros(0, STATE), []
    total = model.kind.new_zeros(())
    for node, others in enumerate(graph):
        nodes = torch.cat([nodes, model.start(torch.cat([model.kind, whole(model, nodes)]))[None]])
        for trial in range(node):
            another = model.another(torch.cat([whole(model, nodes), nodes[node]])).squeeze()
            if trial == len(others):
                total = total + F.logsigmoid(-another)
                break
            total = total + F.logsigmoid(another)
            pairs = torch.cat([nodes[:node], nodes[node].expand(node, -1)], 1)
            total = total + model.end(pairs).squeeze(-1).log_softmax(0)[others[trial]]
            if (node, others[trial]) not in edges:
                edges.append((node, others[trial]))
                nodes = passed(model, nodes, edges)
    return total
