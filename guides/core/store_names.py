"""A guide's parameters in Pyro's store: names that are its own, so that two fits live side by side.

Pyro's optimisers find learning rates and saved states by the names of the store, and ``store.save`` writes
what is in it.  The parameters themselves belong to the guide (``state_dict``); the store points to them.
Buffers, as those that tell which coordinates a flow moves, are beside them, and none of them is trained.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref

import pyro
import torch
from pyro.params.param_store import ParamStoreDict
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

#: Parameter that a guide of this process has put into a store -> its guide.  What a store holds beside them
#: was loaded.
_PUT_THERE = WeakIdKeyDictionary()
#: Beside the parameters, what tells the layout of their flat vectors: a store knows lengths alone.
LAYOUT = "layout"


def is_in_store(module: nn.Module, prefix: str) -> bool:
    """Whether the store's parameters ``PREFIX.NAME`` are still those of the module."""
    held = pyro.get_param_store()._params
    return all(held.get(f"{prefix}.{name}") is parameter for name, parameter in module.named_parameters())


def put_into_store(module: nn.Module, prefix: str | None, layout: str) -> str:
    """Puts all that a module's ``state_dict`` has into Pyro's store as ``PREFIX.NAME``; returns the prefix.

    Values that were loaded into the store go to the first guide of their class that comes along, or to the
    one that had the name; names of guides that are gone are used again.

    :param prefix: what the guide had before; None, or taken by another: ``AutoSpikeSlab``,
        ``AutoSpikeSlab_1``, ... whatever is free
    :param layout: what the numbers in the parameters mean
    :raises ValueError: when loaded values are those of another layout
    """
    store = pyro.get_param_store()
    base = type(module).__name__
    names = itertools.chain([prefix] if prefix else [], [base], (f"{base}_{i}" for i in itertools.count(1)))
    prefix = next(name for name in names if not _is_taken(store, name, module))
    state = dict(module.named_parameters()) | _buffers(module)
    loaded = {
        name: store._params[f"{prefix}.{name}"]
        for name in state
        if f"{prefix}.{name}" in store and store._params[f"{prefix}.{name}"] not in _PUT_THERE
    }
    digest = _digest(layout)
    if loaded:
        _check_layout(store, prefix, loaded, state, digest)
    for name, tensor in state.items():
        if name in loaded:
            with torch.no_grad():
                tensor.copy_(loaded[name])
        # a store takes what could have a gradient
        _put(store, f"{prefix}.{name}", tensor if tensor.is_floating_point() else tensor.float(), module)
    _put(store, f"{prefix}.{LAYOUT}", digest, module)
    return prefix


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Those that ``state_dict`` has."""
    saved = module.state_dict(keep_vars=True)
    return {name: saved[name] for name, _ in module.named_buffers() if name in saved}


def _is_taken(store: ParamStoreDict, prefix: str, module: nn.Module) -> bool:
    """Whether a guide that still lives has the names."""
    for name, _ in module.named_parameters():
        held = store._params.get(f"{prefix}.{name}")
        if held is not None and held in _PUT_THERE and _PUT_THERE[held]() not in (None, module):
            return True
    return False


def _put(store: ParamStoreDict, name: str, tensor: Tensor, module: nn.Module) -> None:
    if name in store:
        del store[name]
    trained = tensor.requires_grad
    store[name] = tensor  # the same object: its transform is the identity
    tensor.requires_grad_(trained)  # of which the store has made one that is trained
    _PUT_THERE[store._params[name]] = weakref.ref(module)


def _check_layout(store: ParamStoreDict, prefix: str, loaded: dict, state: dict, digest: Tensor) -> None:
    place = f"{prefix}.{LAYOUT}"
    same = place not in store or torch.equal(store._params[place].detach().to(digest), digest)
    for name, value in loaded.items():
        if value.shape != state[name].shape:
            raise ValueError(
                f"Pyro's parameter store holds '{prefix}.{name}' with shape {tuple(value.shape)}, this "
                f"guide's has {tuple(state[name].shape)}: it was saved for another model; call "
                "pyro.clear_param_store()"
            )
    if not same:
        raise ValueError(
            f"Pyro's parameter store holds {prefix} of a model with other sites, or in another order; load "
            "it into a guide of that model, or call pyro.clear_param_store()"
        )


def _digest(layout: str) -> Tensor:
    """Eight numbers that a float keeps."""
    digest = hashlib.sha256(layout.encode()).digest()
    return torch.tensor([float(byte) for byte in digest[:8]])
