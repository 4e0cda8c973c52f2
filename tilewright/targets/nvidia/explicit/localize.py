"""Recomputes blocks inside the role that uses them.

The threads of a role are numbered anew, so a block that all threads of the CTA hold is not what a role's threads hold.
Ranges and constants that stand before the roles (or were put there, being equal) are computed again in each role.
"""

from __future__ import annotations

from tilewright.errors import CompilationError
from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import is_pure
from tilewright.ir.rewrite import Rebuilder


def localize(function: Function) -> Function:
    """The same kernel, its roles using no block from outside.

    Raises `CompilationError` for blocks that cannot be computed again, such as loads.
    """
    if not any(operation.opcode == "warp_roles" for operation in function.region.operations):
        return function
    return _Localizer().run(function)


class _Localizer(Rebuilder):
    def copy(self, operation: Operation) -> None:
        if operation.opcode != "warp_roles":
            super().copy(operation)
            return
        regions = [self._role(region) for region in operation.regions]
        self.create(operation.opcode, [], dict(operation.attributes), regions).location = operation.location

    def _role(self, region: Region) -> Region:
        """A copy that begins with the blocks it needs."""
        outside = dict(self.mapping)
        copy = self.region([value.type for value in region.arguments], [value.name for value in region.arguments])
        self.mapping.update(zip(region.arguments, copy.arguments, strict=True))
        with self.at(copy):
            for value in _blocks_from_outside(region):
                self._again(value)
            for operation in region.operations:
                super().copy(operation)
        self.mapping = outside
        return copy

    def _again(self, value: SSAValue) -> None:
        """Put the operation that defines a block, and the blocks that it needs, into the role."""
        operation = value.definition
        if operation is None or not is_pure(operation) or operation.regions:
            place = f"{operation.location}: " if operation is not None and operation.location else ""
            raise CompilationError(
                f"{place}a role uses this block, which the whole CTA holds in other registers than the role's threads. "
                "Compute or load it inside the role's function"
            )
        for operand in operation.operands:
            if operand.type.rank:
                self._again(operand)
        self.changed = True
        super().copy(operation)


def _blocks_from_outside(region: Region) -> list[SSAValue]:
    """Blocks that a region uses and does not define, in the order of their uses."""
    own = set(region.arguments)
    for operation in region.operations:
        for inner in operation.walk():
            own.update(inner.results)
            for nested in inner.regions:
                own.update(nested.arguments)
    used = (value for operation in region.operations for inner in operation.walk() for value in inner.operands)
    return list(dict.fromkeys(value for value in used if value.type.rank and value not in own))
