"""``zoo calibrate``: ranks of the truth in posteriors of the model's own data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import zoo
from guides.testing import assert_mean
from tests.zoo.cli_helpers import files, run_zoo
from zoo.commands import simulation
from zoo.commands.calibrate import _sentence, run, summary
from zoo.commands.calibration import ask
from zoo.commands.simulation import BOUND_CHANGE
from zoo.errors import FailedError, Interrupted, UserError
from zoo.experiments.engine.records import RESULT, cell_folder
from zoo.fitting.samplers import Sampled, samplers
from zoo.fitting.side_by_side import Here
from zoo.models import BNN
from zoo.seeds import stable_seed

#: A linear regression whose posterior is known.
LINEAR = {"widths": (0,), "noise": 1.0}
QUANTITIES = ["f[0]", "f[1]", "f[2]", "w1[0,0]", "w1[0,1]", "b1[0]", "log_likelihood"]


def use(monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Puts ``change(draws, seed)`` of the exact draws in the place of the exact posterior."""

    def changed(model):
        def sampler(model, x, y, n, seed):
            return Sampled(change(samplers(model)["exact"](model, x, y, n, seed).draws, seed))

        return {"exact": sampler}

    monkeypatch.setattr(simulation, "samplers", changed)


def scaled(factor: float):
    def change(draws, seed):
        return {name: value.mean(0) + factor * (value - value.mean(0)) for name, value in draws.items()}

    return change


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take longer than the fits; the fixture ``exact`` draws one."""
    monkeypatch.setattr("zoo.commands.calibrate.plot_ranks", lambda *args: None)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate") / "out"
    return folder, run(ask(guides=["exact"], simulations=30, **LINEAR), folder)


def test_exact_posterior_passes(exact):
    folder, table = exact
    assert list(table["quantity"]) == QUANTITIES
    assert set(table["verdict"]) == {"uniform"}
    assert set(table["simulations"]) == {30}
    assert not table["failed"].any()
    assert files(folder) == {
        "config.json", "cells", "ranks.csv", "calibration.csv", "calibration.md", "calibration.png",
    }  # fmt: skip
    ranks = pd.read_csv(folder / "ranks.csv")
    assert list(ranks.columns) == ["method", "simulation", "status", *QUANTITIES]
    assert list(ranks["simulation"]) == list(range(30))
    assert "**exact** passes: 30 simulations, 7 quantities." in (folder / "calibration.md").read_text()


def test_the_closed_form_has_the_prior_of_the_bias():
    """Four rows at zero with targets of 3: the bias is N(12 / 29, 1 / 29)."""
    model = BNN(2, widths=(), noise_scale=1.0, bias_scale=0.2)
    x, y = torch.zeros(4, 2), torch.full((4,), 3.0)
    drawn = samplers(model)["exact"](model, x, y, 4000, 0).draws["b1"].squeeze()
    assert_mean(drawn, torch.tensor(12 / 29, dtype=torch.float64))
    assert_mean((drawn - 12 / 29) ** 2, torch.tensor(1 / 29, dtype=torch.float64))


@pytest.mark.parametrize(("factor", "words"), [(0.2, "too narrow"), (6.0, "too wide")])
def test_wrong_posterior_fails(factor, words, tmp_path, monkeypatch):
    use(monkeypatch, scaled(factor))
    table = run(ask(guides=["exact"], simulations=25, **LINEAR), tmp_path / "out")
    verdicts = table.set_index("quantity")["verdict"]
    assert verdicts[QUANTITIES[:-1]].str.startswith(words).all()
    assert f"**exact** fails: {words} in f[0]" in (tmp_path / "out" / "calibration.md").read_text()


def test_prior_in_place_of_the_posterior_is_found(tmp_path, monkeypatch):
    """Its ranks of function and weights are uniform: the likelihood gives it away."""

    def prior(draws, seed):
        generator = torch.Generator().manual_seed(seed)
        model = ask(guides=["exact"], **LINEAR).model
        sd = {"w1": model.in_features**-0.5, "b1": 1.0}
        return {k: sd[k] * torch.randn(v.shape, generator=generator) for k, v in draws.items()}

    use(monkeypatch, prior)
    table = run(ask(guides=["exact"], simulations=25, **LINEAR), tmp_path / "out")
    wrong = table.loc[table["verdict"] != "uniform", "quantity"]
    assert list(wrong) == ["log_likelihood"]


def test_calls_add_up(exact, tmp_path):
    """Few simulations, then a damaged one, then more: the same bytes as in one call."""
    few = ask(guides=["exact"], simulations=4, **LINEAR)
    run(few, tmp_path)
    damaged = cell_folder(tmp_path, few.cell("exact", 2)) / RESULT
    damaged.write_text(damaged.read_text()[:40])
    shutil.rmtree(cell_folder(tmp_path, few.cell("exact", 0)))
    run(replace(few, simulations=30), tmp_path)
    for name in ("ranks.csv", "calibration.csv", "calibration.md"):
        assert (tmp_path / name).read_bytes() == (exact[0] / name).read_bytes()


def test_a_folder_that_is_no_simulation_is_left_alone(tmp_path):
    request = ask(guides=["exact"], simulations=2, **LINEAR)
    first = run(request, tmp_path / "out")
    cell = next((tmp_path / "out").glob("cells/*/exact/default/0"))
    shutil.copytree(cell, cell.with_name("0 copy"))
    pd.testing.assert_frame_equal(run(request, tmp_path / "out"), first)


def test_finished_simulations_are_not_computed_again(exact, monkeypatch):
    use(monkeypatch, lambda draws, seed: pytest.fail("computed again"))
    table = run(ask(guides=["exact"], simulations=10, **LINEAR), exact[0])
    pd.testing.assert_frame_equal(table, exact[1])


def test_failing_fits_are_counted(tmp_path, monkeypatch):
    def change(draws, seed):
        if seed % 3 == 0:
            raise FailedError("loss is not finite")
        return draws

    use(monkeypatch, change)
    table = run(ask(guides=["exact"], simulations=20, **LINEAR), tmp_path)
    ranks = pd.read_csv(tmp_path / "ranks.csv")
    failed = ranks["status"] != "ok"
    assert 0 < failed.sum() < 20
    assert ranks.loc[failed, QUANTITIES].isna().all(axis=None)
    assert (table["failed"] == failed.sum()).all()
    assert (table["simulations"] == 20 - failed.sum()).all()
    words = f"{failed.sum()} of 20 fits failed and have no rank (failed: loss is not finite)."
    assert words in (tmp_path / "calibration.md").read_text()


def test_chains_that_do_not_mix_are_told_of(tmp_path, monkeypatch):
    def sampler(model, x, y, n, seed):
        return Sampled(samplers(model)["exact"](model, x, y, n, seed).draws, converged=seed % 2 == 0)

    monkeypatch.setattr(simulation, "samplers", lambda model: {"exact": sampler})
    calibration = ask(guides=["exact"], simulations=8, **LINEAR)
    run(calibration, tmp_path)
    odd = sum(stable_seed("draws", cell.seed) % 2 for cell in calibration.cells())
    assert 0 < odd < 8
    words = f"The chains of {odd} simulations did not mix well enough; they are counted."
    assert words in (tmp_path / "calibration.md").read_text()


def test_losses_that_still_fall_are_told_of_with_their_error():
    changes = [SimpleNamespace(ok=True, metrics={BOUND_CHANGE: change}) for change in (1.0, 3.0)]
    table = summary({"m": changes}, {"m": {"f[0]": np.array([20, 70])}}, 99)
    told = _sentence("m", changes, table)
    assert told.endswith("Its loss fell by 2.00 ± 1.00 nats in the last tenth of a fit.")


def test_interrupted_call_goes_on(exact, tmp_path, monkeypatch):
    asked, computed = ask(guides=["exact"], simulations=30, **LINEAR), []

    def stop_at_the_third(draws, seed):
        computed.append(seed)
        if len(computed) == 3:
            raise KeyboardInterrupt
        return draws

    with monkeypatch.context() as patch:
        use(patch, stop_at_the_third)
        with pytest.raises(Interrupted, match="keeps 2 of 30 simulations"):
            run(asked, tmp_path)
    run(asked, tmp_path)
    assert (tmp_path / "ranks.csv").read_bytes() == (exact[0] / "ranks.csv").read_bytes()


def test_where_every_fit_fails(tmp_path, monkeypatch):
    use(monkeypatch, lambda draws, seed: {k: v * np.nan for k, v in draws.items()})
    arguments = "calibrate --widths 0 --noise 1 --guide exact --simulations 2 --out"
    result = run_zoo(*arguments.split(), tmp_path / "out")
    assert result.exit_code == 1
    assert "every fit failed" in result.output
    table = pd.read_csv(tmp_path / "out" / "calibration.csv")
    assert table[["method", "simulations", "failed"]].values.tolist() == [["exact", 0, 2]]


def test_all_methods_see_the_same_data(tmp_path, monkeypatch):
    calibration = ask("spike-slab-linear", ["exact", "varbvs"], simulations=3)
    fit, seen = simulation._fit, {}

    def remembered(cell, model, x, y):
        seen[cell.method, cell.trial] = y
        return fit(cell, model, x, y)

    monkeypatch.setattr(simulation, "_fit", remembered)
    table = run(calibration, tmp_path)
    assert list(dict.fromkeys(table["method"])) == ["exact", "varbvs"]
    assert "did not mix" not in (tmp_path / "calibration.md").read_text()  # neither has chains
    for trial in range(3):
        assert torch.equal(seen["exact", trial], seen["varbvs", trial])
    assert not torch.equal(seen["exact", 0], seen["exact", 1])


def test_quantities_are_judged_together():
    """What is one in twenty by accident is no verdict on one of eight quantities."""
    ranks = np.concatenate([np.arange(0, 100, 5), np.full(3, 99)])
    judged = {"one": {"f[0]": ranks}, "eight": {f"f[{k}]": ranks for k in range(8)}}
    records = {name: [SimpleNamespace(ok=True)] for name in judged}
    table = summary(records, judged, 99)
    assert table["verdict"].tolist() == ["of another shape", *["uniform"] * 8]


def test_ties_fall_otherwise_in_every_simulation(monkeypatch):
    numbers = []
    monkeypatch.setattr(simulation, "rank", lambda truth, values, rng: numbers.append(rng.integers(2**62)))
    calibration = ask(guides=["exact"], **LINEAR)
    for trial in range(2):
        simulation.simulate(calibration.cell("exact", trial))
    assert len(set(numbers)) == len(numbers) == 2 * len(QUANTITIES)


def test_inputs_have_the_correlation():
    options = {"rows": 4000, "columns": 3, "correlation": 0.8, "points": 1}
    x, points = simulation.inputs(options, seed=0)
    correlations = np.corrcoef(x.numpy().T)[np.triu_indices(3, 1)]
    assert correlations == pytest.approx(0.8, abs=0.03)
    assert points.shape == (1, 3)
    assert not (points == x).all(1).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guides": ["mean-feld"]}, "unknown guide or sampler 'mean-feld'; nearest: mean-field"),
        ({"guides": ["spike-slab"]}, "fits spike-slab-bnn in place of bnn: use --model spike-slab-bnn"),
        ({"guides": ["exact"], "noise": None}, "'exact' does not .* 'bnn' .*--noise 1.* has: nuts"),
        ({"guides": ["nuts", "nuts"]}, "named twice"),
        ({"guides": []}, "--guide names nothing"),
        ({"guides": ["varbvs"]}, "does not apply|use --model"),
        ({"simulations": 0}, "--simulations must be at least 1"),
        ({"draws": 0}, "--draws must be at least 1"),
        ({"guides": ["nuts"], "draws": 2001}, "--draws 2001 are more than the 2000 that the chains"),
        ({"columns": 3, "correlation": -0.5}, "--correlation of 3 columns must lie between -0.5 and 1"),
        ({"correlation": float("nan")}, "--correlation"),
        ({"task": "multiclass"}, "--task regression or binary, not 'multiclass'"),
        ({"task": "binary"}, "--noise is for regression"),
        ({"model": "lenet"}, "does not take rows"),
        ({"model": "edge"}, "unknown model"),
        ({"seed": -1}, "--seed"),
        ({"inclusion": 0.5}, "--inclusion does not apply"),
        ({"points": 1001}, "are more than can be judged together .1000.: lower --points or --columns"),
    ],
)
def test_bad_requests_are_one_line(changes, message):
    with pytest.raises(UserError, match=message) as error:
        ask(**{**LINEAR, "guides": ["exact"], **changes})
    assert "\n" not in str(error.value)


def test_models_of_ones_own_are_refused_by_that_name(tmp_path):
    (tmp_path / "mine.py").write_text("def model(x, y=None):\n    pass\n")
    with pytest.raises(UserError, match="a model of your own, .*not calibrated"):
        ask(**{**LINEAR, "model": f"{tmp_path / 'mine.py'}:model", "guides": ["exact"]})


def test_folder_of_another_run_is_refused(exact):
    with pytest.raises(UserError, match="draws is 99 there, 19 here"):
        run(ask(guides=["exact"], draws=19, **LINEAR), exact[0])
    with pytest.raises(UserError, match="seed is 0 there, 1 here"):
        run(ask(guides=["exact"], seed=1, **LINEAR), exact[0])
    assert json.loads((exact[0] / "config.json").read_text())["draws"] == 99


def test_command_and_notebook_give_the_same(tmp_path):
    arguments = "calibrate --widths 0 --noise 1 --guide exact --simulations 5 --seed 3 --out"
    result = run_zoo(*arguments.split(), tmp_path)
    assert result.exit_code == 0
    assert "exact: 5 simulations are too few to tell; take 20 or more" in result.output
    table = zoo.calibrate(guides="exact", simulations=5, seed=3, widths=0, noise=1.0)
    pd.testing.assert_frame_equal(table, pd.read_csv(tmp_path / "calibration.csv"))


def test_all_methods_are_the_samplers_and_the_guides_that_fit_this_very_model():
    methods = ask(guides=["all"], **LINEAR).methods
    assert methods[:2] == ("exact", "nuts")
    assert {"mean-field", "map"} < set(methods)
    assert not {"spike-slab", "varbvs", "gibbs"} & set(methods)
    assert len(set(methods)) == len(methods)


def test_the_first_simulation_of_every_method_comes_first():
    cells = ask(guides=["exact", "mean-field"], simulations=2, **LINEAR).cells()
    assert [(cell.trial, cell.method) for cell in cells] == [
        (0, "exact"), (0, "mean-field"), (1, "exact"), (1, "mean-field"),
    ]  # fmt: skip


def test_weights_are_ranked_only_where_no_hidden_units_make_them_alike():
    assert ask(guides=["exact"], **LINEAR).quantities == QUANTITIES
    hidden = ask(guides=["mean-field"], widths=(2,), points=2)
    assert hidden.quantities == ["f[0]", "f[1]", "noise_precision", "log_likelihood"]


def test_one_column_may_have_any_correlation_and_its_options_are_kept():
    calibration = ask(guides=["exact"], columns=1, correlation=-0.9, rows=7, draws=19, seed=5, **LINEAR)
    config = calibration.config()
    assert [config[name] for name in ("columns", "correlation", "rows", "draws", "seed", "steps")] == [
        1, -0.9, 7, 19, 5, 1000,
    ]  # fmt: skip
    assert "device" not in config


@pytest.mark.slow
def test_processes_give_the_same(exact, tmp_path):
    run(ask(guides=["exact"], simulations=8, **LINEAR), tmp_path, workers=Here(2))
    together, alone = (pd.read_csv(folder / "ranks.csv") for folder in (tmp_path, exact[0]))
    pd.testing.assert_frame_equal(together, alone.head(8))


@pytest.mark.slow
def test_nuts_passes(tmp_path):
    """Twenty simulations find what is badly off; the page of results has more."""
    table = run(ask(guides=["nuts"], simulations=20, **LINEAR), tmp_path)
    assert set(table["verdict"]) == {"uniform"}
    assert set(table["simulations"]) == {20}


@pytest.mark.slow
def test_mean_field_is_too_narrow_for_correlated_columns(tmp_path):
    """Its variances are one over the diagonal of the precision: sd ratio ``sqrt(1 - rho^2)`` and the prior's
    share; the sum of the two weights, which the data determine, is not too narrow.
    """
    table = run(
        ask(guides=["mean-field"], simulations=10, rows=50, steps=300, correlation=0.97, **LINEAR), tmp_path
    )
    verdicts = table.set_index("quantity")["verdict"]
    assert verdicts["w1[0,0]"].startswith("too narrow")
    assert verdicts["w1[0,1]"].startswith("too narrow")
    assert verdicts["b1[0]"] == "uniform"
