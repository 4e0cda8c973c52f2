"""Detects a `while` that waits: its iterations change neither memory nor a value that its condition needs."""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue

_EFFECTS = ("atomic_rmw", "atomic_cas", "load", "store", "assert", "print")


def deciding_values(loop: Operation) -> set[SSAValue]:
    """The values of a `while` on which its condition depends, and what it does to memory: not a count of its passes
    that is only used after it."""
    before, after = loop.regions
    condition, *forwarded = before.terminator.operands
    sources = dict(zip(after.arguments, forwarded, strict=True))
    sources.update(zip(before.arguments, after.terminator.operands, strict=True))
    pending = [condition]
    for region in loop.regions:
        for operation in region.operations:
            if operation.regions or operation.opcode in _EFFECTS:
                pending += [value for entry in operation.walk() for value in entry.operands]
    found: set[SSAValue] = set()
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        if value in sources:
            pending.append(sources[value])
        elif value.definition is not None:
            pending += value.definition.operands
    return found
