"""Latent sites as one vector: which supports there is a map for."""

from __future__ import annotations

from functools import partial

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine

from guides.core.sites import UnsupportedSiteError
from guides.core.weight_sites import WeightSites


def rate(low, high):
    def model():
        p = pyro.sample("p", dist.Uniform(low, high).to_event(len(torch.as_tensor(high).shape)))
        pyro.sample("y", dist.Normal(p.mean(), 1.0), obs=torch.tensor(1.0))

    return model


@pytest.mark.parametrize("high", [1.0, torch.ones(3)])
def test_a_uniform_law_between_0_and_1_is_of_the_unit_interval(high):
    sites = WeightSites.of(rate(0.0, high), ())
    assert sites.sites == (("p", tuple(torch.as_tensor(high).shape), "unit_interval"),)
    assert ((sites.values(torch.zeros(len(sites)))["p"]) == 0.5).all()


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 2.0), (-1.0, 1.0), (torch.zeros(2), torch.tensor([1.0, 2.0]))]
)
def test_other_intervals_are_refused(low, high):
    with pytest.raises(UnsupportedSiteError, match="site 'p' of a Uniform.*or the unit interval"):
        WeightSites.of(rate(low, high), ())


def test_rows_that_a_plate_draws_or_weighs_are_refused():
    def model(x, weights=1.0, **plate):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("d", 8, **plate), poutine.scale(scale=weights):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=x)

    for rows, plate in ((8, {}), (4, {"subsample": torch.arange(4)})):
        assert len(WeightSites.of(partial(model, **plate), (torch.zeros(rows),))) == 1
    with pytest.raises(UnsupportedSiteError, match="plate 'd' draws rows of its own.*batch_size"):
        WeightSites.of(partial(model, subsample_size=4), (torch.zeros(4),))
    with pytest.raises(UnsupportedSiteError, match="'y': rows have weights of their own"):
        WeightSites.of(model, (torch.zeros(8), torch.ones(8)))
