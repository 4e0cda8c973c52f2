"""Fourier transforms as products with cosines and sines; shared by the importers."""

from __future__ import annotations

import math

import numpy as np

from tilewright.dtypes import DType, float64, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Invalid, Unsupported
from tilewright.symbolic import Size, floor_divide, lift, simplify

SHORT = 64  # numbers of a transform
LARGEST_TABLE = 1 << 26  # elements of the cosines of a transform, and of a window


def _angles(emit: Emitter, rows: Size, columns: Size, length: Size, dtype: DType) -> tuple[Value, Value]:
    """cos and sin of 2 pi row column / length, [rows, columns]; the product is reduced exactly, in integers."""
    if isinstance(rows, int) and isinstance(columns, int) and isinstance(length, int):
        if rows < 1 or columns < 1 or length < 1:
            raise Invalid(f"a transform of {rows} numbers to {columns}")
        if rows * columns > LARGEST_TABLE:
            raise Unsupported(f"a transform of {rows} numbers to {columns}", "use shorter ones")
        turns = np.outer(np.arange(rows), np.arange(columns)) % length
        angle = 2 * math.pi * turns / length
        sines = np.where(2 * turns % length == 0, 0.0, np.sin(angle))  # half a turn is none of sin's arguments
        cosines = np.where(4 * turns % (2 * length) == length, 0.0, np.cos(angle))
        found = (emit.constant(part.astype(dtype.numpy), "transform") for part in (cosines, sines))
        return next(found), next(found)
    grid = emit.op("multiply", emit.unsqueeze(emit.iota(rows), 1), emit.unsqueeze(emit.iota(columns), 0))
    turns_ = emit.cast(emit.op("remainder", grid, emit.value(length, int64)), float64)
    step = emit.op("divide", 2 * math.pi, emit.value(length, float64))
    angle_ = emit.op("multiply", turns_, step)
    return emit.cast(emit.op("cos", angle_), dtype), emit.cast(emit.op("sin", angle_), dtype)


def transform(
    emit: Emitter, real: Value, imaginary: Value | None, length: Size, kept: Size, inverse: bool
) -> tuple[Value, Value]:
    """The first `kept` numbers of the Fourier transform of the last dimension, of `length`: real and imaginary parts.

    sum_n x[n] exp(-2 pi i n k / length), with + and a division by the length for the inverse.  Short ones are computed
    in float64, which costs nothing there and keeps zeros small.
    """
    if isinstance(length, int) and length <= SHORT and real.dtype != float64:
        wide = (emit.cast(real, float64), None if imaginary is None else emit.cast(imaginary, float64))
        first, second = transform(emit, *wide, length, kept, inverse)
        return emit.cast(first, real.dtype), emit.cast(second, real.dtype)
    cosines, sines = _angles(emit, length, kept, length, real.dtype)
    if not inverse:  # not the product: its zeros have the sign of PyTorch's and NumPy's
        sines = emit.op("negate", sines)
    out_real, out_imaginary = emit.matmul(real, cosines), emit.matmul(real, sines)
    if imaginary is not None:
        out_real = emit.op("subtract", out_real, emit.matmul(imaginary, sines))
        out_imaginary = emit.op("add", out_imaginary, emit.matmul(imaginary, cosines))
    if inverse:
        count = emit.value(length, real.dtype)
        out_real, out_imaginary = (emit.op("divide", part, count) for part in (out_real, out_imaginary))
    return out_real, out_imaginary


def half(length: Size) -> Size:
    """How many numbers of the transform of a real signal the others follow from."""
    return simplify(lift(floor_divide(length, 2)) + 1)


def fitted(emit: Emitter, x: Value, length: Size) -> Value:
    """The last dimension cut to `length`, or padded with zeros."""
    extent, last = x.shape[-1], x.rank - 1
    if extent == length:
        return x
    if not (isinstance(extent, int) and isinstance(length, int)):
        raise Unsupported(f"a transform of length {length} over a dimension of size {extent}", "fix both sizes")
    if length < extent:
        return emit.slice(x, last, 0, length)
    return emit.op("pad", x, pads=((0, 0),) * last + ((0, length - extent),))


def real_inverse(emit: Emitter, real: Value, imaginary: Value | None, length: Size) -> Value:
    """The real signal of `length` along the last dimension whose transform begins with the numbers given; the rest
    follows from symmetry."""
    real = fitted(emit, real, half(length))
    kept = real.shape[-1]
    cosines, sines = _angles(emit, kept, length, length, real.dtype)
    place = emit.iota(kept)
    ends = emit.op("logical_or", emit.op("equal", place, 0), _is_middle(emit, place, length))
    twice = emit.op("where", ends, emit.builder.number(1.0, real.dtype), emit.builder.number(2.0, real.dtype))
    total = emit.matmul(emit.op("multiply", real, twice), cosines)
    if imaginary is not None:
        imaginary = fitted(emit, imaginary, half(length))
        total = emit.op("subtract", total, emit.matmul(emit.op("multiply", imaginary, twice), sines))
    return emit.op("divide", total, emit.value(length, total.dtype))


def _is_middle(emit: Emitter, place: Value, length: Size) -> Value:
    """Whether a number of the transform is its own mirror image: the last one of an even length."""
    return emit.op("equal", emit.op("multiply", place, 2), emit.value(length, int64))
