"""The latent sites of a model as a mean-field guide sees them: names, shapes, families."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from pyro import distributions as dist
from pyro.ops.tensor_utils import periodic_repeat
from torch import Tensor
from torch.distributions import biject_to

from guides.core.distributions import SpikeSlab, base_prior
from guides.core.fused import pieces


class UnsupportedSiteError(ValueError):
    """A guide cannot answer a latent site of the model."""


def drawn_in_part(frame) -> bool:
    """Whether a plate (an entry of ``cond_indep_stack``) draws a minibatch of itself."""
    return frame.full_size not in (None, frame.size)


def require_whole_plates(name: str, node: dict, instead: str) -> None:
    """:raises UnsupportedSiteError: for a site in a subsampled plate, naming the guide to use ``instead``"""
    for frame in filter(drawn_in_part, node["cond_indep_stack"]):
        raise UnsupportedSiteError(
            f"site {name!r} lies in the subsampled plate {frame.name!r}; run the model on the whole plate, "
            f"or use {instead}"
        )


def require_density_of_points(name: str, node: dict) -> None:
    """:raises UnsupportedSiteError: for a spike and slab whose density is part of the score"""
    if node["mask"] is not False and isinstance(base_prior(node["fn"]), SpikeSlab):
        raise UnsupportedSiteError(
            f"site {name!r} has a spike and slab: a point has no density beside an atom; use AutoSpikeSlab"
        )


def require_centred(name: str, prior: dist.TorchDistribution) -> None:
    """:raises UnsupportedSiteError: for a Normal prior with a mean other than zero"""
    if base_prior(prior).loc.any():
        raise UnsupportedSiteError(
            f"site {name!r}: its Normal prior must be centred at zero; add the mean in the model"
        )


def checked_names(sites: Collection[str] | None) -> frozenset[str] | None:
    """Names of sites as a set; :raises ValueError: for a string, which is a collection of letters."""
    if isinstance(sites, str):
        raise ValueError(f"sites must be a collection of names, got a string; write sites=[{sites!r}]")
    return None if sites is None else frozenset(sites)


def require_known(names: Collection[str], latent: Collection[str]) -> None:
    """:raises ValueError: when the model has no latent site of one of the names"""
    unknown = ", ".join(map(repr, sorted(set(names) - set(latent))))
    if unknown:
        raise ValueError(
            f"sites: the model has no latent site {unknown}; it has {', '.join(latent) or 'none'}"
        )


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
    """Which family a prior asks for.

    :raises UnsupportedSiteError: for a discrete site, or one whose support has no map to it
    """
    base = base_prior(prior)
    if isinstance(base, SpikeSlab):
        return "spike_slab"
    if isinstance(base, dist.Normal):
        return "normal"
    if isinstance(base, dist.Gamma):
        return "lognormal"
    if prior.support.is_discrete:
        raise UnsupportedSiteError(
            f"site {name!r} is discrete ({type(base).__name__}): marginalise it in the model, or enumerate "
            f"it (pyro.infer.config_enumerate): put this guide, of poutine.block(model, hide=[{name!r}]), "
            "into Pyro's AutoGuideList and train with TraceEnum_ELBO"
        )
    try:
        biject_to(prior.support)
    except NotImplementedError:
        raise UnsupportedSiteError(
            f"site {name!r}: no map leads from unconstrained numbers to the support of "
            f"{type(base).__name__}; hide the site with poutine.block and give it a guide of its own in "
            "Pyro's AutoGuideList"
        ) from None
    return "transformed"


def full_batch_shape(shape: torch.Size, frames: Iterable) -> torch.Size:
    """A site's batch shape with every subsampled plate at its full size."""
    full = list(shape)
    for frame in frames:
        if drawn_in_part(frame) and full[frame.dim] == frame.size:
            full[frame.dim] = frame.full_size
    return torch.Size(full)


def repeat_to_full(tensor: Tensor, site: Site, frames: Iterable) -> Tensor:
    """Initial values for whole plates from those of the subsample that the set-up run happened to see."""
    for frame in frames:
        dim = frame.dim - site.event_dim
        if drawn_in_part(frame) and tensor.dim() >= -dim:
            tensor = periodic_repeat(tensor, frame.full_size, dim)
    return tensor.expand(site.shape)


def require_same_sites(kept: Iterable[Site], found: Iterable[Site]) -> None:
    """:raises ValueError: when a model has not just the sites that existing parameters were made for"""
    layout = {site.name: (site.family, site.shape) for site in kept}
    for site in found:
        if layout.pop(site.name, None) != (site.family, site.shape):
            raise ValueError(
                f"site {site.name!r} of the model is not what the guide's parameters were made for"
            )
    if layout:
        raise ValueError(
            f"the guide has parameters for site {next(iter(layout))!r}, the model has no such site"
        )


def require_data_at_set_up(
    observed: Collection[str], latent: Iterable[str], nodes: Mapping[str, dict]
) -> None:
    """That a guide which was set up without any data is given none later: its target has a law, from which it
    would be predicted.

    :param observed: names of the sites that had data at set-up
    :param latent: of those that have a law
    :param nodes: of a run of the model
    :raises ValueError: naming a site that has a law and data
    """
    given = [name for name in latent if name in nodes and nodes[name]["is_observed"]]
    if given and not observed:
        raise ValueError(
            f"site {given[0]!r} had no data when the guide was set up, and has got a law of its own: make a "
            "new guide, and its first call with the data"
        )


def require_same_plates(site: Site, prior: dist.TorchDistribution, frames: Iterable) -> None:
    """:raises ValueError: when a plate around the site has another size than in the set-up run"""
    for frame in frames:
        kept = site.batch_shape[frame.dim] if -frame.dim <= len(site.batch_shape) else None
        size = frame.full_size or frame.size
        if kept not in (None, 1, size) and prior.batch_shape[frame.dim] == frame.size:
            raise ValueError(
                f"site {site.name!r}: the guide was fitted with {kept} of plate {frame.name!r}, this "
                f"call has {size}; give the model the number that it was fitted with (a plate of groups "
                "keeps its groups when the rows are new), or fit again"
            )


def site_views(sites: Iterable[Site], flat: Tensor) -> list[Tensor]:
    """Cuts a flat vector into one tensor per site."""
    shapes = [torch.Size(site.shape) for site in sites]
    return list(pieces(flat, shapes)) if shapes else []


def input_axis(site: Site, recorded: int | None) -> int:
    """The site's axis over a layer's inputs: the second of a matrix or filters, the first of ``x @ w``.

    :param recorded: the axis that a linear layer was seen to sum over
    """
    plates = len(site.batch_shape)
    if site.event_dim < 2:
        return plates
    transposed = site.event_dim == 2 and recorded == plates
    return plates if transposed else plates + 1


def shape_over_inputs(site: Site, axis: int) -> list[int]:
    """The shape of one number for each of a layer's inputs, of every copy in plates: it broadcasts against
    ``[*site]``.

    :param axis: of the inputs (:func:`input_axis`)
    """
    kept = (axis, *range(len(site.batch_shape)))
    return [size if i in kept else 1 for i, size in enumerate(site.shape)]
