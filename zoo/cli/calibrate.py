"""The command ``zoo calibrate``: its help, its checks, what it prints.  Imports nothing slow by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from zoo.cli.options import (
    ActivationOption,
    BiasScaleOption,
    ClusterOption,
    DeviceOption,
    InclusionOption,
    OutOption,
    SeedOption,
    WeightScaleOption,
    split_names,
    split_scales,
    split_widths,
)

CALIBRATE_HELP = """Are the posteriors of a guide right on data from the model itself?

Simulation-based calibration: parameters are drawn from the model's own prior and a target from them, at fixed
inputs; the guide is fitted and draws are taken; the rank of the true value among them is uniform if the
posterior is right. Ranks of the function at test points, of precisions and of the log likelihood; of the
weights themselves where there is no hidden layer (--widths 0: linear or logistic regression).

--guide takes guides, and the samplers exact (closed form or enumeration), nuts and gibbs where the model has
them; "all" is everything that applies. A simulation that has a result is not computed again: an interrupted
call goes on when the same command is given, and more guides or simulations add to the same folder.

The folder holds calibration.md (verdicts in words), calibration.csv (a line a guide and quantity), ranks.csv
(a line a simulation), calibration.png (ranks and their distribution functions) and cells/.

\b
Examples:
  zoo calibrate --model spike-slab-linear --guide exact,varbvs --out out/selection
  zoo calibrate --widths 0 --noise 1 --correlation 0.9 --guide exact,nuts,mean-field --out out/linear
  zoo calibrate --widths 0 --task binary --guide nuts,mean-field --jobs -1 --out out/logistic
  zoo calibrate --model pbp-bnn --widths 3 --guide nuts,pbp --simulations 200 --out out/network
"""


def calibrate_command(
    out: OutOption,
    model: Annotated[
        str, typer.Option("--model", help="Model to simulate from; zoo list names them.")
    ] = "bnn",
    guide: Annotated[
        str, typer.Option("--guide", "--guides", help="Guides and samplers, with commas between; or all.")
    ] = "mean-field",
    simulations: Annotated[int, typer.Option("--simulations", help="Data sets to simulate.")] = 100,
    draws: Annotated[
        int, typer.Option("--draws", help="Draws of each posterior, among which the truth has a rank.")
    ] = 99,
    rows: Annotated[int, typer.Option("--rows", help="Rows of a data set.")] = 20,
    columns: Annotated[int, typer.Option("--columns", help="Columns, standard normal.")] = 2,
    correlation: Annotated[float, typer.Option("--correlation", help="Of every pair of columns.")] = 0.0,
    points: Annotated[int, typer.Option("--points", help="Test points of the function.")] = 3,
    steps: Annotated[int, typer.Option("--steps", help="Optimiser steps of a fit.")] = 1000,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    jobs: Annotated[int, typer.Option("--jobs", help="Simulations side by side; -1 is one a core.")] = 1,
    cluster: ClusterOption = None,
    task: Annotated[
        str | None, typer.Option("--task", help="regression or binary; the model's first by default.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", help="Fixes the noise sd; inferred if left out.")
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(
            "--widths",
            help="Hidden units of each layer, as in 3 or 5,5; 0 is no hidden layer; 50 by default.",
        ),
    ] = None,
    activation: ActivationOption = None,
    inclusion: InclusionOption = None,
    weight_scale: WeightScaleOption = None,
    bias_scale: BiasScaleOption = None,
) -> None:
    """See ``CALIBRATE_HELP``."""
    from zoo.commands.calibrate import run, sentences
    from zoo.commands.calibration import ask
    from zoo.experiments.engine.progress import show_progress
    from zoo.fitting.clusters import workers

    calibration = ask(
        model,
        split_names(guide),
        simulations=simulations,
        draws=draws,
        rows=rows,
        columns=columns,
        correlation=correlation,
        points=points,
        steps=steps,
        seed=seed,
        device=device,
        task=task,
        noise=noise,
        widths=split_widths(widths),
        activation=activation,
        inclusion=inclusion,
        weight_scale=split_scales("--weight-scale", weight_scale),
        bias_scale=split_scales("--bias-scale", bias_scale),
    )
    with workers(jobs, cluster) as found, show_progress(f"calibrate {model}", found.count) as on_progress:
        table = run(calibration, out, workers=found, on_progress=on_progress)
    console = Console()
    for sentence in sentences(calibration, Path(out), table):
        console.print(escape(sentence.replace("**", "")), highlight=False)
    print(f"written to {out}")
    if not table["simulations"].any():
        raise typer.Exit(1)
