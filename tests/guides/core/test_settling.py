"""Whether a fit has arrived, at the limits of it."""

from __future__ import annotations

import pytest

from guides.core.settling import still_moving


@pytest.mark.parametrize(
    ("change", "se", "moving"),
    [(0.5, None, False), (0.51, None, True), (1.5, 0.5, False), (1.51, 0.5, True), (-9.0, 0.1, False)],
)
def test_a_fit_still_moves_beyond_half_a_nat_and_two_standard_errors(change, se, moving):
    assert still_moving(change, se) == moving


def test_few_units_need_more_standard_errors():
    assert still_moving(3.0, 0.5)
    assert not still_moving(3.0, 0.5, clear=6.0)
