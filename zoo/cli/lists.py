"""The lists: one line an entry, one screen a list.  Imports nothing slow by itself."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.papers import PAPERS, Paper, find_paper

if TYPE_CHECKING:  # slow to import
    from data_loaders import TableOptions

#: Columns of a line where the output is no terminal.
WIDTH = 100


def width() -> int:
    """Columns of a line: those of the terminal, never fewer than 80 nor more than :data:`WIDTH`."""
    columns = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    return max(80, min(columns, WIDTH))


def print_lines(title: str, rows: Iterable[Sequence[object]]) -> None:
    """A title, and rows in columns of equal width; the last column is cut at the width of a line.  Nothing
    without a row.
    """
    rows = [[str(cell) for cell in row] for row in rows]
    if not rows:
        return
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(title)
    for row in rows:
        *cells, last = row
        start = "".join(f"{cell:{size}}  " for cell, size in zip(cells, sizes, strict=False))
        print(f"  {start}{shortened(last, width() - 2 - len(start))}".rstrip())


def shortened(text: str, size: int) -> str:
    """A text on one line of at most ``size`` characters, cut between two words."""
    if len(text) <= size:
        return text
    return text[: size - len(" ...") + 1].rsplit(" ", 1)[0].rstrip(",;:(") + " ..."


def print_packages(packages: Mapping[str, str]) -> None:
    """Of names, which are from which other package; nothing where all are ours."""
    for package in dict.fromkeys(filter(None, packages.values())):
        names = [name for name, found in packages.items() if found == package]
        print(textwrap.fill(f"registered by {package}: {', '.join(names)}", width(), break_on_hyphens=False))


def list_columns(path: str, options: TableOptions) -> None:
    """What every column of a CSV file is taken for.

    :raises DataError: for a file that cannot be read
    """
    from data_loaders import survey

    rows = []
    for found in survey(path, options):
        what = f"{found.kind} of {found.levels} levels" if found.levels else found.kind
        lacking = f"{found.missing} missing" if found.missing else ""
        problem = f"unusable: {found.problem}" if found.problem else ""
        constant = "constant: it tells nothing" if found.constant else ""
        rows.append((found.name, what, "; ".join(filter(None, (lacking, constant, problem)))))
    print_lines("Columns of the table: what they are taken for, what is wrong with them", rows)


def list_models_and_guides(key: str | None = None) -> None:
    """Papers, models and guides; with a key those of one family, and its experiments.

    :raises UserError: for a key that there is not
    """
    papers = list(PAPERS.values()) if key is None else [find_paper(key)]
    from zoo.models.densities import DENSITY_MODELS
    from zoo.models.graphs.growth_models import GROWTH_MODELS
    from zoo.registry.queries import GUIDES, MODELS, kinds_of_weights

    def listed(catalogue: Mapping[str, Any]) -> list[Any]:
        return [entry for entry in catalogue.values() if key in (None, entry.paper)]

    title = "Papers" if key is None else "Paper (zoo show NAME tells everything about a name below)"
    print_lines(title, [(paper.key, paper.title) for paper in papers])
    print_lines(
        "Models: truth to grade against, what it is",
        [(m.name, m.paper, ", ".join(m.references) or "-", m.summary) for m in listed(MODELS)],
    )
    unsupervised = [*listed(DENSITY_MODELS), *listed(GROWTH_MODELS)]
    print_lines(
        "Densities of tables without a target, models of graphs (zoo fit FILE --model NAME)",
        [(m.name, m.paper, m.summary) for m in unsupervised],
    )
    print_lines(
        "Guides: weights that it is for, what it is",
        [(g.name, g.paper, kinds_of_weights(g), g.summary) for g in listed(GUIDES)],
    )
    print_packages({entry.name: MODELS.package(entry.name) for entry in listed(MODELS)})
    print_packages({entry.name: GUIDES.package(entry.name) for entry in listed(GUIDES)})
    if key is None:
        print("zoo show NAME tells everything about one of them; zoo list --paper KEY, about one family")
    else:
        _list_experiments(papers[0])


def _list_experiments(paper: Paper) -> None:
    from zoo.experiments.engine.catalogue import experiments

    found = [e for e in experiments().values() if e.name.startswith(f"{paper.key}/")]
    print_lines("Experiments (zoo reproduce NAME)", [(e.name, e.summary) for e in found])
    print(textwrap.fill(paper.citation, width()))


def list_experiments() -> None:
    """All experiments."""
    from zoo.experiments.engine.catalogue import OTHERS, experiments

    print_lines(
        "Experiments: cost of the full budget, what it is",
        [(e.name, _short(e.full.cost), e.summary) for e in experiments().values()],
    )
    print_packages({name: OTHERS.package(name) for name in experiments()})
    print("zoo show NAME tells everything about one of them: where published, its axes, budgets, numbers")


def _short(cost: str) -> str:
    """``1.5 hours on 2 cores`` -> ``1.5 hours``"""
    return re.split(r" on | for | \(|,", cost)[0]


def list_data() -> None:
    """All data sets, the tables without a target, and the sets of graphs."""
    from data_loaders import describe, list_datasets
    from data_loaders.catalogue.lookup import ENTRIES
    from data_loaders.densities import DENSITIES
    from data_loaders.graphs.graph_sets import GRAPH_SETS

    heading = ("name", "task", "rows", "columns", "splits", "from")
    rows = []
    for d in map(describe, list_datasets()):
        source = "at hand" if d.file is None else "download" if d.downloadable else "ZOO_DATA"
        rows.append((d.name, d.task, d.rows, d.features, d.splits, source))
    print_lines("Data sets", [heading, *rows])
    print_packages({name: ENTRIES.package(name) for name in list_datasets()})
    names = f"Tables without a target (zoo fit NAME --model maf): {', '.join(DENSITIES)}"
    print(textwrap.fill(names, width(), break_on_hyphens=False))
    names = f"Sets of graphs (data_loaders.graphs.graph_sets.load_graphs): {', '.join(GRAPH_SETS)}"
    print(textwrap.fill(names, width(), break_on_hyphens=False))
    print("at hand: needs no network; ZOO_DATA: a folder that this variable names must hold the file")
    print("zoo show NAME tells everything about one of them")
