"""The words of finished pages anew: after a change of a declaration, a printed number or an explanation.

``python -m zoo.experiments.engine.rewrite FOLDER`` goes through the pages of a folder.  The numbers of a page
are in the CSV file beside it, so that nothing has to be computed for another verdict, note or layout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.engine.declaration import Experiment
from zoo.experiments.engine.lines import Line, Summary, line_at
from zoo.experiments.engine.page import ERRORS_IN_PRINT, PARTIAL_EFFORT, numbers
from zoo.experiments.engine.tables import line_table
from zoo.files.tables import write_csv, write_text

_NAME = re.compile(r"# ([\w.-]+/[\w.-]+)\n")
_FAILED = re.compile(r"\d+ of \d+ trials failed")
#: Columns of ``table.csv`` that are ours, in the order of :class:`Summary`.
_OURS = ["mean", "se", "n", "min", "median", "max"]


def pages(folder: Path) -> Iterator[tuple[Path, Experiment]]:
    """Pages of ``zoo reproduce`` in a folder and below, each with its experiment."""
    for page in sorted(folder.rglob("*.md")):
        found = _NAME.match(page.read_text(encoding="utf-8"))
        if found and page.with_suffix(".csv").exists():
            yield page, find_experiment(found[1])


def rewritten(page: Path, experiment: Experiment) -> tuple[str, pd.DataFrame]:
    """What page and table of today's declaration are, from the table beside the page."""
    text = page.read_text(encoding="utf-8")
    head, *_ = text.partition("\n\n## ")
    _, _, facts = head.partition("\n\n- ")
    lines = _read(page.with_suffix(".csv"), experiment, comparable=PARTIAL_EFFORT not in facts)
    for beginning, words in (
        ("published in: ", experiment.source),
        (ERRORS_IN_PRINT, experiment.published_error),
    ):
        facts = re.sub(
            f"^((- )?{beginning}).*$", lambda found, words=words: found[1] + str(words), facts, flags=re.M
        )
    parts = [f"# {experiment.name}", experiment.summary, f"- {facts}", *numbers(experiment, lines)]
    return "\n\n".join(parts) + "\n", line_table(lines)


def _read(path: Path, experiment: Experiment, comparable: bool) -> list[Line]:
    table = pd.read_csv(path, keep_default_na=False, dtype=str)
    lines = []
    for row in table.to_dict("records"):
        place = tuple(row[name] for name in ("dataset", "method", "setting", "metric"))
        mean, se, n, *others = (float(row[name]) if row[name] else None for name in _OURS)
        ours = Summary(mean, se, int(n), *others) if n else None
        failed = _FAILED.search(row["note"])
        lines.append(line_at(experiment, place, ours, comparable, failed[0] if failed else ""))
    return lines


def main(arguments: Sequence[str]) -> None:
    """Writes what has changed, and names it."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(f"one folder that exists, not {' '.join(arguments) or 'none'}: docs/results", file=sys.stderr)
        sys.exit(2)
    folder = Path(arguments[0])
    for page, experiment in pages(folder):
        text, table = rewritten(page, experiment)
        if text != page.read_text(encoding="utf-8"):
            write_text(page, text)
            print(page)
        write_csv(table, page.with_suffix(".csv"))


if __name__ == "__main__":
    main(sys.argv[1:])
