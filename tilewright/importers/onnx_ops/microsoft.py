"""Operations written by ONNX Runtime's optimiser: fused layers, norms, activations, products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.dtypes import int32, int64
from tilewright.graph.core import Value
from tilewright.importers import formulas, fourier, matrices
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall, known_tensor
from tilewright.importers.onnx_ops import elementwise, indexing, network, quantized, resize, run_time, shape
from tilewright.importers.onnx_ops.network import convolve, row_statistics, window
from tilewright.importers.onnx_ops.windows import largest_of_windows
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.scatter import scatter_elements
from tilewright.symbolic import Size, lift, product, simplify

TABLE = RuleTable("ONNX Runtime: layers", "com.microsoft::")
rule = TABLE.rule

_MOST_TOKENS = 256  # of a sequence that must not be repeated

# Those that are what the standard has under the same name.
for _name, _table in (
    ("Gelu", elementwise.TABLE),
    ("Trilu", shape.TABLE),
    ("Pad", shape.TABLE),
    ("QuantizeLinear", quantized.TABLE),
    ("DequantizeLinear", quantized.TABLE),
    ("GatherND", indexing.TABLE),
):
    TABLE.add(_name, _table.rules[_name])

FUSED_ACTIVATIONS: dict[str, Callable[[OnnxCall, Value, Sequence[float]], Value]] = {
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


def activated(call: OnnxCall, x: Value) -> Value:
    """x after the activation that the node names, if any."""
    name = call.attribute("activation", "")
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    given = call.attribute("activation_params")
    numbers = [number for number in map(call.attribute, names) if number is not None] if given is None else given
    if not name:
        return x
    if name not in FUSED_ACTIVATIONS or (name == "Clip" and len(numbers) < 2):
        raise Unsupported(
            f"the activation {name!r} with the numbers {list(numbers)}", "let the model have it as a node"
        )
    return FUSED_ACTIVATIONS[name](call, x, list(numbers))


# Products and convolutions ---------------------------------------------------------------------------


@rule("FusedConv")
def fused_convolution(call: OnnxCall) -> Value:
    """A convolution, a sum with a fourth input, and an activation."""
    found = convolve(call, call[0], call[1], call.optional(2))
    return activated(call, call.op("add", found, call[3]) if call.has(3) else found)


@rule("FusedGemm")
def fused_gemm(call: OnnxCall) -> Value:
    return activated(call, network.gemm(call))


@rule("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def fused_matmul(call: OnnxCall) -> Value:
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


@rule("ConvTransposeWithDynamicPads")
def transposed_convolution(call: OnnxCall) -> Value:
    """Inputs: image, weight, what is cut off at the begins and the ends, a bias."""
    known, pads, subject = not call.is_unknown(2), call.optional(2), call.input_text(2)
    if known and call.has(2):
        call.attributes = {**call.attributes, "pads": call.ints(2)}
    call.inputs = [*call.inputs[:2], *call.inputs[3:4]]
    whole = network.transposed_convolution(call)
    if known or pads is None:
        return whole
    count = whole.rank - 2
    pads = call.cast(pads, int64)
    extents = call.slice(call.extents(whole), 0, 2, whole.rank)
    ends = call.op("subtract", extents, call.slice(pads, 0, count, 2 * count))
    shape = (*whole.shape[:2], *(call.fresh("size") for _ in range(count)))
    axes = call.constant(np.arange(2, whole.rank), "axes")
    return call.op("slice_at", whole, call.slice(pads, 0, 0, count), ends, axes, None, shape=shape, what=subject)


@rule("Inverse")
def inverse(call: OnnxCall) -> Value:
    return matrices.inverse(call, matrices.square(call, call[0]))[0]


@rule("CDist")
def distances(call: OnnxCall) -> Value:
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
def fast_gelu(call: OnnxCall) -> Value:
    x = call.op("add", call[0], call[1]) if call.has(1) else call[0]
    return call.op("gelu", x, approximate="tanh")


@rule("BiasGelu")
def bias_gelu(call: OnnxCall) -> Value:
    return call.op("gelu", call.op("add", call[0], call[1]), approximate="none")


def quick_gelu_of(call: OnnxCall, x: Value, alpha: float = 1.702) -> Value:
    return call.op("multiply", x, call.op("sigmoid", call.op("multiply", x, alpha)))


@rule("QuickGelu")
def quick_gelu(call: OnnxCall) -> Value:
    return quick_gelu_of(call, call[0], call.attribute("alpha", 1.702))


@rule("BiasSplitGelu")
def bias_split_gelu(call: OnnxCall) -> Value:
    """The first half of the last dimension times the GELU of the second, after adding a bias."""
    left, right = call.equal_parts(call.op("add", call[0], call[1]), 2)
    return call.op("multiply", left, call.op("gelu", right, approximate="none"))


@rule("BiasAdd")
def bias_add(call: OnnxCall) -> Value:
    return call.op("add", call.op("add", call[0], call[1]), call[2])


@rule("BiasSoftmax")
def bias_softmax(call: OnnxCall) -> Value:
    """Over all dimensions from `axis` on; the bias broadcasts within the batch or like any other."""
    x, axis = call[0], call.axis(call[0].rank, 1)
    call.attribute("is_inner_broadcast")
    total = call.op("add", x, call[1])
    rows = call.flatten(total, axis, total.rank)
    return call.reshape(call.op("softmax", rows, axis=axis), x.shape)


# Norms -----------------------------------------------------------------------------------------------


def _norm(call: OnnxCall, x: Value, scale: Value, bias: Value | None, epsilon: float, simplified: bool) -> Value:
    axis = x.rank - 1
    if simplified:
        return call.op("rms_norm", x, call.cast(scale, x.dtype), axis=axis, epsilon=epsilon)
    return call.op("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)


def _skip_norm(simplified: bool) -> Callable[[OnnxCall], tuple[Value | None, ...]]:
    """input + skip + bias, normalised; mean and 1 / deviation (simplified: 0, 1 / root mean square), this sum."""

    def apply(call: OnnxCall) -> tuple[Value | None, ...]:
        epsilon = call.attribute("epsilon", 1e-12 if not simplified else 1e-5)
        beta, bias = (None, call.optional(3)) if simplified else (call.optional(3), call.optional(4))
        total = call.op("add", call[0], call[1])
        total = total if bias is None else call.op("add", total, bias)
        statistics: tuple[Value | None, Value | None] = (None, None)
        if call.outputs > 1 and simplified:
            inverse = network.inverse_length(call, total, [total.rank - 1], epsilon)
            statistics = call.full(inverse.shape, 0.0, inverse.dtype), inverse
        elif call.outputs > 1:
            statistics = row_statistics(call, total, [total.rank - 1], epsilon)
        return _norm(call, total, call[2], beta, epsilon, simplified), *statistics, total

    return apply


TABLE.add("SkipLayerNormalization", _skip_norm(False))
TABLE.add("SkipSimplifiedLayerNormalization", _skip_norm(True))


@rule("EmbedLayerNormalization")
def embed_layer_norm(call: OnnxCall) -> tuple[Value | None, ...]:
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
    visible = call.op("reduce_sum", call.cast(call[7], int32), axes=(1,)) if call.has(7) else None
    return result, visible if visible is not None else call.full(ids.shape[:1], 0, int32), total


@rule("GroupNorm")
def group_norm(call: OnnxCall) -> Value:
    """Channels are the last dimension; an activation of 1 is SiLU."""
    return _group_norm(call, call[0])


@rule("SkipGroupNorm")
def group_norm_of_sum(call: OnnxCall) -> tuple[Value, Value]:
    """As GroupNorm of a sum with a fourth input, whole or one number for each channel, and a bias; and the sum."""
    x, skip = call[0], call[3]
    if skip.rank == 2:
        skip = call.reshape(skip, (skip.shape[0], *[1] * (x.rank - 2), skip.shape[1]))
    total = call.op("add", x, skip)
    total = call.op("add", total, call[4]) if call.has(4) else total
    return _group_norm(call, total), total


def _group_norm(call: OnnxCall, x: Value) -> Value:
    groups = call.positive("groups")
    if call.attribute("channels_last", 1):
        x = call.permute(x, [0, x.rank - 1, *range(1, x.rank - 1)])
    scale, bias = (call.cast(call[index], x.dtype) for index in (1, 2))
    found = call.op("group_norm", x, scale, bias, groups=groups, epsilon=call.attribute("epsilon", 1e-5))
    found = call.op("silu", found) if call.attribute("activation", 0) == 1 else found
    return call.permute(found, [0, *range(2, x.rank), 1]) if call.attribute("channels_last", 1) else found


# Images, shapes, signals -----------------------------------------------------------------------------


@rule("NhwcMaxPool")
def max_pool_channels_last(call: OnnxCall) -> Value:
    x = call[0]
    inner = call.permute(x, [0, x.rank - 1, *range(1, x.rank - 1)])
    return call.permute(largest_of_windows(call, inner), [0, *range(2, x.rank), 1])


@rule("MaxpoolWithMask")
def max_pool_of_visible(call: OnnxCall) -> Value:
    """The largest element of each window, of each line of it only those before the first that the mask hides.

    As ONNX Runtime reads the mask: that of a picture's channel c begins at element c times the channel's size, modulo
    the mask's number of channels; the first element of a picture of several dimensions is never hidden.
    """
    x, mask = call[0], must_be(call, call[1], (*call[1].shape[:2], *call[0].shape[2:]))
    call.attribute("storage_order")
    kernel = call.integers("kernel_shape", x.rank - 2, default=0, least=1)
    strides, padding, _ = window(call, x, kernel)
    visible = call.op("not_equal", _mask_of_channels(call, mask, x), 0)
    if x.rank > 3:
        first = call.op("equal", call.reshape(call.iota(product(x.shape[2:])), (1, 1, *x.shape[2:])), 0)
        visible = call.op("logical_or", visible, first)
    low = call.builder.number(float(np.finfo(x.dtype.numpy).min), x.dtype)
    pads = [(0, 0), (0, 0), *padding]
    x = call.op("pad", call.op("where", call.op("equal", x, x), x, low), pads=pads, value=float(np.finfo("f4").min))
    visible = call.op("pad", visible, pads=pads, value=True)
    found = _visible_of_lines(call, x, visible, kernel[-1], strides[-1])
    if len(kernel) > 1:
        rest = {"padding": ((0, 0),) * len(kernel), "dilation": (1,) * len(kernel), "ceil_mode": False}
        found = call.op("max_pool", found, kernel=(*kernel[:-1], 1), strides=(*strides[:-1], 1), **rest)
    return found


def _mask_of_channels(call: OnnxCall, mask: Value, x: Value) -> Value:
    """The mask of each channel of x, as ONNX Runtime finds it; one of a single channel is that of all."""
    channels, size = product(mask.shape[:2]), product(x.shape[2:])
    if channels == 1:
        return mask
    count, extent = product(x.shape[:2]), call.value(size, int64)
    begins = call.op("remainder", call.op("multiply", call.iota(count), extent), call.value(channels, int64))
    places = call.op("add", call.unsqueeze(begins, 1), call.unsqueeze(call.iota(size), 0))
    return call.reshape(call.op("gather", call.reshape(mask, (-1,)), places, axis=0), x.shape)


def _visible_of_lines(call: OnnxCall, x: Value, visible: Value, taps: int, stride: int) -> Value:
    """The largest element of windows of the last dimension, up to the first that is not visible."""
    axis, low = x.rank - 1, call.builder.number(float(np.finfo(x.dtype.numpy).min), x.dtype)
    count = simplify((lift(x.shape[axis]) - taps) // stride + 1)
    span = simplify((lift(count) - 1) * stride + 1)
    best, seen = None, None
    for tap in range(taps):
        item, here = (call.slice(part, axis, tap, simplify(span + tap), stride) for part in (x, visible))
        seen = here if seen is None else call.op("logical_and", seen, here)
        item = call.op("where", seen, item, low)
        best = item if best is None else call.op("maximum", best, item)
    assert best is not None
    return best


@rule("SampleOp")
def as_it_is(call: OnnxCall) -> Value:
    """ONNX Runtime's example of an operation of one's own."""
    return call[0]


@rule("GridSample")
def grid_sample(call: OnnxCall) -> Value:
    """As the standard one of opset 16."""
    call.opset = 16
    return resize.sample_grid(call)


@rule("CropAndResize")
def crop_and_resize(call: OnnxCall) -> Value:
    """Boxes [R, 4] of y, x, y, x (1 is the last pixel) of pictures [N, C, H, W] as [R, C, h, w]; one number stands for
    what lies outside."""
    x, boxes, counts = call[0], call[1], call.lengths(3)
    call.require_rank(x, 4, 4)
    call.require_rank(boxes, 2, 2)
    boxes = must_be(call, boxes, (boxes.shape[0], 4))
    if boxes.shape[1] != 4 or len(counts) != 2:
        raise Invalid(f"boxes {boxes!r} and a size of {len(counts)} numbers; they have 4 and 2")
    nearest = call.choice("mode", "bilinear", "nearest") == "nearest"
    corners, shares, inside = [], [], []
    for axis, count in enumerate(counts):
        last = call.value(simplify(lift(x.shape[2 + axis]) - 1), boxes.dtype)
        low, high = (call.slice(boxes, 1, place, place + 1) for place in (axis, axis + 2))
        at = _at_equal_steps(call, call.op("multiply", low, last), call.op("multiply", high, last), count)
        inside.append(call.op("logical_and", call.op("greater_equal", at, 0.0), call.op("less_equal", at, last)))
        at = call.op("minimum", call.op("maximum", at, 0.0), last)
        first = call.op("floor", call.op("add", at, 0.5) if nearest else at)
        corners.append([call.cast(first, int64), call.cast(call.op("ceil", at), int64)])
        shares.append(call.unsqueeze(call.op("subtract", at, first), 2 - axis, 3))
    found = _crossed(call, corners, shares, nearest)
    within = call.op("logical_and", call.unsqueeze(inside[0], 2, 3), call.unsqueeze(inside[1], 1, 3))
    outside = call.builder.number(float(call.attribute("extrapolation_value", 0.0)), x.dtype)
    return call.permute(call.op("where", within, found, outside), [0, 3, 1, 2])


def _at_equal_steps(call: OnnxCall, low: Value, high: Value, count: Size) -> Value:
    """`count` places from low to high; a single one is in the middle."""
    middle = call.op("multiply", call.op("add", low, high), 0.5)
    if count == 1:
        return middle
    steps = call.op("maximum", call.value(simplify(lift(count) - 1), low.dtype), 1.0)
    step = call.op("divide", call.op("subtract", high, low), steps)
    places = call.op("add", low, call.op("multiply", call.cast(call.iota(count), low.dtype), step))
    if isinstance(count, int):
        return places
    return call.op("where", call.op("greater", call.value(count, low.dtype), 1.0), places, middle)


def _crossed(call: OnnxCall, corners: Sequence[Sequence[Value]], shares: Sequence[Value], nearest: bool) -> Value:
    """Pixels [R, h, w, C] of pictures where rows [R, h] and columns [R, w] cross: the first of each pair, or mixed."""
    x = call[0]
    channels, height, width = x.shape[1:]
    pixels = call.reshape(call.permute(x, [0, 2, 3, 1]), (-1, channels))
    picture = call.op("multiply", call.unsqueeze(call.cast(call[2], int64), 1, 2), call.value(height, int64))

    def pixel(row: Value, column: Value) -> Value:
        line = call.op("multiply", call.op("add", picture, call.unsqueeze(row, 2)), call.value(width, int64))
        return call.op("gather", pixels, call.op("add", line, call.unsqueeze(column, 1)), axis=0)

    def between(left: Value, right: Value, share: Value) -> Value:
        return call.op("add", left, call.op("multiply", call.op("subtract", right, left), share))

    rows, columns = corners
    if nearest:
        return pixel(rows[0], columns[0])
    upper, lower = (between(pixel(row, columns[0]), pixel(row, columns[1]), shares[1]) for row in rows)
    return between(upper, lower, shares[0])


@rule("Range")
def range_(call: OnnxCall) -> Value:
    """As the standard one; without a step it is 1."""
    if not call.has(2):
        call.inputs = [*call.inputs[:2], known_tensor("delta", np.ones((), call.tensor(0).dtype.numpy))]
    found: Value = shape.TABLE.rules["Range"](call)
    return found


@rule("Unique")
def unique(call: OnnxCall) -> tuple[Value, ...]:
    """Elements in the order in which they come, where each is in them, and how often."""
    call.attributes, wanted = {**call.attributes, "sorted": 0}, call.outputs
    call.outputs = 4
    values, _, *others = run_time.unique(call)
    return (values, *others)[:wanted]


@rule("NGramRepeatBlock")
def forbid_repeats(call: OnnxCall) -> Value:
    """Scores [B, V] with minus infinity for each token that would repeat `ngram_size` tokens of the ids [B, T]."""
    size = call.positive("ngram_size")
    if size > _MOST_TOKENS:
        raise Unsupported(f"sequences of {size} tokens", f"use at most {_MOST_TOKENS}")
    ids, scores = call.cast(call[0], int64), call[1]
    call.require_rank(ids, 2, 2)
    call.require_rank(scores, 2, 2)
    ids = must_be(call, ids, (scores.shape[0], ids.shape[1]))
    length, words = ids.shape[1], scores.shape[1]
    line = call.op("pad", ids, pads=[(0, 0), (size, 0)], value=-1)  # before the first there is no token
    places = simplify(lift(length) + 1)  # at each a sequence begins; at the last one that of the token to come
    following = call.slice(line, 1, size - 1, simplify(lift(places) + (size - 1)))
    column = call.op("where", _repeats(call, line, places, following), following, call.value(words, int64))
    room = call.op("pad", scores, pads=[(0, 0), (0, 1)])  # one column for sequences that are no repeats
    forbidden = scatter_elements(call, room, column, call.full(column.shape, -math.inf, scores.dtype), 1)
    return call.slice(forbidden, 1, 0, words)


def _repeats(call: OnnxCall, line: Value, places: Size, following: Value) -> Value:
    """Where tokens are the last ones of the line, and another token follows on them."""
    found = call.op("greater_equal", following, 0)
    for token in range(call.positive("ngram_size") - 1):
        after = simplify(lift(places) + token)
        latest = call.slice(line, 1, after, simplify(lift(after) + 1))
        found = call.op("logical_and", found, call.op("equal", call.slice(line, 1, token, after), latest))
    return found


@rule("ExpandDims")
def expand_dims(call: OnnxCall) -> Value:
    axis = int(call.number(1))
    return call.unsqueeze(call[0], call.place(axis, call[0].rank + 1))


@rule("Rfft")
def real_transform(call: OnnxCall) -> Value:
    """Of the last dimension: [.., n / 2 + 1, 2]."""
    x = _one_dimension(call)
    length = x.shape[-1]
    count = simplify(lift(length) // 2 + 1)
    parts = fourier.transform(call, x, None, length, count, False)
    real, imaginary = (call.unsqueeze(part, -1) for part in parts)
    return call.op("concat", real, imaginary, axis=real.rank - 1)


def _one_dimension(call: OnnxCall) -> Value:
    if call.attribute("signal_ndim", 1) != 1 or call.attribute("normalized", 0) or not call.attribute("onesided", 1):
        raise Unsupported("a transform of several dimensions, normalised, or of both sides", "use one real dimension")
    return call[0]


@rule("Irfft")
def inverse_real_transform(call: OnnxCall) -> Value:
    """[.., n / 2 + 1, 2] to [.., n], of an even length; without a division by the length."""
    x = _one_dimension(call)
    real, imaginary = (call.select(x, x.rank - 1, part) for part in range(2))
    length = simplify((lift(x.shape[-2]) - 1) * 2)
    return fourier.real_inverse(call, real, imaginary, length)
