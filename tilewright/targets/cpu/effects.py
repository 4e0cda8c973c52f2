"""Operations with effects of their own: scalar stores, atomics, barriers, asserts and prints.

Blocks of atomics go element by element, in row-major order.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import DType
from tilewright.ir.core import Operation, Value
from tilewright.targets.cpu.conversions import memory_type
from tilewright.targets.cpu.elementwise import unsupported
from tilewright.targets.cpu.evaluate import Evaluator, Index, Indices
from tilewright.targets.cpu.memory import emit_store
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.llvm.builder import LLVMValue

_ORDERINGS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_INTEGER_KINDS = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}
_FLOAT_KINDS = {"add": "fadd", "max": "fmax", "min": "fmin", "exchange": "xchg"}


class EffectEmitter:
    """Emits one operation at a time."""

    def __init__(self, evaluator: Evaluator, storage: dict[Value, Storage]) -> None:
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
        elif opcode == "barrier":
            self.builder.line("fence seq_cst")
        elif opcode == "assert":
            self._for_each(operation.operands[0].type.shape, (), lambda indices: self._assert(operation, indices))
        elif opcode == "print":
            return
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
                self._for_each(shape, (*indices, Index(loop.index)), body)
            loop.next([])

    def _read_modify_write(self, operation: Operation, indices: Indices) -> None:
        evaluator, builder = self.evaluator, self.builder
        pointer, value = operation.operands[:2]
        address, operand = evaluator.address(pointer, indices), evaluator.evaluate(value, indices)
        mask = evaluator.evaluate(operation.operands[2], indices) if len(operation.operands) > 2 else None
        dtype = value.type.dtype
        kind, order = self._kind(operation, dtype), _ORDERINGS[str(operation.attributes["semantics"])]

        def emit() -> LLVMValue:
            text = f"atomicrmw {kind} {address}, {operand} {order}, align {dtype.itemsize}"
            return builder.emit(text, operand.type)

        if mask is None or mask.text == "true":
            self._result(operation, indices, emit())
            return
        entry, then, end = builder.block, builder.new_block("atomic"), builder.new_block("atomic.end")
        builder.branch_if(mask, then, end)
        builder.start(then)
        old = emit()
        builder.branch(end)
        builder.start(end)
        self._result(operation, indices, builder.phi(end, old.type, [(builder.zero(old.type), entry), (old, then)]))

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
        pointer, expected, value = operation.operands
        address = evaluator.address(pointer, indices)
        element = value.type.element
        word = f"i{8 * element.itemsize}"
        old_text, new_text = (
            builder.cast("bitcast", evaluator.to_memory(evaluator.evaluate(item, indices), element), word)
            for item in (expected, value)
        )
        order = _ORDERINGS[str(operation.attributes["semantics"])]
        failure = {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)
        pair = builder.emit(f"cmpxchg {address}, {old_text}, {new_text} {order} {failure}", f"{{ {word}, i1 }}")
        old = builder.emit(f"extractvalue {pair}, 0", word)
        self._result(
            operation, indices, evaluator.from_memory(builder.cast("bitcast", old, memory_type(element)), element)
        )

    def _result(self, operation: Operation, indices: Indices, value: LLVMValue) -> None:
        if operation.result.type.is_scalar:
            self.evaluator.scalars[operation.result] = value
        else:
            self.evaluator.write(self.storage[operation.result], indices, value)

    def _assert(self, operation: Operation, indices: Indices) -> None:
        builder = self.builder
        holds = self.evaluator.evaluate(operation.operands[0], indices)
        fails, on = builder.new_block("assert.fails"), builder.new_block("assert.holds")
        builder.branch_if(holds, on, fails, (1 << 20, 1))
        builder.start(fails)
        builder.call("llvm.trap", "void", [])
        builder.unreachable()
        builder.start(on)
