"""What one run of the model does with a weight: the products it enters, and the draws it must give."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from guides.core.purpose import Purpose
from guides.core.random_tensors import PathwiseGradientError

#: Called with a site's name, the output ``[*batch, ...]`` of its layer and ``batch``; gives the output that
#: the model goes on with.
Probe = Callable[[str, Tensor, torch.Size], Tensor]


class Uses:
    """What one execution of the model does with a site.

    A weight that enters two products, or a product and something else, must not be given independent noise
    in each: the set-up run records the uses (``recording``), later runs are checked against them.

    :param site: its name
    :param wants_grad: whether the execution began with gradients enabled
    :param purpose: what the execution is for
    :param probe: sees or changes the outputs of layers, to find out what depends on them
    :ivar rows: the most rows that a layer of the site has had
    :ivar is_over: the run has ended; looking at a value disturbs nothing any more
    :ivar is_weight: the recording run has seen the site multiply a layer's input
    :ivar axis: the site's axis that runs over those inputs, or over a convolution's filters
    """

    def __init__(
        self,
        site: str,
        recording: bool = False,
        wants_grad: bool = False,
        probe: Probe | None = None,
        purpose: Purpose = Purpose.EXPECTATIONS,
    ):
        self.site, self.recording, self.purpose = site, recording, purpose
        self.scores_draws = purpose is not Purpose.EXPECTATIONS
        self.wants_grad = wants_grad and not self.scores_draws
        self.asks_no_gradient = purpose in (Purpose.DRAWS, Purpose.STRUCTURE)
        self.probe = probe
        self.rows = 0
        self.is_over = False
        self.is_weight = False
        self.axis: int | None = None
        self.products = 0
        self.drawn_by: list[str] = []

    def count_product(self, by_moments: bool) -> None:
        self._check_grad("a linear layer")
        self.products += 1
        self._check_once(by_moments)

    def count_draw(self, operation: str, by_moments: bool) -> None:
        self._check_grad(f"`{operation}`")
        self.drawn_by.append(operation)
        self._check_once(by_moments)

    def _check_grad(self, operation: str) -> None:
        if self.wants_grad and not torch.is_grad_enabled() and not self.is_over:
            raise PathwiseGradientError(
                f"site {self.site!r}: {operation} draws under no_grad (or in an autograd.Function) "
                "while the guide is trained: the gradient would be lost; write `+w` first, outside of it"
            )

    def _check_once(self, by_moments: bool) -> None:
        shared = by_moments and self.products > 0 and not self.used_once
        if shared and not self.recording and not self.is_over:
            raise RuntimeError(
                f"site {self.site!r} is used more often in this run than when the guide was set up: its "
                "noise would not be shared; set the guide up with a call that uses every branch of the model"
            )

    @property
    def wants_grad_of_draws(self) -> bool:
        return torch.is_grad_enabled() and not self.asks_no_gradient

    @property
    def used_once(self) -> bool:
        return self.products == 1 and not self.drawn_by

    def describe(self) -> str:
        if self.drawn_by:
            return "`" + "`, `".join(dict.fromkeys(self.drawn_by)) + "`"
        return f"{self.products} products" if self.products else "nothing at all"
