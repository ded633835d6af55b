"""Arguments of torch functions and returns of models, which may be nested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def leaves(value: Any, kind: type[T]) -> Iterator[T]:
    """Everything of a kind in nested tuples, lists and dictionaries."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item, kind)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()), kind)
