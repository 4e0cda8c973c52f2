"""Convolutions along one dimension to one or a few channels: neighbouring pixels of the result become channels.

    conv(x, w [O, C, K], stride s)  ->  conv(x, w' [B O, C, K + (B - 1) s], stride B s), B pixels side by side

where w' has the taps of each channel B times, each s further on, and zeros around them.  Filters of audio (resampling,
mel banks) would leave most lanes of a vector without a channel otherwise; the zeros cost less where the taps are many.
Like Winograd's way, this lets an infinite or NaN pixel make NaN of neighbours whose own window is next to it.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import lift, simplify

_GAIN = 2.0  # how many times as fast it must be


def fold_pixels(graph: Graph, kernels: KernelFacts = NO_KERNELS) -> Graph:
    """The graph with the pixels of such convolutions as channels, as many as kernels compute together."""
    return apply_rules(graph, {"conv": [partial(_conv, lanes=kernels.channels)]})


def _conv(node: Node, rewriter: GraphRewriter, lanes: int) -> Value | None:
    x, weight, bias = (*node.inputs, None)[:3]
    assert x is not None and weight is not None
    taps, options = rewriter.constant(weight), node.attributes
    moves = [
        (extent, step, pads) != (1, 1, (0, 0))
        for extent, step, pads in zip(weight.shape[2:], options["strides"], map(tuple, options["padding"]), strict=True)
    ]
    if (
        options["dtype"] is not None
        or taps is None
        or any(moves[:-1])
        or options["groups"] != 1
        or options["dilation"][-1] != 1
    ):
        return None
    shift = rewriter.constant(bias)
    if bias is not None and shift is None:
        return None
    if options["layout"] != "NCHW":
        return None
    features, length, stride = taps.shape[0], taps.shape[-1], options["strides"][-1]
    count = lanes // features
    long = length + (count - 1) * stride
    if count < 2 or lanes * length < _GAIN * features * long:
        return None
    wide = np.zeros((count, *taps.shape[:-1], long), taps.dtype)
    for place in range(count):
        wide[place, ..., place * stride : place * stride + length] = taps
    low, high = options["padding"][-1]
    padding = (*options["padding"][:-1], (low, high + (count - 1) * stride))
    strides = (*options["strides"][:-1], count * stride)
    inputs = [x, rewriter.new_constant(wide.reshape(-1, *wide.shape[2:]), weight.name)]
    if bias is not None and shift is not None:
        inputs.append(rewriter.new_constant(np.tile(shift, count), bias.name))
    found = rewriter.op("conv", inputs, **{**options, "strides": strides, "padding": padding})
    # [N, B O, …, P / B] as [N, O, …, P]: pixels that no window of the image has are left out.
    batch, rows, columns = found.shape[0], found.shape[2:-1], found.shape[-1]
    found = rewriter.op("reshape", [found], shape=(batch, count, features, *rows, columns))
    order = (0, 2, *range(3, found.rank), 1)
    found = rewriter.op("permute", [found], order=order)
    whole = simplify(lift(columns) * count)
    found = rewriter.op("reshape", [found], shape=(batch, features, *rows, whole))
    rewriter.remark(f"{node.op} %{node.output.name}: {count} pixels of the result are channels of one")
    return rewriter.op("slice", [found], axis=found.rank - 1, start=0, stop=node.output.shape[-1])
