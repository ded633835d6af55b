"""Processes that joblib starts to work side by side."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

#: How joblib's warning begins, when a worker leaves while others still have work.
LEFT = "A worker stopped while some jobs were given to the executor"


@contextlib.contextmanager
def workers_may_leave() -> Iterator[None]:
    """Within, no error is made of joblib's warning that a worker has left.

    A worker that was idle for five minutes leaves, and so does one whose memory has grown.  joblib starts
    another and warns, in the thread that hands out the work: where warnings are errors (``-W error``) that
    thread ends, and the call waits for ever.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", LEFT, UserWarning)
        yield
