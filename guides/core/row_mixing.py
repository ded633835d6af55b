"""Do the rows of a layer's output meet in one likelihood term?

Local reparameterization gives every row noise of its own.  That leaves the expected log-likelihood as it is
when each of its terms sees one row, and is wrong when a term sees several: a choice among alternatives, a
difference of two rows, a mean over a set, a batch normalisation, correlated residuals.  No such model looks
different from outside, so the question is answered by experiment: change the layer's output in one half of
the rows, then in the other, with the same random numbers; a term that changes both times sees both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

# Rows are told apart by the bits of their numbers: 8 bits are exact up to 256 rows; of more rows, random
# halves, a given pair goes unseen with probability 2^-8.
MOST_SPLITS = 8
# Changes below this share of a term are rounding.
ROUNDING = 1e-6


class RowProbe:
    """Moves the outputs of some sites' layers in those rows whose number has a given bit.

    :param sites: names of the sites
    :param split: number of the split; None moves nothing and only counts
    :param side: which half is moved
    :ivar rows: the most rows that a layer has had
    """

    def __init__(self, sites: Collection[str], split: int | None = None, side: bool = False):
        self.sites, self.split, self.side = frozenset(sites), split, side
        self.rows = 0

    def __call__(self, name: str, output: Tensor, batch: torch.Size) -> Tensor:
        """``output: [*batch, ...]`` of the layer of site ``name``, half of its rows moved."""
        if name not in self.sites:
            return output
        count = batch.numel()
        self.rows = max(self.rows, count)
        if self.split is None or count < 2:
            return output
        moved = _half(count, self.split) == self.side
        generator = torch.Generator().manual_seed(self.split)
        step = torch.randn(output.shape, generator=generator).to(output) * (1 + output.abs().mean())
        shape = tuple(batch) + (1,) * (output.dim() - len(batch))
        return output + step * moved.to(output.device).reshape(shape)


def mixed_site(run: Callable[[RowProbe], dict[str, Tensor]], sites: Collection[str]) -> str | None:
    """The observed site of which a term sees several rows of a layer of ``sites``, or None.

    :param run: runs the model under a probe, with the same random numbers each time, and gives the log
        density of every observed site, elementwise
    """
    counter = RowProbe(sites)
    before = run(counter)
    for split in range(min(MOST_SPLITS, max(counter.rows - 1, 0).bit_length())):
        halves = [run(RowProbe(sites, split, side)) for side in (False, True)]
        for name, value in before.items():
            if (_changed(value, halves[0][name]) & _changed(value, halves[1][name])).any():
                return name
    return None


def _half(count: int, split: int) -> Tensor:
    """Which of ``count`` rows belong to the second half, bool ``[count]``."""
    if count <= 2**MOST_SPLITS:
        return (torch.arange(count) >> split) & 1 == 1
    return torch.rand(count, generator=torch.Generator().manual_seed(split)) < 0.5


def _changed(before: Tensor, after: Tensor) -> Tensor:
    return ~((after - before).abs() <= ROUNDING * (1 + before.abs()))  # NaN has changed
