"""Conversions between element types in registers, of one number or of many.

Registers hold i1 as i1, integers as iN, float8 and bfloat16 as their bits (i8, i16), the other floats as LLVM's half,
float and double, pointers as ``ptr addrspace(1)``.  Memory holds i1 as a byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.types import Element, PointerType
from tilewright.targets.llvm import conversions as portable
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue


def register_type(element: Element) -> str:
    """The LLVM type of one element in a register."""
    if isinstance(element, PointerType):
        return "ptr addrspace(1)"
    return portable.register_type(element)


def memory_type(element: Element) -> str:
    """The LLVM type of one element in memory."""
    return "i8" if element == dtypes.int1 else register_type(element)


class RegisterConverter(portable.Converter):
    """Conversions of scalars, and of lists of registers (`cast_all`), which a GPU may do several at a time.

    `whole` are registers that were rounded to whole numbers, with what they were rounded from: instructions that make
    integers may round as well.
    """

    def __init__(self, builder: LLVMBuilder) -> None:
        super().__init__(builder)
        self.whole: dict[str, LLVMValue] = {}

    def cast_all(
        self, values: Sequence[LLVMValue], source: DType, target: DType, rounding: str = "rtne"
    ) -> list[LLVMValue]:
        """`cast` of several registers."""
        return [self.cast(value, source, target, rounding) for value in values]
