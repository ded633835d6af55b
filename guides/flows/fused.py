"""The steps of a gated flow on one vector, compiled: their values and their derivatives.

Eager torch takes thirty small operations for a step, forth and back, and ten times as long as the arithmetic
in them.  The autograd nodes of :mod:`guides.variational.multipliers` are built on these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from guides.core import kernels


class Step(NamedTuple):
    """``z[moved]`` becomes ``g z + (1 - g) t`` with ``t`` and ``logit g`` the two halves of
    ``w2 tanh(w1 z[kept] + b1) + b2``; the rest of ``z`` stays.

    :ivar size: entries of ``z``
    :ivar kept: what the network sees, int ``[k]``; :ivar moved: int ``[m]``
    :ivar weights: ``w1 [hidden, k], b1, w2 [2 m, hidden], b2``; further layers have no kernel
    """

    size: int
    kept: Tensor
    moved: Tensor
    weights: tuple[Tensor, ...]


def has_kernel(z: Tensor, steps: Sequence[Step]) -> bool:
    """Whether :func:`forward` can take these steps: one hidden layer, one vector ``z [d]``, ``d`` at least 2,
    on the CPU in single precision.  They may be small: what eager torch takes then is the time of its calls.
    """
    if z.dim() != 1 or any(step.size != len(z) or len(step.weights) != 4 for step in steps):
        return False
    if not all(len(step.kept) for step in steps):
        return False
    largest = max((tensor for step in steps for tensor in step.weights), key=Tensor.numel)
    arrays = largest, z, *(tensor for step in steps for tensor in step.weights)
    return kernels.kernel("gated_forward", *arrays, smallest=0) is not None


def forward(z: Tensor, steps: Sequence[Step]) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """``(y [d], log|det dy/dz|, what backward needs)``."""
    total, kept = z.new_zeros(()), []
    for step in steps:
        y, log_det = torch.empty_like(z), z.new_empty(())
        memory = z.new_empty(2 * len(step.kept) + 2 * len(step.weights[1]) + len(step.weights[3]))
        _call("gated_forward", z, step, *step.weights, y, log_det, memory)
        kept.append((z, memory))
        z, total = y, total + log_det
    return z, total, kept


def backward(
    steps: Sequence[Step], kept: list[tuple[Tensor, Tensor]], d_y: Tensor, d_log_det: float
) -> tuple[Tensor, list[Tensor]]:
    """Derivatives of a loss by ``z`` and by all weights, from those by what :func:`forward` returned."""
    d_weights: list[Tensor] = []
    for step, (z, memory) in zip(reversed(steps), reversed(kept), strict=True):
        d_z, gradients = torch.empty_like(z), [torch.empty_like(t) for t in step.weights]
        w1, _, w2, _ = step.weights
        _call("gated_backward", z, step, w1, w2, d_y, d_log_det, memory, d_z, *gradients)
        d_weights, d_y = gradients + d_weights, d_z
    return d_y, d_weights


def _call(name: str, z: Tensor, step: Step, *arguments: Tensor | float) -> None:
    sizes = len(z), len(step.kept), len(step.weights[1]), len(step.moved)
    kernels.run(name, *sizes, z, step.kept, step.moved, *arguments)
