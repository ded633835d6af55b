"""The cells of the nonparametric posteriors on tiny budgets, and what their declarations promise."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pyro import poutine

from data_loaders import load_density
from guides.posterior.draws import Posterior
from guides.posterior.evaluate import log_joint
from zoo.errors import UserError
from zoo.experiments import Cell
from zoo.experiments.engine.declaration import Record
from zoo.experiments.npl import declared, flows, regressions
from zoo.experiments.npl.declared import EXPERIMENTS

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


@pytest.fixture
def cell(tmp_path):
    """A cell of an experiment with little work."""

    def make(name, dataset, method, setting="default", **changed) -> Cell:
        experiment = BY_NAME[f"npl/{name}"]
        small = {"steps": 3, "hidden": 12, "pseudo": 20, "draws": 5, "naive": 2, "validation": 50}
        options = {key: small.get(key, value) for key, value in experiment.quick.options.items()}
        return Cell(experiment.name, dataset, method, setting, 0, 0, {**options, **changed}, tmp_path)

    return make


def run(place: Cell) -> dict[str, float]:
    """The figures, which are declared and finite."""
    experiment = BY_NAME[place.experiment]
    assert place.combination in set(experiment.combinations())
    figures = experiment.run(place)
    assert set(figures) <= set(experiment.metrics)
    assert all(math.isfinite(value) for value in figures.values())
    return figures


@pytest.mark.parametrize("method", declared.APART)
def test_ways_to_train_a_flow(cell, method):
    figures = run(cell("table-4.2", "mixture-10", method, "1000"))
    assert set(figures) == set(declared.FIGURES)
    assert figures["steps"] == 3
    several = method in ("wlb_shared", "npl_gaussian", "npl_empirical") or "naive" in method
    assert (figures["draws_sd"] > 0) == several
    assert figures["mixture"] >= figures["log_likelihood"] - 1e-6
    assert (figures["mixture"] > figures["log_likelihood"]) == several


@pytest.mark.parametrize("method", ["wlb_zero", "wlb_shared", "npl_gaussian", "npl_empirical"])
def test_the_process_of_a_method(cell, method, monkeypatch):
    asked = []
    monkeypatch.setattr(flows, "shared_bootstrap", lambda *args, **process: asked.append(process))
    place = cell("table-4.2", "mixture-10", method, "1000")
    rows = flows.rows_of(load_density("mixture-10"), 1000, place)
    flows.fit(place, rows, None)
    base = asked[0].pop("base", None)
    assert asked == [
        {"concentration": 100.0, "num_pseudo": 20}
        if method.startswith("npl")
        else {"mean": method == "wlb_shared"}
    ]
    assert (base is not None) == (method == "npl_empirical")
    if base is not None:
        assert base.rows[0] is rows.pool


@pytest.mark.parametrize("setting", ["1", "1-id-cov", "5-bn"])
def test_variants_of_a_flow(cell, setting, monkeypatch):
    monkeypatch.setattr("zoo.fitting.densities.IDENTITY_STEPS", 5)
    monkeypatch.setitem(BY_NAME, "npl/figure-b2", replace(BY_NAME["npl/figure-b2"], datasets=("mixture-10",)))
    run(cell("figure-b2", "mixture-10", "wlb_shared", setting, rows=100))


def test_rows_of_a_trial_are_those_of_all_methods_and_never_in_the_pool(cell):
    data = load_density("mixture-10")
    one, other = (
        flows.rows_of(data, 500, cell("figure-4.2", "mixture-10", m, "500")) for m in ("ml", "npl_empirical")
    )
    assert torch.equal(one.train, other.train)
    assert len(one.pool) == len(data.train) - 500
    np.testing.assert_array_equal(one.validation, np.float32(data.validation[: len(one.validation)]))
    assert not {tuple(row) for row in one.train.tolist()} & {tuple(row) for row in one.pool.tolist()}
    with pytest.raises(UserError, match="too few for 10000 and a pool"):
        flows.rows_of(data, 10_000, cell("figure-4.2", "mixture-10", "ml", "500"))


def test_flows_are_scored_by_test_rows(cell, monkeypatch):
    scored = []
    fitted = SimpleNamespace(figures=lambda x: scored.append(x) or {}, info={"steps": 4})
    monkeypatch.setattr(flows, "fit", lambda *args: fitted)
    assert flows.trained(cell("table-4.2", "mixture-10", "wlb_naive", "1000")) == {"steps": 2}
    np.testing.assert_array_equal(scored[0], np.float32(load_density("mixture-10").test[: len(scored[0])]))
    assert len(scored[0]) >= 5000


def test_clouds_stop_by_rows_of_their_own(cell, monkeypatch):
    class SeenError(Exception):
        pass

    def seen(rows, *args, **kwargs):
        assert len(rows.train) == len(rows.validation) == 100
        assert not set(rows.train[:, 0].tolist()) & set(rows.validation[:, 0].tolist())
        raise SeenError

    monkeypatch.setattr(flows, "maximum_likelihood", seen)
    with pytest.raises(SeenError):
        flows.cloud(cell("figure-4.1", "mixture-2", "ml", "0"))


@pytest.mark.slow
def test_clouds_and_curves_are_drawn(cell, tmp_path):
    records = []
    for method, setting in (("ml", "0"), ("wide", "100")):
        place = cell("figure-4.1", "mixture-2", method, setting)
        folder = tmp_path / method
        folder.mkdir()
        figures = run(replace(place, folder=folder))
        assert figures["below_truth"] > 0
        records.append(Record(place, "ok", figures, 0.0, folder))
    declared.draw_clouds(tmp_path, records)
    assert (tmp_path / "figure-4.1.png").stat().st_size > 1000
    with np.load(tmp_path / "ml" / "cloud.npz") as kept:
        assert kept["samples"].shape == (flows.SHOWN, 2)
    shown = {"log_likelihood": -1.0}
    curves = [
        Record(replace(cell("figure-4.2", "sachs", "ml", n), trial=trial), "ok", shown, 0.0, tmp_path)
        for n in ("500", "1000")
        for trial in (0, 1)
    ]
    declared.draw_curves(tmp_path, curves)
    assert (tmp_path / "figure-4.2.png").stat().st_size > 1000
    kinds = [
        Record(cell("figure-b2", "sachs", method, kind), "ok", shown, 0.0, tmp_path)
        for method, kind in (("ml", "1"), ("wlb_shared", "1"), ("wlb_shared", "5-bn"))
    ]
    declared.draw_variants(tmp_path, kinds)
    assert (tmp_path / "figure-b2.png").stat().st_size > 1000
    declared.draw_clouds(tmp_path / "nowhere", [])


@pytest.mark.parametrize("method", ["mean-field", "bootstrap-mle", "bootstrap-map", "bootstrap-prior"])
def test_networks_beside_nuts(cell, method, monkeypatch):
    """NUTS itself is another module's to test."""
    place = cell("regression", "line", method, width=3, draws=20, elbo_steps=20, steps=5, pseudo=10)
    problem = line()
    monkeypatch.setattr(regressions, "load_problem", lambda data, split: problem)
    model = regressions.BNN(1, widths=(3,))
    sites = [poutine.trace(model).get_trace(problem.x).nodes for _ in range(20)]
    names = ("w1", "b1", "w2", "b2", "noise_precision")
    names = [name for name in sites[0] if name in names]
    truth = Posterior.from_draws(model, {n: torch.stack([s[n]["value"] for s in sites]) for n in names})
    monkeypatch.setattr(regressions, "_reference", lambda *args: truth)
    figures = regressions.network(place)
    assert set(figures) <= set(BY_NAME["npl/regression"].metrics)
    assert figures["ref_w1"] > 0
    assert ("last_tenth" in figures) == method.startswith("bootstrap")


def test_pseudo_observations_of_the_prior_are_a_share_of_the_rows(cell, monkeypatch):
    asked = []
    monkeypatch.setattr(regressions, "PosteriorBootstrap", lambda model, **process: asked.append(process))
    monkeypatch.setattr(regressions, "_bootstrapped", lambda *args: None)
    problem, place = line(), cell("regression", "line", "bootstrap-prior", alpha=0.25)
    regressions._fitted(place, regressions.BNN(1, widths=(3,)), problem)
    assert asked[0]["concentration"] == 0.25 * len(problem.x)
    assert asked[0]["num_pseudo"] == 20


def test_labelled_rows_are_standardised_by_those_of_training():
    x, y, x_test, y_test = regressions._labelled("raisin", 1)
    assert (len(x), len(x_test)) == (len(y), len(y_test)) == (720, 180)
    torch.testing.assert_close(x.mean(0), torch.zeros(x.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(x.shape[1]), atol=1e-3, rtol=0)
    assert x_test.mean(0).abs().max() > 0.01


def line():
    from data_loaders import generate_piecewise
    from zoo.fitting.problem import prepare

    data = generate_piecewise(60)
    return prepare(replace(data, x_test=data.x_train[:10], y_test=data.y_train[:10]))


@pytest.mark.slow
def test_the_heavy_tailed_logistic_regression_is_its_twin():
    import jax
    from numpyro.infer.util import log_density

    model, x = regressions.HeavyLogistic(3), torch.randn(10, 3, dtype=torch.float64)
    y = (x[:, 0] > 0).double()
    draws = {"w": torch.randn(2, 3, dtype=torch.float64), "b": torch.randn(2, dtype=torch.float64)}
    ours = log_joint(model, draws, x, y)
    with jax.enable_x64(True):
        for i in range(2):
            values = {name: value[i].numpy() for name, value in draws.items()}
            theirs, _ = log_density(model.twin, (x.numpy(), y.numpy()), {}, values)
            assert float(theirs) == pytest.approx(ours[i].item(), abs=1e-8)


@pytest.mark.parametrize("method", ["mean-field", "bootstrap-map"])
def test_logistic_regressions(cell, method):
    figures = run(cell("logistic", "raisin", method, elbo_steps=200, steps=40))
    assert figures["accuracy"] > 0.7


@pytest.mark.slow
def test_naive_bootstraps_fall_behind_and_pseudo_observations_help(cell):
    """One trial with the whole effort; the gaps of four are on the results page."""
    found = {}
    for method in ("ml", "wlb_naive", "npl_gaussian", "npl_empirical"):
        options = BY_NAME["npl/table-4.2"].quick.options
        place = replace(
            cell("table-4.2", "mixture-10", method, "1000"), options={**options, "naive": 2, "draws": 50}
        )
        found[method] = run(place)["log_likelihood"]
    assert found["wlb_naive"] < found["ml"] - 0.1
    assert found["npl_gaussian"] > found["ml"] + 0.2
    assert found["npl_empirical"] > found["ml"] + 0.1
