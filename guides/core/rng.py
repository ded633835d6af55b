"""Random states of torch: whoever draws for itself leaves no trace in what is drawn after it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_rng() -> Iterator[None]:
    """The generators of the CPU and of every GPU in use end as they began."""
    with torch.random.fork_rng(devices=_gpus()):
        yield


@contextmanager
def seeded_rng(seed: int) -> Iterator[None]:
    """What is drawn within, on the CPU and on GPUs in use, depends on the seed alone; they end as they began.

    :param seed: a whole number, numpy's too
    """
    seed = int(seed)
    with kept_rng():
        # `torch.manual_seed` would seed GPUs that come into use later, and nobody would undo that.  It would
        # also note for each of them who gave it the seed, which takes as long as a short run of a model.
        torch.default_generator.manual_seed(seed)
        if _gpus():
            torch.cuda.manual_seed_all(seed)
        yield


def stream_seed(purpose: str, seed: int) -> int:
    """A seed below 2^32 for one purpose: torch's generators look at no more bits than these, so that seeds
    apart by a large number can be one.
    """
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:4], "big")


def _gpus() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
