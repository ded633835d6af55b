"""The layout of the posteriordb sets agrees with their Stan models: the reference draws fit the data as laid
out.
"""

from __future__ import annotations

import numpy as np
import pytest

from data_loaders import list_datasets, load

NAMES = [name for name in list_datasets() if name.startswith("posteriordb_")]


@pytest.mark.parametrize("name", NAMES)
def test_reference_draws_match_the_columns(name, mirror):
    data = load(name)
    draws, parameters = data.extras["draws"], data.extras["param_names"]
    assert draws.shape == (10, 1000, data.num_features + 1)
    assert len(parameters) == data.num_features + 1
    assert parameters[-1] == "sigma"
    place = data.feature_names.index("intercept") if "intercept" in data.feature_names else None
    if "Intercept" in parameters:
        assert parameters[place] == "Intercept"
    assert any(key.startswith("data_") for key in data.extras)


def _prior_precision(name, features):
    """Of the coefficients; the priors of the other models are flat, and that of the diamonds intercept is
    nearly so.
    """
    if "sblr" in name:
        return np.full(features, 0.01)
    return np.array([1.0] * (features - 1) + [0.0]) if "diamonds" in name else np.zeros(features)


@pytest.mark.parametrize("name", NAMES)
def test_reference_draws_are_centred_on_the_penalised_least_squares_fit(name, mirror):
    data = load(name)
    x, y, sigma = data.x_train, data.y_train, data.extras["draws"][..., -1]
    coefficients = data.extras["draws"][..., :-1].reshape(-1, data.num_features)
    penalty = np.diag(_prior_precision(name, data.num_features)) * sigma.mean() ** 2
    centre = np.linalg.solve(x.T @ x + penalty, x.T @ y)
    distance = np.abs(coefficients.mean(0) - centre) / coefficients.std(0)
    assert distance.max() < 0.1
    residual = y - x @ centre
    sd = np.sqrt((residual**2).sum() / (len(residual) - data.num_features))
    assert abs(sigma.mean() - sd) < sigma.std()


def test_height_is_standardised_with_the_sample_sd(mirror):
    data = load("posteriordb_logearn_interaction")
    z = data.x_train[:, data.feature_names.index("z_height")]
    assert z.mean() == pytest.approx(0, abs=1e-12)
    assert z.std(ddof=1) == pytest.approx(1, rel=1e-12)
