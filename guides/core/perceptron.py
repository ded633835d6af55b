"""The plain network of generators, and of classifiers that tell draws apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

#: Slope of the leaky ReLU for negative numbers, that of the published networks.
SLOPE = 0.2


def perceptron(
    sizes: Sequence[int], *, bias_scale: float = 0.0, dtype: torch.dtype = torch.float32
) -> nn.Sequential:
    """Linear layers of these sizes with leaky ReLUs between; weights start at ``N(0, 1 / fan_in)``, biases
    with sd ``bias_scale``.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        linear = nn.Linear(inputs, outputs, dtype=dtype)
        nn.init.normal_(linear.weight, std=inputs**-0.5)
        if bias_scale:
            nn.init.normal_(linear.bias, std=bias_scale)
        else:
            nn.init.zeros_(linear.bias)
        layers += [linear, nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers[:-1])


def frozen(network: nn.Module, inputs: Tensor) -> Tensor:
    """The network's outputs, differentiable in its inputs and not in its parameters."""
    return functional_call(network, {name: p.detach() for name, p in network.named_parameters()}, (inputs,))
