"""How far a fit can go with its steps, and whether it has arrived.

Adam moves a number by at most the sum of its learning rates: half of the first one times the steps, where the
rate falls along a half cosine.  A fit whose sum is too small reports where it started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guides.core import settling
from guides.core.svi import half_cosine
from zoo.evaluation.estimates import Estimate

#: How far kinds of parameters may have to go: inclusion logits from "surely in" to "surely out", logarithms
#: of sds from a start well below the prior's sd up to it, or down to what many rows determine.
REACHES: Mapping[str, float] = {"logits": 30.0, "rate_logits": 10.0, "log_scale": 10.0, "z_log_scale": 10.0}
#: Above this rate a step is mostly noise, however few there are.
HIGHEST_RATE = 0.1


def own_rates(lr: float, steps: int, times: float = 1.0) -> dict[str, float]:
    """Factors by which kinds of parameters need a higher rate than ``lr`` (for ``FlatGuide.optimizer``), so
    that each can go as far as it may have to in so many steps; never below 1.

    :param times: how many times as far: a gradient that is mostly noise takes a parameter only a part of the
        way that its rates allow
    """
    highest = max(1.0, HIGHEST_RATE / lr)
    return {name: min(max(1.0, 2 * times * reach / (steps * lr)), highest) for name, reach in REACHES.items()}


def last_change(losses: Sequence[float], rates: Sequence[float]) -> Estimate:
    """:func:`guides.core.settling.last_change` of minus the bound: how much it rose, nats."""
    return Estimate(*settling.last_change(losses, rates))


def half_cosine_change(losses: Sequence[float]) -> Estimate:
    """:func:`last_change` of a fit whose learning rate fell from its first to zero along a half cosine."""
    steps = len(losses)
    return last_change(losses, [half_cosine(1.0, step, steps) for step in range(steps)])
