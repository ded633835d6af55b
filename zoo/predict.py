"""A fit on disk: made by ``zoo fit``, used by ``zoo predict`` in another process with identical numbers."""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyro
import torch
from rich.progress import Progress

from data_loaders import Standardizer, load_csv
from guides.autoguide import FlatGuide
from guides.posterior import Posterior
from guides.storage import write_atomically, write_json
from zoo.compare import batch_size
from zoo.errors import UserError
from zoo.evaluation.mixtures import mixture_quantiles
from zoo.report import plot_loss
from zoo.fitting import Fit, FitSettings, read_checkpoint
from zoo.output import CONFIG, output_folder, read_config, versions
from zoo.problem import Problem
from zoo.registry import ModelOptions, applicable, check_task, find_guide, find_model

FIT = "fit.safetensors"
QUANTILES = {"q5": 0.05, "q50": 0.5, "q95": 0.95}


def fit(
    data: str,
    problem: Problem,
    *,
    model: str,
    guide: str,
    options: ModelOptions,
    settings: FitSettings,
    out: str | Path,
    progress: Progress | None = None,
) -> Fit:
    """Fits one guide and saves it; the same call after an interruption goes on from the last checkpoint.

    Writes ``fit.safetensors`` (guide, optimiser, random state, loss trace), ``losses.csv``, ``loss.png`` and
    ``config.json`` with all that a prediction needs.
    """
    entry, note = applicable(find_guide(guide), find_model(model))
    check_task(entry, problem.task, data)
    dataset = problem.dataset
    if settings.batch_size is None:
        settings = FitSettings(**{**asdict(settings), "batch_size": batch_size(problem)})
    config = {
        "command": "fit",
        "data": data,
        "split": dataset.split,
        "fingerprint": problem.fingerprint(),
        "task": dataset.task,
        "features": list(dataset.feature_names),
        "target": dataset.target_name,
        "num_classes": dataset.num_classes,
        "standardisation": problem.scale.to_dict(),
        "model": entry.name,
        "guide": guide,
        "options": {**asdict(options), "widths": list(options.widths)},
        "settings": asdict(settings),
    }
    network = entry.build(dataset.task, dataset.num_features, dataset.num_classes, options)
    pyro.set_rng_seed(settings.seed)
    result = Fit(find_guide(guide).build(network), network, problem.x, problem.y, settings)
    with output_folder(out, config) as folder:
        result.run(checkpoint=folder / FIT, progress=progress, label=guide)
        lines = "step,loss\n" + "".join(f"{i},{loss!r}\n" for i, loss in enumerate(result.losses))
        write_atomically(folder / "losses.csv", lambda path: Path(path).write_text(lines))
        plot_loss(np.array(result.losses), folder / "loss.png", title=f"{guide} on {dataset.name}")
        digest = hashlib.sha256((folder / FIT).read_bytes()).hexdigest()
        write_json(folder / CONFIG, {**config, "versions": versions(), "note": note, "sha256": digest})
    return result


def load_fit(folder: str | Path) -> tuple[FlatGuide, dict]:
    """The fitted guide of a folder and its configuration.

    :raises UserError: when the folder holds no finished fit, or a damaged one
    """
    folder = Path(folder)
    config = read_config(folder)
    if config.get("command") != "fit":
        raise UserError(f"{folder} holds no fit but the output of zoo {config.get('command')}: give the --out of zoo fit")
    path = folder / FIT
    if not path.exists() or "sha256" not in config:
        raise UserError(f"the fit in {folder} is not finished: call zoo fit again with the same arguments")
    header, tensors = read_checkpoint(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != config["sha256"]:
        raise UserError(f"{path} was altered (its checksum differs from {CONFIG}): delete {folder} and fit again")
    options = ModelOptions(**{**config["options"], "widths": tuple(config["options"]["widths"])})
    entry = find_model(config["model"])
    model = entry.build(config["task"], len(config["features"]), config["num_classes"], options)
    guide = find_guide(config["guide"]).build(model)
    parameters = {name.removeprefix("guide."): value for name, value in tensors.items() if name.startswith("guide.")}
    guide.load_state_dict({**parameters, "_extra_state": header["layout"]})
    return guide, config


def predict(folder: str | Path, table: str | Path, out: str | Path, *, draws: int = 1000, seed: int = 0) -> int:
    """Predicts the rows of a CSV file; writes one line a row and returns their number.

    Regression: ``mean,sd,q5,q50,q95`` of the predictive distribution in original units.  Classes:
    ``label,prob_0,prob_1,...`` with probabilities averaged over networks drawn from the guide.
    """
    guide, config = load_fit(folder)
    scale = Standardizer.from_dict(config["standardisation"])
    rows = load_csv(
        table, target=config["target"], require_target=False, columns=config["features"], task=config["task"]
    )
    x = torch.as_tensor(scale.transform_x(rows.x_test), dtype=torch.float32)
    predictive = Posterior.from_draws(guide.model, guide.draws(draws, seed=seed)).predictive(x)
    if config["task"] == "regression":
        columns = {
            "mean": scale.inverse_mean(predictive.mean.numpy()),
            "sd": scale.inverse_sd(predictive.stddev.numpy()),
        }
        quantiles = mixture_quantiles(predictive, list(QUANTILES.values())).numpy()
        columns |= dict(zip(QUANTILES, scale.inverse_mean(quantiles), strict=True))
    else:
        probs = predictive.probs
        if config["task"] == "binary":
            probs = torch.stack([1 - probs, probs], -1)
        columns = {"label": probs.argmax(-1).numpy()}
        columns |= {f"prob_{k}": probs[:, k].numpy() for k in range(probs.shape[1])}
    _write_csv(columns, Path(out))
    return len(x)


def _write_csv(columns: dict[str, np.ndarray], path: Path) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    try:
        write_atomically(path, lambda target: Path(target).write_text(stream.getvalue()))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
