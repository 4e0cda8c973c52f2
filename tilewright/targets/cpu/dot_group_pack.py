"""Copies of 8-bit matrices with the steps of the depth in groups that fill 32 bits, for `dot_packed_function.py`.

rows of the depth:    word j of a group is  [k, j], [k + 1, j], …
columns:              it lies in memory; blocks of words are transposed
"""

from __future__ import annotations

from tilewright.targets.cpu.dot_groups import GroupSums
from tilewright.targets.cpu.dot_pack import masked_part, transposed
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type

_LANE_BYTES = 16  # of the parts of a vector within which bytes move in one instruction


class GroupPacker:
    """Copies one vector of columns after the other; bits above 8 of wider elements are zero or the sign."""

    def __init__(self, builder: LLVMBuilder, sums: GroupSums, signed: bool, lanes: int, flips: bool = False) -> None:
        self.builder, self.sums, self.signed, self.lanes, self.flips = builder, sums, signed, lanes, flips
        self.words = vector_type("i32", lanes)

    def interleave(
        self, source: LLVMValue, source_stride: LLVMValue, target: LLVMValue, target_stride: int, steps: LLVMValue,
        columns: LLVMValue | None,
    ) -> LLVMValue:  # fmt: skip
        """Words of the groups of `steps` rows of `source`, from one vector of columns (None: all of them exist).

        What is beyond the steps and columns is zero.  Returns what the flipped bits add to sums (`GroupSums.start`).
        """
        builder, group = self.builder, self.sums.group
        whole = builder.binary("udiv", steps, builder.integer(group))

        def rows(number: LLVMValue) -> list[LLVMValue]:
            first = builder.multiply(builder.multiply(number, group), source_stride)
            start = builder.gep(source, first, "i8")
            return [builder.gep(start, builder.multiply(source_stride, row), "i8") for row in range(group)]

        def put(number: LLVMValue, parts: list[LLVMValue], total: LLVMValue) -> LLVMValue:
            place = builder.gep(target, builder.multiply(number, target_stride), "i32")
            return self._put(self._side_by_side(parts), place, total)

        with builder.loop(builder.integer(0), whole, 1, [builder.zero(self.words)], hint="groups") as loop:
            parts = [self._part(place, columns) for place in rows(loop.index)]
            loop.next([put(loop.index, parts, loop.values[0])])
        rest = builder.subtract(steps, builder.multiply(whole, group))
        if rest.constant == 0:
            return loop.results[0]
        some = builder.cast("zext", builder.compare("sgt", rest, 0), "i64")
        every = builder.integer(self.lanes) if columns is None else columns
        with builder.loop(builder.integer(0), some, 1, loop.results, hint="cut") as cut:  # at most once
            counts = [
                builder.select(builder.compare("sgt", rest, row), every, builder.integer(0)) for row in range(group)
            ]
            parts = [self._part(place, count) for place, count in zip(rows(whole), counts, strict=True)]
            cut.next([put(whole, parts, cut.values[0])])
        return cut.results[0]

    def transpose(
        self, source: LLVMValue, source_stride: LLVMValue, target: LLVMValue, target_stride: int, steps: LLVMValue,
        columns: LLVMValue,
    ) -> LLVMValue:  # fmt: skip
        """The same from columns, whose `steps` are next to each other; those beyond `columns` repeat the last one.

        Writes whole blocks: up to a vector of groups beyond the last.
        """
        builder, lanes = self.builder, self.lanes
        last, count = builder.subtract(columns, 1), lanes * self.sums.group
        streams = [
            builder.gep(source, builder.multiply(builder.minimum(builder.integer(lane), last), source_stride), "i8")
            for lane in range(lanes)
        ]
        full = builder.multiply(builder.binary("udiv", steps, builder.integer(count)), count)

        def block(first: LLVMValue, present: LLVMValue | None, total: LLVMValue) -> LLVMValue:
            bytes_of = [self._bytes(builder.gep(stream, first, "i8"), count, present) for stream in streams]
            columns_of = [builder.cast("bitcast", self._widened(found), self.words) for found in bytes_of]
            number = builder.binary("udiv", first, builder.integer(self.sums.group))
            for lane, words in enumerate(transposed(builder, columns_of)):
                offset = builder.multiply(builder.add(number, lane), target_stride)
                total = self._put(words, builder.gep(target, offset, "i32"), total)
            return total

        with builder.loop(builder.integer(0), full, count, [builder.zero(self.words)], hint="blocks") as loop:
            loop.next([block(loop.index, None, loop.values[0])])
        rest = builder.subtract(steps, full)
        if rest.constant == 0:
            return loop.results[0]
        with builder.loop(full, steps, count, loop.results, hint="cut") as cut:  # at most once
            cut.next([block(cut.index, rest, cut.values[0])])
        return cut.results[0]

    def _part(self, place: LLVMValue, count: LLVMValue | None) -> LLVMValue:
        return self._bytes(place, self.lanes, count)

    def _bytes(self, place: LLVMValue, size: int, count: LLVMValue | None) -> LLVMValue:
        """`size` bytes, of which the first `count` are read."""
        if count is None:
            return self.builder.load(vector_type("i8", size), place, align=1)
        return masked_part(self.builder, place, "i8", size, count)

    def _widened(self, found: LLVMValue) -> LLVMValue:
        """Bytes as the instruction takes them."""
        if self.sums.element == "i8":
            return found
        return self.builder.cast("sext" if self.signed else "zext", found, vector_type("i16", found.lanes))

    def _side_by_side(self, parts: list[LLVMValue]) -> LLVMValue:
        """One vector of words from a vector of bytes for each step of a group."""
        builder, lanes = self.builder, self.lanes
        while len(parts) > 1:  # one after the other
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [builder.shuffle(one, two, range(2 * one.lanes)) for one, two in pairs]
        (joined,) = parts
        group = self.sums.group
        if group == 4 and joined.lanes > _LANE_BYTES:  # four bytes of each step together, so that bytes move less far
            fours = builder.cast("bitcast", joined, self.words)
            quarter = lanes // 4
            order = [step * quarter + number for number in range(quarter) for step in range(4)]
            joined = builder.cast("bitcast", builder.shuffle(fours, None, order), joined.type)
            byte_order = [16 * (at // 16) + 4 * (at % 4) + at % 16 // 4 for at in range(joined.lanes)]
        else:
            byte_order = [at % group * lanes + at // group for at in range(joined.lanes)]
        return builder.cast("bitcast", self._widened(builder.shuffle(joined, None, byte_order)), self.words)

    def _put(self, words: LLVMValue, place: LLVMValue, total: LLVMValue) -> LLVMValue:
        """Store a vector of groups; `total` with what their flipped bits add."""
        builder = self.builder
        if self.flips:
            highest = builder.splat(builder.integer(-(2**31) + 0x808080, "i32"), self.lanes)
            words = builder.binary("xor", words, highest)
        builder.store(words, place, align=4)
        if not self.sums.flips or self.flips:
            return total
        return self.sums.start(builder, words, total)
