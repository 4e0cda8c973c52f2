"""Conditions on dynamic sizes that shapes do not imply: reshapes keep all elements, slices stay inside.

``x.reshape(-1, 2, 4)`` of ``[n, 4]`` is ``[n // 2, 2, 4]``, which for an odd n would leave the last row out; ``x[5]``
needs an n of 6.
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node
from tilewright.runtime.plan import Condition
from tilewright.symbolic import Size, lift, lower_bound, maximum, product, simplify


def size_conditions(graph: Graph) -> list[Condition]:
    """What every call must check, each once: what does not hold for all sizes by itself."""
    found: dict[str, Condition] = {}
    for node in graph.nodes:
        if node.op == "slice":
            for outside in _outside(node):
                found.setdefault(str(outside), Condition(maximum(outside, 0), 0, _slice_text(node)))
        if node.op != "reshape":
            continue
        (source,), (result,) = node.inputs, node.outputs
        assert source is not None
        if node.attributes["same"]:
            for axis, (left, right) in enumerate(zip(source.shape, result.shape, strict=True)):
                if simplify(lift(left) - right) != 0:
                    key = str(simplify(lift(left) - right))
                    found.setdefault(key, Condition(left, right, _equality(node, axis)))
            continue
        left, right = product(source.shape), product(result.shape)
        if simplify(lift(left) - right) == 0:
            continue
        text = _described(node)
        others = [axis for axis, pair in enumerate(zip(source.shape, result.shape, strict=False)) if pair[0] != pair[1]]
        if source.rank == result.rank and len(others) == 1:  # the same dimension, spelled in two ways
            (axis,) = others
            left, right = source.shape[axis], result.shape[axis]
            text = _equality(node, axis)
        found.setdefault(str(simplify(lift(left) - right)), Condition(left, right, text))
    return list(found.values())


def _outside(node: Node) -> list[Size]:
    """How far a slice would begin before the first element, end before its begin, and go beyond the last element, as
    far as that may happen."""
    (source,) = node.inputs
    assert source is not None
    axis, start, stop, step = (node.attributes[name] for name in ("axis", "start", "stop", "step"))
    first, end = (start, stop) if step > 0 else (simplify(lift(stop) + 1), simplify(lift(start) + 1))
    gaps = [simplify(lift(first)), simplify(lift(end) - first), simplify(lift(source.shape[axis]) - end)]
    return [simplify(-1 * lift(gap)) for gap in gaps if lower_bound(gap) < 0]


def _slice_text(node: Node) -> str:
    (source,) = node.inputs
    assert source is not None
    start, stop, axis = (node.attributes[name] for name in ("start", "stop", "axis"))
    where = f" ({node.source})" if node.source else ""
    return f"elements missing from the slice {start} to {stop} of {source!r} along axis {axis}{where}"


def _equality(node: Node, axis: int) -> str:
    (source,), (result,) = node.inputs, node.outputs
    assert source is not None
    where = f" ({node.source})" if node.source else ""
    return f"dimension {axis} of {source!r} must be {result.shape[axis]}{where}"


def _described(node: Node) -> str:
    (source,), (result,) = node.inputs, node.outputs
    assert source is not None
    before, after = (f"[{', '.join(map(str, value.shape))}]" for value in (source, result))
    return f"elements of the reshape of {before} to {after}" + (f" ({node.source})" if node.source else "")
