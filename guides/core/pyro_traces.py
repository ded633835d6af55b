"""What Pyro's losses and other guides see of a guide's run: its two traces, and the traces around it."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from pyro import poutine
from pyro.distributions.score_parts import ScoreParts
from pyro.distributions.util import scale_and_mask
from pyro.infer.autoguide import AutoCallable, AutoDiscreteParallel, AutoGuide
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.util import site_is_subsample

from guides.core.laws import ClosedFormPrior
from guides.core.rng import kept_rng


def two_traces(
    model_trace: poutine.Trace, sites: Collection[str], kl_weight: float
) -> tuple[poutine.Trace, poutine.Trace]:
    """``(model_trace, guide_trace)`` of one run: a latent site of ``sites`` keeps its prior in ``infer``.

    :param kl_weight: what the log densities of these sites count, on both sides
    """
    guide_trace = model_trace.copy()
    for name, node in list(model_trace.nodes.items()):
        if node["type"] == "sample" and node["is_observed"]:
            del guide_trace.nodes[name]
        elif node["type"] == "sample" and name in sites:
            if kl_weight != 1.0:
                node = {**node, "scale": kl_weight * node["scale"]}
            prior = node["infer"]["prior"]
            scores = _closed_form_scores(node, prior) if isinstance(prior, ClosedFormPrior) else ({}, {})
            model_trace.nodes[name] = {**node, "fn": prior, **scores[0]}
            guide_trace.nodes[name] = {**node, **scores[1]}
    return model_trace, guide_trace


def _closed_form_scores(node: dict, prior: ClosedFormPrior) -> tuple[dict, dict]:
    """What Pyro's traces would compute, for the model's side and the guide's: minus the KL, and zero."""
    negative = -prior.kl
    scaled = scale_and_mask(negative, node["scale"], node["mask"])
    zero = torch.zeros_like(negative)
    total, nothing = (scaled.sum(), zero.sum()) if scaled.dim() else (scaled, zero)
    model = {"unscaled_log_prob": negative, "log_prob": scaled, "log_prob_sum": total}
    guide = {"unscaled_log_prob": zero, "log_prob": zero, "log_prob_sum": nothing}
    return model, {**guide, "score_parts": ScoreParts(zero, 0, zero)}


def hide_other_sites(own_trace: poutine.Trace, sites: Collection[str], parallel: bool) -> None:
    """A guide's trace shows its own latent sites only, though running the model also met the others.

    :param parallel: whether ``Predictive(parallel=True)`` draws: it is told the dimensions of the others'
        plates, for it puts its draws left of them, and the guide runs the whole model there
    """
    outer = [handler.trace for handler in _PYRO_STACK if isinstance(handler, TraceMessenger)]
    if not outer:
        return
    nodes = own_trace.nodes
    frames = {frame.name: frame for node in nodes.values() for frame in node.get("cond_indep_stack", ())}
    for name, node in nodes.items():
        if node["type"] != "sample" or name in sites:
            continue
        for trace in outer:
            if not site_is_subsample(node) and name in trace:
                trace.remove_node(name)
            elif parallel and name in trace and name in frames:
                stack = trace.nodes[name]["cond_indep_stack"]
                trace.nodes[name]["cond_indep_stack"] = (*stack, frames[name])


def sites_of_others(guide: AutoGuide, args: tuple, kwargs: dict) -> set[str]:
    """Names of the discrete sites, and maybe others, that the other parts of an ``AutoGuideList`` draw or
    enumerate: Pyro's own part for discrete sites, and functions.
    """
    names: set[str] = set()
    for part in guide.master() or () if guide.master is not None else ():
        if part is guide or not isinstance(part, AutoCallable | AutoDiscreteParallel):
            continue
        run = part.model if isinstance(part, AutoDiscreteParallel) else part
        with torch.no_grad(), kept_rng(), poutine.block():
            trace = poutine.trace(run).get_trace(*args, **kwargs)
        names |= {name for name, node in trace.iter_stochastic_nodes()}
    return names


def share_minibatch(msg: dict, guide: Messenger) -> None:
    """Takes the rows that another part of an ``AutoGuideList`` has chosen in this plate."""
    for handler in reversed(_PYRO_STACK[: _PYRO_STACK.index(guide)]):
        if isinstance(handler, TraceMessenger) and msg["name"] in handler.trace:
            msg["value"] = handler.trace.nodes[msg["name"]]["value"]
            msg["done"] = msg["stop"] = True  # it is in the list's trace already
            return


def first_messenger(model: object) -> Messenger | None:
    """The Pyro handler that wraps a model, if one does."""
    handler = getattr(model, "func", None)
    arguments = getattr(handler, "args", None) or getattr(model, "args", ())
    return next((a for a in arguments or () if isinstance(a, Messenger)), None)


#: The plate that Pyro's losses put around a model.
PARTICLES = "num_particles_vectorized"


def check_particles(model_trace: poutine.Trace) -> None:
    """Vectorized particles have a dimension of their own, left of all plates: what is left of that would be
    summed over, and nobody else looks (Pyro takes it for an enumeration).

    :raises ValueError: for data with such a dimension
    """
    for name, node in model_trace.nodes.items():
        if node["type"] != "sample" or not node["is_observed"]:
            continue
        frames = [frame for frame in node["cond_indep_stack"] if frame.vectorized]
        shape = node["fn"].batch_shape
        if not any(frame.name == PARTICLES for frame in frames):
            continue
        more = shape[: max(0, len(shape) - max(-frame.dim for frame in frames))]
        if math.prod(more) > 1:
            raise ValueError(
                f"site {name!r} has shape {tuple(shape)} under vectorized particles, dimensions "
                f"{tuple(more)} too many: a number outside the plates comes as [particles, 1] then, so "
                "that it needs no unsqueeze or [..., None]; or set vectorize_particles=False"
            )
