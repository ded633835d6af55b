"""The records that pictures show."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.experiments.engine.declaration import Record


def first_trials(records: Iterable[Record]) -> list[Record]:
    """Those of trial 0 that have not failed."""
    return [record for record in records if record.ok and record.cell.trial == 0]


def by_dataset(records: Iterable[Record]) -> dict[str, list[Record]]:
    """In the order of the records."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.cell.dataset, []).append(record)
    return groups
