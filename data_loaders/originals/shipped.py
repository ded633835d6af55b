"""Sets that ship inside this package as CSV files; `csv/SOURCES.txt` names their authors and licences."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from data_loaders.catalogue.entries import Entry
from data_loaders.errors import DataError, short_reason
from data_loaders.originals.files import content_digest
from data_loaders.records import Whole

_REMEDY = "install posterior-zoo anew"


def file_of(entry: Entry) -> Path:
    """Where the file of a set is."""
    return Path(__file__).parent / "csv" / f"{entry.name}.csv"


def assemble(entry: Entry) -> Whole:
    """The whole set, raw units; DataError when its file is missing or altered."""
    path = file_of(entry)
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            names, *rows = csv.reader(stream)
        table = np.array(rows, dtype=np.float64)  # the target is the last column
        x, y = np.ascontiguousarray(table[:, :-1]), table[:, -1]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{entry.name}: cannot read {path} ({short_reason(error)}); {_REMEDY}") from None
    if content_digest({"X": x, "y": y}, ("X", "y")) != entry.content:
        raise DataError(f"{entry.name}: {path} fails its checksum (cut short or altered); {_REMEDY}")
    return Whole(x, y, tuple(names[:-1]), entry.target)
