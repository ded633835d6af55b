"""The loop over data points, compiled: assumed density filtering, and the refinement of the prior, in JAX.

Knows no Pyro.  The network is one pure function

    forward(weights, row) -> message

``weights``: ``{site: (mean, variance)}``; ``row``: ``{name: array}``, one data point; the message (of
either family) is that of the network's output, a scalar.  ``forward`` is a static argument of the compiled
functions: give it ``__hash__`` and ``__eq__``, so that networks of one structure are compiled once.

:func:`run_epochs` is the published schedule; :func:`run_epoch`, :func:`run_minibatches` and :func:`refine`
are its parts.  With ``trials=True`` every array of the state, the data and the orders has a leading
dimension ``[T, ...]``, and ``T`` independent runs go through one loop together.

JAX's 64-bit mode is on inside these functions only.  The noise and all precisions are float64, whatever the
weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from guides.message_passing.arrays import Array, double_precision
from guides.message_passing.messages import GAUSSIAN, SPIKE_SLAB, GaussianMessage
from guides.message_passing.updates import (
    PriorSite,
    adf_update,
    batch_update,
    cavity,
    expected_variance,
    gamma_update,
    proper_gamma,
    refine_precision,
)

Forward = Callable[[dict[str, "Moments"], dict[str, Array]], Any]


class Moments(NamedTuple):
    """Of the weights of a site, each ``[*site]``."""

    mean: Array
    variance: Array


class Precision(NamedTuple):
    """``Gamma(concentration, rate)``, numbers in float64."""

    concentration: Array
    rate: Array


class FixedNoise(NamedTuple):
    """A known noise variance, in place of a :class:`Precision`."""

    variance: Array


class Prior(NamedTuple):
    """``w ~ N(loc, factor^2 / t)`` and the sites that stand for it; broadcast to ``[*site]``."""

    loc: Array
    factor: Array
    site: PriorSite


class Refused(NamedTuple):
    """How many updates the guards refused so far: of single weights, of the noise, of prior factors."""

    weights: Array
    noise: Array
    prior: Array


class State(NamedTuple):
    """Everything that a run changes, and the priors.

    :ivar weights: ``{weight site: Moments}``
    :ivar noise: a :class:`Precision`, or a :class:`FixedNoise`
    :ivar priors: ``{weight site: Prior}``, for weights with a random precision only
    :ivar precisions: ``{precision site: Precision}``
    :ivar refused: counts, int64
    """

    weights: dict[str, Moments]
    noise: Precision | FixedNoise
    priors: dict[str, Prior]
    precisions: dict[str, Precision]
    refused: Refused


#: which weight sites share which precision, in the order of the sweep: ((weight site, precision site), ...)
Links = tuple[tuple[str, str], ...]


def initial_state(
    means: Mapping[str, Any],
    variances: Mapping[str, Any],
    noise: tuple[float, float] | float,
    precisions: Mapping[str, tuple[float, float]] | None = None,
    links: Mapping[str, tuple[str, Any, Any]] | None = None,
    dtype: Any = np.float64,
) -> tuple[State, Links]:
    """The state before the first data point.

    :param means: ``{weight site: array}``, start values
    :param variances: the same for the weights whose prior has a fixed scale; others are not read
    :param noise: ``(concentration, rate)`` of the noise precision, or a known noise variance
    :param precisions: ``{precision site: (concentration, rate)}``
    :param links: ``{weight site: (precision site, loc, factor)}``: ``w ~ N(loc, factor^2 / precision)``;
        such a weight starts at the expected prior variance ``factor^2 rate / (concentration - 1)``
    :param dtype: of the weights
    :returns: the state, and the ``links`` as :func:`refine` wants them
    :raises ValueError: a precision whose concentration is not above 1
    """
    precisions, links = dict(precisions or {}), dict(links or {})
    noise_is_random = isinstance(noise, tuple)
    for name, (concentration, _) in [*precisions.items(), *([("noise", noise)] if noise_is_random else [])]:
        if not concentration > 1:
            raise ValueError(
                f"{name}: a Gamma prior needs a concentration above 1 (this one has {concentration}), or the "
                "expected variance that message passing starts from is infinite"
            )
    with double_precision():
        weights, priors = {}, {}
        for site, mean in means.items():
            mean = np.asarray(mean, dtype)
            if site in links:
                precision_site, loc, factor = links[site]
                variance, priors[site] = _linked(mean, precisions[precision_site], loc, factor)
            else:
                variance = np.broadcast_to(np.asarray(variances[site], dtype), mean.shape)
            weights[site] = Moments(jnp.asarray(mean), jnp.asarray(variance))
        state = State(
            weights,
            Precision(*map(_double, noise)) if noise_is_random else FixedNoise(_double(noise)),
            priors,
            {name: Precision(*map(_double, p)) for name, p in precisions.items()},
            Refused(*(jnp.zeros((), np.int64) for _ in Refused._fields)),
        )
    return state, tuple((site, links[site][0]) for site in means if site in links)


def _linked(
    mean: np.ndarray, precision: tuple[float, float], loc: Any, factor: Any
) -> tuple[np.ndarray, Prior]:
    """The first variance of a weight whose prior has a random precision, and that prior."""
    loc, factor = (np.broadcast_to(np.asarray(a, np.float64), mean.shape) for a in (loc, factor))
    variance = (factor**2 * expected_variance(*precision)).astype(mean.dtype)
    whitened = variance.astype(np.float64) / factor**2
    gamma_part = jnp.zeros(mean.shape, np.float64)
    site_part = PriorSite(jnp.asarray(1 / whitened), gamma_part, gamma_part)
    return variance, Prior(jnp.asarray(loc), jnp.asarray(factor), site_part)


def run_epoch(forward: Forward, state: State, rows: Mapping[str, Any], y: Any, order: Any) -> State:
    """One pass: one update for each entry of ``order``.

    :param rows: ``{name: [N, ...]}``
    :param y: ``[N]``
    :param order: row numbers ``[steps]``
    """
    return _call(_epoch, (forward,), (state, dict(rows), y, order))


def run_minibatches(forward: Forward, state: State, rows: Mapping[str, Any], y: Any, order: Any) -> State:
    """The same in minibatches: each point of a batch is matched against the same old state.

    :param order: row numbers ``[batches, size]``; -1 marks an empty place
    """
    return _call(_minibatches, (forward,), (state, dict(rows), y, order))


def refine(links: Links, state: State) -> State:
    """One sweep over the prior factors of all weights, one weight after another."""
    return _call(_refine, (links,), (state,))


def run_epochs(
    forward: Forward,
    links: Links,
    state: State,
    rows: Mapping[str, Any],
    y: Any,
    orders: Any,
    *,
    trials: bool = False,
) -> State:
    """Passes over the data, each followed by a refinement of the prior.

    :param orders: ``[epochs, steps]`` for single points, ``[epochs, batches, size]`` for minibatches
    """
    return _call(_epochs, (forward, links), (state, dict(rows), y, orders), trials)


# ------------------------------------------------------------------------------------------ what is compiled


def _epoch(forward: Forward, state: State, rows: dict[str, Array], y: Array, order: Array) -> State:
    def step(state: State, point: tuple[dict[str, Array], Array]) -> tuple[State, None]:
        return _absorb(forward, state, *point), None

    points = jax.tree.map(lambda a: a[order], (rows, y))
    return _one_kernel(functools.partial(jax.lax.scan, step))(state, points)[0]


def _absorb(forward: Forward, state: State, row: dict[str, Array], y: Array) -> State:
    """One data point."""
    gradients, log_z = _evidence(forward, state, row, y)
    state = _with_weights(state, adf_update, gradients)
    if isinstance(state.noise, FixedNoise):
        return state
    *noise, accepted = gamma_update(*log_z, *state.noise)
    refused = state.refused._replace(noise=state.refused.noise + ~accepted)
    return state._replace(noise=Precision(*noise), refused=refused)


def _with_weights(state: State, update: Callable, gradients: dict) -> State:
    """The weights moved along the gradients of every site; those that are refused stay, and count."""
    weights, refused = {}, state.refused.weights
    for site, (mean, variance) in state.weights.items():
        *moments, accepted = update(mean, variance, *gradients[site])
        weights[site] = Moments(*moments)
        refused = refused + jnp.sum(~accepted)
    return state._replace(weights=weights, refused=state.refused._replace(weights=refused))


def _evidence(forward: Forward, state: State, row: dict[str, Array], y: Array) -> tuple[dict, list[Array]]:
    """Gradient of ``log Z_0`` in every weight's mean and variance, and ``log Z_k`` for the noise update."""

    def output(weights):
        return jax.tree.map(lambda a: a.astype(jnp.float64), forward(weights, row))

    message, pull_back = jax.vjp(output, state.weights)
    family = GAUSSIAN if isinstance(message, GaussianMessage) else SPIKE_SLAB
    if isinstance(state.noise, FixedNoise):
        noise_variances = [state.noise.variance]
    else:
        noise_variances = [expected_variance(*state.noise, k) for k in range(3)]
    log_z0, gradient = jax.value_and_grad(family.log_evidence)(message, y, noise_variances[0])
    log_z = [log_z0, *(family.log_evidence(message, y, s) for s in noise_variances[1:])]
    return pull_back(gradient)[0], log_z


def _minibatches(forward: Forward, state: State, rows: dict[str, Array], y: Array, order: Array) -> State:
    def step(state: State, batch: Array) -> tuple[State, None]:
        return _absorb_batch(forward, state, rows, y, batch), None

    return jax.lax.scan(step, state, order)[0]


def _absorb_batch(forward: Forward, state: State, rows: dict[str, Array], y: Array, batch: Array) -> State:
    """The points of one batch, ``-1`` left out."""
    present = batch >= 0
    points = jax.tree.map(lambda a: a[jnp.maximum(batch, 0)], (rows, y))
    gradients, log_z = jax.vmap(lambda row, y: _evidence(forward, state, row, y))(*points)
    # a gradient of 0 changes nothing
    gradients = jax.tree.map(
        lambda g: jnp.where(present.reshape(-1, *[1] * (g.ndim - 1)), g, jnp.zeros_like(g)), gradients
    )
    state = _with_weights(state, batch_update, gradients)
    if isinstance(state.noise, FixedNoise):
        return state
    old = state.noise
    a, b, accepted = gamma_update(*log_z, *old)  # for every point; a refused one changes nothing
    change = [jnp.sum(jnp.where(present, new - was, 0.0)) for new, was in zip((a, b), old, strict=True)]
    new = Precision(*(was + c for was, c in zip(old, change, strict=True)))
    proper = proper_gamma(*new)
    new = Precision(*(jnp.where(proper, n, was) for n, was in zip(new, old, strict=True)))
    count = jnp.where(proper, jnp.sum(present & ~accepted), jnp.sum(present))
    return state._replace(noise=new, refused=state.refused._replace(noise=state.refused.noise + count))


def _refine(links: Links, state: State) -> State:
    """Weights of one precision are independent of those of another, so each precision has its own loop."""
    for precision_site in dict.fromkeys(name for _, name in links):
        sites = [site for site, name in links if name == precision_site]
        state = _refine_group(state, sites, precision_site)
    return state


def _refine_group(state: State, sites: list[str], precision_site: str) -> State:
    """The sweep over the weights that share one precision.

    A weight's cavity depends on that weight alone; only the precision passes from weight to weight.  So the
    loop is over numbers, and what it finds is applied to all weights at once.
    """
    priors = [state.priors[site] for site in sites]
    whitened = [_whiten(state.weights[site], prior) for site, prior in zip(sites, priors, strict=True)]
    u = Moments(*(_flat(column) for column in zip(*whitened, strict=True)))
    old = PriorSite(*(_flat(column) for column in zip(*(p.site for p in priors), strict=True)))
    without = cavity(*u, old.precision)

    def step(precision: Precision, weight: tuple) -> tuple[Precision, Precision]:
        return Precision(*refine_precision(*weight, *precision)[1:3]), precision

    sweep = _one_kernel(functools.partial(jax.lax.scan, step))
    precision, met = sweep(state.precisions[precision_site], (*without, old))
    # the same once more for all weights, each with the precision that it met, for their sites
    new, _, _, refined, refused = refine_precision(*without, old, *met)
    # N(u; cavity) times the new site N(u; 0, 1/precision)
    variance = without.variance / (1 + without.variance * new.precision)
    mean = without.mean * variance / without.variance
    proper = refined & (variance > 0) & jnp.isfinite(mean)
    u = Moments(jnp.where(proper, mean, u.mean), jnp.where(proper, variance, u.variance))

    weights, new_priors, start = dict(state.weights), dict(state.priors), 0
    for site, prior in zip(sites, priors, strict=True):
        shape = state.weights[site].mean.shape
        part = slice(start, start := start + int(np.prod(shape)))
        reshaped = Moments(*(a[part].reshape(shape) for a in u))
        weights[site] = _colour(reshaped, prior, state.weights[site], proper[part].reshape(shape))
        new_priors[site] = prior._replace(site=PriorSite(*(a[part].reshape(shape) for a in new)))
    return state._replace(
        weights=weights,
        priors=new_priors,
        precisions=state.precisions | {precision_site: precision},
        refused=state.refused._replace(prior=state.refused.prior + jnp.sum(refused)),
    )


def _whiten(weights: Moments, prior: Prior) -> Moments:
    """Moments of ``u = (w - loc) / factor``, in float64."""
    mean, variance = (a.astype(jnp.float64) for a in weights)
    return Moments((mean - prior.loc) / prior.factor, variance / prior.factor**2)


def _colour(u: Moments, prior: Prior, old: Moments, changed: Array) -> Moments:
    """Moments of ``w = loc + factor u`` where changed, else the old ones to the last bit."""
    new = Moments(prior.loc + prior.factor * u.mean, prior.factor**2 * u.variance)
    return Moments(*(jnp.where(changed, n.astype(o.dtype), o) for n, o in zip(new, old, strict=True)))


def _epochs(
    forward: Forward, links: Links, state: State, rows: dict[str, Array], y: Array, orders: Array
) -> State:
    one_pass = _epoch if orders.ndim == 2 else _minibatches

    def epoch(state: State, order: Array) -> tuple[State, None]:
        return _refine(links, one_pass(forward, state, rows, y, order)), None

    return jax.lax.scan(epoch, state, orders)[0]


# ------------------------------------------------------------------------------------------------ calling it


def _one_kernel(function: Callable) -> Callable:
    """Ask XLA's CPU compiler for one machine function instead of some thirty that its runtime calls in turn.

    A step of the loops here takes less time than those calls.  XLA does the same on its own for loops that
    touch less than a kilobyte; the two attributes are what it would set.  Where they mean nothing they are
    ignored.
    """

    def call(*arguments):
        leaves, structure = jax.tree.flatten(jax.jit(function)(*arguments))
        # the attribute goes to the operation that made the value, which is the call
        leaves[0] = set_xla_metadata(leaves[0], xla_cpu_small_call="true", inlineable="false")
        return jax.tree.unflatten(structure, leaves)

    return call


@functools.cache
def _compiled(function: Callable, static: int, trials: bool) -> Callable:
    """``function``, its first ``static`` arguments static; with ``trials`` over a leading dimension."""

    def call(*arguments):
        constants, arrays = arguments[:static], arguments[static:]
        run = functools.partial(function, *constants)
        return jax.vmap(run)(*arrays) if trials else run(*arrays)

    return jax.jit(call, static_argnums=tuple(range(static)))


def _call(function: Callable, static: tuple, arrays: tuple, trials: bool = False) -> State:
    with double_precision():
        arrays = jax.tree.map(jnp.asarray, arrays)
        return _compiled(function, len(static), trials)(*static, *arrays)


def _double(value: Any) -> Array:
    return jnp.asarray(value, jnp.float64)


def _flat(arrays: tuple[Array, ...]) -> Array:
    return jnp.concatenate([a.reshape(-1) for a in arrays])
