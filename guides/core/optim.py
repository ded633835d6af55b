"""One Adam for all parameters of a fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyro.optim
import torch
from torch import Tensor


class Common(NamedTuple):
    """How the pieces of a flat parameter move as one.

    :ivar sizes: elements of the pieces, one after another from the parameter's first
    :ivar factor: how many times the optimiser's ``lr`` the rate of these moves is
    :ivar when: asked before a step whether they move in it
    """

    sizes: Sequence[int]
    factor: float
    when: Callable[[], bool]


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
    :param common_of: pieces of a parameter that also move as one, or None, asked once: as if ``x[i]`` were
        ``u[i] + a``, with one ``a`` for all ``i`` of a piece, and Adam moved both.  Where every element's
        gradient is mostly noise and their sum is not, the elements go that way sooner.  What is clipped is
        the gradient of ``x``, before the sums; ``weight_decay`` is on ``u``

    Other keyword arguments go to :class:`torch.optim.Adam`.
    """

    def __init__(
        self,
        lr: float = 0.01,
        *,
        clip_norm: float | None = None,
        factor_of: Callable[[Tensor], float] | None = None,
        common_of: Callable[[Tensor], Common | None] | None = None,
        **kwargs,
    ):
        super().__init__(torch.optim.Adam, {"lr": lr, **kwargs})
        self.clip_norm = clip_norm
        self.factor_of = factor_of or _one
        self.common_of = common_of or _none
        self.adam: torch.optim.Adam | None = None
        self._moves: list[_Moves] = []

    def __call__(self, params: Iterable[Tensor], *args, **kwargs) -> None:
        params = [p for p in params if p.grad is not None]
        if not params:
            return
        self.adopt(params)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(params, self.clip_norm)
        for moves in self._moves:
            moves.take_gradient()
        self.adam.step()
        for moves in self._moves:
            moves.hand_on()
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
            if id(parameter) in known:
                continue
            groups.setdefault(self.factor_of(parameter), []).append(parameter)
            common = self.common_of(parameter)
            if common is not None:
                moves = _Moves(parameter, common)
                self._moves.append(moves)
                groups.setdefault(common.factor, []).append(moves.values)
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
        """Takes up a saved state of the same parameters, factors and common moves, once they are adopted.

        :raises RuntimeError: when no parameter is
        """
        if self.adam is None:
            raise RuntimeError("adopt the parameters before their saved state")
        self.adam.load_state_dict(copy.deepcopy(state))  # torch would share the tensors


def _one(parameter: Tensor) -> float:
    return 1.0


def _none(parameter: Tensor) -> None:
    return None


class _Moves:
    """One number for each piece of a flat parameter, a parameter of Adam itself: zero between two steps."""

    def __init__(self, owner: Tensor, common: Common):
        self.owner, self.sizes, self.when = owner, list(common.sizes), common.when
        self.values = owner.new_zeros(len(self.sizes)).requires_grad_()

    @torch.no_grad()
    def take_gradient(self) -> None:
        """``dL/da`` of ``x[i] = u[i] + a`` is the sum of ``dL/dx[i]``."""
        gradient = self.owner.grad
        if gradient is not None and self.when():
            self.values.grad = torch.stack([piece.sum() for piece in gradient.split(self.sizes)])

    @torch.no_grad()
    def hand_on(self) -> None:
        """Adds the step to all elements of every piece."""
        for piece, value in zip(self.owner.split(self.sizes), self.values, strict=True):
            piece += value
        self.values.zero_()
