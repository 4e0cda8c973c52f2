"""Failed assertions, loops whose step is not positive, loops that wait for ever (`waiting`), and accesses out of
bounds, which are checked where a kernel is compiled so (`passes.check_bounds`): what writes the record of
`runtime.failure_record`, and the operations that its numbers stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.errors import ExecutionError
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.diagnostics import ASSERTED, step_error
from tilewright.ir.rewrite import Rebuilder
from tilewright.runtime.failure_record import FACTS, MOST_TOLD_AXES
from tilewright.targets.cpu.attributes import number
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

NUMBER = "cpu.assertion"  # the attribute that tells an assertion's number to the lowering
_ACCESSES = frozenset({"load", "store", "atomic_rmw", "atomic_cas", "gather"})


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
    index = index[:MOST_TOLD_AXES]
    values = [builder.integer(number), *(builder.cast("sext", program, "i64") for program in programs)]
    with builder.when(first):
        for place, value in enumerate([*values, builder.integer(len(index)), *index], 1):
            builder.store(value, builder.gep(record, place, "i64"), 8)
        for place, value in enumerate(facts, FACTS):
            builder.store(value, builder.gep(record, place, "i64"), 8)
