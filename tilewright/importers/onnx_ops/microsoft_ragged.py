"""Sequences of different lengths, one after the other in one list of tokens, of ONNX Runtime's domain."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import float32, int64
from tilewright.graph.core import Value
from tilewright.importers import formulas, images
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.microsoft_states import refuse, through_positions, whole
from tilewright.importers.report import Invalid
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, lift, product, simplify

TABLE = RuleTable("ONNX Runtime: sequences of different lengths", "com.microsoft::")
rule = TABLE.rule


@dataclass(frozen=True)
class Sequences:
    """B sequences of T tokens in all; int64 values: where each begins and how long it is, [B, 1]; of each token the
    number of its sequence, and its place there, [T]."""

    tokens: Size
    count: Size
    begins: Value
    lengths: Value
    owner: Value
    place: Value

    @classmethod
    def of(cls, call: OnnxCall, index: int, tokens: Size) -> Sequences:
        """Of offsets [B + 1], input `index`; the run checks that they begin with 0, rise, and end with T."""
        offsets = call.cast(call[index], int64)
        call.require_rank(offsets, 1, 1)
        count = simplify(lift(offsets.shape[0]) - 1)
        begins, ends = call.slice(offsets, 0, 0, count), call.slice(offsets, 0, 1, offsets.shape[0])
        lengths = call.op("subtract", ends, begins)
        _check(call, index, offsets, lengths, tokens)
        line = call.iota(tokens)
        passed = call.op("less_equal", call.unsqueeze(ends, 0), call.unsqueeze(line, 1))
        owner = call.op("reduce_sum", call.cast(passed, int64), axes=(1,))
        place = call.op("subtract", line, call.op("gather", begins, owner, axis=0))
        return cls(tokens, count, call.unsqueeze(begins, 1), call.unsqueeze(lengths, 1), owner, place)

    def earlier(self, call: OnnxCall, distance: int, room: int) -> Value:
        """Of each token the place [T], in a list of `room` older tokens of each sequence and then all tokens, of the
        one `distance` before it."""
        before = call.op("subtract", self.place, distance)
        own = call.op("add", call.iota(self.tokens), call.value(simplify(lift(self.count) * room - distance), int64))
        older = call.op("add", call.op("multiply", self.owner, room), call.op("add", before, room))
        return call.op("where", call.op("greater_equal", before, 0), own, older)

    def last(self, call: OnnxCall, upto: Value, room: int) -> Value:
        """The places in such a list of the `room` tokens before place `upto` [B, n] of each sequence: [B, n, room]."""
        place = call.op("add", call.unsqueeze(upto, 2), call.iota(room, start=-room))
        begins = call.op("add", self.begins, call.value(simplify(lift(self.count) * room), int64))
        older = call.op("add", call.unsqueeze(call.iota(self.count, start=room, step=room), 1, 2), place)
        own = call.op("add", call.unsqueeze(begins, 2), place)
        return call.op("where", call.op("greater_equal", place, 0), own, older)

    def captured(self, call: OnnxCall, index: int, capacity: int) -> Value:
        """Whether the token at each place [B, capacity] is one of those that input `index` counts."""
        counts = call.op("minimum", call.unsqueeze(call.cast(call[index], int64), 1), self.lengths)
        return call.op("less", call.unsqueeze(call.iota(capacity), 0), counts)


def _check(call: OnnxCall, index: int, offsets: Value, lengths: Value, tokens: Size) -> None:
    ends = [call.select(offsets, 0, place) for place in (0, -1)]
    right = call.op("greater_equal", call.op("reduce_min", lengths, axes=(0,)), 1)
    for found, wanted in zip(ends, (0, tokens), strict=True):
        right = call.op("logical_and", right, call.op("equal", found, call.value(wanted, int64)))
    expected = (
        f"the offsets of sequences, {call.input_text(index)}, begin with 0, rise, and end with the number of tokens"
    )
    call.op("condition", right, what=expected)


@rule("VarlenCausalConvWithState")
def causal_convolution(call: OnnxCall) -> tuple[Value, ...]:
    """As CausalConvWithState, of tokens [T, C] and offsets: also the first tokens of each sequence, as counted."""
    if call.has(6) or call.has(7):
        raise Invalid("kernels that change from token to token, which ONNX Runtime has on CUDA devices alone")
    call.attribute("group_size"), call.attribute("delta_offset")
    x, weight = call[0], call.cast(call[1], float32)
    call.require_rank(x, 2, 2)
    channels, taps = x.shape[1], whole(weight.shape[2], "a kernel")
    dilation = call.positive("dilation", 1)
    room, sequences = (taps - 1) * dilation, Sequences.of(call, 2, x.shape[0])
    older = call.reshape(call.transpose(call[4], 1, 2), (-1, channels))  # [B S, C]
    rows = call.op("concat", older, x, axis=0)
    total: Value | None = None
    for tap in range(taps):
        places = sequences.earlier(call, (taps - 1 - tap) * dilation, room)
        column = call.reshape(call.select(weight, 2, tap), (1, channels))
        part = call.op("multiply", call.cast(call.op("gather", rows, places, axis=0), float32), column)
        total = part if total is None else call.op("add", total, part)
    assert total is not None
    total = call.op("add", total, call.cast(call[3], float32)) if call.has(3) else total
    if call.choice("activation", "none", "silu", "swish") != "none":
        total = call.op("silu", total)
    state = call.op("gather", rows, sequences.last(call, sequences.lengths, room), axis=0)
    state = call.transpose(call.reshape(state, (sequences.count, room, channels)), 1, 2)
    return call.cast(total, x.dtype), state, *_first_tokens(call, sequences, x)


def _first_tokens(call: OnnxCall, sequences: Sequences, x: Value) -> list[Value]:
    """The first tokens of each sequence [B, capacity, C], zeros after those that input 5 counts; nothing for none."""
    capacity = call.attribute("state_update_capacity", 0)
    if not capacity:
        return []
    places = call.op("add", sequences.begins, call.iota(capacity))
    last = call.value(simplify(lift(sequences.tokens) - 1), int64)
    found = call.op("gather", x, call.op("minimum", places, last), axis=0)
    counted = call.unsqueeze(sequences.captured(call, 5, capacity), 2)
    return [call.op("where", counted, found, call.builder.number(0.0, x.dtype))]


# Linear attention --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tokens:
    """Tokens in float32: queries and keys [T, H, D], values [T, H, E], what a state is multiplied by [T, H, 1 or D],
    and rates [T, H, 1]."""

    query: Value
    key: Value
    value: Value
    decay: Value | None
    rate: Value | None


@rule("GatedDeltaNet")
def gated_delta_net(call: OnnxCall) -> tuple[Value, Value]:
    """As LinearAttention, of tokens [T, H, D] or [B, S, H, D], of sequences that have offsets or one length.

    A query and a key belong to several values; states are [B, H, E, D], in float32.
    """
    refuse(call, state_update_capacity=0)
    # Each is read where it counts; what a model gives of the others changes nothing.
    for name in ("chunk_size", "beta_activation", "gate_activation", "gate_lower_bound"):
        call.attribute(name)
    kind = call.choice("update_rule", "gated_delta", "gated", "delta", "linear")
    tokens = _tokens(call, kind)
    total, heads, depth = tokens.value.shape
    if call.has(3):
        sequences = Sequences.of(call, 3, total)
        batches, count = _padded(call, sequences, tokens), sequences.count
    else:
        count = _count(call)
        batches = [call.reshape(x, (count, -1, *x.shape[1:])) for x in _present(tokens)]
    query = call.unsqueeze(batches[0], 3)  # [B, L, H, 1, D]
    shape = (count, heads, tokens.query.shape[2], depth)
    state = call.transpose(call[6], 2, 3) if call.has(6) else call.full(shape, 0.0, float32)
    after, read = through_positions(call, kind, state, [query, *batches[1:]])
    read = call.reshape(read, (product(read.shape[:2]), heads, depth))
    if call.has(3):
        places = call.op("multiply", sequences.owner, call.value(query.shape[1], int64))
        read = call.op("gather", read, call.op("add", places, sequences.place), axis=0)
    lead = _lead(call)
    return call.cast(call.reshape(read, (*lead, heads, depth)), call[0].dtype), call.transpose(after, 2, 3)


def _count(call: OnnxCall) -> Size:
    """The number of sequences of one length."""
    if call.has(6):
        return call[6].shape[0]
    if call[0].rank != 4:
        raise Invalid("the number of sequences follows from none of the inputs: give offsets or a first state")
    return call[0].shape[0]


def _lead(call: OnnxCall) -> tuple[Size, ...]:
    """The dimensions of tokens: one, or those of sequences and places."""
    return call[0].shape[: -2 if call.has(1) else -1]


def _present(tokens: _Tokens) -> list[Value]:
    found = (tokens.query, tokens.key, tokens.value, tokens.decay, tokens.rate)
    return [value for value in found if value is not None]


def _tokens(call: OnnxCall, kind: str) -> _Tokens:
    query, key, value = (call.cast(part, float32) for part in _parts(call))
    heads, groups = (whole(part.shape[1], "heads") for part in (value, query))
    if heads % groups or key.shape[1] != query.shape[1]:
        raise Invalid(f"{groups} heads of queries and {key.shape[1]} of keys for {heads} of values")
    if call.attribute("qk_l2_norm", 0):
        query, key = (_unit(call, part) for part in (query, key))
    size = whole(query.shape[2], "heads")
    query = call.op("multiply", query, float(call.attribute("scale", 0.0)) or 1 / math.sqrt(size))
    query, key = (images.repeat(call, part, 1, heads // groups) for part in (query, key))
    decay = _decay(call, heads, size) if "gated" in kind else None
    return _Tokens(query, key, value, decay, _rate(call, heads) if "delta" in kind else None)


def _parts(call: OnnxCall) -> tuple[Value, Value, Value]:
    """Queries, keys [T, G, D] and values [T, H, E], from one tensor where there are no keys."""
    if call.has(1):
        query, key, value = (call.reshape(call[index], (-1, *call[index].shape[-2:])) for index in range(3))
        return query, key, value
    if not call.has(6):
        raise Invalid("queries, keys and values in one tensor need a first state, which has their sizes")
    _, heads, depth, size = (whole(extent, "a state") if place else 0 for place, extent in enumerate(call[6].shape))
    packed = call.reshape(call[0], (-1, call[0].shape[-1]))
    width = whole(packed.shape[1], "queries, keys and values in one tensor") - heads * depth
    if width <= 0 or width % (2 * size):
        raise Invalid(f"{packed!r} are no queries and keys of {size} and {heads} values of {depth}")
    edges = (0, width // 2, width, width + heads * depth)
    query, key, value = (
        call.reshape(call.slice(packed, 1, edges[part], edges[part + 1]), (-1, *shape))
        for part, shape in enumerate([(width // 2 // size, size)] * 2 + [(heads, depth)])
    )
    return query, key, value


def _unit(call: OnnxCall, x: Value) -> Value:
    """Rows of x, each divided by its length."""
    squares = call.op("reduce_sum", call.op("multiply", x, x), axes=(x.rank - 1,), keepdims=True)
    return call.op("multiply", x, call.op("rsqrt", call.op("add", squares, 1e-12)))


def _decay(call: OnnxCall, heads: int, size: int) -> Value:
    """What states are multiplied by at each token [T, H, 1 or D]."""
    if not call.has(4):
        raise Invalid("a gated rule needs decays, input 4")
    given = call.cast(call[4], float32)
    width = 1 if given.rank == len(_lead(call)) + 1 else size
    decay = call.reshape(given, (-1, heads, width))
    kind = call.choice("gate_activation", "none", "softplus", "qwen", "sigmoid", "kda")
    if kind != "none":
        decay = _activated(call, decay, kind in ("softplus", "qwen"), heads)
    return call.op("exp", decay)


def _activated(call: OnnxCall, decay: Value, soft: bool, heads: int) -> Value:
    """The decay that a projection stands for, by a number of each head and a bias."""
    if not call.has(7):
        raise Invalid("this gate_activation needs a number of each head, input 7")
    rate = call.reshape(call.op("exp", call[7]), (1, heads, 1))
    moved = call.op("add", decay, call.reshape(call[8], (1, heads, -1))) if call.has(8) else decay
    if soft:
        return call.op("negate", call.op("multiply", rate, formulas.softplus(call, moved)))
    bound = float(call.attribute("gate_lower_bound", -5.0))
    return call.op("multiply", call.op("sigmoid", call.op("multiply", rate, moved)), bound)


def _rate(call: OnnxCall, heads: int) -> Value:
    if not call.has(5):
        raise Invalid("a delta rule needs rates, input 5")
    rate = call.reshape(call.cast(call[5], float32), (-1, heads, 1))
    return call.op("sigmoid", rate) if call.choice("beta_activation", "none", "sigmoid") == "sigmoid" else rate


def _padded(call: OnnxCall, sequences: Sequences, tokens: _Tokens) -> list[Value]:
    """Tokens as [B, L, ...] of the longest sequence; those after an end change no state."""
    longest = call.op("reduce_max", sequences.lengths, axes=(0,))
    (length,) = call.read_sizes(longest, "longest", "the lengths of sequences")
    line = call.unsqueeze(call.iota(length), 0)
    inside = call.op("less", line, sequences.lengths)
    last = call.value(simplify(lift(sequences.tokens) - 1), int64)
    places = call.op("minimum", call.op("add", sequences.begins, line), last)
    found = []
    for value in _present(tokens):
        rows = call.op("gather", value, places, axis=0)
        neutral = call.builder.number(1.0 if value is tokens.decay else 0.0, float32)
        found.append(call.op("where", call.unsqueeze(inside, *range(2, rows.rank)), rows, neutral))
    return found
