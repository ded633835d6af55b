"""Networks on images: a training loop in epochs, and predictions of networks that are really drawn.

Any Pyro model ``model(x, y=None, size=None)`` with an observed site ``y`` of classes, which returns the
logits ``[N, K]``, and any guide of this package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI
from torch import Tensor
from torch.distributions import Categorical

from guides.core.checks import check_counts, check_numbers
from guides.core.distributions import base_prior
from guides.core.flat_guide import FlatGuide
from guides.core.rng import seeded_rng
from guides.core.svi import (
    Schedule,
    geometric_ramp,
    half_cosine,
    shuffled_epochs,
    svi_steps,
    unwatched,
)
from guides.posterior.evaluate import over_draws
from zoo.errors import UserError
from zoo.evaluation.estimates import Estimate
from zoo.fitting.checkpoints import read_checkpoint, resume, saving, start, write_checkpoint
from zoo.fitting.reach import last_change
from zoo.fitting.subnormal import subnormal_numbers_are_zero
from zoo.fitting.svi import fitting
from zoo.seeds import stable_seed

#: Rows that all members of an ensemble see at once.
ROWS = 1000
#: Networks that a bound is taken from, at least.
NETWORKS = 50
#: Share of a training in which the weight of the divergence grows, unless it says otherwise.  Of ``lrt`` on
#: MNIST, twenty epochs, one run each: bound -0.322, -0.312, -0.318 and -0.349 (+- 0.004) nats an image with
#: 0.05, 0.15, 0.2 and 0.3, and 11 % of the weights in place of 1 % with the first
#: (``python benchmarks/sparse_network_schedule.py --rates 0.005 --reaches 1 --ramps 0.05 0.15 0.2 0.3``).
RAMP = 0.15
#: A checkpoint of a large network takes a part of a second.
SECONDS_BETWEEN_CHECKPOINTS = 60.0


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    :ivar epochs: passes over the training rows, in a new random order each
    :ivar lr: first learning rate of Adam; it falls to zero along a half cosine
    :ivar batch_size: rows of a minibatch; a last one that is smaller is left out
    :ivar seed: of the start, the orders and the noise
    :ivar factors: kinds of parameters whose rate is so many times ``lr``, by name
        (:func:`zoo.fitting.reach.own_rates`)
    :ivar common: kinds of parameters of which those of a site also move as one, at so many times ``lr``
        (``FlatGuide.optimizer``)
    :ivar kl_weights: what the KL divergence counts at the first step, and after ``ramp`` of the training;
        between them it grows by equal factors.  **A second weight below 1 makes a cold posterior**
    :ivar ramp: share of the training in which the weight of the divergence grows
    :ivar stop_after: epochs that are taken, where the training is broken off before its end: the schedule is
        that of all ``epochs``
    """

    epochs: int
    lr: float = 1e-3
    batch_size: int = 100
    seed: int = 0
    factors: Mapping[str, float] = field(default_factory=dict)
    common: Mapping[str, float] = field(default_factory=dict)
    kl_weights: tuple[float, float] = (1.0, 1.0)
    ramp: float = RAMP
    stop_after: int | None = None

    def __post_init__(self) -> None:
        check_counts(epochs=self.epochs, batch_size=self.batch_size)
        check_numbers(lr=self.lr)
        if not 0 < self.ramp <= 1:
            raise ValueError(f"ramp must be a share of the training, above 0 and at most 1, not {self.ramp}")
        if not 1 <= self.taken <= self.epochs:
            raise ValueError(f"stop_after must lie between 1 and {self.epochs}, not {self.stop_after}")

    @property
    def taken(self) -> int:
        """Epochs that are taken."""
        return self.epochs if self.stop_after is None else self.stop_after

    def steps_an_epoch(self, rows: int) -> int:
        return rows // min(self.batch_size, rows)

    def schedule(self, rows: int) -> Schedule:
        """Of the steps that are taken; what falls or is annealed changes from step to step."""
        each = self.steps_an_epoch(rows)
        steps = each * self.epochs
        first, last = self.kl_weights
        return Schedule(
            each * self.taken,
            lambda step: half_cosine(self.lr, step, steps),
            lambda step: step / max(1, steps - 1),
            None if first == last == 1 else lambda step: geometric_ramp(first, step / steps, self.ramp, last),
        )


@dataclass
class History:
    """What happened in each epoch.

    :ivar losses: mean over the steps of minus the ELBO estimate, nats of the whole training set; the
        divergence counts as in training
    :ivar figures: what ``each_epoch`` returned
    :ivar change: of minus the loss in the last tenth of the training, counted in learning rates, nats of the
        whole training set; of a guide that is annealed at its last temperature
    """

    losses: list[float] = field(default_factory=list)
    figures: list[Mapping[str, float]] = field(default_factory=list)
    change: float | None = None


def train(
    model: Callable,
    guide: FlatGuide,
    data: Sequence[Tensor],
    training: Training,
    *,
    each_epoch: Callable[[int], Mapping[str, float]] | None = None,
    checkpoint: Path | None = None,
) -> History:
    """Fits the guide by minibatches; one Monte Carlo sample a step.

    A guide with a temperature is annealed along with the learning rate, from step to step.

    :param data: the model's arguments, tensors ``[N, ...]`` whose rows belong together; the model also takes
        ``N`` after them
    :param each_epoch: called with the number of epochs done, 0 before the first
    :param checkpoint: a file that is kept up to date, and that the training goes on from where it is there,
        as if it had not been interrupted; a fresh guide is needed then
    :raises FailedError: when a loss or, at the end, a parameter is not finite
    :raises UserError: when the checkpoint is damaged, or of another training
    :raises ValueError: without rows
    """
    rows = len(data[0])
    if not rows:
        raise ValueError("there are no rows to train on")
    run = _Run(model, guide, data, training)
    save = None if checkpoint is None else partial(run.save, checkpoint)
    steps = seeded_rng(stable_seed("steps", training.seed))
    saved = saving(save, SECONDS_BETWEEN_CHECKPOINTS)
    with steps, fitting(), subnormal_numbers_are_zero(), saved as step_taken:
        run.begin(checkpoint, each_epoch)
        for _ in run.steps(each_epoch):
            step_taken()
    return run.history()


class _Run:
    """A training that goes on: what it has done so far, and the steps to come.

    :ivar losses: of every step
    :ivar final_losses: of every step (:class:`guides.core.svi.Step`)
    :ivar figures: what ``each_epoch`` returned
    """

    def __init__(self, model: Callable, guide: FlatGuide, data: Sequence[Tensor], training: Training):
        self.guide, self.data, self.training, self.rows = guide, data, training, len(data[0])
        self.optimizer = guide.optimizer(training.lr, factors=training.factors, common=training.common)
        self.svi = SVI(model, guide, self.optimizer, guide.elbo())
        self.schedule = training.schedule(self.rows)
        self.losses: list[float] = []
        self.final_losses: list[float] = []
        self.figures: list[Mapping[str, float]] = []

    def begin(self, checkpoint: Path | None, each_epoch: Callable | None) -> None:
        """At the first step, or where the checkpoint ends."""
        if checkpoint is not None and checkpoint.exists():
            self._restore(checkpoint)
            return
        start(self.guide, self.optimizer, self._set_up)
        if each_epoch is not None:
            self.figures.append(each_epoch(0))

    def steps(self, each_epoch: Callable | None) -> Iterator[None]:
        """Takes the remaining ones, one for every item that is asked of it."""
        done, each = len(self.losses), self.training.steps_an_epoch(self.rows)
        seed = stable_seed("orders", self.training.seed)
        batches = shuffled_epochs(self.data, self.training.batch_size, seed, done=done)
        for step in svi_steps(self.svi, batches, self.schedule, done=done):
            self.losses.append(step.loss)
            self.final_losses.append(step.final_loss)
            if each_epoch is not None and len(self.losses) % each == 0:
                self.figures.append(each_epoch(len(self.losses) // each))
            yield

    def history(self) -> History:
        each = self.training.steps_an_epoch(self.rows)
        firsts = range(0, len(self.losses), each)
        means = [math.fsum(self.losses[first : first + each]) / each for first in firsts]
        rates = [self.schedule.learning_rate(step) for step in range(len(self.losses))]
        return History(means, self.figures, last_change(self.final_losses, rates).value)

    def save(self, path: Path) -> None:
        header = {"training": asdict(self.training), "rows": self.rows, "figures": self.figures}
        losses, device = (self.losses, self.final_losses), self.data[0].device
        write_checkpoint(path, self.guide, self.optimizer, *losses, header, device)

    def _restore(self, path: Path) -> None:
        header, tensors = read_checkpoint(path)
        mine = json.loads(json.dumps({"training": asdict(self.training), "rows": self.rows}))
        if any(header.get(name) != value for name, value in mine.items()):
            raise UserError(f"{path} belongs to another training: choose another file, or delete it")
        device = self.data[0].device
        found = resume(self.guide, self.optimizer, header, tensors, self._set_up, device)
        self.losses, self.final_losses = found
        self.figures = header["figures"]

    def _set_up(self) -> None:
        set_up(self.guide, self.data, self.training)


def set_up(guide: FlatGuide, data: Sequence[Tensor], training: Training) -> None:
    """Makes a guide ready for the data, as :func:`train` has them; one with parameters keeps them."""
    guide.setup(*(part[: training.batch_size] for part in data), len(data[0]))


@torch.no_grad()
def bound(
    guide: FlatGuide, data: Sequence[Tensor], *, seed: int = 0, rows: int = ROWS, networks: int = NETWORKS
) -> Estimate:
    """The evidence lower bound a row, nats, and about its standard error: of networks that are drawn, a new
    one for every piece of the data; the divergence counts whole, whatever weight it had in training.

    :param rows: of a piece, at most; fewer where there would be too few pieces
    :param networks: pieces, at least, where there are as many rows; of networks with spikes a few are far
        worse than the rest, so that the standard error is a rough one with few
    """
    size = len(data[0])
    rows = min(rows, max(1, size // networks))
    svi = SVI(guide.model, guide, guide.optimizer(), guide.elbo())
    pieces = zip(*(part.split(rows) for part in data), strict=True)
    with seeded_rng(seed), unwatched():
        values = [(-svi.evaluate_loss(*piece, size) / size, len(piece[0])) for piece in pieces]
    weights = torch.tensor([count / size for _, count in values], dtype=torch.float64)
    bounds = torch.tensor([value for value, _ in values], dtype=torch.float64)
    mean = (weights * bounds).sum()
    spread = (weights * (bounds - mean)).square().sum().sqrt()
    return Estimate(mean.item(), spread.item() if len(values) > 1 else None)


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
    training (in a convolution, filters with signs of its own).  The published programs call these passes
    networks.  **They are not**: no set of weights belongs to one, and what rows have in common is lost.
    """
    parts = []
    with seeded_rng(seed), pyro.validation_enabled(False):
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
    return torch.special.entr(probabilities).sum(-1)


def stacked(posteriors: list[FlatGuide]) -> dict[str, Tensor]:
    """One draw of each guide: the members of a deep ensemble of point estimates, ``{name: [M, *site]}``."""
    draws = [guide.draws(1, seed=stable_seed("member", 0, i)) for i, guide in enumerate(posteriors)]
    return {name: torch.cat([draw[name] for draw in draws]) for name in draws[0]}
