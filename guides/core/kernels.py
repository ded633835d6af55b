"""Compiled kernels for large sites and for flows: ``kernels.c``, built once by the system's C compiler.

They save most of a training step's arithmetic outside the matrix products: eager torch goes over the weights
two dozen times, the kernel once.  A C compiler is used rather than ``torch.compile`` because it takes half a
second instead of half a minute, and brings no worker processes, no output and no state of its own: calls are
thread-safe and survive a fork.  Without a compiler, on an accelerator, in other than single precision and on
small sites the eager formulas of :mod:`guides.core.fused` and :mod:`guides.flows.gated` do the same, up to
rounding.

Set ``POSTERIOR_ZOO_KERNELS=0`` to switch the kernels off.  The library is kept in the user's cache folder
(``XDG_CACHE_HOME``), under a name that tells source, flags and processor.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

#: Elements below which a site is not worth it; a flow, which is many small operations, always is.
SMALLEST = 16_384
# No -ffast-math: linked into a shared library it would switch denormal numbers off for the whole process.
FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
SOURCE = Path(__file__).with_name("kernels.c")

_LONG, _FLOAT, _ARRAY = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_SIGNATURES: dict[str, tuple] = {
    "spike_slab_forward": (ctypes.c_double, [_LONG, *[_ARRAY] * 6]),
    "spike_slab_backward": (None, [_LONG, _ARRAY, _FLOAT, *[_ARRAY] * 8]),
    "concrete_forward": (ctypes.c_double, [_LONG, _ARRAY, _FLOAT, *[_ARRAY] * 6]),
    "concrete_backward": (None, [_LONG, _ARRAY, _FLOAT, _FLOAT, *[_ARRAY] * 9]),
    "multiplied_forward": (ctypes.c_double, [_LONG, _LONG, *[_ARRAY] * 10]),
    "multiplied_backward": (None, [_LONG, _LONG, _ARRAY, _FLOAT, *[_ARRAY] * 14]),
    "gated_forward": (None, [*[_LONG] * 4, *[_ARRAY] * 10]),
    "gated_backward": (None, [*[_LONG] * 4, *[_ARRAY] * 6, _FLOAT, *[_ARRAY] * 6]),
}


def kernel(name: str, *arrays: Tensor, smallest: int | None = None) -> Callable | None:
    """The kernel of this name if it applies to these arrays, else None.

    :param smallest: elements of the first array below which it does not; :data:`SMALLEST` if not given
    """
    first = arrays[0]
    if first.numel() < (SMALLEST if smallest is None else smallest) or not first.is_cpu:
        return None
    if any(a.dtype != torch.float32 or not a.is_contiguous() for a in arrays):
        return None
    library = _library()
    return None if library is None else functools.partial(_call, getattr(library, name))


def run(name: str, *arguments: Tensor | float) -> float | None:
    """Runs a kernel that :func:`kernel` has found for arrays like these."""
    return _call(getattr(_library(), name), *arguments)


def _call(function: Callable, *arguments: Tensor | float) -> float | None:
    return function(*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled library, or None where it cannot be had."""
    if os.environ.get("POSTERIOR_ZOO_KERNELS") == "0":
        return None
    try:
        library = ctypes.CDLL(str(_built()))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    return library


def _built() -> Path:
    """Path of the library, compiled if it is not there yet; :raises OSError: when that fails."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    identity = "\n".join((SOURCE.read_text(), *FLAGS, compiler, _processor()))
    name = f"kernels-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    for folder in _folders():
        path = folder / name
        if path.exists():
            return path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(suffix=".so", dir=folder)
        except OSError:  # a read-only home
            continue
        os.close(handle)
        try:
            command = [*compiler.split(), *FLAGS, "-o", temporary, str(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(temporary, path)  # another process may do the same at the same time
        finally:
            Path(temporary).unlink(missing_ok=True)
        return path
    raise PermissionError("no folder to keep the kernels in")


def _folders() -> Iterator[Path]:
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posterior-zoo"
    yield Path(tempfile.mkdtemp(prefix="posterior-zoo-"))


def _processor() -> str:
    """What ``-march=native`` depends on: a home folder may be shared by several kinds of machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.platform()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
