"""The command ``zoo reference``: its help.  Imports nothing slow by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo.budgets import BUDGET_LINES, BUDGETS
from zoo.cli.options import DataArgument, ModelOption, SeedOption, SplitOption, TargetOption

REFERENCE_HELP = f"""Runs the NUTS of zoo compare, and keeps its draws in a file if they pass their gates.

The file, DATA-MODEL.nc, is a netCDF for ArviZ with all draws, R-hat, effective sample size, divergences,
settings and versions, the checksum of the training rows, and the log joint density of 20 of the draws. Put
into zoo/commands/references, it is used by zoo compare and zoo leaderboard in place of a run with the same
settings, as long as the model gives these draws that density. It is for small models on small data: every
draw is some hundred numbers of 4 bytes.

\b
Budgets:
{BUDGET_LINES}

\b
Examples:
  zoo reference diabetes --out zoo/commands/references
  zoo reference yacht --budget full --out out/references
  zoo reference houses.csv --target price --out out/references
"""


def reference_command(
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder for the file; one of that name is replaced.")],
    model: ModelOption = "bnn",
    budget: Annotated[str, typer.Option("--budget", help=f"{' or '.join(BUDGETS)}, see above.")] = "quick",
    target: TargetOption = None,
    split: SplitOption = 0,
    seed: SeedOption = 0,
) -> None:
    """See ``REFERENCE_HELP``."""
    from zoo.commands.comparison import ask
    from zoo.commands.reference import keep_reference

    asked = {"budget": budget, "split": split, "seed": seed, "target": target}
    comparison = ask(data, model=model, guides=[], reference="nuts", **asked)
    path, found = keep_reference(comparison, out)
    print(
        f"R-hat {found['max_rhat']:.3f}, bulk ESS {found['min_ess_bulk']:.0f}, {found['divergences']} "
        f"divergences; {path.stat().st_size / 1e6:.1f} MB written to {path}"
    )
