"""The one-dimensional problems follow the laws they are said to follow."""

from __future__ import annotations

import numpy as np
import pytest

from data_loaders import (
    LAWS,
    DataError,
    generate_bimodal,
    generate_heteroscedastic,
    generate_piecewise,
    load,
)

GENERATORS = {
    "bimodal": generate_bimodal,
    "heteroscedastic": generate_heteroscedastic,
    "piecewise": generate_piecewise,
}


@pytest.mark.parametrize("name", GENERATORS)
def test_moments_of_generated_points(name):
    data = GENERATORS[name](20_000, seed=3)
    sd = data.extras["true_sd_train"]
    z = (data.y_train - data.extras["true_mean_train"])[sd > 1e-3] / sd[sd > 1e-3]
    assert abs(z.mean()) < 5 / np.sqrt(len(z))
    assert (z**2).mean() == pytest.approx(1, abs=0.06)
    law = LAWS[name]
    assert law.low <= data.x_train.min() < law.low + 0.01
    assert law.high - 0.01 < data.x_train.max() <= law.high
    assert data.x_test.shape == (0, 1)


@pytest.mark.parametrize("name", GENERATORS)
def test_density_integrates_to_one_and_has_the_moments(name):
    law, y = LAWS[name], np.linspace(-40, 60, 200_001)
    for x in (-2.3, 0.7, 2.0):
        density = np.exp(law.log_density(np.full(y.shape, x), y))
        step = y[1] - y[0]
        mean = (density * y).sum() * step
        assert density.sum() * step == pytest.approx(1, abs=1e-6)
        assert mean == pytest.approx(law.mean(np.array([x])).item(), abs=1e-6)
        variance = (density * (y - mean) ** 2).sum() * step
        assert np.sqrt(variance) == pytest.approx(law.sd(np.array([x])).item(), abs=1e-6)


def test_laws_by_hand():
    x = np.array([-1.0, 0.5, 2.0])
    np.testing.assert_allclose(LAWS["piecewise"].mean(x), [10, 10 + 10 * np.sin(0.5), 10 + 10 * np.sin(2.0)])
    np.testing.assert_allclose(LAWS["piecewise"].sd(x), 2)
    np.testing.assert_allclose(LAWS["heteroscedastic"].mean(x), 7 * np.sin(x) + 10)
    np.testing.assert_allclose(LAWS["heteroscedastic"].sd(x), 2 * np.abs(np.sin(x)))
    np.testing.assert_allclose(LAWS["bimodal"].mean(x), 5 * (np.cos(x - 0.5) + np.sin(x - 0.5)))
    gap = 10 * (np.cos(x - 0.5) - np.sin(x - 0.5))
    np.testing.assert_allclose(LAWS["bimodal"].sd(x), np.sqrt(1 + gap**2 / 4))


def test_density_where_the_noise_vanishes():
    law = LAWS["heteroscedastic"]
    np.testing.assert_array_equal(law.log_density(np.zeros(2), np.array([10.0, 11.0])), [np.inf, -np.inf])


@pytest.mark.parametrize("name", GENERATORS)
def test_seeds(name):
    first, again, other = (GENERATORS[name](50, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.y_train, again.y_train)
    assert not np.array_equal(first.y_train, other.y_train)
    with pytest.raises(DataError, match="cannot draw 0 points"):
        GENERATORS[name](0)


@pytest.mark.parametrize("name", ["bimodal", "heteroscedastic"])
def test_released_points_follow_the_law(name, mirror):
    data = load(name, protocol="whole")
    mean, sd = data.extras["true_mean_train"], data.extras["true_sd_train"]
    keep = sd > 1e-2
    z = ((data.y_train - mean) / sd)[keep]
    assert abs(z.mean()) < 4 / np.sqrt(len(z))
    assert (z**2).mean() == pytest.approx(1, abs=3 * np.sqrt(2 / len(z)))  # Var[z^2] = 2
    grid = data.extras["x_grid"]
    assert grid.shape == (801, 1)
    mean, sd = data.extras["true_mean_grid"], data.extras["true_sd_grid"]
    keep = sd > 1e-2
    z = (data.extras["y_grid"] - mean)[keep] / sd[keep]
    assert abs(z.mean()) < 4 / np.sqrt(len(z))
    assert (z**2).mean() == pytest.approx(1, abs=3 * np.sqrt(2 / len(z)))


def test_true_moments_are_split_with_the_rows(no_mirror):
    data = load("piecewise", split=2)
    law = LAWS["piecewise"]
    np.testing.assert_array_equal(data.extras["true_mean_test"], law.mean(data.x_test[:, 0]))
    np.testing.assert_array_equal(data.extras["true_sd_train"], law.sd(data.x_train[:, 0]))
    assert (len(data.y_train), len(data.y_test)) == (900, 100)


def test_snelson_grid(mirror):
    data = load("snelson")
    assert data.extras["x_grid"].shape == (301, 1)
    assert (data.x_train.shape, data.x_test.shape) == ((180, 1), (20, 1))
