"""Whether a fit has arrived, at the limits of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from guides.core.settling import last_change, still_moving
from guides.core.svi import half_cosine


@pytest.mark.parametrize(
    ("change", "se", "moving"),
    [
        (0.5, None, False),
        (0.51, None, True),
        (math.nan, 0.1, True),
        (1.5, 0.5, False),
        (1.51, 0.5, True),
        (-9.0, 0.1, False),
    ],
)
def test_a_fit_still_moves_beyond_half_a_nat_and_two_standard_errors(change, se, moving):
    assert still_moving(change, se) == moving


def test_few_units_need_more_standard_errors():
    assert still_moving(3.0, 0.5)
    assert not still_moving(3.0, 0.5, clear=6.0)


@pytest.mark.parametrize(("constant", "window"), [(True, slice(92, 97)), (False, slice(60, 65))])
def test_the_last_change_is_between_two_means_with_the_error_of_both(constant, window):
    """Of five steps each, at the end and around the step by which nine tenths of the learning are done: of
    105 at a constant rate number 94; along a half cosine 62, for up to a share u of the steps it is
    ``u + sin(pi u) / pi`` of the whole, 0.9 at u = 0.596.
    """
    losses = np.random.default_rng(0).standard_normal(105)
    rates = [0.3 if constant else half_cosine(0.3, step, 105) for step in range(105)]
    before, after = losses[window], losses[-5:]
    se = ((before.var(ddof=1) + after.var(ddof=1)) / 5) ** 0.5
    assert last_change(losses.tolist(), rates) == pytest.approx((before.mean() - after.mean(), se))


def test_two_steps_at_each_place_have_an_error():
    """Of 40 steps at a constant rate: numbers 34 and 35, and the last two."""
    losses = [0.0] * 34 + [1.0, 3.0, 0.0, 0.0, 0.0, 1.0]
    assert last_change(losses, [0.1] * 40) == pytest.approx((1.5, (2 / 2 + 0.5 / 2) ** 0.5))


def test_the_last_change_of_few_steps_has_no_error():
    assert last_change([3.0, 2.0, 1.5], [0.1] * 3) == (0.0, None)
    with pytest.raises(ValueError, match="2 losses and 3 learning rates"):
        last_change([1.0, 2.0], [0.1] * 3)
