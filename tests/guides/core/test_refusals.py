"""What a guide cannot do right it refuses by name."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from torch.utils.checkpoint import checkpoint

from guides import (
    AutoConcreteDropout,
    AutoGroupNormalJeffreys,
    AutoMeanField,
    AutoSpikeSlabMVN,
    Horseshoe,
    PathwiseGradientError,
    UnsupportedSiteError,
)


def test_a_support_that_depends_on_another_site_is_drawn_by_running_the_model_only():
    def model():
        upper = pyro.sample("upper", dist.Gamma(5.0, 1.0))
        pyro.sample("inside", dist.Uniform(0.0, upper))

    guide = AutoMeanField(model)
    SVI(model, guide, guide.optimizer(0.01), guide.elbo()).step()
    values = {"upper": torch.ones(2), "inside": torch.full((2,), 0.5)}
    for question in (lambda: guide.draws(3), guide.median, lambda: guide.log_prob(values)):
        with pytest.raises(RuntimeError, match="'inside'.*depends on other latent sites.*Predictive"):
            question()
    draws = Predictive(model, guide=guide, num_samples=50)()
    assert (draws["inside"] <= draws["upper"]).all()


def test_a_layer_inside_a_checkpoint_is_refused():
    """A re-entrant checkpoint runs its function under no_grad: the guide would learn nothing."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            f = checkpoint(lambda x: x @ w, x.requires_grad_(), use_reentrant=True)
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    guide = AutoMeanField(model)
    with pytest.raises(PathwiseGradientError, match="'w'.*no_grad"):
        SVI(model, guide, guide.optimizer(0.01), guide.elbo()).step(torch.randn(5, 3), torch.zeros(5))


def test_a_site_that_is_masked_out_is_refused():
    """Its entropy would be masked with its prior, and its law end at a point."""

    def model(x, y):
        with poutine.mask(mask=False):
            w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(UnsupportedSiteError, match=r"'w' is masked out.*prior\.mask\(False\)"):
        AutoMeanField(model).setup(torch.randn(5, 3), torch.zeros(5))


def test_a_masked_law_is_a_flat_prior():
    """What the refusal above advises; at the exact posterior every draw gives the evidence."""

    def model(y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).mask(False))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    y = torch.tensor([2.0, 3.5, 3.0, 1.0])
    guide = AutoMeanField(model)
    guide.setup(y)
    with torch.no_grad():
        guide.loc.fill_(y.mean())
        guide.log_scale.fill_(-math.log(2.0))
    evidence = -2 * math.log(2 * math.pi) - (y - y.mean()).square().sum() / 2 + math.log(math.pi / 2) / 2
    for elbo in (Trace_ELBO(), TraceMeanField_ELBO()):
        for _ in range(3):
            assert -elbo.loss(model, guide, y) == pytest.approx(evidence.item(), abs=1e-5)


def test_a_guide_that_was_set_up_without_data_is_not_trained_with_them():
    """It has a law of the data, which would be what it predicts."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    x, y = torch.randn(5, 3), torch.zeros(5)
    guide = AutoMeanField(model)
    guide(x)
    for train in (
        lambda: SVI(model, guide, guide.optimizer(0.01), guide.elbo()).step(x, y),
        lambda: guide.setup(x, y),
    ):
        with pytest.raises(ValueError, match="'y' had no data when the guide was set up, .*make a new guide"):
            train()
    SVI(model, guide, guide.optimizer(0.01), guide.elbo()).step(x)  # the prior predictive may be fitted


HALF = torch.arange(6) < 3


@pytest.mark.parametrize(
    "prior",
    [
        dist.Normal(0.0, 1.0),
        dist.LogNormal(0.0, 1.0),
        dist.Dirichlet(torch.ones(2)),
        dist.Normal(torch.zeros(2), 1.0).to_event(1),
        dist.Normal(torch.zeros(6), 1.0).to_event(1),
    ],
)
@pytest.mark.parametrize("mask", [HALF, torch.tensor(False)])
@pytest.mark.parametrize("hide", [[], ["y"]])
def test_a_masked_prior_whose_site_is_looked_at_is_refused(prior, mask, hide):
    """The entropy of the guide's law would be masked with it, and its sd end at zero; of a model in a list
    too, which hides the data.
    """

    def model():
        with pyro.plate("data", 6):
            with poutine.mask(mask=mask):
                pyro.sample("another", dist.Normal(0.0, 1.0))  # at which nothing looks
                w = pyro.sample("w", prior)
            pyro.sample("y", dist.Normal(w.reshape(6, -1)[:, 0], 1.0), obs=torch.zeros(6))

    guide = AutoMeanField(poutine.block(model, hide=hide))
    with pytest.raises(UnsupportedSiteError, match=r"'w' is masked in places.*'y' looks at .*prior\.mask"):
        guide.setup()


def _padded():
    with poutine.mask(mask=HALF):
        w = pyro.sample("w", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(6))


def _padded_sequence():
    with poutine.mask(mask=HALF):
        z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        g = pyro.sample("g", dist.Gamma(z.exp().sum(-1), 1.0))  # drawn by rejection
        pyro.sample("y", dist.Normal(g, 1.0), obs=torch.zeros(6))


def _partly_observed():
    w = pyro.sample("w", dist.Normal(0.0, 1.0), obs=torch.zeros(6), obs_mask=HALF)
    pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(6))


def _all_counts():
    with poutine.mask(mask=torch.ones(6, dtype=torch.bool)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(6))


def _prior_alone():
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([6]).mask(HALF))
    pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(6))


@pytest.mark.parametrize(
    ("model", "numbers"),
    [(_padded, 6), (_padded_sequence, 24), (_partly_observed, 6), (_all_counts, 6), (_prior_alone, 6)],
)
def test_masks_that_hide_nothing_that_counts_are_taken(model, numbers):
    def in_a_plate():
        with pyro.plate("data", 6):
            model()

    guide = AutoMeanField(in_a_plate)
    guide.setup()
    assert len(guide.loc) == numbers


def test_a_mask_wider_than_its_site_hides_none_of_it():
    def model():
        with poutine.mask(mask=HALF):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 6):
            pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(6))

    guide = AutoMeanField(model)
    guide.setup()
    assert len(guide.loc) == 1


def test_the_masks_of_later_minibatches_are_looked_at_too():
    def model(mask):
        with pyro.plate("data", 6):
            with poutine.mask(mask=mask):
                w = pyro.sample("w", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(6))

    guide = AutoMeanField(model)
    svi = SVI(model, guide, guide.optimizer(0.01), guide.elbo())
    svi.step(torch.ones(6, dtype=torch.bool))
    with pytest.raises(UnsupportedSiteError, match="'w' is masked in places"):
        svi.step(HALF)


@pytest.mark.parametrize("there", [lambda w: w < 0.5, lambda w: w > 0.5])  # of 0, which is moved to 1
def test_a_term_that_is_there_for_some_masked_values_alone_looks_at_them(there):
    def model():
        with pyro.plate("data", 6):
            with poutine.mask(mask=HALF):
                w = pyro.sample("w", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.zeros(6))
        if there(w[-1]):
            pyro.factor("low", torch.tensor(1.0))

    guide = AutoMeanField(model, init_loc_fn=lambda site: torch.zeros(6))
    with pytest.raises(UnsupportedSiteError, match="'w' is masked in places.*'low' looks at"):
        guide.setup()


@pytest.mark.parametrize("wrong", [math.inf, math.nan, True])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("init_scale", lambda scale: AutoMeanField(print, init_scale=scale)),
        ("init_spread", lambda scale: AutoSpikeSlabMVN(print, init_spread=scale)),
        ("init_z_scale", lambda scale: AutoGroupNormalJeffreys(print, init_z_scale=scale)),
        ("global_scale", lambda scale: Horseshoe(global_scale=scale)),
        ("temperature", lambda scale: AutoConcreteDropout(print, temperature=scale)),
    ],
)
def test_scales_are_positive_finite_numbers(name, make, wrong):
    with pytest.raises(ValueError, match=f"^{name} must be .*{wrong}$"):
        make(wrong)


def test_a_mean_field_guide_has_no_rates_to_learn():
    with pytest.raises(ValueError, match="^empirical_bayes must be True or False, got 'rates'$"):
        AutoMeanField(print, empirical_bayes="rates")


def test_a_site_that_comes_after_the_set_up_is_refused():
    """It would be drawn from its prior in every step; one that goes does no harm."""

    def model(y, groups=True):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        if groups:
            a = a + pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    guide = AutoMeanField(model)
    svi = SVI(model, guide, guide.optimizer(0.01), guide.elbo())
    svi.step(torch.zeros(5), groups=False)
    with pytest.raises(UnsupportedSiteError, match="'b' was not there when the guide was set up"):
        svi.step(torch.zeros(5))
    guide = AutoMeanField(model)
    svi = SVI(model, guide, guide.optimizer(0.01), guide.elbo())
    for groups in (True, False, True):
        svi.step(torch.zeros(5), groups=groups)
