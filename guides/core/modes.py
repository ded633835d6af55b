"""Training and evaluation mode of torch modules: whether dropout is on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: object) -> Iterator[None]:
    """Within it, a module is in evaluation mode: it has no dropout, and no run changes its statistics.

    Every part ends in the mode that it had.  What is no module has no mode, and is left alone.
    """
    if not isinstance(module, nn.Module):
        yield
        return
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def fitting(module: nn.Module) -> Iterator[None]:
    """Within it, a module is in training mode: it may have dropout; it ends in evaluation mode."""
    module.train()
    try:
        yield
    finally:
        module.eval()
