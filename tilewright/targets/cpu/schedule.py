"""The order of work inside one program instance: scalar operations, groups of roots, control flow.

A `Root` is something that is computed over a domain of elements: a store, a reduction, a block
written to its buffer.  Roots that follow each other without a dependence that needs all of an earlier
one form a group, which `partition` splits into clusters:

    flat      equal domains, one loop nest: every element is taken through all roots
    rows      one loop over the first axis; inside, the rows of all roots one after the other
    columns   one vectorised loop over the last axis; inside, the columns of all roots

so that the passes of a softmax or a layer norm follow each other row by row, in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.ir.core import Operation, Region, SSAValue
from tilewright.ir.ops import ELEMENTWISE
from tilewright.targets.cpu.access import Axes, Reads, ValueWalker
from tilewright.targets.cpu.aliasing import Aliasing
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.placement import LAZY, Placement, identity_axes
from tilewright.targets.cpu.storage import Storage, StoragePlan


@dataclass(eq=False)
class Root:
    """One store (`kind` "store"), reduction ("reduce") or block to be written to `storage` ("buffer")."""

    kind: str
    operation: Operation
    value: SSAValue | None
    storage: Storage | None
    domain: tuple[int, ...]
    reads: Reads

    @property
    def writes_columns(self) -> bool:
        """Whether it writes a buffer whose columns are what lies together."""
        return self.kind == "buffer" and self.storage is not None and self.storage.is_turned

    @property
    def reduced_axis(self) -> int | None:
        return integer(self.operation, "axis") if self.kind == "reduce" else None


@dataclass
class ScheduleStep:
    """`kind`: "scalar" or "whole" (one operation), "group" (roots), "copy", "control" (operation with bodies)."""

    kind: str
    operation: Operation | None = None
    roots: list[Root] = field(default_factory=list)
    bodies: list[list[ScheduleStep]] = field(default_factory=list)
    scratch: Storage | None = None  # of a product's own copies; of a "copy", where it copies from

    @property
    def writes(self) -> bool:
        """Whether it does something by itself that others see, other than atomics."""
        stores = any(root.kind == "store" for root in self.roots)
        return stores or (self.operation is not None and self.operation.opcode in ("store", "print"))


class KernelScheduler:
    """Builds the schedule of a function and decides which values share a buffer."""

    def __init__(self, placement: Placement, target_storage: TargetStorage) -> None:
        self.placement = placement
        self.program = placement.program
        self.walker: ValueWalker = placement.walker
        self.storage: dict[SSAValue, Storage] = {}
        self.plan = StoragePlan()
        self.target_storage = target_storage
        self._preferred: dict[SSAValue, Storage] = {}
        self._count = 0

    def function(self) -> list[ScheduleStep]:
        """The schedule of the kernel's body."""
        return self._region(self.program.function.region, [])

    # -- Regions ----------------------------------------------------------------------------------

    def _region(self, region: Region, targets: Sequence[Storage | None]) -> list[ScheduleStep]:
        """Steps of a region; `targets` are the buffers that its terminator's values must end up in."""
        builder = _RegionSteps(self)
        for operation in region.operations[:-1]:
            self._operation(operation, builder)
        terminator = region.terminator
        values = terminator.operands[1:] if terminator.opcode == "condition" else terminator.operands
        self._deliver(list(zip(values, targets, strict=False)), terminator, builder)
        builder.flush()
        builder.steps.append(ScheduleStep("scalar", terminator))
        return builder.steps

    def _operation(self, operation: Operation, builder: _RegionSteps) -> None:
        opcode = operation.opcode
        if opcode in LAZY:
            self._lazy(operation, builder)
        elif opcode == "reduce":
            for result in operation.results:
                if result.type.rank:
                    self._new_storage(result)
            builder.add(self._root("reduce", operation, None, None, operation.operands))
        elif opcode == "store" and operation.operands[0].type.rank:
            builder.add(self._root("store", operation, None, None, operation.operands))
        elif opcode in ("for", "while", "if"):
            builder.flush()
            getattr(self, f"_{opcode}")(operation, builder)
        elif opcode in ("program_id", "num_programs"):
            builder.scalar(operation)
        elif opcode not in ("assume",):
            builder.flush()
            self._whole(operation, builder)

    def _lazy(self, operation: Operation, builder: _RegionSteps) -> None:
        for result in operation.results:
            if not result.type.rank:
                builder.scalar(operation)
                return
            if result in self.placement.stored and self.placement.sites(result):
                storage = self._new_storage(result)
                builder.add(self._root("buffer", operation, result, storage, [result]))

    def _whole(self, operation: Operation, builder: _RegionSteps) -> None:
        """An operation that is lowered on its own: product, scan, atomic, print, scalar store …"""
        step = ScheduleStep("whole", operation)
        if operation.opcode == "dot":
            self._product_storage(operation, builder)
        for result in operation.results:
            if result.type.rank and result not in self.storage:
                self._new_storage(result)
        if operation.opcode == "dot":
            step.scratch = self.plan.add(Storage.raw(self.target_storage.dot_scratch(operation)))
        reads = self.walker.reads([(operand, identity_axes(operand)) for operand in operation.operands])
        builder.steps.append(step)
        self._touch(reads, [self.storage[result] for result in operation.results if result.type.rank])
        if step.scratch is not None:
            step.scratch.touch(self._count)
        self._count += 1

    def _product_storage(self, operation: Operation, builder: _RegionSteps) -> None:
        """The result's buffer: the accumulator's when that ends here, else one that it is copied to."""
        accumulator, result = operation.operands[2], operation.result
        if accumulator not in self.placement.stored:  # zero
            return
        owned = self.storage[accumulator]
        preferred = self._preferred.get(result)
        claimed = any(storage is owned for storage in self._preferred.values())
        ends = self._dies_at(accumulator, self.program.position[operation])
        if preferred is None and not claimed and ends and not self._is_factor(accumulator, operation):
            preferred = owned
        self.storage[result] = preferred if preferred is not None else self._fresh(result)
        if self.storage[result] is not owned:
            builder.add(self._root("buffer", operation, accumulator, self.storage[result], [accumulator]))
            builder.flush()

    # -- Control flow -----------------------------------------------------------------------------

    def _for(self, operation: Operation, builder: _RegionSteps) -> None:
        region = operation.regions[0]
        carried = self._carried(operation, operation.operands[3:], region.arguments[1:], builder)
        for result, storage in zip(operation.results, carried, strict=True):
            if storage is not None:
                self.storage[result] = storage
        self._prefer(region, region.arguments[1:], region.terminator.operands, carried)
        start = self._begin_loop(carried)
        body = self._region(region, carried)
        self._end_loop(start, carried)
        builder.steps.append(ScheduleStep("control", operation, bodies=[body]))

    def _while(self, operation: Operation, builder: _RegionSteps) -> None:
        before, after = operation.regions
        carried = self._carried(operation, operation.operands, before.arguments, builder)
        forwarded: list[Storage | None] = []
        for value, argument, result in zip(
            before.terminator.operands[1:], after.arguments, operation.results, strict=True
        ):
            storage = self.storage.get(value) if value in before.arguments else None
            if argument.type.rank and storage is None:
                storage = self._fresh(argument)
            forwarded.append(storage)
            if storage is not None:
                self.storage[argument] = self.storage[result] = storage
        start = self._begin_loop([*carried, *forwarded])
        first = self._region(before, forwarded)
        second = self._region(after, carried)
        self._end_loop(start, [*carried, *forwarded])
        builder.steps.append(ScheduleStep("control", operation, bodies=[first, second]))

    def _if(self, operation: Operation, builder: _RegionSteps) -> None:
        targets: list[Storage | None] = []
        for index, result in enumerate(operation.results):
            storage = self._branch_storage(operation, index) if result.type.rank else None
            targets.append(storage)
            if storage is not None:
                self.storage[result] = storage
        bodies = []
        for region in operation.regions:
            for value, storage in zip(region.terminator.operands, targets, strict=True):
                own = value.definition is not None and self.program.parent[value.definition] is operation
                if storage is not None and own and storage.last < 0:
                    self._preferred.setdefault(value, storage)
            bodies.append(self._region(region, targets))
        for storage in targets:
            if storage is not None:
                storage.touch(self._count)
        self._count += 1
        builder.steps.append(ScheduleStep("control", operation, bodies=bodies))

    def _branch_storage(self, operation: Operation, index: int) -> Storage:
        """The buffer of an if's result: that of a value that a branch passes on unchanged, if it ends here."""
        last = self.program.last[operation]
        for region in operation.regions:
            value = region.terminator.operands[index]
            inner = value.definition is not None and self.program.parent[value.definition] is operation
            if not inner and value in self.storage and self._dies_at(value, last):
                others = [other for other in operation.regions if other is not region]
                chain = others[0].terminator.operands[index]
                if chain is value or self._safe_in_place(value, chain):
                    self._prefer_chain(chain, self.storage[value], value)
                    return self.storage[value]
        return self._fresh(operation.results[index])

    def _carried(
        self, operation: Operation, initial: Sequence[SSAValue], arguments: Sequence[SSAValue], builder: _RegionSteps
    ) -> list[Storage | None]:
        """Buffers of loop-carried blocks, filled with the initial values."""
        carried: list[Storage | None] = []
        deliveries: list[tuple[SSAValue, Storage | None]] = []
        for value, argument in zip(initial, arguments, strict=True):
            storage: Storage | None = None
            if argument.type.rank:
                owned = self.storage.get(value) if value in self.placement.stored else None
                free = (
                    owned is not None
                    and owned not in carried
                    and self._dies_at(value, self.program.position[operation])
                )
                storage = owned if owned is not None and free else self._fresh(argument)
                self.storage[argument] = storage
                deliveries.append((value, storage))
            carried.append(storage)
        self._deliver(deliveries, operation, builder)
        builder.flush()
        return carried

    def _deliver(
        self, values: Sequence[tuple[SSAValue, Storage | None]], operation: Operation, builder: _RegionSteps
    ) -> None:
        """Write values to the buffers that must hold them at this point.

        A value that still reads a buffer which another delivery overwrites goes through a copy.
        """
        moves = [(value, target) for value, target in values if target is not None]
        moves = [(value, target) for value, target in moves if self.storage.get(value) is not target]
        direct: list[tuple[SSAValue, Storage]] = []
        late: list[tuple[SSAValue, Storage, Storage]] = []
        for value, target in moves:
            reads = self.walker.reads([(value, identity_axes(value))])
            sources = [(self.storage[source], axes) for source, axes in reads.buffers]
            others = [other for _, other in moves if other is not target]
            clash = any(storage is other for storage, _ in sources for other in others)
            if clash or any(storage is target and axes != identity_axes(value) for storage, axes in sources):
                copy = self._fresh(value)
                builder.add(self._root("buffer", operation, value, copy, [value]))
                late.append((value, copy, target))
            else:
                direct.append((value, target))
        for value, target in direct:
            builder.add(self._root("buffer", operation, value, target, [value]))
        if late:
            builder.flush()
            for value, copy, target in late:
                root = Root("buffer", operation, value, target, value.type.shape, Reads())
                builder.steps.append(ScheduleStep("copy", operation, roots=[root], scratch=copy))
                self._touch(Reads(), [copy, target])
                self._count += 1

    # -- Buffers in place -------------------------------------------------------------------------

    def _prefer(
        self,
        region: Region,
        arguments: Sequence[SSAValue],
        yielded: Sequence[SSAValue],
        carried: Sequence[Storage | None],
    ) -> None:
        """Let yielded values be computed in the buffer of the carried block they replace, when safe."""
        for argument, value, storage in zip(arguments, yielded, carried, strict=True):
            if storage is None or value is argument or list(yielded).count(value) > 1:
                continue
            if self._safe_in_place(argument, value):
                self._prefer_chain(value, storage, argument)

    def _prefer_chain(self, value: SSAValue, storage: Storage, argument: SSAValue) -> None:
        """`value` and the accumulators it is built on share `storage`."""
        while value is not argument and value in self.placement.stored:
            definition = value.definition
            if definition is None:
                break
            self._preferred[value] = storage
            if definition.opcode == "dot":
                value = definition.operands[2]
            elif definition.opcode == "for":
                value = definition.operands[3 + definition.results.index(value)]
            else:
                break

    def _safe_in_place(self, argument: SSAValue, value: SSAValue) -> bool:
        """Whether `value`'s chain may overwrite `argument`'s buffer: all reads of it come before."""
        first = value
        while first is not argument and first.definition is not None:
            definition = first.definition
            if definition.opcode == "dot":
                inner = definition.operands[2]
            elif definition.opcode == "for":
                inner = definition.operands[3 + definition.results.index(first)]
            else:
                break
            if definition.opcode == "dot" and self._is_factor(inner, definition):
                return False
            if inner is argument:
                return self._read_before(argument, definition)
            if inner not in self.placement.stored or inner.definition is None:
                break
            if not self._dies_at(inner, self.program.position[definition]):
                return False
            first = inner
        if first.definition is None or first not in self.placement.stored:
            return False
        if not self._read_before(argument, first.definition):
            return False
        if first.definition.opcode not in LAZY:  # its elements mix those of its operands
            starts = [(operand, identity_axes(operand)) for operand in first.definition.operands]
            return all(buffer is not argument for buffer, _ in self.walker.reads(starts).buffers)
        own = identity_axes(first)
        reads = self.walker.reads([(first, own)], through_stored=first)
        return all(axes == own for buffer, axes in reads.buffers if buffer is argument)

    def _is_factor(self, value: SSAValue, dot: Operation) -> bool:
        """Whether a product reads a block's buffer while it writes its sums."""
        starts = [(operand, identity_axes(operand)) for operand in dot.operands[:2]]
        return any(buffer is value for buffer, _ in self.walker.reads(starts).buffers)

    def _read_before(self, argument: SSAValue, operation: Operation) -> bool:
        limit = self.program.position[operation]
        return all(site.position <= limit for site in self.placement.sites(argument))

    def _dies_at(self, value: SSAValue, position: int) -> bool:
        """Whether nothing reads `value` after `position`, and no loop brings an earlier read back."""
        operation = self.program.operations[position]
        loops = self.program.enclosing_loops(operation, self.program.definition_parent(value))
        return not loops and all(site.position <= position for site in self.placement.sites(value))

    def _new_storage(self, value: SSAValue) -> Storage:
        preferred = self._preferred.get(value)
        self.storage[value] = preferred if preferred is not None else self._fresh(value)
        return self.storage[value]

    def _fresh(self, value: SSAValue) -> Storage:
        return self.plan.add(self.target_storage.block(value))

    # -- Roots and lifetimes ----------------------------------------------------------------------

    def _root(
        self,
        kind: str,
        operation: Operation,
        value: SSAValue | None,
        storage: Storage | None,
        inputs: Sequence[SSAValue],
    ) -> Root:
        starts = [(item, identity_axes(item)) for item in inputs]
        through = value if value is not None and storage is self.storage.get(value) else None
        domain = inputs[0].type.shape
        return Root(kind, operation, value, storage, domain, self.walker.reads(starts, through))

    def _touch(self, reads: Reads, written: Sequence[Storage]) -> None:
        for value, _ in reads.buffers:
            if value in self.storage:
                self.storage[value].touch(self._count)
        for storage in written:
            storage.touch(self._count)

    def touch_group(self, roots: Sequence[Root]) -> None:
        """Mark the buffers of a group as live at this step."""
        for root in roots:
            self._touch(root.reads, [storage for _, storage, _ in self.written(root)])
        self._count += 1

    def written(self, root: Root) -> list[tuple[SSAValue, Storage, Axes]]:
        """Blocks that a root writes to buffers, with the domain axes of theirs."""
        if root.kind == "buffer":
            assert root.value is not None and root.storage is not None
            return [(root.value, root.storage, tuple(range(len(root.domain))))]
        if root.kind == "reduce":
            axes = tuple(axis for axis in range(len(root.domain)) if axis != root.reduced_axis)
            return [(value, self.storage[value], axes) for value in root.operation.results if value.type.rank]
        return []

    def _begin_loop(self, carried: Sequence[Storage | None]) -> int:
        for storage in carried:
            if storage is not None:
                storage.touch(self._count)
        self._count += 1
        return self._count

    def _end_loop(self, start: int, carried: Sequence[Storage | None]) -> None:
        for storage in carried:
            if storage is not None:
                storage.touch(self._count)
        self.plan.loops.append((start, self._count))
        self._count += 1


class TargetStorage:
    """What the storage of a function needs to know of products; implemented by the lowering."""

    def block(self, value: SSAValue) -> Storage:
        raise NotImplementedError

    def dot_scratch(self, operation: Operation) -> int:
        raise NotImplementedError


class _RegionSteps:
    """Collects the steps of one region; roots wait in `pending` until something needs their results."""

    def __init__(self, scheduler: KernelScheduler) -> None:
        self.scheduler = scheduler
        self.steps: list[ScheduleStep] = []
        self.pending: list[Root] = []
        self._scalars: set[SSAValue] = set()  # scalar results of pending reductions, and what is computed from them
        self._late: list[Operation] = []  # scalar operations that come after the pending roots

    def add(self, root: Root) -> None:
        if root.reads.scalars & self._scalars:
            self.flush()
        self.pending.append(root)
        if root.kind == "reduce":
            self._scalars |= {value for value in root.operation.results if value.type.is_scalar}

    def scalar(self, operation: Operation) -> None:
        """A scalar operation is emitted at once.

        Arithmetic with results of pending reductions waits for them, so that more roots can join these; anything
        else forces out the pending roots that it depends on.
        """
        waits = any(operand in self._scalars for operand in operation.operands)
        blocks = any(operand.type.rank for operand in operation.operands)
        if waits and not blocks and operation.opcode in ELEMENTWISE:
            self._late.append(operation)
            self._scalars |= set(operation.results)
            return
        loads = operation.opcode == "load" and any(root.kind == "store" for root in self.pending)
        if waits or blocks or loads:
            self.flush()
        self.steps.append(ScheduleStep("scalar", operation))

    def flush(self) -> None:
        if self.pending:
            self.steps.append(ScheduleStep("group", roots=self.pending))
            self.scheduler.touch_group(self.pending)
        self.steps += [ScheduleStep("scalar", operation) for operation in self._late]
        self.pending, self._scalars, self._late = [], set(), []


# Clusters ----------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """Roots computed together; `mode` is "flat", "rows" or "columns", the latter two with inner clusters."""

    mode: str
    roots: list[Root]
    inner: list[Cluster] = field(default_factory=list)


_MODES = ("flat", "rows", "columns")
_DEAR = 8  # vector operations: an exponential
_ELEMENT_BYTES = 4


class Partitioner:
    """Splits the roots of a group into clusters."""

    def __init__(self, scheduler: KernelScheduler, aliasing: Aliasing, lanes: int, l1_bytes: int) -> None:
        self.scheduler = scheduler
        self.aliasing = aliasing
        self.lanes = lanes
        self.l1_bytes = l1_bytes

    def partition(self, roots: Sequence[Root]) -> list[Cluster]:
        """Clusters of a group, in order."""
        return self._split(list(roots), {root: list(range(len(root.domain))) for root in roots})

    def _split(self, roots: list[Root], axes: dict[Root, list[int]]) -> list[Cluster]:
        clusters: list[Cluster] = []
        current: list[Root] = []
        modes: set[str] = set(_MODES)
        for root in roots:
            possible = {mode for mode in modes if self._fits(mode, current, root, axes)}
            if current and not possible:
                clusters.append(self._close(current, modes, axes))
                current, possible = [], {mode for mode in _MODES if self._fits(mode, [], root, axes)}
            current.append(root)
            modes = possible
        if current:
            clusters.append(self._close(current, modes, axes))
        return clusters

    def _close(self, roots: list[Root], modes: set[str], axes: dict[Root, list[int]]) -> Cluster:
        if "flat" in modes or len(roots) == 1:
            return Cluster("flat", roots)
        wide = any(len(axes[root]) > 1 and root.domain[axes[root][-1]] >= self.lanes for root in roots)
        mode = "rows" if "rows" in modes and (wide or "columns" not in modes) else "columns"
        inner = {root: axes[root][1:] if mode == "rows" else axes[root][:-1] for root in roots}
        return Cluster(mode, roots, self._split(roots, inner))

    def _fits(self, mode: str, cluster: list[Root], root: Root, axes: dict[Root, list[int]]) -> bool:
        if not self._possible(mode, cluster, root, axes):
            return False
        return all(self._independent(mode, earlier, root, axes) for earlier in cluster)

    def _possible(self, mode: str, cluster: list[Root], root: Root, axes: dict[Root, list[int]]) -> bool:
        if mode == "flat":
            return not cluster or _possible_flat(cluster, root, axes)
        own = axes[root]
        position = 0 if mode == "rows" else -1
        if not own or own[position] == root.reduced_axis:
            return False
        if mode == "columns" and root.kind == "store" and self.aliasing.ordered(root.operation):
            return False
        if not cluster:
            return True
        if mode == "rows" and any(self._wants_vectors(item, [*cluster, root], axes) for item in [*cluster, root]):
            return False
        if any(item.writes_columns for item in (*cluster, root)):
            return False
        extent = root.domain[own[position]]
        deep = any(len(axes[item]) > 1 for item in [*cluster, root])
        return deep and extent == cluster[0].domain[axes[cluster[0]][position]]

    def _wants_vectors(self, root: Root, cluster: list[Root], axes: dict[Root, list[int]]) -> bool:
        """Whether a line of dear elements, one to a row of the others, is better computed apart, in vectors.

        So it is while the others' blocks stay in the level 1 cache from one loop to the next.
        """
        if len(axes[root]) != 1 or root.domain[axes[root][0]] < self.lanes or root.kind == "reduce":
            return False
        if max(prod(_extents(item, axes)) for item in cluster) * _ELEMENT_BYTES > self.l1_bytes:
            return False
        placement = self.scheduler.placement
        if root.value is not None:
            definition = root.value.definition
            own = definition is root.operation and definition.opcode in LAZY
            return own and placement.computation_cost(root.value) >= _DEAR
        return any(placement.cost(operand) >= _DEAR for operand in root.operation.operands)

    def _independent(self, mode: str, first: Root, second: Root, axes: dict[Root, list[int]]) -> bool:
        """Whether `second` may run interleaved with `first`: it needs only what the same part of `first` made."""
        pairs = _shared(mode, axes[first], axes[second])
        storage = self.scheduler.storage
        for _, written, made in self.scheduler.written(first):
            for value, read in second.reads.buffers:
                if storage.get(value) is written and (
                    (mode == "flat" and first.kind == "reduce") or not _local(pairs, made, read)
                ):
                    return False
        for _, written, made in self.scheduler.written(second):
            for value, read in first.reads.buffers:
                if storage.get(value) is written and not _local(pairs, read, made, made_first=False):
                    return False
            for _, other, earlier in self.scheduler.written(first):
                if other is written and not _local(pairs, earlier, made):
                    return False
        return not self._memory_conflict(pairs, first, second)

    def _memory_conflict(self, pairs: list[tuple[int, int]], first: Root, second: Root) -> bool:
        """Whether one root may write elements that the other touches in a part which does not run in step with it."""
        pairs = [(one, other) for one, other in pairs if first.domain[one] > 1]
        for one, axes in _memory(first):
            for other, other_axes in _memory(second):
                if "store" in (one.opcode, other.opcode) and self.aliasing.overlap(one.operands[0], other.operands[0]):
                    access, writer = (one, other) if other.opcode == "store" else (other, one)
                    if self.aliasing.never_meet(access, writer):
                        continue
                    if self.aliasing.conflict(access, writer) or not _local(pairs, axes, other_axes):
                        return True
        return False


def _memory(root: Root) -> list[tuple[Operation, Axes]]:
    """The loads and the store of a root, with the domain axes of their pointers' axes."""
    touched = list(root.reads.loads)
    if root.kind == "store":
        touched.append((root.operation, tuple(range(len(root.domain)))))
    return touched


def _extents(root: Root, axes: dict[Root, list[int]]) -> tuple[int, ...]:
    return tuple(root.domain[axis] for axis in axes[root])


def _place(root: Root, axes: dict[Root, list[int]]) -> int:
    return axes[root].index(root.reduced_axis) if root.reduced_axis in axes[root] else -1


def _shared(mode: str, first: list[int], second: list[int]) -> list[tuple[int, int]]:
    """Pairs of domain axes (of two roots) that the mode runs in step."""
    if mode == "rows":
        return [(first[0], second[0])]
    if mode == "columns":
        return [(first[-1], second[-1])]
    return list(zip(first, second, strict=True))


def _local(pairs: list[tuple[int, int]], first: Axes, second: Axes, made_first: bool = True) -> bool:
    """Whether a block with axes `first` in one root and `second` in the other is touched in step along `pairs`."""
    written = first if made_first else second
    for one, other in pairs:
        own = one if made_first else other
        if own not in written:
            return False
        place = written.index(own)
        if first[place] != one or second[place] != other:
            return False
    return True


def _possible_flat(cluster: list[Root], root: Root, axes: dict[Root, list[int]]) -> bool:
    """Whether one loop over all elements computes a root with others: of its extents, with one place of results."""
    places = {_place(item, axes) for item in [*cluster, root] if item.kind == "reduce"}
    return _extents(root, axes) == _extents(cluster[0], axes) and len(places) <= 1
