"""Whether a fit has arrived: what its loss still gained at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: The last part of a fit, as a share of its summed learning rates, and how many of its steps stand for a
#: place in it.
LAST, WINDOW = 0.1, 0.05
#: Share of the steps after which that part begins where the rate falls along a half cosine.
LAST_OF_HALF_COSINE = 0.6
#: Nats by which a bound may still rise, or a loss fall, in that part, beyond so many standard errors.
RISE, CLEAR = 0.5, 2.0


class UnsettledWarning(UserWarning):
    """A fit ended before it arrived: what it found is that of its steps, and no optimum."""


def still_moving(change: float, se: float | None, clear: float = CLEAR) -> bool:
    """Whether a fit has not settled, by what it gained in its last tenth and the standard error of that; one
    whose loss may rise at the end is asked by the size of its change.
    """
    return not change - clear * (se or 0.0) <= RISE  # what is no number has not settled


def told(change: float, more: str = "") -> str:
    """What a loss that has not settled did, and what to do; ``more`` stands between the two.

    :param change: by how much it fell
    """
    did, remedy = (
        ("still fell", "take more steps or a larger lr") if change > 0 else ("rose", "take a lower lr")
    )
    return f"the loss {did} by {abs(change):.3g} nats in the last tenth of the learning{more}: {remedy}"


def places(rates: Sequence[float]) -> tuple[slice, slice]:
    """The steps that stand for the beginning of the last tenth of the learning, and for its end.

    :param rates: learning rates of all steps
    """
    done = np.cumsum(rates)
    begin = int(np.searchsorted(done, (1 - LAST) * done[-1]))
    width = max(1, round(WINDOW * len(done)))
    start = max(0, begin - width // 2)
    return slice(start, start + width), slice(len(done) - width, len(done))


def last_change(losses: Sequence[float], rates: Sequence[float]) -> tuple[float, float | None]:
    """How much the loss fell in the last tenth of the learning, and the standard error of that, nats.

    The learning is counted in learning rates: of a half cosine the last tenth begins after 0.6 of the steps.
    Counted in steps it would not move at all, wherever it stood, for the rate is next to zero by then.

    :param losses: of every step
    :param rates: of the same steps
    :raises ValueError: without a step
    """
    if not len(losses) or len(losses) != len(rates):
        raise ValueError(f"{len(losses)} losses and {len(rates)} learning rates")
    before, after = (np.asarray(losses[place]) for place in places(rates))
    se = math.sqrt(sum(part.var(ddof=1) / len(part) for part in (before, after))) if len(after) > 1 else None
    return float(before.mean() - after.mean()), se
