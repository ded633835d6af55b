"""A finished folder of results, whichever command has left it: its settings, texts, tables and pictures.

Everything is found by its ending, so that a command that comes later needs no line here unless one of its
files says that it is finished.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import UserError
from zoo.files.output import CONFIG, read_config

#: Which file a command writes last; one of them is enough.
LAST = {
    "compare": ("scoreboard.csv",),
    "compare --splits --seeds": ("scoreboard.csv",),
    "leaderboard": ("leaderboard.csv",),
    "reproduce": ("table.md",),
    "fit": ("losses.csv", "fit.json"),
}
#: Parts of a configuration that name the work, in this order.
NAMES = ("command", "experiment", "data", "model", "guide")
PNG_BEGINS, PNG_ENDS = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


@dataclass(frozen=True)
class Table:
    """A CSV file, its cells as they are written there."""

    name: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class ResultFolder:
    """What a folder holds.

    :ivar texts: of the Markdown files, by name
    :ivar pictures: the bytes of the PNG files, by name
    """

    path: Path
    config: dict
    texts: dict[str, str]
    tables: list[Table]
    pictures: dict[str, bytes]

    @property
    def title(self) -> str:
        """``compare diabetes bnn``"""
        return " ".join(value for name in NAMES if isinstance(value := self.config.get(name), str))


def read_result_folder(folder: str | Path) -> ResultFolder:
    """Reads the files of a folder, not those of folders in it.

    :raises UserError: when this program has not made it, the work in it is not finished, or a file of it is
        cut off or damaged
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the --out of the command that made the results")
    config = read_config(folder)
    if not isinstance(config.get("command"), str):
        raise UserError(f"{folder / CONFIG} names no command: it is not the output of this program")
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
        found = ResultFolder(
            folder,
            config,
            {path.name: _text(path) for path in files if path.suffix == ".md"},
            [_table(path) for path in files if path.suffix == ".csv"],
            {path.name: _picture(path) for path in files if path.suffix == ".png"},
        )
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
    last = LAST.get(config["command"])
    if not (any((folder / name).is_file() for name in last) if last else found.texts or found.tables):
        raise UserError(f"{folder} is not finished: give the command that began it once more")
    return found


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path} is truncated or damaged ({why}): delete it and give its command once more")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise _damaged(path, "no UTF-8") from None


def _table(path: Path) -> Table:
    text = _text(path)
    if not text.endswith("\n"):
        raise _damaged(path, "its last line has no end")
    try:
        header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error as error:
        raise _damaged(path, str(error)) from None
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise _damaged(path, f"row {number} has {len(row)} cells, the header {len(header)}")
    return Table(path.name, header, rows)


def _picture(path: Path) -> bytes:
    content = path.read_bytes()
    if not (content.startswith(PNG_BEGINS) and content.endswith(PNG_ENDS)):
        raise _damaged(path, "no whole PNG")
    return content
