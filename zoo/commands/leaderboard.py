"""Every guide that applies to every data set, graded and ranked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd

from zoo.budgets import Budget, budget_flags
from zoo.commands.comparison import Comparison, ask
from zoo.commands.grid import GridCell, OnPiece, compute, label
from zoo.commands.options import check_counts, check_names, check_seed, find_budget
from zoo.errors import UserError
from zoo.evaluation.leaderboard.page import page
from zoo.evaluation.leaderboard.plot import plot_leaderboard
from zoo.evaluation.leaderboard.standings import Refusal, Standing, leaderboard_frame, standings
from zoo.evaluation.leaderboard.words import when, words
from zoo.evaluation.repeats import Run, difference_frame, differences
from zoo.evaluation.scoreboard import scoreboard_frame
from zoo.files.output import grid_folder
from zoo.files.tables import write_csv, write_text
from zoo.fitting.devices import CPU
from zoo.fitting.problem import load_problem
from zoo.fitting.side_by_side import ALONE, Workers
from zoo.registry.queries import GUIDES, applicable, check_data, find_guide, find_model

ALL = "all"


@dataclass(frozen=True)
class Asked:
    """A checked request.

    :ivar guides: names as they were given, or :data:`ALL`
    :ivar refusals: guides that are not fitted, and why
    """

    model: str
    datasets: tuple[str, ...]
    guides: tuple[str, ...] | str
    budget: Budget
    splits: int
    seeds: int
    seed: int
    cells: tuple[GridCell, ...]
    refusals: tuple[Refusal, ...]
    device: str = CPU

    def config(self) -> dict:
        """What the folder belongs to; data sets, splits and seeds may be added to it."""
        grid = {
            "datasets": list(self.datasets),
            "splits": self.splits,
            "seeds": self.seeds,
            "seed": self.seed,
        }
        guides = self.guides if self.guides == ALL else list(self.guides)
        return {
            "command": "leaderboard",
            "model": self.model,
            "guides": guides,
            "budget": asdict(self.budget),
            "grid": grid,
            **({"device": self.device} if self.device != CPU else {}),
        }

    def command(self, out: str | Path) -> str:
        """The command line that asks for this."""
        guides = self.guides if self.guides == ALL else ",".join(self.guides)
        line = ["zoo", "leaderboard", "--datasets", ",".join(self.datasets), "--guides", guides]
        line += ["--model", self.model] if self.model != "bnn" else []
        line += ["--splits", str(self.splits), "--seeds", str(self.seeds), *budget_flags(self.budget)]
        line += ["--seed", str(self.seed)] if self.seed else []
        line += ["--device", self.device] if self.device != CPU else []
        return shlex.join([*line, "--out", str(out)])


@dataclass(frozen=True)
class Board:
    """A finished leaderboard.

    :ivar words: the verdict
    :ivar when: which guide when, question and answer
    """

    table: pd.DataFrame
    words: list[str]
    when: list[tuple[str, str]]
    runs: list[Run]


def plan(
    datasets: Sequence[str],
    guides: Sequence[str] | str = ALL,
    *,
    model: str = "bnn",
    splits: int = 1,
    seeds: int = 1,
    seed: int = 0,
    budget: str = "quick",
    steps: int | None = None,
    device: str = CPU,
) -> Asked:
    """Checks a request before anything is written.

    :param datasets: names, or CSV files
    :param guides: names, or ``all``; one that refuses a data set is listed with its reason
    :raises UserError: for an unknown name, an empty list, a name given twice, data that no guide can be
        fitted to, or that have no trusted posterior
    """
    check_counts(splits=splits, seeds=seeds)
    check_seed(seed)
    check_seed(seed + seeds - 1)
    work = find_budget(budget, steps)
    check_names("datasets", datasets)
    if guides != ALL:
        check_names("guides", guides)
    names = list(GUIDES) if guides == ALL else [find_guide(name).name for name in guides]
    cells: list[GridCell] = []
    refusals: list[Refusal] = []
    for data in datasets:
        fitting, refused = _fitting(data, model, names)
        refusals += refused
        wishes = {"model": model, "guides": fitting, "budget": budget, "steps": steps, "device": device}
        for split in range(splits):
            first = ask(data, split=split, seed=seed, **wishes)
            cells += [_cell(first, data, split, k) for k in range(seed, seed + seeds)]
    _check_folders(cells)
    asked = guides if guides == ALL else tuple(guides)
    return Asked(
        model, tuple(datasets), asked, work, splits, seeds, seed, tuple(cells), tuple(refusals), device
    )


def _fitting(data: str, model: str, names: Sequence[str]) -> tuple[list[str], list[Refusal]]:
    """The guides that can be fitted to a data set, and the others.

    :raises UserError: when there is none
    """
    entry = find_model(model)
    problem = load_problem(data, dtype=entry.dtype)
    check_data(entry, problem.dataset, data)
    fitting, refused = [], []
    for name in names:
        try:
            applicable(find_guide(name), entry, problem.task)
            fitting.append(name)
        except UserError as error:
            refused.append(Refusal(name, problem.dataset.name, _reason(error)))
    if not fitting:
        first = refused[0]
        raise UserError(f"none of the guides can be fitted to {data}; {first.guide}: {first.reason}")
    return fitting, refused


def _reason(error: UserError) -> str:
    """Without ``guide 'x' does not apply to model 'y':``, which the table says already."""
    head, _, tail = str(error).partition(": ")
    return tail or head


def _cell(comparison: Comparison, data: str, split: int, seed: int) -> GridCell:
    """:raises UserError: where there is no posterior to grade against"""
    if comparison.reference == "none":
        why = comparison.remark.split(";")[0] or f"model {comparison.entry.name!r} has none"
        raise UserError(f"{data} has no trusted posterior to rank by: {why}")
    name = comparison.problem.dataset.name
    return GridCell(name, split, replace(comparison, seed=seed), f"{name}/{label(split, seed)}")


def _check_folders(cells: Sequence[GridCell]) -> None:
    folders = [cell.folder for cell in cells]
    twice = next((cell for cell in cells if folders.count(cell.folder) > 1), None)
    if twice:
        raise UserError(f"two of --datasets are called {twice.dataset!r}: rename one of the files")


def run(asked: Asked, out: str | Path, workers: Workers = ALONE, on_piece: OnPiece | None = None) -> Board:
    """Does the work and writes the folder; what an earlier call has left is used.

    Writes ``DATASET/split-S-seed-K/`` (a comparison each, :mod:`zoo.commands.compare`), ``runs.csv`` (all
    their scoreboards), ``differences.csv``, ``leaderboard.csv``, ``.md`` and ``.png``, and ``config.json``.

    :param workers: who computes (:func:`zoo.fitting.clusters.workers`).  They change no result
    :raises UserError: when the folder cannot be written, belongs to another call, or one is at work in it
    :raises Interrupted: at Ctrl-C, with what is kept
    """
    with grid_folder(out, asked.config(), "leaderboard.csv") as folder:
        runs = compute(asked.cells, folder, workers, on_piece)
        found = standings(runs, _notes(asked.cells))
        table = leaderboard_frame(found, asked.refusals)
        write_csv(_runs_frame(runs, asked.refusals), folder / "runs.csv")
        write_csv(_differences_frame(runs), folder / "differences.csv")
        if any(standing.ranks for standing in found):
            plot_leaderboard(found, folder / "leaderboard.png")
        write_text(folder / "leaderboard.md", _page(asked, found, runs, out))
        write_csv(table, folder / "leaderboard.csv")  # last: where it stands, so does everything else
    return Board(table, words(found, runs), when(found, runs), runs)


def _page(asked: Asked, found: Sequence[Standing], runs: Sequence[Run], out: str | Path) -> str:
    counts = ", ".join(
        f"{count} {word}{'s' * (count != 1)}"
        for count, word in ((asked.splits, "split"), (asked.seeds, "seed"))
    )
    work = f"{counts} of each; model {asked.model}; {asked.budget}"
    return page(found, runs, asked.refusals, asked.command(out), work)


def _notes(cells: Sequence[GridCell]) -> dict[str, str]:
    """What a reader of a guide's figures must know."""
    return {name: cell.comparison.fitted_model(name)[1] for cell in cells for name in cell.comparison.guides}


def _runs_frame(runs: Sequence[Run], refusals: Sequence[Refusal]) -> pd.DataFrame:
    """The scoreboards of all runs below each other; a refusal is a row with a status alone."""
    parts = []
    for one in runs:
        table = scoreboard_frame(one.rows)
        for at, (name, value) in enumerate(
            (("dataset", one.dataset), ("split", one.split), ("seed", one.seed))
        ):
            table.insert(at, name, value)
        table["cpu_seconds"] = table["method"].map(one.cpu_seconds).astype("float64")
        parts.append(table)
    lines = [
        {"dataset": refusal.dataset, "method": refusal.guide, "status": f"refused: {refusal.reason}"}
        for refusal in refusals
    ]
    empty = pd.DataFrame(lines, columns=parts[0].columns)
    return pd.DataFrame(
        [line for part in (*parts, empty) for line in part.astype(object).to_dict("records")],
        columns=parts[0].columns,
    ).astype({"split": "Int64", "seed": "Int64", "num_parameters": "Int64"})


def _differences_frame(runs: Sequence[Run]) -> pd.DataFrame:
    parts = []
    for dataset in dict.fromkeys(one.dataset for one in runs):
        table = difference_frame(differences([one for one in runs if one.dataset == dataset]))
        table.insert(0, "dataset", dataset)
        parts.append(table)
    return pd.concat(parts, ignore_index=True)
