"""Priors that a fit learns from the data: empirical Bayes for the scales and inclusions of layers.

Of a site whose weights share one prior, the numbers of that prior that make the bound largest given the guide
have a closed form.  With inclusion probabilities ``alpha`` and slabs ``N(mu, sigma^2)``::

    inclusion        pi    = mean of alpha
    sd of the slab   s_p^2 = sum alpha (sigma^2 + (mu - m_p)^2) / sum alpha

and for Gaussian weights or biases the second with ``alpha = 1``.  A few numbers a layer are thus chosen by
the data: the bound is one on the evidence of the model *with these numbers*, no charge is made for them.

The prior follows the guide and the guide the prior, so that there are several optima.  From a start where all
weights are in, a prior that says so is the nearest, and on images it is a bad one: let the weight of the
divergence rise first (``Schedule.kl_weight``).  Nothing is learned as long as it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pyro import distributions as dist

from guides.core.distributions import SpikeSlab, base_prior
from guides.core.fused import chunks
from guides.core.laws import GaussianLaw, RandomTensorLaw, SpikeSlabLaw

#: Training runs from one update to the next: they cost a pass over the weights.
EVERY = 10
#: Inclusion probabilities of a prior stay this far from 0 and 1, sds above.
TINY = 1e-6


class LearnedPriors:
    """The learned numbers of every site, and the priors made from them.

    :ivar numbers: ``{site: (sd, inclusion)}``; the inclusion of a Gaussian site is None
    """

    def __init__(
        self,
        numbers: Mapping[str, Sequence[float | None]] | None = None,
        runs: int = 0,
        kl_weight: float = 1.0,
    ):
        self.numbers = {name: tuple(pair) for name, pair in (numbers or {}).items()}
        self.runs, self.kl_weight = runs, kl_weight

    def state(self) -> dict:
        """JSON-safe; the arguments of a copy."""
        numbers = {name: list(pair) for name, pair in self.numbers.items()}
        return {"numbers": numbers, "runs": self.runs, "kl_weight": self.kl_weight}

    def prior(self, name: str, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """In place of the model's own: the same one where nothing is learned for the site."""
        if name not in self.numbers:
            return prior
        base, (scale, inclusion) = base_prior(prior), self.numbers[name]
        loc = base.loc[(0,) * base.loc.dim()]
        if inclusion is None:
            learned = dist.Normal(loc, loc.new_tensor(scale), validate_args=False)
        else:
            learned = SpikeSlab(loc.new_tensor(inclusion), loc, loc.new_tensor(scale), validate_args=False)
        return learned.expand(base.batch_shape).to_event(prior.event_dim)

    @torch.no_grad()
    def after_run(self, laws: Mapping[str, RandomTensorLaw], kl_weight: float = 1.0) -> None:
        """After a training run: every so often the numbers follow what the laws have become, unless the
        weight of the divergence is still on its way.
        """
        if kl_weight != self.kl_weight:
            self.kl_weight = kl_weight
            return
        if self.runs % EVERY == 0:
            self.numbers.update({name: _best(law) for name, law in laws.items() if shares_a_prior(law)})
        self.runs += 1


def shares_a_prior(law: RandomTensorLaw) -> bool:
    """Whether a site has several elements, with one prior for all of them that hangs on no other site."""
    shared = law.shared_prior
    return law.log_scale.numel() > 1 and shared is not None and not any(t.requires_grad for t in shared)


def _best(law: GaussianLaw | SpikeSlabLaw) -> tuple[float, float | None]:
    """``(sd, inclusion)`` of the best prior; the inclusion of a Gaussian law is None."""
    *_, centre, _ = law.shared_prior
    loc = law.loc.detach().expand(law.log_scale.shape)
    tensors = [loc.contiguous(), law.log_scale.detach()]
    if isinstance(law, SpikeSlabLaw):
        tensors.append(law.logits.detach())
    squares, included = 0.0, 0.0
    for mu, log_scale, *logits in chunks(*tensors):
        square = (2 * log_scale).exp().add_((mu - centre).square())
        alpha = torch.sigmoid(logits[0]) if logits else torch.ones_like(square)
        squares, included = squares + alpha.dot(square).item(), included + alpha.sum().item()
    scale = max(TINY, (squares / max(included, TINY)) ** 0.5)
    if not isinstance(law, SpikeSlabLaw):
        return scale, None
    return scale, min(max(included / law.logits.numel(), TINY), 1 - TINY)
