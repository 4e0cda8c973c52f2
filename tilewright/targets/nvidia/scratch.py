"""How much shared memory each operation needs to hand values from thread to thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tilewright.ir.core import Operation
from tilewright.layout import Plan, SharedExchange
from tilewright.targets.nvidia.atomics import atomic_bytes, watched_bytes
from tilewright.targets.nvidia.dot_layout import instruction_of
from tilewright.targets.nvidia.dot_scalar import scalar_dot_bytes
from tilewright.targets.nvidia.exchange import exchange_bytes
from tilewright.targets.nvidia.layouts import CONVERSION_ATTRIBUTE, Assignment, is_copied
from tilewright.targets.nvidia.reduce import reduce_bytes
from tilewright.targets.nvidia.relocate import relocation_bytes
from tilewright.targets.nvidia.scan import scan_bytes
from tilewright.targets.nvidia.transfer import conversion_plan, element_bits
from tilewright.targets.nvidia.warpgroup_layout import is_tile

Size = Callable[[Assignment, Operation], int]


def _conversion(assignment: Assignment, operation: Operation) -> int:
    if CONVERSION_ATTRIBUTE not in operation.attributes or is_copied(operation):
        return 0
    if is_tile(assignment.layouts[operation.result]):
        return 0
    plan = _plan(assignment, operation)
    bits = element_bits(operation.result)
    return exchange_bytes(plan, bits) if isinstance(plan, SharedExchange) else 0


def _plan(assignment: Assignment, operation: Operation) -> Plan:
    """How a conversion is done."""
    (operand,) = operation.operands
    source, target = assignment.layouts[operand], assignment.layouts[operation.result]
    return conversion_plan(source, target, element_bits(operand))


def _product(assignment: Assignment, operation: Operation) -> int:
    return 0 if instruction_of(operation, assignment.target) is not None else scalar_dot_bytes(assignment, operation)


SIZES: dict[str, Size] = {
    "dot": _product,
    "permute": _conversion,
    "reduce": reduce_bytes,
    "scan": scan_bytes,
    "load": watched_bytes,
    "atomic_rmw": atomic_bytes,
    "atomic_cas": atomic_bytes,
    **dict.fromkeys(("reshape", "cat", "split", "gather"), relocation_bytes),
}


def exchanging(assignment: Assignment, operations: Iterable[Operation]) -> list[Operation]:
    """Of operations with scratch, those whose exchange has a barrier of the whole group."""

    def of_group(operation: Operation) -> bool:
        if CONVERSION_ATTRIBUTE not in operation.attributes:
            return True
        plan = _plan(assignment, operation)
        return isinstance(plan, SharedExchange) and plan.scope == "block"

    return [operation for operation in operations if of_group(operation)]


def scratch_sizes(assignment: Assignment, without: Collection[Operation] = ()) -> dict[Operation, int]:
    """Bytes of scratch for every operation that needs some; those in `without` are done otherwise."""
    sizes = {}
    for operation in assignment.function.walk():
        size = SIZES.get(operation.opcode) if operation not in without else None
        if size is not None and (needed := size(assignment, operation)):
            sizes[operation] = needed
    return sizes
