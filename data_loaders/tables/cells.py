"""The cells of a CSV file as text, their columns by name, and what is a number and what is missing.

The standard `csv` module reads the file rather than pandas, because a refusal has to name the row and column
as they stand in the file, and nothing may be guessed: a number is a number, everything else is an error.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np

from data_loaders.errors import DataError, absent, nearest, short_reason

#: What other programs write in place of commas.
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
#: What a file begins with that gzip has written.
_GZIP = b"\x1f\x8b"
#: A number with a sign, currency or unit (1.2%, $10.20, EUR 5, 3,000 km), with thousands apart (1,234.5) or a
#: decimal comma (0,5); not a label as C1, BMW3, #5 or 1a.
_MONEY = r"(EUR|USD|GBP|CHF|JPY|CNY|[A-Z]{0,2}[$€£¥])"
_UNIT = r"(%|‰|°[CF]?|[kcmμn]?m[²³]?|km/h|[kmμ]?g|[kMG]?W|[kMG]?Hz|[kMG]?B|ms|min)"
_THOUSANDS = r"\d{1,3}(,\d{3})+(\.\d*)?|\d+,\d+"
_WITH_UNIT = re.compile(rf"[-+−]?\s*({_MONEY}\s*[-+]?\d[\d.,]*|\d[\d.,]*\s*({_UNIT}|{_MONEY})|{_THOUSANDS})")
#: How numbers are to be written.
PLAINLY = "numbers without unit or separator, with a point, as 1234.5"
#: What to do about a row with a missing value.
FILL_IN = "remove the row or fill it in (beside a target: zoo fit --missing impute, for new rows too)"
_MISSING = frozenset({"", "na", "n/a", "nan", "+nan", "-nan", "null", "none", "?", "."})


@dataclass(frozen=True)
class Cells:
    """The text of a file: column names, and rows of as many cells."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """The cells below a name."""
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def fail(self, problem: str) -> DataError:
        return DataError(f"{self.path}: {problem}")

    def without_features(self, target: str | None) -> DataError:
        clue = "; are its values separated by commas?" if len(self.header) == 1 else ""
        return self.fail(f"has no feature column beside the target {target!r}{clue}")


def read_cells(path: Path) -> Cells:
    """All cells of the file, stripped; blank lines are left out and not counted. In a table of one column
    ``""`` is not blank: it is how a missing value is written.
    """
    if not path.exists():
        raise absent(path)
    if path.is_dir():
        raise DataError(f"{path}: is a directory, not a CSV file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = [
                [cell.strip() for cell in line]
                for line in csv.reader(stream, strict=True)
                if not _blank(line)
            ]
    except UnicodeDecodeError:
        raise DataError(f"{path}: {_no_text(path)}") from None
    except csv.Error as error:
        raise DataError(f"{path}: is not a well-formed CSV file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({short_reason(error)})") from None
    if not lines:
        raise DataError(f"{path}: is empty")
    header, *rows = lines
    if len(header) > 1:
        rows = [row for row in rows if row != [""]]
    cells = Cells(path, tuple(header), rows)
    _check_header(cells)
    if not cells.rows:
        raise cells.fail("is empty below its header: it has no data rows")
    for number, row in enumerate(cells.rows, start=1):
        if len(row) != len(cells.header):
            columns = f"{len(header)} column{'s' if len(header) > 1 else ''}"
            values = f"{len(row)} value{'s' if len(row) > 1 else ''}"
            raise cells.fail(f"row {number} has {values}, but the header names {columns}{_clue(header, row)}")
    return cells


def _blank(line: list[str]) -> bool:
    return not line or (len(line) == 1 and line[0].isspace())


def _clue(header: Sequence[str], row: Sequence[str]) -> str:
    """What may be wrong where rows and header do not fit."""
    if header[0].startswith("#"):
        return "; its first line begins with '#': is it a comment?"
    # a name with a comma in it, or decimal commas, divide such lines somewhere else
    lines = ["".join(header), "".join(row)]
    found = [called for sign, called in _OTHER_SEPARATORS.items() if all(sign in line for line in lines)]
    return f"; are there {found[0]} between its values? save it with commas" if found else ""


def _no_text(path: Path) -> str:
    """What a file is that holds no UTF-8."""
    with path.open("rb") as stream:
        if stream.read(len(_GZIP)) == _GZIP:
            return "is compressed: unpack it first (gunzip)"
    return "is not UTF-8 text; save it as CSV in UTF-8"


def other_separators(header: Sequence[str]) -> str:
    """What stands in place of commas between the names of a file's first line; empty where commas do."""
    found = (
        [called for sign, called in _OTHER_SEPARATORS.items() if sign in header[0]]
        if len(header) == 1
        else []
    )
    return found[0] if found else ""


def _check_header(cells: Cells) -> None:
    if separators := other_separators(cells.header):
        raise cells.fail(f"has {separators} between its values: save it with commas")
    for position, name in enumerate(cells.header, start=1):
        if not name:
            # pandas writes its index as a first column without a name.
            index = "write the table without its index (pandas: to_csv(..., index=False)), or "
            remedy = f"{index if position == 1 else ''}name the column"
            raise cells.fail(f"column {position} has no name in the header: {remedy}")
    # A header 0,1,2,... is what pandas writes for columns without names.
    unnamed = cells.header == tuple(str(position) for position in range(len(cells.header)))
    if all(is_number(name) for name in cells.header) and not unnamed:
        raise cells.fail("has numbers in its first line, which must be a header of column names")
    repeated = sorted({name for name in cells.header if cells.header.count(name) > 1})
    if repeated:
        raise cells.fail(f"has duplicated columns in its header: {', '.join(repeated)}")


@overload
def target_column(cells: Cells, target: str | None, require_target: Literal[True]) -> str: ...


@overload
def target_column(cells: Cells, target: str | None, require_target: bool) -> str | None: ...


def target_column(cells: Cells, target: str | None, require_target: bool) -> str | None:
    if target is None:
        return cells.header[-1] if require_target else None
    if require_target and target not in cells.header:
        clue = nearest(target, cells.header)
        raise cells.fail(
            f"has no column {target!r} to be the target{clue}; its columns: {', '.join(cells.header)}"
        )
    return target


def feature_columns(cells: Cells, target: str | None, columns: Sequence[str] | None) -> tuple[str, ...]:
    found = tuple(name for name in cells.header if name != target)
    if columns is None:
        if not found:
            raise cells.without_features(target)
        return found
    missing = [name for name in columns if name not in found]
    if missing:
        raise cells.fail(f"has missing columns: {', '.join(missing)}; needed are {', '.join(columns)}")
    extra = [name for name in found if name not in columns]
    if extra:
        raise cells.fail(f"has extra columns: {', '.join(extra)}; expected are only {', '.join(columns)}")
    return tuple(columns)


def numbers(cells: Cells, names: Sequence[str]) -> np.ndarray:
    """The named columns as float64 [rows, len(names)]; the first bad cell, row by row, is an error."""
    positions = [cells.header.index(name) for name in names]
    table = np.empty((len(cells.rows), len(names)))
    for i, row in enumerate(cells.rows):
        for j, position in enumerate(positions):
            table[i, j] = number(cells, i + 1, names[j], row[position])
    return table


def number(cells: Cells, row: int, column: str, text: str) -> float:
    problem = not_a_number(text)
    if problem:
        remedy = f"; {FILL_IN}" if is_missing(text) else ""
        raise cells.fail(f"column {column!r}, row {row}: {problem}{remedy}")
    return float(text)


def not_a_number(text: str) -> str:
    """Why a cell is no finite number; empty where it is one."""
    if is_missing(text):
        return f"missing value ({text!r})"
    if not is_number(text):
        return f"{text[:40]!r} is not a number{f': write {PLAINLY}' if have_units([text]) else ''}"
    return f"{text[:40]!r} is infinity or too large" if math.isinf(float(text)) else ""


def have_units(texts: Iterable[str]) -> bool:
    """Whether each of them is a number with something around it, or with thousands apart."""
    return all(map(_WITH_UNIT.fullmatch, texts))


def typed(names: Sequence[str]) -> str:
    """Names as one types them in a shell for an option: a line of CSV, quoted where that is needed."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return shlex.quote(line.getvalue())


def is_missing(text: str) -> bool:
    return text.lower() in _MISSING


def is_number(text: str) -> bool:
    # Python alone reads 1_000 as a number; in a data file it is a slip.
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
