"""``p(f | u)`` of a process that can only be drawn from: that of a Gaussian process with its moments.

``S`` functions drawn from the process and seen at ``M`` inducing inputs and at ``N`` others give the mean and
the covariance of both (divisor ``S - 1``), and a Gaussian with these moments is conditioned on the values
``u`` at the inducing inputs.  The sample covariance of ``S`` functions has rank ``S - 1`` at most: with
``S <= M + 1`` of them ``u`` seems to determine the function everywhere, whatever the process is.  With more
it still seems to determine too much: what ``u`` leaves open is estimated by ``(S - 1 - M) / (S - 1)`` of its
variance on average, four fifths with ``S = 5 M``, by the published definition, which we keep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Conditional(NamedTuple):
    """``f | u`` at ``N`` inputs, Gaussian; float64.

    :ivar weights: ``[M, N]``: ``E[f | u] = offset + u weights``
    :ivar offset: ``[N]``
    :ivar variance: of ``f`` given ``u``, ``[N]``, not negative
    :ivar prior_variance: of ``f``, ``[N]``
    """

    weights: Tensor
    offset: Tensor
    variance: Tensor
    prior_variance: Tensor

    def mean(self, u: Tensor) -> Tensor:
        """``u: [S, M] -> [S, N]``"""
        return torch.addmm(self.offset, u, self.weights)

    @property
    def retained(self) -> Tensor:
        """Share of the prior variance that is left when ``u`` is known, mean over the inputs, ``[]``."""
        return self.variance.mean() / self.prior_variance.mean()


@dataclass(frozen=True)
class InducingMoments:
    """What drawn functions say of ``u``: ``mean: [M]``, and ``root: [M, M]``, the Cholesky factor of the
    covariance with the jitter on its diagonal; float64.

    :ivar deviations: ``u`` minus its mean, ``[S, M]``
    :ivar jitter: in the units of ``f`` squared
    """

    deviations: Tensor
    mean: Tensor
    root: Tensor
    jitter: float

    @classmethod
    def of(cls, u: Tensor, jitter: float) -> InducingMoments:
        """From draws ``u: [S, M]``, ``S > M``.

        Inducing inputs that coincide, and processes of few degrees of freedom, make the covariance singular:
        the jitter then decides what ``u`` cannot tell, as in any Gaussian process.

        :param jitter: added to the variances, in the units of ``f`` squared
        :raises ValueError: when the sum is not positive definite in float64 all the same
        """
        u = u.double()
        mean = u.mean(0)
        deviations = u - mean
        covariance = deviations.mT @ deviations / (len(u) - 1)
        root, failed = torch.linalg.cholesky_ex(covariance + jitter * torch.eye(len(mean)).to(u))
        if failed:
            raise ValueError(
                "the covariance of the inducing values is singular in float64, or not finite (largest "
                f"variance {covariance.diagonal().max():g}); raise the jitter, now {jitter:g}"
            )
        return cls(deviations, mean, root, jitter)

    def conditional(self, f: Tensor) -> Conditional:
        """Of the same functions at other inputs, ``f: [S, N]``."""
        f = f.double()
        mean = f.mean(0)
        deviations, draws = f - mean, len(f) - 1
        cross = self.deviations.mT @ deviations / draws
        whitened = torch.linalg.solve_triangular(self.root, cross, upper=False)
        weights = torch.linalg.solve_triangular(self.root.mT, whitened, upper=True)
        prior_variance = (deviations**2).sum(0) / draws
        explained = (whitened**2).sum(0)
        variance = (prior_variance - explained).clamp_min(0)
        return Conditional(weights, mean - self.mean @ weights, variance, prior_variance)

    def remainder(self, f: Tensor, weights: Tensor) -> Tensor:
        """What ``u`` leaves open of the same functions, ``[S + M, N]``: ``remainder.mT @ remainder`` is the
        covariance of ``f | u``, with the variances of :meth:`conditional` on its diagonal.

        :param f: as given to :meth:`conditional`, ``[S, N]``
        :param weights: which it has found, ``[M, N]``
        """
        f = f.double()
        residuals = f - f.mean(0) - self.deviations @ weights
        return torch.cat((residuals / math.sqrt(len(f) - 1), math.sqrt(self.jitter) * weights))
