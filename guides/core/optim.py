"""One Adam for all parameters of a fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

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
    :param factor_of: how many times ``lr`` a parameter's own rate is, asked once; 1 by default.  Adam moves a
        number by at most the sum of its rates, and some kinds have farther to go than others

    Other keyword arguments go to :class:`torch.optim.Adam`.
    """

    def __init__(
        self,
        lr: float = 0.01,
        *,
        clip_norm: float | None = None,
        factor_of: Callable[[Tensor], float] | None = None,
        **kwargs,
    ):
        super().__init__(torch.optim.Adam, {"lr": lr, **kwargs})
        self.clip_norm = clip_norm
        self.factor_of = factor_of or _one
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
        known = set()
        if self.adam is not None:
            known = {id(p) for group in self.adam.param_groups for p in group["params"]}
        groups: dict[float, list[Tensor]] = {}
        for parameter in params:
            if id(parameter) not in known:
                groups.setdefault(self.factor_of(parameter), []).append(parameter)
        for factor, members in groups.items():
            group = {"params": members, "lr": factor * self.pt_optim_args["lr"], "factor": factor}
            if self.adam is None:
                self.adam = torch.optim.Adam([group], fused=True, **self.pt_optim_args)
            else:
                self.adam.add_param_group(group)

    def set_lr(self, lr: float) -> None:
        """The learning rate of the steps to come; parameters with a factor keep it."""
        self.pt_optim_args["lr"] = lr
        if self.adam is not None:
            for group in self.adam.param_groups:
                group["lr"] = group["factor"] * lr

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


def _one(parameter: Tensor) -> float:
    return 1.0
