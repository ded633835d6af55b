"""One simulation of a calibration: a truth from the prior, its data, a posterior, ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from guides.core.rng import seeded_rng
from guides.posterior.draws import Posterior
from zoo.errors import FailedError
from zoo.evaluation.calibration import rank
from zoo.experiments.engine.declaration import Cell
from zoo.fitting.devices import CPU, moved
from zoo.fitting.methods import Variational
from zoo.fitting.samplers import samplers
from zoo.models.entries import DataShape
from zoo.registry.queries import find_guide, find_model
from zoo.seeds import stable_seed

#: What a simulation measures beside ranks: whether chains mixed (1 or 0), and how much a bound rose in the
#: last tenth of its fit (nats).
CONVERGED, BOUND_CHANGE = "converged", "bound_change"

Draws = dict[str, Tensor]


def build(model: str, options: Mapping) -> Callable:
    """The Pyro model; ``options`` are those of a cell."""
    shape = DataShape(options["task"], options["columns"])
    return find_model(model).build(shape, options["options"])


def inputs(options: Mapping, seed: int) -> tuple[Tensor, Tensor]:
    """Rows ``[N, in]`` and test points ``[K, in]``, the same in all simulations: standard normal columns, all
    pairs of them equally correlated.
    """
    rows, columns, rho = (options[name] for name in ("rows", "columns", "correlation"))
    rng = np.random.default_rng(stable_seed("inputs", seed))
    root = np.linalg.cholesky((1 - rho) * np.eye(columns) + rho)
    x = torch.as_tensor(rng.standard_normal((rows + options["points"], columns)) @ root.T)
    return x[:rows].float(), x[rows:].float()


@torch.no_grad()
def truth_and_target(model: Callable, x: Tensor, seed: int) -> tuple[Draws, Tensor]:
    """Values ``{site: [1, *site]}`` from the prior, and a target ``[N]`` drawn from them."""
    with seeded_rng(seed):
        nodes = poutine.trace(model).get_trace(x).nodes
    values = {
        name: node["value"]
        for name, node in nodes.items()
        if node["type"] == "sample" and not site_is_subsample(node)
    }
    y = values.pop("y")
    return {name: value[None] for name, value in values.items()}, y


def quantities(model: Callable, draws: Draws, x: Tensor, y: Tensor, points: Tensor) -> Draws:
    """What is ranked, ``{name: [S]}``, of draws ``{site: [S, *site]}``.

    The function at the test points, every site that is one number (a precision), and the log likelihood of
    the data, which sees a posterior that does not look at the data (Modrak et al. 2023, Bayesian Analysis
    20).  Weights themselves only where no hidden layer makes them exchangeable.
    """
    found = function_values(model, draws, points)
    for name, value in draws.items():
        if value.dim() == 1:
            found[name] = value
        elif not getattr(model, "widths", ()):
            places = np.ndindex(tuple(value.shape[1:]))
            found |= {
                f"{name}[{','.join(map(str, place))}]": value[(slice(None), *place)] for place in places
            }
    data = {"y": y}
    found["log_likelihood"] = (
        Posterior.from_draws(model, draws).log_likelihood(x, observed_data=data)["y"].sum(1)
    )
    return found


def function_values(model: Callable, draws: Draws, points: Tensor) -> Draws:
    """The noiseless function at test points ``[K, in]``: ``f[0]``, ..., each ``[S]``."""
    values = Posterior.from_draws(model, draws).function(points)
    return {f"f[{k}]": column for k, column in enumerate(values.unbind(1))}


def quantity_names(model: Callable, options: Mapping, seed: int) -> list[str]:
    x, points = inputs(options, seed)
    truth, y = truth_and_target(model, x, seed)
    return list(quantities(model, truth, x, y, points))


def simulate(cell: Cell) -> dict[str, float]:
    """The rank of every quantity; a data set of the grid is a model, a method a guide or a sampler.

    The truth depends on seed, model and trial alone: all guides see the same data.  Methods of few points (an
    ensemble) are judged as the law that has them: points in turn, too narrow even if the posterior drew them.

    :raises FailedError: for draws that are not finite
    """
    options, model = cell.options, build(cell.dataset, cell.options)
    x, points = inputs(options, cell.base_seed)
    truth, y = truth_and_target(model, x, cell.split_seed)
    fitted_model, draws, facts = _fit(cell, model, x, y)
    true = quantities(model, truth, x, y, points)
    if fitted_model is model:
        drawn = quantities(model, draws, x, y, points)
    else:  # a law of functions with sites of its own
        drawn = function_values(fitted_model, draws, points)
    ranks = {}
    for name, values in drawn.items():
        if not values.isfinite().all():
            raise FailedError(f"draws of {name} are not finite")
        rng = np.random.default_rng(stable_seed("ties", cell.seed, name))
        ranks[name] = rank(true[name].item(), values.double().numpy(), rng)
    return {**ranks, **facts}


def _fit(cell: Cell, model: Callable, x: Tensor, y: Tensor) -> tuple[Callable, Draws, dict[str, float]]:
    """The model that the draws are of, the draws, and what else is known of the fit."""
    options = cell.options
    fit_seed, draw_seed = stable_seed("fit", cell.seed), stable_seed("draws", cell.seed)
    known = samplers(model)
    if cell.method in known:
        sampled = known[cell.method](model, x, y, options["draws"], draw_seed)
        draws = {name: value.to(x.dtype) for name, value in sampled.draws.items()}
        return model, draws, {CONVERGED: float(sampled.converged)}
    method = find_guide(cell.method).method
    device = options.get("device", CPU) if isinstance(method, Variational) else CPU
    data = moved((x, y), device)
    fitted = method.fit(model, data, method.settings(len(x), fit_seed, steps=options["steps"]))
    with torch.no_grad():
        draws = fitted.draws(options["draws"], draw_seed)
    change = fitted.bound_change
    known_change = change is not None and math.isfinite(change.value)
    return fitted.model, draws, {BOUND_CHANGE: change.value} if known_change else {}
