"""Linear and logistic regression whose weights have inclusion indicators: variable selection.

``w = gamma b``, ``gamma ~ Bernoulli(pi)``, as in latent binary Bayesian networks (Hubin and Storvik 2019);
the networks themselves are :class:`zoo.models.bnn.BNN` with :class:`zoo.models.weights.SpikeSlabWeights`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor

from guides.core.distributions import SpikeSlab
from zoo.models.defaults import INCLUSION, LOGISTIC_INCLUSION
from zoo.models.likelihoods import observe, observe_numpyro
from zoo.models.traits import Traits
from zoo.models.weights import numpyro_spike_slab


@dataclass(frozen=True)
class SpikeSlabLinear:
    """Linear regression on standardised columns, without intercept.

    ``w_j = 0`` with probability ``1 - inclusion``, else ``N(0, 1/tau)``; ``y ~ N(x w, 1/tau)``,
    ``tau ~ Gamma(1, 1)``.  Given the model (which columns are in) its evidence is closed form, so the exact
    posterior is an enumeration of ``2^p`` models:
    :func:`guides.truth.spike_slab_linear.enumerate_spike_slab`.

    Sites: ``noise_precision: []`` (tau), ``w: [in]``; observed ``y: [N]``.
    """

    in_features: int
    inclusion: float = INCLUSION

    @property
    def traits(self) -> Traits:
        return Traits("spike-slab", "normal", selects=True)

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
    (:func:`guides.truth.spike_slab_logistic.enumerate_spike_slab_logistic`), more columns are for the Gibbs
    sampler of
    :mod:`guides.truth.polya_gamma`.

    Sites: ``w: [in]``, ``b: []``; observed ``y: [N]``.
    """

    in_features: int
    inclusion: float = LOGISTIC_INCLUSION

    @property
    def traits(self) -> Traits:
        return Traits("spike-slab", "bernoulli", selects=True)

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model; ``size``: rows of the whole data set if ``x`` is a minibatch.  Returns log-odds
        ``[N]``.
        """
        zero = x.new_zeros(())
        prior = SpikeSlab(x.new_tensor(self.inclusion), zero, zero + 1).expand([self.in_features])
        weighted = x @ pyro.sample("w", prior.to_event(1))
        output = weighted + pyro.sample("b", dist.Normal(zero, 1.0))  # [N] + [], vectorized [S, N] + [S, 1]
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
