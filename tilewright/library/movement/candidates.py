"""Movement groups: permutes, slices, gathers, pads and concats as generated copies; scatter."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph, Node
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand
from tilewright.library.generated.elementwise import copy_candidate, elementwise
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import Result, elementwise_call, loops_of, next_power_of_2
from tilewright.library.generated.index import dense_strides
from tilewright.library.movement.scatter_kernel import scatter_combined, scatter_each, scatter_rows
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

SCATTER_BLOCK = 2048
REPLACED_ROWS, REPLACED_COLUMNS, COMPARED = 16, 256, 128  # updates and columns of a program, indices of a comparison
COMBINE_BLOCK = 128
_MOST_PAIRS = 1 << 26  # of elements and indices that are compared rather than walked by one program


def movement(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """Copies of each output's elements to their new places."""
    anchor = group.nodes[-1] if group.anchor is None else group.anchor
    if anchor.op == "concat":
        return elementwise(group, graph, target)
    if anchor.op in ("scatter_update", "scatter_reduce"):
        calls = _scatter(anchor, graph, target)
    else:
        calls = [
            elementwise_call(group.nodes, [Result(value, value) for value in group.outputs], graph.constants, target)
        ]
    return [copy_candidate("generated", calls, group, target)]


def _bound(node: Node, inner: Size, constants: dict[str, Any]) -> tuple[dict[str, Operand], dict[str, str]]:
    """The operands of a scatter's kernel; sizes that are known join `constants`."""
    source, indices, updates = node.inputs
    assert source is not None and indices is not None and updates is not None
    extent = source.shape[node.attributes["axis"]]
    operands: dict[str, Operand] = {"updates": updates, "indices": indices, "out": node.output}
    types: dict[str, str] = {}
    bind_sizes({"count": indices.shape[0], "extent": extent, "inner": inner}, operands, types, constants)
    return operands, types


def _combined(node: Node, inner: Size) -> KernelCall:
    """Every element takes its updates."""
    source = node.inputs[0]
    assert source is not None
    constants: dict[str, Any] = {
        "BLOCK": COMBINE_BLOCK, "STEP": 4, "REDUCTION": node.attributes["reduction"],
        "TYPE": language_type(source.dtype),
    }  # fmt: skip
    operands, types = _bound(node, inner, constants)
    axis = node.attributes["axis"]
    elements = simplify(lift(source.shape[axis]) * inner)
    grid = (product(source.shape[:axis]), ceil_divide(elements, COMBINE_BLOCK), 1)
    return KernelCall(scatter_combined, operands, types, constants, grid, options={"num_warps": 4})


def _replaced(node: Node, inner: Size) -> KernelCall:
    """Every update finds out whether it is the last of its index."""
    source, indices, _ = node.inputs
    assert source is not None and indices is not None
    block = min(REPLACED_COLUMNS, next_power_of_2(inner)) if isinstance(inner, int) else REPLACED_COLUMNS
    constants: dict[str, Any] = {"ROWS": REPLACED_ROWS, "BLOCK": block, "STEP": COMPARED}
    operands, types = _bound(node, inner, constants)
    outer = lift(product(source.shape[: node.attributes["axis"]]))
    grid = (simplify(outer * ceil_divide(indices.shape[0], REPLACED_ROWS)), ceil_divide(inner, block), 1)
    return KernelCall(scatter_each, operands, types, constants, grid, options={"num_warps": 4})


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
    pairs = simplify(lift(indices.shape[0]) * source.shape[axis] * inner)
    if loops_of(target).together and node.op == "scatter_update":
        return [*calls, _replaced(node, inner)]
    if loops_of(target).together and upper_bound(pairs) <= _MOST_PAIRS:
        return [*calls, _combined(node, inner)]
    return [*calls, _walked(node, inner)]


def _walked(node: Node, inner: Size) -> KernelCall:
    """One program walks all indices of its columns."""
    source, indices, updates = node.inputs
    assert source is not None and indices is not None and updates is not None
    axis, block = node.attributes["axis"], min(inner, SCATTER_BLOCK) if isinstance(inner, int) else SCATTER_BLOCK
    operands: dict[str, Operand] = {
        "updates": updates, "indices": indices, "out": node.output, "count": indices.shape[0],
        "extent": source.shape[axis], "inner": inner,
    }  # fmt: skip
    constants = {
        "BLOCK": block, "MASK": not isinstance(inner, int) or inner % block != 0,
        "REDUCTION": node.attributes.get("reduction", "none"),
    }  # fmt: skip
    grid = (product(source.shape[:axis]), ceil_divide(inner, block), 1)
    return KernelCall(scatter_rows, operands, dict.fromkeys(("count", "extent", "inner"), "i64"), constants, grid)
