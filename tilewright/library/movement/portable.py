"""Movement groups: permutes, slices, gathers, pads and concats as generated copies; scatter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import DType, int16, int32, int64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.passes.scatters import combines_at_once
from tilewright.graph.updates import writes_in_place
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand
from tilewright.library.generated.elementwise import copy_candidate, elementwise, needed_nodes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import Result, elementwise_call, loops_of, next_power_of_2
from tilewright.library.generated.index import dense_strides
from tilewright.library.movement.scatter_kernel import (
    any_update,
    last_update,
    scatter_combined,
    scatter_each,
    scatter_last,
    scatter_rows,
    scatter_swapped,
)
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.launch.jit import JITFunction

SCATTER_BLOCK = 2048
_CTA_THREADS = 128
REPLACED_ROWS, REPLACED_COLUMNS, COMPARED = 16, 256, 128  # updates and columns of a program, indices of a comparison
UPDATED = 1024  # elements of a program that does not compare indices
COMBINE_BLOCK = 128
_MOST_COMPARED = 2048  # updates each of which is compared with the later ones, rather than noted by index
_MOST_PAIRS = 1 << 26  # of elements and indices that are compared rather than walked by one program
_WORDS: dict[int, DType] = {16: int16, 32: int32, 64: int64}  # that a GPU compares and swaps


def movement(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """Copies of each output's elements to their new places."""
    anchor = group.nodes[-1] if group.anchor is None else group.anchor
    if anchor.op == "concat":
        return elementwise(group, graph, target)
    if loops_of(target).together and combines_at_once(anchor):
        calls = _at_once(group, anchor, graph, target)
        return [copy_candidate("generated", [(call,) for call in calls], group, target)]
    if anchor.op in ("scatter_update", "scatter_reduce"):
        if group.nodes != [anchor]:
            raise NotImplementedError(f"the kernels of {anchor.op} have no slots")
        calls, temporaries = _scatter(anchor, graph, target)
        stages = [(call,) for call in calls]
        return [replace(copy_candidate("generated", stages, group, target), temporaries=temporaries)]
    calls = [elementwise_call(group.nodes, [Result(value, value) for value in group.outputs], graph.constants, target)]
    return [copy_candidate("generated", [(call,) for call in calls], group, target)]


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
    return KernelCall(scatter_combined, operands, types, constants, grid, threads=_CTA_THREADS)


def _updates(
    kernel: JITFunction, node: Node, inner: Size, rows: int, block: int, constants: dict[str, Any]
) -> KernelCall:
    """A call whose programs have `rows` updates each, and `block` of their columns."""
    source, indices, _ = node.inputs
    assert source is not None and indices is not None
    constants = {"ROWS": rows, "BLOCK": block, **constants}
    operands, types = _bound(node, inner, constants)
    outer = lift(product(source.shape[: node.attributes["axis"]]))
    grid = (simplify(outer * ceil_divide(indices.shape[0], rows)), ceil_divide(inner, block), 1)
    return KernelCall(kernel, operands, types, constants, grid, threads=_CTA_THREADS)


def _columns(inner: Size) -> int:
    """The columns of a program."""
    return min(REPLACED_COLUMNS, next_power_of_2(inner)) if isinstance(inner, int) else REPLACED_COLUMNS


def _replaced(node: Node, inner: Size) -> tuple[list[KernelCall], tuple[Value, ...]]:
    """Few updates find out by comparing whether they are the last of their index, many by a table of the last ones.

    These are updates in place and of run-time numbers, which `graph.passes.scatters` leaves as they are.
    """
    source, indices, _ = node.inputs
    assert source is not None and indices is not None
    block = _columns(inner)
    if upper_bound(indices.shape[0]) <= _MOST_COMPARED:
        return [_updates(scatter_each, node, inner, REPLACED_ROWS, block, {"STEP": COMPARED})], ()
    last = Value(f"{node.output.name}.last", int32, (source.shape[node.attributes["axis"]],))
    constants: dict[str, Any] = {"ROWS": UPDATED}
    operands: dict[str, Operand] = {"indices": indices, "last": last}
    types: dict[str, str] = {}
    bind_sizes({"count": indices.shape[0], "extent": last.shape[0]}, operands, types, constants)
    grid = (ceil_divide(indices.shape[0], UPDATED), 1, 1)
    noted = [
        KernelCall(kernel, operands, types, constants, grid, threads=_CTA_THREADS)
        for kernel in (any_update, last_update)
    ]
    stored = _updates(scatter_last, node, inner, UPDATED // block, block, {})
    return [*noted, replace(stored, operands={**stored.operands, "last": last})], (last,)


def _combines_in_memory(node: Node) -> bool:
    """Whether a GPU compares and swaps the numbers of a `scatter_reduce`, whose order does not matter."""
    return node.output.dtype.bits in _WORDS and not node.attributes["ordered"]


def _combined_in_memory(node: Node, inner: Size) -> KernelCall:
    """Every update goes to its element, whatever else does."""
    block = _columns(inner)
    words = language_type(_WORDS[node.output.dtype.bits])
    constants = {"REDUCTION": node.attributes["reduction"], "BITS": words}
    return _updates(scatter_swapped, node, inner, UPDATED // block, block, constants)


def _at_once(group: Group, anchor: Node, graph: Graph, target: Target) -> list[KernelCall]:
    """A copy of the input, then all updates by atomic operations; both compute what they read."""
    source, _, updates = anchor.inputs
    assert source is not None and updates is not None
    results = [Result(updates, anchor.output, update=anchor)]
    if not writes_in_place(anchor, group.nodes, graph):
        results.insert(0, Result(source, anchor.output, dense_strides(source.shape)))
    return [
        elementwise_call(needed_nodes(group.nodes, [result]), [result], graph.constants, target) for result in results
    ]


def _scatter(node: Node, graph: Graph, target: Target) -> tuple[list[KernelCall], tuple[Value, ...]]:
    """A copy of the input (not when it is updated in place), then the updated slices; what lies between launches."""
    source, indices = node.inputs[:2]
    assert source is not None and indices is not None
    axis = node.attributes["axis"]
    copied = Result(source, node.output, dense_strides(source.shape))
    in_place = writes_in_place(node, [node], graph)
    calls = [] if in_place else [elementwise_call([], [copied], graph.constants, target)]
    inner = product(source.shape[axis + 1 :])
    if not loops_of(target).together:
        return [*calls, _walked(node, inner)], ()
    if node.op == "scatter_update":
        replacing, temporaries = _replaced(node, inner)
        return [*calls, *replacing], temporaries
    if _combines_in_memory(node):
        return [*calls, _combined_in_memory(node, inner)], ()
    pairs = simplify(lift(indices.shape[0]) * source.shape[axis] * inner)
    return [*calls, (_combined if upper_bound(pairs) <= _MOST_PAIRS else _walked)(node, inner)], ()


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
