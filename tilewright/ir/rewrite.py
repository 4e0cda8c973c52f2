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

    `visit` gets an operation with rewritten operands and regions, not yet appended, and returns the values that
    replace its results (anything emitted meanwhile stands before them), or None to keep it.  A pass that
    changes the operation itself sets `changed`.
    """

    # Whether the new function may hold operations, regions and values of the old one where both are the same, which
    # takes less time than copies.  A pass that changes operations or regions in place needs copies.
    shares = False

    def __init__(self) -> None:
        super().__init__(Region())
        self.mapping: dict[SSAValue, SSAValue] = {}
        self.changed = False
        self._function: Function | None = None  # the old one
        self._old: set[Operation] | None = None  # its operations, once they are asked for

    def visit(self, operation: Operation) -> Replacement:
        return None

    def run(self, function: Function) -> Function:
        """The rewritten function; `function` itself when nothing changed."""
        self._function = function
        region = self.copy_region(function.region)
        if not self.changed:
            return function
        return Function(function.name, region, list(function.parameters), dict(function.attributes))

    def copy_region(self, region: Region) -> Region:
        """A rewritten copy of a region; the region itself where all of it may be shared."""
        if self.shares:
            return self._shared_region(region)
        copy = self.region([value.type for value in region.arguments], [value.name for value in region.arguments])
        self.mapping.update(zip(region.arguments, copy.arguments, strict=True))
        with self.at(copy):
            for operation in region.operations:
                self.copy(operation)
        return copy

    def _shared_region(self, region: Region) -> Region:
        rewritten = Region(list(region.arguments))
        saved, self.current = self.current, rewritten
        for operation in region.operations:
            self.copy(operation)
        self.current = saved
        # Lists compare their elements by identity first, and operations are equal to themselves alone.
        return region if rewritten.operations == region.operations else rewritten

    def copy(self, operation: Operation) -> None:
        """Append a rewritten copy of an operation; the operation itself where it may be shared."""
        operands = [self.mapping.get(value, value) for value in operation.operands]
        regions = [self.copy_region(region) for region in operation.regions]
        same = self.shares and operands == operation.operands and regions == operation.regions
        values = self.place(operation if same else _with(operation, operands, regions))
        if values is not operation.results:
            self.mapping.update(zip(operation.results, values, strict=True))

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
            if old.name and not new.name and new.definition is not None and not self._is_shared(new.definition):
                new.name = old.name
        return values

    def _is_shared(self, operation: Operation) -> bool:
        """Whether an operation is one of the old function, which is never touched."""
        if self._old is None:
            self._old = set() if self._function is None else set(self._function.walk())
        return operation in self._old

    def inline(self, region: Region, arguments: Sequence[SSAValue]) -> list[SSAValue]:
        """Append the operations of a region with its arguments bound; the values its terminator yields."""
        self.mapping.update(zip(region.arguments, arguments, strict=True))
        saved, self.shares = self.shares, False  # a region may be appended more than once
        for operation in region.operations[:-1]:
            self.copy(operation)
        self.shares = saved
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


def _with(operation: Operation, operands: list[SSAValue], regions: list[Region]) -> Operation:
    """A copy of an operation with other operands and regions."""
    types, attributes = list(operation.result_types), dict(operation.attributes)
    copy = Operation(operation.opcode, operands, types, attributes, regions, operation.location)
    for old, new in zip(operation.results, copy.results, strict=True):
        new.name = old.name
    return copy


class RuleRewriter(Rebuilder):
    """Applies a table of rules."""

    shares = True

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
