"""Fits side by side are, in expectation, the fits one at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pyro import poutine

from guides import AutoConcrete, AutoMNF, AutoSpikeSlab
from guides.testing import z_bound
from zoo.errors import FailedError
from zoo.evaluation.estimates import Estimate
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce
from zoo.experiments.lbbnn import runs, selection
from zoo.experiments.lbbnn.runs import BOUND_DRAWS, SideBySide, bound_of_each, fit_side_by_side, minibatches
from zoo.experiments.lbbnn.runs_of_flows import AutoMNFOfRuns
from zoo.fitting.svi import Fit, FitSettings
from zoo.models.latent_binary import SpikeSlabLogistic

ROWS, COLUMNS, RUNS, INCLUSION = 40, 3, 4, 0.25
#: Of many runs, and of one.
ALONE = {AutoSpikeSlab: AutoSpikeSlab, AutoConcrete: AutoConcrete, AutoMNFOfRuns: AutoMNF}
each_guide = pytest.mark.parametrize("make", ALONE)


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator)
    return x, (x[:, 0] + 0.3 * torch.randn(ROWS, generator=generator) > 0).float()


def guide_of(model, data, make=AutoSpikeSlab, seed=0):
    torch.manual_seed(seed)
    guide = make(model)
    guide.setup(*data)
    if isinstance(guide, AutoConcrete):
        guide.anneal(0.5)  # else its temperature goes with the runs of the model
    return guide


def of_run(name: str, whole: torch.Tensor, run: int, runs: int = RUNS) -> torch.Tensor:
    """A run's part of a parameter.  Flat ones are all weights and, but for logits, all offsets."""
    if name.startswith("multipliers"):
        return whole[run]
    weights = whole[: runs * COLUMNS].reshape(runs, COLUMNS)[run]
    return weights if name == "logits" else torch.cat((weights, whole[runs * COLUMNS :][run, None]))


def copy_run(run: int, many, one, runs: int = RUNS) -> None:
    """Makes the guide of one regression what the guide of many is in this run."""
    pairs = [(many.named_parameters(), one.parameters()), (many.named_buffers(), one.buffers())]
    with torch.no_grad():
        for wholes, parts in pairs:
            for (name, whole), part in zip(wholes, parts, strict=True):
                part.copy_(of_run(name, whole, run, runs))


def make_sharp(guide) -> None:
    """So that two estimates of its loss are alike; and multipliers far from 1, where they start."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        guide.log_scale -= 3
        guide.loc *= 2
        guide.logits += 8 * (torch.arange(len(guide.logits)) % 3 - 1)
        for name, parameter in guide.named_parameters():
            if name.startswith("multipliers"):
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
            if name.endswith("base"):
                parameter[:, 0] += 1
            if name.endswith("auxiliary"):  # that its guess depends on what it sees of the weights
                parameter[:, 0] += torch.randn(parameter[:, 0].shape, generator=generator)
                parameter[:, 2] += 1


@each_guide
def test_runs_know_nothing_of_each_other(data, make):
    """The gradient of one depends on the numbers of no other."""
    guide = guide_of(SideBySide(RUNS, COLUMNS, INCLUSION), data, make)
    batch = next(minibatches(*data, RUNS, 10))

    def gradients() -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        guide.zero_grad()
        guide.elbo().differentiable_loss(guide.model, guide, *batch).backward()
        return {name: parameter.grad.clone() for name, parameter in guide.named_parameters()}

    before = gradients()
    with torch.no_grad():
        for name, parameter in guide.named_parameters():  # of the last run
            if name.startswith("multipliers"):
                parameter[RUNS - 1] += 0.5
                continue
            parameter[(RUNS - 1) * COLUMNS : RUNS * COLUMNS] += 0.5
            parameter[RUNS * COLUMNS + RUNS - 1 :] += 0.5
    after = gradients()
    assert len(before) == (3 if make is not AutoMNFOfRuns else 21)
    for name in before:
        for run in range(RUNS):
            same = torch.allclose(of_run(name, before[name], run), of_run(name, after[name], run), rtol=1e-4)
            assert same == (run < RUNS - 1), (name, run)


def test_minibatches_are_rows_drawn_for_each_run(data):
    batches = minibatches(*data, RUNS, 10)
    torch.manual_seed(0)
    counts = torch.stack([next(batches)[2] for _ in range(200)])
    assert (counts.sum(1) == ROWS).all()  # of every run, as much as all rows
    assert not torch.equal(counts[0, :, 0], counts[0, :, 1])
    size = 200 * RUNS  # each row: binomial with 10 tries of 1 in ROWS, times ROWS / 10
    spread = ROWS / 10 * math.sqrt(10 / ROWS * (1 - 1 / ROWS) / size)
    assert (counts.mean((0, 2)) - 1).abs().max() < z_bound(ROWS) * spread


@pytest.mark.parametrize("size", [10, None, ROWS])
def test_rows_count_as_often_as_they_were_drawn(data, size):
    model = SideBySide(RUNS, COLUMNS, INCLUSION)
    weights = {"w": torch.randn(RUNS, COLUMNS), "b": torch.randn(RUNS)}
    x, y, *counts = next(minibatches(*data, RUNS, size))
    trace = poutine.trace(poutine.condition(model, weights)).get_trace(x, y, *counts)
    trace.compute_log_prob()
    logits = x @ weights["w"].T + weights["b"]
    single = torch.distributions.Bernoulli(logits=logits).log_prob(y[:, None].expand(logits.shape))
    expected = ((counts[0] if counts else 1) * single).sum()
    assert bool(counts) == (size == 10)
    torch.testing.assert_close(trace.nodes["y"]["log_prob_sum"], expected)


def test_a_fit_takes_minibatches_and_says_the_change_of_a_run(data, monkeypatch):
    asked = []

    def spy(*args):
        asked.append(args[2:])
        return minibatches(*args)

    monkeypatch.setattr(runs, "minibatches", spy)
    monkeypatch.setattr(FitSettings, "last_change", lambda self, losses: Estimate(8.0, None))
    settings = FitSettings(steps=2, lr=0.05, batch_size=20, seed=0)
    assert fit_side_by_side(AutoSpikeSlab, *data, INCLUSION, RUNS, settings).bound_change == 8 / RUNS
    assert asked == [(RUNS, 20)]


@pytest.mark.one_in(2)
@each_guide
def test_the_loss_of_one_run_is_that_of_the_single_regression(data, make):
    side, single = SideBySide(1, COLUMNS, INCLUSION), SpikeSlabLogistic(COLUMNS, INCLUSION)
    many, one = guide_of(side, data, make), guide_of(single, data, ALONE[make])
    make_sharp(many)
    copy_run(0, many, one, runs=1)
    torch.manual_seed(2)
    losses = [
        torch.tensor([guide.elbo().loss(model, guide, *data) for _ in range(100)])
        for model, guide in ((side, many), (single, one))
    ]
    spread = math.sqrt(sum(values.var().item() / len(values) for values in losses))
    assert abs(losses[0].mean() - losses[1].mean()) < z_bound(2) * spread


def law_of_weights(guide, data):
    guide(*data)
    return guide.get_traces()[0].nodes["w"]["fn"].law


def test_flows_of_every_run_are_those_of_a_single_fit(data, monkeypatch):
    """With the same noise: moments, divergence and all gradients."""
    many = guide_of(SideBySide(RUNS, COLUMNS, INCLUSION), data, AutoMNFOfRuns)
    make_sharp(many)
    alone = [guide_of(SpikeSlabLogistic(COLUMNS, INCLUSION), data, AutoMNF) for _ in range(RUNS)]
    for run, guide in enumerate(alone):
        copy_run(run, many, guide)
    monkeypatch.setattr(torch, "randn", lambda shape, **kwargs: torch.ones(shape, **kwargs))
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)

    def results(guide):
        law = law_of_weights(guide, data)
        (law.kl + law.mean.sum() + law.variance.sum()).backward()
        gradients = {name: parameter.grad for name, parameter in guide.named_parameters()}
        return law.kl.detach(), law.mean.detach(), law.variance.detach(), gradients

    divergence, mean, variance, gradients = results(many)
    singles = [results(guide) for guide in alone]
    torch.testing.assert_close(divergence, sum(single[0] for single in singles))
    for run, single in enumerate(singles):
        torch.testing.assert_close(mean[run], single[1])
        torch.testing.assert_close(variance[run], single[2])
        for (name, gradient), own in zip(gradients.items(), single[3].values(), strict=True):
            if gradient is None:  # of the offset
                assert own is None
                continue
            expected = of_run(name, gradient, run)
            torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-4, msg=f"{name} of run {run}")


def test_runs_have_starts_and_noise_of_their_own(data):
    guide = guide_of(SideBySide(RUNS, COLUMNS, INCLUSION), data, AutoMNFOfRuns)
    weights = [p for name, p in guide.multipliers.named_parameters() if name.endswith("_weight")]
    assert len(weights) == 8
    assert all((weight[0] != weight[1]).all() for weight in weights)
    with torch.no_grad():
        for tensor in (*guide.multipliers.parameters(), *guide.multipliers.buffers()):
            tensor[1] = tensor[0]
    first, second, *_ = law_of_weights(guide, data).multipliers_and_density[0]
    assert (first != second).all()


@each_guide
def test_starts_are_those_of_a_single_fit(data, make):
    """The offset's has the prior's sd, however many runs there are."""
    torch.manual_seed(0)
    many = make(SideBySide(200, COLUMNS, INCLUSION))
    many.setup(*data)
    for sd, start in ((COLUMNS**-0.5, many.loc[: 200 * COLUMNS]), (1.0, many.loc[200 * COLUMNS :])):
        error = sd / math.sqrt(2 * (len(start) - 1))
        assert abs(start.std() - sd) < z_bound(2) * error


def test_the_loss_without_gradients_is_a_bound_of_drawn_networks(data):
    """Together those of all runs."""
    guide = guide_of(SideBySide(COLUMNS, COLUMNS, INCLUSION), data, AutoMNFOfRuns)
    make_sharp(guide)
    together, error = Fit(guide, guide.model, data, FitSettings(10)).elbo(200)
    found = bound_of_each(guide, *data, INCLUSION, seed=0).sum()
    assert abs(together - found) < z_bound(1) * error * math.sqrt(1 + 200 / BOUND_DRAWS)


def test_runs_side_by_side_say_how_to_draw_them(data):
    guide = guide_of(SideBySide(RUNS, COLUMNS, INCLUSION), data, AutoMNFOfRuns)
    with pytest.raises(NotImplementedError, match="have draws_of_runs"):
        guide.draws(3)


@pytest.mark.parametrize("make", [AutoSpikeSlab, pytest.param(AutoMNFOfRuns, marks=pytest.mark.slow)])
def test_bounds_are_those_of_the_guides(data, make):
    """Each is that which a fit of its run alone reports."""
    guide = guide_of(SideBySide(RUNS, COLUMNS, INCLUSION), data, make)
    with torch.no_grad():
        guide.loc += torch.randn(guide.loc.shape, generator=torch.Generator().manual_seed(3))
    make_sharp(guide)
    found = bound_of_each(guide, *data, INCLUSION, seed=0)
    torch.testing.assert_close(found, bound_of_each(guide, *data, INCLUSION, seed=0), rtol=0, atol=0)
    single = SpikeSlabLogistic(COLUMNS, INCLUSION)
    for run in range(0, RUNS, 3):
        alone = guide_of(single, data, ALONE[make])
        copy_run(run, guide, alone)
        bound, error = Fit(alone, single, data, FitSettings(10)).elbo(200)
        assert abs(found[run] - bound) < z_bound(2) * error * math.sqrt(1 + 200 / BOUND_DRAWS)


@pytest.mark.slow
@each_guide
def test_fits_side_by_side_find_what_single_fits_find(data, make):
    """The column that makes the labels; the same numbers from the same seed, others from another."""
    settings = FitSettings(steps=300, lr=0.05, batch_size=20, seed=0)
    fits = [fit_side_by_side(make, *data, INCLUSION, RUNS, settings) for _ in range(2)]
    assert fits[0].inclusion.shape == (RUNS, COLUMNS)
    assert (fits[0].inclusion[:, 0] > 0.9).all()
    assert len({*fits[0].elbo}) == RUNS
    np.testing.assert_array_equal(fits[0].inclusion, fits[1].inclusion)
    single = SpikeSlabLogistic(COLUMNS, INCLUSION)
    torch.manual_seed(0)
    alone = Fit(ALONE[make](single), single, data, settings).run()
    spread = fits[0].elbo.std(ddof=1) * math.sqrt(1 + 1 / RUNS)
    assert abs(alone.elbo()[0] - fits[0].elbo.mean()) < max(5 * spread, 0.2)


def test_trials_of_a_block_are_its_runs(cell, monkeypatch):
    """Trial 21 is the second of the second block, and what it is depends on nothing that ran before."""
    asked = []

    def fit(method, steps, seed):
        asked.append((method, steps, seed))
        marks = np.arange(selection.RUNS) / 100
        return selection.FittedRuns(np.tile(marks[:, None], 20), marks, 0.5)

    monkeypatch.setattr(selection, "fitted_runs", fit)
    place = replace(cell("concrete", dataset=selection.DATA, steps=7), trial=selection.RUNS + 1)
    figures = selection.simulation(place)
    assert figures["elbo"] == figures["inclusion_5"] == 0.01
    assert "bound_change" not in figures  # it is known of all together: once
    assert selection.simulation(replace(place, trial=selection.RUNS))["bound_change"] == 0.5
    selection.simulation(replace(place, trial=selection.RUNS + 3))
    selection.simulation(replace(place, trial=3))
    selection.simulation(replace(place, base_seed=1))
    assert asked[0] == asked[1]
    assert len({*asked}) == 3


def test_a_block_that_fails_is_fitted_once(cell, monkeypatch):
    asked = []

    def fail(*args):
        asked.append(args)
        raise FailedError("step 3: the loss is nan")

    monkeypatch.setattr(selection, "fit_side_by_side", fail)
    monkeypatch.setattr(selection, "design", lambda: (np.zeros((5, 2)), np.zeros(5)))
    place = cell("concrete", dataset=selection.DATA, steps=9)
    for trial in (0, 3):
        with pytest.raises(FailedError, match="trials 0 to 19, fitted together: step 3"):
            selection.simulation(replace(place, trial=trial))
    assert len(asked) == 1


def test_a_block_is_fitted_once_by_a_whole_call(monkeypatch, tmp_path):
    asked = []

    def fit(make, *args):
        asked.append(make)
        return selection.FittedRuns(np.zeros((selection.RUNS, 20)), np.zeros(selection.RUNS), 0.5)

    monkeypatch.setattr(selection, "fit_side_by_side", fit)
    monkeypatch.setattr(selection, "design", lambda: (np.zeros((5, 2)), np.zeros(5)))
    methods, trials = list(selection.GUIDES_OF_RUNS), selection.RUNS + 2
    outcome = reproduce(plan("lbbnn/simulation", methods=methods, trials=trials), tmp_path)
    assert len(outcome.asked) == len(methods) * trials
    assert outcome.failed == []
    assert asked == 2 * list(selection.GUIDES_OF_RUNS.values())
