"""Linear and logistic regression as Pyro models: what closed forms, enumerations, Gibbs and VARBVS speak of.

Their results are arrays; with the model that they belong to, these arrays predict and can be scored.

Sites: ``w: [p]``, ``b: []`` where there is an intercept, ``noise_precision: []`` where the noise is unknown;
observed ``y: [N]``.  Inputs ``x: [N, p]``, arrays or tensors of any precision.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from torch import Tensor

from guides.core.distributions import SpikeSlab

__all__ = ["linear_regression", "logistic_regression", "spikes_and_slabs"]

Law = dist.TorchDistribution


def linear_regression(
    weights: Callable[[Tensor], Law], noise: Law | float, bias: Law | None = None
) -> Callable:
    """``y ~ N(b + x w, 1 / noise_precision)``.

    :param weights: noise sd ``[]`` -> law of ``w: [p]``
    :param noise: law of the precision ``[]``, or the known noise sd
    :param bias: law of ``b: []``; None: no intercept
    """

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        if isinstance(noise, dist.Distribution):
            sd = pyro.sample("noise_precision", noise).rsqrt()
        else:
            sd = torch.as_tensor(noise, dtype=torch.float64)
        output = _predictor(x, weights(sd), bias)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(output, sd.to(output.dtype)), obs=y)
        return output

    return model


def logistic_regression(weights: Law, bias: Law | None = None) -> Callable:
    """``y ~ Bernoulli(sigmoid(b + x w))``; arguments as for :func:`linear_regression`."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        output = _predictor(x, weights, bias)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=output), obs=y)
        return output

    return model


def spikes_and_slabs(inclusion: np.ndarray | Tensor, scale: np.ndarray | Tensor | float) -> Law:
    """``w_j = 0`` with probability ``1 - inclusion[j]``, else ``N(0, scale_j^2)``; float64.

    :param inclusion: ``[p]``
    :param scale: a number, ``[]`` or ``[p]``
    """
    return SpikeSlab(torch.as_tensor(inclusion), 0.0, torch.as_tensor(scale, dtype=torch.float64)).to_event(1)


def _predictor(x: Tensor, weights: Law, bias: Law | None) -> Tensor:
    w = pyro.sample("w", weights)
    output = torch.as_tensor(x).to(w.dtype) @ w
    return output if bias is None else output + pyro.sample("b", bias)
