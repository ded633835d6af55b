"""The main job: fit guides, compute the ground truth, grade one against the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch
from rich.progress import Progress

from guides.posterior.draws import Posterior
from guides.posterior.evaluate import log_joint
from zoo.commands.comparison import Comparison
from zoo.commands.comparison_plots import write_plots
from zoo.commands.grading import Graded, Scored, grade, write_inclusion
from zoo.commands.reference import FILE as REFERENCE
from zoo.commands.reference import reference_posterior
from zoo.errors import FailedError, Interrupted, UserError, enough_memory
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.known_laws import oracle_rows
from zoo.evaluation.pareto import pareto_k
from zoo.evaluation.scoreboard import Row, write_scoreboard
from zoo.evaluation.verdict import verdict
from zoo.files.kept import load_kept, seal_posterior
from zoo.files.output import kept_config, outgrow, output_folder, sole_folder
from zoo.files.sealed import file_checksum
from zoo.fitting.devices import CPU, moved
from zoo.fitting.methods import ClosedForm, Fitted, Variational, Watch
from zoo.fitting.problem import Problem
from zoo.fitting.threads import one_torch_thread
from zoo.registry.queries import GuideEntry, ModelEntry, find_guide
from zoo.seeds import stable_seed

#: Numbers in the draws of one guide (160 MB); a large network gets fewer of them.
MOST_NUMBERS, FEWEST_DRAWS = 40_000_000, 50
NONE_FAILED: Mapping[str, Graded] = MappingProxyType({})
#: What a comparison leaves beside its configuration, the draws of its reference and the files of its guides.
RESULTS = (
    *("scoreboard.csv", "scoreboard.md", "scoreboard.png", "standard_errors.csv"),
    *("bands.png", "scatter.png", "inclusion.csv", "inclusion.png"),
)


def run(
    comparison: Comparison,
    out: str | Path,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Does the work and writes the folder; what an earlier call with the same request left is used, and what
    one with a smaller budget left is replaced.

    Writes ``scoreboard.csv``, ``scoreboard.md``, ``standard_errors.csv``, ``reference.nc``, one ``.nc`` a
    guide (and a ``.safetensors`` when it predicts in closed form), ``config.json``, for variable selection
    ``inclusion.csv``, and the plots.

    :param tell: is told, in a line, what the user should know before the work starts
    :raises UserError: when the folder cannot be written or belongs to another request
    :raises Interrupted: at Ctrl-C, with what is kept
    """
    with one_torch_thread(), sole_folder(out), _telling_what_is_kept(out):
        _start_again(comparison, Path(out), tell)
        with output_folder(out, comparison.config()) as folder:
            return conclude(comparison, folder, progress).rows


@dataclass(frozen=True)
class Concluded:
    """What a comparison has come to.

    :ivar results: that have not failed, the reference among them
    :ivar truth: the reference if it may be trusted
    """

    rows: list[Row]
    results: list[Scored]
    truth: Scored | None


def conclude(
    comparison: Comparison,
    folder: Path,
    progress: Progress | None = None,
    failed: Mapping[str, Graded] = NONE_FAILED,
) -> Concluded:
    """Computes what is missing in a folder, grades it and writes the scoreboard.

    :param failed: results that are not to be computed, by the name of their guide
    """
    problem = comparison.problem
    truth = reference_posterior(comparison, folder, progress)
    results = [truth] if truth else []
    for name in comparison.guides:
        results.append(failed.get(name) or fit_guide(comparison, name, folder, progress))
    scores = [Scored(problem, result) for result in results]
    trusted = scores[0] if truth and truth.status == "ok" else None
    rows = [grade(scored, trusted) for scored in scores]
    sound = [scored for scored, row in zip(scores, rows, strict=True) if row.status == "ok"]
    shown = [scored.result for scored in sound]
    if comparison.entry.selects:
        write_inclusion(shown, problem.dataset.feature_names, folder)
    rows += oracle_rows(problem.dataset)
    write_plots(comparison, shown, rows, folder)
    facts = comparison.facts(folder)
    write_scoreboard(rows, folder, verdict(rows), head=facts)  # last: where it stands, so does all else
    return Concluded(rows, sound, trusted)


def _start_again(comparison: Comparison, out: Path, tell: Callable[[str], None]) -> None:
    """Clears away a comparison with a smaller budget: no fit and no chain of it can be continued, for the
    learning rate falls to zero over all steps, and warm-up comes before the draws.  Where the fits alone
    become longer, the reference stays.
    """
    config = comparison.config()
    there, asked = kept_config(out).get("budget"), config["budget"]
    if not isinstance(there, dict) or there.keys() != asked.keys() or there == asked:
        return
    if not all(isinstance(there[name], int) and there[name] <= asked[name] for name in asked):
        return
    left = [f"{name}{ending}" for name in comparison.guides for ending in (".nc", ".safetensors")]
    if there != {**asked, "steps": there["steps"]}:
        left.append(REFERENCE)
    if outgrow(out, {**config, "budget": there}, config, (*RESULTS, *left)):
        why = "its draws cannot be continued, so that this one"
        if there["steps"] < asked["steps"]:
            why = f"the learning rate falls to zero over all steps, so that one of {asked['steps']}"
        tell(f"{out} held a comparison of {there['steps']} steps; {why} starts again")


@contextlib.contextmanager
def _telling_what_is_kept(out: str | Path) -> Iterator[None]:
    """Ctrl-C in the block says which results the folder has, which the same call does not compute again."""
    try:
        yield
    except KeyboardInterrupt:
        kept = sorted(path.name for path in Path(out).glob("[!.]*.nc"))
        if kept:
            words = f"; {out} keeps {', '.join(kept)}, and the same command goes on from there"
        else:
            words = f" before a result was finished: {out} keeps config.json, the same command begins again"
        raise Interrupted(f"interrupted{words}") from None


def fit_guide(comparison: Comparison, name: str, folder: Path, progress: Progress | None = None) -> Graded:
    """Fits one guide, or reads what an earlier call has fitted; a fit that diverges is a failed result."""
    guide = find_guide(name)
    entry, note = comparison.fitted_model(name)
    model, path = comparison.build(entry), folder / f"{name}.nc"
    known = _load(path, guide, model)
    if known is not None:
        return _graded(*known, entry, note)
    problem, budget = comparison.problem, comparison.budget
    seed = stable_seed("fit", comparison.seed, name)
    settings = guide.method.settings(problem.size, seed, steps=budget.steps)
    started = time.process_time()
    try:
        device = comparison.device if isinstance(guide.method, Variational) else CPU
        train = moved(problem.train, device)
        with enough_memory():
            fitted = guide.method.fit(model, train, settings, watch=Watch(progress, name))
    except FailedError as error:
        return Graded(name, entry.name, Posterior(model, {}), {}, note, f"failed: {error}")
    cpu = time.process_time() - started
    posterior = _posterior(fitted, problem, budget.draws, stable_seed("draws", comparison.seed, name))
    posterior.info.update(method=name, settings=asdict(settings), cpu_seconds=cpu)
    if fitted.closed_form:
        fitted.closed_form.save(_state(path))
        posterior.info["state"] = file_checksum(_state(path))
    seal_posterior(posterior)
    comparison.save(posterior, path)
    return _graded(posterior, fitted.closed_form, entry, note)


def _posterior(fitted: Fitted, problem: Problem, num_draws: int, seed: int) -> Posterior:
    """Draws from a fitted guide; its ``info`` holds every figure that they cannot give."""
    size = sum(value.numel() for value in fitted.draws(1, seed).values())
    # the same draw again would count as another: standard errors and noise floors would be too small
    num_draws = min(num_draws, max(FEWEST_DRAWS, MOST_NUMBERS // size), fitted.most_draws or num_draws)
    figures: dict = {"num_parameters": fitted.num_parameters, "fit_seconds": fitted.seconds}
    if fitted.elbo:
        figures["elbo"] = fitted.elbo()
    if fitted.bound_change:
        figures["bound_change"] = (fitted.bound_change.value, fitted.bound_change.se)
    if fitted.draws_with_log_prob:
        with torch.no_grad():
            draws, log_q = fitted.draws_with_log_prob(num_draws, seed)
            figures["pareto_k"] = pareto_k(log_joint(fitted.model, draws, *problem.train) - log_q)
    else:
        draws = fitted.draws(num_draws, seed)
    if fitted.inclusion:
        probabilities = torch.cat([site.flatten() for site in fitted.inclusion.values()])
        figures["density_mean"] = probabilities.mean().item()
        figures["density_half"] = (probabilities > 0.5).double().mean().item()
    info = {
        "figures": figures,
        "inclusion": {site: probs.tolist() for site, probs in fitted.inclusion.items()},
        "mcse": {site: errors.tolist() for site, errors in fitted.inclusion_mcse.items()},
    }
    return Posterior.from_draws(fitted.model, draws, info)


def _graded(posterior: Posterior, closed_form: ClosedForm | None, entry: ModelEntry, note: str) -> Graded:
    """A guide's result from its posterior's ``info`` alone, so that a saved one reads as a fresh one."""
    info = posterior.info
    figures = {k: Estimate(*v) if isinstance(v, list | tuple) else v for k, v in info["figures"].items()}
    inclusion = {site: torch.tensor(p) for site, p in info["inclusion"].items()}
    errors = info.get("mcse", {})  # none where probabilities are no means over draws
    mcse = {site: torch.tensor(errors[site]) if site in errors else p * 0 for site, p in inclusion.items()}
    return Graded(
        info["method"],
        entry.name,
        posterior,
        figures,
        note,
        "ok",
        inclusion or None,
        mcse or None,
        closed_form,
    )


def _state(path: Path) -> Path:
    """Where a guide that predicts in closed form is kept, beside its draws."""
    return path.with_suffix(".safetensors")


def _load(path: Path, guide: GuideEntry, model: Callable) -> tuple[Posterior, ClosedForm | None] | None:
    """What an earlier call has fitted, if it can be used."""
    posterior = load_kept(path, model)
    if posterior is None:
        return None
    if "state" not in posterior.info:
        return posterior, None
    try:
        whole = posterior.info["state"] == file_checksum(_state(path))
    except OSError:
        whole = False
    if not whole:
        return None
    try:
        fitted = guide.method.load(_state(path), model)
    except ValueError as error:  # whole, but of other code
        raise UserError(f"{_state(path)} is of another version of the code: delete it ({error})") from error
    return replace(posterior, model=fitted.model), fitted.closed_form
