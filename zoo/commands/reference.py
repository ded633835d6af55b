"""The ground truth of a comparison: NUTS behind its gates; for variable selection see
:mod:`zoo.commands.selection_reference`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from guides.posterior.draws import Posterior
from guides.posterior.evaluate import function_values, observed_laws
from guides.truth.gates import MCMCResult
from guides.truth.mcmc import nuts
from zoo.commands.comparison import Comparison
from zoo.commands.grading import Graded
from zoo.commands.selection_reference import exact_reference, gibbs_reference

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
    try:
        with _paused(progress):
            result = _run_nuts(comparison, model, folder / FILE)
    except ValueError as error:  # no starting point, values that are not finite
        return Graded("nuts", comparison.entry.name, Posterior(model, {}), {}, "", f"failed: {error}")
    found = result.diagnostics
    note = (
        f"R-hat {found['max_rhat']:.3f}, bulk ESS {found['min_ess_bulk']:.0f}, "
        f"{found['divergences']} divergences, {found['attempts']} attempt{'s' * (found['attempts'] > 1)}"
    )
    status = "ok" if result.passed else f"failed: {result.reason}"
    figures = {"fit_seconds": result.seconds}
    posterior = result.posterior(model)
    comparison.complete(folder / FILE, posterior)
    return Graded("nuts", comparison.entry.name, posterior, figures, note, status)


def _run_nuts(comparison: Comparison, model, cache: Path) -> MCMCResult:
    problem, budget = comparison.problem, comparison.budget
    points = _evenly(problem.evaluation_points, GATE_POINTS)

    def function(draws: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.as_tensor(np.array(value)) for name, value in draws.items()}
        values = function_values(observed_laws(model, tensors, points)).flatten(1)
        # Precisions are gated too: they have no symmetric modes, and the predictive depends on the noise.
        scalars = [value[:, None] for value in tensors.values() if value.dim() == 1]
        return torch.cat([values, *scalars], 1).numpy()

    twin = getattr(model, "twin", None)
    return nuts(
        model if twin is None else twin,
        problem.train if twin is None else tuple(value.numpy() for value in problem.train),
        backend="pyro" if twin is None else "numpyro",
        function=function,
        warmup=budget.warmup,
        draws=budget.mcmc_draws,
        chains=budget.chains,
        seed=comparison.seed,
        cache=cache,
    )


def _evenly(x: Tensor, most: int) -> Tensor:
    """At most ``most`` rows of ``x``, evenly spaced."""
    if len(x) <= most:
        return x
    return x[torch.linspace(0, len(x) - 1, most).round().long()]


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
