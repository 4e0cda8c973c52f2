"""Failed assertions, loops whose step is not positive, loops that wait for ever (`waiting`), and accesses out of
bounds, which are checked where a kernel is compiled so (`passes.check_bounds`): what machine code records, and
how it is read.

The launcher of a kernel with assertions or a `while` gives it the address of a record, an array of `WORDS` int64, all
zero but for what only kernels with a `while` read, which are words 35 to 38:

    0      1 once an assertion has failed: the first one of a launch writes the rest
    1      which assertion, by `number_assertions`
    2-4    the program instance
    5      axes of the condition's block, at most 16
    6-21   the element's index along each of them
    22-24  of an access out of bounds: the address (of a gather: the index), lanes outside, lanes
    32-34  what loops that wait have seen of the launch (`waiting`), away from word 0, which every pass reads
    35     the address of a function that gives the time in nanoseconds
    36     how long all may wait, in nanoseconds
    37     the address of a function that asks for signals, `tilewright_ask` of `runtime.glue`
    38     the address where it leaves an exception that a signal's handler raises
    39     1 once it has left one (`runtime.signals`): then no assertion need have failed

An instance whose assertion fails ends there, and instances that have not begun by then are left out; those that run
go on, but for the next pass of a `while`, in which one may wait for what the failed instance would have written.  So
the process stays as it was, and whoever launched tells what happened.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.errors import ExecutionError
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.diagnostics import ASSERTED, step_error
from tilewright.ir.rewrite import Rebuilder
from tilewright.runtime.signals import RECORD_INTERRUPTED, RECORD_RAISED
from tilewright.targets.cpu.attributes import number
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

WORDS = 40
PROGRESS, RUNNING, VOTES, CLOCK, LIMIT, ASK = range(32, 38)
RAISED, INTERRUPTED = RECORD_RAISED, RECORD_INTERRUPTED
WAITING_SECONDS = 10.0  # for which all instances that run may wait before a launch fails
NUMBER = "cpu.assertion"  # the attribute that tells an assertion's number to the lowering
_ACCESSES = frozenset({"load", "store", "atomic_rmw", "atomic_cas", "gather"})
_PROGRAM, _AXES_WORD, _INDEX, _MOST_TOLD_AXES, _FACTS, _FACTS_END = 2, 5, 6, 16, 22, 25


@dataclass(frozen=True)
class Failure:
    """An assertion that failed: its number, in which program instance, and for which element of its block."""

    number: int
    program_id: tuple[int, ...]
    element: tuple[int, ...]
    facts: tuple[int, ...] = ()  # of an access: address (of a gather: index), lanes outside, lanes

    @staticmethod
    def read(record: Sequence[int] | ctypes.Array[ctypes.c_int64]) -> Failure | None:
        """What a launch left in its record; None when no assertion failed."""
        if not record[0]:
            return None
        index = record[_INDEX : _INDEX + record[_AXES_WORD]]
        return Failure(
            record[1], tuple(record[_PROGRAM : _PROGRAM + 3]), tuple(index), tuple(record[_FACTS:_FACTS_END])
        )


def assertions(function: Function) -> Iterator[Operation]:
    """What may fail in a traced kernel, in the order of its numbers: assertions, and loops that may not count up."""
    return (entry for entry in function.walk() if entry.opcode == "assert" or _may_stand_still(entry))


def accesses(function: Function) -> Iterator[Operation]:
    """What may use memory in a traced kernel, and gathers, whose indices may leave their block; the numbers of those
    that are checked follow the assertions'."""
    return (entry for entry in function.walk() if entry.opcode in _ACCESSES)


def failed(operation: Operation, element: tuple[int, ...] = ()) -> ExecutionError:
    """The error of one of the `assertions`, as the interpreter has it."""
    if operation.opcode == "for":
        return step_error()
    return ExecutionError(f"assertion failed: {operation.attributes['message']}", ASSERTED, element=element)


def _may_stand_still(operation: Operation) -> bool:
    """Whether a loop's step, which must be positive, may be something else at run time."""
    return operation.opcode == "for" and not _positive(operation.operands[2])


def _positive(value: SSAValue) -> bool:
    operation = value.definition
    if operation is None:
        return False
    opcode, operands = operation.opcode, operation.operands
    if opcode == "constant":
        return number(operation) > 0
    if opcode in ("cast", "hint"):
        return value.type.dtype.bits >= operands[0].type.dtype.bits and _positive(operands[0])
    if opcode in ("multiply", "minimum"):
        return all(_positive(operand) for operand in operands)
    if opcode == "maximum":
        return any(_positive(operand) for operand in operands)
    return opcode == "num_programs"


class _Numbering(Rebuilder):
    """Numbers assertions, and asserts the steps of loops that may not count up."""

    def __init__(self, numbers: dict[Operation, int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.changed = bool(numbers)

    def copy(self, operation: Operation) -> None:
        place = self.numbers.get(operation)
        if place is not None and operation.opcode == "for":
            step = self.mapping[operation.operands[2]]
            saved, self.location = self.location, operation.location
            counts_up = self.emit("compare", step, self.constant(0, step.type.dtype), predicate="gt")
            self.create("assert", [counts_up], {"message": "", NUMBER: place})
            self.location = saved
        super().copy(operation)
        if place is not None and operation.opcode == "assert":
            self.current.operations[-1].attributes[NUMBER] = place


def number_assertions(function: Function) -> Function:
    """Give each assertion its number before passes move, copy or remove some, and assert that loops count up.

    The same object when there is nothing that may fail.
    """
    numbers = {operation: place for place, operation in enumerate(assertions(function))}
    return _Numbering(numbers).run(function) if numbers else function


def emit_untouched(builder: LLVMBuilder, record: LLVMValue) -> LLVMValue:
    """Whether no assertion of this launch has failed until now, an i1."""
    state = builder.emit(f"load atomic i64, {record} monotonic, align 8", "i64")
    return builder.compare("eq", state, 0)


def emit_stop(builder: LLVMBuilder, record: LLVMValue) -> None:
    """Leave the instance here when an assertion of this launch has failed."""
    stops, on = builder.new_block("stops"), builder.new_block("goes.on")
    builder.branch_if(emit_untouched(builder, record), on, stops, (1 << 20, 1))
    builder.start(stops)
    builder.ret()
    builder.start(on)


def emit_failure(
    builder: LLVMBuilder,
    record: LLVMValue,
    number: int,
    programs: Sequence[LLVMValue],
    index: Sequence[LLVMValue],
    facts: Sequence[LLVMValue] = (),
) -> None:
    """Write a failure into the record, if it is the launch's first.  `programs` are i32, `index` and `facts` i64."""
    pair = builder.emit(f"cmpxchg {record}, i64 0, i64 1 acq_rel acquire, align 8", "{ i64, i1 }")
    first = builder.emit(f"extractvalue {pair}, 1", "i1")
    index = index[:_MOST_TOLD_AXES]
    values = [builder.integer(number), *(builder.cast("sext", program, "i64") for program in programs)]
    with builder.when(first):
        for place, value in enumerate([*values, builder.integer(len(index)), *index], 1):
            builder.store(value, builder.gep(record, place, "i64"), 8)
        for place, value in enumerate(facts, _FACTS):
            builder.store(value, builder.gep(record, place, "i64"), 8)
