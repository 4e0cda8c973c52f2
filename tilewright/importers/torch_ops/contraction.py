"""Matrix products, linear layers, convolutions, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.dtypes import float32, int1, int32
from tilewright.graph.core import Value
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.importers.einsum import einsum
from tilewright.importers.emitter import Number
from tilewright.importers.images import transposed_convolution
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import Size, lift, product, simplify

TABLE = RuleTable("Products, convolutions, attention", "aten.")
rule = TABLE.rule


@rule("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def matmul(call: TorchCall, left: Value, right: Value) -> Value:
    if left.rank == right.rank == 1:
        return call.reshape(call.matmul(call.unsqueeze(left, 0), call.unsqueeze(right, 1)), ())
    return call.matmul(left, right)


@rule("_int_mm.default")
def integer_matmul(call: TorchCall, left: Value, right: Value) -> Value:
    """The product of matrices of 8-bit integers, in int32."""
    return call.matmul(call.cast(left, int32), call.cast(right, int32))


@rule("_grouped_mm.default")
def grouped_matmul(
    call: TorchCall,
    rows: Value,
    matrices: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: Any = None,
) -> Value:
    """Groups of rows, each with a matrix of its own (experts)."""
    if rows.rank != 2 or matrices.rank != 3 or offs is None or bias is not None or call.dtype != rows.dtype:
        raise Unsupported("a grouped product of this form", "give rows [M, K], matrices [G, K, N] and offsets [G]")
    return call.op("grouped_matmul", rows, matrices, offs)


@rule("_scaled_mm.default")
def scaled_matmul(
    call: TorchCall,
    left: Value,
    right: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Value:
    """The product of two matrices of 8-bit floats by scales for all of one, for rows and columns, or for blocks."""
    if scale_result is not None:
        raise Unsupported("a scale of the result", "divide the result by it")
    return _scaled_product(call, left, right, scale_a, scale_b, bias)


@rule("_scaled_mm_v2.default")
def scaled_matmul_of_recipes(
    call: TorchCall,
    left: Value,
    right: Value,
    scale_a: Sequence[Value],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Value],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Value | None,
    out_dtype: Any,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Value:
    """The same with the granularity of scales by name (`torch.nn.functional.ScalingType`): the shapes say it, too."""
    if len(scale_a) != 1 or len(scale_b) != 1 or any((*swizzle_a, *swizzle_b)) or contraction_dim:
        raise Unsupported("scales of two levels, or in swizzled order", "give one tensor of float32 scales each")
    return _scaled_product(call, left, right, scale_a[0], scale_b[0], bias)


def _scaled_product(
    call: TorchCall, left: Value, right: Value, scale_a: Value, scale_b: Value, bias: Value | None
) -> Value:
    """left [M, K] times right [K, N], whose scales are turned with it."""
    if left.dtype.bits != 8 or right.dtype.bits != 8 or scale_a.dtype != float32 or scale_b.dtype != float32:
        raise Unsupported("a scaled product of other types", "give matrices of 8-bit floats and scales of float32")
    turned = call.permute(scale_b, (1, 0)) if scale_b.rank == 2 else scale_b
    operands = [
        _with_scales(call, left, scale_a, "scale_a"),
        _with_scales(call, call.permute(right, (1, 0)), turned, "scale_b"),
    ]
    result = call.op("matmul", *operands, transpose_b=True)
    return call.cast(result if bias is None else call.op("add", result, call.cast(bias, float32)), call.dtype)


def _with_scales(call: TorchCall, x: Value, scale: Value, name: str) -> Value:
    """The numbers of x [rows, depth]: with one scale, one for each row, or for each 128 of the depth of 1 or 128 rows;
    along the depth there may be more scales than blocks, as PyTorch pads them."""
    rows, depth = x.shape
    if product(scale.shape) == 1:
        return call.op("dequantize", x, call.reshape(scale, ()))
    if scale.shape == (rows, 1):
        return call.op("dequantize", x, scale)
    if not isinstance(depth, int) or depth % SCALE_BLOCK or scale.rank != 2:
        raise Unsupported(f"{name} of shape {list(scale.shape)}", f"make the depth a multiple of {SCALE_BLOCK}")
    groups = depth // SCALE_BLOCK
    scale = call.op("slice", scale, axis=1, start=0, stop=groups, step=1) if scale.shape[1] != groups else scale
    if scale.shape == (rows, groups):
        shapes: tuple[tuple[Size, ...], ...] = (rows, groups, SCALE_BLOCK), (rows, groups, 1)
    elif isinstance(rows, int) and scale.shape == (-(-rows // SCALE_BLOCK), groups):
        blocks = -(-rows // SCALE_BLOCK)
        shapes = (blocks, SCALE_BLOCK, groups, SCALE_BLOCK), (blocks, 1, groups, 1)
        if rows % SCALE_BLOCK:
            each = call.broadcast(call.reshape(scale, (blocks, 1, groups)), (blocks, SCALE_BLOCK, groups))
            scale = call.reshape(each, (blocks * SCALE_BLOCK, groups))
            scale = call.op("slice", scale, axis=0, start=0, stop=rows, step=1)
            shapes = (rows, groups, SCALE_BLOCK), (rows, groups, 1)
    else:
        raise Unsupported(f"{name} of shape {list(scale.shape)}", "give one, one for each row, or one for each block")
    numbers = call.op("dequantize", call.reshape(x, shapes[0]), call.reshape(scale, shapes[1]))
    return call.reshape(numbers, x.shape)


def _scaled(call: TorchCall, x: Value, factor: Number) -> Value:
    return x if factor == 1 else call.op("multiply", x, factor)


@rule("addmm.default", "baddbmm.default", "addmv.default")
def add_matmul(call: TorchCall, bias: Value, left: Value, right: Value, beta: Number = 1, alpha: Number = 1) -> Value:
    product = _scaled(call, call.matmul(left, right), alpha)
    return product if beta == 0 else call.op("add", product, _scaled(call, bias, beta))


@rule("addbmm.default")
def add_sum_of_products(
    call: TorchCall, bias: Value, left: Value, right: Value, beta: Number = 1, alpha: Number = 1
) -> Value:
    """All products [B, M, K] x [B, K, N] added up: one product over B and K."""
    batch, rows, inner = left.shape
    joined = call.reshape(call.permute(left, (1, 0, 2)), (rows, simplify(lift(batch) * inner)))
    stacked = call.reshape(right, (simplify(lift(batch) * inner), right.shape[2]))
    return add_matmul(call, bias, joined, stacked, beta, alpha)


@rule("_trilinear.default")
def trilinear(
    call: TorchCall,
    first: Value,
    second: Value,
    third: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """A product of three tensors, each without the dimensions that its `expand` names, added up over `sumdim`."""
    rank = first.rank + len(expand1)
    letters = [chr(ord("a") + axis) for axis in range(rank)]
    terms = ["".join(letter for axis, letter in enumerate(letters) if axis not in {item % rank for item in expand})
             for expand in (expand1, expand2, expand3)]  # fmt: skip
    output = "".join(letter for axis, letter in enumerate(letters) if axis not in {item % rank for item in sumdim})
    return einsum(call, f"{','.join(terms)}->{output}", [first, second, third])


@rule("linear.default")
def linear(call: TorchCall, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if x.rank == 1:
        return call.reshape(linear(call, call.unsqueeze(x, 0), weight, bias), call.shape)
    product = call.op("matmul", x, call.unsqueeze(weight, 0) if weight.rank == 1 else weight, transpose_b=True)
    product = call.reshape(product, call.shape)
    return product if bias is None else call.op("add", product, bias)


@rule("convolution.default")
def convolution(
    call: TorchCall, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    count = weight.rank - 2
    strides, pads, steps, extra = (_each(item, count) for item in (stride, padding, dilation, output_padding))
    batched = x if x.rank == weight.rank else call.unsqueeze(x, 0)
    if transposed:
        crops = [(pad, pad) for pad in pads]
        result = transposed_convolution(call, batched, weight, bias, strides, crops, steps, extra, groups)
    else:
        margins = [(pad, pad) for pad in pads]
        result = call.op("conv", batched, weight, bias, strides=strides, padding=margins, dilation=steps, groups=groups)
    return call.reshape(result, call.shape)


@rule("conv_tbc.default")
def convolution_of_steps(call: TorchCall, x: Value, weight: Value, bias: Value, pad: int = 0) -> Value:
    """A convolution of [T, B, C] with [K, C, M]."""
    image, kernel = call.permute(x, (1, 2, 0)), call.permute(weight, (2, 1, 0))
    found = call.op("conv", image, kernel, bias, strides=[1], padding=[(pad, pad)], dilation=[1], groups=1)
    return call.permute(found, (2, 0, 1))


def _each(item: Sequence[int], count: int) -> list[int]:
    return list(item) * count if len(item) == 1 else list(item)


@rule("scaled_dot_product_attention.default")
def attention(
    call: TorchCall,
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
    call: TorchCall,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, None]:
    return attention(call, query, key, value, attn_mask, dropout_p, is_causal, scale), None


# What PyTorch has for GPUs. Sums, sizes and the generator's state are for the backward pass: a graph that uses them
# cannot be imported.


def _alone(call: TorchCall, result: Value) -> tuple[Value | None, ...]:
    """The first result of an operation whose others cannot be imported."""
    return (result, *[None] * (len(call.results) - 1))


@rule("_scaled_dot_product_flash_attention.default")
def gpu_flash_attention(
    call: TorchCall,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    return _alone(call, attention(call, query, key, value, None, dropout_p, is_causal, scale))


@rule("_scaled_dot_product_efficient_attention.default", "_scaled_dot_product_cudnn_attention.default")
def gpu_biased_attention(
    call: TorchCall,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    return _alone(call, attention(call, query, key, value, attn_bias, dropout_p, is_causal, scale))


@rule("_scaled_dot_product_attention_math.default")
def math_attention(
    call: TorchCall,
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


# The fused layers that PyTorch uses in inference for nn.MultiheadAttention and nn.TransformerEncoderLayer.


_OF_KEYS = 1  # the type of a mask [B, S]


def _affine(call: TorchCall, x: Value, weight: Value, bias: Value) -> Value:
    return call.op("add", call.op("matmul", x, weight, transpose_b=True), bias)


def _self_attention(
    call: TorchCall,
    x: Value,
    heads: int,
    packed: tuple[Value, Value],
    projection: tuple[Value, Value],
    mask: Value | None,
    mask_type: int | None,
) -> Value:
    """x [B, S, E] with packed query, key and value weights; keys are left out where the mask is true or not 0.

    By its type the mask is [S, S] (0), [B, S] (1) or [B, heads, S, S] (2).
    """
    batch, length, width = x.shape
    joined = call.reshape(_affine(call, x, *packed), (batch, length, 3, heads, width // heads))
    query, key, value = (call.permute(call.select(joined, 2, part), (0, 2, 1, 3)) for part in range(3))
    visible = None
    if mask is not None:
        visible = call.op("logical_not", call.cast(mask, int1))
        visible = call.unsqueeze(visible, 1, 2) if mask_type == _OF_KEYS else visible
    context = call.attention(query, key, value, visible, causal=False, scale=None)
    context = call.reshape(call.permute(context, (0, 2, 1, 3)), (batch, length, width))
    return _affine(call, context, *projection)


@rule("_native_multi_head_attention.default")
def fused_attention(
    call: TorchCall, query: Value, key: Value, value: Value, embed_dim: int, heads: int, packed_weight: Value,
    packed_bias: Value, weight: Value, bias: Value, mask: Value | None = None, need_weights: bool = True,
    average_weights: bool = True, mask_type: int | None = None,
) -> tuple[Value, None]:  # fmt: skip
    if query is not key or key is not value:
        raise Unsupported(
            "fused attention over different tensors", "call torch.backends.mha.set_fastpath_enabled(False)"
        )
    packed, projection = (packed_weight, packed_bias), (weight, bias)
    return _self_attention(call, query, heads, packed, projection, mask, mask_type), None


@rule("_transformer_encoder_layer_fwd.default")
def fused_encoder_layer(
    call: TorchCall,
    x: Value,
    embed_dim: int,
    heads: int,
    packed_weight: Value,
    packed_bias: Value,
    weight: Value,
    bias: Value,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    scale1: Value | None,
    bias1: Value | None,
    scale2: Value | None,
    bias2: Value | None,
    inner: Value,
    inner_bias: Value,
    outer: Value,
    outer_bias: Value,
    mask: Value | None = None,
    mask_type: int | None = None,
) -> Value:

    def norm(value: Value, scale: Value | None, shift: Value | None) -> Value:
        return call.op("layer_norm", value, scale, shift, axis=value.rank - 1, epsilon=eps)

    def feed_forward(value: Value) -> Value:
        hidden = call.op("gelu" if use_gelu else "relu", _affine(call, value, inner, inner_bias))
        return _affine(call, hidden, outer, outer_bias)

    source = norm(x, scale1, bias1) if norm_first else x
    packed, projection = (packed_weight, packed_bias), (weight, bias)
    x = call.op("add", x, _self_attention(call, source, heads, packed, projection, mask, mask_type))
    x = x if norm_first else norm(x, scale1, bias1)
    x = call.op("add", x, feed_forward(norm(x, scale2, bias2) if norm_first else x))
    return x if norm_first else norm(x, scale2, bias2)
