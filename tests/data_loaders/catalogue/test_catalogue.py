"""What the catalogue says about a set is true of the real file."""

from __future__ import annotations

import numpy as np
import pytest

from data_loaders import DataError, describe, fetch, list_datasets, load
from data_loaders.catalogue.lookup import ENTRIES
from data_loaders.originals.checksums import FILE_SHA256
from guides.truth import enumerate_g_prior

IMAGES = [name for name, entry in ENTRIES.items() if entry.family == "images"]  # see test_data_images
WITH_FILE = [name for name, entry in ENTRIES.items() if entry.file and name not in IMAGES]
WITHOUT_ORIGINAL = {"heteroscedastic", "kin40k", "airlines"}
WITHOUT_FILE = [name for name, entry in ENTRIES.items() if not entry.file]
WHOLE = [name for name, entry in ENTRIES.items() if entry.whole]


def _whole_table(name):
    data = load(name, protocol="whole")
    return data.x_train, data.y_train


def _check_facts(name):
    facts, data = describe(name), load(name)
    n, m = len(data.y_train), len(data.y_test)
    assert n + m == facts.rows
    assert data.x_train.shape == (n, facts.features)
    assert data.x_test.shape == (m, facts.features)
    assert data.x_train.dtype == data.x_test.dtype == np.float64
    assert data.y_train.dtype == data.y_test.dtype == (np.float64 if facts.task == "regression" else np.int64)
    assert len(data.feature_names) == len(set(data.feature_names)) == facts.features
    assert (data.name, data.task, data.target_name) == (facts.name, facts.task, facts.target)
    assert data.oddities[: len(facts.oddities)] == facts.oddities
    assert np.isfinite(data.x_train).all()
    assert np.isfinite(data.y_train).all()
    if facts.task != "regression":
        np.testing.assert_array_equal(np.unique(data.y_train), np.arange(data.num_classes))
        assert data.num_classes == (2 if facts.task == "binary" else 10)
    assert facts.licence
    assert facts.source


@pytest.mark.parametrize("name", WITHOUT_FILE)
def test_facts_of_sets_without_a_file(name, no_mirror):
    _check_facts(name)
    assert not no_mirror.exists()


@pytest.mark.parametrize("name", WITH_FILE)
def test_facts_of_sets_with_a_file(name, mirror):
    _check_facts(name)


@pytest.mark.parametrize("name", WHOLE)
def test_sets_used_whole_have_no_test_rows(name, mirror):
    data, facts = load(name), describe(name)
    assert data.protocol == "whole"
    assert data.x_test.shape == (0, facts.features)
    assert data.y_test.shape == (0,)
    assert facts.splits == 1
    assert facts.protocols == ("standard", "whole")


@pytest.mark.parametrize("name", [name for name in WITH_FILE if name not in ("snelson", "bimodal")])
def test_names_of_features_are_those_of_the_file(name, stored):
    file = stored(name)
    if "feature_names" in file:
        assert load(name).feature_names == tuple(file["feature_names"].tolist())
        assert load(name).target_name == str(file.get("target_name", describe(name).target))


def test_checksums_are_those_of_the_published_list(mirror):
    lines = (mirror / "SHA256SUMS").read_text().splitlines()
    published = {path: digest for digest, path in (line.split() for line in lines)}
    assert dict(FILE_SHA256) == {path: published[path] for path in FILE_SHA256}


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("concrete", 25),
        ("power_plant", 41),
        ("protein", 1711),
        ("wine_red", 240),
        ("boston", 0),
        ("naval", 0),
    ],
)
def test_repeated_rows(name, copies, mirror):
    table = np.column_stack(_whole_table(name))
    assert len(table) - len(np.unique(table, axis=0)) == copies
    said = [
        sentence
        for sentence in describe(name).oddities
        if "rows repeat" in sentence or "240 rows" in sentence
    ]
    assert bool(said) == bool(copies)
    if copies:
        assert str(copies) in said[0]


def test_copies_across_the_split_are_counted(mirror):
    data = load("wine_red", split=0)
    train = {tuple(row) for row in np.column_stack([data.x_train, data.y_train])}
    copies = sum(tuple(row) in train for row in np.column_stack([data.x_test, data.y_test]))
    assert copies == 51
    assert data.oddities[-1] == "in this split 51 of 160 test rows are exact copies of training rows"


def test_a_column_that_tells_the_training_rows_nothing_is_named():
    """Of twenty splits of the digits two have a pixel that is lit in a test row alone."""
    said = [load("digits", split=k).oddities[-1] for k in (4, 5)]
    assert said[1] == "in this split constant in all training rows, but not in the test rows: pixel_7_0"
    assert "in this split" not in said[0]


def test_numbers_in_the_oddities_of_uci_sets(mirror):
    x, y = _whole_table("boston")
    assert (y.max(), (y == 50).sum()) == (50, 16)
    assert "16 rows" in describe("boston").oddities[1]
    x, y = _whole_table("energy")
    assert np.linalg.matrix_rank(x) == 7
    np.testing.assert_allclose(x[:, 1], x[:, 2] + 2 * x[:, 3])
    assert {len(np.unique(column)) for column in x.T} <= set(range(2, 13))
    x, y = _whole_table("naval")
    names = load("naval").feature_names
    assert [names[j] for j in np.flatnonzero(np.ptp(x, axis=0) == 0)] == ["T1", "P1"]
    np.testing.assert_array_equal(x[:, names.index("Ts")], x[:, names.index("Tp")])
    assert np.linalg.matrix_rank((x - x.mean(0)) / np.where(np.ptp(x, axis=0) == 0, 1, x.std(0))) == 13
    assert (len(np.unique(y)), round(y.std(), 4)) == (51, 0.0147)
    assert set(_whole_table("wine_red")[1]) == {3, 4, 5, 6, 7, 8}
    x, y = _whole_table("yacht")
    assert (y.min(), y.max()) == (0.01, 62.42)


def test_numbers_in_the_oddities_of_classification_sets(mirror):
    x, y = _whole_table("gallstone")
    names = load("gallstone").feature_names
    assert x[239, names.index("Obesity (%)")] == 1954
    assert (y == 0).sum() == 161
    x, y = _whole_table("raisin")
    assert (np.diff(y) <= 0).all()
    assert y.sum() == 450
    x, y = _whole_table("mjmcmc_sim_logistic")
    np.testing.assert_array_equal(x[:, :3].sum(1), 1)
    np.testing.assert_array_equal(x[:, 3:6].sum(1), 1)
    assert round(x[:, 19].std()) == 16


def test_oddities_of_sets_of_scikit_learn():
    assert (_whole_table("breast_cancer")[1] == 1).sum() == 357
    data = load("digits", protocol="whole")
    constant = np.flatnonzero(np.ptp(data.x_train, axis=0) == 0)
    assert [data.feature_names[j] for j in constant] == ["pixel_0_0", "pixel_4_0", "pixel_4_7"]
    assert (data.x_train.min(), data.x_train.max()) == (0, 16)
    data = load("diabetes", protocol="whole")
    assert set(data.x_train[:, data.feature_names.index("sex")]) == {1, 2}


@pytest.mark.parametrize(("name", "rmse"), [("boston", 4.588), ("yacht", 8.970), ("wine_red", 0.6544)])
def test_least_squares_gives_the_known_error(name, rmse, mirror):
    errors = []
    for split in range(20):
        data = load(name, split)
        design = np.column_stack([np.ones(len(data.y_train)), data.x_train])
        weights = np.linalg.lstsq(design, data.y_train)[0]
        residual = data.y_test - np.column_stack([np.ones(len(data.y_test)), data.x_test]) @ weights
        errors.append(np.sqrt((residual**2).mean()))
    assert np.mean(errors) == pytest.approx(rmse, abs=1e-3)


@pytest.mark.parametrize("name", ["us_crime", "mjmcmc_sim_linear"])
def test_stored_inclusion_probabilities_are_what_enumeration_gives(name, mirror):
    data, stored = load(name), np.load(fetch(name), allow_pickle=False)
    models = enumerate_g_prior(data.x_train, data.y_train, data.extras["g"])
    np.testing.assert_allclose(models.log_bf, stored["log_bf"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(models.inclusion, stored["pip_gprior"], rtol=0, atol=1e-12)
    assert data.extras["g"] == len(data.y_train)


@pytest.mark.parametrize(
    ("name", "guess"), [("bostn", "boston"), ("Wine-Red", "wine_red"), ("posteriordb_nes", "nes2000")]
)
def test_unknown_names_get_a_suggestion(name, guess):
    for use in (load, describe):
        with pytest.raises(DataError, match=f"unknown data set '{name}'; did you mean .*{guess}"):
            use(name)


def test_list_holds_all_sets_once():
    names = list_datasets()
    assert len(names) == len(set(names)) == 34
    assert {"boston", "digits", "piecewise", "us_crime", "posteriordb_sblrc"} <= set(names)


def test_only_sets_without_a_plain_original_cannot_be_downloaded():
    assert {n for n in list_datasets() if not describe(n).downloadable} == WITHOUT_ORIGINAL


def test_times_of_day_are_minutes_after_midnight(stored):
    """Of 1753, say, 17 hours and 53 minutes."""
    data, raw = load("airlines", protocol="whole"), stored("airlines")["X"]
    for name in ("DepTime", "ArrTime"):
        place = data.feature_names.index(name)
        clocks = [divmod(int(time), 100) for time in raw[:, place]]
        np.testing.assert_array_equal(data.x_train[:, place], [60 * hour + minute for hour, minute in clocks])
