"""Sums of products of narrow numbers in vectors of 32 bits: instructions that add a group along the depth at once.

    sums[j] += left[k] * right[k, j] + … + left[k + group - 1] * right[k + group - 1, j]

    group 4   vpdpbusd (VNNI): uint8 on the left, int8 on the right
              vpmaddubsw, whose 16-bit sums of two vpmaddwd adds in pairs: the same, where no sum of two saturates
    group 2   vpmaddwd: both widened to 16 bits, so that every product and pair of them is exact, whatever the signs
              vdpbf16ps: bfloat16 into float32; each product and sum is rounded to nearest, subnormal numbers are zeros

The right operand has the `group` steps of the depth side by side in panels; the left one is read, or copied, so
that a group of a row is one number of 32 bits.  So a product is one of 32-bit numbers over a depth of groups, whose
multiply-add is another (`dot_kernel.py`).

A right operand that is copied to such panels at run time (`dot_packed_function.py`) takes vpdpbusd for all signs.  It
multiplies the unsigned operand by the signed one, whichever is the left.  Where both have a sign, or none has, the
left one is copied with its highest bits flipped: as a number of the other kind it is 128 more, or less, and what this
adds to a sum, the same for all rows, is what the sums begin with:

    left * right = flipped * right - 0x80 * right
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bfloat16, int8, uint8
from tilewright.targets.cpu.dot_plan import DotShape
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type

GROUPED_LAYOUTS = ("groups", "pairs", "bounded")  # of the right operand, as `dot.RightOperand` names them
_WORDS = {128: "sse2.pmadd.wd", 256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}  # vpmaddwd by the bits of a vector
_BYTES = {128: "ssse3.pmadd.ub.sw.128", 256: "avx2.pmadd.ub.sw", 512: "avx512.pmaddubs.w.512"}  # vpmaddubsw


@dataclass(frozen=True)
class GroupSums:
    """One of the instructions."""

    group: int
    left: str  # LLVM type of an element in the left operand's copy
    right: str  # LLVM type of a group of the right operand in memory
    instruction: str
    then: str = ""  # the instruction that adds its 16-bit sums in pairs
    element: str = "i8"  # LLVM type of an element of the right operand in memory
    swapped: bool = False  # whether it takes the right operand first
    flips: bool = False  # whether the copy of the left operand has its highest bits flipped

    def most_rows(self, rows: int) -> int:
        """Rows of a register tile, of which there are `rows` where nothing but operands and sums is in registers."""
        return rows - 2 if self.then else rows

    @property
    def left_bytes(self) -> int:
        """Of an element in the left operand's copy."""
        return 4 // self.group

    @property
    def widens(self) -> bool:
        """Whether elements of the right operand are widened to 16 bits first."""
        return self.right == "i16"

    @property
    def right_bytes(self) -> int:
        """Of a group of the right operand in memory."""
        return 2 if self.widens else 4

    def in_groups(self, shape: DotShape) -> DotShape:
        """The extents of a product with its depth in groups, of which the last may be cut short."""
        return DotShape(shape.rows, shape.columns, -(-shape.depth // self.group))

    def prepared(self, builder: LLVMBuilder, right: LLVMValue, signed: bool) -> LLVMValue:
        """A vector of groups of the right operand as the instruction takes it."""
        count = right.lanes * self.group
        narrow = builder.cast("bitcast", right, vector_type(self.element, count))
        if self.widens:
            return builder.cast("sext" if signed else "zext", narrow, vector_type("i16", count))
        return narrow

    def multiply_add(self, builder: LLVMBuilder, left: LLVMValue, right: LLVMValue, total: LLVMValue) -> LLVMValue:
        """`total` plus the products of a group of the left operand, in every lane, with prepared ones of the right."""
        repeated = builder.cast("bitcast", left, right.type)
        if self.then:
            halves = vector_type("i16", right.lanes // 2)
            sums = builder.call(self.instruction, halves, [repeated, right])
            ones = builder.splat(builder.integer(1, "i16"), right.lanes // 2)
            return builder.add(total, builder.call(self.then, total.type, [sums, ones]))
        if self.group == 2 and not right.is_float:
            return builder.add(total, builder.call(self.instruction, total.type, [repeated, right]))
        operands = [right, repeated] if self.swapped else [repeated, right]
        return builder.call(self.instruction, total.type, [total, *operands])

    def start(self, builder: LLVMBuilder, right: LLVMValue, total: LLVMValue) -> LLVMValue:
        """`total` less what the flipped bits add for a vector of groups of the right operand."""
        highest = builder.integer(-(2**31) + 0x808080, total.element)  # 0x80 in all bytes
        flipped = builder.splat(highest, total.lanes)
        return self.multiply_add(builder, flipped, self.prepared(builder, right, True), total)


def group_sums(target: CPUTarget, left: DType, right: DType, pairs_fit: bool = False) -> GroupSums | None:
    """The instruction for operands of these types, if there is one; `pairs_fit` as `CPUTarget.panel_group` has it."""
    if left is right is bfloat16 and target.group_of_sums(left) == 2:
        return GroupSums(2, "bfloat", "i32", "llvm.x86.avx512bf16.dpbf16ps.512", element="bfloat")
    narrow = left.is_integer and right.is_integer and left.bits == right.bits == 8
    group = target.group_of_sums(left, pairs_fit) if narrow else 1
    bits = target.vector_bits
    if group == 4 and (left, right) == (uint8, int8):
        if target.vnni:
            return GroupSums(4, "i8", "i32", f"llvm.x86.avx512.vpdpbusd.{bits}")
        return GroupSums(4, "i8", "i32", f"llvm.x86.{_BYTES[bits]}", f"llvm.x86.{_WORDS[bits]}")
    return GroupSums(2, "i16", "i16", f"llvm.x86.{_WORDS[bits]}") if group == 2 else None


def packed_sums(target: CPUTarget, left: DType, right: DType) -> GroupSums | None:
    """The instruction for 8-bit integers of which the right ones are copied to panels at run time, if there is one."""
    narrow = all(dtype.is_integer and dtype.bits == 8 and not dtype.is_bool for dtype in (left, right))
    if not narrow or not target.is_x86 or target.multiplies_in_tiles(left, right):
        return None
    if target.vnni:
        instruction = f"llvm.x86.avx512.vpdpbusd.{target.vector_bits}"
        flips = left.is_signed == right.is_signed
        return GroupSums(4, "i8", "i32", instruction, swapped=not right.is_signed, flips=flips)
    return GroupSums(2, "i16", "i32", f"llvm.x86.{_WORDS[target.vector_bits]}", element="i16")


def sums_of_layout(target: CPUTarget, left: DType, right: DType, layout: str) -> GroupSums | None:
    """The instruction that takes a right operand in this layout, where vectors of groups are what it is made for."""
    return group_sums(target, left, right, layout == "bounded") if layout in GROUPED_LAYOUTS else None
