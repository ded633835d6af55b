"""Which terms a sum over classes joins, and what they look at.

Sites that ``TraceEnum_ELBO`` sums over join terms: of a sum over the class of a group, the logarithm has one
term a group, with all rows of it, and not one a row.  It has the rows that any class looks at, so that the
model is run with several choices of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from guides.core.distributions import base_prior
from guides.core.model_terms import CHOICES, PRIOR, RETURN_VALUE, Observer, Watched, differ
from guides.core.uses import Probe

#: Before the names of the sites that are summed over: the term of the sum.
SUM = "the sum over "
#: So many of them are named.
MOST_NAMED = 3


def joined_by_sums(
    run: Callable[[Watched, Probe], None], watched: Watched, sites: Collection[str]
) -> tuple[set[str], set[str], list[int]]:
    """What depends on the values of the sites that an enumeration sums over, in a model that has such sites.

    :param run: runs the model under a probe, with the same random numbers each time
    :param watched: the model, which has run
    :returns: names of the terms in the sum, and those of ``sites`` whose layers' outputs, or whose priors,
        are in it: an enumeration runs the layer on a row for each of the values, which meet in the sum; and
        choices that show other terms than each other, for a sum sees the rows that any of them shows
    """
    held: dict[str, Any] = {}  # another guide's law knows no class, though the prior may

    def terms_and_outputs(choice: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        chosen, layers = watched.choosing(choice, held), _Outputs()
        run(chosen, layers)
        return chosen.terms, layers.outputs

    terms, outputs = terms_and_outputs(0)
    before = {name: term for name, term in terms.items() if not name.startswith(RETURN_VALUE)}
    shown = {0: before}
    joined: set[str] = set()
    layers: set[str] = set()
    for choice in range(1, watched.seen.choices):
        after, outputs_after = terms_and_outputs(choice)
        new = {name for name in before if differ(before[name], after.get(name))} - joined
        joined |= new
        # random choices become alike; of one value everywhere, that class alone may look at a row
        asked = len(shown) < CHOICES or choice >= CHOICES
        if (
            new
            or asked
            and all(any(differ(known[n], after.get(n)) for n in before) for known in shown.values())
        ):
            shown[choice] = {name: after.get(name) for name in before}
        layers |= {name for name in sites if differ(outputs.get(name), outputs_after.get(name))}
    return joined, layers | {name for name in sites if f"{PRIOR}{name}" in joined}, list(shown)


class _Outputs:
    """Leaves the outputs of layers as they are, and keeps them."""

    def __init__(self) -> None:
        self.outputs: dict[str, Tensor] = {}

    def __call__(self, name: str, output: Tensor, batch: torch.Size) -> Tensor:
        self.outputs[name] = output
        return output


def summed_terms(watched: Watched, joined: Collection[str]) -> dict[str, Tensor]:
    """The terms of the last run, with one for each sum in place of those that are ``joined``."""
    terms = {name: term for name, term in watched.terms.items() if name not in joined}
    for names, over in _sums(watched.seen, [name for name in watched.terms if name in joined]):
        common = set.intersection(*(_plates(watched.seen, z) for z in over))
        parts = (_of_plates(watched.seen, name, watched.terms[name], common) for name in names)
        terms[the_sum(over)] = sum(parts)
    return terms


def over_choices(runs: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The terms of one run, whose term of a sum sees all that those of the others do, one for each choice."""
    first = runs[0]
    # unlike weights: what one choice gains another must not lose
    return {
        name: sum((i + 1) * run[name] for i, run in enumerate(runs)) if name.startswith(SUM) else term
        for name, term in first.items()
    }


def the_sum(over: Collection[str]) -> str:
    """What the terms are called that a sum over these sites joins."""
    names = list(over)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{SUM}{', '.join(names[:MOST_NAMED])}{more}"


def _sums(seen: Observer, joined: Collection[str]) -> list[tuple[list[str], list[str]]]:
    """Names of the ``joined`` terms of each sum, and of the sites it is over: apart are those that no term
    can both depend on, which lies in all plates of what it depends on.
    """
    sums: list[tuple[list[str], list[str]]] = []
    for name in joined:
        own = _plates(seen, name.removeprefix(PRIOR))
        names, over = [name], [z for z in seen.summed if _plates(seen, z) <= own] or list(seen.summed)
        for other in [one for one in sums if not set(one[1]).isdisjoint(over)]:
            sums.remove(other)
            names, over = other[0] + names, list(dict.fromkeys(other[1] + over))
        sums.append((names, over))
    return sums


def _plates(seen: Observer, site: str) -> set[str]:
    return {frame.name for frame in seen.plates[site]}


def _of_plates(seen: Observer, name: str, term: Tensor, common: Collection[str]) -> Tensor:
    """A term added up over its events, and all plates but those ``common`` to all sites of the sum."""
    site = name.removeprefix(PRIOR)
    kept = {frame.dim for frame in seen.plates[site] if frame.name in common and frame.vectorized}
    term = torch.where(term.isfinite(), term, 0.0)
    if site not in seen.summed:
        law, _ = seen.sites.get(site) or seen.priors[site]
        for _ in range(law.event_dim - base_prior(law).event_dim):
            term = term.sum(-1)
    added = [dim for dim in range(-term.dim(), 0) if dim not in kept]
    return term.sum(added, keepdim=True) if added else term
