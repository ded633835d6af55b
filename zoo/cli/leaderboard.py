"""The command ``zoo leaderboard``: its help and what it prints.  Imports nothing slow by itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zoo.budgets import BUDGET_LINES, BUDGETS
from zoo.cli.options import (
    ClusterOption,
    DeviceOption,
    JobsOption,
    ModelOption,
    OutOption,
    SeedOption,
    StepsOption,
    split_names,
)
from zoo.cli.progress import piece_counter

if TYPE_CHECKING:  # slow to import
    import pandas as pd

LEADERBOARD_HELP = f"""Ranks every guide on several data sets, against posteriors that can be trusted.

A guide that cannot be fitted to a data set is listed with its reason, one that fails is a row that says why.
Ranks are by W1 to the trusted posterior; a run whose reference fails its gates ranks nothing. Differences are
paired within a run. Ranks, prediction, uncertainty and CPU seconds stand side by side, and a verdict in words
and "which guide when" above them, both computed from the figures.

The folder holds leaderboard.md, .csv and .png, runs.csv (every run), differences.csv (every pair of guides on
every data set), and DATASET/split-S-seed-K/ (a comparison each, as of zoo compare). An interrupted call goes
on when the same command is given again; more data sets, splits and seeds add to the same folder. Another
budget, or another number of steps, needs another folder.

\b
Budgets:
{BUDGET_LINES}

\b
Examples:
  zoo leaderboard --datasets diabetes --guides mean-field,bootstrap --out out/two
  zoo leaderboard --datasets diabetes,yacht --jobs 2 --out out/leaderboard
  zoo leaderboard --datasets yacht --guides mnf,horseshoe --budget full --steps 30000 --out out/longer
  zoo leaderboard --datasets us_crime,mjmcmc_sim_linear --model spike-slab-linear --out out/selection
"""


def leaderboard_command(
    datasets: Annotated[str, typer.Option("--datasets", help="Data sets or CSV files, with commas between.")],
    out: OutOption,
    guides: Annotated[
        str,
        typer.Option(
            "--guides",
            help="Names with commas between, or all; pbp and sspbp bring a row of one pass with them.",
        ),
    ] = "all",
    model: ModelOption = "bnn",
    splits: Annotated[int, typer.Option("--splits", help="How many splits of each, from 0 on.")] = 1,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds, from --seed on.")] = 1,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    jobs: JobsOption = 1,
    cluster: ClusterOption = None,
    budget: Annotated[str, typer.Option("--budget", help=f"{' or '.join(BUDGETS)}, see above.")] = "quick",
    steps: StepsOption = None,
) -> None:
    """See ``LEADERBOARD_HELP``."""
    from zoo.commands.leaderboard import ALL, plan, run
    from zoo.fitting.clusters import workers

    names = ALL if guides == ALL else split_names(guides)
    asked = plan(
        split_names(datasets),
        names,
        model=model,
        splits=splits,
        seeds=seeds,
        seed=seed,
        budget=budget,
        steps=steps,
        device=device,
    )
    with workers(jobs, cluster) as found, piece_counter("leaderboard") as on_piece:
        board = run(asked, out, found, on_piece)
    console = Console()
    console.print(_table(board.table))
    for title, answer in board.when:
        console.print(f"[bold]{escape(title)}[/bold]: {escape(answer)}", highlight=False)
    for sentence in board.words:
        console.print(escape(sentence), highlight=False)
    print(f"the page is {out / 'leaderboard.md'}")
    for line in board.table[board.table["failed"] > 0].itertuples():
        print(f"zoo: {line.guide} failed in {line.failed} of {line.runs} runs", file=sys.stderr)
    if not board.table["rank"].notna().any():
        raise typer.Exit(1)


def _table(board: pd.DataFrame) -> Table:
    table = Table(header_style="bold")
    for heading in ("guide", "rank", "W1", "sd ratio", "vs truth", "CPU s"):
        table.add_column(heading, justify="left" if heading == "guide" else "right")
    shown = board[~board["status"].str.startswith("refused")]
    for line in shown.itertuples():
        figures = (line.rank, line.ref_w1, line.ref_sd_ratio, line.ref_log_likelihood, line.cpu_seconds)
        table.add_row(line.guide, *("" if figure != figure else f"{figure:.3g}" for figure in figures))
    return table
