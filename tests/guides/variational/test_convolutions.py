"""Filters under a guide: what is trained is the bound of drawn networks, sums over positions included."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI
from torch.distributions import kl_divergence
from torch.nn import functional as F

from guides import AutoMeanField, AutoMNF, AutoSpikeSlab
from guides.testing import NOISE, assert_mean, assert_same_mean, losses, normal, perturb, spike_slab

SHAPE = [2, 1, 2, 2]
GUIDES = {"mean-field": (AutoMeanField, normal), "spike-slab": (AutoSpikeSlab, spike_slab)}


def sum_of_positions(prior):
    """A model whose outputs sum over all positions and filters: their variance is that of the sums."""

    def model(images, y):
        filters = pyro.sample("filters", prior(SHAPE))
        f = F.conv2d(images, filters).sum((-3, -2, -1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    return model


@pytest.fixture
def images_and_y():
    torch.manual_seed(1)
    return torch.rand(5, 1, 4, 4), torch.randn(5)


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("name", GUIDES)
def test_the_loss_is_that_of_drawn_filters_exactly(name, vectorize, images_and_y):
    make, prior = GUIDES[name]
    images, y = images_and_y
    model = sum_of_positions(prior)
    guide = make(model)
    guide.setup(images, y)
    perturb(guide, 0.2)
    law = guide.site_distribution("filters")
    factors = F.unfold(images, SHAPE[-2:]).sum(-1).repeat(1, SHAPE[0])  # [images, elements of the filters]
    with torch.no_grad():
        squares = (y - factors @ law.mean.flatten()) ** 2 + factors**2 @ law.variance.flatten()
        likelihood = -0.5 * (squares / NOISE**2 + math.log(2 * math.pi * NOISE**2)).sum()
        truth = kl_divergence(law, prior(SHAPE).base_dist).sum() - likelihood
    particles = {
        "num_particles": 100 if vectorize else 10,
        "vectorize_particles": vectorize,
        "max_plate_nesting": 1,
    }
    assert_mean(losses(model, guide, guide.elbo(**particles), 20, images, y), truth)


@pytest.mark.slow
def test_multiplied_filters_have_the_loss_of_drawn_networks(images_and_y):
    model = sum_of_positions(spike_slab)
    guide = AutoMNF(model, init_scale=1.0)
    guide.setup(*images_and_y)
    svi = SVI(model, guide, guide.optimizer(), guide.elbo())
    drawn = torch.tensor([svi.evaluate_loss(*images_and_y) for _ in range(1000)], dtype=torch.float64)
    assert_same_mean(losses(model, guide, guide.elbo(), 1000, *images_and_y), drawn)
