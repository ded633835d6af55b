"""The command line ``zoo``.  What is slow to import is imported by the command that needs it."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from zoo.budgets import BASELINES, BUDGETS, STEPS
from zoo.cli.calibrate import CALIBRATE_HELP, calibrate_command
from zoo.cli.leaderboard import LEADERBOARD_HELP, leaderboard_command
from zoo.cli.options import (
    ActivationOption,
    BiasScaleOption,
    CategoriesOption,
    ClusterOption,
    DataArgument,
    DataName,
    DeviceOption,
    DropOption,
    HoldoutOption,
    InclusionOption,
    JobsOption,
    MissingOption,
    ModelOption,
    NoiseOption,
    OutOption,
    SeedOption,
    SeedsOption,
    SplitOption,
    SplitsOption,
    TargetOption,
    TaskOption,
    WeightScaleOption,
    WidthsOption,
    check_at_least,
    check_fit_numbers,
    fit_options,
    split_names,
    split_scales,
    split_widths,
    table_options,
)
from zoo.cli.progress import piece_counter, progress_bar, progress_bar_or_lines
from zoo.cli.report import REPORT_HELP, report_command
from zoo.cli.reproduce import REPRODUCE_HELP, reproduce_command
from zoo.commands.options import check_seed, model_options
from zoo.errors import FailedError, UserError
from zoo.fitting.threads import one_torch_thread
from zoo.models.densities import DENSITY_MODELS
from zoo.version import __version__

if TYPE_CHECKING:  # slow to import
    from zoo.evaluation.scoreboard import Row

app = typer.Typer(
    name="zoo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Bayesian deep-learning models in Pyro, their guides, and how far each guide is from the truth.\n\n"
    "\b\nThe main job is to grade guides against a posterior that can be trusted:\n"
    "  zoo compare diabetes --out out/diabetes    two guides against NUTS, a minute\n\n"
    "\b\nWhat there is, a line each, and everything about one of them:\n"
    "  zoo list                       papers, models, guides\n"
    "  zoo list --paper sspbp         what came with one family of papers\n"
    "  zoo data list                  data sets\n"
    "  zoo reproduce --list           published tables and figures\n"
    "  zoo show NAME                  one of them: its law, assumptions, cost,\n"
    "                                 known failures, what goes with it\n"
    "  zoo COMMAND --help             explains a command, with examples\n\n"
    "Data sets that do not ship with the packages are downloaded; the environment variable ZOO_DATA names a "
    "folder to read them from instead. Exit codes: 0 success, 1 a fit that failed, 2 bad input, "
    "130 interrupted.",
)
data_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The data sets: list them, look at one, download one.",
)
app.add_typer(data_app, name="data")

FIT_HELP = """Fits one guide to one model and saves it for zoo predict.

The rows of one split are fitted (--split; one row in ten is held out and scored at the end). An interrupted
fit goes on when the same command is given again; one with more --steps starts again in the same folder, for
the learning rate falls to zero over all steps. The folder holds fit.safetensors (the fit), config.json, and
for guides that are fitted by an optimiser losses.csv and loss.png (minus the ELBO of every step, in nats).
--steps, --lr and --batch-size are theirs.

\b
Examples:
  zoo fit diabetes --guide mean-field --out out/fit
  zoo fit houses.csv --target price --model pbp-bnn --guide pbp --out out/houses
  zoo fit people.csv --target risk --drop id,name --missing impute --out out/risk
  zoo fit houses.csv --model mine.py:model --guide mean-field --out out/mine
  zoo fit boston --guide spike-slab --inclusion 0.1 --split 3 --out out/sparse
  zoo fit table.csv --model maf --out out/density   a table without a target
  zoo fit edges.csv --model edge-graph --steps 60 --out out/edges

A CSV file has a header, and columns of numbers, dates (2020-12-31, taken as days), flags (true/false,
yes/no) or categories: any other text, with an input for each of at most 50 levels of the training rows. Texts
in the target are classes. A missing value (empty, NA, ?) is refused, or with --missing impute filled in by
the median or the most frequent text of the training rows. The fit keeps what was done, and zoo predict does
the same to new rows. zoo data show people.csv tells what each column is taken for.

A model of your own is a function in a file, --model path/to/file.py:model, of standardised rows and targets:

\b
  def model(x, y=None):                      # x [rows, columns], y [rows]
      w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
      with pyro.plate("data", len(x)):
          pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

For classes the law of y is Bernoulli or Categorical. A torch network becomes a model in one line of such a
file: model = zoo.models.from_module(net, layers="last"). Any guide that can take a step on it will do. The
fit keeps the checksum of the file, and zoo predict refuses a file that has changed.

--device cuda takes the steps of stochastic variational inference on a GPU, with other random numbers than
those of the CPU. What was fitted predicts on the CPU: zoo predict needs no GPU.

A density (maf, realnvp, spline-flow) models all columns, by the bootstrap with shared parameters; it takes
--steps, --lr and --concentration, and zoo sample draws new rows from it.

Graphs (edge-graph) are a CSV file with a line an edge, columns sender and recipient, and graph and time if
there are such; --steps are passes over the graphs. No guide: its weights are numbers. --timed, --window and
--messages say how nodes hear of the edges so far.
"""

SAMPLE_HELP = """Draws new rows from a density that zoo fit has saved, each from a draw of its posterior.

From a model of graphs (edge-graph) it draws as many graphs, with the numbers of edges of training graphs, and
their times; the file has a line an edge.

\b
Examples:
  zoo sample out/density --rows 1000 --out new.csv
  zoo sample out/edges --rows 100 --out graphs.csv
"""

PREDICT_HELP = """Predicts new rows with a saved fit, in original units.

Regression: columns mean, sd, q5, q50 and q95 of the predictive distribution, noise included. Classes: columns
label, prob_0, prob_1, ..., or with the names of the classes. The file has the columns of the fit in any
order, as they were given to zoo fit; dropped ones and the target may be missing. A category that no training
row has is 0 in all inputs of its column, and a line says so.

Densities: columns log_density (of the mixture of all draws, in nats) and q5, q50, q95 of the draws' log
densities. Where there is no terminal, a line every ten seconds tells how far it is.

\b
Example:
  zoo predict out/houses --input new.csv --out predictions.csv
"""

_BUDGETS = "\n".join(f"  {name}: {budget}" for name, budget in BUDGETS.items())

COMPARE_HELP = f"""Fits guides, computes the ground truth, and writes one scoreboard. The main job.

The reference counts only if it passes its gates (for the function and the precisions R-hat below 1.01 and
bulk ESS above 400; at most 0.1 % divergences; one repetition is allowed). One that fails is shown as
failed, and nothing is graded against it. A guide that fails is a row that says why; the others stay.

The folder holds scoreboard.csv, .md and .png, standard_errors.csv, draws as netCDF for ArviZ (reference.nc
and one file a guide, with what az.loo, az.compare and az.plot_ppc need; beside it a .safetensors where a
guide predicts in closed form), config.json, bands.png
(one input) or scatter.png, and inclusion.csv and .png for variable selection. An interrupted call goes on
when the same command is given again; a larger --budget starts again in the same folder.

References: nuts; for variable selection exact (all models of up to 20 columns) and, for classes, gibbs. NUTS
runs by itself for models of at most 2000 numbers. A model of your own (--model path/to/file.py:model, see
zoo fit --help) is sampled by Pyro's NUTS, by itself up to 100 numbers; if the file has a NumPyro version of
it, called model_twin, by NumPyro's, which is many times faster.

With --splits or --seeds every split and seed is a comparison in a folder of its own (split-S-seed-K); the
scoreboard above them has the means, with their standard errors over splits (over seeds with one split), and
differences.csv every pair of methods, paired. More splits and seeds may be added to the same folder.

\b
Budgets:
{_BUDGETS}

\b
Examples:
  zoo compare diabetes --out out/diabetes
  zoo compare boston --guides mean-field,spike-slab --budget full --out out/boston
  zoo compare yacht --model pbp-bnn --guides pbp,sspbp,mean-field --out out/yacht
  zoo compare yacht --splits 5 --seeds 2 --jobs 2 --out out/yacht-often
  zoo compare us_crime --model spike-slab-linear --guides spike-slab --out out/crime
  zoo compare breast_cancer --model spike-slab-logistic --guides spike-slab,varbvs --out out/cancer
  zoo compare houses.csv --target price --reference none --out out/houses
  zoo compare houses.csv --model mine.py:model --guides mean-field,map --out out/mine
  zoo compare people.csv --target risk --drop id,name --missing impute --out out/risk

Tables of your own may hold texts, dates and missing values: zoo fit --help.
"""


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is over: Ctrl-C must not break its end


def friendly(command: Callable) -> Callable:
    """One clear line for what a user can mend: exit code 2 for bad input, 1 for a fit that diverged."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        try:
            from data_loaders import DataError

            try:
                return command(*args, **kwargs)
            except (UserError, DataError) as error:
                _complain(error)
                raise typer.Exit(2) from None
            except FailedError as error:
                _complain(error)
                raise typer.Exit(1) from None
        except KeyboardInterrupt as stop:
            _complain(str(stop) or "interrupted; the same command goes on from what is finished")
            raise typer.Exit(130) from None

    return wrapped


def _complain(message: object) -> None:
    line = " ".join(str(message).split())
    print(f"zoo: {line}", file=sys.stderr)


def _version(asked: bool) -> None:
    if asked:
        print(f"posterior-zoo {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("list")
@friendly
def list_command(
    paper: Annotated[
        str | None, typer.Option("--paper", help="Only what came with this family of papers, by its key.")
    ] = None,
) -> None:
    """Papers, models and guides, a line each."""
    from zoo.cli.lists import list_models_and_guides

    list_models_and_guides(paper)


@app.command("show")
@friendly
def show_command(
    name: Annotated[str, typer.Argument(help="Name of a model, guide, data set or experiment.")],
) -> None:
    """Everything about one model, guide, data set or experiment."""
    from zoo.cli.show import show

    show(name)


@data_app.command("list")
@friendly
def data_list() -> None:
    """All data sets, a line each."""
    from zoo.cli.lists import list_data

    list_data()


@data_app.command("show")
@friendly
def data_show(
    name: Annotated[str, typer.Argument(help="Name of a data set (zoo data list), or a CSV file.")],
    drop: DropOption = None,
    categories: CategoriesOption = None,
) -> None:
    """Size, source, licence, oddities and published tables of one data set; of a CSV file, what zoo fit
    takes every column for, and what keeps it from using one.
    """
    from data_loaders import describe
    from zoo.cli.show import print_card, tell_data_set

    if name.endswith(".csv"):
        from zoo.cli.lists import list_columns

        list_columns(name, table_options(drop, categories, "refuse"))
        return
    print_card(tell_data_set(describe(name).name))


def _print_notes(oddities: tuple[str, ...]) -> None:
    for oddity in oddities:
        print(f"note:     {oddity}")


@data_app.command("fetch")
@friendly
def data_fetch(name: DataName) -> None:
    """Makes sure a data set is at hand, checks it, and prints where it is."""
    from data_loaders import fetch

    print(fetch(name))


@app.command("fit", help=FIT_HELP)
@friendly
@one_torch_thread()
def fit_command(
    data: DataArgument,
    out: OutOption,
    model: ModelOption = "bnn",
    guide: Annotated[str, typer.Option("--guide", help="Guide to fit; zoo list names them.")] = "mean-field",
    target: TargetOption = None,
    task: TaskOption = None,
    split: SplitOption = 0,
    holdout: HoldoutOption = None,
    drop: DropOption = None,
    categories: CategoriesOption = None,
    missing: MissingOption = "refuse",
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    steps: Annotated[
        int | None, typer.Option("--steps", help=f"Optimiser steps; {STEPS} by default.")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            help="First learning rate, which falls to zero along a half cosine; by default 0.01, with fewer "
            "than 10000 steps up to 0.05 (ensembles and map: 0.01).",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", help="Rows of a minibatch; by default all up to 1000 rows, else 500."),
    ] = None,
    noise: NoiseOption = None,
    widths: WidthsOption = None,
    activation: ActivationOption = None,
    inclusion: InclusionOption = None,
    weight_scale: WeightScaleOption = None,
    bias_scale: BiasScaleOption = None,
    concentration: Annotated[
        float | None,
        typer.Option(
            "--concentration",
            help="Densities only: rows of data that the base measure weighs, a tenth of them by default; 0 "
            "leaves it out.",
        ),
    ] = None,
    timed: Annotated[
        bool, typer.Option("--timed", help="edge-graph only: messages are weighed by the age of their edge.")
    ] = False,
    window: Annotated[
        int | None, typer.Option("--window", help="edge-graph only: messages along the last edges, so many.")
    ] = None,
    messages: Annotated[
        str | None, typer.Option("--messages", help="edge-graph only: aggregated by log, mean or sum; log.")
    ] = None,
) -> None:
    """See ``FIT_HELP``."""
    columns = {"drop": drop, "categories": categories, "missing": None if missing == "refuse" else missing}
    columns["holdout"] = None if holdout is None else True
    columns["device"] = None if device == "cpu" else device
    if model == "edge-graph":
        others = {"guide": guide != "mean-field", "target": target, "task": task, "split": split}
        others |= {"noise": noise, "widths": widths, "activation": activation, "inclusion": inclusion}
        others |= {"weight-scale": weight_scale, "bias-scale": bias_scale, "concentration": concentration}
        others |= columns
        kind = {"timed": timed, "window": window, "aggregation": messages or "log"}
        _fit_edges(data, out, seed, {"epochs": steps, "lr": lr, "batch": batch_size}, kind, others)
        return
    for name, value in {"timed": timed, "window": window, "messages": messages}.items():
        if value:
            raise UserError(f"--{name} is for model edge-graph")
    if model in DENSITY_MODELS:
        others = {
            "guide": None if guide == "mean-field" else guide, "target": target, "task": task,
            "batch-size": batch_size, "noise": noise, "widths": widths, "activation": activation,
            "inclusion": inclusion, "weight-scale": weight_scale, "bias-scale": bias_scale, **columns,
        }  # fmt: skip
        _fit_density(data, model, concentration, {"steps": steps, "lr": lr}, split, seed, out, others)
        return
    if concentration is not None:
        raise UserError(f"--concentration is for densities: {', '.join(DENSITY_MODELS)}")
    from zoo.commands.predict import fit, held_out
    from zoo.fitting.problem import load_problem
    from zoo.registry.queries import find_model

    check_seed(seed)
    wishes = fit_options(guide, {"steps": steps, "lr": lr, "batch-size": batch_size})
    problem = load_problem(
        data,
        split=split,
        target=target,
        task=task,
        holdout=holdout,
        table=table_options(drop, categories, missing),
        dtype=find_model(model).dtype,
    )
    given = {
        "widths": split_widths(widths),
        "activation": activation,
        "noise_scale": noise,
        "inclusion": inclusion,
        "weight_scale": split_scales("--weight-scale", weight_scale),
        "bias_scale": split_scales("--bias-scale", bias_scale),
    }
    options = model_options(problem, model, [guide], given)
    with progress_bar() as progress:
        result = fit(
            data,
            problem,
            model=model,
            guide=guide,
            options=options,
            wishes=wishes,
            seed=seed,
            out=out,
            device=device,
            progress=progress,
            tell=_complain,
        )
    _print_notes(problem.dataset.oddities)
    print(f"{result.summary}; saved in {out}")
    print(held_out(problem, result, seed))


def _fit_density(
    data: str,
    model: str,
    concentration: float | None,
    given: dict[str, float | None],
    split: int,
    seed: int,
    out: Path,
    others: dict[str, object],
) -> None:
    """``zoo fit`` of a table without a target.

    :param others: options that do not apply, None where left out
    """
    from zoo.commands.density import fit

    for name, value in others.items():
        if value is not None:
            raise UserError(
                f"--{name} does not apply to model {model!r}, a density: every column is modelled"
            )
    check_seed(seed)
    check_fit_numbers(given)
    wishes = {name: value for name, value in given.items() if value is not None}
    with progress_bar() as progress:
        words = fit(
            data, model=model, concentration=concentration, wishes=wishes, split=split, seed=seed, out=out,
            progress=progress,
        )  # fmt: skip
    print(words)


def _fit_edges(
    data: str,
    out: Path,
    seed: int,
    given: dict[str, float | None],
    kind: dict[str, object],
    others: dict[str, object],
) -> None:
    """A model of growing graphs, of a CSV file with a line an edge.

    :param kind: options of the model
    :param others: options that it does not take
    """
    from zoo.commands.graphs import fit_edges
    from zoo.fitting.graphs import GraphTraining

    check_seed(seed)
    for name, value in others.items():
        if value:
            raise UserError(
                f"--{name} does not apply to model 'edge-graph': --steps, --lr and --batch-size do"
            )
    wishes = {name: value for name, value in given.items() if value is not None}
    if min(wishes.values(), default=1) <= 0:
        raise UserError("--steps, --lr and --batch-size must be positive")
    with progress_bar() as progress:
        told = fit_edges(data, out, GraphTraining(**wishes, seed=seed), kind=kind, progress=progress)
    print(f"{told}; saved in {out}")


@app.command("predict", help=PREDICT_HELP)
@friendly
@one_torch_thread()
def predict_command(
    folder: Annotated[Path, typer.Argument(help="The --out folder of zoo fit.")],
    table: Annotated[
        Path, typer.Option("--input", help="CSV file with the feature columns of the fit, in any order.")
    ],
    out: Annotated[Path, typer.Option("--out", help="CSV file to write, one line a row.")],
    draws: Annotated[
        int, typer.Option("--draws", help="Networks drawn, where the guide has no closed form.")
    ] = 1000,
    seed: SeedOption = 0,
) -> None:
    """See ``PREDICT_HELP``."""
    from zoo.commands import density
    from zoo.commands.graphs import is_edge_fit
    from zoo.commands.predict import predict

    check_at_least(1, draws=draws)
    check_seed(seed)
    if is_edge_fit(folder):
        raise UserError(f"{folder} holds a model of graphs: zoo sample draws them")
    with progress_bar_or_lines() as progress:
        if density.is_density(folder):
            rows = density.predict(folder, table, out, progress=progress)
            print(f"{rows} rows scored; written to {out}")
            return
        rows = predict(folder, table, out, draws=draws, seed=seed, progress=progress, tell=_complain)
    print(f"{rows} rows predicted; written to {out}")


@app.command("sample", help=SAMPLE_HELP)
@friendly
@one_torch_thread()
def sample_command(
    folder: Annotated[Path, typer.Argument(help="The --out folder of zoo fit --model maf, or edge-graph.")],
    out: Annotated[Path, typer.Option("--out", help="CSV file to write, one line a row.")],
    rows: Annotated[int, typer.Option("--rows", help="How many rows, or graphs.")] = 1000,
    seed: SeedOption = 0,
) -> None:
    """See ``SAMPLE_HELP``."""
    from zoo.commands.density import sample
    from zoo.commands.graphs import is_edge_fit, sample_edges

    check_at_least(1, rows=rows)
    check_seed(seed)
    if is_edge_fit(folder):
        edges = sample_edges(folder, out, rows, seed)
        print(f"{rows} graphs of {edges} edges in all drawn; written to {out}")
        return
    sample(folder, out, rows=rows, seed=seed)
    print(f"{rows} rows drawn; written to {out}")


@app.command("compare", help=COMPARE_HELP, short_help="Grades guides against the ground truth: the main job.")
@friendly
def compare_command(
    data: DataArgument,
    out: OutOption,
    model: ModelOption = "bnn",
    guides: Annotated[
        str | None,
        typer.Option(
            "--guides",
            help=f"Guides to grade; left out: {','.join(BASELINES)} if they apply. pbp and sspbp bring a row "
            "of one pass with them.",
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="nuts, exact, gibbs or none; the best one by default.")
    ] = None,
    budget: Annotated[str, typer.Option("--budget", help=f"{' or '.join(BUDGETS)}, see above.")] = "quick",
    target: TargetOption = None,
    task: TaskOption = None,
    split: SplitOption = 0,
    holdout: HoldoutOption = None,
    drop: DropOption = None,
    categories: CategoriesOption = None,
    missing: MissingOption = "refuse",
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    splits: SplitsOption = 1,
    seeds: SeedsOption = 1,
    jobs: JobsOption = 1,
    cluster: ClusterOption = None,
    noise: NoiseOption = None,
    widths: WidthsOption = None,
    activation: ActivationOption = None,
    inclusion: InclusionOption = None,
    weight_scale: WeightScaleOption = None,
    bias_scale: BiasScaleOption = None,
) -> None:
    """See ``COMPARE_HELP``."""
    wishes = {
        "model": model,
        "guides": None if guides is None else split_names(guides),
        "reference": reference,
        "budget": budget,
        "target": target,
        "task": task,
        "noise": noise,
        "widths": split_widths(widths),
        "activation": activation,
        "inclusion": inclusion,
        "weight_scale": split_scales("--weight-scale", weight_scale),
        "bias_scale": split_scales("--bias-scale", bias_scale),
        "holdout": holdout,
        "table": table_options(drop, categories, missing),
        "device": device,
    }
    if (splits, seeds) != (1, 1):
        from zoo.commands.repeated import compare_often
        from zoo.fitting.clusters import workers

        with workers(jobs, cluster) as many, piece_counter(f"{model} on {data}") as on_piece:
            found = compare_often(
                data, out, split=split, seed=seed, splits=splits, seeds=seeds, workers=many,
                on_piece=on_piece, **wishes,
            )  # fmt: skip
        _tell_comparison(found.rows, found.words, found.notes, f"{model} on {data}", budget, out)
        return
    for option, given in (("jobs", jobs != 1), ("cluster", cluster is not None)):
        if given:
            raise UserError(f"--{option} is for several --splits or --seeds: one comparison is one process")
    from zoo.commands.compare import run
    from zoo.commands.comparison import ask
    from zoo.evaluation.verdict import verdict

    comparison = ask(data, seed=seed, split=split, **wishes)
    with progress_bar() as progress:
        rows = run(comparison, out, progress, tell=_complain)
    _tell_comparison(rows, verdict(rows), comparison.notes, f"{model} on {data}", budget, out)


def _tell_comparison(
    rows: Sequence[Row], words: Sequence[str], notes: tuple[str, ...], title: str, budget: str, out: Path
) -> None:
    """The scoreboard in a terminal; failures to stderr."""
    from zoo.evaluation.scoreboard import rich_table

    _print_notes(notes)
    console = Console()
    console.print(rich_table(rows, escape(title), console.width))
    for sentence in words:
        console.print(escape(sentence), highlight=False)
    print(f"written to {out}")
    for row in rows:
        if row.status != "ok":
            longer = "; --budget full may pass" if (row.method, budget) == ("nuts", "quick") else ""
            _complain(f"{row.method} {row.status}{longer}")
    if all(row.status != "ok" for row in rows):
        raise typer.Exit(1)


app.command("calibrate", help=CALIBRATE_HELP, short_help="Grades posteriors on data from the model itself.")(
    friendly(calibrate_command)
)
app.command("leaderboard", help=LEADERBOARD_HELP, short_help="Ranks every guide on several data sets.")(
    friendly(leaderboard_command)
)
app.command("reproduce", help=REPRODUCE_HELP, short_help="Runs a published experiment beside its numbers.")(
    friendly(reproduce_command)
)
app.command("report", help=REPORT_HELP, short_help="Writes one page of HTML from folders of results.")(
    friendly(report_command)
)
