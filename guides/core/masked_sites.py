"""Latent sites whose prior counts in places only, under ``poutine.mask`` with a tensor.

A guide's law stands at its site, under the mask of its prior.  Where nothing else that counts looks at the
masked elements (padding, ``obs_mask``), neither prior nor law count there, and that is right.  Where data do,
the law's entropy would be missing and its sd end at zero.  No such model looks different from outside, so it
is run twice, with the masked elements moved and all other random numbers the same.

A sampler and a joint density need the law of masked elements all the same: without it no density on them
could be normalised.  Under :class:`Unmasked` the sites of :func:`padding` have their prior back, which leaves
the law of all others as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from guides.core.rng import seeded_rng
from guides.core.row_mixing import changed, inside
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


def padding(model: Callable, names: Iterable[str], args: tuple, kwargs: dict) -> frozenset[str]:
    """Those of the latent sites ``names`` that are masked in part and whose masked elements nothing looks at.

    :param model: as above
    """
    nodes = _run(model, None, args, kwargs).nodes
    masked = masked_in_part((name, nodes[name]) for name in names if name in nodes)
    return frozenset(n for n in masked if _term_that_looks_behind(model, n, args, kwargs) is None)


class Unmasked(Messenger):
    """Sites that count whole, whatever masks are inside."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.names:
            msg["mask"] = None


def _term_that_looks_behind(model: Callable, name: str, args: tuple, kwargs: dict) -> str | None:
    run = _run(model, None, args, kwargs)
    # what else was drawn stays as it is: draws by rejection would shift all that come after them
    moved = _run(inside(model, poutine.replay(trace=run)), name, args, kwargs)
    before, after = _terms(run), _terms(moved)
    return next((n for n in before | after if _differs(before.get(n), after.get(n))), None)


def _differs(before: Tensor | None, after: Tensor | None) -> bool:
    """Of the terms of a site, which one of two runs may not have."""
    return before is None or after is None or bool(changed(before, after).any())


def _run(model: Callable, moved: str | None, args: tuple, kwargs: dict) -> poutine.Trace:
    """One run, its data too where ``poutine.block`` hides them."""
    tracer = poutine.trace()
    with torch.no_grad(), poutine.block(), seeded_rng(0), _Moved(moved):
        inside(model, tracer)(*args, **kwargs)
    return tracer.trace


def _terms(trace: poutine.Trace) -> dict[str, Tensor]:
    """Site -> its log density, elementwise and masked."""
    trace.compute_log_prob()
    nodes = trace.nodes.items()
    return {name: node["log_prob"] for name, node in nodes if node["type"] == "sample"}


class _Moved(Messenger):
    """Moves what stands under the mask of a latent site, within the support of its prior."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] != self.name:
            return
        law, value = msg["fn"], msg["value"]
        to, mask = biject_to(law.support), msg["mask"]
        if torch.broadcast_shapes(mask.shape, law.batch_shape) != law.batch_shape:  # one value, counted often
            mask = mask.any()
        mask = mask.reshape(mask.shape + (1,) * law.event_dim)
        msg["value"] = torch.where(mask, value, to(to.inv(value) + 1.0))
