"""The ground truth of a comparison: NUTS behind its gates, or its draws that the package has
(:mod:`zoo.commands.stored_reference`); for variable selection see :mod:`zoo.commands.selection_reference`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.progress import Progress
from torch import Tensor

from guides.posterior.draws import Posterior
from guides.truth.gates import MCMCResult
from guides.truth.mcmc import nuts
from zoo.commands.comparison import Comparison
from zoo.commands.grading import Graded
from zoo.commands.selection_reference import exact_reference, gibbs_reference
from zoo.commands.stored_reference import is_stored, store, stored_reference
from zoo.errors import FailedError, UserError
from zoo.fitting.gated_function import gated_function
from zoo.fitting.threads import one_torch_thread

FILE = "reference.nc"
#: The gates look at the function at this many points at most.
GATE_POINTS = 200


def reference_posterior(
    comparison: Comparison, folder: Path, progress: Progress | None = None
) -> Graded | None:
    """The posterior to grade against, or None if none was asked for.

    Its ``status`` says whether it may be trusted; its draws are left in ``reference.nc``.
    """
    if comparison.reference == "nuts":
        return _nuts_reference(comparison, folder, progress)
    if comparison.reference == "exact":
        return exact_reference(comparison, folder / FILE, progress)
    if comparison.reference == "gibbs":
        return gibbs_reference(comparison, folder / FILE)
    return None


def _nuts_reference(comparison: Comparison, folder: Path, progress: Progress | None) -> Graded:
    model = comparison.build(comparison.entry)
    result, remark = _without_sampling(comparison, model, folder / FILE)
    try:
        if result is None:
            with _paused(progress):
                result = run_nuts(comparison, model, folder / FILE)
    except ValueError as error:  # no starting point, values that are not finite
        return Graded("nuts", comparison.entry.name, Posterior(model, {}), {}, "", f"failed: {error}")
    found = result.diagnostics
    note = (
        f"R-hat {found['max_rhat']:.3f}, bulk ESS {found['min_ess_bulk']:.0f}, "
        f"{found['divergences']} divergences, {found['attempts']} attempt{'s' * (found['attempts'] > 1)}"
    )
    if is_stored(result):
        settings = result.settings
        note = f"stored reference, {settings['chains']} x {found['draws']} draws, {note}"
    note = "; ".join(filter(None, (note, remark)))
    status = "ok" if result.passed else f"failed: {result.reason}"
    figures = {"fit_seconds": result.seconds}
    posterior = result.posterior(model)
    comparison.complete(folder / FILE, posterior)
    return Graded("nuts", comparison.entry.name, posterior, figures, note, status)


def _without_sampling(comparison: Comparison, model: Callable, path: Path) -> tuple[MCMCResult | None, str]:
    """Draws that the package has, put into the folder; or none, and a remark.  What the sampler has left in
    the folder comes first.
    """
    if comparison.fresh_reference:
        return None, ""
    stored, remark = stored_reference(comparison, model)
    if stored is None:
        return None, remark
    kept = _kept(path)
    if kept is not None and not is_stored(kept):
        return None, ""
    if kept is None or kept.settings != stored.settings:
        stored.save(path)
    return stored, ""


def _kept(path: Path) -> MCMCResult | None:
    """The draws in a folder; None where there are none that can be read."""
    try:
        return MCMCResult.load(path)
    except (FileNotFoundError, ValueError):
        return None


def run_nuts(comparison: Comparison, model: Callable, cache: Path | None) -> MCMCResult:
    """The sampler, or what it has left in the file ``cache`` for the same question.

    :param model: the Pyro model of the comparison
    :raises ValueError: where the density is nowhere finite
    """
    problem, budget = comparison.problem, comparison.budget
    points = _gate_points(problem.evaluation_points)
    twin = getattr(model, "twin", None)
    return nuts(
        model if twin is None else twin,
        problem.train if twin is None else tuple(value.numpy() for value in problem.train),
        backend="pyro" if twin is None else "numpyro",
        function=gated_function(model, points),
        warmup=budget.warmup,
        draws=budget.mcmc_draws,
        chains=budget.chains,
        seed=comparison.seed,
        cache=cache,
    )


def _gate_points(x: Tensor) -> Tensor:
    """All rows of ``x``, or evenly spaced ones."""
    if len(x) <= GATE_POINTS:
        return x
    return x[torch.linspace(0, len(x) - 1, GATE_POINTS).round().long()]


@contextlib.contextmanager
def _paused(progress: Progress | None) -> Iterator[None]:
    """Two progress bars would overwrite each other: the sampler has one of its own."""
    if progress:
        progress.stop()
    try:
        yield
    finally:
        if progress:
            progress.start()


def keep_reference(comparison: Comparison, folder: Path) -> tuple[Path, dict]:
    """Runs NUTS and keeps its draws for other comparisons (:mod:`zoo.commands.stored_reference`); the file,
    and its diagnostics.

    :raises FailedError: when the gates fail
    :raises UserError: when the file cannot be written
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with one_torch_thread():
            result = run_nuts(comparison, comparison.build(comparison.entry), None)
        return store(result, comparison, folder), result.diagnostics
    except ValueError as error:
        raise FailedError(f"{comparison.data}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error
