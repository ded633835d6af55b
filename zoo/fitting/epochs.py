"""Networks on images: a training loop in epochs, and predictions of networks that are really drawn.

Any Pyro model ``model(x, y=None, size=None)`` with an observed site ``y`` of classes, which returns the
logits ``[N, K]``, and any guide of this package.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI
from torch import Tensor
from torch.distributions import Categorical

from guides.core.distributions import base_prior
from guides.core.flat_guide import FlatGuide
from guides.posterior.evaluate import over_draws
from zoo.errors import DivergenceError

#: Rows that all members of an ensemble see at once.
ROWS = 1000


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    :ivar epochs: passes over the training rows, in a new random order each
    :ivar lr: first learning rate of Adam; it falls to zero along a half cosine
    :ivar batch_size: rows of a minibatch; a last one that is smaller is left out
    :ivar seed: of the start, the orders and the noise
    """

    epochs: int
    lr: float = 1e-3
    batch_size: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.lr > 0:
            raise ValueError("epochs, batch_size and lr must be positive")

    def learning_rate(self, progress: float) -> float:
        """:param progress: share of the steps that are done"""
        return self.lr * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass
class History:
    """What happened in each epoch.

    :ivar losses: mean over the steps of minus the ELBO estimate, nats of the whole training set
    :ivar seconds: time in the steps
    :ivar figures: what ``each_epoch`` returned
    """

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    figures: list[Mapping[str, float]] = field(default_factory=list)


def train(
    model: Callable,
    guide: FlatGuide,
    x: Tensor,
    y: Tensor,
    training: Training,
    *,
    each_epoch: Callable[[int], Mapping[str, float]] | None = None,
) -> History:
    """Fits the guide to ``x: [N, ...]``, ``y: [N]`` by minibatches; one Monte Carlo sample a step.

    A guide with a temperature is annealed along with the learning rate.

    :param each_epoch: called with the number of epochs done, 0 before the first; its time is not counted
    :raises DivergenceError: when a loss or, at the end, a parameter is not finite
    :raises ValueError: without rows
    """
    if not len(x):
        raise ValueError("there are no rows to train on")
    size, batch = len(x), min(training.batch_size, len(x))
    steps = size // batch
    history = History()
    generator = torch.Generator().manual_seed(training.seed)
    devices = [x.device] if x.is_cuda else []
    with torch.random.fork_rng(devices=devices), pyro.validation_enabled(False), warnings.catch_warnings():
        # What is not finite reaches the loss, where the step is known.
        warnings.filterwarnings("ignore", message="Encountered (NaN|\\+/-inf)", category=UserWarning)
        torch.manual_seed(training.seed)
        set_up(guide, x, y, training)
        optimizer = guide.optimizer(training.lr)
        svi = SVI(model, guide, optimizer, guide.elbo())
        if each_epoch is not None:
            history.figures.append(each_epoch(0))
        for epoch in range(training.epochs):
            if hasattr(guide, "anneal"):
                guide.anneal(epoch / max(1, training.epochs - 1))
            start, losses = time.perf_counter(), []
            order = torch.randperm(size, generator=generator).to(x.device)
            for i, rows in enumerate(order[: steps * batch].split(batch)):
                optimizer.set_lr(training.learning_rate((epoch + i / steps) / training.epochs))
                losses.append(svi.step(x[rows], y[rows], size))
                if not math.isfinite(losses[-1]):
                    raise DivergenceError(
                        f"epoch {epoch + 1}, step {i + 1}: the loss is {losses[-1]}; lower the learning rate "
                        f"(now {training.lr:g})"
                    )
            history.seconds.append(time.perf_counter() - start)
            history.losses.append(math.fsum(losses) / len(losses))
            if each_epoch is not None:
                history.figures.append(each_epoch(epoch + 1))
    if not all(parameter.isfinite().all() for parameter in guide.parameters()):
        raise DivergenceError(f"the last step is not finite; lower the learning rate (now {training.lr:g})")
    return history


def set_up(guide: FlatGuide, x: Tensor, y: Tensor, training: Training) -> None:
    """Makes a guide ready for the data ``x: [N, ...]``, ``y: [N]``; one with parameters keeps them."""
    rows = slice(training.batch_size)
    guide.setup(x[rows], y[rows], len(x))


# ------------------------------------------------------------------------------------------------ predictions


@torch.no_grad()
def member_probabilities(
    model: Callable, weights: Mapping[str, Tensor], x: Tensor, *, rows: int = ROWS
) -> Tensor:
    """Class probabilities ``[M, N, K]`` of ``M`` networks, all of them at once.

    :param weights: of every latent site ``[M, *site]``, drawn once for each network
    :param x: ``[N, ...]``, in pieces of ``rows``
    """
    return torch.cat(list(_pieces(model, weights, x, rows)), 1)


@torch.no_grad()
def averaged_probabilities(
    model: Callable, weights: Mapping[str, Tensor], x: Tensor, *, rows: int = ROWS
) -> Tensor:
    """The ensemble's prediction ``[N, K]``: the mean over networks of their class *probabilities* (the
    published programs average their logarithms); arguments as for :func:`member_probabilities`.
    """
    return torch.cat([piece.mean(0) for piece in _pieces(model, weights, x, rows)])


def _pieces(model: Callable, weights: Mapping[str, Tensor], x: Tensor, rows: int) -> Iterator[Tensor]:
    for inputs in x.split(rows):
        nothing = torch.zeros(len(inputs), dtype=torch.long, device=x.device)  # data, so that none are drawn

        def logits(
            member: dict[str, Tensor], inputs: Tensor = inputs, nothing: Tensor = nothing
        ) -> tuple[Tensor]:
            return (poutine.condition(model, member)(inputs, nothing),)

        yield over_draws(logits, weights)[0].softmax(-1)


def single_network(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One network ``{name: [*site]}`` as an ensemble of one."""
    return {name: value.unsqueeze(0) for name, value in weights.items()}


def local_reparameterization_probabilities(
    guide: FlatGuide, x: Tensor, members: int, *, seed: int = 0, rows: int = ROWS
) -> Tensor:
    """Averaged class probabilities ``[N, K]`` of passes in which every row has noise of its own, as in
    training.  The published programs call these passes networks.  **They are not**: no set of weights
    belongs to one, and what rows have in common is lost.
    """
    devices = [x.device] if x.is_cuda else []
    parts = []
    with torch.random.fork_rng(devices=devices), pyro.validation_enabled(False):
        torch.manual_seed(seed)
        for inputs in x.split(rows):
            nothing = torch.zeros(len(inputs), dtype=torch.long, device=x.device)
            total = torch.zeros((), device=x.device)
            for _ in range(members):
                with poutine.block():
                    guide(inputs, nothing, len(inputs))
                total = total + base_prior(guide.trace.nodes["y"]["fn"]).logits.detach().softmax(-1)
            parts.append(total / members)
    return torch.cat(parts)


def classes(probabilities: Tensor) -> Categorical:
    """As a distribution, for :mod:`zoo.evaluation.metrics`."""
    return Categorical(probs=probabilities, validate_args=False)


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum p log p`` in nats, ``[..., K] -> [...]``."""
    return -torch.special.xlogy(probabilities, probabilities).sum(-1)


def stacked(posteriors: list[FlatGuide], *, seed: int = 0) -> dict[str, Tensor]:
    """One draw of each guide: the members of a deep ensemble of point estimates, ``{name: [M, *site]}``."""
    draws = [guide.draws(1, seed=seed) for guide in posteriors]
    return {name: torch.cat([draw[name] for draw in draws]) for name in draws[0]}
