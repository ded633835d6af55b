"""Point estimates and what is no bound: on the scoreboard, on disk and in predictions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyro import poutine

from guides.posterior import Posterior
from guides.variational.ensemble import fit_ensemble
from tests.zoo.cli_helpers import (
    COLUMNS,
    PREDICTIVE,
    TINY,
    fresh_process,
    linear_rows,
    run_zoo,
    table_of,
    write_csv,
)
from zoo.budgets import BUDGETS
from zoo.errors import FailedError, UserError
from zoo.evaluation.estimates import Estimate
from zoo.fitting.horseshoe import product_weights, with_horseshoe
from zoo.fitting.methods import FitFile
from zoo.fitting.point_estimates import EnsembleSettings, Minibatches, PointEstimates
from zoo.fitting.stored import Numbers
from zoo.models.bnn import BNN
from zoo.registry.queries import GUIDES
from zoo.seeds import stable_seed

ROWS = 40
NO_BOUND = ["horseshoe", "group-normal-jeffreys", "mc-dropout", "concrete-dropout", "map", "deep-ensemble"]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """A budget of seconds, and no figures drawn."""
    monkeypatch.setitem(BUDGETS, "quick", replace(TINY, steps=10, draws=20))
    monkeypatch.setattr("zoo.commands.compare.write_plots", lambda *args: None)
    monkeypatch.setattr("zoo.commands.fit_folder.plot_loss", lambda *args, **kwargs: None)


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.tensor(linear_rows(ROWS))
    return rows[:, :2], rows[:, 2]


@pytest.fixture
def network() -> BNN:
    return BNN(2, widths=(3,))


def test_every_member_is_a_fit_of_its_own(data, network):
    method = PointEstimates(3)
    settings = method.settings(ROWS, seed=2, steps=5, lr=0.03)
    assert settings == EnsembleSettings(3, 5, 0.03, None, 2)
    fitted = method.fit(network, data, settings)
    draws, changes = fitted.draws(7, seed=0), []
    for i in range(3):
        seed = stable_seed("member", 2, 3, i)
        alone = fit_ensemble(network, *data, members=1, steps=5, lr=0.03, seed=seed)
        changes.append(Estimate(alone.info["last_tenth"][0], alone.info["last_tenth_se"][0]))
        for name, value in alone.draws().items():
            assert torch.equal(draws[name][i], value[0])
            assert torch.equal(draws[name][i + 3], value[0])  # in turn
    assert fitted.bound_change == max(changes, key=lambda change: change.value - 2 * (change.se or 0.0))
    assert not torch.equal(draws["w1"][0], draws["w1"][1])
    assert draws["w1"].shape == (7, 3, 2)
    assert fitted.num_parameters == 3 * (6 + 3 + 3 + 1 + 1)
    assert (fitted.elbo, fitted.draws_with_log_prob, fitted.inclusion) == (None, None, {})


@pytest.mark.parametrize("other", [(2, 1), (1, 0), (3, 0)])
def test_ensembles_of_other_seeds_or_sizes_share_no_member(other, data, network):
    """One network is no member of the ensemble with its seed either."""
    first, second = (
        method.fit(network, data, method.settings(ROWS, seed=seed, steps=3)).draws(method.members, 0)["w1"]
        for method, seed in ((PointEstimates(2), 0), (PointEstimates(other[0]), other[1]))
    )
    assert not any(torch.equal(a, b) for a in first for b in second)


def test_a_fit_leaves_the_random_state_alone(data, network):
    def state():
        return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()

    found = []
    for fit in (False, True):
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        if fit:
            method = PointEstimates(1)
            method.fit(network, data, method.settings(ROWS, seed=5, steps=2))
        found.append(state())
    assert found[0] == found[1]


def test_minibatches_are_drawn_anew_and_scaled(data, network):
    batches = Minibatches(network, 8)
    torch.manual_seed(0)
    traces = [poutine.trace(batches).get_trace(*data) for _ in range(2)]
    for trace in traces:
        assert trace.nodes["y"]["scale"] == ROWS / 8
        assert len(trace.nodes["y"]["value"]) == 8
    assert not torch.equal(traces[0].nodes["y"]["value"], traces[1].nodes["y"]["value"])
    torch.manual_seed(0)
    assert torch.equal(traces[0].nodes["y"]["value"], data[1][torch.randint(ROWS, (8,))])  # and nothing else
    seen = []
    method = PointEstimates(1)

    def counting(x, y=None, size=None):
        seen.append((len(x), size))
        return network(x, y, size)

    method.fit(counting, data, method.settings(ROWS, seed=0, steps=2, batch_size=8))
    assert set(seen) == {(8, ROWS)}
    assert method.settings(5000, seed=0).batch_size == 500


def test_divergence_is_told(data, network):
    method = PointEstimates(1)
    for steps in (1, 30):  # 1: seen in the parameters, no loss follows the last step
        settings = method.settings(ROWS, seed=0, steps=steps, lr=3e40 if steps == 1 else 1e30)
        with pytest.raises(FailedError, match="lower|learning rate"):
            method.fit(network, data, settings)


@pytest.fixture
def table(tmp_path) -> Path:
    return write_csv(tmp_path / "table.csv", linear_rows(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("guides", [["mc-dropout", "map"], pytest.param(NO_BOUND, marks=pytest.mark.slow)])
def test_what_has_no_bound_and_no_density_says_so(guides, table, tmp_path):
    options = [
        "--reference",
        "none",
        "--widths",
        2,
        "--guides",
        ",".join(guides),
        "--out",
        tmp_path / "out",
    ]
    result = run_zoo("compare", table, *options)
    assert result.exit_code == 0, result.output
    rows = table_of(tmp_path / "out")
    assert list(rows) == guides
    for name, row in rows.items():
        assert row["status"] == "ok"
        assert row["note"] == GUIDES[name].note != ""
        expected = {*PREDICTIVE, "num_parameters", "fit_seconds", "bound_change"}
        assert {column for column in COLUMNS[4:] if row[column]} == expected, name
    # the same network again would be another draw in every Monte Carlo error
    kept = Posterior.load(tmp_path / "out" / "map.nc", lambda *args: None)
    assert len(kept) == 1
    if "deep-ensemble" in guides:
        assert rows["deep-ensemble"]["num_parameters"] == str(5 * int(rows["map"]["num_parameters"]))


@pytest.mark.parametrize(
    "guide",
    [
        "horseshoe",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("map", "deep-ensemble", "mc-dropout", "mnf")
        ),
    ],
)
def test_fit_predicts_the_same_in_another_process(guide, table, tmp_path, monkeypatch):
    command = ["fit", table, "--guide", guide, "--steps", 20, "--widths", 2, "--out", tmp_path / "fit"]
    assert run_zoo(*command).exit_code == 0
    predict = ["predict", tmp_path / "fit", "--input", table, "--draws", 10, "--out"]
    assert run_zoo(*predict, tmp_path / "a.csv").exit_code == 0
    if guide == "map":
        code = "import sys; from zoo.cli.main import main; main()"
        assert fresh_process(code, *predict, tmp_path / "b.csv").returncode == 0
    else:
        assert run_zoo(*predict, tmp_path / "b.csv").exit_code == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    monkeypatch.setattr("pyro.infer.SVI.step", lambda *args: pytest.fail("took a step"))
    monkeypatch.setattr(PointEstimates, "run", lambda *args: pytest.fail("fitted again"))
    assert run_zoo(*command).exit_code == 0


def test_ensemble_on_disk_is_sealed(table, tmp_path, data, network):
    method, path = PointEstimates(2), tmp_path / "fit.safetensors"
    settings = method.settings(ROWS, seed=0, steps=3)
    fitted = method.fit(network, data, settings, file=FitFile(path, {"seed": 0}))
    assert method.about(path) == {"seed": 0}
    again = method.fit(network, data, settings, file=FitFile(path, {"seed": 0}))
    assert again.summary == fitted.summary
    assert torch.equal(again.draws(2, 0)["w2"], fitted.draws(2, 0)["w2"])
    with pytest.raises(UserError, match="belongs to another fit"):
        method.fit(network, data, settings, file=FitFile(path, {"seed": 1}))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="fails its checksum"):
        method.fit(network, data, settings, file=FitFile(path, {"seed": 0}))
    (tmp_path / "fit.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        method.about(path)


# ------------------------------------------------------------------------------------------- the horseshoe


def test_draws_of_horseshoe_weights_are_the_products(data, network):
    """The function of translated draws is that of the factors in the model with the horseshoe."""
    sparse = with_horseshoe(network)
    trace = poutine.trace(sparse).get_trace(*data)
    names = [n for n, node in trace.nodes.items() if node["type"] == "sample" and not node["is_observed"]]
    draws = {name: trace.nodes[name]["value"][None] for name in names if name != "data"}
    assert {"w1_raw", "w1_local", "w1_global", "b1", "noise_precision"} <= set(draws)
    translated = product_weights(draws)
    assert set(translated) == {"w1", "b1", "w2", "b2", "noise_precision"}
    for name in ("w1", "w2"):
        torch.testing.assert_close(translated[name][0], trace.nodes[name]["value"])
    values = {name: value[0] for name, value in translated.items()}
    torch.testing.assert_close(
        poutine.condition(network, values)(*data), trace.nodes["_RETURN"]["value"], rtol=1e-5, atol=1e-5
    )


def test_many_draws_of_filters_keep_their_scales_apart():
    raw, local, shrink = torch.randn(5, 3, 2, 4, 4), torch.rand(5, 1, 2, 1, 1), torch.rand(5)
    found = product_weights({"w_raw": raw, "w_local": local, "w_global": shrink, "b": shrink})
    for i in range(5):
        torch.testing.assert_close(found["w"][i], raw[i] * local[i] * shrink[i])
    assert set(found) == {"w", "b"}


@pytest.mark.slow
def test_horseshoe_predicts_with_its_weights(data, network):
    method = GUIDES["horseshoe"].method
    fitted = method.fit(network, data, method.settings(ROWS, seed=0, steps=300))
    assert set(fitted.draws(2, 0)) == {"w1", "b1", "w2", "b2", "noise_precision"}
    mean = fitted.predictor(100, 0)(data[0]).mean
    assert (mean - data[1]).square().mean() < 0.5 * data[1].var()


def test_an_ensemble_has_settled_when_its_last_member_has():
    """The change told is that of the member which moves most clearly, beyond its own noise."""
    facts = {"seconds": 1.0, "steps": 10, "ends": [(1.0, 0.1, 0.01), (1.0, 5.0, 0.1), (1.0, 6.0, 3.0)]}
    fitted = PointEstimates(3).fitted(None, Numbers({"w": torch.tensor([[3.0], [1.0], [2.0]])}, facts))
    assert (fitted.bound_change.value, fitted.bound_change.se) == (5.0, 0.1)
