"""Movement groups: permutes, slices, gathers, pads and concats as generated copies; scatter."""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.kernels.scatter import scatter_rows
from tilewright.symbolic import Size, ceil_divide, product
from tilewright.tactics.core import Candidate, KernelCall
from tilewright.tactics.elementwise import copy_candidate, elementwise
from tilewright.tactics.generate import Result, elementwise_call
from tilewright.tactics.index import dense_strides
from tilewright.targets.base import Target

SCATTER_BLOCK = 2048


def movement(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """Copies of each output's elements to their new places."""
    anchor = group.nodes[-1] if group.anchor is None else group.anchor
    if anchor.op == "concat":
        return elementwise(group, graph, target)
    if anchor.op == "scatter_update":
        calls = _scatter(anchor, graph, target)
    else:
        calls = [
            elementwise_call(group.nodes, [Result(value, value) for value in group.outputs], graph.constants, target)
        ]
    return [copy_candidate("generated", calls, group, target)]


def updates_in_place(node: Node, graph: Graph) -> bool:
    """Whether a scatter writes into the memory of a graph input that it replaces."""
    target = node.inputs[0]
    return any(source is target and value is node.output for source, value in graph.mutations.items())


def _scatter(node: Node, graph: Graph, target: Target) -> list[KernelCall]:
    """A copy of the input (not when it is updated in place), then the updated slices."""
    source, indices, updates = (value for value in node.inputs)
    assert source is not None and indices is not None and updates is not None
    axis = node.attributes["axis"]
    calls: list[KernelCall] = []
    if not updates_in_place(node, graph):
        calls.append(
            elementwise_call([], [Result(source, node.output, dense_strides(source.shape))], graph.constants, target)
        )
    inner = product(source.shape[axis + 1 :])
    block = min(inner, SCATTER_BLOCK) if isinstance(inner, int) else SCATTER_BLOCK
    operands: dict[str, Value | Size | float] = {
        "updates": updates, "indices": indices, "out": node.output, "count": indices.shape[0],
        "extent": source.shape[axis], "inner": inner,
    }  # fmt: skip
    calls.append(
        KernelCall(
            scatter_rows,
            dict(operands),
            {"count": "i64", "extent": "i64", "inner": "i64"},
            {"BLOCK": block, "MASK": not isinstance(inner, int) or inner % block != 0},
            (product(source.shape[:axis]), ceil_divide(inner, block), 1),
        )
    )
    return calls
