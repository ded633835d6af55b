"""The options of the command line: their help, and the checks that need no data."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zoo.commands.options import check_counts
from zoo.errors import UserError

if TYPE_CHECKING:  # slow to import
    from data_loaders import TableOptions

DataArgument = Annotated[
    str, typer.Argument(help="Name of a data set (zoo data list), or a CSV file with a header.")
]
DataName = Annotated[str, typer.Argument(help="Name of a data set (zoo data list).")]
OutOption = Annotated[
    Path, typer.Option("--out", help="Output folder; the same call again goes on with what is there.")
]
ModelOption = Annotated[
    str,
    typer.Option("--model", help="Model to fit; zoo list names them. Or your own: path/to/file.py:model."),
]
SplitOption = Annotated[int, typer.Option("--split", help="Which train/test split of the data set, from 0.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of every random number.")]
SplitsOption = Annotated[int, typer.Option("--splits", help="How many splits, from --split on.")]
SeedsOption = Annotated[int, typer.Option("--seeds", help="How many seeds, from --seed on.")]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps", help="Optimiser steps of each guide, where the budget's are too few or too many."
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", help="Processes side by side; -1 is one a core.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Compute on dask://HOST:PORT or ray://HOST:PORT, whose machines have the same software and "
        "share the folder --out under one path; or auto, a Dask cluster of --jobs processes here.",
    ),
]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="CSV only: target column; the last by default.")
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="CSV only: regression (by default), binary (labels 0, 1) or multiclass (0..K-1); a target of "
        "texts is classes.",
    ),
]
HoldoutOption = Annotated[
    float | None,
    typer.Option("--holdout", help="Share of the rows held out: 0 (all are fitted), 0.1 (default) or 0.2."),
]
DropOption = Annotated[
    str | None,
    typer.Option("--drop", help="CSV only: columns to leave out, as in id,name or '\"note, long\",id'."),
]
CategoriesOption = Annotated[
    str | None,
    typer.Option("--categories", help="CSV only: columns whose numbers are names, as in zip,type."),
]
MissingOption = Annotated[
    str,
    typer.Option(
        "--missing",
        help="CSV only: missing values: refuse, or impute (median, most frequent text).",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda or cuda:N: where the steps of stochastic variational inference are taken.",
    ),
]
NoiseOption = Annotated[
    float | None,
    typer.Option("--noise", help="Fixes the noise sd, in units of the target; inferred if left out."),
]
WidthsOption = Annotated[
    str | None, typer.Option("--widths", help="Hidden units of each layer, as in 50 or 20,20; 50 by default.")
]
ActivationOption = Annotated[
    str | None, typer.Option("--activation", help="relu (by default), leaky-relu (slope 0.2) or tanh.")
]
InclusionOption = Annotated[
    float | None,
    typer.Option(
        "--inclusion",
        help="Prior inclusion probability of spike-and-slab weights; 0.5 by default, 0.25 for "
        "spike-slab-logistic.",
    ),
]

WeightScaleOption = Annotated[
    str | None,
    typer.Option(
        "--weight-scale",
        help="Prior sd of weights (of their slab) in units of 1/sqrt(inputs), for all layers or one a layer, "
        "as in 1.4 or 2,1; 1 by default.",
    ),
]
BiasScaleOption = Annotated[
    str | None,
    typer.Option("--bias-scale", help="The same of biases; left out: biases have sd 1 in every layer."),
]


def fit_options(guide: str, given: dict[str, float | None]) -> dict[str, Any]:
    """What ``zoo fit`` was told about the fit itself, as a method's ``settings`` takes it.

    :param given: ``steps``, ``lr`` and ``batch-size``, None where left out
    :raises UserError: for a value out of range, or an option that changes nothing for this guide
    """
    from zoo.registry.queries import check_fit_options, find_guide

    given = {name: value for name, value in given.items() if value is not None}
    check_fit_options(find_guide(guide), given)
    check_fit_numbers(given)
    return {name.replace("-", "_"): value for name, value in given.items()}


def check_fit_numbers(given: dict[str, float | None]) -> None:
    """:raises UserError: for a learning rate or a count out of range; None is left out"""
    lr = given.get("lr")
    if lr is not None and not (lr > 0 and math.isfinite(lr)):
        raise UserError(f"--lr must be a positive number, not {lr:g}")
    check_counts(**{name: value for name, value in given.items() if name != "lr"})


def split_widths(text: str | None) -> tuple[int, ...] | None:
    """``"20,20"`` -> ``(20, 20)``"""
    if text is None:
        return None
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise UserError(f"--widths takes whole numbers as in 50 or 20,20, not {text!r}") from None


def split_scales(flag: str, text: str | None) -> float | tuple[float, ...] | None:
    """``"2,1"`` -> ``(2.0, 1.0)``, ``"2"`` -> ``2.0``"""
    if text is None:
        return None
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"{flag} takes numbers as in 1.4 or 2,1, not {text!r}") from None
    return numbers if len(numbers) > 1 else numbers[0]


def table_options(drop: str | None, categories: str | None, missing: str) -> TableOptions:
    """What is to be done with the columns of a CSV file."""
    from data_loaders import TableOptions

    return TableOptions(tuple(split_names(drop or "")), tuple(split_names(categories or "")), missing)


def named(option: str, text: str) -> list[str]:
    """:func:`split_names`; :raises UserError: where there is none"""
    names = split_names(text)
    if not names:
        raise UserError(f"--{option} names nothing")
    return names


def split_names(text: str) -> list[str]:
    """``'a, "b, c"'`` -> ``["a", "b, c"]``: as a line of CSV.

    :raises UserError: for a quotation mark that is not closed
    """
    try:
        (names,) = csv.reader([text], skipinitialspace=True, strict=True)
    except csv.Error as error:
        raise UserError(f"{text!r} is no list of names as in id,name ({error})") from None
    return [name.strip() for name in names if name.strip()]
