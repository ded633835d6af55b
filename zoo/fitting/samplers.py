"""Posteriors that are sampled or known, for who fits many small data sets of one shape.

Each takes a model and one data set and gives draws.  NUTS is compiled once a process for all data sets of a
shape: a compilation takes seconds, the chains of a small model milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from guides.truth.conjugate import conjugate_linear_regression
from guides.truth.gates import Gates, judge
from guides.truth.polya_gamma import spike_slab_logistic_gibbs
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from guides.truth.subsets import MAX_COLUMNS
from zoo.models.bnn import BNN
from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic
from zoo.models.weights import GaussianWeights, sd_of_layer

#: Of NUTS and Gibbs: chains of so many iterations, half as many before them.
CHAINS, ITERATIONS = 2, 1000

Draws = dict[str, Tensor]


@dataclass(frozen=True)
class Sampled:
    """:ivar draws: ``{site: [n, *site]}``
    :ivar converged: whether chains mixed well enough for the draws to count as independent; True where there
        are no chains
    """

    draws: Draws
    converged: bool = True


#: ``(model, x [N, in], y [N], n, seed) -> n draws``
Sampler = Callable[[Callable, Tensor, Tensor, int, int], Sampled]


def samplers(model: Callable) -> dict[str, Sampler]:
    """Those that a model has, the best first."""
    if isinstance(model, SpikeSlabLinear):
        return {"exact": _count_linear} if model.in_features <= MAX_COLUMNS else {}
    if isinstance(model, SpikeSlabLogistic):
        counted = {"exact": _count_logistic} if model.in_features <= MAX_COLUMNS else {}
        return {**counted, "gibbs": _gibbs}
    known = {"exact": _conjugate} if _is_conjugate(model) else {}
    continuous = hasattr(model, "twin") and model.traits.weights in ("gaussian", "hierarchical")
    return {**known, "nuts": _nuts} if continuous else known


def _is_conjugate(model: Callable) -> bool:
    """A linear regression whose noise is known."""
    return (
        isinstance(model, BNN)
        and not model.widths
        and model.likelihood == "normal"
        and model.noise_scale is not None
        and isinstance(model.weights, GaussianWeights)
    )


# ----------------------------------------------------------------------------------------------- closed forms


def _conjugate(model: BNN, x: Tensor, y: Tensor, n: int, seed: int) -> Sampled:
    shape = model.layers[0]
    scales = [sd_of_layer(model.weights.scale, 0, shape)] * shape[1]
    scales.append(sd_of_layer(model.bias_scale, 0, shape))
    design = np.column_stack([x.double().numpy(), np.ones(len(x))])
    exact = conjugate_linear_regression(
        design, y.double().numpy(), prior_scale=np.array(scales), noise_scale=model.noise_scale
    )
    w = torch.as_tensor(exact.draws(n, seed)["w"])
    return Sampled({"w1": w[:, None, :-1], "b1": w[:, -1:]})


def _count_linear(model: SpikeSlabLinear, x: Tensor, y: Tensor, n: int, seed: int) -> Sampled:
    exact = enumerate_spike_slab(*_arrays(x, y), inclusion_prob=model.inclusion)
    return Sampled(_tensors(exact.draws(n, seed)))


def _count_logistic(model: SpikeSlabLogistic, x: Tensor, y: Tensor, n: int, seed: int) -> Sampled:
    """Resampled by importance weights: without Laplace's error."""
    exact = enumerate_spike_slab_logistic(*_arrays(x, y), inclusion_prob=model.inclusion)
    return Sampled(_tensors(exact.draws(n, seed, resample=True)))


# ----------------------------------------------------------------------------------------------------- chains


def _gibbs(model: SpikeSlabLogistic, x: Tensor, y: Tensor, n: int, seed: int) -> Sampled:
    result = spike_slab_logistic_gibbs(
        *_arrays(x, y),
        inclusion_prob=model.inclusion,
        warmup=ITERATIONS // 2,
        draws=ITERATIONS,
        chains=CHAINS,
        seed=seed,
        gates=_gates(n),
        retries=0,
    )
    return Sampled(_thinned(result.draws, n), result.passed)


def _nuts(model: Callable, x: Tensor, y: Tensor, n: int, seed: int) -> Sampled:
    import jax

    keys = jax.random.split(jax.random.PRNGKey(seed), CHAINS)
    found, diverging, energy = jax.device_get(_compiled(model)(keys, x.numpy(), y.numpy()))
    # on the log density: weights of a network have symmetric modes
    _, problems = judge(energy[..., None], diverging, _gates(n))
    return Sampled(_thinned(found, n), not problems)


@cache
def _compiled(model: Callable) -> Callable:
    """``(keys [chains], x, y) -> draws {site: [chains, draws, *site]}, divergent, log density``."""
    import jax
    from numpyro import distributions as dist
    from numpyro import handlers
    from numpyro.handlers import reparam
    from numpyro.infer import NUTS
    from numpyro.infer.reparam import LocScaleReparam

    def is_latent(site: dict) -> bool:
        return site["type"] == "sample" and not site["is_observed"]

    def is_normal(law: dist.Distribution) -> bool:
        while isinstance(law, dist.Independent | dist.ExpandedDistribution):
            law = law.base_dist
        return type(law) is dist.Normal

    def chain(key, x, y):
        trace = handlers.trace(handlers.seed(model.twin, key)).get_trace(x, y)
        latent = {name: site["fn"] for name, site in trace.items() if is_latent(site)}
        non_centred = {name: LocScaleReparam(0) for name, law in latent.items() if is_normal(law)}
        # as guides.truth.nuts has it
        kernel = NUTS(reparam(model.twin, config=non_centred), regularize_mass_matrix=False)
        warmup = ITERATIONS // 2
        start = kernel.init(key, warmup, None, model_args=(x, y), model_kwargs={})

        def step(state, _):
            state = kernel.sample(state, (x, y), {})
            sites = kernel.postprocess_fn((x, y), {})(state.z)
            return state, ({name: sites[name] for name in latent}, state.diverging, state.potential_energy)

        _, found = jax.lax.scan(step, start, None, length=warmup + ITERATIONS)
        return jax.tree.map(lambda values: values[warmup:], found)

    return jax.jit(jax.vmap(chain, in_axes=(0, None, None)))


def _gates(n: int) -> Gates:
    """For ``n`` thinned draws that count as independent: a reference has stricter ones."""
    return Gates(max_rhat=1.05, min_ess_bulk=float(n), max_divergence_share=0.01)


def _thinned(draws: dict[str, np.ndarray], n: int) -> Draws:
    """``n`` evenly spaced draws of all chains."""
    merged = {name: torch.as_tensor(np.array(value)).flatten(0, 1) for name, value in draws.items()}
    keep = torch.linspace(0, CHAINS * ITERATIONS - 1, n).round().long()
    return {name: value[keep] for name, value in merged.items()}


def _arrays(x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return x.double().numpy(), y.double().numpy()


def _tensors(draws: dict[str, np.ndarray]) -> Draws:
    return {name: torch.as_tensor(value) for name, value in draws.items()}
