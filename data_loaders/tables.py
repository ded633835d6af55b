"""Tables of one's own: a CSV file with a header, numbers only, to training and test rows.

The standard `csv` module reads the file rather than pandas, because a refusal has to name the row and column
as they stand in the file, and nothing may be guessed: a number is a number, everything else is an error.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from data_loaders.errors import DataError, nearest, short_reason
from data_loaders.oddities import constant_columns, copied_rows
from data_loaders.records import Dataset, Task
from data_loaders.splits import PROTOCOLS, check_split, rows_of

STANDARD_SPLITS = 20
MIN_ROWS = 5
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "."})


@dataclass(frozen=True)
class _Cells:
    """The text of a file: column names, and rows of as many cells."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]

    def fail(self, problem: str) -> DataError:
        return DataError(f"{self.path}: {problem}")


def load_csv(
    path: str | Path,
    target: str | None = None,
    require_target: bool = True,
    columns: Sequence[str] | None = None,
    *,
    task: Task = "regression",
    split: int = 0,
    protocol: str = "standard",
) -> Dataset:
    """Read a CSV file (UTF-8, commas, header in the first line, numbers below) as a `Dataset`.

    `target` names the target column, the last one by default. The task is regression unless the caller says
    "binary" (labels 0 and 1) or "multiclass" (labels 0..K-1); a target of whole numbers is no hint. The split
    follows the same rules as for the sets of the catalogue ("standard" with splits 0..19, "80/20", "whole")
    and needs 5 rows, 2 with "whole".

    For new rows to predict, pass `require_target=False` and the feature names saved with the fit as
    `columns`: all rows come back in `x_test` [m, d] in the order of `columns` (protocol "predict", x_train
    [0, d], y_test [0]); a column called `target` may be there and is ignored. With a target, `columns` is
    checked in the same way.

    Raises DataError with one line that names the file and, where there is one, the column and the first bad
    data row (counted from 1, the header not counted).
    """
    if task not in get_args(Task):
        raise DataError(f"unknown task {task!r}: it must be one of {', '.join(get_args(Task))}")
    cells = _read(Path(path))
    target = _target_column(cells, target, require_target)
    features = _feature_columns(cells, target, columns)
    if not require_target:
        return _to_predict(cells, features, target or "", task)
    number = check_split(str(path), split, protocol, STANDARD_SPLITS, PROTOCOLS)
    needed = 2 if protocol == "whole" else MIN_ROWS
    if len(cells.rows) < needed:
        count = "only one data row" if len(cells.rows) == 1 else f"only {len(cells.rows)} data rows"
        raise cells.fail(f"has {count}; at least {needed} are needed")
    x, y = _numbers(cells, features), _targets(cells, target, task)
    train, test = rows_of(len(y), number, protocol)
    return Dataset(
        name=Path(path).stem,
        task=task,
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        feature_names=features,
        target_name=target,
        split=number,
        protocol=protocol,
        oddities=constant_columns(x, features) + copied_rows(x, y, train, test),
        extras={"rows_train": train, "rows_test": test},
    )


def _read(path: Path) -> _Cells:
    """All cells of the file, stripped; blank lines are left out and not counted."""
    if not path.exists():
        raise DataError(f"{path}: not found")
    if path.is_dir():
        raise DataError(f"{path}: is a directory, not a CSV file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = [[cell.strip() for cell in line] for line in csv.reader(stream, strict=True) if line]
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path}: is not a well-formed CSV file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({short_reason(error)})") from None
    lines = [line for line in lines if line != [""]]
    if not lines:
        raise DataError(f"{path}: is empty")
    cells = _Cells(path, tuple(lines[0]), lines[1:])
    _check_header(cells)
    if not cells.rows:
        raise cells.fail("is empty below its header: it has no data rows")
    for number, row in enumerate(cells.rows, start=1):
        if len(row) != len(cells.header):
            raise cells.fail(
                f"row {number} has {len(row)} values, but the header names {len(cells.header)} columns"
            )
    return cells


def _check_header(cells: _Cells) -> None:
    for position, name in enumerate(cells.header, start=1):
        if not name:
            raise cells.fail(f"column {position} has no name in the header")
    # A header 0,1,2,... is what pandas writes for columns without names.
    unnamed = cells.header == tuple(str(position) for position in range(len(cells.header)))
    if all(_is_number(name) for name in cells.header) and not unnamed:
        raise cells.fail("has numbers in its first line, which must be a header of column names")
    repeated = sorted({name for name in cells.header if cells.header.count(name) > 1})
    if repeated:
        raise cells.fail(f"has duplicated columns in its header: {', '.join(repeated)}")


def _target_column(cells: _Cells, target: str | None, require_target: bool) -> str | None:
    if target is None:
        return cells.header[-1] if require_target else None
    if require_target and target not in cells.header:
        clue = nearest(target, cells.header)
        raise cells.fail(
            f"has no column {target!r} to be the target{clue}; its columns: {', '.join(cells.header)}"
        )
    return target


def _feature_columns(cells: _Cells, target: str | None, columns: Sequence[str] | None) -> tuple[str, ...]:
    found = tuple(name for name in cells.header if name != target)
    if columns is None:
        if not found:
            clue = "; are its values separated by commas?" if len(cells.header) == 1 else ""
            raise cells.fail(f"has no feature column beside the target {target!r}{clue}")
        return found
    missing = [name for name in columns if name not in found]
    if missing:
        raise cells.fail(f"has missing columns: {', '.join(missing)}; needed are {', '.join(columns)}")
    extra = [name for name in found if name not in columns]
    if extra:
        raise cells.fail(f"has extra columns: {', '.join(extra)}; expected are only {', '.join(columns)}")
    return tuple(columns)


def _to_predict(cells: _Cells, features: tuple[str, ...], target: str, task: Task) -> Dataset:
    labels = np.float64 if task == "regression" else np.int64
    x = _numbers(cells, features)
    none = np.empty(0, dtype=np.int64)
    return Dataset(
        name=cells.path.stem,
        task=task,
        x_train=np.empty((0, len(features))),
        y_train=np.empty(0, dtype=labels),
        x_test=x,
        y_test=np.empty(0, dtype=labels),
        feature_names=features,
        target_name=target,
        protocol="predict",
        extras={"rows_train": none, "rows_test": np.arange(len(x), dtype=np.int64)},
    )


def _numbers(cells: _Cells, names: Sequence[str]) -> np.ndarray:
    """The named columns as float64 [rows, len(names)]; the first bad cell, row by row, is an error."""
    positions = [cells.header.index(name) for name in names]
    table = np.empty((len(cells.rows), len(names)))
    for i, row in enumerate(cells.rows):
        for j, position in enumerate(positions):
            table[i, j] = _number(cells, i + 1, names[j], row[position])
    return table


def _number(cells: _Cells, row: int, column: str, text: str) -> float:
    where = f"column {column!r}, row {row}"
    if text.lower() in _MISSING:
        raise cells.fail(f"{where}: missing value ({text!r})")
    if not _is_number(text):
        raise cells.fail(f"{where}: {text[:40]!r} is not a number")
    value = float(text)
    if math.isnan(value):
        raise cells.fail(f"{where}: missing value ({text!r})")
    if math.isinf(value):
        raise cells.fail(f"{where}: {text[:40]!r} is infinity or too large")
    return value


def _is_number(text: str) -> bool:
    # Python alone reads 1_000 as a number; in a data file it is a slip.
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _targets(cells: _Cells, target: str, task: Task) -> np.ndarray:
    """The target [rows]: float64, or int64 labels 0..K-1 after checking them."""
    y = _numbers(cells, [target])[:, 0]
    if np.ptp(y) == 0:
        raise cells.fail(f"the target column {target!r} is constant ({y[0]:g} in every row)")
    if task == "regression":
        return y
    bad = np.flatnonzero((y != np.round(y)) | (y < 0) | ((y > 1) & (task == "binary")))
    if len(bad):
        wanted = "0 or 1" if task == "binary" else "a whole number from 0 to K - 1"
        raise cells.fail(f"column {target!r}, row {bad[0] + 1}: label {y[bad[0]]:g} is not {wanted}")
    present = np.unique(y)
    if present[-1] != len(present) - 1:
        gap = next(k for k, label in enumerate(present) if label != k)
        raise cells.fail(
            f"column {target!r}: labels must be 0..K-1 without gaps, but label {gap} does not occur"
        )
    return y.astype(np.int64)
