"""Stochastic variational inference: the one loop that everything here is fitted by, and its minibatches.

A fit is three things: Pyro's ``SVI`` (model, guide, optimiser, loss), an iterator of minibatches, each of
them a tuple of the model's arguments, and a :class:`Schedule`::

    svi = SVI(model, guide, guide.optimizer(), guide.elbo())
    schedule = Schedule(2000, lambda step: half_cosine(0.01, step, 2000))
    losses = [step.loss for step in svi_steps(svi, random_rows((x, y), 500), schedule)]
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pyro
import torch
from pyro.infer import SVI
from pyro.poutine.guide import GuideMessenger
from torch import Tensor

from guides.core.probing import kept_statistics
from guides.core.rng import kept_rng
from guides.core.settling import places

#: What to do when no step has been taken yet.
START = "the start itself overflows: look for outliers, or a fixed noise that is too small"


class DivergenceError(RuntimeError):
    """A fit met a number that is not finite; the message names the step, the site if known, and a remedy."""


@dataclass(frozen=True)
class Schedule:
    """What changes from step to step, by the number of the step: 0, 1 ... ``steps - 1``.

    :ivar steps: of the whole fit
    :ivar learning_rate: of a step
    :ivar progress: from 0 at the first step to 1 at the last, for guides that have a schedule of their own
        (a method ``anneal(progress)``); None leaves them as they are
    :ivar kl_weight: what the guide's KL divergence counts in a step (``FlatGuide.kl_weight``); None leaves it
        as it is.  **Where it does not end in 1 what is fitted is a cold posterior, and not the posterior**
    """

    steps: int
    learning_rate: Callable[[int], float]
    progress: Callable[[int], float] | None = None
    kl_weight: Callable[[int], float] | None = None


def half_cosine(lr: float, done: float, total: float = 1.0) -> float:
    """A learning rate that falls from ``lr`` to zero, when so much of the total is done."""
    return lr * 0.5 * (1 + math.cos(math.pi * done / total))


def geometric_ramp(first: float, done: float, share: float = 0.5, last: float = 1.0) -> float:
    """A weight that goes from ``first`` to ``last`` by equal factors.

    :param done: share of the fit that is done, 0 to 1
    :param share: of the fit after which it has arrived, above 0
    """
    return first * (last / first) ** min(1.0, done / share)


class Step(NamedTuple):
    """What a step has found.

    :ivar loss: minus the ELBO estimate, nats
    :ivar final_loss: the same at the temperature that an annealed guide ends with, in the steps whose losses
        say whether the fit has settled (:func:`guides.core.settling.places`): as the temperature falls a
        relaxed bound falls with it, and would hide what the guide still gains.  Elsewhere, and of other
        guides, ``loss``
    :ivar seconds: that the step took, its minibatch included
    """

    loss: float
    final_loss: float
    seconds: float


def svi_steps(svi: SVI, batches: Iterator[tuple], schedule: Schedule, *, done: int = 0) -> Iterator[Step]:
    """Takes one step of the fit for every item that is asked of it.

    It asks for a minibatch when it takes the step and not before, so that between two items the random
    state, the guide and the optimiser are all there is to a fit.

    :param svi: its optimiser has a ``set_lr``, as :class:`guides.core.optim.FusedAdam`
    :param batches: tuples of the model's arguments
    :param done: steps that were taken earlier
    :raises DivergenceError: at the first loss that is not finite, or when the last step breaks a parameter
    """
    anneal = getattr(svi.guide, "anneal", None) if schedule.progress else None
    compared = _compared_steps(schedule) if anneal is not None else ()
    for step in range(done, schedule.steps):
        svi.optim.set_lr(schedule.learning_rate(step))
        if anneal is not None:
            anneal(schedule.progress(step))
        if schedule.kl_weight is not None:
            svi.guide.kl_weight = schedule.kl_weight(step)
        start = time.perf_counter()
        batch = next(batches)
        final_loss = _final_loss(svi, batch, schedule, step) if step in compared else None
        loss = svi.step(*batch)
        seconds = time.perf_counter() - start
        _check(svi, schedule, step, loss)
        yield Step(loss, loss if final_loss is None else final_loss, seconds)


def _compared_steps(schedule: Schedule) -> set[int]:
    steps = range(schedule.steps)
    if not steps:
        return set()
    return {
        step for place in places([schedule.learning_rate(step) for step in steps]) for step in steps[place]
    }


def _final_loss(svi: SVI, batch: tuple, schedule: Schedule, step: int) -> float:
    """Minus the relaxed bound at the last temperature, nats, which only a run with gradients has; of the
    noise of the step itself.  It leaves the guide, the random state and what the model's modules count (batch
    normalization) as they were.
    """
    svi.guide.anneal(schedule.progress(schedule.steps - 1))
    with kept_rng(), kept_statistics():
        loss = float(svi.loss(svi.model, svi.guide, *batch))
    svi.guide.anneal(schedule.progress(step))
    return loss


@contextmanager
def unwatched() -> Iterator[None]:
    """Without Pyro's validation: a fifth faster, and a number that is not finite reaches the loss, where the
    step is known, instead of an error inside a distribution.
    """
    with pyro.validation_enabled(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Encountered (NaN|\\+/-inf)", category=UserWarning)
        yield


def _check(svi: SVI, schedule: Schedule, step: int, loss: float) -> None:
    if not math.isfinite(loss):
        remedy = START if step == 0 else _lower(schedule)
        raise DivergenceError(f"step {step}: the loss is {loss}{_site(svi)}; {remedy}")
    # The last step is followed by no loss that could show what it did.
    if step == schedule.steps - 1 and not all(p.isfinite().all() for p in svi.guide.parameters()):
        raise DivergenceError(f"step {step}: it leaves a parameter that is not finite; {_lower(schedule)}")


def _site(svi: SVI) -> str:
    """The first site, in the model's order, whose part in the loss is not finite."""
    if not isinstance(svi.guide, GuideMessenger):
        return ""  # it keeps no trace of the run that gave this loss, and its parameters have moved since
    with torch.no_grad():
        trace, _ = svi.guide.get_traces()
        trace.compute_log_prob()
    parts = {name: node["log_prob_sum"] for name, node in trace.nodes.items() if "log_prob_sum" in node}
    bad = [name for name, part in parts.items() if not part.isfinite()]
    return f", site {bad[0]!r} is not finite" if bad else ", though no single site is"


def _lower(schedule: Schedule) -> str:
    return f"lower the learning rate (now {schedule.learning_rate(0):g})"


# ------------------------------------------------------------------------------------------------ minibatches


def random_rows(data: Sequence[Tensor | Sequence], size: int | None) -> Iterator[tuple]:
    """Rows drawn with replacement by torch's global generator, for ever.

    :param data: the model's arguments, tensors ``[N, ...]`` or lists of ``N``, whose rows belong together
    :param size: rows of a minibatch ``(*rows, N)``; None, or ``N`` and more, gives ``data`` itself, without N
    """
    rows = len(data[0])
    while True:
        if size is None or size >= rows:
            yield tuple(data)
        else:
            keep = torch.randint(rows, (size,))
            yield (*(_picked(part, keep) for part in data), rows)


def shuffled_epochs(
    data: Sequence[Tensor | Sequence], size: int, seed: int, *, done: int = 0
) -> Iterator[tuple]:
    """Passes over all rows, each in a new random order, for ever: minibatches ``(*rows, N)``.

    :param data: as for :func:`random_rows`
    :param size: rows of a minibatch, at most ``N``; a smaller one at the end of a pass is left out
    :param seed: of the orders, which take nothing from torch's global generator
    :param done: minibatches that were taken earlier, and are not given again
    """
    rows, generator = len(data[0]), torch.Generator().manual_seed(seed)
    size = min(size, rows)
    passes, taken = divmod(done, rows // size)
    for _ in range(passes):
        torch.randperm(rows, generator=generator)
    device = next((part.device for part in data if isinstance(part, Tensor)), "cpu")
    while True:
        order = torch.randperm(rows, generator=generator).to(device)
        for keep in order[: rows // size * size].split(size)[taken:]:
            yield (*(_picked(part, keep) for part in data), rows)
        taken = 0


def _picked(part: Tensor | Sequence, keep: Tensor) -> Tensor | list:
    """The cases of one argument whose numbers are in ``keep: [size]``."""
    return part[keep] if isinstance(part, Tensor) else [part[i] for i in keep.tolist()]
