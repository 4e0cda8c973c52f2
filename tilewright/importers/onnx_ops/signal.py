"""Audio: windows, Fourier transforms by matrices of cosines and sines, mel weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.dtypes import DType, float32, float64, int64
from tilewright.graph.core import Value
from tilewright.importers.onnx_call import Call
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, floor_divide, lift, simplify

TABLE = RuleTable("Signal")
rule = TABLE.rule

SHORT = 64  # numbers of a transform
LARGEST_TABLE = 1 << 26  # elements of the cosines of a transform, and of a window
# The coefficients of cos(0), cos(2 pi n / N) and cos(4 pi n / N).
WINDOWS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def _window(coefficients: tuple[float, float, float]) -> Callable[[Call], Value]:
    def apply(call: Call) -> Value:
        size = _count(call, 0, "size of the window", least=0)
        dtype: DType = call.attribute("output_datatype", float32)
        periodic = bool(call.attribute("periodic", 1))
        if isinstance(size, int):
            turn = 2 * math.pi * np.arange(size) / max(size if periodic else size - 1, 1)
            terms = [c * np.cos(k * turn) for k, c in enumerate(coefficients)]
            return call.constant(np.sum(terms, axis=0).astype(dtype.numpy), "window")
        step = call.op("divide", 2 * math.pi, call.value(size if periodic else simplify(lift(size) - 1), float64))
        angle = call.op("multiply", call.iota(size, float64), step)
        total = call.op("add", call.op("multiply", call.op("cos", angle), coefficients[1]), coefficients[0])
        if coefficients[2]:
            double = call.op("cos", call.op("multiply", angle, 2.0))
            total = call.op("add", total, call.op("multiply", double, coefficients[2]))
        return call.cast(total, dtype)

    return apply


for _name, _coefficients in WINDOWS.items():
    TABLE.add(_name, _window(_coefficients))


def _count(call: Call, index: int, what: str, least: int = 1) -> Size:
    """An input that is one whole number of at least `least`."""
    found = call.sizes(index)
    if len(found) != 1 or (isinstance(found[0], int) and found[0] < least):
        raise Invalid(f"the {what} is {list(map(str, found))}; it must be one number of at least {least}")
    if isinstance(found[0], int) and found[0] > LARGEST_TABLE:
        raise Unsupported(f"a {what} of {found[0]}", f"use at most {LARGEST_TABLE}")
    return found[0]


def _angles(call: Call, rows: Size, columns: Size, length: Size, dtype: DType) -> tuple[Value, Value]:
    """cos and sin of 2 pi row column / length, [rows, columns]; the product is reduced exactly, in integers."""
    if isinstance(rows, int) and isinstance(columns, int) and isinstance(length, int):
        if rows < 1 or columns < 1 or length < 1:
            raise Invalid(f"a transform of {rows} numbers to {columns}")
        if rows * columns > LARGEST_TABLE:
            raise Unsupported(f"a transform of {rows} numbers to {columns}", "use shorter ones")
        turns = np.outer(np.arange(rows), np.arange(columns)) % length
        angle = 2 * math.pi * turns / length
        return tuple(call.constant(f(angle).astype(dtype.numpy), "transform") for f in (np.cos, np.sin))  # type: ignore[return-value]
    grid = call.op("multiply", call.unsqueeze(call.iota(rows), 1), call.unsqueeze(call.iota(columns), 0))
    turns_ = call.cast(call.op("remainder", grid, call.value(length, int64)), float64)
    step = call.op("divide", 2 * math.pi, call.value(length, float64))
    angle_ = call.op("multiply", turns_, step)
    return call.cast(call.op("cos", angle_), dtype), call.cast(call.op("sin", angle_), dtype)


def transform(
    call: Call, real: Value, imaginary: Value | None, length: Size, kept: Size, inverse: bool
) -> tuple[Value, Value]:
    """The first `kept` numbers of the Fourier transform of the last dimension, of `length`: real and imaginary parts.

    sum_n x[n] exp(-2 pi i n k / length), with + and a division by the length for the inverse.  Short ones are computed
    in float64, which costs nothing there and keeps zeros small.
    """
    if isinstance(length, int) and length <= SHORT and real.dtype != float64:
        wide = (call.cast(real, float64), None if imaginary is None else call.cast(imaginary, float64))
        first, second = transform(call, *wide, length, kept, inverse)
        return call.cast(first, real.dtype), call.cast(second, real.dtype)
    cosines, sines = _angles(call, length, kept, length, real.dtype)
    if inverse:
        sines = call.op("negate", sines)
    out_real, out_imaginary = call.matmul(real, cosines), call.op("negate", call.matmul(real, sines))
    if imaginary is not None:
        out_real = call.op("add", out_real, call.matmul(imaginary, sines))
        out_imaginary = call.op("add", out_imaginary, call.matmul(imaginary, cosines))
    if inverse:
        count = call.value(length, real.dtype)
        out_real, out_imaginary = (call.op("divide", part, count) for part in (out_real, out_imaginary))
    return out_real, out_imaginary


def _half(length: Size) -> Size:
    return simplify(lift(floor_divide(length, 2)) + 1)


def _fitted(call: Call, x: Value, length: Size) -> Value:
    """The last dimension cut to `length`, or padded with zeros."""
    extent, last = x.shape[-1], x.rank - 1
    if extent == length:
        return x
    if not (isinstance(extent, int) and isinstance(length, int)):
        raise Unsupported(f"a transform of length {length} over a dimension of size {extent}", "fix both sizes")
    if length < extent:
        return call.slice(x, last, 0, length)
    return call.op("pad", x, pads=((0, 0),) * last + ((0, length - extent),))


@rule("DFT")
def fourier_transform(call: Call) -> Value:
    """[..., n, ..., 1 or 2] along one axis; opset 20 has the axis as an input, which counts the last dimension too."""
    x = call[0]
    call.require_rank(x, 2)
    axis = call.attribute("axis", 1) if call.opset < 20 else int(call.number(2)) if call.has(2) else -2
    axis = call.place(int(axis), x.rank)
    if axis == x.rank - 1 or x.shape[-1] not in (1, 2):
        raise Invalid(f"{x!r} has no dimension of real and imaginary parts behind axis {axis}")
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    length = _count(call, 1, "length of the transform") if call.has(1) else None
    parts = [call.select(x, x.rank - 1, part) for part in range(2 if x.shape[-1] == 2 else 1)]
    parts = [call.transpose(part, axis, part.rank - 1) for part in parts]
    if onesided and inverse:
        return _real_inverse(call, parts, length, axis)
    length = parts[0].shape[-1] if length is None else length
    parts = [_fitted(call, part, length) for part in parts]
    kept = _half(length) if onesided else length
    found = transform(call, parts[0], parts[1] if len(parts) > 1 else None, length, kept, inverse)
    real, imaginary = (call.unsqueeze(call.transpose(part, axis, part.rank - 1), -1) for part in found)
    return call.op("concat", real, imaginary, axis=real.rank - 1)


def _real_inverse(call: Call, parts: list[Value], length: Size | None, axis: int) -> Value:
    """The real signal whose transform begins with the numbers given; the rest follows from symmetry."""
    half = parts[0].shape[-1]
    if length is None:
        length = simplify((lift(half) - 1) * 2)
    parts = [_fitted(call, part, _half(length)) for part in parts]
    kept = parts[0].shape[-1]
    cosines, sines = _angles(call, kept, length, length, parts[0].dtype)
    place = call.iota(kept)
    ends = call.op("logical_or", call.op("equal", place, 0), _is_middle(call, place, length))
    twice = call.op("where", ends, call.builder.number(1.0, parts[0].dtype), call.builder.number(2.0, parts[0].dtype))
    total = call.matmul(call.op("multiply", parts[0], twice), cosines)
    if len(parts) > 1:
        total = call.op("subtract", total, call.matmul(call.op("multiply", parts[1], twice), sines))
    total = call.op("divide", total, call.value(length, total.dtype))
    return call.unsqueeze(call.transpose(total, axis, total.rank - 1), -1)


def _is_middle(call: Call, place: Value, length: Size) -> Value:
    """Whether a number of the transform is its own mirror image: the last one of an even length."""
    return call.op("equal", call.op("multiply", place, 2), call.value(length, int64))


@rule("STFT")
def short_time_transform(call: Call) -> Value:
    """Frames of a signal [B, n, 1 or 2] or [B, n], times a window, transformed: [B, frames, numbers, 2]."""
    signal, step = call[0], _count(call, 1, "step between frames")
    window = call.optional(2)
    call.require_rank(signal, 2, 3)
    signal = call.unsqueeze(signal, 2) if signal.rank == 2 else signal
    if window is not None:
        call.require_rank(window, 1, 1)
    length = _count(call, 3, "length of a frame") if call.has(3) else window.shape[0] if window is not None else None
    if length is None:
        raise Unsupported("STFT without a window and a frame length", "give one of them")
    count = simplify(lift(floor_divide(simplify(lift(signal.shape[1]) - length), step)) + 1)
    starts = call.op("multiply", call.iota(count), call.value(step, int64))
    places = call.op("add", call.unsqueeze(starts, 1), call.unsqueeze(call.iota(length), 0))
    parts = [call.select(signal, 2, part) for part in range(2 if signal.shape[2] == 2 else 1)]
    frames = [call.op("gather", part, places, axis=1) for part in parts]
    if window is not None:
        frames = [call.op("multiply", frame, window) for frame in frames]
    kept = _half(length) if call.attribute("onesided", 1) and len(parts) == 1 else length
    found = transform(call, frames[0], frames[1] if len(frames) > 1 else None, length, kept, False)
    real, imaginary = (call.unsqueeze(part, -1) for part in found)
    return call.op("concat", real, imaginary, axis=real.rank - 1)


@rule("MelWeightMatrix")
def mel_weights(call: Call) -> Value:
    """Triangles over the numbers of a spectrum, evenly spaced in mel: [dft_length // 2 + 1, bins]."""
    sizes = [_count(call, index, what) for index, what in enumerate(("number of bins", "length", "sample rate"))]
    bins, length, rate = sizes
    if not (isinstance(bins, int) and isinstance(length, int) and isinstance(rate, int)):
        raise Unsupported("mel weights of a size that is known only at run time", "fix the sizes")
    low, high = (float(call.number(index)) for index in (3, 4))
    if not 0 <= low < high <= rate / 2 or (length // 2 + 1) * bins > LARGEST_TABLE:
        raise Invalid(f"edges from {low} to {high} Hz at a rate of {rate}, {bins} bins and a length of {length}")
    dtype: DType = call.attribute("output_datatype", float32)
    edges = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mels = np.arange(bins + 2) * ((edges[1] - edges[0]) / (bins + 2)) + edges[0]
    places = ((length + 1) * (700 * (np.power(10, mels / 2595) - 1)) // rate).astype(np.int64)
    weights = np.zeros((length // 2 + 1, bins), dtype.numpy)
    for column in range(bins):
        first, centre, last = places[column : column + 3]
        if centre == first:
            weights[centre, column] = 1
        else:
            rising = np.arange(first, centre + 1)
            weights[rising, column] = (rising - first) / (centre - first)
        if last > centre:
            falling = np.arange(centre, last)
            weights[falling, column] = (last - falling) / (last - centre)
    return call.constant(weights, "mel_weights")
