"""What a result was made from, as a checksum: so that a cache answers the same question only."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["as_array", "fingerprint"]


def as_array(leaf: Any) -> np.ndarray | None:
    """A NumPy array for anything that is one (NumPy, JAX, torch); None for the rest."""
    if hasattr(type(leaf), "detach"):  # of its type: the module torch has a function of that name
        return leaf.detach().cpu().numpy()
    return np.asarray(leaf) if hasattr(leaf, "__array__") and hasattr(leaf, "shape") else None


def fingerprint(*objects: Any) -> str:
    """SHA-256 of what a result was made from: arrays by content, functions by source text and what they use.

    A function counts with its source, its defaults, the values it closes over, and the numbers, texts, arrays
    and functions of its own top-level package that it names; not with the packages it imports.  Versions are
    left out on purpose: draws stay draws of the same posterior when a library is upgraded (they travel in the
    file).

    :raises TypeError: an object whose content cannot be read (named).
    """
    digest = hashlib.sha256()
    for item in objects:
        _feed(digest, item, set())
    return digest.hexdigest()


def _feed(digest: Any, item: Any, seen: set[int]) -> None:
    array = as_array(item)
    digest.update(f"|{type(item).__name__}:".encode())
    if array is not None and array.dtype != object:
        digest.update(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    elif item is None or isinstance(item, str | bytes | bool | int | float | complex | np.dtype | type):
        digest.update(repr(item).encode())
    elif id(item) in seen:
        digest.update(b"seen")
    elif isinstance(item, Mapping):
        for key in sorted(item, key=repr):
            _feed_all(digest, (key, item[key]), seen)
    elif isinstance(item, list | tuple | set | frozenset):
        _feed_all(
            digest, sorted(item, key=repr) if isinstance(item, set | frozenset) else item, seen | {id(item)}
        )
    elif isinstance(item, functools.partial):
        _feed_all(digest, (item.func, item.args, item.keywords), seen)
    elif inspect.ismethod(item):
        _feed_all(digest, (item.__func__, item.__self__), seen)
    elif inspect.isfunction(item):
        _feed_function(digest, item, seen | {id(item)})
    elif hasattr(item, "__dict__") and not inspect.ismodule(item):
        _feed_all(digest, (type(item).__qualname__, vars(item)), seen | {id(item)})
    else:
        raise TypeError(
            f"cannot fingerprint {item!r}: pass arrays, numbers, text or functions, or do without cache"
        )


def _feed_all(digest: Any, items: Any, seen: set[int]) -> None:
    for item in items:
        _feed(digest, item, seen)


def _feed_function(digest: Any, function: Callable, seen: set[int]) -> None:
    try:
        digest.update(inspect.getsource(function).encode())
    except (OSError, TypeError):  # typed at a prompt: its byte code and constants serve
        digest.update(function.__code__.co_code + repr(function.__code__.co_consts).encode())
    used = inspect.getclosurevars(function)
    home = function.__module__.split(".")[0]
    for name, value in sorted((used.nonlocals | used.globals).items()):
        own = inspect.isfunction(value) and value.__module__.split(".")[0] == home
        if (
            name in used.nonlocals
            or own
            or as_array(value) is not None
            or isinstance(value, str | int | float | tuple)
        ):
            _feed_all(digest, (name, value), seen)
    _feed(digest, (function.__defaults__, function.__kwdefaults__), seen)
