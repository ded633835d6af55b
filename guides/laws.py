"""The posterior law of one site in one execution of the model: what a variational guide samples from.

Scoring is in closed form wherever there is one.  In the traces that an ELBO gets, the model's site scores minus
the KL divergence and the guide's site scores zero, so that Pyro's ``Trace_ELBO`` and ``TraceMeanField_ELBO`` both
see the exact KL and no weight is drawn to be scored.  Elsewhere (a guide inside Pyro's ``AutoGuideList``) a law
scores its own value with ``E_q[log q]``, minus the entropy.
"""

from __future__ import annotations

from functools import cached_property

import torch
from pyro import distributions as dist
from pyro.distributions.score_parts import ScoreParts
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import Independent, Transform, constraints, register_kl
from torch.nn.functional import logsigmoid

from guides import moments
from guides.distributions import SpikeSlab
from guides.fused import NormalKL, SpikeSlabKL, SpikeSlabMoments, Variance
from guides.random_tensors import PathwiseGradientError, RandomTensor

REMEDY = "use it once, through F.linear, @ or F.conv2d, or give the site relaxed indicators"


def base_prior(prior: TorchDistribution) -> TorchDistribution:
    """The elementwise distribution under any number of ``to_event``."""
    while isinstance(prior, Independent):
        prior = prior.base_dist
    return prior


def _shared(prior: TorchDistribution, names: tuple[str, ...], event_dim: int) -> list[Tensor] | None:
    """The prior's parameters as scalars, if each is one number all over the event, as ``expand`` leaves it."""
    scalars = []
    for parameter in (getattr(prior, name) for name in names):
        strides = zip(parameter.stride(), parameter.shape, strict=True)
        if parameter.dim() != event_dim or not all(stride == 0 or size == 1 for stride, size in strides):
            return None
        scalars.append(parameter[(0,) * event_dim])
    return scalars


class SiteLaw(TorchDistribution):
    """A distribution over one site, ``batch_shape + event_shape``, whose parameters may lack leading dimensions.

    :param name: name of the site
    :ivar exact: whether the KL to the prior is closed form
    :ivar leading: batch dimensions put on the left by plates outside the guide (vectorized particles)
    """

    has_rsample = True
    arg_constraints: dict = {}
    support = constraints.real
    exact = True

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
            raise ValueError(f"site {self.name!r}: batch shape {tuple(own)} cannot become {tuple(batch_shape)}")
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


class RandomTensorLaw(SiteLaw):
    """A law whose value is a :class:`~guides.random_tensors.RandomTensor`.

    :param loc: ``[*site]``
    :param log_scale: ``[*site]``
    :param by_moments: whether linear layers may use the moments (local reparameterization)
    :param uses: counts products and draws of this execution; see :class:`Uses`
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, *, by_moments, uses):
        super().__init__(name, batch_shape, event_shape)
        self.loc, self.log_scale = loc, log_scale
        self.by_moments, self.uses = by_moments, uses

    def rsample(self, sample_shape=torch.Size()) -> RandomTensor:  # noqa: B008
        if sample_shape:
            raise ValueError(f"site {self.name!r}: draw several values through plates, not sample_shape")
        return RandomTensor(self)

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        with torch.no_grad():
            return self.expand(torch.Size(sample_shape) + self.batch_shape)._draw("sample")

    def multiply(self) -> bool:
        self.uses.count_product(self)
        return self.by_moments

    def draw(self, operation: str) -> Tensor:
        self.uses.count_draw(self, operation)
        if "_value" not in self.__dict__:
            self._value = self._draw(operation)
        return self._value

    def _draw(self, operation: str) -> Tensor:
        noise = torch.randn(self.leading + self.loc.shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + torch.exp(self.log_scale) * noise

    def log_prob(self, value: Tensor) -> Tensor:
        """``E_q[log q]``, ``[*batch]``."""
        return self.minus_entropy

    @cached_property
    def minus_entropy(self) -> Tensor:
        return -self._sum_events(self._entropy())

    def expected_log_prob(self, prior: TorchDistribution) -> Tensor:
        """``E_q[log p]`` of every element, ``[*leading, *site]``, for a prior that is elementwise."""
        if isinstance(prior, SpikeSlab):
            elementwise = self._spike_slab_cross_entropy(prior)
        elif isinstance(prior, dist.Normal):
            elementwise = self._normal_cross_entropy(prior)
        else:
            raise NotImplementedError(f"site {self.name!r}: no closed form against {type(prior).__name__}")
        return -elementwise.expand(self.leading + self.loc.shape)

    def kl(self, prior: TorchDistribution) -> Tensor:
        """``KL(law || prior)``, ``[*batch]``: in one autograd node where the whole site shares one prior.

        :raises NotImplementedError: naming the site, for a prior without closed form
        """
        base = base_prior(prior)
        fused = self._fused_kl(base) if self.loc.dim() == self.event_dim else None
        if fused is not None:
            return fused.expand(self.batch_shape) if self.leading else fused
        return self.minus_entropy - self._sum_events(self.expected_log_prob(base))


class GaussianLaw(RandomTensorLaw):
    """Independent Gaussians, ``Normal(loc, exp(log_scale))``."""

    @property
    def mean(self) -> Tensor:
        return self.loc

    @cached_property
    def variance(self) -> Tensor:
        return Variance.apply(self.log_scale)

    def _entropy(self) -> Tensor:
        return moments.normal_entropy(self.log_scale)

    def _normal_cross_entropy(self, prior) -> Tensor:
        return moments.normal_cross_entropy(self.loc, self.variance, prior.loc, prior.scale)

    def _spike_slab_cross_entropy(self, prior: SpikeSlab) -> Tensor:
        """A Gaussian never visits the spike."""
        return self._normal_cross_entropy(prior) - logsigmoid(prior.logits)

    def _fused_kl(self, prior: TorchDistribution) -> Tensor | None:
        parameters = _shared(prior, ("loc", "scale"), self.event_dim) if isinstance(prior, dist.Normal) else None
        if parameters is None:
            return None
        return NormalKL.apply(self.loc, self.log_scale, self.variance, *parameters)


class SpikeSlabLaw(RandomTensorLaw):
    """Independent spike-and-slab variables with inclusion ``sigmoid(logits)`` and Gaussian slabs.

    :param logits: ``[*site]``
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, logits, **kwargs):
        super().__init__(name, batch_shape, event_shape, loc, log_scale, **kwargs)
        self.logits = logits

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``(mean, variance, probs, slab variance)``; no gradient flows through the last two."""
        return SpikeSlabMoments.apply(self.logits, self.loc, self.log_scale)

    @property
    def mean(self) -> Tensor:
        return self._moments[0]

    @property
    def variance(self) -> Tensor:
        return self._moments[1]

    def _draw(self, operation: str) -> Tensor:
        if torch.is_grad_enabled() and not self.uses.is_over:
            raise PathwiseGradientError(
                f"site {self.name!r}: `{operation}` draws spike-and-slab weights, and their inclusion has no "
                f"pathwise gradient; {REMEDY}"
            )
        slab = super()._draw(operation)
        return torch.where(torch.rand_like(slab) < torch.sigmoid(self.logits), slab, torch.zeros_like(slab))

    def _fused_kl(self, prior: TorchDistribution) -> Tensor | None:
        is_mixed = isinstance(prior, SpikeSlab)
        parameters = _shared(prior, ("logits", "loc", "scale"), self.event_dim) if is_mixed else None
        if parameters is None:
            return None
        _, _, probs, slab_variance = self._moments
        return SpikeSlabKL.apply(self.logits, self.loc, self.log_scale, probs, slab_variance, *parameters)

    def _entropy(self) -> Tensor:
        return moments.spike_slab_entropy(self.logits, self.log_scale)

    def _normal_cross_entropy(self, prior) -> Tensor:
        raise NotImplementedError(f"site {self.name!r}: the atom of a spike and slab has no density under a Normal")

    def _spike_slab_cross_entropy(self, prior: SpikeSlab) -> Tensor:
        # Probabilities and variance afresh: those in _moments carry no gradient.
        probs, variance = torch.sigmoid(self.logits), torch.exp(2 * self.log_scale)
        return moments.spike_slab_cross_entropy(probs, self.loc, variance, prior.logits, prior.loc, prior.scale)


class TransformedLaw(SiteLaw):
    """``transform(Normal(loc, scale))``, drawn as numbers.  ``E_q[log p]`` is exact for a Gamma prior
    (``transform = exp``) and otherwise estimated by the draw.
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, transform: Transform, exact: bool):
        super().__init__(name, batch_shape, event_shape)
        self.loc, self.scale, self.log_scale = loc, torch.exp(log_scale), log_scale
        self.transform, self.exact = transform, exact

    @property
    def support(self):
        return self.transform.codomain

    def _distribution(self) -> TorchDistribution:
        normal = dist.Normal(self.loc, self.scale, validate_args=False).to_event(self.transform.domain.event_dim)
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

    def kl(self, prior: TorchDistribution) -> Tensor:
        """KL to a Gamma prior, ``[*batch]``."""
        gamma = base_prior(prior)
        cross = moments.lognormal_gamma_cross_entropy(self.loc, self.scale, gamma.concentration, gamma.rate)
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
        return self.law.kl(self.prior)

    def log_prob(self, value: Tensor) -> Tensor:
        return -self.kl


@register_kl(SiteLaw, ClosedFormPrior)
def _kl_law_prior(law: SiteLaw, prior: ClosedFormPrior) -> Tensor:
    return prior.kl


class Uses:
    """What one execution of the model does with a site.

    A weight that enters two products, or a product and something else, must not be given independent noise
    in each: the set-up run records the uses (``recording``), later runs are checked against them.

    :param wants_grad: whether the execution began with gradients enabled
    :ivar is_over: the run has ended; looking at a value disturbs nothing any more
    """

    def __init__(self, recording: bool = False, wants_grad: bool = False):
        self.recording = recording
        self.wants_grad = wants_grad
        self.is_over = False
        self.products = 0
        self.drawn_by: list[str] = []

    def count_product(self, law: RandomTensorLaw) -> None:
        self.products += 1
        self._check(law)

    def count_draw(self, law: RandomTensorLaw, operation: str) -> None:
        if self.wants_grad and not torch.is_grad_enabled() and not self.is_over:
            raise PathwiseGradientError(
                f"site {law.name!r}: `{operation}` draws weights under no_grad (or in an autograd.Function) while the "
                "guide is being trained, so the gradient would be lost; write `+w` first, outside of it"
            )
        self.drawn_by.append(operation)
        self._check(law)

    def _check(self, law: RandomTensorLaw) -> None:
        if law.by_moments and not self.recording and not self.is_over and self.products > 0 and not self.used_once:
            raise RuntimeError(
                f"site {law.name!r} is used more often in this run than when the guide was set up: its noise "
                "would not be shared; set the guide up with a call that uses every branch of the model"
            )

    @property
    def used_once(self) -> bool:
        return self.products == 1 and not self.drawn_by

    def describe(self) -> str:
        if self.drawn_by:
            return "`" + "`, `".join(dict.fromkeys(self.drawn_by)) + "`"
        return f"{self.products} products" if self.products else "nothing at all"
