"""Do the rows of a layer's output meet in one likelihood term?

Local reparameterization gives every row noise of its own.  That leaves the expected log-likelihood as it is
when each of its terms sees one row, and is wrong when a term sees several: a choice among alternatives, a
difference of two rows, a mean over a set, a batch normalisation, correlated residuals.  No such model looks
different from outside, so the question is answered by experiment: change the layer's output in some of the
rows, with the same random numbers, and see which terms change.  Every row takes part in half of the
experiments and no two rows in the same ones, so a term of one row changes in just half of them, and a term of
several in more (Sperner's families of sets; the fewest experiments that tell).

The terms are those of the data and of priors (:mod:`guides.core.model_terms`), where classes are summed over
also those of the sums (:mod:`guides.core.class_sums`).  Of a model without data (a bare network, whose
likelihood is elsewhere, or whose data say nothing about the layer) they are the elements of its return value;
where that says nothing either, rows are taken to meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations

import torch
from pyro import poutine
from torch import Tensor

from guides.core.class_sums import joined_by_sums, over_choices, summed_terms, the_sum
from guides.core.model_terms import RETURN_VALUE, Watched, changed
from guides.core.uses import Probe

# So many experiments tell 924 rows apart for certain; of more rows, a given pair goes unseen with probability
# 1 / 924.
MOST_EXPERIMENTS = 12
# So many numbers of rows for each number of the data are asked about; more are taken to be harmless.
MOST_RATIOS = 8
#: The answer where nothing shows what becomes of a layer's rows.
NOTHING = "no data and no return value"


def where_rows_meet(
    run: Callable[[Watched, Probe], None], watched: Watched, sites: Collection[str]
) -> dict[str, str]:
    """Those of ``sites`` of whose layers several rows meet in one term -> that term.

    The question is asked of all sites at once first: most models pass.

    :param run: runs the model under a probe, with the same random numbers each time
    :param watched: the model, which has run
    """
    if not sites:
        return {}
    found: dict[str, str] = {}
    joined: set[str] = set()
    views = [watched]
    if watched.seen.summed:
        joined, layers, choices = joined_by_sums(run, watched, sites)
        found = dict.fromkeys(layers, the_sum(watched.seen.summed))
        views = [watched.choosing(choice) for choice in choices]

    # rows mostly meet whatever the classes are, as in a chain of many: with one choice of them first
    tries = [views[:1], views] if len(views) > 1 else [views]

    def terms(some: Sequence[Watched], probe: Probe) -> dict[str, Tensor]:
        for view in some:
            run(view, probe)
        return over_choices([summed_terms(view, joined) for view in some])

    def answer(names: Collection[str]) -> str | None:
        for some in tries:
            term = mixed_site(partial(terms, some), names)
            if term not in (None, NOTHING):
                return term
        return term

    first = answer(sites)
    if first and len(sites) > 1:
        found |= {name: term for name in sorted(sites) if (term := answer({name}))}
    elif first:
        found |= dict.fromkeys(sites, first)
    return found


def mixed_site(run: Callable[[Probe], dict[str, Tensor]], sites: Collection[str]) -> str | None:
    """The term that sees several rows of a layer of ``sites``, or None.

    :param run: runs the model under a probe, with the same random numbers each time, and gives its terms,
        elementwise, as :attr:`Watched.terms`
    :returns: :data:`NOTHING` when no term at all depends on several rows that could be told apart
    """
    counter = _RowCounter(sites)
    before = run(counter)
    experiments = _experiments(counter.rows)
    times = {name: torch.zeros_like(value, dtype=torch.long) for name, value in before.items()}
    for number in range(experiments):
        # a rectifier may see no change in one direction
        up, down = (run(RowProbe(sites, experiments, number, sign)) for sign in (1, -1))
        for name, value in before.items():
            times[name] += changed(value, up[name]) | changed(value, down[name])
    reacts = {name: bool((changes > 0).any()) for name, changes in times.items()}
    mixed = {name: bool((changes > experiments // 2).any()) for name, changes in times.items()}
    data = [name for name in before if not name.startswith(RETURN_VALUE)]
    seen = data if any(reacts[name] for name in data) else list(before)
    answer = next((name for name in seen if mixed[name]), None)
    return answer or (None if counter.rows < 2 or any(reacts[name] for name in seen) else NOTHING)


class _RowCounter:
    """Leaves the outputs of layers as they are, and counts their rows.

    :ivar rows: the most rows that a layer has had
    """

    def __init__(self, sites: Collection[str]):
        self.sites, self.rows = sites, 0

    def __call__(self, name: str, output: Tensor, batch: torch.Size) -> Tensor:
        if name in self.sites:
            self.rows = max(self.rows, batch.numel())
        return output


class RowProbe:
    """Moves the outputs of some sites' layers in the rows that take part in one of several experiments.

    :param sites: names of the sites
    :param experiments: how many there are
    :param number: which of them this is, from 0
    :param sign: in which direction
    """

    def __init__(self, sites: Collection[str], experiments: int, number: int, sign: int = 1):
        self.sites, self.experiments, self.number, self.sign = sites, experiments, number, sign

    def __call__(self, name: str, output: Tensor, batch: torch.Size) -> Tensor:
        """``output: [*batch, ...]`` of the layer of site ``name``, half of its rows moved."""
        count = batch.numel()
        if name not in self.sites or count < 2:
            return output
        moved = _takes_part(count, self.experiments)[:, self.number]
        generator = torch.Generator().manual_seed(self.number)
        step = torch.randn(output.shape, generator=generator).to(output) * (1 + output.abs().mean())
        step = step + step.sign() * output.abs()  # over the zero of a rectifier, in one of the directions
        shape = tuple(batch) + (1,) * (output.dim() - len(batch))
        return output + self.sign * step * moved.to(output.device).reshape(shape)


def _experiments(rows: int) -> int:
    """The fewest experiments that tell ``rows`` rows apart; none for a single row."""
    if rows < 2:
        return 0
    enough = (k for k in range(2, MOST_EXPERIMENTS) if math.comb(k, k // 2) >= rows)
    return next(enough, MOST_EXPERIMENTS)


@cache
def _takes_part(rows: int, experiments: int) -> Tensor:
    """Which rows are moved in which experiment, bool ``[rows, experiments]``: half of each row, and no two
    rows alike while there are as many choices as rows."""
    choices = torch.tensor(list(combinations(range(experiments), experiments // 2)))
    words = torch.zeros(len(choices), experiments, dtype=torch.bool).scatter_(1, choices, True)
    if rows <= len(words):
        return words[:rows]
    return words[torch.randint(len(words), (rows,), generator=torch.Generator().manual_seed(0))]


@dataclass
class Asked:
    """With which data and how many rows of layers it has been asked whether rows meet.

    :ivar data: names of observed sites
    :ivar rows: most rows of a layer
    :ivar ratios: rows of the layers that use moments, for each number of the data
    """

    data: set[str] = field(default_factory=set)
    rows: int = 0
    ratios: set[float] = field(default_factory=set)

    def note(self, data: set[str], rows: int, used: Sequence[int], numbers: int) -> None:
        """That it was asked.

        :param data: names of the observed sites, which have so many ``numbers``
        :param rows: most rows of a layer
        :param used: rows of every layer that uses moments
        """
        self.data, self.rows = data, rows
        self.ratios.add(_ratio(used, numbers))

    def note_cause(self, data: set[str], numbers: int, used: Sequence[int]) -> None:
        """That what a run shows has been asked about, where it looked otherwise from within."""
        self.data = self.data | data
        self.rows = max(self.rows, *used)
        self.ratios.add(_ratio(used, numbers))

    def covers(self, data: set[str], numbers: int, used: Sequence[int]) -> bool:
        """Whether a run shows nothing that has not been asked about: no other data, no rows where there was
        one, no more or fewer rows for each number of the data.
        """
        rows = max(used, default=0)
        if not data <= self.data or self.rows < 2 <= rows:
            return False
        is_known = rows < 2 or not numbers or _ratio(used, numbers) in self.ratios
        return is_known or len(self.ratios) >= MOST_RATIOS


def _ratio(used: Sequence[int], numbers: int) -> float:
    return max(used, default=0) / max(numbers, 1)


def data_of(trace: poutine.Trace) -> tuple[set[str], int]:
    """Names of the observed sites of a run, and how many numbers they have together.

    ``pyro.deterministic`` is no data, and has more numbers with more particles.
    """
    nodes = {name: node for name, node in trace.nodes.items() if node["type"] == "sample"}
    data = {n for n, node in nodes.items() if node["is_observed"] and not node["infer"].get("_deterministic")}
    values = [nodes[name]["value"] for name in data]
    return data, sum(value.numel() for value in values if isinstance(value, Tensor))
