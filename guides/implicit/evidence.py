"""A prior of functions fitted to data by the evidence of the Gaussian process with its moments."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guides.core.svi import half_cosine, shuffled_epochs
from guides.implicit.processes import ImplicitProcess

#: Functions drawn to know the moments of a process that cannot tell them.
FUNCTIONS = 100
#: Rows of a step: the covariance of more of them cannot be told by so many functions.
ROWS = 30
#: Log variance of the noise at the start, of a target of variance 1.
START_LOG_NOISE = -2.0


def moments(process: ImplicitProcess, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``[N]`` and covariance ``[N, N]`` of a process at ``x: [N, d]``, float64: its own, or those of
    drawn functions.
    """
    if hasattr(process, "moments"):
        return process.moments(x)
    f = process.draw(FUNCTIONS)(x).double()
    deviations = f - f.mean(0)
    return f.mean(0), deviations.mT @ deviations / (len(f) - 1)


def log_evidence(mean: Tensor, covariance: Tensor, noise: Tensor, y: Tensor) -> Tensor:
    """Log density of ``y: [N]`` under a Gaussian process with white noise of this variance, ``[]``, nats.

    :raises torch.linalg.LinAlgError: for a covariance that is not finite
    """
    root = torch.linalg.cholesky(covariance + noise * torch.eye(len(y), dtype=torch.float64, device=y.device))
    return torch.distributions.MultivariateNormal(mean, scale_tril=root, validate_args=False).log_prob(y)


def fit_by_evidence(
    process: ImplicitProcess, x: Tensor, y: Tensor, *, steps: int, lr: float, seed: int
) -> float:
    """Trains the parameters of a process that is a module, those that require gradients, on minibatches.

    By torch's global random numbers but for the minibatches.

    :param x: ``[N, d]``
    :param y: ``[N]``
    :returns: variance of the noise that went with it
    """
    log_noise = nn.Parameter(torch.full((), START_LOG_NOISE, dtype=torch.float64, device=y.device))
    own = process.parameters() if isinstance(process, nn.Module) else ()
    adam = torch.optim.Adam([log_noise, *(p for p in own if p.requires_grad)])
    batches = shuffled_epochs((x, y), ROWS, seed)
    for step in range(steps):
        adam.param_groups[0]["lr"] = half_cosine(lr, step, steps)
        rows_x, rows_y, *_ = next(batches)
        loss = -log_evidence(*moments(process, rows_x), log_noise.exp(), rows_y.double())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return log_noise.exp().item()
