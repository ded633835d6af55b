"""Random states of torch: whoever draws for itself leaves no trace in what is drawn after it."""

from __future__ import annotations

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


def _gpus() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
