"""Operations lowered element by element: scalar stores, atomics, mapped functions, barriers, asserts and prints.

Blocks of atomics go element by element, in row-major order.  Prints go through the C library's
`printf`, a line for each element and operand; a failed assertion ends its instance (`failures`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.dtypes import DType, bfloat16, float32, float64, int64
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.print_lines import line_format
from tilewright.ir.types import PointerType
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.elementwise import unsupported
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.failures import NUMBER, emit_failure
from tilewright.targets.cpu.indices import Indices, LaneIndex
from tilewright.targets.cpu.memory import emit_store
from tilewright.targets.cpu.scalar_region import ScalarRegion
from tilewright.targets.cpu.signal_checks import AskEmitter
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.waiting import WAITS, WaitEmitter
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.llvm.conversions import memory_type, positive_nan

_ORDERINGS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_INTEGER_KINDS = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}
_FLOAT_KINDS = {"add": "fadd", "max": "fmax", "min": "fmin", "exchange": "xchg"}


def _failure(order: str) -> str:
    """The order of an exchange that did not take place, which stores nothing."""
    return {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)


class EffectEmitter:
    """Emits one operation at a time."""

    def __init__(
        self,
        evaluator: Evaluator,
        storage: dict[SSAValue, Storage],
        programs: Sequence[LLVMValue],
        record: LLVMValue | None,
        waiting: WaitEmitter | None,
        asking: AskEmitter | None,
    ) -> None:
        """`programs` are the instance's three program ids, `record` takes failures of kernels with assertions,
        `waiting` emits loops that may wait, if there are any, and `asking` what loops without a known end ask."""
        self.waiting = waiting
        self.asking = asking
        self.programs = list(programs)
        self.record = record
        self.evaluator = evaluator
        self.builder = evaluator.builder
        self.storage = storage

    def emit(self, operation: Operation) -> None:
        """The operation, for all elements of its operands."""
        self.evaluator.reset()
        opcode = operation.opcode
        if opcode == "store":
            emit_store(self.evaluator, operation, ())
        elif opcode in ("atomic_rmw", "atomic_cas"):
            each = self._read_modify_write if opcode == "atomic_rmw" else self._compare_and_swap
            self._for_each(operation.operands[0].type.shape, (), lambda indices: each(operation, indices))
        elif opcode == "map":
            self._for_each(operation.operands[0].type.shape, (), lambda indices: self._map(operation, indices))
        elif opcode == "barrier":
            self.builder.line("fence seq_cst")
        elif WAITS in operation.attributes:
            assert self.waiting is not None
            self.waiting.passed(operation, self.evaluator.evaluate(operation.operands[0], ()))
        elif opcode == "assert":
            self._for_each(operation.operands[0].type.shape, (), lambda indices: self._assert(operation, indices))
        elif opcode == "print":
            self._print(operation)
        else:
            raise unsupported(operation, "the operation is not known to this target")

    def _for_each(self, shape: tuple[int, ...], indices: Indices, body: Callable[[Indices], None]) -> None:
        """Scalar loops over all elements."""
        if len(indices) == len(shape):
            body(indices)
            return
        builder = self.builder
        with builder.loop(builder.integer(0), builder.integer(shape[len(indices)]), 1) as loop:
            with self.evaluator.scope(loop.guard, loop.index):
                self._for_each(shape, (*indices, LaneIndex(loop.index)), body)
            loop.next([])

    def _map(self, operation: Operation, indices: Indices) -> None:
        elements = [self.evaluator.evaluate(operand, indices) for operand in operation.operands]
        results = ScalarRegion(self.evaluator, self.asking).emit(operation.regions[0], elements)
        for result, value in zip(operation.results, results, strict=True):
            self._write(result, indices, value)

    def _read_modify_write(self, operation: Operation, indices: Indices) -> None:
        evaluator, builder = self.evaluator, self.builder
        pointer, value = operation.operands[:2]
        address, operand = evaluator.address(pointer, indices), evaluator.evaluate(value, indices)
        mask = evaluator.evaluate(operation.operands[2], indices) if len(operation.operands) > 2 else None
        dtype = value.type.dtype
        kind, order = self._kind(operation, dtype), _ORDERINGS[str(operation.attributes["semantics"])]

        def emit() -> LLVMValue:
            if dtype == bfloat16 and kind != "xchg":
                old = self._update_bfloat16(kind, address, operand, order)
            else:
                text = f"atomicrmw {kind} {address}, {operand} {order}, align {dtype.itemsize}"
                old = builder.emit(text, operand.type)
            if self.waiting is not None and dtype == bfloat16:
                self.waiting.note(builder.constant("i1", True))
            elif self.waiting is not None:
                self.waiting.note_update(kind, old, operand)
            return old

        self._where(mask, operation, indices, emit)

    def _update_bfloat16(self, kind: str, address: LLVMValue, operand: LLVMValue, order: str) -> LLVMValue:
        """The number before: LLVM's own expansion converts with a library function that not every system has."""
        builder, converter = self.builder, self.evaluator.elementwise.converter
        value = converter.cast(operand, bfloat16, float32)
        first = builder.emit(f"load atomic i16, {address} monotonic, align 2", "i16")
        entry, again, end = builder.block, builder.new_block("update"), builder.new_block("updated")
        builder.branch(again)
        builder.start(again)
        old = builder.reserve("i16")
        number = converter.cast(old, bfloat16, float32)
        if kind == "fadd":
            number = builder.binary("fadd", number, value)
        else:
            number = builder.intrinsic("maxnum" if kind == "fmax" else "minnum", [number, value])
        new = converter.cast(number, float32, bfloat16)
        pair = builder.emit(f"cmpxchg {address}, {old}, {new} {order} {_failure(order)}", "{ i16, i1 }")
        seen = builder.emit(f"extractvalue {pair}, 0", "i16")
        builder.branch_if(builder.emit(f"extractvalue {pair}, 1", "i1"), end, again)
        builder.fill_phi(again, old, [(first, entry), (seen, again)])
        builder.start(end)
        return seen

    def _kind(self, operation: Operation, dtype: DType) -> str:
        kind = str(operation.attributes["kind"])
        if dtype.is_float and dtype.bits >= 16:
            return _FLOAT_KINDS[kind]
        if dtype.is_float or dtype.is_bool:
            raise unsupported(operation, f"there are no atomics on {dtype}")
        if kind in ("max", "min"):
            return kind if dtype.is_signed else f"u{kind}"
        return _INTEGER_KINDS[kind]

    def _compare_and_swap(self, operation: Operation, indices: Indices) -> None:
        evaluator, builder = self.evaluator, self.builder
        pointer, expected, value = operation.operands[:3]
        address = evaluator.address(pointer, indices)
        element = value.type.dtype
        word = f"i{8 * element.itemsize}"
        old_text, new_text = (
            builder.cast("bitcast", evaluator.to_memory(evaluator.evaluate(item, indices), element), word)
            for item in (expected, value)
        )
        mask = evaluator.evaluate(operation.operands[3], indices) if len(operation.operands) > 3 else None
        order = _ORDERINGS[str(operation.attributes["semantics"])]

        def emit() -> LLVMValue:
            text = f"cmpxchg {address}, {old_text}, {new_text} {order} {_failure(order)}"
            pair = builder.emit(text, f"{{ {word}, i1 }}")
            old = builder.emit(f"extractvalue {pair}, 0", word)
            if self.waiting is not None:
                stored = builder.emit(f"extractvalue {pair}, 1", "i1")
                other = builder.compare("ne", old_text, new_text)
                self.waiting.note(builder.binary("and", stored, other))
            return evaluator.from_memory(builder.cast("bitcast", old, memory_type(element)), element)

        self._where(mask, operation, indices, emit)

    def _where(
        self, mask: LLVMValue | None, operation: Operation, indices: Indices, emit: Callable[[], LLVMValue]
    ) -> None:
        """What `emit` gives as the operation's result where the mask holds, zero elsewhere."""
        builder = self.builder
        if mask is None or mask.text == "true":
            self._result(operation, indices, emit())
            return
        entry, then, end = builder.block, builder.new_block("atomic"), builder.new_block("atomic.end")
        builder.branch_if(mask, then, end)
        builder.start(then)
        old = emit()
        inside = builder.block
        builder.branch(end)
        builder.start(end)
        self._result(operation, indices, builder.phi(end, old.type, [(builder.zero(old.type), entry), (old, inside)]))

    def _result(self, operation: Operation, indices: Indices, value: LLVMValue) -> None:
        self._write(operation.result, indices, value)

    def _write(self, result: SSAValue, indices: Indices, value: LLVMValue) -> None:
        if result.type.is_scalar:
            self.evaluator.scalars[result] = value
        else:
            self.evaluator.write(self.storage[result], indices, value)

    def _assert(self, operation: Operation, indices: Indices) -> None:
        builder = self.builder
        holds = self.evaluator.evaluate(operation.operands[0], indices)
        fails, on = builder.new_block("assert.fails"), builder.new_block("assert.holds")
        builder.branch_if(holds, on, fails, (1 << 20, 1))
        builder.start(fails)
        assert self.record is not None
        positions = [builder.add(index.base, 0) for index in indices]
        facts = [self.evaluator.evaluate(operand, indices) for operand in operation.operands[1:]]
        emit_failure(builder, self.record, integer(operation, NUMBER), self.programs, positions, facts)
        builder.ret()
        builder.start(on)

    def _print(self, operation: Operation) -> None:
        if not operation.operands:
            self._printf(line_format(operation, None), self.programs)
        for number, operand in enumerate(operation.operands):
            self._for_each(operand.type.shape, (), partial(self._print_element, operation, number))

    def _print_element(self, operation: Operation, number: int, indices: Indices) -> None:
        builder, operand = self.builder, operation.operands[number]
        value, element = self.evaluator.evaluate(operand, indices), operand.type.element
        converter = self.evaluator.elementwise.converter
        if isinstance(element, PointerType):
            value = builder.cast("ptrtoint", value, "i64")
        elif element.is_float:
            value = positive_nan(builder, converter.cast(value, element, float64))
        elif operation.attributes["hex"]:
            value = value if element.bits == 64 else builder.cast("zext", value, "i64")
        else:
            value = converter.cast(value, element, int64)
        places = [builder.cast("trunc", builder.add(index.base, 0), "i32") for index in indices]
        self._printf(line_format(operation, number), [*self.programs, *places, value])

    def _printf(self, form: str, values: Sequence[LLVMValue]) -> None:
        builder = self.builder
        builder.module.declare("printf", "i32", ["ptr", "..."])
        listed = ", ".join(map(str, [builder.module.string(form), *values]))
        builder.emit(f"call i32 (ptr, ...) @printf({listed})", "i32")
        builder.call("fflush", "i32", [LLVMValue("ptr", "null")])
