"""A density on disk: made by ``zoo fit --model maf``, used by ``zoo predict`` and ``zoo sample``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.progress import Progress
from torch import Tensor

from data_loaders import DataError, DensityData, load_csv, load_density
from data_loaders.densities import DENSITIES
from guides.bootstrap.training import Training
from zoo.commands.fit_folder import (
    FIT,
    RESULTS,
    check_config,
    check_output,
    sole_fit,
    start_again,
    write_losses,
)
from zoo.commands.predict import BEGINNINGS, QUANTILES, ROWS
from zoo.errors import UserError
from zoo.files.output import REMARKS, output_folder, read_config
from zoo.files.output_file import writing
from zoo.files.sealed import is_finished, read_seal, seal_of, write_seal
from zoo.files.tables import write_csv
from zoo.fitting.densities import Effort, FittedDensity, FlowShape, Rows, shared_bootstrap
from zoo.fitting.methods import Watch, unfinished
from zoo.fitting.problem import LARGEST
from zoo.models.densities import DENSITY_MODELS

#: Fewer different numbers than these, and than this share of the rows, make a column one that has no density;
#: so does one number that so many of the rows have.
FEW_VALUES, SHARE_OF_VALUES, SHARE_OF_ONE = 50, 0.2, 0.1
#: Variance of a direction of standardised columns, as a share of the widest, that is none but for rounding.
NO_VARIANCE = 1e-10
#: Share of the rows that the base measure weighs by default, for every row of the table.
CONCENTRATION_A_ROW = 0.1
VALIDATION_ROWS = 2000


def load_rows_of_density(data: str, split: int) -> DensityData:
    """From the name of a density set, or a CSV file: a tenth of its rows is held out, and a tenth of the rest
    stops the training.

    :raises DataError: for data that cannot be used, saying where and why
    """
    if data in DENSITIES:
        if split:
            raise UserError(f"{data} has its published split and no other: leave --split out")
        return load_density(data)
    if not 0 <= split < 2**32:
        raise UserError(f"--split must lie between 0 and 2^32 - 1, not {split}")
    if not (data.endswith(".csv") or Path(data).exists()):
        raise UserError(f"{data!r} is neither a CSV file nor one of: {', '.join(DENSITIES)}")
    table = load_csv(data, require_target=False)
    x = table.x_test
    if len(x) < 10:
        raise DataError(f"{data}: has {len(x)} data rows; a density needs at least 10")
    order = np.random.RandomState(split).permutation(len(x))
    tenth = max(1, len(x) // 10)
    parts = np.split(x[order], [len(x) - 2 * tenth, len(x) - tenth])
    for part, name in zip(parts[0].T, table.feature_names, strict=True):
        if np.ptp(part) == 0:
            raise DataError(f"{data}: column {name!r} is constant: it has no density; leave it out")
    if x.shape[1] < 2:
        raise DataError(f"{data}: has one column; a flow needs at least two")
    return DensityData(Path(data).stem, *parts, table.feature_names)


def doubts(table: DensityData) -> list[str]:
    """What in the rows plainly has no density, each in a sentence: the likelihood of a flow is then without a
    bound, and its figures depend on when the training stops.
    """
    found, rows = [], len(table.train)
    for column, name in zip(table.train.T, table.columns, strict=True):
        values, counts = np.unique(column, return_counts=True)
        if len(values) < min(FEW_VALUES, SHARE_OF_VALUES * rows):
            found.append(f"column {name!r} has {len(values)} different values and no density: leave it out")
        elif counts.max() > max(2, SHARE_OF_ONE * rows):
            most = f"{values[counts.argmax()]:g} in {counts.max()} of {rows} rows"
            found.append(f"column {name!r} is {most} and has no density there")
    if rows > table.train.shape[1] + 1:  # or the rows alone would make it so
        variances = np.linalg.eigvalsh(np.corrcoef(table.train.T))
        if variances[0] < NO_VARIANCE * variances[-1]:
            found.append("a column is a linear combination of others, and there is no density: leave one out")
    return found


def fit(
    data: str,
    *,
    model: str,
    concentration: float | None,
    wishes: dict[str, Any],
    split: int,
    seed: int,
    out: str | Path,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> str:
    """Fits and saves; what was done, in a line or two.  A call for more steps starts again in the same
    folder.

    :param concentration: rows of data that the Gaussian base measure weighs; a tenth of them by default
    :param wishes: ``steps`` and ``lr`` where they are given
    :param tell: is told, in a line, what the user should know before the work starts
    :raises UserError: for an option out of range, or a folder that cannot be used
    :raises FailedError: when no training ends with finite numbers
    :raises Interrupted: at Ctrl-C, with what is kept
    """
    table = load_rows_of_density(data, split)
    (train, validation, test), mean, sd = _standardised(table, data)
    concentration = _checked_concentration(concentration, len(train))
    training, shape = Training(**wishes), FlowShape(DENSITY_MODELS[model].kind)
    config = {
        "command": "fit",
        "data": data,
        "split": split,
        "fingerprint": hashlib.sha256(train.numpy().tobytes()).hexdigest()[:16],
        "task": "density",
        "features": list(table.columns),
        "standardisation": {"x_mean": mean.tolist(), "x_sd": sd.tolist()},
        "model": model,
        "guide": "shared-bootstrap",
        "concentration": concentration,
        "settings": asdict(training),
        "seed": seed,
    }

    def with_steps(steps: int) -> dict:
        return {**config, "settings": asdict(Training(**{**wishes, "steps": steps}))}

    with sole_fit(out, seal_of(Path(FIT)).name):
        start_again(out, config, ("settings", "steps"), with_steps, RESULTS, tell, "it cannot be continued")
        with output_folder(out, config) as folder:
            path, about = folder / FIT, {key: value for key, value in config.items() if key not in REMARKS}
            if not is_finished(path, about):
                rows = Rows(train, validation[:VALIDATION_ROWS])
                advance = Watch(progress, model).start(training.steps)
                effort = Effort(training, seed=seed)
                fitted = shared_bootstrap(rows, shape, effort, concentration=concentration, on_step=advance)
                write_losses(fitted.info["losses"], folder, f"{model} on {table.name}")
                fitted.save(path, shape)
                write_seal(path, about)
            fitted = FittedDensity.load(path)
    return (
        f"{_course(fitted, training)}; saved in {out}\n"
        f"{len(train)} rows fitted, {len(validation)} to stop by, {len(test)} held out: "
        + _words(fitted.figures(test, np.log(sd).sum().item()))
        + "".join(f"\nnote: {doubt}" for doubt in doubts(table))
    )


def _checked_concentration(wish: float | None, rows: int) -> float:
    concentration = CONCENTRATION_A_ROW * rows if wish is None else wish
    if not 0 <= concentration < math.inf:
        raise UserError(f"--concentration must be a number of rows, zero or more, not {concentration:g}")
    return concentration


def _course(fitted: FittedDensity, training: Training) -> str:
    steps, kept = fitted.info["steps"], fitted.info["kept_step"]
    unsettled = "" if steps - kept > training.patience else ", their score was still rising: more --steps"
    return f"{steps} steps, that of {kept} is kept{unsettled}"


def _standardised(table: DensityData, data: str) -> tuple[list[Tensor], np.ndarray, np.ndarray]:
    """Training, validation and test rows by the means and sds ``[d]`` of the first, and these.

    :raises DataError: for numbers that are too large, or a row held out that is far outside the others
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = table.train.mean(0), table.train.std(0)
    if not np.isfinite(sd).all():
        name = table.columns[int(np.argmin(np.isfinite(sd)))]
        raise DataError(
            f"{data}: column {name!r} holds numbers too large to be squared and cannot be standardised: "
            "rescale it, or leave those rows out"
        )
    parts = [
        torch.as_tensor((part - mean) / sd, dtype=torch.float32)
        for part in (table.train, table.validation, table.test)
    ]
    if any((part.abs() > LARGEST).any() for part in parts[1:]):
        raise DataError(f"{data}: a number among the rows held out is far outside the others")
    return parts, mean, sd


def _words(figures: dict[str, float]) -> str:
    """The figures of held-out rows in a line; of a single row there is no standard error."""
    error = f" ± {figures['points_se']:.3f}" if math.isfinite(figures["points_se"]) else ""
    return (
        f"mean log density {figures['mixture']:.3f} by the mixture of the draws, "
        f"{figures['log_likelihood']:.3f}{error} by one of them, "
        f"median {figures['median']:.3f}"
        + (f", {100 * figures['below_100']:.3g} % below -100" if figures["below_100"] else "")
    )


def is_density(folder: str | Path) -> bool:
    """Whether a folder holds the fit of a density; :raises UserError: when it is none of this program"""
    return read_config(folder).get("model") in DENSITY_MODELS


def predict(
    folder: str | Path, table: str | Path, out: str | Path, *, progress: Progress | None = None
) -> int:
    """Scores the rows of a CSV file; writes one line a row and returns their number.

    Columns ``log_density`` (of the mixture of all draws, in nats and the table's own units) and ``q5``,
    ``q50``, ``q95``: quantiles of the draws' log densities, which differ in the mean of the latent law alone
    (:mod:`guides.bootstrap.shared_parameters`): no interval for the density.

    :raises DataError: when the table does not have the columns of the fit, or holds what is no number
    """
    fitted, config = load_fit(folder)
    rows = load_csv(table, require_target=False, columns=config["features"])
    check_output(out, folder, BEGINNINGS, table)
    mean, sd = (np.array(config["standardisation"][name]) for name in ("x_mean", "x_sd"))
    x = torch.as_tensor((rows.x_test - mean) / sd, dtype=torch.float32)
    if (x.abs() > LARGEST).any():
        raise DataError(f"{table}: a number is far outside the training data")
    advance, parts = Watch(progress, "rows scored").start(len(x)), []
    for part in x.split(ROWS):
        parts.append(_scores(fitted.log_density(part).double()) - np.log(sd).sum())
        advance(len(part))
    with writing(out):
        write_csv(pd.concat(parts), out)
    return len(x)


def sample(folder: str | Path, out: str | Path, *, rows: int, seed: int) -> None:
    """Writes new rows in the table's own units, each of a draw of the posterior."""
    fitted, config = load_fit(folder)
    check_output(
        out, folder, [pd.DataFrame(columns=config["features"]).to_csv(index=False, lineterminator="\n")]
    )
    mean, sd = (np.array(config["standardisation"][name]) for name in ("x_mean", "x_sd"))
    drawn = fitted.sample(rows, seed).double().numpy() * sd + mean
    with writing(out):
        write_csv(pd.DataFrame(drawn, columns=config["features"]), out)


def load_fit(folder: str | Path) -> tuple[FittedDensity, dict]:
    """:raises UserError: when the folder holds no finished fit of a density"""
    config = read_config(folder)
    if config.get("model") not in DENSITY_MODELS:
        raise UserError(f"{folder} holds no density: fit one with zoo fit --model maf")
    path = Path(folder) / FIT
    if not seal_of(path).exists():
        raise unfinished(path)
    check_config(Path(folder), config, read_seal(path))
    return FittedDensity.load(path), config


def _scores(of_draws: Tensor) -> pd.DataFrame:
    """A line a row, of ``[B, N]``."""
    mixture = of_draws.logsumexp(0) - math.log(len(of_draws))
    quantiles = np.quantile(of_draws.numpy(), list(QUANTILES.values()), axis=0)
    columns = {"log_density": mixture.numpy(), **dict(zip(QUANTILES, quantiles, strict=True))}
    return pd.DataFrame(columns)
