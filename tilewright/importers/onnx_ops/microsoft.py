"""What the optimiser of ONNX Runtime writes: fused layers, norms, activations, products of packed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.dtypes import int32, uint8
from tilewright.graph.core import Value
from tilewright.importers import formulas, fourier, linear_algebra
from tilewright.importers.onnx_call import Call
from tilewright.importers.onnx_ops import elementwise, network, quantized, resize, shape
from tilewright.importers.onnx_ops.network import convolve, row_statistics
from tilewright.importers.onnx_ops.windows import pool_window
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import lift, simplify

TABLE = RuleTable("ONNX Runtime: layers", "com.microsoft::")
rule = TABLE.rule

# Those that are what the standard has under the same name.
for _name, _table in (
    ("Gelu", elementwise.TABLE),
    ("Trilu", shape.TABLE),
    ("Pad", shape.TABLE),
    ("QuantizeLinear", quantized.TABLE),
    ("DequantizeLinear", quantized.TABLE),
):
    TABLE.add(_name, _table.rules[_name])

ACTIVATIONS: dict[str, Callable[[Call, Value, Sequence[float]], Value]] = {
    "Relu": lambda call, x, numbers: call.op("relu", x),
    "Tanh": lambda call, x, numbers: call.op("tanh", x),
    "Sigmoid": lambda call, x, numbers: call.op("sigmoid", x),
    "LeakyRelu": lambda call, x, numbers: formulas.leaky_relu(call, x, *numbers[:1]),
    "Clip": lambda call, x, numbers: call.op("clip", x, low=numbers[0], high=numbers[1]),
    "HardSigmoid": lambda call, x, numbers: elementwise.clipped_line(call, x, *numbers),
    "HardSwish": lambda call, x, numbers: formulas.hard_swish(call, x),
    "Elu": lambda call, x, numbers: formulas.elu(call, x, *numbers[:1]),
    "Softplus": lambda call, x, numbers: formulas.softplus(call, x),
    "QuickGelu": lambda call, x, numbers: quick_gelu_of(call, x, *numbers[:1]),
}


def activated(call: Call, x: Value) -> Value:
    """x after the activation that the node names, if any."""
    name = call.attribute("activation", "")
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    given = call.attribute("activation_params")
    numbers = [number for number in map(call.attribute, names) if number is not None] if given is None else given
    if not name:
        return x
    if name not in ACTIVATIONS or (name == "Clip" and len(numbers) < 2):
        raise Unsupported(
            f"the activation {name!r} with the numbers {list(numbers)}", "let the model have it as a node"
        )
    return ACTIVATIONS[name](call, x, list(numbers))


# Products and convolutions ---------------------------------------------------------------------------


@rule("FusedConv")
def fused_convolution(call: Call) -> Value:
    """A convolution, a sum with a fourth input, and an activation."""
    found = convolve(call, call[0], call[1], call.optional(2))
    return activated(call, call.op("add", found, call[3]) if call.has(3) else found)


@rule("FusedGemm")
def fused_gemm(call: Call) -> Value:
    return activated(call, network.gemm(call))


@rule("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def fused_matmul(call: Call) -> Value:
    """alpha a b; each may be transposed, and have its first dimension next to the last."""
    sides = []
    for index, side in enumerate("AB"):
        x = call[index]
        if call.attribute(f"transBatch{side}", 0) and x.rank > 2:
            x = call.permute(x, [*range(1, x.rank - 1), 0, x.rank - 1])
        if call.attribute(f"trans{side}", 0) and x.rank > 1:
            x = call.transpose(x, x.rank - 2, x.rank - 1)
        sides.append(x)
    product, alpha = call.matmul(*sides), float(call.attribute("alpha", 1.0))
    return activated(call, product if alpha == 1 else call.op("multiply", product, alpha))


@rule("MatMulNBits")
def matmul_of_packed(call: Call) -> Value:
    """Rows [.., K] times weights [N, blocks, bytes] of a few bits, with a scale (and a zero point) for each block."""
    x, packed, scales = call[0], call[1], call[2]
    depth, columns, block = (call.positive(name) for name in ("K", "N", "block_size"))
    bits = call.positive("bits", 4)
    call.attribute("accuracy_level")  # how precise the products are at least
    if bits not in (2, 4, 8) or call.has(4):
        raise Unsupported(
            "weights in another order, or of a number of bits that does not divide 8", "use 2, 4 or 8 bits"
        )
    blocks = -(-depth // block)
    weight = call.reshape(_unpacked(call, packed, bits), (columns, blocks, -1))
    if weight.shape[2] != block:
        raise Invalid(f"{packed!r} are not {columns} columns of {blocks} blocks of {block} elements of {bits} bits")
    zero: Value | float = float(1 << (bits - 1))
    if call.has(3):
        points = call[3]
        if points.dtype == uint8:
            rows = call.reshape(_unpacked(call, points, bits), (columns, -1))
            points = call.slice(rows, 1, 0, blocks)
        zero = call.reshape(call.cast(points, x.dtype), (columns, blocks, 1))
    centred = call.op("subtract", call.cast(weight, x.dtype), zero)
    scaled = call.op("multiply", centred, call.reshape(call.cast(scales, x.dtype), (columns, blocks, 1)))
    matrix = call.slice(call.reshape(scaled, (columns, blocks * block)), 1, 0, depth)
    rows = call.reshape(x, (-1, depth))
    result = call.reshape(call.op("matmul", rows, matrix, transpose_b=True), (*x.shape[:-1], columns))
    return call.op("add", result, call[5]) if call.has(5) else result


def _unpacked(call: Call, x: Value, bits: int) -> Value:
    """The elements of bytes [.., n] as uint8 [.., n 8 / bits], those in the low bits first."""
    if bits == 8:
        return call.cast(x, uint8)
    shifts = call.iota(8 // bits, uint8, step=bits)
    parts = call.op("shift_right", call.unsqueeze(call.cast(x, uint8), x.rank), shifts)
    return call.flatten(call.op("bitwise_and", parts, (1 << bits) - 1), x.rank - 1, x.rank + 1)


@rule("Inverse")
def inverse(call: Call) -> Value:
    return linear_algebra.inverse(call, call[0])


@rule("CDist")
def distances(call: Call) -> Value:
    """Distances of all rows of one matrix from all of another."""
    left, right = call[0], call[1]
    metric = call.choice("metric", "sqeuclidean", "euclidean")
    squares = [
        call.op("reduce_sum", call.op("multiply", item, item), axes=(1,), keepdims=True) for item in (left, right)
    ]
    product = call.op("multiply", call.op("matmul", left, right, transpose_b=True), -2.0)
    total = call.op("add", call.op("add", product, squares[0]), call.transpose(squares[1], 0, 1))
    total = call.op("maximum", total, 0.0)
    return call.op("sqrt", total) if metric == "euclidean" else total


# Activations -----------------------------------------------------------------------------------------


@rule("FastGelu")
def fast_gelu(call: Call) -> Value:
    x = call.op("add", call[0], call[1]) if call.has(1) else call[0]
    return call.op("gelu", x, approximate="tanh")


@rule("BiasGelu")
def bias_gelu(call: Call) -> Value:
    return call.op("gelu", call.op("add", call[0], call[1]), approximate="none")


def quick_gelu_of(call: Call, x: Value, alpha: float = 1.702) -> Value:
    return call.op("multiply", x, call.op("sigmoid", call.op("multiply", x, alpha)))


@rule("QuickGelu")
def quick_gelu(call: Call) -> Value:
    return quick_gelu_of(call, call[0], call.attribute("alpha", 1.702))


@rule("BiasSplitGelu")
def bias_split_gelu(call: Call) -> Value:
    """The first half of the last dimension times the GELU of the second, after adding a bias."""
    left, right = call.equal_parts(call.op("add", call[0], call[1]), 2)
    return call.op("multiply", left, call.op("gelu", right, approximate="none"))


@rule("BiasAdd")
def bias_add(call: Call) -> Value:
    return call.op("add", call.op("add", call[0], call[1]), call[2])


@rule("BiasSoftmax")
def bias_softmax(call: Call) -> Value:
    """Over all dimensions from `axis` on; the bias broadcasts within the batch or like any other."""
    x, axis = call[0], call.axis(call[0].rank, 1)
    call.attribute("is_inner_broadcast")
    total = call.op("add", x, call[1])
    rows = call.flatten(total, axis, total.rank)
    return call.reshape(call.op("softmax", rows, axis=axis), x.shape)


# Norms -----------------------------------------------------------------------------------------------


def _norm(call: Call, x: Value, scale: Value, bias: Value | None, epsilon: float, simplified: bool) -> Value:
    axis = x.rank - 1
    if simplified:
        return call.op("rms_norm", x, call.cast(scale, x.dtype), axis=axis, epsilon=epsilon)
    return call.op("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)


def _skip_norm(simplified: bool) -> Callable[[Call], tuple[Value | None, ...]]:
    """input + skip + bias, normalised; the fourth result is this sum."""

    def apply(call: Call) -> tuple[Value | None, ...]:
        epsilon = call.attribute("epsilon", 1e-12 if not simplified else 1e-5)
        beta, bias = (None, call.optional(3)) if simplified else (call.optional(3), call.optional(4))
        total = call.op("add", call[0], call[1])
        total = total if bias is None else call.op("add", total, bias)
        statistics: tuple[Value | None, Value | None] = (None, None)
        if call.outputs > 1 and not simplified:
            statistics = row_statistics(call, total, [total.rank - 1], epsilon)
        return _norm(call, total, call[2], beta, epsilon, simplified), *statistics, total

    return apply


TABLE.add("SkipLayerNormalization", _skip_norm(False))
TABLE.add("SkipSimplifiedLayerNormalization", _skip_norm(True))


@rule("EmbedLayerNormalization")
def embed_layer_norm(call: Call) -> tuple[Value | None, ...]:
    """Words, positions and segments, added and normalised; the second result counts the words that the mask keeps."""
    ids = call[0]
    call.require_rank(ids, 2, 2)
    total = call.op("gather", call[2], ids, axis=0)
    if call.has(8):
        places = call.op("gather", call[3], call[8], axis=0)
    else:
        places = call.slice(call[3], 0, 0, ids.shape[1])
    total = call.op("add", total, places)
    if call.has(1) and call.has(4):
        total = call.op("add", total, call.op("gather", call[4], call[1], axis=0))
    result = _norm(call, total, call[5], call[6], call.attribute("epsilon", 1e-12), False)
    call.attribute("mask_index_type")
    kept = call.op("reduce_sum", call.cast(call[7], int32), axes=(1,)) if call.has(7) else None
    return result, kept if kept is not None else call.full(ids.shape[:1], 0, int32), total


@rule("GroupNorm")
def group_norm(call: Call) -> Value:
    """Channels are the last dimension; an activation of 1 is SiLU."""
    x, groups = call[0], call.positive("groups")
    if call.attribute("channels_last", 1):
        x = call.permute(x, [0, x.rank - 1, *range(1, x.rank - 1)])
    scale, bias = (call.cast(call[index], x.dtype) for index in (1, 2))
    found = call.op("group_norm", x, scale, bias, groups=groups, epsilon=call.attribute("epsilon", 1e-5))
    found = call.op("silu", found) if call.attribute("activation", 0) == 1 else found
    return call.permute(found, [0, *range(2, x.rank), 1]) if call.attribute("channels_last", 1) else found


# Images, shapes, signals -----------------------------------------------------------------------------


@rule("NhwcMaxPool")
def max_pool_channels_last(call: Call) -> Value:
    x = call[0]
    inner = call.permute(x, [0, x.rank - 1, *range(1, x.rank - 1)])
    found = call.op("max_pool", inner, **pool_window(call, inner))
    return call.permute(found, [0, *range(2, x.rank), 1])


@rule("GridSample")
def grid_sample(call: Call) -> Value:
    """As the standard one of opset 16."""
    call.opset = 16
    return resize.sample_grid(call)


@rule("ExpandDims")
def expand_dims(call: Call) -> Value:
    axis = int(call.number(1))
    return call.unsqueeze(call[0], call.place(axis, call[0].rank + 1))


@rule("Rfft")
def real_transform(call: Call) -> Value:
    """Of the last dimension: [.., n / 2 + 1, 2]."""
    x = _one_dimension(call)
    length = x.shape[-1]
    kept = simplify(lift(length) // 2 + 1)
    parts = fourier.transform(call, x, None, length, kept, False)
    real, imaginary = (call.unsqueeze(part, -1) for part in parts)
    return call.op("concat", real, imaginary, axis=real.rank - 1)


def _one_dimension(call: Call) -> Value:
    if call.attribute("signal_ndim", 1) != 1 or call.attribute("normalized", 0) or not call.attribute("onesided", 1):
        raise Unsupported("a transform of several dimensions, normalised, or of both sides", "use one real dimension")
    return call[0]


@rule("Irfft")
def inverse_real_transform(call: Call) -> Value:
    """[.., n / 2 + 1, 2] to [.., n], of an even length; without a division by the length."""
    x = _one_dimension(call)
    real, imaginary = (call.select(x, x.rank - 1, part) for part in range(2))
    length = simplify((lift(x.shape[-2]) - 1) * 2)
    found = fourier.real_inverse(call, real, imaginary, length)
    return call.op("multiply", found, call.value(length, x.dtype))
