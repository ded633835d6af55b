"""A guide's parameters in Pyro's store: names that are its own, so that two fits live side by side.

Pyro's optimisers find learning rates and saved states by the names of the store, and ``store.save`` writes
what is in it.  The parameters themselves belong to the guide (``state_dict``); the store points to them.
"""

from __future__ import annotations

import itertools

import pyro
import torch
from pyro.params.param_store import ParamStoreDict
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

#: Parameters that a guide of this process has put into a store.  What a store holds beside them was loaded.
_PUT_THERE = WeakIdKeyDictionary()


def put_into_store(module: nn.Module, prefix: str | None) -> str:
    """Puts every parameter of a module into Pyro's store as ``PREFIX.NAME``; returns the prefix.

    A store that was loaded from a file gives its values to the first guide of its class that comes along.

    :param prefix: what the guide had before; None, or taken by another: ``AutoSpikeSlab``,
        ``AutoSpikeSlab_1``, ... whatever is free
    :raises ValueError: when loaded values have other shapes
    """
    store, parameters = pyro.get_param_store(), dict(module.named_parameters())
    base = type(module).__name__
    names = itertools.chain([prefix] if prefix else [], [base], (f"{base}_{i}" for i in itertools.count(1)))
    for candidate in names:
        present = {
            name: store._params[f"{candidate}.{name}"]
            for name in parameters
            if f"{candidate}.{name}" in store
        }
        if all(found is parameters[name] or found not in _PUT_THERE for name, found in present.items()):
            break
    for name, parameter in parameters.items():
        if name in present and present[name] is not parameter:
            _take_over(f"{candidate}.{name}", present[name], parameter, store)
        store[f"{candidate}.{name}"] = parameter  # the same object: its transform is the identity
        _PUT_THERE[parameter] = True
    return candidate


def _take_over(name: str, loaded: torch.Tensor, parameter: nn.Parameter, store: ParamStoreDict) -> None:
    if loaded.shape != parameter.shape:
        raise ValueError(
            f"Pyro's parameter store holds {name!r} with shape {tuple(loaded.shape)}, this guide's has "
            f"{tuple(parameter.shape)}: it was saved for another model; call pyro.clear_param_store()"
        )
    with torch.no_grad():
        parameter.copy_(loaded)
    del store[name]
