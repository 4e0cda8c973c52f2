"""Views, joins, splits, pads, ranges and constants."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import from_numpy
from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers import images
from tilewright.importers.onnx_call import Call
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Expression, Size, ceil_divide, lift, maximum, minimum, product, simplify

TABLE = RuleTable("Shapes, joins and splits")
rule = TABLE.rule


@rule("Reshape")
def reshape(call: Call) -> Value:
    x, target = call[0], call.sizes(1)
    if not call.attribute("allowzero", 0):
        target = [x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(target)]
    return call.reshape(x, target)


@rule("Flatten")
def flatten(call: Call) -> Value:
    x, axis = call[0], call.attribute("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return call.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@rule("Squeeze")
def squeeze(call: Call) -> Value:
    x = call[0]
    axes = call.axes(1, x.rank)
    if axes is None:
        if any(isinstance(extent, Expression) for extent in x.shape):
            raise Unsupported("Squeeze without axes on a dynamic shape", "give the axes")
        axes = tuple(range(x.rank))
    return call.squeeze(x, axes)


@rule("Unsqueeze")
def unsqueeze(call: Call) -> Value:
    return call.unsqueeze(call[0], *call.ints(1))


@rule("Transpose")
def transpose(call: Call) -> Value:
    x = call[0]
    return call.permute(x, call.attribute("perm") or list(range(x.rank))[::-1])


@rule("Expand")
def expand(call: Call) -> Value:
    x = call[0]
    return call.broadcast(x, broadcast_shapes(x.shape, tuple(call.sizes(1))))


@rule("Tile")
def tile(call: Call) -> Value:
    return images.tile(call, call[0], call.sizes(1))


@rule("Concat")
def concat(call: Call) -> Value:
    values = [call[index] for index in range(len(call.inputs))]
    axis = call.attribute("axis") % values[0].rank
    kept = [value for value in values if value.shape[axis] != 0] or values[:1]
    return kept[0] if len(kept) == 1 else call.op("concat", *kept, axis=axis)


def _bound(bound: Size, extent: Size, low: Size, high: Size) -> Size:
    """A bound of ONNX's slice from the front, clamped to [low, high]; huge numbers mean the end."""
    if isinstance(bound, int) and bound < 0:
        bound = maximum(simplify(lift(extent) + bound), low) if bound > -(2**31) else low
    elif isinstance(bound, Expression):
        constant = bound.terms[0][1] if bound.terms and bound.terms[0][0] == () else 0
        if constant < 0 and len(bound.terms) == 1:
            bound = simplify(lift(extent) + bound)
    return maximum(low, minimum(bound, high))


@rule("Slice")
def slice_(call: Call) -> Value:
    x, starts, ends = call[0], call.sizes(1), call.sizes(2)
    axes = call.ints(3) if call.has(3) else list(range(len(starts)))
    steps = call.ints(4) if call.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= x.rank
        extent = x.shape[axis]
        if step > 0:
            first = _bound(start, extent, 0, extent)
            x = call.slice(x, axis, first, maximum(first, _bound(end, extent, 0, extent)), step)
        else:
            x = _backwards(call, x, axis, start, end, step)
    return x


def _backwards(call: Call, x: Value, axis: int, start: Size, end: Size, step: int) -> Value:
    """A slice with a negative step: the forward slice of the reversed dimension."""
    extent = x.shape[axis]
    last = simplify(lift(extent) - 1)
    first = _bound(start, extent, -1, last)
    stop = -1 if isinstance(end, int) and end < -(2**31) else _bound(end, extent, -1, last)
    turned = call.flip(x, axis)
    return call.slice(turned, axis, simplify(lift(last) - first), simplify(lift(last) - stop), -step)


@rule("Split")
def split(call: Call) -> tuple[Value, ...]:
    x = call[0]
    axis = call.attribute("axis", 0) % x.rank
    extent = x.shape[axis]
    call.attribute("num_outputs")  # the node's outputs say it
    if call.has(1):
        sizes = call.sizes(1)
    else:
        each = ceil_divide(extent, call.outputs)
        sizes = [each] * (call.outputs - 1)
        sizes.append(simplify(lift(extent) - lift(each) * (call.outputs - 1)))
    parts, start = [], lift(0)
    for size in sizes:
        stop = lift(start + size)
        parts.append(call.slice(x, axis, simplify(start), simplify(stop)))
        start = stop
    return tuple(parts)


@rule("Pad")
def pad(call: Call) -> Value:
    x, numbers = call[0], call.ints(1)
    mode = call.attribute("mode", "constant")
    axes = [axis % x.rank for axis in (call.ints(3) if call.has(3) else range(x.rank))]
    value = call.number(2) if call.has(2) else 0
    pads = [(0, 0)] * x.rank
    for place, axis in enumerate(axes):
        low, high = numbers[place], numbers[place + len(axes)]
        x = call.slice(x, axis, max(0, -low), simplify(lift(x.shape[axis]) - max(0, -high)))
        pads[axis] = (max(0, low), max(0, high))
    if mode == "constant":
        return call.op("pad", x, pads=pads, value=value) if any(pair != (0, 0) for pair in pads) else x
    if mode not in ("reflect", "edge", "wrap"):
        raise Unsupported(f"padding in mode {mode!r}", "use constant, reflect, edge or wrap")
    for axis, (low, high) in enumerate(pads):
        x = images.pad_from_image(call, x, axis, low, high, mode)
    return x


@rule("Shape", "Size")
def known_only(call: Call) -> Value:
    raise Unsupported("the shape of this tensor is not known", "check the model with onnx.shape_inference")


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> Value:
    value = call.attribute("value", np.zeros(1, np.float32))
    return call.full(call.sizes(0), value.reshape(-1)[0].item(), from_numpy(value.dtype))


@rule("Range")
def range_(call: Call) -> Value:
    """An iota whose length is known from sizes."""
    dtype = call.tensor(0).dtype
    if dtype.is_float:
        start, limit, step = (float(call.number(index)) for index in range(3))
        length: Size = max(0, int(np.ceil((limit - start) / step)))
        return call.op("iota", shape=(length,), axis=0, dtype=dtype, start=start, step=step)
    (first,), (last,), (delta,) = call.sizes(0), call.sizes(1), call.ints(2)
    length = maximum(0, ceil_divide(simplify((lift(last) - first) * (1 if delta > 0 else -1)), abs(delta)))
    if isinstance(first, int):
        return call.op("iota", shape=(length,), axis=0, dtype=dtype, start=first, step=delta)
    line = call.op("iota", shape=(length,), axis=0, dtype=dtype, start=0, step=delta)
    return call.op("add", line, call.value(first, dtype))


@rule("EyeLike")
def eye_like(call: Call) -> Value:
    rows, columns = call.tensor(0).shape
    dtype = call.attribute("dtype") or call.tensor(0).dtype
    row, column = call.unsqueeze(call.iota(rows), 1), call.unsqueeze(call.iota(columns), 0)
    diagonal = call.attribute("k", 0)
    return call.cast(call.op("equal", call.op("add", row, diagonal), column), dtype)


@rule("Trilu")
def triangle(call: Call) -> Value:
    diagonal = int(call.number(1)) if call.has(1) else 0
    return call.keep_triangle(call[0], diagonal, upper=bool(call.attribute("upper", 1)))


@rule("DepthToSpace")
def depth_to_space(call: Call) -> Value:
    columns_first = call.attribute("mode", "DCR") == "DCR"
    return images.depth_to_space(call, call[0], call.attribute("blocksize"), columns_first)


@rule("SpaceToDepth")
def space_to_depth(call: Call) -> Value:
    columns_first = call.attribute("mode", "DCR") == "DCR"
    return images.space_to_depth(call, call[0], call.attribute("blocksize"), columns_first)
