"""Point estimates and deep ensembles (Lakshminarayanan, Pritzel and Blundell 2017) of any Pyro model.

Pyro has the point estimate: ``AutoDelta`` maximises the log joint density (MAP).  Without the priors'
densities it maximises the likelihood, the deterministic network (:class:`FlatPriors`).  An ensemble is
several of them from different seeds; it comes out as a :class:`~guides.posterior.draws.Posterior` whose
draws are its members, so that every question asked of a posterior can be asked of it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from guides.core.arguments import FixedParameters, blaming_arguments, check_parameters
from guides.core.checks import check_counts, check_numbers
from guides.core.optim import FusedAdam
from guides.core.rng import kept_rng
from guides.core.settling import UnsettledWarning, last_change, still_moving
from guides.core.sites import require_density_of_points
from guides.core.starts import initial_value
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

    The scale of a hierarchy has its mode at zero: members of such a model may collapse there.

    :param model: a Pyro model; ``args`` and ``kwargs`` are its arguments, with data
    :param members: 1 for the deterministic network
    :param lr: first learning rate; it falls linearly to zero
    :param prior: maximise the joint density (MAP); False: the likelihood alone
    :param seed: every member gets a seed of its own from this number, ``members`` and its place; the caller's
        random generators stay as they are
    :returns: one chain of ``members`` draws; ``info["losses"]`` has each member's last loss,
        ``info["last_tenth"]`` by how much it still fell in the last tenth of the learning, nats, and
        ``info["last_tenth_se"]`` the standard error of that (None of few steps)
    :warns UnsettledWarning: when a member's loss still fell by more than half a nat
    :raises ValueError: for arguments out of range, or of the model that are not finite; a model that observes
        nothing; a site that nothing
        is learned about, as the priors of others are where ``prior=False``; a parameter without a prior
        (``pyro.param``, or a module's) that is not fixed by ``requires_grad_(False)``
    :raises DivergenceError: a RuntimeError, when a loss or a parameter of a member is not finite
    :raises UnsupportedSiteError: for a SpikeSlab prior, unless ``prior=False``
    """
    check_counts(members=members, steps=steps)
    check_numbers(lr=lr)
    with blaming_arguments(args, kwargs):
        trace = check_parameters(model, args, kwargs, fate="the members would share or lose")
    _check_data(trace.nodes)
    scored = partial(FixedParameters()(model if prior else FlatPriors()(model)), **kwargs)

    def start(site: dict) -> Tensor:
        require_density_of_points(site["name"], site)
        return init_loc_fn(site)

    schedule = Schedule(steps, lambda step: lr * (1 - step / steps))
    begun, points, losses, changes = [], [], [], []
    for member in range(members):
        # Nothing of the fit stays in Pyro's global store, nor in the generators.
        with pyro.get_param_store().scope(), _generators_restored():
            pyro.set_rng_seed(_seed_of_member(seed, members, member))
            guide = AutoDelta(scored, init_loc_fn=start)
            try:
                first, course = _fit_member(scored, guide, args, kwargs, schedule)
            except DivergenceError as error:
                raise DivergenceError(f"member {member}, {error}") from None
            begun.append(first)
            points.append(_point(guide))
        losses.append(course[-1])
        changes.append(last_change(course, [schedule.learning_rate(step) for step in range(steps)]))
    if not prior and steps > 1:
        _check_moved(begun, points)
    _warn_unsettled(changes)
    draws = {name: torch.stack([point[name] for point in points]) for name in points[0]}
    info = {
        "method": ("map" if prior else "maximum-likelihood") if members == 1 else "deep-ensemble",
        "members": members, "steps": steps, "lr": lr, "prior": prior, "seed": seed, "losses": losses,
        "last_tenth": [change for change, _ in changes], "last_tenth_se": [se for _, se in changes],
    }  # fmt: skip
    return Posterior.from_draws(model, draws, info)


def _fit_member(
    model: Callable, guide: AutoDelta, args: tuple, kwargs: dict, schedule: Schedule
) -> tuple[dict[str, Tensor], list[float]]:
    """Where a member is after the first step, and the losses of all steps; the guide ends where the last one
    leaves it.
    """
    svi = SVI(model, guide, FusedAdam(lr=schedule.learning_rate(0)), Trace_ELBO())
    taken = svi_steps(svi, itertools.repeat(args), schedule)
    with blaming_arguments(args, kwargs):
        first = next(taken)  # watched by Pyro, which tells what is wrong with a model
    begun = _point(guide)
    with unwatched():
        return begun, [first.loss, *(step.loss for step in taken)]


def _check_data(nodes: Mapping[str, dict]) -> None:
    """:raises ValueError: for a model without data, whose members would all be the mode of the prior"""
    sites = (node for node in nodes.values() if node["type"] == "sample" and not site_is_subsample(node))
    if not any(node["is_observed"] and not node["infer"].get("_deterministic") for node in sites):
        raise ValueError("the model observes nothing: pass its data")


def _point(guide: AutoDelta) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in guide.median().items()}


def _check_moved(before: Sequence[dict[str, Tensor]], after: Sequence[dict[str, Tensor]]) -> None:
    """:raises ValueError: a site that in all members is where it was after the first step, to the last bit"""
    pairs = list(zip(before, after, strict=True))
    still = [name for name in after[0] if all(torch.equal(first[name], last[name]) for first, last in pairs)]
    if still:
        raise ValueError(
            f"site {', '.join(map(repr, still))} has not moved: the likelihood does not depend on it (take "
            "prior=True, or leave it out of the model), or lr is lost in its rounding"
        )


def _warn_unsettled(changes: Sequence[tuple[float, float | None]]) -> None:
    """Of the members whose loss fell by more than the noise of minibatches; few steps do not tell."""
    falling = [change for change, se in changes if se is not None and still_moving(change, se)]
    if falling:
        warnings.warn(
            f"{len(falling)} of {len(changes)} members have not arrived: their losses still fell by up to "
            f"{max(falling):.2g} nats in the last tenth of the learning; take more steps, or a larger lr",
            UnsettledWarning,
            stacklevel=3,
        )


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
