"""Tables as people have them: categories, flags, dates and missing values beside the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from data_loaders.errors import DataError, nearest
from data_loaders.records import Dataset, Task
from data_loaders.splits import PROTOCOLS, check_split, rows_of
from data_loaders.tables.cells import (
    PLAINLY,
    Cells,
    have_units,
    is_missing,
    is_number,
    read_cells,
    target_column,
    typed,
)
from data_loaders.tables.columns import (
    FEW_LEVELS,
    MOST_LEVELS,
    Kind,
    flag_levels,
    kind_of,
    missing_in,
    read_column,
    unusable,
)
from data_loaders.tables.csv_tables import STANDARD_SPLITS, check_rows, divided, load_csv, targets
from data_loaders.tables.oddities import leading_zeros
from data_loaders.tables.recipe import Column, Recipe, as_written, encode

#: Different whole numbers of a target up to which they may be classes.
FEW_NUMBERS = 3

Missing = Literal["refuse", "impute"]


@dataclass(frozen=True)
class TableOptions:
    """What is said about the columns of a CSV file.

    `drop` are columns to leave out, `categories` columns whose numbers are codes and no quantities; `missing`
    values are refused, or imputed: by the median of the training rows, of texts by the most frequent one.
    """

    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: Missing = "refuse"


AS_IT_IS = TableOptions()


@dataclass(frozen=True)
class Survey:
    """A column as it was found: its kind, how many rows lack a value, how many levels a category has, why it
    cannot be used as it is (empty where it can), and whether all values that there are are one.
    """

    name: str
    kind: Kind
    missing: int
    levels: int
    problem: str
    constant: bool


def load_table(
    path: str | Path,
    target: str | None = None,
    *,
    task: Task | None = None,
    split: int = 0,
    protocol: str = "standard",
    options: TableOptions = AS_IT_IS,
) -> Dataset:
    """Read a CSV file (UTF-8, commas, header in the first line) as a `Dataset` of numbers. Its columns are
    numbers, dates (2020-12-31), flags (true/false, yes/no) or categories (any other text).

    A category becomes an input for every level in the training rows, 1 where it is and 0 elsewhere; a flag
    one input 0 or 1; a date the days since 1970. `Dataset.recipe` says what was done, None for a table of
    numbers, which is as `load_csv` reads it. A target of texts is classes, in alphabetical order: if `task`
    is left out "binary" for two, "multiclass" for more. A target of numbers is "regression" then.

    Raises DataError with one line that names the file and every column that cannot be used, and the remedy.
    """
    if task is not None and task not in get_args(Task):
        raise DataError(f"unknown task {task!r}: it must be one of {', '.join(get_args(Task))}")
    cells = read_cells(Path(path))
    target = target_column(cells, target, True)
    number = check_split(str(path), split, protocol, STANDARD_SPLITS, PROTOCOLS)
    check_rows(cells, protocol)
    train, test = rows_of(len(cells.rows), number, protocol)
    names = _used_columns(cells, target, options)
    columns = _learn(cells, names, train, options)
    y, labels, chosen = _classes_or_numbers(cells, target, task)
    odd = _may_be_classes(target, y) if chosen == "regression" and task is None else ()
    odd += leading_zeros(cells, (column.name for column in columns if column.kind == "number"))
    recipe = Recipe(columns, options.drop, labels)
    if repeated := sorted({name for name in recipe.features if recipe.features.count(name) > 1}):
        raise cells.fail(f"would have two inputs of one name, {', '.join(repeated)}: rename a column")
    if recipe.plain:
        data = load_csv(path, target, task=chosen, split=split, protocol=protocol)
        return replace(data, oddities=odd + data.oddities)
    x, new = encode(cells, columns)
    name, odd = Path(path).stem, odd + _notes(cells, recipe) + new
    return divided(name, chosen, x, y, recipe.features, target, number, protocol, odd, recipe)


def load_rows(path: str | Path, target: str | None, recipe: Recipe) -> tuple[np.ndarray, tuple[str, ...]]:
    """New rows, encoded as those that `recipe` was made for: the inputs float64 [rows, features], and
    sentences about what is new in them. Raises DataError as `Recipe.encode` does.
    """
    return recipe.encode(read_cells(Path(path)), target)


def survey(path: str | Path, options: TableOptions = AS_IT_IS) -> list[Survey]:
    """What `load_table` finds in every column of a file."""
    cells = read_cells(Path(path))
    _check_names(cells, options)
    return [_look(cells, name, options) for name in cells.header if name not in options.drop]


def _check_names(cells: Cells, options: TableOptions) -> None:
    for option, names in (("drop", options.drop), ("categories", options.categories)):
        for name in names:
            if name not in cells.header:
                raise cells.fail(f"has no column {name!r} for --{option}{nearest(name, cells.header)}")
    if options.missing not in get_args(Missing):
        raise DataError(
            f"missing values can be dealt with by {' or '.join(get_args(Missing))}, not {options.missing!r}"
        )


def _used_columns(cells: Cells, target: str, options: TableOptions) -> list[str]:
    _check_names(cells, options)
    if target in options.drop:
        raise cells.fail(f"cannot drop {target!r}: it is the target")
    found = [name for name in cells.header if name != target and name not in options.drop]
    if not found:
        raise cells.without_features(target)
    return found


def _look(cells: Cells, name: str, options: TableOptions) -> Survey:
    """One column by itself, whatever `options` say about missing values."""
    texts = cells.column(name)
    kind = "category" if name in options.categories else kind_of(texts)
    problem = read_column(texts, kind, flag_levels(texts))[1]
    if not problem and kind == "category":
        problem = unusable(texts, meant=name in options.categories)
    told = [text for text in texts if not is_missing(text)]
    different = {text.lower() if kind == "flag" else text for text in told}
    levels = len(different) if kind in ("category", "flag") else 0
    problem = problem if told else "no value in any row"
    return Survey(name, kind, len(texts) - len(told), levels, problem, len(different) == 1)


def _learn(
    cells: Cells, names: Sequence[str], train: np.ndarray, options: TableOptions
) -> tuple[Column, ...]:
    """What becomes of every column, from the training rows; every column that cannot be used is refused at
    once.
    """
    found = [_look(cells, name, options) for name in names]
    problems = {one.name: one.problem for one in found if one.problem}
    lacking = [one.name for one in found if one.missing and not one.problem]
    if options.missing == "refuse":
        problems |= {name: missing_in(cells.column(name)) for name in lacking}
    columns = [_column(cells, one, train, options) for one in found if one.name not in problems]
    problems |= {
        column.name: "no value in any training row" for column in columns if column.fill != column.fill
    }
    if not problems:
        return tuple(columns)
    told = [f"column {name!r}, {problem}" for name, problem in problems.items()]
    unfit = [name for name in problems if options.missing == "impute" or name not in lacking]
    remedies = [f"--drop {typed(unfit)} leaves {'them' if len(unfit) > 1 else 'it'} out"] if unfit else []
    if len(unfit) < len(problems):
        remedies.append(f"--missing impute fills in what is missing, or --drop {typed(lacking)}")
    mixed = [one.name for one in found if "is not a number" in one.problem]
    if mixed:
        remedies.append(f"--categories {typed(mixed)} takes numbers for names")
    raise cells.fail(f"{'; '.join(told)} ({', '.join(remedies)})")


def _column(cells: Cells, found: Survey, train: np.ndarray, options: TableOptions) -> Column:
    import pandas as pd

    if found.kind in ("number", "date") and options.missing == "refuse":
        return Column(found.name, found.kind)
    texts = cells.column(found.name)
    flags = flag_levels(texts) if found.kind == "flag" else ()
    values = pd.Series(read_column(texts, found.kind, flags)[0][train])
    levels = flags or (tuple(sorted(values.dropna().unique())) if found.kind == "category" else ())
    if options.missing == "refuse":
        return Column(found.name, found.kind, levels)
    if found.kind in ("number", "date"):
        return Column(found.name, found.kind, levels, float(values.median()))
    common = values.mode()
    return Column(found.name, found.kind, levels, common.iloc[0] if len(common) else float("nan"))


def _classes_or_numbers(
    cells: Cells, target: str, task: Task | None
) -> tuple[np.ndarray, tuple[str, ...], Task]:
    """The target, the names of its classes where they have names, and the task."""
    texts = cells.column(target)
    if problem := missing_in(texts):
        raise cells.fail(f"column {target!r}, {problem}; a target is not filled in: remove the row")
    if task in (None, "regression") and kind_of(texts) == "date":
        raise cells.fail(
            f"the target column {target!r} is a date, which is neither a number nor a class: choose another "
            "--target, or write it as a number of days"
        )
    if any(map(is_number, texts)) or task == "regression":
        chosen = task or "regression"
        return targets(cells, target, chosen), (), chosen
    small = [text.lower() for text in texts]
    if flag_levels(texts) and len(set(small)) < len(set(texts)):  # TRUE and True are one class
        texts = small
    labels = sorted(set(texts))
    if len(labels) == 1:
        raise cells.fail(f"the target column {target!r} is constant ({labels[0]!r} in every row)")
    usable = len(labels) <= MOST_LEVELS and len(labels) < len(texts)
    if len(labels) > FEW_LEVELS and have_units(labels) and not (task and usable):
        problem = f"{texts[0][:40]!r} is not a number: write {PLAINLY}"
        otherwise = " (or say --task multiclass, if these are classes)" if usable else ""
        raise cells.fail(f"column {target!r}, row 1: {problem}{otherwise}")
    if not usable:
        raise cells.fail(
            f"the target column {target!r} has {len(labels)} different texts: these are no classes"
        )
    if task == "binary" and len(labels) > 2:
        raise cells.fail(f"the target column {target!r} has {len(labels)} classes: --task multiclass")
    places = {label: place for place, label in enumerate(labels)}
    y = np.array([places[text] for text in texts], dtype=np.int64)
    return y, tuple(labels), task or ("binary" if len(labels) == 2 else "multiclass")


def _may_be_classes(target: str, y: np.ndarray) -> tuple[str, ...]:
    """A sentence about a target of few whole numbers that follow each other."""
    values = np.unique(y)
    if len(values) > FEW_NUMBERS or (values != values[0] + np.arange(len(values))).any() or values[0] % 1:
        return ()
    if np.isin(values, (0, 1)).all():
        return (f"target {target!r} has only 0 and 1: --task binary makes classes of them",)
    listed = ", ".join(f"{value:g}" for value in values)
    said = "taken as numbers: classes are named in words, or numbered from 0 (with --task multiclass)"
    return (f"target {target!r} has only {listed}, {said}",)


def _notes(cells: Cells, recipe: Recipe) -> tuple[str, ...]:
    """What was done to the columns, for a reader of results."""
    notes = []
    if recipe.labels:
        notes.append("classes: " + ", ".join(f"{label} = {k}" for k, label in enumerate(recipe.labels)))
    for column in recipe.columns:
        count = sum(map(is_missing, cells.column(column.name)))
        if count and column.fill is not None:
            fill = as_written(column.fill, column.kind)
            notes.append(f"column {column.name!r}: {count} missing, taken for {fill}")
    return tuple(notes)
