"""What failed in a launch on a CPU: the operation that a record names, and its error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tilewright.dtypes import DType
from tilewright.errors import ExecutionError
from tilewright.ir.core import Function, Operation
from tilewright.ir.diagnostics import all_waiting_error
from tilewright.ir.memory import Extent, misaligned_error, outside_error
from tilewright.ir.semantics import gather_error
from tilewright.ir.types import PointerType
from tilewright.runtime import failure_record
from tilewright.runtime.failure_record import Failure
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.failures import accesses, assertions, failed
from tilewright.targets.cpu.passes.check_bounds import pointer_sources
from tilewright.targets.cpu.waiting import loops


def failed_operation(
    function: Function, failure: Failure, extents: Sequence[Extent]
) -> tuple[Operation, ExecutionError]:
    """What failed in a traced kernel, an assertion, a loop or an access, and its error; `extents` are the pointers'."""
    if failure.number < 0:
        return list(loops(function))[-1 - failure.number], all_waiting_error(
            function.name, failure_record.WAITING_SECONDS
        )
    asserted = list(assertions(function))
    if failure.number < len(asserted):
        return asserted[failure.number], failed(asserted[failure.number], failure.element)
    operation = next(islice(accesses(function), failure.number - len(asserted), None))
    if operation.opcode == "gather":
        axis, (index, *lanes) = integer(operation, "axis"), failure.facts
        extent = operation.operands[0].type.shape[axis]
        if not operation.operands[1].type.dtype.is_signed:
            index %= 1 << 64  # which the record holds as a number with a sign
        return operation, gather_error(index, extent, axis, (lanes[0], lanes[1]), failure.element)
    pointers = [value for value in function.region.arguments if value.type.is_pointer]
    sources = pointer_sources(function)[operation.operands[0]]
    element = operation.operands[0].type.element
    assert isinstance(element, PointerType)
    reached = [extent for value, extent in zip(pointers, extents, strict=True) if value in sources]
    error = _outside(reached, failure.facts, element.element)
    error.element = failure.element
    return operation, error


def _outside(extents: Sequence[Extent], facts: Sequence[int], dtype: DType) -> ExecutionError:
    """The error of an access that is in none of `extents`, which its pointer may come from."""
    address, lanes = facts[0], (facts[1], facts[2])
    nearest = min(extents, key=lambda extent: max(extent.first - address, address - extent.first - extent.bytes, 0))
    offset = address - nearest.first
    if offset % dtype.itemsize:
        return misaligned_error(nearest.name, dtype)
    return outside_error((nearest.name, nearest.bytes), offset, dtype, lanes)
