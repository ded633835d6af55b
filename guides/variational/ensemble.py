"""Point estimates and deep ensembles (Lakshminarayanan, Pritzel and Blundell 2017) of any Pyro model.

Pyro has the point estimate: ``AutoDelta`` maximises the log joint density (MAP).  Without the priors'
densities it maximises the likelihood, the deterministic network (:class:`FlatPriors`).  An ensemble is
several of them from different seeds; it comes out as a :class:`~guides.posterior.draws.Posterior` whose
draws are its members, so that every question asked of a posterior can be asked of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.poutine.messenger import Messenger
from torch import Tensor

from guides.core.optim import FusedAdam
from guides.core.rng import kept_rng
from guides.core.sites import initial_value, require_density_of_points
from guides.core.svi import DivergenceError, Schedule, svi_steps, unwatched
from guides.posterior.draws import Posterior


class FlatPriors(Messenger):
    """Leaves the priors' densities out of the score: ``FlatPriors()(model)`` for maximum likelihood."""

    def _pyro_sample(self, msg: dict) -> None:
        if not msg["is_observed"]:
            msg["mask"] = False


def fit_ensemble(
    model: Callable,
    *args,
    members: int = 5,
    steps: int = 1000,
    lr: float = 0.01,
    prior: bool = True,
    seed: int = 0,
    init_loc_fn: Callable[[dict], Tensor] = initial_value,
    **kwargs,
) -> Posterior:
    """Fits ``members`` networks by Adam, each from a start and with minibatches (if any) of its own.

    :param model: a Pyro model; ``args`` and ``kwargs`` are its arguments, with data
    :param members: 1 for the deterministic network
    :param lr: first learning rate; it falls linearly to zero
    :param prior: maximise the joint density (MAP); False: the likelihood alone
    :param seed: every member gets a seed of its own from this number, ``members`` and its place; the caller's
        random generators stay as they are
    :returns: one chain of ``members`` draws; ``info["losses"]`` has each member's last loss
    :raises ValueError: for arguments out of range
    :raises DivergenceError: a RuntimeError, when a loss or a parameter of a member is not finite
    :raises UnsupportedSiteError: for a SpikeSlab prior, unless ``prior=False``
    """
    if members < 1 or steps < 1 or not lr > 0:
        raise ValueError(f"members, steps and lr must be positive, got {members}, {steps} and {lr}")
    scored = partial(model if prior else FlatPriors()(model), **kwargs)

    def start(site: dict) -> Tensor:
        require_density_of_points(site["name"], site)
        return init_loc_fn(site)

    schedule = Schedule(steps, lambda step: lr * (1 - step / steps))
    points, losses = [], []
    for member in range(members):
        # Nothing of the fit stays in Pyro's global store, nor in the generators.
        with pyro.get_param_store().scope(), _generators_restored():
            pyro.set_rng_seed(_seed_of_member(seed, members, member))
            guide = AutoDelta(scored, init_loc_fn=start)
            svi = SVI(scored, guide, FusedAdam(lr=lr), Trace_ELBO())
            taken = svi_steps(svi, itertools.repeat(args), schedule)
            try:
                first = next(taken)  # watched by Pyro, which tells what is wrong with a model
                with unwatched():
                    last = [first, *taken][-1]
            except DivergenceError as error:
                raise DivergenceError(f"member {member}, {error}") from None
            points.append({name: value.detach().clone() for name, value in guide.median().items()})
            losses.append(last.loss)
    draws = {name: torch.stack([point[name] for point in points]) for name in points[0]}
    info = {
        "method": ("map" if prior else "maximum-likelihood") if members == 1 else "deep-ensemble",
        "members": members, "steps": steps, "lr": lr, "prior": prior, "seed": seed, "losses": losses,
    }  # fmt: skip
    return Posterior.from_draws(model, draws, info)


def _seed_of_member(seed: int, members: int, member: int) -> int:
    """Below 2^32: ensembles of other seeds, or of another size, share no member."""
    return int(np.random.SeedSequence((seed, members, member)).generate_state(1)[0])


@contextmanager
def _generators_restored() -> Iterator[None]:
    """The generators of torch (CUDA's too), numpy and Python end as they began."""
    before = pyro.util.get_rng_state()
    with kept_rng():
        try:
            yield
        finally:
            pyro.util.set_rng_state(before)
