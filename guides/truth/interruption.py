"""Ctrl-C while compiled programs run: noted at once, acted upon where it does no harm."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["held_back"]


@contextlib.contextmanager
def held_back() -> Iterator[threading.Event]:
    """Ctrl-C sets the event that is given, and raises ``KeyboardInterrupt`` at the end of the block only.

    Raised inside XLA, which calls Python back and has threads of its own, it may get lost, or end the process
    in C++; so whoever works in the block looks at the event between two calls.  Any number of Ctrl-C is one.
    Within another such block the outer one has the event.  In other threads, where Python delivers no
    signals, and where the program handles Ctrl-C itself, the event is never set.
    """
    asked = threading.Event()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked
        return
    signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked.is_set():
        raise KeyboardInterrupt
