"""The Gaussian with the moments of draws, which adaptive contrast compares a law with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from guides.core.moments import LOG_2PI

#: Weight of the newest batch in running averages, once there were ``1 / NEWEST`` of them.
NEWEST = 0.01
#: So many are needed to know correlations.
DRAWS_A_COORDINATE = 5
#: Added to the variances, a share of them, where all are related.
LEAST_SHARE = 1e-4


def newest_weight(before: int) -> float:
    """Of a batch in a running average, after so many others: all count alike at first."""
    return max(1 / (before + 1), NEWEST)


class Diagonal(NamedTuple):
    """An independent Gaussian: ``mean: [D]``, ``variance: [D]``."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, u: Tensor) -> Diagonal:
        """With the moments of draws ``u: [S, D]``."""
        return cls(u.mean(0), u.var(0))

    def moved(self, newest: Diagonal, weight: float) -> Diagonal:
        """Towards the moments of newer draws."""
        return Diagonal(*(torch.lerp(old, new, weight) for old, new in zip(self, newest, strict=True)))

    @property
    def sd(self) -> Tensor:
        """``[D]``; a coordinate that does not vary keeps its units."""
        return torch.where(self.variance > 0, self.variance, 1.0).sqrt()

    def whiten(self, u: Tensor) -> Tensor:
        """``[S, D]`` in units of the sds around the mean."""
        return (u - self.mean) / self.sd

    def log_prob(self, u: Tensor) -> Tensor:
        """``[S, D] -> [S]``, nats."""
        return -0.5 * (self.whiten(u) ** 2 + LOG_2PI).sum(-1) - self.sd.log().sum()


class Correlated(NamedTuple):
    """A Gaussian: ``mean: [D]``, ``covariance: [D, D]``."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, u: Tensor) -> Correlated:
        """With the moments of draws ``u: [S, D]``."""
        return cls(u.mean(0), u.mT.cov().reshape(u.shape[1], u.shape[1]))

    @property
    def root(self) -> Tensor:
        """Lower triangular, ``[D, D]``; a coordinate that hardly varies keeps some of its units."""
        variance = self.covariance.diagonal()
        least = torch.where(variance > 0, LEAST_SHARE * variance, 1.0)
        return torch.linalg.cholesky(self.covariance + least.diag())

    def whiten(self, u: Tensor) -> Tensor:
        """``[S, D]``, standard normal if ``u`` has this law."""
        return torch.linalg.solve_triangular(self.root, (u - self.mean).mT, upper=False).mT

    def log_prob(self, u: Tensor) -> Tensor:
        """``[S, D] -> [S]``, nats."""
        squares = (self.whiten(u) ** 2 + LOG_2PI).sum(-1)
        return -0.5 * squares - self.root.diagonal().log().sum()


def contrast_law(u: Tensor) -> type[Diagonal] | type[Correlated]:
    """What draws ``u: [S, D]`` can tell: correlations too where there are five of them a coordinate."""
    return Correlated if len(u) >= DRAWS_A_COORDINATE * u.shape[1] else Diagonal
