"""Figures of the scoreboard against a reference, and their errors."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from guides.posterior import Posterior
from zoo.commands.grading import Graded, _difference, _draw_error

ROWS, COLUMNS, TESTED, DRAWS, REPEATS = 30, 5, 300, 400, 40


def line(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(COLUMNS), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_two_samples_of_one_posterior_are_seldom_told_apart():
    """Many test rows, which all share the draws: these are what likelihoods differ by.  An error over rows
    alone is beyond 2 in seven of ten repeats.
    """
    torch.manual_seed(0)
    x, more = torch.randn(ROWS, COLUMNS), torch.randn(TESTED, COLUMNS)
    w = torch.randn(COLUMNS)
    y, seen = x @ w + torch.randn(ROWS), more @ w + torch.randn(TESTED)
    precision = torch.eye(COLUMNS) + x.T @ x
    law = dist.MultivariateNormal(torch.linalg.solve(precision, x.T @ y), precision_matrix=precision)
    problem = SimpleNamespace(has_target=True, x_test=more, y_test=seen)
    found = []
    for _ in range(REPEATS):
        ours, truth = (
            Graded(name, "line", Posterior.from_draws(line, {"w": law.sample((DRAWS,))}), {})
            for name in ("ours", "truth")
        )
        found.append(_difference(problem, ours, truth)["ref_log_likelihood"])
    far = sum(abs(one.value) > 2 * one.se for one in found)
    assert far / REPEATS < 0.05 + 4 * math.sqrt(0.05 * 0.95 / REPEATS)
    # nor is the error too large by more than the row part, which counts some of it twice, and chance
    scatter, claimed = np.std([one.value for one in found], ddof=1), np.mean([one.se for one in found])
    assert scatter / claimed > 1 / 1.5 - 4 / math.sqrt(2 * (REPEATS - 1))


def test_a_spike_beside_a_slab_is_no_draw():
    """The predictive distribution of messages has two components and no draws; one of drawn functions has
    their errors.
    """
    parts = Normal(torch.tensor([[0.0, 1.0]] * 3), torch.tensor([[0.5, 1.0]] * 3))
    problem = SimpleNamespace(x_test=torch.zeros(3, 1), y_test=torch.zeros(3))

    def error(*weights: float) -> float:
        law = MixtureSameFamily(Categorical(torch.tensor([weights] * 3)), parts)
        closed_form = SimpleNamespace(predictive=lambda x: law)
        return _draw_error(problem, Graded("ours", "line", None, {}, closed_form=closed_form))

    assert error(1e-30, 1.0) == 0
    assert error(0.5, 0.5) > 0.1
