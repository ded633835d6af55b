"""Files that a user asked for by ``--out``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.errors import UserError


@contextmanager
def writing(out: str | Path) -> Iterator[None]:
    """:raises UserError: when what is inside cannot write"""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from error
