"""Shapes, axes and counts that are computed from data: read at run time, between the compiled parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.graph.core import Value
from tilewright.graph.host_images import CHANNELS
from tilewright.importers.onnx_call import OnnxCall, Tensor, known_tensor
from tilewright.importers.report import Invalid
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, product

TABLE = RuleTable("Choices that depend on data")
rule = TABLE.rule


# Shapes --------------------------------------------------------------------------------------------


def reshape(call: OnnxCall, x: Value) -> Value:
    """A Reshape whose shape is known only then; elements that are known at import stay numbers."""
    count, subject = call.count(1), call.input_text(1)
    allow_zero = bool(call.attribute("allowzero", 0))
    resolved: list[Value] = []

    def target(index: int) -> Value:
        if not resolved:
            operands = (call.numbers(index), call.extents(x))
            resolved.append(call.op("resolved_shape", *operands, count=count, allow_zero=allow_zero, what=subject))
        return resolved[0]

    sizes: list[Size] = []
    for element, known in enumerate(call.tensor(1).hints or [None] * count):
        if known is not None and known == 0 and not allow_zero and element < x.rank:
            known = x.shape[element]
        if known is None or (isinstance(known, int) and known < 0):
            known = call.size_read(target, 1, element, "size", (call[1], element, x.shape, allow_zero))
        sizes.append(known)
    return call.reshape(x, sizes)


def expand(call: OnnxCall, x: Value) -> Value:
    """An Expand to a shape that is known only then; where x has a fixed size other than 1, that stays."""
    count, subject = call.count(1), call.input_text(1)
    rank = max(count, x.rank)
    fixed = [1] * (rank - x.rank) + list(x.shape)
    if not all(isinstance(size, int) for size in fixed):
        sizes = [call.fresh("size") for _ in range(rank)]
        return call.op("broadcast_at", x, call.numbers(1), shape=tuple(sizes), what=subject)
    target = call.op("broadcast_extents", call.numbers(1), call.extents(x), count=rank, what=subject)
    hints: list[Size | None] = [*[1] * (rank - count), *(call.tensor(1).hints or [None] * count)]
    shape: list[Size] = []
    for element, (size, hint) in enumerate(zip(fixed, hints, strict=True)):
        if size == 1:
            size = call.fresh("size") if hint is None or (isinstance(hint, int) and hint < 0) else hint
            call.op("extent", target, element=element, size=size, what=f"element {element} of {subject}")
        shape.append(size)
    return call.broadcast(x, shape)


def squeeze(call: OnnxCall, x: Value) -> Value:
    """A Squeeze whose axes are known only then."""
    subject, count = call.input_text(1), x.rank - call.count(1)
    if count < 0:
        raise Invalid(f"there are {call.count(1)} axes for {x!r}")
    extents = call.op("removed_extents", call.extents(x), call.numbers(1), count=count, what=subject)
    return call.reshape(x, call.read_sizes(extents, "size", subject))


def unsqueeze(call: OnnxCall, x: Value) -> Value:
    """An Unsqueeze whose axes are known only then."""
    subject, count = call.input_text(1), x.rank + call.count(1)
    extents = call.op("inserted_extents", call.extents(x), call.numbers(1), count=count, what=subject)
    return call.reshape(x, call.read_sizes(extents, "size", subject))


def slice_(call: OnnxCall, x: Value) -> Value:
    """A Slice of which starts, ends, axes or steps are known only then."""
    lengths = [product(call.tensor(index).shape) for index in range(1, 5) if call.has(index)]
    # The lists have the same length, so one known length gives all of them.
    count = next((length for length in lengths if isinstance(length, int)), None)
    axes: list[int] = list(range(x.rank))
    if not call.has(3):
        axes = axes[: call.count(1) if count is None else count]
    elif not call.is_unknown(3):
        axes = list(call.places(call.ints(3), x.rank))
    operands = [call.numbers(index, count) if call.has(index) else None for index in range(1, 5)]
    shape = tuple(call.fresh("size") if axis in axes else size for axis, size in enumerate(x.shape))
    return call.op("slice_at", x, *operands, shape=shape, what="the slice")


def pad(call: OnnxCall, x: Value, mode: str) -> Value:
    """A Pad of which pads or axes are known only then."""
    axes = list(range(x.rank)) if not call.has(3) or call.is_unknown(3) else call.places(call.ints(3), x.rank)
    shape = tuple(call.fresh("size") if axis in axes else size for axis, size in enumerate(x.shape))
    value = call.cast(call[2], x.dtype) if call.has(2) else None
    given = call.numbers(3) if call.has(3) else None
    return call.op("pad_at", x, call.numbers(1), value, given, shape=shape, mode=mode, what="the pads")


def range_(call: OnnxCall) -> Value:
    """A Range whose length is known only then."""
    start, limit, step = (call.reshape(call[index], ()) for index in range(3))
    count = call.op("range_count", start, limit, step, what="the range")
    length = call.fresh("length")
    call.op("extent", count, size=length, what="the length of the range")
    line = call.cast(call.iota(length), start.dtype)
    return call.op("add", call.op("multiply", line, step), start)


def split_last(call: OnnxCall, part: Value, axis: int, size: Size) -> Value:
    """The last part of a Split, which must have the given size: checked at the call."""
    shape = [size if place == axis else extent for place, extent in enumerate(part.shape)]
    return call.reshape(part, shape)


def with_axes(apply: Callable[[OnnxCall], Value]) -> Callable[[OnnxCall], Value]:
    """A reduction whose axes may be known only at run time: then they are moved after the others, as one."""

    def rule_(call: OnnxCall) -> Value:
        if not call.is_unknown(1):
            return apply(call)
        x, count, keep = call[0], call.count(1), bool(call.attribute("keepdims", 1))
        if count == 0:
            empty = known_tensor("axes", np.zeros(0, np.int64))
            return apply(_other(call, [call.tensor(0), empty], call.attributes))
        if count > x.rank:
            raise Invalid(f"there are {count} axes for {x!r}")
        subject = call.input_text(1)
        other_sizes = [call.fresh("size") for _ in range(x.rank - count)]
        moved = call.op("axes_last", x, call.numbers(1), shape=(*other_sizes, call.fresh("size")), what=subject)
        last = known_tensor("axes", np.array([len(other_sizes)], np.int64))
        result = apply(_other(call, [Tensor("moved", moved), last], {**call.attributes, "keepdims": 0}))
        if not keep:
            return result
        extents = call.op(
            "removed_extents", call.extents(x), call.numbers(1), count=x.rank, keep=True, reduced=True, what=subject
        )
        return call.reshape(result, call.read_sizes(extents, "size", subject))

    return rule_


def _other(call: OnnxCall, inputs: list[Tensor | None], attributes: Mapping[str, Any]) -> OnnxCall:
    """The same node with other inputs and attributes."""
    call.read.update(call.attributes)
    return OnnxCall(call.builder, call.source, inputs, attributes, call.opset, call.outputs)


def along_axis(call: OnnxCall, x: Value, apply: Callable[[Value, int], Value]) -> Value:
    """Something along an axis that is known only then: the axis is the last meanwhile."""
    if call.count(1) != 1:
        raise Invalid(f"there are {call.count(1)} axes; there must be one")
    sizes = [call.fresh("size") for _ in range(x.rank)]
    subject = call.input_text(1)
    moved = call.op("axes_last", x, call.numbers(1), shape=tuple(sizes), what=subject)
    return call.op("last_axis_at", apply(moved, x.rank - 1), call.numbers(1), shape=x.shape, what=subject)


def top_k(call: OnnxCall, x: Value, axis: int, largest: bool, count: Size | None = None) -> tuple[Value, Value]:
    """The k largest, where k (`count`, if it is a size) is known only then."""
    shape = list(x.shape)
    shape[axis] = call.fresh("k") if count is None else count
    shared = {"axis": axis, "shape": tuple(shape), "largest": largest, "what": call.input_text(1)}
    values, positions = (
        call.op("top_k", x, call.numbers(1), gives=gives, **shared) for gives in ("values", "positions")
    )
    return values, positions


# Choices -------------------------------------------------------------------------------------------


@rule("NonZero")
def nonzero(call: OnnxCall) -> Value:
    x = call[0]
    return call.op("nonzero", x, shape=(x.rank, call.fresh("count")))


@rule("Compress")
def compress(call: OnnxCall) -> Value:
    x = call[0]
    axis = call.attribute("axis")
    if axis is None:
        x, axis = call.reshape(x, (-1,)), 0
    axis = call.place(axis, x.rank)
    shape = tuple(call.fresh("count") if place == axis else size for place, size in enumerate(x.shape))
    return call.op("compress", x, call[1], axis=axis, shape=shape)


@rule("Unique")
def unique(call: OnnxCall) -> tuple[Value, ...]:
    x, axis, in_order = call[0], call.attribute("axis"), bool(call.attribute("sorted", 1))
    if axis is None:
        x, axis = call.reshape(x, (-1,)), 0
    axis = call.place(axis, x.rank)
    count = call.fresh("count")
    shapes: dict[str, tuple[Size, ...]] = {
        "values": tuple(count if place == axis else size for place, size in enumerate(x.shape)),
        "first": (count,),
        "inverse": (x.shape[axis],),
        "counts": (count,),
    }
    wanted = list(shapes.items())[: call.outputs]
    return tuple(call.op("unique", x, axis=axis, shape=shape, gives=gives, sorted=in_order) for gives, shape in wanted)


@rule("ImageDecoder")
def decoded_image(call: OnnxCall) -> Value:
    """The pixels of an image file: [height, width, channels]."""
    pixels = call.choice("pixel_format", "RGB", "BGR", "Grayscale")
    shape = (call.fresh("height", 1), call.fresh("width", 1), CHANNELS[pixels])
    return call.op("decoded_image", call[0], shape=shape, format=pixels)


@rule("NonMaxSuppression")
def non_max_suppression(call: OnnxCall) -> Value:
    operands = [call.optional(index) for index in range(len(call.inputs))]
    center = bool(call.attribute("center_point_box", 0))
    if call[0].rank != 3 or call[1].rank != 3:
        raise Invalid(f"the boxes {call[0]!r} and scores {call[1]!r} must have 3 dimensions")
    return call.op("non_max_suppression", *operands, shape=(call.fresh("count"), 3), center=center)
