"""One Adam for all parameters of a fit."""

from __future__ import annotations

from collections.abc import Iterable

import pyro.optim
import torch
from torch import Tensor


class FusedAdam(pyro.optim.PyroOptim):
    """Adam with a single fused step, for use as ``SVI(model, guide, FusedAdam(lr=0.01), loss)``.

    Pyro's own optimisers keep one torch optimiser per parameter.  Here a parameter joins when it is first
    seen, and gradients are dropped after the step instead of being filled with zeros, which saves one pass
    over the parameters in the next backward run.

    :param lr: learning rate
    :param clip_norm: largest norm of the whole gradient, or None
    :param schedule: a function from the optimiser to a torch learning-rate scheduler, or None

    Other keyword arguments go to :class:`torch.optim.Adam`.
    """

    def __init__(self, lr: float = 0.01, *, clip_norm: float | None = None, schedule=None, **kwargs):
        super().__init__(torch.optim.Adam, {"lr": lr, **kwargs})
        self.clip_norm = clip_norm
        self.adam: torch.optim.Adam | None = None
        self.scheduler = None
        self._schedule = schedule
        self._pending: dict | None = None

    def __call__(self, params: Iterable[Tensor], *args, **kwargs) -> None:
        params = [p for p in params if p.grad is not None]
        if not params:
            return
        self._adopt(params)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(params, self.clip_norm)
        self.adam.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.adam.zero_grad(set_to_none=True)

    def _adopt(self, params: list[Tensor]) -> None:
        if self.adam is None:
            # SVI hands over an unordered set; the state of a saved run needs a lasting order.
            self.adam = torch.optim.Adam(sorted(params, key=torch.numel), fused=True, **self.pt_optim_args)
            self.scheduler = self._schedule(self.adam) if self._schedule else None
            if self._pending is not None:
                self.set_state(self._pending)
            return
        known = {id(p) for group in self.adam.param_groups for p in group["params"]}
        new = [p for p in params if id(p) not in known]
        if new:
            self.adam.add_param_group({"params": new})

    def get_state(self) -> dict:
        """Adam's state and the scheduler's, for ``torch.save``; empty before the first step."""
        if self.adam is None:
            return {}
        scheduler = self.scheduler.state_dict() if self.scheduler is not None else None
        return {"adam": self.adam.state_dict(), "scheduler": scheduler}

    def set_state(self, state: dict) -> None:
        """Takes up a saved state now, or at the first step if no parameter has been seen yet."""
        if self.adam is None:
            self._pending = state or None
            return
        self.adam.load_state_dict(state["adam"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._pending = None
