"""The cells of the nonparametric posteriors on tiny budgets, and what their declarations promise."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine

from data_loaders import load_density
from guides.bootstrap.base_measures import PredictiveBase
from guides.posterior.draws import Posterior
from guides.posterior.evaluate import log_joint
from zoo.errors import FailedError, UserError
from zoo.experiments import Cell
from zoo.experiments.engine.declaration import Record
from zoo.experiments.npl import declared, flows, plots, regressions
from zoo.experiments.npl.declared import EXPERIMENTS
from zoo.experiments.splits import random_80_20

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


@pytest.mark.one_in(2)
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


@pytest.mark.parametrize("name", ["ml", "ml_mean", "wlb_naive", "wlb_naive_mean"])
def test_what_is_fitted_by_a_method_without_a_process(cell, name, monkeypatch):
    asked = []
    for way in ("maximum_likelihood", "weighted_bootstrap"):
        monkeypatch.setattr(
            flows, way, lambda rows, shape, effort, way=way, **how: asked.append((way, effort.draws, how))
        )
    place = cell("table-4.2", "mixture-10", name, "1000")
    flows.fit(place, flows.rows_of(load_density("mixture-10"), 1000, place), None)
    mean = {"mean": name.endswith("_mean")}
    naive = ("weighted_bootstrap", place.options["naive"], mean)
    assert asked == [naive if "naive" in name else ("maximum_likelihood", place.options["draws"], mean)]


@pytest.mark.parametrize("setting", BY_NAME["npl/figure-b2"].settings)
def test_a_setting_names_the_shape_of_its_flow(cell, setting, monkeypatch):
    shapes = []
    monkeypatch.setattr(flows, "_scored", lambda place, rows, shape: shapes.append(shape))
    flows.variant(cell("figure-b2", "mixture-10", "wlb_shared", setting))
    blocks, *options = setting.split("-")
    (shape,) = shapes
    assert (shape.blocks, shape.hidden) == (int(blocks), (12,))
    told = {"bn": shape.batch_norm, "id": shape.identity, "cov": shape.covariance}
    assert {name for name, on in told.items() if on} == set(options)


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
    plots.plot_clouds(tmp_path, records)
    assert (tmp_path / "figure-4.1.png").stat().st_size > 1000
    with np.load(tmp_path / "ml" / "cloud.npz") as kept:
        assert kept["samples"].shape == (flows.SHOWN, 2)
    shown = {"log_likelihood": -1.0}
    curves = [
        Record(replace(cell("figure-4.2", "sachs", "ml", n), trial=trial), "ok", shown, 0.0, tmp_path)
        for n in ("500", "1000")
        for trial in (0, 1)
    ]
    plots.plot_curves(tmp_path, curves)
    assert (tmp_path / "figure-4.2.png").stat().st_size > 1000
    kinds = [
        Record(cell("figure-b2", "sachs", method, kind), "ok", shown, 0.0, tmp_path)
        for method, kind in (("ml", "1"), ("wlb_shared", "1"), ("wlb_shared", "5-bn"))
    ]
    plots.plot_variants(tmp_path, kinds)
    assert (tmp_path / "figure-b2.png").stat().st_size > 1000
    plots.plot_clouds(tmp_path / "nowhere", [])


@pytest.mark.parametrize("method", ["mean-field", "bootstrap-mle", "bootstrap-map", "bootstrap-prior"])
def test_networks_beside_nuts(cell, method, monkeypatch):
    """NUTS itself is another module's to test; it has the rows that the fit has."""
    place = cell("regression", "line", method, width=3, draws=20, elbo_steps=20, steps=5, pseudo=10)
    place, problem, splits = replace(place, trial=3), line(), []
    monkeypatch.setattr(regressions, "load_problem", lambda data, split: splits.append(split) or problem)
    model = regressions.BNN(1, widths=(3,))
    sites = [poutine.trace(model).get_trace(problem.x).nodes for _ in range(20)]
    names = ("w1", "b1", "w2", "b2", "noise_precision")
    names = [name for name in sites[0] if name in names]
    truth = Posterior.from_draws(model, {n: torch.stack([s[n]["value"] for s in sites]) for n in names})
    monkeypatch.setattr(regressions, "_reference", lambda data, trial, *args: splits.append(trial) or truth)
    figures = regressions.network(place)
    assert splits == [3, 3]
    assert set(figures) <= set(BY_NAME["npl/regression"].metrics)
    assert figures["ref_w1"] > 0
    assert ("last_tenth" in figures) == method.startswith("bootstrap")


@pytest.mark.parametrize("name", ["bootstrap-mle", "bootstrap-map", "bootstrap-prior"])
def test_pseudo_observations_of_the_prior_are_a_share_of_the_rows(cell, name, monkeypatch):
    asked = []
    monkeypatch.setattr(regressions, "PosteriorBootstrap", lambda model, **process: asked.append(process))
    monkeypatch.setattr(regressions, "_bootstrapped", lambda *args: None)
    problem, place = line(), cell("regression", "line", name, alpha=0.25)
    model = regressions.BNN(1, widths=(3,))
    regressions._fitted(place, model, problem)
    (process,) = asked
    assert process.pop("loss") == ("mle" if name == "bootstrap-mle" else "map")
    if name == "bootstrap-prior":
        assert process.pop("concentration") == 0.25 * len(problem.x)
        assert process.pop("num_pseudo") == 20
        base = process.pop("base_measure")
        assert isinstance(base, PredictiveBase)
        assert (base.model, base.site) == (model, "y")
        assert base.inputs[0] is problem.x
    assert not process


def test_labelled_rows_are_standardised_by_those_of_training():
    problem = random_80_20("raisin", 1)
    (x, y), (x_test, y_test) = problem.train, problem.test
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


def test_distances_are_in_sds_of_nuts(cell, monkeypatch):
    """Of draws ten times as wide as those of NUTS: in units of their own sds they would be near."""
    place, problem = cell("regression", "line", "bootstrap-mle", width=3), line()

    def draws(scale: float) -> Posterior:
        return Posterior.from_draws(plain, {"w": scale * torch.randn(400, 1, generator=generator)})

    def plain(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    generator = torch.Generator().manual_seed(0)
    truth, wide = draws(1.0), draws(10.0)
    monkeypatch.setattr(regressions, "load_problem", lambda data, split: problem)
    monkeypatch.setattr(regressions, "_reference", lambda *args: truth)
    monkeypatch.setattr(regressions, "_fitted", lambda *args: (wide, {}))
    figures = regressions.network(place)
    assert figures["ref_sd_ratio"] == pytest.approx(10, rel=0.15)
    assert figures["ref_w1"] == pytest.approx(9 * (2 / math.pi) ** 0.5, rel=0.15)  # of two Gaussians


def test_figures_of_a_cloud_by_hand(cell, monkeypatch):
    """Spread is the root mean square distance from the origin, and the law's own score is the best."""
    samples = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    fitted = SimpleNamespace(
        figures=lambda x: {"log_likelihood": -4.0}, sample=lambda n, seed: samples, info={"steps": 7}
    )
    monkeypatch.setattr(flows, "maximum_likelihood", lambda *args: fitted)
    found = flows.cloud(cell("figure-4.1", "mixture-2", "ml", "0"))
    test = load_density("mixture-2").test
    assert found["spread"] == pytest.approx(12.5**0.5)
    assert found["below_truth"] == pytest.approx(flows.two_gaussians().log_density(test).mean() + 4.0)
    assert found["steps"] == 7


@pytest.mark.parametrize(("method", "sd"), [("narrow", 1.0), ("wide", 4.0)])
def test_clouds_have_round_base_measures_of_the_sds_of_the_print(cell, method, sd, monkeypatch):
    class SeenError(Exception):
        pass

    def seen(rows, shape, effort, *, base, concentration, num_pseudo):
        assert (base.centre.tolist(), base.sd, concentration) == ([0.0, 0.0], sd, 10.0)
        raise SeenError

    monkeypatch.setattr(flows, "shared_bootstrap", seen)
    with pytest.raises(SeenError):
        flows.cloud(cell("figure-4.1", "mixture-2", method, "10"))


def test_a_reference_that_fails_its_gates_is_none(monkeypatch):
    asked = []

    def failed(twin, data, **settings):
        asked.append(settings)
        return SimpleNamespace(passed=False, reason="split R-hat 1.2000 is not below 1.01")

    monkeypatch.setattr(regressions, "nuts", failed)
    model = regressions.BNN(1, widths=(3,))
    with pytest.raises(FailedError, match="reference failed: split R-hat 1.2.*more than 40 draws"):
        regressions._sampled(model, (None, None), torch.zeros(2, 1), 20, 40, 7)
    assert (asked[0]["warmup"], asked[0]["draws"], asked[0]["seed"]) == (20, 40, 7)


def test_figures_of_coefficients_by_hand(cell, monkeypatch):
    """Within 0.1 of zero by their means, whatever their sds, of which the median counts."""
    rng = torch.Generator().manual_seed(0)
    w = torch.randn(2000, 3, generator=rng) * torch.tensor([0.5, 2.0, 9.0]) + torch.tensor([0.0, 0.5, -7.0])
    posterior = Posterior.from_draws(regressions.HeavyLogistic(3), {"w": w, "b": torch.zeros(2000)})
    x, y = torch.randn(12, 3, generator=rng), torch.arange(12.0) % 2
    problem = SimpleNamespace(x=x, train=(x, y), x_test=x, y_test=y)
    monkeypatch.setattr(regressions, "random_80_20", lambda *args: problem)
    monkeypatch.setattr(regressions, "_bootstrapped", lambda *args: (posterior, {"last_tenth": 0.1}))
    found = run(cell("logistic", "raisin", "bootstrap-map"))
    assert found["near_zero"] == pytest.approx(1 / 3)
    assert found["sd"] == pytest.approx(2.0, rel=0.1)
    assert found["last_tenth"] == 0.1


def test_as_many_rows_validate_as_the_budget_says(cell):
    rows = flows.rows_of(load_density("mixture-10"), 500, cell("figure-4.2", "mixture-10", "ml", "500"))
    assert (len(rows.train), len(rows.validation)) == (500, 50)


def test_what_the_last_tenth_took_is_the_mean_of_the_draws(cell):
    found = SimpleNamespace(info={"last_tenth": [0.1, 0.1, 0.7]})
    bootstrap = SimpleNamespace(fit=lambda *data, **settings: found)
    place = cell("regression", "line", "bootstrap-mle")
    assert regressions._bootstrapped(place, bootstrap, ()) == (found, {"last_tenth": pytest.approx(0.3)})


def test_scores_of_a_network_are_in_the_unit_of_the_target(cell, monkeypatch):
    problem, model = line(), regressions.BNN(1, widths=(3,))
    nodes = poutine.trace(model).get_trace(problem.x).nodes
    names = [name for name in ("w1", "b1", "w2", "b2", "noise_precision") if name in nodes]
    truth = Posterior.from_draws(model, {name: nodes[name]["value"][None] for name in names})
    monkeypatch.setattr(regressions, "load_problem", lambda data, split: problem)
    monkeypatch.setattr(regressions, "_reference", lambda *args: truth)
    found = regressions.network(cell("regression", "line", "nuts", width=3))
    sd, mean = problem.scale.y_sd, truth.function(problem.x_test)[0]
    error = (mean - problem.y_test).square().mean().sqrt().item()
    assert abs(sd - 1) > 0.5
    assert found["rmse"] == pytest.approx(sd * error, rel=1e-5)
    density = truth.predictive(problem.x_test).log_prob(problem.y_test).mean().item()
    assert found["log_likelihood"] == pytest.approx(density - math.log(sd), rel=1e-5)
