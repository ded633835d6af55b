"""The printed repetitions, drawn as the published program draws them."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from data_loaders import load
from data_loaders.splits import split_80_20
from tests.marks import NEEDS_MIRROR
from zoo.errors import UserError
from zoo.experiments import Cell
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.sspbp import replay


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


def test_the_published_program_has_five_repetitions():
    with pytest.raises(UserError, match="has 5 repetitions: --trials 5 at most"):
        replay.repetition("yacht", (50,), True, 5)
