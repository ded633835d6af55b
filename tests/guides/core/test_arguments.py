"""Data that are NaN are refused in a line; numbers that a model makes itself follow the precision."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpyro
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

from guides import AutoMeanField, AutoSpikeSlab, JointSpikeSlab, PosteriorBootstrap, SpikeSlab, fit_ensemble
from guides.core.arguments import blaming_arguments, check_pairing, default_dtype, row_not_finite
from guides.implicit import AdversarialVariationalBayes
from guides.truth import nuts

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] + 0.5
BAD = torch.where(torch.arange(30) == 4, torch.nan, Y)
BAD_ROW = torch.where(torch.arange(30)[:, None] == 4, torch.nan, X)


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
            "observed site 'y' is NaN in row 4 .rows count from 0",
        ),
        (
            lambda: AutoMeanField(gaussian)(BAD_ROW, Y),
            "argument 0 .* NaN in row 4",
        ),
        (lambda: AutoMeanField(gaussian)(X, y=BAD), "observed site 'y' is NaN in row 4"),
        (lambda: JointSpikeSlab(sparse).fit(X, BAD, steps=2), "argument 1 .* is NaN in row 4"),
        (lambda: fit_ensemble(gaussian, X, BAD, steps=2), "argument 1 .* is NaN in row 4"),
        (lambda: fit_ensemble(gaussian, X, y=BAD, steps=2), "argument y .* is NaN in row 4"),
    ],
)
def test_what_is_nan_is_named(fit, words):
    with pytest.raises(ValueError, match=words) as refusal:
        fit()
    assert "\n" not in str(refusal.value)


def test_other_errors_stay_as_they_are():
    """An infinity may be meant, and an argument without rows has none that is wrong."""
    arguments = X, "text", torch.full((3,), math.inf), torch.empty(0), torch.empty(0, 2)
    with pytest.raises(RuntimeError, match="mine"), blaming_arguments(arguments, {"y": Y}):
        raise RuntimeError("mine")
    assert row_not_finite(torch.tensor(math.inf)) == 0
    assert row_not_finite(torch.empty(0)) is None


def test_what_is_no_data_is_not_looked_at():
    """A factor has no number, and what a mask of False hides counts for nothing."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("near one", -(w[..., 0] - 1).square())
        pyro.sample("hidden", dist.Normal(0.0, 1.0).mask(False), obs=torch.tensor(math.nan))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    guide = AutoMeanField(model)
    assert guide(X, Y)["w"].shape == (3,)
    assert math.isfinite(guide.elbo().loss(model, guide, X, Y))


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


def twin(x, y=None):
    w = numpyro.sample("w", numpyro.distributions.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", numpyro.distributions.Normal(x @ w, 0.5), obs=y)


@pytest.mark.parametrize(
    "fit",
    [
        lambda y: JointSpikeSlab(sparse).fit(X, y, steps=2),
        lambda y: AdversarialVariationalBayes(gaussian).fit(X, y, steps=2),
        lambda y: PosteriorBootstrap(gaussian).fit(X, y, steps=2),
        lambda y: nuts(gaussian, (X, y), backend="pyro", warmup=4, draws=4),
        lambda y: nuts(twin, (X.numpy(), y.numpy()), warmup=4, draws=4),
    ],
    ids=["joint", "avb", "bootstrap", "pyro", "numpyro"],
)
def test_data_and_laws_that_do_not_pair_are_refused(fit):
    """``[30, 1]`` under 30 laws: 900 terms, whose posterior has next to no slope and passes every gate."""
    with pytest.raises(ValueError, match=r"'y' has data of shape \[30, 1\] and laws of shape \[30\]"):
        fit(Y[:, None])


@pytest.mark.parametrize(
    ("batch", "value"), [((30,), (30,)), ((), (30,)), ((1, 30), (30,)), ((30,), (1, 30)), ((30, 1), (30, 1))]
)
def test_data_and_laws_that_pair(batch, value):
    check_pairing("y", dist.Normal(0.0, 1.0).expand(batch), torch.zeros(value))
    check_pairing("y", dist.Normal(0.0, 1.0).expand((*batch, 3)).to_event(1), torch.zeros((*value, 3)))


@pytest.mark.parametrize("data", [Y.numpy(), pd.Series(Y.numpy())], ids=["numpy", "pandas"])
@pytest.mark.parametrize(
    "fit",
    [
        lambda y: JointSpikeSlab(sparse).fit(X, y, steps=2),
        lambda y: AdversarialVariationalBayes(gaussian).fit(X, y, steps=2),
        lambda y: PosteriorBootstrap(gaussian).fit(X, y, steps=2),
    ],
    ids=["joint", "avb", "bootstrap"],
)
def test_what_is_no_tensor_is_refused(fit, data):
    with pytest.raises(TypeError, match=r"argument 1 of the model is a (ndarray|Series).*torch.as_tensor"):
        fit(data)
