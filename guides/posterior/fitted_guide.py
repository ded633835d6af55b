"""A guide with a ``fit`` of its own: its facts, its draws as a posterior, and its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from guides.core.rng import kept_rng
from guides.posterior.draws import Posterior
from guides.posterior.files import json_safe, read_guide, save_guide


class FittedGuide(nn.Module):
    """A guide that ``fit`` fills.

    :param settings: a dataclass of the arguments it was made with, its model or prior excepted

    :ivar losses: minus the objective at every step, nats, for the whole data
    :ivar facts: of the fit; JSON-safe
    """

    def __init__(self, settings: Any):
        super().__init__()
        self.settings = settings
        self.losses: list[float] = []
        self.facts: dict = {}

    def _follow(self, losses: Iterator[float], on_step: Callable[[int, Self], None] | None) -> None:
        """Takes the steps of a fit and keeps their losses.

        :param on_step: called with the number of steps taken and this guide
        """
        for step, loss in enumerate(losses, start=1):
            self.losses.append(loss)
            if on_step is not None:
                on_step(step, self)

    def _posterior(self, model: Callable, draws: dict[str, Tensor], method: str, seed: int) -> Posterior:
        """Draws of a model's sites with the settings and the facts of the fit."""
        about = {"method": method, "draw_seed": seed, **json_safe(asdict(self.settings)), **self.facts}
        return Posterior.from_draws(model, draws, about)

    def _require_fit(self) -> None:
        if not self.losses:
            raise RuntimeError(f"not fitted yet: call fit or {type(self).__name__}.load")

    # ---------------------------------------------------------------------------------------------- in a file

    def save(self, path: str | Path) -> None:
        """One safetensors file: the parameters, those of a prior that is a module included."""
        self._require_fit()
        save_guide(self, path)

    @classmethod
    def _load(cls, path: str | Path, *args: Any, **kwargs: Any) -> Self:
        """What :meth:`save` wrote, in a guide made with these arguments and the settings in the file.

        :raises ValueError: naming a damaged or foreign file, or one of another prior
        """
        layout, state = read_guide(path)
        if layout.get("guide") != cls.__name__:
            raise ValueError(f"{path} is of a {layout.get('guide')}, not of a {cls.__name__}")
        known = inspect.signature(cls).parameters
        if unknown := layout["settings"].keys() - known.keys():
            raise ValueError(f"{path} is of another version, with {min(unknown)!r}: fit again")
        guide = cls(*args, **layout["settings"], **kwargs)
        with kept_rng():  # new parameters start at random, until those of the file take over
            guide._make_room(state, layout)
        try:
            guide.load_state_dict({**state, "_extra_state": layout})
        except RuntimeError as error:
            raise ValueError(f"{path} is of another prior: {error}") from error
        return guide.eval()

    def _make_room(self, state: dict[str, Tensor], layout: dict) -> None:
        """Makes the parameters that only a fit makes, for those of a file."""
        raise NotImplementedError

    def get_extra_state(self) -> dict:
        return {
            "guide": type(self).__name__,
            "settings": json_safe(asdict(self.settings)),
            "facts": self.facts,
            "losses": self.losses,
        }

    def set_extra_state(self, state: dict) -> None:
        self.facts, self.losses = state["facts"], state["losses"]
