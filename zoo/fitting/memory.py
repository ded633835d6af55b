"""Memory that a step frees, kept for the next one.

A step of a large network makes and frees tens of megabytes of temporary tensors.  The C library of Linux
hands such memory back to the system as soon as twice the largest block lies free, and the next step pays for
every page again: measured, a tenth of a step with local reparameterization, half of it in the kernel.
"""

from __future__ import annotations

import ctypes
import functools

# Names of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Memory that is kept, and the largest block that may come from it.
_KEPT, _LARGEST = 256 << 20, 32 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Lets this process keep 256 MB that it has freed; blocks above 32 MB go back as before.

    It is a setting of the whole process, for programs and not for libraries to make.

    :returns: whether the C library has such a setting (glibc)
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another system
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT) and mallopt(_MMAP_THRESHOLD, _LARGEST))
