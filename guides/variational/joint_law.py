r"""The joint law of spikes and slabs: indicators one after another, slabs Gaussian given them.

Of ``D`` numbers, spike-and-slab weights first asked whether they are in::

    gamma_j | gamma_<j ~ Bernoulli(sigmoid(a_j + sum_{i<j} B_ji (gamma_i - 1/2))),
    w_G | gamma ~ N(P_GG^-1 h_G, P_GG^-1),    w_j = 0 outside of G,

``G`` the weights that are in (sites without a spike always are), ``P [D, D]`` positive definite, ``h [D]``.
For a Gaussian likelihood with known noise ``P = x'x / s^2 + diag(1 / slab^2)`` and ``h = x'y / s^2`` make the
second line the exact posterior *of every model at once*: what a weight is depends on which others are in, and
that is what mean field cannot say where columns are correlated.
A fully visible sigmoid belief network for the indicators: Frey, Hinton and Dayan 1996.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class JointLaw:
    """The law of the head of this module, float64.

    :ivar spikes: which of the ``D`` numbers have a spike, ``[D]``
    :ivar logits: ``a [k]``, of the ``k`` numbers with spikes
    :ivar pulls: ``B [k, k]``, strictly lower triangular
    :ivar root: Cholesky factor of ``P``, ``[D, D]``
    :ivar linear: ``h [D]``
    """

    spikes: Tensor
    logits: Tensor
    pulls: Tensor
    root: Tensor
    linear: Tensor

    @torch.no_grad()
    def indicators(self, n: int) -> Tensor:
        """Draws of ``gamma``, ``[n, k]``, by torch's global random numbers."""
        gamma = self.logits.new_zeros(n, len(self.logits))
        uniform = torch.rand_like(gamma)
        for j, logit in enumerate(self.logits):
            given = logit + (gamma[:, :j] - 0.5) @ self.pulls[j, :j]
            gamma[:, j] = (uniform[:, j] < torch.sigmoid(given)).to(gamma)
        return gamma

    def conditional_logits(self, gamma: Tensor) -> Tensor:
        """Of every indicator given those before it, ``[n, k]``."""
        return self.logits + (gamma - 0.5) @ self.pulls.T

    def log_prob_of_indicators(self, gamma: Tensor) -> Tensor:
        """``[n, k] -> [n]``"""
        logits = self.conditional_logits(gamma)
        return logsigmoid(torch.where(gamma > 0, logits, -logits)).sum(-1)

    def _given(self, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Who is in, ``[n, D]``; means ``[n, D]``, zero outside; and Cholesky factors of the precisions,
        ``[n, D, D]``, the identity outside.
        """
        inside = gamma.new_ones(len(gamma), len(self.spikes))
        inside[:, self.spikes] = gamma
        precision = inside[:, :, None] * (self.root @ self.root.T) * inside[:, None, :]
        root = torch.linalg.cholesky(precision + torch.diag_embed(1 - inside))
        mean = torch.cholesky_solve((inside * self.linear).unsqueeze(-1), root).squeeze(-1)
        return inside, mean, root

    def weights(self, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised draws of ``w`` given the indicators, ``[n, D]``, their log densities ``[n]``."""
        inside, mean, root = self._given(gamma)
        noise = inside * torch.randn_like(inside)
        spread = torch.linalg.solve_triangular(root.mT, noise.unsqueeze(-1), upper=True).squeeze(-1)
        return mean + inside * spread, _log_normal(noise, inside, root)

    def log_prob(self, w: Tensor) -> Tensor:
        """``log q(w, gamma)``, ``[n, D] -> [n]``: indicators are where ``w`` is not zero."""
        gamma = (w[:, self.spikes] != 0).to(w)
        inside, mean, root = self._given(gamma)
        noise = (root.mT @ (w - mean).unsqueeze(-1)).squeeze(-1)
        return self.log_prob_of_indicators(gamma) + _log_normal(noise, inside, root)


def _log_normal(noise: Tensor, inside: Tensor, root: Tensor) -> Tensor:
    log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return log_det - 0.5 * (noise.square() + inside * math.log(2 * math.pi)).sum(-1)
