"""The latent sites of a model as a mean-field guide sees them: names, shapes, families, starting values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from pyro import distributions as dist
from pyro.infer.autoguide.initialization import init_to_median
from pyro.ops.tensor_utils import periodic_repeat
from torch import Tensor

from guides.distributions import SpikeSlab
from guides.fused import pieces
from guides.laws import base_prior


class UnsupportedSiteError(ValueError):
    """A guide cannot answer a latent site of the model."""


@dataclass(frozen=True)
class Site:
    """One latent site of the model, as the guide parametrises it.

    :ivar family: ``normal`` (Gaussian prior), ``spike_slab``, ``lognormal`` (Gamma prior) or ``transformed``
    :ivar batch_shape: plates around the site, at their full size
    :ivar shape: the unconstrained parameters, ``[*batch, *event]``
    :ivar by_moments: whether the site enters exactly one linear layer, so that the LRT is right
    :ivar multiplied: the axis along which latent multipliers scale the site's means, or None for none
    """

    name: str
    family: str
    batch_shape: tuple[int, ...]
    shape: tuple[int, ...]
    by_moments: bool = False
    multiplied: int | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def event_dim(self) -> int:
        return len(self.shape) - len(self.batch_shape)

    @property
    def is_transformed(self) -> bool:
        return self.family in ("lognormal", "transformed")


def site_family(name: str, prior: dist.TorchDistribution) -> str:
    """Which family a prior asks for; :raises UnsupportedSiteError: for a discrete site."""
    base = base_prior(prior)
    if isinstance(base, SpikeSlab):
        return "spike_slab"
    if isinstance(base, dist.Normal):
        return "normal"
    if isinstance(base, dist.Gamma):
        return "lognormal"
    if prior.support.is_discrete:
        raise UnsupportedSiteError(
            f"site {name!r} is discrete ({type(base).__name__}): marginalise it in the model, or hide it "
            "with poutine.block and give it a guide of its own"
        )
    return "transformed"


def initial_value(site: dict) -> Tensor:
    """Default start: small random weights, which tell hidden units apart, and the prior's median for every
    other site.

    A weight with a Normal prior (or slab) starts at a draw from it, with the sd held below
    ``1 / sqrt(inputs)``: draws from a wide prior would saturate a network, or overflow an exponential link.
    """
    base = base_prior(site["fn"])
    if not isinstance(base, (dist.Normal, SpikeSlab)):
        return init_to_median(site)
    event = site["fn"].event_shape
    inputs = event[1:].numel() if len(event) > 1 else event.numel()
    return torch.normal(base.loc, base.scale.clamp_max(inputs**-0.5)).expand(site["fn"].shape())


def full_batch_shape(shape: torch.Size, frames: Iterable) -> torch.Size:
    """A site's batch shape with every subsampled plate at its full size."""
    full = list(shape)
    for frame in frames:
        if frame.full_size is not None and full[frame.dim] == frame.size:
            full[frame.dim] = frame.full_size
    return torch.Size(full)


def repeat_to_full(tensor: Tensor, site: Site, frames: Iterable) -> Tensor:
    """Initial values for whole plates from those of the subsample that the set-up run happened to see."""
    for frame in frames:
        dim = frame.dim - site.event_dim
        if frame.full_size is not None and frame.full_size != frame.size and tensor.dim() >= -dim:
            tensor = periodic_repeat(tensor, frame.full_size, dim)
    return tensor.expand(site.shape)


def site_views(sites: Iterable[Site], flat: Tensor) -> list[Tensor]:
    """Cuts a flat vector into one tensor per site."""
    shapes = [torch.Size(site.shape) for site in sites]
    return list(pieces(flat, shapes)) if shapes else []
