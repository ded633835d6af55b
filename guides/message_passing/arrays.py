"""The few places in which torch and ``jax.numpy`` differ, so that every formula is written once.

``ops = operations(array)`` gives the functions of the library that made ``array``.  JAX is imported only
once a JAX array turns up.

:func:`with_partials` turns a formula that returns its values *and* its partial derivatives into a function
that both libraries differentiate by exactly these partials, never by going through the formula.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Array = Any  #: a torch.Tensor or a jax array
Formula = Callable[..., tuple[tuple[Array, ...], tuple[tuple[Array, ...], ...]]]


class TorchOperations:
    """Elementwise functions and sums on torch tensors."""

    exp, expm1, log, log1p, sqrt = torch.exp, torch.expm1, torch.log, torch.log1p, torch.sqrt
    where, logaddexp, isfinite = torch.where, torch.logaddexp, torch.isfinite
    zeros_like, full_like = torch.zeros_like, torch.full_like

    @staticmethod
    def clip(x: Array, low: float | None = None, high: float | None = None) -> Array:
        return x.clamp(low, high)

    @staticmethod
    def sum(x: Array) -> Array:
        """Over the last dimension, which stays with length 1."""
        return x.sum(-1, keepdim=True)

    @staticmethod
    def logsumexp(x: Array) -> Array:
        """Over the last dimension, which stays with length 1."""
        return x.logsumexp(-1, keepdim=True)

    @staticmethod
    def concatenate(arrays: Sequence[Array]) -> Array:
        """Along the last dimension; leading dimensions broadcast."""
        batch = torch.broadcast_shapes(*(a.shape[:-1] for a in arrays))
        return torch.cat([a.expand(*batch, a.shape[-1]) for a in arrays], -1)

    @staticmethod
    def like(value: Any, x: Array) -> Array:
        """A number, a list or a numpy array as an array of the kind of ``x``."""
        return torch.as_tensor(value, dtype=x.dtype, device=x.device)

    broadcast_to = staticmethod(torch.broadcast_to)
    broadcast = staticmethod(torch.broadcast_tensors)


@functools.cache
def _jax_operations() -> Any:
    import jax
    import jax.numpy as jnp

    class JaxOperations:
        """The same on JAX arrays."""

        exp, expm1, log, log1p, sqrt = jnp.exp, jnp.expm1, jnp.log, jnp.log1p, jnp.sqrt
        where, logaddexp, isfinite = jnp.where, jnp.logaddexp, jnp.isfinite
        zeros_like, full_like = jnp.zeros_like, jnp.full_like

        @staticmethod
        def clip(x: Array, low: float | None = None, high: float | None = None) -> Array:
            return jnp.clip(x, low, high)

        @staticmethod
        def sum(x: Array) -> Array:
            return x.sum(-1, keepdims=True)

        @staticmethod
        def logsumexp(x: Array) -> Array:
            return jax.nn.logsumexp(x, -1, keepdims=True)

        @staticmethod
        def concatenate(arrays: Sequence[Array]) -> Array:
            batch = jnp.broadcast_shapes(*(a.shape[:-1] for a in arrays))
            return jnp.concatenate([jnp.broadcast_to(a, (*batch, a.shape[-1])) for a in arrays], -1)

        @staticmethod
        def like(value: Any, x: Array) -> Array:
            return jnp.asarray(value, dtype=x.dtype)

        broadcast_to = staticmethod(jnp.broadcast_to)
        broadcast = staticmethod(jnp.broadcast_arrays)

    return JaxOperations


def operations(array: Array) -> Any:
    """The functions for arrays of this kind: torch tensors, or else JAX arrays and tracers."""
    return TorchOperations if isinstance(array, torch.Tensor) else _jax_operations()


def smallest_variance(array: Array) -> float:
    """Below this a variance is taken for this before a root or a division: 1e-100, or 1e-20 in float32.

    Together with :func:`largest_ratio` it keeps every partial derivative representable.
    """
    return 1e-100 if array.dtype.itemsize == 8 else 1e-20


def largest_ratio(array: Array) -> float:
    """Bound of ``|mean| / standard deviation``, far beyond where it matters: its square must not overflow."""
    return 1e50 if array.dtype.itemsize == 8 else 1e8


@contextlib.contextmanager
def double_precision():
    """JAX with float64 inside the block, whatever the setting outside; nothing global changes."""
    import jax

    with jax.enable_x64(True):
        yield


def with_partials(formula: Formula) -> Callable[..., tuple[Array, ...]]:
    """Give a formula its own derivative in torch and in JAX (reverse mode, once).

    :param formula: elementwise; takes arrays of one shape and returns ``(values, partials)``: a tuple of
        arrays and, for each of them, a tuple with its partial derivative in every argument
    :returns: a function of the same arguments, which broadcast, that returns ``values``
    """

    class WithPartials(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            values, partials = formula(*arguments)
            ctx.save_for_backward(*(p for row in partials for p in row))
            ctx.arguments = len(arguments)
            return values

        @staticmethod
        @once_differentiable
        def backward(ctx, *cotangents):
            flat, n = ctx.saved_tensors, ctx.arguments
            return _pull_back(cotangents, [flat[i : i + n] for i in range(0, len(flat), n)])

    @functools.cache
    def in_jax() -> Callable:
        import jax

        function = jax.custom_vjp(lambda *arguments: formula(*arguments)[0])
        function.defvjp(formula, lambda partials, cotangents: _pull_back(cotangents, partials))
        return function

    @functools.wraps(formula)
    def function(*arguments):
        ops = operations(arguments[0])
        arguments = ops.broadcast(*arguments)
        return WithPartials.apply(*arguments) if ops is TorchOperations else in_jax()(*arguments)

    return function


def _pull_back(cotangents: Sequence[Array], partials: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
    """``sum_o cotangent_o * partial_{o, i}`` for every argument ``i``."""

    def one(column):
        return functools.reduce(operator.add, (c * p for c, p in zip(cotangents, column, strict=True)))

    return tuple(one(column) for column in zip(*partials, strict=True))
