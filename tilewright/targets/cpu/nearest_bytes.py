"""float32 rounded to uint8, as quantization does, in fewer instructions than its parts take.

    cast(round(x) + z, uint8)  ->  vpackuswb(vpackssdw(cvtps2dq(min(x, 2^30))) + z)      64 lanes, of four registers
                               ->  vpmovusdb(cvtps2dq(max(x, -z)) + z)                    others

One conversion of AVX-512 rounds to the nearest.  It gives 2^31, which is the least int32, for NaN and for all that is
larger: packing saturates signed numbers, vpmovusdb unsigned ones.
"""

from __future__ import annotations

from collections.abc import Container

from tilewright.dtypes import float32, uint8
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import constant_of
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type

_LANES = 16  # of a register
_TO_NEAREST = 8  # rounding of the instruction, whatever the program has set
_LARGEST_POINT = 2.0**14  # sums of such a number and one of 16 bits saturate where bytes do
_CONVERT = "llvm.x86.avx512.mask.cvtps2dq.512"
_PACKED = 4 * _LANES
# Packing puts the numbers of two registers in turn into each 128 bits.
_IN_ORDER = [4 * (place % 4) + place // 4 for place in range(16)]


def rounded_to_bytes(operation: Operation, stored: Container[SSAValue]) -> tuple[SSAValue, int] | None:
    """x and z of a `cast` to uint8 of round(x) + z in float32, z a constant; None for others, and where a part of it
    has a buffer."""
    if operation.opcode != "cast" or operation.result.type.element != uint8:
        return None
    value, point = operation.operands[0], 0.0
    if value.type.element != float32 or value in stored or value.definition is None:
        return None
    if value.definition.opcode == "add":
        value, summand = value.definition.operands
        number = constant_of(summand)
        if number is None or not float(number).is_integer() or abs(number) > _LARGEST_POINT:
            return None
        point = float(number)
    rounding = value.definition
    if value in stored or rounding is None or rounding.opcode != "round":
        return None
    return rounding.operands[0], int(point)


def saturated_bytes(builder: LLVMBuilder, value: LLVMValue, point: int) -> LLVMValue:
    """A vector of float32 rounded to the nearest, plus `point`, as uint8; 0 for NaN."""
    if value.lanes % _PACKED == 0:
        parts = [builder.shuffle(value, None, range(at, at + _PACKED)) for at in range(0, value.lanes, _PACKED)]
        return _joined(builder, [_packed_bytes(builder, part, point) for part in parts])
    lowest = builder.constant(value.type, -float(point) + 0.0)
    raised = builder.select(builder.compare("ogt", value, lowest), value, lowest)  # not for NaN
    lanes = max(_LANES, value.lanes)
    raised = builder.with_lanes(raised, lanes)
    parts = [builder.shuffle(raised, None, range(first, first + _LANES)) for first in range(0, lanes, _LANES)]
    whole = builder.with_lanes(_joined(builder, [_converted(builder, part) for part in parts]), value.lanes)
    if point:
        whole = builder.add(whole, builder.constant(whole.type, point))
    bounded = builder.intrinsic("umin", [whole, builder.constant(whole.type, 255)])
    return builder.cast("trunc", bounded, vector_type("i8", value.lanes))


def _packed_bytes(builder: LLVMBuilder, value: LLVMValue, point: int) -> LLVMValue:
    """64 lanes as bytes."""
    highest = builder.constant(value.type, 2.0**30)
    bounded = builder.select(builder.compare("ogt", value, highest), highest, value)  # NaN stays
    parts = [builder.shuffle(bounded, None, range(at, at + _LANES)) for at in range(0, _PACKED, _LANES)]
    words = [_converted(builder, part) for part in parts]
    half = vector_type("i16", 2 * _LANES)
    halves = [builder.call("llvm.x86.avx512.packssdw.512", half, words[at : at + 2]) for at in (0, 2)]
    if point:
        shift = builder.constant(half, point)
        halves = [builder.intrinsic("sadd.sat", [each, shift]) for each in halves]
    packed = builder.call("llvm.x86.avx512.packuswb.512", vector_type("i8", _PACKED), halves)
    fours = builder.cast("bitcast", packed, vector_type("i32", _LANES))
    return builder.cast("bitcast", builder.shuffle(fours, None, _IN_ORDER), packed.type)


def _joined(builder: LLVMBuilder, parts: list[LLVMValue]) -> LLVMValue:
    """Vectors one after the other, a power of two of them."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle(low, high, range(2 * low.lanes)) for low, high in pairs]
    return parts[0]


def _converted(builder: LLVMBuilder, value: LLVMValue) -> LLVMValue:
    """A register of float32 as int32."""
    word = vector_type("i32", _LANES)
    arguments = [value, builder.zero(word), builder.integer(-1, "i16"), builder.integer(_TO_NEAREST, "i32")]
    return builder.call(_CONVERT, word, arguments, declared=[value.type, word, "i16", "i32 immarg"])
