"""What one column of a table holds: numbers, dates, yes and no, or categories; and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from data_loaders.tables.cells import PLAINLY, have_units, is_missing, is_number, not_a_number

Kind = Literal["number", "date", "flag", "category"]

#: Levels that a column of categories may have: each becomes an input.
MOST_LEVELS = 50
#: Levels up to which texts that look like numbers with units are taken for classes all the same.
FEW_LEVELS = 10
#: What stands for no and yes, in small letters.
FLAGS = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"))
_DATE = re.compile(r"\d{4}[-/]\d{1,2}([-/]\d{1,2}|$)")
_DAY_OR_MONTH = re.compile(r"\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}")


def kind_of(texts: Sequence[str]) -> Kind:
    """With a number in it a column is one of numbers; else, if its texts are mostly dates, one of dates."""
    told = [text for text in texts if not is_missing(text)]
    if not told or any(map(is_number, told)):
        return "number"
    if flag_levels(told):
        return "flag"
    return "date" if 2 * sum(bool(_DATE.match(text)) for text in told) > len(told) else "category"


def flag_levels(texts: Sequence[str]) -> tuple[str, ...]:
    """The pair of :data:`FLAGS` that all texts are of; empty where there is none."""
    found = {text.lower() for text in texts if not is_missing(text)}
    return next((pair for pair in FLAGS if found <= set(pair)), ())


def read_column(texts: Sequence[str], kind: Kind, levels: Sequence[str] = ()) -> tuple[np.ndarray, str]:
    """The values of a column, and where it first does not hold what its kind says (``row 4: 'tall' is not a
    number``).

    :param levels: of a flag
    :return: float64 [n], dates as days since 1970; of flags and categories objects [n]; NaN what is missing
    """
    if kind == "number":
        return _read_numbers(texts)
    if kind == "date":
        return _read_dates(texts)
    values = np.array([np.nan if is_missing(text) else text for text in texts], dtype=object)
    if kind == "category":
        return values, ""
    told = f"is neither {' nor '.join(levels)}"
    small = [text.lower() for text in texts]
    bad = [i for i, text in enumerate(small) if not is_missing(text) and text not in levels]
    values = np.array([np.nan if is_missing(text) else text for text in small], dtype=object)
    return values, f"row {bad[0] + 1}: {texts[bad[0]][:40]!r} {told}" if bad else ""


def _read_numbers(texts: Sequence[str]) -> tuple[np.ndarray, str]:
    values = np.full(len(texts), np.nan)
    for i, text in enumerate(texts):
        if is_missing(text):
            continue
        if problem := not_a_number(text):
            return values, f"row {i + 1}: {problem}"
        values[i] = float(text)
    return values, ""


def _read_dates(texts: Sequence[str]) -> tuple[np.ndarray, str]:
    import pandas as pd

    told = pd.Series([None if is_missing(text) else text for text in texts], dtype=object)
    dates = pd.to_datetime(told, format="ISO8601", errors="coerce", utc=True)
    bad = np.flatnonzero(dates.isna() & told.notna())
    days = (dates - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
    problem = f"row {bad[0] + 1}: {texts[bad[0]][:40]!r} is not a date as 2020-12-31" if len(bad) else ""
    return days.to_numpy(dtype=np.float64), problem


def unusable(texts: Sequence[str], meant: bool = False) -> str:
    """Why the texts are no categories: an id, too many levels, numbers with units, or dates written in a way
    that has two readings; empty where they are.

    :param meant: that they are categories has been said
    """
    told = [text for text in texts if not is_missing(text)]
    levels = len(set(told))
    if told and all(_DAY_OR_MONTH.match(text) for text in told):
        return f"{told[0]!r} may be day/month or month/day: write dates as 2020-12-31"
    hint = f"; is {told[0][:40]!r} a number? write {PLAINLY}" if told and have_units(told) else ""
    if levels == len(told) > 1:
        return f"a category of its own in every row, as an id has{hint}"
    if levels > MOST_LEVELS:
        return f"{levels} categories, more than {MOST_LEVELS}{hint}"
    if hint and levels > FEW_LEVELS and not meant:
        return f"{levels} categories{hint}, or name the column in --categories"
    return ""


def missing_in(texts: Sequence[str]) -> str:
    """Where a column lacks values, ``row 3: missing value ('') (177 rows)``; empty where it lacks none."""
    rows = [i for i, text in enumerate(texts) if is_missing(text)]
    if not rows:
        return ""
    count = f" ({len(rows)} rows)" if len(rows) > 1 else ""
    return f"row {rows[0] + 1}: missing value ({texts[rows[0]]!r}){count}"
