"""Gates that a Markov chain must pass before it counts as a reference, and the result that says whether it
did.

Rank-normalised split R-hat and bulk effective sample size: Vehtari, Gelman, Simpson, Carpenter, Buerkner
(2021), Bayesian Analysis 16(2).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guides.posterior import arviz_io
from guides.posterior.draws import Posterior

__all__ = ["Draws", "Gates", "MCMCResult", "flatten", "judge", "load_if_same"]

#: site -> ``[chain, draw, *site]``, or ``[draw, *site]``
Draws = dict[str, np.ndarray]
#: What an :class:`MCMCResult` says beside its arrays.
_FACTS = ("diagnostics", "settings", "seconds", "passed", "reason")


@dataclass(frozen=True)
class Gates:
    """What a reference posterior must pass.

    :ivar max_rhat: rank-normalised split R-hat must be below this, for every function value.
    :ivar min_ess_bulk: bulk effective sample size must be above this, for every function value.
    :ivar max_divergence_share: at most this share of the draws may come from divergent trajectories.
    :ivar retry_target_accept: target acceptance of a repeated run (at least; half way to 1 if already there).
    """

    max_rhat: float = 1.01
    min_ess_bulk: float = 400.0
    max_divergence_share: float = 0.001
    retry_target_accept: float = 0.95


@dataclass(frozen=True)
class MCMCResult:
    """Draws, and whether they can be trusted.

    :ivar draws: site -> ``[chain, draw, *site]``, latent sites only, in the model's own (centred)
        coordinates.
    :ivar sample_stats: ``diverging`` (bool), ``lp``, ``energy``, ``acceptance_rate``, ``step_size``,
        ``n_steps`` (what the sampler offers), each [chain, draw].
    :ivar diagnostics: ``max_rhat``, ``min_ess_bulk``, ``min_ess_tail`` over all function values (nan if none
        moves), ``divergences``, ``divergence_share``, ``constant_values`` (values that never move: not
        gated), ``values``, ``attempts``, and ``target_accept`` and ``draws`` (per chain) of the attempt that
        is shown.
    :ivar settings: as asked for, with seed and versions.
    :ivar seconds: wall time of all attempts, compilation included, in seconds.
    :ivar passed: all gates passed.
    :ivar reason: what failed, in words; empty if passed.
    """

    draws: Draws = field(repr=False)
    sample_stats: Draws = field(repr=False)
    diagnostics: dict[str, Any]
    settings: dict[str, Any]
    seconds: float
    passed: bool
    reason: str

    def flat(self) -> Draws:
        """The draws with chains merged, chain after chain: site -> ``[S, *site]``, S = chains x draws."""
        return flatten(self.draws)

    def posterior(self, model: Callable) -> Posterior:
        """The draws as a posterior of the Pyro model with these sites, which predicts."""
        sites = {name: torch.tensor(value) for name, value in self.draws.items()}
        sampler = self.settings["sampler"]
        info = {"method": "nuts" if sampler in ("numpyro", "pyro") else sampler} | self._facts()
        return Posterior(model, sites, info, self.sample_stats)

    def _facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FACTS}

    def to_arviz(self, **groups: Any) -> Any:
        """ArviZ's container; more ``groups`` as :func:`guides.posterior.arviz_io.to_arviz` takes them."""
        attrs = {"is_mcmc": "true"} | self._facts() | groups.pop("attrs", {})
        return arviz_io.to_arviz(self.draws, sample_stats=self.sample_stats, attrs=attrs, **groups)

    def save(self, path: str | os.PathLike, **attrs: Any) -> Path:
        """Write everything to one netCDF file, atomically; ``attrs`` are stored beside the rest."""
        return arviz_io.save_netcdf(self.to_arviz(attrs=attrs), path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> MCMCResult:
        """Read a file of :meth:`save`.

        :raises ValueError: unreadable, or not written by :meth:`save`; one line that names the file.
        """
        return _from_idata(arviz_io.load_netcdf(path), path)[0]


def load_if_same(cache: str | os.PathLike, mark: str) -> MCMCResult | None:
    """The stored result if it answers the same question; None if absent, unreadable or another."""
    try:
        result, stored = _from_idata(arviz_io.load_netcdf(cache), cache)
    except (FileNotFoundError, ValueError):
        return None
    return result if stored == mark else None


def _from_idata(idata: Any, path: str | os.PathLike) -> tuple[MCMCResult, str]:
    attrs = arviz_io.decode_attrs(idata)
    try:
        facts = {name: attrs[name] for name in _FACTS}
    except KeyError as error:
        raise ValueError(
            f"{path}: posterior draws, but not of an MCMC run of this library ({error})"
        ) from error
    arrays = (arviz_io.arrays_of(idata, group) for group in ("posterior", "sample_stats"))
    return MCMCResult(*arrays, **facts), attrs.get("fingerprint", "")


def flatten(draws: Mapping[str, np.ndarray]) -> Draws:
    """``{name: [chain, draw, ...]}`` with all chains in one row: ``{name: [chain * draw, ...]}``."""
    return {k: v.reshape(-1, *v.shape[2:]) for k, v in draws.items()}


def judge(values: np.ndarray, diverging: np.ndarray, gates: Gates) -> tuple[dict[str, Any], dict[str, str]]:
    """Diagnostics of ``values`` [chain, draw, K], and the failed gates: name -> what happened in words.

    A value that never moves (a network's dead output, say) has no R-hat; it is counted and left out, unless
    nothing moves at all: then the sampler is stuck or the function says nothing, and neither may pass.
    """
    problems: dict[str, str] = {}
    divergences, count = int(diverging.sum()), diverging.size
    finite = np.isfinite(values).all(axis=(0, 1))
    if not finite.all():
        problems["values"] = f"{(~finite).sum()} of {finite.size} function values are not finite"
    values = values[..., finite]
    rhat, bulk, tail = arviz_io.rhat(values), arviz_io.ess(values, "bulk"), arviz_io.ess(values, "tail")
    constant = np.isnan(rhat) & (np.ptp(values, axis=(0, 1)) == 0)
    moving = ~constant
    found = {
        "max_rhat": float(rhat[moving].max()) if moving.any() else math.nan,
        "min_ess_bulk": float(bulk[moving].min()) if moving.any() else math.nan,
        "min_ess_tail": float(tail[moving].min()) if moving.any() else math.nan,
        "divergences": divergences,
        "divergence_share": divergences / count,
        "constant_values": int(constant.sum()),
        "values": int(finite.size),
    }
    if not moving.any():
        problems["values"] = problems.get("values", "no function value ever moves")
        return found, problems | _divergence_problem(found, count, gates)
    # written so that nan fails
    if not found["max_rhat"] < gates.max_rhat:
        problems["rhat"] = f"split R-hat {found['max_rhat']:.4f} is not below {gates.max_rhat}"
    if not found["min_ess_bulk"] > gates.min_ess_bulk:
        problems["ess"] = f"bulk ESS {found['min_ess_bulk']:.0f} is not above {gates.min_ess_bulk:g}"
    return found, problems | _divergence_problem(found, count, gates)


def _divergence_problem(found: Mapping[str, Any], count: int, gates: Gates) -> dict[str, str]:
    if found["divergence_share"] <= gates.max_divergence_share:
        return {}
    words = f"{found['divergences']} of {count} draws diverged ({found['divergence_share']:.2%})"
    return {"divergences": f"{words}, more than {gates.max_divergence_share:.2%}"}
