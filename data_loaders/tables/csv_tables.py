"""Tables of numbers: a CSV file with a header to training and test rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from data_loaders.errors import DataError
from data_loaders.records import Dataset, Task
from data_loaders.splits import PROTOCOLS, check_split, rows_of
from data_loaders.tables.cells import Cells, feature_columns, numbers, read_cells, target_column
from data_loaders.tables.oddities import (
    constant_columns,
    copied_rows,
    row_numbers,
    unseen_classes,
    unseen_spread,
)
from data_loaders.tables.recipe import Recipe

STANDARD_SPLITS = 20
MIN_ROWS = 5


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
    cells = read_cells(Path(path))
    target = target_column(cells, target, require_target)
    features = feature_columns(cells, target, columns)
    if target is None or not require_target:
        return _to_predict(cells, features, target or "", task)
    number = check_split(str(path), split, protocol, STANDARD_SPLITS, PROTOCOLS)
    check_rows(cells, protocol)
    x, y = numbers(cells, features), targets(cells, target, task)
    return divided(Path(path).stem, task, x, y, features, target, number, protocol)


def divided(
    name: str,
    task: Task,
    x: np.ndarray,
    y: np.ndarray,
    features: tuple[str, ...],
    target: str,
    split: int,
    protocol: str,
    oddities: tuple[str, ...] = (),
    recipe: Recipe | None = None,
) -> Dataset:
    """A table `x` [rows, d], `y` [rows] in training and test rows, with what is odd about it, after the
    `oddities` that are known already.
    """
    train, test = rows_of(len(y), split, protocol)
    levels = recipe.of_categories if recipe else ()  # whose new ones are told elsewhere
    found = row_numbers(x, features) + constant_columns(x, features) + copied_rows(x, y, train, test)
    found += unseen_spread(x, features, train, test, but=levels)
    if task != "regression":
        found += unseen_classes(y, train, recipe.labels if recipe else ())
    return Dataset(
        name=name,
        task=task,
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        feature_names=features,
        target_name=target,
        split=split,
        protocol=protocol,
        oddities=oddities + found,
        extras={"rows_train": train, "rows_test": test},
        recipe=recipe,
    )


def check_rows(cells: Cells, protocol: str) -> None:
    """:raises DataError: for a table with too few rows to be split"""
    needed = 2 if protocol == "whole" else MIN_ROWS
    if len(cells.rows) < needed:
        count = "only one data row" if len(cells.rows) == 1 else f"only {len(cells.rows)} data rows"
        raise cells.fail(f"has {count}; at least {needed} are needed")


def _to_predict(cells: Cells, features: tuple[str, ...], target: str, task: Task) -> Dataset:
    labels = np.float64 if task == "regression" else np.int64
    x = numbers(cells, features)
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


def targets(cells: Cells, target: str, task: Task) -> np.ndarray:
    """The target [rows]: float64, or int64 labels 0..K-1 after checking them."""
    y = numbers(cells, [target])[:, 0]
    if np.ptp(y) == 0:
        raise cells.fail(f"the target column {target!r} is constant ({y[0]:g} in every row)")
    if task == "regression":
        return y
    bad = np.flatnonzero((y != np.round(y)) | (y < 0) | ((y > 1) & (task == "binary")))
    if len(bad):
        wanted = "0 or 1" if task == "binary" else "a whole number from 0 to K - 1"
        remedy = "number the classes so, or name them in words"
        raise cells.fail(
            f"column {target!r}, row {bad[0] + 1}: label {y[bad[0]]:g} is not {wanted}: {remedy}"
        )
    present = np.unique(y)
    if present[-1] != len(present) - 1:
        gap = next(k for k, label in enumerate(present) if label != k)
        raise cells.fail(
            f"column {target!r}: labels must be 0..K-1 without gaps, but label {gap} does not occur"
        )
    return y.astype(np.int64)
