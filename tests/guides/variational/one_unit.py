"""A unit whose expected loss is known in closed form, and what it is compared with; weights of a plate."""

import math

import pyro
import torch
from pyro import distributions as dist
from torch.nn import functional as F

from guides.testing import (
    NOISE,
    assert_equal_results,
    mean_of,
    normal,
)


def layer(x, y=None):
    """One unit without bias, so that the likelihood is quadratic in independent weights ``[1, 3]``."""
    w = pyro.sample("w", normal([1, x.shape[-1]]))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(F.linear(x, w).squeeze(-1), NOISE), obs=y)


def errors_of(mean, variance, x, y):
    squares = ((y - x @ mean.squeeze(0)) ** 2).sum() + (x**2 @ variance.squeeze(0)).sum()
    return 0.5 * squares / NOISE**2 + 0.5 * len(y) * math.log(2 * math.pi * NOISE**2)


def assert_expectations(runs, truth: torch.Tensor, guide) -> None:
    """``runs`` have the mean loss ``truth``, and the mean gradients that it has."""
    guide.zero_grad()
    truth.backward()
    expected = {"loss": truth.detach()} | {name: p.grad.clone() for name, p in guide.named_parameters()}
    assert all((value != 0).all() for value in expected.values())
    assert_equal_results(mean_of(runs), expected)


def local_weights(x, y):
    with pyro.plate("data", len(x), subsample_size=2) as rows:
        w = pyro.sample("w", normal([2, 3]))
        pyro.sample("y", dist.Normal(w.sum((-1, -2)), NOISE), obs=y[rows])
