"""What arguments must be: arrays of regressions, and numbers; refused in one line that names them."""

from __future__ import annotations

from numbers import Integral

import numpy as np


def checked_data(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [n, p] and y [n] in float64.

    :raises ValueError: shapes that do not fit, no rows, numbers that are not finite
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.ndim != 2 or x.size == 0 or y.shape != x.shape[:1]:
        raise ValueError(f"x must be [n, p] and y [n], neither empty; got shapes {x.shape} and {y.shape}")
    for name, values in (("x", x), ("y", y)):
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            place = ", ".join(f"{kind} {i}" for kind, i in zip(("row", "column"), wrong[0], strict=False))
            raise ValueError(
                f"{name} must be finite, and {place} is {values[tuple(wrong[0])]} (first of {len(wrong)}); "
                "drop such rows or fill them in"
            )
    return x, y


def checked_logistic(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [n, p] and y [n] in float64.

    :raises ValueError: shapes that do not fit, numbers that are not finite, labels other than 0 and 1.
    """
    x, y = checked_data(x, y)
    if not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("y must hold the labels 0 and 1 only")
    return x, y


def checked_vector(name: str, value: float | np.ndarray, p: int) -> np.ndarray:
    """[p] from a number or [p]; :raises ValueError: naming another shape."""
    array = np.asarray(value, dtype=float)
    if array.shape not in ((), (p,)):
        raise ValueError(f"{name} must be a number or one for each of {p} columns, got shape {array.shape}")
    return np.broadcast_to(array, p).copy()


def checked_inclusion(inclusion_prob: float | np.ndarray, p: int) -> np.ndarray:
    """[p] probabilities; :raises ValueError: another shape, or not all strictly inside (0, 1)."""
    q = checked_vector("inclusion_prob", inclusion_prob, p)
    if not ((q > 0) & (q < 1)).all():
        raise ValueError(f"inclusion_prob must lie strictly inside (0, 1), got {inclusion_prob}")
    return q


def check_numbers(**values: float) -> None:
    """:raises ValueError: for anything but positive finite numbers, arrays of them included"""
    for name, value in values.items():
        if np.ndim(value):
            raise ValueError(f"{name} must be a number, got shape {np.shape(value)}")
        if value is None or isinstance(value, (str, bytes, bool)):
            raise ValueError(f"{name} must be a number, got {value!r}")
    check_positive(**{name: float(value) for name, value in values.items()})


def check_numbers_given(**values: float | None) -> None:
    """:raises ValueError: for anything but positive finite numbers, and None"""
    check_numbers(**{name: value for name, value in values.items() if value is not None})


def check_counts(**values: int) -> None:
    """:raises ValueError: for anything but positive whole numbers"""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            got = f"a {type(value).__name__}" if hasattr(value, "ndim") else repr(value)
            raise ValueError(f"{name} must be a positive whole number, got {got}")


def check_two(why: str = "", **values: int) -> None:
    """:raises ValueError: for anything but whole numbers from 2 on; ``why`` takes a number's place in it"""
    check_counts(**values)
    for name, value in values.items():
        if value < 2:
            raise ValueError(f"{name} must be 2 at least{': ' + why if why else f', got {value}'}")


def check_positive(**values: float | np.ndarray) -> None:
    """:raises ValueError: for anything but positive finite numbers"""
    for name, value in values.items():
        if not (np.all(np.isfinite(value)) and np.all(np.asarray(value) > 0)):
            raise ValueError(f"{name} must be positive and finite, got {value}")
