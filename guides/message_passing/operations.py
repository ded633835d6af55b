"""What torch functions do to recorded tensors: the operations that message passing knows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from guides.message_passing.program import WeightTable
from guides.message_passing.views import (
    MessageView,
    Recorded,
    Tape,
    WeightView,
    as_message,
    operation_name,
    recorded,
    unsupported,
)

PRODUCT = "multiplies two random quantities elementwise, which is not supported"


def apply(func: Callable, args: tuple, kwargs: dict) -> Any:
    """The result of a torch function that was called with recorded tensors.

    :raises UnsupportedSiteError: naming site and operation
    """
    name = operation_name(func)
    if func is Tensor.__float__:  # not the method that makes a float32 tensor
        raise unsupported(name, (args, kwargs), "of a random quantity does not exist")
    if name in _METADATA:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if "out" in kwargs and kwargs["out"] is not None:
        raise unsupported(name, (args, kwargs), "with `out=` is not supported")
    handler = _HANDLERS.get(name)
    if handler is None:
        in_place = name.endswith("_") or name.startswith("i") and name[1:] in _HANDLERS or name == "setitem"
        why = "works in place: write the form that returns a new tensor" if in_place else ""
        raise unsupported(name, (args, kwargs), why)
    return handler(func, *args, **kwargs)


def _tape(*values: Any) -> Tape:
    return next(recorded(values)).tape


def _dtype(*values: Any) -> torch.dtype:
    dtypes = (v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point())
    return functools.reduce(torch.promote_types, dtypes)


def _plain(value: Any) -> Any:
    """Arguments with every recorded tensor replaced by a plain one of its shape."""
    if isinstance(value, Recorded):
        return torch.zeros((), dtype=value.dtype).expand(value.shape)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_plain(v) for v in value)
    return value


# ------------------------------------------------------------------------------------- moving elements about


def _rearrange(func, view, *args, **kwargs):
    """Indexing and reshaping: torch's own function on the tables."""
    if not isinstance(view, Recorded):  # only the shape of the other one counts: x.expand_as(hidden)
        return func(view, *_plain(args), **kwargs)
    results = [func(table, *_plain(args), **kwargs) for table in view.tables]
    if isinstance(results[0], (tuple, list)):
        return tuple(view.rearranged(tables) for tables in zip(*results, strict=True))
    return view.rearranged(results)


def _same(func, view, *args, **kwargs):
    return view if isinstance(view, Recorded) else func(view, *_plain(args), **kwargs)


def _plain_like(func, view, *args, **kwargs):
    return func(_plain(view), *_plain(args), **kwargs)


def _join(func, tensors, *args, **kwargs):
    """``cat``, ``stack`` and their kin."""
    tensors = list(tensors)
    tape, dtype = _tape(tensors), _dtype(*tensors)
    if not any(isinstance(t, MessageView) for t in tensors):
        tables = [_weights_or_numbers(t) for t in tensors]
        joined = [func(list(part), *args, **kwargs) for part in zip(*tables, strict=True)]
        if tape.row_axis(joined[0].shape) is None:
            return WeightView(tape, tuple(joined), dtype)
    views = [as_message(tape, t, operation_name(func), dtype) for t in tensors]
    nodes = list(dict.fromkeys(view.node for view in views))
    starts, width = {}, 0
    for node in nodes:
        starts[node] = width
        width += tape.nodes[node].width
    joined = nodes[0] if len(nodes) == 1 else tape.append("concatenate", nodes, width)
    rows = func([view.tables[0] for view in views], *args, **kwargs)
    columns = func([view.tables[1] + starts[view.node] for view in views], *args, **kwargs)
    return MessageView(tape, (rows, columns), dtype, joined)


def _weights_or_numbers(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if isinstance(value, WeightView):
        return value.tables
    offset = value.detach().double()
    return torch.zeros(offset.shape, dtype=torch.int64), torch.zeros_like(offset), offset


def _pad(func, view, pad, mode="constant", value=None):
    if not isinstance(view, Recorded) or mode != "constant":
        raise unsupported(func, (view,), f"with mode {mode!r} is not supported")
    value = 0.0 if value is None else float(value)
    if isinstance(view, WeightView):
        index, factor, offset = view.tables
        return view.rearranged([F.pad(index, pad), F.pad(factor, pad), F.pad(offset, pad, value=value)])
    tape, width = view.tape, view.tape.nodes[view.node].width
    node = tape.append("concatenate", (view.node, tape.constant([value])), width + 1)
    row, column = view.tables
    return MessageView(tape, (F.pad(row, pad, value=-1), F.pad(column, pad, value=width)), view.dtype, node)


def _broadcast_tensors(func, *tensors):
    tensors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    return tuple(t.expand(shape) for t in tensors)


# ------------------------------------------------------------------------------------------ linear operations


def _linear(func, input, weight, bias=None):
    output = torch.matmul(input, weight.mT if weight.dim() > 1 else weight)
    return output if bias is None else output + bias


def _addmm(func, input, left, right, *, beta=1, alpha=1):
    return input * beta + torch.matmul(left, right) * alpha


def _matmul(func, left, right):
    """``input @ weights``; the data may stand in rows or in columns."""
    if any(t.dim() not in (1, 2) for t in (left, right)):
        return _matmul_of_many(func, left, right)
    # known numbers may be weights too, beside a message
    weights_left, weights_right = (not isinstance(t, MessageView) for t in (left, right))
    if isinstance(left, WeightView) and not isinstance(right, WeightView):
        weights_right = False
    if isinstance(right, WeightView) and not isinstance(left, WeightView):
        weights_left = False
    if weights_left == weights_right:
        raise unsupported(func, (left, right), "multiplies two random quantities, which is not supported")
    if weights_right:
        return _apply_weights(func, left, right)
    swapped = _apply_weights(
        func, right.mT if right.dim() == 2 else right, left.mT if left.dim() == 2 else left
    )
    return swapped.mT if swapped.dim() == 2 else swapped


def _matmul_of_many(func, left, right):
    """Batched products in which only one element of the batch is there: ``[N, 1, k] @ [k, o]``."""
    if isinstance(right, Tensor) and right.dim() <= 2 < left.dim():
        flat = left.reshape(-1, left.shape[-1])
        return torch.matmul(flat, right).reshape(left.shape[:-1] + right.shape[1:])
    raise unsupported(func, (left, right), "of more than two dimensions is not supported")


def _apply_weights(func, input: Tensor, weights: Tensor) -> MessageView:
    """``input [..., k] @ weights [k, o]`` or ``[k]``: one linear node."""
    if input.shape[-1] != weights.shape[0]:
        raise ValueError(
            f"{operation_name(func)}: shapes {tuple(input.shape)} and {tuple(weights.shape)} cannot be "
            "multiplied"
        )
    tape, dtype = _tape(input, weights), _dtype(input, weights)
    matrix = weights.unsqueeze(-1) if weights.dim() == 1 else weights
    uniform = 1.0
    if isinstance(weights, WeightView):
        matrix, uniform = _without_common_factor(matrix)
        table = tape.table(matrix.mT)
    else:
        table = WeightTable.of_numbers(matrix.detach().double().T.numpy())
    # A factor that all weights share is cheaper on the input; for data it is applied once and for all.
    source = as_message(
        tape, input.double() * uniform if _is_number(input) else input, operation_name(func), dtype
    )
    if not _is_number(input) and uniform != 1.0:
        source = source * uniform
    node, axis = source.gathered(operation_name(func))
    if axis == input.dim() - 1:
        raise unsupported(func, (input, weights), "mixes rows of the data")
    if tape.nodes[node].width != input.shape[-1]:
        raise unsupported(func, (input, weights), "uses the same weights at several positions of one row")
    out = tape.append("linear", (node,), table.shape[0], weights=table)
    shape = (*input.shape[:-1], table.shape[0])
    result = MessageView.of_node(tape, out, shape, axis, dtype)
    return result.squeeze(-1) if weights.dim() == 1 else result


def _is_number(value: Any) -> bool:
    return not isinstance(value, Recorded)


def _without_common_factor(view: WeightView) -> tuple[WeightView, float]:
    index, factor, offset = view.tables
    common = float(factor.reshape(-1)[0]) if factor.numel() else 1.0
    if common in (0.0, 1.0) or bool(offset.any()) or not bool((factor == common).all()):
        return view, 1.0
    return view.rearranged([index, torch.ones_like(factor), offset]), common


def _sum(func, view, dim=None, keepdim=False, *, dtype=None):
    """``sum`` and ``mean`` over units; rows stay apart."""
    name = operation_name(func)
    view = as_message(view.tape, view, name, view.dtype)
    node, axis = view.gathered(name)
    over = range(view.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    over = {d % max(view.dim(), 1) for d in over}
    if axis in over:
        raise unsupported(name, (view,), "over the rows of the data is not supported")
    units = torch.eye(view.tape.nodes[node].width, dtype=torch.float64)
    shape = [size for i, size in enumerate(view.shape) if i != axis]
    moved = sorted(d - (axis is not None and d > axis) for d in over)
    reduce = torch.mean if name == "mean" else torch.sum
    matrix = units.reshape(*shape, len(units))
    matrix = reduce(matrix, moved) if moved else matrix
    table = WeightTable.of_numbers(matrix.reshape(-1, len(units)).numpy())
    out = view.tape.append("linear", (node,), table.shape[0], weights=table)
    kept = [1 if i in over else size for i, size in enumerate(view.shape)]
    result = MessageView.of_node(view.tape, out, kept, axis, view.dtype)
    return result if keepdim else result.squeeze(tuple(over)) if over else result


# ------------------------------------------------------------------------------------- elementwise operations


def _add(func, first, second, *, alpha=1):
    if alpha != 1:
        second = second * alpha
    tape, name, dtype = _tape(first, second), operation_name(func), _dtype(first, second)
    if _is_number(first):
        first, second = second, first
    if _is_number(second):
        return _with_numbers(tape, name, "shift", first, second)
    shape = torch.broadcast_shapes(first.shape, second.shape)
    one, other = (_laid_out(tape, name, value, shape, dtype) for value in (first, second))
    if one.node == other.node and all(
        torch.equal(a, b) for a, b in zip(one.tables, other.tables, strict=True)
    ):
        return one * 2.0
    (a, axis), (b, axis_of_other) = one.gathered(name), other.gathered(name)
    axis = axis if axis is not None else axis_of_other
    width = tape.nodes[a].width
    if tape.nodes[b].width != width:
        raise unsupported(name, (first, second), "mixes rows of the data")
    return MessageView.of_node(tape, tape.append("add", (a, b), width), shape, axis, dtype)


def _laid_out(tape: Tape, name: str, value: Any, shape: torch.Size, dtype: torch.dtype) -> MessageView:
    return as_message(tape, value, name, dtype).expand(shape)


def _with_numbers(tape: Tape, name: str, operation: str, view: Recorded, number: Any) -> Recorded:
    """``view * number`` (``scale``) or ``view + number`` (``shift``), broadcast."""
    number = _as_numbers(number)
    shape = torch.broadcast_shapes(view.shape, number.shape)
    dtype = view.dtype
    if isinstance(view, WeightView) and tape.row_axis(shape) is None:
        index, factor, offset = (t.expand(shape) for t in view.tables)
        if operation == "scale":
            return WeightView(tape, (index, factor * number, offset * number), dtype)
        return WeightView(tape, (index, factor, offset + number), dtype)
    view = _laid_out(tape, name, view, shape, dtype)
    node, axis = view.gathered(name)
    width = tape.nodes[node].width
    by_row = axis is not None and _size_at(number, axis - len(shape)) == tape.rows
    values = number.expand(shape)
    if by_row:
        values = values.movedim(axis, 0).reshape(tape.rows, -1)
    elif number.numel() == 1:
        values = number.reshape(1)
    else:
        values = (values if axis is None else values.select(axis, 0)).reshape(-1)
    if not by_row and bool((values == (1 if operation == "scale" else 0)).all()):
        return view
    out = tape.append(operation, (node, tape.numbers(values)), width)
    return MessageView.of_node(tape, out, shape, axis, dtype)


def _as_numbers(value: Any) -> Tensor:
    """In float64, a Python number without a detour through torch's default dtype."""
    return (
        torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64).detach().double()
    )


def _size_at(tensor: Tensor, axis: int) -> int:
    return tensor.shape[axis] if -axis <= tensor.dim() else 1


def _subtract(func, first, second, *, alpha=1):
    return first + second * (-alpha)


def _subtract_from(func, first, second):
    return second + first * (-1.0)


def _multiply(func, first, second):
    if _is_number(first):
        first, second = second, first
    if isinstance(first, WeightView) and isinstance(second, MessageView):
        first, second = second, first
    if isinstance(first, MessageView) and isinstance(second, WeightView) and second.numel() == 1:
        node, _ = first.gathered(operation_name(func))
        if first.tape.nodes[node].width == 1:  # a linear layer of one unit
            shape = torch.broadcast_shapes(first.shape, second.shape)
            return torch.matmul(first.unsqueeze(-1), second.reshape(1)).reshape(shape)
    if not _is_number(second):
        raise unsupported(func, (first, second), PRODUCT)
    return _with_numbers(_tape(first), operation_name(func), "scale", first, second)


def _divide(func, first, second, *, rounding_mode=None):
    if not _is_number(second) or rounding_mode is not None:
        raise unsupported(func, (first, second), "by a random quantity (or with rounding) is not supported")
    return _with_numbers(first.tape, operation_name(func), "scale", first, 1.0 / _as_numbers(second))


def _negate(func, view):
    return view * -1.0


def _activation(operation: str, func, view, slope: float = 0.0) -> MessageView:
    name = operation_name(func)
    if isinstance(view, WeightView):
        raise unsupported(name, (view,), "of weights (not of a layer's output) is not supported")
    node, axis = view.gathered(name)
    out = view.tape.append(operation, (node,), view.tape.nodes[node].width, slope=slope)
    return MessageView.of_node(view.tape, out, view.shape, axis, view.dtype)


def _relu(func, view, inplace=False):
    _refuse_in_place(func, view, inplace)
    return _activation("relu", func, view)


def _leaky_relu(func, view, negative_slope=0.01, inplace=False):
    _refuse_in_place(func, view, inplace)
    slope = float(negative_slope)
    if slope == 1:
        return view
    if not 0 <= slope < 1:
        raise unsupported(func, (view,), f"with slope {slope:g} is not supported (0 to 1 are)")
    return _activation("leaky_relu", func, view, slope) if slope else _activation("relu", func, view)


def _clamp(func, view, min=None, max=None):
    if max is not None or isinstance(min, Tensor) or min != 0:
        raise unsupported(func, (view,), "is supported with min=0 alone")
    return _activation("relu", func, view)


def _refuse_in_place(func, view, inplace: bool) -> None:
    if inplace:
        raise unsupported(func, (view,), "works in place: write the form that returns a new tensor")


def _dropout(func, view, p=0.5, training=True, inplace=False):
    if training and p > 0:
        raise unsupported(func, (view,), "while training is not supported")
    return view


def _equals(func, first, second):
    """``value == value``: how distributions look for NaN when asked to validate."""
    if first is not second:
        raise unsupported(func, (first, second))
    return torch.ones((), dtype=torch.bool).expand(first.shape)


# fmt: off
_METADATA = frozenset([
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "grad_fn", "is_leaf", "is_sparse", "dim",
    "is_cuda", "is_cpu", "is_mps", "is_quantized", "is_nested", "is_meta", "size", "numel", "nelement", "len",
    "is_floating_point", "is_complex", "element_size", "names", "is_inference", "retains_grad", "itemsize",
    "ndimension", "is_mkldnn", "is_sparse_csr", "get_device", "grad",
])
_MOVES = (
    "T", "mT", "t", "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "reshape", "view",
    "view_as", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "expand", "expand_as",
    "broadcast_to", "getitem", "narrow", "select", "index_select", "take_along_dim", "gather", "chunk",
    "split", "split_with_sizes", "unsafe_split", "tensor_split", "hsplit", "vsplit", "unbind", "flip", "roll",
    "repeat", "tile", "atleast_1d", "atleast_2d",
)
_SAME = (
    "contiguous", "clone", "to", "float", "double", "type_as", "detach", "cpu", "pos", "requires_grad_",
    "positive", "alias", "deepcopy", "copy",
)
_LIKE = (
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_tensor",
    "new_empty",
)
# fmt: on
_HANDLERS: dict[str, Callable] = {
    **dict.fromkeys(_MOVES, _rearrange),
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_LIKE, _plain_like),
    **dict.fromkeys(
        ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack"), _join
    ),
    "pad": _pad,
    "broadcast_tensors": _broadcast_tensors,
    "linear": _linear,
    "addmm": _addmm,
    "addmv": _addmm,
    **dict.fromkeys(("matmul", "mm", "mv", "dot"), _matmul),
    "rmatmul": lambda func, first, second: _matmul(func, second, first),
    **dict.fromkeys(("sum", "mean"), _sum),
    **dict.fromkeys(("add", "radd"), _add),
    **dict.fromkeys(("sub", "subtract"), _subtract),
    **dict.fromkeys(("rsub",), _subtract_from),
    **dict.fromkeys(("mul", "multiply", "rmul"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), _divide),
    **dict.fromkeys(("neg", "negative"), _negate),
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    **dict.fromkeys(("clamp", "clip", "clamp_min"), _clamp),
    "dropout": _dropout,
    **dict.fromkeys(("eq",), _equals),
}
