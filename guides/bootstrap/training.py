"""Training along a stream of laws of the data, with some parameters minimised in every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from guides.bootstrap.base_measures import Rows
from guides.bootstrap.weighted_loss import AT_THE_START, Parameters
from guides.core.checks import check_counts, check_numbers
from guides.core.svi import DivergenceError
from guides.flows.weighted_batch_norm import weighted_rows

#: L2 penalty on shared parameters, that of the published flows.
WEIGHT_DECAY = 1e-6

Encoded = tuple[Tensor, ...]


class ClosedForm(Protocol):
    """A Pyro model whose local sites have a closed form, as those of :class:`zoo.models.FlowDensity`."""

    def encode(self, *rows: Tensor) -> Encoded:
        """All that the shared parameters do to rows; first ``z: [..., N, k]``, what the sites depend on."""
        ...

    def local(self, weights: Tensor, z: Tensor) -> Parameters:
        """The sites that minimise the loss, of weights ``[..., N]``."""
        ...

    def log_density(self, sites: Parameters, encoded: Encoded) -> Tensor:
        """``[N]``, nats."""
        ...


@dataclass(frozen=True)
class Law:
    """A law of the data with finite support: ``weights: [N]`` that sum to one, and as many rows."""

    weights: Tensor
    rows: Rows


@dataclass(frozen=True)
class Training:
    """How long and how fast.

    :ivar steps: at most
    :ivar patience: steps without a better validation score before it ends; without validation rows all
        steps are taken
    """

    steps: int = 6000
    lr: float = 1e-3
    patience: int = 30
    weight_decay: float = WEIGHT_DECAY

    def __post_init__(self) -> None:
        check_counts(steps=self.steps, patience=self.patience)
        check_numbers(lr=self.lr)


@dataclass
class Progress:
    """Of one training.

    :ivar losses: weighted loss of every step, nats a row
    :ivar scores: mean log density of the validation rows before every step, where there are any
    :ivar best: the step whose parameters were kept
    """

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best: int = 0

    @property
    def score(self) -> float:
        return self.scores[self.best] if self.scores else -self.losses[-1]


def train(
    objective: Objective,
    laws: Iterator[Law],
    training: Training,
    on_step: Callable[[], None] = lambda: None,
) -> Progress:
    """Trains the module of an objective along a stream of laws, and leaves it where its score was best.

    A constant stream is maximum likelihood, or its weighted kind.

    :raises DivergenceError: a RuntimeError, when a loss is not finite, or the score of no step
    """
    module, progress, kept = objective.module, Progress(), None
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=training.lr, weight_decay=training.weight_decay, fused=True)
    for step in range(training.steps):
        module.train()
        optimizer.zero_grad()
        law = next(laws)
        loss, score = _evaluated(objective, law, progress, step)
        if score is None or _better(score, progress, kept):
            progress.best = step
            if score is not None:
                kept = {name: value.clone() for name, value in module.state_dict().items()}
        elif step - progress.best >= training.patience:
            break
        loss.backward()
        optimizer.step()
        on_step()
    if kept is None and progress.scores:
        raise DivergenceError(
            f"the validation score is {progress.scores[0]:g} and never finite: a validation row is far "
            "outside those that are trained on"
        )
    if kept is not None:
        module.load_state_dict(kept)
    else:
        _follow(objective, law)
    module.eval()
    return progress


def _evaluated(objective: Objective, law: Law, progress: Progress, step: int) -> tuple[Tensor, float | None]:
    """The loss of a step, with gradients, and the score at its local sites; both are noted.  A module in
    training mode ends in evaluation mode.

    :raises DivergenceError: for a loss that is not finite
    """
    with weighted_rows(law.weights):
        loss, sites = objective.loss(law)
    progress.losses.append(loss.item())
    if not math.isfinite(progress.losses[-1]):
        remedy = "lower lr" if step else AT_THE_START
        raise DivergenceError(f"step {step}: the loss is {progress.losses[-1]:g}; {remedy}")
    objective.module.eval()
    score = objective.score(sites)
    if score is not None:
        progress.scores.append(score)
    return loss, score


def _follow(objective: Objective, law: Law) -> None:
    """Sets the statistics of batch normalisation to those of the parameters after the last step."""
    objective.module.train()
    with torch.no_grad(), weighted_rows(law.weights):
        objective.loss(law)


def _better(score: float, progress: Progress, kept: dict | None) -> bool:
    """Whether a step is the best so far; one whose score is not finite never is."""
    return math.isfinite(score) and (kept is None or score > progress.scores[progress.best])


class Objective(Protocol):
    """What is trained, with the local sites minimised."""

    module: nn.Module

    def loss(self, law: Law) -> tuple[Tensor, Parameters]:
        """The weighted loss at the best local sites, and these."""
        ...

    def score(self, sites: Parameters) -> float | None:
        """Mean log density of the validation rows, None without any."""
        ...


@dataclass(frozen=True)
class InClosedForm:
    """:ivar local: instead of the module's own: of constant sites, say"""

    module: nn.Module
    validation: Rows | None = None
    local: Callable[[Tensor, Tensor], Parameters] | None = None

    def loss(self, law: Law) -> tuple[Tensor, Parameters]:
        encoded = self.module.encode(*law.rows)
        sites = (self.local or self.module.local)(law.weights, encoded[0].detach())
        return -(law.weights.to(encoded[0]) * self.module.log_density(sites, encoded)).sum(), sites

    def score(self, sites: Parameters) -> float | None:
        if self.validation is None:
            return None
        with torch.no_grad():
            return self.module.log_density(sites, self.module.encode(*self.validation)).mean().item()
