"""The cells of the experiments on functions with tiny fits, and what their declarations promise."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from guides.implicit.generator import Generator
from tests.marks import NEEDS_MIRROR
from zoo.experiments import Cell, Published
from zoo.experiments.engine.declaration import Record
from zoo.experiments.sip import cells, problems
from zoo.experiments.sip.declared import EXPERIMENTS, FIGURES, METHODS, _printed_ranks
from zoo.experiments.sip.ranks import average_ranks, chance, write_ranks
from zoo.experiments.splits import random_80_20
from zoo.fitting import implicit
from zoo.fitting.implicit import METHODS as METHODS_OF_ZOO
from zoo.fitting.problem import prepare
from zoo.fitting.reach import half_cosine_change
from zoo.models import BNN

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
TINY = {"steps": 4, "every": 2, "alpha": 1.0, "looks": 2, "differences": 2, "warmup": 5, "draws": 5}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for module in (implicit, cells):
        monkeypatch.setattr(module, "WIDTHS", (5,))
    for name in ("INDUCING", "INDUCING_OF_MORE"):
        monkeypatch.setattr(implicit, name, 5)
    monkeypatch.setattr(cells, "NETWORK", {"widths": (4,)})


def run(name: str, folder, method="sip-bnn", setting="default", dataset="piecewise") -> Record:
    experiment = BY_NAME[f"sip/{name}"]
    cell = Cell(experiment.name, dataset, method, setting, 0, options=TINY, folder=folder)
    torch.manual_seed(0)
    found = experiment.run(cell)
    assert set(found) <= set(experiment.metrics)
    assert all(math.isfinite(value) for value in found.values())
    return Record(cell, "ok", found, 1.0, folder)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "method",
    ["sip-bnn", pytest.param("fbnn-gp", marks=pytest.mark.slow), "aadm", "mean-field", "true-law"],
)
def test_toy(method, tmp_path):
    record = run("toy", tmp_path, method)
    if method == "true-law":
        entropy = 0.5 * math.log(2 * math.pi * math.e * 4)
        assert record.metrics["log_likelihood"] == pytest.approx(-entropy, abs=0.1)
        return
    with np.load(tmp_path / "samples.npz") as file:
        assert file["y"].shape == (cells.DRAWN, cells.PLACES)
        assert file["x"].min() == file["x_train"].min()
        assert len(file["prior"]) == (cells.FUNCTIONS if method in ("sip-bnn", "fbnn-gp") else 0)
        assert abs(file["y"].mean() - file["y_train"].mean()) < 3 * file["y_train"].std()
    BY_NAME["sip/toy"].finish(tmp_path, [record])
    assert (tmp_path / "piecewise.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nuts", "nuts-sip-prior"])
def test_toy_by_nuts(method, tmp_path):
    assert run("toy", tmp_path, method).metrics["max_rhat"] > 1


def test_figures_are_in_the_unit_of_the_target():
    problem = random_80_20("piecewise", 0)
    targets, sd = problem.dataset.y_test, problem.scale.y_sd
    assert sd > 1.5
    law = Normal(torch.zeros(len(targets), dtype=torch.float64), 1.0)
    found = cells.figures(law, problem)
    mean = problem.dataset.y_train.mean()
    assert found["rmse"] == pytest.approx(np.sqrt(((targets - mean) ** 2).mean()), rel=1e-4)
    expected = Normal(mean, sd).log_prob(torch.as_tensor(targets)).mean().item()
    assert found["log_likelihood"] == pytest.approx(expected, rel=1e-4)


def test_a_held_posterior_is_nearly_a_point():
    generator = Generator(15)
    cells.hold_at_a_point(generator)
    assert not any(p.requires_grad for p in generator.parameters())
    assert generator(100).std(0).max() < 0.02


def test_nuts_samples_under_the_prior_that_was_learned(tmp_path, monkeypatch):
    seen = []

    def sampler(twin, *args, **options):
        seen.append(twin.__self__)
        raise InterruptedError

    monkeypatch.setattr(cells, "nuts", sampler)
    with pytest.raises(InterruptedError):
        run("toy", tmp_path, "nuts-sip-prior")
    problem, method = problems.one_dimensional("piecewise", 0), METHODS_OF_ZOO["sip-bnn"]()
    cell = Cell("sip/toy", "piecewise", "nuts-sip-prior", "default", 0, options=TINY, folder=tmp_path)
    settings = method.settings(problem.size, cell.seed % 2**31, steps=TINY["steps"])
    prior = method.fit(BNN(1, widths=(4,)), problem.train, settings).closed_form.prior
    learned = dict(prior.named_parameters())
    for name, value in seen[0].process.named_parameters():
        assert torch.equal(value, learned[name]), name


def test_inducing_inputs_start_together_or_at_rows(tmp_path, monkeypatch):
    """In the unit of x; and where they start together the posterior is held."""
    held, hold = [], cells.hold_at_a_point

    def hold_and_keep(generator: Generator) -> None:
        hold(generator)
        held.append((generator, {name: value.clone() for name, value in generator.state_dict().items()}))

    monkeypatch.setattr(cells, "hold_at_a_point", hold_and_keep)
    frozen, free = (run("inducing", tmp_path, setting=setting) for setting in ("frozen", "free"))
    ((generator, start),) = held
    for name, value in generator.state_dict().items():
        assert torch.equal(value, start[name]), name
    sd = problems.one_dimensional("piecewise", 0).dataset.x_train.std()
    assert frozen.metrics["spread_at_first"] == pytest.approx(0.01 * sd, rel=0.5)
    assert free.metrics["spread_at_first"] == pytest.approx(sd, rel=0.25)
    assert set(free.metrics) == set(BY_NAME["sip/inducing"].metrics)
    with np.load(tmp_path / "trajectories.npz") as file:
        places = file["places"]
    assert places.shape == (3, 50)
    assert free.metrics["spread_at_last"] == pytest.approx(places[-1].std())
    assert free.metrics["moved"] == pytest.approx(np.abs(places[-1] - places[0]).mean())


@pytest.mark.slow
def test_inducing(tmp_path):
    record = run("inducing", tmp_path, setting="frozen")
    assert 0 < record.metrics["spread_at_first"] < 0.1
    with np.load(tmp_path / "trajectories.npz") as file:
        assert file["places"].shape == (3, 15)
    BY_NAME["sip/inducing"].finish(tmp_path, [record])
    assert (tmp_path / "piecewise-frozen.png").exists()
    assert run("inducing", tmp_path, setting="free").metrics["spread_at_first"] > 1


def test_table_and_ranks(tmp_path):
    first = run("uci", tmp_path, "vip").metrics
    assert run("uci", tmp_path, "vip").metrics["rmse"] == first["rmse"]

    def record(method: str, crps: float, status: str = "ok") -> Record:
        found = {"rmse": crps, "log_likelihood": -crps, "crps": crps} if status == "ok" else {}
        return Record(Cell("sip/uci", "boston", method, "default", 0), status, found, 1.0, tmp_path)

    three = ("a", "b", "c")
    ranks, races = average_ranks([record("a", 2.0), record("b", 1.0), record("c", 0, "failed: x")], three)
    assert races == 1
    assert ranks["log_likelihood"] == ranks["crps"]
    assert {name: rank.mean for name, rank in ranks["crps"].items()} == {"a": 2.0, "b": 1.0, "c": 3.0}
    assert average_ranks([record("a", 2.0)], three) == ({}, 0)
    records = [record(name, 1.0 + place) for place, name in enumerate(METHODS.values())]
    BY_NAME["sip/uci"].finish(tmp_path, records)
    assert "| sip-bnn | 7.00 | 2.45 ± 0.08 |  |" in (tmp_path / "ranks.md").read_text()


def test_ranks_of_several_races_have_an_error_and_a_z(tmp_path):
    """Ranks 1, 1, 2 and 2, 2, 1: means 4/3 and 5/3, sd 1/sqrt(3), standard error 1/3 over three races."""

    def race(dataset: str, *crps: float) -> list[Record]:
        return [
            Record(
                Cell("sip/uci", dataset, name, "default", 0),
                "ok",
                dict.fromkeys(FIGURES, value)
                | {"bound_change": -0.03 if (dataset, name) == ("y", "b") else 0.01},
                1.0,
                tmp_path,
            )
            for name, value in zip("ab", crps, strict=True)
        ]

    records = [*race("x", 1.0, 2.0), *race("y", 1.0, 2.0), *race("z", 2.0, 1.0)]
    printed = {"crps": {"a": Published(2.2, 0.1), "b": Published(2.0, 0.1)}}
    write_ranks(tmp_path, records, ("a", "b"), printed, 0.02)
    head, text = (tmp_path / "ranks.md").read_text().split("## crps")
    assert "\n\n1 of 6 fits had not settled (b 1): ranks of this budget.\n\n" in head
    assert "| a | 1.33 ± 0.33 | 2.2 ± 0.1 | **-2.5** |" in text
    assert "| b | 1.67 ± 0.33 | 2 ± 0.1 | -1.0 |" in text
    assert text.endswith("\n\n|z| > 2 in 1 of 2: a (z -2.5), which is not explained.\n")


def test_whether_ranks_are_chance_is_told_by_sets_and_not_by_splits(tmp_path):
    """One order of three methods on two sets: 12 (4 + 16 + 36) / (2 3 4) - 24 = 4, two degrees of freedom."""
    records = [
        Record(
            Cell("sip/uci", dataset, name, "default", trial),
            "ok",
            dict.fromkeys(FIGURES, crps),
            1.0,
            tmp_path,
        )
        for dataset, trial in (("x", 0), ("x", 1), ("y", 0))
        for name, crps in zip("abc", (1.0, 2.0, 3.0), strict=True)
    ]
    assert chance(records, ("a", "b", "c"))["crps"] == pytest.approx(math.exp(-2))
    write_ranks(tmp_path, records, ("a", "b", "c"), {}, 0.02)
    text = (tmp_path / "ranks.md").read_text()
    assert text.count("Friedman's test, over the sets, that all methods are alike: p = 0.14.") == 3
    assert chance(records[:6], ("a", "b", "c")) == {}
    level = [replace(record, metrics=dict.fromkeys(FIGURES, 1.0)) for record in records]
    assert chance(level, ("a", "b", "c")) == {}
    assert chance(records, ("a", "b")) == {}


def test_large(tmp_path, monkeypatch):
    from guides.implicit import AdversarialVariationalBayes

    fit, seen = AdversarialVariationalBayes.fit, {}
    monkeypatch.setattr(
        AdversarialVariationalBayes,
        "fit",
        lambda guide, *args, **options: seen.update(options, guide=guide) or fit(guide, *args, **options),
    )
    record = run("large", tmp_path, "aadm")
    # as on the scoreboard
    assert (seen["lr"], seen["batch_size"]) == (5e-3, 100)
    assert record.metrics["bound_change"] == pytest.approx(
        half_cosine_change(seen["guide"].losses).value / 800
    )
    with np.load(tmp_path / "curve.npz") as file:
        assert file["curve"][-1, 1] == record.metrics["rmse"]
    BY_NAME["sip/large"].finish(tmp_path, [record])
    assert (tmp_path / "piecewise.png").exists()


@pytest.mark.parametrize("method", ["theta", "inducing"])
def test_gradients_are_right(method, tmp_path):
    record = run("gradients", tmp_path, method)
    assert record.metrics["by_differences"] < 1e-2 * record.metrics["largest_divergence"]
    BY_NAME["sip/gradients"].finish(tmp_path, [record])
    assert (tmp_path / "gradients.png").exists()


@NEEDS_MIRROR
def test_one_dimensional_problems():
    for name, rows, held in (("bimodal", 2000, 801), ("heteroscedastic", 2000, 800), ("snelson", 180, 20)):
        problem = problems.one_dimensional(name, 0)
        assert (problem.size, len(problem.y_test)) == (rows, held)
    # of the true density on the released grid
    assert cells._oracle(
        Cell("x", "bimodal", "true-law", "default", 0), problems.one_dimensional("bimodal", 0)
    )["log_likelihood"] == pytest.approx(-2.061, abs=5e-4)


def test_splits_of_large_sets_are_disjoint():
    problem = problems.large("piecewise", 0)
    assert (problem.size, len(problem.y_test)) == (800, 200)
    rows = np.concatenate([problem.dataset.y_train, problem.dataset.y_test])
    assert len(np.unique(rows)) == 1000
    assert random_80_20("piecewise", 3).size == 800
    assert not np.array_equal(problems.large("piecewise", 1).dataset.y_test, problem.dataset.y_test)


def test_print_is_in_the_grid():
    uci = BY_NAME["sip/uci"]
    assert len(uci.published) == 8 * 7 * 3
    assert uci.published["boston", "sip-bnn", "default", "crps"].value == pytest.approx(1.573)
    number = uci.published["boston", "mean-field", "default", "rmse"]  # printed 3.52 ± 0.804, over 20 splits
    assert (number.se, number.runs) == (pytest.approx(0.1798, abs=1e-4), 20)
    assert str(number) == "3.52 ± 0.804"
    assert uci.explanation("naval", "vip", "default", "crps").kind == "misprint"
    assert len(_printed_ranks()["crps"]) == 7


def test_the_change_of_a_bound_is_of_a_training_row(tmp_path, monkeypatch):
    losses = [float(i % 7 + 100 / (i + 1)) for i in range(60)]
    law = Normal(torch.zeros(200, dtype=torch.float64), 1.0)
    fitted = SimpleNamespace(predictor=lambda draws, seed: lambda x: law, losses=losses)
    monkeypatch.setattr(cells, "fit", lambda cell, problem: (fitted, 1.5))
    found = run("uci", tmp_path, "vip").metrics
    assert found["bound_change"] == pytest.approx(half_cosine_change(losses).value / 800)  # of 1000 rows
    assert found["cpu_seconds"] == 1.5


def test_seconds_of_a_curve_are_of_the_training_alone(tmp_path, monkeypatch):
    """By a clock that ticks once whenever it is asked, and stands 1000 seconds in every look."""
    now = [0.0]

    def ticks() -> float:
        now[0] += 1
        return now[0]

    def look(law, problem) -> dict[str, float]:
        now[0] += 1000
        return dict.fromkeys(("rmse", "log_likelihood", "crps"), 0.0)

    monkeypatch.setitem(TINY, "steps", 101)  # looks after 100 and after all
    monkeypatch.setattr(cells, "time", SimpleNamespace(process_time=ticks))
    monkeypatch.setattr(cells, "figures", look)
    assert 0 < run("large", tmp_path, "vip").metrics["cpu_seconds"] < 10
    with np.load(tmp_path / "curve.npz") as file:
        assert len(file["curve"]) == 2  # the second look comes after the first 1000 seconds


def test_the_last_look_is_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setitem(TINY, "steps", 102)
    monkeypatch.setitem(TINY, "looks", 1)
    ends, figures = [], cells.figures
    monkeypatch.setattr(cells, "figures", lambda *given: ends.append(figures(*given)) or ends[-1])
    found = run("large", tmp_path, "vip").metrics
    assert len(ends) == 2  # after 100 steps, and after all
    assert ends[0]["rmse"] != ends[1]["rmse"] == found["rmse"]


def test_the_ratio_of_gradients_is_that_of_their_root_mean_squares(tmp_path):
    found = run("gradients", tmp_path, "inducing").metrics
    assert found["ratio"] == pytest.approx(found["data"] / found["divergence"])
    assert found["ratio"] != pytest.approx(1, rel=0.1)
    with np.load(tmp_path / "gradients.npz") as file:
        for name in ("data", "divergence"):
            assert found[name] == pytest.approx((file[name] ** 2).mean() ** 0.5)
        sizes = np.abs(file["data"])
        assert sizes[file["largest"]].tolist() == sorted(sizes, reverse=True)[: TINY["differences"]]


@NEEDS_MIRROR
def test_points_that_are_predicted_keep_their_targets():
    """Where the noise vanishes they are left out with these."""
    for name in ("heteroscedastic", "bimodal"):
        data = problems.one_dimensional(name, 0).dataset
        grid = data.extras
        released = set(zip(grid["x_grid"][:, 0].tolist(), grid["y_grid"].tolist(), strict=True))
        found = list(zip(data.x_test[:, 0].tolist(), data.y_test.tolist(), strict=True))
        assert set(found) <= released
        assert len(found) == len(released) - (name == "heteroscedastic")


def test_what_is_left_for_pictures_is_in_original_units(tmp_path):
    problem = problems.one_dimensional("piecewise", 0)
    scale, data = problem.scale, problem.dataset
    prior = SimpleNamespace(draw=lambda n: lambda x: torch.ones(n, len(x)))
    cell = Cell("sip/toy", "piecewise", "vip", "default", 0, folder=tmp_path)
    cells._leave(cell, problem, lambda x: Normal(torch.zeros(len(x)), 1e-6), prior)
    with np.load(tmp_path / "samples.npz") as file:
        np.testing.assert_allclose(file["y"], scale.y_mean, rtol=1e-4)
        np.testing.assert_allclose(file["prior"], scale.y_mean + scale.y_sd)
        assert (file["x"][0], file["x"][-1]) == (data.x_train.min(), data.x_train.max())
        np.testing.assert_array_equal(file["y_train"], data.y_train)
    assert abs(scale.y_sd - 1) > 0.5


def test_inducing_inputs_are_left_in_original_units(tmp_path, monkeypatch):
    """Of rows that begin at 100: so do the places."""
    whole = problems.one_dimensional("piecewise", 0).dataset
    far = prepare(replace(whole, x_train=whole.x_train + 100, x_test=whole.x_test + 100))
    monkeypatch.setattr(problems, "one_dimensional", lambda name, trial: far)
    run("inducing", tmp_path, setting="free")
    with np.load(tmp_path / "trajectories.npz") as file:
        assert (np.abs(file["places"] - far.dataset.x_train.mean()) < 6).all()
        assert file["places"][0].std() > 1


def test_points_that_are_predicted_are_fresh():
    data = problems.one_dimensional("piecewise", 0).dataset
    assert not np.isin(data.x_test, data.x_train).any()
    assert len(data.x_test) == 801


def test_a_trial_has_a_split_of_its_own_and_draws_a_seed_beside_the_fits(tmp_path, monkeypatch):
    """One number for a fit and for its draws would make them depend on each other."""
    splits, fits, draws = [], [], []
    problem = problems.one_dimensional("piecewise", 0)

    def fit(model, train, settings):
        fits.append(settings.seed)
        return SimpleNamespace(
            predictor=lambda number, seed: draws.append(seed) or (lambda x: Normal(x[:, 0], 1.0)),
            losses=[float(step) for step in range(20)],
        )

    def method_of(name):
        return SimpleNamespace(settings=lambda rows, seed, steps: SimpleNamespace(seed=seed), fit=fit)

    monkeypatch.setattr(cells, "random_80_20", lambda *place: splits.append(place) or problem)
    monkeypatch.setattr(cells, "method_of", method_of)
    for trial in (0, 3):
        cells.table(Cell("sip/uci", "boston", "avb", "default", trial, options=TINY, folder=tmp_path))
    assert splits == [("boston", 0), ("boston", 3)]
    assert len({*fits, *draws}) == 4


def test_the_last_place_of_an_inducing_input_is_the_one_after_the_last_step(tmp_path, monkeypatch):
    monkeypatch.setitem(TINY, "every", 3)  # of four steps
    found = run("inducing", tmp_path, setting="free").metrics
    with np.load(tmp_path / "trajectories.npz") as file:
        steps, places = file["steps"], file["places"]
    assert steps.tolist() == [1, 3, 4]
    assert found["spread_at_last"] == pytest.approx(places[-1].std())
    assert (places[-1] != places[-2]).any()
