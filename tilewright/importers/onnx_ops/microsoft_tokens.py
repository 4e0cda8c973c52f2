"""Words and tokens of ONNX Runtime's domain: embeddings of characters, hashes of sequences, suffixes, paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.dtypes import int1, int32, int64
from tilewright.graph.core import Value
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.microsoft_ragged import Sequences
from tilewright.importers.onnx_ops.microsoft_states import whole
from tilewright.importers.report import Invalid
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, lift, simplify

TABLE = RuleTable("ONNX Runtime: words and tokens", "com.microsoft::")
rule = TABLE.rule

_LEAST = -1e12  # what the largest of no windows is


@rule("WordConvEmbedding")
def embedding_of_characters(call: OnnxCall) -> Value:
    """Words [S, L] of characters as [S, M]: the largest tanh of a convolution over their embeddings.

    Characters are positive numbers; a word without one at its begin gives zeros.
    """
    words, weight, bias, table = (call[index] for index in range(4))
    call.require_rank(words, 2, 2)
    call.require_rank(weight, 4, 4)
    sizes = {
        "embedding_size": weight.shape[0],
        "conv_window_size": weight.shape[2],
        "char_embedding_size": table.shape[1],
    }
    for name, size in sizes.items():
        given = call.attribute(name, -1)
        if given not in (-1, size):
            raise Invalid(f"the attribute '{name}' is {given}, but the weights have {size}")
    taps = whole(weight.shape[2], "a window of characters")
    call.require_extent(words, 1, taps)
    places = call.op("maximum", words, 0)
    image = call.unsqueeze(call.op("gather", table, call.cast(places, int64), axis=0), 1)  # [S, 1, L, D]
    windows = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
    found = call.op("tanh", call.op("conv", image, weight, bias, **windows))  # [S, M, L - k + 1, 1]
    found = call.reshape(found, found.shape[:3])
    characters = call.op("greater", words, 0)
    lengths = call.op("reduce_sum", call.cast(characters, int64), axes=(1,), keepdims=True)
    last = call.op("maximum", call.op("subtract", lengths, taps), 0)
    inside = call.op("less_equal", call.unsqueeze(call.iota(found.shape[2]), 0), last)
    low = call.builder.number(_LEAST, found.dtype)
    largest = call.op("reduce_max", call.op("where", call.unsqueeze(inside, 1), found, low), axes=(2,))
    begun = call.slice(characters, 1, 0, 1)
    return call.op("where", begun, largest, call.builder.number(0.0, largest.dtype))


# Hashes of sequences ---------------------------------------------------------------------------------

Shifted = Callable[[int], Value]  # the tokens so many places before each token


def _hashes(call: OnnxCall, shifted: Shifted, offsets: Value | None) -> Value:
    """Of each token the hashes [.., heads] of the sequences of 2, 3, … tokens that end with it.

    A hash is the remainder, by a number of each head, of the exclusive or of tokens times factors.
    """
    largest, heads = call.attribute("max_ngram_size", 0), call.positive("n_head_per_ngram")
    if largest < 2:
        raise Invalid(f"the attribute 'max_ngram_size' is {largest}; it must be at least 2")
    factors, sizes = call[1], must_be(call, call[2], ((largest - 1) * heads,))
    mixed, found = None, []
    for distance in range(largest):
        part = call.op("multiply", shifted(distance), call.select(factors, 0, distance))
        mixed = part if mixed is None else call.op("bitwise_xor", mixed, part)
        if distance:
            own = call.slice(sizes, 0, (distance - 1) * heads, distance * heads)
            found.append(call.op("remainder", call.unsqueeze(mixed, mixed.rank), own))
    result = found[0] if len(found) == 1 else call.op("concat", *found, axis=found[0].rank - 1)
    return result if offsets is None else call.op("add", result, offsets)


def _missing(call: OnnxCall, index: int) -> Value:
    """The token that there is before the first one: input `index`, or the attribute's."""
    filler = call.attribute("pad_id")
    return call.reshape(call[index], ()) if call.has(index) else call.value(filler, call[0].dtype)


def _resets(call: OnnxCall, index: int, tokens: Value, end: Value) -> Value | None:
    """Whether each token is one that no sequence goes beyond; None where there are none such."""
    wanted = bool(call.attribute("reset_on_eos", 0)) and call.has(index)
    return call.op("equal", tokens, end) if wanted else None


def _changes(call: OnnxCall, parts: Value) -> Value:
    """Whether each element of the last dimension differs from the next one; the last one does not."""
    axis, extent = parts.rank - 1, parts.shape[-1]
    count = simplify(lift(extent) - 1)
    differs = call.op("not_equal", call.slice(parts, axis, 0, count), call.slice(parts, axis, 1, extent))
    return call.op("pad", differs, pads=[*[(0, 0)] * axis, (0, 1)], value=False)


def _either(call: OnnxCall, left: Value | None, right: Value | None) -> Value | None:
    if left is None or right is None:
        return right if left is None else left
    return call.op("logical_or", left, right)


def _latest(call: OnnxCall, marks: Value) -> Value:
    """Of each place of the last dimension the last one before it, or there, that is marked; -1 for none."""
    line = call.iota(marks.shape[-1])
    return call.op("cummax", call.op("where", marks, line, call.builder.number(-1, int64)), axis=marks.rank - 1)


@rule("NGramHashMapping")
def hashes_of_sequences(call: OnnxCall) -> tuple[Value, Value]:
    """Tokens [B, T] as hashes [B, T, heads], and the last tokens for the next call."""
    tokens, room = call[0], call.attribute("max_ngram_size", 0) - 1
    call.require_rank(tokens, 2, 2)
    batch, length = tokens.shape
    end = _missing(call, 5)
    past = must_be(call, call[3], (batch, room)) if call.has(3) else call.broadcast(end, (batch, room))
    joined = call.op("concat", past, tokens, axis=1)
    marks = _resets(call, 5, joined, end)
    if call.has(6):
        parts = call.op("pad", _changes(call, call[6]), pads=[(0, 0), (room, 0)], value=False)
        marks = _either(call, marks, parts)
    reset = None
    if marks is not None:  # by a place before the token
        reset = call.slice(_latest(call, marks), 1, room - 1, simplify(lift(length) + (room - 1)))

    def shifted(distance: int) -> Value:
        first = room - distance
        found = call.slice(joined, 1, first, simplify(lift(length) + first))
        if reset is None or not distance:
            return found
        place = call.unsqueeze(call.iota(length, start=first), 0)
        return call.op("where", call.op("less_equal", place, reset), end, found)

    return _hashes(call, shifted, call.optional(4)), call.slice(joined, 1, length, joined.shape[1])


@rule("VarlenNGramHashMapping")
def hashes_of_sequences_in_a_row(call: OnnxCall) -> tuple[Value | None, ...]:
    """As NGramHashMapping, of tokens [T] of sequences that have offsets; parts and last tokens [B, n] of each."""
    tokens, room = call[0], call.attribute("max_ngram_size", 0) - 1
    call.require_rank(tokens, 1, 1)
    sequences = Sequences.of(call, 3, tokens.shape[0])
    shape, end = (sequences.count, room), _missing(call, 6)
    past = must_be(call, call[4], shape) if call.has(4) else call.broadcast(end, shape)
    rows = call.op("concat", call.reshape(past, (-1,)), tokens, axis=0)
    blocked = _blocked(call, sequences, past, end, room)

    def shifted(distance: int) -> Value:
        found = call.op("gather", rows, sequences.earlier(call, distance, room), axis=0)
        return found if blocked is None or not distance else call.op("where", blocked(distance), end, found)

    hashes = _hashes(call, shifted, call.optional(5))
    last = sequences.last(call, sequences.lengths, room)
    present = call.reshape(call.op("gather", rows, last, axis=0), shape)
    return hashes, present, _last_parts(call, sequences, last, shape), _states(call, sequences, rows, room)


def _blocked(call: OnnxCall, sequences: Sequences, past: Value, end: Value, room: int) -> Shifted | None:
    """Whether the token a distance before each token [T] is beyond an end or in another part; None where all count."""
    marks, old = _resets(call, 6, call[0], end), _resets(call, 6, past, end)
    if call.has(7):
        marks = _either(call, marks, _changes(call, call[7]))
    if call.has(8):
        first = call.op("gather", call[7], sequences.begins, axis=0)
        changes = _changes(call, call.op("concat", call[8], first, axis=1))
        old = _either(call, old, call.slice(changes, 1, 0, room))
    if marks is None:
        return None
    latest = call.op("pad", _latest(call, marks), pads=[(1, 0)], value=-1)
    latest = call.slice(latest, 0, 0, sequences.tokens)  # before each token
    begins = call.op("gather", call.reshape(sequences.begins, (-1,)), sequences.owner, axis=0)
    own = call.op("greater_equal", latest, begins)
    place = call.op("subtract", latest, begins)
    if old is not None:
        older = call.op("subtract", call.select(_latest(call, old), 1, -1), room)
        place = call.op("where", own, place, call.op("gather", older, sequences.owner, axis=0))
        own = call.full(own.shape, True, int1)

    def found(distance: int) -> Value:
        before = call.op("subtract", sequences.place, distance)
        return call.op("logical_and", own, call.op("less_equal", before, place))

    return found


def _last_parts(call: OnnxCall, sequences: Sequences, last: Value, shape: Sequence[Size]) -> Value | None:
    """The parts of the last tokens [B, n]; before the first call they are that of its first token."""
    if not call.has(7):
        return None
    first = call.op("gather", call[7], sequences.begins, axis=0)
    past = call[8] if call.has(8) else call.broadcast(first, shape)
    rows = call.op("concat", call.reshape(past, (-1,)), call[7], axis=0)
    return call.reshape(call.op("gather", rows, last, axis=0), shape)


def _states(call: OnnxCall, sequences: Sequences, rows: Value, room: int) -> Value | None:
    """The last tokens after each of the first ones that input 9 counts [B, capacity, n]; None for no capacity."""
    capacity = call.attribute("state_update_capacity", 0)
    if not capacity:
        return None
    upto = call.op("minimum", call.unsqueeze(call.iota(capacity, start=1), 0), sequences.lengths)
    found = call.op("gather", rows, sequences.last(call, upto, room), axis=0)
    inside = call.unsqueeze(sequences.captured(call, 9, capacity), 2)
    return call.op("where", inside, found, call.value(call.attribute("pad_id"), rows.dtype))


# Suffixes and paths ----------------------------------------------------------------------------------


@rule("BifurcationDetector")
def suffix_in_source(call: OnnxCall) -> tuple[Value, Value]:
    """Tokens with those that were predicted, as far as the source has them and one more; and the place in the source
    after its only sequence that they end with, or -1."""
    source, current = call[0], call[1]
    least, most = call.positive("min_ngram_size", 1), call.positive("max_ngram_size", 3)
    if most < least:
        raise Invalid(f"sequences of {least} to {most} tokens")
    tokens = _with_predicted(call, source, current) if call.has(3) else current
    place = call.builder.number(-1, int64)
    going = call.builder.number(True, int1)
    extent = call.value(source.shape[0], int64)
    for size in range(least, most + 1):
        count, first = _matches(call, source, tokens, size)
        going = call.op("logical_and", going, call.op("greater", count, 0))
        after = call.op("add", first, size)
        at_end = call.op("greater_equal", after, extent)
        single = call.op("logical_or", at_end, call.op("equal", count, 1))
        new = call.op("where", single, after, call.builder.number(-1, int64))
        place = call.op("where", going, new, place)
        going = call.op("logical_and", going, call.op("logical_not", at_end))
    return tokens, call.reshape(place, call[2].shape)


def _with_predicted(call: OnnxCall, source: Value, current: Value) -> Value:
    """The current tokens and the predicted ones, up to the first that is not the source's from the last match on."""
    predicted, begin = call[3], call.reshape(call.cast(call[2], int64), ())
    count = call.value(predicted.shape[0], int64)
    rest = call.op("subtract", call.value(source.shape[0], int64), begin)
    right = call.op("logical_and", call.op("greater_equal", begin, 0), call.op("equal", count, call.op("add", rest, 1)))
    call.op("condition", right, what="as many tokens are predicted as the source has after the last match, and one")
    padded = call.op("pad", source, pads=[(0, 1)], value=0)
    line = call.iota(predicted.shape[0])
    equal = call.op("equal", predicted, call.op("gather", padded, call.op("add", line, begin), axis=0))
    equal = call.op("logical_and", equal, call.op("less", line, rest))
    differs = call.op("logical_not", equal)
    first = call.op("reduce_min", call.op("where", differs, line, count), axes=(0,), keepdims=True)
    (extent,) = call.read_sizes(call.op("add", first, 1), "predicted", "the predicted tokens that count")
    return call.op("concat", current, call.slice(predicted, 0, 0, extent), axis=0)


def _matches(call: OnnxCall, source: Value, tokens: Value, size: int) -> tuple[Value, Value]:
    """How often the source has the last `size` tokens, and where first."""
    extent, length = source.shape[0], tokens.shape[0]
    padded = call.op("pad", source, pads=[(0, size)], value=0)
    filled = call.op("pad", tokens, pads=[(size, 0)], value=0)
    line = call.iota(extent)
    found = call.op("less_equal", line, call.value(simplify(lift(extent) - size), int64))
    found = call.op("logical_and", found, call.op("greater_equal", call.value(length, int64), size))
    for place in range(size):
        end = simplify(lift(length) + place)
        own = call.slice(padded, 0, place, simplify(lift(extent) + place))
        wanted = call.slice(filled, 0, end, simplify(lift(end) + 1))
        found = call.op("logical_and", found, call.op("equal", own, wanted))
    count = call.op("reduce_sum", call.cast(found, int64), axes=(0,))
    far = call.value(extent, int64)
    return count, call.op("reduce_min", call.op("where", found, line, far), axes=(0,))


@rule("DynamicTimeWarping")
def cheapest_path(call: OnnxCall) -> Value:
    """The points [2, n] of the cheapest path through a matrix of costs, from its first to its last element."""
    costs = call[0]
    call.require_rank(costs, 2, 3)
    matrix = call.reshape(costs, costs.shape[1:]) if costs.rank == 3 else costs
    path = call.op("warping_path", matrix, shape=(2, call.fresh("points")))
    return call.cast(path, int32)
