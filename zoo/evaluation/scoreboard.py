"""The scoreboard: one row a method, a cell empty where the figure does not exist, every figure with its
error.

``scoreboard.csv`` holds the figures in full precision, ``standard_errors.csv`` the standard errors (and noise
floors) that have no column there, ``scoreboard.md`` the same for people: value ± standard error, rounded by
it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from guides.posterior.files import write_atomically
from zoo.evaluation.estimates import Estimate


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
    "pareto_k": Column(
        "Pareto k", "lower", "tail index of the guide's importance weights; below 0.7 they can be used"
    ),
    "density_mean": Column("mean inclusion", "", "mean inclusion probability of the weights"),
    "density_half": Column("density", "", "share of weights with an inclusion probability above one half"),
    "num_parameters": Column("parameters", "", "numbers that the method fits, draws not counted"),
    "fit_seconds": Column("seconds", "lower", "wall-clock time of the fit"),
}


@dataclass(frozen=True)
class Row:
    """One method on the scoreboard; None is a figure that does not exist.

    :param status: "ok", or "failed: why"
    :param standard_errors: of the figures without a column for it, figure -> standard error
    :param noise_floors: figure -> the value that Monte Carlo noise alone would give
    """

    method: str
    model: str
    status: str = "ok"
    note: str = ""
    rmse: float | None = None
    rmse_se: float | None = None
    log_likelihood: float | None = None
    log_likelihood_se: float | None = None
    crps: float | None = None
    crps_se: float | None = None
    coverage_90: float | None = None
    accuracy: float | None = None
    ece: float | None = None
    ref_mean_error: float | None = None
    ref_sd_ratio: float | None = None
    ref_w1: float | None = None
    ref_pip_rmse: float | None = None
    elbo: float | None = None
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
            if f"{name}_se" in COLUMNS:
                values[f"{name}_se"] = estimate.se
            elif estimate.se is not None:
                errors[name] = estimate.se
            if estimate.floor is not None:
                floors[name] = estimate.floor
        return cls(method, model, status, note, **values, standard_errors=errors, noise_floors=floors)

    def estimate(self, name: str) -> Estimate | None:
        """The figure of a column with its standard error; None where it does not exist."""
        value = getattr(self, name)
        if value is None:
            return None
        se = getattr(self, f"{name}_se") if f"{name}_se" in COLUMNS else self.standard_errors.get(name)
        return Estimate(value, se, self.noise_floors.get(name))


COLUMNS = tuple(f.name for f in fields(Row) if f.name not in ("standard_errors", "noise_floors"))
TEXT_COLUMNS = ("method", "model", "status", "note")
ERROR_COLUMNS = ("method", "model", "figure", "standard_error", "noise_floor")


# ---------------------------------------------------------------------------------------------------------- f


def write_scoreboard(rows: Sequence[Row], folder: str | Path) -> None:
    """Writes ``scoreboard.csv``, ``standard_errors.csv`` and ``scoreboard.md``, each whole or not at all.

    :raises ValueError: when two rows have the same method and model
    """
    folder = Path(folder)
    names = [(row.method, row.model) for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two rows of the scoreboard are both {name[0]} on {name[1]}")
    table = [[_cell(getattr(row, name)) for name in COLUMNS] for row in rows]
    _write(folder / "standard_errors.csv", _csv(ERROR_COLUMNS, _error_lines(rows)))
    _write(folder / "scoreboard.md", markdown(rows))
    _write(folder / "scoreboard.csv", _csv(COLUMNS, table))  # last: where it exists, so do the others


def read_scoreboard(folder: str | Path) -> list[Row]:
    """Reads what :func:`write_scoreboard` wrote; equal to the rows that were written.

    :raises FileNotFoundError: when a file is missing
    :raises ValueError: naming the file, for other columns, a cell that is no number
    """
    folder = Path(folder)
    errors: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for cells in _read(folder / "standard_errors.csv", ERROR_COLUMNS):
        kinds = errors.setdefault(
            (cells["method"], cells["model"]), {"standard_errors": {}, "noise_floors": {}}
        )
        for column, kind in (("standard_error", "standard_errors"), ("noise_floor", "noise_floors")):
            value = _number(cells[column], folder / "standard_errors.csv", column)
            if value is not None:
                kinds[kind][cells["figure"]] = value
    rows = []
    for cells in _read(folder / "scoreboard.csv", COLUMNS):
        numbers = {
            k: _number(v, folder / "scoreboard.csv", k) for k, v in cells.items() if k not in TEXT_COLUMNS
        }
        text = {k: cells[k] for k in TEXT_COLUMNS}
        rows.append(Row(**text, **numbers, **errors.get((text["method"], text["model"]), {})))
    return rows


def _write(path: Path, content: str) -> None:
    write_atomically(path, lambda target: Path(target).write_text(content, encoding="utf-8", newline=""))


def _csv(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    return text.getvalue()


def _cell(value: object) -> str:
    """Text of a cell; ``repr`` of a float is its shortest text that reads back as the same number."""
    return "" if value is None else repr(float(value)) if isinstance(value, float) else str(value)


def _error_lines(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for row in rows:
        for name in LEGEND:
            se, floor = row.standard_errors.get(name), row.noise_floors.get(name)
            if se is not None or floor is not None:
                lines.append([row.method, row.model, name, _cell(se), _cell(floor)])
    return lines


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != tuple(columns):
        raise ValueError(f"{path}: not a scoreboard of this version, the columns differ")
    if any(len(line) != len(columns) for line in lines):
        raise ValueError(f"{path}: truncated, a line has too few or too many cells")
    return [dict(zip(columns, line, strict=True)) for line in lines[1:]]


def _number(text: str, path: Path, column: str) -> float | int | None:
    if text == "":
        return None
    try:
        return int(text) if column == "num_parameters" else float(text)
    except ValueError:
        raise ValueError(f"{path}: {text!r} in column {column} is no number") from None


# ----------------------------------------------------------------------------------------------- tables for p


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table of the rows with a legend; columns that are empty in all rows are left out."""
    headings, lines = _table(rows)

    def escape(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"

    numbers = len(headings) - sum(h in TEXT_COLUMNS for h in headings)
    ruler = "|" + "---|" * (len(headings) - numbers) + "---:|" * numbers
    legend = [f"- **{LEGEND[name].heading}**: {_explained(name)}" for name in _existing(rows)]
    text = [escape(headings), ruler, *map(escape, lines), "", *legend]
    return "\n".join([*text, "", _HOW_TO_READ]) + "\n"


def rich_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """The same for a terminal, a column a method (there are more figures than methods); failed methods in
    red, notes below.
    """
    headings, lines = _table(rows)
    table = Table(title=title, header_style="bold", caption=_notes(rows), caption_justify="left")
    table.add_column("", overflow="fold")
    for row in rows:
        failed = row.status != "ok"
        table.add_column(
            _plain(row.method), justify="right", overflow="fold", style="red" if failed else None
        )
    figures = dict(zip([h for h in headings if h not in TEXT_COLUMNS], _existing(rows), strict=True))
    for i, heading in enumerate(headings):
        if heading in ("method", "note"):
            continue
        better = LEGEND[figures[heading]].better if heading in figures else ""
        sign = {"lower": " [dim]↓[/dim]", "higher": " [dim]↑[/dim]"}.get(
            better, f" [dim]({better})[/dim]" if better else ""
        )
        table.add_row(
            heading + sign,
            *(_plain(line[i]) for line in lines),
            end_section=heading == "status",
        )
    return table


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


_HOW_TO_READ = (
    "Value ± standard error, rounded by it; an empty cell is a figure that does not exist for the method. "
    "The error of a predictive figure is over test points, that of a distance to the reference over draws "
    "(Monte Carlo); the noise floor in `standard_errors.csv` is what no distance at all would show. "
    "`scoreboard.csv` holds all digits."
)


def _existing(rows: Sequence[Row]) -> list[str]:
    return [name for name in LEGEND if any(getattr(row, name) is not None for row in rows)]


def _explained(name: str) -> str:
    better, words = LEGEND[name].better, LEGEND[name].words
    return f"{words}; {better if 'right' in better else better + ' is better'}" if better else words


def _table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells as text."""
    figures = _existing(rows)
    text = [name for name in TEXT_COLUMNS if name != "note" or any(row.note for row in rows)]
    headings = [*text, *(LEGEND[name].heading for name in figures)]
    lines = [
        [getattr(row, n) for n in text] + [format_figure(row.estimate(n)) for n in figures] for row in rows
    ]
    return headings, lines


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
