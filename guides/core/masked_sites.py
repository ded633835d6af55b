"""Latent sites whose prior counts in places only, under ``poutine.mask`` with a tensor.

A guide's law stands at its site, under the mask of its prior.  Where nothing else that counts looks at the
masked elements (padding, ``obs_mask``), neither prior nor law count there, and that is right.  Where data do,
the law's entropy would be missing and its sd end at zero.  No such model looks different from outside, so it
is run twice, with the masked elements moved and all other random numbers the same.

A sampler and a joint density need the law of masked elements all the same: without it no density on them
could be normalised.  Under :class:`Unmasked` the masked elements of the sites of :func:`padding` have their
prior back, which leaves the law of all others as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to, constraints

from guides.core.model_terms import differ, inside
from guides.core.rng import seeded_rng
from guides.core.sites import UnsupportedSiteError


def masked_in_part(nodes: Iterable[tuple[str, dict]]) -> frozenset[str]:
    """Names of the sites of which a tensor masks some elements or all."""
    return frozenset(n for n, node in nodes if isinstance(node["mask"], Tensor) and not node["mask"].all())


def require_nothing_looks_behind(model: Callable, names: Collection[str], args: tuple, kwargs: dict) -> None:
    """:raises UnsupportedSiteError: where a term that counts depends on masked elements of a site

    :param model: with what gives its latent sites their values, which the seed of torch fixes
    :param names: the sites that are masked in part
    """
    for name in sorted(names):
        term = _term_that_looks_behind(model, name, args, kwargs)
        if term is not None:
            raise UnsupportedSiteError(
                f"site {name!r} is masked in places (poutine.mask), and {term!r} looks at what stands there: "
                "the law that the guide gives it would not count; mask the prior alone, prior.mask(mask), or "
                "those terms too"
            )


def padding(models: Iterable[Callable], names: Iterable[str], args: tuple, kwargs: dict) -> frozenset[str]:
    """Those of the latent sites ``names`` that are masked in part and whose masked elements nothing looks at.

    :param models: the model as above, with values of its latent sites, or whose seed is its number, for each
        run to look at: masks, and what looks behind them, may depend on values
    """
    with pyro.validation_enabled(False):  # data that a mask hides may be NaN
        first, *others = ((model, seed) for seed, model in enumerate(models))
        nodes = _run(*first, args, kwargs).nodes
        hidden, looked_at = set(), set()
        candidates = [n for n in names if n in nodes and isinstance(nodes[n]["mask"], Tensor)]
        for model, seed in (first, *others) if candidates else ():
            nodes = _run(model, seed, args, kwargs).nodes
            latent = [(n, nodes[n]) for n in candidates if n in nodes and not nodes[n]["is_observed"]]
            masked = masked_in_part(latent) - looked_at
            hidden |= masked
            looked_at |= {n for n in masked if _term_that_looks_behind(model, n, args, kwargs, seed)}
    return frozenset(hidden - looked_at)


class Unmasked(Messenger):
    """What masks hide of some sites counts once with its prior, and the rest as before.

    A power of a prior (``poutine.scale``) has a norm that may depend on other sites, so it stays outside.
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        mask = msg["mask"]
        if msg["name"] in self.names and isinstance(mask, Tensor):
            batch = msg["fn"].batch_shape
            times, weight = _sum_to(mask * 1.0, batch), _sum_to(mask * msg["scale"], batch)
            msg["scale"], msg["mask"] = torch.where(times > 0, weight, 1.0), None


def _sum_to(weight: Tensor, batch: torch.Size) -> Tensor:
    """Of each element of a site; one that is smaller than its mask counts several times."""
    return weight.expand(torch.broadcast_shapes(weight.shape, batch)).sum_to_size(batch)


def _term_that_looks_behind(
    model: Callable, name: str, args: tuple, kwargs: dict, seed: int = 0
) -> str | None:
    run = _run(model, seed, args, kwargs)
    before = _terms(run)
    # what else was drawn stays as it is: draws by rejection would shift all that come after them
    same = inside(model, poutine.replay(trace=run))
    for sign in (1, -1):  # a rectifier may see no change in one direction
        after = _terms(_run(same, seed, args, kwargs, _Moved(name, sign)))
        looks = next((n for n in before | after if differ(before.get(n), after.get(n))), None)
        if looks is not None:
            return looks
    return None


def _run(
    model: Callable, seed: int, args: tuple, kwargs: dict, moved: Messenger | None = None
) -> poutine.Trace:
    """One run, its data too where ``poutine.block`` hides them."""
    tracer = poutine.trace()
    with torch.no_grad(), poutine.block(), seeded_rng(seed), moved or nullcontext():
        inside(model, tracer)(*args, **kwargs)
    return tracer.trace


def _terms(trace: poutine.Trace) -> dict[str, Tensor]:
    """Site -> its log density, elementwise and masked."""
    trace.compute_log_prob()
    nodes = trace.nodes.items()
    return {name: node["log_prob"] for name, node in nodes if node["type"] == "sample"}


class _Moved(Messenger):
    """Moves what stands under the mask of a latent site, within the support of its prior."""

    def __init__(self, name: str, sign: int) -> None:
        super().__init__()
        self.name, self.sign = name, sign

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] != self.name:
            return
        law, mask = msg["fn"], msg["mask"]
        if not isinstance(mask, Tensor):
            return
        if torch.broadcast_shapes(mask.shape, law.batch_shape) != law.batch_shape:  # one value, counted often
            mask = mask.any()
        mask = mask.reshape(mask.shape + (1,) * law.event_dim)
        msg["value"] = torch.where(mask, msg["value"], _elsewhere(law, msg["value"], self.sign))


def _elsewhere(law: dist.TorchDistribution, value: Tensor, sign: int) -> Tensor:
    """Other values of a law, the next ones of a discrete one."""
    support = law.support
    if not support.is_discrete:
        try:
            to = biject_to(support)
        except NotImplementedError:  # a sphere
            with seeded_rng(2**31 + sign):
                return law.sample()
        at = to.inv(value)
        return to(at + sign * (1.0 + at.abs()))  # over the zero of a rectifier, in one of the directions
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support.event_dim:  # one of several, or counts of them
        return value.roll(sign, -1)
    near, far = value + sign, value - sign
    return torch.where(support.check(near), near, torch.where(support.check(far), far, value))
