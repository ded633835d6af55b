"""Runs of a model that only look: what they leave as it was, and what they move to see more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

#: By how much a parameter is moved: this share of it, or this much where it is zero.
MOVE = 0.01


@contextmanager
def kept_buffers() -> Iterator[None]:
    """The buffers of all modules that are called within, as the running statistics of a batch normalisation,
    end as they began.
    """
    kept: dict[tuple[nn.Module, str], tuple[Tensor, Tensor]] = {}

    def note(module: nn.Module, args: tuple) -> None:
        for name, buffer in module.named_buffers(recurse=False):
            if (module, name) not in kept:
                kept[module, name] = buffer, buffer.detach().clone()

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
        for (module, name), (buffer, value) in kept.items():
            buffer.data.copy_(value)
            module._buffers[name] = buffer


@contextmanager
def moved(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Parameters that are trained stand a little off their values within: what a gate that starts at zero
    hides is seen then.

    :param parameters: values of ``pyro.param`` statements, moved in unconstrained space
    """
    owners = (getattr(value, "unconstrained", None) for value in parameters)
    # .data: the graph of a run in progress, if there is one, is to find the parameters as they were
    leaves = [owner() for owner in owners if owner is not None]
    leaves = {id(leaf): leaf.data for leaf in leaves if leaf is not None and leaf.requires_grad}
    before = [leaf.clone() for leaf in leaves.values()]
    generator = torch.Generator().manual_seed(0)
    try:
        for leaf in leaves.values():
            signs = torch.randint(0, 2, leaf.shape, generator=generator).to(leaf) * 2 - 1
            leaf += MOVE * signs * torch.where(leaf == 0, 1.0, leaf)
        yield
    finally:
        for leaf, value in zip(leaves.values(), before, strict=True):
            leaf.copy_(value)
