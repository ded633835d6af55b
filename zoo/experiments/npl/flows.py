"""The cells of the flow experiments: rows, a way to fit, scores of test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from data_loaders import DensityData, load_density
from data_loaders.densities import two_gaussians
from guides.bootstrap.base_measures import EmpiricalBase, IsotropicBase
from guides.bootstrap.training import Training
from zoo.errors import UserError
from zoo.experiments.engine.declaration import Cell
from zoo.fitting.densities import (
    Effort,
    FittedDensity,
    FlowShape,
    Rows,
    maximum_likelihood,
    shared_bootstrap,
    weighted_bootstrap,
)

#: Sds of the round base measures of figure 4.1.
BASES = {"narrow": 1.0, "wide": 4.0}
TEST_ROWS = 10_000
SHOWN = 1000


def trained(cell: Cell) -> Mapping[str, float]:
    """The setting is the number of training rows."""
    shape = FlowShape(hidden=(cell.options["hidden"],))
    return _scored(cell, int(cell.setting), shape)


def variant(cell: Cell) -> Mapping[str, float]:
    """The setting names blocks, batch normalisation, start and base."""
    blocks, *options = cell.setting.split("-")
    shape = FlowShape(
        blocks=int(blocks),
        hidden=(cell.options["hidden"],),
        batch_norm="bn" in options,
        identity="id" in options,
        covariance="cov" in options,
    )
    return _scored(cell, cell.options["rows"], shape)


def _scored(cell: Cell, count: int, shape: FlowShape) -> Mapping[str, float]:
    data = load_density(cell.dataset)
    fitted = fit(cell, rows_of(data, count, cell), shape)
    test = torch.as_tensor(data.test[:TEST_ROWS], dtype=torch.float32)
    naive = cell.options["naive"] if cell.method.startswith("wlb_naive") else 1
    return {**fitted.figures(test), "steps": fitted.info["steps"] / naive}


def rows_of(data: DensityData, count: int, cell: Cell) -> Rows:
    """Training rows drawn by the trial, the same for all methods; the others are the pool."""
    if count >= len(data.train):
        raise UserError(f"{data.name} has {len(data.train)} training rows, too few for {count} and a pool")
    order = np.random.default_rng(cell.split_seed).permutation(len(data.train))
    parts = (
        data.train[order[:count]],
        data.validation[: cell.options["validation"]],
        data.train[order[count:]],
    )
    return Rows(*(torch.as_tensor(part, dtype=torch.float32) for part in parts))


def effort_of(cell: Cell) -> Effort:
    options = cell.options
    training = Training(options["steps"], options["lr"], options["patience"])
    return Effort(training, options["restarts"], options["draws"], cell.seed)


def fit(cell: Cell, rows: Rows, shape: FlowShape) -> FittedDensity:
    effort, options = effort_of(cell), cell.options
    name, mean = cell.method, cell.method.endswith("_mean")
    if name in ("ml", "ml_mean"):
        return maximum_likelihood(rows, shape, effort, mean=mean)
    if name.startswith("wlb_naive"):
        return weighted_bootstrap(rows, shape, replace(effort, draws=options["naive"]), mean=mean)
    process = {"concentration": options["alpha"], "num_pseudo": options["pseudo"]}
    if name == "npl_gaussian":
        return shared_bootstrap(rows, shape, effort, **process)
    if name == "npl_empirical":
        return shared_bootstrap(rows, shape, effort, base=EmpiricalBase((rows.pool,)), **process)
    return shared_bootstrap(rows, shape, effort, mean=name == "wlb_shared")


def cloud(cell: Cell) -> Mapping[str, float]:
    """The setting is alpha, the method a base measure or maximum likelihood; leaves data and samples."""
    law, options = two_gaussians(), cell.options
    train, validation = law.draw(100, cell.split_seed), law.draw(100, cell.split_seed + 1)
    rows = Rows(*(torch.as_tensor(part, dtype=torch.float32) for part in (train, validation)))
    shape, effort, alpha = FlowShape(hidden=(options["hidden"],)), effort_of(cell), float(cell.setting)
    if cell.method == "ml":
        fitted = maximum_likelihood(rows, shape, effort)
    else:
        base = IsotropicBase(torch.zeros(2), BASES[cell.method]) if alpha else None
        process = {"concentration": alpha, "num_pseudo": options["pseudo"]}
        fitted = shared_bootstrap(rows, shape, effort, base=base, **process)
    test = load_density("mixture-2").test
    found = fitted.figures(torch.as_tensor(test, dtype=torch.float32))["log_likelihood"]
    samples = fitted.sample(SHOWN, cell.seed)
    np.savez(cell.folder / "cloud.npz", data=train, samples=samples.numpy())
    return {
        "log_likelihood": found,
        "below_truth": law.log_density(test).mean() - found,
        "spread": samples.square().sum(1).mean().sqrt().item(),
        "steps": fitted.info["steps"],
    }
