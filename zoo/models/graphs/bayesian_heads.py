"""The edge model with Bayesian last layers: any guide for Gaussian weights fits their posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor

from data_loaders.graphs.edge_lists import EdgeList
from zoo.models.graphs.edge_batches import Plan
from zoo.models.graphs.edge_graph import HEADS, HIDDEN, EdgeGraphModel, LastLayers


class BayesianHeads:
    """The last layers of a trained model given some graphs; everything below them stays as it is.

    ``w_head ~ N(0, scale^2)``, of four heads: 33 numbers each, the bias last.  What the layers see is
    computed once, so that a step of a guide is cheap.

    Sites: ``sender``, ``new_sender``, ``recipient``, ``new_recipient``: ``[33]`` each, under these names with
    ``_weights`` behind; observed ``sent`` and ``received: [edges]``.

    :param graphs: one batch
    :param scale: prior standard deviation
    """

    def __init__(self, model: EdgeGraphModel, graphs: Sequence[EdgeList], scale: float = 1.0) -> None:
        self.model, self.scale = model, scale
        with torch.no_grad():
            self.features = model.features(Plan.of(graphs))

    def __call__(self) -> None:
        """The Pyro model; it has no arguments."""
        like = self.model.gate.weight
        prior = dist.Normal(like.new_zeros(HIDDEN + 1), self.scale).to_event(1)
        last = {name: pyro.sample(f"{name}_weights", prior) for name in HEADS}
        choices = self.model.scored(self.features, last)
        with pyro.plate("edges", len(choices.sent)):
            pyro.sample("sent", dist.Categorical(logits=choices.sender), obs=choices.sent)
            pyro.sample("received", dist.Categorical(logits=choices.recipient), obs=choices.received)


def last_layers(draw: Mapping[str, Tensor]) -> LastLayers:
    """Of one draw of the sites of :class:`BayesianHeads`, for ``log_prob`` and ``sample`` of the model."""
    return {name: draw[f"{name}_weights"] for name in HEADS}
