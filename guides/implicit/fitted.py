"""What the guides of functions share: a noise of their own, and what their data must be."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor

from guides.core.course import Course
from guides.core.settling import CLEAR, UnsettledWarning, told
from guides.posterior.fitted_guide import FittedGuide

Answer = TypeVar("Answer")
#: Nats a row that the loss of a settled fit may still fall in the last tenth of the learning.
SETTLED_CHANGE = 0.02
#: Sds of a target for which starts of the noise and learning rates were chosen.
USUAL_SCALE = 0.02, 50.0


class RegressionGuide(FittedGuide):
    """One of functions, with a Gaussian noise of its own; its settings have a ``noise_scale``."""

    @property
    def noise_variance(self) -> float:
        """In units of ``y^2``."""
        self._require_fit()
        return self.log_noise.double().exp().item()

    def _added_variance(self, noise: bool) -> float:
        """What a prediction adds to the variance of the function: the noise's, or next to nothing."""
        return self.noise_variance if noise else torch.finfo(torch.float64).tiny

    def _make_noise(self, start: float, dtype: torch.dtype, device: torch.device | str) -> None:
        """``log_noise``, a log variance: learned from ``start``, or fixed by the setting ``noise_scale``."""
        fixed = self.settings.noise_scale
        log_noise = start if fixed is None else 2 * math.log(fixed)
        full = torch.full((), log_noise, dtype=dtype, device=device)
        self.log_noise = nn.Parameter(full, requires_grad=fixed is None)


def check_regression(x: Tensor, y: Tensor) -> None:
    """:raises ValueError: unless ``x: [N, d]``, of floating point, and ``y: [N]`` are finite tensors, N at
    least 2, y not constant
    """
    for name, values in (("x", x), ("y", y)):
        if not isinstance(values, Tensor):
            raise ValueError(f"{name} must be a tensor, got a {type(values).__name__}: call torch.as_tensor")
    if not x.is_floating_point():
        raise ValueError(f"x must be of floating point, got {x.dtype}: call x.float()")
    if x.dim() != 2 or y.shape != x.shape[:1] or len(x) < 2:
        raise ValueError(
            f"x must be [N, d] and y [N], two rows at least; got {list(x.shape)} and {list(y.shape)}"
        )
    for name, values in (("x", x), ("y", y)):
        if not values.isfinite().all():
            raise ValueError(f"{name} must be finite")
    if (y == y[0]).all():
        raise ValueError(f"y is constant ({y[0]:g}): there is nothing to learn, and no noise to estimate")
    scale = y.double().std().item()
    if not USUAL_SCALE[0] < scale < USUAL_SCALE[1]:
        warnings.warn(
            f"y has a sd of {scale:.2g}, and a fit starts and steps as for one near 1: standardise it",
            stacklevel=3,
        )


def warn_unsettled(losses: Sequence[float], course: Course, rows: float) -> None:
    """Where the loss of the whole data still moved at the end, beyond its noise."""
    change, se = course.last_change(losses)
    size = abs(change) if se is not None else change  # few steps do not tell a rise
    if size > max(SETTLED_CHANGE * rows, CLEAR * (se or 0.0)):
        a_row = f", {abs(change) / rows:.2g} a row"
        warnings.warn(told(change, a_row), UnsettledWarning, stacklevel=3)


def check_inputs(x: Tensor, columns: int | None = None) -> None:
    """Of a prediction.

    :param columns: that the fit has seen, None where it does not matter
    :raises ValueError: unless ``x: [m, columns]``, m at least 1, is a finite tensor of floating point
    """
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a tensor of floating point, got {got}")
    if x.dim() != 2 or x.shape[1] != (x.shape[1] if columns is None else columns) or not len(x):
        expected = f"[m, {'d' if columns is None else columns}]"
        raise ValueError(f"x must be {expected}, one row at least; got {list(x.shape)}")
    if not x.isfinite().all():
        raise ValueError("x must be finite")


def _equal(a: Tensor, b: Tensor) -> bool:
    """NaN is NaN."""
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def remembered(answer: Callable[[Tensor], Answer]) -> Callable[[Tensor], Answer]:
    """The same function, without gradients, that remembers its last argument: a model that is run once a draw
    at the same inputs asks again and again.
    """
    last: list = []

    def ask(x: Tensor) -> Answer:
        # the very tensor, and what was in it: a grid may be filled anew in place
        if not last or last[0] is not x or is_batchedtensor(x) or not _equal(last[1], x):
            with torch.no_grad():
                last[:] = x, x.clone(), answer(x)
        return last[2]

    return ask
