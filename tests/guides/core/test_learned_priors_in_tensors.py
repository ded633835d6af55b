"""Empirical Bayes of priors that are written as tensors, in plates, or hang on other sites."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import AutoMeanField, AutoSpikeSlab, SpikeSlab
from guides.core.learned_priors import Learned, LearnedPriors
from guides.testing import NOISE, fit


def tensor_prior(family, loc, scale):
    """A prior that is written as a tensor, of weights of three columns."""

    def model(x, y=None):
        w = pyro.sample("w", family(loc, scale).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    return model


def spikes(loc, scale):
    return SpikeSlab(torch.full_like(loc, 0.5), loc, scale)


@pytest.mark.parametrize(
    ("make", "family"), [(AutoMeanField, dist.Normal), (AutoSpikeSlab, spikes)], ids=["normal", "spikes"]
)
def test_equal_numbers_in_a_tensor_are_one_prior(make, family):
    """As ``expand`` leaves them: the same numbers are learned."""
    x, y = torch.randn(20, 3), torch.randn(20)
    found = []
    for loc in (torch.zeros(3), torch.zeros(()).expand(3)):
        model = tensor_prior(family, loc, torch.ones_like(loc))
        guide = make(model, empirical_bayes=True)
        torch.manual_seed(0)
        fit(model, guide, x, y, steps=1, lr=0.01)
        found.append(guide.learned_priors.numbers["w"])
    assert found[0].scale == pytest.approx(found[1].scale, rel=1e-6) != pytest.approx(1.0)
    assert found[0].inclusion == found[1].inclusion


@pytest.mark.parametrize(("loc", "scale"), [([0.0, 0.0, 1.0], [1.0] * 3), ([0.0] * 3, [1.0, 1.0, 2.0])])
def test_to_learn_nothing_is_told(loc, scale):
    """Three priors for three weights are the model's own choice."""
    x, y = torch.randn(20, 3), torch.randn(20)
    model = tensor_prior(dist.Normal, torch.tensor(loc), torch.tensor(scale))
    guide = AutoMeanField(model, empirical_bayes=True)
    with pytest.warns(UserWarning, match="learns nothing: none of 'w' .*expand"):
        fit(model, guide, x, y, steps=1, lr=0.01)
    assert not guide.learned_priors.numbers


def test_rates_whose_product_is_no_probability_stay_inside_zero_and_one():
    """Where row and column are both almost full, ``r_i c_j`` is 1.8; a row that is gone has 0."""
    learned = Learned(0.5, 0.5, outputs=(1.9, 0.1, 0.0), inputs=(1.9, 0.1))
    law = learned.prior(SpikeSlab(0.3, 0.0, 1.0).expand([3, 2]).to_event(2)).base_dist
    expected = torch.tensor([[1 - 1e-6, 0.095], [0.095, 0.005], [1e-6, 1e-6]])
    torch.testing.assert_close(law.logits, expected.double().logit().float(), rtol=0, atol=0.1)
    torch.testing.assert_close(law.probs, expected)
    assert law.log_prob(torch.zeros(3, 2)).isfinite().all()


def test_a_learned_prior_has_the_shape_of_the_models_own_in_every_run():
    """Under particles the model's has more dimensions, and by turns."""
    priors = LearnedPriors(numbers={"w": Learned(0.5)})
    for batch in ([], [5, 1], []):
        own = dist.Normal(torch.zeros(*batch, 3, 4), 1.0).to_event(2)
        made = priors.prior("w", own)
        assert (made.batch_shape, made.event_shape) == (own.batch_shape, own.event_shape)
        assert (made.base_dist.scale == 0.5).all()


def test_a_learned_prior_has_the_precision_of_the_models_own_in_every_run():
    priors = LearnedPriors(numbers={"w": Learned(0.5)})
    for dtype in (torch.float32, torch.float64, torch.float32):
        made = priors.prior("w", dist.Normal(torch.zeros(3, dtype=dtype), 1.0).to_event(1))
        assert made.sample().dtype == made.base_dist.scale.dtype == dtype


def of_weights(law):
    """A model of three weights in a plate or not, whose law may depend on another site."""

    def model(x, y=None):
        precision = pyro.sample("precision", dist.Gamma(6.0, 6.0))
        w = law(precision)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    return model


def in_a_plate(precision):
    with pyro.plate("columns", 3):
        return pyro.sample("w", dist.Normal(torch.zeros(3), 1.0))


def of_a_site(precision):
    return pyro.sample("w", dist.Normal(torch.zeros(3), precision.rsqrt() * torch.ones(3)).to_event(1))


@pytest.mark.parametrize("law", [in_a_plate, of_a_site])
def test_equal_numbers_that_are_no_prior_of_a_layer_are_left_alone(law):
    """And it is told once, before the first update."""
    model, x, y = of_weights(law), torch.randn(20, 3), torch.randn(20)
    guide = AutoMeanField(model, empirical_bayes=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(model, guide, x, y, steps=3, lr=0.01)
    assert [str(warning.message)[:30] for warning in told] == ["empirical_bayes learns nothing"]
    assert not guide.learned_priors.numbers
