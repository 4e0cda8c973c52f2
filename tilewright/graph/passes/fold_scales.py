"""Scales and shifts by constants after a convolution or matmul go into its weights.

    conv(x, w, b) * s   -> conv(x, w * s, b * s)       s has one entry for each output channel
    conv(x, w)    + t   -> conv(x, w, t)
    matmul(x, w)  * s   -> matmul(x, w * s)            s has one entry for each column
Batch normalisation, decomposed, is the first two; that of 16-bit convolutions is in float32, to which `conv` above may
be cast.  New weights are computed in float64 and rounded once; a new bias is float32 at least, which costs nothing
where it is added and would be wrong for a whole channel otherwise.  What is wrong in weights is wrong for all pixels,
too: those of depthwise convolutions in 16 bits, and all in bfloat16, take no scale, which stays after them in float32
(averages over the pixels of two layers in bfloat16 were off by 4.6 times what PyTorch's are, and are by .4).  Doing so
for all makes MobileNet-V3 5 % slower on an H200, ResNet-50 2 %, with errors of .82 and .72: float16 does take it.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import bfloat16, float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.inference import channel_axis
from tilewright.graph.rewrite import GraphRewriter, apply_rules


def fold_scales(graph: Graph) -> Graph:
    """Move constant factors and summands of contractions into their constant operands."""
    return apply_rules(graph, {"multiply": [_scale_conv, _scale_matmul], "add": [_shift_conv]})


def _channels(value: Value | None, conv: Node, rewriter: GraphRewriter) -> np.ndarray | None:
    """The constant as [channels] float64, if it varies along the convolution's channels only; it may be a number that
    is repeated at run time, as where all channels are scaled alike."""
    data = rewriter.constant(value)
    source = value
    while data is None and (repeated := rewriter.producer(source, "broadcast_to", "reshape")) is not None:
        source = repeated.inputs[0]
        number = rewriter.constant(source)
        data = number.reshape(()) if number is not None and number.size == 1 else None
    if data is None or data.ndim > conv.output.rank:
        return None
    shape = (1,) * (conv.output.rank - data.ndim) + data.shape
    axis = channel_axis(conv.output.rank, conv.attributes["layout"])
    if any(extent != 1 for index, extent in enumerate(shape) if index != axis):
        return None
    channels = conv.output.shape[axis]
    return np.broadcast_to(data.astype(np.float64).reshape(-1), (channels,)) if isinstance(channels, int) else None


def _match(node: Node, op: str, rewriter: GraphRewriter) -> tuple[Node, Value | None] | None:
    """(the `op` node that only this node reads, perhaps through a cast, the other operand)."""
    for index in (0, 1):
        source = rewriter.producer(node.inputs[index], op, "cast")
        if source is not None and source.op == "cast" and rewriter.uses(source.output) == 1:
            given = source.inputs[0]
            widens = given is not None and source.output.dtype.is_float and source.output.dtype.bits > given.dtype.bits
            source = rewriter.producer(given, op) if widens else None
        if source is not None and source.op == op and rewriter.uses(source.output) == 1:
            if source.attributes["dtype"] is not None:
                return None  # sums of integers, which no weights of floats give
            if source.output.shape == node.output.shape:
                return source, node.inputs[1 - index]
    return None


def _rounded(data: np.ndarray, like: Value, rewriter: GraphRewriter) -> Value:
    return rewriter.new_constant(data.astype(like.dtype.numpy), like.name)


def _bias(data: np.ndarray, image: Value, rewriter: GraphRewriter) -> Value:
    dtype = float32 if image.dtype.bits < 32 else image.dtype
    return rewriter.new_constant(data.astype(dtype.numpy), "bias")


def _scale_conv(node: Node, rewriter: GraphRewriter) -> Value | None:
    found = _match(node, "conv", rewriter)
    if found is None:
        return None
    conv, factor = found
    image, weight, bias = (*conv.inputs, None)[:3]
    scale, data = _channels(factor, conv, rewriter), rewriter.constant(weight)
    if scale is None or data is None or weight is None or image is None:
        return None
    if bias is not None and rewriter.constant(bias) is None:
        return None
    depthwise = weight.shape[1] == 1 and conv.attributes["groups"] > 1
    if weight.dtype == bfloat16 or (weight.dtype.bits < 32 and depthwise):
        return None
    scaled = data.astype(np.float64) * scale.reshape(-1, *[1] * (data.ndim - 1))
    inputs = [image, _rounded(scaled, weight, rewriter)]
    if bias is not None:
        inputs.append(_bias(rewriter.constants[bias].astype(np.float64) * scale, image, rewriter))
    rewriter.remark(f"the scale after conv %{conv.output.name} is in its weights")
    return rewriter.cast(rewriter.op("conv", inputs, **conv.attributes), node.output.dtype)


def _shift_conv(node: Node, rewriter: GraphRewriter) -> Value | None:
    found = _match(node, "conv", rewriter)
    if found is None:
        return None
    conv, summand = found
    image, weight, bias = (*conv.inputs, None)[:3]
    shift = _channels(summand, conv, rewriter)
    if shift is None or image is None or (bias is not None and rewriter.constant(bias) is None):
        return None
    if bias is not None:
        shift = shift + rewriter.constants[bias].astype(np.float64)
    inputs = [image, weight, _bias(shift, image, rewriter)]
    return rewriter.cast(rewriter.op("conv", inputs, **conv.attributes), node.output.dtype)


def _scale_matmul(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Only for a vector of factors: one number is left to the epilogue or to attention's scale."""
    found = _match(node, "matmul", rewriter)
    if found is None:
        return None
    product, factor = found
    weight = product.inputs[1]
    data, scale = rewriter.constant(weight), rewriter.constant(factor)
    if data is None or scale is None or weight is None or data.ndim != 2 or scale.size == 1:
        return None
    if scale.shape[-1] != product.output.shape[-1] or scale.size != scale.shape[-1]:
        return None
    row = scale.astype(np.float64).reshape(-1)
    scaled = data.astype(np.float64) * (row[:, None] if product.attributes["transpose_b"] else row)
    inputs = [product.inputs[0], _rounded(scaled, weight, rewriter)]
    return rewriter.cast(rewriter.op("matmul", inputs, **product.attributes), node.output.dtype)
