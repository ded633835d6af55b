"""What a package does to test its guide, and what that finds in broken ones."""

from __future__ import annotations

import os
import re

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer.autoguide import AutoNormal
from scipy.optimize import minimize
from torch.distributions import biject_to

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab, UnsupportedSiteError
from guides.core.laws import TransformedLaw
from guides.core.weight_laws import GaussianLaw
from guides.testing import (
    CHECKS,
    GAP,
    Case,
    assert_variance,
    check_constrained,
    check_divergence,
    check_gradients,
    check_guide,
    check_local_latents,
    check_minibatches,
    check_particles,
    check_posterior,
    check_same_seed,
    check_saving,
    check_training,
    constrained,
    constrained_data,
    constrained_evidence,
    constrained_posterior,
    normal,
    spike_slab,
)


class MyGuide(AutoMeanField):
    """Of another package."""

    def __init__(self, model):
        super().__init__(model, init_scale=0.05)


@pytest.mark.slow
def test_a_guide_of_another_package():
    check_guide(MyGuide)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:draws of AutoMNF are not weighed")
@pytest.mark.parametrize("make", [AutoSpikeSlab, AutoMNF])
def test_sparse_guides(make):
    check_guide(make, prior=spike_slab)


def test_a_variance_is_not_judged_by_few_samples():
    """Of 40 a claim of next to nothing had a z of 4.4 at most."""
    samples = torch.randn(200, generator=torch.Generator().manual_seed(0))
    assert_variance(samples, 1.0)
    with pytest.raises(AssertionError, match="z = "):
        assert_variance(samples, 0.4)
    with pytest.raises(ValueError, match="needs 200 samples or more, got 199"):
        assert_variance(samples[1:], 1.0)


class HalfTheDivergence(MyGuide):
    def __init__(self, model):
        super().__init__(model)
        self.kl_weight = 0.5


class WrongDensity(MyGuide):
    def draws_with_log_prob(self, n, seed=None):
        draws, log_prob = super().draws_with_log_prob(n, seed=seed)
        return draws, log_prob + 0.5


class FixedScale(MyGuide):
    def setup(self, *args, **kwargs):
        super().setup(*args, **kwargs)
        self.log_scale.register_hook(torch.zeros_like)


class OtherEveryTime(MyGuide):
    def setup(self, *args, **kwargs):
        super().setup(*args, **kwargs)
        with torch.no_grad():
            self.loc += torch.rand((), generator=torch.Generator().manual_seed(int.from_bytes(os.urandom(4))))


class ForgetsItsScale(MyGuide):
    def load_state_dict(self, state, *args, **kwargs):
        super().load_state_dict(state, *args, **kwargs)
        with torch.no_grad():
            self.log_scale.zero_()


class CountsItsSteps(MyGuide):
    """What only training looks at."""

    def __init__(self, model):
        super().__init__(model)
        self.register_buffer("steps", torch.zeros(()))

    def __call__(self, *args):
        self.steps += torch.is_grad_enabled()
        return super().__call__(*args)


class ForgetsItsSteps(CountsItsSteps):
    def load_state_dict(self, state, *args, **kwargs):
        state = {name: value for name, value in state.items() if name != "steps"}
        super().load_state_dict(state, strict=False)


class OneSeed(MyGuide):
    def draws(self, n, seed=None):
        return super().draws(n, seed=7)


class LawWithoutJacobian(TransformedLaw):
    """Without the Jacobian of its map, where the divergence is exact and where not."""

    def log_prob(self, value):
        if self.exact:
            return super().log_prob(value)
        unconstrained = dist.Normal(self.loc, self.scale)
        return self._sum_events(unconstrained.log_prob(self.transform.inv(value)))

    @property
    def kl(self):
        return super().kl + self._sum_events(self.loc)


class NoJacobianInTheLoss(MyGuide):
    def get_posterior(self, *args):
        law = super().get_posterior(*args)
        if isinstance(law, TransformedLaw):
            law.__class__ = LawWithoutJacobian
        return law


class NoJacobianInDensities(MyGuide):
    def _log_prob_of_site(self, name, value):
        site = self.sites[name]
        if not site.is_transformed:
            return super()._log_prob_of_site(name, value)
        log_q = self.site_distribution(name).log_prob(self._transform(site).inv(value))
        return log_q.reshape(len(value), -1).sum(-1)


class NoJacobian(NoJacobianInTheLoss, NoJacobianInDensities):
    """Wrong on both sides, and so at one with itself."""


class NoJacobianForGammas(NoJacobian):
    """Right where the divergence has no closed form."""

    def get_posterior(self, *args):
        law = super().get_posterior(*args)
        if isinstance(law, TransformedLaw) and not law.exact:
            law.__class__ = TransformedLaw
        return law

    def _log_prob_of_site(self, name, value):
        guide = super() if self.sites[name].family == "lognormal" else super(NoJacobianInDensities, self)
        return guide._log_prob_of_site(name, value)


class RowsCountOnce(MyGuide):
    """Forgets by what a plate scales the data of a minibatch."""

    def get_traces(self):
        model_trace, guide_trace = super().get_traces()
        own = ("log_prob", "log_prob_sum", "unscaled_log_prob")
        y = {key: value for key, value in model_trace.nodes["y"].items() if key not in own}
        model_trace.nodes["y"] = {**y, "scale": 1.0}
        return model_trace, guide_trace


class DivergenceCountsAsRowsDo(MyGuide):
    def get_traces(self):
        traces = super().get_traces()
        scale = traces[0].nodes["y"]["scale"]
        for trace in traces:
            trace.nodes["w"] = {**trace.nodes["w"], "scale": scale}
        return traces


@pytest.mark.parametrize(
    ("make", "check", "message"),
    [
        (NoJacobianInTheLoss, check_constrained, "z = "),
        (NoJacobianInDensities, check_constrained, "z = "),
        pytest.param(
            NoJacobian, check_constrained, "divergence from the posterior -", marks=pytest.mark.slow
        ),
        (NoJacobianForGammas, check_constrained, "divergence from the posterior -"),
        (RowsCountOnce, check_minibatches, "the rows of a quarter count {1.0} times, not 4"),
        (DivergenceCountsAsRowsDo, check_minibatches, "z = "),
    ],
)
def test_a_term_that_is_left_out_is_found(make, check, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        check(Case("broken", make, normal))


class LocalDivergencesCountOnce(MyGuide):
    """In a minibatch too, whose rows stand for more."""

    def get_traces(self):
        traces = super().get_traces()
        for trace in traces:
            if "z" in trace.nodes:
                trace.nodes["z"] = {**trace.nodes["z"], "scale": 1.0}
        return traces


def of_law(law) -> type[MyGuide]:
    class Guide(MyGuide):
        def _law(self, site):
            return law

    return Guide


class WideLayers(GaussianLaw):
    @property
    def moments_and_kl(self):
        mean, variance, divergence = super().moments_and_kl
        return mean, 1.1 * variance, divergence


class OtherDensity(GaussianLaw):
    def _log_density(self, value):
        return super()._log_density(value) + 0.1


class PlatesCountOnce(GaussianLaw):
    @property
    def kl(self):
        return super().kl / max(1, len(self.batch_shape) and self.batch_shape[-1])


@pytest.mark.parametrize(
    ("make", "check", "message"),
    [
        (LocalDivergencesCountOnce, check_local_latents, "z = "),
        (of_law(WideLayers), check_training, "z = "),
        (of_law(PlatesCountOnce), check_divergence, "z = "),
        pytest.param(of_law(OtherDensity), check_posterior, "times the evidence", marks=pytest.mark.slow),
    ],
)
def test_a_term_that_is_off_is_found(make, check, message):
    with pytest.raises(AssertionError, match=message):
        check(Case("broken", make, normal))


class OneDraw(GaussianLaw):
    """Of the site's own shape, whatever plates are around it."""

    def _draw(self, operation):
        return super()._draw(operation)[(0,) * len(self.leading)].expand(self._full_shape)


class OneDrawOfConstrained(TransformedLaw):
    def rsample(self, sample_shape=()):
        draw = super().rsample(sample_shape)
        return draw[(0,) * len(self.leading)].expand(draw.shape)


class ConstrainedShareADraw(MyGuide):
    def get_posterior(self, *args):
        law = super().get_posterior(*args)
        if isinstance(law, TransformedLaw):
            law.__class__ = OneDrawOfConstrained
        return law


@pytest.mark.parametrize(
    ("make", "sites"),
    [
        (of_law(OneDraw), "w, b, shift"),
        (ConstrainedShareADraw, "rate"),
    ],
)
def test_particles_that_share_a_draw_are_found(make, sites):
    """Losses and gradients have the right means."""
    with pytest.raises(AssertionError, match=f"vectorised particles share one draw of {sites}$"):
        check_particles(Case("broken", make, normal))


def a_function(model):
    """A guide that knows no model."""

    def guide(x, y):
        loc = pyro.param("loc", torch.zeros(3))
        sd = pyro.param("sd", torch.ones(3), constraint=dist.constraints.positive)
        pyro.sample("w", dist.Normal(loc, sd).to_event(1))

    return guide


@pytest.mark.parametrize("make", [pytest.param(AutoNormal, marks=pytest.mark.slow), a_function])
def test_minibatches_of_guides_that_run_no_model(make):
    check_minibatches(Case("other", make))


class NoIntervals(MyGuide):
    def _make_site(self, name, node):
        if isinstance(node["fn"], dist.Beta):
            raise UnsupportedSiteError(f"site {name!r} is a Beta")
        return super()._make_site(name, node)


def test_a_guide_that_refuses_constrained_sites_is_not_checked_there_and_says_why():
    with pytest.warns(UserWarning, match="refusing is not checked.*'share' is a Beta"):
        check_constrained(Case("refusing", NoIntervals))


def test_evidence_and_posterior_of_constrained_sites_are_bayes_rule():
    """The evidence is the same wherever it is asked for, and Gaussians on the real line are near enough."""
    data = constrained_data()
    draws = {name: law.rvs(20, random_state=1) for name, law in constrained_posterior(*data).items()}
    evidence = constrained_evidence(*data)
    for i in range(20):
        z = {name: torch.tensor(values[i], dtype=torch.float64) for name, values in draws.items()}
        joint = pyro.poutine.trace(pyro.condition(constrained, data=z)).get_trace(*data).log_prob_sum()
        log_p = sum(law.logpdf(draws[name][i]) for name, law in constrained_posterior(*data).items())
        assert float(joint) - log_p == pytest.approx(evidence, rel=1e-6)  # single precision
    assert sum(map(_nearest_gaussian, constrained_posterior(*data).values())) < 0.03 < GAP / 4


def _nearest_gaussian(law) -> float:
    """The divergence from the law of that image of a Gaussian which is the nearest."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    constraints = dist.constraints
    to_support = biject_to(constraints.unit_interval if law.support()[1] == 1 else constraints.positive)

    def divergence(parameters) -> float:
        loc, log_scale = parameters
        u = torch.as_tensor(loc + np.exp(log_scale) * nodes)
        z = to_support(u)
        log_p = law.logpdf(z) + to_support.log_abs_det_jacobian(u, z).numpy()
        return -0.5 * np.log(2 * np.pi * np.e) - log_scale - (weights @ log_p) / weights.sum()

    return minimize(divergence, [-1.0, -1.0]).fun


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("make", "check"),
    [
        (HalfTheDivergence, check_divergence),
        (WrongDensity, check_divergence),
        (FixedScale, check_gradients),
        (FixedScale, check_posterior),
        (OtherEveryTime, check_same_seed),
        (ForgetsItsScale, check_saving),
        (OneSeed, check_saving),
    ],
)
def test_a_broken_guide_is_found(make, check):
    with pytest.raises(AssertionError):
        check(Case("broken", make, normal))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (ForgetsItsScale, "loaded, it has other draws of .*w1"),
        (ForgetsItsSteps, "loaded, it has lost the numbers of steps"),
        (OneSeed, "the same draws with another seed"),
    ],
)
def test_what_is_lost_in_saving_is_told(make, words):
    with pytest.raises(AssertionError, match=words):
        check_saving(Case("broken", make, normal))


def test_a_buffer_is_saved_and_loaded():
    """It came back as a parameter that no view of the guide knew."""
    check_saving(Case("counts", CountsItsSteps))


def test_the_law_that_is_broken_is_named():
    with pytest.raises(AssertionError, match=re.escape("FixedScale, check_posterior: bound")):
        check_guide(FixedScale)


class PrintedVariance(AutoSpikeSlab):
    """``alpha^2 sigma^2``, as in the thesis."""

    def __init__(self, model):
        super().__init__(model, variance="thesis")


@pytest.mark.slow
def test_a_guide_that_is_biased_by_construction_fails_in_training_and_misses_the_posterior():
    case = Case("printed variance", PrintedVariance, spike_slab)
    with pytest.raises(AssertionError, match="bound"):
        check_posterior(case)
    with pytest.raises(AssertionError, match="z = "):
        check_training(case)
    for check in CHECKS:
        if check not in (check_posterior, check_training):
            check(case)


@pytest.mark.slow
def test_relaxed_indicators_that_are_annealed_reach_the_posterior():
    check_posterior(Case("concrete", lambda model: AutoConcrete(model, anneal_runs=400), spike_slab))
