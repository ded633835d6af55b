"""What commands say beside their results."""

from __future__ import annotations

import sys


def complain(message: object) -> None:
    """One line to stderr."""
    line = " ".join(str(message).split())
    print(f"zoo: {line}", file=sys.stderr)


def print_notes(oddities: tuple[str, ...]) -> None:
    """What should be known about data and request."""
    for oddity in oddities:
        print(f"note:     {oddity}")
