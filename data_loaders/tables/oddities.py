"""Oddities that depend on the split or on a file we have never seen, found by looking."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import numpy as np

from data_loaders.standardise import NEXT_TO_NOTHING, constant_up_to_rounding
from data_loaders.tables.cells import Cells, typed

#: A whole number as a zip code has it.
_LEADING_ZERO = re.compile(r"0\d+")
#: Columns that a sentence names at most.
MOST_NAMED = 8
#: Names of columns that number the rows.
_COUNTER = re.compile(r"(^|.*[_ .-])(id|index)$|unnamed: 0$", re.IGNORECASE)


def copied_rows(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> tuple[str, ...]:
    """A sentence that counts the test rows which are exact copies (features and target) of training rows."""
    if not len(test):
        return ()
    # Adding 0.0 turns -0.0 into 0.0, so that equal numbers have equal bytes.
    table = np.ascontiguousarray(np.column_stack([x, y]) + 0.0)
    known = {row.tobytes() for row in table[train]}
    copies = sum(row.tobytes() in known for row in table[test])
    if not copies:
        return ()
    return (f"in this split {copies} of {len(test)} test rows are exact copies of training rows",)


def unseen_classes(y: np.ndarray, train: np.ndarray, labels: tuple[str, ...]) -> tuple[str, ...]:
    """A sentence that names the classes of y [n] without a training row, by label if there are labels."""
    unseen = np.setdiff1d(y, y[train]).astype(int).tolist()
    names = ", ".join(labels[k] if labels else str(k) for k in unseen)
    return (f"in this split no training row is of class {names}",) if unseen else ()


def constant_columns(x: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    """A sentence that names the constant columns of x [n, d]."""
    constant = [name for name, is_so in zip(names, (x == x[0]).all(0), strict=True) if is_so]
    return (f"constant columns: {_few(constant)}",) if constant else ()


def unseen_spread(
    x: np.ndarray,
    names: tuple[str, ...],
    train: np.ndarray,
    test: np.ndarray,
    but: Collection[str] = (),
) -> tuple[str, ...]:
    """A sentence that names the columns of x [n, d], `but` for some, with one value in all training rows and
    others in the test rows: standardising leaves these in their own unit, in which they may be far away.
    """
    if not len(test):
        return ()
    seen = x[train]
    with np.errstate(over="ignore", invalid="ignore"):
        constant = constant_up_to_rounding(seen, seen.mean(0), seen.std(0))
        moved = (np.abs(x[test] - seen[0]) > NEXT_TO_NOTHING).any(0)
    found = [name for name, is_so in zip(names, constant & moved, strict=True) if is_so and name not in but]
    if not found:
        return ()
    return (f"in this split constant in all training rows, but not in the test rows: {_few(found)}",)


def _few(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def leading_zeros(cells: Cells, names: Iterable[str]) -> tuple[str, ...]:
    """A sentence for every column of numbers that has whole ones written as 00011, as names are."""
    return tuple(
        f"column {name!r} has leading zeros and is taken as numbers: "
        f"--categories {typed([name])} takes it as names"
        for name in names
        if any(map(_LEADING_ZERO.fullmatch, cells.column(name)))
    )


def row_numbers(x: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    """A sentence for every column of x [n, d] that seems to number the rows: by its name, and whole numbers
    that all differ.
    """
    return tuple(
        f"column {name!r} seems to number the rows: --drop {typed([name])} leaves it out"
        for name, values in zip(names, x.T, strict=True)
        if _COUNTER.match(name)
        and (values == np.round(values)).all()
        and len(np.unique(values)) == len(values)
    )
