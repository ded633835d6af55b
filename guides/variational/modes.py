"""A mode of a density and the curvature there, as a place for a Gaussian law to start from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from guides.core.svi import DivergenceError

#: Smallest eigenvalue of the starting precision, as a share of the largest.
FLOOR = 1e-6
#: Smallest starting precision of a site that is held where its prior puts it: a sd of a third on its map.
HELD = 10.0


def mode_and_precision(
    log_density: Callable[[Tensor], Tensor], start: Tensor, held: Tensor
) -> tuple[Tensor, Tensor]:
    """A mode ``[D]`` above the start, and minus the second derivatives there, made positive definite where
    the density is curved at all.

    :param log_density: ``[D] -> []``, nats, twice differentiable
    :param held: what stays at its start and counts as independent of the rest, ``[D]``
    :raises DivergenceError: a RuntimeError, where the search ends beside finite numbers
    """
    mode = torch.where(held, start, _climb(lambda w: log_density(torch.where(held, start, w)), start))
    precision = -torch.autograd.functional.hessian(log_density, mode)
    if not (mode.isfinite().all() and precision.isfinite().all()):
        raise DivergenceError("the search for a mode ends where the log density is not finite")
    # what is held lies on a slope, where its curvature may have either sign
    own = precision.diagonal().clamp_min(HELD)
    precision = torch.where(held[:, None] | held, torch.where(held, own, 0.0).diag(), precision)
    values, vectors = torch.linalg.eigh(0.5 * (precision + precision.T))
    values = values.clamp_min(FLOOR * values.abs().max())
    return mode, (vectors * values) @ vectors.T


def _climb(log_density: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """A mode, by L-BFGS, whose line search wants a slope to begin with."""
    w = start.clone().requires_grad_()
    (slope,) = torch.autograd.grad(log_density(w), w)
    if not slope.isfinite().all():
        raise DivergenceError("the search for a mode starts where the slope of the log density is not finite")
    optimiser = torch.optim.LBFGS([w], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -log_density(w)
        loss.backward()
        return loss

    optimiser.step(closure)
    return w.detach()
