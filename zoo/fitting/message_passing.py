"""Probabilistic backpropagation as a method of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from torch import Tensor

from zoo.errors import FailedError
from zoo.fitting.methods import Fitted, Watch
from zoo.fitting.stored import Stored

if TYPE_CHECKING:  # imports JAX: not for zoo --help
    from guides.message_passing import ProbabilisticBackpropagation


@dataclass(frozen=True)
class PassSettings:
    """:ivar epochs: passes over the data; :ivar seed: of the start and of the order of the rows"""

    epochs: int
    seed: int


@dataclass(frozen=True)
class MessagePassing(Stored):
    """Probabilistic backpropagation (:class:`guides.ProbabilisticBackpropagation`) of a number of passes.

    What it finds is the guide itself, and its file one that :meth:`guides.ProbabilisticBackpropagation.load`
    reads.
    """

    messages: Literal["gaussian", "spike-slab"]
    epochs: int
    takes: Sequence[str] = ()

    def settings(self, rows: int, seed: int, **wishes: object) -> PassSettings:
        return PassSettings(self.epochs, seed)

    def run(
        self, model: Callable, data: tuple[Tensor, Tensor], settings: PassSettings, watch: Watch
    ) -> ProbabilisticBackpropagation:
        guide = _guide_class()(model, messages=self.messages)
        advance = _bar(watch, settings.epochs)
        guide.fit(*data, epochs=settings.epochs, seed=settings.seed, on_epoch=advance)
        for name, site in guide.sites.items():
            if not (site.mean.isfinite().all() and site.variance.isfinite().all()):
                raise FailedError(f"site {name!r} is not finite after {guide.epochs} passes")
        return guide

    def read(self, path: Path, model: Callable) -> ProbabilisticBackpropagation:
        return _guide_class().load(path, model)

    def fitted(self, model: Callable, found: ProbabilisticBackpropagation) -> Fitted:
        """The predictive distribution of messages is in closed form."""
        weights = sum(site.mean.numel() for site in found.sites.values())
        passes = f"{found.epochs} pass{'es' * (found.epochs > 1)}"

        def draws(n: int, seed: int) -> dict[str, Tensor]:
            return found.draws(n, np.random.default_rng(seed))  # not the fit's: both are derived by name

        def draws_with_log_prob(n: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
            drawn = draws(n, seed)
            return drawn, found.log_prob(drawn)

        return Fitted(
            model,
            draws=draws,
            num_parameters=2 * weights + 2 * len(found.precisions),  # mean, variance; concentration, rate
            seconds=found.seconds,
            summary=f"{passes} in {found.seconds:.1f} s, {sum(found.refused.values())} updates refused",
            draws_with_log_prob=draws_with_log_prob,
            closed_form=found,
        )


def _guide_class() -> type[ProbabilisticBackpropagation]:
    from guides.message_passing import ProbabilisticBackpropagation

    return ProbabilisticBackpropagation


def _bar(watch: Watch, epochs: int) -> Callable | None:
    """What the guide calls after every pass; nothing where nobody watches, for it costs time."""
    if watch.progress is None:
        return None
    advance = watch.start(epochs)
    return lambda epoch, guide: advance()
