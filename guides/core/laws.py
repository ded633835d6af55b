"""The posterior law of one site in one execution of the model: what a variational guide samples from.

Scoring is in closed form wherever there is one.  In the traces that an ELBO gets, the model's site scores
minus the KL divergence and the guide's site scores zero, so that Pyro's ``Trace_ELBO`` and
``TraceMeanField_ELBO`` both see the exact KL and no weight is drawn to be scored.  Of a guide inside Pyro's
``AutoGuideList`` a law scores its own value with ``E_q[log q]``, minus the entropy.  Outside of an ELBO
(:mod:`guides.core.purpose`) values are draws, scored with ``log q``.
"""

from __future__ import annotations

from functools import cached_property

import torch
from pyro import distributions as dist
from pyro.distributions.score_parts import ScoreParts
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import biject_to, constraints, register_kl

from guides.core import moments
from guides.core.distributions import base_prior


class SiteLaw(TorchDistribution):
    """A distribution over one site, ``batch_shape + event_shape``; parameters may lack leading dimensions.

    :param name: name of the site
    :ivar exact: whether the KL to the prior is closed form
    :ivar leading: batch dimensions put on the left by plates outside the guide (vectorized particles)
    """

    has_rsample = True
    arg_constraints: dict = {}
    support = constraints.real
    exact = True
    #: whether each of several vectorized particles has parameters of its own
    by_particle = False

    def __init__(self, name: str, batch_shape: torch.Size, event_shape: torch.Size):
        self.name = name
        self.leading = torch.Size()
        super().__init__(batch_shape, event_shape, validate_args=False)

    @property
    def plate_dims(self) -> int:
        """How many of the site's own dimensions are plates."""
        return len(self._batch_shape) - len(self.leading)

    def expand(self, batch_shape, _instance=None):
        batch_shape = torch.Size(batch_shape)
        own = self._batch_shape[len(self.leading) :]
        extra = len(batch_shape) - len(own)
        if batch_shape[extra:] != own:
            raise ValueError(
                f"site {self.name!r}: batch shape {tuple(own)} cannot become {tuple(batch_shape)}"
            )
        new = object.__new__(type(self))
        new.__dict__.update({k: v for k, v in self.__dict__.items() if k not in type(self)._per_shape})
        new.leading, new._batch_shape = batch_shape[:extra], batch_shape
        return new

    _per_shape = frozenset({"minus_entropy", "_value"})

    def __str__(self) -> str:
        return f"{self.name!r}"

    def _sum_events(self, elementwise: Tensor) -> Tensor:
        """``[*batch]``: sum over the event, expanded over the leading dimensions."""
        events = tuple(range(-self.event_dim, 0))
        return (elementwise.sum(events) if events else elementwise).expand(self.batch_shape)

    def score_parts(self, value: Tensor) -> ScoreParts:
        log_prob = self.log_prob(value)
        return ScoreParts(log_prob, 0, log_prob)


class TransformedLaw(SiteLaw):
    """``transform(Normal(loc, scale))``, drawn as numbers.  ``E_q[log p]`` is exact for a Gamma prior
    (``transform = exp``) and otherwise estimated by the draw.
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, *, prior, exact: bool):
        super().__init__(name, batch_shape, event_shape)
        self.loc, self.scale, self.log_scale = loc, torch.exp(log_scale), log_scale
        self.prior, self.transform, self.exact = base_prior(prior), biject_to(prior.support), exact

    @property
    def support(self):
        return self.transform.codomain

    def _distribution(self) -> TorchDistribution:
        normal = dist.Normal(self.loc, self.scale, validate_args=False).to_event(
            self.transform.domain.event_dim
        )
        law = dist.TransformedDistribution(normal, self.transform.with_cache(), validate_args=False)
        return law.to_event(self.event_dim - law.event_dim).expand(self.batch_shape)

    def rsample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        shape = torch.Size(sample_shape) + self.leading + self.loc.shape
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.transform(self.loc + self.scale * noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """``E_q[log q]`` if exact, else ``log q(value)``; ``[*batch]``."""
        if self.exact:
            return self._sum_events(-moments.normal_entropy(self.log_scale) - self.loc)
        return self._distribution().log_prob(value)

    @property
    def kl(self) -> Tensor:
        """KL to a Gamma prior, ``[*batch]``."""
        gamma = self.prior.concentration, self.prior.rate
        cross = moments.lognormal_gamma_cross_entropy(self.loc, self.scale, *gamma)
        return self._sum_events(cross - moments.normal_entropy(self.log_scale) - self.loc)


class ClosedFormPrior(TorchDistribution):
    """A prior together with the law that answers its site: scored by their KL divergence, ``[*batch]``.

    ``log_prob`` is minus the KL, so that a trace in which the law itself scores zero has the right ELBO.
    """

    arg_constraints: dict = {}
    has_rsample = False

    def __init__(self, prior: TorchDistribution, law: SiteLaw):
        self.prior, self.law = prior, law
        super().__init__(law.batch_shape, law.event_shape, validate_args=False)

    @property
    def support(self):
        return self.prior.support

    @cached_property
    def kl(self) -> Tensor:
        return self.law.kl

    def log_prob(self, value: Tensor) -> Tensor:
        return -self.kl


@register_kl(SiteLaw, ClosedFormPrior)
def _kl_law_prior(law: SiteLaw, prior: ClosedFormPrior) -> Tensor:
    return prior.kl
