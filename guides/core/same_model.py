"""Whether a loss of Pyro's has the model that a guide was built on, as far as that can be told.

Only what is known to differ counts: functions of another source, other numbers and tensors in what they close
over, handlers that change what a model says.  What cannot be compared is taken for the same.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.infer.enum import get_importance_trace
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.lift_messenger import LiftMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.reparam_messenger import ReparamHandler
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_messenger import TraceHandler
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from torch import Tensor, nn

from guides.core.pyro_traces import PARTICLES

#: Handlers that change the density of a model; others look, count, or draw in another way.
CHANGING = (
    ConditionMessenger,
    DoMessenger,
    LiftMessenger,
    MaskMessenger,
    ScaleMessenger,
    UnconditionMessenger,
)
#: What is compared as it is.
PLAIN = bool | int | float | complex | str | bytes | None
#: Of which nothing is known where only one of two has it.
WRAPPERS = (partial, MethodType, nn.Module)
#: Attributes under which decorators and compilers keep what they wrap.
WRAPPED = ("__wrapped__", "_torchdynamo_orig_callable", "_orig_mod")
#: Frames above a guide in which its loss is looked for.
NEAR = 9


def check_trained_model(own: Callable, trace: poutine.Trace, known: Sequence | None = ()) -> list:
    """A guide that runs its model itself trains that one, whatever model a loss of Pyro's was given.

    :param own: the model that the guide was built on
    :param trace: of its run
    :param known: what an earlier call returned: the same models are not compared in every step.  None of a
        guide that was copied, with its model very likely: what that holds is not compared, it has run since
    :returns: what was compared
    :raises ValueError: where the loss that asks is known to have another
    """
    frame = sys._getframe(1)
    for _ in range(NEAR):
        if frame is None or frame.f_code is get_importance_trace.__code__:
            break
        frame = frame.f_back
    if frame is None or frame.f_code is not get_importance_trace.__code__:
        return list(known or ())
    (around, given), (outer, _), (within, own) = map(
        _peeled, (frame.f_locals["model"], frame.f_locals["guide"], own)
    )
    compared = [given, own, *around, None, *outer, None, *within]
    if known and len(known) == len(compared) and all(map(operator.is_, known, compared)):
        return compared
    another = known is not None and _is_known(differ, given, own)
    if another or _is_known(_unpaired, around, outer + within) or _is_known(_hides_data, around, trace):
        raise ValueError(
            "the loss was given another model than the guide was built on, and this guide runs that one "
            "alone: build it on the model that is trained, with what is around it (poutine.condition, "
            "poutine.scale), or give the loss guide.model"
        )
    return compared


def _is_known(question: Callable[..., bool], *about: Any) -> bool:
    """The answer; no where somebody's object cannot be compared, whatever it raises."""
    try:
        return question(*about)
    except Exception:
        return False


def _peeled(model: Callable) -> tuple[list[Messenger], Callable]:
    """The handlers around a model or guide, from the outside, and what is in them."""
    handlers = []
    while (bound := _bound(model)) is not None:
        handler, model = bound
        if getattr(handler, "name", None) != PARTICLES:  # every step makes this plate anew
            handlers.append(handler)
    return handlers, model


def _bound(model: Callable) -> tuple[Messenger, Callable] | None:
    """``(handler, what is in it)``; a partial of both is nested in another one, but not in a copy."""
    if isinstance(model, ReparamHandler | TraceHandler):
        return model.msngr, model.fn
    for bound in (model, model.func if isinstance(model, partial) else None):
        if isinstance(bound, partial) and len(bound.args) == 2 and isinstance(bound.args[0], Messenger):
            return bound.args
    return None


def _unpaired(handlers: Iterable[Messenger], others: Iterable[Messenger]) -> bool:
    """Whether one of the changing handlers has no counterpart; their order does not count."""
    left = [other for other in others if isinstance(other, CHANGING)]
    for handler in handlers:
        if not isinstance(handler, CHANGING):
            continue
        found = next((i for i, other in enumerate(left) if not differ(handler, other)), None)
        if found is None:
            return True
        del left[found]
    return bool(left)


def _hides_data(handlers: Iterable[Messenger], trace: poutine.Trace) -> bool:
    """Whether a ``poutine.block`` around the loss's model hides what the guide's run has observed."""
    blocks = [handler for handler in handlers if isinstance(handler, BlockMessenger)]
    data = [node for node in trace.nodes.values() if node["type"] == "sample" and node["is_observed"]]
    return any(block.hide_fn(node) for block in blocks for node in data)


def differ(one: Any, other: Any, met: set[tuple[int, int]] | None = None) -> bool:
    """Whether two models, or what they hold, are known to differ.

    :param met: pairs that are being compared, of what holds itself
    """
    met = set() if met is None else met
    one, other = _inner(one), _inner(other)
    if one is other or (id(one), id(other)) in met:
        return False
    met.add((id(one), id(other)))
    if isinstance(one, PLAIN) and isinstance(other, PLAIN):
        return one != other and not (one != one and other != other)
    if type(one) is not type(other):
        return not any(isinstance(item, WRAPPERS) for item in (one, other))
    if isinstance(one, set | frozenset | range | slice | torch.dtype):
        return one != other
    if isinstance(one, Tensor | np.ndarray):
        return _numbers_differ(one, other)
    if isinstance(one, dict):
        keys = [{key for key in table if isinstance(key, PLAIN)} for table in (one, other)]
        return keys[0] != keys[1] or any(differ(one[key], other[key], met) for key in keys[0])
    if isinstance(one, tuple | list):
        return len(one) != len(other) or any(differ(a, b, met) for a, b in zip(one, other, strict=True))
    if isinstance(one, FunctionType) and _text(one.__code__) != _text(other.__code__):
        return True
    parts = _parts(one), _parts(other)
    return any(differ(parts[0][name], parts[1][name], met) for name in parts[0].keys() & parts[1].keys())


def _parts(item: Any) -> dict[str, Any]:
    """What a function, a method, a partial or an object holds; of a module its plain attributes: its tensors
    may have been trained since it was copied.
    """
    if isinstance(item, FunctionType):
        values = {name: item.__globals__.get(name) for name in item.__code__.co_names}
        found = {f"global {name}": v for name, v in values.items() if isinstance(v, PLAIN | Tensor)}
        found |= _closed_over(item)
        return found | {"defaults": item.__defaults__, "keyword defaults": item.__kwdefaults__}
    if isinstance(item, MethodType):
        return {"function": item.__func__, "object": item.__self__}
    if isinstance(item, partial):
        return {"function": item.func, "arguments": item.args, "keywords": item.keywords}
    held = getattr(item, "__dict__", {})
    public = {name: value for name, value in held.items() if not name.startswith("_")}
    if isinstance(item, nn.Module):
        return {name: v for name, v in public.items() if isinstance(v, PLAIN) and name != "training"}
    return public


def _closed_over(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not filled
            found[name] = cell.cell_contents
    return found


def _inner(item: Any) -> Any:
    """What a decorator or a compiler has wrapped; the module, of its own ``forward``; a number of NumPy's."""
    if isinstance(item, np.generic):
        return item.item()
    if isinstance(item, MethodType) and isinstance(item.__self__, nn.Module):
        return item.__self__ if item.__name__ in ("forward", "__call__") else item
    for _ in range(NEAR):
        held = getattr(item, "__dict__", {}) if isinstance(item, FunctionType | nn.Module) else {}
        held = held | (held.get("_modules") or {})
        found = [held[name] for name in WRAPPED if held.get(name) is not None]
        if not found:
            break
        item = found[0]
    return item


def _text(code: CodeType) -> tuple:
    """A function but for the lines where it stands."""
    constants = [_text(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount)
    return code.co_code, *names, tuple(constants)


def _numbers_differ(one: Tensor | np.ndarray, other: Tensor | np.ndarray) -> bool:
    """NaN is NaN; what is trained may have been, since it was copied."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    if isinstance(one, np.ndarray):
        return not (np.array_equal(one, other) or np.array_equal(one, other, equal_nan=True))
    if one.requires_grad:
        return False
    return not (torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))
