"""Recognises attention in its parts.

    matmul(softmax(scale * matmul(q, k^T) + mask), v)  ->  attention(q, k, v, bias)

Accepted on the way: the scale before or after the product, on q and k separately; any number of
additive masks; `where(mask, scores, low)` with a low of -1e9 or less; a guard that turns the NaNs of
rows without a visible key into zeros (attention gives zeros there); keys and values repeated for
grouped heads; causal masks built from comparisons of positions, which become a flag, and those of a sliding window
beside them, and of so many keys of each batch; c tanh(scores / c) before the masks, which is a bound of the op; masks
for each window of a batch; in 16 bits a softmax in float32, with casts around it (the op's softmax is in float32
anyway).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, bfloat16, float16, float32, int32
from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.inference import Shape, broadcast_shapes
from tilewright.graph.passes.causal import (
    band_of_array,
    is_causal,
    is_causal_array,
    is_lower_triangle,
    prefix_lengths,
    sliding_window,
)
from tilewright.graph.passes.mask_corners import corner_of_mask
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import Size, at_most, floor_divide, lift, simplify

# After softmax such a score is zero next to any other. The least number of float16 is -65504.
_LOW_ENOUGH = -1e9
_LOW_ENOUGH_IN_HALF = -3e4
# Lower numbers hide a key no better, but become minus infinity where kernels scale them; and rows without any key but
# such ones would be zeros, not the mean of all values.
_LOWEST = -1e30
# Kernels compute c tanh(s / c) as c - 2c / (2^y + 1), which cancels for small scores: float32 leaves c times 6e-8.
_LARGEST_CAP = 1e3
# Relative positions and slopes are smaller numbers, and so are these operations' results for them.
_USUAL = 1e4
_BOUNDED = frozenset(
    "add subtract multiply negate absolute minimum maximum clip where cast iota dimension "
    "reshape broadcast_to permute slice concat gather".split()
)
_LEADING = ("matmul", "multiply", "divide", "add", "where", "reshape", "cast", "tanh")  # from products to softmax
_HALVES = (float16, bfloat16)
_DEEPEST_MASK = 6  # masks nested deeper are no masks; sums of sums would take exponential time


def recognise_attention(graph: Graph) -> Graph:
    """Replace decomposed attention by the `attention` op and simplify the ones that are there."""
    present = [_even_bias, _grouped_heads, _banded_bias, _causal_bias, _scaled_operands, _scalable_bias]
    return apply_rules(graph, {"matmul": [_attention], "attention": present})


@dataclass
class _Scores:
    """What was found between softmax and the product of queries and keys."""

    product: Node
    scale: float = 1.0
    biases: list[Value] = field(default_factory=list)  # additive
    masks: list[Value] = field(default_factory=list)  # boolean, true where a key may be seen
    fills: list[float] = field(default_factory=list)
    softcap: float = 0.0  # of the scores before masks
    causal: bool = False
    windows: Size = 1  # of a batch, where masks differ by window: they are heads to the op


def _attention(node: Node, rewriter: GraphRewriter) -> Value | None:
    weights, values = node.inputs
    softmax = _softmax_below_guard(weights, rewriter)
    if softmax is None or weights is None or values is None or weights.rank not in (3, 4):
        return None
    if softmax.attributes["axis"] != weights.rank - 1 or values.rank != weights.rank:
        return None
    scores = _scores(softmax.inputs[0], rewriter)
    if scores is None:
        return None
    query, key = scores.product.inputs
    if query is None or key is None or query.rank != weights.rank or key.rank != weights.rank:
        return None
    if not query.dtype == key.dtype == values.dtype:
        return None
    if not scores.product.attributes["transpose_b"]:
        key = rewriter.op("permute", [key], order=(*range(key.rank - 2), key.rank - 1, key.rank - 2))
    if node.attributes["transpose_b"]:
        values = rewriter.op("permute", [values], order=(*range(values.rank - 2), values.rank - 1, values.rank - 2))
    bias = _joined_bias(scores, query, rewriter)
    operands = [query, key, values]
    if scores.windows != 1:
        operands = [_windows_as_heads(operand, scores.windows, rewriter) for operand in operands]
    if weights.rank == 3:  # one head
        operands = [rewriter.op("reshape", [x], shape=(x.shape[0], 1, *x.shape[1:])) for x in operands]
        if bias is not None and bias.rank == 3:
            bias = rewriter.op("reshape", [bias], shape=(bias.shape[0], 1, *bias.shape[1:]))
    if not _fit(operands, bias):
        return None
    inputs = operands if bias is None else [*operands, bias]
    result = rewriter.op("attention", inputs, scale=scores.scale, causal=scores.causal, softcap=scores.softcap)
    mask = " and ".join(["a causal mask"] * scores.causal + ["a bias"] * (bias is not None)) or "no mask"
    rewriter.remark(f"attention %{node.output.name} was found in its parts, with {mask}")
    if result.shape != node.output.shape:
        result = rewriter.op("reshape", [result], shape=node.output.shape)
    blind = None if softmax.output is not _unguarded(weights, rewriter) else _blind_rows(scores, rewriter)
    if blind is None:
        return result
    nan = rewriter.number(math.nan, result.dtype)
    return rewriter.op("where", [blind, nan, result])


def _unguarded(weights: Value, rewriter: GraphRewriter) -> Value | None:
    """What weights are a cast of, or themselves: a softmax without a guard gives NaN for rows that see no key."""
    return _below_cast(weights, float32, _HALVES, rewriter)


def _blind_rows(scores: _Scores, rewriter: GraphRewriter) -> Value | None:
    """Whether no row sees a key by the masks of keys [..., 1, 1] together; None where no such mask can hide all keys.

    Masks with rows of their own, as causal ones, are taken to leave each row a key.
    """
    visible = [
        mask for mask, fill in zip(scores.masks, scores.fills, strict=True) if fill == -math.inf and _is_of_keys(mask)
    ]
    for bias in scores.biases if scores.windows == 1 else []:
        if _is_of_keys(bias) and _hides_by_condition(bias, rewriter):
            hidden = rewriter.op("equal", [bias, rewriter.number(-math.inf, bias.dtype)])
            visible.append(rewriter.op("logical_not", [hidden]))
    if not visible:
        return None
    return rewriter.op("logical_not", [_any(_all_of(visible, rewriter), rewriter)])


def _is_of_keys(mask: Value) -> bool:
    """Whether a mask is the same for all rows."""
    return mask.rank == 1 or (mask.rank > 1 and mask.shape[-2] == 1)


def _all_of(masks: list[Value], rewriter: GraphRewriter) -> Value:
    """Where all masks are true."""
    return functools.reduce(lambda left, right: rewriter.op("logical_and", [left, right]), masks)


def _any(mask: Value, rewriter: GraphRewriter) -> Value:
    """Whether a row of a mask is true anywhere."""
    counted = rewriter.op("cast", [mask], dtype=int32)
    most = rewriter.op("reduce_max", [counted], axes=(mask.rank - 1,), keepdims=True)
    return rewriter.op("greater", [most, rewriter.number(0, int32)])


def _hides_by_condition(bias: Value, rewriter: GraphRewriter) -> bool:
    """Whether a bias is minus infinity where a condition says so, and not as numbers that are known."""
    node = rewriter.producer(bias, "where", "reshape", "broadcast_to")
    while node is not None and node.op != "where" and rewriter.constant(node.output) is None:
        node = rewriter.producer(node.inputs[0], "where", "reshape", "broadcast_to")
    if node is None or node.op != "where" or rewriter.constant(node.output) is not None:
        return False
    return any(rewriter.uniform(item) == -math.inf for item in node.inputs[1:])


def _fit(operands: list[Value], bias: Value | None) -> bool:
    """Batch and heads of all operands are equal (no broadcasting), head widths are numbers, and the bias fits."""
    query, key, values = operands
    if not (isinstance(query.shape[3], int) and isinstance(values.shape[3], int)):
        return False  # the kernels hold whole heads
    if not query.shape[:2] == key.shape[:2] == values.shape[:2] or key.shape[2] != values.shape[2]:
        return False
    if bias is None:
        return True
    scores = (*query.shape[:3], key.shape[2])
    try:
        return bias.rank <= 4 and broadcast_shapes(scores, bias.shape) == scores
    except ShapeError:
        return False


def _softmax_below_guard(value: Value | None, rewriter: GraphRewriter) -> Node | None:
    """The softmax, seen through `where(isnan(p), 0, p)`, `where(no key visible, 0, p)` and casts to 16 bits."""
    node = rewriter.producer(_below_cast(value, float32, _HALVES, rewriter), "softmax", "where")
    if node is None or node.op == "softmax":
        return node
    softmax = rewriter.producer(_below_cast(node.inputs[2], float32, _HALVES, rewriter), "softmax")
    if softmax is None or rewriter.uniform(node.inputs[1]) != 0:
        return None
    test = rewriter.producer(node.inputs[0])
    if test is not None and test.op == "isnan" and test.inputs[0] is node.inputs[2]:
        return softmax
    return softmax if _is_blind(node.inputs[0], softmax.inputs[0], rewriter) else None


def _below_cast(
    value: Value | None, source: DType, results: tuple[DType, ...], rewriter: GraphRewriter
) -> Value | None:
    """What is cast from `source` to one of `results`; any other value itself."""
    node = rewriter.producer(value, "cast")
    if node is None or value is None or value.dtype not in results or node.inputs[0] is None:
        return value
    return node.inputs[0] if node.inputs[0].dtype == source else value


def _is_blind(value: Value | None, scores: Value | None, rewriter: GraphRewriter) -> bool:
    """Whether a condition is true exactly for the rows whose scores are all -inf.

    Exporters write "not any(s != -inf)" with casts, comparisons with 0 and logical nots in between;
    `blind` says whether the value looked at means that, or its opposite.
    """
    blind, reduced = True, False
    node = rewriter.producer(value)
    while node is not None:
        compares = node.op in ("equal", "not_equal")
        if compares and scores in node.inputs:
            infinite = any(rewriter.uniform(item) == -math.inf for item in node.inputs)
            return reduced and infinite and blind == (node.op == "equal")
        if node.op == "logical_not" or (node.op == "equal" and rewriter.uniform(node.inputs[1]) == 0):
            blind = not blind
        elif node.op in ("reduce_max", "reduce_min"):
            last = node.inputs[0] is not None and node.attributes["axes"] == (node.inputs[0].rank - 1,)
            if reduced or not last or blind != (node.op == "reduce_min"):
                return False
            reduced = True
        elif node.op not in ("cast", "reshape") and not (compares and rewriter.uniform(node.inputs[1]) == 0):
            return False
        node = rewriter.producer(node.inputs[0])
    return False


def _scores(value: Value | None, rewriter: GraphRewriter) -> _Scores | None:
    """Peel scales and masks off until the product of queries and keys."""
    scale, softcap = 1.0, 0.0
    biases: list[Value] = []
    levels: list[Shape] = []  # of the scores that each bias is added to
    masks: list[Value] = []
    fills: list[float] = []
    while True:
        node = rewriter.producer(value, *_LEADING)
        if node is None:
            return None
        left, right = (*node.inputs, None)[:2]
        if node.op == "matmul":
            break
        if node.op in ("multiply", "divide"):
            factor = rewriter.uniform(right)
            value = left
            if factor is None and node.op == "multiply":
                factor, value = rewriter.uniform(left), right
            if not factor or factor < 0:
                return None
            scale *= factor if node.op == "multiply" else 1 / factor
        elif node.op == "tanh":
            if softcap or scale > _LARGEST_CAP:
                return None
            softcap, scale, value = scale, 1.0, left
        elif node.op == "add":
            if scale != 1.0 or softcap:  # the bias is scaled or bounded as well: not worth the trouble
                return None
            first = _leads_to_matmul(left, rewriter)
            value, bias = (left, right) if first else (right, left)
            assert bias is not None
            biases.append(bias)
            levels.append(node.output.shape)
        elif node.op == "reshape":
            if left is None or {left.rank, node.output.rank} != {4, 5} or left.shape[-2:] != node.output.shape[-2:]:
                return None
            value = left
        elif node.op == "cast":
            if left is None or left.dtype not in _HALVES or node.output.dtype != float32:
                return None
            value = left
        else:
            chosen = _masked(node, rewriter)
            if chosen is None or node.output.rank == 5 or softcap:
                return None
            value, mask, fill = chosen
            masks.append(mask)
            fills.append(fill)
    exact = [_in_type(bias, node.output.dtype, rewriter) for bias in biases]
    scale *= softcap or 1.0
    found = _Scores(node, scale, [bias for bias in exact if bias is not None], masks, fills, softcap)
    return found if None not in exact and _settle_windows(found, levels, rewriter) else None


def _in_type(bias: Value, dtype: DType, rewriter: GraphRewriter) -> Value | None:
    """A float32 bias in the type of the product, where nothing is lost: one widened before, or numbers that 16 bits
    hold. What is low enough to hide a key may become another such number."""
    if bias.dtype == dtype:
        return bias
    narrow = _below_cast(bias, dtype, (float32,), rewriter)
    if narrow is not bias:
        return narrow
    data = rewriter.constant(bias)
    if data is not None:
        numbers = np.where(np.isneginf(data), data, np.maximum(data, _least(dtype))).astype(dtype.numpy)
        same = (numbers.astype(data.dtype) == data) | (data <= _LOW_ENOUGH)
        return rewriter.new_constant(numbers, bias.name) if same.all() else None
    node = rewriter.producer(bias, "where", "reshape", "broadcast_to", "permute")
    if node is None:
        return None
    if node.op != "where":
        source = None if node.inputs[0] is None else _in_type(node.inputs[0], dtype, rewriter)
        return None if source is None else rewriter.op(node.op, [source], **node.attributes)
    numbers_of = [rewriter.uniform(item) for item in node.inputs[1:]]
    if any(number is None or (number != 0 and number > _LOW_ENOUGH) for number in numbers_of):
        return None
    return rewriter.op("where", [node.inputs[0], *(_hiding(number, dtype, rewriter) for number in numbers_of)])


def _hiding(number: float | None, dtype: DType, rewriter: GraphRewriter) -> Value:
    """Zero, or what hides keys: finite numbers stay finite, so that rows without a visible key do not become zeros."""
    assert number is not None
    return rewriter.number(max(number, _least(dtype)) if math.isfinite(number) else number, dtype)


def _least(dtype: DType) -> float:
    """The least finite number that hides a key, and stays finite when it is scaled (as far as the type allows)."""
    return max(float(ml_dtypes.finfo(dtype.numpy).min), _LOWEST)


def _settle_windows(scores: _Scores, levels: list[Shape], rewriter: GraphRewriter) -> bool:
    """Make biases of scores [batch, windows, heads, rows, keys] ones of [batch, windows * heads, rows, keys].

    Shifted windows (Swin) add a mask for each window, and one for each head, the same for all images.
    Returns whether that can be done.
    """
    wide = [level for level in levels if len(level) == 5]
    product = scores.product.output
    if not wide:
        return True
    _, windows, heads, rows, keys = wide[0]
    if product.rank != 4 or scores.masks or any(level != wide[0] for level in wide) or product.shape[1] != heads:
        return False
    total: Value | None = None
    for bias, level in zip(scores.biases, levels, strict=True):
        shape = (1,) * (len(level) - bias.rank) + bias.shape
        if shape[0] != 1:
            return False
        spread = rewriter.op("reshape", [bias], shape=shape if len(level) == 5 else (1, *shape))
        total = spread if total is None else rewriter.op("add", [total, spread])
    assert total is not None
    total = rewriter.op("broadcast_to", [total], shape=(1, windows, heads, rows, keys))
    scores.windows = windows
    scores.biases = [rewriter.op("reshape", [total], shape=(1, simplify(lift(windows) * heads), rows, keys))]
    return True


def _windows_as_heads(value: Value, windows: Size, rewriter: GraphRewriter) -> Value:
    """[batch * windows, heads, rows, width] as [batch, windows * heads, rows, width]."""
    batch, heads, rows, width = value.shape
    shape = (floor_divide(batch, windows), simplify(lift(windows) * heads), rows, width)
    return rewriter.op("reshape", [value], shape=shape)


def _leads_to_matmul(value: Value | None, rewriter: GraphRewriter, depth: int = _DEEPEST_MASK) -> bool:
    """Whether a value is a product, perhaps scaled and masked."""
    node = rewriter.producer(value, *_LEADING)
    if node is None or node.op == "matmul" or depth == 0:
        return node is not None and node.op == "matmul"
    return any(_leads_to_matmul(item, rewriter, depth - 1) for item in node.inputs)


def _masked(node: Node, rewriter: GraphRewriter) -> tuple[Value, Value, float] | None:
    """(scores, condition that is true where they count, fill) of a `where`."""
    condition, left, right = node.inputs
    assert condition is not None and left is not None and right is not None
    fill = rewriter.uniform(right)
    if _is_low(fill, left):
        assert fill is not None
        return left, condition, fill
    fill = rewriter.uniform(left)
    if _is_low(fill, right):
        assert fill is not None
        return right, rewriter.op("logical_not", [condition]), fill
    return None


def _is_low(number: float | None, scores: Value) -> bool:
    """Whether a key whose score becomes this number (or gets it added) is not seen."""
    return number is not None and number <= (_LOW_ENOUGH_IN_HALF if scores.dtype == float16 else _LOW_ENOUGH)


def _leaves_out(low: float, rows: Size, keys: Size, others_hide: bool) -> bool:
    """Whether keys that a causal mask or a window hides by `low` may be left out: by minus infinity, or where every row
    sees its own key. A row that sees none is the mean of all values for a finite number, and zeros without its keys."""
    return low == -math.inf or (not others_hide and at_most(rows, keys))


def _joined_bias(scores: _Scores, query: Value, rewriter: GraphRewriter) -> Value | None:
    """All masks as one additive value; causal ones set the flag instead."""
    rows, keys = scores.product.output.shape[-2:]
    biases = list(scores.biases)
    causal = [is_causal(mask, rows, keys, rewriter) for mask in scores.masks]
    additive: list[tuple[Value, float]] = []
    others_hide = not all(causal) or any(_may_hide(bias, rewriter) for bias in biases)
    for mask, fill, flag in zip(scores.masks, scores.fills, causal, strict=True):
        if flag and _leaves_out(fill, rows, keys, others_hide):
            scores.causal = True
            continue
        additive.append((mask, fill))
    if additive:
        hidden = rewriter.number(0.0, query.dtype)
        for mask, fill in reversed(additive):  # the last mask decides what is hidden by several
            hidden = rewriter.op("where", [mask, hidden, _hiding(fill, query.dtype, rewriter)])
        biases.append(hidden)
    bias: Value | None = None
    for item in biases:
        bias = item if bias is None else rewriter.op("add", [bias, item])
    return bias


# Attention that is already one op --------------------------------------------------------------------


def _grouped_heads(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Keys and values that are repeated for groups of query heads are read once."""
    query, key, values, *rest = node.inputs
    few_keys, few_values = _unrepeated(key, rewriter), _unrepeated(values, rewriter)
    if few_keys is None or few_values is None or few_keys.shape[1] != few_values.shape[1]:
        return None
    return rewriter.op("attention", [query, few_keys, few_values, *rest], **node.attributes)


def _unrepeated(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """[B, G, T, D] of its repetition along heads: reshape(broadcast_to(reshape(x))) or gather."""
    node = rewriter.producer(value, "reshape", "gather")
    if node is None or value is None or node.inputs[0] is None:
        return None
    if node.op == "gather":
        source, indices = node.inputs[0], rewriter.constant(node.inputs[1])
        heads: Size = source.shape[1] if source.rank == 4 else 0
        if node.attributes["axis"] != 1 or indices is None or not isinstance(heads, int) or not heads:
            return None
        repeated = np.repeat(np.arange(heads), indices.size // heads)
        return source if np.array_equal(indices, repeated) else None
    spread = rewriter.producer(node.inputs[0], "broadcast_to")
    narrow = spread.inputs[0] if spread is not None else None
    if spread is None or narrow is None or spread.output.rank != 5 or narrow.rank != 5:
        return None
    batch, groups, one, keys, width = narrow.shape
    repeat = spread.output.shape[2]
    if one != 1 or spread.output.shape != (batch, groups, repeat, keys, width):
        return None
    if value.shape != (batch, simplify(lift(groups) * repeat), keys, width):
        return None
    return rewriter.op("reshape", [narrow], shape=(batch, groups, keys, width))


def _even_bias(node: Node, rewriter: GraphRewriter) -> Value | None:
    """One finite number added to all scores changes nothing."""
    number = rewriter.uniform(node.inputs[3]) if len(node.inputs) > 3 else None
    if number is None or not math.isfinite(number):
        return None
    return rewriter.op("attention", _without_bias(node), **node.attributes)


def _without_bias(node: Node) -> list[Value | None]:
    """The inputs of an attention but its bias."""
    return [*node.inputs[:3], None, *node.inputs[4:]] if len(node.inputs) > 4 else node.inputs[:3]


def _causal_bias(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A bias of where(mask, 0, -inf) whose mask is causal becomes the flag; of an `and`, one half may."""
    if len(node.inputs) < 4 or node.inputs[3] is None:
        return None
    query, key, bias = node.inputs[0], node.inputs[1], node.inputs[3]
    assert query is not None and key is not None
    rows, keys = query.shape[2], key.shape[2]
    rest = _without_causal(bias, rows, keys, rewriter, others_hide=len(node.inputs) > 4)
    if rest is bias:
        return None
    inputs = _without_bias(node) if rest is None else [*node.inputs[:3], rest, *node.inputs[4:]]
    rewriter.remark(f"the mask of attention %{node.output.name} is provably causal: keys beyond it are not computed")
    return rewriter.op("attention", inputs, **{**node.attributes, "causal": True})


def _banded_bias(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Of a bias that hides keys, the condition of a sliding window, or of so many keys of each batch.

    What else hides keys stays, if by minus infinity: rows of finite numbers alone get the mean of all values.
    """
    bias = node.inputs[3] if len(node.inputs) > 3 else None
    query, key = node.inputs[:2]
    found = None if bias is None else _hiding_condition(bias, rewriter)
    if found is None or query is None or key is None:
        return None
    seen, low, aligned = found
    rows, keys, attributes = query.shape[2], key.shape[2], dict(node.attributes)
    infinite = low == -math.inf
    if not _leaves_out(low, rows, keys, others_hide=len(node.inputs) > 4):
        return None
    if isinstance(seen, np.ndarray):
        parts: list[Value] = []
        attributes["window"] = attributes["window"] or band_of_array(seen, rows, keys, attributes["causal"])
        lengths = None
    else:
        parts = _conjuncts(seen, rewriter)
        not_causal = [part for part in parts if not is_causal(part, rows, keys, rewriter)]
        causal = attributes["causal"] or len(not_causal) < len(parts)
        bands = {part: sliding_window(part, rows, keys, causal, rewriter) for part in not_causal}
        window = next((part for part, band in bands.items() if band and not attributes["window"]), None)
        attributes["window"] = bands[window] if window is not None else attributes["window"]
        shape = (query.shape[0], 1, 1, keys)
        counted = {part: prefix_lengths(part, shape, rewriter) for part in not_causal if infinite and aligned}
        counts = next((part for part, each in counted.items() if each and len(node.inputs) == 4), None)
        lengths = None if counts is None else counted[counts]
        parts = [part for part in (not_causal if window is not None else parts) if part not in (window, counts)]
    if lengths is None and attributes["window"] == node.attributes["window"] or (parts and not infinite):
        return None
    attributes["causal"] = attributes["causal"] or attributes["window"] > 0
    rest = _without_bias(node)
    if parts:
        condition = _all_of(parts, rewriter)
        number = _hiding(low, query.dtype, rewriter)
        rest[3:] = [rewriter.op("where", [condition, rewriter.number(0.0, query.dtype), number]), *node.inputs[4:]]
    if lengths is not None:
        rest[3:] = [rest[3] if len(rest) > 3 else None, lengths]
    limits = [f"a window of {attributes['window']} keys"] * (attributes["window"] != node.attributes["window"])
    limits += ["a number of keys for each batch"] * (lengths is not None)
    rewriter.remark(f"the mask of attention %{node.output.name} is {' and '.join(limits)}: others are not computed")
    return rewriter.op("attention", rest, **attributes)


def _conjuncts(condition: Value, rewriter: GraphRewriter, depth: int = _DEEPEST_MASK) -> list[Value]:
    """The conditions that hold together where this one holds."""
    node = rewriter.producer(condition, "logical_and")
    if node is None or depth == 0:
        return [condition]
    return [part for item in node.inputs if item is not None for part in _conjuncts(item, rewriter, depth - 1)]


def _hiding_condition(bias: Value, rewriter: GraphRewriter) -> tuple[Value | np.ndarray, float, bool] | None:
    """The condition under which a bias is zero, the low number that it is everywhere else, and whether leading
    dimensions of the condition are those of the bias."""
    data = rewriter.constant(bias)
    if data is not None:
        seen = data == 0
        low = -math.inf if seen.all() else float(data[~seen].max())
        return (seen, low, True) if not seen.all() and _is_low(low, bias) else None
    node = rewriter.producer(bias, "where", "reshape", "broadcast_to")
    if node is None:
        return None
    if node.op != "where":
        source = node.inputs[0]
        if source is None or source.rank < 2 or source.shape[-2:] != bias.shape[-2:]:
            return None
        found = _hiding_condition(source, rewriter)
        longest = max(source.rank, bias.rank)
        padded = [(1,) * (longest - len(shape)) + shape for shape in (source.shape, bias.shape)]
        same = node.op == "broadcast_to" or padded[0] == padded[1]
        return None if found is None else (found[0], found[1], found[2] and same)
    condition, visible, hidden = node.inputs
    assert condition is not None
    for zero, number, flipped in ((visible, hidden, False), (hidden, visible, True)):
        least = rewriter.uniform(number)
        if rewriter.uniform(zero) == 0 and least is not None and _is_low(least, bias):
            mask = rewriter.constant(condition)
            if mask is not None:
                return mask.astype(bool) != flipped, least, True
            return (rewriter.op("logical_not", [condition]) if flipped else condition), least, True
    return None


def _may_hide(bias: Value, rewriter: GraphRewriter, depth: int = _DEEPEST_MASK) -> bool:
    """Whether a bias may have numbers as low as those of hidden keys."""
    data = rewriter.constant(bias)
    if data is not None:
        return bool(data.size) and data.dtype.kind not in "biu" and not np.abs(data.astype(np.float32)).max() < _USUAL
    node = rewriter.producer(bias)
    if bias.dtype.is_integer or bias.dtype.is_bool:
        return False
    if node is None or depth == 0:
        return True
    if node.op == "full":
        return not abs(float(node.attributes["value"])) < _USUAL
    if node.op not in _BOUNDED:
        return True
    return any(item is not None and _may_hide(item, rewriter, depth - 1) for item in node.inputs)


def _without_causal(
    bias: Value, rows: Size, keys: Size, rewriter: GraphRewriter, depth: int = _DEEPEST_MASK, *, others_hide: bool
) -> Value | None:
    """The bias without its causal part; None when nothing is left, `bias` when nothing is causal.

    Where the causal part hides keys by finite numbers and others of a row's keys may be hidden too, it stays: softmax
    then gives keys that the flag leaves out the same weight as hidden ones before them.
    """
    node = rewriter.producer(bias, "where", "add", "reshape", "broadcast_to")
    data = rewriter.constant(bias)
    if data is not None:
        seen = data == 0
        hidden = data[~seen]
        if not hidden.size or not is_causal_array(seen, rows, keys):
            return bias
        highest = float(hidden.max())
        return None if _is_low(highest, bias) and _leaves_out(highest, rows, keys, others_hide) else bias
    corner = corner_of_mask(bias, rows, keys, rewriter)
    if corner is not None:
        seen = corner == 0
        highest = float(corner[~seen].max(initial=-math.inf))
        causal = _is_low(highest, bias) and is_lower_triangle(seen)
        return None if causal and _leaves_out(highest, rows, keys, others_hide) else bias
    if node is None or depth == 0:
        return bias
    if node.op == "add":
        for index in (0, 1):
            part, other = node.inputs[index], node.inputs[1 - index]
            assert part is not None
            assert other is not None
            hides = others_hide or _may_hide(other, rewriter)
            rest = _without_causal(part, rows, keys, rewriter, depth - 1, others_hide=hides)
            if rest is not part:
                return other if rest is None else rewriter.op("add", [rest, other])
        return bias
    if node.op in ("reshape", "broadcast_to"):
        source = node.inputs[0]
        matrix = source is not None and source.rank >= 2 and source.shape[-2:] == bias.shape[-2:]
        if not matrix or source is None:
            return bias
        rest = _without_causal(source, rows, keys, rewriter, depth - 1, others_hide=others_hide)
        return None if rest is None else bias
    condition, visible, hidden_value = node.inputs
    low = rewriter.uniform(hidden_value)
    if low is not None and rewriter.uniform(visible) == 0 and _is_low(low, bias):
        if is_causal(condition, rows, keys, rewriter) and _leaves_out(low, rows, keys, others_hide):
            return None
        return _split_condition(node, condition, rows, keys, rewriter) if low == -math.inf else bias
    low = rewriter.uniform(visible)
    if low is not None and rewriter.uniform(hidden_value) == 0 and _is_low(low, bias):
        inverse = rewriter.op("logical_not", [condition])
        apart = _leaves_out(low, rows, keys, others_hide)
        return None if apart and is_causal(inverse, rows, keys, rewriter) else bias
    return bias


def _split_condition(
    node: Node, condition: Value | None, rows: Size, keys: Size, rewriter: GraphRewriter
) -> Value | None:
    """where(causal and other, 0, -inf) keeps where(other, 0, -inf)."""
    conjunction = rewriter.producer(condition, "logical_and")
    if conjunction is not None:
        for index in (0, 1):
            if is_causal(conjunction.inputs[index], rows, keys, rewriter):
                return rewriter.op("where", [conjunction.inputs[1 - index], node.inputs[1], node.inputs[2]])
    return node.output


def _scalable_bias(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Numbers of a bias that hide keys, none of them lower than `_LOWEST` unless infinite."""
    bias = node.inputs[3] if len(node.inputs) > 3 else None
    raised = None if bias is None else _raised(bias, rewriter)
    inputs = [*node.inputs[:3], raised, *node.inputs[4:]]
    return None if raised is bias else rewriter.op("attention", inputs, **node.attributes)


def _raised(bias: Value, rewriter: GraphRewriter, depth: int = _DEEPEST_MASK) -> Value:
    """The bias with its too low numbers raised; itself where there are none to be seen."""
    lowest = 2 * _LOWEST  # 16 bits may round it
    data = rewriter.constant(bias)
    if data is not None:
        low = np.isfinite(data) & (data.astype(np.float32) < lowest)
        return rewriter.new_constant(np.where(low, _LOWEST, data).astype(data.dtype), bias.name) if low.any() else bias
    node = rewriter.producer(bias, "where", "add", "multiply", "reshape", "broadcast_to", "full")
    if node is None or depth == 0:
        return bias
    if node.op == "full":
        number = float(node.attributes["value"])
        low = math.isfinite(number) and number < lowest
        return rewriter.op("full", [], **{**node.attributes, "value": _LOWEST}) if low else bias
    first = 1 if node.op == "where" else 0
    inputs = [item if item is None else _raised(item, rewriter, depth - 1) for item in node.inputs[first:]]
    if all(new is old for new, old in zip(inputs, node.inputs[first:], strict=True)):
        return bias
    return rewriter.op(node.op, [*node.inputs[:first], *inputs], **node.attributes)


def _scaled_operands(node: Node, rewriter: GraphRewriter) -> Value | None:
    """q * c and k * c put c into the scale, also below views."""
    for index in (0, 1):
        found = _without_factor(node.inputs[index], rewriter)
        if found is not None:
            inputs = [*node.inputs[:index], found[0], *node.inputs[index + 1 :]]
            scale = node.attributes["scale"] * found[1]
            return rewriter.op("attention", inputs, **{**node.attributes, "scale": scale})
    return None


def _without_factor(value: Value | None, rewriter: GraphRewriter) -> tuple[Value, float] | None:
    """(x, c) when a value is a chain of views of x * c with a number c."""
    node = rewriter.producer(value, "multiply", "divide", "reshape", "permute")
    if node is None:
        return None
    if node.op in ("reshape", "permute"):
        found = _without_factor(node.inputs[0], rewriter)
        return None if found is None else (rewriter.op(node.op, [found[0]], **node.attributes), found[1])
    for side in (1, 0) if node.op == "multiply" else (1,):
        factor, operand = rewriter.uniform(node.inputs[side]), node.inputs[1 - side]
        if factor and operand is not None and operand.shape == node.output.shape:
            return operand, factor if node.op == "multiply" else 1 / factor
    return None
