"""What a notebook hands to the functions of :mod:`zoo`, whose kinds nothing else has looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from zoo.errors import UserError

#: Kind of an argument -> in words, and which have it.
KINDS: dict[Any, tuple[str, str]] = {
    Integral: (
        "a whole number",
        "seed, split, splits, seeds, jobs, simulations, draws, rows, columns, points, steps",
    ),
    Real: ("a number", "noise, inclusion, holdout, correlation"),
    str: ("text", "budget, reference, target, task, activation, missing, cluster"),
    str | Path: ("a path", "out"),
}
#: Arguments that may be None.
OPTIONAL = ("noise", "inclusion", "holdout", "reference", "target", "task", "activation", "cluster", "out")
#: What a number of NumPy becomes, which JSON does not know.
PLAIN: dict[Any, type] = {Integral: int, Real: float}


def plain(**given: Any) -> dict[str, Any]:
    """The arguments, their numbers as Python's own.

    :raises UserError: for an argument of another kind than it must have; unknown ones are let through
    """
    found = dict(given)
    for kind, (words, names) in KINDS.items():
        for name in set(names.split(", ")) & set(given):
            value = given[name]
            if value is None and name in OPTIONAL:
                continue
            if not isinstance(value, kind) or isinstance(value, bool):
                raise UserError(f"{name}: {words} is needed, not {value!r}")
            found[name] = PLAIN.get(kind, lambda value: value)(value)
    return found


def several_widths(given: Any) -> Any:
    """One width or several, or None; :raises UserError: for what is neither"""
    if given is None or isinstance(given, Iterable):
        return given
    if not isinstance(given, Integral) or isinstance(given, bool):
        raise UserError(f"widths: a whole number is needed, or several, not {given!r}")
    return (int(given),)


def several_columns(given: Sequence[str] | str) -> tuple[str, ...]:
    """One column or several; :raises UserError: for what is no name"""
    columns = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    wrong = [column for column in columns if not isinstance(column, str)]
    if wrong:
        raise UserError(f"columns are given by their names, not as {wrong[0]!r}")
    return columns


def several_names(what: str, given: Any) -> list[str]:
    """One name or several; :raises UserError: for what is none, a table or a class for instance, and for
    names with settings, which nothing here would follow
    """
    if isinstance(given, Mapping):
        raise UserError(
            f"{what}: a list of names is needed, not a {type(given).__name__}: its values would be lost"
        )
    several = (
        isinstance(given, Iterable) and not isinstance(given, str | bytes) and not hasattr(given, "columns")
    )
    names = list(given) if several else [given]
    for name in names:
        if not isinstance(name, str | Path):
            hint = "write tables to CSV files first" if hasattr(name, "columns") else "`zoo list` has them"
            if what == "model":
                hint += "; one of your own is written as path/to/file.py:model"
            raise UserError(f"{what}: a name or a path is needed, not a {type(name).__name__}; {hint}")
    return list(map(str, names))
