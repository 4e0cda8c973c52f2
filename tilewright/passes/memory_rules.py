"""Rules for masked accesses, facts and assertions whose outcome is known."""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, constant_of

MEMORY_RULES = RewriteTable("memory")
on = MEMORY_RULES.on


@on("load")
def load_masked_by_constant(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """Every lane: no mask. No lane: `other`, or zero."""
    if len(operation.operands) == 1:
        return None
    pointer, mask, *other = operation.operands
    known = constant_of(mask)
    if known is None:
        return None
    if known:
        return build.emit("load", pointer, **operation.attributes)
    return other[0] if other else build.like(operation.result, 0)


@on("load")
def load_other_of_zero(operation: Operation, build: RuleRewriter) -> SSAValue | None:
    """Zero is what masked-off lanes are without `other` (for floats, 0.0)."""
    if len(operation.operands) < 3:
        return None
    pointer, mask, other = operation.operands
    if constant_of(other) is None or repr(constant_of(other)) not in ("0", "0.0", "False"):
        return None
    return build.emit("load", pointer, mask, **operation.attributes)


@on("store", "atomic_rmw")
def write_masked_by_constant(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """Every lane: no mask. No lane: nothing is written."""
    if len(operation.operands) == 2:
        return None
    pointer, value, mask = operation.operands
    known = constant_of(mask)
    if known is None:
        return None
    if known:
        return build.emit_all(operation.opcode, [pointer, value], operation.attributes)
    return [build.like(result, 0) for result in operation.results]


@on("atomic_cas")
def exchange_masked_by_constant(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """The same for compare and swap."""
    known = constant_of(operation.operands[3]) if len(operation.operands) > 3 else None
    if known is None:
        return None
    if known:
        return build.emit_all(operation.opcode, operation.operands[:3], operation.attributes)
    return [build.like(result, 0) for result in operation.results]


@on("assume", "assert")
def holds(operation: Operation, build: RuleRewriter) -> list[SSAValue] | None:
    """What is true needs neither be stated nor checked."""
    return [] if constant_of(operation.operands[0]) else None
