"""Tables, texts and pictures on disk, each written whole or not at all; a table is a data frame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from guides.posterior.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_text(path: str | Path, text: str) -> None:
    """UTF-8, line ends as they are in the text; :raises OSError: when it cannot be written"""
    write_atomically(path, lambda target: Path(target).write_text(text, encoding="utf-8", newline=""))


def write_csv(table: pd.DataFrame, path: str | Path) -> None:
    """Columns and rows without the index.  A float is the shortest text that reads back as the same number, a
    missing value is empty.

    :raises OSError: when it cannot be written
    """
    write_text(path, table.to_csv(index=False, lineterminator="\n"))


def write_figure(figure: Figure, path: str | Path, *, dpi: int, **options: object) -> None:
    """A figure of matplotlib as PNG; ``options`` are those of its ``savefig``."""
    write_atomically(path, lambda target: figure.savefig(target, format="png", dpi=dpi, **options))


def markdown_table(table: pd.DataFrame, sides: str) -> str:
    """A table of texts in Markdown, without a line end behind it; white space in a cell becomes one space.

    :param sides: ``l`` or ``r`` for every column
    """

    def line(cells) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    ruler = "|" + "".join({"l": "---|", "r": "---:|"}[side] for side in sides)
    return "\n".join([line(table.columns), ruler, *map(line, table.itertuples(index=False, name=None))])
