"""One simulation of a calibration: a truth from the prior, its data, a posterior, ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from guides.posterior.draws import Posterior
from zoo.errors import FailedError
from zoo.evaluation.calibration import rank
from zoo.experiments.engine.declaration import Cell
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nodes = poutine.trace(model).get_trace(x).nodes
    values = {
        name: node["value"]
        for name, node in nodes.items()
        if node["type"] == "sample" and not site_is_subsample(node)
    }
    y = values.pop("y")
    return {name: value[None] for name, value in values.items()}, y


def quantities(model: Callable, draws: Draws, x: Tensor, y: Tensor, points: Tensor) -> dict[str, np.ndarray]:
    """What is ranked, ``{name: [S]}``, of draws ``{site: [S, *site]}``.

    The function at the test points, every site that is one number (a precision), and the log likelihood of
    the data, which sees a posterior that does not look at the data (Modrak et al. 2023, Bayesian Analysis
    20).  Weights themselves only where no hidden layer makes them exchangeable.
    """
    draws = {name: value.to(x.dtype) for name, value in draws.items()}
    posterior = Posterior.from_draws(model, draws)
    found = {f"f[{k}]": column for k, column in enumerate(posterior.function(points).unbind(1))}
    for name, value in draws.items():
        if value.dim() == 1:
            found[name] = value
        elif not getattr(model, "widths", ()):
            places = np.ndindex(tuple(value.shape[1:]))
            found |= {
                f"{name}[{','.join(map(str, place))}]": value[(slice(None), *place)] for place in places
            }
    found["log_likelihood"] = posterior.log_likelihood(x, observed_data={"y": y})["y"].sum(1)
    return {name: values.double().numpy() for name, values in found.items()}


def quantity_names(model: Callable, options: Mapping, seed: int) -> list[str]:
    x, points = inputs(options, seed)
    truth, y = truth_and_target(model, x, seed)
    return list(quantities(model, truth, x, y, points))


def simulate(cell: Cell) -> dict[str, float]:
    """The rank of every quantity; a data set of the grid is a model, a method a guide or a sampler.

    The truth hangs on seed, model and trial alone: all guides see the same data.

    :raises FailedError: for draws that are not finite
    """
    options, model = cell.options, build(cell.dataset, cell.options)
    x, points = inputs(options, cell.base_seed)
    truth, y = truth_and_target(model, x, cell.split_seed)
    fitted_model, draws, facts = _fit(cell, model, x, y)
    true, drawn = (quantities(m, d, x, y, points) for m, d in ((model, truth), (fitted_model, draws)))
    ranks = {}
    for name, values in drawn.items():
        if name not in true:
            continue
        if not np.isfinite(values).all():
            raise FailedError(f"draws of {name} are not finite")
        rng = np.random.default_rng(stable_seed("ties", cell.seed, name))
        ranks[name] = rank(true[name][0], values, rng)
    return {**ranks, **facts}


def _fit(cell: Cell, model: Callable, x: Tensor, y: Tensor) -> tuple[Callable, Draws, dict[str, float]]:
    """The model that the draws are of, the draws, and what else is known of the fit."""
    options = cell.options
    fit_seed, draw_seed = stable_seed("fit", cell.seed), stable_seed("draws", cell.seed)
    known = samplers(model)
    if cell.method in known:
        sampled = known[cell.method](model, x, y, options["draws"], draw_seed)
        return model, sampled.draws, {CONVERGED: float(sampled.converged)}
    method = find_guide(cell.method).method
    fitted = method.fit(model, (x, y), method.settings(len(x), fit_seed, steps=options["steps"]))
    with torch.no_grad():
        draws = fitted.draws(options["draws"], draw_seed)
    change = fitted.bound_change
    known_change = change is not None and math.isfinite(change.value)
    return fitted.model, draws, {BOUND_CHANGE: change.value} if known_change else {}
