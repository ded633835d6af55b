"""How good a predictive distribution is on test data: each figure with its standard error over test points.

A predictive distribution is a torch distribution with batch shape [N]: ``Normal`` or a mixture of Normals for
regression, ``Bernoulli`` or ``Categorical`` for classes.  Nothing is sampled.  Regression models live on the
standardised target; ``target_scale`` is the sd that standardised it, and figures come back in the original
unit.

All functions raise ValueError for an empty test set, for shapes that do not fit (broadcasting would give a
number without meaning) and for NaN or infinity, TypeError for a distribution without the closed form.

Sources: Gneiting & Raftery (2007, JASA 102) for log score and CRPS; Guo et al. (2017, ICML) for the
calibration error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from guides.core.checks import check_numbers
from zoo.evaluation.estimates import (
    GROUPS,
    Estimate,
    check_finite,
    jackknife_variance,
    mean_estimate,
    share_estimate,
)
from zoo.evaluation.mixtures import chunks, crps_values, is_gaussian, mixture_quantiles

__all__ = [
    "Estimate", "accuracy", "class_probabilities", "coverage_90", "crps", "draw_error", "ece",
    "log_likelihood", "log_likelihood_values", "mixture_quantiles", "predictive_figures", "rmse",
]  # fmt: skip

TASKS = ("regression", "binary", "multiclass")


def rmse(predictive: Distribution, y: Tensor, target_scale: float = 1.0) -> Estimate:
    """Root mean squared error of the predictive mean, unit of the target; lower is better.

    Standard error by the delta method: that of the mean squared error over twice the root.
    """
    check_numbers(target_scale=target_scale)
    y = _checked_targets(predictive, y)
    mean = torch.cat([(mixture.weights * mixture.means).sum(-1) for _, mixture in chunks(predictive)])
    squared = mean_estimate((y - mean) ** 2)
    root = math.sqrt(squared.value)
    if not math.isfinite(root):
        raise ValueError("squared errors: too large for float64")
    if squared.se is None:
        return Estimate(target_scale * root)
    return Estimate(target_scale * root, target_scale * squared.se / (2 * root) if root > 0 else 0.0)


def log_likelihood(predictive: Distribution, y: Tensor, target_scale: float = 1.0) -> Estimate:
    """Mean log predictive density (or log probability of the class), nats a test point; higher is better.

    A density changes with the unit: ``-log(target_scale)`` is added.  Of a distribution that is made of
    probabilities and not of their logarithms torch clamps those that are 0 or 1 to its resolution (1e-7 for
    float32).
    """
    check_numbers(target_scale=target_scale)
    estimate = mean_estimate(log_likelihood_values(predictive, y))
    return replace(estimate, value=estimate.value - math.log(target_scale))


def log_likelihood_values(predictive: Distribution, y: Tensor) -> Tensor:
    """The same of every test point in the distribution's own unit, ``[N]``."""
    y = _checked_targets(predictive, y)
    if is_gaussian(predictive):
        values = torch.cat([mixture.distribution().log_prob(y[part]) for part, mixture in chunks(predictive)])
    else:
        values = _log_prob(predictive, y)
    check_finite(values, "log predictive density")
    return values


def draw_error(parts: Iterable[Tensor]) -> float:
    """Monte Carlo standard error of the mean log predictive density of draws, nats a test point.

    Of ``L = mean_i log(mean_s p(y_i | w_s))`` by the jackknife: ``L`` anew without each of 20 groups of draws
    that follow each other, for those of a chain hang together.  All test points share the draws, so that it
    does not fall with their number.  The bias of few draws, which lowers ``L``, is not in it; the members of
    an ensemble count as draws.  Of independent draws its root mean square is the scatter within 5 %, however
    uneven the weights ``p(y_i | w_s)`` are (sd of their logarithms 0.3 to 3, 50 to 1000 draws, 1500 repeats).

    :param parts: ``log p(y_i | w_s)``, ``[S, n]``, chain after chain, of some test points each; a single draw
        has error 0, and what hangs on one group an infinite one
    """
    totals, points = torch.zeros((), dtype=torch.float64), 0
    for part in parts:
        groups = part.double().tensor_split(min(GROUPS, len(part)))
        if len(groups) == 1:
            return 0.0
        sums = torch.stack([group.logsumexp(0) for group in groups])  # [groups, n]
        itself = torch.eye(len(groups), dtype=torch.bool, device=sums.device)
        others = sums.masked_fill(itself[:, :, None], -torch.inf).logsumexp(1)
        counts = len(part) - torch.tensor([len(group) for group in groups], device=sums.device)
        totals = totals + (others - counts.double().log()[:, None]).sum(1)
        points += part.shape[1]
    if not totals.isfinite().all():  # without some of them a test point has no density
        return math.inf
    return math.sqrt(jackknife_variance(totals / points))


def crps(predictive: Distribution, y: Tensor, target_scale: float = 1.0) -> Estimate:
    """Mean continuous ranked probability score, unit of the target; lower is better.  Regression only.

    Exact for mixtures of any size, see :func:`zoo.evaluation.mixtures.crps_values`.
    """
    check_numbers(target_scale=target_scale)
    values = crps_values(predictive, _checked_targets(predictive, y))
    check_finite(values, "CRPS")
    estimate = mean_estimate(values)
    return Estimate(
        target_scale * estimate.value, None if estimate.se is None else target_scale * estimate.se
    )


def coverage_90(predictive: Distribution, y: Tensor) -> Estimate:
    """Share of test points inside the central 90 % interval, ``0.05 <= F(y) <= 0.95``; 0.9 is right.

    The interval's ends are never computed: F is the exact CDF of the predictive mixture.
    """
    y = _checked_targets(predictive, y)
    levels = torch.cat(
        [mixture.cdf(y[part].unsqueeze(-1)).squeeze(-1) for part, mixture in chunks(predictive)]
    )
    return share_estimate((levels >= 0.05) & (levels <= 0.95))


def accuracy(predictive: Distribution, y: Tensor) -> Estimate:
    """Share of test points whose most probable class is the true one; higher is better."""
    y = _checked_targets(predictive, y)
    return share_estimate(class_probabilities(predictive).argmax(-1) == y)


def ece(predictive: Distribution, y: Tensor, bins: int = 15) -> Estimate:
    """Expected calibration error of the top label: mean over bins of ``|accuracy - confidence|``, weighted
    by their counts; bins of equal width, open on the left.  Lower is better.

    It is never negative, so even a calibrated predictive shows a positive value that shrinks like 1/sqrt(N).
    Standard error by the delta method, the sign of each bin's gap held fixed.
    """
    y = _checked_targets(predictive, y)
    confidence, label = class_probabilities(predictive).max(-1)
    gap = confidence - (label == y).double()
    number = (confidence * bins).ceil().long().clamp(1, bins) - 1
    sums = torch.zeros(bins, dtype=torch.float64).index_add(0, number, gap)
    # sum_b |sum of gaps in b| / N is the mean over points of (sign of its bin) * gap
    return mean_estimate(sums.sign()[number] * gap)


def class_probabilities(predictive: Distribution) -> Tensor:
    """[N, K] in float64: K = 2 for Bernoulli.  :raises TypeError: when it is neither Bernoulli nor
    Categorical
    """
    if isinstance(predictive, Bernoulli):
        one = predictive.probs.detach().cpu().double()
        probabilities = torch.stack((1 - one, one), -1)
    elif isinstance(predictive, Categorical):
        probabilities = predictive.probs.detach().cpu().double()
    else:
        raise TypeError(f"class probabilities need Bernoulli or Categorical, not {type(predictive).__name__}")
    check_finite(probabilities, "class probabilities")
    return probabilities


def predictive_figures(
    predictive: Distribution, y: Tensor, task: str, target_scale: float = 1.0, method: str = "predictive"
) -> dict[str, Estimate]:
    """All figures of one predictive distribution: column of the scoreboard -> estimate.

    A figure that does not exist for the task (CRPS of classes, accuracy of a regression) has no entry.

    :param y: [N] test targets in the distribution's own (standardised) unit; labels 0..K-1 for classes
    :param task: "regression", "binary" or "multiclass"
    :param method: named in front of every error
    :raises ValueError: one line that starts with ``method``
    """
    scale = {"target_scale": target_scale}
    try:
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}, known: {', '.join(TASKS)}")
        if task != "regression":
            return {
                "log_likelihood": log_likelihood(predictive, y),
                "accuracy": accuracy(predictive, y),
                "ece": ece(predictive, y),
            }
        return {
            "rmse": rmse(predictive, y, **scale),
            "log_likelihood": log_likelihood(predictive, y, **scale),
            "crps": crps(predictive, y, **scale),
            "coverage_90": coverage_90(predictive, y),
        }
    except (ValueError, TypeError) as error:
        raise ValueError(f"{method}: {error}") from error


def _log_prob(predictive: Distribution, y: Tensor) -> Tensor:
    """Of a distribution that is no mixture of Normals, on its own device and in its own precision."""
    if isinstance(predictive, Bernoulli | Categorical):
        y = y.to(predictive.probs.device, predictive.probs.dtype)
        y = y.long() if isinstance(predictive, Categorical) else y
    return predictive.log_prob(y).detach().cpu().double()


def _checked_targets(predictive: Distribution, y: Tensor) -> Tensor:
    """``y`` in float64; see the module for what is refused."""
    y = torch.as_tensor(y).detach().cpu()
    if y.numel() == 0:
        raise ValueError("the test set is empty")
    if tuple(predictive.batch_shape) != tuple(y.shape) or y.dim() != 1:
        shapes = f"batch shape {tuple(predictive.batch_shape)}, targets {tuple(y.shape)}"
        raise ValueError(f"predictive has {shapes}: both must be [N]")
    check_finite(y, "test targets")
    if isinstance(predictive, Bernoulli | Categorical):
        kinds = 2 if isinstance(predictive, Bernoulli) else predictive.probs.shape[-1]
        if not ((y >= 0) & (y < kinds) & (y.double() % 1 == 0)).all():
            raise ValueError(f"test labels: not all among 0..{kinds - 1}")
    return y.double()
