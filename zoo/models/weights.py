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
from zoo.errors import UserError
from zoo.models.defaults import INCLUSION
from zoo.models.traits import Weights


@dataclass(frozen=True)
class FanIn:
    """An sd relative to a layer's inputs: ``size / sqrt(inputs of one output)``.

    :param size: for all layers, or one a layer
    """

    size: float | tuple[float, ...] = 1.0


#: Sd of weights or biases: relative to the inputs (None: ``FanIn(1.0)``), or itself, for all layers or one a
#: layer.
Scale = FanIn | float | tuple[float, ...] | None


def sd_of_layer(scale: Scale, layer: int, shape: tuple[int, ...]) -> float:
    """The sd in one layer.

    :param layer: counted from 0
    :param shape: of its weights, ``[out, in]`` or ``[out, in, height, width]``
    """
    relative = scale is None or isinstance(scale, FanIn)
    size = _sizes(scale)
    own = size[layer] if isinstance(size, tuple) else size
    return own * math.prod(shape[1:]) ** -0.5 if relative else own


def check_scale(scale: Scale, layers: int | None = None) -> None:
    """:raises ValueError: for a number that is no sd, and unless there are as many as layers, or one"""
    sizes = _sizes(scale)
    for size in sizes if isinstance(sizes, tuple) else (sizes,):
        if not size > 0:
            raise ValueError(f"the scale of weights must be positive, got {size}; None is 1/sqrt(inputs)")
    if layers is not None and isinstance(sizes, tuple) and len(sizes) != layers:
        raise UserError(f"{len(sizes)} scales for {layers} layers: give one number, or one a layer")


def _sizes(scale: Scale) -> float | tuple[float, ...]:
    if scale is None:
        return 1.0
    return scale.size if isinstance(scale, FanIn) else scale


class WeightPrior(Protocol):
    """The law of one weight matrix ``[out, in]`` or bank of filters ``[out, in, height, width]``, in both
    languages; layers are counted from 0.
    """

    kind: ClassVar[Weights]

    @property
    def scale(self) -> Scale: ...

    def pyro(self, shape: tuple[int, ...], like: Tensor, layer: int) -> dist.TorchDistribution: ...
    def numpyro(self, shape: tuple[int, ...], layer: int): ...


@dataclass(frozen=True)
class GaussianWeights:
    """``N(0, 1/fan_in)`` for every weight, or ``N(0, scale^2)``."""

    kind: ClassVar[Weights] = "gaussian"
    scale: Scale = None

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def pyro(self, shape: tuple[int, ...], like: Tensor, layer: int) -> dist.TorchDistribution:
        scale = like.new_full((), sd_of_layer(self.scale, layer, shape))  # nothing is sent to a GPU
        return dist.Normal(torch.zeros_like(scale), scale).expand(shape).to_event(len(shape))

    def numpyro(self, shape: tuple[int, ...], layer: int):
        import numpyro.distributions as ndist

        return ndist.Normal(0.0, sd_of_layer(self.scale, layer, shape)).expand(shape).to_event(len(shape))


@dataclass(frozen=True)
class SpikeSlabWeights:
    """Slab ``N(0, 1/fan_in)``, or ``N(0, scale^2)``, included with probability ``inclusion``."""

    kind: ClassVar[Weights] = "spike-slab"
    inclusion: float = INCLUSION
    scale: Scale = None

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def pyro(self, shape: tuple[int, ...], like: Tensor, layer: int) -> dist.TorchDistribution:
        scale = like.new_full((), sd_of_layer(self.scale, layer, shape))
        prior = SpikeSlab(like.new_full((), self.inclusion), torch.zeros_like(scale), scale)
        return prior.expand(shape).to_event(len(shape))

    def numpyro(self, shape: tuple[int, ...], layer: int):
        prior = numpyro_spike_slab()(self.inclusion, 0.0, sd_of_layer(self.scale, layer, shape))
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
