"""Shape and element-type inference of the graph ops: one small rule for each family.

A rule takes the inputs (`Value` or None for a missing optional one) and the normalised attributes
and returns the (dtype, shape) of each output.  Sizes may be symbolic.  A rule raises `ShapeError`
for inputs that do not fit together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.dtypes import BY_NAME, DType, float32, int1, int32, int64
from tilewright.errors import ShapeError
from tilewright.graph.core import Value
from tilewright.symbolic import Size, ceil_divide, floor_divide, lift, lower_bound, minimum, product, simplify

Shape = tuple[Size, ...]
Types = list[tuple[DType, Shape]]
Inputs = Sequence[Value | None]
Attributes = Mapping[str, Any]

MOST_DIMENSIONS = 32
MOST_TENSOR_ELEMENTS = 1 << 38  # of one tensor


def shape_text(shape: Sequence[Size]) -> str:
    """A shape as in the printed graph: ``[batch, 8]``."""
    return f"[{', '.join(map(str, shape))}]"


def check_shape(shape: Sequence[Size]) -> None:
    """Raise `ShapeError` for a shape that no tensor can have: a negative size, or more than the bounds above."""
    if len(shape) > MOST_DIMENSIONS:
        raise ShapeError(f"a tensor of {len(shape)} dimensions; at most {MOST_DIMENSIONS} are supported")
    least = 1
    for extent in shape:
        if isinstance(extent, int) and extent < 0:
            raise ShapeError(f"the result would have the negative size {extent} in {shape_text(shape)}")
        least *= max(lower_bound(extent), 1)  # of an empty tensor, without what makes it empty
    if least > MOST_TENSOR_ELEMENTS:
        raise ShapeError(
            f"a tensor {shape_text(shape)} of {least} elements; at most {MOST_TENSOR_ELEMENTS} are supported"
        )


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The NumPy broadcast of shapes; symbolic extents must be equal or meet a 1."""
    rank = max(map(len, shapes), default=0)
    result: list[Size] = []
    for position in range(-rank, 0):
        extents = [shape[position] for shape in shapes if len(shape) >= -position]
        distinct: list[Size] = []
        for extent in extents:
            if extent != 1 and extent not in distinct:
                distinct.append(extent)
        if len(distinct) > 1:
            raise ShapeError(f"shapes {' and '.join(map(shape_text, shapes))} do not broadcast together")
        result.append(distinct[0] if distinct else 1)
    return tuple(result)


def value(inputs: Inputs, index: int) -> Value:
    """The input at `index`, which must be there."""
    found = inputs[index] if index < len(inputs) else None
    if found is None:
        raise ShapeError(f"input {index} is missing")
    return found


def optional(inputs: Inputs, index: int) -> Value | None:
    """The input at `index`, or None."""
    return inputs[index] if index < len(inputs) else None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ShapeError(message)


def _same_dtype(inputs: Inputs) -> DType:
    dtypes = {item.dtype for item in inputs if item is not None}
    _require(len(dtypes) == 1, f"element types differ: {', '.join(sorted(map(str, dtypes)))}; insert a cast")
    return dtypes.pop()


def _floats(inputs: Inputs) -> DType:
    dtype = _same_dtype(inputs)
    _require(dtype.is_float, f"needs floating-point inputs, got {dtype}")
    return dtype


# Elementwise ---------------------------------------------------------------------------------------


def unary(inputs: Inputs, attributes: Attributes) -> Types:
    """Same shape, same element type."""
    return [(value(inputs, 0).dtype, value(inputs, 0).shape)]


def unary_float(inputs: Inputs, attributes: Attributes) -> Types:
    """Same shape, floating point only."""
    return [(_floats(inputs[:1]), value(inputs, 0).shape)]


def predicate(inputs: Inputs, attributes: Attributes) -> Types:
    """Same shape, boolean."""
    return [(int1, value(inputs, 0).shape)]


def logical_not(inputs: Inputs, attributes: Attributes) -> Types:
    _require(value(inputs, 0).dtype.is_bool, f"needs a boolean input, got {value(inputs, 0).dtype}")
    return predicate(inputs, attributes)


def cast(inputs: Inputs, attributes: Attributes) -> Types:
    return [(attributes["dtype"], value(inputs, 0).shape)]


def bitcast(inputs: Inputs, attributes: Attributes) -> Types:
    source, target = (BY_NAME.get(attributes[name]) for name in ("of", "to"))
    _require(source is not None and target is not None, f"{attributes} are no names of element types")
    assert source is not None and target is not None
    _require(value(inputs, 0).dtype == source, f"{value(inputs, 0)!r} is not {source}")
    _require(source.itemsize == target.itemsize, f"elements of {source} and {target} have different sizes")
    return [(target, value(inputs, 0).shape)]


def binary(inputs: Inputs, attributes: Attributes) -> Types:
    return [(_same_dtype(inputs), broadcast_shapes(value(inputs, 0).shape, value(inputs, 1).shape))]


def arithmetic(inputs: Inputs, attributes: Attributes) -> Types:
    """As `binary`; a float32 without dimensions may be combined with 16-bit floats, whose type the result has."""
    kinds = [item.dtype for item in inputs if item is not None and not (item.rank == 0 and item.dtype == float32)]
    if len(kinds) == 1 and kinds[0].is_float and kinds[0].bits == 16:
        return [(kinds[0], broadcast_shapes(value(inputs, 0).shape, value(inputs, 1).shape))]
    return binary(inputs, attributes)


def binary_float(inputs: Inputs, attributes: Attributes) -> Types:
    _floats(inputs)
    return binary(inputs, attributes)


def integers(inputs: Inputs, attributes: Attributes) -> Types:
    """One integer, or two that broadcast."""
    dtype = _same_dtype(inputs)
    _require(dtype.is_integer and not dtype.is_bool, f"needs integers, got {dtype}")
    return unary(inputs, attributes) if len(inputs) == 1 else binary(inputs, attributes)


def compare(inputs: Inputs, attributes: Attributes) -> Types:
    return [(int1, binary(inputs, attributes)[0][1])]


def logical(inputs: Inputs, attributes: Attributes) -> Types:
    _require(_same_dtype(inputs).is_bool, "needs boolean inputs")
    return binary(inputs, attributes)


def where(inputs: Inputs, attributes: Attributes) -> Types:
    condition = value(inputs, 0)
    _require(condition.dtype.is_bool, f"the condition is {condition.dtype}, not boolean")
    shapes = [value(inputs, index).shape for index in range(3)]
    return [(_same_dtype(inputs[1:]), broadcast_shapes(*shapes))]


# Contractions and attention ------------------------------------------------------------------------


def _sum_type(inputs: Inputs, attributes: Attributes, float_bits: tuple[int, ...] = (8,)) -> DType | None:
    """int32 or float32 where a product is to give it, of floats of so many bits."""
    dtype: DType | None = attributes.get("dtype")
    if dtype is None:
        return None
    types = [item.dtype for item in inputs if item is not None]
    integers = all(each.is_integer and each.bits == 8 for each in types)
    floats = all(each.is_float and each.bits in float_bits for each in types)
    bits = " or ".join(map(str, float_bits))
    _require(
        (integers and dtype == int32) or (floats and dtype == float32),
        f"8-bit integers give {int32} and {bits}-bit floats {float32}; others give no other type",
    )
    return dtype


def matmul(inputs: Inputs, attributes: Attributes) -> Types:
    left, right = value(inputs, 0), value(inputs, 1)
    dtype = _sum_type(inputs, attributes, (8, 16))
    if dtype is None:
        dtype = _floats(inputs) if left.dtype.is_float else _same_dtype(inputs)
    _require(left.rank >= 2 and right.rank >= 2, f"needs rank 2 or more, got {left!r} and {right!r}")
    depth, columns = right.shape[-2:] if not attributes["transpose_b"] else right.shape[:-3:-1]
    rows, inner = left.shape[-2:] if not attributes["transpose_a"] else left.shape[:-3:-1]
    _require(inner == depth, f"inner sizes differ: {left!r} and {right!r}")
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return [(dtype, (*batch, rows, columns))]


def grouped_matmul(inputs: Inputs, attributes: Attributes) -> Types:
    rows, matrices, ends = (value(inputs, index) for index in range(3))
    dtype = _floats([rows, matrices])
    _require(rows.rank == 2 and matrices.rank == 3, f"needs ranks 2 and 3, got {rows!r} and {matrices!r}")
    depth, columns = matrices.shape[:0:-1] if attributes["transpose_b"] else matrices.shape[1:]
    _require(rows.shape[1] == depth, f"inner sizes differ: {rows!r} and {matrices!r}")
    _require(ends.dtype.is_integer and not ends.dtype.is_bool, f"the ends are {ends.dtype}, not integers")
    _require(ends.shape == matrices.shape[:1], f"{ends!r} has not one number for each matrix")
    return [(dtype, (rows.shape[0], columns))]


def _check_windows(attributes: Attributes, kernel: Sequence[Size], dimensions: int) -> None:
    """Raise `ShapeError` unless every size of a sliding window is at least 1, and no padding negative."""
    for name in ("strides", "padding", "dilation"):
        _require(len(attributes[name]) == dimensions, f"{name} needs {dimensions} entries, got {attributes[name]}")
    _require(len(kernel) == dimensions, f"kernel needs {dimensions} entries, got {tuple(kernel)}")
    for name, sizes in (("kernel", kernel), ("strides", attributes["strides"]), ("dilation", attributes["dilation"])):
        _require(all(not isinstance(size, int) or size >= 1 for size in sizes), f"{name} {tuple(sizes)} is below 1")
    padding = attributes["padding"]
    _require(all(low >= 0 and high >= 0 for low, high in padding), f"padding {padding} is negative")


def window_extent(extent: Size, kernel: int, stride: int, padding: Sequence[int], dilation: int) -> Size:
    """How many windows fit into one padded dimension."""
    reach = dilation * (kernel - 1) + 1
    return simplify(lift(floor_divide(lift(extent) + (padding[0] + padding[1] - reach), stride)) + 1)


def spatial_axes(rank: int, layout: str) -> range:
    """The positions of the spatial dimensions of an image of `rank` dimensions."""
    return range(1, rank - 1) if layout == "NHWC" else range(2, rank)


def channel_axis(rank: int, layout: str) -> int:
    """The position of the channels: the last for NHWC, 1 for NCHW."""
    return rank - 1 if layout == "NHWC" else 1


def conv(inputs: Inputs, attributes: Attributes) -> Types:
    dtype = _sum_type(inputs, attributes) or _floats(inputs[:2])
    image, weight, bias = value(inputs, 0), value(inputs, 1), optional(inputs, 2)
    rank, layout = image.rank, attributes["layout"]
    _require(rank >= 3 and weight.rank == rank, f"image {image!r} and weight {weight!r} need the same rank >= 3")
    channels, groups = image.shape[channel_axis(rank, layout)], attributes["groups"]
    _require(groups >= 1, f"{groups} groups")
    _require(
        channels == simplify(lift(weight.shape[1]) * groups),
        f"{channels} channels are not groups x weight's channels: {groups} x {weight.shape[1]}",
    )
    features = weight.shape[0]
    if isinstance(features, int):
        _require(features % groups == 0, f"{features} output channels are not divisible by {groups} groups")
    if bias is not None:
        _require(bias.shape == (features,), f"bias {bias!r} does not have {features} elements")
        _require(bias.dtype in (dtype, float32), f"bias {bias!r} is neither {dtype} nor float32")
    _check_windows(attributes, weight.shape[2:], rank - 2)
    spatial = [
        window_extent(image.shape[axis], weight.shape[2 + index], stride, padding, dilation)  # type: ignore[arg-type]
        for index, (axis, stride, padding, dilation) in enumerate(
            zip(
                spatial_axes(rank, layout),
                attributes["strides"],
                attributes["padding"],
                attributes["dilation"],
                strict=True,
            )
        )
    ]
    shape = (image.shape[0], *spatial, features) if layout == "NHWC" else (image.shape[0], features, *spatial)
    return [(dtype, shape)]


def attention(inputs: Inputs, attributes: Attributes) -> Types:
    query, key, values = (value(inputs, index) for index in range(3))
    bias, lengths = optional(inputs, 3), optional(inputs, 4)
    assert query is not None and key is not None and values is not None
    dtype = _floats(inputs[:3])
    _require(query.rank == key.rank == values.rank == 4, f"needs rank 4: {query!r}, {key!r}, {values!r}")
    batch, heads, rows, width = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    _require(key.shape[3] == width, f"head sizes differ: {query!r} and {key!r}")
    _require(key.shape[0] == batch and values.shape[0] == batch, "batch sizes differ")
    _require(values.shape[1] == key_heads and values.shape[2] == keys, f"{key!r} and {values!r} do not match")
    if isinstance(heads, int) and isinstance(key_heads, int):
        _require(heads % key_heads == 0, f"{key_heads} key heads do not divide {heads} heads")
    if bias is not None:
        _require(bias.dtype == dtype, f"the bias is {bias.dtype}, not {dtype}; turn boolean masks into additive ones")
        scores = (batch, heads, rows, keys)
        _require(broadcast_shapes(scores, bias.shape) == scores, f"bias {bias!r} does not fit {shape_text(scores)}")
    if lengths is not None:
        _require(lengths.dtype == int32 and lengths.shape == (batch,), f"lengths are {lengths!r}, not i32[{batch}]")
    window, softcap = attributes["window"], attributes["softcap"]
    _require(isinstance(window, int) and window >= 0, f"window is {window!r}, expected a number of keys from 0")
    _require(attributes["causal"] or not window, "a window is of causal attention")
    _require(0 <= softcap < float("inf"), f"softcap is {softcap!r}, expected a finite number from 0")
    return [(dtype, (batch, heads, rows, values.shape[3]))]


# Reductions and row ops ----------------------------------------------------------------------------


def _reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def reduce(inputs: Inputs, attributes: Attributes) -> Types:
    source = value(inputs, 0)
    return [(source.dtype, _reduced(source.shape, attributes["axes"], attributes["keepdims"]))]


def reduce_mean(inputs: Inputs, attributes: Attributes) -> Types:
    _floats(inputs)
    return reduce(inputs, attributes)


def arg_reduce(inputs: Inputs, attributes: Attributes) -> Types:
    return [(int64, _reduced(value(inputs, 0).shape, (attributes["axis"],), attributes["keepdims"]))]


def norm(inputs: Inputs, attributes: Attributes) -> Types:
    """layer_norm and rms_norm: scale and bias cover the normalised dimensions."""
    source, dtype = value(inputs, 0), _floats(inputs)
    covered = source.shape[attributes["axis"] :]
    for item in inputs[1:]:
        _require(item is None or item.shape == covered, f"{item!r} does not cover {shape_text(covered)}")
    return [(dtype, source.shape)]


def channel_norm(inputs: Inputs, attributes: Attributes) -> Types:
    """batch_norm and group_norm: every parameter has one entry for each channel (dimension 1)."""
    source, dtype = value(inputs, 0), _floats(inputs)
    _require(source.rank >= 2, f"needs rank 2 or more, got {source!r}")
    for item in inputs[1:]:
        _require(item is None or item.shape == source.shape[1:2], f"{item!r} is not one number for each channel")
    groups, channels = attributes.get("groups", 1), source.shape[1]
    _require(groups >= 1, f"{groups} groups")
    _require(not isinstance(channels, int) or channels % groups == 0, f"{groups} groups do not divide {channels}")
    return [(dtype, source.shape)]


# Movement ------------------------------------------------------------------------------------------


def reshape(inputs: Inputs, attributes: Attributes) -> Types:
    source, shape = value(inputs, 0), attributes["shape"]
    surplus = simplify(lift(product(source.shape)) - product(shape))
    # A symbolic surplus cannot be decided here (floor divisions); the reference checks it at run time.
    _require(surplus == 0 or not isinstance(surplus, int), f"{source!r} has not the elements of {shape_text(shape)}")
    return [(source.dtype, shape)]


def permute(inputs: Inputs, attributes: Attributes) -> Types:
    source, order = value(inputs, 0), attributes["order"]
    _require(sorted(order) == list(range(source.rank)), f"order {order} does not fit {source!r}")
    return [(source.dtype, tuple(source.shape[axis] for axis in order))]


def broadcast_to(inputs: Inputs, attributes: Attributes) -> Types:
    source, shape = value(inputs, 0), attributes["shape"]
    _require(broadcast_shapes(source.shape, shape) == shape, f"{source!r} does not broadcast to {shape_text(shape)}")
    return [(source.dtype, shape)]


def slice_extent(start: Size, stop: Size, step: int) -> Size:
    """How many elements `start`, `start + step`, … lie before `stop`."""
    distance = lift(stop) - start if step > 0 else lift(start) - stop
    return ceil_divide(simplify(distance), abs(step))


def slice_(inputs: Inputs, attributes: Attributes) -> Types:
    source, axis = value(inputs, 0), attributes["axis"]
    extent = slice_extent(attributes["start"], attributes["stop"], attributes["step"])
    _require(not isinstance(extent, int) or extent >= 0, f"empty slice of {source!r}")
    return [(source.dtype, (*source.shape[:axis], extent, *source.shape[axis + 1 :]))]


def concat(inputs: Inputs, attributes: Attributes) -> Types:
    axis, first = attributes["axis"], value(inputs, 0)
    total: Size = 0
    for item in inputs:
        assert item is not None
        fits = item.rank == first.rank and all(
            a == b for index, (a, b) in enumerate(zip(item.shape, first.shape, strict=True)) if index != axis
        )
        _require(fits, f"{item!r} and {first!r} differ outside axis {axis}")
        total = simplify(lift(total) + item.shape[axis])
    return [(_same_dtype(inputs), (*first.shape[:axis], total, *first.shape[axis + 1 :]))]


def _indices(inputs: Inputs) -> Value:
    indices = value(inputs, 1)
    _require(indices.dtype.is_integer and not indices.dtype.is_bool, f"indices are {indices.dtype}, not integers")
    return indices


def gather(inputs: Inputs, attributes: Attributes) -> Types:
    source, indices, axis = value(inputs, 0), _indices(inputs), attributes["axis"]
    return [(source.dtype, (*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :]))]


def frames(inputs: Inputs, attributes: Attributes) -> Types:
    source = value(inputs, 0)
    axis, count, length, step = (attributes[key] for key in ("axis", "count", "length", "step"))
    least = lower_bound(simplify(lift(source.shape[axis]) - (lift(count) - 1) * step - length))
    exact = isinstance(count, int) and isinstance(source.shape[axis], int) and isinstance(length, int)
    _require(not exact or count == 0 or least >= 0, f"{count} pieces of {length}, {step} apart, leave {source!r}")
    _require(lower_bound(length) >= 1 and step >= 1, f"pieces of {length}, {step} apart")
    return [(source.dtype, (*source.shape[:axis], count, length, *source.shape[axis + 1 :]))]


def gather_elements(inputs: Inputs, attributes: Attributes) -> Types:
    source, indices = value(inputs, 0), _indices(inputs)
    _require(source.rank == indices.rank, f"{source!r} and {indices!r} need the same rank")
    return [(source.dtype, indices.shape)]


def scatter_update(inputs: Inputs, attributes: Attributes) -> Types:
    target, indices, updates, axis = value(inputs, 0), _indices(inputs), value(inputs, 2), attributes["axis"]
    expected = (*target.shape[:axis], *indices.shape, *target.shape[axis + 1 :])
    _require(indices.rank == 1, f"indices {indices!r} need rank 1")
    _require(updates.shape == expected, f"updates {updates!r} are not {shape_text(expected)}")
    return [(_same_dtype([target, updates]), target.shape)]


def pad(inputs: Inputs, attributes: Attributes) -> Types:
    source, pads = value(inputs, 0), attributes["pads"]
    _require(len(pads) == source.rank, f"pads needs {source.rank} pairs, got {pads}")
    shape = tuple(simplify(lift(n) + low + high) for n, (low, high) in zip(source.shape, pads, strict=True))
    return [(source.dtype, shape)]


# Sources and pools ---------------------------------------------------------------------------------


def source(inputs: Inputs, attributes: Attributes) -> Types:
    """iota and full: shape and element type are attributes."""
    return [(attributes["dtype"], attributes["shape"])]


def dimension(inputs: Inputs, attributes: Attributes) -> Types:
    return [(int64, ())]


def pool(inputs: Inputs, attributes: Attributes) -> Types:
    image, layout = value(inputs, 0), attributes["layout"]
    axes = spatial_axes(image.rank, layout)
    _require(image.rank >= 3, f"needs an image of rank 3 or more, got {image!r}")
    _check_windows(attributes, attributes["kernel"], len(axes))
    shape = list(image.shape)
    for index, axis in enumerate(axes):
        shape[axis] = pool_extent(image.shape[axis], index, attributes)
    return [(image.dtype, tuple(shape))]


def pool_extent(extent: Size, index: int, attributes: Attributes) -> Size:
    """Windows along spatial dimension `index`; with `ceil_mode` a last partial one that starts inside."""
    kernel, stride = attributes["kernel"][index], attributes["strides"][index]
    padding, dilation = attributes["padding"][index], attributes["dilation"][index]
    if not attributes["ceil_mode"]:
        return window_extent(extent, kernel, stride, padding, dilation)
    reach = dilation * (kernel - 1) + 1
    windows = lift(ceil_divide(lift(extent) + (padding[0] + padding[1] - reach), stride)) + 1
    return minimum(simplify(windows), ceil_divide(lift(extent) + padding[0], stride))
