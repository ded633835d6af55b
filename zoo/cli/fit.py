"""The command ``zoo fit``: its help and what it prints.  Imports nothing slow by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zoo.budgets import STEPS
from zoo.cli.options import (
    ActivationOption,
    BiasScaleOption,
    CategoriesOption,
    DataArgument,
    DeviceOption,
    DropOption,
    HoldoutOption,
    InclusionOption,
    MissingOption,
    ModelOption,
    NoiseOption,
    OutOption,
    SeedOption,
    SplitOption,
    TargetOption,
    TaskOption,
    WeightScaleOption,
    WidthsOption,
    check_fit_numbers,
    fit_options,
    split_scales,
    split_widths,
    table_options,
)
from zoo.cli.progress import progress_bar
from zoo.cli.tell import complain, print_notes
from zoo.commands.options import check_seed, model_options
from zoo.errors import UserError
from zoo.fitting.threads import one_torch_thread
from zoo.models.densities import DENSITY_MODELS

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.problem import Problem

FIT_HELP = """Fits one guide to one model and saves it for zoo predict.

The rows of one split are fitted (--split; one row in ten is held out and scored at the end). If it is
interrupted, give the same command again: most guides go on from where they were. Graphs and densities start
again, and so do map, deep-ensemble, bootstrap, joint-spike-slab, varbvs, pbp, pbp-1-epoch, sspbp,
sspbp-1-epoch, sip-bnn, sip-ns, vip, fbnn-bnn, fbnn-gp, avb and aadm. More --steps in the same folder start
any fit again, for the learning rate falls to zero over all steps. One call at a time works in a folder. It
holds fit.safetensors (the fit), config.json, and for guides that are fitted by an
optimiser losses.csv and loss.png (what the steps make small, nats: minus the ELBO, or what the method has in
its place). --steps, --lr and --batch-size are theirs.

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
in the target are classes. A missing value (an empty cell, NA, N/A, NaN, null, none, ? or a full stop, in
small or large letters) is refused, or with --missing impute filled in by the median or the most frequent text
of the training rows. The fit keeps what was done, and zoo predict does the same to new rows. zoo data show
people.csv tells what each column is taken for.

A model of your own is a function in a file, --model path/to/file.py:model, of standardised rows and targets:

\b
  def model(x, y=None):                      # x [rows, columns], y [rows]
      w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
      with pyro.plate("data", len(x)):
          pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

The law of y is Bernoulli for two classes, Categorical for more. A torch network becomes a model in one line
of such a file: model = zoo.models.from_module(net, layers="last"). Any guide that can take a step on it will
do. The fit keeps the checksum of the file, and zoo predict refuses a file that has changed (modules beside it
that it imports are not watched). What torch, NumPy and random draw while the file is imported is the same
every time; a generator of its own, numpy.random.default_rng(), needs a seed.

--device cuda takes the steps of stochastic variational inference on a GPU, with other random numbers than
those of the CPU. What was fitted predicts on the CPU: zoo predict needs no GPU.

A density (maf, realnvp, spline-flow) models all columns, by the bootstrap with shared parameters; it takes
--steps, --lr and --concentration, and zoo sample draws new rows from it.

Graphs (edge-graph) are a CSV file with a line an edge, columns graph, sender and recipient, and time if there
is one; two graphs at least, a tenth of which validates. --steps are passes over the graphs. No guide: its
weights are numbers. --timed, --window and --messages say how nodes hear of the edges so far.
"""


#: Options of models of a target, of densities and of growing graphs that the others do not take.
OF_TARGETS = (
    "guide", "target", "task", "noise", "widths", "activation", "inclusion", "weight_scale", "bias_scale",
    "drop", "categories", "missing", "holdout", "device",
)  # fmt: skip
OF_DENSITIES = ("concentration",)
OF_EDGES = ("timed", "window", "messages")


@one_torch_thread()
def fit_command(
    context: typer.Context,
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
        typer.Option(
            "--batch-size", help="Rows of a minibatch; by default all up to 1000 rows, else 500; of graphs 8."
        ),
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
        int | None, typer.Option("--window", help="edge-graph only: messages along the last N edges alone.")
    ] = None,
    messages: Annotated[
        str | None,
        typer.Option(
            "--messages",
            help="edge-graph only: how a node adds its messages up: log (the default), mean or sum.",
        ),
    ] = None,
) -> None:
    """See ``FIT_HELP``."""
    check_seed(seed)
    _refuse_typed(context, model)
    course = {"steps": steps, "lr": lr, "batch-size": batch_size}
    if model == "edge-graph":
        check_fit_numbers(course)
        kind = {"timed": timed, "window": window, "aggregation": messages or "log"}
        _fit_edges(data, out, seed, course, kind)
        return
    if model in DENSITY_MODELS:
        check_fit_numbers(course)
        _fit_density(data, model, concentration, course, split, seed, out)
        return
    from zoo.fitting.problem import load_problem
    from zoo.registry.queries import find_model

    network = {
        "widths": split_widths(widths),
        "activation": activation,
        "noise_scale": noise,
        "inclusion": inclusion,
        "weight_scale": split_scales("--weight-scale", weight_scale),
        "bias_scale": split_scales("--bias-scale", bias_scale),
    }
    wishes = fit_options(guide, course)
    problem = load_problem(
        data,
        split=split,
        target=target,
        task=task,
        holdout=holdout,
        table=table_options(drop, categories, missing),
        dtype=find_model(model).dtype,
    )
    _fit_guide(data, problem, model, guide, network, wishes, seed, out, device)


def _refuse_typed(context: typer.Context, model: str) -> None:
    """:raises UserError: naming an option that was typed and is of other models than this one"""
    densities = f"is for densities: {', '.join(DENSITY_MODELS)}"
    alien = dict.fromkeys(OF_DENSITIES, densities) | dict.fromkeys(OF_EDGES, "is for model edge-graph")
    if model == "edge-graph":
        why = f"does not apply to model {model!r}: --steps, --lr and --batch-size do"
        alien = dict.fromkeys((*OF_TARGETS, *OF_DENSITIES, "split"), why)
    elif model in DENSITY_MODELS:
        why = f"does not apply to model {model!r}, a density: every column is modelled"
        alien = dict.fromkeys((*OF_TARGETS, *OF_EDGES, "batch_size"), why)
    for name, why in alien.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"--{name.replace('_', '-')} {why}")


def _fit_guide(
    data: str,
    problem: Problem,
    model: str,
    guide: str,
    network: dict[str, Any],
    wishes: dict[str, Any],
    seed: int,
    out: Path,
    device: str,
) -> None:
    """A guide on a model of a table with a target.

    :param network: options of the model, None where left out
    """
    from zoo.commands.predict import fit, held_out

    options = model_options(problem, model, [guide], network)
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
            tell=complain,
        )
    print_notes(problem.dataset.oddities)
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
) -> None:
    """``zoo fit`` of a table without a target."""
    from zoo.commands.density import fit

    wishes = {name: value for name, value in given.items() if value is not None}
    with progress_bar() as progress:
        words = fit(
            data, model=model, concentration=concentration, wishes=wishes, split=split, seed=seed, out=out,
            progress=progress, tell=complain,
        )  # fmt: skip
    print(words)


def _fit_edges(data: str, out: Path, seed: int, given: dict[str, float | None], kind: dict[str, Any]) -> None:
    """A model of growing graphs, of a CSV file with a line an edge.

    :param kind: options of the model
    """
    from zoo.commands.graphs import fit_edges
    from zoo.fitting.graphs import GraphTraining

    names = {"steps": "epochs", "lr": "lr", "batch-size": "batch"}
    wishes = {names[name]: value for name, value in given.items() if value is not None}
    with progress_bar() as progress:
        settings = GraphTraining(**wishes, seed=seed)
        told = fit_edges(data, out, settings, kind=kind, progress=progress, tell=complain)
    print(f"{told}; saved in {out}")
