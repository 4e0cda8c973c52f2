"""Canonicalization rules of the ops that only move elements; used by `canonicalize`."""

from __future__ import annotations

from tilewright.graph.core import Node, Value
from tilewright.graph.rewrite import Rewriter, Rule
from tilewright.symbolic import lift, simplify


def _nothing(node: Node, rewriter: Rewriter) -> Value | None:
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


def _through(node: Node, rewriter: Rewriter) -> Value | None:
    """A reshape of a reshape, a broadcast of a broadcast: only the last counts."""
    inner = rewriter.producer(node.inputs[0], node.op)
    return rewriter.op(node.op, inner.inputs, shape=node.output.shape) if inner is not None else None


def _permute_twice(node: Node, rewriter: Rewriter) -> Value | None:
    inner = rewriter.producer(node.inputs[0], "permute")
    if inner is None:
        return None
    return rewriter.op(
        "permute", inner.inputs, order=tuple(inner.attributes["order"][axis] for axis in node.attributes["order"])
    )


def _permute_of_ones(node: Node, rewriter: Rewriter) -> Value | None:
    """A permutation that only moves dimensions of size 1 is a reshape."""
    source = node.inputs[0]
    assert source is not None
    long = [axis for axis in node.attributes["order"] if source.shape[axis] != 1]
    return rewriter.op("reshape", [source], shape=node.output.shape) if long == sorted(long) else None


def _permute_between_reshapes(node: Node, rewriter: Rewriter) -> Value | None:
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


def _slice_twice(node: Node, rewriter: Rewriter) -> Value | None:
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


def _slice_of_concat(node: Node, rewriter: Rewriter) -> Value | None:
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


def _slice_of_broadcast(node: Node, rewriter: Rewriter) -> Value | None:
    """Slicing a repeated dimension: repeat less often."""
    inner = rewriter.producer(node.inputs[0], "broadcast_to")
    if inner is None or inner.inputs[0] is None:
        return None
    source = inner.inputs[0]
    axis = node.attributes["axis"] - (inner.output.rank - source.rank)
    if axis >= 0 and source.shape[axis] != 1:
        return None
    return rewriter.op("broadcast_to", [source], shape=node.output.shape)


def _concat(node: Node, rewriter: Rewriter) -> Value | None:
    """A concat of one part, of concats, or of neighbouring slices of one value."""
    axis = node.attributes["axis"]
    if len(node.inputs) == 1:
        return node.inputs[0]
    flat: list[Value | None] = []
    for item in node.inputs:
        inner = rewriter.producer(item, "concat")
        flat += inner.inputs if inner is not None and inner.attributes["axis"] == axis else [item]
    if len(flat) > len(node.inputs):
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


def _gather(node: Node, rewriter: Rewriter) -> Value | None:
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
    if isinstance(start, int) and start < 0:
        return None
    piece = rewriter.op("slice", [source], axis=axis, start=start, stop=stop)
    wanted = (*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :])
    return rewriter.op("reshape", [piece], shape=wanted)


def _copy(node: Node, rewriter: Rewriter) -> Value | None:
    """Values never change, so a copy is the value."""
    return node.inputs[0]


def _iota_axis(node: Node, rewriter: Rewriter) -> Value | None:
    """An iota of several dimensions is a line, reshaped and broadcast."""
    shape, axis = node.output.shape, node.attributes["axis"]
    if len(shape) < 2:
        return None
    line = rewriter.op("iota", [], **{**node.attributes, "shape": (shape[axis],), "axis": 0})
    column = (shape[axis], *[1] * (len(shape) - axis - 1))
    spread = rewriter.op("reshape", [line], shape=column)
    return rewriter.op("broadcast_to", [spread], shape=shape)


MOVEMENT_RULES: dict[str, list[Rule]] = {
    "reshape": [_nothing, _through],
    "permute": [_nothing, _permute_twice, _permute_of_ones, _permute_between_reshapes],
    "broadcast_to": [_nothing, _through],
    "slice": [_nothing, _slice_twice, _slice_of_concat, _slice_of_broadcast],
    "pad": [_nothing],
    "concat": [_concat],
    "gather": [_gather],
    "copy": [_copy],
    "iota": [_iota_axis],
}
