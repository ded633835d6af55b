"""What the posterior bootstrap refuses: arguments, rows, models, and losses that leave the numbers."""

from __future__ import annotations

import math
import re

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import PosteriorBootstrap, UnsupportedSiteError
from guides.bootstrap.base_measures import EmpiricalBase
from guides.bootstrap.weighted_loss import WeightedLoss
from guides.core.svi import DivergenceError
from tests.guides.bootstrap.problems import (
    double,
    linear,
    mean_alone,
    numbers,
    regression,
    two_plates,
)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_concentrations_out_of_range(wrong):
    with pytest.raises(ValueError, match="concentration must be a number of rows"):
        PosteriorBootstrap(linear, wrong)


def test_arguments_that_contradict_each_other():
    with pytest.raises(ValueError, match="need a concentration above zero"):
        PosteriorBootstrap(linear, num_pseudo=10)
    with pytest.raises(ValueError, match="loss must be"):
        PosteriorBootstrap(linear, loss="mpa")
    with pytest.raises(ValueError, match="concentration must be a number of rows, zero or more; got 'a'"):
        PosteriorBootstrap(linear, "a")
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match=f"num_pseudo must be a positive whole number, got {wrong}"):
            PosteriorBootstrap(linear, 1.0, num_pseudo=wrong)
    with pytest.raises(ValueError, match="num_draws must be a positive whole number"):
        PosteriorBootstrap(linear).fit(*regression(), num_draws=0)


def test_rows_that_cannot_be_weighted():
    x, y = regression()
    for argument, row in ((0, 5), (1, 7)):
        parts = [x.clone(), y.clone()]
        parts[argument][row] = math.nan
        with pytest.raises(
            ValueError, match=f"^argument {argument} .* is not finite in row {row} .rows count from 0.: drop"
        ):
            PosteriorBootstrap(linear).fit(*parts)
    with pytest.raises(ValueError, match="at least two, plate 'data' has 1"):
        PosteriorBootstrap(linear).fit(x[:1], y[:1])
    with pytest.raises(ValueError, match="observes nothing"):
        PosteriorBootstrap(linear).fit(x)


def test_targets_of_another_length():
    x, y = regression()
    with pytest.raises(
        ValueError, match=r"site 'y' has data of shape \[\d+\] and laws .*: pass as many rows"
    ):
        PosteriorBootstrap(linear).fit(x, y[:-3])


def test_models_that_have_no_rows():
    x, y = regression()

    def without_plate(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)

    def local(x, y):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(double(0.0), 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def minibatches(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("data", len(x), subsample_size=10) as rows:
            pyro.sample("y", dist.Normal(x[rows] @ w, 1.0), obs=y[rows])

    def discrete(x, y):
        z = pyro.sample("z", dist.Bernoulli(double(0.5)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    for model, message in ((without_plate, "share no pyro.plate"), (minibatches, "is subsampled")):
        with pytest.raises(ValueError, match=message):
            PosteriorBootstrap(model).fit(x, y)
    for model, message in ((local, "site 'z' has a value for every row"), (discrete, "site 'z' is discrete")):
        with pytest.raises(UnsupportedSiteError, match=message):
            PosteriorBootstrap(model).fit(x, y)


def test_plates_that_nothing_tells_apart():
    with pytest.raises(ValueError, match="several plates .'data' of 6, 'out' of 6.: say by plate="):
        PosteriorBootstrap(two_plates).fit(numbers(36).reshape(6, 6))
    with pytest.raises(ValueError, match="share no plate 'rows', but: 'data' of 40"):
        PosteriorBootstrap(mean_alone, plate="rows").fit(numbers())


def test_a_loss_that_ends_outside_the_numbers_is_named():
    """In the last step, after which there is no other."""
    with pytest.raises(DivergenceError, match="draw 0, step 1: the loss is inf"):
        PosteriorBootstrap(mean_alone).fit(numbers(), num_draws=2, steps=1, lr=1e200)


def test_a_loss_that_leaves_the_numbers_is_named():
    def falls(theta, y):
        return (theta["loc"] * 1e308) ** 3 * y.abs()

    with pytest.raises(DivergenceError, match=r"draw \d+, step \d+: the loss is"):
        PosteriorBootstrap(mean_alone, loss=falls).fit(numbers(), num_draws=2, steps=50)


def test_a_support_that_hangs_on_another_site_is_refused():
    """One map from unconstrained numbers would hold every draw within the bounds of the first run."""

    def model(y):
        low = pyro.sample("low", dist.Normal(double(0.0), 1.0))
        high = pyro.sample("high", dist.Uniform(low, low + 4))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(high, 1.0), obs=y)

    with pytest.raises(UnsupportedSiteError, match="'high' has a support that depends on other sites"):
        PosteriorBootstrap(model).fit(numbers(), num_draws=3, steps=2)


@pytest.mark.parametrize("shape", [(40, 1), ()])
def test_a_loss_without_a_number_a_row_is_refused(shape):
    def loss(theta, y):
        return (y - theta["loc"]).square().reshape(40, 1) if shape else (y - theta["loc"]).square().sum()

    with pytest.raises(ValueError, match=rf"one number a row, \[40\], got {re.escape(str(list(shape)))}"):
        PosteriorBootstrap(mean_alone, loss=loss).fit(numbers(), num_draws=3, steps=2)


def test_an_argument_that_only_looks_as_if_it_had_rows_is_named():
    def model(x, y, centre):
        w = pyro.sample("w", dist.Normal(centre, 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    x, y = numbers(16).reshape(4, 4), numbers(4, seed=2)
    bootstrap = PosteriorBootstrap(model, concentration=2.0, num_pseudo=5)
    with pytest.raises(ValueError, match=r"rows of its arguments 0, 1, 2 .*functools.partial"):
        bootstrap.fit(x, y, numbers(4, seed=3), num_draws=3, steps=2)


def test_a_base_measure_is_not_blamed_for_what_the_data_are_too():
    """Shares in place of labels have a likelihood, though they are in no support."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=w * x, validate_args=False), obs=y)

    x, shares, labels = torch.randn(8), torch.rand(8), torch.ones(8)
    base = EmpiricalBase((x, shares))
    WeightedLoss.of(model, (x, shares), "mle").check_base(base)
    with pytest.raises(ValueError, match="what the law of site 'y' cannot be"):
        WeightedLoss.of(model, (x, labels), "mle").check_base(base)
