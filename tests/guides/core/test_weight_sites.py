"""Latent sites as one vector: which supports there is a map for."""

from __future__ import annotations

from functools import partial

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine

from guides.core.arguments import doubled
from guides.core.sites import UnsupportedSiteError
from guides.core.weight_sites import WeightSites, scores


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


def test_what_a_mask_hides_is_refused():
    """Pyro's ``obs_mask`` samples the targets that are missing, under a mask."""

    def model(x, seen):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("d", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=x, obs_mask=seen)

    with pytest.raises(UnsupportedSiteError, match="'y_unobserved': a mask hides.*rows that were seen"):
        WeightSites.of(model, (torch.zeros(3), torch.tensor([True, True, False])))

    def masked():
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).mask(torch.tensor([True, False])))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    with pytest.raises(UnsupportedSiteError, match="'w': a mask hides"):
        WeightSites.of(masked, ())


def test_a_model_without_data_is_refused():
    def model(x, *, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("d", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)
        pyro.deterministic("f", w * x)

    with pytest.raises(ValueError, match="observes nothing: pass its data"):
        WeightSites.of(model, (torch.zeros(3),))


def test_what_cannot_be_asked_of_all_draws_is_named():
    cuts = torch.tensor([-0.5, 0.5])

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("d", len(x)):
            pyro.sample("y", dist.OrderedLogistic(w * x, cuts), obs=y)

    args = torch.zeros(3), torch.tensor([0, 1, 2])
    sites = WeightSites.of(model, args)
    with pytest.raises(UnsupportedSiteError, match="side by side.*OrderedLogistic for instance"):
        scores(model, sites, torch.zeros(2, 1), args)


def test_nested_arguments_are_doubled():
    found = doubled({"x": torch.zeros(2), "more": [torch.ones(1), torch.arange(2), "a"]})
    assert found["x"].dtype == found["more"][0].dtype == torch.float64
    assert found["more"][1].dtype == torch.int64
    assert found["more"][2] == "a"
