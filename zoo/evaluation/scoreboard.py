"""The scoreboard: one row a method, a cell empty where the figure does not exist, every figure with its
error.

``scoreboard.csv`` holds the figures in full precision, ``standard_errors.csv`` the standard errors (and noise
floors) that have no column there, ``scoreboard.md`` the same for people: value ± standard error, rounded by
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.console import Group
from rich.table import Table
from rich.text import Text

from zoo.evaluation.estimates import Estimate
from zoo.files.tables import markdown_table, write_csv, write_text


class Column(NamedTuple):
    """How people see a figure: heading, which direction is better ("" for neither), and plain words."""

    heading: str
    better: str
    words: str


#: The figures in the order of the tables for people.
LEGEND: dict[str, Column] = {
    "rmse": Column("RMSE", "lower", "root mean squared error of the predictive mean, unit of the target"),
    "log_likelihood": Column(
        "log-likelihood",
        "higher",
        "mean log predictive density (classes: log probability) of a test point, nats",
    ),
    "crps": Column(
        "CRPS",
        "lower",
        "distance of the whole predictive distribution from the observed value, unit of the target",
    ),
    "coverage_90": Column(
        "coverage 90%", "0.9 is right", "share of test points inside the central 90 % predictive interval"
    ),
    "accuracy": Column(
        "accuracy", "higher", "share of test points whose most probable class is the true one"
    ),
    "ece": Column(
        "ECE", "lower", "calibration error of the most probable class, 15 bins; chance alone keeps it above 0"
    ),
    "ref_log_likelihood": Column(
        "vs truth",
        "",
        "log-likelihood minus that of the reference, nats; error over test points, paired, and over draws",
    ),
    "ref_mean_error": Column(
        "mean error",
        "lower",
        "error of the function's mean against the reference, in sds of the reference (root mean square)",
    ),
    "ref_sd_ratio": Column(
        "sd ratio",
        "1 is right",
        "sd of the function over that of the reference (median); below 1 is too certain",
    ),
    "ref_w1": Column(
        "W1",
        "lower",
        "Wasserstein-1 distance of the function from the reference, in sds of the reference (mean)",
    ),
    "ref_pip_rmse": Column(
        "inclusion error",
        "lower",
        "root mean square error of the inclusion probabilities against the reference",
    ),
    "elbo": Column(
        "ELBO",
        "higher",
        "lower bound of the log evidence of the standardised target, nats; compare guides of one model only",
    ),
    "bound_change": Column(
        "last tenth",
        "",
        "how much the bound (without one: minus the loss) rose in the last tenth of the fit, counted in "
        "learning rates, nats; of `concrete` at its last temperature; near 0 it has settled",
    ),
    "pareto_k": Column(
        "Pareto k", "lower", "tail index of the guide's importance weights; below 0.7 they can be used"
    ),
    "density_mean": Column("mean inclusion", "", "mean inclusion probability of the weights"),
    "density_half": Column("density", "", "share of weights with an inclusion probability above one half"),
    "num_parameters": Column("parameters", "", "numbers that the method fits, draws not counted"),
    "fit_seconds": Column("seconds", "lower", "wall-clock time of the fit"),
}

#: Columns of a terminal that a status takes at most, before it goes on in the next line.
MOST_STATUS = 24


@dataclass(frozen=True)
class Row:
    """One method on the scoreboard; None is a figure that does not exist.

    :param status: "ok", or "failed: why"
    :param standard_errors: figure -> standard error
    :param noise_floors: figure -> the value that Monte Carlo noise alone would give
    """

    method: str
    model: str
    status: str = "ok"
    note: str = ""
    rmse: float | None = None
    log_likelihood: float | None = None
    crps: float | None = None
    coverage_90: float | None = None
    accuracy: float | None = None
    ece: float | None = None
    ref_log_likelihood: float | None = None
    ref_mean_error: float | None = None
    ref_sd_ratio: float | None = None
    ref_w1: float | None = None
    ref_pip_rmse: float | None = None
    elbo: float | None = None
    bound_change: float | None = None
    pareto_k: float | None = None
    density_mean: float | None = None
    density_half: float | None = None
    num_parameters: int | None = None
    fit_seconds: float | None = None
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    noise_floors: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_figures(
        cls,
        method: str,
        model: str,
        figures: Mapping[str, Estimate | float | int | None],
        status: str = "ok",
        note: str = "",
    ) -> Row:
        """From figures by column, each an estimate, a number or None.

        :raises ValueError: for a figure that is no column, or is NaN
        """
        values: dict[str, float | int | None] = {}
        errors, floors = {}, {}
        for name, figure in figures.items():
            if name not in LEGEND:
                raise ValueError(f"{method}: {name!r} is no column of the scoreboard: {', '.join(LEGEND)}")
            if figure is None:
                continue
            estimate = figure if isinstance(figure, Estimate) else Estimate(figure)
            if math.isnan(estimate.value):
                raise ValueError(f"{method}: {name} is NaN")
            values[name] = estimate.value if isinstance(estimate.value, int) else float(estimate.value)
            if estimate.se is not None:
                errors[name] = estimate.se
            if estimate.floor is not None:
                floors[name] = estimate.floor
        return cls(method, model, status, note, **values, standard_errors=errors, noise_floors=floors)

    def estimate(self, name: str) -> Estimate | None:
        """The figure of a column with its standard error; None where it does not exist."""
        value = getattr(self, name)
        if value is None:
            return None
        return Estimate(value, self.standard_errors.get(name), self.noise_floors.get(name))

    def cell(self, column: str) -> str | float | int | None:
        """What stands in a column of ``scoreboard.csv``."""
        if column.endswith("_se"):
            return self.standard_errors.get(column.removesuffix("_se"))
        return getattr(self, column)


#: Figures whose standard errors stand beside them in ``scoreboard.csv``.
BESIDE = ("rmse", "log_likelihood", "crps")
TEXT_COLUMNS = ("method", "model", "status", "note")
COLUMNS = (
    *TEXT_COLUMNS,
    *(column for name in LEGEND for column in ((name, f"{name}_se") if name in BESIDE else (name,))),
)
ERROR_COLUMNS = ("method", "model", "figure", "standard_error", "noise_floor")


# ---------------------------------------------------------------------------------------------------- figures


def scoreboard_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows with the columns of ``scoreboard.csv``; a figure that does not exist is missing.

    :raises ValueError: when two rows have the same method and model
    """
    table = pd.DataFrame([{name: row.cell(name) for name in COLUMNS} for row in rows], columns=COLUMNS)
    twice = table[table.duplicated(["method", "model"])]
    if len(twice):
        raise ValueError(f"two rows of the scoreboard are both {twice.method.iat[0]} on {twice.model.iat[0]}")
    kinds = {name: "float64" for name in COLUMNS if name not in TEXT_COLUMNS}
    return table.astype(kinds | {"num_parameters": "Int64"})


def error_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The columns of ``standard_errors.csv``, a line for every figure with an error or a floor that has no
    column on the scoreboard.
    """
    lines = [
        (row.method, row.model, name, row.standard_errors.get(name), row.noise_floors.get(name))
        for row in rows
        for name in LEGEND
        if name not in BESIDE and (name in row.standard_errors or name in row.noise_floors)
    ]
    kinds = {"standard_error": "float64", "noise_floor": "float64"}
    return pd.DataFrame(lines, columns=ERROR_COLUMNS).astype(kinds)


def wide_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """All figures and errors of a comparison in one table: the columns of ``scoreboard.csv`` with the method
    as index, then ``<figure>_se`` and ``<figure>_floor`` of the lines of ``standard_errors.csv``.

    :raises ValueError: when two rows have the same method and model
    """
    table = scoreboard_frame(rows).set_index("method")
    errors = error_frame(rows)
    for name in LEGEND:
        lines = errors[errors["figure"] == name].set_index("method")
        for column, ending in (("standard_error", "se"), ("noise_floor", "floor")):
            if lines[column].notna().any():
                table[f"{name}_{ending}"] = lines[column]
    return table


def write_scoreboard(
    rows: Sequence[Row],
    folder: str | Path,
    words: Sequence[str] = (),
    errors: str = "",
    head: Sequence[str] = (),
) -> None:
    """Writes ``scoreboard.csv``, ``standard_errors.csv`` and ``scoreboard.md``, each whole or not at all.

    :param head: how it was made, lines above the table
    :param words: sentences that stand below the table for people
    :param errors: what the standard errors are, in a sentence; left out: those of one comparison
    :raises ValueError: when two rows have the same method and model
    """
    folder, table = Path(folder), scoreboard_frame(rows)
    write_csv(error_frame(rows), folder / "standard_errors.csv")
    facts = "".join(f"- {line}\n" for line in head)
    write_text(folder / "scoreboard.md", facts + "\n" * bool(head) + markdown(rows, words, errors))
    write_csv(table, folder / "scoreboard.csv")  # last: where it exists, so do the others


# ------------------------------------------------------------------------------------------ tables for people


def markdown(rows: Sequence[Row], words: Sequence[str] = (), errors: str = "") -> str:
    """A Markdown table of the rows, sentences about them and a legend; columns that are empty in all rows are
    left out.
    """
    table = _texts(rows)
    sides = "".join("l" if name in TEXT_COLUMNS else "r" for name in table)
    legend = [f"- **{LEGEND[name].heading}**: {_explained(name)}" for name in _existing(rows)]
    said = [line for sentence in words for line in (sentence, "")]
    how = " ".join((_EMPTY, errors or _ERRORS, _DIGITS))
    return "\n".join([markdown_table(table, sides), "", *said, *legend, "", how]) + "\n"


def rich_table(rows: Sequence[Row], title: str | None = None, width: int = 80) -> Group:
    """The same for a terminal of so many columns, a column a method (there are more figures than methods):
    methods for which there is no room without breaking a word go on in a table below.  Failed methods in red,
    notes last.
    """
    texts = _texts(rows).drop(columns=["method", "note"], errors="ignore")
    labels = [heading + _arrow(heading) for heading in texts]
    sizes = [_size(row, texts.iloc[i]) for i, row in enumerate(rows)]
    first, blocks = _layout(labels, sizes, width)
    tables = []
    for block in blocks:
        table = Table(title=None if tables else title, header_style="bold")
        table.add_column("", width=first)
        for i in block:
            style = "red" if rows[i].status != "ok" else None
            table.add_column(
                _plain(rows[i].method), justify="right", overflow="fold", style=style, width=sizes[i]
            )
        for heading, label in zip(texts, labels, strict=True):
            cells = (_plain(texts[heading].iat[i]) for i in block)
            sign = label.removeprefix(heading)
            table.add_row(f"{heading}[dim]{sign}[/dim]", *cells, end_section=heading == "status")
        tables.append(table)
    notes = _notes(rows)
    return Group(*tables, *([Text.from_markup(notes, style="table.caption")] if notes else []))


def _arrow(heading: str) -> str:
    """Which direction of a figure is better."""
    better = next((column.better for column in LEGEND.values() if column.heading == heading), "")
    return {"lower": " ↓", "higher": " ↑", "": ""}.get(better, f" ({better})")


def _size(row: Row, texts: pd.Series) -> int:
    """Columns of a terminal in which the name of a method and its figures stand on one line each, and its
    status on some, without breaking a word.
    """
    whole = [row.method, *(text for heading, text in texts.items() if heading != "status")]
    words = [word for word in row.status.split() if len(word) <= MOST_STATUS]
    longest = max(map(len, (*whole, *words)))
    return max(longest, min(len(row.status), MOST_STATUS))


def _layout(labels: Sequence[str], sizes: Sequence[int], width: int) -> tuple[int, list[list[int]]]:
    """Columns for the labels, and the methods of every table: as few tables as can be, then as few broken
    labels.
    """
    longest, word = (max(map(len, parts), default=0) for parts in (labels, " ".join(labels).split()))
    most = max(word, min(longest, width - max(sizes, default=0) - 7))  # rules and spaces of two columns
    # two spaces and two rules beside the labels
    layouts = [(first, _blocks(sizes, width - first - 4)) for first in range(most, word - 1, -1)]
    return min(layouts, key=lambda layout: len(layout[1]))  # the first of the shortest


def _blocks(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Places of columns of these sizes, in order, parted so that each part has room; at least one a part."""
    blocks: list[list[int]] = []
    left = 0
    for i, size in enumerate(sizes):
        taken = size + 3  # two spaces and a rule
        if not blocks or taken > left:
            blocks.append([])
            left = room
        blocks[-1].append(i)
        left -= taken
    return blocks


def _notes(rows: Sequence[Row]) -> str | None:
    """A line for every note, with the methods that have it."""
    methods: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            methods.setdefault(row.note, []).append(row.method)
    return "\n".join(_plain(f"{', '.join(names)}: {note}") for note, names in methods.items()) or None


def _plain(text: str) -> str:
    """A bracket in a name or a note is text and not rich's markup."""
    return text.replace("[", "\\[")


_EMPTY = (
    "Value ± standard error, rounded by it; an empty cell is a figure that does not exist for the method."
)
_ERRORS = (
    "The error of a predictive figure is over test points, that of a distance to the reference over draws "
    "(Monte Carlo); the noise floor in `standard_errors.csv` is what no distance at all would show."
)
_DIGITS = "`scoreboard.csv` holds all digits."


def _existing(rows: Sequence[Row]) -> list[str]:
    return [name for name in LEGEND if any(getattr(row, name) is not None for row in rows)]


def _explained(name: str) -> str:
    better, words = LEGEND[name].better, LEGEND[name].words
    return f"{words}; {better if 'right' in better else better + ' is better'}" if better else words


def _texts(rows: Sequence[Row]) -> pd.DataFrame:
    """The cells as people see them, under their headings."""
    texts = [name for name in TEXT_COLUMNS if name != "note" or any(row.note for row in rows)]
    columns = {name: [getattr(row, name) for row in rows] for name in texts}
    for name in _existing(rows):
        columns[LEGEND[name].heading] = [format_figure(row.estimate(name)) for row in rows]
    return pd.DataFrame(columns)


def format_figure(estimate: Estimate | None) -> str:
    """``value ± se`` with two digits of the standard error; without one, three digits of the value."""
    if estimate is None:
        return ""
    value, se = estimate.value, estimate.se
    if isinstance(value, int):
        return str(value)
    if not se or not math.isfinite(se) or not math.isfinite(value):
        return f"{value:.3g}" if abs(value) < 1e3 or not math.isfinite(value) else f"{value:.0f}"
    decimals = max(0, 1 - math.floor(math.log10(se)))
    if decimals > 6:  # an error far below what anyone reads
        return f"{value:.4g} ± {se:.1g}"
    return f"{value:.{decimals}f} ± {se:.{decimals}f}"
