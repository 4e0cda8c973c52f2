"""Canonicalization rules of the ops that only move elements; used by `canonicalize`."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Node, Value
from tilewright.graph.rewrite import GraphRewriter, Rule
from tilewright.graph.views import StridedView, dense_view, follow_all
from tilewright.symbolic import Size, lift, lower_bound, simplify, upper_bound

# Of a concat: a kernel that reads more takes very long to compile, and three of 1,000 parts each, one after the other,
# would be one of 10^9.
_MOST_JOINED = 128


def _nothing(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A reshape, broadcast, slice, pad or permute that changes nothing."""
    source = node.inputs[0]
    if source is None or source.shape != node.output.shape:
        return None
    if node.op == "permute" and node.attributes["order"] != tuple(range(source.rank)):
        return None
    if node.op == "slice" and node.attributes["step"] < 0:
        return None
    if node.op == "pad" and any(low or high for low, high in node.attributes["pads"]):
        return None
    return source


def _through(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A reshape of a reshape, a broadcast of a broadcast: only the last counts."""
    inner = rewriter.producer(node.inputs[0], node.op)
    if inner is None:
        return None
    source = inner.inputs[0]
    assert source is not None
    if node.attributes.get("same"):
        if inner.attributes["same"]:
            return rewriter.op("reshape", [source], shape=node.output.shape, same=True)
        if follow_all(dense_view(source.shape), [Node("reshape", [source], node.outputs, node.attributes)]) is None:
            return None  # which dimension became which could not be told any more
    return rewriter.op(node.op, [source], shape=node.output.shape)


def _permute_of_same(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Dimensions that are written in another way between two permutes are so after both, which are one then."""
    inner = rewriter.producer(node.inputs[0], "reshape")
    if inner is None or not inner.attributes["same"] or rewriter.producer(inner.inputs[0], "permute") is None:
        return None
    moved = rewriter.op("permute", inner.inputs, **node.attributes)
    return rewriter.op("reshape", [moved], shape=node.output.shape, same=True)


def _permute_twice(node: Node, rewriter: GraphRewriter) -> Value | None:
    inner = rewriter.producer(node.inputs[0], "permute")
    if inner is None:
        return None
    return rewriter.op(
        "permute", inner.inputs, order=tuple(inner.attributes["order"][axis] for axis in node.attributes["order"])
    )


def _permute_of_ones(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A permutation that only moves dimensions of size 1 is a reshape."""
    source = node.inputs[0]
    assert source is not None
    long = [axis for axis in node.attributes["order"] if source.shape[axis] != 1]
    return rewriter.op("reshape", [source], shape=node.output.shape) if long == sorted(long) else None


def _permute_between_reshapes(node: Node, rewriter: GraphRewriter) -> Value | None:
    """permute(reshape(x)) where the reshape only adds or drops 1s: permute x, then reshape."""
    inner = rewriter.producer(node.inputs[0], "reshape")
    if inner is None or inner.inputs[0] is None:
        return None
    source, middle = inner.inputs[0], inner.output
    if source.rank >= middle.rank or [n for n in source.shape if n != 1] != [n for n in middle.shape if n != 1]:
        return None
    if any(extent == 1 for extent in source.shape):
        return None  # keep it simple: only 1s that the reshape added are stepped over
    position = {axis: index for index, axis in enumerate(a for a, n in enumerate(middle.shape) if n != 1)}
    order = tuple(position[axis] for axis in node.attributes["order"] if axis in position)
    return rewriter.op("reshape", [rewriter.op("permute", [source], order=order)], shape=node.output.shape)


def _permute_below_merge(node: Node, rewriter: GraphRewriter) -> Value | None:
    """permute(reshape(x)) where the reshape merges the last dimensions and the permute keeps the last:
    permute x, then merge."""
    inner, order = rewriter.producer(node.inputs[0], "reshape"), node.attributes["order"]
    if inner is None or inner.inputs[0] is None:
        return None
    source, rank = inner.inputs[0], inner.output.rank
    if order[-1] != rank - 1 or source.rank <= rank or source.shape[: rank - 1] != inner.output.shape[:-1]:
        return None
    moved = rewriter.op("permute", [source], order=(*order[:-1], *range(rank - 1, source.rank)))
    return rewriter.op("reshape", [moved], shape=node.output.shape)


def _shorter_chain(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Any chain of reshapes and permutes that only splits and reorders dimensions: split, permute, done.

    The chain is followed as strides: the dimensions of the result, sorted by stride, must walk the
    source densely.
    """
    chain = [node]
    while (inner := rewriter.producer(chain[0].inputs[0], "reshape", "permute")) is not None:
        chain.insert(0, inner)
    source = chain[0].inputs[0]
    assert source is not None
    while len(chain) > 1:
        steps = _split_and_permute(source, follow_all(dense_view(source.shape), chain))
        if steps is not None and len(steps) < len(chain):
            result = source
            for op, attributes in steps:
                result = rewriter.op(op, [result], **attributes)
            return result
        source = chain.pop(0).output
    return None


def _split_and_permute(source: Value, view: StridedView | None) -> list[tuple[str, dict[str, Any]]] | None:
    """The reshape, permute and reshape (those that do something) that make a view of a dense tensor."""
    order = None if view is None else _dense_order(view)
    if view is None or order is None:
        return None
    steps: list[tuple[str, dict[str, Any]]] = []
    shape = source.shape
    if order != sorted(order):
        split = tuple(view.shape[axis] for axis in order)
        if split != shape:
            steps.append(("reshape", {"shape": split}))
        places = tuple(sorted(range(len(order)), key=lambda index: order[index]))
        steps.append(("permute", {"order": places}))
        shape = tuple(split[place] for place in places)
    return steps if shape == view.shape else [*steps, ("reshape", {"shape": view.shape})]


def _dense_order(view: StridedView) -> list[int] | None:
    """The view's dimensions other than 1, outermost first, if together they walk memory without gaps."""
    left = [axis for axis, extent in enumerate(view.shape) if extent != 1]
    order: list[int] = []
    step: Size = 1
    while left:
        following = [axis for axis in left if view.strides[axis] == step]
        if len(following) != 1:
            return None
        (axis,) = following
        order.insert(0, axis)
        left.remove(axis)
        step = simplify(lift(step) * view.shape[axis])
    return order


def _scatter_of_permute(node: Node, rewriter: GraphRewriter) -> Value | None:
    """scatter_update(permute(x), i, u) = permute(scatter_update(x, i, permute back(u)))."""
    target, indices, updates = node.inputs
    inner = rewriter.producer(target, "permute")
    if inner is None:
        return None
    order = inner.attributes["order"]
    back = tuple(order.index(axis) for axis in range(len(order)))
    moved = rewriter.op("permute", [updates], order=back)
    axis, distinct = order[node.attributes["axis"]], node.attributes["distinct"]
    result = rewriter.op("scatter_update", [inner.inputs[0], indices, moved], axis=axis, distinct=distinct)
    return rewriter.op("permute", [result], order=order)


def _wrapped_indices(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Indices that count from the end when negative do so by themselves: where(i < 0, i + extent, i) is i."""
    source, indices, *rest = node.inputs
    choice = rewriter.producer(indices, "where")
    if choice is None or source is None:
        return None
    test, wrapped = rewriter.producer(choice.inputs[0], "less"), rewriter.producer(choice.inputs[1], "add")
    plain = choice.inputs[2]
    if test is None or wrapped is None or test.inputs[0] is not plain or rewriter.uniform(test.inputs[1]) != 0:
        return None
    extent = source.shape[node.attributes["axis"]]
    added = [item for item in wrapped.inputs if item is not plain]
    if len(added) != 1 or not _is_size(added[0], extent, rewriter):
        return None
    return rewriter.op(node.op, [source, plain, *rest], **node.attributes)


def _is_size(value: Value | None, size: Size, rewriter: GraphRewriter) -> bool:
    """Whether an integer scalar is a given size."""
    node = rewriter.producer(value, "dimension")
    return rewriter.uniform(value) == size if node is None else node.attributes["expression"] == size


def _slice_twice(node: Node, rewriter: GraphRewriter) -> Value | None:
    inner, attributes = rewriter.producer(node.inputs[0], "slice"), node.attributes
    if inner is None or inner.attributes["axis"] != attributes["axis"]:
        return None
    if inner.attributes["step"] != 1 or attributes["step"] < 0:
        return None
    start = inner.attributes["start"]
    return rewriter.op(
        "slice",
        inner.inputs,
        axis=attributes["axis"],
        start=simplify(lift(attributes["start"]) + start),
        stop=simplify(lift(attributes["stop"]) + start),
        step=attributes["step"],
    )


def _slice_of_concat(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A slice that lies within one part of a concat reads that part."""
    inner, attributes = rewriter.producer(node.inputs[0], "concat"), node.attributes
    axis = attributes["axis"]
    if inner is None or inner.attributes["axis"] != axis or attributes["step"] != 1:
        return None
    position = 0
    for part in inner.inputs:
        assert part is not None
        extent = part.shape[axis]
        bounds = (extent, attributes["start"], attributes["stop"])
        if not all(isinstance(bound, int) for bound in bounds):
            return None
        size, start, stop = bounds
        if position <= start and stop <= position + size:
            return rewriter.op("slice", [part], axis=axis, start=start - position, stop=stop - position)
        position += size
    return None


def _slice_of_broadcast(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Slicing a repeated dimension: repeat less often."""
    inner = rewriter.producer(node.inputs[0], "broadcast_to")
    if inner is None or inner.inputs[0] is None:
        return None
    source = inner.inputs[0]
    axis = node.attributes["axis"] - (inner.output.rank - source.rank)
    if axis >= 0 and source.shape[axis] != 1:
        return None
    return rewriter.op("broadcast_to", [source], shape=node.output.shape)


def _concat(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A concat of one part, of too many, of concats, or of neighbouring slices of one value."""
    axis = node.attributes["axis"]
    if len(node.inputs) == 1:
        return node.inputs[0]
    if len(node.inputs) > _MOST_JOINED:
        runs = [node.inputs[first : first + _MOST_JOINED] for first in range(0, len(node.inputs), _MOST_JOINED)]
        return rewriter.op("concat", [rewriter.op("concat", run, axis=axis) for run in runs], axis=axis)
    flat: list[Value | None] = []
    for item in node.inputs:
        inner = rewriter.producer(item, "concat")
        flat += inner.inputs if inner is not None and inner.attributes["axis"] == axis else [item]
        if len(flat) > _MOST_JOINED:
            break
    if len(node.inputs) < len(flat) <= _MOST_JOINED:
        return rewriter.op("concat", flat, axis=axis)
    pieces = [rewriter.producer(item, "slice") for item in node.inputs]
    first, last = pieces[0], pieces[-1]
    if first is None or last is None:
        return None
    for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
        if piece is None or piece.inputs[0] is not first.inputs[0]:
            return None
        if piece.attributes["axis"] != axis or piece.attributes["step"] != 1:
            return None
        if following is not None and piece.attributes["stop"] != following.attributes["start"]:
            return None
    return rewriter.op("slice", first.inputs, axis=axis, start=first.attributes["start"], stop=last.attributes["stop"])


def _gather(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Indices that are one constant, or that count up from a start, make a slice."""
    source, indices = node.inputs
    axis = node.attributes["axis"]
    assert source is not None and indices is not None
    run = rewriter.producer(indices, "reshape")
    line = rewriter.producer(run.inputs[0] if run is not None else indices, "iota")
    if line is not None and line.output.rank == 1 and line.attributes["step"] == 1:
        start = line.attributes["start"]
        stop = simplify(lift(start) + line.output.shape[0])
    elif indices.shape in ((), (1,)) and rewriter.constant(indices) is not None:
        start = int(rewriter.constant(indices).reshape(-1)[0])  # type: ignore[union-attr]
        extent = source.shape[axis]
        if start < 0:
            start = simplify(lift(extent) + start)
        stop = simplify(lift(start) + 1)
    else:
        return None
    if lower_bound(start) < 0 or upper_bound(simplify(lift(stop) - source.shape[axis])) > 0:
        return None
    piece = rewriter.op("slice", [source], axis=axis, start=start, stop=stop)
    wanted = (*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :])
    return rewriter.op("reshape", [piece], shape=wanted)


def _copy(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Values never change, so a copy is the value."""
    return node.inputs[0]


def _iota_axis(node: Node, rewriter: GraphRewriter) -> Value | None:
    """An iota of several dimensions is a line, reshaped and broadcast."""
    shape, axis = node.output.shape, node.attributes["axis"]
    if len(shape) < 2:
        return None
    line = rewriter.op("iota", [], **{**node.attributes, "shape": (shape[axis],), "axis": 0})
    column = (shape[axis], *[1] * (len(shape) - axis - 1))
    spread = rewriter.op("reshape", [line], shape=column)
    return rewriter.op("broadcast_to", [spread], shape=shape)


def _extreme_of_all(node: Node, rewriter: GraphRewriter) -> Value | None:
    """The largest or least of all elements does not depend on their order, which costs divisions of places to walk."""
    moved = rewriter.producer(node.inputs[0])
    if moved is None or moved.op not in ("permute", "reshape") or moved.inputs[0] is None:
        return None
    source, rank = moved.inputs[0], moved.output.rank
    if len({axis % rank for axis in node.attributes["axes"]}) != rank or source.rank == 0:
        return None
    found = rewriter.op(node.op, [source], **{**node.attributes, "axes": tuple(range(source.rank)), "keepdims": False})
    return rewriter.op("reshape", [found], shape=node.output.shape)


MOVEMENT_RULES: dict[str, list[Rule]] = {
    "reshape": [_nothing, _through, _shorter_chain],
    "permute": [
        _nothing,
        _permute_twice,
        _permute_of_same,
        _permute_of_ones,
        _permute_between_reshapes,
        _permute_below_merge,
        _shorter_chain,
    ],
    "broadcast_to": [_nothing, _through],
    "slice": [_nothing, _slice_twice, _slice_of_concat, _slice_of_broadcast],
    "pad": [_nothing],
    "concat": [_concat],
    "gather": [_wrapped_indices, _gather],
    "scatter_update": [_wrapped_indices, _scatter_of_permute],
    "copy": [_copy],
    "iota": [_iota_axis],
    "reduce_max": [_extreme_of_all],
    "reduce_min": [_extreme_of_all],
}
