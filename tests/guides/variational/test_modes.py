"""Where a Gaussian law starts: a mode and the curvature there, of densities that are quadratic or nearly."""

import pytest
import torch

from guides.core.svi import DivergenceError
from guides.variational.modes import FLOOR, HELD, mode_and_precision

CENTRE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
CURVATURE = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, -0.4], [0.5, -0.4, 2.0]], dtype=torch.float64)


def quadratic(w):
    return -0.5 * (w - CENTRE) @ CURVATURE @ (w - CENTRE)


def test_a_quadratic_has_its_own_mode_and_curvature():
    mode, precision = mode_and_precision(quadratic, torch.zeros_like(CENTRE), torch.zeros(3, dtype=bool))
    torch.testing.assert_close(mode, CENTRE, rtol=0, atol=1e-4)  # what L-BFGS leaves of 1e-9 nats
    torch.testing.assert_close(precision, CURVATURE)


def test_what_is_held_stays_and_is_independent_of_the_rest():
    held, start = torch.tensor([False, False, True]), torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64)
    mode, precision = mode_and_precision(quadratic, start, held)
    away = -torch.linalg.solve(CURVATURE[:2, :2], CURVATURE[:2, 2] * (2.0 - CENTRE[2]))
    torch.testing.assert_close(mode, torch.cat([CENTRE[:2] + away, start[2:]]), rtol=0, atol=1e-4)
    expected = CURVATURE.clone()
    expected[2, :2] = expected[:2, 2] = 0.0
    expected[2, 2] = HELD
    torch.testing.assert_close(precision, expected)


@pytest.mark.parametrize("slope", [0.0, 1e-9])
def test_directions_that_are_flat_have_a_little_precision(slope):
    def ridge(w):
        return -0.5 * 3.0 * w[0] ** 2 - slope * w[1] ** 2

    start = torch.tensor([1.0, 0.3], dtype=torch.float64)
    _, precision = mode_and_precision(ridge, start, torch.zeros(2, dtype=bool))
    torch.testing.assert_close(precision.diagonal(), torch.tensor([3.0, 3.0 * FLOOR], dtype=torch.float64))


def test_curvatures_of_numbers_in_other_units_are_kept():
    """A sd of 1 beside one of 1 / 300 is no flat direction."""
    curvature = torch.tensor([9e4, 1.0], dtype=torch.float64)
    start = torch.tensor([0.01, 0.3], dtype=torch.float64)
    _, precision = mode_and_precision(
        lambda w: -0.5 * (curvature * w.square()).sum(), start, torch.zeros(2, dtype=bool)
    )
    torch.testing.assert_close(precision.diagonal(), curvature)


def test_a_curvature_upwards_is_a_flat_direction_and_no_curvature_downwards():
    """At a saddle, where a search that starts on it ends."""
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    _, precision = mode_and_precision(
        lambda w: -1.5 * w[0] ** 2 + 0.5 * w[1] ** 2, start, torch.zeros(2, dtype=bool)
    )
    expected = torch.tensor([3.0, 3.0 * FLOOR], dtype=torch.float64)
    torch.testing.assert_close(precision.diagonal(), expected)


def test_what_is_held_keeps_a_curvature_above_the_least():
    curvature = torch.tensor([3.0, 4 * HELD], dtype=torch.float64)
    start, held = torch.tensor([1.0, 0.3], dtype=torch.float64), torch.tensor([False, True])
    _, precision = mode_and_precision(lambda w: -0.5 * (curvature * w.square()).sum(), start, held)
    torch.testing.assert_close(precision.diagonal(), curvature)


def test_a_search_that_leaves_the_numbers_is_an_error():
    start = torch.tensor([1.0], dtype=torch.float64)
    with pytest.raises(DivergenceError, match="not finite"):
        mode_and_precision(lambda w: (w * torch.nan).sum(), start, torch.zeros(1, dtype=bool))


def test_a_start_on_an_endless_slope_is_an_error():
    """L-BFGS would give up with an index that it does not have."""
    start = torch.tensor([1.0], dtype=torch.float64)
    with pytest.raises(DivergenceError, match="starts where the slope of the log density is not finite"):
        mode_and_precision(lambda w: (w / 0.0).sum(), start, torch.zeros(1, dtype=bool))


def test_a_search_that_ends_beside_the_numbers_is_an_error():
    """Uphill to where the density stops being a number."""
    start = torch.tensor([1.0], dtype=torch.float64)
    with pytest.raises(DivergenceError, match="ends where the log density is not finite"):
        mode_and_precision(lambda w: -(3 - w).sqrt().sum(), start, torch.zeros(1, dtype=bool))
