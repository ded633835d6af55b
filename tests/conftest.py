"""One thread a test process, Pyro's validation on, no state carried from test to test."""

from __future__ import annotations

import os

# Two processes share two cores, and idle BLAS threads burn what they wait.  Read when numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pyro
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh_state():
    pyro.clear_param_store()
    pyro.set_rng_seed(20)
    with pyro.validation_enabled(True):
        yield
