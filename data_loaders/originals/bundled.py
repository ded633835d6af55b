"""Sets that ship inside scikit-learn: they need neither network nor files of our own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_loaders.catalogue.entries import Entry
from data_loaders.errors import DataError
from data_loaders.originals.files import content_digest
from data_loaders.records import Whole


def folder() -> Path:
    """Where scikit-learn keeps the files."""
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "data"


def assemble(entry: Entry) -> Whole:
    """The whole set, raw units; DataError when the installed scikit-learn ships other numbers."""
    import sklearn.datasets

    if entry.name == "diabetes":
        bunch = sklearn.datasets.load_diabetes(scaled=False)
    elif entry.name == "breast_cancer":
        bunch = sklearn.datasets.load_breast_cancer()
    else:
        bunch = sklearn.datasets.load_digits()
    x, y = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target)
    if content_digest({"X": x, "y": y}, ("X", "y")) != entry.content:
        raise DataError(
            f"{entry.name}: the installed scikit-learn ships other numbers (checksum); reinstall it"
        )
    return Whole(x, y, tuple(str(name) for name in bunch.feature_names), entry.target)
