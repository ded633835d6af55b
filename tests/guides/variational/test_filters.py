"""Filters under a guide: what is trained is the bound of drawn networks, sums over positions included."""

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO
from torch.distributions import kl_divergence
from torch.nn import functional as F

from guides import AutoDropout, AutoMeanField, AutoMNF, AutoSpikeSlab
from guides.core.flat_parameters import elementwise_law
from guides.testing import (
    NOISE,
    assert_mean,
    assert_particles_are_runs,
    assert_same_mean,
    loss_and_gradients,
    losses,
    normal,
    perturb,
    spike_slab,
)

SHAPE = [2, 1, 2, 2]
GUIDES = {"mean-field": (AutoMeanField, normal), "spike-slab": (AutoSpikeSlab, spike_slab)}


def sum_of_positions(prior):
    """A model whose outputs sum over all positions and filters: their variance is that of the sums."""

    def model(images, y):
        filters = pyro.sample("filters", prior(SHAPE))
        bias = pyro.sample("bias", normal(SHAPE[:1]))
        f = F.conv2d(images, filters, bias).sum((-3, -2, -1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    return model


@pytest.fixture
def images_and_y():
    torch.manual_seed(1)
    return torch.rand(5, 1, 4, 4), torch.randn(5)


def exact_loss(guide, prior, images, y):
    """Of a Gaussian likelihood it is a matter of mean and variance."""
    patches = F.unfold(images, SHAPE[-2:])
    factors = {  # of every element, in the sum over positions and filters
        "filters": patches.sum(-1).repeat(1, SHAPE[0]),
        "bias": torch.full((len(images), SHAPE[0]), float(patches.shape[-1])),
    }
    views = guide._views(**dict(guide.named_parameters()))  # ``site_distribution`` detaches
    laws = {name: elementwise_law(*views[name]) for name in factors}
    mean = sum(factors[name] @ law.mean.flatten() for name, law in laws.items())
    variance = sum(factors[name] ** 2 @ law.variance.flatten() for name, law in laws.items())
    squares = ((y - mean) ** 2 + variance) / NOISE**2 + math.log(2 * math.pi * NOISE**2)
    priors = {"filters": prior(SHAPE), "bias": normal(SHAPE[:1])}
    kl = sum(kl_divergence(law, priors[name].base_dist).sum() for name, law in laws.items())
    return kl + 0.5 * squares.sum()


@pytest.mark.parametrize(
    ("name", "vectorize"),
    [
        (name, False) if name == "spike-slab" else pytest.param(name, False, marks=pytest.mark.slow)
        for name in GUIDES
    ]
    + [(name, True) for name in GUIDES],
)
def test_loss_and_gradient_are_those_of_drawn_filters(name, vectorize, images_and_y):
    make, prior = GUIDES[name]
    model = sum_of_positions(prior)
    guide = make(model)
    guide.setup(*images_and_y)
    perturb(guide, 0.2)
    loss = exact_loss(guide, prior, *images_and_y)
    loss.backward()
    truth = {"loss": loss.detach()} | {name: p.grad.clone() for name, p in guide.named_parameters()}
    particles = {"num_particles": 100 if vectorize else 10, "vectorize_particles": vectorize}
    elbo = guide.elbo(**particles, max_plate_nesting=1)
    runs = [loss_and_gradients(model, guide, elbo, *images_and_y) for _ in range(20)]
    for part, expected in truth.items():
        assert_mean(torch.stack([run[part] for run in runs]).double(), expected.double())


@pytest.mark.parametrize(("make", "prior"), [*GUIDES.values(), (AutoMNF, normal), (AutoMNF, spike_slab)])
def test_vectorized_particles_are_sequential_ones(make, prior, images_and_y):
    """Loss and gradients, with the same noise; those of ``AutoMNF`` have moments of their own."""
    model = sum_of_positions(prior)
    guide = make(model)
    guide.setup(*images_and_y)
    assert_particles_are_runs(model, guide, Trace_ELBO, *images_and_y)


def test_vectorized_particles_of_filters_that_are_drawn(images_and_y):
    """Two products with one weight, which therefore is drawn."""

    def model(images, y):
        filters = pyro.sample("filters", normal(SHAPE))
        f = F.conv2d(images, filters) + F.conv2d(images.flip(-1), filters)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(f.sum((-3, -2, -1)), NOISE), obs=y)

    guide = AutoMeanField(model)
    guide.setup(*images_and_y)
    assert_particles_are_runs(model, guide, Trace_ELBO, *images_and_y)


@pytest.mark.parametrize("make", [AutoMeanField, AutoMNF])
@pytest.mark.parametrize("layer", [F.conv1d, lambda x, w: F.linear(x, w[..., 0])])
def test_particles_of_a_single_row_are_no_rows(make, layer):
    """The second layer has their dimension in its input; the guide must not set itself up anew for them."""

    def model(x, y):
        w, v = pyro.sample("w", normal([3, 2, 1])), pyro.sample("v", normal([1, 3, 1]))
        f = layer(torch.relu(layer(x, w)), v).squeeze((-1, -2) if x.dim() > 2 else -1)
        with pyro.plate("data", 1):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    x = torch.rand(1, 2, 1) if layer is F.conv1d else torch.rand(1, 2)
    guide = make(model)
    guide.setup(x, torch.randn(1))
    assert_particles_are_runs(model, guide, Trace_ELBO, x, torch.randn(1))


@pytest.mark.slow
def test_multiplied_filters_have_the_loss_of_drawn_networks(images_and_y):
    model = sum_of_positions(spike_slab)
    guide = AutoMNF(model, init_scale=1.0)
    guide.setup(*images_and_y)
    svi = SVI(model, guide, guide.optimizer(), guide.elbo())
    drawn = torch.tensor([svi.evaluate_loss(*images_and_y) for _ in range(1000)], dtype=torch.float64)
    assert_same_mean(losses(model, guide, guide.elbo(), 1000, *images_and_y), drawn)


def test_dropout_of_filters_has_one_mask_an_input_channel():
    def model(images):
        filters = pyro.sample("filters", normal([4, 3, 5, 5]))
        return F.conv2d(images, filters)

    guide = AutoDropout(model, rate=0.2)
    law = guide(torch.rand(2, 3, 6, 6))["filters"].law
    entropy = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    assert -law.minus_entropy.item() == pytest.approx(3 * entropy, rel=1e-5)
    kept = guide.draws(50, seed=0)["filters"] != 0
    assert (kept == kept[:, :1, :, :1, :1]).all()
