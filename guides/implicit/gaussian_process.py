"""A Gaussian process as a prior of functions: the one process here that has a density."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from guides.core.checks import check_numbers
from guides.implicit.processes import Functions

#: Cosines that a drawn function is made of: its covariance is off by some 1/sqrt of their number.
COSINES = 500
#: Variance of white noise that makes a covariance positive definite, a share of the process's own.
NUGGET = 1e-4


class GaussianProcess(nn.Module):
    """Mean 0, covariance ``s^2 exp(-1/2 sum_j ((x_j - x'_j) / l_j)^2)``.

    :param in_features: columns of ``x``
    :param length_scale: of all columns at the start; ``sqrt(in_features)`` by default, so that standardised
        rows are neither the same nor strangers
    :param scale: sd of the function at the start
    :param dtype: of its parameters
    """

    def __init__(
        self,
        in_features: int,
        *,
        length_scale: float | None = None,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        length_scale = math.sqrt(in_features) if length_scale is None else length_scale
        check_numbers(in_features=in_features, length_scale=length_scale, scale=scale)
        self.log_lengths = nn.Parameter(torch.full((in_features,), math.log(length_scale), dtype=dtype))
        self.log_scale = nn.Parameter(torch.full((), math.log(scale), dtype=dtype))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``[N]`` and covariance ``[N, N]`` at ``x: [N, in]``, float64."""
        self._check_columns(x)
        places = x.double() / self.log_lengths.double().exp()
        squares = (places.unsqueeze(1) - places.unsqueeze(0)).square().sum(-1)
        variance = (2 * self.log_scale.double()).exp()
        return places.new_zeros(len(x)), variance * torch.exp(-0.5 * squares)

    def score(self, f: Tensor, x: Tensor, noise_variance: float = 0.0) -> Tensor:
        """Gradient of the log density of values ``f: [S, N]`` at ``x: [N, in]``, white noise included."""
        mean, covariance = self.moments(x)
        share = NUGGET * covariance.diagonal() + noise_variance
        root = torch.linalg.cholesky(covariance + share.diag())
        return -torch.cholesky_solve((f.double() - mean).mT, root).mT.to(f.dtype)

    def draw(self, n: int) -> Functions:
        """``n`` functions: sums of 500 cosines each, with frequencies drawn from the kernel's spectrum
        (Rahimi and Recht 2007, "Random Features for Large-Scale Kernel Machines", NIPS), of the right
        covariance and nearly Gaussian; differentiable in the parameters and in ``x``.
        """
        kind = {"dtype": self.log_scale.dtype, "device": self.log_scale.device}
        frequencies = torch.randn(n, len(self.log_lengths), COSINES, **kind)
        phases = 2 * math.pi * torch.rand(n, 1, COSINES, **kind)
        weights = torch.randn(n, COSINES, 1, **kind) * math.sqrt(2 / COSINES)

        def functions(x: Tensor) -> Tensor:
            self._check_columns(x)
            places = (x.to(kind["dtype"]) / self.log_lengths.exp()).expand(n, *x.shape)
            waves = torch.cos(torch.baddbmm(phases, places, frequencies))
            return self.log_scale.exp() * (waves @ weights).squeeze(-1)

        return functions

    def _check_columns(self, x: Tensor) -> None:
        columns = len(self.log_lengths)
        if x.dim() != 2 or x.shape[1] != columns:
            raise ValueError(f"a process of {columns} column(s) needs x [N, {columns}], got {list(x.shape)}")
