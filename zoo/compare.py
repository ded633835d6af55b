"""The main job: fit guides, compute the ground truth, grade one against the other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from rich.progress import Progress

from guides.posterior import Posterior
from zoo.comparison import Comparison
from zoo.errors import DivergenceError
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.pareto import pareto_k
from zoo.evaluation.scoreboard import Row, write_scoreboard
from zoo.fitting import Fit, FitSettings, default_batch_size, log_joint
from zoo.grading import Graded, grade, write_inclusion
from zoo.output import output_folder, versions
from zoo.reference import reference_posterior
from zoo.registry import ModelEntry, applicable, find_guide
from zoo.report import write_plots


def run(comparison: Comparison, out: str | Path, progress: Progress | None = None) -> list[Row]:
    """Does the work and writes the folder; what an earlier call with the same request left is used.

    Writes ``scoreboard.csv``, ``scoreboard.md``, ``standard_errors.csv``, ``reference.nc``, one ``.nc`` a
    guide, ``config.json``, for variable selection ``inclusion.csv``, and the plots.

    :raises UserError: when the folder cannot be written or belongs to another request
    """
    problem = comparison.problem
    with output_folder(out, comparison.config()) as folder:
        truth = reference_posterior(comparison, folder, progress)
        results = [truth] if truth else []
        for name in comparison.guides:
            results.append(fit_guide(comparison, name, folder, progress))
        trusted = truth if truth and truth.status == "ok" else None
        rows = [grade(problem, result, trusted) for result in results]
        sound = [result for result, row in zip(results, rows, strict=True) if row.status == "ok"]
        if comparison.entry.name == "spike-slab-linear":
            write_inclusion(sound, problem.dataset.feature_names, folder)
        write_plots(comparison, sound, rows, folder)
        write_scoreboard(rows, folder)  # last: where it stands, so does everything else
    return rows


def fit_guide(comparison: Comparison, name: str, folder: Path, progress: Progress | None = None) -> Graded:
    """Fits one guide, or reads what an earlier call has fitted; a fit that diverges is a failed result."""
    guide_entry = find_guide(name)
    entry, note = applicable(guide_entry, comparison.entry)
    model = comparison.build(entry)
    path = folder / f"{name}.nc"
    known = _load(path, name, model, entry, note)
    if known is not None:
        return known
    problem = comparison.problem
    settings = FitSettings(
        steps=comparison.budget.steps, batch_size=default_batch_size(len(problem.x)), seed=comparison.seed
    )
    fit = Fit(guide_entry.build(model), model, problem.x, problem.y, settings)
    try:
        fit.run(progress=progress, label=name)
    except DivergenceError as error:
        return Graded(name, entry.name, Posterior(model, {}), {}, note, f"failed: {error}")
    posterior = _posterior(fit, name, comparison.budget.draws)
    comparison.save(posterior, path)
    return _graded(name, entry, posterior, note)


def _posterior(fit: Fit, name: str, num_draws: int) -> Posterior:
    """Draws from a fitted guide; its ``info`` holds every figure that they cannot give."""
    guide, settings = fit.guide, fit.settings
    draws = guide.draws(num_draws, seed=settings.seed)
    with torch.no_grad():
        log_weights = log_joint(fit.model, draws, fit.x, fit.y) - guide.log_prob(draws)
    figures = {
        "elbo": fit.elbo(),
        "pareto_k": pareto_k(log_weights),
        "num_parameters": sum(p.numel() for p in guide.parameters()),
        "fit_seconds": fit.seconds,
    }
    inclusion = guide.inclusion_probabilities() if hasattr(guide, "inclusion_probabilities") else {}
    if inclusion:
        figures["density_mean"], figures["density_half"] = guide.density()
    info: dict = {
        "method": name,
        "figures": figures,
        "inclusion": {site: probs.tolist() for site, probs in inclusion.items()},
        "settings": asdict(settings),
        "versions": versions(),
    }
    posterior = Posterior.from_draws(fit.model, draws, info)
    info["sha256"] = _checksum(posterior)
    return posterior


def _graded(name: str, entry: ModelEntry, posterior: Posterior, note: str) -> Graded:
    """A guide's result from its posterior's ``info`` alone, so that a saved one reads as a fresh one."""
    figures = {
        k: Estimate(*v) if isinstance(v, list | tuple) else v for k, v in posterior.info["figures"].items()
    }
    inclusion = {site: torch.tensor(p) for site, p in posterior.info["inclusion"].items()}
    mcse = {site: torch.zeros_like(p) for site, p in inclusion.items()}
    return Graded(name, entry.name, posterior, figures, note, "ok", inclusion or None, mcse or None)


def _load(path: Path, name: str, model: Callable, entry: ModelEntry, note: str) -> Graded | None:
    """What an earlier call has fitted; None when it is not there, damaged, or of other versions.

    Such a file is of no use: the guide is fitted again, and the file replaced whole.
    """
    if not path.exists():
        return None
    try:
        posterior = Posterior.load(path, model)
        whole = posterior.info["sha256"] == _checksum(posterior) and posterior.info["versions"] == versions()
        return _graded(name, entry, posterior, note) if whole else None
    except (ValueError, KeyError, TypeError):
        return None


def _checksum(posterior: Posterior) -> str:
    """Of the draws and the figures: netCDF has none of its own for the latter."""
    info = {key: posterior.info[key] for key in ("method", "figures", "inclusion", "settings", "versions")}
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name, value in sorted(posterior.sites.items()):
        digest.update(f"{name} {list(value.shape)}".encode() + value.numpy().tobytes())
    return digest.hexdigest()
