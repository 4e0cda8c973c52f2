"""Evaluates Tile IR while it is built: the values of operations are known when they are created.

`EagerBuilder` creates operations like `ir.builder` does, with the op table's type rules, and hands each over to the
interpreter at once.  Operations inside a region (the combine function of a reduction, say) are only recorded; they
run when the operation that owns the region does.  So there is one definition of meaning for both ways to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.errors import ExecutionError
from tilewright.ir.builder import Builder
from tilewright.ir.checks import Checks
from tilewright.ir.core import Attribute, Operation, Region, SSAValue
from tilewright.ir.diagnostics import located_execution_error
from tilewright.ir.explicit import is_explicit
from tilewright.ir.interpreter import _Instance
from tilewright.ir.memory import LaunchMemory
from tilewright.ir.types import PointerType, TensorType

_LINES = 20  # of a block that is shown


class EagerValue(SSAValue):
    """A value with the NumPy array that it holds; pointers are addresses of `ir.memory`."""

    def __init__(
        self, kind: TensorType, array: np.ndarray, memory: LaunchMemory, definition: Operation | None = None
    ) -> None:
        super().__init__(kind, "", definition)
        self.array = array
        self.memory = memory

    def array_text(self) -> str:
        """The numbers as NumPy prints them; pointers as argument and element."""
        element = self.type.element
        if not isinstance(element, PointerType):
            return str(self.array) if self.array.ndim else str(self.array[()])
        names = [self.memory.describe(int(address), element.element.itemsize) for address in self.array.flat]
        if not self.array.ndim:
            return names[0]
        rows = names if len(names) <= _LINES else [*names[:3], "…", *names[-3:]]
        return f"[{' '.join(rows)}]"


class _EagerValues(dict[SSAValue, np.ndarray]):
    """Values inside regions by the dictionary, values around them by themselves."""

    def __missing__(self, value: SSAValue) -> np.ndarray:
        if not isinstance(value, EagerValue):
            raise KeyError(value)
        return value.array


class EagerBuilder(Builder):
    """Evaluates what is appended to its outermost region, for one program instance."""

    def __init__(
        self, memory: LaunchMemory, index: tuple[int, ...], extents: tuple[int, ...], checks: Checks | None = None
    ) -> None:
        super().__init__(Region())
        self.outermost = self.current
        self.memory = memory
        self.index = index
        self._instance = _Instance(memory, index, extents, _EagerValues(), checks)
        self._instance.alone = True

    @property
    def evaluates(self) -> bool:
        """Whether an operation created now is evaluated, and not recorded in a region."""
        return self.current is self.outermost

    def value(self, kind: TensorType, array: np.ndarray) -> EagerValue:
        """A value that no operation computes: an argument of the kernel, the index of a loop."""
        return EagerValue(kind, array, self.memory)

    def create(
        self,
        opcode: str,
        operands: Sequence[SSAValue] = (),
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region] = (),
    ) -> Operation:
        """Append an operation and, outside of regions, evaluate it.

        Raises `InvalidIRError` like `Builder.create` and `ExecutionError` like the interpreter.
        """
        if is_explicit(opcode):
            error = ExecutionError(
                "the threads that it orders cannot run side by side in Python",
                "interpret the kernel as Tile IR: TILEWRIGHT_INTERPRET=1, without breakpoints",
            )
            raise located_execution_error(error, opcode, self.location, self.index)
        if self.evaluates and self.current.operations:
            # What came before lives on through the values that are still used, not through their definitions.
            self.current.operations.pop().operands = []
        operation = super().create(opcode, operands, attributes, regions)
        if self.evaluates:
            values = self._instance.values
            recorded = operation.results
            self._instance.operation(operation)
            operation.results = [
                EagerValue(value.type, np.asarray(values[value]), self.memory, operation) for value in recorded
            ]
            values.clear()
        return operation
