"""Atomic operations and volatile scalar loads: one per element, by one of the threads that hold it.

LLVM knows how to make those that the hardware lacks (8 and 16 bits, float extrema) of compare-and-swap loops.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Operation
from tilewright.targets.gpu.exchange import from_bits, load_shared, store_shared, to_bits
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import KernelLowering, Rule
from tilewright.targets.gpu.memory import Piece, load, load_pieces, pieces, repeated
from tilewright.targets.gpu.relocate import area_bytes, position, row_major
from tilewright.targets.llvm.builder import LLVMValue

_ORDERINGS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_INTEGER_KINDS = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}
_FLOAT_KINDS = {"add": "fadd", "max": "fmax", "min": "fmin", "exchange": "xchg"}


def atomic(lowering: KernelLowering, operation: Operation) -> None:
    """The rule of atomic_rmw and atomic_cas."""
    result = operation.result
    wanted = result in lowering.used
    order_before(lowering, operation)
    emit = _read_modify_write if operation.opcode == "atomic_rmw" else _compare_and_swap
    registers: dict[int, LLVMValue] = {}
    for piece in pieces(lowering, operation, result, once=True, widest=1):
        registers.update({piece.positions[0]: _one(lowering, operation, piece, emit)})
    if wanted and is_shared(lowering, operation):
        lowering.define(result, _handed_out(lowering, operation, registers))
    else:
        lowering.define(result, repeated(lowering, result, registers) if wanted else [])


def order_before(lowering: KernelLowering, operation: Operation) -> None:
    """What the other threads wrote comes before an atomic operation of one element that releases."""
    order = str(operation.attributes["semantics"])
    if operation.operands[0].type.is_scalar and order in ("release", "acq_rel"):
        lowering.synchronize()


Emit = Callable[[KernelLowering, Operation, int], LLVMValue]


def _one(lowering: KernelLowering, operation: Operation, piece: Piece, emit: Emit) -> LLVMValue:
    """One element, where its condition holds; zero elsewhere."""
    builder, place = lowering.builder, piece.positions[0]
    if piece.condition is None:
        return emit(lowering, operation, place)
    before, then, after = builder.block, builder.new_block("atomic"), builder.new_block("atomic.end")
    builder.branch_if(piece.condition, then, after)
    builder.start(then)
    value = emit(lowering, operation, place)
    end = builder.block
    builder.branch(after)
    builder.start(after)
    return builder.phi(after, value.type, [(builder.zero(value.type), before), (value, end)])


def _suffix(lowering: KernelLowering, operation: Operation) -> str:
    order, scope = str(operation.attributes["semantics"]), str(operation.attributes["scope"])
    return f"{lowering.intrinsics.scopes[scope]} {_ORDERINGS[order]}"


def _read_modify_write(lowering: KernelLowering, operation: Operation, place: int) -> LLVMValue:
    builder, kind = lowering.builder, str(operation.attributes["kind"])
    dtype = operation.result.type.dtype
    pointer = lowering.registers(operation.operands[0])[place]
    value = lowering.registers(operation.operands[1])[place]
    if dtype.is_float and dtype.bits == 8 and kind != "exchange":
        return _by_loop(lowering, operation, pointer, value, dtype)
    natural = _natural(lowering, value, dtype, kind)
    name = _llvm_kind(kind, dtype)
    size = max(1, dtype.itemsize)
    text = f"atomicrmw {name} {pointer}, {natural}{_suffix(lowering, operation)}, align {size}"
    return _register(lowering, builder.emit(text, natural.type), value.type)


def _llvm_kind(kind: str, dtype: DType) -> str:
    if dtype.is_float:
        return _FLOAT_KINDS[kind]
    if kind in _INTEGER_KINDS:
        return _INTEGER_KINDS[kind]
    return kind if dtype.is_signed else f"u{kind}"


def _natural(lowering: KernelLowering, value: LLVMValue, dtype: DType, kind: str) -> LLVMValue:
    """A register as LLVM's atomics take it: bfloat16 as itself, exchanged floats as bits, truth values as bytes."""
    if kind == "exchange" or value.type == "i1":
        return to_bits(lowering, value)
    return lowering.builder.cast("bitcast", value, "bfloat") if dtype == dtypes.bfloat16 else value


def _register(lowering: KernelLowering, natural: LLVMValue, type_text: str) -> LLVMValue:
    return from_bits(lowering, to_bits(lowering, natural), type_text)


def _by_loop(
    lowering: KernelLowering, operation: Operation, pointer: LLVMValue, value: LLVMValue, dtype: DType
) -> LLVMValue:
    """Numbers that LLVM does not know: compare and swap until nobody came between."""
    builder, converter, kind = lowering.builder, lowering.converter, str(operation.attributes["kind"])
    start = builder.emit(f"load atomic i8, {pointer} monotonic, align 1", "i8")
    entry, body, done = builder.block, builder.new_block("swap"), builder.new_block("swap.end")
    builder.branch(body)
    builder.start(body)
    old = builder.reserve("i8")
    wide = [converter.widen(number, dtype) for number in (old, value)]
    if kind == "add":
        combined = builder.binary("fadd", wide[0], wide[1])
    else:
        combined = builder.intrinsic(f"{kind}num", wide)
    desired = converter.narrow(combined, dtype)
    text = f"cmpxchg {pointer}, {old}, {desired}{_suffix(lowering, operation)} monotonic, align 1"
    pair = builder.emit(text, "{ i8, i1 }")
    seen = builder.emit(f"extractvalue {pair}, 0", "i8")
    swapped = builder.emit(f"extractvalue {pair}, 1", "i1")
    latch = builder.block
    builder.branch_if(swapped, done, body)
    builder.fill_phi(body, old, [(start, entry), (seen, latch)])
    builder.start(done)
    return seen


def _compare_and_swap(lowering: KernelLowering, operation: Operation, place: int) -> LLVMValue:
    builder = lowering.builder
    pointer, expected, value = (lowering.registers(operand)[place] for operand in operation.operands[:3])
    bits = [to_bits(lowering, number) for number in (expected, value)]
    failure = "acquire" if operation.attributes["semantics"] in ("acquire", "acq_rel") else "monotonic"
    width = int(bits[0].type[1:])
    text = f"cmpxchg {pointer}, {bits[0]}, {bits[1]}{_suffix(lowering, operation)} {failure}, align {width // 8}"
    pair_type = f"{{ {bits[0].type}, i1 }}"
    pair = builder.emit(text, pair_type)
    return from_bits(lowering, builder.emit(f"extractvalue {pair}, 0", bits[0].type), value.type)


# Results for all ---------------------------------------------------------------------------------


def is_shared(lowering: KernelLowering, operation: Operation) -> bool:
    """Whether several threads hold the result of one atomic operation."""
    return _has_copies(lowering.assignment, operation) and not lowering.group.elected


def _has_copies(assignment: Assignment, operation: Operation) -> bool:
    pointer = operation.operands[0]
    if pointer.type.is_scalar:
        return True
    free = assignment.layouts[pointer].free_variables()
    return bool(free["lane"] or free["warp"])


def _handed_out(lowering: KernelLowering, operation: Operation, registers: dict[int, LLVMValue]) -> list[LLVMValue]:
    """The results of the threads that acted, for all threads that hold copies."""
    result, builder = operation.result, lowering.builder
    start = builder.add(lowering.group.scratch, lowering.i32(lowering.allocation.scratch[operation]))
    layout = None if result.type.is_scalar else lowering.layout(result)
    numbers = (0,) if layout is None else lowering.numbers(result)
    size = max(8, result.type.element.bits) // 8
    pointers = []
    for number in numbers:
        index = lowering.i32(0)
        if layout is not None:
            places = [position(lowering, layout, axis, number) for axis in range(result.type.rank)]
            index = row_major(lowering, places, layout.shape)
        pointers.append(lowering.shared_pointer(builder.add(start, builder.multiply(index, lowering.i32(size)))))
    owner = lowering.first_holder(layout)
    assert owner is not None
    with builder.when(owner, hint="old"):
        for place, register in registers.items():
            store_shared(lowering, pointers[place], [to_bits(lowering, register)])
    lowering.synchronize()
    loaded = [load_shared(lowering, pointer, f"i{8 * size}", 1)[0] for pointer in pointers]
    type_text = next(iter(registers.values())).type
    return [from_bits(lowering, value, type_text) for value in loaded]


def load_once(lowering: KernelLowering, operation: Operation) -> None:
    """A volatile scalar is loaded by one thread for all, so that they cannot go different ways on what it was."""
    if not is_watched(operation) or lowering.group.elected:
        load(lowering, operation)
        return
    lowering.define(operation.result, _handed_out(lowering, operation, load_pieces(lowering, operation, once=True)))


def is_watched(operation: Operation) -> bool:
    """Whether a load is of a scalar that others may change meanwhile."""
    attributes = operation.attributes
    return operation.result.type.is_scalar and (bool(attributes["volatile"]) or attributes["cache"] == "cv")


def watched_bytes(assignment: Assignment, operation: Operation) -> int:
    """Scratch for handing out a volatile scalar."""
    return area_bytes(operation.result) if is_watched(operation) else 0


def atomic_bytes(assignment: Assignment, operation: Operation) -> int:
    """Scratch for handing out the old values."""
    return area_bytes(operation.result) if _has_copies(assignment, operation) else 0


RULES: dict[str, Rule] = {"load": load_once, "atomic_rmw": atomic, "atomic_cas": atomic}
