"""A law without a density: noise pushed through a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from guides.core.perceptron import perceptron


class Generator(nn.Module):
    """``u = network(m + exp(r) * e)`` with ``e ~ N(0, I)``: the noise's mean and log sd are trained too.

    :param features: of ``u``
    :param noise_features: of ``e``
    :param hidden: units of the network's hidden layers
    """

    def __init__(
        self,
        features: int,
        noise_features: int = 10,
        hidden: Sequence[int] = (50, 50),
        *,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.noise_mean = nn.Parameter(torch.zeros(noise_features, dtype=dtype))
        self.noise_log_sd = nn.Parameter(torch.zeros(noise_features, dtype=dtype))
        self.network = perceptron((noise_features, *hidden, features), dtype=dtype)

    def forward(self, n: int) -> Tensor:
        """``n`` draws ``[n, features]`` by torch's global random numbers, with gradients."""
        mean = self.noise_mean
        noise = torch.randn((n, *mean.shape), dtype=mean.dtype, device=mean.device)
        return self.network(mean + self.noise_log_sd.exp() * noise)
