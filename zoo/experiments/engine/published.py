"""Numbers in print: one CSV a printed table, in the folder ``published`` of the paper's experiments.

A table has the columns ``dataset, method, setting, metric, value`` and, where the print has such things,
``se``, ``statistic`` (min, median, max over the runs), ``n`` and ``note``.  Names and digits are those of the
print; a function of the experiment says which number of ours each of them stands beside.  Three more files
lie beside the tables: ``sources.csv`` (what each was copied from), ``explained.csv`` (why some numbers cannot
be met, ``*`` for any name; ``factor``, where there is one, is what the print is to be multiplied by) and
``left_out.csv`` (why some stand beside no number of ours).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from zoo.experiments.engine.declaration import Explanation, Place, Published, Source

#: Of the experiments: the papers' folders lie there.
ROOT = Path(__file__).parents[1]
#: Values of ``statistic`` that belong to one range.
RANGE = ("min", "median", "max")


@dataclass(frozen=True)
class PrintedRow:
    """A line of a table, as printed.

    :ivar line: file and number of the line, the head being 1: ``table-3.3:7``
    :ivar se: empty where none is printed, as ``statistic``, ``n`` (runs behind the value) and ``note`` are
    """

    dataset: str
    method: str
    setting: str
    metric: str
    value: str
    se: str = ""
    statistic: str = ""
    n: str = ""
    note: str = ""
    line: str = ""

    @property
    def place(self) -> Place:
        """By the names of the print."""
        return self.dataset, self.method, self.setting, self.metric


#: Where a number stands in our table, None for one that has no place there.
Placed = Callable[[PrintedRow], Place | None]


def read_table(paper: str, table: str) -> list[PrintedRow]:
    """All lines of ``published/<table>.csv`` in the folder of a paper."""
    names = PrintedRow.__dataclass_fields__
    return [
        PrintedRow(**{name: text for name, text in line.items() if name in names}, line=f"{table}:{number}")
        for number, line in enumerate(_lines(paper, table), start=2)
    ]


def source_of(paper: str, table: str) -> tuple[Source, str]:
    """What a table was copied from, and how its standard errors were computed."""
    line = next(line for line in _lines(paper, "sources") if line["file"] == table)
    return Source(line["paper"], line["table"], line["page"]), line["errors"]


def published_numbers(
    rows: Sequence[PrintedRow], place: Placed, unit: Mapping[str, str] | None = None
) -> dict[Place, Published]:
    """The numbers of some rows at the places that they have in our table.

    :param unit: printed metric -> factor to our unit, as text: ``{"accuracy": "0.01"}``
    :raises ValueError: for two numbers at one place
    """
    groups: dict[Place, list[PrintedRow]] = defaultdict(list)
    for row in rows:
        found = place(row)
        if found is not None:
            groups[found].append(row)
    factors = unit or {}
    return {
        where: _number(group, Decimal(factors.get(group[0].metric, "1"))) for where, group in groups.items()
    }


def with_usual_error(number: Published, runs: int) -> Published:
    """Of a print whose standard error divides by the number of runs; the usual one divides by one less."""
    return replace(number, se=number.se and number.se * (runs / (runs - 1)) ** 0.5, runs=runs)


def explanations(paper: str, table: str) -> tuple[Explanation, ...]:
    """Those of ``explained.csv`` that are about a table; ``table`` names the experiment there."""
    return tuple(
        Explanation(
            (line["dataset"], line["method"], line["setting"], line["metric"]),
            line["kind"],
            line["why"],
            float(line.get("factor") or 1),
        )
        for line in _lines(paper, "explained")
        if table in line["tables"].split()
    )


def _number(rows: Sequence[PrintedRow], factor: Decimal) -> Published:
    """Of one place: a number, or the three of a range."""
    by_statistic = {row.statistic: _scaled(row.value, factor) for row in rows}
    if len(by_statistic) < len(rows):
        raise ValueError(f"two published numbers at one place: {rows}")
    remark = "; ".join(dict.fromkeys(row.note for row in rows if row.note))
    lines = tuple(row.line for row in rows)
    if tuple(by_statistic) == RANGE:
        low, median, high = by_statistic.values()
        words = f"{low:f} / {median:f} / {high:f}"
        return Published(float(median), None, float(low), float(high), words, remark, lines=lines)
    (row,) = rows
    value, se = _scaled(row.value, factor), _scaled(row.se, factor) if row.se else None
    words = f"{value:f}" if se is None else f"{value:f} ± {se:f}"
    return Published(float(value), float(se) if se else None, printed=words, remark=remark, lines=lines)


def _scaled(text: str, factor: Decimal) -> Decimal:
    """In our unit, with the digits that are printed and no others."""
    value = Decimal(text)
    return value if factor == 1 else value * factor


def _lines(paper: str, name: str) -> Iterator[dict[str, str]]:
    with (ROOT / paper / "published" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
