"""Loads in loops with products begin before the products, which then go on while the loads are under way.

    for …:  w = load pw                               for …:  w = load pw;  u = load pu
            p = dot(w, state)              ->                 p = dot(w, state)
            u = load pu                                       …
            … u - p …

Products wait at barriers, across which no assembler moves a load; and where a loop is a recurrence, nothing else is
there to be done while a load is waited for.  Operands of products stay in place: they are copied ahead through shared
memory, or would take registers for long.  So do all loads of loops with the author's barriers or assertions, which may
be about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import Effect, effects_of, is_speculatable
from tilewright.ir.rewrite import Rebuilder
from tilewright.targets.gpu.memory_order import PointerRoots, movable_loads

_MOST_BYTES = 16384  # of the blocks that a loop loads earlier: they take registers meanwhile
_ORDERED = ("dot", "reduce", "scan", "gather")  # operations of addresses that would have to move before products


def load_early(function: Function) -> Function:
    """`function` with such loads moved; the same object when there are none."""
    roots = PointerRoots(function)
    loops = [operation for operation in function.walk() if operation.opcode == "for"]
    bodies = {loop.regions[0]: order for loop in loops if (order := _reordered(loop, _moved(loop, roots)))}
    return _Reorderer(bodies).run(function) if bodies else function


class _Reorderer(Rebuilder):
    """Copies a function with the operations of some regions in other orders."""

    def __init__(self, orders: Mapping[Region, list[Operation]]) -> None:
        super().__init__()
        self.orders = orders
        self.changed = True

    def copy_region(self, region: Region) -> Region:
        return super().copy_region(Region(region.arguments, self.orders.get(region, region.operations)))


def _first_product(body: Region) -> int:
    """The place of the first product in a body, or the body's end."""
    places = (place for place, operation in enumerate(body.operations) if operation.opcode == "dot")
    return next(places, len(body.operations))


def _moved(loop: Operation, roots: PointerRoots) -> list[Operation]:
    """The loads after the first product of a loop, with what their addresses need, in order."""
    (body,) = loop.regions
    late = body.operations[_first_product(body) :]
    if not any(operation.opcode == "load" for operation in late):
        return []
    if any(Effect.OBSERVE in effects_of(operation) for operation in loop.walk() if not operation.regions):
        return []
    movable = movable_loads(loop, roots) - _operands(body)
    inside = {result: operation for operation in late for result in operation.results}
    chosen: set[Operation] = set()
    left = _MOST_BYTES
    for load in late:
        size = prod(load.results[0].type.shape) * load.results[0].type.dtype.itemsize if load.opcode == "load" else 0
        if load not in movable or load.attributes["volatile"] or size > left:
            continue
        needed = _needed(load, inside)
        if needed is not None and all(operation is load or is_speculatable(operation) for operation in needed):
            chosen |= needed
            left -= size
    return [operation for operation in late if operation in chosen]


def _operands(body: Region) -> set[Operation]:
    """The loads whose blocks, with other axes perhaps, are operands of a body's products."""
    found: set[Operation] = set()
    for product in body.operations:
        for operand in product.operands[:2] if product.opcode == "dot" else ():
            operation = operand.definition
            while operation is not None and operation.opcode in ("permute", "reshape"):
                operation = operation.operands[0].definition
            if operation is not None and operation.opcode == "load":
                found.add(operation)
    return found


def _needed(load: Operation, inside: dict[SSAValue, Operation]) -> set[Operation] | None:
    """A load and the late operations that its address and mask depend on; None where one cannot move."""
    needed = {load}
    stack = list(load.operands)
    while stack:
        operation = inside.get(stack.pop())
        if operation is None or operation in needed:
            continue
        if operation.opcode in _ORDERED or operation.regions:
            return None
        needed.add(operation)
        stack += operation.operands
    return needed


def _reordered(loop: Operation, moved: list[Operation]) -> list[Operation]:
    """The operations of a loop's body with those that move in front of the first product; nothing where none do."""
    (body,) = loop.regions
    first, chosen = _first_product(body), set(moved)
    before, after = body.operations[:first], body.operations[first:]
    return [*before, *moved, *(each for each in after if each not in chosen)] if moved else []
