"""Numbers too small for a whole mantissa, taken for zero while a network is trained.

Below 1.2e-38 (float32) a product costs a processor many times as much.  A network that knows its training
images has such gradients: a softmax leaves them where two outputs are 87 apart, and the products of a
backward pass are full of them.  Adam adds 1e-8 to what it divides by, so that none of them moves anything.

It is all numbers of a thread that become so, those of Python and numpy and what a logarithm reads too: for
networks whose likelihood is computed from logits, and not for just any model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def subnormal_numbers_are_zero() -> Iterator[None]:
    """For this thread, which afterwards computes as before.  Where the processor has no such setting, nothing
    changes.

    Worker threads that torch has already go on as they were; those that it starts meanwhile take such numbers
    for zero ever after.
    """
    before = flushes()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushes() -> bool:
    """Whether this thread takes such numbers for zero."""
    smallest = torch.tensor(torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
    return bool(smallest / 2 == 0)
