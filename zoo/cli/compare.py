"""The command ``zoo compare``: its help and what it prints.  Imports nothing slow by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from zoo.budgets import BASELINES, BUDGET_LINES, BUDGETS
from zoo.cli.options import (
    ActivationOption,
    BiasScaleOption,
    CategoriesOption,
    ClusterOption,
    DataArgument,
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
    StepsOption,
    TargetOption,
    TaskOption,
    WeightScaleOption,
    WidthsOption,
    named,
    split_scales,
    split_widths,
    table_options,
)
from zoo.cli.progress import piece_counter, progress_bar
from zoo.cli.tell import complain, print_notes

if TYPE_CHECKING:  # slow to import
    from zoo.evaluation.scoreboard import Row

COMPARE_HELP = f"""Fits guides, computes the ground truth, and writes one scoreboard. The main job.

The reference counts only if it passes its gates (for the function and the precisions R-hat below 1.01 and
bulk ESS above 400; at most 0.1 % divergences; one repetition is allowed). One that fails is shown as
failed, and nothing is graded against it. A guide that fails is a row that says why; the others stay.

The folder holds scoreboard.csv, .md and .png, standard_errors.csv, draws as netCDF for ArviZ (reference.nc
and one file a guide, with what az.loo, az.compare and az.plot_ppc need; beside it a .safetensors where a
guide predicts in closed form), config.json, bands.png
(one input) or scatter.png, and inclusion.csv and .png for variable selection. An interrupted call goes on
when the same command is given again; a larger --budget, or more --steps, starts again in the same folder.
More --steps alone keep the reference. With --splits or --seeds another budget needs another folder.

References: nuts; for variable selection exact (all models of up to 20 columns) and, for classes, gibbs. NUTS
runs by itself for models of at most 2000 numbers. A model of your own (--model path/to/file.py:model, see
zoo fit --help) is sampled by Pyro's NUTS, by itself up to 100 numbers; if the file has a NumPyro version of
it, called model_twin, by NumPyro's, which is many times faster.

The package has the draws of NUTS for diabetes (bnn, quick budget, split and seed 0). They are used where
data, settings and, on some of them, the model's log joint density are the same; the note of the reference
says so, or why not. --fresh-reference runs NUTS all the same; zoo reference --help says how a file is made.

With --splits or --seeds every split and seed is a comparison in a folder of its own (split-S-seed-K); the
scoreboard above them has the means, with their standard errors over splits (over seeds with one split), and
differences.csv every pair of methods, paired. More splits and seeds may be added to the same folder.

\b
Budgets:
{BUDGET_LINES}

\b
Examples:
  zoo compare diabetes --out out/diabetes
  zoo compare boston --guides mean-field,spike-slab --budget full --out out/boston
  zoo compare boston --guides mean-field,spike-slab --budget full --steps 30000 --out out/boston
  zoo compare yacht --model pbp-bnn --guides pbp,sspbp,mean-field --out out/yacht
  zoo compare yacht --splits 5 --seeds 2 --jobs 2 --out out/yacht-often
  zoo compare us_crime --model spike-slab-linear --guides spike-slab --out out/crime
  zoo compare breast_cancer --model spike-slab-logistic --guides spike-slab,varbvs --out out/cancer
  zoo compare houses.csv --target price --reference none --out out/houses
  zoo compare houses.csv --model mine.py:model --guides mean-field,map --out out/mine
  zoo compare people.csv --target risk --drop id,name --missing impute --out out/risk

Tables of your own may hold texts, dates and missing values: zoo fit --help.
"""


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
    fresh_reference: Annotated[
        bool,
        typer.Option("--fresh-reference", help="Run NUTS though the package has its draws, see above."),
    ] = False,
    budget: Annotated[str, typer.Option("--budget", help=f"{' or '.join(BUDGETS)}, see above.")] = "quick",
    steps: StepsOption = None,
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
        "guides": None if guides is None else named("guides", guides),
        "reference": reference,
        "budget": budget,
        "steps": steps,
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
        "fresh_reference": fresh_reference,
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
    from zoo.commands.compare import run
    from zoo.commands.comparison import ask
    from zoo.commands.options import check_alone
    from zoo.evaluation.verdict import verdict

    check_alone(jobs, cluster)
    comparison = ask(data, seed=seed, split=split, **wishes)
    with progress_bar() as progress:
        rows = run(comparison, out, progress, tell=complain)
    _tell_comparison(rows, verdict(rows), comparison.notes, f"{model} on {data}", budget, out)


def _tell_comparison(
    rows: Sequence[Row], words: Sequence[str], notes: tuple[str, ...], title: str, budget: str, out: Path
) -> None:
    """The scoreboard in a terminal; failures to stderr."""
    from zoo.evaluation.scoreboard import rich_table

    print_notes(notes)
    console = Console()
    console.print(rich_table(rows, escape(title), console.width))
    for sentence in words:
        console.print(escape(sentence), highlight=False)
    print(f"written to {out}")
    for row in rows:
        if row.status != "ok":
            longer = "; --budget full may pass" if (row.method, budget) == ("nuts", "quick") else ""
            complain(f"{row.method} {row.status}{longer}")
    if all(row.status != "ok" for row in rows):
        raise typer.Exit(1)
