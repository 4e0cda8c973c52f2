"""Fourier transforms; shared by the importers."""

from __future__ import annotations

import math
from typing import Any

from tilewright.dtypes import DType, float32, float64, int64
from tilewright.graph.core import Value
from tilewright.graph.fourier import LONGEST_TRANSFORM, MOST_COSINES, is_product, roots_of_unity
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Invalid, Unsupported
from tilewright.symbolic import Size, floor_divide, lift, simplify


def _angles(emit: Emitter, rows: Size, columns: Size, length: Size, dtype: DType) -> tuple[Value, Value]:
    """cos and sin of 2 pi row column / length, [rows, columns]; the product is reduced exactly, in integers."""
    grid = emit.op("multiply", emit.unsqueeze(emit.iota(rows), 1), emit.unsqueeze(emit.iota(columns), 0))
    steps = emit.cast(emit.op("remainder", grid, emit.value(length, int64)), float64)
    angle = emit.op("multiply", steps, emit.op("divide", 2 * math.pi, emit.value(length, float64)))
    return emit.cast(emit.op("cos", angle), dtype), emit.cast(emit.op("sin", angle), dtype)


def _fourier(emit: Emitter, real: Value, imaginary: Value | None, length: int, **attributes: Any) -> Value:
    """The op for a length that is known; float16 and bfloat16 are computed in float32."""
    if length < 1:
        raise Invalid(f"a transform of {length} numbers")
    if length > LONGEST_TRANSFORM:
        raise Unsupported(f"a transform of {length} numbers", f"use at most {LONGEST_TRANSFORM}")
    if is_product(length) and length * (length // 2 + 1) > MOST_COSINES:
        raise Unsupported(f"a transform of {length} numbers", "use a length of small prime factors, or a shorter one")
    if real.rank == 1:
        rows = [None if part is None else emit.unsqueeze(part, 0) for part in (real, imaginary)]
        assert rows[0] is not None
        return emit.reshape(_fourier(emit, rows[0], rows[1], length, **attributes), (-1,))
    dtype = real.dtype if real.dtype == float64 else float32
    roots = emit.constant(roots_of_unity(length, dtype), "roots_of_unity")
    parts = [None if part is None else emit.cast(part, dtype) for part in (real, imaginary)]
    found = emit.op("fourier", parts[0], roots, *parts[1:] if imaginary is not None else (), **attributes)
    return emit.cast(found, real.dtype)


def transform(
    emit: Emitter, real: Value, imaginary: Value | None, length: Size, count: Size, inverse: bool
) -> tuple[Value, Value]:
    """The first `count` numbers of the Fourier transform of the last dimension, of `length`: real and imaginary parts.

    sum_n x[n] exp(-2 pi i n k / length), with + for the inverse, not divided by the length.  `count` are all or, as
    `half` says, those from which the others follow.
    """
    if isinstance(length, int):
        assert isinstance(count, int)
        form = "half" if count == half(length) else "whole"
        found = _fourier(emit, real, imaginary, length, form=form, inverse=inverse)
        return tuple(emit.slice(found, real.rank - 1, count * part, count * (part + 1)) for part in range(2))  # type: ignore
    cosines, sines = _angles(emit, length, count, length, real.dtype)
    if not inverse:  # not the product: its zeros have the sign of PyTorch's and NumPy's
        sines = emit.op("negate", sines)
    out_real, out_imaginary = emit.matmul(real, cosines), emit.matmul(real, sines)
    if imaginary is not None:
        out_real = emit.op("subtract", out_real, emit.matmul(imaginary, sines))
        out_imaginary = emit.op("add", out_imaginary, emit.matmul(imaginary, cosines))
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
    """The real signal of `length` along the last dimension whose transform begins with the numbers given, times the
    length; the rest of the transform follows from symmetry."""
    real = fitted(emit, real, half(length))
    imaginary = None if imaginary is None else fitted(emit, imaginary, half(length))
    if isinstance(length, int):
        return _fourier(emit, real, imaginary, length, form="real")
    count = real.shape[-1]
    cosines, sines = _angles(emit, count, length, length, real.dtype)
    place = emit.iota(count)
    ends = emit.op("logical_or", emit.op("equal", place, 0), _is_middle(emit, place, length))
    twice = emit.op("where", ends, emit.builder.number(1.0, real.dtype), emit.builder.number(2.0, real.dtype))
    total = emit.matmul(emit.op("multiply", real, twice), cosines)
    if imaginary is not None:
        total = emit.op("subtract", total, emit.matmul(emit.op("multiply", imaginary, twice), sines))
    return total


def _is_middle(emit: Emitter, place: Value, length: Size) -> Value:
    """Whether a number of the transform is its own mirror image: the last one of an even length."""
    return emit.op("equal", emit.op("multiply", place, 2), emit.value(length, int64))
