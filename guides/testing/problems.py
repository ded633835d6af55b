"""Models on which a guide has a known answer, priors of their weights, and a guide as one of the cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from scipy import stats
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn import functional as F

from guides.core.distributions import SpikeSlab
from guides.variational.concrete import AutoConcrete, relaxed_moments

NOISE = 0.7


def normal(shape: list[int], scale: float = 1.0) -> dist.TorchDistribution:
    return dist.Normal(torch.zeros(()), torch.tensor(scale)).expand(shape).to_event(len(shape))


def spike_slab(shape: list[int], scale: float = 1.0) -> dist.TorchDistribution:
    prior = SpikeSlab(torch.tensor(0.3), torch.tensor(0.0), torch.tensor(scale))
    return prior.expand(shape).to_event(len(shape))


@dataclass(frozen=True)
class Case:
    """A guide and the prior that its weights have in the battery.

    :ivar exact_loss_known: elements are independent, with the KL in closed form; guides with latent variables
        of their own have tests of the same laws in their own files
    :ivar particles_are_runs: every vectorised particle draws for itself all that a run draws
    """

    name: str
    make: Callable
    prior: Callable = normal
    exact_loss_known: bool = True
    particles_are_runs: bool = True

    def __str__(self) -> str:
        return self.name


def data(rows: int = 20, columns: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    return x, x[:, 0] - 0.5 * x[:, -1] + NOISE * torch.randn(rows, generator=generator)


def linear_model(prior: Callable, batch_size: int | None = None) -> Callable:
    """``y ~ Normal(x w, NOISE)`` with ``w`` a vector."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", prior([x.shape[-1]]))
        with pyro.plate("data", len(x), subsample_size=batch_size) as rows:
            return pyro.sample("y", dist.Normal(x[rows] @ w, NOISE), obs=None if y is None else y[rows])

    return model


def local_model(batch_size: int | None = None) -> Callable:
    """``y_i ~ Normal(z_i, NOISE)`` with a latent value of every row, ``z_i ~ Normal(m, 1)``."""

    def model(y: Tensor) -> None:
        m = pyro.sample("m", normal([]))
        with pyro.plate("data", len(y), subsample_size=batch_size) as rows:
            z = pyro.sample("z", dist.Normal(m, 1.0))
            pyro.sample("y", dist.Normal(z, NOISE), obs=y[rows])

    return model


def network(prior: Callable, hidden: int = 4) -> Callable:
    """One hidden layer through ``F.linear``, random biases, Gamma noise precision."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w1 = pyro.sample("w1", prior([hidden, x.shape[-1]], 0.7))
        b1 = pyro.sample("b1", normal([hidden]))
        w2 = pyro.sample("w2", prior([1, hidden], 0.5))
        b2 = pyro.sample("b2", normal([1]))
        precision = pyro.sample("precision", dist.Gamma(6.0, 6.0))
        f = F.linear(torch.relu(F.linear(x, w1, b1)), w2, b2).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, precision.rsqrt()), obs=y)

    return model


def product(name: str, prior: Callable) -> Callable:
    """``[N, D] -> [N]`` by weights ``w`` (and ``v``, ``b``) in the ways people write a linear layer."""

    def apply(x: Tensor) -> Tensor:
        columns = x.shape[-1]
        shape = {"linear": [1, columns], "matrix": [columns, 1], "layers": [2, columns], "rows": [1, columns]}
        w = pyro.sample("w", prior(shape.get(name, [columns])))
        if name == "layers":
            hidden = torch.tanh(F.linear(x, w, pyro.sample("b", normal([2]))))
            return hidden @ pyro.sample("v", prior([2])) + pyro.sample("c", normal([]))
        if name == "linear":
            return F.linear(x, w, pyro.sample("b", normal([1]))).squeeze(-1)
        if name == "linear-vector":
            return F.linear(x, w)
        if name == "rows":
            return (w @ x.mT).squeeze(-2)
        if name == "rows-vector":
            return w @ x.T
        return (x @ w).squeeze(-1) if name == "matrix" else x @ w

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = apply(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    return model


PRODUCTS = ["vector", "matrix", "linear", "linear-vector", "rows", "rows-vector", "layers"]


def priors_only(prior: Callable) -> Callable:
    """No data: weights in one layer each, and every site with a closed-form KL."""

    def model() -> Tensor:
        w = pyro.sample("w", prior([4, 3]))
        b = pyro.sample("b", dist.Normal(torch.arange(4.0), 0.5).to_event(1))
        output = F.linear(torch.ones(2, 3), w, b)
        with pyro.plate("groups", 2):
            pyro.sample("rate", dist.Gamma(torch.tensor([2.0, 3.0]), 1.5))
            pyro.sample("shift", dist.Normal(0.0, 2.0))
        return output

    return model


def constrained(y: Tensor, counts: Tensor, hits: Tensor) -> None:
    """Sites on half-lines and on an interval, each with conjugate data ``[N]``.  The divergence of the Gamma
    has a closed form for log-normal laws, those of the others have none.
    """
    precision = pyro.sample("precision", dist.Gamma(2.0, 3.0))
    rate = pyro.sample("rate", dist.Exponential(1.0))
    share = pyro.sample("share", dist.Beta(2.0, 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, precision.rsqrt()), obs=y)
        pyro.sample("counts", dist.Poisson(4 * rate), obs=counts)
        pyro.sample("hits", dist.Bernoulli(share), obs=hits)


def constrained_data() -> tuple[Tensor, Tensor, Tensor]:
    """For :func:`constrained`.  In the posterior the mean logarithm of every site's Jacobian is below -1: one
    that is left out moves the divergence by more than a nat, and several cannot cancel.
    """
    y = torch.tensor([3.9, -0.7, 1.8, -4.2, 2.3, 0.4, -2.9, -1.5, 2.6, 3.1])
    counts = torch.tensor([0.0, 1, 0, 2, 1, 0, 3, 0, 1, 0])
    return y, counts, torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 0, 0, 0])


def constrained_posterior(y: Tensor, counts: Tensor, hits: Tensor) -> dict:
    """``{name: its law}`` of :func:`constrained`, of SciPy; given the data the sites are independent."""
    n, square, count, hit = len(y), float((y**2).sum()), float(counts.sum()), float(hits.sum())
    return {
        "precision": stats.gamma(2 + n / 2, scale=1 / (3 + square / 2)),
        "rate": stats.gamma(1 + count, scale=1 / (1 + 4 * n)),
        "share": stats.beta(2 + hit, 3 + n - hit),
    }


def constrained_evidence(*data: Tensor) -> float:
    """The log evidence of :func:`constrained`: ``log p(z, data) - log p(z | data)`` at any ``z``."""
    laws = constrained_posterior(*data)
    z = {name: torch.tensor(law.mean(), dtype=torch.float64) for name, law in laws.items()}
    joint = poutine.trace(poutine.condition(constrained, data=z)).get_trace(*data).log_prob_sum()
    return float(joint) - sum(law.logpdf(law.mean()) for law in laws.values())


def moments_in_training(guide, law) -> tuple[Tensor, Tensor]:
    """Mean and variance of weights as the likelihood sees them while gradients are wanted."""
    if not (isinstance(guide, AutoConcrete) and isinstance(law, SpikeSlab)):
        return law.mean, law.variance
    gate, square = relaxed_moments(law.logits, guide.temperature)
    mean = gate * law.loc
    return mean, square * (law.scale**2 + law.loc**2) - mean**2


def exact_loss(guide, prior: Callable, x: Tensor, y: Tensor) -> Tensor:
    """Minus the evidence bound of :func:`linear_model`: the likelihood is quadratic in the weights."""
    law = guide.site_distribution("w")
    return _minus_bound(law, *moments_in_training(guide, law), prior, x, y)


def exact_loss_of_draws(guide, prior: Callable, x: Tensor, y: Tensor) -> Tensor:
    """:func:`exact_loss` of real networks; another one for guides that relax indicators in training."""
    law = guide.site_distribution("w")
    return _minus_bound(law, law.mean, law.variance, prior, x, y)


def _minus_bound(law, mean: Tensor, variance: Tensor, prior: Callable, x: Tensor, y: Tensor) -> Tensor:
    errors = ((y - x @ mean) ** 2).sum() + (x**2 @ variance).sum()
    likelihood = -0.5 * len(y) * math.log(2 * math.pi * NOISE**2) - 0.5 * errors / NOISE**2
    own_prior = prior([x.shape[-1]]).base_dist
    return kl_divergence(law, own_prior).sum() - likelihood
