"""One thread a test process, Pyro's validation on, no state carried from test to test."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections import Counter

# Two processes share two cores, and idle BLAS threads burn what they wait.  Read when numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pyro
import pytest
import torch

torch.set_num_threads(1)

if not torch.cuda.is_available():
    # Torch keeps every seed for a GPU that may yet come, with a printed stack of whoever gave it: in a test,
    # whose stack is deep, that takes longer than a step of a fit.
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.manual_seed_all = lambda seed: None


def pytest_configure():
    """JAX compiles with few optimisations and the older, quicker emitter, for most programs of the tests run
    for a moment each.  Told by the environment, which processes inherit.  What is compared with the
    published algorithm is optimised as a user's programs, but for the emitter.

    XLA ends a process whose flags it does not know: if a newer one says so of this one, it can go.
    """
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    flags = ["--xla_cpu_use_fusion_emitters=false", os.environ.get("XLA_FLAGS", "")]
    os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))  # of two the last counts, the user's own


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items):
    """Of a test with the mark ``one_in(k)`` every k-th case is fast.  The first of them differs from test to
    test, or the same guides would be the slow ones everywhere.
    """
    marked = [(item, item.nodeid.split("[")[0]) for item in items if item.get_closest_marker("one_in")]
    cases, place = Counter(test for _, test in marked), Counter()
    for item, test in marked:
        (k,) = item.get_closest_marker("one_in").args
        start = zlib.crc32(test.encode()) % min(k, cases[test])
        if place[test] % k != start:
            item.add_marker(pytest.mark.slow)
        place[test] += 1


def pytest_collection_finish():
    """What was imported stays for good: the garbage collector need not walk it after every module."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh_state():
    pyro.clear_param_store()
    pyro.set_rng_seed(20)
    with pyro.validation_enabled(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def _caches_released():
    """Programs that JAX has compiled for one module serve no other, and would add up to gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    gc.freeze()


@pytest.fixture
def seeds_given(monkeypatch) -> list[int]:
    """The seeds that torch's generator of the CPU is given, in turn."""
    seeds, seed_torch, generator = [], torch.manual_seed, torch.default_generator

    class Noted:
        def manual_seed(self, seed: int) -> torch.Generator:
            seeds.append(seed)
            return generator.manual_seed(seed)

    monkeypatch.setattr(torch, "manual_seed", lambda seed: (seeds.append(seed), seed_torch(seed))[1])
    monkeypatch.setattr(torch, "default_generator", Noted())
    return seeds
