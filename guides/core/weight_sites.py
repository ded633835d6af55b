"""The latent sites of a Pyro model as one vector, for laws that come out of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import constraints, transforms
from torch.func import vmap

from guides.core.arguments import FixedParameters, check_pairing, check_parameters, check_tensors
from guides.core.distributions import base_prior
from guides.core.rng import kept_rng
from guides.core.sites import UnsupportedSiteError, drawn_in_part

#: Supports of sites, by their names in a file: maps from all real numbers.
MAPS: dict[str, transforms.Transform] = {
    "real": transforms.identity_transform,
    "positive": transforms.ExpTransform(),
    "unit_interval": transforms.SigmoidTransform(),
}
KINDS = {
    "real": constraints.real,
    "positive": constraints.positive,
    "unit_interval": constraints.unit_interval,
}


@dataclass(frozen=True)
class WeightSites:
    """Names, shapes and supports of a model's latent sites, in the order of the vector; JSON-safe.

    :ivar sites: ``((name, shape, support), ...)``
    """

    sites: tuple[tuple[str, tuple[int, ...], str], ...]

    @classmethod
    def of(cls, model: Callable, args: tuple) -> WeightSites:
        """From one run of the model.

        :raises UnsupportedSiteError: a site is discrete, has another support than the real or the positive
            numbers or the unit interval, or lies in a minibatch of a plate; there is none at all; a plate
            draws rows of its own, or rows of the data have weights
        :raises ValueError: a parameter without a prior that is not fixed; no data
        :raises TypeError: an argument that is no tensor but NumPy's or a table
        """
        check_tensors(args)
        check_parameters(model, args)
        with torch.no_grad(), kept_rng(), poutine.block(), FixedParameters():
            trace = poutine.trace(model).get_trace(*args)
        check_data(trace)
        found = []
        for name, node in trace.nodes.items():
            if node["type"] != "sample" or node["is_observed"] or site_is_subsample(node):
                continue
            if any(map(drawn_in_part, node["cond_indep_stack"])):
                raise UnsupportedSiteError(f"site {name!r} lies in a plate that draws a minibatch of itself")
            check_whole(name, node)
            found.append((name, tuple(node["value"].shape), _support(name, node["fn"])))
        if not found:
            raise UnsupportedSiteError("the model has no latent site")
        if not any(map(_is_observation, trace.nodes.values())):
            raise ValueError("the model observes nothing: pass its data")
        return cls(tuple(found))

    @classmethod
    def from_json(cls, sites: list) -> WeightSites:
        """From what a file keeps of :attr:`sites`."""
        return cls(tuple((name, tuple(shape), support) for name, shape, support in sites))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each site has."""
        return [math.prod(shape) for _, shape, _ in self.sites]

    def __len__(self) -> int:
        return sum(self.sizes)

    def values(self, w: Tensor) -> dict[str, Tensor]:
        """``w: [..., D]`` of real numbers -> ``{site: [..., *site]}`` on their supports."""
        parts = w.split(self.sizes, -1)
        return {
            name: MAPS[support](part.reshape((*w.shape[:-1], *shape)))
            for (name, shape, support), part in zip(self.sites, parts, strict=True)
        }

    def log_jacobian(self, w: Tensor) -> Tensor:
        """Log of the volume that the maps to the supports stretch by, ``[D] -> []``."""
        parts = w.split(self.sizes, -1)
        total = w.new_zeros(())
        for (_, _, support), part in zip(self.sites, parts, strict=True):
            if support != "real":
                total = total + MAPS[support].log_abs_det_jacobian(part, MAPS[support](part)).sum()
        return total


def _is_observation(node: Mapping) -> bool:
    """Data, or a factor; no plate and no ``pyro.deterministic``."""
    is_sample = node["type"] == "sample" and node["is_observed"] and not site_is_subsample(node)
    return is_sample and not node["infer"].get("_deterministic")


def check_whole(name: str, node: Mapping) -> None:
    """:raises UnsupportedSiteError: for a latent site of which a mask hides elements: they have no density"""
    masks = (node["mask"], getattr(node["fn"], "_mask", None))
    if any(mask is not None and not torch.as_tensor(mask).all() for mask in masks):
        raise UnsupportedSiteError(
            f"site {name!r}: a mask hides elements of it, which have no density then and no posterior "
            "(targets that obs_mask leaves out among them): give the model the rows that were seen, or drop "
            "the mask"
        )


def check_data(trace: poutine.Trace) -> None:
    """:raises UnsupportedSiteError: what cannot be asked of all draws side by side
    :raises ValueError: data and laws whose shapes do not pair
    """
    for name, node in trace.nodes.items():
        if node["type"] != "sample":
            continue
        if site_is_subsample(node) and (node["fn"].subsample_size or node["fn"].size) < node["fn"].size:
            raise UnsupportedSiteError(
                f"plate {name!r} draws rows of its own: make it as long as the data, or say which rows there "
                "are (subsample=torch.arange(len(x))); minibatches are those of fit(..., batch_size=...)"
            )
        if not node["is_observed"] or site_is_subsample(node):
            continue
        check_pairing(node)
        if torch.as_tensor(node["scale"]).numel() > 1:
            raise UnsupportedSiteError(
                f"site {name!r}: rows have weights of their own (poutine.scale); only one number is taken"
            )


@dataclass(frozen=True)
class Scores:
    """What a model says of draws ``w: [S, D]``.

    :ivar log_prior: of the real numbers ``w``, ``[S]``, nats
    :ivar log_likelihoods: of every observed site: one number an observation, ``[S, n]``, and how often an
        observation counts (rows of the whole data to one of a minibatch).  An observation is one event of the
        site: of what belongs to one row there are several, unless it is one event (``to_event(1)``)
    """

    log_prior: Tensor
    log_likelihoods: list[tuple[Tensor, float]]


def scores(model: Callable, sites: WeightSites, w: Tensor, args: tuple) -> Scores:
    """All draws side by side (``torch.func.vmap``), with gradients."""
    scales: list[float] = []

    def question(draw: Tensor) -> tuple[Tensor, ...]:
        trace = poutine.trace(poutine.condition(model, sites.values(draw))).get_trace(*args)
        trace.compute_log_prob()
        latent = {name for name, _, _ in sites.sites}
        prior, terms = sites.log_jacobian(draw), []
        scales.clear()
        for name, node in trace.nodes.items():
            if node["type"] != "sample" or site_is_subsample(node):
                continue
            if name in latent:
                prior = prior + node["log_prob_sum"]
            elif node["is_observed"]:
                terms.append(scale_and_mask(node["unscaled_log_prob"], mask=node["mask"]).reshape(-1))
                scales.append(float(node["scale"]))
        return prior, *terms

    with poutine.block(), FixedParameters(), pyro.validation_enabled(False):
        try:
            prior, *terms = vmap(question)(w)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            why = str(error).partition(". ")[0]
            raise UnsupportedSiteError(
                f"the model cannot be asked of all draws side by side (torch.func.vmap): {why}; write what "
                "does so in another way, dist.OrderedLogistic for instance, which writes in place, as a "
                "Categorical of its probabilities"
            ) from error
    return Scores(prior, list(zip(terms, scales, strict=True)))


def _support(name: str, law: dist.TorchDistribution) -> str:
    support = law.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    for kind, constraint in KINDS.items():
        if support is constraint:
            return kind
    if support is constraints.nonnegative:
        return "positive"
    if _is_unit(support):
        return "unit_interval"
    raise UnsupportedSiteError(
        f"site {name!r} of a {type(base_prior(law)).__name__}: its support is {support}, and must be "
        "the real numbers, the positive ones or the unit interval"
    )


def _is_unit(support: constraints.Constraint) -> bool:
    """Whether all bounds are 0 and 1: the support of ``Uniform(0, 1)`` is no constant of torch's."""
    if not isinstance(support, constraints.interval):
        return False
    low, high = torch.as_tensor(support.lower_bound), torch.as_tensor(support.upper_bound)
    return bool((low == 0).all() and (high == 1).all())
