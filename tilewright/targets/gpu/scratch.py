"""The shared memory that each operation needs to pass values between threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tilewright.ir.core import Operation
from tilewright.layout import Plan, SharedExchange
from tilewright.targets.gpu.atomics import atomic_bytes, watched_bytes
from tilewright.targets.gpu.dot_scalar import scalar_dot_bytes
from tilewright.targets.gpu.exchange import exchange_bytes
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE, Assignment, is_copied
from tilewright.targets.gpu.reduce import reduce_bytes
from tilewright.targets.gpu.relocate import relocation_bytes
from tilewright.targets.gpu.scan import scan_bytes
from tilewright.targets.gpu.tiles import is_tile
from tilewright.targets.gpu.transfer import conversion_plan, element_bits

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


SIZES: dict[str, Size] = {
    "dot": scalar_dot_bytes,
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


def scratch_sizes(
    assignment: Assignment, sizes: Mapping[str, Size] = SIZES, without: Collection[Operation] = ()
) -> dict[Operation, int]:
    """Bytes of scratch for every operation that needs some, by the target's `sizes`; those in `without` are done
    otherwise."""
    found = {}
    for operation in assignment.function.walk():
        size = sizes.get(operation.opcode) if operation not in without else None
        if size is not None and (needed := size(assignment, operation)):
            found[operation] = needed
    return found
