"""The splits are the published ones, bit for bit, and the others are what they claim to be."""

from __future__ import annotations

import numpy as np
import pytest

from data_loaders import DataError, describe, load
from data_loaders.splits import split_80_20, standard_split

UCI = ["boston", "concrete", "energy", "kin8nm", "naval", "power_plant", "protein", "wine_red", "yacht"]


@pytest.mark.parametrize("name", UCI)
def test_standard_splits_equal_the_published_index_files(name, stored):
    file = stored(name)
    assert len(file["split_train"]) == describe(name).splits
    for split in range(describe(name).splits):
        train, test = standard_split(len(file["y"]), split)
        np.testing.assert_array_equal(train, file["split_train"][split])
        np.testing.assert_array_equal(test, file["split_test"][split])
        assert train.dtype == test.dtype == np.int64


@pytest.mark.parametrize("name", ["bimodal", "heteroscedastic"])
def test_standard_splits_equal_the_permutations_of_sparse_implicit_processes(name, stored):
    for split, order in enumerate(stored(name)["permutations"]):
        train, test = standard_split(2000, split)
        np.testing.assert_array_equal(np.concatenate([train, test]), order)


@pytest.mark.parametrize("name", ["boston", "wine_red", "snelson", "bimodal"])
def test_load_takes_the_rows_of_the_split(name, stored):
    file = stored(name)
    rows = {"snelson": lambda: file["y_train"], "bimodal": lambda: file["train"][:, 1]}
    y = rows.get(name, lambda: file["y"])()
    data = load(name, split=7)
    train, test = standard_split(len(y), 7)
    np.testing.assert_array_equal(data.y_train, y[train])
    np.testing.assert_array_equal(data.y_test, y[test])
    np.testing.assert_array_equal(data.extras["rows_test"], test)


@pytest.mark.parametrize("rows", [308, 506, 1599])
def test_80_20_is_a_partition_with_a_fifth_for_testing(rows):
    tests = []
    for repetition in range(5):
        train, test = split_80_20(rows, repetition)
        assert len(test) == round(0.2 * rows)
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(rows))
        tests.append(tuple(test))
    assert len(set(tests)) == 5


def test_80_20_never_changes():
    _, test = split_80_20(506, 0)
    np.testing.assert_array_equal(test[:6], [279, 214, 23, 474, 452, 85])
    _, test = split_80_20(506, 4)
    np.testing.assert_array_equal(test[:6], [268, 220, 258, 393, 132, 327])


def test_standard_split_never_changes():
    train, test = standard_split(442, 1)
    np.testing.assert_array_equal(train[:6], [84, 384, 142, 151, 270, 6])
    assert (len(train), len(test)) == (398, 44)


def test_80_20_of_a_set():
    data = load("diabetes", 3, protocol="80/20")
    assert (data.x_train.shape, data.x_test.shape, data.split) == ((354, 10), (88, 10), 3)
    assert data.protocol == "80/20"


@pytest.mark.parametrize(
    ("name", "split", "protocol", "says"),
    [
        ("boston", 20, "standard", "from 0 to 19"),
        ("boston", -1, "standard", "from 0 to 19"),
        ("protein", 5, "standard", "from 0 to 4"),
        ("boston", 5, "80/20", "from 0 to 4"),
        ("us_crime", 1, "standard", "only split 0"),
        ("boston", 1.5, "standard", "whole number"),
        ("boston", 0, "70/30", "unknown protocol '70/30'; it has standard, 80/20, whole"),
        ("us_crime", 0, "80/20", "unknown protocol '80/20'"),
    ],
)
def test_wrong_splits_are_refused_without_reading_a_file(name, split, protocol, says, no_mirror):
    with pytest.raises(DataError, match=says) as caught:
        load(name, split, protocol=protocol)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
