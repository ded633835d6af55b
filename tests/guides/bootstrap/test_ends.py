"""Where draws end: in the sites' own values, and with a warning where any of their numbers is on its way."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import PosteriorBootstrap
from guides.bootstrap.posterior_bootstrap import _End, _warn_unsettled
from guides.core.settling import UnsettledWarning
from guides.core.svi import DivergenceError, half_cosine
from tests.guides.bootstrap.problems import double, numbers, regression

STEPS, LR = 10, 0.1


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_draws_are_of_the_sites_and_not_of_what_is_minimised():
    def model(y=None):
        rate = pyro.sample("rate", dist.Gamma(double(2.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Exponential(rate), obs=y)

    bootstrap = PosteriorBootstrap(model, init_loc_fn=lambda site: double(0.01))
    rate = bootstrap.fit(numbers().abs(), num_draws=3, steps=1, lr=LR).draws()["rate"]
    torch.testing.assert_close(rate.log(), double(0.01).log().expand(3), rtol=0, atol=1.01 * LR)


def end_after(ways: dict[str, float]) -> tuple[dict, _End]:
    """Starts at 0 and ends, of two draws that have settled but for how far their sites went."""
    start = {name: torch.zeros(2, 3) for name in ways}
    minimum = {name: torch.tensor([[0.0, way, 0.0], [0.0, 0.0, 0.0]]) for name, way in ways.items()}
    none = torch.zeros(2)
    return start, _End(minimum, none, none, none, torch.zeros(2, 3 * len(ways), dtype=torch.float64))


@pytest.mark.parametrize("far", ["a", "b"])
def test_one_number_of_one_site_that_went_as_far_as_steps_reach_is_a_warning(far):
    reach = sum(half_cosine(LR, step, STEPS) for step in range(STEPS))
    with pytest.warns(UnsettledWarning, match="^1 of 2 draws .* 1 draws went as far"):
        _warn_unsettled(*end_after({"a": 0.0, "b": 0.0} | {far: -0.91 * reach}), STEPS, LR)
    _warn_unsettled(*end_after({"a": 0.89 * reach, "b": 0.89 * reach}), STEPS, LR)


def sparse(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=torch.float64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_a_number_that_no_row_sees_is_warned_of_and_with_a_prior_it_is_seen(recwarn):
    x, y = regression()
    x = torch.cat([x[:, :1], torch.zeros(len(x), 1).double(), x[:, 1:]], 1)
    with pytest.warns(UserWarning, match=r"^1 of 3 numbers of site 'w', w\[1\] for one, are where they st"):
        PosteriorBootstrap(sparse).fit(x, y, num_draws=3, steps=3)
    recwarn.clear()
    PosteriorBootstrap(sparse, loss="map").fit(x, y, num_draws=3, steps=3)
    x[0, 1] = 1e-6  # seen, if by a little
    PosteriorBootstrap(sparse).fit(x, y, num_draws=3, steps=3)
    assert not [warning for warning in recwarn if "where they started" in str(warning.message)]


def test_a_loss_that_is_none_at_the_start_is_not_put_down_to_the_steps():
    x, y = regression()

    def model(data):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("data", len(data["y"])):
            law = dist.Normal(data["x"] @ w, 1.0, validate_args=False)
            pyro.sample("y", law, obs=data["y"])

    x[4] = torch.nan
    with pytest.raises(DivergenceError, match="draw 0, step 0: the loss is nan; look for NaN, infinities"):
        PosteriorBootstrap(model).fit({"x": x, "y": y}, num_draws=2, steps=2)


def test_data_in_a_dictionary_that_are_nan_are_named_by_their_site():
    def model(data):
        loc = pyro.sample("loc", dist.Normal(double(0.0), 10.0))
        with pyro.plate("data", len(data["y"])):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=data["y"])

    y = numbers()
    y[6] = torch.nan
    with pytest.raises(ValueError, match="^the observed site 'y' is NaN in row 6"):
        PosteriorBootstrap(model).fit({"y": y}, num_draws=2, steps=2)
