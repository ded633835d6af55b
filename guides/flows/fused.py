"""A step of a large gated flow as one autograd node, compiled.

Eager torch takes thirty small operations for it, forth and back, and as long for them as for a layer's
product of matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from guides.core.kernels import kernel


class GatedStep(torch.autograd.Function):
    """``(y [d], log|det dy/dz|)`` of a step of :mod:`guides.flows.gated` whose network has one hidden layer.

    ``z[moved]`` becomes ``g z + (1 - g) t`` with ``t`` and ``logit g`` the two halves of
    ``w2 leaky_relu(w1 z[kept] + b1) + b2``; the rest of ``z`` stays.  Arguments: ``(z [d], kept, moved, slope,
    w1 [hidden, kept], b1, w2 [2 moved, hidden], b2)``.  First derivatives only.
    """

    @staticmethod
    def applies(z: Tensor, weights: list[tuple[Tensor, Tensor]]) -> bool:
        """Whether there is a kernel for a step with these layers, ``[(weight, bias), ...]``."""
        if z.dim() != 1 or len(weights) != 2:
            return False
        (w1, b1), (w2, b2) = weights
        return kernel("gated_forward", w2, w1, b1, b2, z) is not None

    @staticmethod
    def forward(ctx, z, kept, moved, slope, w1, b1, w2, b2):
        y, log_det = torch.empty_like(z), z.new_empty(())
        memory = z.new_empty(2 * len(kept) + len(b1) + len(b2))
        ctx.sizes = len(z), len(kept), len(b1), len(moved), slope
        ctx.save_for_backward(z, kept, moved, w1, w2, memory)
        compiled = kernel("gated_forward", w2)
        compiled(*ctx.sizes, z, kept, moved, w1, b1, w2, b2, y, log_det, memory)
        return y, log_det

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y: Tensor, d_log_det: Tensor):
        z, kept, moved, w1, w2, memory = ctx.saved_tensors
        _, _, width, moving, _ = ctx.sizes
        d_z, d_w1, d_w2 = torch.empty_like(z), torch.empty_like(w1), torch.empty_like(w2)
        d_b1, d_b2 = z.new_empty(width), z.new_empty(2 * moving)
        compiled = kernel("gated_backward", w2)
        compiled(
            *ctx.sizes, z, kept, moved, w1, w2,
            d_y.contiguous(), float(d_log_det), memory, d_z, d_w1, d_b1, d_w2, d_b2,
        )  # fmt: skip
        return d_z, None, None, None, d_w1, d_b1, d_w2, d_b2
