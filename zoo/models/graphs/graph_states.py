"""What models of growing graphs do with the states of nodes, for many graphs at once.

States are ``[B, W, d]``: W nodes in each of B graphs, of which some are not there yet and hold anything.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fitted(nodes: Tensor, alive: int, width: int) -> Tensor:
    """The first ``alive`` graphs, cut or filled up with zeros to so many nodes."""
    nodes = nodes[:alive, :width]
    missing = width - nodes.shape[1]
    return F.pad(nodes, (0, 0, 0, missing)) if missing else nodes


def whole_graph(nodes: Tensor, there: Tensor, gate: nn.Linear, project: nn.Linear) -> Tensor:
    """A graph ``[B, k]`` as the gated sum of projections of its nodes, of those that are ``there: [B, W]``;
    zeros if none is.
    """
    share = torch.sigmoid(gate(nodes).squeeze(-1)) * there
    pooled = torch.bmm(share[:, None], nodes).squeeze(1)
    return F.linear(pooled, project.weight) + share.sum(1, keepdim=True) * project.bias


def joined_to(nodes: Tensor, state: Tensor, place: Tensor, number: Tensor, opens: Tensor) -> Tensor:
    """With a ``state: [B, d]`` at node ``number: [B]`` in the graphs where one ``opens: [B]``.

    :param place: ``[W]``, 0 .. W - 1
    """
    begun = (place == number[:, None]) & opens[:, None]
    return torch.where(begun[..., None], state[:, None], nodes)


def folded(message: nn.Linear, update: nn.GRUCell) -> Tensor:
    """A linear message of (own state, other state) and the input of the update as one matrix ``[3d, 2d + 1]``
    of (own state times messages received, received states, messages received).
    """
    both = torch.cat([message.weight, message.bias[:, None]], 1)
    return update.weight_ih @ both


def round_of_messages(
    nodes: Tensor, adjacency: Tensor, degree: Tensor, fold: Tensor, update: nn.GRUCell
) -> Tensor:
    """All nodes after they have received messages.

    :param adjacency: ``[B, W, W]``, weight of the message of each column in each row
    :param degree: ``[B W]``, its row sums
    :param fold: of :func:`folded`
    """
    flat, degree = nodes.reshape(-1, nodes.shape[-1]), degree[:, None]
    received = torch.bmm(adjacency, nodes).reshape(flat.shape)
    inputs = torch.cat([degree * flat, received, degree], 1)
    new = torch.gru_cell(inputs, flat, fold, update.weight_hh, update.bias_ih, update.bias_hh)
    return new.view_as(nodes)
