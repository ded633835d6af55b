"""Standardising and its way back."""

from __future__ import annotations

import dataclasses
import json

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from data_loaders import DataError, Dataset, Standardizer, load

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
TABLES = arrays.arrays(
    np.float64, arrays.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=8), elements=NUMBERS
)


@given(TABLES, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_round_trip(table, random):
    x, y = table[:, :-1], table[:, -1]
    assume(np.ptp(y) > 1e-3)
    scale = Standardizer.fit(x, y)
    z = scale.transform_y(y)
    np.testing.assert_allclose(scale.inverse_mean(z), y, atol=1e-8, rtol=1e-9)
    assert abs(z.mean()) < 1e-4
    assert z.std() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(scale.transform_x(x) * scale.x_sd + scale.x_mean, x, atol=1e-8, rtol=1e-9)
    sd = random.uniform(0.1, 3)
    np.testing.assert_allclose(scale.inverse_sd(sd) ** 2, scale.inverse_variance(sd**2))
    again = Standardizer.from_dict(json.loads(json.dumps(scale.to_dict())))
    np.testing.assert_array_equal(again.transform_x(x), scale.transform_x(x))
    assert (again.y_mean, again.y_sd) == (scale.y_mean, scale.y_sd)


def test_numbers_by_hand():
    scale = Standardizer.fit(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([10.0, 20.0]))
    np.testing.assert_array_equal(scale.x_mean, [2, 5])
    np.testing.assert_array_equal(scale.x_sd, [1, 1])
    assert (scale.y_mean, scale.y_sd) == (15, 5)
    np.testing.assert_array_equal(scale.transform_x(np.array([[4.0, 7.0]])), [[2, 2]])
    assert scale.inverse_mean(np.array([2.0])).item() == 25
    assert scale.inverse_sd(np.array([2.0])).item() == 10
    assert scale.inverse_variance(np.array([2.0])).item() == 50


@pytest.mark.parametrize("value", [0.0, 0.1, 288.0, -1e9, 1e-300])
def test_constant_columns_become_zero(value):
    x = np.column_stack([np.full(1001, value), np.arange(1001.0)])
    scale = Standardizer.fit(x)
    assert scale.x_sd[0] == 1
    assert np.abs(scale.transform_x(x)[:, 0]).max() <= 1e-12 * max(abs(value), 1)


@pytest.mark.parametrize(("mean", "sd"), [(1.0, 1.0), (0.0, 2.0)])
def test_numbers_of_single_precision_are_moved_by_a_mean_or_an_sd_alone(mean, sd):
    scale = Standardizer(np.array([mean]), np.array([sd]), 0.0, 1.0)
    found = scale.transform_x(np.array([[5.0]], dtype=np.float32))
    assert (found.item(), found.dtype) == ((5 - mean) / sd, np.float64)


def test_columns_that_are_constant_up_to_rounding():
    x = np.full((1001, 1), 0.1) * (1 + 1e-16 * np.arange(1001))[:, None]
    x[::2] = np.nextafter(0.1, 1)
    assert np.ptp(x) > 0
    assert Standardizer.fit(x).x_sd[0] == 1


def test_large_numbers_whose_spread_may_be_rounding_are_refused():
    """Times in nanoseconds, a microsecond apart: taken for constant they would keep their units."""
    times = 1.7e18 + 1000.0 * np.arange(80)
    x = np.column_stack([np.arange(80.0), times])
    message = "goes from 1.7e\\+18 to 1.7000000000000791e\\+18, .* subtract 1.7e\\+18 from them"
    with pytest.raises(DataError, match=f"^column 'time' {message}"):
        Standardizer.fit(x, names=["a", "time"])
    with pytest.raises(DataError, match=f"^the training target {message}"):
        Standardizer.fit(x[:, :1], times)
    less = np.column_stack([np.arange(80.0), times - times[0]])
    assert np.abs(Standardizer.fit(less).transform_x(less)).max() < 2


def test_small_but_real_variation_is_kept():
    x = 1e3 + 1e-6 * np.arange(10.0)[:, None]
    assert Standardizer.fit(x).x_sd[0] == pytest.approx(2.87e-6, rel=1e-2)


def test_constant_columns_of_a_real_set(mirror):
    data = load("naval")
    z = Standardizer.fit(data.x_train, data.y_train).transform_x(data.x_test)
    assert np.isfinite(z).all()
    assert np.abs(z[:, [8, 11]]).max() < 1e-9
    assert np.abs(z).max() < 10


def test_class_labels_are_left_alone():
    labels = np.array([0, 1, 2, 1])
    scale = Standardizer.fit(np.arange(8.0).reshape(4, 2), labels, task="multiclass")
    np.testing.assert_array_equal(scale.transform_y(labels), labels)
    assert (scale.y_mean, scale.y_sd) == (0, 1)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.zeros((3, 1)), np.full(3, 0.1), "constant"),
        (np.zeros((1, 1)), np.ones(1), "constant"),
        (np.zeros((0, 2)), np.zeros(0), "n >= 1"),
        (np.zeros(3), np.zeros(3), "shape"),
        (np.zeros((3, 1)), np.zeros((3, 1)), "shape"),
        (np.array([[np.nan], [1.0]]), np.arange(2.0), "missing value"),
        (np.zeros((2, 1)), np.array([1.0, np.inf]), "infinity"),
        (np.array([[1e300], [-1e300]]), np.arange(2.0), "too large"),
    ],
)
def test_what_cannot_be_standardised(x, y, says):
    with pytest.raises(DataError, match=says):
        Standardizer.fit(x, y)


def test_wrong_number_of_columns():
    with pytest.raises(DataError, match="shape \\[m, 2\\], not \\[4, 3\\]"):
        Standardizer.fit(np.arange(6.0).reshape(3, 2)).transform_x(np.zeros((4, 3)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y_sd": 0.0}, "not positive"),
        ({"x_sd": [1.0, -1.0]}, "not positive"),
        ({"y_mean": float("nan")}, "not finite"),
        ({"x_mean": [1.0]}, "shapes"),
        ({"x_mean": ["a", "b"]}, "not a number"),
        ({"y_sd": None}, "not a number"),
    ],
)
def test_damaged_saved_standardisation(change, says):
    saved = Standardizer.fit(np.arange(6.0).reshape(3, 2), np.arange(3.0)).to_dict()
    with pytest.raises(DataError, match=says):
        Standardizer.from_dict({**saved, **change})
    del saved["x_sd"]
    with pytest.raises(DataError, match="lacks 'x_sd'"):
        Standardizer.from_dict(saved)


def test_inputs_that_are_scaled_already_are_copied_and_a_number_to_predict_is_no_such_input():
    pixels, labels = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2), np.array([0, 1] * 3)
    images = Dataset("digits", "binary", pixels, labels, pixels[:0], labels[:0], ("a", "b"), "class")
    images = dataclasses.replace(images, prescaled=True)
    scaled = Standardizer.of(images).transform_x(pixels)
    np.testing.assert_array_equal(scaled, pixels)
    assert scaled.dtype == np.float32
    assert not np.shares_memory(scaled, pixels)
    with pytest.raises(DataError, match="digits: a regression target cannot do without standardisation"):
        Standardizer.of(dataclasses.replace(images, task="regression", y_train=labels.astype(float)))
