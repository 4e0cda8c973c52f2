"""`place_load_waits`: loads from shared memory end before anything lets others write what they read.

A load is over when its words have come.  Of what follows it in a thread, nothing waits for that but what computes with
the words: an arrival at a barrier, which frees a stage for the next copy, is issued while they are under way.  So
explicit kernels say where loads end, with `shared_wait`.  It stands before

    barrier_arrive, barrier_expect                  for all loads
    named_sync, named_arrive, cluster_arrive,       for loads of tiles that a copy fills: ordinary accesses of a CTA's
    group_sync                                      threads come in the order of these barriers, copies do not
    cluster_arrive                                  for loads from other CTAs, whose memory may end then
    the end of a region                             for what may be followed by one of these: a wait ends the loads of
                                                    its own region

At a relaxed `cluster_arrive` loads from this CTA go on.  So they do at a `group_sync` after which no thread goes on for
all of its group, with a copy or `barrier_expect`: each arrives somewhere itself.

`unended_loads` says where a wait lacks; the front end places them there, and `passes.hazards` refuses a kernel that
lacks one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import complete_attributes
from tilewright.ir.types import SharedType

ARRIVALS = frozenset(("barrier_arrive", "barrier_expect"))
_BY_LEADER = frozenset(("tma_load", "barrier_expect"))
_NAMED = frozenset(("named_sync", "named_arrive"))


@dataclass(frozen=True)
class UnendedLoad:
    """A load that is not over where it has to be.

    `cause` is what lets others go on, in `region` at `position` or inside the operation there; None at a region's end.
    """

    load: Operation
    cause: Operation | None
    region: Region
    position: int

    @property
    def remote(self) -> bool:
        """Whether it loads from another CTA."""
        return _loads_from_others(self.load)


def place_load_waits(function: Function) -> None:
    """Insert `shared_wait` into a kernel that has just been made, wherever a load has to be over and may not be."""
    places = {(id(found.region), found.position, found.remote): found for found in unended_loads(function)}
    # From the end, so that positions stay; those of other CTAs are awaited first.
    for found in sorted(places.values(), key=lambda place: (place.position, not place.remote), reverse=True):
        location = (found.cause or found.load).location
        attributes = complete_attributes("shared_wait", {"remote": found.remote})
        wait = Operation("shared_wait", [], [], attributes, [], location)
        found.region.operations.insert(found.position, wait)


def unended_loads(function: Function) -> Iterator[UnendedLoad]:
    """The loads from shared memory for which a `shared_wait` lacks, and where."""
    if any(operation.opcode == "shared_load" for operation in function.walk()):
        yield from _LoadWalk(function).loads()


class _LoadWalk:
    """What is known of a kernel: whether anything arrives at barriers in its memory, and what copies fill."""

    def __init__(self, function: Function) -> None:
        self.function = function
        operations = list(function.walk())
        self.arrives = any(operation.opcode in ARRIVALS for operation in operations)
        self.filled = {
            _allocation(value)
            for operation in operations
            if operation.opcode == "tma_load"
            for value in operation.operands
            if isinstance(value.type.handle, SharedType)
        }

    def loads(self) -> Iterator[UnendedLoad]:
        """Those of the kernel's own threads, then those of its roles."""
        yield from self.role(self.function.region, None)  # after which nothing comes
        for operation in self.function.region.operations:
            if operation.opcode == "warp_roles":
                for region in operation.regions:
                    yield from self.role(region, region.terminator)

    def role(self, region: Region, end: Operation | None) -> Iterator[UnendedLoad]:
        """Those of the threads that run a region."""
        leads = any(inner.opcode in _BY_LEADER for operation in _own(region) for inner in operation.walk())
        yield from self.region(region, leads, end)

    def region(self, region: Region, leads: bool, end: Operation | None) -> Iterator[UnendedLoad]:
        """Those of a region, which ends at an operation, and of the regions in it."""
        pending: list[Operation] = []
        for position, operation in enumerate(region.operations):
            if operation.opcode == "shared_wait":
                pending = [load for load in pending if _loads_from_others(load) != operation.attributes["remote"]]
            due = {load: self.cause(load, operation, leads) for load in pending}
            due = {load: cause for load, cause in due.items() if cause or operation is end and self.left(load)}
            yield from (UnendedLoad(load, cause, region, position) for load, cause in due.items())
            kinds = set(map(_loads_from_others, due))  # one wait is for all loads of a kind
            pending = [load for load in pending if _loads_from_others(load) not in kinds]
            if operation.opcode == "shared_load":
                pending.append(operation)
            elif operation.opcode != "warp_roles":
                for inner in operation.regions:
                    yield from self.region(inner, leads, inner.terminator)

    def cause(self, load: Operation, operation: Operation, leads: bool) -> Operation | None:
        """The operation, or one in its regions, before which a load has to be over."""
        remote, filled = _loads_from_others(load), self.may_be_filled(load)
        for inner in operation.walk():
            opcode = inner.opcode
            if opcode in ARRIVALS or opcode == "cluster_arrive" and remote:
                return inner
            ordering = opcode == "cluster_arrive" and not inner.attributes["relaxed"]
            if filled and (ordering or opcode in _NAMED or opcode == "group_sync" and leads):
                return inner
        return None

    def left(self, load: Operation) -> bool:
        """Whether something may come after a load's region that it has to be over for."""
        return self.arrives or _loads_from_others(load) or self.may_be_filled(load)

    def may_be_filled(self, load: Operation) -> bool:
        """Whether a copy may come to where a load reads."""
        return _allocation(load.operands[0]) in self.filled or None in self.filled


def _own(region: Region) -> Iterator[Operation]:
    """The operations of a region but the roles."""
    return (operation for operation in region.operations if operation.opcode != "warp_roles")


def _loads_from_others(load: Operation) -> bool:
    kind = load.operands[0].type.handle
    assert isinstance(kind, SharedType)
    return kind.remote


def _allocation(tile: SSAValue) -> Operation | None:
    """The lowest allocation that a tile lies in, for memory over other memory; None where a loop hands the tile on."""
    definition = tile.definition
    if definition is None or definition.regions:
        return None
    return _allocation(definition.operands[0]) if definition.operands else definition
