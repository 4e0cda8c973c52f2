"""Loops that wait for another program instance, and launches that hang because it cannot begin.

A `while` may wait when its passes can follow each other without a change: it reads memory, and the values that decide
about its next pass come from there.  `watch_waits` puts an assertion at the end of such a loop's body, which says
whether a value has changed; machine code also counts stores, and atomics that changed memory.  A loop whose passes
change nothing looks at the launch every `_PASSES_OF_WAIT` passes, in three words of the launch's record:

    progress   rises when an instance ends, and when one that has waited goes on
    running    the ranges of instances that threads are working on
    votes      `progress`, and in the low 16 bits how many of the waiting have seen it stand still for the limit

An instance votes once for a value of `progress`.  When as many have voted as run, nobody is left who could end the
waiting, and the launch fails.  A thread that the system does not run has no vote, so that it may take its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from tilewright.dtypes import int1
from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.rewrite import Rebuilder
from tilewright.ir.waiting import deciding_values
from tilewright.runtime.failure_record import CLOCK, LIMIT, PROGRESS, RUNNING, VOTES
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.failures import NUMBER, emit_failure
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module

WAITS = "cpu.waits"  # the attribute of the assertions that `watch_waits` adds
_PASSES_OF_WAIT = 1 << 10  # between two looks at the launch: a power of two
_ATOMICS = ("atomic_rmw", "atomic_cas")
_ASK = "tilewright.waits_for_ever"


def loops(function: Function) -> Iterator[Operation]:
    """The loops of a traced kernel that may wait, in the order of their numbers."""
    return (operation for operation in function.walk() if operation.opcode == "while")


def watches_waits(function: Function) -> bool:
    """Whether a function on its way through the passes has loops that are watched."""
    return any(WAITS in operation.attributes for operation in function.walk())


def watch_waits(function: Function) -> Function:
    """`function` with an assertion in each loop that may wait: that the pass changed a value which decides.

    Its number in `failures` is -1 for the first of `loops`, -2 for the second, and so on.
    """
    numbers = {operation: -1 - place for place, operation in enumerate(loops(function))}
    return _Watcher(numbers).run(function) if numbers else function


class _Watcher(Rebuilder):
    def __init__(self, numbers: dict[Operation, int]) -> None:
        super().__init__()
        self.numbers = numbers

    def copy(self, operation: Operation) -> None:
        super().copy(operation)
        if operation in self.numbers:
            self._watch(self.current.operations[-1], self.numbers[operation])

    def _watch(self, loop: Operation, number: int) -> None:
        pairs = _deciding(loop)
        if pairs is None:
            return
        self.changed = True
        body = loop.regions[1]
        terminator = body.operations.pop()
        saved, self.location = self.location, loop.location
        with self.at(body):
            changes = [self._differ(old, new) for old, new in pairs]
            changed = reduce(lambda left, right: self.emit("or", left, right), changes, self.constant(False, int1))
            self.create("assert", [changed], {"message": "", NUMBER: number, WAITS: True})
        self.location = saved
        body.operations.append(terminator)

    def _differ(self, old: SSAValue, new: SSAValue) -> SSAValue:
        """Whether two values of one type differ, blocks in some element."""
        if not old.type.rank:
            return self.emit("compare", old, new, predicate="ne")
        differ = self.emit("xor", old, new)
        while differ.type.rank:
            (differ,) = self.reduce([differ], differ.type.rank - 1, lambda x, y: [self.emit("or", x[0], y[0])])
        return differ


def _deciding(loop: Operation) -> list[tuple[SSAValue, SSAValue]] | None:
    """Carried values that decide about further passes, before and after the body; None for a loop that cannot wait.

    What the body computes from memory alone is left out: it is as it was while memory is.
    """
    before, after = loop.regions
    inside = [operation for operation in loop.walk() if operation is not loop]
    polls = any(entry.opcode in _ATOMICS or entry.attributes.get("volatile") for entry in inside)
    if not polls and all(entry.opcode != "load" for entry in inside):
        return None
    forwarded, yielded = before.terminator.operands[1:], after.terminator.operands
    bodies = dict(zip(after.arguments, forwarded, strict=True))  # a value of the body: the one that the test passes on
    same = [bodies.get(value) is argument for argument, value in zip(before.arguments, yielded, strict=True)]
    following = dict(zip(before.arguments, yielded, strict=True))
    needed = deciding_values(loop)
    varying = _varying(before, after, {value for value, still in zip(before.arguments, same, strict=True) if not still})
    starts = {source: argument for argument, source in bodies.items()}
    pairs = []
    for argument, value in following.items():
        if argument not in needed or value not in varying or bodies.get(value) is argument:
            continue
        comparable = argument in starts and not value.type.is_pointer
        if not comparable or (value.type.rank and not value.type.dtype.is_bool):
            return None  # such a block or address moves on with every pass
        pairs.append((starts[argument], value))
    return pairs if polls or not pairs else None


def _varying(before: Region, after: Region, varying: set[SSAValue]) -> set[SSAValue]:
    """What a pass computes from values that the pass before it has left, `varying` to begin with."""

    def follow(region: Region) -> None:
        for operation in region.operations:
            if any(value in varying for entry in operation.walk() for value in entry.operands):
                varying.update(operation.results)

    follow(before)
    passed = zip(after.arguments, before.terminator.operands[1:], strict=True)
    varying |= {argument for argument, value in passed if value in varying}
    follow(after)
    return varying


class WaitEmitter:
    """Emits what the watched loops of one instance function do."""

    def __init__(self, builder: LLVMBuilder, record: LLVMValue, programs: list[LLVMValue]) -> None:
        self.builder, self.record, self.programs = builder, record, programs
        self._changes = builder.alloca("i64", 1, 8)  # of memory by this instance, up to now
        builder.store(builder.integer(0), self._changes, 8)
        # Of each loop by its number: passes since one changed something, and `_changes` when one ended last.
        self._passes: dict[int, LLVMValue] = {}
        self._marks: dict[int, LLVMValue] = {}
        _define_ask(builder.module)

    def note(self, changed: LLVMValue) -> None:
        """Count a change of memory if `changed` (i1) holds."""
        count = self.builder.cast("zext", changed, "i64")
        self.builder.store(self.builder.add(self.builder.load("i64", self._changes, 8), count), self._changes, 8)

    def note_update(self, kind: str, old: LLVMValue, operand: LLVMValue) -> None:
        """Count an `atomicrmw` if it changed memory, which was `old`."""
        builder = self.builder
        if kind in ("fadd", "add", "xor"):
            zero = builder.zero(operand.type)
            self.note(builder.compare("une" if kind == "fadd" else "ne", operand, zero))
        elif kind in ("and", "or"):
            self.note(builder.compare("ne", builder.binary(kind, old, operand), old))
        elif kind == "xchg":
            self.note(builder.compare("une" if operand.is_float else "ne", old, operand))
        else:
            predicates = {"max": "sgt", "min": "slt", "umax": "ugt", "umin": "ult", "fmax": "ogt", "fmin": "olt"}
            self.note(builder.compare(predicates[kind], operand, old))

    def begin(self, loop: Operation) -> int | None:
        """Before a loop: its number, None for one that is not watched."""
        numbers = [integer(entry, NUMBER) for entry in loop.regions[1].operations if WAITS in entry.attributes]
        if not numbers:
            return None
        (number,) = numbers
        for places in (self._passes, self._marks):
            places[number] = self.builder.alloca("i64", 1, 8)
            self.builder.store(self.builder.integer(0), places[number], 8)
        return number

    def end(self, number: int) -> None:
        """Behind a loop that `begin` gave a number: one that has waited goes on."""
        self._go_on_if(self._has_waited(self.builder.load("i64", self._passes[number], 8)))

    def passed(self, operation: Operation, changed: LLVMValue) -> None:
        """At the end of a pass, which has `changed` (i1) a value that decides, or not."""
        builder, number = self.builder, integer(operation, NUMBER)
        state = builder.alloca("i64", 3, 8)
        passes, changes = builder.load("i64", self._passes[number], 8), builder.load("i64", self._changes, 8)
        moved = builder.compare("ne", changes, builder.load("i64", self._marks[number], 8))
        builder.store(changes, self._marks[number], 8)
        moved = builder.binary("or", moved, changed)
        self._go_on_if(builder.binary("and", moved, self._has_waited(passes)))
        following = builder.select(moved, builder.integer(0), builder.add(passes, 1))
        builder.store(following, self._passes[number], 8)
        with builder.when(builder.compare("eq", following, _PASSES_OF_WAIT)):
            builder.store(builder.integer(-1), state, 8)  # no progress that there has been
        still = builder.inverse(moved)
        due = builder.compare("eq", builder.binary("and", following, builder.integer(_PASSES_OF_WAIT - 1)), 0)
        with builder.when(builder.binary("and", due, still), (1, 1 << 10)):
            stuck = builder.emit(f"call i1 @{_ASK}({self.record}, {state})", "i1")
            fails, on = builder.new_block("waits.for.ever"), builder.new_block("waits.on")
            builder.branch_if(stuck, fails, on, (1, 1 << 20))
            builder.start(fails)
            emit_failure(builder, self.record, number, self.programs, ())
            builder.ret()
            builder.start(on)

    def _has_waited(self, passes: LLVMValue) -> LLVMValue:
        return self.builder.compare("uge", passes, _PASSES_OF_WAIT)

    def _go_on_if(self, condition: LLVMValue) -> None:
        with self.builder.when(condition, (1, 1 << 10)):
            emit_progress(self.builder, self.record)


def emit_progress(builder: LLVMBuilder, record: LLVMValue) -> None:
    """An instance has ended, or one that waited goes on."""
    _add(builder, record, PROGRESS, 1)


def emit_running(builder: LLVMBuilder, record: LLVMValue, count: int) -> None:
    """So many more threads work on ranges of instances."""
    _add(builder, record, RUNNING, count)


def _add(builder: LLVMBuilder, record: LLVMValue, word: int, count: int) -> None:
    builder.emit(f"atomicrmw add {builder.gep(record, word, 'i64')}, i64 {count} acq_rel, align 8", "i64")


# `state` is what the caller saw last: progress, when it saw it first, and 1 once it has voted for it.
_ASK_TEXT = f"""
define internal i1 @{_ASK}(ptr %record, ptr %state) nounwind noinline cold {{
entry:
  %clock.p = getelementptr i64, ptr %record, i64 {CLOCK}
  %clock = load ptr, ptr %clock.p, align 8
  %now = call i64 %clock()
  %progress.p = getelementptr i64, ptr %record, i64 {PROGRESS}
  %progress = load atomic i64, ptr %progress.p acquire, align 8
  %seen = load i64, ptr %state, align 8
  %since.p = getelementptr i64, ptr %state, i64 1
  %voted.p = getelementptr i64, ptr %state, i64 2
  %still = icmp eq i64 %seen, %progress
  br i1 %still, label %wait, label %begin
begin:
  store i64 %progress, ptr %state, align 8
  store i64 %now, ptr %since.p, align 8
  store i64 0, ptr %voted.p, align 8
  ret i1 false
wait:
  %since = load i64, ptr %since.p, align 8
  %waited = sub i64 %now, %since
  %limit.p = getelementptr i64, ptr %record, i64 {LIMIT}
  %limit = load i64, ptr %limit.p, align 8
  %early = icmp slt i64 %waited, %limit
  br i1 %early, label %on, label %vote
vote:
  %votes.p = getelementptr i64, ptr %record, i64 {VOTES}
  %votes = load atomic i64, ptr %votes.p acquire, align 8
  %about = shl i64 %progress, 16
  %others = xor i64 %votes, %about
  %current = icmp ult i64 %others, 65536
  %voted = load i64, ptr %voted.p, align 8
  %again = icmp ne i64 %voted, 0
  br i1 %again, label %count, label %cast
cast:
  %base = select i1 %current, i64 %votes, i64 %about
  %new = add i64 %base, 1
  %swap = cmpxchg ptr %votes.p, i64 %votes, i64 %new acq_rel acquire, align 8
  %done = extractvalue {{ i64, i1 }} %swap, 1
  %flag = zext i1 %done to i64
  store i64 %flag, ptr %voted.p, align 8
  br label %on
count:
  %running.p = getelementptr i64, ptr %record, i64 {RUNNING}
  %running = load atomic i64, ptr %running.p acquire, align 8
  %all = icmp uge i64 %others, %running
  %stuck = and i1 %current, %all
  ret i1 %stuck
on:
  ret i1 false
}}"""


def _define_ask(module: Module) -> None:
    if _ASK not in module.defined:
        module.defined.add(_ASK)
        module.functions.append(_ASK_TEXT)
