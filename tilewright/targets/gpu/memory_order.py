"""Barriers that keep the program's order of accesses to global memory between the threads of an instance.

What one thread stores, another may load or store after it: in program order, says the Tile IR, but threads run apart.
Accesses through the same kernel parameter, of which one is a store, therefore get a barrier between them, unless

    both go through the same block of pointers in the same layout, so that every thread meets its own elements only;
        of a block that a loop makes anew, if it leads to the same elements or past them (`pointer_steps`);
        of a block that several warps have copies of, if both are stores: one warp stores, but all of them load
    a barrier stands between them already: the author's, or the one inside an exchange through shared memory
    both are atomic

Different parameters are taken to be different memory, or used in place only element by element.  A pointer that comes
from no parameter may be any.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.forks import cached_property
from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import REARRANGING, Effect, effects_of
from tilewright.targets.gpu.accesses import ACCESSES
from tilewright.targets.gpu.layouts import SCALAR_REGIONS, Assignment
from tilewright.targets.gpu.pointer_steps import PointerSteps

_PASSES_POINTERS = REARRANGING | {"offset", "hint"}


@dataclass(frozen=True)
class _OrderedAccess:
    """An access since the last barrier; `root` is the parameter its pointers come from, None if unknown.

    `copied` says whether several warps have copies of the pointers; `loop` is the outermost loop that has made them
    anew since.
    """

    root: SSAValue | None
    pointer: SSAValue
    writes: bool
    atomic: bool
    copied: bool
    loop: Operation | None = None

    def conflicts(self, other: _OrderedAccess, steps: PointerSteps) -> bool:
        """Whether this access has to wait for one before it."""
        if not self.writes and not other.writes or self.atomic and other.atomic:
            return False
        if self.root is not None and other.root is not None and self.root is not other.root:
            return False
        if self.pointer is not other.pointer or self.atomic or other.atomic:
            return True
        if self.copied and self.writes != other.writes:
            return True
        return other.loop is not None and not steps.apart(self.pointer, other.loop)


_State = frozenset[_OrderedAccess]


def ordering_barriers(assignment: Assignment, exchanging: Collection[Operation]) -> frozenset[Operation]:
    """The operations before which a barrier is needed; `exchanging` are those that have one inside."""
    pointers = {value: layout for value, layout in assignment.layouts.items() if value.type.is_pointer}
    copied = {pointer for pointer, layout in pointers.items() if layout.free_variables()["warp"]}
    walk = _Walk(assignment.function, exchanging, copied)
    walk.region(assignment.function.region, frozenset())
    return frozenset(walk.barriers)


def undisturbed_loads(function: Function) -> frozenset[Operation]:
    """Loads of what nobody writes while the kernel runs: they may be done at any time.

    They go through a parameter that is no other name for another's memory and that the kernel does not store through;
    none is in a kernel that orders accesses with other instances (atomics, barriers, volatile accesses).
    """
    operations = list(function.walk())
    accesses = [operation for operation in operations if operation.opcode in ACCESSES]
    if any(operation.opcode in ("barrier", "atomic_rmw", "atomic_cas") for operation in operations) or any(
        operation.attributes.get("volatile") for operation in accesses
    ):
        return frozenset()
    roots = PointerRoots(function)
    written = {roots.root(operation.operands[0]) for operation in accesses if operation.opcode == "store"}
    pairs = zip(function.region.arguments, function.parameters, strict=True)
    alone = {argument for argument, parameter in pairs if parameter.alias_free} - written
    if None in written:
        return frozenset()
    return frozenset(
        operation for operation in accesses if operation.opcode == "load" and roots.root(operation.operands[0]) in alone
    )


class PointerRoots:
    """The parameters of a kernel that its pointers lead to, found when the first is asked for."""

    def __init__(self, function: Function) -> None:
        self._function = function

    @cached_property
    def _walk(self) -> _Walk:
        walk = _Walk(self._function, (), ())
        walk.region(self._function.region, frozenset())
        return walk

    def root(self, pointer: SSAValue) -> SSAValue | None:
        """The parameter; None where it is not known."""
        return self._walk.root(pointer)


def movable_loads(loop: Operation, roots: PointerRoots) -> set[Operation]:
    """The loads of a loop's body that may be done earlier than the program says, in this iteration or one before.

    They read through parameters that the loop does not store through.  There are none where the loop writes by more
    than stores, or stores to what is not known, nor where it stores and the author has ordered that by a barrier.
    """
    inner = [operation for operation in loop.walk() if operation is not loop and not operation.regions]
    stores = [operation for operation in inner if operation.opcode == "store"]
    if stores and any(Effect.OBSERVE in effects_of(operation) for operation in inner):
        return set()
    if any(Effect.WRITE in effects_of(operation) for operation in inner if operation.opcode != "store"):
        return set()
    loads = [operation for operation in loop.regions[0].operations if operation.opcode == "load"]
    if not stores:
        return set(loads)
    written = {roots.root(operation.operands[0]) for operation in stores}
    if None in written:
        return set()
    return {operation for operation in loads if roots.root(operation.operands[0]) not in (None, *written)}


class _Walk:
    def __init__(self, function: Function, exchanging: Collection[Operation], copied: Collection[SSAValue]) -> None:
        self.parameters = set(function.region.arguments)
        self.exchanging = exchanging
        self.copied = copied
        self.steps = PointerSteps(function)
        self.barriers: dict[Operation, None] = {}
        self.roots: dict[SSAValue, SSAValue | None] = {}
        self.carried: dict[SSAValue, SSAValue] = {}  # arguments of loops: what they begin with

    def region(self, region: Region, since: _State) -> _State:
        for operation in region.operations:
            since = self.operation(operation, since)
        return since

    def operation(self, operation: Operation, since: _State) -> _State:
        if operation.opcode == "barrier" or operation in self.exchanging:
            return self.accesses(operation, frozenset())
        if operation.regions and operation.opcode not in SCALAR_REGIONS:
            return self.structured(operation, since)
        return self.accesses(operation, since)

    def accesses(self, operation: Operation, since: _State) -> _State:
        if operation.opcode not in ACCESSES:
            return since
        pointer = operation.operands[0]
        if pointer.type.is_scalar and operation.opcode == "load":
            pointer = operation.result  # every thread loads it, whoever stored it
        atomic = operation.opcode.startswith("atomic")
        root, copied = self.root(operation.operands[0]), pointer in self.copied
        access = _OrderedAccess(root, pointer, operation.opcode != "load", atomic, copied)
        if any(access.conflicts(other, self.steps) for other in since):
            self.barriers[operation] = None
            since = frozenset()
        return since | {access}

    def structured(self, operation: Operation, since: _State) -> _State:
        if operation.opcode == "if":
            return frozenset().union(*(self.region(region, since) for region in operation.regions))
        starts = operation.operands[3:] if operation.opcode == "for" else operation.operands
        arguments = operation.regions[0].arguments[1 if operation.opcode == "for" else 0 :]
        self.carried.update(zip(arguments, starts, strict=True))
        # A barrier that only accesses before the loop need stands before it, not in every iteration.
        found = dict(self.barriers)
        alone = self.repeated(operation, frozenset())
        inside, self.barriers = self.barriers, found
        after = self.repeated(operation, since)
        if self.barriers.keys() == inside.keys():
            return after
        self.barriers = {**inside, operation: None}
        return alone

    def repeated(self, operation: Operation, since: _State) -> _State:
        while True:
            after = since
            for region in operation.regions:
                after = self.region(region, after)
            together = since | {self.come_round(access, operation) for access in after}
            if together == since:
                return together
            since = together

    def come_round(self, access: _OrderedAccess, loop: Operation) -> _OrderedAccess:
        """An access of an iteration, as the next one sees it."""
        outer = access.loop is not None and loop in self.steps.inside(access.loop)
        return access if outer or access.pointer not in self.steps.made(loop) else replace(access, loop=loop)

    def root(self, value: SSAValue) -> SSAValue | None:
        """The parameter that a pointer was made of; blocks that a loop carries stay in the memory they begin in."""
        if value not in self.roots:
            self.roots[value] = None  # for a cycle
            self.roots[value] = self.find_root(value)
        return self.roots[value]

    def find_root(self, value: SSAValue) -> SSAValue | None:
        operation = value.definition
        while operation is not None and operation.opcode in _PASSES_POINTERS:
            value = operation.operands[0]
            operation = value.definition
        if value in self.parameters:
            return value
        if value in self.carried:
            return self.root(self.carried[value])
        if operation is None:
            return None
        if operation.opcode == "for":
            return self.root(operation.operands[3 + operation.results.index(value)])
        if operation.opcode == "select":
            sides = {self.root(operand) for operand in operation.operands[1:]}
            return sides.pop() if len(sides) == 1 else None
        return None
