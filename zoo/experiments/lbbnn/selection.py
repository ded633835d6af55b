"""Variable selection in the logistic simulation: its truth, its posterior, and what guides make of it.

Columns are numbered from 1 as in the publications.  The coefficients are those printed with the simulation,
except that the 13th has its sign turned and an intercept of 99 is added: as printed they do not fit the data
(log likelihood -3856 at the best intercept, against -36).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import expit

from data_loaders import Standardizer, load
from guides import AutoConcrete, AutoMNF, AutoSpikeSlab
from guides.truth.polya_gamma import inclusion_probabilities, spike_slab_logistic_gibbs
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from guides.variational.varbvs import VARBVS
from zoo.errors import FailedError
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.engine.published import read_table
from zoo.experiments.lbbnn.runs import FittedRuns, fit_side_by_side
from zoo.experiments.lbbnn.runs_of_flows import AutoMNFOfRuns
from zoo.fitting.svi import Fit, FitSettings
from zoo.models.latent_binary import SpikeSlabLogistic
from zoo.seeds import stable_seed

DATA = "mjmcmc_sim_logistic"
#: As printed, but for the sign of the 13th.
COEFFICIENTS = np.array([float(row.value) for row in read_table("lbbnn", "thesis-section-5.2-beta")])
COEFFICIENTS[12] *= -1
INTERCEPT = 99.0
INCLUSION, BLOCK = 0.25, 4
GUIDES = {"spike-slab": AutoSpikeSlab, "mnf": AutoMNF, "concrete": AutoConcrete}
#: Of a fit: first learning rate, rows of a minibatch.
RATE, BATCH = 0.02, 400
#: The guides of trials on one data set, which are fitted so many at a time.
GUIDES_OF_RUNS, RUNS = GUIDES | {"mnf": AutoMNFOfRuns}, 20
#: Exact inclusion probabilities on the published data, slab N(0, 1), inclusion 0.25, intercept N(0, 1), all
#: columns standardised.  Found by another Polya-Gamma sampler and another enumeration, which agree to 0.007;
#: those of guides.truth.polya_gamma agree with them within their Monte Carlo error.
EXACT = np.array([
    *(0.147, 0.127, 0.192, 0.048, 0.068, 0.064, 1.0, 0.043, 0.454, 0.074),
    *(0.579, 0.053, 1.0, 0.046, 0.224, 1.0, 1.0, 1.0, 1.0, 0.073),
])  # fmt: skip


def simulation(cell: Cell) -> Mapping[str, float]:
    """One fit to the published data, all columns standardised; or the enumeration of all models."""
    if cell.method == "exact":
        found, elbo = enumerated()
        return figures(found, EXACT) | {"elbo": elbo}
    if cell.method in GUIDES_OF_RUNS:
        steps, block, place = cell.options["steps"], *divmod(cell.trial, RUNS)
        run = fitted_runs(cell.method, steps, stable_seed("runs", cell.base_seed, cell.method, block))
        if isinstance(run, FailedError):
            raise FailedError(f"of trials {block * RUNS} to {(block + 1) * RUNS - 1}, fitted together: {run}")
        bounds = {"elbo": float(run.elbo[place])}
        if place == 0:  # one number for all of them
            bounds["bound_change"] = run.bound_change
        return figures(run.inclusion[place], EXACT) | bounds
    found, bounds = fit_inclusion(cell, *design())
    return figures(found, EXACT) | bounds


@functools.lru_cache(maxsize=1)  # the trials of a block come one after another (Experiment.together)
def fitted_runs(method: str, steps: int, seed: int) -> FittedRuns | FailedError:
    """``RUNS`` trials to the published data, whichever of them is asked for; or why they failed, so that they
    are not fitted again for each.
    """
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in design())
    settings = FitSettings(steps, RATE, BATCH, seed)
    try:
        return fit_side_by_side(GUIDES_OF_RUNS[method], x, y, INCLUSION, RUNS, settings)
    except FailedError as error:
        return error


def correlations(cell: Cell) -> Mapping[str, float]:
    """One fit to data drawn from a mixed design; the setting is ``j``.  Leaves the design's correlations."""
    x, y = mixed_data(float(cell.setting), cell.options["noise"], cell.split_seed)
    np.save(cell.folder / "correlations.npy", np.corrcoef(x.T))
    exact = sampled_inclusion(x, y, cell.options["draws"], stable_seed("reference", cell.split_seed))
    found, bounds = (exact, {}) if cell.method == "exact" else fit_inclusion(cell, x, y)
    np.savez(cell.folder / "inclusion.npz", found=found, exact=exact)
    return figures(found, exact, each=False) | bounds


def design() -> tuple[np.ndarray, np.ndarray]:
    """All columns standardised ``[2000, 20]``, and the labels."""
    data = load(DATA)
    return Standardizer.of(data).transform_x(data.x_train), np.asarray(data.y_train, dtype=float)


@functools.cache
def enumerated() -> tuple[np.ndarray, float]:
    """Inclusion probabilities ``[20]`` by all 2^20 models, and the log evidence, nats; both by Laplace."""
    exact = enumerate_spike_slab_logistic(*design(), inclusion_prob=INCLUSION)
    return exact.inclusion, exact.log_evidence


def mixed_data(share: float, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns mixed in blocks of four, ``X_k <- j X_k + (1 - j) X_{k-1}`` from the second block on, with the
    blocks before the mixing on the right; standardised again; and labels drawn for them.

    ``eta ~ N(99 + x beta, noise^2)`` in the published units, where ``beta`` belongs to the standardised
    columns: mixing changes the columns and not the effects.

    :param share: ``j``; 1 leaves the columns as they are
    """
    data = load(DATA)
    scale = Standardizer.of(data)
    x = scale.transform_x(data.x_train)
    mixed = x.copy()
    mixed[:, BLOCK:] = share * x[:, BLOCK:] + (1 - share) * x[:, :-BLOCK]
    mixed = (mixed - mixed.mean(0)) / mixed.std(0)
    rng = np.random.default_rng(seed)
    centre = INTERCEPT + data.x_train.mean(0) @ COEFFICIENTS
    eta = centre + mixed @ (data.x_train.std(0) * COEFFICIENTS) + noise * rng.standard_normal(len(x))
    return mixed, (rng.random(len(x)) < expit(eta)).astype(float)


def sampled_inclusion(x: np.ndarray, y: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Exact inclusion probabilities up to Monte Carlo error, by the collapsed Gibbs sampler, ``[p]``.

    :raises FailedError: when the chains do not pass their gates
    """
    result = spike_slab_logistic_gibbs(x, y, INCLUSION, warmup=draws // 4, draws=draws, chains=2, seed=seed)
    if not result.passed:
        raise FailedError(f"the reference failed: {result.reason}; take more than {draws} draws")
    return inclusion_probabilities(result)[0]


def fit_inclusion(cell: Cell, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Inclusion probabilities ``[p]`` by a cell's method; its evidence lower bound, and how much that rose in
    the last tenth of a fit by steps, nats.
    """
    if cell.method == "varbvs":
        selection = VARBVS("logistic", inclusion_prob=INCLUSION, seed=cell.seed).fit(x, y)
        return selection.inclusion, {"elbo": selection.elbo}
    model = SpikeSlabLogistic(x.shape[1], INCLUSION)
    torch.manual_seed(stable_seed("make", cell.seed))
    guide = GUIDES[cell.method](model)
    settings = FitSettings(cell.options["steps"], RATE, BATCH, cell.seed)
    inputs, labels = (torch.as_tensor(part, dtype=torch.float32) for part in (x, y))
    run = Fit(guide, model, (inputs, labels), settings).run()
    bounds = {"elbo": run.elbo()[0], "bound_change": run.last_change().value}
    return guide.inclusion_probabilities()["w"].double().numpy(), bounds


def figures(found: np.ndarray, exact: np.ndarray, each: bool = True) -> dict[str, float]:
    """Against the exact inclusion probabilities, and against which coefficients are not zero.

    :param each: also whether every single column is selected
    """
    selected, true, median = found > 0.5, COEFFICIENTS != 0, exact > 0.5
    result = {
        "rmse": float(np.sqrt(np.mean((found - exact) ** 2))),
        "worst": float(np.abs(found - exact).max()),
        "tpr": float(selected[true].mean()),
        "fpr": float(selected[~true].mean()),
        "wrongly_in": float((selected & ~median).sum()),
        "wrongly_out": float((~selected & median).sum()),
    }
    if each:
        result |= {f"selected_{i}": float(value) for i, value in enumerate(selected, start=1)}
        result |= {f"inclusion_{i}": float(value) for i, value in enumerate(found, start=1)}
    return result
