"""The front door: list, describe, fetch and load a set by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_loaders import toy
from data_loaders.catalogue.entries import Entry
from data_loaders.catalogue.lookup import ENTRIES, entry
from data_loaders.errors import DataError, short_reason
from data_loaders.graphs import random_graphs
from data_loaders.images import fetch_images, load_images
from data_loaders.originals import bundled, posteriordb, shipped
from data_loaders.originals.files import read_arrays
from data_loaders.originals.parsing import Arrays, parse_raw
from data_loaders.records import Dataset, Description, Whole
from data_loaders.splits import check_split, rows_of
from data_loaders.tables.oddities import copied_rows, unseen_spread

# Sets whose variables are selected under Zellner's g-prior, with g the number of rows.
_G_PRIOR = ("us_crime", "mjmcmc_sim_linear")
# Columns of the large sets that hold times of day as hhmm.
_CLOCKS = ("DepTime", "ArrTime")


def list_datasets() -> list[str]:
    """The names of all sets, in the order of the catalogue."""
    return list(ENTRIES)


def describe(name: str) -> Description:
    """What is known about the set `name` without reading it; DataError for an unknown name."""
    known = entry(name)
    return Description(
        name=known.name,
        task=known.task,
        rows=known.rows,
        features=known.features,
        target=known.target,
        splits=known.splits,
        protocols=known.protocols,
        source=known.source,
        licence=known.licence,
        file=known.file,
        downloadable=known.file is None or bool(known.addresses),
        oddities=known.oddities,
        image_shape=known.image_shape,
        whole=known.whole,
    )


def fetch(name: str) -> Path:
    """Make sure that the files of the set `name` are at hand and sound, and return where they are.

    That is the file in the folder ZOO_DATA, or the set's folder in the cache (downloaded when needed), the
    data folder of scikit-learn for sets that ship with it, the file of a set that ships with this package, or
    the module that generates a generated set or reads that of another package. Raises DataError as `load`
    does.
    """
    known = entry(name)
    if known.read is not None:
        _of_package(known, known.read)
        return Path(inspect.getfile(known.read))
    if known.family == "bundled":
        bundled.assemble(known)
        return bundled.folder()
    if known.family == "shipped":
        shipped.assemble(known)
        return shipped.file_of(known)
    if known.family == "generated":
        return Path(inspect.getfile(toy if known.name == "piecewise" else random_graphs))
    if known.family == "images":
        return fetch_images(known)
    return read_arrays(known, parse_raw)[1]


def load(name: str, split: int = 0, *, protocol: str = "standard") -> Dataset:
    """The set `name`, cut into training and test rows.

    Protocols: "standard" (90/10, 20 splits, 5 for protein; images have the one official split 0; sets that
    are used whole have the one split 0 and no test rows), "80/20" (5 random repetitions, not for images and
    sets used whole) and "whole" (all rows train, in file order). Arrays are raw, images in [0, 1]:
    standardise with `Standardizer.of`. Raises DataError, on one line, for an unknown name, protocol or
    split, and for a file that is missing, cannot be downloaded or fails its checksum.
    """
    known = entry(name)
    number = check_split(name, split, protocol, known.splits, known.protocols)
    if known.family == "images":
        return load_images(known, number, protocol)
    if known.whole:
        protocol = "whole"
    whole = _read(known)
    train, test = rows_of(len(whole.y), number, protocol)
    labels = np.float64 if known.task == "regression" else np.int64
    extras = dict(whole.extras)
    for key, values in whole.per_row.items():
        extras[f"{key}_train"], extras[f"{key}_test"] = values[train], values[test]
    extras["rows_train"], extras["rows_test"] = train, test
    y = whole.y.astype(labels)
    return Dataset(
        name=name,
        task=known.task,
        x_train=whole.x[train],
        y_train=y[train],
        x_test=whole.x[test],
        y_test=y[test],
        feature_names=whole.feature_names,
        target_name=whole.target_name,
        split=number,
        protocol=protocol,
        oddities=known.oddities
        + copied_rows(whole.x, whole.y, train, test)
        + unseen_spread(whole.x, whole.feature_names, train, test),
        extras=extras,
        image_shape=known.image_shape,
        prescaled=known.prescaled,
    )


def _read(known: Entry) -> Whole:
    if known.read is not None:
        return _of_package(known, known.read)
    if known.family == "bundled":
        return bundled.assemble(known)
    if known.family == "shipped":
        return shipped.assemble(known)
    if known.family == "generated":
        return toy.piecewise() if known.name == "piecewise" else random_graphs.hollywood_picks()
    arrays, _ = read_arrays(known, parse_raw)
    if known.family == "toy":
        return toy.assemble(known.name, arrays)
    if known.family == "posteriordb":
        return posteriordb.assemble(known.name, known.target, arrays)
    return _table(known, arrays)


def _of_package(known: Entry, read: Callable[[], Whole]) -> Whole:
    """A set that another package registers and reads."""
    try:
        whole = read()
    except DataError:
        raise
    except Exception as error:  # whatever that package does
        raise DataError(f"{known.name}: its package cannot read it ({short_reason(error)})") from error
    shapes, expected = (whole.x.shape, whole.y.shape), ((known.rows, known.features), (known.rows,))
    if shapes != expected:
        raise DataError(f"{known.name}: its package gave arrays of shapes {shapes}, and says {expected}")
    return whole


def _table(known: Entry, arrays: Arrays) -> Whole:
    """A set that is one table."""
    x, y = np.ascontiguousarray(arrays["X"], dtype=np.float64), arrays["y"].astype(np.float64)
    names = known.feature_names or tuple(str(name) for name in arrays["feature_names"])
    for place in (names.index(name) for name in _CLOCKS if known.family == "large" and name in names):
        x[:, place] = 60 * (x[:, place] // 100) + x[:, place] % 100
    extras = {"g": float(len(y))} if known.name in _G_PRIOR else {}
    return Whole(x, y, names, known.target, extras=extras)
