"""The one kind of error that this package raises on purpose."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class DataError(ValueError):
    """Something is wrong with a data set, a file or a request for one; the message is one line.

    A command line can print the message as it stands: it names the set or the file and, where there is one,
    the remedy.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).splitlines()))


def absent(path: str | Path) -> DataError:
    """For a file that is not there; an address of the web is told to be none."""
    scheme, colon, rest = str(path).partition(":/")
    if colon and scheme.lower() in ("http", "https", "ftp", "s3"):  # a Path has one slash less
        return DataError(f"{scheme}://{rest.lstrip('/')}: not found: download it, and name the file")
    return DataError(f"{path}: not found")


def short_reason(error: BaseException, limit: int = 160) -> str:
    """The kind and the beginning of the text of `error`, on one line: network errors can run over many."""
    text = " ".join(str(error).split())
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause that names the entries of `known` that look like `word` (empty when none does)."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(word).lower(), list(by_lower), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(by_lower[name] for name in close)}?" if close else ""
