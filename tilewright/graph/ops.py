"""The graph ops: one table with each op's class, inputs, attributes, type rule and NumPy meaning.

`kind` is the fusion class:
    elementwise   output element i depends on element i of every (broadcast) input
    contraction   matmul, conv
    attention     softmax(q k^T) v
    paged         the same over keys and values in pages, for tokens of several sequences
    reduction     works along rows or axes: reductions, softmax, norms, cumsum
    movement      copies elements to other places
    view          no work at all: the output is the input's memory
    source        no inputs
    pool          windows of an image
    recurrent     steps that wait for each other
    transform     Fourier transforms of rows
    sorting       positions in order
    choice        a place in each row
    trees         leaves of trees of decisions
    composite     decomposed by `passes.decompose` before fusion
    host          run by NumPy between the compiled parts: sizes of the result are known only then (`graph.host_ops`)
    part          a part of the model that is compiled on its own (`graph.partition`)
    control       graphs inside, run once, or again and again
All ops but `random` without a seed are pure; element types of a node's inputs are equal unless its summary says
otherwise.
Values are dense and row-major.  Reductions over an empty `axes` are copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import HOST_ONLY, DType, int64, string
from tilewright.graph import choices, fourier, paged, quantization, random_bits, recurrent, sorting, trees
from tilewright.graph import host_images as images
from tilewright.graph import host_lists as lists
from tilewright.graph import host_matrices as matrices
from tilewright.graph import host_ops as host
from tilewright.graph import host_random as random
from tilewright.graph import host_text as texts
from tilewright.graph import inference as infer
from tilewright.graph import semantics as compute

REQUIRED: Any = object()


@dataclass(frozen=True)
class OpDefinition:
    """One row of the table. `arity` is the least and most inputs; None: any number."""

    name: str
    kind: str
    summary: str
    arity: tuple[int, int | None]
    infer: Callable[[infer.Inputs, infer.Attributes], infer.Types]
    compute: compute.Rule
    attributes: Mapping[str, Any]  # name -> default, or REQUIRED


OPS: dict[str, OpDefinition] = {}


def _op(
    kind: str,
    name: str,
    arity: int | tuple[int, int | None],
    infer_rule: Callable[[infer.Inputs, infer.Attributes], infer.Types],
    compute_rule: compute.Rule,
    summary: str,
    **attributes: Any,
) -> None:
    bounds = (arity, arity) if isinstance(arity, int) else arity
    OPS[name] = OpDefinition(name, kind, summary, bounds, infer_rule, compute_rule, attributes)


def definition(name: str) -> OpDefinition:
    """The table row of an op; raises `KeyError` when there is none."""
    return OPS[name]


def kind_of(name: str) -> str:
    """The fusion class of an op."""
    return OPS[name].kind


_numpy = compute.of

# fmt: off
# ------------------------------------------------------------------------------- elementwise, one input
_op("elementwise", "negate", 1, infer.unary, _numpy(np.negative), "-x")
_op("elementwise", "absolute", 1, infer.unary, _numpy(np.abs), "|x|")
_op("elementwise", "sign", 1, infer.unary, _numpy(np.sign), "-1, 0 or 1")
_op("elementwise", "exp", 1, infer.unary_float, _numpy(np.exp), "e^x")
_op("elementwise", "exp2", 1, infer.unary_float, _numpy(np.exp2), "2^x")
_op("elementwise", "log", 1, infer.unary_float, _numpy(np.log), "natural logarithm")
_op("elementwise", "sqrt", 1, infer.unary_float, _numpy(np.sqrt), "square root")
_op("elementwise", "rsqrt", 1, infer.unary_float, _numpy(compute.rsqrt), "1/sqrt(x)")
_op("elementwise", "reciprocal", 1, infer.unary_float, _numpy(lambda x: (1 / x).astype(x.dtype)), "1/x")
_op("elementwise", "sin", 1, infer.unary_float, _numpy(np.sin), "sine")
_op("elementwise", "cos", 1, infer.unary_float, _numpy(np.cos), "cosine")
_op("elementwise", "tanh", 1, infer.unary_float, _numpy(np.tanh), "hyperbolic tangent")
_op("elementwise", "erf", 1, infer.unary_float, _numpy(compute.erf), "error function")
_op("elementwise", "sigmoid", 1, infer.unary_float, _numpy(compute.sigmoid), "1/(1 + e^-x)")
_op("elementwise", "erfinv", 1, infer.unary_float, _numpy(compute.erfinv), "the inverse of erf; NaN outside [-1, 1]")
_op("elementwise", "erfc", 1, infer.unary_float, _numpy(compute.erfc), "1 - erf(x), without cancellation")
_op("elementwise", "lgamma", 1, infer.unary_float, _numpy(compute.lgamma), "log |gamma(x)|")
_op("elementwise", "asin", 1, infer.unary_float, _numpy(np.arcsin), "arcsine; NaN outside [-1, 1]")
_op("elementwise", "acos", 1, infer.unary_float, _numpy(np.arccos), "arccosine; NaN outside [-1, 1]")
_op("elementwise", "atan", 1, infer.unary_float, _numpy(np.arctan), "arctangent")
_op("elementwise", "floor", 1, infer.unary_float, _numpy(np.floor), "round down")
_op("elementwise", "ceil", 1, infer.unary_float, _numpy(np.ceil), "round up")
_op("elementwise", "round", 1, infer.unary_float, _numpy(np.rint), "round to nearest, halves to even")
_op("elementwise", "logical_not", 1, infer.logical_not, _numpy(np.logical_not), "boolean not")
_op("elementwise", "bitwise_not", 1, infer.integers, _numpy(np.bitwise_not), "every bit of an integer inverted")
_op("elementwise", "isnan", 1, infer.predicate, _numpy(np.isnan), "whether x is not a number")
_op("elementwise", "relu", 1, infer.unary, _numpy(compute.relu), "max(x, 0)")
_op("elementwise", "silu", 1, infer.unary_float, _numpy(lambda x: x * compute.sigmoid(x)), "x sigmoid(x)")
_op("elementwise", "gelu", 1, infer.unary_float, compute.gelu, "x Phi(x), or its tanh form", approximate="none")
_op("elementwise", "cast", 1, infer.cast, compute.cast, "to `dtype`; to bool: x != 0", dtype=REQUIRED)
_op("elementwise", "bitcast", 1, infer.bitcast, compute.bitcast,
    "the bits of an element as another type of as many bytes; `of` and `to` are names of element types",
    of=REQUIRED, to=REQUIRED)
_op("elementwise", "clip", 1, infer.unary, compute.clip, "min(max(x, low), high)", low=None, high=None)

# ------------------------------------------------------------- elementwise, several inputs that broadcast
# Sums, differences, products and quotients of 16-bit floats take a number in float32: it is not rounded to their type.
_op("elementwise", "add", 2, infer.arithmetic, compute.arithmetic(np.add), "a + b")
_op("elementwise", "subtract", 2, infer.arithmetic, compute.arithmetic(np.subtract), "a - b")
_op("elementwise", "multiply", 2, infer.arithmetic, compute.arithmetic(np.multiply), "a b")
_op("elementwise", "divide", 2, infer.arithmetic, compute.arithmetic(compute.divide), "a / b; integers truncate")
_op("elementwise", "power", 2, infer.binary, _numpy(compute.power), "a^b; of integers with b < 0 the whole part")
_op("elementwise", "maximum", 2, infer.binary, _numpy(np.maximum), "larger, NaN if either is")
_op("elementwise", "minimum", 2, infer.binary, _numpy(np.minimum), "smaller, NaN if either is")
_op("elementwise", "remainder", 2, infer.binary, _numpy(np.remainder), "a - b floor(a/b): the sign of b")
_op("elementwise", "floor_divide", 2, infer.binary, _numpy(np.floor_divide), "floor(a/b)")
_op("elementwise", "equal", 2, infer.compare, _numpy(np.equal), "a == b")
_op("elementwise", "not_equal", 2, infer.compare, _numpy(np.not_equal), "a != b")
_op("elementwise", "less", 2, infer.compare, _numpy(np.less), "a < b")
_op("elementwise", "less_equal", 2, infer.compare, _numpy(np.less_equal), "a <= b")
_op("elementwise", "greater", 2, infer.compare, _numpy(np.greater), "a > b")
_op("elementwise", "greater_equal", 2, infer.compare, _numpy(np.greater_equal), "a >= b")
_op("elementwise", "logical_and", 2, infer.logical, _numpy(np.logical_and), "a and b, booleans")
_op("elementwise", "logical_or", 2, infer.logical, _numpy(np.logical_or), "a or b, booleans")
_op("elementwise", "bitwise_and", 2, infer.integers, _numpy(np.bitwise_and), "bits that both integers have")
_op("elementwise", "bitwise_or", 2, infer.integers, _numpy(np.bitwise_or), "bits that either integer has")
_op("elementwise", "bitwise_xor", 2, infer.integers, _numpy(np.bitwise_xor), "bits that one of two integers has")
_op("elementwise", "shift_left", 2, infer.integers, _numpy(compute.shift_left),
    "a 2^b in the type of a; 0 where b is negative or not below the type's width")
_op("elementwise", "shift_right", 2, infer.integers, _numpy(compute.shift_right),
    "floor(a / 2^b); for b negative or not below the type's width 0, or -1 of a negative a")
_op("elementwise", "random_bits", 2, random_bits.random_bits_type, random_bits.random_bits,
    "i64: 64 random bits of a place (i64), a seed (i64) and the number `stream`: the same for the same, by Philox-4x32",
    stream=REQUIRED)
_op("elementwise", "atan2", 2, infer.binary_float, _numpy(np.arctan2), "the angle of the point (b, a)")
_op("elementwise", "where", 3, infer.where, _numpy(compute.where), "condition (bool) ? a : b")

# ----------------------------------------------------------------------------------------- contractions
_op("contraction", "matmul", 2, infer.matmul, compute.matmul,
    "a [..., M, K] (or [..., K, M] with transpose_a) times b [..., K, N] (or [..., N, K] with transpose_b); leading "
    "sizes broadcast; `dtype` i32: sums of 8-bit integers, whatever their signs, f32: sums of floats of 8 or 16 bits",
    transpose_a=False, transpose_b=False, dtype=None)
_op("contraction", "dequantized_matmul", (3, 4), quantization.dequantized_matmul_type, quantization.dequantized_matmul,
    "x [..., M, K] times the numbers (w - zero point) scale of weights w [N, K] of at most 8 bits, in the type of x; "
    "scale and zero point [N, groups], of equal groups along K")
_op("contraction", "block_scaled_matmul", 4, quantization.block_scaled_matmul_type, quantization.block_scaled_matmul,
    "f32: numbers x sx [..., M, K] times (w sw)^T [N, K] of 8-bit floats x and w; scales sx [..., M, K / 128] and sw "
    "[N / 128, K / 128] of blocks of 128")
_op("contraction", "grouped_matmul", 3, infer.grouped_matmul, compute.grouped_matmul,
    "rows of a [M, K] times their group's matrix of b [G, K, N] (or [G, N, K] with transpose_b): group g ends before "
    "row ends[g] (integers [G], not falling); rows after the last group give zeros",
    transpose_b=False)
_op("contraction", "conv", (2, 3), infer.conv, compute.conv,
    "x [N, C, *spatial] (NCHW) or [N, *spatial, C] (NHWC), w [O, C/groups, *kernel], optional bias [O] of x's type or "
    "float32; padding ((low, high), ...); `exact`: of integers, whose sums have no other rounding than the type's; "
    "`dtype` i32: sums of 8-bit integers, whatever their signs, f32: sums of 8-bit floats",
    strides=REQUIRED, padding=REQUIRED, dilation=REQUIRED, groups=1, layout="NCHW", exact=False, dtype=None)
_op("attention", "attention", (3, 5), infer.attention, compute.attention,
    "softmax(scale q k^T + bias) v: q [B, H, S, D], k [B, G, T, D], v [B, G, T, E], G divides H; additive bias "
    "broadcasts to [B, H, S, T]; `lengths` [B], i32, are how many keys of a batch are seen; causal: key j is seen by "
    "query i when j <= i + T - S, `window` (0: all): of those the last ones, so many; `softcap` c (0: none): scores "
    "before the bias are c tanh(scale q k^T / c); a row that sees no key gives zeros",
    scale=REQUIRED, causal=False, window=0, softcap=0.0)
_op("paged", "paged_attention", (6, 8), paged.paged_attention_types, paged.paged_attention,
    "q [T, H, D] of several sequences against keys [slots, G, D] and values [slots, G, E] in pages: tables [R, P], "
    "starts [R + 1] and lengths [R] (integers); keys and values of 8 bits, optional scales of both [slots, G]; the new "
    "tokens of a sequence are its last, and see what is before them, at most `window` (0: all); `softcap` (0: none) "
    "bounds scores",
    scale=REQUIRED, page=REQUIRED, window=0, softcap=0.0)

_op("recurrent", "recurrent", (3, 5), recurrent.recurrent_types, recurrent.recurrent,
    "all states of a layer of `cell` rnn, lstm, lstm_8bit, lstm_peephole, gru or gru_first: x [S, D, B, gates H], "
    "w [D, H, gates H], "
    "initial [D, B, slots H], optional bias [D, gates H] and lengths [B]; [S + 1, D, B, slots H]; flags of `reverse`",
    cell=REQUIRED, functions=REQUIRED, reverse=REQUIRED)
_op("transform", "fourier", (2, 3), fourier.fourier_types, fourier.fourier,
    "transforms of rows x [..., n] by the roots of unity [n, 2], optional imaginary parts [..., n]; `form` half or "
    "whole: real, then imaginary parts of the result; real: x [..., n // 2 + 1] is half of the transform of n real "
    "numbers; no factor",
    form=REQUIRED, inverse=False)
_op("sorting", "argsort", 1, sorting.argsort_type, sorting.argsort,
    "i64 positions of the first `count` elements in order along `axis`: equal ones in their own order, NaN the largest",
    axis=REQUIRED, count=REQUIRED, descending=False)
_op("choice", "choose", 12, choices.choose_type, choices.choose,
    "i32 place in each row of logits [R, N]: at temperatures [R] of 0 of the largest, else where the running sum "
    "of e^((x - largest) / temperature), of the counts [R] largest, of these the portions [R] of their sum, and of "
    "these the ones not below floors [R], passes shares [R] of it all; -1: no number. Before, logits of rows with "
    "histories [R] above 0 are changed by presences, frequencies, repetitions [R] and tables [H * N] of tokens that "
    "were seen, and of biases")
_op("trees", "tree_leaves", 5, trees.tree_leaves_type, trees.tree_leaves,
    "i32 place of the leaf that a row of x [N, columns] reaches in each tree: [N, trees]; nodes and limits [nodes], "
    "roots and falling depths [trees] i32; the next node is the first child, or the one after it where x > limit",
    column_bits=REQUIRED)
# ------------------------------------------------------------------------------- reductions and row ops
_op("reduction", "reduce_sum", 1, infer.reduce, compute.reduction(np.sum), "sum", axes=REQUIRED, keepdims=False)
_op("reduction", "reduce_mean", 1, infer.reduce_mean, compute.reduction(np.mean), "mean", axes=REQUIRED, keepdims=False)
_op("reduction", "reduce_max", 1, infer.reduce, compute.reduction(np.max), "largest", axes=REQUIRED, keepdims=False)
_op("reduction", "reduce_min", 1, infer.reduce, compute.reduction(np.min), "smallest", axes=REQUIRED, keepdims=False)
_op("reduction", "reduce_product", 1, infer.reduce, compute.reduction(np.prod), "product",
    axes=REQUIRED, keepdims=False)
_op("reduction", "reduce_log_sum_exp", 1, infer.reduce_mean, compute.reduction(compute.log_sum_exp),
    "log(sum(e^x))", axes=REQUIRED, keepdims=False)
_op("reduction", "argmax", 1, infer.arg_reduce, compute.arg_reduction(np.argmax),
    "i64 position of the first largest", axis=REQUIRED, keepdims=False)
_op("reduction", "argmin", 1, infer.arg_reduce, compute.arg_reduction(np.argmin),
    "i64 position of the first smallest", axis=REQUIRED, keepdims=False)
_op("reduction", "cumsum", 1, infer.unary, compute.cumulative(np.cumsum), "running sum; `reverse`: from the end",
    axis=REQUIRED, reverse=False)
_op("reduction", "cumprod", 1, infer.unary, compute.cumulative(np.cumprod), "running product; `reverse`: from the end",
    axis=REQUIRED, reverse=False)
_op("reduction", "cummax", 1, infer.unary, compute.cumulative(np.maximum.accumulate), "largest so far; NaN from the "
    "first on; `reverse`: from the end", axis=REQUIRED, reverse=False)
_op("reduction", "cummin", 1, infer.unary, compute.cumulative(np.minimum.accumulate), "smallest so far; NaN from the "
    "first on; `reverse`: from the end", axis=REQUIRED, reverse=False)
_op("reduction", "cumlogsumexp", 1, infer.unary_float, compute.cumulative(compute.running_log_sum_exp),
    "running log(sum(e^x)); `reverse`: from the end", axis=REQUIRED, reverse=False)
_op("reduction", "softmax", 1, infer.unary_float, compute.softmax, "e^x / sum e^x along `axis`", axis=REQUIRED)
_op("reduction", "log_softmax", 1, infer.unary_float, compute.log_softmax, "log(softmax(x)) along `axis`",
    axis=REQUIRED)
_op("reduction", "layer_norm", (1, 3), infer.norm, compute.layer_norm,
    "(x - mean)/sqrt(variance + epsilon) over dimensions from `axis` on, times scale, plus bias",
    axis=REQUIRED, epsilon=REQUIRED)
_op("reduction", "rms_norm", (1, 2), infer.norm, compute.rms_norm,
    "x/sqrt(mean(x^2) + epsilon) over dimensions from `axis` on, times scale", axis=REQUIRED, epsilon=REQUIRED)
_op("composite", "batch_norm", 5, infer.channel_norm, compute.batch_norm,
    "x, scale, bias, mean, variance: channels are dimension 1; inference form", epsilon=REQUIRED)
_op("composite", "quantize", (2, 3), quantization.quantize_type, quantization.quantize,
    "x / scale rounded to whole numbers, halves to even, plus a zero point, kept within the range of `dtype`; scale "
    "and zero point, integers of any type, broadcast with x", dtype=REQUIRED)
_op("composite", "dequantize", (2, 3), quantization.dequantize_type, quantization.dequantize,
    "f32: (x - zero point) scale of integers, or x scale of 8-bit floats; scale and zero point, integers of any type, "
    "broadcast with x")
_op("composite", "group_norm", (1, 3), infer.channel_norm, compute.group_norm,
    "x, scale, bias: channels are dimension 1, normalised in `groups`", groups=REQUIRED, epsilon=REQUIRED)

# --------------------------------------------------------------------------------------------- movement
_op("view", "reshape", 1, infer.reshape, compute.reshape, "same elements in row-major order; `same`: dimensions are "
    "the same ones, which `shape` spells in another way", shape=REQUIRED, same=False)
_op("movement", "permute", 1, infer.permute, compute.permute, "output dimension i is input dimension order[i]",
    order=REQUIRED)
_op("movement", "broadcast_to", 1, infer.broadcast_to, compute.broadcast_to, "repeat dimensions of size 1",
    shape=REQUIRED)
_op("movement", "slice", 1, infer.slice_, compute.slice_,
    "elements start, start + step, ... before stop along `axis`; with a negative step stop may be -1: through 0",
    axis=REQUIRED, start=0, stop=REQUIRED, step=1)
_op("movement", "concat", (1, None), infer.concat, compute.concat, "one after the other along `axis`", axis=REQUIRED)
_op("movement", "frames", 1, infer.frames, compute.frames,
    "`count` pieces of `axis`, each `length` long, which begin `step` apart: [..., count, length, ...]",
    axis=REQUIRED, count=REQUIRED, length=REQUIRED, step=REQUIRED)
_op("movement", "gather", 2, infer.gather, compute.gather,
    "slices of x along `axis` at integer indices (any shape, replaces the axis); negative ones count from the end",
    axis=REQUIRED)
_op("movement", "gather_elements", 2, infer.gather_elements, compute.gather_elements,
    "out[.., i, ..] = x[.., indices[.., i, ..], ..], shape of the indices", axis=REQUIRED)
_op("movement", "scatter_update", 3, infer.scatter_update, compute.scatter_update,
    "x with slices at indices [n] along `axis` replaced by updates; the last of equal indices wins, or any of them if "
    "they are said to be `distinct`",
    axis=REQUIRED, distinct=False)
_op("movement", "scatter_reduce", 3, infer.scatter_update, compute.scatter_reduce,
    "x with updates combined into the slices at indices [n] along `axis`, in the order of the indices if `ordered`;"
    " `reduction`: add, multiply, maximum or minimum",
    axis=REQUIRED, reduction=REQUIRED, ordered=False)
_op("movement", "pad", 1, infer.pad, compute.pad, "`value` around x: pads ((low, high), ...)",
    pads=REQUIRED, value=0)
_op("movement", "copy", 1, infer.unary, _numpy(np.copy), "a new tensor with the same elements")

# ---------------------------------------------------------------------------------------------- sources
_op("source", "iota", 0, infer.source, compute.iota, "start + step * (position along `axis`)",
    shape=REQUIRED, axis=0, dtype=int64, start=0, step=1)
_op("source", "full", 0, infer.source, compute.full, "one number everywhere",
    shape=REQUIRED, value=REQUIRED, dtype=REQUIRED)
_op("source", "dimension", 0, infer.dimension, compute.dimension, "i64 scalar: the value of a symbolic size",
    expression=REQUIRED)

# ------------------------------------------------------------------------------------------------ pools
_op("pool", "max_pool", 1, infer.pool, compute.max_pool, "largest of each window; padding never wins",
    kernel=REQUIRED, strides=REQUIRED, padding=REQUIRED, dilation=REQUIRED, ceil_mode=False, layout="NCHW")
_op("pool", "average_pool", 1, infer.pool, compute.average_pool, "mean of each window",
    kernel=REQUIRED, strides=REQUIRED, padding=REQUIRED, dilation=REQUIRED, ceil_mode=False,
    count_include_pad=False, layout="NCHW")

# ------------------------------------------------------------- sizes and choices that only the run knows
_op("host", "extent", 1, host.extent_type, host.extent,
    "a tensor without memory whose length is an element of an integer tensor: it gives the symbol `size` its value",
    element=0, size=REQUIRED, what="a size")
_op("host", "condition", 1, host.condition_type, host.condition,
    "a boolean that must be true: a call for which it is not ends there, and says `what` was expected", what=REQUIRED)
_op("host", "resolved_shape", 2, host.extents_type, host.resolved_shape,
    "the `count` sizes of a reshape to the first list of a tensor with the second's sizes: 0 and -1 resolved",
    count=REQUIRED, allow_zero=False, what="the shape")
_op("host", "broadcast_extents", 2, host.extents_type, host.broadcast_extents,
    "the `count` sizes to which two lists of sizes broadcast", count=REQUIRED, what="the shape")
_op("host", "inserted_extents", 2, host.extents_type, host.inserted_extents,
    "a list of sizes with ones at axes", count=REQUIRED, what="the axes")
_op("host", "removed_extents", 2, host.extents_type, host.removed_extents,
    "a list of sizes without those at axes, or with ones there (`keep`)",
    count=REQUIRED, keep=False, reduced=False, what="the axes")
_op("host", "range_count", 3, host.number_type, host.range_count, "i64: the elements of a range of start, limit, step",
    what="the range")
_op("host", "broadcast_at", 2, host.declared, host.broadcast_at, "x stretched to a list of sizes",
    shape=REQUIRED, what="the shape")
_op("host", "axes_last", 2, host.declared, host.axes_last, "x with the dimensions at axes as one, the last",
    shape=REQUIRED, what="the axes")
_op("host", "last_axis_at", 2, host.declared, host.last_axis_at, "x with its last dimension in the place of an axis",
    shape=REQUIRED, what="the axis")
_op("host", "slice_at", (3, 5), host.declared, host.slice_at, "x between starts and ends along axes, by steps",
    shape=REQUIRED, what="the slice")
_op("host", "pad_at", (2, 4), host.declared, host.pad_at, "x with pads, by a value, along axes; negative ones cut",
    shape=REQUIRED, mode="constant", what="the pads")
_op("host", "nonzero", 1, host.positions, host.nonzero, "i64 [rank, n]: where x is not zero", shape=REQUIRED)
_op("host", "compress", 2, host.declared, host.compress, "slices of x along `axis` where a list of booleans is true",
    axis=REQUIRED, shape=REQUIRED)
_op("host", "unique", 1, host.values_or_positions, host.unique,
    "different slices along `axis`, of neighbours only with `consecutive`; `gives`: values, first, inverse or counts",
    axis=REQUIRED, shape=REQUIRED, gives="values", sorted=True, consecutive=False, nan_equal=True)
_op("host", "repeated_positions", 1, host.positions, host.repeated_positions,
    "i64: each position of a list of counts, as often as it says", shape=REQUIRED)
_op("host", "occurrences", (2, 3), host.counted, host.occurrences,
    "how often each number from 0 on appears, at least up to a length, or the sums of weights", shape=REQUIRED)
_op("host", "top_k", 2, host.values_or_positions, host.top_k,
    "the k largest or smallest along `axis`; `gives`: values or positions",
    axis=REQUIRED, shape=REQUIRED, gives="values", largest=True, what="k")
_op("host", "matrix_part", 1, matrices.matrix_part_type, matrices.matrix_part,
    "a factor of matrices [..., m, n], `part`: q or r; u, s or vh of a singular value decomposition; values or vectors "
    "of eigenvalues; cholesky; inverse, pivots, determinant, its sign and logarithm; `full`: q, u, vh square; `upper`: "
    "which triangle of a symmetric matrix eigenvalues read",
    part=REQUIRED, full=False, upper=False)
_op("host", "coupled_probabilities", 1, host.coupled_type, host.coupled_probabilities,
    "probabilities of classes [N, C] from those of every pair of classes [N, C, C]")
_op("host", "warping_path", 1, host.positions, host.warping_path,
    "i64 [2, n]: rows and columns of the cheapest path through a matrix of costs, from its first to its last element",
    shape=REQUIRED)
_op("host", "non_max_suppression", (2, 5), host.positions, host.non_max_suppression,
    "i64 [n, 3] (batch, class, box) of boxes that overlap no better one by more than a share",
    shape=REQUIRED, center=False)

# ------------------------------------------------------------------------- text, sequences and optionals
_op("host", "text", 0, texts.text_type, texts.text, "a constant tensor of text", elements=REQUIRED, shape=REQUIRED)
_op("host", "text_concat", 2, texts.joined_type, texts.text_concat, "the second text after the first")
_op("host", "text_split", 1, texts.split_type, texts.text_split,
    "pieces between `delimiter` (\"\": spaces), at most `most` cuts; `gives`: pieces [..., count] or counts",
    delimiter="", most=None, gives="pieces", count=0)
_op("host", "text_normalize", 1, texts.normalized_type, texts.text_normalize,
    "texts [C] or [1, C] without `stopwords`, in lower or upper `case`; of none an empty one",
    stopwords=(), case="NONE", sensitive=False, count=REQUIRED)
_op("host", "text_matches", 1, texts.matched_type, texts.text_matches,
    "whether a whole text is one that the regular expression `pattern` describes", pattern=REQUIRED)
_op("host", "text_position", 1, texts.position_type, texts.text_position,
    "i64: the place of a text among `keys`, the last of equal ones; -1 where it is not there", keys=REQUIRED)
_op("host", "text_tokens", 1, texts.tokens_type, texts.text_tokens,
    "the longest parts that the regular expression `pattern` describes, or those between what `separators` do; of "
    "`least` letters; `filler` where there are fewer; `marked`: STX before and ETX after them",
    pattern="", separators=(), least=1, marked=False, filler="", count=REQUIRED)
_op("host", "murmur_hash", 1, texts.hash_type, texts.murmur_hash,
    "32 bits of MurmurHash3 of text or numbers, i32 or u32 (`positive`)", seed=0, positive=True)
_op("host", "sequence_counts", 1, texts.counts_type, texts.sequence_counts,
    "how often each of the `sequences` (length, begin in `pool`, begin in `columns`, number) is in rows of tokens "
    "[N, C], with up to `skips` tokens between theirs; [N, size]",
    pool=REQUIRED, columns=REQUIRED, sequences=REQUIRED, size=REQUIRED, skips=0)
_op("host", "text_to_number", 1, texts.number_type, texts.text_to_number, "the number that a text is", to=REQUIRED)
_op("host", "number_to_text", 1, texts.written_type, texts.number_to_text, "numbers in decimal, 8 digits of floats")
_op("host", "sequence", (0, None), lists.sequence_type, lists.make_list, "a sequence of tensors `of` one type",
    of=REQUIRED)
_op("host", "sequence_insert", (2, 3), lists.insert_type, lists.sequence_insert,
    "a sequence with a tensor at a position, or at its end", what="the position")
_op("host", "sequence_erase", (1, 2), lists.erase_type, lists.sequence_erase,
    "a sequence without the tensor at a position, or the last", what="the position")
_op("host", "list_item", (1, 2), lists.item_type, lists.list_item,
    "the tensor of a sequence at a position, or the last; what an optional holds", shape=REQUIRED, what="the position")
_op("host", "sequence_join", 1, lists.join_type, lists.sequence_join,
    "the tensors of a sequence one after the other `along` an axis, or along a new one", shape=REQUIRED, along=REQUIRED,
    stacked=False)
_op("host", "sequence_split", (1, 2), lists.split_type, lists.sequence_split,
    "slices of x along `axis`: of one size, of a list of sizes, or one each, then without `axis` unless `keep`",
    axis=REQUIRED, shape=REQUIRED, keep=True, what="the sizes")
_op("host", "zip_map", 2, lists.zipped_type, lists.zip_map,
    "a sequence of dictionaries, one for each row of numbers [N, C] or [C], by their C keys")
_op("host", "optional", (0, 1), lists.optional_type, lists.make_list,
    "an optional `of` a type, which holds x or nothing", of=REQUIRED)

_op("host", "random", 0, random.random_type, random.random,
    "numbers `of` a type, uniform from 0 up to 1 or normal of mean 0 and variance 1; without a seed others each time",
    shape=REQUIRED, distribution="uniform", of="float32", seed=None)
_op("host", "decoded_image", 1, images.decoded_type, images.decoded_image,
    "pixels [height, width, channels] of the bytes of an image file, as RGB, BGR or Grayscale", shape=REQUIRED,
    format="RGB")

# -------------------------------------------------------------------------------------- parts and graphs inside
_op("part", "part", (0, None), host.given_types, host.only_run, "compiled part `number`", number=REQUIRED,
    types=REQUIRED)
_op("control", "if", (1, None), host.given_types, host.only_run,
    "condition, captured values: the graph `then` or the graph `otherwise` of the captured values",
    then=REQUIRED, otherwise=REQUIRED, types=REQUIRED)
_op("control", "loop", (2, None), host.given_types, host.only_run,
    "trip count or none, condition or none, `carried` values, captured values: `body` takes the iteration, the "
    "condition, the carried and the captured values; gives the next condition, the next carried values and rows; the "
    "results are the last carried values and the rows stacked",
    body=REQUIRED, carried=REQUIRED, types=REQUIRED)
# fmt: on

ON_HOST = ("host", "part", "control")  # kinds that no kernel is generated for
_LISTS = frozenset(
    {"sequence", "sequence_insert", "sequence_erase", "list_item", "sequence_join", "sequence_split", "optional",
     "zip_map"}
)  # fmt: skip
_ANY = frozenset({"copy", "if", "loop"})  # that take and give what only the host works on
_TEXT = frozenset(
    {
        "text",
        "text_concat",
        "text_split",
        "text_normalize",
        "text_matches",
        "text_position",
        "text_tokens",
        "murmur_hash",
        "text_to_number",
        "number_to_text",
    }
)
_TEXT_TOO = frozenset(  # that move or compare elements, whatever they are
    {"reshape", "permute", "broadcast_to", "slice", "concat", "gather", "gather_elements", "scatter_update", "where",
     "equal", "not_equal", "broadcast_at", "axes_last", "last_axis_at", "slice_at", "compress", "unique"}
)  # fmt: skip


def _positive_axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise infer.ShapeError(f"axis {axis} is out of range for rank {rank}")
    return int(axis) + rank if axis < 0 else int(axis)


def normalize(name: str, inputs: infer.Inputs, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with defaults filled in, axes counted from the front, and a -1 in a shape resolved.

    Raises `ShapeError` for an unknown, missing or out-of-range attribute.
    """
    row = OPS[name]
    unknown = sorted(set(attributes) - set(row.attributes))
    missing = sorted(key for key, default in row.attributes.items() if default is REQUIRED and key not in attributes)
    if unknown or missing:
        raise infer.ShapeError(f"{name}: unknown attributes {unknown}, missing attributes {missing}")
    result = {key: attributes.get(key, default) for key, default in row.attributes.items()}
    rank = len(result["shape"]) if row.kind == "source" and "shape" in result else 0
    if inputs and inputs[0] is not None:
        rank = inputs[0].rank
    if "axis" in result and not (name == "iota" and rank == 0):
        result["axis"] = _positive_axis(result["axis"], rank)
    if "axes" in result:
        result["axes"] = tuple(sorted(_positive_axis(axis, rank) for axis in result["axes"]))
    if "order" in result:
        result["order"] = tuple(_positive_axis(axis, rank) for axis in result["order"])
    if "shape" in result:
        result["shape"] = _resolve(name, tuple(result["shape"]), inputs)
    for key in ("strides", "dilation", "kernel"):
        if key in result:
            result[key] = tuple(result[key])
    for key in ("padding", "pads"):
        if key in result:
            result[key] = tuple((low, high) for low, high in result[key])
    if name == "slice":
        _normalize_slice(result, infer.value(inputs, 0).shape[result["axis"]])
    return result


def _resolve(name: str, shape: tuple[infer.Size, ...], inputs: infer.Inputs) -> tuple[infer.Size, ...]:
    """A reshape's -1 as the size that is left over; other shapes with plain ints."""
    shape = tuple(int(n) if isinstance(n, (int, np.integer)) else infer.simplify(n) for n in shape)
    if name != "reshape" or -1 not in shape:
        return shape
    known = infer.product([extent for extent in shape if extent != -1])
    if known == 0 or shape.count(-1) > 1:
        raise infer.ShapeError(f"reshape cannot resolve -1 in {infer.shape_text(shape)}")
    rest = infer.floor_divide(infer.product(infer.value(inputs, 0).shape), known)
    return tuple(rest if extent == -1 else extent for extent in shape)


def _normalize_slice(attributes: dict[str, Any], extent: infer.Size) -> None:
    """Python's slice rules for a positive step; a negative step takes start and stop as they are."""
    if attributes["step"] == 0:
        raise infer.ShapeError("slice: the step is 0")
    if attributes["step"] < 0:
        return
    for key in ("start", "stop"):
        bound = infer.simplify(attributes[key])
        if isinstance(bound, int) and bound < 0:
            bound = infer.simplify(infer.lift(extent) + bound)
        if isinstance(bound, int) and isinstance(extent, int):
            bound = max(bound, 0)
        attributes[key] = infer.minimum(bound, extent)
    start = attributes["start"]
    if isinstance(start, int) and isinstance(attributes["stop"], int):
        attributes["stop"] = max(start, attributes["stop"])


def infer_types(name: str, inputs: infer.Inputs, attributes: Mapping[str, Any]) -> infer.Types:
    """The (dtype, shape) of each output; raises `ShapeError` when the inputs do not fit."""
    row = OPS[name]
    least, most = row.arity
    if len(inputs) < least or (most is not None and len(inputs) > most):
        raise infer.ShapeError(
            f"{name} takes {least}{'' if most == least else f' to {most}'} inputs, got {len(inputs)}"
        )
    try:
        types = row.infer(inputs, attributes)
        _check_elements(name, [*(item.dtype for item in inputs if item is not None), *(dtype for dtype, _ in types)])
        return types
    except infer.ShapeError as error:
        raise infer.ShapeError(f"{name}: {error}") from None


def _check_elements(name: str, dtypes: Sequence[DType]) -> None:
    """Raise `ShapeError` where an op of numbers has to do with text, sequences or optionals."""
    others = HOST_ONLY.intersection(dtypes)
    if others and name not in _ANY | _LISTS and (others != {string} or name not in _TEXT | _TEXT_TOO):
        raise infer.ShapeError(f"works on numbers, not on {' and '.join(sorted(map(str, others)))}")
