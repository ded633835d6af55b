"""What a result was made from, as a checksum: so that a cache answers the same question only."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import logging
import random
import re
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np

from guides.posterior.source_code import (
    CACHES,
    FRAMEWORKS,
    closure,
    is_library,
    members,
    package,
    source,
    stands_in_its_module,
    used_globals,
)

__all__ = ["as_array", "fingerprint"]

PLAIN = str | bytes | bool | int | float | complex | np.dtype | None
CONTAINER = Mapping | list | tuple | set | frozenset | deque
#: What these refer to is kept by others, or gone a moment later.
FLEETING = weakref.ref | weakref.WeakKeyDictionary | weakref.WeakValueDictionary | weakref.WeakSet
#: Names of the classes of attributes that are computed when they are first asked for.
LAZY = {"cached_property", "lazy_property"}
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


def as_array(leaf: Any) -> np.ndarray | None:
    """A NumPy array for anything that is one (NumPy, JAX, torch); None for the rest."""
    kind = type(leaf)  # of its type: the module torch has a function of that name, and open files a method
    if hasattr(kind, "detach") and hasattr(kind, "cpu"):
        return leaf.detach().cpu().numpy()
    return np.asarray(leaf) if hasattr(type(leaf), "__array__") and hasattr(leaf, "shape") else None


def fingerprint(*objects: Any) -> str:
    """SHA-256 of what a result was made from: arrays and containers by content, functions by source text and
    what they use, objects by class and attributes.

    A function counts with its source, its defaults, the values it closes over, and the globals that it and
    the functions written inside it name; a class with its methods, its attributes and its bases; and so on
    for what these use.  Installed packages, and those of this project, count by the names of their functions
    and classes: draws stay draws of the same posterior when a library is upgraded (versions travel in the
    file).  But the package that one of ``objects`` comes from is read.

    Left out is what is computed on the way: attributes called ``_cache...``, cached properties, what a cached
    function remembers.  What cannot be read counts by its type alone where it is a global, an attribute of a
    class or a part of one.  Not seen are imports inside a function, attributes named by a text, and Pyro's
    parameter store.

    :raises TypeError: an object whose content cannot be read (named).
    """
    reader = _Reader({package(_origin(item)) for item in objects})
    return _checksum(*map(reader.mark, objects), *reader.code()).hex()


def _origin(item: Any) -> Any:
    """What says where a model comes from: a partial's function, a method's object."""
    while isinstance(item, functools.partial | MethodType):
        item = item.func if isinstance(item, functools.partial) else item.__self__
    return item


class _UnreadError(TypeError):
    """An object whose content cannot be read."""


def _named(item: Any) -> str:
    try:
        return repr(item)
    except Exception:
        return f"an object of {type(item).__name__}"


class _Reader:
    """Gives an object its mark: a checksum of its kind and of the marks of its parts.  Functions and classes
    use each other in circles and long chains: they are marked by their number, in the order in which they are
    met, and read when their turn comes.

    :ivar own: packages that are read though they may be installed
    :ivar marks: of all that was met, with the object itself: another one would get its ``id`` else
    :ivar queue: functions and classes, and whether a part of theirs that cannot be read is forgiven
    """

    def __init__(self, own: set[str]):
        self.own = own - FRAMEWORKS
        self.marks: dict[int, tuple[bytes, Any]] = {}
        self.queue: list[tuple[type | FunctionType, bool]] = []
        self.forgiving = False

    def code(self) -> Iterator[bytes]:
        """A checksum of every function and class, those among them that are met on the way."""
        for item, forgiving in self.queue:
            self.forgiving = forgiving
            yield _checksum(*(self._of_class(item) if isinstance(item, type) else self._of_function(item)))

    def mark(self, item: Any) -> bytes:
        if isinstance(item, FLEETING):
            item = None
        if isinstance(item, PLAIN) and not hasattr(type(item), "__array__"):
            return f"{type(item).__name__}:{item!r}".encode()
        if isinstance(item, FunctionType):
            item = getattr(item, "_torchdynamo_orig_callable", item)
        if id(item) not in self.marks and isinstance(item, type | FunctionType):
            self.marks[id(item)] = f"code {len(self.queue)}".encode(), item
            self.queue.append((item, self.forgiving))
        elif id(item) not in self.marks:
            self.marks[id(item)] = b"inside itself", item
            self.marks[id(item)] = self._checked(item), item
        return self.marks[id(item)][0]

    def _checked(self, item: Any) -> bytes:
        """Of an object with parts; one that fails when it is read is one that cannot be read."""
        try:
            return _checksum(*self._parts(item))
        except _UnreadError:
            raise
        except Exception:
            return _checksum(self._unread(item))

    def _forgiven(self, item: Any) -> bytes:
        """The mark of something that may have parts that cannot be read: they count by their type."""
        before, self.forgiving = self.forgiving, True
        try:
            return self.mark(item)
        finally:
            self.forgiving = before

    def _parts(self, item: Any) -> Iterable[str | bytes]:
        if isinstance(item, GeneratorType | CoroutineType):
            return [self._unread(item)]
        if isinstance(item, re.Pattern):
            return ["pattern", self.mark((item.pattern, item.flags))]
        if isinstance(item, random.Random):
            return ["random", self.mark(item.getstate())]
        if isinstance(item, np.ma.MaskedArray):
            return ["masked", self.mark(item.data), self.mark(np.ma.getmaskarray(item))]
        if hasattr(type(item), "to_numpy") and hasattr(type(item), "index"):  # of pandas
            names = [part.to_numpy() for part in (item.index, getattr(item, "columns", item.index))]
            return [type(item).__name__, *map(self.mark, (item.to_numpy(), *names))]
        for compiled in ("_orig_mod", "_torchdynamo_orig_callable"):
            if (inner := getattr(item, "__dict__", {}).get(compiled)) is not None:
                return ["compiled", self.mark(inner)]
        if (array := as_array(item)) is not None:
            return self._of_array(type(item).__name__, array)
        if isinstance(item, CONTAINER):
            return self._of_container(item)
        if isinstance(item, functools.partial):
            return ["partial", *map(self.mark, (item.func, item.args, item.keywords))]
        if isinstance(item, staticmethod | classmethod):
            return [type(item).__name__, self.mark(item.__func__)]
        if isinstance(item, property):
            return map(self.mark, (type(item), item.fget, item.fset))
        if _is_bound(item):
            return ["method", self.mark(getattr(item, "__func__", item.__name__)), self.mark(item.__self__)]
        if isinstance(item, ModuleType):
            return ["module", self._of_module(item)]
        if isinstance(item, logging.Logger):  # knows all others, and is no part of a model
            return ["logger"]
        return self._of_object(item)

    def _of_array(self, kind: str, array: np.ndarray) -> Iterator[str | bytes]:
        yield f"{kind} {array.dtype.str} {array.shape}"
        yield self.mark(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()

    def _of_container(self, item: Any) -> Iterator[str | bytes]:
        """In its order, if it has one that counts; with what else an object of its class has."""
        yield self.mark(type(item))
        if isinstance(item, Mapping):
            pairs = [(self.mark(key), key) for key in sorted(item, key=_order)]
            for mark, key in sorted(pairs, key=lambda pair: pair[0]):
                yield from (mark, self.mark(item[key]))
            yield self.mark(item.default_factory if isinstance(item, defaultdict) else None)
        elif isinstance(item, set | frozenset):
            yield from sorted(map(self.mark, sorted(item, key=_order)))
        else:
            yield from map(self.mark, item)
        if state := _state(item):
            yield self.mark(state)

    def _of_function(self, function: FunctionType) -> Iterator[str | bytes]:
        closed = (closure(function, self.own), function.__defaults__, function.__kwdefaults__)
        if is_library(function.__globals__.get("__name__", "").partition(".")[0], self.own):
            yield from self._name(function)
            if not stands_in_its_module(function):  # around something of one's own, perhaps
                yield self._forgiven(closed)
            return
        yield self.mark(source(function.__code__))
        yield self.mark(closed)
        yield self._forgiven((used_globals(function, self.own), _state(function)))

    def _of_class(self, kind: type) -> Iterator[str | bytes]:
        yield from self._name(kind)
        yield from map(self.mark, kind.__bases__)
        if not is_library(package(kind), self.own):
            yield self.mark(type(kind))
            yield self._forgiven(members(kind))

    def _of_object(self, item: Any) -> Iterator[str | bytes]:
        yield self.mark(type(item))
        has_name = inspect.getattr_static(item, "__qualname__", None) is not None  # compiled functions have
        if has_name:
            yield from self._name(item)
            if is_library(package(item), self.own) and stands_in_its_module(item):
                return
        state = _state(item)
        if state or hasattr(item, "__dict__"):
            yield from map(self.mark, (state, getattr(item, "__dict__", {}).get("__wrapped__")))
        elif not has_name:
            text = repr(item)
            yield self._unread(item) if ADDRESS.search(text) else text

    def _of_module(self, module: ModuleType) -> str:
        """Of one's own only what a function names is read, by that function."""
        known = is_library(module.__name__.partition(".")[0], self.own)
        return module.__name__ if known else self._unread(module)

    def _unread(self, item: Any) -> str:
        if self.forgiving:
            return ""
        remedy = "pass arrays, numbers, text or functions, or do without cache"
        raise _UnreadError(f"cannot fingerprint {_named(item)}: {remedy}")

    def _name(self, item: Any) -> tuple[str, str]:
        """Without inner modules, which libraries move about; what is one's own may lie in ``__main__``."""
        return (package(item) if is_library(package(item), self.own) else ""), item.__qualname__


def _is_bound(item: Any) -> bool:
    """A method of an object, be it compiled; functions that are compiled are bound to their module."""
    if isinstance(item, MethodType | MethodWrapperType):
        return True
    return isinstance(item, BuiltinFunctionType) and not isinstance(item.__self__, ModuleType | type | None)


def _state(item: Any) -> dict[str, Any]:
    """The attributes of an object, less what it has computed from the others."""
    kind = type(item)
    found = {name: getattr(item, name) for name in _slots(kind) if hasattr(item, name)}
    found |= getattr(item, "__dict__", {})
    left_out = {name for name in found if name.startswith((*CACHES, "__")) or _is_lazy(kind, name)}
    if hasattr(kind, "log_abs_det_jacobian") and kind.__name__ != "_InverseTransform":
        left_out.add("_inv")  # a transform makes it when it is asked for
    state = {name: value for name, value in found.items() if name not in left_out}
    if hasattr(kind, "arg_constraints") and _is_lazy(kind, "probs"):  # a parameter, or computed from logits
        state["probs"] = copy.copy(item).probs
    for name, value in state.items():
        if name == "_modules":
            state[name] = list(value.items())  # torch runs them in this order
        elif "_hooks" in name and isinstance(value, Mapping):
            state[name] = list(value.values())  # torch counts all hooks, and takes the count for a key
    return state


def _slots(kind: type) -> list[str]:
    """Of classes that somebody has written: those of libraries hold caches too."""
    written = [base for base in kind.__mro__ if not is_library(package(base))]
    return [name for base in written for name, v in vars(base).items() if isinstance(v, MemberDescriptorType)]


def _is_lazy(kind: type, name: str) -> bool:
    return type(inspect.getattr_static(kind, name, None)).__name__ in LAZY


def _order(item: Any) -> tuple[str, str]:
    """For what has no order, or one that counts for nothing, the same in every process."""
    return type(item).__name__, repr(item) if isinstance(item, PLAIN) else getattr(item, "__qualname__", "")


def _checksum(*parts: str | bytes) -> bytes:
    """Of parts in this order, with their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
