"""A scoreboard read again from its two files, every digit of it."""

from __future__ import annotations

import csv
from pathlib import Path

from zoo.evaluation.scoreboard import LEGEND, TEXT_COLUMNS, Row


def read_scoreboard(folder: Path) -> list[Row]:
    """Equal to the rows that were written."""
    errors, floors = {}, {}
    for line in _lines(folder / "standard_errors.csv"):
        for column, kind in (("standard_error", errors), ("noise_floor", floors)):
            if line[column]:
                kind.setdefault((line["method"], line["model"]), {})[line["figure"]] = float(line[column])
    rows = []
    for line in _lines(folder / "scoreboard.csv"):
        key = line["method"], line["model"]
        beside = {name: float(line[f"{name}_se"]) for name in LEGEND if line.get(f"{name}_se")}
        figures = {
            name: int(line[name]) if name == "num_parameters" else float(line[name])
            for name in LEGEND
            if line[name]
        }
        known = {"standard_errors": beside | errors.get(key, {}), "noise_floors": floors.get(key, {})}
        rows.append(Row(**{name: line[name] for name in TEXT_COLUMNS}, **figures, **known))
    return rows


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
