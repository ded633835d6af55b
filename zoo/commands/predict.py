"""A fit on disk: made by ``zoo fit``, used by ``zoo predict`` in another process with identical numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.progress import Progress
from torch import Tensor
from torch.distributions import Distribution

from data_loaders import DataError, Dataset, Recipe, Standardizer, load_csv, load_rows
from guides.posterior.files import json_safe
from zoo.commands.fit_folder import (
    FIT,
    RESULTS,
    check_config,
    check_output,
    sole_fit,
    start_again,
    write_losses,
)
from zoo.commands.own_models import check_own, kept_model
from zoo.errors import UserError
from zoo.evaluation.metrics import class_probabilities, predictive_figures
from zoo.evaluation.mixtures import mixture_quantiles
from zoo.evaluation.scoreboard import LEGEND, format_figure
from zoo.files.output import CONFIG, MOST_SHOWN, REMARKS, output_folder, read_config
from zoo.files.output_file import writing
from zoo.files.sealed import seal_of
from zoo.files.tables import write_csv
from zoo.fitting.devices import CPU, check_device, moved
from zoo.fitting.methods import FitFile, Fitted, Variational, Watch, unfinished
from zoo.fitting.problem import LARGEST, Problem
from zoo.fitting.stored import Stored
from zoo.models.entries import DataShape, ModelEntry, Options
from zoo.registry.queries import GUIDES, applicable, check_data, find_guide, find_model
from zoo.seeds import stable_seed

QUANTILES = {"q5": 0.05, "q50": 0.5, "q95": 0.95}
#: How a file of predictions begins: of a regression, of classes, of a density.
BEGINNINGS = (f"mean,sd,{','.join(QUANTILES)}\n", "label,prob_", f"log_density,{','.join(QUANTILES)}\n")
#: Draws behind a prediction, if not said otherwise.
DRAWS = 1000
#: Rows predicted at a time: a thousand draws of them are some ten megabytes.
ROWS = 2000


def fit(
    data: str,
    problem: Problem,
    *,
    model: str,
    guide: str,
    options: Options,
    wishes: Mapping[str, Any],
    seed: int,
    out: str | Path,
    device: str = CPU,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """Fits one guide and saves it; the same call after an interruption goes on from the last checkpoint, and
    one for more steps starts again in the same folder.

    Writes ``fit.safetensors`` (the guide, and all that it needs to go on), ``config.json``, and where there
    is a loss of every step ``losses.csv`` and ``loss.png``.

    :param wishes: what the settings of the guide's method shall be, where not its own choice
    :param device: where the steps are taken
    :param tell: is told, in a line, what the user should know before the work starts
    :raises UserError: for what cannot be fitted, or a folder that cannot be used
    :raises FailedError: with step, site and remedy
    :raises Interrupted: at Ctrl-C, with what is kept
    """
    asked_model, asked_guide = find_model(model), find_guide(guide)
    check_data(asked_model, problem.dataset, data)
    method, fit_seed = asked_guide.method, stable_seed("fit", seed, guide)
    if device != CPU and not isinstance(method, Variational):
        raise UserError(f"--device {device} does not apply to guide {guide!r}: it is fitted on the CPU")
    check_device(device)
    train = moved(problem.train, device)
    check_own(asked_model, problem, [guide], train)
    entry, note = applicable(asked_guide, asked_model, problem.task, options)
    settings = method.settings(problem.size, fit_seed, **wishes)
    asked = {"guide": guide, "note": note, "options": options, "seed": seed, "device": device}
    config = {**_about(data, problem, entry, **asked), "settings": asdict(settings)}

    def with_steps(steps: int) -> dict:
        """The configuration of this request with another number of steps."""
        changed = method.settings(problem.size, fit_seed, **{**wishes, "steps": steps})
        return {**config, "settings": asdict(changed)}

    kept = seal_of(Path(FIT)).name if isinstance(method, Stored) else FIT
    with sole_fit(out, kept):
        if "steps" in method.takes:
            start_again(out, config, ("settings", "steps"), with_steps, RESULTS, tell)
        with output_folder(out, config) as folder:
            about = {key: value for key, value in config.items() if key not in REMARKS}
            result = method.fit(
                entry.build(problem.shape, options),
                train,
                settings,
                file=FitFile(folder / FIT, about),
                watch=Watch(progress, guide),
            )
            if result.losses:
                write_losses(result.losses, folder, f"{guide} on {problem.dataset.name}")
    return result


def _about(
    data: str,
    problem: Problem,
    entry: ModelEntry,
    *,
    guide: str,
    note: str,
    options: Options,
    seed: int,
    device: str,
) -> dict:
    """What ``config.json`` says of a fit, but its settings."""
    dataset = problem.dataset
    about = {
        "command": "fit",
        "data": data,
        "split": dataset.split,
        "task": dataset.task,
        "features": list(dataset.feature_names),
        "target": dataset.target_name,
        "num_classes": dataset.num_classes,
        "fingerprint": problem.fingerprint(),
        "standardisation": problem.scale.to_dict(),
        "model": entry.name,
        "guide": guide,
        "note": note,
        "options": json_safe({**entry.options, **options}),
        "seed": seed,
    }
    if constant := _constant(dataset):
        about["constant"] = constant
    if dataset.recipe:
        about["table"] = dataset.recipe.to_dict()
    if entry.file:
        about["model_file"] = dict(entry.file)
    if device != CPU:
        about["device"] = device
    return about


def _constant(dataset: Dataset) -> dict[str, float]:
    """The inputs that have one value in all training rows, but for those of categories, whose new levels are
    told.  The standardisation does not tell them: it takes their sd for 1, which others may have too.
    """
    levels = dataset.recipe.of_categories if dataset.recipe else ()
    same = dict(zip(dataset.feature_names, np.ptp(dataset.x_train, axis=0) == 0, strict=True))
    first = dict(zip(dataset.feature_names, dataset.x_train[0].tolist(), strict=True))
    return {name: first[name] for name in first if same[name] and name not in levels}


def held_out(problem: Problem, result: Fitted, seed: int) -> str:
    """One line: how many rows were fitted, and how well the others are predicted, in original units."""
    counts = f"{problem.size} rows fitted, {len(problem.x_test)} held out"
    if not len(problem.x_test):
        return counts
    try:
        predictive = result.predictor(DRAWS, stable_seed("draws", seed))(problem.x_test)
        figures = predictive_figures(predictive, problem.y_test, problem.task, problem.scale.y_sd)
    except ValueError as error:  # a prediction that is not finite; the fit itself is saved
        return f"{counts}: cannot be scored ({error})"
    shown = [name for name in ("rmse", "accuracy", "log_likelihood") if name in figures]
    words = [f"{LEGEND[name].heading} {format_figure(figures[name])}" for name in shown]
    return f"{counts}: {', '.join(words)}"


def load_fit(folder: str | Path) -> tuple[Fitted, dict]:
    """The fitted guide of a folder and its configuration.

    :raises UserError: when the folder holds no finished fit, or a damaged one
    """
    folder = Path(folder)
    config = read_config(folder)
    if config.get("command") not in (None, "fit"):
        raise UserError(
            f"{folder} holds no fit but the output of zoo {config['command']}: give the --out of zoo fit"
        )
    path = folder / FIT
    if not path.exists():
        raise unfinished(path)
    altered = f"{folder / CONFIG} was altered"
    if not isinstance(config.get("guide"), str):
        raise UserError(f"{altered}: it names no guide")
    if config["guide"] not in GUIDES:
        raise UserError(
            f"{folder} was fitted by guide {config['guide']!r}, which is not there: install the package that "
            "registers it"
        )
    method = GUIDES[config["guide"]].method
    about = method.about(path)
    check_config(folder, config, about)
    shape = DataShape(about["task"], len(about["features"]), about["num_classes"])
    model = kept_model(about, folder).build(shape, about["options"])
    return method.load(path, model), about


def predict(
    folder: str | Path,
    table: str | Path,
    out: str | Path,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    device: str = CPU,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> int:
    """Predicts the rows of a CSV file; writes one line a row and returns their number.

    Regression: ``mean,sd,q5,q50,q95`` of the predictive distribution in original units.  Classes:
    ``label,prob_0,prob_1,...`` with probabilities averaged over networks drawn from the guide; classes have
    the names that the table of the fit had for them.

    :param draws: networks drawn from a guide that has no predictive distribution in closed form
    :param device: where they are evaluated; they are drawn on the CPU, so that they are the same everywhere
    :param tell: is told, in a line, what the fit has not seen, and what is filled in
    :raises UserError: when the folder holds no finished fit, or ``out`` cannot be written
    :raises DataError: when the table does not have the columns of the fit, or holds what is no number
    """
    fitted, config = load_fit(folder)
    if device != CPU and fitted.closed_form is not None:
        raise UserError(
            f"--device {device} does not apply to guide {config['guide']!r}: it predicts on the CPU"
        )
    scale = Standardizer.from_dict(config["standardisation"])
    recipe = Recipe.from_dict(config["table"]) if "table" in config else None
    rows = _read_rows(table, config, recipe, tell)
    check_output(out, folder, BEGINNINGS, table)
    _tell_unseen(rows, config, tell)
    x = torch.as_tensor(scale.transform_x(rows), dtype=kept_model(config, Path(folder)).dtype)
    _check_range(x, config["features"], table)
    predictor = fitted.predictor(draws, stable_seed("draws", seed), device)
    labels = recipe.labels if recipe else ()
    columns_of = _regression_columns if config["task"] == "regression" else partial(_class_columns, labels)
    advance, parts = Watch(progress, "rows predicted").start(len(x)), []
    for part in x.split(ROWS):
        parts.append(columns_of(predictor(part.to(device)), scale))
        advance(len(part))
    with writing(out):
        write_csv(pd.concat(parts), out)
    return len(x)


def _regression_columns(predictive: Distribution, scale: Standardizer) -> pd.DataFrame:
    """A line a row; float64 from here on, for targets whose mean is large beside their sd."""
    quantiles = scale.inverse_mean(mixture_quantiles(predictive, list(QUANTILES.values())).numpy())
    columns = {
        "mean": scale.inverse_mean(predictive.mean.double().cpu().numpy()),
        "sd": scale.inverse_sd(predictive.stddev.double().cpu().numpy()),
    }
    return pd.DataFrame(columns | dict(zip(QUANTILES, quantiles, strict=True)))


def _class_columns(labels: Sequence[str], predictive: Distribution, scale: Standardizer) -> pd.DataFrame:
    """:param labels: names of the classes; empty where they are numbers"""
    probabilities = class_probabilities(predictive).numpy()
    names = labels or range(probabilities.shape[1])
    columns = {f"prob_{name}": probabilities[:, k] for k, name in enumerate(names)}
    return pd.DataFrame({"label": np.array(names)[probabilities.argmax(-1)], **columns})


def _read_rows(
    table: str | Path, config: dict, recipe: Recipe | None, tell: Callable[[str], None]
) -> np.ndarray:
    """The inputs ``[N, in]`` of new rows in original units, as the fit has taken its own."""
    if recipe is None:
        return load_csv(
            table, target=config["target"], require_target=False, columns=config["features"]
        ).x_test
    rows, notes = load_rows(table, config["target"], recipe)
    for note in notes:
        tell(f"note: {note}")
    return rows


def _tell_unseen(rows: np.ndarray, config: dict, tell: Callable[[str], None]) -> None:
    """Of columns that had one value when they were fitted, and have others now."""
    places = {name: place for place, name in enumerate(config["features"])}
    constant = config.get("constant", {})
    names = [name for name, value in constant.items() if (rows[:, places[name]] != value).any()]
    if names:
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        tell(f"note: constant in all training rows, but not here: {', '.join(names[:MOST_SHOWN])}{more}")


def _check_range(x: Tensor, names: list[str], table: str | Path) -> None:
    """:raises DataError: for a value so far from the training data that a network's arithmetic overflows"""
    bad = (x.abs() > LARGEST).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise DataError(f"{table}: column {names[column]!r}, row {row + 1}: far outside the training data")
