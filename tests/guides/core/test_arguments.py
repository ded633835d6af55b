"""Data that are not finite are refused in a line; numbers that a model makes itself follow the precision."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from guides import AutoMeanField, AutoSpikeSlab, JointSpikeSlab, SpikeSlab, fit_ensemble
from guides.core.arguments import blaming_arguments, default_dtype, row_not_finite

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] + 0.5
BAD = torch.where(torch.arange(30) == 4, torch.nan, Y)


def sparse(x, y=None):
    w = pyro.sample("w", SpikeSlab(probs=0.2).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def gaussian(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (
            lambda: AutoSpikeSlab(sparse)(X, BAD),
            "observed site 'y' is not finite in row 4 .rows count from 0",
        ),
        (lambda: AutoMeanField(gaussian)(X / (Y[4] != Y)[:, None], Y), "argument 0 .* not finite in row 4"),
        (lambda: AutoMeanField(gaussian)(X, y=BAD), "observed site 'y' is not finite in row 4"),
        (lambda: JointSpikeSlab(sparse).fit(X, BAD, steps=2), "argument 1 .* not finite in row 4"),
        (lambda: fit_ensemble(gaussian, X, BAD, steps=2), "argument 1 .* not finite in row 4"),
        (lambda: fit_ensemble(gaussian, X, y=BAD, steps=2), "argument y .* not finite in row 4"),
    ],
)
def test_what_is_not_finite_is_named(fit, words):
    with pytest.raises(ValueError, match=words) as refusal:
        fit()
    assert "\n" not in str(refusal.value)


def test_other_errors_stay_as_they_are():
    with pytest.raises(RuntimeError, match="mine"), blaming_arguments((X, "text"), {"y": Y}):
        raise RuntimeError("mine")
    assert row_not_finite(torch.tensor(math.inf)) == 0


def test_default_precision_is_given_back():
    with pytest.raises(AttributeError), default_dtype(torch.float64):
        torch.no_such_thing()
    with default_dtype(torch.float64):
        assert torch.tensor(0.5).dtype == torch.float64
    assert torch.tensor(0.5).dtype == torch.float32


def test_joint_guide_takes_a_model_with_numbers_of_its_own():
    """In the precision of the data the posterior is asked: the model's own numbers are of float32 again."""
    guide = JointSpikeSlab(sparse).fit(X, Y, steps=5)
    assert guide.draws(2)["w"].dtype == torch.float64
    posterior = guide.posterior(4)
    assert posterior.draws()["w"].dtype == torch.float32
    assert posterior.predictive(X).mean.shape == (30,)
    assert torch.tensor(0.5).dtype == torch.float32
    errors = guide.inclusion_standard_errors()["w"]
    other = [guide.inclusion_probabilities(seed)["w"] for seed in range(40)]
    tolerance = 4 / math.sqrt(2 * 39)  # of a sd of 40 numbers
    torch.testing.assert_close(torch.stack(other).std(0), errors, rtol=tolerance, atol=1e-12)
