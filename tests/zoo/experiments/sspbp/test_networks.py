"""The cells of the network tables: fits, figures and seeds."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_loaders import load
from data_loaders.standardise import Standardizer
from guides.core.distributions import SpikeSlab
from tests.marks import NEEDS_MIRROR
from zoo.experiments import Cell
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.sspbp import networks


def cell_of(experiment: str, method: str, setting: str, **changes) -> Cell:
    """On a data set that is always there."""
    options = {"epochs": 2}
    return Cell(experiment, "diabetes", method, setting, changes.pop("trial", 0), options=options, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "method"),
    [  # every kind of network is compiled anew, for seconds
        ("sspbp/table-3.4", "sspbp"),
        ("sspbp/table-3.4", "pbp"),
        ("sspbp/table-3.3", "pbp"),
    ],
)
def test_a_cell_gives_every_figure(experiment, method):
    declared = find_experiment(experiment)
    figures = declared.run(cell_of(experiment, method, "4x4"))
    assert set(figures) == set(declared.metrics)
    assert all(math.isfinite(value) for value in figures.values())
    assert 50 < figures["rmse"] < 90  # the sd of the target is 77
    assert -6.5 < figures["log_likelihood"] < -5


@pytest.mark.slow
def test_the_same_fit_in_two_tables_is_the_same():
    rmse = find_experiment("sspbp/table-3.3").run(cell_of("sspbp/table-3.3", "pbp", "4x4"))
    likelihood = find_experiment("sspbp/table-a3").run(cell_of("sspbp/table-a3", "pbp", "4x4"))
    assert rmse == likelihood
    assert list(find_experiment("sspbp/table-a3").metrics)[0] == "log_likelihood"


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"trial": 1}, {"base_seed": 1}, {"method": "sspbp"}])
def test_seed_trial_and_method_change_a_fit(change):
    asked = {"method": "pbp", "setting": "4x4"}
    cells = [cell_of("sspbp/table-3.3", **asked), cell_of("sspbp/table-3.3", **{**asked, **change})]
    first, other = (networks.with_bias(cell)["rmse"] for cell in cells)
    assert first != other


def test_layers_and_units(monkeypatch):
    asked = []
    monkeypatch.setattr(networks, "fit", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(networks, "figures", lambda *arguments: {})
    for setting in ("50", "10x10", "100"):
        networks.with_bias(cell_of("sspbp/table-3.3", "pbp", setting))
    assert [widths for *_, widths, _ in asked] == [(50,), (10, 10), (100,)]


@pytest.mark.slow
@pytest.mark.slow
def test_slab_probabilities_a_layer():
    slabs = networks.mean_slabs(cell_of("sspbp/table-3.2", "sspbp", "4x4"))
    assert list(slabs) == ["slab_layer_1", "slab_layer_2", "slab_layer_3"]
    assert slabs["slab_layer_1"] == 1
    assert 0 < slabs["slab_layer_3"] < 1


def test_a_layers_slab_probability_is_the_mean_over_test_rows(monkeypatch):
    slabs = [torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.9, 0.3, 0.0])]
    guide = SimpleNamespace(slab_probabilities=lambda x: slabs)
    monkeypatch.setattr(networks, "fit", lambda *args, **options: guide)
    found = networks.mean_slabs(cell_of("sspbp/table-3.2", "sspbp", "4"))
    assert found == {"slab_layer_1": 1.0, "slab_layer_2": pytest.approx(0.4)}


def test_first_five_trials_are_the_protocol():
    """And all rows are split, not those of another protocol."""
    for trial in (0, 4):
        problem, split = networks.problem_80_20("diabetes", trial), load("diabetes", trial, protocol="80/20")
        np.testing.assert_array_equal(problem.dataset.y_test, split.y_test)
        assert problem.x.dtype == problem.y.dtype == torch.float64
        np.testing.assert_allclose(problem.scale.inverse_mean(problem.y.numpy()), split.y_train)
        np.testing.assert_allclose(problem.x.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(problem.x.std(0, correction=0), 1, atol=1e-12)
    assert len(networks.problem_80_20("diabetes", 7).y_test) == round(0.2 * 442)


def test_published_figures_are_in_the_unit_of_the_target():
    """Law and noise alike: a target of sd 2 around 5."""
    law = SpikeSlab(torch.tensor([0.9, 0.4]), loc=torch.tensor([0.3, -1.0]), scale=torch.tensor([0.5, 0.7]))
    guide = SimpleNamespace(predictive=lambda x, noise: law, noise_variance=0.3)
    y = np.array([5.5, 2.0])
    scale = Standardizer(np.zeros(1), np.ones(1), 5.0, 2.0)
    problem = SimpleNamespace(x_test=None, dataset=SimpleNamespace(y_test=y), scale=scale)
    mean, variance = 5 + 2 * law.loc.double().numpy(), 4 * law.scale.double().numpy() ** 2
    slab = law.probs.double().numpy()
    expected = networks.published_evaluation(y, slab, mean, variance, noise_variance=1.2)
    assert networks.published_figures(guide, problem) == pytest.approx(expected, rel=1e-6)


def test_published_evaluation():
    """Against the mixture by hand; without a spike it is the right one."""
    rng = np.random.default_rng(0)
    y, mean, variance = rng.normal(3, 1, 9), rng.normal(3, 1, 9), rng.uniform(0.1, 1, 9)
    slab = rng.uniform(0.2, 0.9, 9)

    def normal(deviation, total):
        return np.exp(-0.5 * deviation**2 / total) / np.sqrt(2 * math.pi * total)

    figures = networks.published_evaluation(y, slab, mean, variance, 0.3)
    density = (1 - slab) * normal(y, 0.3) + slab * normal(y - mean, variance + 0.3)
    assert figures["log_likelihood_published"] == pytest.approx(np.log(density).mean())
    assert figures["rmse_published"] == pytest.approx(np.sqrt(((y - mean) ** 2).mean()))
    whole = networks.published_evaluation(y, np.ones(9), mean, variance, 0.3)
    expected = np.log(normal(y - mean, variance + 0.3)).mean()
    assert whole["log_likelihood_published"] == pytest.approx(expected)


@pytest.mark.slow
def test_figures_are_of_the_mixture_with_its_spike_at_the_mean_of_the_targets():
    """RMSE and log likelihood in the target's unit, from the guide's law without noise."""
    cell = cell_of("sspbp/table-3.4", "sspbp", "4x4")
    problem = networks.problem_80_20("diabetes", 0)
    guide = networks.fit(cell, problem, (4, 4), bias=False)
    law, noise = guide.predictive(problem.x_test, noise=False), guide.noise_variance
    assert isinstance(law, SpikeSlab)
    y, scale = torch.as_tensor(problem.dataset.y_test), problem.scale
    sd, centre = scale.y_sd, scale.y_mean
    slab = torch.distributions.Normal(law.loc * sd + centre, (law.scale**2 + noise).sqrt() * sd)
    spike = torch.distributions.Normal(torch.tensor(centre), noise**0.5 * sd)
    density = law.probs * slab.log_prob(y).exp() + (1 - law.probs) * spike.log_prob(y).exp()
    figures = networks.without_bias(cell)
    assert figures["log_likelihood"] == pytest.approx(density.log().mean().item(), rel=1e-9)
    mean = law.probs * (law.loc * sd + centre) + (1 - law.probs) * centre
    assert figures["rmse"] == pytest.approx(((y - mean) ** 2).mean().sqrt().item(), rel=1e-9)
    assert figures["rmse_published"] != figures["rmse"]


@NEEDS_MIRROR
@pytest.mark.slow
def test_constant_columns_do_no_harm():
    figures = networks.with_bias(Cell("sspbp/table-3.3", "naval", "pbp", "10", 0, options={"epochs": 1}))
    assert 0 < figures["rmse"] < 0.0147  # the sd of the target


def test_every_fit_has_a_seed_of_its_own(monkeypatch):
    """What changes a fit changes its seed, and nothing else does: the table that it is for, say."""
    seeds = []

    class Guide:
        def __init__(self, model, messages):
            pass

        def fit(self, x, y, *, epochs, seed):
            seeds.append(seed)

    monkeypatch.setattr(networks, "ProbabilisticBackpropagation", Guide)
    x = torch.zeros(2, 3)
    problem = SimpleNamespace(x=x, train=(x, None))

    def ask(experiment="sspbp/table-3.3", method="pbp", widths=(4, 4), bias=True, **changes):
        networks.fit(cell_of(experiment, method, "4x4", **changes), problem, widths, bias)

    ask()
    ask("sspbp/table-a3")
    assert seeds[0] == seeds[1]
    for other in ({"trial": 1}, {"base_seed": 1}, {"method": "sspbp"}, {"widths": (4,)}, {"bias": False}):
        ask(**other)
    assert len(set(seeds)) == 6


def test_references_have_one_layer_of_fifty_with_biases(monkeypatch):
    asked = []
    monkeypatch.setattr(networks, "fit", lambda cell, task, widths, bias: asked.append((widths, bias)))
    monkeypatch.setattr(networks, "figures", lambda *arguments: {})
    for split in ("80-20", "90-10"):
        networks.reference_figures(cell_of("sspbp/table-3.1", "pbp", split))
    assert asked == [((50,), True)] * 2
