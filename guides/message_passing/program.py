"""A feed-forward model as data: the list of operations that the recorder wrote down, and how messages run
through it.

A :class:`Program` describes one row of the data.  It works on message families of
:mod:`guides.message_passing.messages`, on torch tensors (a batch of rows) and on JAX arrays (one row) alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from guides.message_passing.arrays import operations
from guides.message_passing.gathers import gather
from guides.message_passing.messages import FAMILIES

Array = Any  #: a torch.Tensor or a jax array
Weights = Mapping[str, tuple[Array, Array]]  #: site -> (mean, variance), each [*site]


def _digest(array: np.ndarray) -> tuple:
    return array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _but_for_numbers(array: np.ndarray) -> tuple:
    """Of positions what they are; of known numbers, whose last digits depend on the precision, how many."""
    return array.shape if array.dtype.kind == "f" else _digest(array)


@dataclass(frozen=True, eq=False)
class WeightTable:
    """Where a matrix or a vector of weights comes from: ``factor * weight[index] + offset``, elementwise.

    :ivar sites: the sites it takes elements from
    :ivar shapes: their shapes
    :ivar index: positions in these sites, flattened and put one after another
    :ivar factor: zero for an element that is a known number
    """

    sites: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    index: np.ndarray
    factor: np.ndarray
    offset: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.index.shape

    @property
    def is_random(self) -> np.ndarray:
        return self.factor != 0

    @classmethod
    def of_numbers(cls, values: np.ndarray) -> WeightTable:
        """A table without any weight in it."""
        zeros = np.zeros(values.shape)
        return cls((), (), zeros.astype(np.int64), zeros, np.asarray(values, np.float64))

    def moments(self, weights: Weights, like: Array) -> tuple[Array, Array]:
        """``(mean, variance)``, each of the table's shape; ``like``: an array of the library in use."""
        ops = operations(like)
        if not self.sites:
            return ops.like(self.offset, like), ops.like(np.zeros(self.shape), like)
        mean, variance = (self._elements([weights[s][part] for s in self.sites], ops) for part in (0, 1))
        if self._is_scaled:
            factor = ops.like(self.factor, mean)
            mean, variance = mean * factor, variance * factor * factor
        if self.offset.any():
            mean = mean + ops.like(self.offset, mean)
        return mean, variance

    @cached_property
    def _is_scaled(self) -> bool:
        return bool((self.factor != 1).any())

    def _elements(self, arrays: Sequence[Array], ops: Any) -> Array:
        if self._view is not None:
            shape, columns, transposed = self._view
            matrix = arrays[0].reshape(shape)[:, columns]
            return (matrix.T if transposed else matrix).reshape(self.shape)
        flat = [a.reshape(-1) for a in arrays]
        joined = flat[0] if len(flat) == 1 else ops.concatenate(flat)
        return gather(joined, self.index)

    @cached_property
    def _view(self) -> tuple[tuple[int, int], slice, bool] | None:
        """The elements as columns of one site seen as a matrix: far cheaper than a gather.

        :returns: (shape of the matrix, columns, whether the table is its transpose), None if it is no such
            view
        """
        if len(self.sites) != 1 or not self.index.size:
            return None
        size = int(np.prod(self.shapes[0], dtype=int))
        width = self.shapes[0][-1] if len(self.shapes[0]) > 1 else 1
        layouts = {(1, size), (size, 1), (size // max(width, 1), width)}
        for shape in sorted(layouts):
            positions = np.arange(size).reshape(shape)
            first = int(self.index.flat[0]) % shape[1]
            for transposed in (False, True):
                table = self.index.T if transposed else self.index
                if table.size % shape[0]:
                    continue
                columns = slice(first, first + table.size // shape[0])
                if np.array_equal(positions[:, columns].ravel(), table.ravel()):
                    if transposed and len(self.shape) == 2 and table.shape != positions[:, columns].shape:
                        continue  # the transpose of the reshaped table is not the table
                    return shape, columns, transposed
        return None

    def key(self, digest: Callable[[np.ndarray], tuple] = _digest) -> tuple:
        return self.sites, self.shapes, *(digest(a) for a in (self.index, self.factor, self.offset))


@dataclass(frozen=True, eq=False)
class Node:
    """One operation on a row.

    :ivar operation: a key of ``_STEPS``
    :ivar inputs: numbers of earlier nodes
    :ivar width: elements of the result
    :ivar row: (``row``) which array of the row
    :ivar values: (``constant``) known numbers ``[width]``; (``take``) the positions ``[width]``
    :ivar weights: (``linear``) ``[width, inputs]``
    :ivar bias: (``linear``) ``[width]`` or None
    :ivar slope: (``leaky_relu``) factor of the negative side
    """

    operation: str
    inputs: tuple[int, ...]
    width: int
    row: str = ""
    values: np.ndarray | None = None
    weights: WeightTable | None = None
    bias: WeightTable | None = None
    slope: float = 0.0

    def key(self, digest: Callable[[np.ndarray], tuple] = _digest) -> tuple:
        tables = (None if t is None else t.key(digest) for t in (self.weights, self.bias))
        values = None if self.values is None else digest(self.values)
        return self.operation, self.inputs, self.width, self.row, values, *tables, self.slope

    @property
    def tables(self) -> list[WeightTable]:
        return [t for t in (self.weights, self.bias) if t is not None]


@dataclass(frozen=True, eq=False)
class Program:
    """What a model does with one row, its last node being the mean of the likelihood (width 1).

    Two programs that do the same are equal and have one hash, whatever data they were recorded with.
    """

    nodes: tuple[Node, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  #: shape of every weight site

    @cached_property
    def key(self) -> tuple:
        return tuple(node.key() for node in self.nodes), tuple(self.shapes.items())

    @cached_property
    def digest(self) -> str:
        """Short text that two programs share if they do the same with the same, or other, known numbers."""
        key = tuple(node.key(_but_for_numbers) for node in self.nodes), tuple(self.shapes.items())
        return hashlib.sha256(repr(key).encode()).hexdigest()[:32]

    @cached_property
    def known_numbers(self) -> tuple[tuple[float, float], ...]:
        """Of every array of them its absolute sum, and a sum by which another is told from it."""
        tables = [table for node in self.nodes for table in node.tables]
        arrays = [node.values for node in self.nodes if node.operation == "constant"]
        arrays += [array for table in tables for array in (table.factor, table.offset)]
        return tuple(
            (float(np.abs(a).sum()), float(a.ravel() @ np.cos(np.arange(1.0, a.size + 1)))) for a in arrays
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def linear_nodes(self) -> list[int]:
        """Numbers of the linear operations that have weights, in program order."""
        return [
            i
            for i, node in enumerate(self.nodes)
            if node.operation == "linear" and node.weights.sites and not self._is_bias(node)
        ]

    def _is_bias(self, node: Node) -> bool:
        """A weight that stands for itself: a linear operation on the known number 1."""
        source = self.nodes[node.inputs[0]]
        return source.operation == "constant" and source.width == 1 and source.values[0] == 1

    @cached_property
    def has_symmetry(self) -> bool:
        """Whether hidden units stay equal for ever when their weights start equal."""
        deep, seen = False, [False] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            random_inputs = any(seen[j] for j in node.inputs)
            deep |= node.operation in ("relu", "leaky_relu")
            deep |= node.operation == "linear" and bool(node.weights.sites) and random_inputs
            seen[i] = random_inputs or node.operation == "linear"
        return deep

    @cached_property
    def inputs_of_weights(self) -> dict[str, np.ndarray]:
        """``{site: [*site]}``: how many numbers enter the linear operation that uses a weight, bias included.

        An element that is never used counts 1.
        """
        counts = {name: np.ones(int(np.prod(shape, dtype=int))) for name, shape in self.shapes.items()}
        for node in self.nodes:
            if node.operation == "linear":
                fan_in = node.weights.shape[1] + (node.bias is not None)
                for table in node.tables:
                    for name, positions in used_elements(table).items():
                        counts[name][positions] = fan_in
        return {name: count.reshape(self.shapes[name]) for name, count in counts.items()}


def used_elements(table: WeightTable) -> dict[str, np.ndarray]:
    """``{site: flat positions}`` of the weights in a table, repeated as often as they are used."""
    used, start = {}, 0
    index = table.index[table.is_random]
    for name, shape in zip(table.sites, table.shapes, strict=True):
        size = int(np.prod(shape, dtype=int))
        used[name] = index[(index >= start) & (index < start + size)] - start
        start += size
    return used


# ------------------------------------------------------------------------------------------------ propagation


class Numbers(tuple):
    """Known numbers, wrapped so that no one takes them for a message."""

    __slots__ = ()


def propagate(program: Program, family: Any, weights: Weights, row: Mapping[str, Array]) -> Any:
    """The message of the likelihood's mean, without its last dimension.

    :param weights: ``{site: (mean, variance)}``
    :param row: ``{name: [..., width]}``; leading dimensions are a batch of rows
    """
    message = all_messages(program, family, weights, row)[-1]
    return type(message)(*(part[..., 0] for part in message))


def all_messages(program: Program, family: Any, weights: Weights, row: Mapping[str, Array]) -> list:
    """The message of every node, known numbers included."""
    like = next(iter(weights.values()))[0]
    run = _Run(family, weights, row, like, operations(like))
    results: list = []
    for node in program.nodes:
        results.append(getattr(run, node.operation)(node, *(results[i] for i in node.inputs)))
    return [run.message(result) for result in results]


@dataclass(frozen=True)
class _Run:
    """One method for each operation."""

    family: Any
    weights: Weights
    rows: Mapping[str, Array]
    like: Array
    ops: Any

    def message(self, value: Any) -> Any:
        return self.family.constant(value[0]) if isinstance(value, Numbers) else value

    def row(self, node: Node) -> Numbers:
        return Numbers((self.rows[node.row],))

    def constant(self, node: Node) -> Numbers:
        return Numbers((self.ops.like(node.values, self.like),))

    def linear(self, node: Node, value: Any) -> Any:
        mean, variance = node.weights.moments(self.weights, self.like)
        bias = None if node.bias is None else node.bias.moments(self.weights, self.like)
        if isinstance(value, Numbers):
            return self.family.linear_of_numbers(value[0], mean, variance, bias)
        return self.family.linear(value, mean, variance, bias)

    def scale(self, node: Node, value: Any, factor: Numbers) -> Any:
        return self.family.scale(self.message(value), factor[0])

    def shift(self, node: Node, value: Any, offset: Numbers) -> Any:
        return self.family.shift(self.message(value), offset[0])

    def relu(self, node: Node, value: Any) -> Any:
        return self.family.relu(value)

    def leaky_relu(self, node: Node, value: Any) -> Any:
        return self.family.leaky_relu(value, node.slope)

    def add(self, node: Node, first: Any, second: Any) -> Any:
        return self.family.add(self.message(first), self.message(second))

    def concatenate(self, node: Node, *values: Any) -> Any:
        return self.family.concatenate([self.message(value) for value in values])

    def take(self, node: Node, value: Any) -> Any:
        message = self.message(value)
        shape = message[-1].shape  # a probability may be one for all units
        return type(message)(*(gather(self.ops.broadcast_to(part, shape), node.values) for part in message))


@dataclass(frozen=True)
class Forward:
    """``forward(weights, row)`` of one program and family: what the compiled loop is built from, and its
    key."""

    program: Program
    family_name: str

    @property
    def family(self) -> Any:
        return FAMILIES[self.family_name]

    def __call__(self, weights: Weights, row: Mapping[str, Array]) -> Any:
        return propagate(self.program, self.family, weights, row)
