"""The oracle's rows against what is known of the published sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from data_loaders import LAWS, Dataset
from zoo.evaluation.known_laws import LEAST_SD, oracle_rows, oracles


def drawn(name: str, n: int = 4000) -> Dataset:
    x, y = LAWS[name].draw(n, seed=1)
    empty = np.empty((0, 1)), np.empty(0)
    return Dataset(name, "regression", *empty, x[:, None], y, ("x",), "y")


@pytest.mark.parametrize(("name", "true", "gaussian"), [("bimodal", -2.061, -2.908)])
def test_log_likelihoods_are_those_of_the_laws(name, true, gaussian):
    """Those on the released grid of 801 points."""
    rows = oracle_rows(drawn(name))
    assert [row.method for row in rows] == ["true-law", "best-gaussian"]
    assert rows[0].log_likelihood == pytest.approx(true, abs=0.05)
    assert rows[1].log_likelihood == pytest.approx(gaussian, abs=0.05)
    assert rows[0].crps < rows[1].crps
    assert rows[0].rmse == pytest.approx(rows[1].rmse)


def test_one_branch_is_its_own_best_gaussian():
    true, gaussian = oracle_rows(drawn("heteroscedastic", 300))
    assert true.log_likelihood == pytest.approx(gaussian.log_likelihood)
    law = LAWS["heteroscedastic"]
    x, y = law.draw(300, seed=1)
    assert true.log_likelihood == pytest.approx(law.log_density(x, y).mean())
    assert torch.isfinite(torch.tensor(true.crps))


def test_other_data_have_none():
    x, y = np.zeros((3, 1)), np.zeros(3)
    assert oracle_rows(Dataset("boston", "regression", x, y, x, y, ("x",), "y")) == []
    assert oracle_rows(Dataset("bimodal", "regression", x, y, x[:0], y[:0], ("x",), "y")) == []


def test_where_a_law_has_no_noise_its_sd_is_the_least():
    """At zero, where no distribution of torch has an sd; elsewhere it is the law's own."""
    found = oracles(LAWS["heteroscedastic"], torch.tensor([0.0, 1.0], dtype=torch.float64))
    for predictive in found.values():
        assert predictive.stddev.tolist() == pytest.approx([LEAST_SD, 2 * np.sin(1.0)], rel=1e-6)
        assert predictive.log_prob(torch.tensor([10.0, 10.0], dtype=torch.float64)).isfinite().all()
