"""The terms that a run of a model adds up, as an experiment on the model sees them.

They are those of its observed sites, also of those that ``poutine.block`` hides from the guide (a guide in
Pyro's ``AutoGuideList``), those of the priors of its latent sites, and the elements of its return value.
Sites that ``TraceEnum_ELBO`` sums over have one of their possible values in such a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
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

#: Before a number: an element of what the model returns.
RETURN_VALUE = "the return value"
#: Before the name of a latent site: the term of its prior.
PRIOR = "prior of "
# Runs with other values of the sites that are summed over, which show what depends on them: so many with
# random ones, and then one for each value, up to so many, that all sites have, for one alone may matter, or
# all classes together.
CHOICES = 8
MOST_VALUES = 64
# Changes below this share of a term are rounding.
ROUNDING = 1e-6


class Observer(Messenger):
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

    :param answered: sites that other guides draw or enumerate: no sum is over them
    :param choice: which values the sites have that are summed over
    :param held: values that the sites of other guides keep, name -> value; those it lacks are drawn from the
        prior and put there.  Without it all are drawn
    :ivar seen: the sites of the last call
    :ivar terms: after a call: log density of every observed site, elementwise, that of a fixed value under
        the prior of every latent one, which may depend on a layer's rows too, that of sites that are summed
        over, and what was returned
    """

    def __init__(
        self,
        model: Callable,
        answered: Collection[str] = (),
        choice: int = 0,
        held: dict[str, Any] | None = None,
    ):
        self._model, self._answered = model, answered
        self.seen = Observer(choice, held, answered)
        self._observed = inside(model, self.seen)
        self.terms: dict[str, Tensor] = {}

    def choosing(self, choice: int, held: dict[str, Any] | None = None) -> Watched:
        """The same model with other values of the sites that are summed over."""
        return Watched(self._model, self._answered, choice, held)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.begin()
        value = self._observed(*args, **kwargs)
        sites, priors, summed = self.seen.sites, self.seen.priors, self.seen.summed
        self.terms = {name: base_prior(law).log_prob(data) for name, (law, data) in sites.items()}
        self.terms |= {f"{PRIOR}{name}": t for name, site in priors.items() for t in _fixed(*site)}
        self.terms |= {f"{PRIOR}{name}": law.log_prob(x) for name, (law, x) in summed.items()}
        self.terms |= {f"{RETURN_VALUE} {i}": tensor for i, tensor in enumerate(_tensors(value))}
        return value


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


def changed(before: Tensor, after: Tensor) -> Tensor:
    """Which elements of a term have changed by more than rounding."""
    return ~((after - before).abs() <= ROUNDING * (1 + before.abs()))  # NaN has changed


def differ(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether a term is another in one of two runs, of which either may lack it or have more of it."""
    if before is None or after is None or before.shape != after.shape:
        return before is not after
    return bool((changed(before, after) & (before != after)).any())  # the same infinity has not changed
