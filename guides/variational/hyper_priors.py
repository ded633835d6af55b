"""Hyper-priors of a spike-and-slab layer: Beta on its inclusion probability, Gamma on its slab precision.

In a model they are plain Pyro, and the guides of this package give them laws like any other site::

    pi = pyro.sample("pi", dist.Beta(a, b))
    tau = pyro.sample("tau", dist.Gamma(c, d))
    w = pyro.sample("w", SpikeSlab(pi, 0.0, tau.rsqrt()).expand([out, in]).to_event(2))

Given the draw of ``pi`` and ``tau`` the KL divergence of the weights is in closed form; the bound is then
one on the evidence with both integrated out.  Empirical Bayes makes ``a, b, c, d`` (or ``pi`` and ``tau``
themselves) a ``pyro.param`` of the model: the same SVI step climbs the bound in them.  Each layer having its
own ``a, b``, nothing keeps the learnt Beta from narrowing to a point, which then is the estimate of ``pi``;
several layers that share them keep it open.

The published programs (Hubin and Storvik 2019 and what follows it) draw one ``tau`` a layer from its prior
and write both densities wrongly.  The functions here are what they compute instead, for looking at that loss
(``AutoConcrete(model, objective="published")``) and for nothing else.  Arguments broadcast; all is
elementwise and in nats.
"""

from __future__ import annotations

import torch
from torch import Tensor

from guides.core.moments import LOG_2PI

#: What the published programs add inside their logarithms.
PUBLISHED_FLOOR = 1e-8


def published_log_normal_gamma(
    value: Tensor, gate: Tensor, precision: Tensor, concentration: Tensor, rate: Tensor
) -> Tensor:
    """No density: of the Normal-Gamma's ``a log b - lgamma(a) + (a - 1/2) log tau - b tau - log(2 pi)/2
    - tau w^2/2`` it has ``(a - 1/2) tau`` for ``(a - 1/2) log tau``, and ``tau w^2`` for
    ``tau w^2/2``, which it takes outside the indicator, as it does one more nat for what is out.
    """
    bracket = (
        concentration * rate.log()
        + (concentration - 0.5) * precision
        - rate * precision
        - torch.lgamma(concentration)
        - 0.5 * LOG_2PI
    )
    return gate * bracket - precision * value * value + (1 - gate) + PUBLISHED_FLOOR


def published_log_inclusion(gate: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """No probability: of the Beta-Binomial's ``log B(a + gate, b + 1 - gate) - log B(a, b)`` the
    ``lgamma(gate + a)`` cancels, and ``-lgamma(1 + gate)`` is missing.
    """
    return (
        torch.lgamma(1 + b - gate)
        - torch.lgamma(2 - gate)
        + torch.lgamma(a + b)
        - torch.lgamma(1 + a + b)
        - torch.lgamma(a)
        - torch.lgamma(b)
    )


def published_log_posterior(
    value: Tensor, gate: Tensor, logits: Tensor, loc: Tensor, scale: Tensor
) -> Tensor:
    """``log(g N(w; mu, sigma) + 1 - g) + g log alpha + (1 - g) log(1 - alpha)`` at a relaxed ``g``, with
    their floors.
    """
    probs, z = torch.sigmoid(logits), (value - loc) / scale
    slab = torch.exp(-0.5 * (z * z + LOG_2PI)) / scale
    inclusion = gate * (probs + PUBLISHED_FLOOR).log() + (1 - gate) * (1 - probs + PUBLISHED_FLOOR).log()
    return (gate * slab + (1 - gate) + PUBLISHED_FLOOR).log() + inclusion
