"""What is known about every set without opening a file. The facts are checked against the real files by the
tests.
"""

from __future__ import annotations

from data_loaders.catalogue.entries import Entry
from data_loaders.catalogue.entries_images import IMAGE_SETS
from data_loaders.catalogue.entries_split import SPLIT_SETS
from data_loaders.catalogue.entries_whole import WHOLE_SETS
from data_loaders.errors import DataError, nearest
from data_loaders.registered import Catalogue

ENTRIES = Catalogue("datasets", Entry, {e.name: e for e in (*SPLIT_SETS, *IMAGE_SETS, *WHOLE_SETS)})


def entry(name: str) -> Entry:
    """The entry called `name`; DataError with the nearest names when there is none."""
    if name not in ENTRIES:
        raise DataError(f"unknown data set {name!r}{nearest(name, ENTRIES)}; all names: {', '.join(ENTRIES)}")
    return ENTRIES[name]
