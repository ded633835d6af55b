"""Point estimates as methods of the zoo: one network (MAP), or a deep ensemble of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from guides.core.settling import CLEAR, UnsettledWarning
from guides.core.svi import random_rows
from guides.variational.ensemble import fit_ensemble
from zoo.budgets import STEPS
from zoo.errors import FailedError
from zoo.evaluation.estimates import Estimate
from zoo.fitting.methods import Fitted, Watch
from zoo.fitting.stored import Numbers, Stored, in_turn
from zoo.fitting.svi import FitSettings, default_batch_size, fitting
from zoo.seeds import stable_seed


@dataclass(frozen=True)
class EnsembleSettings:
    """:ivar steps: of Adam, each member; the other fields as in :class:`zoo.fitting.svi.FitSettings`"""

    members: int
    steps: int
    lr: float
    batch_size: int | None
    seed: int


@dataclass(frozen=True)
class PointEstimates(Stored):
    """Networks at modes of the posterior density (:func:`guides.fit_ensemble`), each from a seed of its own.

    A draw is one of the members, in turn: as many of each as can be.  They have no density and no bound.

    :ivar members: 1 for the deterministic network
    """

    members: int
    takes: Sequence[str] = ("steps", "lr", "batch-size")

    def settings(
        self,
        rows: int,
        seed: int,
        *,
        steps: int = STEPS,
        lr: float = FitSettings.lr,
        batch_size: int | None = None,
    ) -> EnsembleSettings:
        return EnsembleSettings(self.members, steps, lr, batch_size or default_batch_size(rows), seed)

    def run(self, model: Callable, data: tuple, settings: EnsembleSettings, watch: Watch) -> Numbers:
        start, members, ends = time.perf_counter(), [], []
        scored = Minibatches(model, settings.batch_size)
        advance = watch.start(settings.members)
        with fitting(UnsettledWarning):
            for i in range(settings.members):
                seed = stable_seed("member", settings.seed, settings.members, i)
                member, end = _member(scored, data, settings, seed)
                members.append(member)
                ends.append(end)
                advance()
        tensors = {name: torch.cat([member[name] for member in members]) for name in members[0]}
        seconds = time.perf_counter() - start
        return Numbers(tensors, {"seconds": seconds, "steps": settings.steps, "ends": ends})

    def fitted(self, model: Callable, found: Numbers) -> Fitted:
        tensors, facts = found.tensors, found.facts
        count = len(next(iter(tensors.values())))

        networks = "1 network" if count == 1 else f"{count} networks"
        last = ", ".join(f"{loss:.1f}" for loss, *_ in facts["ends"])
        changes = [Estimate(change, se) for _, change, se in facts["ends"]]
        moved = max(changes, key=lambda change: change.value - CLEAR * (change.se or 0.0))  # most clearly
        steps, seconds = facts["steps"], facts["seconds"]
        return Fitted(
            model,
            draws=in_turn(tensors),
            most_draws=count,
            num_parameters=sum(value.numel() for value in tensors.values()),
            seconds=seconds,
            summary=f"{networks} of {steps} steps in {seconds:.1f} s, last loss {last} nats",
            bound_change=moved,
        )


@dataclass(frozen=True)
class Minibatches:
    """A model that sees other rows of its data at every call (:func:`guides.core.svi.random_rows`), its
    likelihood scaled up to all of them.
    """

    model: Callable
    size: int | None

    def __call__(self, *data: Tensor | Sequence) -> Tensor:
        return self.model(*next(random_rows(data, self.size)))


def _member(
    model: Callable, data: tuple, settings: EnsembleSettings, seed: int
) -> tuple[dict[str, Tensor], tuple[float, float, float | None]]:
    """One network, ``{site: [1, *site]}``; its last loss, how much that still fell, and the error of it."""
    found = fit_ensemble(model, *data, members=1, steps=settings.steps, lr=settings.lr, seed=seed)
    draws = found.draws()
    bad = [name for name, value in draws.items() if not value.isfinite().all()]
    if bad:
        raise FailedError(
            f"site {bad[0]!r} is not finite after {settings.steps} steps; lower the learning rate (now "
            f"{settings.lr:g})"
        )
    info = found.info
    return draws, (info["losses"][0], info["last_tenth"][0], info["last_tenth_se"][0])
