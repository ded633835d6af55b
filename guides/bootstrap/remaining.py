"""How far weighted losses are from their minima: what a step of Newton's gains.

A loss that hardly changes any more may stand in a valley that is long and flat, as that of columns which
nearly say the same: descent goes on there for ever, and by what the last steps gained it cannot be told from
a loss at its minimum.  Newton's step, with the gradient ``g`` and the curvature ``H`` at the end,

    d = -H^-1 g,

goes along the valley: of a quadratic to its minimum.  Here it comes from conjugate gradients, which need
``H`` times a vector and no ``H``, and stop where the loss curves downwards, as that of a network may.  What
is told is no promise of the quadratic model but the best that was met along ``d``.  A loss without curvature,
as that of Laplace's law, has no such step, and nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Parameters = dict[str, Tensor]
#: Steps of conjugate gradients at most; as many as there are numbers are exact.
ROUNDS = 30
#: Residual, over the gradient, at which they stop.
SMALL = 1e-6
#: Parts of Newton's step that are tried.
PARTS = (1.0, 0.3, 0.1, 0.03)


def newtons_step(losses_of: Callable[[Parameters], Tensor], parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Of ``B`` draws, each alone: what was gained, ``[B]`` in the unit of the losses, and the step that
    gained it, ``[B, D]`` with the sites side by side; zeros where nothing gained, NaN where the loss has no
    curvature downhill.

    :param losses_of: ``{name: [B, ...]} -> [B]``; each loss depends on its own numbers only
    :raises RuntimeError: a loss that cannot be differentiated twice
    """
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    losses = losses_of(leaves)
    slopes = torch.autograd.grad(losses.sum(), list(leaves.values()), create_graph=True)

    def curved(direction: Tensor) -> Tensor:
        """``H`` times ``[B, D]``: the draws do not meet."""
        if not any(slope.requires_grad for slope in slopes):
            return torch.zeros_like(direction)
        along = (joined(slopes).to(direction) * direction).sum()
        found = torch.autograd.grad(along, list(leaves.values()), retain_graph=True, allow_unused=True)
        if all(part is None for part in found):  # torch says no more of a function that is marked so
            raise RuntimeError("a function of the loss has no second derivative")
        images = [
            torch.zeros_like(leaf) if part is None else part
            for part, leaf in zip(found, leaves.values(), strict=True)
        ]
        return joined(images).to(direction)

    way = _newton(curved, -joined(slopes).detach().double())
    best, taken = torch.zeros_like(losses), torch.zeros_like(way)
    for part in PARTS:
        try:
            with torch.no_grad():
                gain = losses.detach() - losses_of(_moved(leaves, part * way.nan_to_num()))
        except (ValueError, RuntimeError):  # so far away some law cannot be
            continue
        better = gain > best
        best, taken = torch.where(better, gain, best), torch.where(better[:, None], part * way, taken)
    unknown = way.isnan().any(1)
    return best.masked_fill(unknown, torch.nan), taken.masked_fill(unknown[:, None], torch.nan)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """``[B, ...]`` each -> ``[B, D]``."""
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1)


def _moved(parameters: Parameters, way: Tensor) -> Parameters:
    ways = way.split([value[0].numel() for value in parameters.values()], 1)
    return {n: v + own.reshape(v.shape).to(v) for (n, v), own in zip(parameters.items(), ways, strict=True)}


def _newton(curved: Callable[[Tensor], Tensor], downhill: Tensor) -> Tensor:
    """``H^-1`` times every row of ``downhill: [B, D]``."""
    residual = direction = downhill
    size = begun = (residual**2).sum(1)
    way, going = torch.zeros_like(downhill), size > 0
    for step_number in range(min(ROUNDS, downhill.shape[1])):
        image = curved(direction)
        curvature = (direction * image).sum(1)
        if step_number == 0:
            way = way.masked_fill((going & ~(curvature > 0))[:, None], torch.nan)
        going = going & (curvature > 0) & (size > SMALL**2 * begun)
        if not going.any():
            break
        step = torch.where(going, size / curvature, 0.0)[:, None]
        way = way + step * direction
        residual = residual - step * image
        after = (residual**2).sum(1)
        direction = residual + torch.where(going, after / size, 0.0)[:, None] * direction
        size = torch.where(going, after, size)
    return way
