"""How many threads torch takes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for torch, and the caller's own number afterwards; ``OMP_NUM_THREADS`` says otherwise.

    The tensors of these networks are so small that a second thread does not help, and on a busy machine the
    two wait for each other at every operation.
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
