"""Movement groups: permutes, slices, gathers, pads and concats as generated copies; scatter."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand
from tilewright.library.generated.elementwise import copy_candidate, elementwise
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import Result, elementwise_call, loops_of
from tilewright.library.generated.index import dense_strides
from tilewright.library.movement.scatter_kernel import scatter_combined, scatter_last, scatter_rows
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

SCATTER_BLOCK = 2048
SEARCH_BLOCK = 64
COMBINE_BLOCK = 128
MOST_PAIRS = 1 << 26  # of elements and indices that are compared rather than walked by one program


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


def _search(node: Node, inner: Size) -> KernelCall:
    """One launch in which every element looks for its update: many programs instead of one that walks the indices."""
    source, indices, updates = node.inputs
    assert source is not None and indices is not None and updates is not None
    axis = node.attributes["axis"]
    sizes: dict[str, Size] = {"count": indices.shape[0], "extent": source.shape[axis], "inner": inner}
    operands: dict[str, Operand] = {"updates": updates, "indices": indices, "out": node.output}
    types: dict[str, str] = {}
    constants: dict[str, Any] = {"BLOCK": SEARCH_BLOCK, "STEP": SEARCH_BLOCK}
    kernel = scatter_last
    if node.op == "scatter_reduce":
        kernel, dtype = scatter_combined, language_type(source.dtype)
        constants = {"BLOCK": COMBINE_BLOCK, "STEP": 4, "REDUCTION": node.attributes["reduction"], "TYPE": dtype}
    bind_sizes(sizes, operands, types, constants)
    elements = simplify(lift(source.shape[axis]) * inner)
    grid = (product(source.shape[:axis]), ceil_divide(elements, constants["BLOCK"]), 1)
    return KernelCall(kernel, operands, types, constants, grid, options={"num_warps": 4})


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
    if loops_of(target).together and upper_bound(pairs) <= MOST_PAIRS:
        return [*calls, _search(node, inner)]
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
            {
                "BLOCK": block,
                "MASK": not isinstance(inner, int) or inner % block != 0,
                "REDUCTION": node.attributes.get("reduction", "none"),
            },
            (product(source.shape[:axis]), ceil_divide(inner, block), 1),
        )
    )
    return calls
