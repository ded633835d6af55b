"""``x[..., index]`` whose derivative is a gather too.

The derivative of indexing is a scatter, which XLA's CPU compiler runs slowly and cannot put into one kernel
with the rest of a loop.  Where the index is known, the same numbers can be fetched instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guides.message_passing.arrays import Array


def gather(x: Array, index: np.ndarray) -> Array:
    """``x[..., index]``, ``[..., *index.shape]``, for a torch tensor or a JAX array ``x: [..., k]``."""
    if isinstance(x, torch.Tensor):
        return x[..., torch.as_tensor(index, device=x.device)]
    import jax

    places = _places(index, x.shape[-1])

    def forward(x: Array) -> tuple[Array, None]:
        return _fetch(x, index), None

    def backward(_: None, cotangent: Array) -> tuple[Array]:
        flat = cotangent.reshape(*cotangent.shape[: cotangent.ndim - index.ndim], index.size)
        padded = jax.numpy.concatenate([flat, jax.numpy.zeros_like(flat[..., :1])], -1)
        return (_fetch(padded, places).sum(-1),)

    function = jax.custom_vjp(lambda x: _fetch(x, index))
    function.defvjp(forward, backward)
    return function(x)


def _fetch(x: Any, index: np.ndarray) -> Any:
    return x.at[..., index].get(mode="promise_in_bounds")


def _places(index: np.ndarray, size: int) -> np.ndarray:
    """``[size, most]``: where in the flattened index each element is asked for; ``index.size`` fills up."""
    flat = index.reshape(-1)
    counts = np.bincount(flat, minlength=size)
    places = np.full((size, max(int(counts.max(initial=0)), 1)), flat.size)
    order = np.argsort(flat, kind="stable")
    rank = np.arange(flat.size) - np.repeat(np.cumsum(counts) - counts, counts)
    places[flat[order], rank] = order
    return places
