"""Where a fit starts: values for the latent sites of a model, as ``init_loc_fn``."""

from __future__ import annotations

import math

import torch
from pyro import distributions as dist
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor

from guides.core.distributions import SpikeSlab, base_prior


def initial_value(site: dict) -> Tensor:
    """Default start: small random weights, which tell hidden units apart, and the prior's median for every
    other site.

    A weight with a Normal prior (or slab) starts at a draw from it, with the sd held below
    ``1 / sqrt(inputs)``: draws from a wide prior would saturate a network, or overflow an exponential link.
    A single number with a Normal prior starts at a draw too; a posterior with several modes may so end in
    another one by another seed.
    """
    base = base_prior(site["fn"])
    if not isinstance(base, (dist.Normal, SpikeSlab)):
        return init_to_median(site)
    event = site["fn"].event_shape
    inputs = max(1, event[1:].numel() if len(event) > 1 else event.numel())  # a layer may be empty
    return torch.normal(base.loc, base.scale.clamp_max(inputs**-0.5)).expand(site["fn"].shape())


def init_to_he(site: dict) -> Tensor:
    """A start for networks with rectified units, as ``init_loc_fn``: weights from ``N(0, 2 / fan_in)`` (He,
    Zhang, Ren and Sun 2015), vectors at zero, and other sites as in :func:`initial_value`.
    """
    value = initial_value(site)
    if not isinstance(base_prior(site["fn"]), (dist.Normal, SpikeSlab)):
        return value
    event = site["fn"].event_shape
    if len(event) < 2:
        return torch.zeros_like(value)
    return torch.empty_like(value).normal_(0.0, math.sqrt(2 / max(1, event[1:].numel())))
