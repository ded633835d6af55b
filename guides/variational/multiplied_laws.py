"""Laws of weights whose means are scaled by latent multipliers ``z`` (see :mod:`.multipliers`): given ``z``
Gaussians, or spikes and slabs.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from guides.core.fused import MultipliedSpikeSlabSite
from guides.core.laws import SiteLaw
from guides.core.layer_noise import TINY_VARIANCE
from guides.core.weight_laws import GaussianLaw, RandomTensorLaw, SpikeSlabLaw
from guides.variational.multipliers import Multipliers


class _Multiplied(RandomTensorLaw):
    """A law whose means are scaled by a draw of ``z``, made once: means, draws and the KL share it."""

    _per_shape = SiteLaw._per_shape | {"multipliers_and_density", "loc", "moments_and_kl", "cost"}

    def __init__(
        self, name, batch_shape, event_shape, loc, *args, multipliers: Multipliers, axis: int, **kwargs
    ):
        super().__init__(name, batch_shape, event_shape, loc, *args, **kwargs)
        self._unit_loc = self.__dict__.pop("loc")
        self._multipliers, self._axis = multipliers, axis

    @property
    def by_particle(self) -> bool:
        return bool(self.leading)

    @cached_property
    def multipliers_and_density(self) -> tuple[Tensor, Tensor]:
        """``(z [*leading, d], log q(z) [*leading])``, the base's part of the density in expectation."""
        unit = self._unit_loc
        shape = (*self.leading, unit.shape[self._axis])
        noise = torch.randn(shape, dtype=unit.dtype, device=unit.device)
        return self._multipliers(noise, expected=True)

    @cached_property
    def loc(self) -> Tensor:
        """``z_i mu_ij``, ``[*leading, *site]``."""
        z = self.multipliers_and_density[0]
        return self._unit_loc * along(z, self._axis, self._unit_loc.dim())

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, Tensor | None]:
        mean, variance, kl = super().moments_and_kl
        return mean, variance.expand(mean.shape), kl

    @cached_property
    def cost(self) -> Tensor:
        """``log q(z) - log r(z | w)``, ``[*leading]``."""
        z, log_density = self.multipliers_and_density
        activation = self._seen().reshape(*self.leading, -1)
        return log_density - self._multipliers.log_auxiliary(z, activation)

    def _seen(self) -> Tensor:
        """A draw of ``sum_i c_i w_ij``, which the auxiliary density sees, ``[*leading, *site without the
        multipliers' axis]``: from its own law given ``z``, which is Gaussian for Gaussian weights, and for
        spikes and slabs in the limit of many of them, as in every layer.
        """
        activation, spread = self._seen_moments()
        return activation + (spread + TINY_VARIANCE).sqrt() * torch.randn_like(spread)

    def _seen_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of ``sum_i c_i w_ij``, ``[*leading, *site without the multipliers' axis]``."""
        contraction, (mean, variance, *_) = self._multipliers.contraction, self.moments_and_kl
        return self._contracted(mean, contraction), self._contracted(variance, contraction.square())

    def _contracted(self, values: Tensor, contraction: Tensor) -> Tensor:
        """``sum_i c_i v_ij``, ``[*leading, *site without the multipliers' axis]``."""
        return torch.tensordot(values, contraction, ([len(self.leading) + self._axis], [0]))

    def _shared_prior(self, family: type, *names: str) -> list[Tensor] | None:
        return None if self.leading else super()._shared_prior(family, *names)  # one KL for each particle

    _log_density = RandomTensorLaw._log_density  # a mixture over z

    def _spread_cost(self) -> Tensor:
        """:attr:`cost` in equal parts over the site's plates, ``[*batch]``."""
        own = self.batch_shape[len(self.leading) :]
        if not own:
            return self.cost
        return (self.cost / own.numel()).reshape(self.leading + (1,) * len(own)).expand(self.batch_shape)

    @cached_property
    def minus_entropy(self) -> Tensor:
        return -self._sum_events(self._entropy()) + self._spread_cost()

    @property
    def kl(self) -> Tensor:
        *_, kl = self.moments_and_kl
        if kl is not None:
            return kl + self._spread_cost()
        return super().kl


class MultipliedGaussianLaw(_Multiplied, GaussianLaw):
    """``Normal(z_i mu_ij, sigma_ij)`` given ``z``."""


class MultipliedSpikeSlabLaw(_Multiplied, SpikeSlabLaw):
    """A spike and slab with slab ``Normal(z_i mu_ij, sigma_ij)`` given ``z``."""

    _per_shape = _Multiplied._per_shape | {"_fused"}

    def _seen(self) -> Tensor:
        """Without gradients from drawn weights, so that what ``evaluate_loss`` reports is a bound."""
        if torch.is_grad_enabled():
            return super()._seen()
        if "_value" not in self.__dict__:  # no layer has asked for the weights
            self._value = self._draw("the auxiliary density")
        return self._contracted(self._value, self._multipliers.contraction)

    @cached_property
    def _fused(self) -> tuple[Tensor, ...] | None:
        """Moments, KL and what the auxiliary density sees, in one pass over a large site."""
        parameters = self.logits, self._unit_loc, self.log_scale
        if self.leading or self._axis != self._unit_loc.dim() - 1:
            return None
        prior = self.shared_prior
        if prior is None or not MultipliedSpikeSlabSite.applies(*parameters):
            return None
        z, contraction = self.multipliers_and_density[0], self._multipliers.contraction
        return MultipliedSpikeSlabSite.apply(*parameters, z, contraction, *prior)

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return super().moments_and_kl if self._fused is None else self._fused[:3]

    def _seen_moments(self) -> tuple[Tensor, Tensor]:
        return super()._seen_moments() if self._fused is None else self._fused[3:]


def along(z: Tensor, axis: int, dims: int) -> Tensor:
    """``[..., d]`` against a site of ``dims`` dimensions: ``[..., 1, .., d, .., 1]``, ``d`` at ``axis``."""
    return z.reshape(*z.shape[:-1], *(1,) * axis, z.shape[-1], *(1,) * (dims - axis - 1))
