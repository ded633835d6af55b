"""Freed memory is kept: the pages of a step are not fetched again in the next."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.fitting import memory

# In a process of its own, for it is a setting of the whole process; without torch, to be quick.
PROGRAM = """
import resource, runpy, numpy
keep = runpy.run_path({path!r})["keep_freed_memory"]

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        held = [numpy.ones(1_000_000 + 1000 * i) for i in range(4)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pages()
before = pages()
assert keep()
pages()
print(before, pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_pages_are_fetched_once():
    program = PROGRAM.format(path=str(Path(memory.__file__)))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after = map(int, result.stdout.split())
    assert before > 1000
    assert 10 * after < before


@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_another_c_library_is_left_alone(monkeypatch, error):
    def refuses(name):
        raise error

    monkeypatch.setattr(memory.ctypes, "CDLL", refuses)
    assert memory.keep_freed_memory.__wrapped__() is False
