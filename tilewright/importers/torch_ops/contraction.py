"""Matrix products, linear layers, convolutions, attention."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.core import Value
from tilewright.importers.emitter import Number
from tilewright.importers.images import transposed_convolution
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import Call

TABLE = RuleTable("Products, convolutions, attention", "aten.")
rule = TABLE.rule


@rule("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def matmul(call: Call, left: Value, right: Value) -> Value:
    if left.rank == right.rank == 1:
        return call.reshape(call.matmul(call.unsqueeze(left, 0), call.unsqueeze(right, 1)), ())
    return call.matmul(left, right)


def _scaled(call: Call, x: Value, factor: Number) -> Value:
    return x if factor == 1 else call.op("multiply", x, factor)


@rule("addmm.default", "baddbmm.default", "addmv.default")
def add_matmul(call: Call, bias: Value, left: Value, right: Value, beta: Number = 1, alpha: Number = 1) -> Value:
    product = _scaled(call, call.matmul(left, right), alpha)
    return product if beta == 0 else call.op("add", product, _scaled(call, bias, beta))


@rule("linear.default")
def linear(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if x.rank == 1:
        return call.reshape(linear(call, call.unsqueeze(x, 0), weight, bias), call.shape)
    product = call.op("matmul", x, call.unsqueeze(weight, 0) if weight.rank == 1 else weight, transpose_b=True)
    product = call.reshape(product, call.shape)
    return product if bias is None else call.op("add", product, bias)


@rule("convolution.default")
def convolution(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    count = weight.rank - 2
    strides, pads, steps, extra = (_each(item, count) for item in (stride, padding, dilation, output_padding))
    batched = x if x.rank == weight.rank else call.unsqueeze(x, 0)
    if transposed:
        crops = [(pad, pad) for pad in pads]
        result = transposed_convolution(call, batched, weight, bias, strides, crops, steps, extra, groups)
    else:
        both = [(pad, pad) for pad in pads]
        result = call.op("conv", batched, weight, bias, strides=strides, padding=both, dilation=steps, groups=groups)
    return call.reshape(result, call.shape)


def _each(item: Sequence[int], count: int) -> list[int]:
    return list(item) * count if len(item) == 1 else list(item)


@rule("scaled_dot_product_attention.default")
def attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p:
        raise Unsupported("attention with dropout", "call model.eval() first")
    return call.attention(query, key, value, attn_mask, is_causal, scale)


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, None]:
    return attention(call, query, key, value, attn_mask, dropout_p, is_causal, scale), None


@rule("_scaled_dot_product_attention_math.default")
def math_attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Value | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Value, None]:
    return attention(call, query, key, value, attn_mask, dropout_p, is_causal, scale), None
