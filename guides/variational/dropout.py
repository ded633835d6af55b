"""Dropout as a variational guide: MC dropout (Gal and Ghahramani 2016) and concrete dropout (Gal, Hron and
Kendall 2017, the "BNN-GP-CMF" of Hubin and Storvik 2019), on any Pyro model.

The law of a weight matrix is ``w = M diag(z)``, ``z_i ~ Bernoulli(1 - p)``: all weights of an input are on or
off together (of an input channel, in a convolution).  Every other site is a point estimate.  A point has no
density, so what stands in place of the KL divergence is one up to an infinite constant: the cross-entropy to
the model's prior, ``(1 - p) (-log prior(M)) + p (-log prior(0))`` for each weight, minus the entropy
``H(p)`` for each input.  For a Gaussian prior this is the papers' regulariser, weight decay ``(1 - p)/2
|M|^2 / s^2 - K H(p)``. Losses of these guides compare among themselves, not with evidence bounds.

The papers draw a mask for each row of the data; here the rows of a step share one, as those of a drawn
network do: the same expected loss with a noisier gradient (``num_particles`` averages it).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import cached_property, partial

import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn
from torch.distributions import biject_to

from guides.core.checks import check_numbers
from guides.core.distributions import base_prior
from guides.core.flat_guide import FlatGuide
from guides.core.laws import ClosedFormPrior, SiteLaw
from guides.core.moments import bernoulli_entropy
from guides.core.rng import kept_rng
from guides.core.sites import (
    Site,
    UnsupportedSiteError,
    checked_names,
    input_axis,
    require_density_of_points,
    require_known,
    require_whole_plates,
    shape_over_inputs,
    site_views,
)
from guides.core.starts import initial_value
from guides.core.weight_laws import RandomTensorLaw


class PointLaw(SiteLaw):
    """A point estimate, scored by the prior's density there.

    :param value: ``[*site]``
    """

    def __init__(self, name, batch_shape, event_shape, value: Tensor, *, prior, **_):
        super().__init__(name, batch_shape, event_shape)
        self.value, self.prior = value, prior

    @property
    def support(self):
        return self.prior.support

    def rsample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        return self.value.expand(torch.Size(sample_shape) + self.leading + self.value.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.value.new_zeros(self.batch_shape)

    @property
    def kl(self) -> Tensor:
        """``-log prior(value)``, ``[*batch]``."""
        return -self.prior.log_prob(self.rsample()).expand(self.batch_shape)


class DropoutLaw(RandomTensorLaw):
    """``w = M z`` with one ``z`` for each input.

    :param loc: ``M [*site]``
    :param rate_logit: log-odds of being dropped, ``[]``
    :param axis: the site's axis over the inputs
    :param temperature: of relaxed masks while gradients are wanted; None for real ones
    """

    def __init__(self, name, batch_shape, event_shape, loc, rate_logit, *, axis, temperature, **kwargs):
        super().__init__(name, batch_shape, event_shape, loc, None, **kwargs)
        self.rate_logit, self.axis, self.temperature = rate_logit, axis, temperature

    @property
    def _full_shape(self) -> torch.Size:
        return self.leading + self.loc.shape

    @property
    def _mask_shape(self) -> torch.Size:
        own = (n if i in (self.axis, *range(self.plate_dims)) else 1 for i, n in enumerate(self.loc.shape))
        return self.leading + torch.Size(own)

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, None]:
        rate = torch.sigmoid(self.rate_logit)
        return (1 - rate) * self.loc, rate * (1 - rate) * self.loc**2, None

    @cached_property
    def minus_entropy(self) -> Tensor:
        """Of the masks, ``[*batch]``."""
        entropy = self.loc.shape[self.axis] * bernoulli_entropy(self.rate_logit)
        return -entropy.expand(self.batch_shape)

    def expected_log_prob(self, prior: TorchDistribution) -> Tensor:
        rate, zero = torch.sigmoid(self.rate_logit), torch.zeros_like(self.loc)
        elementwise = (1 - rate) * prior.log_prob(self.loc) + rate * prior.log_prob(zero)
        return elementwise.expand(self._full_shape)

    def _draw(self, operation: str) -> Tensor:
        uniform = torch.rand(self._mask_shape, dtype=self.loc.dtype, device=self.loc.device)
        if self.temperature is not None and torch.is_grad_enabled() and self.uses.wants_grad:
            mask = torch.sigmoid((torch.logit(uniform) - self.rate_logit) / self.temperature)
        else:
            mask = (uniform >= torch.sigmoid(self.rate_logit)).to(self.loc.dtype)
        return self.loc * mask


class AutoDropout(FlatGuide):
    """MC dropout: weights lose each input with a given probability, all else is a point estimate.

    ``guide.draws`` and ``Predictive`` give networks with masks drawn once each, shared by all rows.  See the
    module's docstring for the law and for what its loss means.

    :param model: a Pyro model
    :param rate: probability of dropping an input
    :param sites: names of the weights that lose inputs; by default all sites with a Normal prior and at least
        two event dimensions.  ``()``: none, which makes all of it a point estimate.
    :param init_loc_fn: start of ``M`` and of the point estimates
    :raises UnsupportedSiteError: at the first call, for a SpikeSlab prior or a site in a subsampled plate
    :raises ValueError: at the first call, when ``sites`` are not those of the model, or none loses inputs
    """

    temperature: float | None = None
    has_entropy = False

    def __init__(
        self,
        model: Callable,
        *,
        rate: float = 0.1,
        sites: Collection[str] | None = None,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
    ):
        super().__init__(model, init_loc_fn=init_loc_fn)
        if not 0 < rate < 1:
            raise ValueError(f"rate must lie in (0, 1), got {rate}")
        self.rate, self.dropped = float(rate), checked_names(sites)
        self._axes: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------------------

    def _make_site(self, name: str, node: dict) -> Site:
        site = super()._make_site(name, node)
        require_whole_plates(name, node, "AutoMeanField")
        require_density_of_points(name, node)
        if self.dropped is not None and name in self.dropped:
            if site.event_dim == 0:
                raise UnsupportedSiteError(
                    f"site {name!r} has no event dimension over its layer's inputs; leave it out of sites"
                )
            if site.is_transformed:
                raise UnsupportedSiteError(f"site {name!r} has no Normal prior; leave it out of sites")
        return site

    def _loses_inputs(self, site: Site) -> bool:
        if self.dropped is None:
            return site.event_dim >= 2 and not site.is_transformed
        return site.name in self.dropped

    def _make_parameters(self, latent) -> None:
        if self.dropped is not None:
            require_known(self.dropped, self.sites)
        elif not any(map(self._loses_inputs, self.sites.values())):
            raise ValueError(
                f"{type(self).__name__}: no site of the model ({', '.join(self.sites)}) has a Normal prior "
                "and two event dimensions; name the weights by sites=[...], or say sites=() for points alone"
            )
        super()._make_parameters(latent)
        del self.log_scale

    def _initial_rates(self) -> Tensor:
        """Log-odds of dropping an input, ``[weight sites]``."""
        count = sum(self._loses_inputs(site) for site in self.sites.values())
        return torch.logit(torch.full((count,), self.rate)).to(self.loc)

    def _views(self, loc: Tensor, rate_logits: Tensor | None = None) -> dict[str, tuple[Tensor, ...]]:
        """``(point,)`` of every site in unconstrained space, ``(M, log-odds of the rate)`` of a weight."""
        logits = iter(self._initial_rates() if rate_logits is None else rate_logits)
        views = zip(self.sites.values(), site_views(self.sites.values(), loc), strict=True)
        return {
            site.name: (piece, next(logits)) if self._loses_inputs(site) else (piece,)
            for site, piece in views
        }

    def _record_uses(self, *args, **kwargs) -> None:
        super()._record_uses(*args, **kwargs)
        for site in self.sites.values():
            if self._loses_inputs(site):
                self._axes[site.name] = input_axis(site, self._uses[site.name].axis)
        with kept_rng(), torch.enable_grad(), poutine.block():
            self(*args, **kwargs)
        self._warn_of_learned_scales()

    def _warn_of_learned_scales(self) -> None:
        """Points ``w = 0`` with a prior of scale zero have a density without bound: hierarchies collapse."""
        for name in self.sites:
            prior = self.trace.nodes[name]["infer"]["prior"]
            prior = base_prior(prior.prior if isinstance(prior, ClosedFormPrior) else prior)
            scale = getattr(prior, "scale", None)
            if isinstance(scale, Tensor) and scale.requires_grad:
                warnings.warn(
                    f"site {name!r}: the scale of its prior is trained too, and {type(self).__name__} makes "
                    "points of both: they will shrink to zero together; fix the scale, or use AutoMeanField",
                    stacklevel=2,
                )

    def _allows_moments(self, site: Site) -> bool:
        return False

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        if not self._loses_inputs(site):
            return PointLaw
        axis = self._axes.get(site.name, input_axis(site, None))
        return partial(DropoutLaw, axis=axis, temperature=self.temperature)

    def get_posterior(self, name: str, prior: TorchDistribution, frames=()) -> SiteLaw:
        site = self.sites[name]
        if not site.is_transformed:
            return super().get_posterior(name, prior, frames)
        value = biject_to(prior.support)(self._tensors[name][0])
        return PointLaw(name, torch.Size(site.batch_shape), prior.event_shape, value, prior=prior)

    # ------------------------------------------------------------------------------------------------------
    # Looking at the fit

    def dropout_rates(self) -> dict[str, float]:
        """Probability of dropping an input, by weight site."""
        return {
            name: torch.sigmoid(parts[1]).item() for name, parts in self._detached().items() if len(parts) > 1
        }

    def _draw(self, parameters: dict, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        result = {}
        for name, (loc, *rate) in parameters.items():
            value = loc.expand(n, *loc.shape)
            if rate:
                shape = shape_over_inputs(self.sites[name], self._axes[name])
                like = {"generator": generator, "dtype": loc.dtype, "device": loc.device}
                uniform = torch.rand((n, *shape), **like)
                value = value * (uniform >= torch.sigmoid(rate[0]))
            result[name] = self._constrain(name, value)
        return result

    def site_distribution(self, name: str) -> dist.TorchDistribution:
        """Not there: points have no density.  :raises NotImplementedError:"""
        raise NotImplementedError(f"site {name!r}: points and masked points have no density; use draws()")

    @torch.no_grad()
    def mean_of_site(self, name: str) -> Tensor:
        """As for every guide: ``(1 - p) M`` of a weight, the point of another site."""
        if self.sites[name].is_transformed:
            return super().mean_of_site(name)
        loc, *rate = self._detached()[name]
        return loc * (1 - torch.sigmoid(rate[0])) if rate else loc.clone()

    def _quantiles_of_site(self, name: str, levels: Tensor) -> Tensor:
        loc, *rate = self._detached()[name]
        levels = levels.reshape(-1, *(1,) * loc.dim())
        if not rate:
            return loc.expand(len(levels), *loc.shape)
        dropped = torch.sigmoid(rate[0])
        zero = torch.where(loc > 0, levels < dropped, levels >= 1 - dropped)
        return torch.where(zero, torch.zeros_like(loc), loc)

    def get_extra_state(self) -> dict:
        return {**super().get_extra_state(), "axes": self._axes, "rate": self.rate}

    def _take_layout(self, layout: dict) -> None:
        super()._take_layout(layout)
        self._axes, self.rate = dict(layout["axes"]), layout["rate"]
        self.dropped = frozenset(self._axes)


class AutoConcreteDropout(AutoDropout):
    """:class:`AutoDropout` with the rate of every weight site learnt, through masks relaxed at a temperature
    while gradients are wanted; real masks otherwise.

    :param rate: start of the rates
    :param temperature: of the relaxed masks

    Other arguments as for :class:`AutoDropout`.
    """

    def __init__(
        self,
        model: Callable,
        *,
        temperature: float = 0.1,
        rate: float = 0.1,
        sites: Collection[str] | None = None,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
    ):
        super().__init__(model, rate=rate, sites=sites, init_loc_fn=init_loc_fn)
        check_numbers(temperature=temperature)
        self.temperature = float(temperature)

    def _make_parameters(self, latent) -> None:
        super()._make_parameters(latent)
        self.rate_logits = nn.Parameter(self._initial_rates())
