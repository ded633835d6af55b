"""The samplers behind :mod:`guides.truth.mcmc`: one attempt of NumPyro's NUTS, and one of Pyro's.

How the chains run side by side: the sampler is compiled once, and one thread a core executes it (XLA releases
Python's lock).  No environment variable, no JAX setting and no device of the calling program is touched, and
a chain does not wait for the slowest trajectory of its neighbours as under ``chain_method="vectorized"``.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from guides.posterior.fingerprint import as_array
from guides.truth.gates import Draws
from guides.truth.interruption import held_back
from guides.truth.sampled_sites import pyro_sites, twin_sites

#: Most draws between two looks at the clock, and the seconds that they should take: few enough for Ctrl-C and
#: the bar, enough to cost nothing.
_BLOCK, _SECONDS = 25, 0.5


@dataclass(frozen=True)
class Plan:
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


# ------------------------------------------------------------------------------------------ NumPyro's sampler


def numpyro_attempt(twin: Callable, args: tuple, kwargs: dict, plan: Plan, show: bool) -> tuple[Draws, Draws]:
    with held_back() as interrupted:
        runs, names = _numpyro_chains(twin, args, kwargs, plan, show, interrupted)
    stacked = {k: np.stack([run[k] for run in runs]) for k in runs[0]}
    return {k: stacked.pop(k) for k in names}, {k.removeprefix("stats:"): v for k, v in stacked.items()}


def _numpyro_chains(
    twin: Callable, args: tuple, kwargs: dict, plan: Plan, show: bool, interrupted: threading.Event
) -> tuple[list[Draws], list[str]]:
    """Draws of every chain, and the names of the latent sites; ``KeyboardInterrupt`` once interrupted."""
    import jax

    with jax.enable_x64(plan.float64):
        args, kwargs = jax.tree.map(_to_jax, (args, kwargs), is_leaf=lambda x: as_array(x) is not None)
        names, normals = twin_sites(twin, args, kwargs)
        _stop_if(interrupted)
        states, advance = _compile(twin, args, kwargs, plan, names, normals, interrupted)
    chain = functools.partial(_run_chain, advance, plan)
    with _Bar(show, (plan.warmup + plan.draws) * plan.chains, "NUTS") as bar:
        return _side_by_side(chain, states, bar, interrupted), names


def _stop_if(interrupted: threading.Event) -> None:
    if interrupted.is_set():
        raise KeyboardInterrupt


def _to_jax(leaf: Any) -> Any:
    import jax.numpy as jnp

    array = as_array(leaf)
    return leaf if array is None else jnp.asarray(array)


def _kernel(model: Callable, plan: Plan) -> Any:
    """NumPyro's NUTS as a plan has it."""
    from numpyro.infer import NUTS

    # Stan's shrinkage of the estimated variances towards 0.001 swamps weights that the data pin down to a
    # small share of their prior sd (measured: it costs a factor of 15 in ESS on posteriordb's blr)
    return NUTS(
        model,
        target_accept_prob=plan.target_accept,
        max_tree_depth=plan.max_tree_depth,
        dense_mass=plan.dense_mass,
        regularize_mass_matrix=plan.dense_mass,
    )


def _statistics(state: Any) -> dict[str, Any]:
    """What is kept of a state of NUTS beside its sites."""
    return {
        "diverging": state.diverging,
        "lp": -state.potential_energy,
        "energy": state.energy,
        "acceptance_rate": state.accept_prob,
        "step_size": state.adapt_state.step_size,
        "n_steps": state.num_steps,
    }


def _compile(
    twin: Callable,
    args: tuple,
    kwargs: dict,
    plan: Plan,
    names: Sequence[str],
    normals: Sequence[str],
    interrupted: threading.Event,
) -> tuple[list, Callable]:
    """Initial states of the chains; compiled ``advance(state, n)`` -> state, buffers [_BLOCK, ...]."""
    import jax
    import jax.numpy as jnp
    from numpyro.handlers import reparam
    from numpyro.infer.reparam import LocScaleReparam

    model = reparam(twin, config={name: LocScaleReparam(0) for name in normals})

    def started(key: Any) -> tuple[Any, Any]:
        kernel = _kernel(model, plan)
        return kernel, kernel.init(key, plan.warmup, None, model_args=args, model_kwargs=kwargs)

    def collect(kernel: Any, state: Any) -> dict:
        sites = kernel.postprocess_fn(args, kwargs)(state.z)
        return {k: sites[k] for k in names} | {f"stats:{k}": v for k, v in _statistics(state).items()}

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
    _stop_if(interrupted)
    return states, jax.jit(advance).lower(states[0], np.int32(1)).compile()


def _run_chain(advance: Callable, plan: Plan, state: Any, tick: Callable[[int], None]) -> Draws:
    """One chain, warm-up first; site and statistic names -> [draw, ...]."""
    import jax

    kept: list[dict] = []
    size = 1
    with jax.enable_x64(plan.float64):  # the setting belongs to a thread
        for phase, total in (("warmup", plan.warmup), ("draws", plan.draws)):
            done = 0
            while done < total:
                start, n = time.perf_counter(), min(size, total - done)
                state, block = advance(state, np.int32(n))
                if phase == "draws":
                    kept.append({k: np.array(v)[:n] for k, v in block.items()})
                else:
                    jax.block_until_ready(state)
                tick(n)
                done += n
                size = _next_size(n, time.perf_counter() - start)
    return {k: np.concatenate([block[k] for block in kept]) for k in kept[0]}


def _next_size(n: int, seconds: float) -> int:
    """Draws of the next block, when ``n`` have taken so long.  What is drawn does not depend on it."""
    return max(1, min(_BLOCK, 4 * n, int(_SECONDS * n / max(seconds, 1e-9))))


class _Stop(Exception):
    """Raised inside a chain when another one failed or the user interrupted."""


def _side_by_side(chain: Callable, states: Sequence, bar: _Bar, interrupted: threading.Event) -> list[Draws]:
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
                _stop_if(interrupted)
                for run in runs:
                    if run.done():
                        run.result()
            return [run.result() for run in runs]
        except BaseException:
            stop.set()
            raise


class _Bar:
    """Progress on stderr, or nothing; counts may come from any thread."""

    def __init__(self, show: bool, total: int, title: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.progress = Progress(console=Console(stderr=True), transient=True, disable=not show)
        self.task = self.progress.add_task(title, total=total)

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def add(self, n: int) -> None:
        self.progress.advance(self.task, n)


# --------------------------------------------------------------------------------------------- Pyro's sampler

#: Draws from the prior with which it is looked at what masks hide.
_LOOKS = 8


def pyro_attempt(model: Callable, args: tuple, kwargs: dict, plan: Plan, show: bool) -> tuple[Draws, Draws]:
    import torch
    from pyro import poutine
    from pyro.infer.reparam import LocScaleReparam

    from guides.core.arguments import default_dtype, doubled
    from guides.core.masked_sites import Unmasked, padding
    from guides.core.rng import kept_rng

    dtype = torch.get_default_dtype()
    if plan.float64:
        dtype = torch.float64
        args, kwargs = tuple(map(doubled, args)), {k: doubled(v) for k, v in kwargs.items()}
    with kept_rng(), default_dtype(dtype):
        names, normals = pyro_sites(model, args, kwargs)
        model = Unmasked(padding([model] * _LOOKS, names, args, kwargs))(model)
        centred = poutine.reparam(model, config={name: LocScaleReparam(0.0) for name in normals})
        with _Bar(show, (plan.warmup + plan.draws) * plan.chains, "NUTS (Pyro)") as bar:
            runs = [_pyro_chain(centred, args, kwargs, plan, c, names, bar) for c in range(plan.chains)]
    draws = {k: np.stack([run[0][k] for run in runs]) for k in names}
    return draws, {"diverging": np.stack([run[1] for run in runs])}


def _pyro_chain(
    model: Callable, args: tuple, kwargs: dict, plan: Plan, chain: int, names: Sequence[str], bar: _Bar
) -> tuple[Draws, np.ndarray]:
    """Draws {site: [draw, *site]} in centred coordinates, and which of them diverged [draw]."""
    from pyro import poutine
    from pyro.infer.mcmc import MCMC, NUTS

    from guides.core.rng import seeded_rng

    seed = int(np.random.SeedSequence([plan.seed, plan.attempt, chain]).generate_state(1)[0])
    settings = {"max_tree_depth": plan.max_tree_depth, "full_mass": plan.dense_mass}
    kernel = NUTS(model, target_accept_prob=plan.target_accept, **settings)

    run = MCMC(kernel, plan.draws, plan.warmup, disable_progbar=True, hook_fn=lambda *_: bar.add(1))
    rows = []
    with seeded_rng(seed):
        run.run(*args, **kwargs)
        raw = run.get_samples()
        # x = loc + scale z needs the model: its loc and scale may depend on other sites
        for i in range(plan.draws):
            fixed = poutine.condition(model, data={k: v[i] for k, v in raw.items()})
            nodes = poutine.trace(fixed).get_trace(*args, **kwargs).nodes
            rows.append({k: nodes[k]["value"].detach().numpy() for k in names})
    diverging = np.zeros(plan.draws, dtype=bool)
    diverging[run.diagnostics()["divergences"]["chain 0"]] = True
    return {k: np.stack([row[k] for row in rows]) for k in names}, diverging
