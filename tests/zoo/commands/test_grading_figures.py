"""Figures of a row of the scoreboard: their unit, and inclusion probabilities of draws with their errors."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch

from guides.posterior import Posterior
from zoo.commands.grading import Graded, Scored, grade, inclusion_of

DRAWS = 200


def line(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def graded(name: str, seed: int, **more) -> Graded:
    w = torch.randn(DRAWS, 2, generator=torch.Generator().manual_seed(seed))
    w[: DRAWS // 4, 0] = 0.0
    return Graded(name, "line", Posterior.from_draws(line, {"w": w}), {}, **more)


def problem(y_sd: float = 1.0) -> SimpleNamespace:
    x = torch.linspace(-1, 1, 10).reshape(5, 2)
    scale = SimpleNamespace(y_sd=y_sd)
    rows = {"x_test": x, "y_test": torch.arange(5.0), "evaluation_points": x}
    return SimpleNamespace(task="regression", scale=scale, **rows)


def test_figures_are_in_the_unit_of_the_target():
    one, three = (grade(Scored(problem(sd), graded("ours", 0)), None) for sd in (1.0, 3.0))
    for name in ("rmse", "rmse_se", "crps", "crps_se"):
        assert three.cell(name) == pytest.approx(3 * one.cell(name))
    assert three.log_likelihood == pytest.approx(one.log_likelihood - math.log(3))


def test_inclusion_of_draws_is_the_share_that_is_not_zero():
    shares, errors = inclusion_of(graded("ours", 0))
    assert shares["w"].tolist() == [0.75, 1.0]
    middle = [(share * DRAWS + 2) / (DRAWS + 4) for share in (0.75, 1.0)]  # never 0: Agresti and Coull
    assert errors["w"].tolist() == pytest.approx([math.sqrt(m * (1 - m) / (DRAWS + 4)) for m in middle])


def test_an_inclusion_error_has_the_errors_of_both():
    """Off by 0.25 in the first of two, right in the second: the error is that of the first over root 2."""
    exact, mcse = torch.tensor([0.5, 1.0]), torch.tensor([0.04, 0.0])
    truth = graded("truth", 1, inclusion={"w": exact}, inclusion_mcse={"w": mcse})
    row = grade(Scored(problem(), graded("ours", 0)), Scored(problem(), truth))
    assert row.ref_pip_rmse == pytest.approx(0.25 / math.sqrt(2))
    ours = inclusion_of(graded("ours", 0))[1]["w"]
    both = math.hypot(ours[0], 0.04)
    assert row.standard_errors["ref_pip_rmse"] == pytest.approx(both / math.sqrt(2))
    assert row.noise_floors["ref_pip_rmse"] == pytest.approx(math.hypot(both, ours[1]) / math.sqrt(2))
