"""The command ``zoo reproduce``: its help, its list, its progress.  Imports nothing slow by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from zoo.cli.options import ClusterOption, split_names
from zoo.commands.options import check_seed
from zoo.errors import Interrupted, UserError

if TYPE_CHECKING:  # slow to import
    from zoo.experiments.engine.runner import Outcome

REPRODUCE_HELP = """Runs a published experiment and puts our numbers beside the published ones.

An experiment is a grid of cells: data set x method x setting x trial. A cell that has a result is not
computed again, so an interrupted call goes on when the same command is given, and more data sets, methods,
settings or trials add to the same folder. A cell that fails is a row that says why; --retry-failed computes
it again.

The folder holds table.md (tables, verdicts and notes), table.csv (every mean beside the published value, with
z), results.csv (every result) and cells/ (one folder a cell, with the files that it left).

\b
Examples:
  zoo reproduce --list                       what there is and what it costs
  zoo reproduce example/dice --out out/dice  a few seconds
  zoo reproduce example/dice --datasets fair --trials 50 --out out/dice
  zoo reproduce sspbp/table-3.3 --jobs -1 --out out/table-3.3
  zoo reproduce sspbp/table-3.3 --cluster dask://host:8786 --out /shared/table-3.3
  zoo reproduce sspbp/table-3.3 --budget quick --methods pbp --out out/quick
  zoo reproduce sspbp/table-3.3 --datasets yacht --set epochs=10 --out out/ten
"""


def _part(option: str, what: str) -> object:
    return typer.Option(f"--{option}", help=f"{what}, with commas between; all if left out.")


def reproduce_command(
    experiment: Annotated[str | None, typer.Argument(help="Experiment to run; --list names them.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Output folder; the same call again goes on with what is there."),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the experiments, or describe the one named; run nothing.")
    ] = False,
    datasets: Annotated[str | None, _part("datasets", "Data sets to run")] = None,
    methods: Annotated[str | None, _part("methods", "Methods to run")] = None,
    settings: Annotated[str | None, _part("settings", "Settings to run (widths for instance)")] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Repetitions of each cell; the budget's if left out.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The seeds of all cells come from it.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Cells side by side; -1 is one a core.")] = 1,
    cluster: ClusterOption = None,
    budget: Annotated[
        str, typer.Option("--budget", help="quick (for a look) or full (--list NAME says what it is).")
    ] = "full",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the budget in another value, NAME=VALUE; may be repeated."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="cpu, cuda or cuda:N, for experiments that have it as an option (images)."
        ),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Compute failed cells again.")] = False,
) -> None:
    """See ``REPRODUCE_HELP``."""
    if listing:
        from zoo.cli.lists import list_experiments
        from zoo.cli.show import print_card, tell_experiment

        list_experiments() if experiment is None else print_card(tell_experiment(experiment))
        return
    if experiment is None:
        raise UserError("which experiment? zoo reproduce --list names them")
    from zoo.experiments.engine.catalogue import find_experiment

    find_experiment(experiment)  # a name that is unknown is said before what else is missing
    if out is None:
        raise UserError(f"where to? give --out, as in: zoo reproduce {experiment} --out out/{experiment}")
    from zoo.experiments.engine.request import plan

    check_seed(seed)
    parts = {"datasets": datasets, "methods": methods, "settings": settings}
    chosen = {axis: None if text is None else split_names(text) for axis, text in parts.items()}
    options = _changes(changes or [])
    if device is not None:
        _check_device(experiment, budget, device, options)
        options["device"] = device
    request = plan(experiment, **chosen, trials=trials, seed=seed, budget=budget, options=options)
    from zoo.experiments.engine.page import rich_table
    from zoo.experiments.engine.progress import show_progress
    from zoo.experiments.engine.runner import reproduce
    from zoo.fitting.clusters import workers

    try:
        with workers(jobs, cluster) as found, show_progress(experiment, found.count) as on_progress:
            outcome = reproduce(
                request, out, workers=found, retry_failed=retry_failed, on_progress=on_progress
            )
    except KeyboardInterrupt:  # every cell that is finished has a file
        raise Interrupted("interrupted; the same command goes on from what is finished") from None
    Console().print(rich_table(outcome.lines))
    _tell(outcome, out)
    if len(outcome.failed) == len(outcome.asked):
        raise typer.Exit(1)


def _changes(texts: list[str]) -> dict[str, str]:
    """``["epochs=4"]`` -> ``{"epochs": "4"}``"""
    pairs = [text.partition("=") for text in texts]
    for text, (name, sign, value) in zip(texts, pairs, strict=True):
        if not (name and sign and value):
            raise UserError(f"--set takes NAME=VALUE as in --set epochs=4, not {text!r}")
    names = [name for name, *_ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--set {name} is given twice")
    return {name: value for name, _, value in pairs}


def _check_device(experiment: str, budget: str, device: str, options: dict[str, str]) -> None:
    """:raises UserError: for a device that there is not, that makes no difference, or that is given twice"""
    from zoo.experiments.engine.catalogue import find_experiment
    from zoo.fitting.devices import check_device

    effort = find_experiment(experiment).efforts.get(budget)
    if effort is not None and "device" not in effort.options:
        raise UserError(f"--device does not apply to {experiment}: all of it is computed on the CPU")
    if "device" in options:
        raise UserError("--device and --set device are one option: give one of them")
    check_device(device)


def _tell(outcome: Outcome, out: Path) -> None:
    """What has been done; failures to stderr, the first of them with its reason."""
    asked, others = len(outcome.asked), len(outcome.records) - len(outcome.asked)
    parts = [f"{asked} cells, {outcome.reused} of them from earlier calls"]
    parts += (
        [f"{outcome.damaged} damaged or of an earlier version, computed again"] if outcome.damaged else []
    )
    parts += [f"the folder has {others} more"] if others else []
    print("; ".join(parts))
    print(f"the table is {out / 'table.md'}")
    if outcome.failed:
        first = outcome.failed[0]
        reason = " ".join(f"{first.cell.name} {first.status}".split())
        count = f"{len(outcome.failed)} of {asked} cells failed"
        print(f"zoo: {count} (--retry-failed computes them again); the first: {reason}", file=sys.stderr)
