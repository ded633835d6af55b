"""Ground truth by Markov chains: the No-U-Turn sampler behind convergence gates, with a cache on disk.

:func:`nuts` samples a NumPyro model (the *twin* of a Pyro model: same sites, same shapes) or, by
``backend="pyro"``, a small Pyro model without a twin.  The :class:`MCMCResult` says whether it may be
trusted.

The gates act on *function space*: a network's weights have symmetric modes, so two good chains may sit in
different ones, while the predictions they imply agree.  ``function(draws)`` gives those values; over
all of them

    rank-normalised split R-hat < 1.01,   bulk ESS > 400,   divergent share of the draws <= 0.1 %.

A run that fails is repeated (``retries`` times) at a target acceptance of at least 0.95, with twice the draws
if only R-hat or ESS failed.  What still fails is returned, and stored, as failed.

Hoffman and Gelman (2014), JMLR 15; Betancourt (2017), arXiv 1701.02434; non-centring: Papaspiliopoulos,
Roberts and Skold (2007), Statistical Science 22(1); R-hat and ESS: Vehtari et al. (2021), Bayesian Analysis
16(2).
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from guides.posterior.fingerprint import fingerprint
from guides.truth.gates import Draws, Gates, MCMCResult, flatten, judge, load_if_same
from guides.truth.samplers import Plan, numpyro_attempt, pyro_attempt

__all__ = ["Gates", "MCMCResult", "nuts"]

FunctionOfDraws = Callable[[Draws], np.ndarray]
#: Backend -> packages whose versions travel with the draws.
_PACKAGES = {"numpyro": ("numpyro", "jax", "numpy"), "pyro": ("pyro-ppl", "torch", "numpy")}


# --------------------------------------------------------------------------------------------- the front door


def nuts(
    model: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: Literal["numpyro", "pyro"] = "numpyro",
    function: FunctionOfDraws | None = None,
    warmup: int = 600,
    draws: int = 600,
    chains: int = 2,
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
    dense_mass: bool = False,
    seed: int = 0,
    gates: Gates = Gates(),  # noqa: B008  (frozen)
    retries: int = 1,
    cache: str | os.PathLike | None = None,
    progress: bool | None = None,
    float64: bool = False,
) -> MCMCResult:
    """Sample a model by NUTS and judge the draws.

    Latent Normal sites (``Normal``, also expanded or ``to_event``) are sampled non-centred, ``x = loc + scale
    z``; the draws carry ``x`` only.  The draws of a chain depend on the seed and its number alone.  Tracing a
    NumPyro model is not thread-safe: call this from one thread at a time.

    Pyro's sampler is for small models: a gradient costs about a millisecond, and the chains run one after the
    other.  With ``float64`` floating tensors in its arguments are converted and torch's default dtype is
    float64 meanwhile.  The caller's random state is left as it was.

    :param model: NumPyro or Pyro model; ``args`` and ``kwargs`` are its arguments (of NumPyro's arrays or
        torch tensors; other values are handed on as they are).
    :param backend: whose model it is, and whose sampler runs.
    :param function: draws {site: ``[S, *site]``} -> values [S, K] (or [S]) on which the gates act; default:
        the latent sites themselves, right only where no symmetric modes exist.
    :param warmup, draws: iterations a chain.
    :param dense_mass: adapt a full mass matrix; for a few dozen strongly correlated numbers, not for a
        network.
    :param retries: repeated runs allowed when the gates fail.
    :param cache: netCDF file.  If it was made with the same settings, data and model, as its source text and
        what that uses tell (:func:`guides.posterior.fingerprint.fingerprint`), it is read instead of
        sampling; anything else there is recomputed and replaced.
    :param progress: bar on stderr; never when stderr is no terminal.  Default: bar on a terminal.
    :param float64: sample in double precision (slower by about 1.7 on a CPU; worth it for unscaled data).
    :raises ValueError: no latent site; a discrete latent site; a plate that subsamples; data ``[n, 1]`` under
        laws ``[n]``; fewer than two
        chains; no starting point with a finite density; ``function`` that gives another number of rows;
        another backend.
    :raises TypeError: a Pyro model for the NumPyro backend
    """
    if backend not in _PACKAGES:
        raise ValueError(f"backend must be 'numpyro' or 'pyro', not {backend!r}")
    plan = Plan(warmup, draws, chains, target_accept, max_tree_depth, dense_mass, seed, float64)
    attempt = {"numpyro": numpyro_attempt, "pyro": pyro_attempt}[backend]
    request = (model, tuple(args), dict(kwargs or {}))
    sample = functools.partial(attempt, *request)
    try:
        return _cached(backend, sample, (*request, function), plan, gates, retries, cache, progress)
    except TypeError as error:
        if backend == "numpyro" and "Tensor" in str(error):  # JAX's arrays met torch's inside the model
            said = str(error).partition("\n")[0]
            raise TypeError(
                f"backend='numpyro' runs NumPyro models; for a Pyro model say 'pyro' ({said})"
            ) from error
        raise


def _cached(
    sampler: str,
    sample: Callable,
    request: tuple,
    plan: Plan,
    gates: Gates,
    retries: int,
    cache: str | os.PathLike | None,
    progress: bool | None,
) -> MCMCResult:
    """Answer from the cache file where it answers the same question; otherwise sample, judge and store."""
    asked = {"sampler": sampler} | asdict(plan) | {"gates": asdict(gates), "retries": retries}
    del asked["attempt"]
    mark = "" if cache is None else fingerprint(asked, *request)
    if cache is not None and (known := load_if_same(cache, mark)) is not None:
        return known
    settings = asked | {"versions": {package: version(package) for package in _PACKAGES[sampler]}}
    show = sys.stderr.isatty() and progress is not False
    result = _gated(sample, request[-1], plan, gates, retries, settings, show)
    if cache is not None:
        result.save(cache, fingerprint=mark)
    return result


# -------------------------------------------------------------------------------------------------- the gates


def _gated(
    sample: Callable,
    function: FunctionOfDraws | None,
    plan: Plan,
    gates: Gates,
    retries: int,
    settings: dict[str, Any],
    show: bool,
) -> MCMCResult:
    """Sample until the gates pass or the retries are used up; the last attempt is the result."""
    start = time.perf_counter()
    for attempt in range(retries + 1):
        draws, stats = sample(replace(plan, attempt=attempt), show)
        found, problems = judge(_function_values(draws, function), stats["diverging"], gates)
        if not problems or attempt == retries:
            break
        already = plan.target_accept >= gates.retry_target_accept
        higher = (1 + plan.target_accept) / 2 if already else gates.retry_target_accept
        more = 2 if set(problems) <= {"rhat", "ess"} else 1
        plan = replace(plan, target_accept=higher, draws=plan.draws * more)
    found |= {"attempts": attempt + 1, "target_accept": plan.target_accept, "draws": plan.draws}
    seconds = time.perf_counter() - start
    return MCMCResult(draws, stats, found, settings, seconds, not problems, "; ".join(problems.values()))


def _function_values(draws: Draws, function: FunctionOfDraws | None) -> np.ndarray:
    """Values to gate on, [chain, draw, K]."""
    chains, length = next(iter(draws.values())).shape[:2]
    if function is None:
        return np.concatenate([v.reshape(chains, length, -1) for v in draws.values()], axis=-1)
    values = np.asarray(function(flatten(draws)))
    if values.ndim == 0 or len(values) != chains * length:
        raise ValueError(
            f"function must give one row a draw, [{chains * length}, K]; got shape {values.shape}"
        )
    return values.reshape(chains, length, -1)
