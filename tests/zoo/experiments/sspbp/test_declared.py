"""The study of ``max(X W, 0)``, the cells of the network tables, and what their declarations promise."""

from __future__ import annotations

import csv
import functools
import math
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import integrate
from typer.testing import CliRunner

from data_loaders import load
from data_loaders.splits import split_80_20
from data_loaders.standardise import Standardizer
from guides.core.distributions import SpikeSlab
from zoo.cli.main import app
from zoo.experiments import Cell
from zoo.experiments.engine import catalogue
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.engine.declaration import Record
from zoo.experiments.sspbp import declared, networks, relu_product, replay
from zoo.experiments.sspbp.relu_product import Mixture, Pair

SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
NEEDS_MIRROR = pytest.mark.skipif("ZOO_DATA" not in os.environ, reason="ZOO_DATA is not set: no real files")
TABLES = [
    f"sspbp/table-{number}" for number in ("3.1", "3.2", "3.3", "3.4", "a1", "a2", "a3", "a4", "a5", "a6")
]
#: squared MMD of the laws for PBP and SSPBP, computed independently; unit of the last digit
POPULATION = {
    "X0-W0": ((0.0680, 1e-4), (0.0217, 1e-4)),
    "X1-W3": ((0.0294, 1e-4), (0.0152, 1e-4)),
    "X1-W-3": ((0.2033, 1e-4), (0.00354, 1e-5)),
    "X3-W3": ((0.0029, 1e-4), (0.0046, 1e-4)),
    "X3-W-3": ((0.01733, 1e-5), (0.00025, 1e-5)),
}


#: One pair of a positive and a negative factor at once, the others when there is time.
PAIRS = [name if name == "X1-W-3" else SLOW(name) for name in declared.PAIRS]


@pytest.fixture(autouse=True)
def _real_experiments(calls, monkeypatch):
    """Instead of the toys of this folder's other tests."""
    monkeypatch.setattr(catalogue, "MODULES", (declared.__name__,))


# ------------------------------------------------------------------------------------------ max(X W, 0)


@pytest.mark.parametrize("name", declared.PAIRS)
def test_moments_of_the_law(name):
    pair = Pair(*declared.PAIRS[name])
    law, draws = relu_product.law_moments(pair), 1_000_000
    t = relu_product.draw_law(pair, draws, np.random.default_rng(0))
    positive = t[t > 0]
    assert (t > 0).mean() == pytest.approx(law.slab, abs=4 * math.sqrt(law.slab * (1 - law.slab) / draws))
    error = math.sqrt(law.variance / len(positive))
    assert positive.mean() == pytest.approx(law.mean, abs=4 * error)
    spread = (positive - law.mean) ** 2
    assert spread.mean() == pytest.approx(law.variance, abs=4 * spread.std() / math.sqrt(len(positive)))


@pytest.mark.parametrize("name", PAIRS)
def test_density_and_characteristic_function_are_of_one_law(name):
    """The transform of the density, by another quadrature, and the density's mass."""
    pair = Pair(*declared.PAIRS[name])
    law = relu_product.law_moments(pair)
    log_t = np.linspace(-25, 4.5, 4000)
    t = np.exp(log_t)
    weights = relu_product.density_of_law(pair, t) * t * (log_t[1] - log_t[0])
    assert weights.sum() == pytest.approx(law.slab, rel=1e-4)
    frequency = np.array([0.0, 0.3, 1.0, 2.7])
    direct = 1 - law.slab + np.exp(1j * frequency[:, None] * t) @ weights
    np.testing.assert_allclose(relu_product.characteristic_of_law(pair, frequency), direct, atol=2e-4)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("method", declared.METHODS)
def test_population_mmd(name, method):
    pair = Pair(*declared.PAIRS[name])
    value, unit = POPULATION[name][declared.METHODS.index(method)]
    assert relu_product.population_mmd2(pair, relu_product.message(pair, method)) == pytest.approx(
        value, abs=unit
    )


def test_population_mmd_of_two_mixtures_has_a_closed_form(monkeypatch):
    """With a message in the law's place every kernel mean is a Gaussian integral."""
    p, q = Mixture(0.7, 0.4, 0.9), Mixture(0.4, -0.3, 0.5)
    characteristic = relu_product.characteristic_of_mixture
    monkeypatch.setattr(relu_product, "characteristic_of_law", lambda pair, u: characteristic(p, u))

    def kernel(a: Mixture, b: Mixture) -> float:
        def slabs(mean: float, variance: float) -> float:
            return math.exp(-(mean**2) / (1 + 2 * variance)) / math.sqrt(1 + 2 * variance)

        return (
            (1 - a.slab) * (1 - b.slab)
            + a.slab * (1 - b.slab) * slabs(a.mean, a.variance)
            + b.slab * (1 - a.slab) * slabs(b.mean, b.variance)
            + a.slab * b.slab * slabs(a.mean - b.mean, a.variance + b.variance)
        )

    expected = kernel(p, p) + kernel(q, q) - 2 * kernel(p, q)
    assert relu_product.population_mmd2(Pair(0, 0), q) == pytest.approx(expected, rel=1e-10)


def test_biased_mmd_is_the_mean_of_all_kernel_entries():
    rng = np.random.default_rng(0)
    s, t = rng.normal(size=7), rng.normal(size=1203)

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None, :]) ** 2)).mean()

    assert relu_product.biased_mmd2(s, t) == pytest.approx(kernel(s, s) + kernel(t, t) - 2 * kernel(s, t))
    assert relu_product.biased_mmd2(s, s) == pytest.approx(0, abs=1e-12)


def test_draws_of_a_message_have_its_moments():
    mixture = Mixture(0.3, 1.5, 0.7)
    draws = relu_product.draw_mixture(mixture, 200_000, np.random.default_rng(0))
    assert (draws != 0).mean() == pytest.approx(0.3, abs=0.005)
    assert draws[draws != 0].mean() == pytest.approx(1.5, abs=0.02)
    assert draws[draws != 0].var() == pytest.approx(0.7, abs=0.03)
    total = integrate.quad(
        lambda value: float(relu_product.density_of_mixture(mixture, np.array([value]))[0]), -5, 8
    )
    assert total[0] == pytest.approx(0.3, abs=1e-6)


@pytest.fixture
def transform_once(monkeypatch):
    """The law's characteristic function costs a second: for one pair at always the same frequencies, once."""
    known, transform = {}, relu_product.characteristic_of_law

    def once(pair, frequency):
        if pair not in known:
            known[pair] = transform(pair, frequency)
        return known[pair]

    monkeypatch.setattr(relu_product, "characteristic_of_law", once)


@pytest.mark.usefixtures("transform_once")
def test_cells_of_the_study():
    found = {}
    for method in ("pbp", "sspbp", "same"):
        cell = Cell("sspbp/table-3.1", "X1-W-3", method, "default", 0, options={"draws": 1500})
        found[method] = declared.compare_product(cell)
        assert found[method] == declared.compare_product(cell)
    assert found["pbp"]["mmd2"] == pytest.approx(found["pbp"]["mmd2_population"], abs=0.05)
    assert found["same"]["mmd2"] < 0.01 < found["pbp"]["mmd2"]
    assert found["same"]["mmd2_population"] == 0


def test_figure_is_drawn_from_whatever_cells_there_are(tmp_path):
    experiment = find_experiment("sspbp/figure-3.1")
    records = []
    for combination in list(experiment.combinations())[:5]:
        folder = tmp_path / "-".join(combination)
        folder.mkdir()
        cell = Cell(experiment.name, *combination, 0, options={"points": 50}, folder=folder)
        records.append(Record(cell, "ok", experiment.run(cell), 0.0, folder))
    experiment.finish(tmp_path, [])
    assert not (tmp_path / "figure-3.1.png").exists()
    experiment.finish(tmp_path, records)
    assert (tmp_path / "figure-3.1.png").stat().st_size > 10_000


# --------------------------------------------------------------------------------------------- networks


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
@pytest.mark.parametrize("change", [{"trial": 1}, SLOW({"base_seed": 1}), SLOW({"method": "sspbp"})])
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


# ----------------------------------------------------------------------------------------------- replay


@pytest.mark.slow
def test_the_stream_is_drawn_as_the_program_draws_it():
    """From its seed: the test rows, then for each method its means layer by layer, and 40 orders."""
    rng = np.random.RandomState(0x79B7BFF4)
    for number in (0, 1):
        found = replay.repetition("boston", (50,), True, number)
        np.testing.assert_array_equal(found.test, rng.choice(np.arange(506), 101, replace=False))
        assert sorted([*found.train, *found.test]) == list(range(506))
        for method in ("pbp", "sspbp"):
            means, order = found.starts[method]
            np.testing.assert_array_equal(means["w1"], 1.0 / np.sqrt(14) * rng.randn(50, 14))
            np.testing.assert_array_equal(means["w2"], 1.0 / np.sqrt(51) * rng.randn(1, 51))
            for epoch in range(40):
                expected = rng.choice(range(405), 405, replace=False)
                np.testing.assert_array_equal(order[epoch], expected)


@pytest.mark.slow
def test_networks_follow_each_other_in_one_stream():
    """All that a network without biases draws comes before the first repetition of the next one."""
    rng = np.random.RandomState(0x79B7BFF4)
    for _, rows, inputs in replay.SETS:
        for _ in range(5):
            replay._draw(rng, (inputs, 50, 1), rows, bias=False)
    found = replay.repetition("boston", (10, 10), False, 0)
    np.testing.assert_array_equal(found.test, rng.permutation(506)[:101])
    means, order = found.starts["pbp"]
    assert [means[f"w{i}"].shape for i in (1, 2, 3)] == [(10, 13), (10, 10), (1, 10)]
    assert order.shape == (40, 405)


def test_a_column_that_is_constant_up_to_rounding_becomes_ones():
    """As in naval: the mean of many .998 is off by the last bit, and so is every row from it."""
    x = np.column_stack([np.full(9547, 0.998), np.full(9547, 288.0), np.arange(9547.0)])
    y = np.arange(9547.0)
    if x[:, 0].std() == 0:
        pytest.skip("numpy adds up without rounding error here")
    scale = replay.as_numpy_standardises(SimpleNamespace(x_train=x, y_train=y))
    rows = scale.transform_x(x)
    np.testing.assert_allclose(rows[:, 0], 1.0)
    np.testing.assert_array_equal(rows[:, 1], 0.0)


@pytest.mark.parametrize(
    ("method", "printed_split", "printed_start"),
    [("splits", True, False), ("starts", False, True), ("neither", False, False)],
)
def test_parts_of_the_print_are_taken_one_at_a_time(method, printed_split, printed_start, monkeypatch):
    """Trial 7 has the split or the starts of repetition 2; what is not printed is the tables' own."""
    printed = replay.Repetition(
        np.arange(80), np.arange(80, 100), {"pbp": ({"w1": np.ones((10, 7))}, np.zeros((40, 80), int))}
    )
    seen = {}

    class Guide:
        def fit(self, x, y, **wishes):
            seen.update(wishes)

    monkeypatch.setattr(replay, "repetition", lambda *asked: seen.update(asked=asked) or printed)
    problem = SimpleNamespace(train=(None, None))
    monkeypatch.setattr(
        replay, "_problem", lambda data, train, test: seen.update(train=train, test=test) or problem
    )
    monkeypatch.setattr(replay, "_guide", lambda *_: Guide())
    monkeypatch.setattr(replay, "figures", lambda *_: {})
    cell = Cell("sspbp/apart", "yacht", method, "free-10", 7, options={"epochs": 3})
    replay.taken_apart(cell)
    assert seen["asked"] == ("yacht", (10,), False, 2)
    train, test = (printed.train, printed.test) if printed_split else split_80_20(100, 7)
    np.testing.assert_array_equal(seen["train"], train)
    np.testing.assert_array_equal(seen["test"], test)
    if printed_start:
        assert "seed" not in seen
        assert seen["order"].shape == (3, 80)
        assert seen["init_means"] is printed.starts["pbp"][0]
    else:
        assert seen["seed"] == cell.seed
        assert not {"order", "init_means"} & set(seen)


@pytest.mark.parametrize(("method", "column"), [("pbp", 1.0), ("pbp-zero-column", 0.0)])
def test_naval_is_replayed_with_its_column_of_ones_and_without(method, column, monkeypatch):
    """From the same split, starting means and order."""
    x = np.column_stack([np.full(9554, 0.998), np.arange(9554.0)])
    y = np.arange(9554.0)
    whole = replace(load("diabetes"), x_train=x, y_train=y, feature_names=("constant", "rising"))
    starts = {"pbp": ({"w1": np.ones((10, 3))}, np.zeros((40, 9547), int))}
    printed = replay.Repetition(np.arange(9547), np.arange(9547, 9554), starts)
    seen = {}

    class Guide:
        def fit(self, x, y, **wishes):
            seen.update(wishes, x=x)

    if x[:9547, 0].std() == 0:
        pytest.skip("numpy adds up without rounding error here")
    monkeypatch.setattr(replay, "load", lambda *_, **__: whole)
    monkeypatch.setattr(replay, "repetition", lambda *_: printed)
    monkeypatch.setattr(replay, "_guide", lambda _task, message, *_: seen.update(message=message) or Guide())
    monkeypatch.setattr(replay, "figures", lambda *_: {})
    replay.replayed(Cell("sspbp/replay", "naval", method, "free-10", 0, options={"epochs": 3}))
    np.testing.assert_allclose(seen["x"][:, 0], column, atol=1e-9)
    assert seen["message"] == "pbp"
    assert method in find_experiment("sspbp/replay").methods
    assert seen["init_means"] is starts["pbp"][0]


@NEEDS_MIRROR
@pytest.mark.slow
@pytest.mark.parametrize(("method", "setting"), [("pbp", "bias-50"), ("sspbp", "free-10x10")])
def test_printed_repetitions_give_the_printed_digits(method, setting):
    """Mean and population standard deviation over root 5, all three decimals of both figures."""
    experiment = find_experiment("sspbp/replay")
    cells = [
        Cell("sspbp/replay", "yacht", method, setting, number, options={"epochs": 40}) for number in range(5)
    ]
    found = [replay.replayed(cell) for cell in cells]
    for figure in ("rmse", "log_likelihood"):
        values = np.array([figures[figure] for figures in found])
        words = f"{values.mean():.3f} ± {values.std() / math.sqrt(5):.3f}"
        assert words == str(experiment.published["yacht", method, setting, figure])


# ------------------------------------------------------------------------------------------ declarations


@pytest.mark.parametrize(
    "name", ["sspbp/figure-3.1", *TABLES, "sspbp/replay", "sspbp/apart", "sspbp/reference-program"]
)
def test_declarations(name):
    experiment = find_experiment(name)
    assert experiment.quick.trials <= experiment.full.trials
    assert "." in experiment.source.table or "runs" in experiment.source.table
    assert experiment.summary.endswith(".")
    if experiment.datasets == declared.DATASETS:
        assert len(list(experiment.combinations())) == 8 * 2 * 2
        why = experiment.explanation("energy", "pbp", experiment.settings[0], next(iter(experiment.metrics)))
        assert why.kind == "another task"
        assert experiment.full.trials == 20
        assert experiment.full.options["epochs"] == 40


def test_errors_of_the_print_get_the_usual_divisor():
    """Five runs: 0.179 sqrt(5 / 4)."""
    number = find_experiment("sspbp/table-3.3").published["boston", "pbp", "50", "rmse"]
    assert number.se == pytest.approx(0.20013, abs=1e-5)
    assert str(number) == "3.554 ± 0.179"


#: The number of the table, what it prints, its networks, and whether they have biases.
PRINTED = {
    "3.3": ("rmse", ("50", "10x10"), True),
    "3.4": ("rmse", ("50", "10x10"), False),
    "a1": ("rmse", ("10", "100"), True),
    "a2": ("log_likelihood", ("10", "100"), True),
    "a3": ("log_likelihood", ("50", "10x10"), True),
    "a4": ("rmse", ("10", "100"), False),
    "a5": ("log_likelihood", ("10", "100"), False),
    "a6": ("log_likelihood", ("50", "10x10"), False),
}


@pytest.mark.parametrize("number", PRINTED)
def test_every_table_shows_what_the_print_shows(number):
    figure, settings, bias = PRINTED[number]
    table = find_experiment(f"sspbp/table-{number}")
    words = number if "." in number else f"A.{number[1]}"
    assert table.source.table == f"Table {words}"
    assert table.settings == settings
    assert table.run.name == ("with_bias" if bias else "without_bias")
    assert next(iter(table.metrics)) == figure + ("" if bias else "_published")
    # the print of networks without biases is of the published evaluation
    beside = {place[3] for place in table.published}
    assert beside == ({"rmse", "log_likelihood"} if bias else set(declared.PUBLISHED_FIGURES))


def test_published_slab_probabilities_leave_no_run_out():
    table = find_experiment("sspbp/table-3.2")
    assert table.settings == ("5", "50", "5x5", "50x50", "5x5x5", "50x50x50")
    assert "left out" in table.explanation("boston", "sspbp", "5x5x5", "slab_layer_4").why
    assert table.explanation("boston", "sspbp", "5x5x5", "slab_layer_2") is None
    assert table.full.trials == 30


@NEEDS_MIRROR
@pytest.mark.slow
def test_a_real_table_of_one_set(tmp_path):
    call = "reproduce sspbp/table-3.4 --datasets yacht --settings 50 --trials 1 --budget quick --out"
    result = CliRunner().invoke(app, [*call.split(), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], row["metric"]) for row in rows} == {
        (method, metric)
        for method in declared.METHODS
        for metric in (*declared.FIGURES, *declared.PUBLISHED_FIGURES)
    }
    assert all(
        row["dataset"] == "yacht" and (row["published"] != "") == row["metric"].endswith("published")
        for row in rows
    )


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
