"""What a package does to test its guide, and what that finds in broken ones."""

from __future__ import annotations

import os
import re

import pytest
import torch

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab
from guides.testing import (
    CHECKS,
    Case,
    check_divergence,
    check_gradients,
    check_guide,
    check_posterior,
    check_same_seed,
    check_saving,
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
@pytest.mark.parametrize("make", [AutoSpikeSlab, AutoMNF])
def test_sparse_guides(make):
    check_guide(make, prior=spike_slab)


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


class OneSeed(MyGuide):
    def draws(self, n, seed=None):
        return super().draws(n, seed=7)


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


def test_the_law_that_is_broken_is_named():
    with pytest.raises(AssertionError, match=re.escape("FixedScale, check_posterior: bound")):
        check_guide(FixedScale)


class PrintedVariance(AutoSpikeSlab):
    """``alpha^2 sigma^2``, as in the thesis."""

    def __init__(self, model):
        super().__init__(model, variance="thesis")


@pytest.mark.slow
def test_a_guide_that_is_biased_by_construction_fails_the_posterior_alone():
    case = Case("printed variance", PrintedVariance, spike_slab)
    with pytest.raises(AssertionError, match="bound"):
        check_posterior(case)
    for check in CHECKS:
        if check is not check_posterior:
            check(case)


@pytest.mark.slow
def test_relaxed_indicators_that_are_annealed_reach_the_posterior():
    check_posterior(Case("concrete", lambda model: AutoConcrete(model, anneal_runs=400), spike_slab))
