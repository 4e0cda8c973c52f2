"""Rewriting of Tile IR: named tables of small rules, applied until none matches.

A rule looks at one operation, whose operands are already rewritten, and returns what replaces its results,
or None:

    RULES = RuleTable("doubling")

    @RULES.on("add")
    def twice(operation: Operation, build: RuleRewriter) -> SSAValue | None:
        left, right = operation.operands
        if left is not right:
            return None
        return build.emit("multiply", left, build.like(left, 2))

    smaller = rewrite(function, RULES)

Operations that a rule emits are offered to the rules in their turn and carry the location of the operation that
they replace.  The original function is never touched; when no rule fires it is what `rewrite` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

from tilewright.ir.builder import Builder
from tilewright.ir.core import Attribute, Function, Operation, Region, SSAValue

Replacement = Union[SSAValue, Sequence[SSAValue], None]
Rule = Callable[[Operation, "RuleRewriter"], Replacement]

# A rule set that has not come to rest after so many applications for each operation, or applications to
# results of applications, never will.
_FUEL_PER_OPERATION = 200
_GREATEST_DEPTH = 64


class RewriteTable:
    """Rules by opcode, tried in the order of their definition; tables add up."""

    def __init__(self, name: str, rules: Mapping[str, Sequence[Rule]] | None = None) -> None:
        self.name = name
        self.rules: dict[str, list[Rule]] = {opcode: list(found) for opcode, found in (rules or {}).items()}

    def on(self, *opcodes: str) -> Callable[[Rule], Rule]:
        """Decorator: try this rule on operations of these opcodes."""

        def register(rule: Rule) -> Rule:
            for opcode in opcodes:
                self.rules.setdefault(opcode, []).append(rule)
            return rule

        return register

    def __add__(self, other: RewriteTable) -> RewriteTable:
        opcodes = {**self.rules, **other.rules}
        merged = {opcode: [*self.rules.get(opcode, []), *other.rules.get(opcode, [])] for opcode in opcodes}
        return RewriteTable(f"{self.name} + {other.name}", merged)


class Rebuilder(Builder):
    """Copies a function operation by operation; passes override `visit` to put something else in place.

    `visit` gets a copy with rewritten operands and regions, not yet appended, and returns the values that
    replace its results (anything emitted meanwhile stands before them), or None to keep it.  A pass that
    changes the copy itself sets `changed`.
    """

    def __init__(self) -> None:
        super().__init__(Region())
        self.mapping: dict[SSAValue, SSAValue] = {}
        self.changed = False

    def visit(self, operation: Operation) -> Replacement:
        return None

    def run(self, function: Function) -> Function:
        """The rewritten function; `function` itself when nothing changed."""
        region = self.copy_region(function.region)
        if not self.changed:
            return function
        return Function(function.name, region, list(function.parameters), dict(function.attributes))

    def copy_region(self, region: Region) -> Region:
        """A rewritten copy of a region."""
        copy = self.region([value.type for value in region.arguments], [value.name for value in region.arguments])
        self.mapping.update(zip(region.arguments, copy.arguments, strict=True))
        with self.at(copy):
            for operation in region.operations:
                self.copy(operation)
        return copy

    def copy(self, operation: Operation) -> None:
        """Append a rewritten copy of an operation."""
        operands = [self.mapping.get(value, value) for value in operation.operands]
        regions = [self.copy_region(region) for region in operation.regions]
        copy = Operation(
            operation.opcode,
            operands,
            list(operation.result_types),
            dict(operation.attributes),
            regions,
            operation.location,
        )
        for old, new in zip(operation.results, copy.results, strict=True):
            new.name = old.name
        self.mapping.update(zip(operation.results, self.place(copy), strict=True))

    def place(self, operation: Operation) -> list[SSAValue]:
        """Append an operation, or what `visit` has in its place; the values of its results."""
        saved, self.location = self.location, operation.location
        replacement = self.visit(operation)
        self.location = saved
        if replacement is None:
            self.current.operations.append(operation)
            return operation.results
        self.changed = True
        values = [replacement] if isinstance(replacement, SSAValue) else list(replacement)
        for old, new in zip(operation.results, values, strict=True):
            assert old.type == new.type, f"{operation.opcode}: {old.type} replaced by {new.type}"
            if not new.name and new.definition is not None:
                new.name = old.name
        return values

    def inline(self, region: Region, arguments: Sequence[SSAValue]) -> list[SSAValue]:
        """Append the operations of a region with its arguments bound; the values its terminator yields."""
        self.mapping.update(zip(region.arguments, arguments, strict=True))
        for operation in region.operations[:-1]:
            self.copy(operation)
        return [self.mapping.get(value, value) for value in region.terminator.operands]

    def emit(self, opcode: str, *operands: SSAValue, **attributes: Attribute) -> SSAValue:
        (value,) = self.emit_all(opcode, operands, attributes)
        return value

    def emit_all(
        self,
        opcode: str,
        operands: Sequence[SSAValue],
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region] = (),
    ) -> list[SSAValue]:
        """Create an operation and place it; its results, or what stands for them."""
        operation = self.create(opcode, operands, attributes, regions)
        self.current.operations.pop()
        return self.place(operation)

    def like(self, value: SSAValue, number: bool | int | float) -> SSAValue:
        """A constant of the type of `value` (which is no pointer)."""
        return self.constant(number, value.type.dtype, value.type.shape)


class RuleRewriter(Rebuilder):
    """Applies a table of rules."""

    def __init__(self, table: RewriteTable, fuel: int) -> None:
        super().__init__()
        self.table = table
        self.fuel = fuel
        self.depth = 0  # of rules at work on what rules have emitted

    def visit(self, operation: Operation) -> Replacement:
        self.depth += 1
        try:
            for rule in self.table.rules.get(operation.opcode, ()):
                if self.depth > _GREATEST_DEPTH or self.fuel < 0:
                    name = getattr(rule, "__name__", repr(rule))
                    raise RuntimeError(f"rules of '{self.table.name}' do not come to rest; the last was {name}")
                replacement = rule(operation, self)
                if replacement is not None:
                    self.fuel -= 1
                    return replacement
            return None
        finally:
            self.depth -= 1


def rewrite(function: Function, table: RewriteTable) -> Function:
    """`function` with the rules of `table` applied until none fires."""
    opcodes = [operation.opcode for operation in function.walk()]
    if table.rules.keys().isdisjoint(opcodes):
        return function
    fuel = _FUEL_PER_OPERATION * (1 + len(opcodes))
    while True:
        rewriter = RuleRewriter(table, fuel)
        result = rewriter.run(function)
        if result is function:
            return function
        function, fuel = result, rewriter.fuel


def constant_of(value: SSAValue) -> bool | int | float | None:
    """The number that every element of `value` is, when a `constant` (or a splat of one) defines it."""
    operation = value.definition
    while operation is not None and operation.opcode == "splat":
        operation = operation.operands[0].definition
    if operation is None or operation.opcode != "constant":
        return None
    number = operation.attributes["value"]
    assert isinstance(number, (bool, int, float))
    return number


def defined_by(value: SSAValue, opcode: str) -> Operation | None:
    """The operation that defines `value`, if it has this opcode."""
    operation = value.definition
    return operation if operation is not None and operation.opcode == opcode else None
