"""Recurrent layers whose state is quantized at every step, by weights of 8 bits as they are stored.

    recurrent(x, dequantize(w, scale, zero), initial) {cell=lstm_8bit}  ->  recurrent(x, w - zero, initial, scale)

for constants with a scale for each column, or one in all, that are int8 without their zero points.  Others become
floats, and a remark says why.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import int8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.quantization import integer_range
from tilewright.graph.rewrite import GraphRewriter, computed_constant


def narrow_recurrent(graph: Graph) -> Graph:
    """The graph with such layers."""
    return GraphRewriter(graph).run({"recurrent": [_of_integers]})


def _of_integers(node: Node, rewriter: GraphRewriter) -> Value | None:
    x, weight, initial, _, lengths = [*node.inputs, None, None][:5]
    source = rewriter.producer(weight, "dequantize")
    if node.attributes["cell"] != "lstm_8bit" or source is None or weight is None:
        return None
    found = _integers(source, weight, rewriter)
    if isinstance(found, str):
        rewriter.advise(f"the quantized weights of recurrent %{node.output.name} become floats: {found}")
        return None
    numbers, scales = found
    inputs = [x, rewriter.new_constant(numbers, "weights"), initial, rewriter.new_constant(scales, "scales"), lengths]
    return rewriter.op("recurrent", inputs, **node.attributes)


def _integers(source: Node, weight: Value, rewriter: GraphRewriter) -> tuple[np.ndarray, np.ndarray] | str:
    """The weights as int8 [directions, depth, columns], and scales [directions, 1, columns]; or why there are none."""
    arrays = [computed_constant(item, rewriter) for item in source.inputs]
    if any(array is None for array in arrays):
        return "they, their scales or zero points are no constants"
    codes, scale, zero = (*arrays, np.zeros((), np.int8))[:3]
    assert codes is not None and scale is not None and zero is not None
    if any(array.ndim == weight.rank and array.shape[1] != 1 for array in (scale, zero)):
        return "their scales or zero points differ along the depth"
    whole = codes.astype(np.int64) - zero
    low, high = integer_range(int8)
    if whole.min(initial=0) < low or whole.max(initial=0) > high:
        return "without their zero points they are no 8-bit integers; quantize weights symmetrically"
    directions, _, columns = codes.shape
    scales = np.broadcast_to(scale, (directions, 1, columns)).astype(weight.dtype.numpy)
    return whole.astype(np.int8), np.ascontiguousarray(scales)
