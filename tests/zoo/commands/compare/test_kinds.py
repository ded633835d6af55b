"""Other kinds of data and models, and what is asked of a comparison."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist

import zoo.commands.reference
from guides.posterior.draws import Posterior
from tests.marks import SLOW
from tests.zoo.cli_helpers import (
    ALWAYS,
    files,
    linear_rows,
    run_zoo,
    table_of,
    write_csv,
)
from zoo.commands.comparison import _nuts_or_none, plan
from zoo.errors import UserError
from zoo.fitting.problem import load_problem


@pytest.mark.parametrize("constant", [SLOW(False), True])
@pytest.mark.slow
def test_one_input_gets_bands_even_if_it_is_constant(constant, tmp_path, pictures):
    rows = [[5.0 if constant else a, y] for a, _, y in linear_rows(30)]
    table, out = write_csv(tmp_path / "table.csv", rows, "x,y"), tmp_path / "out"
    options = ["--reference", "none", "--widths", 2, "--guides", "mean-field", "--out", out]
    assert run_zoo("compare", table, *options).exit_code == 0
    assert files(out) == ALWAYS | {"mean-field.nc", "bands.png"}


@pytest.mark.slow
@pytest.mark.parametrize(("data", "classes"), [("breast_cancer", 2), SLOW("digits", 10)])
def test_classes_have_accuracy_and_calibration(data, classes, tmp_path):
    options = ["--reference", "none", "--widths", 3, "--out", tmp_path / "out"]
    assert run_zoo("compare", data, *options).exit_code == 0
    for row in table_of(tmp_path / "out").values():
        assert row["status"] == "ok"
        assert all(row[name] for name in ("log_likelihood", "accuracy", "ece", "elbo"))
        assert not any(row[name] for name in ("rmse", "crps", "coverage_90"))
        assert float(row["log_likelihood"]) > -2 * math.log(classes)


@pytest.mark.slow
def test_model_without_a_second_guide_is_compared_with_the_one_that_applies(tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(30))
    options = ["--model", "pbp-bnn", "--reference", "none", "--widths", 2, "--out", tmp_path / "out"]
    assert run_zoo("compare", table, *options).exit_code == 0
    assert list(table_of(tmp_path / "out")) == ["mean-field"]


@pytest.mark.slow
def test_known_noise_is_given_in_units_of_the_target(tmp_path):
    rows = [[a, b, 100 * y] for a, b, y in linear_rows(40)]
    table = write_csv(tmp_path / "table.csv", rows)
    options = [
        "--reference",
        "none",
        "--guides",
        "mean-field",
        "--noise",
        10,
        "--widths",
        2,
        "--out",
        tmp_path / "out",
    ]
    assert run_zoo("compare", table, *options).exit_code == 0
    scale = load_problem(str(table)).scale
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["options"]["noise_scale"] * scale.y_sd == pytest.approx(10)
    posterior = Posterior.load(tmp_path / "out" / "mean-field.nc", None)
    assert "noise_precision" not in posterior.sites


def test_plan_refuses_before_anything_is_written(tmp_path):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    words = {"model": "bnn", "guides": ["mean-field"], "reference": None, "budget": "quick", "seed": 0}
    for key, value in (("model", "x"), ("guides", ["x"]), ("reference", "exact"), ("budget", "x")):
        with pytest.raises(UserError):
            plan("table", problem, options={}, **{**words, key: value})


@pytest.mark.parametrize(
    ("numbers", "twin", "kind"),
    [(100, False, "nuts"), (101, False, "none"), (2000, True, "nuts"), (2001, True, "none")],
)
def test_nuts_runs_unasked_for_fewer_numbers_where_there_is_no_twin(numbers, twin, kind, tmp_path):
    """Latent ones: neither the target nor rows of a minibatch count."""

    def model(x, y=None):
        pyro.sample("w", dist.Normal(torch.zeros(numbers), 1.0).to_event(1))
        with pyro.plate("data", 5, subsample_size=1):
            pyro.sample("y", dist.Normal(torch.zeros(1), 1.0), obs=y)

    if twin:
        model.twin = model
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    found, remark = _nuts_or_none(SimpleNamespace(build=lambda shape, options: model), problem, {})
    most = 2000 if twin else 100
    words = (
        f"no reference: NUTS over {numbers} numbers (more than {most}) would take hours; --reference nuts "
    )
    assert (found, remark) == (kind, "" if kind == "nuts" else f"{words}insists")


def test_draws_that_are_not_finite_are_saved_without_replicates(tmp_path):
    problem = load_problem(str(write_csv(tmp_path / "table.csv", linear_rows(30))))
    words = {"model": "spike-slab-linear", "guides": ["spike-slab"], "reference": "none", "budget": "quick"}
    comparison = plan("table", problem, options={}, seed=0, **words)
    draws = {"w": torch.randn(1, 5, 2), "noise_precision": torch.ones(1, 5)}
    draws["w"][0, 3, 1] = math.nan
    posterior, idata = Posterior(comparison.build(comparison.entry), draws), object()
    assert comparison._with_groups(idata, posterior, "some") is idata


def test_the_gates_look_at_the_precisions_too(monkeypatch, tmp_path):
    seen = []

    def look(twin, args, *, function, **settings):
        draws = {"w1": np.zeros((4, 3, 2)), "b1": np.zeros((4, 3)), "w2": np.zeros((4, 1, 3))}
        draws |= {"b2": np.zeros((4, 1)), "noise_precision": np.array([1.0, 2.0, 3.0, 4.0])}
        seen.append(function({name: value.astype(np.float32) for name, value in draws.items()}))
        raise ValueError("seen")

    monkeypatch.setattr(zoo.commands.reference, "nuts", look)
    table = write_csv(tmp_path / "table.csv", linear_rows(40))
    problem = load_problem(str(table))
    options = {"widths": (3,)}
    comparison = plan(
        "t", problem, model="bnn", guides=[], reference="nuts", budget="quick", seed=0, options=options
    )
    assert zoo.commands.reference.reference_posterior(comparison, tmp_path).status == "failed: seen"
    assert seen[0].shape == (4, len(problem.x_test) + 1)
    np.testing.assert_array_equal(seen[0][:, -1], [1, 2, 3, 4])
