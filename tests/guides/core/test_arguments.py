"""Data that are NaN are refused in a line; numbers that a model makes itself follow the precision."""

from __future__ import annotations

import math
from contextlib import ExitStack, nullcontext

import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

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


def unit(*shape: int) -> dist.Normal:
    return dist.Normal(torch.zeros(shape), 1.0)


#: A law, data, and the sizes of plates from the last dimension on.
PAIRS = {
    "a law a number": (unit(6), torch.zeros(6), [6]),
    "one law": (unit(), torch.zeros(6), [6]),
    "no plate": (unit(6), torch.zeros(6), []),
    "one law and no plate": (unit(), torch.zeros(6), []),
    "one number": (unit(), 0.0, []),
    "vectors": (unit(6, 3).to_event(1), torch.zeros(6, 3), [6]),
    "correlated vectors": (dist.MultivariateNormal(torch.zeros(6, 2), torch.eye(2)), torch.zeros(6, 2), [6]),
    "classes": (dist.Categorical(logits=torch.zeros(6, 3)), torch.zeros(6).long(), [6]),
    "counts": (dist.Multinomial(5, torch.ones(6, 3)), torch.ones(6, 3), [6]),
    "two plates": (unit(6, 4), torch.zeros(6, 4), [4, 6]),
    "experts": (unit(4, 1), torch.zeros(12), []),
    "masked": (unit(6).mask(torch.ones(6).bool()), torch.zeros(6), [6]),
}
WRONG = {
    "data of a column": (unit(6), torch.zeros(6, 1), [6]),
    "a network's column": (unit(6, 1), torch.zeros(6), [6]),
    "two columns": (unit(6, 1), torch.zeros(6, 1), [6]),
    "data of a column, no plate": (unit(6), torch.zeros(6, 1), []),
    "a column under a vector": (unit(6).to_event(1), torch.zeros(6, 1), []),
    "a vector under a column": (unit(6, 1).to_event(1), torch.zeros(6), [6]),
    "a table": (unit(6), torch.zeros(6, 6), [6]),
}


@pytest.mark.parametrize("name", [*PAIRS, *WRONG])
def test_what_pairs(name):
    law, value, sizes = (PAIRS | WRONG)[name]

    def model():
        with ExitStack() as plates:
            for place, size in enumerate(sizes):
                plates.enter_context(pyro.plate(f"plate{place}", size, dim=-1 - place))
            pyro.sample("y", law, obs=value)

    with pyro.validation_enabled(False):
        site = poutine.trace(model).get_trace().nodes["y"]
    with pytest.raises(ValueError, match="do not pair") if name in WRONG else nullcontext():
        check_pairing(site)


@pytest.mark.parametrize("argument", [torch.eye(3).to_sparse(), np.float64(2.0)], ids=["sparse", "number"])
def test_an_error_of_the_models_own_stays(argument):
    with pytest.raises(TypeError, match="^mine$"), blaming_arguments((argument,)):
        raise TypeError("mine")


def test_an_autoguide_says_what_is_no_tensor():
    double = X.double().numpy()  # NumPy's own type, which the model's weights do not have
    with pytest.raises(TypeError, match=r"argument 0 of the model is a ndarray.*torch.as_tensor") as caught:
        AutoMeanField(gaussian)(double, Y)
    assert "torch.as_tensor(..., dtype=torch.get_default_dtype())" in str(caught.value)
    with pytest.raises(TypeError, match=r"observed site 'y' has a ndarray.*torch.as_tensor"):
        AutoMeanField(gaussian)(X, Y.numpy())


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
