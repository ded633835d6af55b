"""The spike-and-slab distribution and the closed-form KL divergences of the guides."""

from __future__ import annotations

import functools
import math

import torch
from pyro import distributions as dist
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import Independent, constraints, register_kl
from torch.distributions.utils import broadcast_all, logits_to_probs
from torch.nn.functional import logsigmoid

from guides.core import moments


def base_prior(prior: TorchDistribution) -> TorchDistribution:
    """The elementwise distribution under any number of ``to_event``."""
    while isinstance(prior, Independent):
        prior = prior.base_dist
    return prior


class SpikeSlab(TorchDistribution):
    r"""Spike and slab: exactly zero with probability ``1 - probs``, else ``Normal(loc, scale)``.

    Densities are against the measure ``delta_0 + Lebesgue``: ``log_prob(0) = log(1 - probs)`` and
    ``log_prob(w) = log(probs) + log Normal(w; loc, scale)`` for every other ``w``
    (Hubin and Storvik 2019; the slab itself hits zero with probability zero).

    :param probs: inclusion probability, in (0, 1); give this or ``logits``, not both.  0 and 1 are taken for
        the nearest numbers to them that have a logarithm
    :param loc: mean of the slab
    :param scale: standard deviation of the slab
    :param logits: log-odds of inclusion
    :raises ValueError: when both or neither of ``probs`` and ``logits`` are given

    Parameters broadcast to the batch shape; the event shape is ``()``.  Draws carry no gradient to the
    inclusion (``has_rsample`` is False): use :class:`guides.AutoSpikeSlab`.
    """

    arg_constraints = {
        "probs": constraints.unit_interval,
        "logits": constraints.real,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = False

    def __init__(
        self,
        probs: Tensor | float | None = None,
        loc: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
        *,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        if (probs is None) == (logits is None):
            raise ValueError("SpikeSlab needs either `probs` or `logits`, not both and not neither")
        given, loc, scale = _same_dtype(logits if probs is None else probs, loc, scale)
        # Both are kept, made before broadcasting: a prior shared by a whole layer then costs one logarithm.
        if probs is not None:
            probs, logits = given, _logits(given)
        else:
            probs, logits = logits_to_probs(given, is_binary=True), given
        self.probs, self.logits, self.loc, self.scale = broadcast_all(probs, logits, loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return moments.spike_slab_mean(self.probs, self.loc)

    @property
    def variance(self) -> Tensor:
        return moments.spike_slab_variance(self.probs, self.loc, self.scale**2)

    def expand(self, batch_shape, _instance=None) -> SpikeSlab:
        new = self._get_checked_instance(SpikeSlab, _instance)
        batch_shape = torch.Size(batch_shape)
        for name in ("probs", "logits", "loc", "scale"):
            setattr(new, name, getattr(self, name).expand(batch_shape))
        TorchDistribution.__init__(new, batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008 (torch's own signature)
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            keep = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device) < self.probs
            slab = torch.normal(self.loc.expand(shape), self.scale.expand(shape))
            return torch.where(keep, slab, torch.zeros_like(slab))

    def log_prob(self, value: Tensor) -> Tensor:
        expected = getattr(value, "expected_log_prob", None)  # a random tensor: the closed-form expectation
        if expected is not None:
            return expected(self)
        if self._validate_args:
            self._validate_sample(value)
        slab = logsigmoid(self.logits) + dist.Normal(self.loc, self.scale, validate_args=False).log_prob(
            value
        )
        return torch.where(value == 0, logsigmoid(-self.logits), slab)

    def cdf(self, value: Tensor) -> Tensor:
        slab = dist.Normal(self.loc, self.scale, validate_args=False).cdf(value)
        return self.probs * slab + (1 - self.probs) * (value >= 0)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles: zero for a whole interval of probabilities, as wide as the spike is heavy."""
        normal = dist.Normal(self.loc, self.scale, validate_args=False)
        below = self.probs * normal.cdf(torch.zeros_like(self.loc))  # mass left of the spike
        eps = torch.finfo(self.loc.dtype).eps
        on_left, on_right = value < below, value > below + 1 - self.probs
        # of the slab; a half where the spike is, for a gradient there would be that of an infinite quantile
        level = torch.where(on_left, value / self.probs, torch.full_like(below, 0.5)).clamp(0, 1 - eps)
        upper = torch.where(on_right, 1 - (1 - value) / self.probs, level).clamp(max=1)
        quantile = normal.icdf(torch.where(on_right, upper.clamp(min=eps), level))
        return torch.where(on_left | on_right, quantile, torch.zeros_like(quantile))

    def entropy(self) -> Tensor:
        return moments.spike_slab_entropy(self.logits, self.scale.log())


def _logits(probs: Tensor) -> Tensor:
    """Log-odds, finite: torch's own stop at a probability of 1e-7 in single precision."""
    info = torch.finfo(probs.dtype)
    probs = probs.clamp(info.tiny, 1 - info.eps / 2)
    return probs.log() - torch.log1p(-probs)


def _same_dtype(*values: Tensor | float) -> list[Tensor]:
    """As tensors of one floating dtype and device: numbers follow the tensors, the widest tensor wins."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    dtypes = [t.dtype for t in tensors if t.is_floating_point()] or [torch.get_default_dtype()]
    dtype = functools.reduce(torch.promote_types, dtypes)
    device = tensors[0].device if tensors else None
    return [torch.as_tensor(value, dtype=dtype, device=device) for value in values]


@register_kl(SpikeSlab, SpikeSlab)
def _kl_spike_slab_spike_slab(q: SpikeSlab, p: SpikeSlab) -> Tensor:
    return moments.spike_slab_kl(q.logits, q.loc, q.scale.log(), p.logits, p.loc, p.scale)


@register_kl(dist.Normal, SpikeSlab)
def _kl_normal_spike_slab(q: dist.Normal, p: SpikeSlab) -> Tensor:
    """A Gaussian never visits the spike: KL to the slab, minus the log of the inclusion probability."""
    slab = moments.normal_cross_entropy(q.loc, q.scale**2, p.loc, p.scale)
    return slab - moments.normal_entropy(q.scale.log()) - logsigmoid(p.logits)


@register_kl(SpikeSlab, dist.Normal)
def _kl_spike_slab_normal(q: SpikeSlab, p: dist.Normal) -> Tensor:
    """An atom is not absolutely continuous with respect to a density."""
    return q.loc.new_full(torch.broadcast_shapes(q.loc.shape, p.loc.shape), math.inf)


@register_kl(dist.LogNormal, dist.Gamma)
def _kl_lognormal_gamma(q: dist.LogNormal, p: dist.Gamma) -> Tensor:
    cross = moments.lognormal_gamma_cross_entropy(q.loc, q.scale, p.concentration, p.rate)
    return cross - (moments.normal_entropy(q.scale.log()) + q.loc)
