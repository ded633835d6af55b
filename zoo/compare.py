"""The main job: fit guides, compute the ground truth, grade one against the other."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyro
import torch
from rich.progress import Progress
from torch import Tensor

from guides.exact import enumerate_spike_slab
from guides.mcmc import nuts
from guides.posterior import Posterior, function_values, observed_laws
from guides.storage import write_atomically
from zoo.errors import DivergenceError, UserError
from zoo.evaluation.distances import compare_functions, inclusion_error
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.metrics import predictive_figures
from zoo.evaluation.pareto import pareto_k
from zoo.evaluation.scoreboard import Row, write_scoreboard
from zoo.fitting import Fit, FitSettings, log_joint
from zoo.output import output_folder
from zoo.problem import Problem
from zoo.registry import ModelEntry, ModelOptions, applicable, check_task, find_guide, find_model, reference_of

GATE_POINTS = 200
#: log_likelihood groups above this many numbers stay out of the .nc files (they can be computed again)
LARGEST_GROUP = 5_000_000


@dataclass(frozen=True)
class Budget:
    """How much work a comparison does.

    :ivar steps: of the optimiser, each guide
    :ivar draws: from each fitted guide
    :ivar warmup: NUTS iterations a chain before the draws
    :ivar mcmc_draws: NUTS draws a chain
    :ivar chains: of NUTS
    """

    steps: int
    draws: int
    warmup: int
    mcmc_draws: int
    chains: int = 2


BUDGETS = {
    "quick": Budget(steps=2000, draws=500, warmup=300, mcmc_draws=400),
    "full": Budget(steps=10_000, draws=1000, warmup=600, mcmc_draws=600),
}


@dataclass(frozen=True)
class Comparison:
    """A checked request: everything that can be refused has been."""

    data: str
    problem: Problem
    entry: ModelEntry
    options: ModelOptions
    guides: tuple[str, ...]
    reference: str
    budget: Budget
    seed: int

    def config(self) -> dict:
        """What the output folder belongs to, JSON-safe."""
        return {
            "command": "compare",
            "data": self.data,
            "split": self.problem.dataset.split,
            "fingerprint": self.problem.fingerprint(),
            "model": self.entry.name,
            "options": {**asdict(self.options), "widths": list(self.options.widths)},
            "guides": list(self.guides),
            "reference": self.reference,
            "budget": asdict(self.budget),
            "seed": self.seed,
        }

    def build(self, entry: ModelEntry) -> Callable:
        dataset = self.problem.dataset
        return entry.build(dataset.task, dataset.num_features, dataset.num_classes, self.options)


@dataclass(frozen=True)
class Graded:
    """One method after its fit: draws, and figures that no draws can give.

    :ivar inclusion: inclusion probabilities by site, ``{name: [*site]}``
    :ivar inclusion_mcse: their Monte Carlo standard errors
    """

    method: str
    model_name: str
    posterior: Posterior
    figures: dict[str, Estimate | float]
    note: str = ""
    status: str = "ok"
    inclusion: dict[str, Tensor] | None = None
    inclusion_mcse: dict[str, Tensor] | None = None


def plan(
    data: str,
    problem: Problem,
    *,
    model: str,
    guides: list[str],
    reference: str | None,
    budget: str,
    seed: int,
    options: ModelOptions,
) -> Comparison:
    """Checks a request before anything is written.

    :raises UserError: for an unknown name, or a guide, model, reference and data that do not go together
    """
    entry = find_model(model)
    check_task(entry, problem.task, data)
    for name in guides:
        applicable(find_guide(name), entry)
    if len(set(guides)) != len(guides):
        raise UserError(f"a guide is named twice: {', '.join(guides)}")
    if budget not in BUDGETS:
        raise UserError(f"unknown budget {budget!r}; known: {', '.join(BUDGETS)}")
    kind = reference_of(entry, reference)
    if not guides and kind == "none":
        raise UserError("nothing to do: name a guide or a reference")
    comparison = Comparison(data, problem, entry, options, tuple(guides), kind, BUDGETS[budget], seed)
    comparison.build(entry)
    if kind == "exact" and problem.dataset.num_features > 20:
        raise UserError(
            f"{data} has {problem.dataset.num_features} columns: 2^p models are enumerated for p <= 20 only; "
            "use --reference none"
        )
    return comparison


def run(comparison: Comparison, out: str | Path, progress: Progress | None = None) -> list[Row]:
    """Does the work and writes the folder; what an earlier call with the same request left is used.

    Writes ``scoreboard.csv``, ``scoreboard.md``, ``standard_errors.csv``, ``reference.nc``, one ``.nc`` a guide,
    ``config.json``, for variable selection ``inclusion.csv``, and the plots.
    """
    from zoo.report import write_plots

    with output_folder(out, comparison.config()) as folder:
        truth = reference(comparison, folder, progress)
        results = [truth] if truth else []
        for name in comparison.guides:
            results.append(fit_guide(comparison, name, folder, progress))
        trusted = truth if truth and truth.status == "ok" else None
        rows = [grade(comparison, result, trusted) for result in results]
        if comparison.entry.name == "spike-slab-linear":
            write_inclusion(results, comparison.problem.dataset.feature_names, folder)
        write_plots(comparison, results, rows, folder)
        write_scoreboard(rows, folder)  # last: where it stands, so does everything else
    return rows


# ----------------------------------------------------------------------------------------------------------
# Ground truth


def reference(comparison: Comparison, folder: Path, progress: Progress | None) -> Graded | None:
    """The posterior to grade against, or None if none was asked for."""
    if comparison.reference == "nuts":
        return _nuts_reference(comparison, folder, progress)
    if comparison.reference == "exact":
        return _exact_reference(comparison, folder)
    return None


def _nuts_reference(comparison: Comparison, folder: Path, progress: Progress | None) -> Graded:
    problem, budget = comparison.problem, comparison.budget
    model = comparison.build(comparison.entry)
    points = _evenly(evaluation_points(problem), GATE_POINTS)

    def function(draws: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.as_tensor(np.array(value)) for name, value in draws.items()}
        return function_values(observed_laws(model, tensors, points)).flatten(1).numpy()

    with _paused(progress):
        result = nuts(
            model.twin,
            (problem.x.numpy(), problem.y.numpy()),
            function=function,
            warmup=budget.warmup,
            draws=budget.mcmc_draws,
            chains=budget.chains,
            seed=comparison.seed,
            cache=folder / "reference.nc",
        )
    sites = {name: torch.as_tensor(np.array(value)) for name, value in result.draws.items()}
    info = {"method": "nuts", "settings": result.settings, "diagnostics": result.diagnostics}
    posterior = Posterior(model, sites, info, result.sample_stats)
    found = result.diagnostics
    note = (
        f"R-hat {found['max_rhat']:.3f}, bulk ESS {found['min_ess_bulk']:.0f}, "
        f"{found['divergences']} divergences, {found['attempts']} attempt(s)"
    )
    status = "ok" if result.passed else f"failed: {result.reason}"
    return Graded("nuts", comparison.entry.name, posterior, {"fit_seconds": result.seconds}, note, status)


def _exact_reference(comparison: Comparison, folder: Path) -> Graded:
    problem = comparison.problem
    start = time.perf_counter()
    exact = enumerate_spike_slab(
        problem.x.double().numpy(), problem.y.double().numpy(), inclusion_prob=comparison.options.inclusion
    )
    draws = exact.sample(4 * comparison.budget.draws, seed=comparison.seed)
    seconds = time.perf_counter() - start
    sites = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in draws.items()}
    model = comparison.build(comparison.entry)
    info = {"method": "exact", "log_evidence": exact.log_evidence, "seed": comparison.seed}
    posterior = Posterior.from_draws(model, sites, info)
    _save(posterior, problem, folder / "reference.nc")
    figures = {"elbo": Estimate(exact.log_evidence, 0.0), "fit_seconds": seconds}
    inclusion = {"w": torch.as_tensor(exact.inclusion)}
    note = f"all 2^{problem.dataset.num_features} models; its ELBO is the log evidence"
    zero = {"w": torch.zeros_like(inclusion["w"])}
    return Graded("exact", comparison.entry.name, posterior, figures, note, "ok", inclusion, zero)


# ----------------------------------------------------------------------------------------------------------
# Guides


def fit_guide(comparison: Comparison, name: str, folder: Path, progress: Progress | None) -> Graded:
    """Fits one guide, or reads what an earlier call has fitted."""
    problem, budget = comparison.problem, comparison.budget
    guide_entry = find_guide(name)
    entry, note = applicable(guide_entry, comparison.entry)
    model = comparison.build(entry)
    path = folder / f"{name}.nc"
    known = _load_graded(path, name, model, entry.name, note)
    if known is not None:
        return known
    pyro.set_rng_seed(comparison.seed)
    guide = guide_entry.build(model)
    settings = FitSettings(steps=budget.steps, batch_size=batch_size(problem), seed=comparison.seed)
    try:
        fit = Fit(guide, model, problem.x, problem.y, settings).run(progress=progress, label=name)
    except DivergenceError as error:
        return Graded(name, entry.name, Posterior(model, {}), {}, note, f"failed: {error}")
    draws = guide.draws(budget.draws, seed=comparison.seed)
    elbo, elbo_se = fit.elbo()
    with torch.no_grad():
        log_weights = log_joint(model, draws, problem.x, problem.y) - guide.log_prob(draws)
    figures: dict[str, Estimate | float] = {
        "elbo": Estimate(elbo, elbo_se),
        "pareto_k": pareto_k(log_weights),
        "num_parameters": sum(p.numel() for p in guide.parameters()),
        "fit_seconds": fit.seconds,
    }
    inclusion = guide.inclusion_probabilities() if hasattr(guide, "inclusion_probabilities") else None
    if inclusion:
        figures["density_mean"], figures["density_half"] = guide.density()
    info = {
        "method": name,
        "figures": {k: [v.value, v.se] if isinstance(v, Estimate) else v for k, v in figures.items()},
        "inclusion": {site: probs.tolist() for site, probs in (inclusion or {}).items()},
        "settings": asdict(settings),
    }
    posterior = Posterior.from_draws(model, draws, info)
    _save(posterior, problem, path)
    return _graded(name, entry.name, posterior, note)


def batch_size(problem: Problem) -> int | None:
    """All rows where they are few; else minibatches, whose cost no longer grows with the data."""
    return None if len(problem.x) <= 2000 else 500


def _graded(name: str, model_name: str, posterior: Posterior, note: str) -> Graded:
    """A guide's result from its posterior's ``info`` alone, so that a saved one reads as a fresh one."""
    figures = {
        k: Estimate(*v) if isinstance(v, list) else v for k, v in posterior.info["figures"].items()
    }
    inclusion = {site: torch.tensor(p) for site, p in posterior.info["inclusion"].items()}
    mcse = {site: torch.zeros_like(p) for site, p in inclusion.items()}
    return Graded(name, model_name, posterior, figures, note, "ok", inclusion or None, mcse or None)


def _load_graded(path: Path, name: str, model: Callable, model_name: str, note: str) -> Graded | None:
    if not path.exists():
        return None
    try:
        return _graded(name, model_name, Posterior.load(path, model), note)
    except (ValueError, KeyError):
        return None  # half written or foreign: fitted again, and replaced whole


def _save(posterior: Posterior, problem: Problem, path: Path) -> None:
    if len(problem.x) * len(posterior) <= LARGEST_GROUP:
        posterior.save(path, problem.x, observed_data={"y": problem.y})
    else:
        posterior.save(path)


# ----------------------------------------------------------------------------------------------------------
# Grading


def evaluation_points(problem: Problem) -> Tensor:
    """Where functions are compared: the test inputs, or the training inputs of a set that is used whole."""
    return problem.x_test if len(problem.x_test) else problem.x


def grade(comparison: Comparison, result: Graded, truth: Graded | None) -> Row:
    """One row of the scoreboard."""
    if not result.posterior.sites:
        return Row(result.method, result.model_name, status=result.status, note=result.note)
    problem = comparison.problem
    figures: dict[str, Estimate | float] = dict(result.figures)
    if len(problem.x_test):
        predictive = result.posterior.predictive(problem.x_test)
        figures |= predictive_figures(
            predictive, problem.y_test, problem.task, target_scale=problem.scale.y_sd, method=result.method
        )
    if truth is not None and result is not truth:
        figures |= _distances(comparison, result, truth)
    return Row.from_figures(result.method, result.model_name, figures, result.status, result.note)


def _distances(comparison: Comparison, result: Graded, truth: Graded) -> dict[str, Estimate]:
    points = evaluation_points(comparison.problem)
    chains = next(iter(truth.posterior.sites.values())).shape[0]
    reference_values = truth.posterior.function(points)
    by_chain = reference_values.reshape(chains, -1, *reference_values.shape[1:])
    figures = compare_functions(by_chain, result.posterior.function(points), result.method).figures()
    if truth.inclusion:
        ours, mcse = inclusion_of(result)
        site = next(iter(truth.inclusion))
        figures["ref_pip_rmse"] = inclusion_error(ours[site], truth.inclusion[site], mcse[site])
    return figures


def inclusion_of(result: Graded) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inclusion probabilities and their Monte Carlo errors: the method's own, or shares of non-zero draws."""
    if result.inclusion:
        return result.inclusion, result.inclusion_mcse
    draws = result.posterior.draws()
    shares = {name: (value != 0).double().mean(0) for name, value in draws.items()}
    errors = {name: (p * (1 - p) / len(result.posterior)).sqrt() for name, p in shares.items()}
    return shares, errors


def write_inclusion(results: list[Graded], names: tuple[str, ...], folder: Path) -> None:
    """``inclusion.csv``: method, site, index, name, probability, mcse."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["method", "site", "index", "name", "probability", "mcse"])
    for result in results:
        if result.posterior.sites:
            probabilities, errors = inclusion_of(result)
            for i, name in enumerate(names):
                writer.writerow([result.method, "w", i, name, probabilities["w"][i].item(), errors["w"][i].item()])
    write_atomically(folder / "inclusion.csv", lambda path: Path(path).write_text(stream.getvalue()))


def _evenly(x: Tensor, most: int) -> Tensor:
    if len(x) <= most:
        return x
    return x[torch.linspace(0, len(x) - 1, most).round().long()]


class _paused:
    """Two progress bars would overwrite each other: the sampler has one of its own."""

    def __init__(self, progress: Progress | None):
        self.progress = progress

    def __enter__(self) -> None:
        if self.progress:
            self.progress.stop()

    def __exit__(self, *_) -> None:
        if self.progress:
            self.progress.start()


