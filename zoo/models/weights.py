"""Priors of a network's weights, for Pyro and for NumPyro: Gaussian, spike and slab."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from pyro import distributions as dist
from torch import Tensor

from guides.core.distributions import SpikeSlab
from zoo.models.traits import Weights


class WeightPrior(Protocol):
    """The law of one weight matrix ``[out, in]`` or bank of filters ``[out, in, height, width]``, in both
    languages.
    """

    kind: ClassVar[Weights]

    def pyro(self, shape: tuple[int, ...], like: Tensor) -> dist.TorchDistribution: ...
    def numpyro(self, shape: tuple[int, ...]): ...


def fan_in_scale(shape: tuple[int, ...]) -> float:
    """``1/sqrt(inputs of one output)``."""
    return math.prod(shape[1:]) ** -0.5


def check_scale(scale: float | None) -> None:
    """:raises ValueError: unless it is the sd of weights, or None for one that hangs on the inputs"""
    if scale is not None and not scale > 0:
        raise ValueError(f"the scale of weights must be positive, got {scale}; None is 1/sqrt(inputs)")


@dataclass(frozen=True)
class GaussianWeights:
    """``N(0, 1/fan_in)`` for every weight, or ``N(0, scale^2)``."""

    kind: ClassVar[Weights] = "gaussian"
    scale: float | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def pyro(self, shape: tuple[int, ...], like: Tensor) -> dist.TorchDistribution:
        scale = like.new_tensor(self.scale or fan_in_scale(shape))
        return dist.Normal(torch.zeros_like(scale), scale).expand(shape).to_event(len(shape))

    def numpyro(self, shape: tuple[int, ...]):
        import numpyro.distributions as ndist

        return ndist.Normal(0.0, self.scale or fan_in_scale(shape)).expand(shape).to_event(len(shape))


@dataclass(frozen=True)
class SpikeSlabWeights:
    """Slab ``N(0, 1/fan_in)``, or ``N(0, scale^2)``, included with probability ``inclusion``."""

    kind: ClassVar[Weights] = "spike-slab"
    inclusion: float = 0.5
    scale: float | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def pyro(self, shape: tuple[int, ...], like: Tensor) -> dist.TorchDistribution:
        scale = like.new_tensor(self.scale or fan_in_scale(shape))
        prior = SpikeSlab(like.new_tensor(self.inclusion), torch.zeros_like(scale), scale)
        return prior.expand(shape).to_event(len(shape))

    def numpyro(self, shape: tuple[int, ...]):
        prior = numpyro_spike_slab()(self.inclusion, 0.0, self.scale or fan_in_scale(shape))
        return prior.expand(shape).to_event(len(shape))


@functools.cache
def numpyro_spike_slab():
    """The spike-and-slab law in NumPyro, for the twins; imports JAX when first used."""
    import jax.numpy as jnp
    import numpyro.distributions as ndist
    from jax import random
    from numpyro.distributions import constraints

    class NumPyroSpikeSlab(ndist.Distribution):
        """Density against ``delta_0 + Lebesgue``, as :class:`guides.SpikeSlab`."""

        arg_constraints = {
            "probs": constraints.unit_interval,
            "loc": constraints.real,
            "scale": constraints.positive,
        }
        support = constraints.real

        def __init__(self, probs, loc=0.0, scale=1.0, *, validate_args=None):
            self.probs, self.loc, self.scale = jnp.broadcast_arrays(*map(jnp.asarray, (probs, loc, scale)))
            super().__init__(batch_shape=self.probs.shape, validate_args=validate_args)

        def sample(self, key, sample_shape=()):
            key_on, key_slab = random.split(key)
            shape = sample_shape + self.batch_shape
            slab = self.loc + self.scale * random.normal(key_slab, shape)
            return jnp.where(random.uniform(key_on, shape) < self.probs, slab, 0.0)

        def log_prob(self, value):
            slab = jnp.log(self.probs) + ndist.Normal(self.loc, self.scale).log_prob(value)
            return jnp.where(value == 0, jnp.log1p(-self.probs), slab)

    return NumPyroSpikeSlab
