"""One Adam for all parameters of a fit."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pyro.optim
import torch
from torch import Tensor


class FusedAdam(pyro.optim.PyroOptim):
    """Adam with a single fused step, for use as ``SVI(model, guide, FusedAdam(lr=0.01), loss)``.

    Pyro's own optimisers keep one torch optimiser per parameter.  Here a parameter joins when it is first
    seen, and gradients are dropped after the step instead of being filled with zeros, which saves one pass
    over the parameters in the next backward run.  That run may reuse the memory of a gradient that the
    optimiser has taken: clone it to keep it.

    :param lr: learning rate; change it with :meth:`set_lr`
    :param clip_norm: largest norm of the whole gradient, or None

    Other keyword arguments go to :class:`torch.optim.Adam`.
    """

    def __init__(self, lr: float = 0.01, *, clip_norm: float | None = None, **kwargs):
        super().__init__(torch.optim.Adam, {"lr": lr, **kwargs})
        self.clip_norm = clip_norm
        self.adam: torch.optim.Adam | None = None

    def __call__(self, params: Iterable[Tensor], *args, **kwargs) -> None:
        params = [p for p in params if p.grad is not None]
        if not params:
            return
        self.adopt(params)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(params, self.clip_norm)
        self.adam.step()
        for parameter in params:
            if getattr(parameter, "lends_gradient", False):
                parameter.spent_gradient = parameter.grad  # see guides.core.fused.GradientBuffer
        self.adam.zero_grad(set_to_none=True)

    def adopt(self, params: Iterable[Tensor]) -> None:
        """Takes parameters up, those it does not know yet.

        SVI hands them over in no lasting order, while a saved state counts them: a fit that is to be resumed
        adopts its parameters itself, in an order of its own.
        """
        params = list(params)
        if self.adam is None:
            self.adam = torch.optim.Adam(params, fused=True, **self.pt_optim_args)
            return
        known = {id(p) for group in self.adam.param_groups for p in group["params"]}
        new = [p for p in params if id(p) not in known]
        if new:
            self.adam.add_param_group({"params": new, "lr": self.pt_optim_args["lr"]})

    def set_lr(self, lr: float) -> None:
        """The learning rate of the steps to come."""
        self.pt_optim_args["lr"] = lr
        if self.adam is not None:
            for group in self.adam.param_groups:
                group["lr"] = lr

    def get_state(self) -> dict:
        """Adam's state, counted in the order of adoption; empty before there is a parameter."""
        return {} if self.adam is None else self.adam.state_dict()

    def set_state(self, state: dict) -> None:
        """Takes up a saved state, once its parameters are adopted.

        :raises RuntimeError: when no parameter is
        """
        if self.adam is None:
            raise RuntimeError("adopt the parameters before their saved state")
        self.adam.load_state_dict(copy.deepcopy(state))  # torch would share the tensors
