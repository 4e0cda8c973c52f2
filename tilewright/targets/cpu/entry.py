"""The exported function of a kernel: reads the argument slots and runs the instances of a range.

    void symbol(ptr arguments, ptr scratch, i64 begin, i64 end)

Where loops count on arrays that do not overlap in a harmful way (`aliasing.Hazard`), it looks at the arguments first.
If they do, it runs the careful instance function, when there is one; otherwise it runs nothing and returns 1, so that
its type is `i32 (ptr, ptr, i64, i64)`.  The answer is the same for every range of one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import permutations

from tilewright.ir.core import Function, SSAValue
from tilewright.ir.types import Element, PointerType
from tilewright.runtime.faults import FRAME_WORDS, MARK, SEAL
from tilewright.targets.cpu.aliasing import Hazard
from tilewright.targets.cpu.assemble import function_attributes
from tilewright.targets.cpu.failures import emit_untouched
from tilewright.targets.cpu.ranges import Number, Term
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.cpu.waiting import emit_progress, emit_running
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module
from tilewright.targets.llvm.conversions import register_type


@dataclass(frozen=True)
class Entry:
    """What an entry point calls: `instance`, or `careful` (None: nothing) where one of `hazards` is met."""

    symbol: str
    instance: str
    careful: str | None
    hazards: Sequence[Hazard]
    records: bool  # the arguments end with the address of a record
    waits: bool  # loops may wait for other instances
    streams: bool  # stores go around the caches

    @property
    def refuses(self) -> bool:
        """Whether it returns 1 for arrays that it cannot take."""
        return bool(self.hazards) and self.careful is None


def emit_entry(entry: Entry, function: Function, target: CPUTarget, module: Module) -> None:
    """Add the exported function to `module`."""
    parameters = [("ptr", "arguments", "noalias readonly"), ("ptr", "scratch", "noalias"), ("i64", "begin", ""),
                  ("i64", "end", "")]  # fmt: skip
    kind = "i32" if entry.refuses else "void"
    builder = LLVMBuilder(module, entry.symbol, kind, parameters, attributes=function_attributes(target))
    slots, scratch, begin, end = builder.arguments
    formal = function.region.arguments
    arguments = [_argument(builder, slots, number, value.type.element) for number, value in enumerate(formal)]
    first = len(arguments)
    counts = [builder.load("i64", builder.gep(slots, first + axis, "i64"), 8) for axis in range(3)]
    narrow = [builder.cast("trunc", count, "i32") for count in counts]
    record = [builder.load("ptr", builder.gep(slots, first + 3, "i64"), 8)] if entry.records else []
    frame = _EntryFrame(builder, function, slots) if target.is_x86 else None

    def run(instance: str) -> None:
        if entry.waits:
            emit_running(builder, record[0], 1)
        with builder.loop(begin, end, 1) as loop:
            if frame is not None:
                frame.begin(loop.index)
            plane = builder.emit(f"udiv i64 {loop.index.text}, {counts[0].text}", "i64")
            x = builder.emit(f"urem i64 {loop.index.text}, {counts[0].text}", "i64")
            y = builder.emit(f"urem i64 {plane.text}, {counts[1].text}", "i64")
            z = builder.emit(f"udiv i64 {plane.text}, {counts[1].text}", "i64")
            programs = [builder.cast("trunc", position, "i32") for position in (x, y, z)]
            values = [*arguments, scratch, *programs, *narrow, *record]
            with builder.when(emit_untouched(builder, *record)) if record else nullcontext():
                builder.line(f"call void @{instance}({', '.join(map(str, values))})")
            if entry.waits:
                emit_progress(builder, record[0])
            loop.next([])
        if entry.waits:
            emit_running(builder, record[0], -1)
        if frame is not None:
            frame.leave()
        if entry.streams:  # before this thread says that it is done
            builder.call("llvm.x86.sse.sfence", "void", [])

    if entry.hazards:
        known = dict(zip(formal, arguments, strict=True))
        harmful = _Overlaps(builder, known, counts).any(entry.hazards)
        overlapping, apart = builder.new_block("overlapping"), builder.new_block("apart")
        builder.branch_if(harmful, overlapping, apart, (1, 1 << 20))
        builder.start(overlapping)
        if entry.careful is None:
            builder.ret(builder.integer(1, "i32"))
        else:
            run(entry.careful)
            builder.ret()
        builder.start(apart)
    run(entry.instance)
    if entry.refuses:
        builder.ret(builder.integer(0, "i32"))
    builder.finish()


def _argument(builder: LLVMBuilder, slots: LLVMValue, number: int, element: Element) -> LLVMValue:
    address = builder.gep(slots, number, "i64")
    type_text = register_type(element)
    if isinstance(element, PointerType) or element.is_float:
        return builder.load(type_text, address, 8)
    return builder.cast("trunc", builder.load("i64", address, 8), type_text)


class _EntryFrame:
    """What the entry point leaves on its stack while instances run, for the handler of faults (`runtime.faults`).

    Its stores are volatile: nothing else reads them.
    """

    def __init__(self, builder: LLVMBuilder, function: Function, slots: LLVMValue) -> None:
        self._builder = builder
        self._place = builder.alloca("i64", FRAME_WORDS, 8)
        sealed = builder.binary("xor", builder.cast("ptrtoint", self._place, "i64"), builder.integer(SEAL))
        parameters = [
            f"{_letter(value)}{value.name or number}" for number, value in enumerate(function.region.arguments)
        ]
        text = "".join(f"{line}\n" for line in (function.name, *parameters))
        for word, value in enumerate((builder.integer(MARK), sealed, builder.module.string(text), slots)):
            self._store(word, value)

    def begin(self, instance: LLVMValue) -> None:
        """The number of the instance that runs next."""
        self._store(FRAME_WORDS - 1, instance)

    def leave(self) -> None:
        """No instance runs any more."""
        self._store(0, self._builder.integer(0))

    def _store(self, word: int, value: LLVMValue) -> None:
        self._builder.line(f"store volatile {value}, {self._builder.gep(self._place, word, 'i64')}, align 8")


def _letter(parameter: SSAValue) -> str:
    """A parameter's kind in the text of a frame."""
    if parameter.type.is_pointer:
        return "p"
    return "i" if parameter.type.dtype.is_integer and not parameter.name.startswith("_") else "o"


class _Overlaps:
    """Emits the checks of hazards."""

    def __init__(self, builder: LLVMBuilder, arguments: dict[SSAValue, LLVMValue], counts: Sequence[LLVMValue]) -> None:
        self._builder = builder
        self._arguments = arguments
        self._counts = counts
        self._terms: dict[Term, LLVMValue] = {}
        self._emitted: dict[tuple[str, ...], LLVMValue] = {}  # by operator and operands: equal terms are computed once

    def any(self, hazards: Sequence[Hazard]) -> LLVMValue:
        """Whether one of them is met."""
        return reduce(lambda left, right: self._builder.binary("or", left, right), map(self._met, hazards))

    def _met(self, hazard: Hazard) -> LLVMValue:
        builder = self._builder
        read, written = (
            builder.cast("ptrtoint", self._arguments[value], "i64") for value in (hazard.read, hazard.written)
        )
        first, last = (builder.add(read, self._number(end)) for end in (hazard.read_bytes.low, hazard.read_bytes.high))
        begin, end = (
            builder.add(written, self._number(end)) for end in (hazard.written_bytes.low, hazard.written_bytes.high)
        )
        meet = builder.binary("and", builder.compare("slt", first, end), builder.compare("slt", begin, last))
        lanes = _Lanes(builder, [tuple(map(self._number, axis)) for axis in hazard.lanes])
        if len(hazard.lanes) > 1:
            meet = builder.binary("and", meet, lanes.meet(builder.subtract(written, read), hazard.itemsize))
        if hazard.apart is False:
            return meet
        harmful = builder.compare("ne", read, written)
        if hazard.apart is None:
            harmful = builder.binary("or", harmful, builder.inverse(lanes.apart()))
        return builder.binary("and", meet, harmful)

    def _number(self, number: Number) -> LLVMValue:
        if isinstance(number, int):
            return self._builder.integer(number)
        if number not in self._terms:
            self._terms[number] = self._term(number)
        return self._terms[number]

    def _term(self, term: Term) -> LLVMValue:
        if term.operator == "count":
            return self._counts[term.operands[0]]
        if term.operator == "argument":
            values = [self._arguments[term.operands[0]]]
        else:
            values = [self._number(operand) for operand in term.operands]
        key = (term.operator, *(value.text for value in values))
        if key not in self._emitted:
            self._emitted[key] = self._computed(term, values)
        return self._emitted[key]

    def _computed(self, term: Term, values: Sequence[LLVMValue]) -> LLVMValue:
        builder = self._builder
        if term.operator == "argument":
            return builder.cast("sext" if term.operands[0].type.dtype.is_signed else "zext", values[0], "i64")
        operations: dict[str, Callable[[LLVMValue, LLVMValue], LLVMValue]] = {
            "add": builder.add,
            "multiply": builder.multiply,
            "minimum": builder.minimum,
            "maximum": builder.maximum,
            "divide": partial(builder.binary, "sdiv"),
        }
        left, right = values
        return operations[term.operator](left, right)


class _Lanes:
    """Emits what is asked of lanes along axes of known distances (bytes) and numbers."""

    def __init__(self, builder: LLVMBuilder, axes: Sequence[tuple[LLVMValue, ...]]) -> None:
        self._builder = builder
        self._distances = [builder.maximum(step, builder.subtract(builder.integer(0), step)) for step, _ in axes]
        self._counts = [builder.maximum(count, 1) for _, count in axes]
        self._reaches = [
            builder.multiply(distance, builder.subtract(count, 1))
            for distance, count in zip(self._distances, self._counts, strict=True)
        ]

    def apart(self) -> LLVMValue:
        """Whether they reach different elements: in some order of the axes, each distance passes all that the axes
        before it reach."""
        builder = self._builder
        found = builder.constant("i1", False)
        for order in permutations(range(len(self._distances))):
            holds, reached = builder.constant("i1", True), builder.integer(0)
            for axis in order:
                passes = builder.compare("sgt", self._distances[axis], reached)
                single = builder.compare("eq", self._counts[axis], 1)
                holds = builder.binary("and", holds, builder.binary("or", passes, single))
                reached = builder.add(reached, self._reaches[axis])
            found = builder.binary("or", found, holds)
        return found

    def meet(self, shift: LLVMValue, itemsize: int) -> LLVMValue:
        """Whether some may touch others `shift` bytes on: they lie between each other's rows, if along one axis a
        multiple of the distance is too far from the shift for what the other axes reach."""
        builder = self._builder
        shift = builder.maximum(shift, builder.subtract(builder.integer(0), shift))
        found = builder.constant("i1", True)
        for axis, distance in enumerate(self._distances):
            if distance.constant is not None and distance.constant <= itemsize:
                continue  # nothing fits between neighbours
            others = [reach for place, reach in enumerate(self._reaches) if place != axis]
            inner = reduce(builder.add, others, builder.integer(itemsize))
            distance = builder.maximum(distance, 1)
            above = builder.binary("urem", shift, distance)
            nearest = builder.minimum(above, builder.subtract(distance, above))
            found = builder.binary("and", found, builder.compare("slt", nearest, inner))
        return found
