"""The order of a kernel's operations: the position, parent and users of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.core import Function, Operation, Region, SSAValue


@dataclass
class ProgramOrder:
    """Program order of a function: positions, nesting and uses."""

    function: Function
    position: dict[Operation, int] = field(default_factory=dict)
    last: dict[Operation, int] = field(default_factory=dict)  # position of the last operation inside
    parent: dict[Operation, Operation | None] = field(default_factory=dict)
    uses: dict[SSAValue, list[Operation]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    owner: dict[SSAValue, Operation | None] = field(default_factory=dict)  # of region arguments

    def __post_init__(self) -> None:
        self._visit(self.function.region, None)

    def _visit(self, region: Region, parent: Operation | None) -> None:
        for argument in region.arguments:
            self.owner[argument] = parent
        for operation in region.operations:
            self.position[operation] = len(self.operations)
            self.operations.append(operation)
            self.parent[operation] = parent
            for operand in operation.operands:
                self.uses.setdefault(operand, []).append(operation)
            if operation.opcode not in ("reduce", "scan", "map"):
                for inner in operation.regions:
                    self._visit(inner, operation)
            self.last[operation] = len(self.operations) - 1

    def definition_parent(self, value: SSAValue) -> Operation | None:
        """The control-flow operation whose region defines `value`."""
        return self.parent[value.definition] if value.definition is not None else self.owner.get(value)

    def enclosing_loops(self, operation: Operation, outside: Operation | None) -> list[Operation]:
        """Loops around `operation` that lie inside `outside`, innermost first."""
        loops = []
        current = self.parent[operation]
        while current is not None and current is not outside:
            if current.opcode in ("for", "while"):
                loops.append(current)
            current = self.parent[current]
        return loops
