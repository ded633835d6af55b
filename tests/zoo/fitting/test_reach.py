"""How far a fit can go, and whether it has arrived: by hand, and on fits that were stopped on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from guides.core.settling import LAST, LAST_OF_HALF_COSINE
from guides.core.svi import half_cosine
from zoo.fitting.reach import HIGHEST_RATE, REACHES, last_change, own_rates
from zoo.fitting.svi import FitSettings, default_learning_rate


def cosine(lr: float, steps: int) -> list[float]:
    return [half_cosine(lr, step, steps) for step in range(steps)]


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("steps", [200, 1000, 6000, 12_000, 150_000])
def test_every_kind_of_parameter_has_its_reach_where_the_highest_rate_allows_it(steps, times):
    """The sum of all learning rates, counted step by step."""
    lr = 1e-3
    for name, factor in own_rates(lr, steps, times).items():
        reach = sum(cosine(lr * factor, steps))
        assert factor >= 1
        assert reach > 0.999 * min(times * REACHES[name], HIGHEST_RATE * steps / 2)


@pytest.mark.parametrize("steps", [2000, 10_000])
def test_budgets_of_a_comparison_need_no_rates_of_their_own(steps):
    assert set(own_rates(default_learning_rate(steps), steps).values()) == {1.0}


def test_last_tenth_is_counted_in_learning_rates():
    """Nine tenths of a half cosine's rates are in the first 59.5 % of its steps; 50 steps stand for it."""
    steps = 1000
    losses = [100.0 if step < 625 else 90.0 for step in range(steps)]
    found = last_change(losses, cosine(0.1, steps))
    assert (found.value, found.se) == pytest.approx((10.0, 0.0))
    assert last_change(losses, [0.1] * steps).value == 0  # a constant rate: the last 100 steps
    falling = [float(steps - step) for step in range(steps)]
    assert last_change(falling, [0.1] * steps).value == pytest.approx(75, abs=1)  # of windows of 50


def test_where_the_last_tenth_of_a_half_cosine_begins():
    done = np.cumsum(cosine(1.0, 10_000))
    begin = np.searchsorted(done, (1 - LAST) * done[-1]) / 10_000
    assert pytest.approx(begin, abs=0.005) == LAST_OF_HALF_COSINE


def test_last_change_of_few_steps_and_of_noise():
    assert last_change([3.0, 1.0], [1.0, 0.5]).value == pytest.approx(0.0)
    assert last_change([3.0], [1.0]).se is None
    noisy = last_change([math.sin(7.0 * step) for step in range(1000)], cosine(1.0, 1000))
    assert abs(noisy.value) < 3 * noisy.se < 1
    with pytest.raises(ValueError, match="0 losses and 0 learning rates"):
        last_change([], [])


def test_a_fit_that_is_far_from_its_optimum_shows_it():
    """Adam on |w - 5| moves by its learning rate: with a reach of 1 it is on its way, with 12 it is there."""

    def losses(lr: float) -> list[float]:
        w, found = 0.0, []
        for rate in cosine(lr, 100):
            found.append(abs(w - 5))
            w += rate if w < 5 else -rate
        return found

    for reach, expected in ((1, 0.1), (12, 0.0)):
        settings = FitSettings(steps=100, lr=2 * reach / 100)
        assert settings.last_change(losses(settings.lr)).value == pytest.approx(expected, abs=0.05)


def test_error_of_a_change_is_that_of_both_ends():
    """Windows of two steps: 1 and 3 before, 0 and 4 after, whose means are the same."""
    losses = [0.0] * 40
    losses[34], losses[35], losses[39] = 1.0, 3.0, 4.0
    found = last_change(losses, [1.0] * 40)
    assert found.value == 0
    assert found.se == pytest.approx(math.sqrt(2 / 2 + 8 / 2))
