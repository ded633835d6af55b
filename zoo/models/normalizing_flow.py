"""Densities of rows by normalizing flows: ``z = T(x)`` is Gaussian around a mean that is a latent site.

The flow ``T`` runs from data to latent space, so that a density costs one pass and a sample of a masked
autoregressive flow one pass a column (Papamakarios, Pavlakou and Murray 2017)::

    log p(x | mean) = log N(T(x); mean, I) + log|det dT/dx|

Parameters of the flow are those of the module; ``mean`` has a posterior, and with the flow known its
posterior is simple: :meth:`FlowDensity.local` has the minimiser of any weighted loss in closed form
(:class:`guides.SharedParameterBootstrap`).  The autoregressive networks, couplings and splines are Pyro's;
what they are composed of here keeps no cache: Pyro's own compositions give back the old value when the same
tensor is scored again after a step.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Literal

import pyro
import torch
from pyro import distributions as dist
from pyro.distributions.transforms import AffineCoupling, SplineAutoregressive
from pyro.nn import AutoRegressiveNN, DenseNN
from torch import Tensor, nn

from guides.core.checks import check_numbers
from guides.flows.weighted_batch_norm import WeightedBatchNorm

#: Log-scales stay between these, smoothly: beyond the data an affine flow grows with their exponential.
LARGEST_LOG_SCALE = 3.0
#: Sd of the mean's prior: wide, for the posterior of thousands of rows is not to feel it.
PRIOR_SD = 10.0
#: Bins and half-width of splines, in standardised units.
BINS, BOUND = 8, 4.0
NO_SHAPE = torch.Size()

Kind = Literal["maf", "realnvp", "spline"]


class MaskedAutoregressive(nn.Module):
    """``z_i = (x_i - m_i) exp(-a_i)`` with ``m`` and ``a`` functions of the columns before ``i``."""

    def __init__(self, features: int, hidden: tuple[int, ...], backwards: bool):
        super().__init__()
        order = torch.arange(features)
        self.register_buffer("order", order.flip(0) if backwards else order)
        self.network = AutoRegressiveNN(features, list(hidden), permutation=self.order)

    def _shift_and_log_scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shift, raw = self.network(x)
        return shift, LARGEST_LOG_SCALE * torch.tanh(raw / LARGEST_LOG_SCALE)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x [..., d] -> (z [..., d], log|det| [...])``"""
        shift, log_scale = self._shift_and_log_scale(x)
        return (x - shift) * torch.exp(-log_scale), -log_scale.sum(-1)

    def inverse(self, z: Tensor) -> Tensor:
        x = torch.zeros_like(z)
        for column in self.order.tolist():
            shift, log_scale = self._shift_and_log_scale(x)
            x = x.clone()
            x[..., column] = z[..., column] * torch.exp(log_scale[..., column]) + shift[..., column]
        return x


class PyroStep(nn.Module):
    """A transform of Pyro's without its cache, columns in reverse order where wanted."""

    def __init__(self, transform: nn.Module, backwards: bool):
        super().__init__()
        self.transform, self.backwards = transform, backwards

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self._turned(x)
        z = self.transform._call(x)
        return self._turned(z), self.transform.log_abs_det_jacobian(x, z)

    def inverse(self, z: Tensor) -> Tensor:
        return self._turned(self.transform._inverse(self._turned(z)))

    def _turned(self, x: Tensor) -> Tensor:
        return x.flip(-1) if self.backwards else x


def _step(kind: Kind, features: int, hidden: tuple[int, ...], number: int) -> nn.Module:
    backwards = number % 2 == 1
    if kind == "maf":
        return MaskedAutoregressive(features, hidden, backwards)
    if kind == "realnvp":
        half = features // 2
        sizes = [features - half, features - half]
        network = DenseNN(half, list(hidden), sizes)
        clamp = {"log_scale_min_clip": -LARGEST_LOG_SCALE, "log_scale_max_clip": LARGEST_LOG_SCALE}
        return PyroStep(AffineCoupling(half, network, **clamp), backwards)
    parameters = [BINS, BINS, BINS - 1, BINS]
    order = torch.arange(features)
    network = AutoRegressiveNN(features, list(hidden), param_dims=parameters, permutation=order)
    return PyroStep(SplineAutoregressive(features, network, count_bins=BINS, bound=BOUND), backwards)


class FlowDensity(nn.Module):
    """A Pyro model of rows: called with ``x: [N, d]`` it observes them, with a number it draws as many.

    :param features: ``d``, at least two
    :param blocks: autoregressive networks (or couplings), the order of the columns reversed from one to the
        next
    :param hidden: units of each one's hidden layers, each at least ``d``
    :param kind: ``maf``; ``realnvp`` of affine couplings; ``spline``: autoregressive rational splines
    :param batch_norm: between the blocks
    :param covariance: whether the latent Gaussian has a covariance too: one more linear layer, as it were
    :raises ValueError: for fewer than two columns, no block, or too few hidden units

    Sites: ``mean: [d]``; with ``covariance`` also ``scale: [d]`` and ``correlation: [d, d]``, the Cholesky
    factor of a correlation; observed ``x: [N, d]``.
    """

    def __init__(
        self,
        features: int,
        blocks: int = 3,
        hidden: tuple[int, ...] = (100,),
        *,
        kind: Kind = "maf",
        batch_norm: bool = True,
        covariance: bool = False,
    ):
        super().__init__()
        check_numbers(features=features, blocks=blocks)
        if features < 2:
            raise ValueError("a flow needs at least two columns; the density of one is a histogram's")
        if not hidden:
            raise ValueError("a flow needs at least one hidden layer")
        if min(hidden) < features:
            raise ValueError(f"hidden layers need at least as many units as there are columns, {features}")
        self.features, self.covariance = features, covariance
        steps: list[nn.Module] = []
        for number in range(blocks):
            if batch_norm and number:
                steps.append(WeightedBatchNorm(features))
            steps.append(_step(kind, features, tuple(hidden), number))
        self.steps = nn.ModuleList(steps)

    # ------------------------------------------------------------------------------------------- the flow

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x [..., d] -> (z [..., d], log|det dz/dx| [...])``; in training mode ``[N, d]`` with weights."""
        total = x.new_zeros(x.shape[:-1])
        for step in self.steps:
            x, log_det = step(x)
            total = total + log_det
        return x, total

    def decode(self, z: Tensor) -> Tensor:
        """``z [..., d] -> x``, by the statistics of the last training step."""
        for step in reversed(self.steps):
            z = step.inverse(z)
        return z

    # -------------------------------------------------------------------------------- the latent Gaussian

    def local(self, weights: Tensor, z: Tensor) -> dict[str, Tensor]:
        """The sites that minimise ``-sum_i W_i log p(x_i)`` for a given flow.

        :param weights: ``[..., N]``, sums of one; ``z``: ``[..., N, d]``
        """
        mean = (weights.unsqueeze(-2).to(z) @ z).squeeze(-2)
        if not self.covariance:
            return {"mean": mean}
        apart = z - mean.unsqueeze(-2)
        second = apart.mT @ (weights.unsqueeze(-1).to(z) * apart)
        ridge = 1e-6 * second.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        eye = torch.eye(self.features, dtype=z.dtype, device=z.device)
        root = torch.linalg.cholesky(second + ridge * eye)
        scale = root.square().sum(-1).sqrt()
        return {"mean": mean, "scale": scale, "correlation": root / scale.unsqueeze(-1)}

    def log_density(self, sites: dict[str, Tensor], encoded: tuple[Tensor, Tensor]) -> Tensor:
        """``[N]``, nats, of rows that were encoded; for ``B`` values of the sites ``[B, N]``."""
        z, log_det = encoded
        mean, constant = sites["mean"], 0.5 * self.features * math.log(2 * math.pi)
        if self.covariance:
            root = _root(sites)
            z = torch.linalg.solve_triangular(root, (z - mean.unsqueeze(-2)).mT, upper=False).mT
            log_det = log_det - root.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
            return log_det - constant - 0.5 * z.square().sum(-1)
        if mean.dim() == 1:
            return log_det - constant - 0.5 * (z - mean).square().sum(-1)
        # of many means: one product of matrices instead of [B, N, d]
        squares = z.square().sum(-1) - 2 * mean @ z.mT + mean.square().sum(-1, keepdim=True)
        return log_det - constant - 0.5 * squares

    def latent(self, sites: dict[str, Tensor], *shape: int) -> Tensor:
        """``[*shape, d]`` drawn by torch's global generator."""
        mean = sites["mean"]
        noise = torch.randn(*shape, self.features).to(mean)
        return mean + ((_root(sites) @ noise.unsqueeze(-1)).squeeze(-1) if self.covariance else noise)

    # --------------------------------------------------------------------------------------- the Pyro model

    def forward(self, x: Tensor | int = 1) -> Tensor:
        like = next(self.parameters())
        mean = pyro.sample("mean", dist.Normal(like.new_zeros(self.features), PRIOR_SD).to_event(1))
        sites = {"mean": mean}
        if self.covariance:
            sites["scale"] = pyro.sample("scale", dist.LogNormal(torch.zeros_like(mean), 1.0).to_event(1))
            sites["correlation"] = pyro.sample("correlation", dist.LKJCholesky(self.features))
        data = None if isinstance(x, Integral) else x
        with pyro.plate("data", x if data is None else len(data)):
            return pyro.sample("x", Flowing(self, sites), obs=data)


class Flowing(dist.TorchDistribution):
    """The law of one row given the latent sites, batch shape ``[]``."""

    arg_constraints: dict = {}
    support = dist.constraints.real_vector
    has_rsample = True

    def __init__(self, flow: FlowDensity, sites: dict[str, Tensor], batch_shape: torch.Size = NO_SHAPE):
        self.flow, self.sites = flow, sites
        super().__init__(batch_shape, torch.Size([flow.features]), validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> Flowing:
        return Flowing(self.flow, self.sites, torch.Size(batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.flow.log_density(_before_rows(self.sites), self.flow.encode(value))

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        return self.flow.decode(self.flow.latent(self.sites, *sample_shape, *self.batch_shape))


def _before_rows(sites: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of vectorized runs, whose sites have a dimension of size 1 where the plate of rows is, without it."""
    if sites["mean"].dim() == 1:
        return sites
    return {name: value.squeeze(-3 if name == "correlation" else -2) for name, value in sites.items()}


def _root(sites: dict[str, Tensor]) -> Tensor:
    return sites["scale"].unsqueeze(-1) * sites["correlation"]
