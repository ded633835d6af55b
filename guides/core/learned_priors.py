"""Priors that a fit learns from the data: empirical Bayes for the scales and inclusions of layers.

Of a site whose weights share one prior, the numbers of that prior that make the bound largest given the guide
have a closed form.  With inclusion probabilities ``alpha`` and slabs ``N(mu, sigma^2)``::

    inclusion        pi    = mean of alpha
    sd of the slab   s_p^2 = sum alpha (sigma^2 + (mu - m_p)^2) / sum alpha

and for Gaussian weights or biases the second with ``alpha = 1``.  A few numbers a layer are thus chosen by
the data: the bound is one on the evidence of the model *with these numbers*, no charge is made for them.

*Rates* go on: the weight from input ``j`` to output ``i`` is included with probability ``r_i c_j``, so that
whole units and inputs can go.  For small rates the best are those of a log-linear table, the mean of row
``i`` times the mean of column ``j`` over the mean of all.  They are as many as the layer has outputs and
inputs, and a bound without a charge flatters them: :meth:`LearnedPriors.charge` says by how much.

The prior follows the guide and the guide the prior, so that there are several optima.  From a start where all
weights are in, a prior that says so is the nearest, and on images it is a dense one: let the weight of the
divergence rise first (``Schedule.kl_weight``).  Nothing is learned as long as it does: until it is 1, or
has stood for longer than between two rises, each of which has what was learned before forgotten.  Weights of
which the data say little then sit at the prior, wherever it is; to let those of a site move as one too
(``FlatGuide.optimizer(common=...)``) leads to better bounds in as many steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from pyro import distributions as dist
from torch import Tensor

from guides.core.distributions import SpikeSlab, base_prior
from guides.core.fused import chunks
from guides.core.weight_laws import GaussianLaw, RandomTensorLaw, SpikeSlabLaw

#: Training runs from one update to the next: they cost a pass over the weights.
EVERY = 10
#: The families that are learned, and the parameters that tell a member.
NORMAL, SPIKE_SLAB = (dist.Normal, ("loc", "scale")), (SpikeSlab, ("logits", "loc", "scale"))
#: Inclusion probabilities of a prior stay this far from 0 and 1, sds above.
TINY = 1e-6


@dataclass(frozen=True)
class Learned:
    """What was learned for one site.

    :ivar scale: sd of the slab, or of the Gaussian
    :ivar inclusion: mean inclusion probability; None for a Gaussian
    :ivar outputs, inputs: rates relative to it, ``r_i / pi`` and ``c_j / pi`` as it were; empty without rates
    """

    scale: float
    inclusion: float | None = None
    outputs: Sequence[float] = field(default=(), repr=False)
    inputs: Sequence[float] = field(default=(), repr=False)

    def prior(self, own: dist.TorchDistribution) -> dist.TorchDistribution:
        """With the mean and the shape of the model's own."""
        base = base_prior(own)
        loc = base.loc[(0,) * base.loc.dim()]
        scale = loc.new_tensor(self.scale)
        if self.inclusion is None:
            learned = dist.Normal(loc, scale, validate_args=False)
        else:
            learned = SpikeSlab(self._inclusions(base), loc, scale, validate_args=False)
        return learned.expand(base.batch_shape).to_event(own.event_dim)

    def _inclusions(self, base: SpikeSlab) -> Tensor:
        """One for all weights, or ``[out, in, 1, ...]``."""
        if not self.outputs:
            return base.loc.new_tensor(self.inclusion)
        outputs, inputs = (base.loc.new_tensor(rates) for rates in (self.outputs, self.inputs))
        table = self.inclusion * outputs[:, None] * inputs
        table = table.clamp_(TINY, 1 - TINY).reshape(*table.shape, *(1,) * (base.loc.dim() - 2))
        return table.expand(base.batch_shape).contiguous()

    def charge(self, weights: int) -> float:
        """Half the logarithm of the number of weights behind each learned number, as in BIC, nats."""
        counts = [weights] * (1 if self.inclusion is None else 2)
        for rates in filter(None, (self.outputs, self.inputs)):
            counts += [weights / len(rates)] * (len(rates) - 1)  # their mean is fixed
        return 0.5 * math.fsum(map(math.log, counts))


class Numbers(NamedTuple):
    """Of a site's law: numbers of this run, without a graph.

    :ivar loc, log_scale: of the Gaussians or slabs, broadcast
    :ivar logits: gives those of inclusion; None for Gaussians
    :ivar centre: mean of the prior
    """

    loc: Tensor
    log_scale: Tensor
    logits: Callable[[], Tensor] | None
    centre: Tensor
    event_dim: int

    @classmethod
    def of(cls, law: GaussianLaw | SpikeSlabLaw) -> Numbers:
        loc, log_scale = law.loc.detach(), law.log_scale.detach()
        logits = law.mean_logits() if isinstance(law, SpikeSlabLaw) else None
        centre = law.prior.loc[(0,) * law.prior.loc.dim()].detach()
        return cls(loc, log_scale, logits, centre, law.event_dim)

    def scale(self, logits: Tensor | None) -> tuple[float, float]:
        """``(best sd, sum of the inclusion probabilities)``."""
        tensors = [self.loc.expand(self.log_scale.shape).contiguous(), self.log_scale]
        if logits is not None:
            tensors.append(logits)
        squares, included = 0.0, 0.0
        for mu, log_scale, *part in chunks(*tensors):
            square = (2 * log_scale).exp().add_((mu - self.centre).square())
            alpha = torch.sigmoid(part[0]) if part else torch.ones_like(square)
            squares, included = squares + alpha.dot(square).item(), included + alpha.sum().item()
        return max(TINY, (squares / max(included, TINY)) ** 0.5), included


class LearnedPriors:
    """The learned numbers of every site, and the priors made from them.

    :param rates: whether inclusion has rates by output and input
    :ivar numbers: ``{site: Learned}``
    """

    def __init__(
        self,
        rates: bool = False,
        numbers: Mapping[str, Learned | Mapping] | None = None,
        runs: int = 0,
        kl_weight: float = 1.0,
        stood: int = 0,
        stair: int = 0,
    ):
        self.rates = rates
        self.numbers = {name: _learned(given) for name, given in (numbers or {}).items()}
        self.runs, self.kl_weight = runs, kl_weight
        self.stood, self.stair = stood, stair  # runs at this weight, and at most between two rises
        self._made: dict[str, tuple[Learned, dist.TorchDistribution]] = {}

    def state(self) -> dict:
        """JSON-safe; the arguments of a copy."""
        numbers = {name: {k: _listed(v) for k, v in vars(n).items()} for name, n in self.numbers.items()}
        names = ("rates", "runs", "kl_weight", "stood", "stair")
        return {"numbers": numbers, **{name: getattr(self, name) for name in names}}

    def prior(self, name: str, own: dist.TorchDistribution) -> dist.TorchDistribution:
        """In place of the model's own: the same one where nothing is learned for the site."""
        if name not in self.numbers:
            return own
        learned, made = self._made.get(name, (None, None))
        if learned is not self.numbers[name] or made.shape() != own.shape() or _kind(made) != _kind(own):
            made = self.numbers[name].prior(own)
            self._made[name] = self.numbers[name], made
        return made

    def numbers_of(self, laws: Mapping[str, RandomTensorLaw]) -> dict[str, Numbers]:
        """Of the sites whose prior is learned.  Vectorized particles that multiply the means of a layer by a
        draw each (MNF) leave its prior as it is.  Warns before the first update where it is none.
        """
        alike = {name: law for name, law in laws.items() if law.loc.dim() <= law.log_scale.dim()}
        found = {
            name: Numbers.of(law)
            for name, law in alike.items()
            if name in self.numbers or shares_a_prior(law)
        }
        if alike and not found and self.runs == 0:
            warnings.warn(
                f"empirical_bayes learns nothing: none of {', '.join(map(repr, alike))} has several elements "
                "outside plates and one prior, of numbers and of the guide's own family (Normal, of spikes "
                "SpikeSlab), for all of them, such as dist.Normal(0.0, 1.0).expand([n]).to_event(1)",
                stacklevel=2,
            )
        return found

    @torch.no_grad()
    def after_run(self, sites: Mapping[str, Numbers], kl_weight: float = 1.0) -> None:
        """After a training run: every so often the priors follow what the laws have become, unless the
        weight of the divergence is still on its way.
        """
        if kl_weight != self.kl_weight:
            self._restart(kl_weight)
            return
        self.stood += 1
        if self.kl_weight < 1 and self.stood <= self.stair:  # a stair, for all that is known
            return
        if self.runs % EVERY == 0:
            self.numbers.update({name: self._best(numbers) for name, numbers in sites.items()})
        self.runs += 1

    def _restart(self, kl_weight: float) -> None:
        """At another weight of the divergence; where it rises, what a smaller one had taught is forgotten."""
        if kl_weight > self.kl_weight:
            self.stair, self.runs = max(self.stair, self.stood), 0
            self.numbers.clear()
        else:
            self.stair = 0
        self.kl_weight, self.stood = kl_weight, 0

    def _best(self, law: Numbers) -> Learned:
        """What makes the bound largest, or of rates nearly so."""
        logits = None if law.logits is None else law.logits()
        scale, included = law.scale(logits)
        if logits is None:
            return Learned(scale)
        inclusion = min(max(included / logits.numel(), TINY), 1 - TINY)
        if not self.rates or law.event_dim < 2:
            return Learned(scale, inclusion)
        alpha = torch.sigmoid(logits)
        alpha = alpha.flatten(2).mean(-1) if alpha.dim() > 2 else alpha
        outputs, inputs = ((alpha.mean(axis) / inclusion).tolist() for axis in (1, 0))
        return Learned(scale, inclusion, tuple(outputs), tuple(inputs))

    def charge(self, sizes: Mapping[str, int]) -> float:
        """Nats by which the bound would be lower if what was learned cost as much as it does in BIC.

        :param sizes: weights of every site
        """
        return math.fsum(learned.charge(sizes[name]) for name, learned in self.numbers.items())


def shares_a_prior(law: RandomTensorLaw) -> bool:
    """Whether a site has several elements, with one prior for all of them that depends on no other site.

    It may be written as a tensor of equal numbers: ``Normal(torch.zeros(3), 1.0)``.
    """
    if law.log_scale.numel() < 2 or law.log_scale.dim() != law.event_dim:
        return False
    if law.shared_prior is not None:
        return not any(number.requires_grad for number in law.shared_prior)
    family, names = SPIKE_SLAB if isinstance(law, SpikeSlabLaw) else NORMAL
    if not isinstance(law.prior, family):
        return False
    parameters = [getattr(law.prior, name).flatten() for name in names]
    return all(not p.requires_grad and bool((p == p[0]).all()) for p in parameters)


def _kind(prior: dist.TorchDistribution) -> tuple:
    loc = base_prior(prior).loc
    return loc.dtype, loc.device


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _learned(given: Learned | Mapping) -> Learned:
    if isinstance(given, Learned):
        return given
    return Learned(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    )
