"""A model's arguments: what is wrong with them, in a line where Pyro has a page; and their precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.util import is_validation_enabled
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from guides.core.rng import kept_rng

REMEDY = "drop such rows, or fill them in"


def row_not_finite(part: Tensor) -> int | None:
    """The first row of ``[K, ...]`` with a number that is not finite, None where all are; of ``[]`` row 0."""
    return _first_row(~part.isfinite())


def _first_row(wrong: Tensor) -> int | None:
    places = wrong.nonzero()
    if not len(places):
        return None
    return int(places[0, 0]) if wrong.dim() else 0


def _is_dense(value: Any) -> bool:
    """Whether it is a tensor whose numbers can be looked at one by one."""
    if not isinstance(value, Tensor) or value.is_nested:
        return False
    return value.layout is torch.strided and value.device.type != "meta"


@contextmanager
def blaming_arguments(args: Sequence, kwargs: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Around a run of a model: an error in it is very likely that of a NaN, where an argument has one, or
    of an argument that is no tensor.

    :raises ValueError: which argument, where, and what the error was; any other error stays as it is
    :raises TypeError: which argument is no tensor
    """
    try:
        yield
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:
        if isinstance(error, TypeError | AttributeError):
            check_tensors((*args, *kwargs.values()), f" ({str(error).partition(chr(10))[0]})")
        for name, value in [*enumerate(args), *kwargs.items()]:
            if _is_dense(value) and (row := _first_row(value.isnan())) is not None:
                said = str(error).partition("\n")[0]
                raise ValueError(
                    f"argument {name} of the model is NaN in row {row} (rows count from 0): {REMEDY} ({said})"
                ) from error
        raise


def check_observed(nodes: Mapping[str, Mapping]) -> None:
    """As Pyro does where its validation is on, though in a line.

    :param nodes: sample sites of a trace by name
    :raises ValueError: data that are NaN, under a mask by rows too: Pyro asks for their density there
    :raises TypeError: data that are no tensor
    """
    if not is_validation_enabled():  # the loss will tell
        return
    for name, node in nodes.items():
        value, checked = node["value"], getattr(node["fn"], "_validate_args", False)
        if node["is_observed"] and checked and isinstance(value, float | int | np.generic | np.ndarray):
            kind = type(value).__name__
            raise TypeError(f"the observed site {name!r} has a {kind}, not a tensor: call torch.as_tensor")
    for name, node in nodes.items():
        value = node["value"]
        if not (node["is_observed"] and _is_dense(value) and _counts(node)):
            continue
        if (row := _first_row(value.isnan())) is not None:
            raise ValueError(f"the observed site {name!r} is NaN in row {row} (rows count from 0): {REMEDY}")


def check_pairing(site: Mapping) -> None:
    """Of an observed site of a trace, Pyro's or NumPyro's: every number has one law, and one place in the
    plates.  Validation would see it in ``SVI``; samplers run without.

    :raises ValueError: data and laws of different lengths; data ``[n, 1]`` and laws ``[n]`` or the other way
        round, so that every law would score every number, or every number were scored ``n`` times
    """
    law, value = site["fn"], np.shape(site["value"])
    inner = len(value) - law.event_dim
    batch, own, event = tuple(law.batch_shape), value[:inner], value[inner:]
    places = {frame.dim: frame.size for frame in site["cond_indep_stack"] if frame.dim is not None}
    try:
        together = np.broadcast_shapes(own, batch)
    except ValueError:
        raise ValueError(
            f"the observed site {site['name']!r} has data of shape {list(value)} and laws of shape "
            f"{[*batch, *law.event_shape]}: pass as many rows of data as of everything else"
        ) from None
    loose = [dim for dim in range(-len(together), 0) if together[dim] > 1 and dim not in places]
    squared = math.prod(together) > math.prod(batch) == math.prod(own)
    if event != tuple(law.event_shape) or (loose if places else squared):
        plates = f" in plates of {', '.join(map(str, places.values()))}" if places else ""
        raise ValueError(
            f"the observed site {site['name']!r} has data of shape {list(value)} and laws of shape "
            f"{[*batch, *law.event_shape]}{plates}, which do not pair number by number: squeeze the one that "
            "is [n, 1], data or the network's output"
        )


def _counts(node: Mapping) -> bool:
    """Whether an observed site has data: no ``pyro.deterministic``, nor hidden by a mask of False, poutine's
    or the law's own.
    """
    hidden = node["mask"] is False or getattr(node["fn"], "_mask", None) is False
    return isinstance(node["value"], Tensor) and not (hidden or node["infer"].get("_deterministic"))


class FixedParameters(Messenger):
    """A module's parameters with ``requires_grad`` False stay out of Pyro's store, which would turn it on."""

    def _pyro_param(self, msg: dict) -> None:
        start = msg["args"][1] if len(msg["args"]) > 1 else None
        if isinstance(start, nn.Parameter) and not start.requires_grad:
            msg["value"] = start
            msg["done"] = msg["stop"] = True


def check_tensors(args: Sequence, said: str = "") -> None:
    """:param said: what an error was
    :raises TypeError: an argument that is NumPy's or a table of pandas: the model computes in torch
    """
    for i, part in enumerate(args):
        if hasattr(part, "__array__") and not isinstance(part, Tensor | np.generic):
            kind = type(part).__name__
            raise TypeError(
                f"argument {i} of the model is a {kind}, not a tensor: call "
                f"torch.as_tensor(..., dtype=torch.get_default_dtype()){said}"
            )


def check_parameters(
    model: Callable,
    args: Sequence,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    fate: str = "this method would leave at its start",
) -> poutine.Trace:
    """Runs the model once; Pyro's store and the random generators stay as they are.

    :param fate: what would become of the parameter
    :returns: the trace of the run
    :raises ValueError: a parameter without a prior: a ``pyro.param`` statement (also one of a ``PyroModule``
        that is used), or one of the module that the model is and that the density depends on; those with
        ``requires_grad`` False are fixed, and allowed, and those of a module that the model closes over are
        not seen
    """
    store, unwatched = pyro.get_param_store(), pyro.validation_enabled(False)
    with store.scope(store.get_state()), unwatched, kept_rng(), poutine.block(), torch.enable_grad():
        trace = poutine.trace(FixedParameters()(model)).get_trace(*args, **kwargs)
        stated = [name for name, node in trace.nodes.items() if node["type"] == "param"]
        names = stated or _trained(model, trace)
    if names:
        raise ValueError(
            f"the model has a parameter {names[0]!r} without a prior, which {fate}: make it a pyro.sample, "
            "or fix it (a plain tensor, or requires_grad_(False) of a module's parameters)"
        )
    return trace


def _trained(model: Callable, trace: poutine.Trace) -> list[str]:
    """Parameters of a module that the density depends on; not those that only lend their shape."""
    while isinstance(model, partial):
        model = model.func
    module = getattr(model, "__self__", model)
    if not isinstance(module, nn.Module):
        return []
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not parameters:
        return []
    density = trace.log_prob_sum()
    if not (isinstance(density, Tensor) and density.requires_grad):
        return []
    slopes = torch.autograd.grad(density, list(parameters.values()), allow_unused=True)
    return [name for name, slope in zip(parameters, slopes, strict=True) if slope is not None]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The precision of numbers that a model makes itself, ``SpikeSlab(probs=0.2)`` for instance."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def doubled(part: Any) -> Any:
    """Tensors of floating point in float64, in nested tuples, lists and dictionaries too; anything else as it
    is.
    """
    return tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, part)
