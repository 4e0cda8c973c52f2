"""Replaces a pure operation by an equal earlier one."""

from __future__ import annotations

from typing import Any

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import OPS, attribute_key, is_pure
from tilewright.ir.rewrite import Rebuilder, Replacement


def merge_common_subexpressions(function: Function) -> Function:
    """`function` with repeated pure operations merged (not those with regions); the same object when none is."""
    return _Merger().run(function)


class _Merger(Rebuilder):
    shares = True

    def __init__(self) -> None:
        super().__init__()
        self.scopes: list[dict[Any, list[SSAValue]]] = []

    def copy_region(self, region: Region) -> Region:
        self.scopes.append({})
        copy = super().copy_region(region)
        self.scopes.pop()
        return copy

    def visit(self, operation: Operation) -> Replacement:
        if operation.regions or not is_pure(operation):
            return None
        key = _key(operation)
        for scope in self.scopes:
            if key in scope:
                return scope[key]
        self.scopes[-1][key] = operation.results
        return None


def _key(operation: Operation) -> Any:
    operands = [id(value) for value in operation.operands]
    if OPS[operation.opcode].commutative:
        operands.sort()
    attributes = [(name, attribute_key(value)) for name, value in sorted(operation.attributes.items())]
    return operation.opcode, tuple(operands), tuple(attributes)
