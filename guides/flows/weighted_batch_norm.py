"""Batch normalisation of weighted rows, as an invertible step of a flow.

    m = sum_i W_i x_i,   v = sum_i W_i (x_i - m)^2 + eps,   y = exp(g) (x - m) / sqrt(v) + b

over the rows that are seen together, while training; afterwards over the last of them.  Rows that stand for
a law with weights must count by these: unweighted, 500 pseudo-observations beside 1000 rows have a third of
the statistics whatever they weigh, and what is trained is another flow than the one that is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

#: Added to the variance, as in the published flows.
EPSILON = 1e-5
_WEIGHTS: ContextVar[Tensor | None] = ContextVar("weights of the rows", default=None)


@contextmanager
def weighted_rows(weights: Tensor) -> Iterator[None]:
    """Within it, a batch normalisation in training mode takes its rows with these weights.

    :param weights: ``[N]``, one for each row that is seen together; their sum is one
    """
    token = _WEIGHTS.set(weights)
    try:
        yield
    finally:
        _WEIGHTS.reset(token)


class WeightedBatchNorm(nn.Module):
    """Rows ``[N, features]`` to zero mean and unit variance under their weights, then scaled and shifted.

    In training mode it keeps the statistics of every call, and in evaluation mode it uses the last ones: no
    moving average, so that a flow that is scored is exactly the one that was trained last.
    """

    def __init__(self, features: int):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(features))
        self.shift = nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))

    def reset_parameters(self) -> None:
        """As at the start."""
        with torch.no_grad():
            self.log_scale.zero_()
            self.shift.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x [N, d] -> (y [N, d], log|det| [])``; rows of any batch shape in evaluation mode."""
        if self.training:
            weights = _WEIGHTS.get()
            weights = x.new_full((len(x),), 1 / len(x)) if weights is None else weights.to(x)
            y, log_det, self.mean, self.variance = _Normalise.apply(x, weights, self.log_scale, self.shift)
            return y, log_det
        log_factor = self.log_scale - 0.5 * self.variance.log()
        return torch.addcmul(self.shift, x - self.mean, log_factor.exp()), log_factor.sum()

    def inverse(self, y: Tensor) -> Tensor:
        """By the statistics that are kept."""
        return (y - self.shift) * (0.5 * self.variance.log() - self.log_scale).exp() + self.mean


class _Normalise(torch.autograd.Function):
    """Rows by their own statistics.  The derivative by hand takes a third of the passes over the rows.

    With ``u = (x - m) / sqrt(v)``, ``c = exp(g) / sqrt(v)``, ``G`` the gradient of ``y``, ``l`` that of the
    log-determinant, row ``i`` has the gradient
    ``c G_i - W_i c sum_k G_k - W_i u_i (c sum_k G_k u_k + l / sqrt(v))``.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor, log_scale: Tensor, shift: Tensor):
        mean = weights @ x
        apart = x - mean
        variance = weights @ apart.square() + EPSILON
        root, scale = variance.rsqrt(), log_scale.exp()
        unit = apart.mul_(root)
        ctx.save_for_backward(unit, weights, root, scale)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(shift, unit, scale), (log_scale + root.log()).sum(), mean, variance

    @staticmethod
    def backward(ctx, of_y: Tensor, of_log_det: Tensor, *none: None):
        unit, weights, root, scale = ctx.saved_tensors
        along = of_y * unit
        total, projected, factor = of_y.sum(0), along.sum(0), scale * root
        of_x = torch.addr(of_y * factor, weights, total * factor, alpha=-1)
        pull = projected * factor + of_log_det * root
        of_x.addcmul_(torch.mul(unit, weights.unsqueeze(1), out=along), pull, value=-1)
        return of_x, None, projected * scale + of_log_det, total
