"""Original raw files to arrays. Each parser returns the keys that the ready-made .npz file of the set has."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from data_loaders.catalogue.entries import Entry

Arrays = dict[str, np.ndarray]

# Naval propulsion: the compressor decay is column 16 of 18, the turbine decay behind it is not used.
_NAVAL_TARGET = 16

#: The largest unpacked file of posteriordb is below 20 MB, the largest set of graphs some 10 MB; anything
#: beyond this is none of them.
MOST_UNPACKED = 200_000_000


#: What numpy, json and zipfile raise on damaged input.
UNREADABLE: tuple[type[Exception], ...] = (
    *(ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError),
    *(zipfile.BadZipFile, zlib.error, MemoryError),  # a number of rows that is none
)


class RawError(ValueError):
    """A raw file does not hold what it should; turned into a DataError that names the address."""


def parse_raw(entry: Entry, raw: Sequence[bytes]) -> Arrays:
    """The arrays of `entry` from the bytes of its original files, in the order of its addresses.

    Raises RawError when they cannot be read; whether the numbers are right is for the caller to check.
    """
    try:
        return _FORMS[entry.form](raw)
    except UNREADABLE as error:
        raise RawError(f"it cannot be read: {error}") from None


def _table(raw: bytes) -> np.ndarray:
    """Numbers [rows, columns] of a text file whose columns are parted by commas or white space."""
    text = raw.decode("ascii").replace(",", " ")
    if not text.strip():
        raise RawError("the file is empty")
    return np.loadtxt(io.StringIO(text), dtype=np.float64, ndmin=2, comments=None)


def _last_column(raw: Sequence[bytes]) -> Arrays:
    table = _table(raw[0])
    return {"X": table[:, :-1], "y": table[:, -1]}


def _naval(raw: Sequence[bytes]) -> Arrays:
    table = _table(raw[0])
    return {"X": table[:, :_NAVAL_TARGET], "y": table[:, _NAVAL_TARGET]}


def _train_and_grid(raw: Sequence[bytes]) -> Arrays:
    return {"train": _table(raw[0]), "test": _table(raw[1])}


def _snelson(raw: Sequence[bytes]) -> Arrays:
    x_train, y_train, x_test = (_table(part)[:, 0] for part in raw)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test}


def _features_and_target(raw: Sequence[bytes]) -> Arrays:
    return {"X": _table(raw[0]), "y": _table(raw[1])[:, 0]}


def _us_crime(raw: Sequence[bytes]) -> Arrays:
    # The published files have the first feature where the target belongs and the target as the last feature.
    features, first = _table(raw[0]), _table(raw[1])[:, 0]
    return {"X": np.column_stack([first, features[:, :-1]]), "y": features[:, -1]}


def _posteriordb(raw: Sequence[bytes]) -> Arrays:
    data, chains = (_zipped_json(part) for part in raw)
    arrays = {f"data_{key}": np.asarray(value) for key, value in data.items()}
    names = list(chains[0])
    arrays["draws"] = np.stack(
        [np.stack([np.asarray(chain[name], dtype=np.float64) for name in names], axis=-1) for chain in chains]
    )
    arrays["param_names"] = np.asarray(names)
    return arrays


def _zipped_json(raw: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".json")]
        if len(members) != 1 or members[0].file_size > MOST_UNPACKED:
            raise RawError("the archive does not hold one JSON file of a plausible size")
        return json.loads(archive.read(members[0]))


_FORMS: Mapping[str, Callable[[Sequence[bytes]], Arrays]] = {
    "last_column": _last_column,
    "naval": _naval,
    "train_and_grid": _train_and_grid,
    "snelson": _snelson,
    "features_and_target": _features_and_target,
    "us_crime": _us_crime,
    "posteriordb": _posteriordb,
}
