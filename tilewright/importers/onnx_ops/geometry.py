"""Boxes and grids over images, crops, reversed sequences, determinants."""

from __future__ import annotations

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers import boxes as boxes_of_images
from tilewright.importers import matrices
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import lift, product, simplify

TABLE = RuleTable("Geometry")
rule = TABLE.rule


@rule("ReverseSequence")
def reverse_sequence(call: OnnxCall) -> Value:
    """The first elements of each sequence, of the given numbers, in reverse order."""
    x, lengths = call[0], call[1]
    call.require_rank(x, 2)
    call.require_rank(lengths, 1)
    time, batch = (call.place(call.attribute(name, default), x.rank) for name, default in _SEQUENCE_AXES)
    if isinstance(lengths.shape[0], int):
        x = must_be(call, x, [lengths.shape[0] if axis == batch else size for axis, size in enumerate(x.shape)])
    lengths = must_be(call, lengths, (x.shape[batch],))
    if time == batch or lengths.shape != (x.shape[batch],):
        raise Invalid(f"the lengths {lengths!r} do not fit the axes {time} and {batch} of {x!r}")
    line = call.reshape(call.iota(x.shape[time]), [-1 if axis == time else 1 for axis in range(x.rank)])
    counts = call.reshape(call.cast(lengths, int64), [-1 if axis == batch else 1 for axis in range(x.rank)])
    turned = call.op("subtract", call.op("subtract", counts, 1), line)
    places = call.op("where", call.op("less", line, counts), turned, line)
    return call.op("gather_elements", x, call.broadcast(places, x.shape), axis=time)


_SEQUENCE_AXES = (("time_axis", 0), ("batch_axis", 1))


@rule("CenterCropPad")
def center_crop_pad(call: OnnxCall) -> Value:
    """The middle of each dimension cut to its new size, or zeros around it; the odd element is at the end."""
    x, sizes = call[0], call.sizes(1)
    axes = call.places(call.attribute("axes") or range(x.rank), x.rank)
    if len(sizes) != len(axes):
        raise Invalid(f"there are {len(sizes)} sizes for {len(axes)} dimensions")
    pads = [(0, 0)] * x.rank
    for axis, size in zip(axes, sizes, strict=True):
        extent = x.shape[axis]
        more = simplify(lift(size) - extent)
        if not isinstance(more, int):
            raise Unsupported(f"a crop of {extent} elements to {size}", "fix both sizes")
        if more < 0:
            start = -more // 2
            x = call.slice(x, axis, start, simplify(lift(size) + start))
        pads[axis] = (more // 2, more - more // 2) if more > 0 else (0, 0)
    return call.op("pad", x, pads=pads) if any(pair != (0, 0) for pair in pads) else x


@rule("Det")
def determinant(call: OnnxCall) -> Value:
    return matrices.determinant(call, matrices.square(call, call[0]))


@rule("AffineGrid")
def affine_grid(call: OnnxCall) -> Value:
    """Places from -1 to 1 (the last dimension first) moved by matrices [N, d, d + 1]: [N, *spatial, d]."""
    theta, sizes = call.wide(call[0]), call.lengths(1)
    count = len(sizes) - 2
    theta = must_be(call, theta, (sizes[0] if sizes else 1, count, count + 1)) if theta.rank == 3 else theta
    if count not in (2, 3) or theta.shape[1:] != (count, count + 1):
        raise Invalid(f"the matrices {theta!r} do not fit the size {list(map(str, sizes))}")
    if theta.shape[0] != sizes[0]:
        raise Invalid(f"there are {theta.shape[0]} matrices for {sizes[0]} images")
    spatial, corners = sizes[2:], bool(call.attribute("align_corners", 0))
    lines = []
    for index, extent in enumerate(spatial):
        line, size = call.iota(extent, theta.dtype), call.value(extent, theta.dtype)
        if corners:
            last = call.op("maximum", call.op("subtract", size, 1.0), 1.0)
            line = call.op("subtract", call.op("divide", call.op("multiply", line, 2.0), last), 1.0)
        else:
            odd = call.op("add", call.op("multiply", line, 2.0), 1.0)
            line = call.op("subtract", call.op("divide", odd, size), 1.0)
        shaped = call.reshape(line, [-1 if axis == index else 1 for axis in range(count)] + [1])
        lines.append(call.broadcast(shaped, (*spatial, 1)))
    ones = call.full((*spatial, 1), 1.0, theta.dtype)
    places = call.reshape(call.op("concat", *lines[::-1], ones, axis=count), (product(spatial), count + 1))
    found = call.op("matmul", places, theta, transpose_b=True)
    return call.cast(call.reshape(found, (sizes[0], *spatial, count)), call[0].dtype)


# Boxes -----------------------------------------------------------------------------------------------


@rule("RoiAlign")
def roi_align(call: OnnxCall) -> Value:
    """Boxes [R, 4] of images [N, C, H, W], each resampled to one size: [R, C, rows, columns]."""
    x, boxes, images = call[0], call[1], call[2]
    call.require_rank(x, 4, 4)
    call.require_rank(boxes, 2, 2)
    rows, columns = call.positive("output_height", 1), call.positive("output_width", 1)
    ratio, scale = int(call.attribute("sampling_ratio", 0)), float(call.attribute("spatial_scale", 1.0))
    mode = call.choice("mode", "avg", "max")
    coordinates = call.choice("coordinate_transformation_mode", "half_pixel", "output_half_pixel")
    half = coordinates == "half_pixel" and call.opset >= 16
    return boxes_of_images.align(call, x, boxes, images, (rows, columns), ratio, scale, half, mode)


@rule("MaxRoiPool")
def max_roi_pool(call: OnnxCall) -> Value:
    """The largest elements of the bins of boxes [R, 5], which begin with the number of their image."""
    x, boxes = call[0], call[1]
    call.require_rank(x, 4, 4)
    shape = call.integers("pooled_shape", 2, default=0, least=1)
    scale = float(call.attribute("spatial_scale", 1.0))
    boxes = must_be(call, boxes, (boxes.shape[0], 5)) if boxes.rank == 2 else boxes
    if boxes.rank != 2 or boxes.shape[1] != 5:
        raise Invalid(f"the boxes {boxes!r} must have five numbers each")
    return boxes_of_images.pool(call, x, boxes, shape, scale)
