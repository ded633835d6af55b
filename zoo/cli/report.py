"""The command ``zoo report``: its help and what it prints.  Imports nothing slow by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

REPORT_HELP = """Writes one page of HTML from the folders that other commands have left.

The page stands alone: pictures are in it, it loads nothing from anywhere, and it can be read on a phone, sent
by mail, or put on any web server. It has what each folder has: the texts, the tables with every digit (a
click on a heading sorts), the pictures, the settings, and what failed. A folder that is not finished, or
that no command of this program has made, is refused.

\b
Examples:
  zoo report out/diabetes --out diabetes.html
  zoo report out/diabetes out/boston out/table-3.3 --out all.html
"""


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="The --out of zoo compare, leaderboard, calibrate, reproduce or fit."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write, PAGE.html; replaced if it exists.")],
) -> None:
    """See ``REPORT_HELP``."""
    from zoo.commands.web_page import write_report

    size = write_report(folders, out)
    print(f"written to {out}, {size / 1e6:.1f} MB")
