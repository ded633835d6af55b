"""Moments of spike-and-slab and Gaussian tensors: plain array arithmetic, no Pyro.

A spike-and-slab weight is ``w = g * b`` with ``g ~ Bernoulli(probs)`` and ``b ~ Normal(loc, scale)``
(Hubin and Storvik 2019).  Paper symbols: ``alpha = probs``, ``mu = loc``, ``sigma = scale``,
``lambda = logits``, and for the prior ``pi = prior probs``, ``m_p``, ``s_p``.
All arguments broadcast; every function returns one number for each element.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_2PI = math.log(2 * math.pi)


def spike_slab_mean(probs: Tensor, loc: Tensor) -> Tensor:
    """``E[w] = alpha mu``."""
    return probs * loc


def spike_slab_variance(probs: Tensor, loc: Tensor, variance: Tensor) -> Tensor:
    """``Var[w] = alpha (sigma^2 + (1 - alpha) mu^2)``.

    The law of total variance.  The thesis of Skaaret-Lund (2022) prints ``alpha^2 sigma^2``, which
    leaves out the variance of the indicator.
    """
    return probs * (variance + (1 - probs) * loc * loc)


def normal_entropy(log_scale: Tensor) -> Tensor:
    """Entropy of ``Normal(., exp(log_scale))`` in nats."""
    return log_scale + 0.5 * (LOG_2PI + 1)


def normal_cross_entropy(loc: Tensor, variance: Tensor, prior_loc: Tensor, prior_scale: Tensor) -> Tensor:
    """``-E[log Normal(b; m_p, s_p)]`` for ``b`` with the given mean and variance, in nats."""
    spread = variance + (loc - prior_loc) ** 2
    return prior_scale.log() + 0.5 * (LOG_2PI + spread / prior_scale**2)


def bernoulli_entropy(logits: Tensor) -> Tensor:
    """Entropy of a Bernoulli in nats, finite for every finite logit.

    ``-alpha log alpha - (1 - alpha) log(1 - alpha) = softplus(lambda) - alpha lambda``.
    """
    return softplus(logits) - torch.sigmoid(logits) * logits


def spike_slab_entropy(logits: Tensor, log_scale: Tensor) -> Tensor:
    """Entropy against the measure ``delta_0 + Lebesgue``: the indicator's, plus the slab's when it is on."""
    return bernoulli_entropy(logits) + torch.sigmoid(logits) * normal_entropy(log_scale)


def spike_slab_cross_entropy(
    probs: Tensor,
    loc: Tensor,
    variance: Tensor,
    prior_logits: Tensor,
    prior_loc: Tensor,
    prior_scale: Tensor,
) -> Tensor:
    """``-E_q[log p(w)]`` against the measure ``delta_0 + Lebesgue``, in nats.

    ``-log(1 - pi) + alpha (H(slab q, slab p) - logit(pi))``, with ``-log(1 - pi) = softplus(logit pi)``.
    With ``probs = 1`` it is the cross-entropy of a plain Gaussian that never visits the spike.
    """
    slab = normal_cross_entropy(loc, variance, prior_loc, prior_scale)
    return softplus(prior_logits) + probs * (slab - prior_logits)


def spike_slab_kl(
    logits: Tensor,
    loc: Tensor,
    log_scale: Tensor,
    prior_logits: Tensor,
    prior_loc: Tensor,
    prior_scale: Tensor,
) -> Tensor:
    """KL of two spike-and-slab laws, exact for the mixed measure (thesis equation 4.4), in nats.

    ``alpha (log s_p - log sigma - 1/2 + (sigma^2 + (mu - m_p)^2) / (2 s_p^2) + lambda - logit(pi))
    - softplus(lambda) + softplus(logit(pi))``: no product ``0 * log 0`` when alpha rounds to 0 or 1.
    """
    probs = torch.sigmoid(logits)
    variance = torch.exp(2 * log_scale)
    slab = normal_cross_entropy(loc, variance, prior_loc, prior_scale) - normal_entropy(log_scale)
    return probs * (slab + logits - prior_logits) - softplus(logits) + softplus(prior_logits)


def lognormal_gamma_cross_entropy(loc: Tensor, scale: Tensor, concentration: Tensor, rate: Tensor) -> Tensor:
    """``-E[log Gamma(t; concentration, rate)]`` for ``log t ~ Normal(loc, scale)``, in nats."""
    mean = torch.exp(loc + 0.5 * scale**2)
    log_density = concentration * rate.log() - torch.lgamma(concentration)
    return -(log_density + (concentration - 1) * loc - rate * mean)
