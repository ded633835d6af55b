"""Ground truth by Markov chains: the No-U-Turn sampler behind convergence gates, with a cache on disk.

:func:`nuts` samples a NumPyro model (the *twin* of a Pyro model: same sites, same shapes); :func:`pyro_nuts`
serves small Pyro models without a twin.  Both return an :class:`MCMCResult` that says whether it may be
trusted.

The gates act on *function space*: a network's weights have symmetric modes, so two good chains may sit in
different ones, while the predictions they imply agree.  ``function(draws)`` gives those values; over
all of them

    rank-normalised split R-hat < 1.01,   bulk ESS > 400,   divergent share of the draws <= 0.1 %.

A run that fails is repeated (``retries`` times) at a target acceptance of at least 0.95, with twice the draws
if only R-hat or ESS failed.  What still fails is returned, and stored, as failed.

How the chains run side by side: the sampler is compiled once, and one thread a core executes it (XLA releases
Python's lock).  No environment variable, no JAX setting and no device of the calling program is touched, and
a chain does not wait for the slowest trajectory of its neighbours as under ``chain_method="vectorized"``.

Hoffman and Gelman (2014), JMLR 15; Betancourt (2017), arXiv 1701.02434; non-centring: Papaspiliopoulos,
Roberts and Skold (2007), Statistical Science 22(1); R-hat and ESS: Vehtari et al. (2021), Bayesian Analysis
16(2).
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from guides import arviz_io

__all__ = ["Gates", "MCMCResult", "nuts", "pyro_nuts"]

Draws = dict[str, np.ndarray]
FunctionOfDraws = Callable[[Draws], np.ndarray]

#: Draws between two looks at the clock: short enough for Ctrl-C and the bar, long enough to cost nothing.
_BLOCK = 25


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

    :ivar draws: site -> [chain, draw, *site], latent sites only, in the model's own (centred) coordinates.
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

    draws: Draws
    sample_stats: Draws
    diagnostics: dict[str, Any]
    settings: dict[str, Any]
    seconds: float
    passed: bool
    reason: str

    def flat(self) -> Draws:
        """The draws with chains merged, chain after chain: site -> [S, *site], S = chains x draws."""
        return _flatten(self.draws)

    def to_arviz(self, **groups: Any) -> Any:
        """ArviZ's container; more ``groups`` as :func:`guides.arviz_io.to_arviz` takes them."""
        facts = {k: getattr(self, k) for k in ("diagnostics", "settings", "seconds", "passed", "reason")}
        attrs = {"is_mcmc": "true"} | facts | groups.pop("attrs", {})
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


@dataclass(frozen=True)
class _Plan:
    """One attempt: everything a sampler needs besides model and data."""

    warmup: int
    draws: int
    chains: int
    target_accept: float
    max_tree_depth: int
    dense_mass: bool
    seed: int
    float64: bool
    attempt: int = 0

    def __post_init__(self) -> None:
        if self.chains < 2:
            raise ValueError(f"chains = {self.chains}: R-hat compares chains, at least 2 are needed")
        if self.warmup < 1 or self.draws < 4:
            raise ValueError(f"warmup >= 1 and draws >= 4 are needed, got {self.warmup} and {self.draws}")
        if not 0 < self.target_accept < 1:
            raise ValueError(f"target_accept must lie inside (0, 1), got {self.target_accept}")


# --------------------------------------------------------------------------------------------- the front door


def nuts(
    twin: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
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
    """Sample a NumPyro model by NUTS and judge the draws.

    Latent Normal sites (``Normal``, also expanded or ``to_event``) are sampled non-centred, ``x = loc + scale
    z``; the draws carry ``x`` only.  The draws of a chain depend on the seed and its number alone.  Tracing a
    NumPyro model is not thread-safe: call this from one thread at a time.

    :param twin: NumPyro model; ``args`` and ``kwargs`` are its arguments (arrays or torch tensors; other
        values are handed on as they are).
    :param function: draws {site: [S, *site]} -> values [S, K] (or [S]) on which the gates act; default: the
        latent sites themselves, right only where no symmetric modes exist.
    :param warmup, draws: iterations a chain.
    :param dense_mass: adapt a full mass matrix; for a few dozen strongly correlated numbers, not for a
        network.
    :param retries: repeated runs allowed when the gates fail.
    :param cache: netCDF file.  If it was made with the same settings, data and source text
        (:func:`guides.arviz_io.fingerprint`) it is read instead of sampling; anything else there is
        recomputed and replaced.
    :param progress: bar on stderr; never when stderr is no terminal.  Default: bar on a terminal.
    :param float64: sample in double precision (slower by about 1.7 on a CPU; worth it for unscaled data).
    :raises ValueError: no latent site; a discrete latent site; a plate that subsamples; fewer than two
        chains; no starting point with a finite density; ``function`` that gives another number of rows.
    """
    plan = _Plan(warmup, draws, chains, target_accept, max_tree_depth, dense_mass, seed, float64)
    sample = functools.partial(_numpyro_attempt, twin, tuple(args), dict(kwargs or {}))
    request = (twin, tuple(args), dict(kwargs or {}), function)
    return _cached("numpyro", sample, request, plan, gates, retries, cache, progress)


def pyro_nuts(
    model: Callable,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    function: FunctionOfDraws | None = None,
    warmup: int = 300,
    draws: int = 300,
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
    """The contract of :func:`nuts` for a Pyro model without a twin, through Pyro's own NUTS.

    For small models: a gradient costs about a millisecond, and the chains run one after the other.  With
    ``float64`` floating tensors in the arguments are converted and torch's default dtype is float64
    meanwhile. The caller's random state is left as it was.

    :raises ValueError: as :func:`nuts`.
    """
    plan = _Plan(warmup, draws, chains, target_accept, max_tree_depth, dense_mass, seed, float64)
    sample = functools.partial(_pyro_attempt, model, tuple(args), dict(kwargs or {}))
    request = (model, tuple(args), dict(kwargs or {}), function)
    return _cached("pyro", sample, request, plan, gates, retries, cache, progress)


def _cached(
    sampler: str,
    sample: Callable,
    request: tuple,
    plan: _Plan,
    gates: Gates,
    retries: int,
    cache: str | os.PathLike | None,
    progress: bool | None,
) -> MCMCResult:
    """Answer from the cache file where it answers the same question; otherwise sample, judge and store."""
    asked = {"sampler": sampler} | asdict(plan) | {"gates": asdict(gates), "retries": retries}
    del asked["attempt"]
    mark = "" if cache is None else arviz_io.fingerprint(asked, *request)
    if cache is not None and (known := _load_if_same(cache, mark)) is not None:
        return known
    packages = {"numpyro": ("numpyro", "jax", "numpy"), "pyro": ("pyro-ppl", "torch", "numpy")}[sampler]
    settings = asked | {"versions": {p: version(p) for p in packages}}
    show = sys.stderr.isatty() and progress is not False
    result = _gated(sample, request[-1], plan, gates, retries, settings, show)
    if cache is not None:
        result.save(cache, fingerprint=mark)
    return result


def _load_if_same(cache: str | os.PathLike, mark: str) -> MCMCResult | None:
    """The stored result if it answers the same question; None if absent, unreadable or another."""
    try:
        result, stored = _from_idata(arviz_io.load_netcdf(cache), cache)
    except (FileNotFoundError, ValueError):
        return None
    return result if stored == mark else None


def _from_idata(idata: Any, path: str | os.PathLike) -> tuple[MCMCResult, str]:
    attrs = arviz_io.decode_attrs(idata)
    try:
        facts = {k: attrs[k] for k in ("diagnostics", "settings", "seconds", "passed", "reason")}
        arrays = [
            {k: np.asarray(v) for k, v in idata[g].data_vars.items()} for g in ("posterior", "sample_stats")
        ]
    except KeyError as error:
        raise ValueError(
            f"{path}: posterior draws, but not of an MCMC run of this library ({error})"
        ) from error
    return MCMCResult(*arrays, **facts), attrs.get("fingerprint", "")


# -------------------------------------------------------------------------------------------------- the gates


def _gated(
    sample: Callable,
    function: FunctionOfDraws | None,
    plan: _Plan,
    gates: Gates,
    retries: int,
    settings: dict[str, Any],
    show: bool,
) -> MCMCResult:
    """Sample until the gates pass or the retries are used up; the last attempt is the result."""
    start = time.perf_counter()
    for attempt in range(retries + 1):
        draws, stats = sample(replace(plan, attempt=attempt), show)
        found, problems = _judge(_function_values(draws, function), stats["diverging"], gates)
        if not problems or attempt == retries:
            break
        already = plan.target_accept >= gates.retry_target_accept
        higher = (1 + plan.target_accept) / 2 if already else gates.retry_target_accept
        more = 2 if set(problems) <= {"rhat", "ess"} else 1
        plan = replace(plan, target_accept=higher, draws=plan.draws * more)
    found |= {"attempts": attempt + 1, "target_accept": plan.target_accept, "draws": plan.draws}
    seconds = time.perf_counter() - start
    return MCMCResult(draws, stats, found, settings, seconds, not problems, "; ".join(problems.values()))


def _flatten(draws: Mapping[str, np.ndarray]) -> Draws:
    return {k: v.reshape(-1, *v.shape[2:]) for k, v in draws.items()}


def _function_values(draws: Draws, function: FunctionOfDraws | None) -> np.ndarray:
    """Values to gate on, [chain, draw, K]."""
    chains, length = next(iter(draws.values())).shape[:2]
    if function is None:
        return np.concatenate([v.reshape(chains, length, -1) for v in draws.values()], axis=-1)
    values = np.asarray(function(_flatten(draws)))
    if values.ndim == 0 or len(values) != chains * length:
        raise ValueError(
            f"function must give one row a draw, [{chains * length}, K]; got shape {values.shape}"
        )
    return values.reshape(chains, length, -1)


def _judge(values: np.ndarray, diverging: np.ndarray, gates: Gates) -> tuple[dict[str, Any], dict[str, str]]:
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


# ------------------------------------------------------------------------------------------ NumPyro's sampler


def _numpyro_attempt(
    twin: Callable, args: tuple, kwargs: dict, plan: _Plan, show: bool
) -> tuple[Draws, Draws]:
    import jax

    with jax.enable_x64(plan.float64):
        args, kwargs = jax.tree.map(
            _to_jax, (args, kwargs), is_leaf=lambda x: arviz_io.as_array(x) is not None
        )
        names, normals = _twin_sites(twin, args, kwargs)
        states, advance = _compile(twin, args, kwargs, plan, names, normals)
    chain = functools.partial(_run_chain, advance, plan)
    with _Bar(show, (plan.warmup + plan.draws) * plan.chains, "NUTS") as bar:
        runs = _side_by_side(chain, states, bar)
    stacked = {k: np.stack([run[k] for run in runs]) for k in runs[0]}
    return {k: stacked.pop(k) for k in names}, {k.removeprefix("stats:"): v for k, v in stacked.items()}


def _to_jax(leaf: Any) -> Any:
    import jax.numpy as jnp

    array = arviz_io.as_array(leaf)
    return leaf if array is None else jnp.asarray(array)


def _twin_sites(twin: Callable, args: tuple, kwargs: dict) -> tuple[list[str], list[str]]:
    """Names of the latent sites, and of those to be non-centred.

    :raises ValueError: no latent site, a discrete one, or a plate that subsamples.
    """
    import jax
    from numpyro import distributions as dist
    from numpyro import handlers
    from numpyro.infer.initialization import init_to_uniform

    names, normals = [], []

    def look(key: Any) -> None:
        # abstractly (nothing is compiled), and with an initialiser: improper priors cannot be sampled
        model = handlers.substitute(handlers.seed(twin, key), substitute_fn=init_to_uniform)
        for site in handlers.trace(model).get_trace(*args, **kwargs).values():
            _refuse_subsampling(site["name"], site["args"] if site["type"] == "plate" else None)
            if site["type"] != "sample" or site["is_observed"]:
                continue
            _refuse_discrete(site["name"], site["fn"].support.is_discrete)
            names.append(site["name"])
            base = site["fn"]
            while isinstance(base, dist.Independent | dist.ExpandedDistribution):
                base = base.base_dist
            if type(base) is dist.Normal:
                normals.append(site["name"])

    jax.eval_shape(look, jax.random.PRNGKey(0))
    return _nonempty(names), normals


def _nonempty(names: list[str]) -> list[str]:
    if not names:
        raise ValueError("the model has no latent site: there is nothing to sample")
    return names


def _refuse_discrete(name: str, is_discrete: bool) -> None:
    if is_discrete:
        raise ValueError(
            f"latent site {name!r} is discrete: NUTS needs continuous sites (marginalise or enumerate it)"
        )


def _refuse_subsampling(name: str, sizes: Sequence | None) -> None:
    if sizes is not None and sizes[1] is not None and sizes[1] != sizes[0]:
        raise ValueError(f"plate {name!r} uses {sizes[1]} of {sizes[0]} rows: NUTS needs the whole data set")


def _compile(
    twin: Callable, args: tuple, kwargs: dict, plan: _Plan, names: Sequence[str], normals: Sequence[str]
) -> tuple[list, Callable]:
    """Initial states of the chains, and the compiled ``advance(state, n)`` -> state, buffers [_BLOCK,
    ...]."""
    import jax
    import jax.numpy as jnp
    from numpyro.handlers import reparam
    from numpyro.infer import NUTS
    from numpyro.infer.reparam import LocScaleReparam

    model = reparam(twin, config={name: LocScaleReparam(0) for name in normals})

    def started(key: Any) -> tuple[Any, Any]:
        # Stan's shrinkage of the estimated variances towards 0.001 swamps weights that the data pin down to a
        # small share of their prior sd (measured: it costs a factor of 15 in ESS on posteriordb's blr)
        kernel = NUTS(
            model,
            target_accept_prob=plan.target_accept,
            max_tree_depth=plan.max_tree_depth,
            dense_mass=plan.dense_mass,
            regularize_mass_matrix=plan.dense_mass,
        )
        return kernel, kernel.init(key, plan.warmup, None, model_args=args, model_kwargs=kwargs)

    def collect(kernel: Any, state: Any) -> dict:
        sites = kernel.postprocess_fn(args, kwargs)(state.z)
        stats = {"diverging": state.diverging, "lp": -state.potential_energy, "energy": state.energy,
                 "acceptance_rate": state.accept_prob, "step_size": state.adapt_state.step_size,
                 "n_steps": state.num_steps}  # fmt: skip
        return {k: sites[k] for k in names} | {f"stats:{k}": v for k, v in stats.items()}

    def advance(state: Any, n: Any) -> tuple[Any, dict]:
        # a kernel keeps transforms that may hold values of the trace which made it: each trace starts its own
        # (the unused state is dropped by the compiler)
        kernel, _ = started(jax.random.PRNGKey(0))

        def step(i: Any, carry: tuple) -> tuple:
            state, buffers = carry
            state = kernel.sample(state, args, kwargs)
            return state, jax.tree.map(lambda b, v: b.at[i].set(v), buffers, collect(kernel, state))

        shapes = jax.eval_shape(lambda s: collect(kernel, s), state)
        empty = jax.tree.map(lambda s: jnp.zeros((_BLOCK, *s.shape), s.dtype), shapes)
        return jax.lax.fori_loop(0, n, step, (state, empty))

    key = jax.random.fold_in(jax.random.PRNGKey(plan.seed), plan.attempt)
    # compiled as one program: operation by operation it takes some eight seconds on a small network, so two
    initial = jax.jit(lambda key: started(key)[1])
    states = [initial(k) for k in jax.random.split(key, plan.chains)]
    if not all(np.isfinite(state.potential_energy) for state in states):
        raise ValueError(
            "no starting point with a finite log density was found: check the model and its data"
        )
    return states, jax.jit(advance).lower(states[0], np.int32(1)).compile()


def _run_chain(advance: Callable, plan: _Plan, state: Any, tick: Callable[[int], None]) -> Draws:
    """One chain, warm-up first; site and statistic names -> [draw, ...]."""
    import jax

    kept: list[dict] = []
    with jax.enable_x64(plan.float64):  # the setting belongs to a thread
        for phase, total in (("warmup", plan.warmup), ("draws", plan.draws)):
            for done in range(0, total, _BLOCK):
                n = min(_BLOCK, total - done)
                state, block = advance(state, np.int32(n))
                if phase == "draws":
                    kept.append({k: np.array(v)[:n] for k, v in block.items()})
                else:
                    jax.block_until_ready(state)
                tick(n)
    return {k: np.concatenate([block[k] for block in kept]) for k in kept[0]}


class _Stop(Exception):
    """Raised inside a chain when another one failed or the user interrupted."""


def _side_by_side(chain: Callable, states: Sequence, bar: _Bar) -> list[Draws]:
    """Run the chains on the machine's cores; an error or Ctrl-C stops the others at their next block."""
    stop = threading.Event()

    def tick(n: int) -> None:
        if stop.is_set():
            raise _Stop
        bar.add(n)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(min(len(states), cores)) as pool:
        runs = [pool.submit(chain, state, tick) for state in states]
        try:
            while not all(run.done() for run in runs):
                wait(runs, timeout=0.2)
                bar.refresh()
                for run in runs:
                    if run.done():
                        run.result()
            return [run.result() for run in runs]
        except BaseException:
            stop.set()
            raise


class _Bar:
    """Progress on stderr, or nothing; counts may come from any thread, drawing is the main thread's."""

    def __init__(self, show: bool, total: int, title: str) -> None:
        self.count, self.lock, self.bar = 0, threading.Lock(), None
        if show:
            from tqdm import tqdm

            self.bar = tqdm(total=total, desc=title, unit="draw", leave=False, file=sys.stderr)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def add(self, n: int) -> None:
        with self.lock:
            self.count += n

    def refresh(self) -> None:
        if self.bar is not None:
            self.bar.update(self.count - self.bar.n)


# --------------------------------------------------------------------------------------------- Pyro's sampler


def _pyro_attempt(model: Callable, args: tuple, kwargs: dict, plan: _Plan, show: bool) -> tuple[Draws, Draws]:
    import torch
    from pyro import poutine
    from pyro.infer.reparam import LocScaleReparam

    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        try:
            if plan.float64:
                torch.set_default_dtype(torch.float64)
                args = tuple(_double(a) for a in args)
                kwargs = {k: _double(v) for k, v in kwargs.items()}
            names, normals = _pyro_sites(model, args, kwargs)
            centred = poutine.reparam(model, config={name: LocScaleReparam(0.0) for name in normals})
            with _Bar(show, (plan.warmup + plan.draws) * plan.chains, "NUTS (Pyro)") as bar:
                runs = [_pyro_chain(centred, args, kwargs, plan, c, names, bar) for c in range(plan.chains)]
        finally:
            torch.set_default_dtype(before)
    draws = {k: np.stack([run[0][k] for run in runs]) for k in names}
    return draws, {"diverging": np.stack([run[1] for run in runs])}


def _double(value: Any) -> Any:
    return value.double() if hasattr(value, "is_floating_point") and value.is_floating_point() else value


def _pyro_sites(model: Callable, args: tuple, kwargs: dict) -> tuple[list[str], list[str]]:
    """As :func:`_twin_sites`, for a Pyro model."""
    import pyro.distributions as dist
    from pyro import poutine

    names, normals = [], []
    for name, site in poutine.trace(model).get_trace(*args, **kwargs).nodes.items():
        if site["type"] != "sample":
            continue
        if type(site["fn"]).__name__ == "_Subsample":
            _refuse_subsampling(name, (site["fn"].size, site["fn"].subsample_size))
        elif not site["is_observed"]:
            _refuse_discrete(name, site["fn"].support.is_discrete)
            names.append(name)
            base = site["fn"]
            while isinstance(base, dist.Independent | dist.ExpandedDistribution):
                base = base.base_dist
            if type(base) is dist.Normal:
                normals.append(name)
    return _nonempty(names), normals


def _pyro_chain(
    model: Callable, args: tuple, kwargs: dict, plan: _Plan, chain: int, names: Sequence[str], bar: _Bar
) -> tuple[Draws, np.ndarray]:
    """Draws {site: [draw, *site]} in centred coordinates, and which of them diverged [draw]."""
    import torch
    from pyro import poutine
    from pyro.infer.mcmc import MCMC, NUTS

    torch.manual_seed(int(np.random.SeedSequence([plan.seed, plan.attempt, chain]).generate_state(1)[0]))
    settings = {"max_tree_depth": plan.max_tree_depth, "full_mass": plan.dense_mass}
    kernel = NUTS(model, target_accept_prob=plan.target_accept, **settings)

    def hook(*_: Any) -> None:
        bar.add(1)
        bar.refresh()

    run = MCMC(kernel, plan.draws, plan.warmup, disable_progbar=True, hook_fn=hook)
    run.run(*args, **kwargs)
    raw = run.get_samples()
    rows = []
    for i in range(
        plan.draws
    ):  # x = loc + scale z needs the model: its loc and scale may depend on other sites
        fixed = poutine.condition(model, data={k: v[i] for k, v in raw.items()})
        nodes = poutine.trace(fixed).get_trace(*args, **kwargs).nodes
        rows.append({k: nodes[k]["value"].detach().numpy() for k in names})
    diverging = np.zeros(plan.draws, dtype=bool)
    diverging[run.diagnostics()["divergences"]["chain 0"]] = True
    return {k: np.stack([row[k] for row in rows]) for k in names}, diverging
