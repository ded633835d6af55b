"""How many threads torch takes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for torch, and the caller's own number afterwards; ``OMP_NUM_THREADS`` says otherwise.  NUTS
    has threads of its own, a chain each.

    The tensors of these networks are so small that a second thread does not help, and on a busy machine the
    two wait for each other at every operation.  Measured, 1500 steps: boston 4.5 s with one thread, 4.6 s
    with two; yacht, with other work on both cores, 6 s and 28 s.
    """
    import torch

    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
