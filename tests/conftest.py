"""One thread a test process, Pyro's validation on, no state carried from test to test."""

from __future__ import annotations

import gc
import os
import sys

# Two processes share two cores, and idle BLAS threads burn what they wait.  Read when numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pyro
import pytest
import torch

torch.set_num_threads(1)


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


@pytest.fixture(scope="module")
def quick_compilation(request):
    """Compiles with few optimisations, for tests of many small programs that run for a moment each; the slow
    tests, by themselves, have the programs that a user has."""
    import jax

    jax.config.update("jax_disable_most_optimizations", request.config.option.markexpr != "slow")
    yield
    jax.config.update("jax_disable_most_optimizations", False)
