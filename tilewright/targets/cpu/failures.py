"""Failed assertions: what machine code leaves behind, and how it is read.

The launcher of a kernel with assertions gives it the address of a record, an array of `WORDS` int64, all zero:

    0      1 once an assertion has failed: the first one of a launch writes the rest
    1      which assertion, by `number_assertions`
    2-4    the program instance
    5      axes of the condition's block, at most 16
    6-21   the element's index along each of them

An instance whose assertion fails ends there, and instances that have not begun by then are left out; those that run go
on.  So the process stays as it was, and whoever launched tells what happened.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation
from tilewright.ir.rewrite import Rebuilder, Replacement
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

WORDS = 24
NUMBER = "cpu.assertion"  # the attribute that tells an assertion's number to the lowering
_PROGRAM, _AXES, _INDEX, _MOST_AXES = 2, 5, 6, 16


@dataclass(frozen=True)
class Failure:
    """An assertion that failed: its number, in which program instance, and for which element of its block."""

    number: int
    program_id: tuple[int, ...]
    element: tuple[int, ...]

    @staticmethod
    def read(record: Sequence[int] | ctypes.Array[ctypes.c_int64]) -> Failure | None:
        """What a launch left in its record; None when no assertion failed."""
        if not record[0]:
            return None
        index = record[_INDEX : _INDEX + record[_AXES]]
        return Failure(record[1], tuple(record[_PROGRAM : _PROGRAM + 3]), tuple(index))


def assertions(function: Function) -> Iterator[Operation]:
    """The assertions of a traced kernel, in the order of their numbers."""
    return (operation for operation in function.walk() if operation.opcode == "assert")


class _Numbering(Rebuilder):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def visit(self, operation: Operation) -> Replacement:
        if operation.opcode == "assert":
            operation.attributes[NUMBER] = self.count
            self.count, self.changed = self.count + 1, True
        return None


def number_assertions(function: Function) -> Function:
    """Give each assertion its number before passes move, copy or remove some; the same object when there are none."""
    return _Numbering().run(function)


def emit_untouched(builder: LLVMBuilder, record: LLVMValue) -> LLVMValue:
    """Whether no assertion of this launch has failed until now, an i1."""
    state = builder.emit(f"load atomic i64, {record} monotonic, align 8", "i64")
    return builder.compare("eq", state, 0)


def emit_failure(
    builder: LLVMBuilder,
    record: LLVMValue,
    number: int,
    programs: Sequence[LLVMValue],
    index: Sequence[LLVMValue],
) -> None:
    """Write a failure into the record, if it is the launch's first.  `programs` are i32, `index` i64."""
    pair = builder.emit(f"cmpxchg {record}, i64 0, i64 1 acq_rel acquire, align 8", "{ i64, i1 }")
    first = builder.emit(f"extractvalue {pair}, 1", "i1")
    index = index[:_MOST_AXES]
    values = [builder.integer(number), *(builder.cast("sext", program, "i64") for program in programs)]
    with builder.when(first):
        for place, value in enumerate([*values, builder.integer(len(index)), *index], 1):
            builder.store(value, builder.gep(record, place, "i64"), 8)
