"""Likelihoods of any family under many draws, side by side, and their equal mixture.

Where a family has no mixture in closed form, each draw keeps its law, and a question to the mixture is one to
all of them: exact, and slower by the number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pyro import distributions as dist
from pyro.distributions.torch_distribution import MaskedDistribution, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, Independent

__all__ = ["LawsOfDraws", "MixtureOfDraws", "elementwise"]

#: Families with a centre where they may have no mean.
CENTRED = (dist.StudentT, dist.Cauchy)


def elementwise(law: Distribution) -> Distribution:
    """The law of one element, under any number of ``to_event`` and ``mask``."""
    while isinstance(law, Independent | MaskedDistribution):
        law = law.base_dist
    return dist.Delta(law.v) if isinstance(law, dist.Delta) else law


class LawsOfDraws(TorchDistribution):
    """``S`` laws of one family and shape ``[N]``: batch shape ``[S, N]``.

    :param laws: one a draw
    """

    arg_constraints = {}

    def __init__(self, laws: Sequence[Distribution]):
        self.laws = tuple(laws)
        shape = torch.Size((len(self.laws),)) + self.laws[0].batch_shape
        super().__init__(shape, self.laws[0].event_shape, validate_args=False)

    @property
    def support(self):
        return self.laws[0].support

    @property
    def mean(self) -> Tensor:
        return torch.stack([law.mean for law in self.laws])

    @property
    def centre(self) -> Tensor:
        """The mean, of Student's and Cauchy's laws the location."""
        return torch.stack([_centre(law) for law in self.laws])

    @property
    def variance(self) -> Tensor:
        return torch.stack([law.variance for law in self.laws])

    def log_prob(self, value: Tensor) -> Tensor:
        """Of values that broadcast to ``[..., S, N, *event]``."""
        values = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape + self.event_shape))
        axis = len(self.batch_shape + self.event_shape)
        parts = values.unbind(-axis)
        return torch.stack(
            [law.log_prob(part) for law, part in zip(self.laws, parts, strict=True)], -len(self.batch_shape)
        )

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008 (torch's own signature)
        return torch.stack([law.sample(sample_shape) for law in self.laws], len(sample_shape))


class MixtureOfDraws(TorchDistribution):
    """The equal mixture of the laws of all draws, batch shape ``[N]``; each element picks its own of them."""

    arg_constraints = {}

    def __init__(self, laws: LawsOfDraws):
        self.laws = laws
        super().__init__(laws.batch_shape[1:], laws.event_shape, validate_args=False)

    @property
    def support(self):
        return self.laws.support

    @property
    def mean(self) -> Tensor:
        return self.laws.mean.mean(0)

    @property
    def variance(self) -> Tensor:
        return self.laws.variance.mean(0) + self.laws.mean.var(0, correction=0)

    def log_prob(self, value: Tensor) -> Tensor:
        parts = torch.stack([law.log_prob(value) for law in self.laws.laws])
        return parts.logsumexp(0) - math.log(len(parts))

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008 (torch's own signature)
        laws = self.laws.laws
        shape = torch.Size(sample_shape) + self.batch_shape
        chosen = torch.randint(len(laws), shape)
        values = laws[0].sample(sample_shape)
        chosen = chosen.reshape(shape + (1,) * len(self.event_shape)).to(values.device)
        for i, law in enumerate(laws[1:], start=1):
            values = torch.where(chosen == i, law.sample(sample_shape), values)
        return values


def _centre(law: Distribution) -> Tensor:
    element = law.base_dist if isinstance(law, Independent) else law
    return element.loc if isinstance(element, CENTRED) else law.mean
