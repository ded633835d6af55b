"""Where message passing starts and in which order it visits the rows; checks of what the caller hands in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guides.core.checks import check_counts
from guides.message_passing.recorder import Recording


def as_rows(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """``x [N, ...]`` and ``y [N]`` as tensors; :raises ValueError: in one line, what is wrong with them"""
    x, y = as_inputs(x), torch.as_tensor(y)
    if y.dim() != 1:
        raise ValueError(f"y must have shape [N], got {tuple(y.shape)}")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}")
    _refuse_non_finite("y", y)
    return x, y


def as_inputs(x: Any) -> Tensor:
    x = torch.as_tensor(x)
    if x.dim() == 0 or len(x) == 0:
        raise ValueError(f"x must have at least one row, got shape {tuple(x.shape)}")
    _refuse_non_finite("x", x)
    return x


def _refuse_non_finite(name: str, values: Tensor) -> None:
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        row = int(bad.reshape(len(values), -1).any(1).nonzero()[0])
        raise ValueError(
            f"{name} has {int(bad.sum())} values that are NaN or infinite, the first in row {row}"
        )


def start_means(
    recording: Recording, rng: np.random.Generator, given: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
    """Mean of every weight before the first row.

    ``loc + factor N(0, 1/inputs)``, with the ``factor`` of the prior's scale and the number of inputs of the
    linear operation that uses the weight, so that a network starts the same wherever it divides by
    ``sqrt(inputs)``; the prior mean where hidden units need not be told apart.

    :param given: ``{site: mean}`` instead
    :raises ValueError: naming an unknown site, a wrong shape or a value that is not finite
    """
    given = dict(given or {})
    if unknown := given.keys() - recording.weights.keys():
        raise ValueError(
            f"init_means: the model has no weight site {sorted(unknown)[0]!r}, "
            f"but {', '.join(recording.weights)}"
        )
    means = {}
    for name, prior in recording.weights.items():
        noise = rng.standard_normal(
            prior.shape
        )  # drawn in any case: the order of the rows then stays the same
        if name in given:
            means[name] = _given_mean(name, given[name], prior.shape)
        elif recording.program.has_symmetry:
            inputs = recording.program.inputs_of_weights[name]
            means[name] = prior.loc + prior.factor * noise / np.sqrt(inputs)
        else:
            means[name] = prior.loc.copy()
    return means


def _given_mean(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    value = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    value = np.array(value, np.float64)
    if value.shape != shape:
        raise ValueError(f"init_means: site {name!r} has shape {shape}, got {value.shape}")
    if not np.isfinite(value).all():
        raise ValueError(f"init_means: site {name!r} has values that are not finite")
    return value


def orders(rows: int, epochs: int, rng: np.random.Generator, given: Any, batch_size: int) -> np.ndarray:
    """Row numbers ``[epochs, rows]``, for minibatches ``[epochs, batches, batch_size]`` with -1 for empty
    places.

    :param given: ``[epochs, rows]`` instead of random permutations
    :raises ValueError: a wrong shape, row numbers that do not exist
    """
    check_counts(epochs=epochs, batch_size=batch_size)
    if given is None:
        order = np.stack([rng.permutation(rows) for _ in range(epochs)])
    else:
        order = np.asarray(given)
        if order.shape != (epochs, rows) or not np.issubdtype(order.dtype, np.integer):
            raise ValueError(
                f"order must be integers of shape [epochs, N] = {(epochs, rows)}, got {order.dtype} "
                f"{order.shape}"
            )
        if order.min() < 0 or order.max() >= rows:
            raise ValueError(
                f"order must hold row numbers 0 to {rows - 1}, got {order.min()} to {order.max()}"
            )
    return in_batches(order, batch_size)


def in_batches(order: np.ndarray, batch_size: int) -> np.ndarray:
    if batch_size == 1:
        return order
    epochs, rows = order.shape
    batches = -(-rows // batch_size)
    padded = np.full((epochs, batches * batch_size), -1, order.dtype)
    padded[:, :rows] = order
    return padded.reshape(epochs, batches, batch_size)
