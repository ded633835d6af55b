"""Runs of a model that only look: what they leave as it was, and what they move to see more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

#: By how much a parameter is moved: this share of it, or this much where it is zero.
MOVE = 0.01


@contextmanager
def kept_statistics() -> Iterator[None]:
    """The running statistics of all normalisations that are called within end as they began.

    What is written back are the tensors that were seen, ``torch.func.functional_call``'s own among them, and
    no module's attribute; those of ``torch.func.vmap`` and of lazy modules are left out.
    """
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def note(module: nn.Module, args: tuple) -> None:
        if isinstance(module, _NormBase):
            for buffer in module.buffers(recurse=False):
                if id(buffer) not in kept and not is_lazy(buffer) and not is_batchedtensor(buffer):
                    kept[id(buffer)] = buffer, buffer.detach().clone()

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
        for buffer, value in kept.values():
            buffer.data.copy_(value)


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
            # one at the edge of its support is infinite, and stays
            leaf += MOVE * signs * torch.where(leaf == 0, 1.0, leaf.nan_to_num(0.0, 0.0, 0.0))
        yield
    finally:
        for leaf, value in zip(leaves.values(), before, strict=True):
            leaf.copy_(value)
