"""The command line ``zoo``."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from zoo.errors import DivergenceError, UserError
from zoo.version import __version__

app = typer.Typer(
    name="zoo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Bayesian deep-learning models in Pyro, their guides, and how far each guide is from the truth.\n\n"
    "Start with:  zoo compare diabetes --budget quick --out out/diabetes",
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets: list them, look at one, download one.")
app.add_typer(data_app, name="data")

DataArgument = Annotated[str, typer.Argument(help="Name of a data set (zoo data list), or a CSV file with a header.")]
OutOption = Annotated[Path, typer.Option("--out", help="Output folder; the same call again goes on with what is there.")]
ModelOption = Annotated[str, typer.Option("--model", help="Model to fit; zoo list names them.")]
SplitOption = Annotated[int, typer.Option("--split", help="Which train/test split of the data set.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of every random number.")]
TargetOption = Annotated[str | None, typer.Option("--target", help="CSV only: target column; the last by default.")]
TaskOption = Annotated[str, typer.Option("--task", help="CSV only: regression, binary or multiclass.")]
NoiseOption = Annotated[
    float | None, typer.Option("--noise", help="Fixes the noise sd, in units of the target; inferred if left out.")
]
WidthsOption = Annotated[str, typer.Option("--widths", help="Hidden units of each layer, as in 50 or 50,50.")]
ActivationOption = Annotated[str, typer.Option("--activation", help="relu, leaky-relu or tanh.")]
InclusionOption = Annotated[float, typer.Option("--inclusion", help="Prior inclusion probability of spike-and-slab weights.")]


def main() -> None:
    """Entry point of the console script."""
    app()


def friendly(command: Callable) -> Callable:
    """One clear line for what a user can mend: exit code 2 for bad input, 1 for a fit that diverged."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        from data_loaders import DataError

        try:
            return command(*args, **kwargs)
        except (UserError, DataError) as error:
            _complain(error)
            raise typer.Exit(2) from None
        except DivergenceError as error:
            _complain(error)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            _complain("interrupted; the same command goes on from the last result")
            raise typer.Exit(130) from None

    return wrapped


def _complain(message: object) -> None:
    line = " ".join(str(message).split())
    print(f"zoo: {line}", file=sys.stderr)


@contextlib.contextmanager
def progress_bar() -> Iterator:
    """A progress bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


def _version(asked: bool) -> None:
    if asked:
        print(f"posterior-zoo {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command("list")
def list_command() -> None:
    """Models and guides, and which guide applies to which model."""
    from zoo.registry import GUIDES, MODELS, applicable

    console = Console()
    models = Table("model", "what it is", "tasks", "reference", title="Models", title_justify="left")
    for model in MODELS.values():
        models.add_row(model.name, model.summary, ", ".join(model.tasks), ", ".join(model.references) or "none")
    guides = Table("guide", "what it is", *MODELS, title="Guides, and where they apply", title_justify="left")
    for guide in GUIDES.values():
        cells = []
        for model in MODELS.values():
            try:
                fitted, _ = applicable(guide, model)
                cells.append("yes" if fitted is model else f"as {fitted.name}")
            except UserError:
                cells.append("no")
        guides.add_row(guide.name, guide.summary, *cells)
    console.print(models)
    console.print(guides)


@data_app.command("list")
@friendly
def data_list() -> None:
    """All data sets."""
    from data_loaders import describe, list_datasets

    table = Table("name", "task", "rows", "features", "splits", "at hand without ZOO_DATA")
    for name in list_datasets():
        d = describe(name)
        source = "yes" if d.file is None else "by download" if d.downloadable else "no"
        table.add_row(d.name, d.task, str(d.rows), str(d.features), str(d.splits), source)
    Console().print(table)


@data_app.command("show")
@friendly
def data_show(name: Annotated[str, typer.Argument(help="Name of a data set.")]) -> None:
    """Size, source, licence and oddities of one data set."""
    from data_loaders import describe

    d = describe(name)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold]{d.name}[/bold]: {d.task}, {d.rows} rows, {d.features} features, target {d.target}")
    console.print(f"splits:   {d.splits} ({', '.join(d.protocols)})")
    console.print(f"source:   {d.source}", markup=False)
    console.print(f"licence:  {d.licence}", markup=False)
    for oddity in d.oddities:
        console.print(f"note:     {oddity}", markup=False)


@data_app.command("fetch")
@friendly
def data_fetch(name: Annotated[str, typer.Argument(help="Name of a data set.")]) -> None:
    """Makes sure a data set is at hand, checks it, and prints where it is."""
    from data_loaders import fetch

    print(fetch(name))


@app.command("fit")
@friendly
def fit_command(
    data: DataArgument,
    out: OutOption,
    model: ModelOption = "bnn",
    guide: Annotated[str, typer.Option("--guide", help="Guide to fit; zoo list names them.")] = "mean-field",
    target: TargetOption = None,
    task: TaskOption = "regression",
    split: SplitOption = 0,
    seed: SeedOption = 0,
    steps: Annotated[int, typer.Option("--steps", help="Optimiser steps.")] = 10_000,
    lr: Annotated[float, typer.Option("--lr", help="First learning rate; it falls to zero along a half cosine.")] = 0.01,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Rows of a minibatch; all up to 2000 rows, else 500.")] = None,
    noise: NoiseOption = None,
    widths: WidthsOption = "50",
    activation: ActivationOption = "relu",
    inclusion: InclusionOption = 0.5,
) -> None:
    """Fits one guide to one model and saves it for zoo predict.

    An interrupted fit goes on when the same command is given again.
    """
    from zoo.fitting import FitSettings
    from zoo.predict import fit
    from zoo.problem import load_problem

    problem = load_problem(data, split=split, target=target, task=task)
    options = _options(problem, noise, widths, activation, inclusion)
    if steps < 1 or not lr > 0 or (batch_size is not None and batch_size < 1):
        raise UserError("--steps, --lr and --batch-size must be positive")
    settings = FitSettings(steps, lr, batch_size, seed)
    with progress_bar() as progress:
        result = fit(
            data, problem, model=model, guide=guide, options=options, settings=settings, out=out, progress=progress
        )
    print(f"{len(result.losses)} steps in {result.seconds:.1f} s, last loss {result.losses[-1]:.1f} nats; saved in {out}")


@app.command("predict")
@friendly
def predict_command(
    folder: Annotated[Path, typer.Argument(help="The --out folder of zoo fit.")],
    table: Annotated[Path, typer.Option("--input", help="CSV file with the feature columns of the fit, in any order.")],
    out: Annotated[Path, typer.Option("--out", help="CSV file to write: mean, sd and the 5, 50 and 95 % quantiles.")],
    draws: Annotated[int, typer.Option("--draws", help="Networks drawn from the guide.")] = 1000,
    seed: SeedOption = 0,
) -> None:
    """Predicts new rows with a saved fit, in original units."""
    from zoo.predict import predict

    if draws < 1:
        raise UserError("--draws must be positive")
    rows = predict(folder, table, out, draws=draws, seed=seed)
    print(f"{rows} rows predicted; written to {out}")


@app.command("compare")
@friendly
def compare_command(
    data: DataArgument,
    out: OutOption,
    model: ModelOption = "bnn",
    guides: Annotated[str, typer.Option("--guides", help="Guides to grade, separated by commas.")] = "mean-field,spike-slab",
    reference: Annotated[str | None, typer.Option("--reference", help="nuts, exact or none; the model's best by default.")] = None,
    split: SplitOption = 0,
    seed: SeedOption = 0,
    noise: NoiseOption = None,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            help="quick: 2000 steps a guide, NUTS 2 chains of 300 + 400. full: 10000 steps, 2 chains of 600 + 600.",
        ),
    ] = "quick",
    target: TargetOption = None,
    task: TaskOption = "regression",
    widths: WidthsOption = "50",
    activation: ActivationOption = "relu",
    inclusion: InclusionOption = 0.5,
) -> None:
    """Fits guides, computes the ground truth, and writes one scoreboard. The main job.

    The reference counts only if it passes its gates (R-hat below 1.01 and bulk ESS above 400 for the
    predictions, at most 0.1 % divergences); otherwise it is shown as failed and nothing is graded against it.
    """
    from zoo.compare import plan, run
    from zoo.evaluation.scoreboard import rich_table
    from zoo.problem import load_problem

    problem = load_problem(data, split=split, target=target, task=task)
    options = _options(problem, noise, widths, activation, inclusion)
    names = [name.strip() for name in guides.split(",") if name.strip()]
    comparison = plan(
        data, problem, model=model, guides=names, reference=reference, budget=budget, seed=seed, options=options
    )
    with progress_bar() as progress:
        rows = run(comparison, out, progress)
    Console().print(rich_table(rows, title=f"{model} on {data}"))
    print(f"written to {out}")
    for row in rows:
        if row.status != "ok":
            _complain(f"{row.method} {row.status}")


def _options(problem, noise: float | None, widths: str, activation: str, inclusion: float):
    """The model's options from the command line; the noise goes from the target's units to standardised ones."""
    from zoo.bnn import ACTIVATIONS
    from zoo.errors import unknown
    from zoo.registry import ModelOptions

    try:
        sizes = tuple(int(width) for width in widths.split(","))
    except ValueError:
        raise UserError(f"--widths takes numbers as in 50 or 50,50, not {widths!r}") from None
    if min(sizes) < 1:
        raise UserError("--widths must be positive")
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    if not 0 < inclusion < 1:
        raise UserError(f"--inclusion must lie between 0 and 1, not {inclusion:g}")
    if noise is not None and (problem.task != "regression" or not noise > 0):
        raise UserError("--noise is a positive standard deviation, for regression only")
    return ModelOptions(sizes, activation, None if noise is None else noise / problem.scale.y_sd, inclusion)
