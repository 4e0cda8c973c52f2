"""Rows that a loop reads far from each other are fetched one pass early.

    for row in range(program_id(0), rows, num_programs(0)):
        value = tl.load(x + row * stride + columns)             fetches x + (row + num_programs(0)) * stride + columns

The hardware fetches what follows in memory; the next row of such a loop does not.  Distances known when a kernel is
compiled are mostly those of loops that go on where they were.
"""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.types import PointerType
from tilewright.targets.cpu.distinct import plain
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.program import ProgramOrder
from tilewright.targets.llvm.builder import LLVMValue

_LEAST_ROW_BYTES = 1024  # of a row: the hardware needs some lines before it fetches those that follow
_SAME = {"splat", "broadcast", "expand_dims", "permute", "hint"}


class NextRows:
    """The distances, in bytes, from what a loop's pass reads to what the next one reads."""

    def __init__(self, loop: Operation, step: LLVMValue, program: ProgramOrder, evaluator: Evaluator) -> None:
        """`step` is the loop's, as i64."""
        self._loop, self._index = loop, loop.regions[0].arguments[0]
        self._step, self._program, self._evaluator = step, program, evaluator
        self._nest = 0
        self._first: dict[Operation, int] = {}  # the nest that reads a load's elements first

    def enter_nest(self) -> None:
        """Another loop nest begins."""
        self._nest += 1

    def distance(self, load: Operation) -> LLVMValue | None:
        """Of a load of a row that the current nest is the first to read; None where there is nothing to fetch."""
        pointer = load.operands[0]
        element = pointer.type.element
        assert isinstance(element, PointerType)
        row = max(pointer.type.shape, default=1)
        if row != pointer.type.size or row * element.element.itemsize < _LEAST_ROW_BYTES:
            return None
        if self._program.enclosing_loops(load, None)[:1] != [self._loop]:
            return None
        if self._first.setdefault(load, self._nest) != self._nest:
            return None
        found = self._advance(pointer)
        return None if found is None or found.constant is not None else found

    def _advance(self, value: SSAValue) -> LLVMValue | None:
        """How far a value is from that of the next pass, in bytes for pointers; None where nothing is known."""
        builder, operation = self._evaluator.builder, value.definition
        if value is self._index:
            return self._step
        if self._is_outside(value):
            return builder.integer(0)
        if operation is None:
            return None
        opcode, operands = operation.opcode, operation.operands
        if opcode in _SAME or (opcode == "cast" and plain(value) is not value):
            return self._advance(operands[0])
        if opcode not in ("add", "subtract", "multiply", "offset"):
            return builder.integer(0) if opcode in ("constant", "arange") else None
        left, right = (self._advance(operand) for operand in operands)
        if left is None or right is None:
            return None
        if opcode == "multiply":
            return self._product(operands, left, right)
        if opcode == "offset":
            element = value.type.element
            assert isinstance(element, PointerType)
            right = builder.multiply(right, element.element.itemsize) if right.text != "0" else right
        return builder.subtract(left, right) if opcode == "subtract" else builder.add(left, right)

    def _product(self, operands: list[SSAValue], left: LLVMValue, right: LLVMValue) -> LLVMValue | None:
        if left.text == right.text == "0":
            return left
        advance, still = (left, operands[1]) if right.text == "0" else (right, operands[0])
        factor = plain(still)
        if "0" not in (left.text, right.text) or not factor.type.is_scalar or not self._is_outside(factor):
            return None
        return self._evaluator.builder.multiply(advance, self._evaluator.wide_scalar(factor))

    def _is_outside(self, value: SSAValue) -> bool:
        """Whether a value is the same in all passes because the loop does not define it."""
        parent = self._program.definition_parent(value)
        while parent is not None and parent is not self._loop:
            parent = self._program.parent[parent]
        return parent is None
