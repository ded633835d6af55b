"""Models whose weights have inclusion indicators: spike-and-slab networks, linear and logistic regression.

Latent binary Bayesian networks (Hubin and Storvik 2019): ``w = gamma b``, ``gamma ~ Bernoulli(pi)``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor

from guides import SpikeSlab
from zoo.bnn import BNN, check_scale, fan_in_scale, observe, observe_numpyro


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


@dataclass(frozen=True)
class SpikeSlabWeights:
    """Slab ``N(0, 1/fan_in)``, or ``N(0, scale^2)``, included with probability ``inclusion``."""

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


def spike_slab_bnn(in_features: int, *, inclusion: float = 0.5, **options) -> BNN:
    """The plain network with a spike and slab on every weight; biases stay Gaussian.

    :param inclusion: prior inclusion probability of a weight
    :param options: as for :class:`~zoo.bnn.BNN`
    """
    return BNN(in_features, weights=SpikeSlabWeights(inclusion), **options)


@dataclass(frozen=True)
class SpikeSlabLinear:
    """Linear regression on standardised columns, without intercept.

    ``w_j = 0`` with probability ``1 - inclusion``, else ``N(0, 1/tau)``; ``y ~ N(x w, 1/tau)``,
    ``tau ~ Gamma(1, 1)``.  Given the model (which columns are in) its evidence is closed form, so the exact
    posterior is an enumeration of ``2^p`` models: :func:`guides.exact.enumerate_spike_slab`.

    Sites: ``noise_precision: []`` (tau), ``w: [in]``; observed ``y: [N]``.
    """

    in_features: int
    inclusion: float = 0.5

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model; ``size``: rows of the whole data set if ``x`` is a minibatch.  Returns ``[N]``."""
        precision = pyro.sample("noise_precision", dist.Gamma(x.new_tensor(1.0), x.new_tensor(1.0)))
        scale = precision.rsqrt()
        slab = scale[..., None]  # room for [in] to the right of particles
        prior = SpikeSlab(x.new_tensor(self.inclusion), torch.zeros_like(slab), slab)
        prior = prior.expand(slab.shape[:-1] + (self.in_features,))
        output = x @ pyro.sample("w", prior.to_event(1))
        batch = None if size is None else torch.arange(len(x))
        with pyro.plate("data", size or len(x), subsample=batch):
            pyro.sample("y", dist.Normal(output, scale), obs=y)
        return output

    def twin(self, x, y=None):
        """The same model in NumPyro; its indicators are discrete, so it serves the density and not NUTS."""
        import numpyro
        import numpyro.distributions as ndist

        precision = numpyro.sample("noise_precision", ndist.Gamma(1.0, 1.0))
        scale = precision**-0.5
        prior = numpyro_spike_slab()(self.inclusion, 0.0, scale).expand((self.in_features,)).to_event(1)
        output = x @ numpyro.sample("w", prior)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", ndist.Normal(output, scale), obs=y)
        return output


@dataclass(frozen=True)
class SpikeSlabLogistic:
    """Logistic regression on standardised columns.

    ``w_j = 0`` with probability ``1 - inclusion``, else ``N(0, 1)``; ``b ~ N(0, 1)``;
    ``y ~ Bernoulli(sigmoid(b + x w))``.  All ``2^p`` models can be counted
    (:func:`guides.exact_logistic.enumerate_spike_slab_logistic`), more columns are for the Gibbs sampler of
    :mod:`guides.polya_gamma`.

    Sites: ``w: [in]``, ``b: []``; observed ``y: [N]``.
    """

    in_features: int
    inclusion: float = 0.25

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model; ``size``: rows of the whole data set if ``x`` is a minibatch.  Returns log-odds
        ``[N]``.
        """
        zero = x.new_zeros(())
        prior = SpikeSlab(x.new_tensor(self.inclusion), zero, zero + 1).expand([self.in_features])
        weighted = x @ pyro.sample("w", prior.to_event(1))
        output = weighted + pyro.sample("b", dist.Normal(zero, 1.0))[..., None]
        observe("bernoulli", output, y, len(x), size, None)
        return output

    def twin(self, x, y=None):
        """The same model in NumPyro; its indicators are discrete, so it serves the density and not NUTS."""
        import numpyro
        import numpyro.distributions as ndist

        prior = numpyro_spike_slab()(self.inclusion, 0.0, 1.0).expand((self.in_features,)).to_event(1)
        output = x @ numpyro.sample("w", prior) + numpyro.sample("b", ndist.Normal(0.0, 1.0))
        return observe_numpyro("bernoulli", output, y, None)


#: Models in which every weight belongs to a column of the data.
VariableSelection = SpikeSlabLinear | SpikeSlabLogistic
