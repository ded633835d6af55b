"""Recording tensors: what stands for weights, and for what the network makes of them, while a model is
written down.

A :class:`Recorded` tensor has a shape and no numbers.  Its elements are described by integer tables of the
same shape, so that indexing, reshaping, joining and padding are done by applying torch's own function to the
tables. Operations with a meaning (linear layers, ReLU, sums, ...) append a node to the :class:`Tape`;
everything else raises an error that names site and operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guides.core.nested import leaves
from guides.core.sites import UnsupportedSiteError
from guides.message_passing.program import Node, WeightTable

SUPPORTED = (
    "supported are linear layers (F.linear, @, with bias, padding or concatenated ones), relu, "
    "leaky_relu, sums of "
    "branches, concatenation, indexing and reshaping, and scaling or shifting by known numbers"
)


class Tape:
    """The nodes recorded so far.

    :param rows: number of rows; no weight may have a dimension of this size, so that rows can be told from
        units
    :param apply: ``(function, args, kwargs)`` -> what a torch function gives for recorded tensors
    """

    def __init__(self, rows: int, apply: Callable):
        self.rows, self.apply = rows, apply
        self.nodes: list[Node] = []
        self.row_values: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def append(self, operation: str, inputs: Sequence[int], width: int, **details: Any) -> int:
        self.nodes.append(Node(operation, tuple(inputs), width, **details))
        return len(self.nodes) - 1

    def add_site(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> WeightView:
        """A new site: its elements are numbered on from those of the sites before."""
        start = sum(math.prod(s) for s in self.shapes.values())
        self.shapes[name] = tuple(shape)
        index = torch.arange(start, start + math.prod(shape)).reshape(shape)
        return WeightView(self, (index, torch.ones(shape).double(), torch.zeros(shape).double()), dtype)

    def sites_of(self, node: int) -> tuple[str, ...]:
        """The sites of the nearest linear operations below a node."""
        at = self.nodes[node]
        if at.operation == "linear" and at.weights.sites:
            return at.weights.sites
        return tuple(dict.fromkeys(s for i in at.inputs for s in self.sites_of(i)))

    def constant(self, values: Tensor | Sequence[float]) -> int:
        values = np.asarray(values, np.float64).reshape(-1)
        return self.append("constant", (), values.size, values=values)

    def numbers(self, values: Tensor) -> int:
        """A node for known numbers: ``[rows, k]`` of the data, or the same ``[k]`` for every row."""
        values = values.detach().double()
        if values.dim() == 1:
            return self.constant(values)
        name = str(len(self.row_values))
        self.row_values[name] = values.numpy()
        return self.append("row", (), values.shape[1], row=name)

    def table(self, view: WeightView) -> WeightTable:
        """Which weights the elements of a view are, in terms of the sites that it uses."""
        index, factor, offset = (t.numpy() for t in view.tables)
        sites, shapes, places = [], [], np.zeros_like(index)
        start = end = 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            inside = (index >= start) & (index < start + size) & (factor != 0)
            if inside.any():
                places[inside] = index[inside] - start + end
                sites, shapes, end = [*sites, name], [*shapes, shape], end + size
            start += size
        return WeightTable(tuple(sites), tuple(shapes), places, factor.copy(), offset.copy())

    def row_axis(self, shape: Sequence[int]) -> int | None:
        return next((axis for axis, size in enumerate(shape) if size == self.rows), None)


class Recorded(torch.Tensor):
    """A tensor without storage.

    :ivar tape: where operations are written
    :ivar tables: tables of the tensor's own shape that say what each element is
    """

    @staticmethod
    def __new__(cls, tape: Tape, tables: tuple[Tensor, ...], dtype: torch.dtype):
        return torch.Tensor._make_wrapper_subclass(cls, tables[0].shape, dtype=dtype)

    def __init__(self, tape: Tape, tables: tuple[Tensor, ...], dtype: torch.dtype):
        self.tape, self.tables = tape, tables

    def rearranged(self, tables: Sequence[Tensor]) -> Recorded:
        """The same elements in another order."""
        raise NotImplementedError

    def site_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{type(self).__name__}({self.site_names()}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return next(recorded((args, kwargs or {}))).tape.apply(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise unsupported(func, (args, kwargs or {}))


class WeightView(Recorded):
    """Elements of weight sites: ``tables = (index, factor, offset)``; a factor of 0 makes a known number."""

    def rearranged(self, tables: Sequence[Tensor]) -> WeightView:
        return WeightView(self.tape, tuple(tables), self.dtype)

    def site_names(self) -> tuple[str, ...]:
        return self.tape.table(self).sites


class MessageView(Recorded):
    """Elements of one node: ``tables = (row, column)``; row -1 is an element that is the same for all rows.

    :ivar node: number of the node
    """

    def __init__(self, tape: Tape, tables: tuple[Tensor, ...], dtype: torch.dtype, node: int = -1):
        super().__init__(tape, tables, dtype)
        self.node = node
        self._rows_at: int | None = None  # known for a whole node: axis of the rows, -1 for none

    @staticmethod
    def __new__(cls, tape: Tape, tables: tuple[Tensor, ...], dtype: torch.dtype, node: int = -1):
        return Recorded.__new__(cls, tape, tables, dtype)

    def rearranged(self, tables: Sequence[Tensor]) -> MessageView:
        return MessageView(self.tape, tuple(tables), self.dtype, self.node)

    def site_names(self) -> tuple[str, ...]:
        return self.tape.sites_of(self.node)

    @classmethod
    def of_node(
        cls, tape: Tape, node: int, shape: Sequence[int], axis: int | None, dtype: torch.dtype
    ) -> MessageView:
        """All elements of a node, laid out in ``shape`` with the rows on ``axis`` (None: no rows)."""
        units = [size for i, size in enumerate(shape) if i != axis]
        column = torch.arange(math.prod(units)).reshape(units)
        if axis is None:
            row = torch.full_like(column, -1)
        else:
            column = column.unsqueeze(axis).expand(list(shape))
            row = torch.arange(tape.rows).reshape([-1 if i == axis else 1 for i in range(len(shape))])
            row = row.expand(list(shape))
        view = cls(tape, (row, column), dtype, node)
        view._rows_at = axis if axis is not None else -1
        return view

    def columns(self, operation: str) -> tuple[int | None, Tensor]:
        """``(axis of the rows or None, elements without that axis)``.

        :raises UnsupportedSiteError: an element is made of several rows, or rows change places
        """
        row, column = self.tables
        for axis, size in enumerate(self.shape):
            if size == self.tape.rows:
                rows, columns = row.movedim(axis, -1), column.movedim(axis, 0)
                in_order = (rows < 0) | (rows == torch.arange(size))
                if bool(in_order.all()) and bool((columns == columns[:1]).all()):
                    return axis, columns[0]
        if bool((row < 0).all()):
            return None, column
        raise UnsupportedSiteError(
            f"{_named(self.site_names())}: `{operation}` mixes rows of the data, or changes their order or "
            "number; "
            "every row must go through the network on its own"
        )

    def gathered(self, operation: str) -> tuple[int, int | None]:
        """A node that holds exactly the elements of this view, in order, and the axis of the rows."""
        if self._rows_at is not None:
            return self.node, None if self._rows_at < 0 else self._rows_at
        axis, columns = self.columns(operation)
        flat = columns.reshape(-1).numpy()
        if np.array_equal(flat, np.arange(self.tape.nodes[self.node].width)):
            return self.node, axis
        return self.tape.append("take", (self.node,), flat.size, values=flat.copy()), axis


def as_message(tape: Tape, value: Any, operation: str, dtype: torch.dtype) -> MessageView:
    """Known numbers or weights as a message."""
    if isinstance(value, MessageView):
        return value
    if isinstance(value, WeightView):
        axis = tape.row_axis(value.shape)
        tables = value.tables
        if axis is not None:  # broadcast over the rows: one row says it all
            if any(bool((t != t.select(axis, 0).unsqueeze(axis)).any()) for t in tables):
                raise UnsupportedSiteError(
                    f"{_named(value.site_names())}: `{operation}` gives every row weights of its own, "
                    "which is not "
                    f"supported; {SUPPORTED}"
                )
            tables = tuple(t.select(axis, 0) for t in tables)
        table = tape.table(value.rearranged([t.reshape(-1, 1) for t in tables]))
        node = tape.append("linear", (tape.constant([1.0]),), table.shape[0], weights=table)
    else:
        value = torch.as_tensor(value, dtype=torch.float64).detach()
        axis = tape.row_axis(value.shape)
        values = value.reshape(-1) if axis is None else value.movedim(axis, 0).reshape(tape.rows, -1)
        node = tape.numbers(values)
    return MessageView.of_node(tape, node, value.shape, axis, dtype)


# ------------------------------------------------------------------------------------------------- errors


def recorded(value: Any) -> Iterator[Recorded]:
    """Every recorded tensor in nested arguments."""
    return leaves(value, Recorded)


def operation_name(func: Callable) -> str:
    name = getattr(func, "__name__", str(func))
    if name == "__get__":  # a property: Tensor.shape, Tensor.T, ...
        return func.__self__.__name__
    return name.removeprefix("__").removesuffix("__")


def _named(sites: Sequence[str]) -> str:
    names = ", ".join(repr(s) for s in sites)
    return f"site{'s' if len(sites) > 1 else ''} {names}" if sites else "the network"


def unsupported(func: Callable | str, arguments: Any, why: str = "") -> UnsupportedSiteError:
    """The error for an operation that message passing cannot do."""
    name = func if isinstance(func, str) else operation_name(func)
    sites = tuple(dict.fromkeys(s for value in recorded(arguments) for s in value.site_names()))
    why = why or "is not an operation of message passing"
    return UnsupportedSiteError(f"{_named(sites)}: `{name}` {why}; {SUPPORTED}")
