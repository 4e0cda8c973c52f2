"""Scatters of many updates as GPUs do them: all updates at once, by atomic operations on the elements that they meet.

Replacing takes the last of equal indices: of each place the largest number among its updates is found, then every
element reads the update that has it.  Sums of 16 bits are made in float32, whole numbers in 32 bits, and the largest
of floats is that of whole numbers in the same order.  Few replacements stay as they are: a kernel compares their
indices.
"""

from __future__ import annotations

from tilewright.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ordered_bits import float_of_bits, ordered_bits
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import lift, lower_bound, product, simplify, upper_bound

_FEW_PAIRS = 1 << 22  # of updates with each other that are compared
_WHOLE = frozenset({int32, int64, uint32, uint64})
_BY_ATOMICS = {"add": _WHOLE | {float32, float64}, "maximum": _WHOLE, "minimum": _WHOLE}


def scatters_at_once(graph: Graph) -> Graph:
    """The graph with scatters of many updates in the forms that `combines_at_once`."""
    in_place = frozenset(graph.mutations.items())

    def replaced(node: Node, rewriter: GraphRewriter) -> Value | None:
        return None if (node.inputs[0], node.output) in in_place else _replaced(node, rewriter)

    return apply_rules(graph, {"scatter_update": [replaced], "scatter_reduce": [_combined]})


def combines_at_once(node: Node) -> bool:
    """Whether a scatter is one that a kernel does for all updates at once, by atomic operations."""
    if node.op != "scatter_reduce":
        return False
    dtype, reduction = node.output.dtype, node.attributes["reduction"]
    return dtype in _BY_ATOMICS.get(reduction, ()) and not (dtype.is_float and node.attributes["ordered"])


def _replaced(node: Node, rewriter: GraphRewriter) -> Value | None:
    x, indices, updates = node.inputs
    assert x is not None and indices is not None and updates is not None
    axis, count, extent = node.attributes["axis"], indices.shape[0], x.shape[node.attributes["axis"]]
    known = _at_known_places(node, rewriter)
    if known is not None:
        return known
    compared = simplify(lift(count) * count * product(x.shape[:axis]))
    if lower_bound(count) < 1 or upper_bound(compared) <= _FEW_PAIRS:
        return None
    none = rewriter.op("full", [], shape=(extent,), value=-1, dtype=int32)
    numbers = rewriter.op("iota", [], shape=(count,), dtype=int32)
    last = rewriter.op("scatter_reduce", [none, indices, numbers], axis=0, reduction="maximum")
    updated = rewriter.op("greater_equal", [last, rewriter.number(0, int32)])
    updated = rewriter.op("reshape", [updated], shape=(extent, *[1] * (x.rank - 1 - axis)))
    return rewriter.op("where", [updated, rewriter.op("gather", [updates, last], axis=axis), x])


def _at_known_places(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Updates of places that are equal steps apart: what lies before, the updates, what lies after."""
    x, _, updates = node.inputs
    assert x is not None and updates is not None
    axis, extent = node.attributes["axis"], x.shape[node.attributes["axis"]]
    start, step = _known_steps(node, rewriter)
    if not step:
        return None
    stop = start + (updates.shape[axis] - 1) * step + 1
    if step > 1:
        updates = _spread(rewriter, x, updates, axis, start, step)
    bounds = [(0, start), (stop, extent)]
    before, after = (
        [rewriter.op("slice", [x], axis=axis, start=first, stop=end)] if first != end else [] for first, end in bounds
    )
    return rewriter.op("concat", [*before, updates, *after], axis=axis)


def _known_steps(node: Node, rewriter: GraphRewriter) -> tuple[int, int]:
    """The first place of updates that are equal steps apart, and the step; no step where that is not known."""
    x, indices, _ = node.inputs
    line = rewriter.producer(indices, "iota")
    if x is None or line is None or line.output.rank != 1:
        return 0, 0
    sizes = (
        *(line.attributes[key] for key in ("start", "step")),
        line.output.shape[0],
        x.shape[node.attributes["axis"]],
    )
    if not all(isinstance(size, int) for size in sizes):
        return 0, 0
    start, step, count, extent = sizes
    inside = start >= 0 and step >= 1 and count >= 1 and start + (count - 1) * step < extent
    return (start, step) if inside else (0, 0)


def _spread(rewriter: GraphRewriter, x: Value, updates: Value, axis: int, start: int, step: int) -> Value:
    """Updates with elements of x between them."""
    covered = (updates.shape[axis] - 1) * step + 1
    place = rewriter.op("iota", [], shape=(covered,))
    number = rewriter.op("floor_divide", [place, rewriter.number(step, int64)])
    own = rewriter.op("equal", [rewriter.op("remainder", [place, rewriter.number(step, int64)]),
                                rewriter.number(0, int64)])  # fmt: skip
    own = rewriter.op("reshape", [own], shape=(covered, *[1] * (x.rank - 1 - axis)))
    between = rewriter.op("slice", [x], axis=axis, start=start, stop=start + covered)
    return rewriter.op("where", [own, rewriter.op("gather", [updates, number], axis=axis), between])


def _combined(node: Node, rewriter: GraphRewriter) -> Value | None:
    x, indices, updates = node.inputs
    assert x is not None and indices is not None and updates is not None
    reduction, dtype = node.attributes["reduction"], x.dtype
    if reduction not in _BY_ATOMICS or (dtype.is_float and node.attributes["ordered"]):
        return None
    if reduction != "add" and dtype.is_float:
        return _extreme(node, rewriter)
    wide = _wide(dtype)
    if wide == dtype:
        return None
    found = [rewriter.cast(item, wide) for item in (x, updates)]
    return rewriter.cast(rewriter.op("scatter_reduce", [found[0], indices, found[1]], **node.attributes), dtype)


def _extreme(node: Node, rewriter: GraphRewriter) -> Value:
    """The largest or least of floats by integers of the same order; what no update changes keeps its bits."""
    x, indices, updates = node.inputs
    assert x is not None and indices is not None and updates is not None
    least = node.attributes["reduction"] == "minimum"  # the largest of what is negated, so that NaN wins in both
    signed = [rewriter.op("negate", [item]) if least else item for item in (x, updates)]
    before, given = (ordered_bits(rewriter, item, equal_zeros=False) for item in signed)
    attributes = {**node.attributes, "reduction": "maximum"}
    after = rewriter.op("scatter_reduce", [before, indices, given], **attributes)
    found = float_of_bits(rewriter, after, _wide(x.dtype))
    found = rewriter.cast(rewriter.op("negate", [found]) if least else found, x.dtype)
    return rewriter.op("where", [rewriter.op("equal", [after, before]), x, found])


def _wide(dtype: DType) -> DType:
    """The type in which elements are combined."""
    if dtype.bits >= 32:
        return dtype
    return float32 if dtype.is_float else int32
