"""How a table of numbers, dates, flags and categories became numbers, kept so that new rows become the same.

The encoders are scikit-learn's. What they have learned is plain text and numbers here, for JSON, and not an
object that only one version of a library reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from data_loaders.errors import DataError
from data_loaders.tables.cells import FILL_IN, Cells, feature_columns, is_missing
from data_loaders.tables.columns import Kind, missing_in, read_column

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer


@dataclass(frozen=True)
class Column:
    """One column of the file.

    `levels` are the categories that the training rows have, each of them an input (1 in its rows, else 0), or
    the words for no and yes, one input. `fill` stands where a value is missing: the median of the training
    rows, or their most frequent text; None: a missing value is refused.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its inputs."""
        if self.kind == "category":
            return tuple(f"{self.name}={level}" for level in self.levels)
        return (self.name,)


@dataclass(frozen=True)
class Recipe:
    """All columns that are used, those that are `dropped`, and the names of the classes (empty where the file
    has numbers for them).
    """

    columns: tuple[Column, ...]
    dropped: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def of_categories(self) -> frozenset[str]:
        """Names of the inputs that stand for a level of a category."""
        return frozenset(
            name for column in self.columns if column.kind == "category" for name in column.features
        )

    @property
    def plain(self) -> bool:
        """Whether there is nothing to it: numbers, and none missing or left out."""
        kinds = {(column.kind, column.fill) for column in self.columns}
        return kinds == {("number", None)} and not self.dropped and not self.labels

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        lists = asdict(self)
        return {
            "columns": [{**column, "levels": list(column["levels"])} for column in lists["columns"]],
            "dropped": list(self.dropped),
            "labels": list(self.labels),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Recipe:
        """The inverse of `to_dict`; DataError for what `to_dict` cannot have written."""
        try:
            columns = [Column(**{**column, "levels": tuple(column["levels"])}) for column in saved["columns"]]
            return cls(tuple(columns), tuple(saved["dropped"]), tuple(saved["labels"]))
        except (KeyError, TypeError) as error:
            raise DataError(f"the saved treatment of the table's columns is damaged ({error})") from None

    def encode(self, cells: Cells, target: str | None) -> tuple[np.ndarray, tuple[str, ...]]:
        """The inputs float64 [rows, features] of a file, and sentences about categories that are new here and
        about missing values that were filled in.

        The columns may be in any order; those that were dropped, and the target, may be there or not. Raises
        DataError that names every column that is missing, not known, or has a cell that cannot be used.
        """
        names = [column.name for column in self.columns]
        ignored = {target, *self.dropped}
        seen = Cells(cells.path, tuple(name for name in cells.header if name not in ignored), [])
        feature_columns(seen, target, names)
        x, new = encode(cells, self.columns)
        return x, new + _filled_in(cells, self.columns)


def encode(cells: Cells, columns: Sequence[Column]) -> tuple[np.ndarray, tuple[str, ...]]:
    """As `Recipe.encode`, of a file that has the columns; nothing is said of missing values."""
    import pandas as pd

    frame, problems, notes, remedy = {}, [], [], ""
    for column in columns:
        texts = cells.column(column.name)
        frame[column.name], problem = read_column(texts, column.kind, column.levels)
        if column.fill is None and not problem:
            problem = missing_in(texts)
            remedy = f"; {FILL_IN}" if problem else remedy
        if problem:
            problems.append(f"column {column.name!r}, {problem}")
        elif column.kind == "category":
            notes += _new_levels(column, texts)
    if problems:
        raise cells.fail("; ".join(problems) + remedy)
    table = _transformer(columns).fit_transform(pd.DataFrame(frame))
    return np.ascontiguousarray(table, dtype=np.float64), tuple(notes)


def _new_levels(column: Column, texts: Sequence[str]) -> list[str]:
    new = [text for text in texts if not is_missing(text) and text not in column.levels]
    if not new:
        return []
    some = ", ".join(sorted(set(new))[:5]) + (", ..." if len(set(new)) > 5 else "")
    rows = "1 row" if len(new) == 1 else f"{len(new)} rows"
    return [f"column {column.name!r}: no training row has {some}; {rows} with 0 for all its categories"]


def _filled_in(cells: Cells, columns: Sequence[Column]) -> tuple[str, ...]:
    """What stands where a value is missing."""
    notes = []
    for column in columns:
        count = sum(map(is_missing, cells.column(column.name)))
        if count and column.fill is not None:
            values = "1 missing value" if count == 1 else f"{count} missing values"
            notes.append(
                f"column {column.name!r}: {values} filled in by {as_written(column.fill, column.kind)}"
            )
    return tuple(notes)


def as_written(fill: float | str, kind: Kind) -> str:
    """As the cells of the column are: a date is kept as days."""
    if isinstance(fill, str):
        return fill
    return str(np.datetime64(math.floor(fill), "D")) if kind == "date" else f"{fill:.15g}"


def _transformer(columns: Sequence[Column]) -> ColumnTransformer:
    """Of which everything is fixed beforehand: fitting it learns nothing."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    def steps(column: Column) -> list:
        levels = [np.array(column.levels, dtype=object)]
        encoders = {
            "category": [OneHotEncoder(categories=levels, handle_unknown="ignore", sparse_output=False)],
            "flag": [OrdinalEncoder(categories=levels)],
        }
        filling = {"strategy": "constant", "fill_value": column.fill, "keep_empty_features": True}
        fill = [] if column.fill is None else [SimpleImputer(**filling)]
        return [*fill, *encoders.get(column.kind, [])]

    return ColumnTransformer(
        [
            (
                str(place),  # not the column's name: scikit-learn has names that it does not take
                make_pipeline(*chosen) if (chosen := steps(column)) else "passthrough",
                [column.name],
            )
            for place, column in enumerate(columns)
        ],
        sparse_threshold=0,
    )
