"""Fits that the tests of the public class share, models with exact answers, and what "the same fit" means.

Compilation is nearly all of the time.  The quick tests share the programs of ``fitted``: three networks of
``SHARED``, 40 rows, three epochs; the same laws for the others are slow tests.
"""

import functools

import numpy as np
import pyro
import pytest
from pyro import distributions as dist

from guides import ProbabilisticBackpropagation
from tests.guides.message_passing.networks import NETWORKS, data, number, observe, weights

both_families = pytest.mark.parametrize("messages", ["gaussian", "spike-slab"])
SHARED = [("pbp", "gaussian"), ("pbp without bias", "spike-slab"), ("two_precisions", "gaussian")]
NOISE = 0.5


def cases(quick, others):
    """Parameters, each a tuple or a single one, for the quick and for the slow tests."""
    tuples = (case if isinstance(case, tuple) else (case,) for case in others)
    return [*quick, *(pytest.param(*case, marks=pytest.mark.slow) for case in tuples)]


def line(loc=0.3, scale=2.0):
    """One weight, known noise."""

    def model(x, y=None):
        observe(x * pyro.sample("w", dist.Normal(number(loc), number(scale))), y, NOISE)

    return model


def regression(x, y=None):
    observe(x @ weights("w", x.shape[1], scale=2.0, loc=0.3), y, NOISE)


@functools.cache
def fitted(name="pbp", messages="gaussian", epochs=3):
    return ProbabilisticBackpropagation(NETWORKS[name], messages).fit(*data(), epochs=epochs)


def close(a, b, tolerance=1e-10):
    a, b = (np.asarray(v, dtype=float) for v in (a, b))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def same_fit(a, b, tolerance=0.0):
    for name in a.sites:
        close(a.sites[name].mean, b.sites[name].mean, tolerance)
        close(a.sites[name].variance, b.sites[name].variance, tolerance)
    for name in a.precisions:
        close(a.precisions[name], b.precisions[name], tolerance)
    close(a.noise_variance, b.noise_variance, tolerance)
