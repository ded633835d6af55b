"""The plain network of generators, of neural samplers, and of classifiers that tell draws apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

#: Slope of the leaky ReLU for negative numbers, that of the published networks.
SLOPE = 0.2


def perceptron(
    sizes: Sequence[int], *, bias_scale: float = 0.0, dropout: float = 0.0, dtype: torch.dtype = torch.float32
) -> nn.Sequential:
    """Linear layers with leaky ReLUs between: ``[..., sizes[0]] -> [..., sizes[-1]]``.

    Weights start at ``N(0, 1 / fan_in)``, biases at ``N(0, bias_scale^2)``.

    :param dropout: probability that a hidden unit is left out, before the leaky ReLU, in training mode
    """
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        linear = nn.Linear(inputs, outputs, dtype=dtype)
        nn.init.normal_(linear.weight, std=inputs**-0.5)
        if bias_scale:  # zeros use up no random numbers: who wants them has the fits of before
            nn.init.normal_(linear.bias, std=bias_scale)
        else:
            nn.init.zeros_(linear.bias)
        leaky = nn.LeakyReLU(SLOPE)
        # in one piece: a file of a network with dropout is one of the same network without
        layers += [linear, nn.Sequential(nn.Dropout(dropout), leaky) if dropout else leaky]
    return nn.Sequential(*layers[: layers.index(linear) + 1])
