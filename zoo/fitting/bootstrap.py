"""The posterior bootstrap as a method of the zoo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from guides.bootstrap.posterior_bootstrap import PosteriorBootstrap
from guides.core.settling import UnsettledWarning
from zoo.budgets import STEPS
from zoo.evaluation.estimates import mean_estimate
from zoo.fitting.methods import Fitted, Watch
from zoo.fitting.stored import Numbers, Stored, in_turn
from zoo.fitting.svi import FitSettings, fitting


@dataclass(frozen=True)
class BootstrapSettings:
    """:ivar num_draws: of the posterior; :ivar steps: of Adam, all draws together"""

    num_draws: int
    steps: int
    lr: float
    seed: int


@dataclass(frozen=True)
class Bootstrap(Stored):
    """Modes of the posterior density with Dirichlet weights on the rows (:class:`guides.PosteriorBootstrap`,
    ``loss="map"``).  They have no density and no bound; asked for more draws than there are, they come in
    turn.
    """

    num_draws: int = 200
    takes: Sequence[str] = ("steps", "lr")

    def settings(
        self, rows: int, seed: int, *, steps: int = STEPS, lr: float = FitSettings.lr
    ) -> BootstrapSettings:
        return BootstrapSettings(self.num_draws, steps, lr, seed)

    def run(self, model: Callable, data: tuple, settings: BootstrapSettings, watch: Watch) -> Numbers:
        start = time.perf_counter()
        advance = watch.start(settings.steps)
        with fitting(UnsettledWarning):
            posterior = PosteriorBootstrap(model, loss="map").fit(
                *data,
                num_draws=settings.num_draws,
                seed=settings.seed,
                steps=settings.steps,
                lr=settings.lr,
                on_step=advance,
            )
        facts = {name: posterior.info[name] for name in ("steps", "losses", "last_tenth")}
        seconds = time.perf_counter() - start
        return Numbers(posterior.draws(), {**facts, "rows": len(data[0]), "seconds": seconds})

    def fitted(self, model: Callable, found: Numbers) -> Fitted:
        tensors, facts = found.tensors, found.facts
        count = len(next(iter(tensors.values())))
        changes = torch.tensor(facts["last_tenth"], dtype=torch.float64)  # nats a row
        steps, seconds, rows = facts["steps"], facts["seconds"], facts["rows"]
        return Fitted(
            model,
            draws=in_turn(tensors),
            most_draws=count,
            num_parameters=sum(value.numel() for value in tensors.values()),
            seconds=seconds,
            bound_change=mean_estimate(rows * changes),
            summary=f"{count} draws of {steps} steps in {seconds:.1f} s; the last tenth of the learning took "
            f"{changes.mean():.2g} nats a row",
        )
