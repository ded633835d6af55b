"""Graphs of one's own: a CSV file with a line an edge, and back.

    graph,sender,recipient,time
    monday,ann,bob,9.5
    monday,bob,cid,9.7
    tuesday,ann,cid,3.2

Columns `graph` and `time` may be left out: the whole file is one graph, edges come in the order of the lines.
Names are any text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from data_loaders.errors import DataError, absent, short_reason
from data_loaders.graphs.edge_lists import EdgeList, edge_list
from data_loaders.tables.cells import other_separators

COLUMNS = ("graph", "sender", "recipient", "time")


def load_edges(path: str | Path) -> list[EdgeList]:
    """The graphs of a CSV file, in the order in which they come first.

    :raises DataError: a file that cannot be read, a column that is missing or stands there twice, a line with
        too many cells, an edge without an end, a time that is no number or is given for some edges only:
        in one line, with the line of the file
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file, strict=True)
            header = [name.strip() for name in lines.fieldnames or ()]
            lines.fieldnames = header
            rows = [(lines.line_num, line) for line in lines]
    except FileNotFoundError:
        raise absent(path) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {short_reason(error)}") from None
    missing = [name for name in ("sender", "recipient") if name not in header]
    if missing and (separators := other_separators(header)):
        raise DataError(f"{path}: has {separators} between its values: save it with commas")
    if missing:
        raise DataError(
            f"{path}: has no column {missing[0]!r}; it needs sender and recipient, and may have graph, time"
        )
    twice = [name for name in COLUMNS if header.count(name) > 1]
    if twice:
        raise DataError(f"{path}: has the column {twice[0]!r} twice")
    graphs: dict[str, tuple[list[tuple[str, str]], list[float | None]]] = {}
    for number, line in rows:
        if any(cell.strip() for cell in line.get(None, ())):
            raise DataError(f"{path}: line {number}: has more cells than the header (a comma in a name?)")
        values = {name: (line.get(name) or "").strip() for name in COLUMNS}
        if not (values["sender"] and values["recipient"]):
            raise DataError(f"{path}: line {number}: an edge needs its sender and its recipient")
        if "graph" in header and not values["graph"]:
            raise DataError(f"{path}: line {number}: an edge needs the name of its graph")
        edges, times = graphs.setdefault(values["graph"], ([], []))
        edges.append((values["sender"], values["recipient"]))
        times.append(_time(path, number, values["time"]))
    if not graphs:
        raise DataError(f"{path}: has no edges")
    timed = {name: None not in times for name, (_, times) in graphs.items()}
    result = [_graph(path, name, *found) for name, found in graphs.items()]
    if len(set(timed.values())) > 1:  # a unit of time would be that of some
        without = next(name for name, has in timed.items() if not has)
        raise DataError(f"{path}: graph {without!r} has no times, and others have")
    return result


def _time(path: str | Path, number: int, text: str) -> float | None:
    try:
        if "_" in text:  # which Python allows
            raise ValueError
        return float(text) if text else None
    except ValueError:
        raise DataError(f"{path}: line {number}: time {text!r} is no number") from None


def _graph(
    path: str | Path, name: str, edges: Sequence[tuple[str, str]], times: Sequence[float | None]
) -> EdgeList:
    known = [time for time in times if time is not None]
    if 0 < len(known) < len(times):
        raise DataError(f"{path}: graph {name!r} has times for some of its edges only")
    try:
        return edge_list(edges, known if len(known) == len(times) else None)
    except DataError as error:
        raise DataError(f"{path}: graph {name!r}: {error}") from None


def edges_text(graphs: Sequence[EdgeList]) -> str:
    """Graphs as :func:`load_edges` reads them; graphs and nodes have numbers."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    for number, graph in enumerate(graphs):
        for (sender, recipient), time in zip(graph.edges.tolist(), graph.times.tolist(), strict=True):
            table.writerow((number, sender, recipient, f"{time:.17g}"))
    return file.getvalue()
