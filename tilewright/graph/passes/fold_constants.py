"""Constant folding: ops on constants are computed now, unless that would store much more than it saves.

Positions and repeated numbers (iota, broadcasts and arithmetic of them) are left to the kernels that read them, which
compute them as they go, but ops that move or reduce them are folded: masks of windows and of packed sequences are built
of slices, updates and running sums of such lines.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.reference import run_node
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import Expression, product

_DEEPEST_SUM = 6  # arithmetic nested deeper is not looked at; sums of sums would take exponential time
_SHARE = 32  # of a model's constants that one folded tensor may add at the end
_GROWTH = 4  # times their size that weights may take with zeros between them, or as floats in place of 8 bits
_COMPUTED_BYTES = 4 << 20  # bytes of weights that are computed of anything, such as filters of a few numbers
SIZE_LIMIT = 1 << 16  # bytes that folding may add for one node; more only when the inputs are as large


def fold_constants(graph: Graph) -> Graph:
    """Replace every node whose inputs are all constant, within the size limit, by its value.

    Arithmetic is done in float64 and rounded once to the value's element type.
    """

    weights, computed = _operands(graph), _read_by_arithmetic(graph)

    def fold(node: Node, rewriter: GraphRewriter) -> Value | None:
        if len(node.outputs) != 1 or (node.op == "iota" and node.output in computed):  # loops and branches, positions
            return None
        if node.output in weights:
            return _fold(node, rewriter, _COMPUTED_BYTES, _GROWTH)
        return _fold(node, rewriter, SIZE_LIMIT)

    return apply_rules(graph, {node.op: [fold] for node in graph.nodes})


def fold_tables(graph: Graph) -> Graph:
    """The same for what must lie in memory (biases of attention, by position or window), with a limit that follows
    the size of the model."""
    limit = max(SIZE_LIMIT, sum(data.nbytes for data in graph.constants.values()) // _SHARE)
    stored, weights = _stored(graph), _weights(graph)

    def fold(node: Node, rewriter: GraphRewriter) -> Value | None:
        if len(node.outputs) != 1:
            return None
        if node.output in weights:
            data = rewriter.constant(node.inputs[0])
            return _fold(node, rewriter, max(limit, 0 if data is None else _GROWTH * data.nbytes))
        return _fold(node, rewriter, limit) if node.output in stored else None

    return fold_constants(apply_rules(graph, {node.op: [fold] for node in graph.nodes}))


def _stored(graph: Graph) -> set[Value]:
    """The values that attention or a contraction reads, through views."""
    stored: set[Value] = set()
    for node in reversed(graph.nodes):
        if kind_of(node.op) in ("attention", "contraction") or (node.op == "reshape" and node.output in stored):
            stored.update(item for item in node.inputs if item is not None)
    return stored


def _read_by_arithmetic(graph: Graph) -> set[Value]:
    """The values that arithmetic with numbers of the run reads, through views, and nothing else does."""
    known = set(graph.constants)
    for node in graph.nodes:
        if all(item is None or item in known for item in node.inputs):
            known.update(node.outputs)
    found, others = set[Value](), set(graph.outputs)
    for node in reversed(graph.nodes):
        passes = kind_of(node.op) == "view" and node.output in found and node.output not in others
        passes = passes or (kind_of(node.op) == "elementwise" and node.output not in known)
        (found if passes else others).update(item for item in node.inputs if item is not None)
    return found - others


def _operands(graph: Graph) -> set[Value]:
    """The values that contractions and recurrent layers read, through elementwise ops and views."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        passes = kind_of(node.op) in ("elementwise", "movement", "view") and node.output in found
        if passes or kind_of(node.op) in ("contraction", "recurrent"):
            found.update(item for item in node.inputs if item is not None)
    return found


def _weights(graph: Graph) -> set[Value]:
    """Constants that are padded on the way to a contraction: the taps of transposed convolutions, by phases."""
    read: set[Value] = set()
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        if kind_of(node.op) == "contraction" or (kind_of(node.op) in ("movement", "view") and node.output in read):
            read.update(item for item in node.inputs if item is not None)
            if node.op == "pad" and node.inputs[0] in graph.constants:
                found.add(node.output)
    return found


def _fold(node: Node, rewriter: GraphRewriter, limit: int, growth: int = 1) -> Value | None:
    whole = node.op != "broadcast_to" and (
        growth > 1 or limit > SIZE_LIMIT or kind_of(node.op) in ("movement", "reduction")
    )
    arrays = [_known(item, rewriter, limit) if whole else rewriter.constant(item) for item in node.inputs]
    if any(array is None and item is not None for array, item in zip(arrays, node.inputs, strict=True)):
        return None
    size = _bytes(node)
    if size is None or size > max(limit, growth * sum(array.nbytes for array in arrays if array is not None)):
        return None
    if node.op == "broadcast_to" and size > sum(array.nbytes for array in arrays if array is not None):
        return None  # the reader broadcasts; repeated elements say nothing new
    return rewriter.new_constant(_computed(node, arrays), node.output.name)


def _computed(node: Node, arrays: list[np.ndarray | None]) -> np.ndarray:
    """The node's value."""
    moves = kind_of(node.op) in ("movement", "view")
    working = None if moves else float64
    result = run_node(node, [_widened(array, moves) for array in arrays], {}, working)
    # `order="C"` and not `ascontiguousarray`, which makes scalars one-dimensional.
    return np.array(result, node.output.dtype.numpy, order="C", copy=None)


def _bytes(node: Node) -> int | None:
    """The size of the node's value; None when it is known only at run time."""
    elements = product(node.output.shape)
    if any(map(_is_symbolic, node.attributes.values())) or not isinstance(elements, int):
        return None
    return elements * node.output.dtype.itemsize


def _known(value: Value | None, rewriter: GraphRewriter, limit: int, depth: int = _DEEPEST_SUM) -> np.ndarray | None:
    """The elements of a constant, or of a small value that is computed of positions and constants alone."""
    data = rewriter.constant(value)
    node = rewriter.producer(value)
    if data is not None or node is None or depth == 0:
        return data
    if limit <= SIZE_LIMIT and kind_of(node.op) not in ("source", "view", "elementwise") and node.op != "broadcast_to":
        return None
    attempt = (_known, value, limit)
    if rewriter.memory.get(attempt, 0) >= depth:  # without success
        return None
    size = _bytes(node)
    if size is not None and size <= limit:
        arrays = [_known(item, rewriter, limit, depth - 1) for item in node.inputs]
        if all(array is not None or item is None for array, item in zip(arrays, node.inputs, strict=True)):
            return _computed(node, arrays)
    rewriter.memory[attempt] = depth
    return None


def _widened(array: np.ndarray | None, moves: bool) -> np.ndarray | None:
    if array is None or moves or array.dtype.kind in "iub":
        return array
    return array.astype(np.float64)


def _is_symbolic(item: object) -> bool:
    if isinstance(item, tuple):
        return any(map(_is_symbolic, item))
    return isinstance(item, Expression)
