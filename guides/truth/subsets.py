"""All subsets of the columns of a regression: 2^p models, counted without a loop over them.

Subsets of one size are gathered and factorised in batches.  In a model's number, bit i says that column i is
in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

#: Most columns whose subsets are enumerated: 2^20 models take some seconds, 2^25 would take minutes and
#: gigabytes.
MAX_COLUMNS = 20
#: What to do about more of them.
FEWER = "leave some out, or take guides.JointSpikeSlab, which is near the exact probabilities"
#: Nats that rounding may change the evidence by.
SEEN = 1e-3
#: Numbers held at a time by a batch of gathered submatrices (8 bytes each, a handful of such arrays: about
#: 100 MB).
BATCH_NUMBERS = 2_000_000


def check_columns(p: int, remedy: str) -> None:
    """:raises ValueError: for more columns than are enumerated; ``remedy`` says what to do about it"""
    if p > MAX_COLUMNS:
        raise ValueError(
            f"{p} columns make 2^{p} models: at most {MAX_COLUMNS} columns are enumerated ({remedy})"
        )


def half_solve(root: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """L^-1 r, or L'^-1 r, of a batch of lower triangles [..., k, k] and vectors [..., k]."""
    matrix = root.mT if transposed else root
    return torch.linalg.solve_triangular(matrix, right[..., None], upper=transposed)[..., 0]


def gather(gram: Tensor, moment: Tensor, subset: Tensor) -> tuple[Tensor, Tensor]:
    """Submatrices [B, k, k] and subvectors [B, k] of the columns ``subset`` [B, k]."""
    return gram[subset[:, :, None], subset[:, None, :]], moment[subset]


def all_subsets(p: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All subsets of p columns in batches of one size k: model numbers [B], columns [B, k]."""
    models = torch.arange(2**p)
    size = torch.zeros_like(models)
    for i in range(p):
        size += (models >> i) & 1
    for k in range(p + 1):
        for part in models[size == k].split(max(1, BATCH_NUMBERS // max(1, k * k, p))):
            columns = torch.nonzero((part[:, None] >> torch.arange(p)) & 1)[:, 1]
            yield part, columns.reshape(len(part), k)


def score_models(gram: Tensor, moment: Tensor, score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """``score(x'x of the subset, x'y of the subset, subset)`` of every model, [2^p]."""
    p = len(moment)
    out = torch.empty(2**p, dtype=torch.float64)
    for models, subset in all_subsets(p):
        out[models] = score(*gather(gram, moment, subset), subset)
    return out


def inclusion_of_columns(log_probs: Tensor, p: int) -> Tensor:
    """Sum of the probabilities of the models whose bit i is set, [p]."""
    probs = log_probs.exp()
    number = torch.arange(len(probs))
    # a sum of many numbers may end a rounding above one
    return torch.stack([probs[(number >> i) & 1 == 1].sum() for i in range(p)]).clamp_max(1.0)


def draw_models(log_probs: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """The numbers of ``n`` models, drawn by the logarithms ``[models]`` of their probabilities: ``[n]``."""
    cumulative = log_probs.exp().cumsum(0)
    u = torch.rand(n, generator=generator, dtype=torch.float64) * cumulative[-1]
    return torch.searchsorted(cumulative, u, right=True).clamp_max(len(cumulative) - 1)
