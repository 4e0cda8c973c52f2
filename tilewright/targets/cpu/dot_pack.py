"""Copies of matrix blocks into the layouts that the micro-kernel reads fastest.

`copy_rows` copies row by row (contiguous to contiguous, widening the element type), `copy_transposed`
turns contiguous columns into contiguous rows through transposed register blocks, `copy_elements`
takes any strides.  None reads outside the block; all may write up to a vector beyond a row's end.
"""

from __future__ import annotations

from tilewright.targets.cpu.dot_kernel import widen
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type


class BlockCopy:
    """Emits copies of [outer, inner] blocks from memory of `source` elements to `element` elements."""

    def __init__(
        self, builder: LLVMBuilder, source: str, signed: bool, element: str, lanes: int, flips: bool = False
    ) -> None:
        """`flips`: the highest bits of bytes are flipped in the copy."""
        self.builder = builder
        self.flips = flips
        self.source = source
        self.signed = signed
        self.element = element
        self.lanes = lanes

    def copy_rows(
        self,
        source: LLVMValue,
        source_stride: LLVMValue,
        target: LLVMValue,
        target_stride: int,
        outer: LLVMValue,
        inner: LLVMValue,
    ) -> None:
        """target[i * target_stride + j] = source[i * source_stride + j]."""
        builder, lanes = self.builder, self.lanes
        full = builder.emit(f"and i64 {inner.text}, {-lanes}", "i64") if inner.constant is None else None
        full = full or builder.integer(inner.constant // lanes * lanes)  # type: ignore[operator]
        with builder.loop(builder.integer(0), outer, 1, hint="copy") as rows:
            from_row = builder.gep(source, builder.multiply(rows.index, source_stride), self.source)
            to_row = builder.gep(target, builder.multiply(rows.index, target_stride), self.element)
            with builder.loop(builder.integer(0), full, lanes, hint="vectors") as loop:
                place = builder.gep(from_row, loop.index, self.source)
                value = builder.load(vector_type(self.source, lanes), place, align=1)
                self._put(value, builder.gep(to_row, loop.index, self.element))
            rest = builder.subtract(inner, full)
            if rest.constant != 0:
                with builder.when(builder.compare("sgt", rest, 0), hint="rest"):
                    value = masked_part(builder, builder.gep(from_row, full, self.source), self.source, lanes, rest)
                    self._put(value, builder.gep(to_row, full, self.element))

    def copy_transposed(
        self,
        source: LLVMValue,
        source_stride: LLVMValue,
        target: LLVMValue,
        target_stride: int,
        columns: LLVMValue,
        depth: LLVMValue,
        width: int,
    ) -> None:
        """target[k * target_stride + j] = source[j * source_stride + k] for j < width, k < depth.

        Columns at and beyond `columns` repeat the last one, so that nothing outside is read.
        """
        builder, lanes = self.builder, self.lanes
        with builder.loop(builder.integer(0), builder.integer(width), lanes, hint="columns") as group:
            pointers = []
            for lane in range(lanes):
                column = builder.minimum(builder.add(group.index, lane), builder.subtract(columns, 1))
                pointers.append(builder.gep(source, builder.multiply(column, source_stride), self.source))
            place = builder.gep(target, group.index, self.element)
            full = builder.emit(f"and i64 {depth.text}, {-lanes}", "i64")
            with builder.loop(builder.integer(0), full, lanes, hint="turn") as loop:
                kind = vector_type(self.source, lanes)
                places = [builder.gep(pointer, loop.index, self.source) for pointer in pointers]
                block = [builder.load(kind, column_place, align=1) for column_place in places]
                for lane, row in enumerate(transposed(builder, block)):
                    offset = builder.multiply(builder.add(loop.index, lane), target_stride)
                    self._put(row, builder.gep(place, offset, self.element))
            with builder.loop(full, depth, 1, hint="rest") as rest:
                row = builder.poison(vector_type(self.source, lanes))
                for lane, pointer in enumerate(pointers):
                    element = builder.load(self.source, builder.gep(pointer, rest.index, self.source))
                    row = builder.insert(row, element, lane)
                self._put(row, builder.gep(place, builder.multiply(rest.index, target_stride), self.element))

    def copy_elements(
        self,
        source: LLVMValue,
        strides: tuple[LLVMValue, LLVMValue],
        target: LLVMValue,
        target_stride: int,
        outer: LLVMValue,
        inner: LLVMValue,
    ) -> None:
        """target[i * target_stride + j] = source[i * strides[0] + j * strides[1]]."""
        builder = self.builder
        with builder.loop(builder.integer(0), outer, 1, hint="copy") as rows:
            from_row = builder.gep(source, builder.multiply(rows.index, strides[0]), self.source)
            to_row = builder.gep(target, builder.multiply(rows.index, target_stride), self.element)
            with builder.loop(builder.integer(0), inner, 1, hint="elements") as loop:
                place = builder.gep(from_row, builder.multiply(loop.index, strides[1]), self.source)
                self._put(builder.load(self.source, place), builder.gep(to_row, loop.index, self.element))

    def _put(self, value: LLVMValue, place: LLVMValue) -> None:
        wide = widen(self.builder, value, self.element, self.signed)
        if self.flips:
            highest = self.builder.splat(self.builder.integer(-128, self.element), wide.lanes)
            wide = self.builder.binary("xor", wide, highest)
        self.builder.store(wide, place, align=1 if value.is_vector else 0)


def masked_part(builder: LLVMBuilder, place: LLVMValue, element: str, lanes: int, count: LLVMValue) -> LLVMValue:
    """The first `count` elements at `place`, zero after them."""
    mask = builder.lane_mask(count, lanes)
    stored = "i16" if element in ("half", "bfloat") else element  # masked loads of 16-bit floats are slow
    value = builder.masked_load(vector_type(stored, lanes), place, mask)
    return builder.cast("bitcast", value, vector_type(element, lanes))


def transposed(builder: LLVMBuilder, rows: list[LLVMValue]) -> list[LLVMValue]:
    """The transpose of a square block of vectors, by exchanging ever larger halves of pairs.

    After the step of distance d, lane l of row r holds what differs from the block by having bit d
    of l and r exchanged; after all steps every bit is exchanged.
    """
    lanes = len(rows)
    distance = 1
    while distance < lanes:
        exchanged = list(rows)
        low = [lane if not lane & distance else lane - distance + lanes for lane in range(lanes)]
        high = [lane + distance if not lane & distance else lane + lanes for lane in range(lanes)]
        for first in range(lanes):
            if not first & distance:
                second = first + distance
                exchanged[first] = builder.shuffle(rows[first], rows[second], low)
                exchanged[second] = builder.shuffle(rows[first], rows[second], high)
        rows = exchanged
        distance *= 2
    return rows
