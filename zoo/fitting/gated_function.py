"""What the gates of NUTS look at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from guides.posterior.evaluate import observed_laws
from guides.posterior.predictive import function_values


def gated_function(model: Callable, points: Tensor) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """The function at some points, and every site that is one number, ``[S, Q]`` of ``{site: [S, *site]}``.

    Precisions are gated too: they have no symmetric modes, and the predictive depends on the noise.
    """

    def function(draws: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.as_tensor(np.array(value)) for name, value in draws.items()}
        values = function_values(observed_laws(model, tensors, points)).flatten(1)
        scalars = [value[:, None] for value in tensors.values() if value.dim() == 1]
        return torch.cat([values, *scalars], 1).numpy()

    return function
