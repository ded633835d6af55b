"""What the guides of this room share: the course of a fit, its facts, and its file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from guides.core.checks import check_counts, check_numbers
from guides.core.svi import DivergenceError, half_cosine
from guides.posterior.draws import Posterior
from guides.posterior.files import read_guide, save_guide

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Course:
    """How a fit goes: Adam whose learning rate falls from ``lr`` to zero as half a cosine, and a KL
    divergence whose weight grows from 0 to 1 in the first ``warm_up`` of the steps.

    :raises ValueError: for arguments out of range
    """

    steps: int
    lr: float
    warm_up: float
    seed: int
    batch_size: int | None

    def __post_init__(self) -> None:
        check_counts(steps=self.steps)
        check_numbers(lr=self.lr)
        if self.batch_size is not None:
            check_counts(batch_size=self.batch_size)
        if not 0 <= self.warm_up <= 1:
            raise ValueError(f"warm_up must lie in [0, 1], got {self.warm_up}")

    def weight(self, step: int) -> float:
        """Of the KL divergence at step 0, 1, ..."""
        return min(1.0, (step + 1) / max(1.0, self.warm_up * self.steps))

    def run(
        self, parameters: Iterable[Tensor], batches: Iterator[tuple], loss: Callable[[tuple, float], Tensor]
    ) -> Iterator[float]:
        """The loss of every step, before it is taken.

        :param loss: of a batch and a weight of the KL divergence
        :raises DivergenceError: at the first loss or draw that is not finite, or when the last step breaks a
            parameter
        """
        trained = [p for p in parameters if p.requires_grad]
        adam = torch.optim.Adam(trained, fused=True)
        for step in range(self.steps):
            adam.param_groups[0]["lr"] = half_cosine(self.lr, step, self.steps)
            try:
                value = loss(next(batches), self.weight(step))
            except ValueError as error:
                if step == 0:  # of the arguments, not of the fit
                    raise
                raise DivergenceError(f"step {step}: {error}; lower the learning rate") from error
            if not value.isfinite():
                raise DivergenceError(f"step {step}: the loss is {value.item()}; lower the learning rate")
            value.backward()
            adam.step()
            adam.zero_grad()
            # the last step is followed by no loss that could show what it did
            if step == self.steps - 1 and not all(p.isfinite().all() for p in trained):
                raise self.lost()
            yield value.item()

    def lost(self) -> DivergenceError:
        """What to raise when the last step has broken the fit."""
        return DivergenceError(
            f"step {self.steps - 1}: it leaves numbers that are not finite; lower the learning rate"
        )


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

    @property
    def change(self) -> float:
        """By how much the mean loss of the last tenth of the steps differs from that of the tenth before,
        nats: what a longer fit would still gain.
        """
        tenth = max(1, len(self.losses) // 10)
        last, before = self.losses[-tenth:], self.losses[-2 * tenth : -tenth] or self.losses[:tenth]
        return sum(last) / len(last) - sum(before) / len(before)

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
        guide = cls(*args, **layout["settings"], **kwargs)
        with torch.random.fork_rng():  # new parameters start at random, until those of the file take over
            guide._make_room(state, layout)
        try:
            guide.load_state_dict({**state, "_extra_state": layout})
        except RuntimeError as error:
            raise ValueError(f"{path} is of another prior: {error}") from error
        return guide

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


class RegressionGuide(FittedGuide):
    """One of functions, with a Gaussian noise of its own; its settings have a ``noise_scale``."""

    @property
    def noise_variance(self) -> float:
        """In units of ``y^2``."""
        self._require_fit()
        return self.log_noise.double().exp().item()

    def _make_noise(self, start: float, dtype: torch.dtype, device: torch.device | str) -> None:
        """``log_noise``, a log variance: learned from ``start``, or fixed by the setting ``noise_scale``."""
        fixed = self.settings.noise_scale
        log_noise = start if fixed is None else 2 * math.log(fixed)
        full = torch.full((), log_noise, dtype=dtype, device=device)
        self.log_noise = nn.Parameter(full, requires_grad=fixed is None)


def json_safe(values: dict) -> dict:
    """With lists for tuples, as JSON gives them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def check_regression(x: Tensor, y: Tensor) -> None:
    """:raises ValueError: unless ``x: [N, d]``, of floating point, and ``y: [N]`` are finite tensors, N at
    least 2, y not constant
    """
    for name, values in (("x", x), ("y", y)):
        if not isinstance(values, Tensor):
            raise ValueError(f"{name} must be a tensor, got a {type(values).__name__}: call torch.as_tensor")
    if not x.is_floating_point():
        raise ValueError(f"x must be of floating point, got {x.dtype}: call x.float()")
    if x.dim() != 2 or y.shape != x.shape[:1] or len(x) < 2:
        raise ValueError(
            f"x must be [N, d] and y [N], two rows at least; got {list(x.shape)} and {list(y.shape)}"
        )
    for name, values in (("x", x), ("y", y)):
        if not values.isfinite().all():
            raise ValueError(f"{name} must be finite")
    if (y == y[0]).all():
        raise ValueError(f"y is constant ({y[0]:g}): there is nothing to learn, and no noise to estimate")


def check_inputs(x: Tensor, columns: int | None = None) -> None:
    """Of a prediction.

    :param columns: that the fit has seen, None where it does not matter
    :raises ValueError: unless ``x: [m, columns]`` is a tensor of floating point
    """
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a tensor of floating point, got {got}")
    if x.dim() != 2 or x.shape[1] != (x.shape[1] if columns is None else columns):
        raise ValueError(f"x must be [m, {'d' if columns is None else columns}], got {list(x.shape)}")


def remembered(answer: Callable[[Tensor], Answer]) -> Callable[[Tensor], Answer]:
    """The same function, without gradients, that remembers its last argument (the very tensor): a model that
    is run once a draw at the same inputs asks again and again.
    """
    last: list = []

    def ask(x: Tensor) -> Answer:
        if not last or last[0] is not x:
            with torch.no_grad():
                last[:] = x, answer(x)
        return last[1]

    return ask
