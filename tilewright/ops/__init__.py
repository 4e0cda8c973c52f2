"""Operations on arrays of a GPU: matrix products, attention, convolutions, rows, elementwise functions, reductions.

    from tilewright import ops
    y = ops.matmul(x, weight.T, bias=bias, activation="gelu")
    print(ops.explain_matmul(x, weight.T))

Arrays are PyTorch's, CuPy's, or `DeviceArray`; work goes to the library's current stream.  Names are imported when
they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.ops.attentions import attention as attention
    from tilewright.ops.attentions import decode_attention as decode_attention
    from tilewright.ops.convolutions import conv2d as conv2d
    from tilewright.ops.dequantized import PackedWeights as PackedWeights
    from tilewright.ops.dequantized import dequantized_matmul as dequantized_matmul
    from tilewright.ops.dequantized import pack_weights as pack_weights
    from tilewright.ops.functions import elementwise as elementwise
    from tilewright.ops.grouped import grouped_matmul as grouped_matmul
    from tilewright.ops.normed import rms_norm_matmul as rms_norm_matmul
    from tilewright.ops.paged import paged_attention as paged_attention
    from tilewright.ops.products import MatmulPlan as MatmulPlan
    from tilewright.ops.products import explain_matmul as explain_matmul
    from tilewright.ops.products import interleave_gate as interleave_gate
    from tilewright.ops.products import matmul as matmul
    from tilewright.ops.products import plan_matmul as plan_matmul
    from tilewright.ops.reductions import reduce as reduce
    from tilewright.ops.rows import layer_norm as layer_norm
    from tilewright.ops.rows import rms_norm as rms_norm
    from tilewright.ops.rows import softmax as softmax

_EXPORTS = {
    "MatmulPlan": "products",
    "PackedWeights": "dequantized",
    "attention": "attentions",
    "conv2d": "convolutions",
    "decode_attention": "attentions",
    "dequantized_matmul": "dequantized",
    "elementwise": "functions",
    "explain_matmul": "products",
    "grouped_matmul": "grouped",
    "interleave_gate": "products",
    "layer_norm": "rows",
    "matmul": "products",
    "pack_weights": "dequantized",
    "paged_attention": "paged",
    "plan_matmul": "products",
    "reduce": "reductions",
    "rms_norm": "rows",
    "rms_norm_matmul": "normed",
    "softmax": "rows",
}
__all__ = [
    "MatmulPlan", "PackedWeights", "attention", "conv2d", "decode_attention", "dequantized_matmul", "elementwise",
    "explain_matmul", "grouped_matmul", "interleave_gate", "layer_norm", "matmul", "pack_weights", "paged_attention",
    "plan_matmul", "reduce", "rms_norm", "rms_norm_matmul", "softmax",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f"tilewright.ops.{_EXPORTS[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
