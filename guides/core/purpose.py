"""What a run of the guide is for, which decides what its sites are scored by.

An ELBO needs expectations only: a site is scored by ``E_q[log q]`` and ``E_q[log p]``, and no weight need be
drawn.  Whoever weighs draws by their density (importance sampling, ``WeighedPredictive``, ``RenyiELBO``)
needs real draws and ``log q``, ``log p`` at these draws.  Pyro asks for both through the same trace, so the
guide looks who is asking.
"""

from __future__ import annotations

import sys
from enum import Enum
from types import FrameType

import torch
from pyro.infer import TraceEnum_ELBO, TraceGraph_ELBO
from pyro.infer.elbo import ELBO
from pyro.infer.trace_elbo import Trace_ELBO
from pyro.infer.trace_tail_adaptive_elbo import TraceTailAdaptive_ELBO
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger


class Purpose(Enum):
    """:cvar EXPECTATIONS: an ELBO, or a call with gradients and no trace around it
    :cvar DRAWS: draws and their densities, no gradient
    :cvar WEIGHED_DRAWS: draws and their densities, differentiated
    :cvar STRUCTURE: which site depends on which (``pyro.render_model``), whatever the numbers
    """

    EXPECTATIONS = "expectations"
    DRAWS = "draws"
    WEIGHED_DRAWS = "weighed draws"
    STRUCTURE = "structure"


# Losses that are linear in log q and log p: expectations of the parts are expectations of the whole.
_LINEAR = (Trace_ELBO, TraceGraph_ELBO, TraceEnum_ELBO)
_NOT_LINEAR = (TraceTailAdaptive_ELBO,)
# Consumers that never ask for a gradient, though Pyro leaves gradients enabled in them.
_OF_MODULE = {
    "pyro.infer.predictive": Purpose.DRAWS,
    "pyro.infer.importance": Purpose.DRAWS,
    "pyro.infer.inspect": Purpose.STRUCTURE,
}


def purpose_of_run() -> Purpose:
    """Found from whoever called the guide: the nearest loss or sampler of Pyro, else a trace, else nobody."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        purpose = _OF_MODULE.get(frame.f_globals.get("__name__", ""))
        if purpose is not None:
            return purpose
        if frame.f_code.co_varnames[:1] == ("self",) and isinstance(loss := frame.f_locals.get("self"), ELBO):
            known = type(loss).__module__.startswith(("pyro.infer.", "guides."))  # a subclass may be anything
            linear = known and isinstance(loss, _LINEAR) and not isinstance(loss, _NOT_LINEAR)
            return Purpose.EXPECTATIONS if linear else _of_draws()
        frame = frame.f_back
    traced = any(isinstance(handler, TraceMessenger) and not handler.param_only for handler in _PYRO_STACK)
    return _of_draws() if traced or not torch.is_grad_enabled() else Purpose.EXPECTATIONS


def draws_in_parallel() -> bool:
    """Whether the guide is asked by a ``Predictive(parallel=True)``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "pyro.infer.predictive" and "parallel" in frame.f_locals:
            return bool(frame.f_locals["parallel"])
        frame = frame.f_back
    return False


def _of_draws() -> Purpose:
    return Purpose.WEIGHED_DRAWS if torch.is_grad_enabled() else Purpose.DRAWS
