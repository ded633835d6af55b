"""Errors that a user can cause and mend: one line that says what, where and the remedy."""

from __future__ import annotations

import contextlib
import difflib
import textwrap
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Characters of an error of somebody else's that are shown, and what stands for the others.
LONGEST, CUT = 200, " ..."
#: In the words of torch, CUDA and JAX where memory is wanting, in small letters.
MEMORY = ("allocate memory", "cuda out of memory", "resource_exhausted")


class UserError(ValueError):
    """Bad input; the command line prints the message and exits with 2."""


class FailedError(RuntimeError):
    """What was asked for makes sense and failed all the same: a fit met a number that is not finite, chains
    did not pass their gates, a process died.  The command line prints the message and exits with 1.
    """


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what is kept and how to go on; the command line prints it and exits with 130."""


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """:raises FailedError: in a line, for memory that cannot be had in the block"""
    try:
        yield
    except FailedError:
        raise
    except (MemoryError, RuntimeError) as error:
        lines = str(error).splitlines()
        told = [line for line in lines if any(words in line.lower() for words in MEMORY)]
        if not (told or isinstance(error, MemoryError)):
            raise
        why = one_line((told or lines or ["no more can be had"])[0])
        raise FailedError(f"not enough memory; fewer rows, draws or units need less ({why})") from error


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """``unknown guide 'mean-feld'; nearest: mean-field``; ``where`` as for :func:`nearest`."""
    return UserError(f"unknown {kind} {name!r}; {nearest(name, known, where)}")


def nearest(name: str, known: Iterable[str], where: str = "") -> str:
    """``nearest: mean-field``

    :param where: said when nothing is near, in place of all that is known
    """
    known = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    return f"nearest: {', '.join(close)}" if close else where or f"known: {', '.join(known)}"


def one_line(text: str) -> str:
    """The lines of a text in one, up to :data:`LONGEST` characters, but its first line whole: errors of Pyro
    give their reason in the second.
    """
    first = " ".join(text.strip().partition("\n")[0].split())
    return textwrap.shorten(text, max(LONGEST, len(first) + len(CUT)), placeholder=CUT)


def where(error: BaseException, file: Path) -> str:
    """What the last line of a traceback says, and the line of the file where it went wrong."""
    line = one_line(traceback.format_exception_only(error)[-1])
    numbers = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    if isinstance(error, SyntaxError) and error.filename == str(file):  # no line of it has run
        numbers.append(error.lineno)
    return f"{line} (line {numbers[-1]})" if numbers else line
