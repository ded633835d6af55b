"""From a tape to a program: the operations that the output needs, in the form that is cheapest to run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from guides.core.sites import UnsupportedSiteError
from guides.message_passing.program import Node, Program, used_elements
from guides.message_passing.views import Tape


def compact(tape: Tape, output: int) -> tuple[Program, dict[str, np.ndarray]]:
    """The nodes that the output needs, with biases taken into their linear operations."""
    nodes = _with_biases(tape.nodes, output)
    nodes = _with_units_as_biases(nodes)
    nodes = _with_scaled_data(nodes, output, tape)
    keep = sorted(_needed(nodes, output))
    number = {old: new for new, old in enumerate(keep)}
    names: dict[str, str] = {}
    compact = []
    for old in keep:
        node = nodes[old]
        node = replace(node, inputs=tuple(number[i] for i in node.inputs))
        if node.operation == "row":
            names[node.row] = str(len(names))
            node = replace(node, row=names[node.row])
        compact.append(node)
    rows = {new: tape.row_values[old] for old, new in names.items()}
    return Program(tuple(compact), dict(tape.shapes)), rows


def _needed(nodes: list[Node], output: int) -> set[int]:
    needed, todo = set(), [output]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo.extend(nodes[node].inputs)
    return needed


def _with_biases(nodes: list[Node], output: int) -> list[Node]:
    """``linear + weights`` as one linear operation with a bias, where nothing else uses the sum's parts."""
    nodes = list(nodes)
    needed = _needed(nodes, output)
    uses = [i for n in needed for i in nodes[n].inputs]
    for n in sorted(needed):
        node = nodes[n]
        if node.operation != "add":
            continue
        for first, second in (node.inputs, node.inputs[::-1]):
            layer, bias = nodes[first], nodes[second]
            if (
                uses.count(first) == 1
                and layer.operation == bias.operation == "linear"
                and layer.bias is None
                and bias.bias is None
                and _is_one(nodes[bias.inputs[0]])
            ):
                table = bias.weights
                vector = replace(
                    table, index=table.index[:, 0], factor=table.factor[:, 0], offset=table.offset[:, 0]
                )
                nodes[n] = replace(layer, bias=vector)
                break
    return nodes


def _with_units_as_biases(nodes: list[Node]) -> list[Node]:
    """A linear operation on ``[hidden; number]`` as one on ``hidden`` with a bias: nothing is joined in the
    loop."""
    nodes = list(nodes)
    for n, node in enumerate(nodes):
        if node.operation != "linear" or node.bias is not None:
            continue
        source = nodes[node.inputs[0]]
        if source.operation != "concatenate" or len(source.inputs) != 2:
            continue
        hidden, unit = (nodes[i] for i in source.inputs)
        if unit.operation != "constant" or unit.width != 1 or hidden.operation in ("constant", "row"):
            continue
        table, number = node.weights, float(unit.values[0])
        main = replace(table, **{k: getattr(table, k)[:, :-1] for k in ("index", "factor", "offset")})
        bias = replace(
            table,
            index=table.index[:, -1],
            factor=table.factor[:, -1] * number,
            offset=table.offset[:, -1] * number,
        )
        nodes[n] = replace(node, inputs=(source.inputs[0],), weights=main, bias=bias)
    return nodes


def _with_scaled_data(nodes: list[Node], output: int, tape: Tape) -> list[Node]:
    """``(W x) * c`` as ``W (c x)`` where ``x`` is data: multiplied once, not in every step."""
    nodes = list(nodes)
    needed = _needed(nodes, output)
    uses = [i for n in needed for i in nodes[n].inputs]
    for n in sorted(needed):
        if nodes[n].operation != "scale":
            continue
        layer, factor = (nodes[i] for i in nodes[n].inputs)
        if layer.operation != "linear" or layer.bias is not None or factor.width != 1:
            continue
        data = nodes[layer.inputs[0]]
        alone = uses.count(nodes[n].inputs[0]) == uses.count(layer.inputs[0]) == 1
        if alone and data.operation == "row" and factor.operation == "constant":
            tape.row_values[data.row] = tape.row_values[data.row] * factor.values[0]
            nodes[n] = layer
    return nodes


def _is_one(node: Node) -> bool:
    return node.operation == "constant" and node.width == 1 and node.values[0] == 1


def refuse_repeated_use(program: Program) -> None:
    counts = {name: np.zeros(math.prod(shape), int) for name, shape in program.shapes.items()}
    for node in program.nodes:
        for table in node.tables:
            for name, positions in used_elements(table).items():
                np.add.at(counts[name], positions, 1)
    for name, count in counts.items():
        if (count > 1).any():
            raise UnsupportedSiteError(
                f"site {name!r}: a weight is used {count.max()} times in one row; message passing treats "
                "its uses as "
                "independent, so each weight may be used once"
            )
