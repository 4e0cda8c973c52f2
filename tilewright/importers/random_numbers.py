"""Random numbers by counter, shared by the importers: each follows from the graph's seed, the draw and the position.

A graph that draws has an input `seed`, which an engine gives a number of its own at each call without one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int32, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter, Scalar
from tilewright.importers.report import Unsupported
from tilewright.importers.sorting import sort, top
from tilewright.symbolic import Size, product

_DIGITS = {float64: 53, float32: 24, float16: 11, bfloat16: 8}  # bits of a number below 1, so that none rounds to 1


def wide(dtype: DType) -> DType:
    """The element type in which numbers of `dtype` are computed: float64 for float64, float32 for all others."""
    return float64 if dtype == float64 else float32


def bits(emit: Emitter, shape: Sequence[Size]) -> Value:
    """64 random bits for each element, other ones for each draw of a graph; raises `Unsupported` in graphs inside."""
    builder = emit.builder
    if builder.is_inside:
        raise Unsupported(
            "random numbers in a loop or branch that only the run decides", "draw them before it and pass them in"
        )
    place = emit.reshape(emit.iota(product(tuple(shape))), shape)
    return emit.op("random_bits", place, builder.seed(), stream=builder.next_stream())


def _fraction(emit: Emitter, drawn: Value, digits: int, skipped: int, dtype: DType) -> Value:
    """`digits` bits, those after the first `skipped`, as a number from 0 up to 1."""
    shifted = emit.op("shift_right", drawn, 64 - skipped - digits)
    whole = emit.op("bitwise_and", shifted, 2**digits - 1)
    narrow = emit.cast(whole, int32) if digits < 32 else whole
    return emit.op("multiply", emit.cast(narrow, dtype), 2.0**-digits)


def uniform(emit: Emitter, shape: Sequence[Size], dtype: DType) -> Value:
    """From 0 up to 1, without 1."""
    return emit.cast(_fraction(emit, bits(emit, shape), _DIGITS.get(dtype, 24), 0, wide(dtype)), dtype)


def normal(emit: Emitter, shape: Sequence[Size], dtype: DType) -> Value:
    """Of mean 0 and variance 1 (Box and Muller, 1958)."""
    if dtype == float64:
        first, second = (_fraction(emit, bits(emit, shape), 53, 0, float64) for _ in range(2))
    else:
        drawn = bits(emit, shape)
        first, second = (_fraction(emit, drawn, 24, skipped, float32) for skipped in (0, 24))
    radius = emit.op("sqrt", emit.op("multiply", _log_of_rest(emit, first), -2.0))
    return emit.cast(emit.op("multiply", radius, emit.op("cos", emit.op("multiply", second, 2 * math.pi))), dtype)


def _log_of_rest(emit: Emitter, x: Value) -> Value:
    """log(1 - x) of a number from 0 up to 1, which is finite."""
    return emit.op("log", emit.op("subtract", 1.0, x))


def exponential(emit: Emitter, shape: Sequence[Size], dtype: DType) -> Value:
    """Of mean 1."""
    return emit.cast(emit.op("negate", _log_of_rest(emit, uniform(emit, shape, wide(dtype)))), dtype)


def integers(emit: Emitter, shape: Sequence[Size], low: Scalar, high: Scalar) -> Value:
    """i64 from `low` up to `high`, without it: the remainder of 63 bits."""
    drawn = emit.op("bitwise_and", bits(emit, shape), 2**63 - 1)
    first, last = emit.value(low, int64), emit.value(high, int64)
    return emit.op("add", emit.op("remainder", drawn, emit.op("subtract", last, first)), first)


def events(emit: Emitter, share: Value | float, shape: Sequence[Size]) -> Value:
    """Booleans that are true with the probability `share`."""
    dtype = wide(share.dtype) if isinstance(share, Value) else float32
    return emit.op("less", uniform(emit, shape, dtype), emit.value(share, dtype))


def permutation(emit: Emitter, length: Size) -> Value:
    """0 … length - 1 in random order; raises `Unsupported` as `sort` does."""
    return sort(emit, bits(emit, (length,)), 0, descending=False)[1]


def choices(emit: Emitter, weights: Value, samples: int, replacement: bool) -> Value:
    """Positions [..., samples] in rows of weights [..., C], with the probability that a weight has of its row's sum.

    Without replacement a weight divided by an exponential number decides: the largest ones are chosen.
    Raises `Unsupported` as `top` does.
    """
    axis = weights.rank - 1
    weights = emit.cast(weights, wide(weights.dtype))
    if not replacement:
        ratio = emit.op("divide", weights, exponential(emit, weights.shape, weights.dtype))
        race = emit.op("where", emit.op("greater", weights, 0.0), ratio, emit.builder.number(-1.0, weights.dtype))
        return top(emit, race, samples, axis, largest=True)[1]
    sums = emit.op("cumsum", weights, axis=axis)
    total = emit.op("reduce_sum", weights, axes=(axis,), keepdims=True)
    aims = emit.op("multiply", uniform(emit, (*weights.shape[:-1], samples), weights.dtype), total)
    passed = emit.op("less_equal", emit.unsqueeze(sums, axis), emit.unsqueeze(aims, axis + 1))
    found = emit.op("reduce_sum", emit.cast(passed, int64), axes=(axis + 1,))
    # Rounding may put an aim at the last sum: then the last position that has a weight is meant.
    line = emit.iota(weights.shape[-1])
    none = emit.builder.number(0, int64)
    last = emit.op("where", emit.op("greater", weights, 0.0), line, none)
    return emit.op("minimum", found, emit.op("reduce_max", last, axes=(axis,), keepdims=True))
