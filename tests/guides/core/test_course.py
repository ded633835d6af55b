"""The course of a fit: rates, the weight of the divergence, and when it stops."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from guides.core.course import Course
from guides.core.settling import UnsettledWarning
from guides.core.svi import DivergenceError, half_cosine


def test_the_weight_of_the_divergence_rises_to_one():
    """By the same piece every step, the last of the warm-up at 1; without one it is 1 at once."""
    assert [Course(10, 0.1, 0.4, 0, None).weight(step) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [Course(4, 0.1, 1.0, 0, None).weight(step) for step in range(4)] == [0.25, 0.5, 0.75, 1]
    assert Course(10, 0.1, 0.0, 0, None).weight(0) == 1


def test_every_parameter_has_its_rate():
    """Adam's first step is as long as the rate, whatever the gradient is: of an own one, and of the rest."""
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    fixed = nn.Parameter(torch.ones(1), requires_grad=False)
    course = Course(1, 0.1, 0.0, 0, None)
    found = course.run(
        [first, second, fixed],
        itertools.repeat(()),
        lambda batch, weight: (3 * first + 5 * second + fixed).sum(),
        own_rates={second: 0.02},
    )
    assert list(found) == [9.0]
    assert [p.item() for p in (first, second, fixed)] == pytest.approx([0.9, 0.98, 1.0], abs=1e-6)


def test_rates_fall_as_half_a_cosine_each_from_its_own():
    """Of a constant gradient every step of Adam is as long as its rate."""
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    course, ways = Course(4, 0.1, 0.0, 0, None), []
    run = course.run(
        [first, second], itertools.repeat(()), lambda *_: -(first + second).sum(), own_rates={second: 0.02}
    )
    for _ in run:
        ways.append((first.item(), second.item()))
    reached = [sum(half_cosine(1.0, step, 4) for step in range(n + 1)) for n in range(4)]
    for (a, b), way in zip(ways, reached, strict=True):
        assert (a, b) == pytest.approx((0.1 * way, 0.02 * way), rel=1e-5)


def test_a_last_step_that_breaks_a_parameter_is_no_fit():
    """No loss follows that could show it."""
    p = nn.Parameter(torch.ones(1))
    with pytest.raises(DivergenceError, match="step 0: it leaves numbers that are not finite"):
        list(Course(1, 0.1, 0.0, 0, None).run([p], itertools.repeat(()), lambda *_: (p - 1).sqrt().sum()))


def test_any_parameter_that_a_last_step_breaks_is_no_fit():
    whole, broken = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))
    course = Course(1, 0.1, 0.0, 0, None)
    with pytest.raises(DivergenceError, match="step 0: it leaves numbers that are not finite"):
        list(
            course.run(
                [whole, broken], itertools.repeat(()), lambda *_: whole.sum() + (broken - 1).sqrt().sum()
            )
        )


@pytest.mark.parametrize(
    ("value", "words"),
    [(math.nan, "step 1: the loss is nan; lower the learning rate"), (math.inf, "step 1: the loss is inf")],
)
def test_a_loss_that_is_not_finite_is_the_rates_fault_unless_it_is_the_first(value, words):
    def run(*factors: float):
        p, left = nn.Parameter(torch.ones(1)), iter(factors)
        return list(
            Course(3, 0.1, 0.0, 0, None).run([p], itertools.repeat(()), lambda *_: next(left) * p.sum())
        )

    with pytest.raises(DivergenceError, match=words):
        run(1.0, value)
    with pytest.raises(
        DivergenceError, match="step 0: the loss is .*the data or the start may not be finite"
    ):
        run(value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"lr": math.nan}, "lr must be positive"),
        ({"batch_size": 0}, "batch_size must be a positive whole number, got 0"),
        ({"warm_up": -0.1}, r"warm_up must lie in \[0, 1\], got -0.1"),
        ({"warm_up": 1.1}, r"warm_up must lie in \[0, 1\], got 1.1"),
        ({"warm_up": math.nan}, r"warm_up must lie in \[0, 1\], got nan"),
    ],
)
def test_numbers_that_are_no_course_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Course(**{"steps": 3, "lr": 0.1, "warm_up": 0.5, "seed": 0, "batch_size": None} | change)


def test_what_a_first_step_refuses_is_no_divergence():
    """The arguments are to blame, and later the learning rate."""

    def refuse(steps: int):
        p, count = nn.Parameter(torch.ones(1)), itertools.count()

        def loss(batch, weight):
            if next(count) == steps:
                raise ValueError("no such thing")
            return p.sum()

        list(Course(3, 0.1, 0.0, 0, None).run([p], itertools.repeat(()), loss))

    with pytest.raises(ValueError, match="^no such thing$"):
        refuse(0)
    with pytest.raises(DivergenceError, match="step 1: no such thing; lower the learning rate"):
        refuse(1)


def test_a_loss_that_still_falls_is_a_warning():
    """By what a line without noise falls in the last tenth of the learning, between the middles of the two
    windows of ten steps.
    """
    course = Course(200, 0.1, 0.0, 0, None)
    begin = np.searchsorted(np.cumsum([half_cosine(0.1, i, 200) for i in range(200)]), 0.9 * 10.05)
    fall = 0.1 * (194.5 - (begin - 0.5))
    with pytest.warns(UnsettledWarning, match=f"still fell by {fall:.3g} nats.*more steps"):
        course.warn_unsettled([-0.1 * step for step in range(200)])
    with pytest.warns(UnsettledWarning, match=f"the loss rose by {fall:.3g} nats.*a lower lr"):
        course.warn_unsettled([0.1 * step for step in range(200)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        course.warn_unsettled([-0.005 * step for step in range(200)])  # 0.37 nats
        course.warn_unsettled([0.005 * step for step in range(200)])
        course.warn_unsettled([-0.1 * step + 30 * (-1) ** step for step in range(200)])  # 28 nats of noise
