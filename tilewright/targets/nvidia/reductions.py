"""Float sums in memory whose old values are unused (``red``), up to 16 bytes at once where the GPU can."""

from __future__ import annotations

from tilewright import dtypes
from tilewright.ir.core import Operation
from tilewright.targets.gpu.atomics import atomic, order_before
from tilewright.targets.gpu.exchange import from_bits
from tilewright.targets.gpu.memory import pieces, to_words
from tilewright.targets.nvidia.intrinsics import assembly, operand_list
from tilewright.targets.nvidia.lowering import NvidiaLowering, NvidiaRule

# Of floats that `red` adds: type of one and of a pair, and the first architecture that has it.
_SUMS = {
    "float32": ("f32", None, 70),
    "float16": ("noftz.f16", "noftz.f16x2", 70),
    "bfloat16": ("noftz.bf16", "noftz.bf16x2", 90),
}
_VECTOR_SM = 90


def _atomic(lowering: NvidiaLowering, operation: Operation) -> None:
    """The rule of atomic_rmw."""
    if operation.result in lowering.used or not _is_sum(lowering, operation):
        atomic(lowering, operation)
        return
    order_before(lowering, operation)
    _add_vectors(lowering, operation)
    lowering.define(operation.result, [])


def _is_sum(lowering: NvidiaLowering, operation: Operation) -> bool:
    row = _SUMS.get(operation.result.type.dtype.name)
    return (
        operation.opcode == "atomic_rmw"
        and operation.attributes["kind"] == "add"
        and row is not None
        and lowering.target.sm >= row[2]
    )


def _add_vectors(lowering: NvidiaLowering, operation: Operation) -> None:
    dtype = operation.result.type.dtype
    single, pair, _ = _SUMS[dtype.name]
    widest = 16 if lowering.target.sm >= _VECTOR_SM else 4
    pointers, values = (lowering.registers(value) for value in operation.operands[:2])
    order, scope = str(operation.attributes["semantics"]), str(operation.attributes["scope"])
    if order in ("release", "acq_rel"):
        assembly(lowering.builder, f"fence.acq_rel.{scope};", "", [], [])
    for piece in pieces(lowering, operation, operation.result, once=True, widest=widest):
        chosen = [values[place] for place in piece.positions]
        name = single if pair is None or len(chosen) == 1 else pair
        words = to_words(lowering, chosen)
        vector = f".v{len(words)}" if len(words) > 1 else ""
        first = 1 + (piece.condition is not None)
        start = "@$1 " if piece.condition is not None else ""
        text = f"{start}red.relaxed.{scope}.global{vector}.add.{name} [$0], {operand_list(first, len(words))};"
        constraint = "f" if dtype == dtypes.float32 else "h" if len(chosen) == 1 else "r"
        given = [from_bits(lowering, word, "float") if constraint == "f" else word for word in words]
        arguments = [pointers[piece.positions[0]], *([piece.condition] if piece.condition is not None else []), *given]
        constraints = ["l", *(["b"] if piece.condition is not None else []), *[constraint] * len(words)]
        assembly(lowering.builder, text, ",".join(constraints), arguments, [])


RULES: dict[str, NvidiaRule] = {"atomic_rmw": _atomic}
