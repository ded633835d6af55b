"""``zoo report``: one page of HTML from folders of results.

The page needs nothing beside itself, and its own policy forbids the browser to load anything: pictures are
in it, and of scripts it runs only the one that sorts tables.  Every cell stands as it is in its CSV file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from zoo.errors import UserError
from zoo.files.result_folder import ResultFolder, Table, read_result_folder
from zoo.files.tables import write_text
from zoo.version import __version__

#: Rows of a table that a page shows; a browser on a phone draws so many at once.
MOST_ROWS = 500
#: A cell of more characters than this is broken into lines.
LONG_CELL = 30


@dataclass(frozen=True)
class Part:
    """What the page says of one folder.

    :ivar failed: rows whose status says so, without the columns that are empty in all of them
    :ivar texts: safe HTML
    :ivar pictures: name -> data URI, of those that stand in no text
    :ivar settings: heading -> name -> value
    """

    title: str
    failed: Table
    texts: list[Markup]
    pictures: dict[str, str]
    tables: list[Table]
    settings: dict[str, dict[str, str]]


def write_report(folders: Sequence[str | Path], out: str | Path) -> int:
    """Writes the page, whole or not at all; returns its size in bytes.

    :raises UserError: when a folder is foreign, not finished or damaged, or the page cannot be written
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out names a page, as in report.html, not {out}")
    page = render([read_result_folder(folder) for folder in folders])
    try:
        write_text(out, page)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from error
    return out.stat().st_size


def render(folders: Sequence[ResultFolder]) -> str:
    """The page; names and cells are text, whatever they hold."""
    html = files("zoo.commands") / "html"
    script = (html / "report.js").read_text("utf-8")
    parts = [_part(folder) for folder in folders]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        (html / "report.html").read_text("utf-8")
    )
    return template.render(
        title=parts[0].title if len(parts) == 1 else f"{len(parts)} results",
        parts=parts,
        most_rows=MOST_ROWS,
        long_cell=LONG_CELL,
        style=(html / "report.css").read_text("utf-8"),
        script=script,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        version=__version__,
    )


def _part(folder: ResultFolder) -> Part:
    pictures = {
        name: f"data:image/png;base64,{base64.b64encode(content).decode()}"
        for name, content in folder.pictures.items()
    }
    versions = folder.config.get("versions")
    settings = {"of the work": _flat({k: v for k, v in folder.config.items() if k != "versions"})}
    if isinstance(versions, Mapping):
        settings["versions"] = _flat(versions)
    texts = [markdown_html(text, pictures) for text in folder.texts.values()]
    below = {name: source for name, source in pictures.items() if not any(source in text for text in texts)}
    return Part(folder.title, failures(folder.tables), texts, below, folder.tables, settings)


def failures(tables: Sequence[Table]) -> Table:
    """The failed rows of the first table that has any."""
    for table in tables:
        if "status" in table.header:
            column = table.header.index("status")
            rows = [row for row in table.rows if row[column].startswith("failed")]
            if rows:
                kept = [i for i in range(len(table.header)) if any(row[i] for row in rows)]
                header = [table.header[i] for i in kept]
                return Table("failures", header, [[row[i] for i in kept] for row in rows])
    return Table("failures", [], [])


def _flat(settings: Mapping, above: str = "") -> dict[str, str]:
    """``{"budget": {"steps": 9}}`` -> ``{"budget steps": "9"}``"""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name} ")
        else:
            found[f"{above}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


# ------------------------------------------------------------------------------------------------ texts


def markdown_html(text: str, pictures: Mapping[str, str]) -> Markup:
    """Markdown as HTML: tags in the text are text, tables can be sorted, and what would lead to other files
    is text too, for a page that stands alone has no neighbours.

    :param pictures: name -> data URI of those that may stand in the text
    """
    parser = MarkdownIt("js-default")
    parser.validateLink = lambda url: url.startswith(("https://", "http://")) or url in pictures
    tokens = parser.parse(text)
    if tokens and tokens[0].tag == "h1":
        tokens = tokens[3:]  # the title of the page says it
    for token, behind in zip_longest(tokens, tokens[1:]):
        _fit_in(token, behind)
        for part in token.children or []:
            _place(part, pictures)
    return Markup(parser.renderer.render(_with_buttons(tokens), parser.options, {}))


def _fit_in(token: Token, behind: Token | None) -> None:
    """Headings below those of the page; the sides of cells as classes.

    :param behind: what follows, the text of a cell
    """
    if token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
    elif token.type in ("th_open", "td_open"):
        if token.attrs.pop("style", "") == "text-align:right":
            token.attrSet("class", "right")
        elif len(behind.content) > LONG_CELL:
            token.attrSet("class", "long")


def _place(part: Token, pictures: Mapping[str, str]) -> None:
    """A picture of the folder where the text wants it; of any other one, its name.  A link to one is none."""
    if part.type == "image" and part.attrs["src"] in pictures:
        part.attrs["src"] = pictures[part.attrs["src"]]
    elif part.type == "image":
        part.type = "text"
    elif part.type == "link_open" and part.attrs["href"] in pictures:
        part.attrs = {}


def _with_buttons(tokens: Sequence[Token]) -> list[Token]:
    """Tables in a frame that scrolls, their headings as buttons."""
    before = {
        "table_open": '<div class="scroll" tabindex="0" role="region" aria-label="table">',
        "th_close": "</button>",
    }
    behind = {"table_close": "</div>", "th_open": '<button type="button">'}
    found = []
    for token in tokens:
        found += [_html(before[token.type])] if token.type in before else []
        found.append(token)
        found += [_html(behind[token.type])] if token.type in behind else []
    return found


def _html(content: str) -> Token:
    return Token("html_block", "", 0, content=content)
