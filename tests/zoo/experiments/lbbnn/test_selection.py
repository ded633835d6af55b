"""The cells of variable selection: figures by hand, the published data, the exact reference."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from guides.truth.polya_gamma import spike_slab_logistic_gibbs
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from tests.marks import NEEDS_MIRROR, SLOW
from tests.zoo.experiments.lbbnn.tiny_cells import BY_NAME, assert_declared
from zoo.errors import FailedError
from zoo.experiments.lbbnn import declared_selection, selection
from zoo.experiments.lbbnn.runs import FittedRuns

pytestmark = pytest.mark.usefixtures("small_and_real")
PAGES = Path(__file__).parents[4] / "docs" / "results" / "lbbnn"


def test_figures_of_selection_by_hand():
    exact = np.where(selection.COEFFICIENTS != 0, 0.9, 0.1)
    exact[[0, 2]] = 0.2
    found = exact.copy()
    found[0], found[1], found[6] = 0.8, 0.7, 0.3
    figures = selection.figures(found, exact)
    assert figures["rmse"] == pytest.approx(math.sqrt(3 * 0.36 / 20))
    assert figures["worst"] == pytest.approx(0.6)
    assert (figures["tpr"], figures["fpr"]) == pytest.approx((7 / 9, 1 / 11))
    assert (figures["wrongly_in"], figures["wrongly_out"]) == (2, 1)
    assert (figures["selected_1"], figures["selected_3"], figures["inclusion_2"]) == (1, 0, 0.7)
    assert {*figures, "elbo", "bound_change"} == set(BY_NAME["lbbnn/simulation"].metrics)
    mixed = selection.figures(found, exact, each=False)
    assert {*mixed, "elbo", "bound_change"} == set(BY_NAME["lbbnn/correlations"].metrics)


@NEEDS_MIRROR
def test_coefficients_fit_the_published_data_and_those_printed_do_not():
    from data_loaders import load

    data = load(selection.DATA)
    sign = np.where(data.y_train == 1, 1, -1)

    def log_likelihood(beta):
        return -np.logaddexp(0, -sign * (selection.INTERCEPT + data.x_train @ beta)).sum()

    printed = np.where(np.arange(20) == 12, -1, 1) * selection.COEFFICIENTS
    assert log_likelihood(selection.COEFFICIENTS) == pytest.approx(-37.1, abs=0.8)
    assert log_likelihood(printed) < -3800


@NEEDS_MIRROR
def test_mixed_designs():
    x, y = selection.design()
    same, labels = selection.mixed_data(1.0, 0.1, 0)
    np.testing.assert_allclose(same, x, atol=1e-9)
    assert (labels == y).mean() > 0.98
    mixed, _ = selection.mixed_data(0.3, 0.1, 0)
    np.testing.assert_allclose(mixed[:, :4], x[:, :4], atol=1e-9)
    raw = 0.3 * x[:, 9] + 0.7 * x[:, 5]
    np.testing.assert_allclose(mixed[:, 9], (raw - raw.mean()) / raw.std(), atol=1e-9)
    other = selection.mixed_data(0.3, 0.1, 1)[1]
    assert (selection.mixed_data(0.3, 0.1, 1)[1] == other).all()


@pytest.fixture
def no_gates(monkeypatch):
    """For chains so short that they would pass none."""

    def sample(*args, **kwargs):
        return replace(spike_slab_logistic_gibbs(*args, **kwargs), passed=True)

    monkeypatch.setattr(selection, "spike_slab_logistic_gibbs", sample)


@pytest.fixture
def first_rows(monkeypatch):
    """Takes so many rows of the simulation, and few draws for evidence lower bounds."""

    def take(rows: int) -> None:
        data = selection.load(selection.DATA)
        first = replace(data, x_train=data.x_train[:rows], y_train=data.y_train[:rows])
        monkeypatch.setattr(selection, "load", lambda name: first)
        monkeypatch.setattr("zoo.fitting.svi.ELBO_DRAWS", 30)

    return take


@NEEDS_MIRROR
@pytest.mark.slow
@pytest.mark.usefixtures("no_gates")
def test_exact_inclusions_are_those_of_the_sampler():
    found = selection.sampled_inclusion(*selection.design(), draws=250, seed=0)
    assert np.abs(found - selection.EXACT).max() < 0.08


@NEEDS_MIRROR
@pytest.mark.parametrize("rows", [300, SLOW(2000)])
@pytest.mark.parametrize("method", declared_selection.SELECTORS)
def test_selection_cells(cell, first_rows, method, rows):
    first_rows(rows)
    place = cell(method, dataset="mjmcmc_sim_logistic", steps=30)
    figures = selection.simulation(place)
    assert_declared("simulation", figures)
    assert len([name for name in figures if name.startswith("selected_")]) == 20


def test_a_trial_has_the_figures_of_its_own_run_among_those_fitted_together(cell, monkeypatch):
    inclusion, seeds = np.random.default_rng(0).random((selection.RUNS, 20)), []

    def fitted(method: str, steps: int, seed: int) -> FittedRuns:
        seeds.append(seed)
        return FittedRuns(inclusion, np.arange(20.0), 0.5)

    monkeypatch.setattr(selection, "fitted_runs", fitted)
    for trial, place in ((0, 0), (7, 7), (20, 0), (27, 7)):
        figures = selection.simulation(replace(cell("mnf", steps=3), trial=trial))
        assert [figures[f"inclusion_{i}"] for i in range(1, 21)] == inclusion[place].tolist()
        assert figures["elbo"] == place
        assert ("bound_change" in figures) == (place == 0)  # one number for all of them
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def test_page_of_the_enumeration_agrees_with_the_exact_inclusions_and_the_stated_evidence():
    """The page and not the count, for that of 2^20 models takes a minute.  To the .007 by which the two
    programs differ that EXACT comes from.
    """
    table = pd.read_csv(PAGES / "simulation.csv")
    figures = table[table["method"] == "exact"].set_index("metric")["mean"]
    assert figures["worst"] < 0.007
    stated = float(BY_NAME["lbbnn/simulation"].metrics["elbo"].rpartition(" ")[2])
    assert figures["elbo"] == pytest.approx(stated, abs=0.055)  # half a unit of either's last digit


def test_the_enumeration_counts_the_models_of_the_design(cell, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((200, 6)), (rng.random(200) < 0.5).astype(float)
    monkeypatch.setattr(selection, "design", lambda: (x, y))
    found, evidence = selection.enumerated.__wrapped__()
    exact = enumerate_spike_slab_logistic(x, y, inclusion_prob=0.25)
    np.testing.assert_allclose(found, exact.inclusion)
    assert evidence == pytest.approx(exact.log_evidence)
    monkeypatch.setattr(selection, "enumerated", lambda: (selection.EXACT - np.eye(20)[6] / 5, -50.0))
    figures = selection.simulation(cell("exact", dataset="mjmcmc_sim_logistic"))
    assert (figures["worst"], figures["elbo"]) == (pytest.approx(0.2), -50)


@NEEDS_MIRROR
def test_design_is_standardised():
    x, y = selection.design()
    assert x.shape == (2000, 20)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-9)
    assert set(y) == {0, 1}


@pytest.mark.slow
@NEEDS_MIRROR
@pytest.mark.usefixtures("no_gates")
@pytest.mark.parametrize("rows", [300, SLOW(2000)])
def test_correlation_cell_of_the_reference(cell, first_rows, rows):
    first_rows(rows)
    place = cell("exact", "0.4", dataset="mjmcmc_sim_logistic", draws=40, noise=0.1)
    figures = selection.correlations(place)
    assert_declared("correlations", figures)
    assert figures["rmse"] == 0
    assert np.load(place.folder / "correlations.npy").shape == (20, 20)


@pytest.mark.slow
@NEEDS_MIRROR
@pytest.mark.usefixtures("no_gates")
def test_correlation_cells_say_where_the_bound_stands(cell, first_rows):
    first_rows(300)
    place = cell("spike-slab", "0.4", dataset="mjmcmc_sim_logistic", draws=40, noise=0.1, steps=20)
    figures = selection.correlations(place)
    assert_declared("correlations", figures)
    assert figures["elbo"] < 0
    assert "bound_change" in figures


def test_a_reference_that_fails_its_gates_is_no_reference():
    """Two draws tell nothing about convergence."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 3))
    with pytest.raises(FailedError, match="the reference failed: .*; take more than 4 draws"):
        selection.sampled_inclusion(x, (x[:, 0] > 0).astype(float), 4, 0)


def test_all_methods_of_a_trial_are_graded_by_one_reference(cell, monkeypatch):
    seeds, rng = [], np.random.default_rng(0)
    x, y = rng.standard_normal((30, 20)), np.arange(30.0) % 2
    monkeypatch.setattr(selection, "mixed_data", lambda *asked: (x, y))
    monkeypatch.setattr(selection, "fit_inclusion", lambda cell, x, y: (np.full(20, 0.6), {}))
    monkeypatch.setattr(
        selection, "sampled_inclusion", lambda x, y, draws, seed: seeds.append(seed) or np.full(20, 0.4)
    )
    for method in ("exact", "spike-slab", "mnf"):
        place = cell(method, "0.4", dataset="mjmcmc_sim_logistic", draws=40, noise=0.1)
        selection.correlations(place)
    assert len(seeds) == 3
    assert len(set(seeds)) == 1
