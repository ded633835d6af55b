"""Where draws end: in the sites' own values, and with a warning where any of their numbers is on its way."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import PosteriorBootstrap
from guides.bootstrap.posterior_bootstrap import _End, _warn_unsettled
from guides.core.settling import UnsettledWarning
from guides.core.svi import half_cosine
from tests.guides.bootstrap.problems import double, numbers

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
