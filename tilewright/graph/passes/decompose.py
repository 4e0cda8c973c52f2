"""Composite ops in terms of others: batch_norm, group_norm, quantize, dequantize; windows over volumes by windows over
images; short Fourier transforms as products."""

from __future__ import annotations

from functools import partial

from tilewright.dtypes import float32, float64, int32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts
from tilewright.graph.passes.fourier import short_as_product
from tilewright.graph.quantization import integer_range, wider
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import floor_divide, lift, product, simplify


def decompose(graph: Graph, kernels: KernelFacts = NO_KERNELS) -> Graph:
    """The graph without composite ops."""
    rules = {"batch_norm": [_batch_norm], "group_norm": [_group_norm], "conv": [_conv_of_volumes]}
    rules |= {"fourier": [short_as_product], "quantize": [_quantize], "dequantize": [_dequantize]}
    rules |= {op: [partial(_pool_of_tiles, kernels=kernels), _pool_of_volumes] for op in ("max_pool", "average_pool")}
    rules["matmul"] = [_transposed_left]
    rules["divide"] = [_quotient_of_sum]
    return apply_rules(graph, {**rules, "reduce_max": [_extreme_of_booleans], "reduce_min": [_extreme_of_booleans]})


def _transposed_left(node: Node, rewriter: GraphRewriter) -> Value | None:
    """transpose_a as a permute: targets whose kernels read such operands find them again (`transposed_products`)."""
    left = node.inputs[0]
    if left is None or not node.attributes["transpose_a"]:
        return None
    rows = rewriter.op("permute", [left], order=(*range(left.rank - 2), left.rank - 1, left.rank - 2))
    return rewriter.op("matmul", [rows, node.inputs[1]], **{**node.attributes, "transpose_a": False})


def _quotient_of_sum(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A sum of 16-bit floats by a count, or by another sum, in float32: their type may hold neither of the two."""
    dtype = node.output.dtype
    if not dtype.is_float or dtype.bits != 16:
        return None
    total, divisor = (_widened(item, rewriter) for item in node.inputs)
    if total is None or not rewriter.producer(total, "reduce_sum"):
        return None
    right = node.inputs[1]
    assert right is not None
    return rewriter.cast(rewriter.op("divide", [total, divisor or rewriter.cast(right, float32)]), dtype)


def _widened(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """A sum of 16-bit floats that is read once, or an integer that became one of them, as float32."""
    node = rewriter.producer(value, "reduce_sum", "cast")
    if value is None or node is None or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    if node.op == "cast":
        return rewriter.cast(source, float32) if source.dtype.is_integer else None
    if not value.dtype.is_float or value.dtype.bits != 16 or rewriter.uses(value) > 1:
        return None
    return rewriter.op("reduce_sum", [rewriter.cast(source, float32)], **node.attributes)


def _per_channel(value: Value, rank: int, rewriter: GraphRewriter) -> Value:
    """[C] as [C, 1, …] so that it broadcasts along dimension 1 of `rank`."""
    return value if rank == 2 else rewriter.op("reshape", [value], shape=(*value.shape, *[1] * (rank - 2)))


def _batch_norm(node: Node, rewriter: GraphRewriter) -> Value | None:
    """x * s + (bias - mean * s) with s = scale / sqrt(variance + epsilon); s and the sum are constants."""
    inputs = [value for value in node.inputs if value is not None]
    given = inputs[0].dtype
    wide = float32 if given.is_float and given.bits < 32 else given  # what is wrong in s is wrong for a whole channel
    x, scale, bias, mean, variance = (rewriter.cast(value, wide) for value in inputs)
    epsilon = rewriter.number(node.attributes["epsilon"], wide)
    factor = rewriter.op("divide", [scale, rewriter.op("sqrt", [rewriter.op("add", [variance, epsilon])])])
    shift = rewriter.op("subtract", [bias, rewriter.op("multiply", [mean, factor])])
    scaled = rewriter.op("multiply", [x, _per_channel(factor, x.rank, rewriter)])
    return rewriter.cast(rewriter.op("add", [scaled, _per_channel(shift, x.rank, rewriter)]), given)


def _quantize(node: Node, rewriter: GraphRewriter) -> Value | None:
    """round(x / scale) + zero point, clipped to the range of the type."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    wide = wider(x.dtype, scale.dtype)
    whole = rewriter.op("round", [rewriter.op("divide", [rewriter.cast(item, wide) for item in (x, scale)])])
    if zero is not None and rewriter.uniform(zero) != 0:
        whole = rewriter.op("add", [whole, rewriter.cast(zero, wide)])
    low, high = integer_range(node.attributes["dtype"])
    return rewriter.cast(rewriter.op("clip", [whole], low=float(low), high=float(high)), node.attributes["dtype"])


def _dequantize(node: Node, rewriter: GraphRewriter) -> Value | None:
    """(x - zero point) scale; integers of 32 bits are less their zero point in float64, which does not round them."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    wide = float64 if x.dtype.bits > 16 else float32
    whole = rewriter.cast(x, wide)
    if zero is not None and rewriter.uniform(zero) != 0:
        whole = rewriter.op("subtract", [whole, rewriter.cast(zero, wide)])
    return rewriter.op("multiply", [rewriter.cast(whole, float32), rewriter.cast(scale, float32)])


def _group_norm(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Layer norm of each group's elements as one row."""
    x, scale, bias = (*node.inputs, None, None)[:3]
    assert x is not None
    groups = node.attributes["groups"]
    row = floor_divide(product(x.shape[1:]), groups)
    rows = rewriter.op("reshape", [x], shape=(x.shape[0], groups, row))
    result = rewriter.op("layer_norm", [rows], axis=2, epsilon=node.attributes["epsilon"])
    result = rewriter.op("reshape", [result], shape=x.shape)
    if scale is not None:
        result = rewriter.op("multiply", [result, _per_channel(scale, x.rank, rewriter)])
    return result if bias is None else rewriter.op("add", [result, _per_channel(bias, x.rank, rewriter)])


def _extreme_of_booleans(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Whether any or all elements hold, found among numbers."""
    (x,) = node.inputs
    assert x is not None
    if not x.dtype.is_bool:
        return None
    numbers = rewriter.op(node.op, [rewriter.cast(x, int32)], **node.attributes)
    return rewriter.cast(numbers, x.dtype)


def _conv_of_volumes(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A convolution over [N, C, depth, height, width] as one over the images of [N * depth', C * taps, height, width]:
    the slices that a window's depth sees are channels side by side."""
    x, weight, bias = (*node.inputs, None)[:3]
    assert x is not None and weight is not None
    taps = weight.shape[2]
    if x.rank != 5 or node.attributes["layout"] != "NCHW" or not isinstance(taps, int):
        return None
    (stride, *strides), (pads, *padding), (step, *dilation) = (
        node.attributes[name] for name in ("strides", "padding", "dilation")
    )
    batch, channels, _, height, width = x.shape
    depth = node.output.shape[2]
    x = rewriter.op("permute", [x], order=(0, 2, 1, 3, 4))
    if any(pads):
        x = rewriter.op("pad", [x], pads=((0, 0), tuple(pads), (0, 0), (0, 0), (0, 0)))
    slices = []
    for tap in range(taps):
        last = simplify((lift(depth) - 1) * stride + tap * step + 1)
        seen = rewriter.op("slice", [x], axis=1, start=tap * step, stop=last, step=stride)
        slices.append(rewriter.op("reshape", [seen], shape=(batch, depth, channels, 1, height, width)))
    joined = slices[0] if taps == 1 else rewriter.op("concat", slices, axis=3)
    images = (simplify(lift(batch) * depth), simplify(lift(channels) * taps), height, width)
    image = rewriter.op("reshape", [joined], shape=images)
    features, depth_of, _, *kernel = weight.shape
    flat = rewriter.op("reshape", [weight], shape=(features, simplify(lift(depth_of) * taps), *kernel))
    options = {"strides": tuple(strides), "padding": tuple(padding), "dilation": tuple(dilation),
               "exact": node.attributes["exact"]}  # fmt: skip
    inputs = [image, flat] if bias is None else [image, flat, bias]
    result = rewriter.op("conv", inputs, groups=node.attributes["groups"], layout="NCHW", **options)
    shape = (batch, depth, *result.shape[1:])
    rewriter.remark(f"{node.op} %{node.output.name} over volumes is one over images of {taps} slices each")
    return rewriter.op("permute", [rewriter.op("reshape", [result], shape=shape)], order=(0, 2, 1, 3, 4))


def _pool_of_tiles(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    """Large pooling windows that tile each dimension become reductions: one, where they cover all but one dimension; or
    one after the other, where there are too few windows to share out."""
    (x,) = node.inputs
    assert x is not None
    options = (node.attributes[name] for name in ("kernel", "strides", "padding", "dilation"))
    shape, windows, axes = list(x.shape[:2]), list(zip(*options, strict=True)), list[int]()
    for extent, count, (kernel, stride, padding, dilation) in zip(
        x.shape[2:], node.output.shape[2:], windows, strict=True
    ):
        tiled = count == 1 or (isinstance(count, int) and stride == kernel)
        if not tiled or padding != (0, 0) or dilation != 1 or extent != count * kernel:
            return None
        axes += [len(shape) + 1] if kernel != 1 else []
        shape += [count, kernel]
    taps = product([kernel for kernel, *_ in windows])
    if node.attributes["layout"] != "NCHW" or not isinstance(taps, int) or not 0 < kernels.pooled_taps <= taps:
        return None
    between = [shape[axis] for axis in range(min(axes), max(axes)) if axis not in axes]
    steps = [axes] if all(extent == 1 for extent in between) else [[axis] for axis in reversed(axes)]
    results = product(node.output.shape)
    if len(steps) > 1 and not (isinstance(results, int) and results < kernels.pooled_windows):
        return None
    op = "reduce_max" if node.op == "max_pool" else "reduce_mean"
    rewriter.remark(f"{node.op} %{node.output.name} of {taps} elements each is a reduction")
    result = rewriter.op("reshape", [x], shape=tuple(shape))
    for step in steps:
        result = rewriter.op(op, [result], axes=tuple(step), keepdims=False)
    return rewriter.op("reshape", [result], shape=node.output.shape)


def _pool_of_volumes(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Windows over [N, C, depth, height, width]: first over the depth, then over height and width of each slice.

    Largest elements are those of parts, and means those of means, as all parts of a window are of the same size or
    the missing elements are missing in all of them.
    """
    (x,) = node.inputs
    assert x is not None
    if x.rank != 5 or node.attributes["layout"] != "NCHW":
        return None
    batch, channels, depth, height, width = x.shape
    windows = {name: node.attributes[name] for name in ("kernel", "strides", "padding", "dilation")}
    common = {name: value for name, value in node.attributes.items() if name not in windows}
    line = {name: (value[0], (0, 0) if name == "padding" else 1) for name, value in windows.items()}
    if any(line[name][0] != line[name][1] for name in line):
        columns = simplify(lift(height) * width)
        x = rewriter.op("reshape", [x], shape=(batch, channels, depth, columns))
        x = rewriter.op(node.op, [x], **line, **common)
    depth = node.output.shape[2]
    x = rewriter.op("reshape", [x], shape=(batch, simplify(lift(channels) * depth), height, width))
    image = {name: tuple(value[1:]) for name, value in windows.items()}
    still = all(image[name] == ((0, 0),) * 2 if name == "padding" else image[name] == (1, 1) for name in image)
    x = x if still else rewriter.op(node.op, [x], **image, **common)
    return rewriter.op("reshape", [x], shape=node.output.shape)
