"""Data and models that the tests of the bootstrap share."""

from __future__ import annotations

import pyro
import torch
from pyro import distributions as dist


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(rows: int = 40, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, generator=generator(seed), dtype=torch.float64) * 2 + 1


def regression(rows: int = 60, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """With noise that grows along x: the likelihood below is wrong about it."""
    x = torch.randn(rows, 2, generator=generator(seed), dtype=torch.float64)
    noise = torch.randn(rows, generator=generator(seed + 1), dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + noise * (0.2 + x[:, 0].abs())


def double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def gaussian(y=None):
    loc = pyro.sample("loc", dist.Normal(double(0.0), 10.0))
    scale = pyro.sample("scale", dist.LogNormal(double(0.0), 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, scale), obs=y)


def mean_alone(y=None):
    loc = pyro.sample("loc", dist.Normal(double(0.0), 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def linear(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def two_plates(y):
    loc = pyro.sample("loc", dist.Normal(double(0.0), 2.0))
    with pyro.plate("data", len(y), dim=-2), pyro.plate("out", y.shape[1], dim=-1):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)
