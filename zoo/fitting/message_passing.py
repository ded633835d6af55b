"""Probabilistic backpropagation as a method of the zoo: its fit, kept in a file with a seal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.progress import Progress
from torch import Tensor

from zoo.errors import DivergenceError
from zoo.files.sealed import is_finished, read_seal, seal_of, write_seal
from zoo.fitting.methods import Fitted, unfinished
from zoo.models.traits import Traits

if TYPE_CHECKING:  # slow to import
    from guides.message_passing import ProbabilisticBackpropagation


@dataclass(frozen=True)
class PassSettings:
    """:ivar epochs: passes over the data; :ivar seed: of the start and of the order of the rows"""

    epochs: int
    seed: int


@dataclass(frozen=True)
class MessagePassing:
    """Probabilistic backpropagation (:class:`guides.ProbabilisticBackpropagation`) of a number of passes."""

    messages: Literal["gaussian", "spike-slab"]
    epochs: int
    takes: Sequence[str] = ()

    def settings(self, rows: int, seed: int, **wishes: object) -> PassSettings:
        return PassSettings(self.epochs, seed)

    def fit(
        self,
        model: Callable,
        x: Tensor,
        y: Tensor,
        settings: PassSettings,
        *,
        path: Path | None = None,
        about: Mapping | None = None,
        progress: Progress | None = None,
        label: str = "fit",
    ) -> Fitted:
        """A fit takes seconds: an interrupted one begins again, a finished one is read."""
        about = json.loads(json.dumps(about or {}))
        if is_finished(path, about):
            return self.load(path, model)
        guide = self._guide_class()(model, messages=self.messages)
        advance = _bar(progress, label, settings.epochs)
        guide.fit(x, y, epochs=settings.epochs, seed=settings.seed, on_epoch=advance)
        _check(guide)
        if path is not None:
            guide.save(path)
            write_seal(path, about)
        return _fitted(guide, model)

    def about(self, path: Path) -> dict:
        if not seal_of(path).exists():
            raise unfinished(path)
        return read_seal(path)

    def load(self, path: Path, model: Callable) -> Fitted:
        return _fitted(self._guide_class().load(path, model), model)

    @staticmethod
    def _guide_class():
        from guides.message_passing import ProbabilisticBackpropagation  # imports JAX: not for zoo --help

        return ProbabilisticBackpropagation


def refuses_messages(traits: Traits) -> str:
    """Why no messages can be passed through a model of these traits; empty when they can."""
    if traits.weights not in ("gaussian", "hierarchical") or traits.inputs != "rows":
        return "messages are passed for Gaussian weights in linear layers, and its weights are others"
    if traits.likelihood != "normal":
        return f"messages end in a Gaussian likelihood, and its likelihood is {traits.likelihood}"
    if traits.activation not in ("relu", "leaky-relu"):
        return f"messages pass relu and leaky-relu only, and its activation is {traits.activation}"
    return ""


def _fitted(guide: ProbabilisticBackpropagation, model: Callable) -> Fitted:
    """What the messages answer; their predictive distribution is in closed form."""
    weights = sum(site.mean.numel() for site in guide.sites.values())
    passes = f"{guide.epochs} pass{'es' * (guide.epochs > 1)}"
    return Fitted(
        model,
        draws=lambda n, seed: guide.draws(n, seed=seed),
        num_parameters=2 * weights + 2 * len(guide.precisions),  # mean, variance; concentration, rate
        seconds=guide.seconds,
        summary=f"{passes} in {guide.seconds:.1f} s, {sum(guide.refused.values())} updates refused",
        draws_with_log_prob=lambda n, seed: _weighed(guide, guide.draws(n, seed=seed)),
        closed_form=guide,
    )


def _weighed(
    guide: ProbabilisticBackpropagation, draws: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    return draws, guide.log_prob(draws)


def _check(guide: ProbabilisticBackpropagation) -> None:
    """:raises DivergenceError: naming the site whose moments are not finite"""
    for name, site in guide.sites.items():
        if not (site.mean.isfinite().all() and site.variance.isfinite().all()):
            raise DivergenceError(f"site {name!r} is not finite after {guide.epochs} passes")


def _bar(progress: Progress | None, label: str, epochs: int) -> Callable | None:
    """What the guide calls after every pass; nothing where nobody watches, for it costs time."""
    if progress is None:
        return None
    task = progress.add_task(label, total=epochs)
    return lambda epoch, guide: progress.advance(task)
