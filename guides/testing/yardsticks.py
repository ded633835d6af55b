"""Comparisons of random numbers with the truth, judged by their own standard errors.

The family-wise error of one comparison is ``FAMILY_WISE``: with a fixed seed, a check that has passed passes.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from scipy import stats
from torch import Tensor

FAMILY_WISE = 1e-5
#: Samples of a variance: of 200 Gaussian ones a claim of half the variance has a z of 5.
FEWEST = 200


def z_bound(comparisons: int = 1) -> float:
    return stats.norm.isf(FAMILY_WISE / (2 * comparisons))


def assert_mean(samples: Tensor, truth: Tensor | float) -> None:
    """``samples [n, ...]``: every mean lies within Monte Carlo error of the truth."""
    _assert_small(samples.mean(0) - truth, samples.var(0) / len(samples), truth)


def assert_same_mean(a: Tensor, b: Tensor) -> None:
    """``a [n, ...]`` and ``b [m, ...]``, independent: equal means within Monte Carlo error."""
    _assert_small(a.mean(0) - b.mean(0), a.var(0) / len(a) + b.var(0) / len(b), b.mean(0))


def _assert_small(error: Tensor, variance: Tensor, size: Tensor | float) -> None:
    """``error`` has mean zero and this variance; where nothing is random, float32 rounds at this size."""
    rounding = 1e-6 * torch.as_tensor(size).abs()
    z = (error.abs() - rounding).clamp_min(0) / variance.sqrt().clamp_min(1e-30)
    assert z.max() < z_bound(z.numel()), f"z = {z.max():.1f}"


def assert_variance(samples: Tensor, truth: Tensor | float) -> None:
    """``samples [n, ...]`` have this variance.

    :raises ValueError: of few samples, whose own spread can make no z large, however small the claim is
    """
    if len(samples) < FEWEST:
        raise ValueError(f"a variance needs {FEWEST} samples or more, got {len(samples)}")
    assert_mean((samples - samples.mean(0)) ** 2 * len(samples) / (len(samples) - 1), truth)


def assert_same_moments(a: Tensor, b: Tensor) -> None:
    assert_same_mean(a, b)
    assert_same_mean((a - a.mean(0)) ** 2, (b - b.mean(0)) ** 2)


def assert_share(hits: Tensor, probability: float) -> None:
    """``hits [n, ...]`` of zeros and ones."""
    n = hits.shape[0]
    z = (hits.double().mean(0) - probability).abs().max() / math.sqrt(probability * (1 - probability) / n)
    assert z < z_bound(hits[0].numel()), f"z = {z:.1f}"


def assert_equal_results(ours: dict[str, Tensor], truth: dict[str, Tensor], rtol: float = 2e-5) -> None:
    """The same losses and gradients but for rounding, at the size of each tensor's largest element."""
    assert ours.keys() == truth.keys()
    for name, expected in truth.items():
        atol = rtol * expected.abs().max().item() if expected.numel() else 0.0
        torch.testing.assert_close(
            ours[name], expected, rtol=0, atol=atol, msg=partial("{}: {}".format, name)
        )
