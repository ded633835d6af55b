"""What a run of a model draws anew, and no answer may depend on: rows of a plate, sites of which there are no
draws.

No model looks different from outside, so it is run again, with other rows or other random numbers, to see
whether the laws that are asked for change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pyro import distributions as dist
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from guides.posterior.law_of_draws import elementwise

#: Draws that the model is run with, other choices of rows and other seeds that are tried with each: where a
#: draw is 0, as of spikes and slabs, nothing may depend on the rest, and rare values are seldom drawn.
DRAWS, CHOICES, SEEDS = 8, 3, 8

#: A run of the model: number of the draw, number for the rows that plates take, seed -> its trace.
Run = Callable[[int, int, int], Trace]


def spread(draws: int) -> Tensor:
    """Numbers of at most so many as are tried, evenly spaced."""
    return torch.linspace(0, draws - 1, min(draws, DRAWS)).round().long()


class RowsByNumber(Messenger):
    """Plates that take some of their rows at random take those of a number, each its own."""

    def __init__(self, number: int):
        self.generator = torch.Generator().manual_seed(number)

    def _pyro_sample(self, msg: dict) -> None:
        if site_is_subsample(msg) and msg["value"] is None and msg["fn"].subsample_size is not None:
            size, device = msg["fn"].size, msg["fn"].device
            if msg["fn"].subsample_size < size:
                rows = torch.randperm(size, generator=self.generator)[: msg["fn"].subsample_size]
                msg["value"] = rows.to(device)


def takes_some(node: dict) -> bool:
    """Whether a site of a trace is a plate that takes some of its rows."""
    return site_is_subsample(node) and len(node["value"]) < node["fn"].size


def check_rows(run: Run, draws: int, sites: Sequence[str]) -> None:
    """A plate may take some rows only to weigh a minibatch that the model is given.

    :param draws: how many there are
    :raises ValueError: where the laws of ``sites`` depend on which rows it takes
    """
    for draw in range(draws):
        first = run(draw, 0, 0)
        plates = [name for name, node in first.nodes.items() if takes_some(node)]
        if not plates:
            return
        if any(name in first.nodes for name in _changed(first, run(draw, 0, 0), sites)):
            continue  # random numbers of the model that are not torch's tell nothing
        others = (run(draw, number, 0) for number in range(1, CHOICES + 1))
        changed = [name for other in others for name in _changed(first, other, sites)]
        if changed:
            raise ValueError(
                f"plate {', '.join(map(repr, plates))} takes rows at random, others for every draw, so that "
                f"site {changed[0]!r} cannot be predicted: ask Posterior(model, posterior.sites) of a model "
                "that takes all rows"
            )


def check_unknown(
    run: Run, draws: int, sites: Sequence[str], unknown: Sequence[str], missing: Sequence[str]
) -> None:
    """Draws of a site that the model does not have may be left over from another way to write it.

    :param unknown: names of such sites
    :param missing: names of sites that it has and of which there are no draws
    :raises ValueError: where the laws of ``sites`` depend on what is drawn in their place
    """
    if not unknown:
        return
    for draw in range(draws):
        first = run(draw, 0, SEEDS * draw)
        if any(_changed(first, run(draw, 0, SEEDS * draw + seed), sites) for seed in range(1, SEEDS)):
            raise ValueError(
                f"the draws are of {', '.join(map(repr, unknown))}, which the model does not have; it has, "
                f"beside what was drawn, {', '.join(map(repr, missing))}"
            )


def _changed(first: Trace, other: Trace, sites: Sequence[str]) -> list[str]:
    """The sites whose laws are others, or that one of the runs does not have."""
    names = []
    for name in sites:
        if name not in first.nodes or name not in other.nodes:
            names.append(name)
            continue
        value = first.nodes[name]["value"]
        laws = [elementwise(run.nodes[name]["fn"]) for run in (first, other)]
        found, again = (law.v if isinstance(law, dist.Delta) else law.log_prob(value) for law in laws)
        if found.shape != again.shape or not torch.allclose(found, again, equal_nan=True):
            names.append(name)
    return names
