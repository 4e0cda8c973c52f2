"""Quantized weight matrices of checkpoints and models, converted to the one form of graphs.

Every format is unpacked to codes [columns, depth], scales and zero points [columns, groups], and an order of the depth
where its groups lie apart; `multiply` writes the product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.dtypes import bfloat16, float16, float32, from_numpy, int4, int8, uint4
from tilewright.graph.core import Value
from tilewright.graph.quantization import numbers_of
from tilewright.importers.emitter import Emitter


@dataclass(frozen=True)
class QuantizedMatrix:
    """The numbers (codes - zeros) scales - offsets: codes [columns, depth] of at most 8 bits, the others [columns,
    groups].

    With an `order` of the depth, column k of the codes is multiplied by element order[k] of a row.  A depth that groups
    do not divide is filled up with codes that stand for zero, or that rows meet with zeros; `depth` is without them.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None
    order: np.ndarray | None = None
    depth: int = 0  # 0: that of the codes
    offsets: np.ndarray | None = None

    def numbers(self) -> np.ndarray:
        """float32 [columns, depth], each rounded once."""
        found = numbers_of(self.codes, self.scales, self.zeros)
        if self.offsets is not None:
            found = found - np.repeat(self.offsets.astype(np.float64), found.shape[1] // self.offsets.shape[1], axis=1)
        found = found.astype(np.float32)
        if self.order is not None:
            found = found[:, np.argsort(self.order)]
        return found[:, : self.depth] if self.depth else found

    def reordered(self, order: np.ndarray) -> QuantizedMatrix:
        """The columns in another order."""
        parts = [None if item is None else item[order] for item in (self.zeros, self.offsets)]
        return replace(
            self, codes=self.codes[order], scales=self.scales[order], zeros=parts[0], offsets=parts[1]
        )  # fmt: skip


_AT_ONCE = 1 << 22  # elements that are looked at, so that the answers of large weights take little memory
_EXPONENTS = {float16: 0x7C00, bfloat16: 0x7F80}  # of 16 bits: all of them are set where a number is not finite


def place_not_finite(data: np.ndarray) -> tuple[int, ...] | None:
    """Where the first number that is infinite or not a number is; None where all are finite."""
    dtype = from_numpy(data.dtype)
    flat = np.ascontiguousarray(data).reshape(-1)
    if not dtype.is_float:
        return None
    for begin in range(0, flat.size, _AT_ONCE):
        part = flat[begin : begin + _AT_ONCE]
        if dtype in _EXPONENTS:
            mask = np.uint16(_EXPONENTS[dtype])
            bad = (part.view(np.uint16) & mask) == mask
        elif dtype.bits == 8:
            bad = ~np.isfinite(np.arange(256, dtype=np.uint8).view(data.dtype))[part.view(np.uint8)]
        else:
            bad = ~np.isfinite(part)
        if bad.any():
            return tuple(map(int, np.unravel_index(begin + int(bad.argmax()), data.shape)))
    return None


def multiply(emit: Emitter, x: Value, matrix: QuantizedMatrix, name: str) -> Value:
    """x [.., depth] times the matrix: [.., columns] in the type of x."""
    columns, filled = matrix.codes.shape
    if matrix.depth and matrix.depth != filled:
        x = emit.op("pad", x, pads=(*[(0, 0)] * (x.rank - 1), (0, filled - matrix.depth)), value=0)
    if matrix.order is not None:
        order = emit.constant(matrix.order.astype(np.int64), f"{name}.order")
        x = emit.op("gather", x, order, axis=x.rank - 1)
    groups = matrix.scales.shape[1]
    shapes = ((columns, groups, -1), (columns, groups, 1), (columns, groups, 1))
    parts = zip(
        (matrix.codes, matrix.scales, matrix.zeros), shapes, (name, f"{name}.scales", f"{name}.zeros"), strict=True
    )
    values = [emit.constant(array.reshape(shape), text) for array, shape, text in parts if array is not None]
    numbers = emit.reshape(emit.op("dequantize", *values), (columns, filled))
    rows = x if x.rank > 1 else emit.unsqueeze(x, 0)
    result = emit.op("matmul", rows, emit.cast(numbers, x.dtype), transpose_b=True)
    if matrix.offsets is not None:
        runs = emit.reshape(rows, (*rows.shape[:-1], groups, filled // groups))
        sums = emit.op("reduce_sum", emit.cast(runs, float32), axes=(rows.rank,))
        offsets = emit.constant(matrix.offsets.astype(np.float32), f"{name}.offsets")
        share = emit.op("matmul", sums, offsets, transpose_b=True)
        result = emit.cast(emit.op("subtract", emit.cast(result, float32), share), x.dtype)
    return result if x.rank > 1 else emit.reshape(result, (columns,))


def multiply_in_8_bits(emit: Emitter, x: Value, matrix: QuantizedMatrix, name: str) -> Value:
    """The same for rows that are rounded to int8 first, with a scale for each: its largest magnitude is 127.5 steps."""
    last = x.rank - 1
    wide = emit.cast(x, float32)
    largest = emit.op("reduce_max", emit.op("maximum", wide, emit.op("negate", wide)), axes=(last,), keepdims=True)
    scale = emit.op("maximum", emit.op("multiply", largest, 1 / 127.5), float(np.finfo(np.float32).tiny))
    rows = emit.op("dequantize", emit.op("quantize", wide, scale, dtype=int8), scale)
    codes, scales = emit.constant(matrix.codes, name), emit.constant(matrix.scales, f"{name}.scales")
    return emit.cast(emit.op("matmul", rows, emit.op("dequantize", codes, scales), transpose_b=True), x.dtype)


def nearest(weights: np.ndarray, bits: int, group: int) -> QuantizedMatrix:
    """Weights [columns, depth] rounded to the nearest of 2^bits - 1 numbers around zero, with a scale for each group of
    the depth (0: for all of it); the last group may be smaller."""
    columns, depth = weights.shape
    group = group or depth
    filled = -(-depth // group) * group
    padded = np.pad(weights.astype(np.float32), ((0, 0), (0, filled - depth))).reshape(columns, -1, group)
    most = (1 << (bits - 1)) - 1
    largest = np.abs(padded).max(axis=2)
    scales = np.where(largest > 0, largest / most, 1).astype(np.float32)
    codes = np.clip(np.rint(padded / scales[..., None]), -most, most).astype(np.int8).reshape(columns, filled)
    return QuantizedMatrix(codes.astype(int4.numpy) if bits == 4 else codes, scales, depth=depth)


def unpacked_bits(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes of bytes [.., n] as uint8 [.., n 8 / bits], those in the low bits first."""
    places = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed.view(np.uint8)[..., None] >> places) & ((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def of_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes below 2^bits in the narrowest type that kernels have."""
    return codes.astype(uint4.numpy if bits <= 4 else np.uint8)


def in_groups(matrix: QuantizedMatrix, places: np.ndarray) -> QuantizedMatrix | None:
    """The matrix whose element k of the depth has the scale of group places[k], with an order in which groups are runs
    of one length; None where the groups are of different sizes."""
    groups = matrix.scales.shape[1]
    if len(places) % groups or (places < 0).any() or (places >= groups).any():
        return None
    size = len(places) // groups
    if not (np.bincount(places, minlength=groups) == size).all():
        return None
    if (places == np.arange(len(places)) // size).all():
        return matrix
    order = np.argsort(places, kind="stable")
    return replace(matrix, codes=np.ascontiguousarray(matrix.codes[:, order]), order=order)


def in_runs(matrix: QuantizedMatrix, places: np.ndarray, size: int) -> QuantizedMatrix:
    """The matrix whose element k of the depth has the scale of group places[k], for groups of any sizes: each is cut
    into runs of `size`, with an order in which what fills up the last run is a zero that rows are padded with."""
    depth = len(places)
    if (places == np.arange(depth) // size).all():
        return matrix
    runs, groups = [], []
    for group in np.unique(places):
        members = np.flatnonzero(places == group)
        runs.append(np.pad(members, (0, -len(members) % size), constant_values=depth))
        groups += [int(group)] * (len(runs[-1]) // size)
    order = np.concatenate(runs)
    codes = np.ascontiguousarray(matrix.codes[:, np.minimum(order, depth - 1)])
    zeros = None if matrix.zeros is None else np.ascontiguousarray(matrix.zeros[:, groups])
    scales = np.ascontiguousarray(matrix.scales[:, groups])
    return QuantizedMatrix(codes, scales, zeros, order, depth)
