"""A declaration: its grid, its seeds, and the mistakes that it does not let pass."""

from __future__ import annotations

import dataclasses

import pytest

import zoo.experiments.engine.catalogue
from tests.zoo.cli_helpers import fresh_process
from tests.zoo.experiments.toy_experiments import CELLS, declare
from zoo.errors import UserError
from zoo.experiments.engine.catalogue import experiments, find_experiment
from zoo.experiments.engine.declaration import Cell, Effort, Explanation, Source
from zoo.experiments.engine.request import plan
from zoo.seeds import stable_seed

pytestmark = pytest.mark.usefixtures("calls")

CELL = Cell("toy/plain", "a", "m", "5x5", 2, base_seed=0)
#: The first four bytes of the SHA-256 of `["cell",0,"toy/plain","a","m","5x5",2]` and `["split",0,"a",2]`.
SEEDS = (151042369, 281304420)


def test_seeds_are_what_they_were_in_the_first_version():
    """A changed seed would make every published table another one."""
    assert (CELL.seed, CELL.split_seed) == SEEDS


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_seeds_are_the_same_in_another_process(hash_seed, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
    code = """
from zoo.experiments.engine.declaration import Cell
cell = Cell("toy/plain", "a", "m", "5x5", 2)
print(cell.seed, cell.split_seed)
"""
    assert fresh_process(code).stdout.split() == [str(seed) for seed in SEEDS]


@pytest.mark.parametrize(
    ("change", "new_split"),
    [
        ({"experiment": "toy/other"}, False),
        ({"method": "n"}, False),
        ({"setting": "5"}, False),
        ({"dataset": "b"}, True),
        ({"trial": 3}, True),
        ({"base_seed": 1}, True),
    ],
)
def test_methods_and_settings_of_a_trial_share_the_split_and_nothing_else(change, new_split):
    other = dataclasses.replace(CELL, **change)
    assert other.seed != CELL.seed
    assert (other.split_seed != CELL.split_seed) == new_split
    assert other.seed != other.split_seed


def test_what_a_budget_decides_does_not_change_the_seeds():
    """So that a quick look sees the splits of the full run."""
    other = dataclasses.replace(CELL, options={"epochs": 7})
    assert (other.seed, other.split_seed) == (CELL.seed, CELL.split_seed)


def test_seeds_fit_every_generator_and_scatter():
    seeds = {stable_seed("cell", i) for i in range(1000)}
    assert len(seeds) == 1000
    assert 0 <= min(seeds) < 2**28
    assert 2**31 < max(seeds) < 2**32


def test_joined_names_are_not_mistaken():
    assert stable_seed("a", "bc") != stable_seed("ab", "c")


def test_grid_has_every_combination_and_trial_the_first_trial_first():
    cells = plan(declare()).cells()
    assert len(cells) == len({(*cell.combination, cell.trial) for cell in cells}) == CELLS
    assert [cell.trial for cell in cells] == sorted(cell.trial for cell in cells)
    assert [cell.combination for cell in cells[:3]] == [("a", "m", "5x5"), ("a", "m", "5"), ("a", "n", "5x5")]
    assert all(cell.options == {"epochs": 4} for cell in cells)


def test_part_of_a_grid_keeps_the_order_of_the_table():
    request = plan(declare(), datasets=["b", "a"], methods=["n"], trials=1, budget="quick")
    assert [cell.combination for cell in request.cells()] == [
        ("a", "n", "5x5"), ("a", "n", "5"), ("b", "n", "5x5"), ("b", "n", "5"),
    ]  # fmt: skip


def test_grid_with_holes():
    holes = declare(exists=lambda dataset, method, setting: (dataset, method) != ("a", "n"))
    assert len(plan(holes).cells()) == CELLS * 3 // 4
    with pytest.raises(UserError, match="no cell with this combination"):
        plan(holes, datasets=["a"], methods=["n"])


OPTIONS = {"epochs": 4, "rows": 0, "lr": 0.1, "noise": 1.0}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"epochs": "0"}, "epochs of toy/plain must be at least 1, not 0"),
        ({"rows": "-1"}, "rows of toy/plain must be at least 0, not -1"),
        ({"lr": "0"}, "lr of toy/plain must be positive, not 0.0"),
        ({"noise": "-0.5"}, "noise of toy/plain must be at least 0, not -0.5"),
        ({"noise": "nan"}, "noise of toy/plain must be at least 0, not nan"),
        ({"noise": "inf"}, "noise of toy/plain must be at least 0, not inf"),
    ],
)
def test_options_out_of_range_are_refused(option, words):
    with pytest.raises(UserError, match=words):
        plan(declare(full=Effort(3, "no time", OPTIONS)), options=option)


def test_options_may_be_zero_where_a_budget_has_them_so_and_where_they_are_no_counts():
    experiment = declare(full=Effort(3, "no time", {**OPTIONS, "rows": 50}), quick=Effort(1, "none", OPTIONS))
    assert plan(experiment, options={"rows": "0", "noise": "0"}).changed == {"rows": 0, "noise": 0.0}


@pytest.mark.parametrize("name", ["", "a,b", "a b", "a/b", "..", ".a", "a\\b", "*", "a:b", 'a"'])
@pytest.mark.parametrize("axis", ["datasets", "methods", "settings"])
def test_name_that_cannot_be_typed_or_be_a_folder(axis, name):
    with pytest.raises(ValueError, match="cannot name a"):
        declare(**{axis: ("good", name)}, published={}, notes={})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"datasets": ("a", "A")}, "are one dataset"),
        ({"datasets": ()}, "nothing cannot name a dataset"),
        ({"metrics": {}}, "measures something"),
        ({"together": 0}, "0 trials together"),
        ({"published": {("c", "m", "5", "error"): (1, 1)}}, "'c' of .* is nowhere in the grid"),
        ({"published": {("a", "m", "5", "rmse"): (1, 1)}}, "'rmse' of .* is nowhere in the grid"),
        ({"published": {("a", "*", "5", "error"): (1, 1)}}, r"'\*' of .* is nowhere in the grid"),
        ({"notes": {("*", "k", "*", "*"): "x"}}, "'k' of .* is nowhere in the grid"),
        ({"notes": {("*", "m"): "x"}}, "shorter|longer"),
        ({"explained": [Explanation(("*", "k", "*", "*"), "x", "y")]}, "'k' of .* is nowhere in the grid"),
        ({"settled": {"change": 0.1}}, "change is no metric"),
        ({"questions": {"Which?": ("error",)}}, "ask for every metric once"),
        ({"questions": {"Which?": ("error", "score"), "What?": ("score",)}}, "ask for every metric once"),
    ],
)
def test_declaration_with_a_slip_of_the_pen(changes, words):
    with pytest.raises(ValueError, match=words):
        declare(**changes)


def test_notes_with_stars_are_joined():
    experiment = declare()
    assert experiment.note("b", "n", "5", "error") == "another b; n|5"
    assert experiment.note("a", "n", "5", "error") == "n|5"
    assert experiment.note("a", "n", "5", "score") == ""


def test_first_explanation_that_applies_counts():
    first = Explanation(("b", "*", "*", "error"), "misprint", "x")
    second = Explanation(("*", "*", "*", "*"), "another task", "y")
    experiment = declare(explained=[first, second])
    assert experiment.explanation("b", "m", "5", "error") is first
    assert experiment.explanation("b", "m", "5", "score") is second
    assert declare().explanation("b", "m", "5", "error") is None


def test_source_with_and_without_a_page():
    assert str(declare().source) == "Nobody 1999, Table 1, page 7"
    assert str(Source("Nobody 1999", "Table 1")) == "Nobody 1999, Table 1"


def test_catalogue_refuses_two_of_one_name(monkeypatch):
    monkeypatch.setattr(
        zoo.experiments.engine.catalogue, "MODULES", ["tests.zoo.experiments.toy_experiments"] * 2
    )
    with pytest.raises(ValueError, match="two experiments are called toy/"):
        experiments()


def test_unknown_experiment_names_the_nearest():
    with pytest.raises(UserError, match="unknown experiment 'toy/mesure'; nearest: toy/measure"):
        find_experiment("toy/mesure")
