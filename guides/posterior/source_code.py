"""The code of functions and classes as a fingerprint counts it: whose it is, its text, what it uses."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

__all__ = [
    "CACHES",
    "FRAMEWORKS",
    "closure",
    "is_library",
    "members",
    "package",
    "source",
    "stands_in_its_module",
    "used_globals",
]

#: Packages whose code is nobody's model, whoever asks.
FRAMEWORKS = {"torch", "pyro", "numpyro", "jax", "jaxlib", "numpy", "scipy", *sys.stdlib_module_names}
#: Those of this project: libraries to a model that somebody has written, wherever they lie.
OURS = {"data_loaders", "guides", "zoo"}
#: Where somebody's script or notebook is, whatever has started it.
MAIN = {"__main__", "__mp_main__"}
INSTALLED = {"site-packages", "dist-packages"}
#: Instructions that look a name up in the module.
LOOKS_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
#: Names of attributes begin so that hold what was computed before, where Pyro stands in a run, and where a
#: file of a function is that JAX compiles.
CACHES = ("_cache", "_pyro_context", "_jit_info")
#: Methods that ``dataclass`` writes, as text that is no file's, from the fields.
GENERATED = {
    "__init__",
    "__repr__",
    "__eq__",
    "__hash__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__setattr__",
    "__delattr__",
}


def package(item: Any) -> str:
    """The top-level package of a function or class, or of an object's class; empty where unknown."""
    return (getattr(item, "__module__", None) or "").partition(".")[0]


def is_library(package: str, own: Collection[str] = ()) -> bool:
    """Whether a package is a framework, or installed and not one of ``own``."""
    if package in FRAMEWORKS:
        return True
    if package in MAIN or package in own:
        return False
    return package in OURS or bool(INSTALLED & set(Path(_place(package)).parts))


def _place(package: str) -> str:
    """Where it lies, empty where unknown."""
    module = sys.modules.get(package)
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")


def stands_in_its_module(function: Callable) -> bool:
    """Whether a module has this very function under its name: no call has made it."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def source(code: CodeType) -> list[Any]:
    """The text of a function; its byte code where there is none, as at a prompt, and beside that of a
    ``lambda``, of which a line may hold several.
    """
    try:
        text = [inspect.getsource(code)]  # of the code: a decorated function would give that of another
    except (OSError, TypeError):
        text = []
    return text if text and code.co_name != "<lambda>" else text + _byte_code(code)


def _byte_code(code: CodeType) -> list[Any]:
    constants = [_byte_code(c) if isinstance(c, CodeType) else c for c in code.co_consts]
    return [code.co_code, code.co_names, constants]


def closure(function: FunctionType, own: Collection[str]) -> dict[str, Any]:
    """What a function closes over, by name; as :func:`used_globals`."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    return _opened(closed, _attributes(function), own)


def used_globals(function: FunctionType, own: Collection[str]) -> dict[str, Any]:
    """What a function and those written inside it look up in their module, by name; in place of a module of
    one's own the attributes of it that they name.
    """
    codes = _nested(function.__code__)
    names = {step.argval for code in codes for step in dis.get_instructions(code) if step.opname in LOOKS_UP}
    found = {name: value for name, value in function.__globals__.items() if name in names}
    return _opened(found, _attributes(function), own)


def _attributes(function: FunctionType) -> set[str]:
    """Names of attributes that the code has, and some others."""
    return {name for code in _nested(function.__code__) for name in code.co_names}


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _opened(
    values: dict[str, Any], names: set[str], own: Collection[str], met: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The same, with the named attributes of a module of one's own in its place."""
    opened = dict(values)
    for name, value in values.items():
        if isinstance(value, ModuleType) and not is_library(value.__name__.partition(".")[0], own):
            inside = {} if value.__name__ in met else {n: v for n, v in vars(value).items() if n in names}
            opened[name] = _opened(inside, names, own, met | {value.__name__})
    return opened


def members(kind: type) -> dict[str, Any]:
    """What a class itself defines, less caches and what Python and ``dataclass`` add to it."""
    found = {name: value for name, value in vars(kind).items() if not _is_added(name, value)}
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        found["fields of dataclass"] = [(f.name, f.default, f.default_factory) for f in fields]
    return found


def _is_added(name: str, value: Any) -> bool:
    if name.startswith((*CACHES, "_abc_")):
        return True
    if name in GENERATED and callable(value):
        code = getattr(inspect.unwrap(value), "__code__", None)
        return code is not None and code.co_filename == "<string>"
    special = name.startswith("__") and name.endswith("__")
    return special and not callable(value) and not hasattr(type(value), "__get__")
