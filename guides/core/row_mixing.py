"""Do the rows of a layer's output meet in one likelihood term?

Local reparameterization gives every row noise of its own.  That leaves the expected log-likelihood as it is
when each of its terms sees one row, and is wrong when a term sees several: a choice among alternatives, a
difference of two rows, a mean over a set, a batch normalisation, correlated residuals.  No such model looks
different from outside, so the question is answered by experiment: change the layer's output in some of the
rows, with the same random numbers, and see which terms change.  Every row takes part in half of the
experiments and no two rows in the same ones, so a term of one row changes in just half of them, and a term of
several in more (Sperner's families of sets; the fewest experiments that tell).

The terms are those of the model's observed sites, also of those that ``poutine.block`` hides from the guide
(a guide in Pyro's ``AutoGuideList``).  Of a model without data (a bare network, whose likelihood is
elsewhere, or whose data say nothing about the layer) they are the elements of its return value; where that
says nothing either, rows are taken to meet.

Sites that ``TraceEnum_ELBO`` sums over join terms: of a sum over the class of a group, the logarithm has one
term a group, with all rows of it, and not one a row (:func:`joined_by_sums`).  It has the rows that any class
looks at, so that the experiments are made with several choices of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations
from typing import Any

import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from guides.core.distributions import base_prior
from guides.core.nested import leaves
from guides.core.random_tensors import RandomTensor

# So many experiments tell 924 rows apart for certain; of more rows, a given pair goes unseen with probability
# 1 / 924.
MOST_EXPERIMENTS = 12
# Changes below this share of a term are rounding.
ROUNDING = 1e-6


# So many numbers of rows for each number of the data are asked about; more are taken to be harmless.
MOST_RATIOS = 8


class RowProbe:
    """Moves the outputs of some sites' layers in the rows that take part in one of several experiments.

    :param sites: names of the sites
    :param experiments: how many there are; with none nothing moves and rows are only counted
    :param number: which of them this is, from 0
    :param sign: in which direction
    :ivar rows: the most rows that a layer has had
    """

    def __init__(self, sites: Collection[str], experiments: int = 0, number: int = 0, sign: int = 1):
        self.sites, self.experiments, self.number, self.sign = frozenset(sites), experiments, number, sign
        self.rows = 0

    def __call__(self, name: str, output: Tensor, batch: torch.Size) -> Tensor:
        """``output: [*batch, ...]`` of the layer of site ``name``, half of its rows moved."""
        if name not in self.sites:
            return output
        count = batch.numel()
        self.rows = max(self.rows, count)
        if not self.experiments or count < 2:
            return output
        moved = _takes_part(count, self.experiments)[:, self.number]
        generator = torch.Generator().manual_seed(self.number)
        step = torch.randn(output.shape, generator=generator).to(output) * (1 + output.abs().mean())
        step = step + step.sign() * output.abs()  # over the zero of a rectifier, in one of the directions
        shape = tuple(batch) + (1,) * (output.dim() - len(batch))
        return output + self.sign * step * moved.to(output.device).reshape(shape)


#: The name of the terms of a model that observes nothing.
RETURN_VALUE = "the return value"
#: Before the name of a latent site: the term of its prior.
PRIOR = "prior of "
#: Before the names of the sites that are summed over: the term of the sum.
SUM = "the sum over "
#: So many of them are named.
MOST_NAMED = 3
#: The answer where nothing shows what becomes of a layer's rows.
NOTHING = "no data and no return value"


#: Runs with other values of the sites that are summed over, which show what depends on them: so many with
#: random ones, and then one for each value, up to so many, that all sites have, for one alone may matter, or
#: all classes together.
CHOICES = 8
MOST_VALUES = 64


class _Observer(Messenger):
    """Notes the observed sites of a run, name -> (law, value), and latent ones, name -> (prior, value).

    :ivar summed: the latent sites that an enumeration sums over, name -> (prior, value): they are given one
        of their possible values here
    :ivar plates: name -> the plates around each site
    :ivar choices: how many choices of values there are
    """

    def __init__(self, choice: int, held: dict[str, Any] | None, answered: Collection[str]) -> None:
        super().__init__()
        self._choice, self._held, self._answered = choice, held, answered
        self._asked: dict[str, dist.TorchDistribution] = {}
        self.begin()

    def begin(self) -> None:
        """Forgets the run before."""
        self.sites: dict[str, tuple] = {}
        self.priors: dict[str, tuple] = {}
        self.summed: dict[str, tuple] = {}
        self.plates: dict[str, tuple] = {}
        self.choices = CHOICES
        self._generator = torch.Generator().manual_seed(self._choice)

    def _pyro_sample(self, msg: dict) -> None:
        self._asked[msg["name"]] = msg["fn"]  # before a guide around the model puts its law there

    def _pyro_post_sample(self, msg: dict) -> None:
        if poutine.util.site_is_subsample(msg):
            return
        self.plates[msg["name"]] = msg["cond_indep_stack"]
        if msg["is_observed"]:
            self.sites[msg["name"]] = msg["fn"], msg["value"]
        elif msg["name"] not in self._answered and (values := _summed_values(msg)) is not None:
            self.choices = max(self.choices, CHOICES + min(len(values), MOST_VALUES))
            msg["value"] = _one_of(values, msg["fn"], self._choice, self._generator)
            self.summed[msg["name"]] = msg["fn"], msg["value"]
        else:
            # not asked as a site: a parameter that poutine.lift, farther out, has made one
            prior = self._asked.get(msg["name"], msg["infer"].get("prior", msg["fn"]))
            if self._held is not None and prior is msg["fn"]:  # no law of this guide's
                msg["value"] = self._held.setdefault(msg["name"], msg["value"])
            self.priors[msg["name"]] = prior, msg["value"]


def _summed_values(msg: dict) -> Tensor | None:
    """All values ``[K, *batch, *event]`` of a site that an enumeration sums over: also of one that the model
    does not say so of, for the loss may be given the model with ``config_enumerate`` around it.
    """
    if msg["infer"].get("enumerate", "parallel") != "parallel" or not msg["fn"].has_enumerate_support:
        return None
    try:
        return msg["fn"].enumerate_support()
    except NotImplementedError:  # binomial laws of several counts: no enumeration can either
        return None


def _one_of(values: Tensor, law: dist.TorchDistribution, choice: int, generator: torch.Generator) -> Tensor:
    """One of the ``values: [K, *batch, *event]`` of a discrete law, whatever its probability."""
    which = torch.randint(len(values), law.batch_shape, generator=generator).to(values.device)
    if choice >= CHOICES:
        which = torch.full_like(which, (choice - CHOICES) % len(values))
    which = which.reshape(1, *law.batch_shape, *(1,) * law.event_dim).expand(1, *values.shape[1:])
    return values.gather(0, which).squeeze(0)


class Watched:
    """A model whose observed sites can be looked at, also those that a handler around it hides.

    :param joined: names of terms that a sum joins
    :param choice: which values the sites have that are summed over
    :param held: values that the sites of other guides keep, name -> value; those it lacks are drawn from the
        prior and put there.  Without it all are drawn
    :param answered: sites that other guides draw or enumerate: no sum is over them
    :ivar terms: after a call: log density of every observed site, elementwise, that of a fixed value under
        the prior of every latent one, which may depend on a layer's rows too, that of sites that are summed
        over, and what was returned; of those that are joined one for all
    """

    def __init__(
        self,
        model: Callable,
        joined: Collection[str] = (),
        choice: int = 0,
        held: dict[str, Any] | None = None,
        answered: Collection[str] = (),
    ):
        self._observer = _Observer(choice, held, answered)
        self._model = inside(model, self._observer)
        self.joined = joined
        self.terms: dict[str, Tensor] = {}

    @property
    def the_sum(self) -> str:
        """What the joined terms are called; empty where the last call has met nothing that is summed over."""
        names = list(self._observer.summed)
        return _the_sum(names) if names else ""

    @property
    def choices(self) -> int:
        """How many choices there are of the values that the last call's sites have."""
        return self._observer.choices

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._observer.begin()
        value = self._model(*args, **kwargs)
        sites, summed = self._observer.sites, self._observer.summed
        self.terms = {name: base_prior(law).log_prob(data) for name, (law, data) in sites.items()}
        self.terms |= {
            f"{PRIOR}{name}": t for name, site in self._observer.priors.items() for t in _fixed(*site)
        }
        self.terms |= {f"{PRIOR}{name}": law.log_prob(x) for name, (law, x) in summed.items()}
        joined = {name: self.terms.pop(name) for name in list(self.terms) if name in self.joined}
        for names, over in self._sums(joined):
            common = set.intersection(*(self._plates(z) for z in over))
            self.terms[_the_sum(over)] = sum(self._of_plates(name, joined[name], common) for name in names)
        self.terms |= {f"{RETURN_VALUE} {i}": tensor for i, tensor in enumerate(_tensors(value))}
        return value

    def _plates(self, site: str) -> set[str]:
        return {frame.name for frame in self._observer.plates[site]}

    def _sums(self, joined: Collection[str]) -> list[tuple[list[str], list[str]]]:
        """Names of the ``joined`` terms of each sum, and of the sites it is over: apart are those that no
        term can both depend on, which lies in all plates of what it depends on.
        """
        summed, sums = self._observer.summed, []
        for name in joined:
            own = self._plates(name.removeprefix(PRIOR))
            names, over = [name], [z for z in summed if self._plates(z) <= own] or list(summed)
            for other in [one for one in sums if not set(one[1]).isdisjoint(over)]:
                sums.remove(other)
                names, over = other[0] + names, list(dict.fromkeys(other[1] + over))
            sums.append((names, over))
        return sums

    def _of_plates(self, name: str, term: Tensor, common: Collection[str]) -> Tensor:
        """A term added up over its events, and all plates but those ``common`` to all sites of the sum."""
        seen, site = self._observer, name.removeprefix(PRIOR)
        kept = {frame.dim for frame in seen.plates[site] if frame.name in common and frame.vectorized}
        term = torch.where(term.isfinite(), term, 0.0)
        if site not in seen.summed:
            law, _ = seen.sites.get(site) or seen.priors[site]
            for _ in range(law.event_dim - base_prior(law).event_dim):
                term = term.sum(-1)
        added = [dim for dim in range(-term.dim(), 0) if dim not in kept]
        return term.sum(added, keepdim=True) if added else term


def _the_sum(over: Sequence[str]) -> str:
    more = f" and {len(over) - MOST_NAMED} more" if len(over) > MOST_NAMED else ""
    return f"{SUM}{', '.join(over[:MOST_NAMED])}{more}"


def _fixed(prior: dist.TorchDistribution, like: Tensor) -> Iterator[Tensor]:
    """How a prior scores one value everywhere, on the device of ``like``; a discrete or unusual one gives
    nothing.
    """
    law = base_prior(prior)
    try:
        if law.support.is_discrete:
            return
        transform = biject_to(law.support)
        unconstrained = torch.full(transform.inverse_shape(law.shape()), 0.3, device=like.device)
        yield law.log_prob(transform(unconstrained))
    except NotImplementedError:
        return


def inside(model: Callable, handler: Messenger) -> Callable:
    """The model with a handler put inside all those that wrap it."""
    wrapped = getattr(model, "func", None)  # what Pyro's handlers make of a function
    if isinstance(wrapped, partial) and len(wrapped.args) == 2 and isinstance(wrapped.args[0], Messenger):
        outer, inner = wrapped.args
        return outer(inside(inner, handler))
    return handler(model)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The floating tensors in what a model returned; a weight has no rows."""
    return (t for t in leaves(value, Tensor) if t.is_floating_point() and not isinstance(t, RandomTensor))


class _Outputs(RowProbe):
    """Leaves the outputs of layers as they are, and keeps them."""

    def __init__(self, sites: Collection[str]):
        super().__init__(sites)
        self.outputs: dict[str, Tensor] = {}

    def __call__(self, name: str, output: Tensor, batch: torch.Size) -> Tensor:
        self.outputs[name] = output
        return output


def joined_by_sums(
    run: Callable[[RowProbe, int], dict[str, Tensor]], sites: Collection[str], choices: int
) -> tuple[set[str], set[str], list[int]]:
    """What depends on the values of the sites that an enumeration sums over, in a model that has such sites.

    :param run: runs the model under a probe with one choice of these values, and the same random numbers
        each time, and gives its terms
    :param choices: how many there are
    :returns: names of the terms in the sum, and those of ``sites`` whose layers' outputs, or whose priors,
        are in it: an enumeration runs the layer on a row for each of the values, which meet in the sum; and
        choices that show other terms than each other, for a sum sees the rows that any of them shows
    """
    first = _Outputs(sites)
    before = {name: term for name, term in run(first, 0).items() if not name.startswith(RETURN_VALUE)}
    shown = {0: before}
    terms: set[str] = set()
    layers: set[str] = set()
    for choice in range(1, choices):
        probe = _Outputs(sites)
        after = run(probe, choice)
        new = {name for name in before if _differ(before[name], after.get(name))} - terms
        terms |= new
        # random choices become alike; of one value everywhere, that class alone may look at a row
        asked = len(shown) < CHOICES or choice >= CHOICES
        if (
            new
            or asked
            and all(any(_differ(known[n], after.get(n)) for n in before) for known in shown.values())
        ):
            shown[choice] = {name: after.get(name) for name in before}
        layers |= {name for name in sites if _differ(first.outputs.get(name), probe.outputs.get(name))}
    return terms, layers | {name for name in sites if f"{PRIOR}{name}" in terms}, list(shown)


def over_choices(runs: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The terms of one run, whose term of a sum sees all that those of the others do, one for each choice."""
    first = runs[0]
    # unlike weights: what one choice gains another must not lose
    return {
        name: sum((i + 1) * run[name] for i, run in enumerate(runs)) if name.startswith(SUM) else term
        for name, term in first.items()
    }


def _differ(before: Tensor | None, after: Tensor | None) -> bool:
    if before is None or after is None or before.shape != after.shape:
        return before is not after
    return bool((changed(before, after) & (before != after)).any())  # the same infinity has not changed


def mixed_site(run: Callable[[RowProbe], dict[str, Tensor]], sites: Collection[str]) -> str | None:
    """The observed site of which a term sees several rows of a layer of ``sites``, or None.

    :param run: runs the model under a probe, with the same random numbers each time, and gives the terms of
        every observed site, elementwise, as :attr:`Watched.terms`
    :returns: :data:`NOTHING` when no term at all depends on several rows that could be told apart
    """
    counter = RowProbe(sites)
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


def changed(before: Tensor, after: Tensor) -> Tensor:
    return ~((after - before).abs() <= ROUNDING * (1 + before.abs()))  # NaN has changed
