"""Audio: windows, Fourier transforms by matrices of cosines and sines, mel weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.dtypes import DType, float32, float64, int64
from tilewright.graph.core import Value
from tilewright.importers.equal_sizes import may_be_equal
from tilewright.importers.fourier import MOST_COSINES, fitted, half, real_inverse, transform
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, floor_divide, lift, simplify

TABLE = RuleTable("Signal")
rule = TABLE.rule

# The coefficients of cos(0), cos(2 pi n / N) and cos(4 pi n / N).
WINDOWS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def _window(coefficients: tuple[float, float, float]) -> Callable[[OnnxCall], Value]:
    def apply(call: OnnxCall) -> Value:
        size = _count(call, 0, "size of the window", least=0)
        dtype: DType = call.attribute("output_datatype", float32)
        periodic = bool(call.attribute("periodic", 1))
        if isinstance(size, int):
            with np.errstate(invalid="ignore"):  # one element of a symmetric window is 0 / 0: NaN
                turn = 2 * math.pi * np.arange(size) / np.float64(size if periodic else size - 1)
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


def _count(call: OnnxCall, index: int, subject: str, least: int = 1) -> Size:
    """An input that is one whole number of at least `least`."""
    found = call.lengths(index)
    if len(found) != 1 or (isinstance(found[0], int) and found[0] < least):
        raise Invalid(f"the {subject} is {list(map(str, found))}; it must be one number of at least {least}")
    if isinstance(found[0], int) and found[0] > MOST_COSINES:
        raise Unsupported(f"a {subject} of {found[0]}", f"use at most {MOST_COSINES}")
    return found[0]


@rule("DFT")
def fourier_transform(call: OnnxCall) -> Value:
    """[..., n, ..., 1 or 2] along one axis; opset 20 has the axis as an input, which counts the last dimension too."""
    x = call.wide(call[0])
    call.require_rank(x, 2)
    axis = call.attribute("axis", 1) if call.opset < 20 else int(call.number(2)) if call.has(2) else -2
    axis = call.place(int(axis), x.rank)
    if axis != x.rank - 1 and may_be_equal(x.shape[-1], 1) and may_be_equal(x.shape[-1], 2):
        raise Unsupported(f"a transform of {x!r}, which may be complex or not", "fix the last dimension at 1 or 2")
    if axis == x.rank - 1 or x.shape[-1] not in (1, 2):
        raise Invalid(f"{x!r} has no dimension of real and imaginary parts after axis {axis}")
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    length = _count(call, 1, "length of the transform") if call.has(1) else None
    parts = [call.select(x, x.rank - 1, part) for part in range(2 if x.shape[-1] == 2 else 1)]
    parts = [call.transpose(part, axis, part.rank - 1) for part in parts]
    if onesided and inverse:
        return _real_inverse(call, parts, length, axis)
    length = parts[0].shape[-1] if length is None else length
    parts = [fitted(call, part, length) for part in parts]
    count = half(length) if onesided else length
    found = transform(call, parts[0], parts[1] if len(parts) > 1 else None, length, count, inverse)
    if inverse:
        found = tuple(call.op("divide", part, call.value(length, part.dtype)) for part in found)  # type: ignore[assignment]
    real, imaginary = (call.unsqueeze(call.transpose(part, axis, part.rank - 1), -1) for part in found)
    return call.cast(call.op("concat", real, imaginary, axis=real.rank - 1), call[0].dtype)


def _real_inverse(call: OnnxCall, parts: list[Value], length: Size | None, axis: int) -> Value:
    """The real signal whose transform begins with the numbers given."""
    if length is None:
        length = simplify((lift(parts[0].shape[-1]) - 1) * 2)
    total = real_inverse(call, parts[0], parts[1] if len(parts) > 1 else None, length)
    total = call.op("divide", total, call.value(length, total.dtype))
    return call.cast(call.unsqueeze(call.transpose(total, axis, total.rank - 1), -1), call[0].dtype)


@rule("STFT")
def short_time_transform(call: OnnxCall) -> Value:
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
    parts = [call.select(signal, 2, part) for part in range(2 if signal.shape[2] == 2 else 1)]
    frames = [_frames(call, part, count, length, step) for part in parts]
    if window is not None:
        frames = [call.op("multiply", frame, window) for frame in frames]
    numbers = half(length) if call.attribute("onesided", 1) and len(parts) == 1 else length
    found = transform(call, frames[0], frames[1] if len(frames) > 1 else None, length, numbers, False)
    real, imaginary = (call.unsqueeze(part, -1) for part in found)
    return call.op("concat", real, imaginary, axis=real.rank - 1)


def _frames(call: OnnxCall, x: Value, count: Size, length: Size, step: Size) -> Value:
    """Pieces of the signals [B, n]: [B, count, length]."""
    if isinstance(step, int):
        return call.op("frames", x, axis=1, count=count, length=length, step=step)
    starts = call.op("multiply", call.iota(count), call.value(step, int64))
    places = call.op("add", call.unsqueeze(starts, 1), call.unsqueeze(call.iota(length), 0))
    return call.op("gather", x, places, axis=1)


@rule("MelWeightMatrix")
def mel_weights(call: OnnxCall) -> Value:
    """Triangles over the numbers of a spectrum, evenly spaced in mel: [dft_length // 2 + 1, bins]."""
    sizes = [_count(call, index, subject) for index, subject in enumerate(("number of bins", "length", "sample rate"))]
    bins, length, rate = sizes
    if not (isinstance(bins, int) and isinstance(length, int) and isinstance(rate, int)):
        raise Unsupported("mel weights of a size that is known only at run time", "fix the sizes")
    low, high = (float(call.number(index)) for index in (3, 4))
    if not 0 <= low < high <= rate / 2 or (length // 2 + 1) * bins > MOST_COSINES:
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
