"""The storage of every tensor of a plan: the caller's buffers, the weights, or an offset in the arena.

Views share the memory of what they show (their *root*).  The group that computes a graph output or the
new value of a mutated input writes it to its final place, where that is possible; else a copy is added
at the end.  All other tensors get a place in the arena for the steps in which they are alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.build.concurrent_branches import LanePlace, last_concurrent
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.passes.memory import LiveInterval, plan_memory
from tilewright.graph.updates import writes_in_place
from tilewright.library.candidate import Candidate
from tilewright.runtime.plan import BufferReference, TensorSpec
from tilewright.symbolic import Size, lift, product, simplify


@dataclass(frozen=True)
class GroupTask:
    """A group with the candidate that computes it."""

    group: Group
    candidate: Candidate


@dataclass(frozen=True)
class TaskAccess:
    """A task and the tensors that it reads and writes, by names that tell their memory apart."""

    task: GroupTask
    reads: frozenset[str]
    writes: frozenset[str]


# Says where tasks run: on which lane, and after which tasks of others.
Spreader = Callable[[Sequence[TaskAccess]], Sequence[LanePlace]]


def in_order(accesses: Sequence[TaskAccess]) -> list[LanePlace]:
    """All tasks one after the other."""
    return [LanePlace(0, ())] * len(accesses)


# Makes the task that copies a tensor's elements to another tensor of the same shape.
Copier = Callable[[Value, Value], GroupTask]


@dataclass(frozen=True)
class Stay:
    """A tensor in the arena: from `offset` on (bytes), while the tasks from `first` to `last` run."""

    name: str
    offset: Size
    bytes: Size
    first: int
    last: int


@dataclass
class TensorStorage:
    """The result: tasks in order (copies included), and the place of every value."""

    tasks: list[GroupTask]
    places: dict[Value, BufferReference]
    outputs: list[TensorSpec]
    arena_bytes: Size
    roots: dict[Value, Value]
    redirected: dict[tuple[int, Value], Value] = field(default_factory=dict)  # (task, root) -> its saved copy
    arena: list[Stay] = field(default_factory=list)
    lanes: Sequence[LanePlace] = ()  # of the tasks

    def place(self, task: int, value: Value) -> BufferReference:
        """Where `value` lies for a task; raises `KeyError` for constants."""
        root = self.roots.get(value, value)
        return self.places[self.redirected.get((task, root), root)]


def assign_storage(
    graph: Graph, scheduled: Sequence[tuple[Group, Candidate | None]], copier: Copier, spread: Spreader = in_order
) -> TensorStorage:
    """Places for all values of a graph whose groups run in this order; views have no candidate.

    `spread` may let tasks run at the same time: what they share is then kept apart.
    """
    return _Planner(graph, scheduled, copier, spread).plan()


class _Planner:
    def __init__(
        self, graph: Graph, scheduled: Sequence[tuple[Group, Candidate | None]], copier: Copier, spread: Spreader
    ) -> None:
        self.graph = graph
        self.copier = copier
        self.spread = spread
        self.roots = _roots(scheduled)
        self.tasks = [GroupTask(group, candidate) for group, candidate in scheduled if candidate is not None]
        self.places: dict[Value, BufferReference] = {
            value: BufferReference("input", value.name) for value in graph.inputs
        }
        self.late: list[GroupTask] = []  # copies at the end
        self.overwritten: list[
            tuple[Value, GroupTask]
        ] = []  # inputs, and the task from which on they hold another value

    def plan(self) -> TensorStorage:
        # What a kernel writes in place lies there, whichever inputs get copies of it.
        for target, value in sorted(self.graph.mutations.items(), key=lambda item: not self._is_in_place(*item)):
            self._place_mutation(target, value)
        outputs = self._place_outputs()
        redirected = self._insert_copies()
        lanes = self.spread([self._access(number, redirected) for number in range(len(self.tasks))])
        arena_bytes, arena = self._place_in_arena(redirected, lanes)
        return TensorStorage(self.tasks, self.places, outputs, arena_bytes, self.roots, redirected, arena, lanes)

    def root(self, value: Value) -> Value:
        return self.roots.get(value, value)

    def _reads(self, task: GroupTask, root: Value) -> bool:
        return any(self.root(value) is root for value in task.group.inputs)

    def _writer(self, root: Value) -> int | None:
        """The number of the task that computes a value."""
        for number, task in enumerate(self.tasks):
            if root in task.group.outputs:
                return number
        return None

    # -- Mutated inputs and outputs -------------------------------------------------------------

    def _place_mutation(self, target: Value, value: Value) -> None:
        root = self.root(value)
        if root is target:
            return
        writer = self._writer(root)
        if (
            writer is not None
            and root not in self.places
            and (self._is_in_place(target, root) or self._is_read_no_more(writer, target))
        ):
            self.places[root] = self.places[target]
            self.overwritten.append((target, self.tasks[writer]))
        else:
            self._copy_at_end(value, self.places[target])
            self.overwritten.append((target, self.late[-1]))

    def _is_in_place(self, target: Value, value: Value) -> bool:
        """Whether the kernel that computes a value writes updates alone, into the input that it replaces."""
        writer = self._writer(value)
        nodes = [] if writer is None else self.tasks[writer].group.nodes
        return any(writes_in_place(node, nodes, self.graph) and node.inputs[0] is target for node in nodes)

    def _is_read_no_more(self, writer: int, target: Value) -> bool:
        """Whether no task reads an input from a writer on."""
        return not any(self._reads(task, target) for task in self.tasks[writer:])

    def _place_outputs(self) -> list[TensorSpec]:
        specs = []
        mutated = {value: target.name for target, value in self.graph.mutations.items()}
        for name, value in zip(self.graph.output_names, self.graph.outputs, strict=True):
            place = BufferReference("output", name)
            specs.append(TensorSpec(name, value.dtype.name, value.shape, mutated.get(value)))
            root = self.root(value)
            if value in mutated:
                continue
            if root in self.places or self._writer(root) is None:
                self._copy_at_end(value, place)
            else:
                self.places[root] = place
        return specs

    def _copy_at_end(self, source: Value, place: BufferReference) -> None:
        target = Value(f"{source.name}.to.{place.name}", source.dtype, source.shape)
        self.places[target] = place
        self.late.append(self.copier(source, target))

    def _insert_copies(self) -> dict[tuple[int, Value], Value]:
        """Add the copies at the end, and before an input is overwritten one of its old value for those who read
        it later; returns which tasks read which inputs' saved values."""
        self.tasks += self.late
        saved: list[tuple[Value, Value, GroupTask]] = []
        for target, task in self.overwritten:
            position = self.tasks.index(task)
            if any(self._reads(other, target) for other in self.tasks[position + 1 :]):
                before = Value(f"{target.name}.before", target.dtype, target.shape)
                self.tasks.insert(position, self.copier(target, before))
                saved.append((target, before, task))
        return {
            (number, target): before
            for target, before, task in saved
            for number in range(self.tasks.index(task) + 1, len(self.tasks))
        }

    # -- The arena ------------------------------------------------------------------------------

    def _memory(self, value: Value, number: int, redirected: dict[tuple[int, Value], Value]) -> Value:
        """The value in whose memory a task finds another."""
        root = self.root(value)
        return redirected.get((number, root), root)

    def _access(self, number: int, redirected: dict[tuple[int, Value], Value]) -> TaskAccess:
        """What a task reads and writes: tensors of the caller by their names, others by their identity."""
        task = self.tasks[number]

        def names(values: Iterable[Value]) -> frozenset[str]:
            memories = [self._memory(value, number, redirected) for value in values]
            return frozenset(
                f"{place.kind} {place.name}"
                if (place := self.places.get(memory)) is not None
                else f"value {id(memory)}"
                for memory in memories
                if memory not in self.graph.constants
            )

        return TaskAccess(task, names(task.group.inputs), names((*task.group.outputs, *task.candidate.temporaries)))

    def _place_in_arena(
        self, redirected: dict[tuple[int, Value], Value], lanes: Sequence[LanePlace]
    ) -> tuple[Size, list[Stay]]:
        """The arena's size, and what lies in it when."""
        users: dict[Value, list[int]] = {}
        for number, task in enumerate(self.tasks):
            for value in (*task.group.outputs, *task.candidate.temporaries, *task.group.inputs):
                memory = self._memory(value, number, redirected)
                if memory not in self.places and memory not in self.graph.constants:
                    users.setdefault(memory, []).append(number)
        last_task = last_concurrent(lanes)
        intervals = [
            LiveInterval(str(number), _bytes(value), tasks[0], max(tasks[-1], last_task(tasks)))
            for number, (value, tasks) in enumerate(users.items())
        ]
        arena = plan_memory(intervals)
        stays = []
        for value, interval in zip(users, intervals, strict=True):
            self.places[value] = BufferReference("arena", value.name, arena.offsets[interval.name])
            offset = arena.offsets[interval.name]
            stays.append(Stay(value.name, offset, interval.bytes, interval.first, interval.last))
        return arena.total, stays


def _roots(scheduled: Sequence[tuple[Group, Candidate | None]]) -> dict[Value, Value]:
    """For each view the value whose memory it shows."""
    roots: dict[Value, Value] = {}
    for group, candidate in scheduled:
        if candidate is None:
            (source,) = group.inputs
            for output in group.outputs:
                roots[output] = roots.get(source, source)
    return roots


def _bytes(value: Value) -> Size:
    return simplify(lift(product(value.shape)) * value.dtype.itemsize)
