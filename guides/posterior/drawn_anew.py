"""What a run of a model draws anew, and no answer may hang on: rows of a plate, sites of which there are no
draws.

No model looks different from outside, so it is run again, with other rows or other random numbers, to see
whether the laws that are asked for change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample

#: Other choices of rows that are tried.
CHOICES = 3

#: A run of the model with the first draw: a number for which rows its plates take, a seed -> its trace.
Run = Callable[[int, int], Trace]


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


def check_rows(run: Run, sites: Sequence[str]) -> None:
    """A plate may take some rows only to weigh a minibatch that the model is given.

    :raises ValueError: where the laws of ``sites`` hang on which rows it takes
    """
    first = run(0, 0)
    plates = [name for name, node in first.nodes.items() if takes_some(node)]
    if not plates:
        return
    others = [run(number, 0) for number in range(1, CHOICES + 1)]
    changed = [name for name in sites if any(name not in it.nodes for it in (first, *others))]
    if not changed and _changed(first, run(0, 0), sites):  # random numbers that are not torch's tell nothing
        return
    changed = changed or [name for other in others for name in _changed(first, other, sites)]
    if changed:
        raise ValueError(
            f"plate {', '.join(map(repr, plates))} takes rows at random, others for every draw, so that "
            f"site {changed[0]!r} cannot be predicted: ask Posterior(model, posterior.sites) of a model that "
            "takes all rows"
        )


def check_unknown(run: Run, sites: Sequence[str], unknown: Sequence[str], missing: Sequence[str]) -> None:
    """Draws of a site that the model does not have may be left over from another way to write it.

    :param unknown: names of such sites
    :param missing: names of sites that it has and of which there are no draws
    :raises ValueError: where the laws of ``sites`` hang on what is drawn in their place
    """
    if unknown and _changed(run(0, 0), run(0, 1), sites):
        raise ValueError(
            f"the draws are of {', '.join(map(repr, unknown))}, which the model does not have; it has, "
            f"beside what was drawn, {', '.join(map(repr, missing))}"
        )


def _changed(first: Trace, other: Trace, sites: Sequence[str]) -> list[str]:
    """The sites whose laws are others."""
    names = []
    for name in sites:
        value = first.nodes[name]["value"]
        found, again = (run.nodes[name]["fn"].log_prob(value) for run in (first, other))
        if found.shape != again.shape or not torch.allclose(found, again, equal_nan=True):
            names.append(name)
    return names
