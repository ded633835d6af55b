"""The course of a fit that is not left to Pyro's ``SVI``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from guides.core.checks import check_counts, check_numbers
from guides.core.settling import UnsettledWarning, last_change, still_moving, told
from guides.core.svi import DivergenceError, half_cosine


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

    def last_change(self, losses: Sequence[float]) -> tuple[float, float | None]:
        """What losses of all steps still fell by (:func:`guides.core.settling.last_change`), nats."""
        return last_change(losses, [half_cosine(self.lr, step, self.steps) for step in range(self.steps)])

    def warn_unsettled(self, losses: Sequence[float]) -> None:
        """Where losses of all steps still moved at the end, beyond their noise, by what moves a posterior."""
        change, se = self.last_change(losses)
        rose = se is not None and still_moving(-change, se)  # few steps do not tell
        if still_moving(change, se) or rose:
            warnings.warn(told(change), UnsettledWarning, stacklevel=3)

    def run(
        self,
        parameters: Iterable[Tensor],
        batches: Iterator[tuple],
        loss: Callable[[tuple, float], Tensor],
        *,
        own_rates: Mapping[Tensor, float] = MappingProxyType({}),
    ) -> Iterator[float]:
        """The loss of every step, before it is taken.

        :param loss: of a batch and a weight of the KL divergence
        :param own_rates: parameters whose first learning rate is another than ``lr``, and which
        :raises DivergenceError: at the first loss or draw that is not finite, or when the last step breaks a
            parameter
        """
        trained = [p for p in parameters if p.requires_grad]
        own = {p: rate for p, rate in own_rates.items() if p.requires_grad}
        groups = [([p for p in trained if p not in own], self.lr), *(([p], rate) for p, rate in own.items())]
        adam = torch.optim.Adam([{"params": of, "first_lr": rate} for of, rate in groups], fused=True)
        for step in range(self.steps):
            for group in adam.param_groups:
                group["lr"] = half_cosine(group["first_lr"], step, self.steps)
            try:
                value = loss(next(batches), self.weight(step))
            except ValueError as error:
                if step == 0:  # of the arguments, not of the fit
                    raise
                raise DivergenceError(f"step {step}: {error}; lower the learning rate") from error
            if not value.isfinite():
                remedy = "lower the learning rate" if step else "the data or the start may not be finite"
                raise DivergenceError(f"step {step}: the loss is {value.item()}; {remedy}")
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
