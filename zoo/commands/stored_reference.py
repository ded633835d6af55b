"""Reference posteriors that the package brings with it: NUTS draws that have passed their gates, a file each.

A file is used only for what it is of.  It says its data set, split, model, options and sampler settings, the
checksum of its training rows, and the log joint density of some of its draws.  The last is computed again
with the model of the day on the rows of the day: if it is the same, the draws are of this posterior, whatever
has been rewritten since.  :func:`store` makes a file, ``zoo reference`` from the command line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from guides.posterior.evaluate import log_joint
from guides.posterior.files import json_safe
from guides.truth.gates import Gates, MCMCResult
from zoo.commands.comparison import Comparison

#: Where they are, in the package.
STORED = files("zoo.commands") / "references"
#: Draws whose log joint density is kept, evenly spaced, and by how much of itself it may be off: some hundred
#: times what float32 rounds off, and less than a nat.
CHECKED, TOLERANCE = 20, 1e-4
#: Where the settings of a result hold what :func:`store` adds to them.
RECORD = "stored"


def stored_reference(comparison: Comparison, model: Callable) -> tuple[MCMCResult | None, str]:
    """The draws for a comparison that the package has, if any; else why what it has is of no use, or nothing
    where it has none of this data set and model.

    :param model: the Pyro model of the comparison
    """
    name = file_name(comparison)
    if not STORED.is_dir() or name not in (entry.name for entry in STORED.iterdir()):
        return None, ""
    try:
        with as_file(STORED / name) as path:
            result = MCMCResult.load(path)
            if not is_stored(result):
                raise ValueError(f"{path} does not say what its draws are of")
        why = _mismatch(result, comparison, model)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
    return (None, f"stored reference not used: {why}") if why else (result, "")


def store(result: MCMCResult, comparison: Comparison, folder: Path) -> Path:
    """Keeps a reference that has passed its gates, for :func:`stored_reference`; the file's path.

    :raises ValueError: for one that has not passed
    :raises OSError: when it cannot be written
    """
    if not result.passed:
        raise ValueError(f"a reference that has failed its gates is not kept: {result.reason}")
    model = comparison.build(comparison.entry)
    record = {**_record(comparison), "log_joint": _log_joint(result, comparison, model).tolist()}
    path = folder / file_name(comparison)
    replace(result, settings=result.settings | {RECORD: record}).save(path)
    return path


def file_name(comparison: Comparison) -> str:
    return f"{comparison.problem.dataset.name}-{comparison.entry.name}.nc"


def is_stored(result: MCMCResult) -> bool:
    """Whether these draws come from :func:`store`, and not from a sampler that has just run."""
    return RECORD in result.settings


def _record(comparison: Comparison) -> dict[str, Any]:
    """What draws are of, as it reads when it comes back from a file."""
    dataset, budget = comparison.problem.dataset, comparison.budget
    return json.loads(
        json.dumps(
            {
                "data set": dataset.name,
                "split": dataset.split,
                "model": comparison.entry.name,
                "options": json_safe({**comparison.entry.options, **comparison.options}),
                "warm-up": budget.warmup,
                "draws": budget.mcmc_draws,
                "chains": budget.chains,
                "seed": comparison.seed,
                "gates": asdict(Gates()),
                "training rows": _checksum(dataset.x_train, dataset.y_train),
            }
        )
    )


def _checksum(*arrays: np.ndarray) -> str:
    """SHA-256 of numbers as they were read: standardised ones may differ by a rounding between machines."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()


def _log_joint(result: MCMCResult, comparison: Comparison, model: Callable) -> np.ndarray:
    """Of evenly spaced draws of all chains, [CHECKED], nats."""
    posterior = result.posterior(model)
    draws = posterior.draws(min(CHECKED, len(posterior)))
    return log_joint(model, draws, *comparison.problem.train).double().numpy()


def _mismatch(result: MCMCResult, comparison: Comparison, model: Callable) -> str:
    """Why draws are not those of a comparison; empty where they are."""
    if not result.passed:
        return f"it has failed its gates: {result.reason}"
    known = result.settings[RECORD]
    for name, asked in _record(comparison).items():
        if known[name] != asked:
            return f"{name} differ" if name == "training rows" else f"{name} {_short(known[name], asked)}"
    was, found = np.asarray(known["log_joint"]), _log_joint(result, comparison, model)
    off = np.abs(found - was).max() / np.abs(was).max() if found.shape == was.shape else np.inf
    if not off <= TOLERANCE:  # NaN fails
        return f"the model has changed, the log joint density of its draws is off by {off:.2g} of itself"
    return ""


def _short(known: Any, asked: Any) -> str:
    """``0 there, 1 here``; of several options those that differ."""
    if isinstance(known, dict) and isinstance(asked, dict):
        keys = [key for key in {**known, **asked} if known.get(key) != asked.get(key)]
        return "; ".join(f"{key} {known.get(key)} there, {asked.get(key)} here" for key in keys)
    return f"{known} there, {asked} here"
