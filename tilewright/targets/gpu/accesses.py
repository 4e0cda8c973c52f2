"""What operations say of layouts: the axes that accesses run along and that blocks are reduced along, the elements that
an access wants of a thread, the products that feed products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.types import PointerType
from tilewright.layout import Facts
from tilewright.passes.axis_info import AxisInfo
from tilewright.targets.gpu import transfer


@dataclass(frozen=True)
class Access:
    """What a memory operation would like: facts of its pointers, the item size, the axis and the elements a thread."""

    facts: Facts
    itemsize: int
    axis: int
    elements: int
    alone: int  # elements to a thread if there were no other accesses


ACCESSES = ("load", "store", "atomic_rmw", "atomic_cas")


def access_operands(operation: Operation) -> tuple[SSAValue, SSAValue | None]:
    """Pointer and mask of a memory operation."""
    place = {"load": 1, "store": 2, "atomic_rmw": 2, "atomic_cas": 3, "copy_async": 3}[operation.opcode]
    return operation.operands[0], operation.operands[place] if place < len(operation.operands) else None


def access_facts(operation: Operation, facts: Mapping[SSAValue, AxisInfo]) -> Facts:
    pointer, mask = access_operands(operation)
    return transfer.facts_of(facts[pointer], facts[mask] if mask is not None else None)


def item_size(operation: Operation) -> int:
    pointer = operation.operands[0].type.element
    assert isinstance(pointer, PointerType)
    return pointer.element.itemsize


def plan_accesses(function: Function, facts: Mapping[SSAValue, AxisInfo]) -> dict[Operation, Access]:
    """Of every access to a block; those of one shape that run along one axis get equally many elements a thread."""
    found: dict[Operation, tuple[Facts, int, int]] = {}
    runs: dict[tuple[tuple[int, ...], int], list[tuple[int, int, bool]]] = {}
    for operation in function.walk():
        if operation.opcode in ACCESSES and operation.operands[0].type.rank:
            known, size = access_facts(operation, facts), item_size(operation)
            axis = transfer.fastest_axis(known, size)
            found[operation] = known, size, axis
            run = known.run(axis, size), size, operation.opcode == "store"
            runs.setdefault((operation.operands[0].type.shape, axis), []).append(run)
    plan = {}
    for operation, (known, size, axis) in found.items():
        width = transfer.common_width(runs[operation.operands[0].type.shape, axis])
        plan[operation] = Access(known, size, axis, width, known.run(axis, size))
    return plan


def only_moves(function: Function) -> bool:
    """Whether a kernel has no loops, products, reductions or scans: its time is that of its accesses."""
    return not any(operation.opcode in ("for", "while", "dot", "reduce", "scan") for operation in function.walk())


def combined_axes(function: Function) -> dict[tuple[int, ...], int]:
    """For the shapes of blocks that are reduced along one axis: that axis."""
    return _axes_of("reduce", function)


def scanned_axes(function: Function) -> dict[tuple[int, ...], int]:
    """For the shapes of blocks that are scanned along one axis: that axis."""
    return _axes_of("scan", function)


def _axes_of(opcode: str, function: Function) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], set[int]] = {}
    for operation in function.walk():
        if operation.opcode == opcode:
            axis = operation.attributes["axis"]
            assert isinstance(axis, int)
            found.setdefault(operation.operands[0].type.shape, set()).add(axis)
    return {shape: min(axes) for shape, axes in found.items() if len(axes) == 1}


def chained_products(function: Function) -> frozenset[Operation]:
    """Products whose result is, after other steps, the first operand of a product; and those."""
    dots = [operation for operation in function.walk() if operation.opcode == "dot"]
    found: set[Operation] = set()
    for operation in dots if len(dots) > 1 else ():
        seen: set[SSAValue] = set()
        stack = [operation.operands[0]]
        while stack:
            value = stack.pop()
            source = value.definition
            if value in seen or source is None or source.regions or source.opcode == "load":
                continue
            seen.add(value)
            if source.opcode == "dot":
                found |= {operation, source}
            stack += source.operands
    return frozenset(found)


def products_with_lasting_operands(function: Function) -> frozenset[Operation]:
    """Products in loops whose first operand comes from outside the innermost one: it is the same in all iterations."""
    found: set[Operation] = set()
    for loop in function.walk():
        if loop.opcode != "for":
            continue
        inside = list(loop.walk())
        made = {value for operation in inside for value in operation.results}
        made |= {value for operation in inside for region in operation.regions for value in region.arguments}
        for operation in inside:
            if operation.opcode == "dot":
                (found.discard if operation.operands[0] in made else found.add)(operation)
    return frozenset(found)


def load_of(value: SSAValue) -> Operation | None:
    """The load of a block that comes from memory as it is."""
    operation = value.definition
    while operation is not None and operation.opcode == "permute":
        operation = operation.operands[0].definition
    return operation if operation is not None and operation.opcode == "load" else None


def loaded(value: SSAValue) -> bool:
    """Whether a block comes from memory as it is."""
    return load_of(value) is not None
