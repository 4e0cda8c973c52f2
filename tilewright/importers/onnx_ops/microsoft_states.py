"""Layers with a state that a decoder carries, and the gates and mixed streams around them, of ONNX Runtime's domain:
linear attention (gated delta networks), causal convolutions, rotary positions of three coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.dtypes import float32, int64
from tilewright.graph.core import Value
from tilewright.importers import formulas, images
from tilewright.importers.emitter import Emitter
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.loops import loop
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.attention import rotate
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, lift, product, simplify

TABLE = RuleTable("ONNX Runtime: states, gates and streams", "com.microsoft::")
rule = TABLE.rule


def whole(size: Size, subject: str) -> int:
    """A size that is a number; raises `Unsupported` for others."""
    if not isinstance(size, int):
        raise Unsupported(f"{subject} of the dynamic size {size}", "fix its size")
    return size


def refuse(call: OnnxCall, **defaults: int) -> None:
    """Raise `Unsupported` for attributes with other values than these."""
    for name, default in defaults.items():
        if call.attribute(name, default) != default:
            raise Unsupported(f"the attribute {name!r} is {call.attribute(name)}", f"export with {name}={default}")


# Gates and norms ---------------------------------------------------------------------------------------


@rule("GatedAdd")
def gated_add(call: OnnxCall) -> Value:
    """x + y gate, the gate [..., 1] as it is."""
    if call.has(3):
        raise Unsupported("a projected gate", "compute the gate before; ONNX Runtime has this on GPUs alone")
    return call.op("add", call[0], call.op("multiply", call[1], call[2]))


@rule("ScaledSiLU")
def scaled_silu(call: OnnxCall) -> Value:
    """z sigmoid(z) of z = scale x."""
    x = call[0]
    scale = call.cast(call.reshape(call[1], ()), x.dtype) if call.has(1) else call.attribute("alpha", 1.0)
    scaled = call.op("multiply", x, scale)
    return call.op("multiply", scaled, call.op("sigmoid", scaled))


@rule("GatedRMSNorm")
def gated_norm(call: OnnxCall) -> Value:
    """The norm over as many last elements as there are scales, times the activation of a gate."""
    x, scale, gate = call[0], call.cast(call[1], float32), call.cast(call[2], float32)
    count = whole(scale.shape[0], "a scale")
    groups = call.reshape(call.cast(x, float32), (*x.shape[:-1], -1, count))
    normed = call.op("rms_norm", groups, scale, axis=groups.rank - 1, epsilon=float(call.attribute("epsilon", 1e-5)))
    kind = call.choice("activation", "silu", "swish", "sigmoid")
    gate = call.op("sigmoid", gate) if kind == "sigmoid" else call.op("silu", gate)
    return call.cast(call.op("multiply", call.reshape(normed, x.shape), gate), x.dtype)


def _branches(call: OnnxCall, x: Value) -> Value:
    """[..., C, H] of that or of [..., C H], whose number of branches is an attribute."""
    count = call.attribute("num_branches", 0)
    return call.reshape(x, (*x.shape[:-1], count, simplify(lift(x.shape[-1]) // count))) if count else x


@rule("BranchwiseRMSNorm")
def norm_of_branches(call: OnnxCall) -> Value:
    x = call[0]
    rows = _branches(call, call.cast(x, float32))
    normed = call.op("rms_norm", rows, axis=rows.rank - 1, epsilon=float(call.attribute("epsilon", 1e-5)))
    if call.has(1):
        scale = call.cast(call[1], float32)
        own = scale.rank == 1 and scale.shape != rows.shape[-1:]  # one for each branch
        normed = call.op("multiply", normed, call.reshape(scale, rows.shape[-2:]) if own else scale)
    return call.cast(call.reshape(normed, x.shape), x.dtype)


@rule("HyperConnectionPreMix")
def streams_to_one(call: OnnxCall) -> Value:
    """The sum of streams [..., C, H], each times its share."""
    rows = _branches(call, call.cast(call[0], float32))
    total = call.op("reduce_sum", call.op("multiply", rows, _shares_of(call, 1, rows)), axes=(rows.rank - 2,))
    return call.cast(call.op("multiply", total, float(call.attribute("reduction_scale", 1.0))), call[0].dtype)


@rule("HyperConnectionPostMix")
def one_to_streams(call: OnnxCall) -> Value:
    """Streams [..., C, H], mixed by a matrix, with a share of another tensor [..., H] added to each."""
    rows = _branches(call, call.cast(call[0], float32))
    given = call.unsqueeze(call.cast(call[1], float32), rows.rank - 2)
    added = call.op("multiply", _shares_of(call, 2, rows), given)
    if call.has(3):
        mix = call.cast(call[3], float32)
        rows = call.matmul(call.transpose(mix, mix.rank - 2, mix.rank - 1), rows)
    return call.cast(call.reshape(call.op("add", rows, added), call[0].shape), call[0].dtype)


def _shares_of(call: OnnxCall, index: int, rows: Value) -> Value:
    """Shares of streams [..., C, 1 or H], given as such, without the last dimension, or with both as one."""
    shares = call.cast(call[index], float32)
    if shares.rank == rows.rank:
        return shares
    if shares.shape[-1] == rows.shape[-2]:
        return call.unsqueeze(shares, shares.rank)
    return call.reshape(shares, rows.shape)


@rule("LinearAttentionGate")
def decay_and_rate(call: OnnxCall) -> tuple[Value, Value | None]:
    """decay_scale softplus(a + dt_bias), and sigmoid(b)."""
    a = call.op("add", call.cast(call[0], float32), call.cast(call[1], float32))
    decay = call.op("multiply", call.cast(call[2], float32), formulas.softplus(call, a))
    rate = call.cast(call.op("sigmoid", call.cast(call[3], float32)), call[0].dtype) if call.has(3) else None
    return call.cast(decay, call[0].dtype), rate


@rule("EngramGate")
def gate_of_likeness(call: OnnxCall) -> tuple[Value, Value | None]:
    """A value [B, S, H], times the sigmoid of how like keys and queries [B, S, C, H] are; and the norm of this."""
    epsilon, width = float(call.attribute("epsilon", 1e-5)), whole(call[0].shape[3], "a hidden size")
    key, query = (_scaled_norm(call, call[index], call[index + 3], epsilon) for index in (0, 1))
    total = call.op("reduce_sum", call.op("multiply", key, query), axes=(3,), keepdims=True)
    likeness = call.op("multiply", total, 1 / math.sqrt(width))
    root = call.op("sqrt", call.op("maximum", call.op("absolute", likeness), 1e-6))
    gate = call.op("sigmoid", call.op("multiply", call.op("sign", likeness), root))
    gated = call.op("multiply", gate, call.unsqueeze(call.cast(call[2], float32), 2))
    normed = _scaled_norm(call, gated, call[5], epsilon) if call.has(5) else None
    return call.cast(gated, call[0].dtype), None if normed is None else call.cast(normed, call[0].dtype)


def _scaled_norm(call: OnnxCall, x: Value, scale: Value, epsilon: float) -> Value:
    """The norm of rows of x, in float32, times scales that broadcast to x."""
    normed = call.op("rms_norm", call.cast(x, float32), axis=x.rank - 1, epsilon=epsilon)
    return call.op("multiply", normed, call.cast(scale, float32))


@rule("UnfoldTensor")
def unfold(call: OnnxCall) -> Value:
    """Windows of a dimension, which come last."""
    x = call[0]
    axis, size, step = call.place(call.attribute("dim", -1), x.rank), call.positive("size"), call.positive("step", 1)
    call.require_extent(x, axis, size)
    count = simplify((lift(x.shape[axis]) - size) // step + 1)
    found = call.op("frames", x, axis=axis, count=count, length=size, step=step)
    return call.permute(found, [*(place for place in range(found.rank) if place != axis + 1), axis + 1])


# States ------------------------------------------------------------------------------------------------


@rule("CausalConvWithState")
def causal_convolution(call: OnnxCall) -> tuple[Value, Value]:
    """A convolution of each channel that sees its own and earlier positions, and the last positions for the next call.

    x [B, C, L], weight [C, 1, k], past [B, C, S] with S = (k - 1) dilation; or [B, L, channels], [B, S, channels].
    """
    refuse(call, ndim=1, state_update_capacity=0, state_channels_last=-1, state_window=0, state_length=0,
           input_channel_offset=0, input_channels=0)  # fmt: skip
    x, weight, last = call[0], call[1], bool(call.attribute("channels_last", 0))
    dilation, channels = call.positive("dilation", 1), whole(weight.shape[0], "channels")
    places_kept = (whole(weight.shape[2], "a kernel") - 1) * dilation
    rows = _channels_second(call, x) if last else x
    if call.has(3):
        past = _channels_second(call, call[3]) if last else call[3]
    else:
        past = call.full((rows.shape[0], channels, places_kept), 0.0, x.dtype)
    joined = call.op("concat", past, rows, axis=2)
    windows = {"strides": (1,), "padding": ((0, 0),), "dilation": (dilation,), "groups": channels}
    result = call.op("conv", joined, weight, call.optional(2), **windows)
    if call.choice("activation", "none", "silu", "swish") != "none":
        result = call.op("silu", result)
    present = call.slice(joined, 2, rows.shape[2], joined.shape[2])
    if last:
        result = call.reshape(call.transpose(result, 1, 2), x.shape)
        present = call.reshape(call.transpose(present, 1, 2), (x.shape[0], places_kept, *x.shape[2:]))
    return result, present


def _channels_second(call: OnnxCall, x: Value) -> Value:
    return call.transpose(call.reshape(x, (*x.shape[:2], product(x.shape[2:]))), 1, 2)


@rule("LinearAttention")
def linear_attention(call: OnnxCall) -> tuple[Value, Value]:
    """Each position changes a state [B, G, D, E] by its key and value, and reads it by its query.

    S decays by exp(decay), then gets key (value) or, of delta rules, rate key (value - S^T key); the result is
    scale S^T query. Queries [B, T, H D], keys [B, T, G D], values [B, T, G E], decay [B, T, G or G D], rate [B, T, G
    or 1].
    """
    refuse(call, state_window=0)
    call.attribute("chunk_size")
    heads, groups = call.positive("q_num_heads"), call.positive("kv_num_heads")
    kind = call.choice("update_rule", "gated_delta", "gated", "delta", "linear")
    width, depth = (whole(call[index].shape[2], "heads") for index in (0, 2))
    if width % heads or depth % groups or (heads % groups and groups % heads):
        raise Invalid(f"{heads} heads of queries, of {width} in all, and {groups} of values, of {depth}")
    size, depth = width // heads, depth // groups
    query = _by_heads(call, 0, heads, size)
    if heads < groups:
        query = images.repeat(call, query, 2, groups // heads)
    shared = max(heads // groups, 1)
    query = call.reshape(query, (*query.shape[:2], groups, shared, size))
    query = call.op("multiply", query, float(call.attribute("scale", 0.0)) or 1 / math.sqrt(size))
    given = [query, _by_heads(call, 1, groups, size), _by_heads(call, 2, groups, depth)]
    given += [_decay(call, groups, size)] if "gated" in kind else []
    given += [_by_heads(call, 5, -1, 1)] if "delta" in kind else []
    shape = (query.shape[0], groups, size, depth)
    state = call.cast(call[3], float32) if call.has(3) else call.full(shape, 0.0, float32)
    after, read = through_positions(call, kind, state, given)
    result = call.reshape(read, (*query.shape[:2], groups * shared * depth))
    return call.cast(result, call[0].dtype), call.cast(after, call[3].dtype if call.has(3) else call[0].dtype)


def through_positions(call: OnnxCall, kind: str, state: Value, given: Sequence[Value]) -> tuple[Value, Value]:
    """The state [B, G, D, E] after the last position, and what the queries of each read, [B, T, G, shared, E].

    `given` are queries [B, T, G, shared, D], keys, values, and what the kind of rule has: decays, rates; all float32.
    """
    rows = [call.transpose(value, 0, 1) for value in given]  # [T, B, ...]

    def step(emit: Emitter, place: Value, carried: list[Value], captured: list[Value]) -> tuple[None, list[Value]]:
        now = [emit.op("gather", value, place, axis=0) for value in captured]
        return None, _delta_step(emit, kind, carried[0], now)

    after, read = loop(call, step, [state], rows, trips=rows[0].shape[0])
    return after, call.transpose(read, 0, 1)


def _by_heads(call: OnnxCall, index: int, heads: int, size: int) -> Value:
    """[B, T, heads size] as [B, T, heads, size] in float32."""
    if not call.has(index):
        raise Invalid(f"{call.attribute('update_rule', 'gated_delta')!r} needs the input {index}")
    x = call.cast(call[index], float32)
    x = must_be(call, x, (*x.shape[:2], heads * size)) if heads > 0 else x
    return call.reshape(x, (*x.shape[:2], heads, size))


def _decay(call: OnnxCall, groups: int, size: int) -> Value:
    """What a state is multiplied by [B, T, G, 1 or D]."""
    width = whole(call[4].shape[2], "a decay") if call.has(4) else groups
    return call.op("exp", _by_heads(call, 4, groups, size if width == groups * size else 1))


def _delta_step(emit: Emitter, kind: str, state: Value, now: Sequence[Value]) -> list[Value]:
    """The state [B, G, D, E] after a position, and what its queries [B, G, shared, D] read."""
    query, key, value, *others = now
    if "gated" in kind:
        state = emit.op("multiply", state, emit.unsqueeze(others[0], 3))
    column = emit.unsqueeze(key, 3)
    if "delta" in kind:
        found = emit.op("reduce_sum", emit.op("multiply", state, column), axes=(2,))
        value = emit.op("multiply", emit.op("subtract", value, found), others[-1])
    state = emit.op("add", state, emit.op("multiply", column, emit.unsqueeze(value, 2)))
    return [state, emit.op("matmul", query, state)]


# Positions ---------------------------------------------------------------------------------------------


@rule("MRotaryEmbedding")
def rotary_of_three(call: OnnxCall) -> Value:
    """As RotaryEmbedding, of positions [3, B, S] (time, height, width): each turns its share of the pairs."""
    x, places = call[0], call.cast(call[1], int64)
    if call.attribute("is_packed_batching", 0) or float(call.attribute("scale", 1.0)) != 1.0:
        raise Unsupported("packed batches or a scale of positions", "give positions for each sequence")
    tables = [call[2], call[3]]
    half, parts = whole(tables[0].shape[1], "a table"), list(call.attribute("mrope_section") or [])
    if len(parts) != 3 or sum(parts) != half or min(parts) < 0:
        raise Invalid(f"the sections {parts} do not make up {half} pairs")
    heads, width = call.attribute("num_heads", 0), call.attribute("rotary_embedding_dim", 0)
    call.require_rank(x, 3, 4)
    size = x.shape[3] if x.rank == 4 else simplify(lift(x.shape[2]) // heads) if heads else width or 2 * half
    split = call.transpose(x, 1, 2) if x.rank == 4 else call.reshape(x, (*x.shape[:2], -1, size))
    owners = _owners(parts, half, bool(call.attribute("mrope_layout", 0)))
    found = []
    for table in tables:
        every = call.cast(call.op("gather", table, places, axis=0), x.dtype)  # [3, B, S, half]
        pieces = [call.slice(call.select(every, 0, owner), 2, begin, end) for owner, begin, end in owners]
        found.append(pieces[0] if len(pieces) == 1 else call.op("concat", *pieces, axis=2))
    turned = rotate(call, split, found[0], found[1], bool(call.attribute("interleaved", 0)))
    return call.transpose(turned, 1, 2) if x.rank == 4 else call.reshape(turned, x.shape)


def _owners(parts: Sequence[int], half: int, alternating: bool) -> list[tuple[int, int, int]]:
    """Runs of pairs (which position, begin, end): one for each section, or every third pair of the first ones."""
    owner = [0] * parts[0] + [1] * parts[1] + [2] * parts[2]
    if alternating:
        owner = [0] * half
        for which in (1, 2):
            for place in range(which, min(3 * parts[which], half), 3):
                owner[place] = which
    edges = [0, *(place for place in range(1, half) if owner[place] != owner[place - 1]), half]
    return [(owner[begin], begin, end) for begin, end in zip(edges, edges[1:], strict=False)]
