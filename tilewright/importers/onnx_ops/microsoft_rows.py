"""Rows of packed tables as floats, in the formats of GGML that ONNX Runtime reads (`GatherPacked`).

A row is blocks of bytes; numbers of several bytes begin with the low one.  Formats whose elements come from tables of
grids are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import DType, bfloat16, float16, float32, int32, int64, uint16, uint32
from tilewright.graph.core import Value
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import simplify

TABLE = RuleTable("ONNX Runtime: rows of packed tables", "com.microsoft::")
rule = TABLE.rule

_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4_NL and IQ4_XS


@dataclass(frozen=True)
class _PackedRows:
    """Bytes [M, blocks, bytes] as int32."""

    call: OnnxCall
    data: Value

    def part(self, begin: int, end: int) -> Value:
        return self.call.slice(self.data, 2, begin, end)

    def word(self, begin: int, count: int) -> Value:
        """A number of some bytes [M, blocks, 1]."""
        found = self.part(begin, begin + 1)
        for place in range(1, count):
            moved = self.call.op("shift_left", self.part(begin + place, begin + place + 1), 8 * place)
            found = self.call.op("bitwise_or", found, moved)
        return found

    def half(self, begin: int) -> Value:
        """A float16 of two bytes, as float32 [M, blocks, 1]."""
        return self.call.cast(
            self.call.op("bitcast", self.call.cast(self.word(begin, 2), uint16), of="uint16", to="float16"), float32
        )

    def signed(self, begin: int, end: int) -> Value:
        part = self.part(begin, end)
        return self.call.op("subtract", self.call.op("bitwise_xor", part, 128), 128)

    def bits(self, x: Value, first: int, count: int) -> Value:
        """Some bits of each number."""
        moved = self.call.op("shift_right", x, first) if first else x
        return self.call.op("bitwise_and", moved, (1 << count) - 1)

    def halves(self, begin: int, end: int) -> Value:
        """The low four bits of bytes, then the high ones: [M, blocks, 2 (end - begin)]."""
        part = self.part(begin, end)
        return self.call.op("concat", self.bits(part, 0, 4), self.bits(part, 4, 4), axis=2)

    def groups(self, x: Value, count: int) -> Value:
        """[M, blocks, n] as [M, blocks, count, n / count]."""
        return self.call.reshape(x, (*x.shape[:2], count, -1))


def _scaled(blocks: _PackedRows, scale: Value, whole: Value) -> Value:
    return blocks.call.op("multiply", scale, blocks.call.cast(whole, float32))


def _of_four_bits(blocks: _PackedRows) -> Value:
    return _scaled(blocks, blocks.half(0), blocks.call.op("subtract", blocks.halves(2, 18), 8))


def _of_five_bits(blocks: _PackedRows) -> Value:
    call = blocks.call
    places = call.reshape(call.iota(32, int32), (1, 1, 32))
    high = call.op("bitwise_and", call.op("shift_right", blocks.word(2, 4), places), 1)
    whole = call.op("bitwise_or", blocks.halves(6, 22), call.op("shift_left", high, 4))
    return _scaled(blocks, blocks.half(0), call.op("subtract", whole, 16))


def _of_eight_bits(blocks: _PackedRows) -> Value:
    return _scaled(blocks, blocks.half(0), blocks.signed(2, 34))


def _of_five_bits_in_groups(blocks: _PackedRows) -> Value:
    """256 elements; each 32 have a scale and a least number of six bits."""
    call = blocks.call
    low, middle, high = (blocks.part(begin, begin + 4) for begin in (4, 8, 12))
    upper = [call.op("shift_left", blocks.bits(part, 6, 2), 4) for part in (low, middle)]
    scales = [blocks.bits(low, 0, 6), call.op("bitwise_or", blocks.bits(high, 0, 4), upper[0])]
    least = [blocks.bits(middle, 0, 6), call.op("bitwise_or", blocks.bits(high, 4, 4), upper[1])]
    joined = [call.unsqueeze(call.op("concat", *parts, axis=2), 3) for parts in (scales, least)]
    quads = blocks.groups(blocks.part(48, 176), 4)  # each 32 bytes have two groups
    pairs = [call.unsqueeze(blocks.bits(quads, first, 4), 3) for first in (0, 4)]
    codes = call.op("concat", *pairs, axis=3)
    codes = call.reshape(codes, (*codes.shape[:2], 8, 32))
    places = call.reshape(call.iota(8, int32), (1, 1, 8, 1))
    fifth = call.op("bitwise_and", call.op("shift_right", call.unsqueeze(blocks.part(16, 48), 2), places), 1)
    codes = call.op("add", codes, call.op("shift_left", fifth, 4))
    scale, floor = (
        call.op("multiply", call.unsqueeze(blocks.half(begin), 3), call.cast(part, float32))
        for begin, part in zip((0, 2), joined, strict=True)
    )
    return call.op("subtract", _scaled(blocks, scale, codes), floor)


def _of_six_bits_in_groups(blocks: _PackedRows) -> Value:
    """256 elements; each 16 have a scale of eight bits."""
    call = blocks.call
    low, high = blocks.groups(blocks.part(0, 128), 2), blocks.groups(blocks.part(128, 192), 2)
    parts = []
    for place in range(4):
        begin = 32 * (place % 2)
        four = blocks.bits(call.slice(low, 3, begin, begin + 32), 4 * (place // 2), 4)
        two = call.op("shift_left", blocks.bits(high, 2 * place, 2), 4)
        parts.append(call.op("subtract", call.op("bitwise_or", four, two), 32))
    codes = call.op("concat", *parts, axis=3)
    scale = call.op("multiply", blocks.half(208), call.cast(blocks.signed(192, 208), float32))
    return _scaled(blocks, call.unsqueeze(scale, 3), call.reshape(codes, (*codes.shape[:2], 16, 16)))


def _levels(blocks: _PackedRows, codes: Value) -> Value:
    table = blocks.call.constant(np.array(_LEVELS, np.float32), "levels")
    return blocks.call.op("gather", table, codes, axis=0)


def _of_levels(blocks: _PackedRows) -> Value:
    return blocks.call.op("multiply", blocks.half(0), _levels(blocks, blocks.halves(2, 18)))


def _of_levels_in_groups(blocks: _PackedRows) -> Value:
    """256 elements; each 32 have a scale of six bits."""
    call = blocks.call
    places = call.reshape(call.iota(8, int32), (1, 1, 8))
    two = call.op("bitwise_and", call.op("shift_right", blocks.word(2, 2), call.op("multiply", places, 2)), 3)
    pairs = [call.unsqueeze(blocks.bits(blocks.part(4, 8), first, 4), 3) for first in (0, 4)]
    four = call.op("concat", *pairs, axis=3)
    six = call.op("bitwise_or", call.reshape(four, two.shape), call.op("shift_left", two, 4))
    scale = _scaled(blocks, blocks.half(0), call.op("subtract", six, 32))
    packed = blocks.groups(blocks.part(8, 136), 8)
    codes = call.op("concat", blocks.bits(packed, 0, 4), blocks.bits(packed, 4, 4), axis=3)
    return call.op("multiply", call.unsqueeze(scale, 3), _levels(blocks, codes))


def _floats(dtype: DType, width: int) -> Callable[[_PackedRows], Value]:
    whole = uint32 if width == 4 else uint16

    def restored(blocks: _PackedRows) -> Value:
        word = blocks.call.cast(blocks.word(0, width), whole)
        return blocks.call.cast(blocks.call.op("bitcast", word, of=whole.name, to=dtype.name), float32)

    return restored


_FORMATS: dict[int, tuple[int, int, Callable[[_PackedRows], Value]]] = {  # elements and bytes of a block, by number
    0: (1, 4, _floats(float32, 4)), 1: (1, 2, _floats(float16, 2)), 30: (1, 2, _floats(bfloat16, 2)),
    2: (32, 18, _of_four_bits), 6: (32, 22, _of_five_bits), 8: (32, 34, _of_eight_bits),
    13: (256, 176, _of_five_bits_in_groups), 14: (256, 210, _of_six_bits_in_groups),
    20: (32, 18, _of_levels), 23: (256, 136, _of_levels_in_groups),
}  # fmt: skip


@rule("GatherPacked")
def gather_of_rows(call: OnnxCall) -> Value:
    """Rows of a table [V, bytes] at indices, as floats [.., K]; an index that the table does not have gives row 0."""
    data, kind, width = call[0], call.attribute("packed_type"), call.positive("K")
    result = call.dtype("output_dtype") or bfloat16
    if kind not in _FORMATS:
        raise Unsupported(f"tables of the packed format {kind}", f"use one of {sorted(_FORMATS)}")
    elements, size, restored = _FORMATS[kind]
    call.require_rank(data, 2, 2)
    if result not in (float32, float16, bfloat16) or width % elements or data.shape[1] != width // elements * size:
        raise Invalid(f"{data!r} are no rows of {width} elements of the packed format {kind}, or give no floats")
    indices = call.cast(call[1], int64)
    rows = call.value(data.shape[0], int64)
    known = call.op("logical_and", call.op("greater_equal", indices, 0), call.op("less", indices, rows))
    places = call.reshape(call.op("where", known, indices, call.builder.number(0, int64)), (-1,))
    found = call.op("gather", data, places, axis=0)
    blocks = _PackedRows(call, call.cast(call.reshape(found, (found.shape[0], width // elements, size)), int32))
    return call.cast(call.reshape(restored(blocks), (*indices.shape, simplify(width))), result)
