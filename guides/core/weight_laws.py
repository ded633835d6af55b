"""The laws whose values are random tensors, for weights: a Gaussian, or a spike and slab, for every element.

What a layer asks of them are moments, and of Pyro's ELBO the divergence from the prior, both in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from pyro import distributions as dist
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.nn.functional import logsigmoid

from guides.core import moments
from guides.core.distributions import SpikeSlab, base_prior
from guides.core.fused import GaussianSite, InclusionCost, SpikeSlabSite
from guides.core.laws import SiteLaw
from guides.core.layer_noise import count_of_rows
from guides.core.pathwise import REMEDY
from guides.core.purpose import Purpose
from guides.core.random_tensors import PathwiseGradientError, RandomTensor

#: Where not the use but the loss asks for draws.
LOSS_REMEDY = (
    "train with Trace_ELBO or guide.elbo(), and look at draws under torch.no_grad(): a loss that weighs "
    "draws (RenyiELBO, say) needs Gaussian weights, as of AutoMeanField"
)


class RandomTensorLaw(SiteLaw):
    """A law whose value is a :class:`~guides.core.random_tensors.RandomTensor`.

    :param loc: ``[*site]``
    :param log_scale: ``[*site]``
    :param prior: the site's prior in this execution
    :param by_moments: whether linear layers may use the moments (local reparameterization)
    :param uses: counts products and draws of this execution; see :class:`~guides.core.uses.Uses`
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, *, prior, by_moments, uses):
        super().__init__(name, batch_shape, event_shape)
        self.loc, self.log_scale = loc, log_scale
        self.prior, self.by_moments, self.uses = base_prior(prior), by_moments, uses

    @property
    def mean(self) -> Tensor:
        return self.moments_and_kl[0]

    @property
    def variance(self) -> Tensor:
        return self.moments_and_kl[1]

    def rsample(self, sample_shape=torch.Size()) -> RandomTensor:  # noqa: B008
        if sample_shape:
            raise ValueError(f"site {self.name!r}: draw several values through plates, not sample_shape")
        return RandomTensor(self, self.mean, self.variance)

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        with torch.no_grad():
            return self.expand(torch.Size(sample_shape) + self.batch_shape)._draw("sample")

    def multiply(self, weight: RandomTensor | None = None, axis: int = -1) -> bool:
        if self.uses.recording and weight is not None:
            self.uses.axis = weight.runs_along(axis)
            self.uses.is_weight = True
        self.uses.count_product(self.by_moments)
        return self.by_moments

    def output(self, value: Tensor, batch: torch.Size) -> Tensor:
        self.uses.rows = max(self.uses.rows, count_of_rows(self, batch))
        return value if self.uses.probe is None else self.uses.probe(self.name, value, batch)

    def draw(self, operation: str) -> Tensor:
        self.uses.count_draw(operation, self.by_moments)
        if "_value" not in self.__dict__:
            self._value = self._draw(operation)
        return self._value

    def _draw(self, operation: str) -> Tensor:
        noise = torch.randn(self._full_shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + torch.exp(self.log_scale) * noise

    @property
    def _full_shape(self) -> torch.Size:
        """``[*leading, *site]``."""
        return self.leading + self.log_scale.shape

    def log_prob(self, value: Tensor) -> Tensor:
        """``E_q[log q]``, or where draws are scored ``log q(value)``; ``[*batch]``."""
        if self.uses.purpose is Purpose.STRUCTURE:
            return self.loc.new_zeros(self.batch_shape)
        if not self.uses.scores_draws:
            return self.minus_entropy
        drawn = value.numbers("log_prob") if isinstance(value, RandomTensor) else value
        return self._sum_events(self._log_density(drawn))

    def _log_density(self, value: Tensor) -> Tensor:
        """Elementwise ``[*leading, *site]``."""
        raise NotImplementedError(
            f"site {self.name!r}: a {type(self).__name__} has no density in closed form, so its draws cannot "
            "be weighed (WeighedPredictive, Importance, RenyiELBO); use Trace_ELBO or Predictive"
        )

    @cached_property
    def minus_entropy(self) -> Tensor:
        return -self._sum_events(self._entropy())

    @property
    def scores_draws(self) -> bool:
        return self.uses.scores_draws

    @property
    def asks_no_gradient(self) -> bool:
        return self.uses.asks_no_gradient

    def expected_log_prob(self, prior: TorchDistribution) -> Tensor:
        """``E_q[log p]`` of every element, ``[*leading, *site]``, for a prior that is elementwise."""
        if isinstance(prior, SpikeSlab):
            elementwise = self._spike_slab_cross_entropy(prior)
        elif isinstance(prior, dist.Normal):
            elementwise = self._normal_cross_entropy(prior)
        else:
            raise NotImplementedError(f"site {self.name!r}: no closed form against {type(prior).__name__}")
        return -elementwise.expand(self._full_shape)

    @property
    def kl(self) -> Tensor:
        """``KL(law || prior)``, ``[*batch]``.

        :raises NotImplementedError: naming the site, for a prior without closed form
        """
        *_, kl = self.moments_and_kl
        if kl is not None:  # of the whole site at once
            return kl.expand(self.batch_shape) if self.leading else kl
        return self.minus_entropy - self._sum_events(self.expected_log_prob(self.prior))

    def _shared_prior(self, family: type, *names: str) -> list[Tensor] | None:
        """The prior's parameters as scalars, if it is of this family and each is one number all over the
        site, as ``expand`` leaves it.
        """
        if not isinstance(self.prior, family) or self.log_scale.dim() != self.event_dim:
            return None
        if not self.log_scale.numel():  # a layer without inputs has no number to share
            return None
        scalars = []
        for parameter in (getattr(self.prior, name) for name in names):
            if parameter.dim() != self.event_dim or any(
                stride and size != 1 for stride, size in zip(parameter.stride(), parameter.shape, strict=True)
            ):
                return None
            scalars.append(parameter[(0,) * self.event_dim])
        return scalars


class GaussianLaw(RandomTensorLaw):
    """Independent Gaussians, ``Normal(loc, exp(log_scale))``."""

    @property
    def shared_prior(self) -> list[Tensor] | None:
        """``[mean, sd]`` of a Normal prior that all elements share, else None."""
        return self._shared_prior(dist.Normal, "loc", "scale")

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """``(mean, variance, KL)``; the KL is None unless the whole site shares one prior."""
        prior = self.shared_prior
        if prior is None:
            return self.loc, torch.exp(2 * self.log_scale), None
        return self.loc, *GaussianSite.apply(self.loc, self.log_scale, *prior)

    def _entropy(self) -> Tensor:
        return moments.normal_entropy(self.log_scale)

    def _log_density(self, value: Tensor) -> Tensor:
        return dist.Normal(self.loc, self.log_scale.exp(), validate_args=False).log_prob(value)

    def _normal_cross_entropy(self, prior) -> Tensor:
        return moments.normal_cross_entropy(self.loc, self.variance, prior.loc, prior.scale)

    def _spike_slab_cross_entropy(self, prior: SpikeSlab) -> Tensor:
        """A Gaussian never visits the spike."""
        return self._normal_cross_entropy(prior) - logsigmoid(prior.logits)


class SpikeSlabLaw(RandomTensorLaw):
    """Independent spike-and-slab variables with inclusion ``sigmoid(logits)`` and Gaussian slabs.

    :param logits: ``[*site]``
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, logits, **kwargs):
        super().__init__(name, batch_shape, event_shape, loc, log_scale, **kwargs)
        self.logits = logits

    def mean_logits(self) -> Callable[[], Tensor]:
        """Gives the logits of the inclusion probabilities of this run, without a graph."""
        logits = self.logits.detach()
        return lambda: logits

    @property
    def shared_prior(self) -> list[Tensor] | None:
        """``[inclusion logit, mean, sd]`` of a spike and slab that all elements share, else None."""
        return self._shared_prior(SpikeSlab, "logits", "loc", "scale")

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """``(mean, variance, KL)``; the KL is None unless the whole site shares one slab."""
        prior = self.shared_prior
        if prior is not None:
            return SpikeSlabSite.apply(self.logits, self.loc, self.log_scale, *prior)
        slab = self._shared_prior(SpikeSlab, "loc", "scale")
        own = self.prior.logits if slab is not None else None
        if own is not None and not own.requires_grad:  # learned inclusions, each weight its own
            parameters = self.logits, self.loc, self.log_scale
            mean, variance, kl = SpikeSlabSite.apply(*parameters, torch.zeros_like(slab[0]), *slab)
            # which was computed with even odds
            kl = kl - own.numel() * math.log(2) + InclusionCost.apply(self.logits, own)
            return mean, variance, kl
        probs, slab_variance = torch.sigmoid(self.logits), torch.exp(2 * self.log_scale)
        mean = moments.spike_slab_mean(probs, self.loc)
        return mean, moments.spike_slab_variance(probs, self.loc, slab_variance), None

    def _draw(self, operation: str) -> Tensor:
        self._refuse_gradient(operation)
        slab = super()._draw(operation)
        return torch.where(torch.rand_like(slab) < torch.sigmoid(self.logits), slab, torch.zeros_like(slab))

    def _refuse_gradient(self, operation: str) -> None:
        if self.uses.wants_grad_of_draws and not self.uses.is_over:
            raise PathwiseGradientError(
                f"site {self.name!r}: `{operation}` draws spike-and-slab weights, and their inclusion has no "
                f"pathwise gradient; {LOSS_REMEDY if self.uses.scores_draws else REMEDY}"
            )

    def _log_density(self, value: Tensor) -> Tensor:
        slab = self.loc, self.log_scale.exp()
        return SpikeSlab(None, *slab, logits=self.logits, validate_args=False).log_prob(value)

    def _entropy(self) -> Tensor:
        return moments.spike_slab_entropy(self.logits, self.log_scale)

    def _normal_cross_entropy(self, prior) -> Tensor:
        raise NotImplementedError(
            f"site {self.name!r}: the atom of a spike and slab has no density under a Normal"
        )

    def _spike_slab_cross_entropy(self, prior: SpikeSlab) -> Tensor:
        probs, variance = torch.sigmoid(self.logits), torch.exp(2 * self.log_scale)
        return moments.spike_slab_cross_entropy(
            probs, self.loc, variance, prior.logits, prior.loc, prior.scale
        )


class ThesisSpikeSlabLaw(SpikeSlabLaw):
    """A spike and slab whose layers use the wrong variance ``alpha^2 sigma^2`` of Skaaret-Lund (2022); draws
    and KL are right.  For reproducing published tables only.
    """

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, Tensor | None]:
        mean, _, kl = super().moments_and_kl
        return mean, (torch.sigmoid(self.logits) * torch.exp(self.log_scale)).square(), kl
