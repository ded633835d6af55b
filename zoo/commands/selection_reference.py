"""Ground truth for variable selection: all 2^p models counted, or a Gibbs sampler behind its gates."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from guides.posterior.draws import Posterior
from guides.truth.polya_gamma import inclusion_probabilities, spike_slab_logistic_gibbs
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from zoo.commands.comparison import Comparison
from zoo.commands.grading import Graded
from zoo.evaluation.estimates import Estimate
from zoo.files.kept import load_kept, seal_posterior
from zoo.models.latent_binary import VariableSelection
from zoo.seeds import stable_seed

#: Draws by which Laplace's approximation is checked, and how far an inclusion probability may then be off,
#: beyond four standard errors of the check.
CHECK_DRAWS, MOST_OFF = 20_000, 0.02
#: Gibbs chains, and draws of each for one draw of a guide; as many of them as four guides have are kept.
CHAINS, DRAWS_A_CHAIN, KEPT = 4, 4, 4


def exact_reference(comparison: Comparison, path: Path, progress: Progress | None = None) -> Graded:
    """The enumeration of all models; kept in ``path``, and read again by a later call."""
    model: VariableSelection = comparison.build(comparison.entry)
    settings = {
        "seed": comparison.seed,
        "draws": KEPT * comparison.budget.draws,  # they cost nothing: more than the guides', less noise
        "inclusion": model.inclusion,
        "fingerprint": comparison.problem.fingerprint(),
    }
    posterior = load_kept(path, model)
    if posterior is None or posterior.info.get("settings") != settings:
        start = time.perf_counter()
        if model.traits.likelihood == "bernoulli":
            draws, info = _count_logistic(model, comparison, settings["draws"], progress)
        else:
            draws, info = _count_linear(model, comparison, settings["draws"])
        info["figures"]["fit_seconds"] = time.perf_counter() - start
        sites = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in draws.items()}
        posterior = Posterior.from_draws(model, sites, {"method": "exact", "settings": settings, **info})
        seal_posterior(posterior)
        comparison.save(posterior, path)
    return _graded(posterior, comparison)


def _count_linear(model: Callable, comparison: Comparison, num_draws: int) -> tuple[dict, dict]:
    x, y = _arrays(comparison)
    exact = enumerate_spike_slab(x, y, inclusion_prob=model.inclusion)
    note = f"all 2^{x.shape[1]} models; its ELBO is the log evidence"
    info = _info(exact.inclusion, np.zeros(x.shape[1]), (exact.log_evidence, 0.0), note)
    return exact.draws(num_draws, seed=comparison.seed), info


def _count_logistic(
    model: Callable, comparison: Comparison, num_draws: int, progress: Progress | None
) -> tuple[dict, dict]:
    """Every model by Laplace's approximation, and the whole checked by importance sampling."""
    x, y = _arrays(comparison)
    tell = None
    if progress:
        task = progress.add_task("all models", total=2 ** x.shape[1])
        tell = functools.partial(progress.advance, task)
    exact = enumerate_spike_slab_logistic(x, y, inclusion_prob=model.inclusion, on_progress=tell)
    check = exact.importance(CHECK_DRAWS, seed=stable_seed("check", comparison.seed))
    off = np.abs(exact.inclusion - check.inclusion)
    nats = exact.log_evidence - check.log_evidence
    note = (
        f"all 2^{x.shape[1]} models by Laplace's approximation; importance sampling ({check.ess:.0f} of "
        f"{CHECK_DRAWS} draws effective) differs by {nats:+.3f} nats, {off.max():.3f} at most in inclusion; "
        "its ELBO is the log evidence by importance sampling"
    )
    evidence = check.log_evidence, check.log_evidence_se
    info = _info(exact.inclusion, np.zeros(x.shape[1]), evidence, note)
    worst = (off - 4 * check.inclusion_se).max()
    if not worst <= MOST_OFF:  # NaN fails
        info["status"] = f"failed: Laplace's approximation is off by {off.max():.3f} in inclusion"
    return exact.draws(num_draws, seed=comparison.seed, resample=True), info


def gibbs_reference(comparison: Comparison, path: Path) -> Graded:
    """The Gibbs sampler, its gates on inclusion and log-likelihood; kept in ``path``."""
    model, budget = comparison.build(comparison.entry), comparison.budget
    result = spike_slab_logistic_gibbs(
        *_arrays(comparison),
        inclusion_prob=model.inclusion,
        warmup=budget.warmup,
        draws=DRAWS_A_CHAIN * budget.draws,
        chains=CHAINS,
        seed=comparison.seed,
        cache=path,
    )
    found = result.diagnostics
    note = (
        f"R-hat {found['max_rhat']:.3f}, bulk ESS {found['min_ess_bulk']:.0f} of inclusion, {CHAINS} chains "
        f"of {found['draws']} draws"
    )
    info = _info(*inclusion_probabilities(result), None, note)
    info["figures"]["fit_seconds"] = result.seconds
    if not result.passed:
        info["status"] = f"failed: {result.reason}"
    sites = {
        name: torch.as_tensor(np.array(value), dtype=torch.float32) for name, value in result.draws.items()
    }
    comparison.complete(path, Posterior(model, sites))
    # inclusion is counted over all draws; functions are slower to compute, and neighbours are alike
    step = max(1, CHAINS * found["draws"] // (KEPT * budget.draws))
    kept = {name: value[:, ::step].contiguous() for name, value in sites.items()}
    return _graded(Posterior(model, kept, {"method": "gibbs", **info}), comparison)


def _arrays(comparison: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """``x [n, p]``, ``y [n]`` in float64."""
    problem = comparison.problem
    return problem.x.double().numpy(), problem.y.double().numpy()


def _info(
    probabilities: np.ndarray, mcse: np.ndarray, evidence: tuple[float, float] | None, note: str
) -> dict:
    """What draws cannot give, JSON-safe."""
    figures = {
        "density_mean": probabilities.mean().item(),
        "density_half": (probabilities > 0.5).mean().item(),
    }
    if evidence:
        figures["elbo"] = list(evidence)
    inclusion, errors = {"w": probabilities.tolist()}, {"w": mcse.tolist()}
    return {"figures": figures, "inclusion": inclusion, "mcse": errors, "note": note, "status": "ok"}


def _graded(posterior: Posterior, comparison: Comparison) -> Graded:
    """From the posterior's ``info`` alone, so that a saved one reads as a fresh one."""
    info = posterior.info
    figures = {
        name: Estimate(*v) if isinstance(v, list | tuple) else v for name, v in info["figures"].items()
    }
    # a sum over 2^p models may be 1 and a rounding
    shares, errors = (
        {name: torch.tensor(v, dtype=torch.float64).clamp(0.0, 1.0) for name, v in info[key].items()}
        for key in ("inclusion", "mcse")
    )
    name = comparison.entry.name
    return Graded(info["method"], name, posterior, figures, info["note"], info["status"], shares, errors)
