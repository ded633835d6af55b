"""A model's arguments: what is wrong with them, in a line where Pyro has a page; and their precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor

REMEDY = "drop such rows, or fill them in"


def row_not_finite(part: Tensor) -> int | None:
    """The first row of ``[K, ...]`` with a number that is not finite, None where all are; of ``[]`` row 0."""
    return _first_row(~part.isfinite())


def _first_row(wrong: Tensor) -> int | None:
    places = wrong.nonzero()
    if not len(places):
        return None
    return int(places[0, 0]) if wrong.dim() else 0


@contextmanager
def blaming_arguments(args: Sequence, kwargs: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Around a run of a model: an error in it is very likely that of a NaN, where an argument has one.

    :raises ValueError: which argument, where, and what the error was; any other error stays as it is
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        for name, value in [*enumerate(args), *kwargs.items()]:
            if isinstance(value, Tensor) and (row := _first_row(value.isnan())) is not None:
                said = str(error).partition("\n")[0]
                raise ValueError(
                    f"argument {name} of the model is NaN in row {row} (rows count from 0): {REMEDY} ({said})"
                ) from error
        raise


def check_observed(nodes: Mapping[str, Mapping]) -> None:
    """As Pyro does where its validation is on, though in a line.

    :param nodes: sample sites of a trace by name
    :raises ValueError: data that are NaN, under a mask by rows too: Pyro asks for their density there
    """
    if not is_validation_enabled():  # the loss will tell
        return
    for name, node in nodes.items():
        if node["is_observed"] and _counts(node) and (row := _first_row(node["value"].isnan())) is not None:
            raise ValueError(f"the observed site {name!r} is NaN in row {row} (rows count from 0): {REMEDY}")


def _counts(node: Mapping) -> bool:
    """Whether an observed site has data: no ``pyro.deterministic``, nor hidden by a mask of False, poutine's
    or the law's own.
    """
    hidden = node["mask"] is False or getattr(node["fn"], "_mask", None) is False
    return isinstance(node["value"], Tensor) and not (hidden or node["infer"].get("_deterministic"))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The precision of numbers that a model makes itself, ``SpikeSlab(probs=0.2)`` for instance."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def doubled(part: object) -> object:
    """A tensor of floating point in float64; anything else as it is."""
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part
