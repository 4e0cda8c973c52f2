"""Views, joins, splits, pads, ranges and constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.dtypes import from_numpy, int1
from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.emitter import Emitter
from tilewright.importers.equal_sizes import must_be, stretched_shape
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops import run_time
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.shapes import place_from_front
from tilewright.symbolic import (
    Expression,
    Size,
    at_most,
    ceil_divide,
    lift,
    lower_bound,
    maximum,
    minimum,
    product,
    simplify,
    upper_bound,
)

TABLE = RuleTable("Shapes, joins and splits")
rule = TABLE.rule


def not_negative(sizes: Sequence[Size], subject: str) -> None:
    """Raise `Invalid` for a negative number among sizes."""
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise Invalid(f"{subject} {list(map(str, sizes))} have a negative number")


@rule("Reshape")
def reshape(call: OnnxCall) -> Value:
    """The shape is an attribute before opset 5."""
    x = call[0]
    if call.opset >= 5 and call.is_unknown(1):
        return run_time.reshape(call, x)
    target = call.sizes(1) if call.opset >= 5 else list(call.attribute("shape") or [])
    not_negative([size for size in target if size != -1], "the sizes")
    if not call.attribute("allowzero", 0):
        if any(size == 0 and axis >= x.rank for axis, size in enumerate(target)):
            raise Invalid(f"a 0 in the shape {target} stands for a dimension that {x!r} does not have")
        target = [x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(target)]
    if target.count(-1) > 1:
        raise Invalid(f"the shape {list(map(str, target))} has more than one -1")
    if -1 in target and 0 in target:
        raise Invalid(f"the shape {list(map(str, target))} has a 0, so that nothing says what its -1 is")
    return call.reshape(x, target)


@rule("Flatten")
def flatten(call: OnnxCall) -> Value:
    x, axis = call[0], call.attribute("axis", 1)
    axis = axis if axis == x.rank else call.place(axis, x.rank)
    return call.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@rule("Squeeze")
def squeeze(call: OnnxCall) -> Value:
    """The axes are an attribute before opset 13.  An empty list of them is none, as ONNX Runtime has it."""
    x = call[0]
    if call.is_unknown(1):
        return run_time.squeeze(call, x)
    axes = call.axes(1, x.rank) or _ones(call, x)
    for axis in axes:
        extent = x.shape[axis]
        if not lower_bound(extent) <= 1 <= upper_bound(extent):
            raise Invalid(f"dimension {axis} of {x!r} has the size {extent}; only dimensions of size 1 can go")
    x = must_be(call, x, [1 if axis in axes else extent for axis, extent in enumerate(x.shape)])
    return call.squeeze(x, axes)


def _ones(call: OnnxCall, x: Value) -> tuple[int, ...]:
    """The dimensions of size 1; those that may have it are assumed to have it, or to have another."""
    found = []
    for axis, extent in enumerate(x.shape):
        if isinstance(extent, int) or not lower_bound(extent) <= 1 <= upper_bound(extent):
            one = extent == 1
        else:
            one = call.assumptions.is_one()
            if not one:
                _require_not_one(call, x, axis)
        found += [axis] if one else []
    return tuple(found)


def _require_not_one(call: OnnxCall, x: Value, axis: int) -> None:
    emit = Emitter(call.builder)
    node = f"{call.source}: " if call.source else ""
    emit.source = (
        f"{node}this Squeeze has no axes, and would drop dimension {axis} of {x!r} at a size of 1; give it its axes"
    )
    emit.require_different(x.shape[axis], 1)


@rule("Unsqueeze")
def unsqueeze(call: OnnxCall) -> Value:
    """The axes are an attribute before opset 13."""
    if call.is_unknown(1):
        return run_time.unsqueeze(call, call[0])
    x, axes = call[0], call.listed(1, "axes")
    assert axes is not None  # they are required, there or here
    return call.unsqueeze(x, *call.places(axes, x.rank + len(axes)))


@rule("Transpose")
def transpose(call: OnnxCall) -> Value:
    x = call[0]
    order = call.places(call.attribute("perm") or list(range(x.rank))[::-1], x.rank)
    if len(order) != x.rank:
        raise Invalid(f"the attribute 'perm' has {len(order)} entries for {x!r}")
    return call.permute(x, order)


@rule("Expand")
def expand(call: OnnxCall) -> Value:
    if call.is_unknown(1):
        return run_time.expand(call, call[0])
    x, target = call[0], call.sizes(1)
    not_negative(target, "the sizes")
    pairs = zip(x.shape[::-1], target[::-1], strict=False)
    if any(1 not in pair and pair[0] != pair[1] and any(map(call.is_found_at_run_time, pair)) for pair in pairs):
        return run_time.expand(call, x)  # one of the two may be 1
    return call.broadcast(x, stretched_shape(x.shape, target))


@rule("Tile")
def tile(call: OnnxCall) -> Value:
    """Before opset 6 the inputs are one count and its axis."""
    x, repeats = call[0], call.lengths(1)
    if call.opset < 6:
        axis = call.place(int(call.number(2)), x.rank)
        repeats = [repeats[0] if place == axis else 1 for place in range(x.rank)]
    if len(repeats) != x.rank:
        raise Invalid(f"there are {len(repeats)} counts for {x!r}")
    not_negative(repeats, "the counts")
    return images.tile(call, x, repeats)


@rule("Concat")
def concat(call: OnnxCall) -> Value:
    values = [call[index] for index in range(len(call.inputs))]
    axis = call.axis(values[0].rank, 1)  # a default of the oldest opsets
    for value in values[1:]:
        if value.rank != values[0].rank:
            raise Invalid(f"{values[0]!r} and {value!r} have different numbers of dimensions")
    nonempty = [value for value in values if value.shape[axis] != 0] or values[:1]
    return nonempty[0] if len(nonempty) == 1 else call.op("concat", *nonempty, axis=axis)


def _bound(bound: Size, extent: Size, low: Size, high: Size) -> Size:
    """A bound of ONNX's slice from the front, clamped to [low, high]; huge numbers mean the end."""
    if isinstance(bound, int) and bound <= -(2**31):
        return low
    return maximum(low, minimum(place_from_front(bound, extent), high))


def slice_operands(call: OnnxCall) -> tuple[list[Size], list[Size], list[int] | None, list[int]]:
    """Starts, ends, axes and steps of a Slice; before opset 10 they are attributes.

    Raises `Invalid` for lists that do not fit together.
    """
    if call.opset < 10:
        starts, ends = list(call.attribute("starts")), list(call.attribute("ends"))
        axes, steps = call.attribute("axes"), [1] * len(starts)
    else:
        starts, ends = call.sizes(1), call.sizes(2)
        axes = call.ints(3) if call.has(3) else None
        steps = call.ints(4) if call.has(4) else [1] * len(starts)
    lengths = {len(item) for item in (starts, ends, steps, axes) if item is not None}
    if len(lengths) > 1:
        raise Invalid(f"the starts, ends, axes and steps have different lengths: {sorted(lengths)}")
    if 0 in steps:
        raise Invalid(f"the steps {steps} have a 0")
    return starts, ends, axes, steps


@rule("Slice")
def slice_(call: OnnxCall) -> Value:
    if call.opset >= 10 and call.is_unknown(1, 2, 3, 4):
        return run_time.slice_(call, call[0])
    x, (starts, ends, given, steps) = call[0], slice_operands(call)
    if given is None and len(starts) > x.rank:
        raise Invalid(f"there are {len(starts)} starts for {x!r}")
    axes = call.places(list(range(len(starts))) if given is None else given, x.rank)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        extent = x.shape[axis]
        if step > 0:
            first = _bound(start, extent, 0, extent)
            x = call.slice(x, axis, first, maximum(first, _bound(end, extent, 0, extent)), step)
        else:
            x = _backwards(call, x, axis, start, end, step)
    return x


def _backwards(call: OnnxCall, x: Value, axis: int, start: Size, end: Size, step: int) -> Value:
    """A slice with a negative step: the forward slice of the reversed dimension."""
    extent = x.shape[axis]
    last = simplify(lift(extent) - 1)
    first = minimum(_bound(start, extent, 0, extent), last)
    stop = -1 if isinstance(end, int) and end < -(2**31) else _bound(end, extent, -1, last)
    begin = simplify(lift(last) - first)
    return call.slice(call.flip(x, axis), axis, begin, maximum(begin, simplify(lift(last) - stop)), -step)


def _parts(call: OnnxCall, extent: Size) -> list[Size]:
    """The sizes of the parts of a Split: an input, in the oldest opsets an attribute, or equal ones."""
    sizes = call.lengths(1) if call.has(1) else call.attribute("split")
    count = call.attribute("num_outputs", call.outputs)
    if count != call.outputs:
        raise Invalid(f"the attribute 'num_outputs' is {count}, but the node has {call.outputs} outputs")
    if sizes is None:
        each = ceil_divide(extent, call.outputs)
        if call.opset < 18 and isinstance(extent, int) and extent % call.outputs:
            raise Invalid(f"{extent} elements are not divided by {call.outputs} outputs")
        sizes = [each] * (call.outputs - 1)
        sizes.append(simplify(lift(extent) - lift(each) * (call.outputs - 1)))
    not_negative(sizes, "the parts")
    surplus = simplify(lift(extent) - sum(map(lift, sizes), lift(0)))
    if len(sizes) != call.outputs or (isinstance(surplus, int) and surplus):
        raise Invalid(f"the parts {list(map(str, sizes))} are not {call.outputs} that make up {extent}")
    return list(sizes)


@rule("Split")
def split(call: OnnxCall) -> tuple[Value, ...]:
    x = call[0]
    axis = call.axis(x.rank, 0)
    sizes = _parts(call, x.shape[axis])
    if not call.is_unknown(1):  # a dimension that is not known is as long as they are
        total = simplify(sum(map(lift, sizes), lift(0)))
        x = must_be(call, x, (*x.shape[:axis], total, *x.shape[axis + 1 :]))
        if x.shape[axis] != total:
            raise Unsupported(f"a Split of {x.shape[axis]} into {', '.join(map(str, sizes))}, which differ from it")
    parts, start = [], lift(0)
    for size in sizes:
        stop = lift(start + size)
        parts.append(call.slice(x, axis, simplify(start), simplify(stop)))
        start = stop
    if call.is_unknown(1):  # the last one is what is left, and must be as long as the sizes say
        size = parts[-1].shape[axis]
        rest = call.slice(x, axis, simplify(start - size), x.shape[axis])
        parts[-1] = call.reshape(rest, parts[-1].shape)
    return tuple(parts)


@rule("Pad")
def pad(call: OnnxCall) -> Value:
    """Pads and value are attributes before opset 11; pads may be symbolic sizes."""
    x = call[0]
    mode, computed = call.choice("mode", "constant", "reflect", "edge", "wrap"), False
    if call.opset >= 11 and call.is_unknown(1, 3):
        return run_time.pad(call, x, mode)
    numbers: list[Size]
    if call.opset < 11:
        numbers = list(call.attribute("pads" if call.opset >= 2 else "paddings"))
        value = call.attribute("value", 0.0)
    else:
        computed = mode == "constant" and call.has(2) and call.tensor(2).known is None
        numbers, value = call.sizes(1), call.number(2) if call.has(2) and not computed else 0
    axes = call.places(call.ints(3) if call.has(3) else range(x.rank), x.rank)
    if len(numbers) != 2 * len(axes):
        raise Invalid(f"there are {len(numbers)} pads for {len(axes)} dimensions; there must be two for each")
    pads = [(0, 0)] * x.rank
    for place, axis in enumerate(axes):
        low, high = numbers[place], numbers[place + len(axes)]
        if not (isinstance(low, int) and isinstance(high, int)):
            filled = call.reshape(call[2], ()) if computed else call.builder.number(value, x.dtype)
            if mode != "constant":
                raise Unsupported(f"the pads {low} and {high} in mode {mode!r}", "fix that dimension")
            x = images.pad_by_sizes(call, x, axis, low, high, filled)
            continue
        cut = max(0, -low) + max(0, -high)
        if cut > upper_bound(x.shape[axis]):
            raise Invalid(f"the pads {low} and {high} cut more than the {x.shape[axis]} elements of dimension {axis}")
        call.require_extent(x, axis, cut)
        x = call.slice(x, axis, max(0, -low), simplify(lift(x.shape[axis]) - max(0, -high)))
        pads[axis] = (max(0, low), max(0, high))
    if mode == "constant":
        if all(pair == (0, 0) for pair in pads):
            return x
        padded = call.op("pad", x, pads=pads, value=value)
        if not computed:
            return padded
        inside = call.op("pad", call.full(x.shape, True, int1), pads=pads, value=False)
        return call.op("where", inside, padded, call.reshape(call[2], ()))
    for axis, (low, high) in enumerate(pads):
        if low or high:
            call.require_extent(x, axis, max(low, high) + 1 if mode == "reflect" else 1)
            x = images.pad_from_image(call, x, axis, low, high, mode)
    return x


@rule("Shape", "Size")
def known_only(call: OnnxCall) -> Value:
    raise Unsupported("the shape of this tensor is not known", "check the model with onnx.shape_inference")


@rule("ConstantOfShape")
def constant_of_shape(call: OnnxCall) -> Value:
    value, shape = call.attribute("value", np.zeros(1, np.float32)), call.lengths(0)
    if value.size != 1:
        raise Invalid(f"the attribute 'value' has {value.size} elements; it must have one")
    not_negative(shape, "the sizes")
    return call.full(shape, value.reshape(-1)[0].item(), from_numpy(value.dtype))


@rule("Range")
def range_(call: OnnxCall) -> Value:
    """An iota whose length is known from sizes."""
    dtype = call.tensor(0).dtype
    if call.is_unknown(0, 1, 2):
        return run_time.range_(call)
    if dtype.is_float and not any(call.tensor(index).symbolic for index in range(3)):
        start, limit, step = (float(call.number(index)) for index in range(3))
        count = (limit - start) / step if step else np.nan
        if not np.isfinite(count):
            raise Invalid(f"a range from {start} to {limit} in steps of {step} has no length")
        length: Size = max(0, int(np.ceil(count)))
        return call.op("iota", shape=(length,), axis=0, dtype=dtype, start=start, step=step)
    if dtype.is_float and not all(call.is_whole(index) for index in (0, 2)):
        raise Unsupported("a range of a symbolic size from or in steps of a fraction", "fix that dimension")
    firsts, lasts, steps = (call.sizes(index) for index in range(3))
    if not len(firsts) == len(lasts) == len(steps) == 1:
        raise Invalid("start, limit and step must have one element each")
    first, last, delta = firsts[0], lasts[0], steps[0]
    if delta == 0:
        raise Invalid("the step is 0")
    if not (at_most(1, delta) or at_most(delta, -1)):
        return run_time.range_(call)
    sign = 1 if at_most(1, delta) else -1
    length = maximum(0, ceil_divide(simplify((lift(last) - first) * sign), simplify(lift(delta) * sign)))
    if isinstance(delta, Expression):
        line = call.op("multiply", call.iota(length, dtype), call.value(delta, dtype))
        return call.op("add", line, call.value(first, dtype))
    if isinstance(first, int):
        return call.op("iota", shape=(length,), axis=0, dtype=dtype, start=first, step=delta)
    line = call.op("iota", shape=(length,), axis=0, dtype=dtype, start=0, step=delta)
    return call.op("add", line, call.value(first, dtype))


@rule("EyeLike")
def eye_like(call: OnnxCall) -> Value:
    call.require_rank(call[0], 2, 2)
    rows, columns = call.tensor(0).shape
    dtype = call.dtype("dtype") or call.tensor(0).dtype
    row, column = call.unsqueeze(call.iota(rows), 1), call.unsqueeze(call.iota(columns), 0)
    diagonal = call.attribute("k", 0)
    return call.cast(call.op("equal", call.op("add", row, diagonal), column), dtype)


@rule("Trilu")
def triangle(call: OnnxCall) -> Value:
    call.require_rank(call[0], 2)
    if call.is_unknown(1):
        return _triangle_from(call, call[0], call.reshape(call[1], ()))
    diagonal = int(call.number(1)) if call.has(1) else 0
    return call.keep_triangle(call[0], diagonal, upper=bool(call.attribute("upper", 1)))


def _triangle_from(call: OnnxCall, x: Value, diagonal: Value) -> Value:
    """A triangle whose diagonal is computed."""
    row, column = call.unsqueeze(call.iota(x.shape[-2]), 1), call.unsqueeze(call.iota(x.shape[-1]), 0)
    edge = call.op("add", row, diagonal)
    mask = call.op("greater_equal" if call.attribute("upper", 1) else "less_equal", column, edge)
    if x.dtype.is_bool:
        return call.op("logical_and", x, mask)
    return call.op("where", mask, x, call.builder.number(0, x.dtype))


@rule("DepthToSpace")
def depth_to_space(call: OnnxCall) -> Value:
    call.require_rank(call[0], 4, 4)
    columns_first = call.choice("mode", "DCR", "CRD") == "DCR"
    return images.depth_to_space(call, call[0], call.positive("blocksize"), columns_first)


@rule("SpaceToDepth")
def space_to_depth(call: OnnxCall) -> Value:
    call.require_rank(call[0], 4, 4)
    columns_first = call.choice("mode", "DCR", "CRD") == "DCR"
    return images.space_to_depth(call, call[0], call.positive("blocksize"), columns_first)
