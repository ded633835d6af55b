"""Latent sites as one vector: which supports there is a map for."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist

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
