"""What a model is fitted to: rows and their target, and what comes without one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from data_loaders import DataError, Standardizer, load
from zoo.fitting.problem import Problem, load_problem, prepare
from zoo.models.entries import DataShape


@pytest.fixture(scope="module")
def problem() -> Problem:
    return prepare(load("diabetes"))


def test_rows_and_target_are_the_arguments_of_a_model(problem):
    (x, y), (x_test, y_test) = problem.train, problem.test
    assert x is problem.x
    assert y is problem.y
    assert x_test is problem.x_test
    assert problem.evaluation_points is x_test
    assert y_test is problem.y_test
    assert problem.size == len(x) == len(y) == 398
    assert problem.shape == DataShape("regression", 10, 0)
    assert prepare(load("digits")).shape == DataShape("multiclass", 64, 10)


@pytest.mark.parametrize(
    ("holdout", "rows"), [(None, (398, 44)), (0.1, (398, 44)), (0.2, (354, 88)), (0, (442, 0))]
)
def test_a_tenth_is_held_out_where_nothing_is_said(holdout, rows):
    found = load_problem("diabetes", holdout=holdout)
    assert (len(found.x), len(found.x_test)) == rows


def test_a_set_that_is_used_whole_is_evaluated_where_it_was_fitted():
    whole = prepare(load("diabetes", protocol="whole"))
    assert whole.evaluation_points is whole.x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_have_the_precision_of_the_model(dtype):
    data = load("diabetes")
    problem = prepare(data, dtype)
    assert {tensor.dtype for tensor in (*problem.train, *problem.test)} == {dtype}
    assert problem.inputs(data.x_test).dtype == dtype
    expected = Standardizer.of(data).transform_x(data.x_test)
    torch.testing.assert_close(problem.x_test, torch.as_tensor(expected, dtype=dtype))
    labels = prepare(load("digits"), dtype)
    assert (labels.x.dtype, labels.y.dtype) == (dtype, torch.int64)


def test_fingerprint_is_that_of_all_numbers_in_their_places(problem):
    """The value is pinned: folders that hold it are found again."""
    assert problem.fingerprint() == prepare(load("diabetes")).fingerprint() == "a494408ed72fe567"
    changed = [
        replace(problem, train=(problem.x, problem.y + 1e-6)),
        replace(problem, train=(problem.x.clone().index_fill_(0, torch.tensor([3]), 0.0), problem.y)),
        replace(problem, test=(problem.x_test[:-1], problem.y_test[:-1])),
        replace(problem, train=problem.test, test=problem.train),
    ]
    assert len({problem.fingerprint(), *(other.fingerprint() for other in changed)}) == 5


@pytest.mark.parametrize(("sds", "refused"), [(1e14, False), (1e16, True), (-1e16, True)])
@pytest.mark.parametrize("part", ["x_test", "y_test"])
def test_numbers_whose_squares_a_network_could_not_hold_are_refused(part, sds, refused):
    data = load("diabetes")
    far = getattr(data, part).copy()
    far[3] = sds * getattr(data, part.replace("test", "train")).std(0)  # of every column
    if not refused:
        assert prepare(replace(data, **{part: far})).size == 398
        return
    with pytest.raises(DataError, match="a number too large"):
        prepare(replace(data, **{part: far}))
