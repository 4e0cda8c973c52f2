"""Removes unused operations without side effects, and unused carried values.

Mark and sweep.  Marking starts from the operations that have an effect and follows operands backwards; for
loops and branches each carried value is followed on its own, so that a value which only feeds itself around a
loop is not marked.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import OPS, Effect, effects_of
from tilewright.ir.rewrite import Rebuilder


def remove_dead_code(function: Function) -> Function:
    """`function` without dead operations and dead carried values; the same object when there are none."""
    marked = _Marker(function)
    return function if marked.everything(function) else _Sweeper(marked).run(function)


class _Marker:
    """Finds the live operations and values."""

    def __init__(self, function: Function) -> None:
        self.values: set[SSAValue] = set()
        self.operations: set[Operation] = set()
        self.owners: dict[SSAValue, tuple[Operation, Region, int]] = {}  # region arguments
        self.parents: dict[Operation, Operation] = {}
        self.pending: list[SSAValue] = []
        self.index(function.region, None)
        for operation in function.region.operations:
            self.roots(operation)
        while self.pending:
            self.follow(self.pending.pop())

    def everything(self, function: Function) -> bool:
        """Whether there is nothing to sweep."""
        for operation in function.walk():
            if operation not in self.operations and not OPS[operation.opcode].terminator:
                return False
            if operation.opcode in ("for", "if", "while") and not self.values.issuperset(operation.results):
                return False
            if operation.opcode == "while" and not self.values.issuperset(operation.regions[0].arguments):
                return False
        return True

    def index(self, region: Region, owner: Operation | None) -> None:
        for position, value in enumerate(region.arguments):
            if owner is not None:
                self.owners[value] = (owner, region, position)
        for operation in region.operations:
            if owner is not None:
                self.parents[operation] = owner
            for inner in operation.regions:
                self.index(inner, operation)

    def roots(self, operation: Operation) -> None:
        for region in operation.regions:
            for inner in region.operations:
                self.roots(inner)
        visible = not operation.regions and effects_of(operation) - {Effect.READ, Effect.ALLOCATE}
        if visible or operation.opcode == "return":
            self.keep(operation)

    def keep(self, operation: Operation) -> None:
        """Mark an operation, everything around it, and the operands that they cannot do without."""
        if operation in self.operations:
            return
        self.operations.add(operation)
        if operation in self.parents:
            self.keep(self.parents[operation])
        if operation.opcode in ("reduce", "scan", "map"):  # all parts of a combination belong together
            self.need([*operation.operands, *operation.results, *operation.regions[0].terminator.operands])
        elif operation.opcode == "for":
            self.need(operation.operands[:3])
        elif operation.opcode == "while":
            self.keep(operation.regions[0].terminator)
            self.need(operation.regions[0].terminator.operands[:1])
        elif operation.opcode == "if" or not OPS[operation.opcode].terminator:
            self.need(operation.operands)

    def need(self, values: Sequence[SSAValue]) -> None:
        fresh = [value for value in values if value not in self.values]
        self.values.update(fresh)
        self.pending += fresh

    def follow(self, value: SSAValue) -> None:
        operation = value.definition
        if operation is None:
            if value in self.owners:
                self.argument(*self.owners[value])
            return
        self.keep(operation)
        position = operation.results.index(value)
        if operation.opcode == "for":
            self.carried(operation, position)
        elif operation.opcode == "while":
            self.need([operation.regions[0].terminator.operands[1 + position]])
        elif operation.opcode == "if":
            self.need([region.terminator.operands[position] for region in operation.regions])

    def argument(self, owner: Operation, region: Region, position: int) -> None:
        self.keep(owner)
        if owner.opcode == "for" and position:
            self.carried(owner, position - 1)
        elif owner.opcode == "while" and region is owner.regions[0]:
            self.need([owner.operands[position], owner.regions[1].terminator.operands[position]])
        elif owner.opcode == "while":
            self.need([owner.regions[0].terminator.operands[1 + position]])

    def carried(self, loop: Operation, position: int) -> None:
        (body,) = loop.regions
        inside, outside = body.arguments[1 + position], loop.results[position]
        self.need([loop.operands[3 + position], body.terminator.operands[position], inside, outside])


class _Sweeper(Rebuilder):
    """Copies what is marked."""

    shares = True

    def __init__(self, marked: _Marker) -> None:
        super().__init__()
        self.marked = marked

    def copy(self, operation: Operation) -> None:
        if not OPS[operation.opcode].terminator and operation not in self.marked.operations:
            self.changed = True
            return
        trimmed = self.trimmed(operation)
        saved = self.shares
        self.shares = saved and trimmed is operation  # the results of what was trimmed name another definition
        super().copy(trimmed)
        self.shares = saved

    def trimmed(self, operation: Operation) -> Operation:
        """The operation without its dead carried values (itself when all are live)."""
        live = self.marked.values
        if operation.opcode == "for":
            live_results = [value in live for value in operation.results]
            return self.drop(
                operation, [True] * 3 + live_results, live_results, [[True, *live_results]], [live_results]
            )
        if operation.opcode == "if":
            live_results = [value in live for value in operation.results]
            return self.drop(operation, [True], live_results, [[], []], [live_results, live_results])
        if operation.opcode == "while":
            before, after = operation.regions
            initial = [value in live for value in before.arguments]
            # A forwarded value is needed by the result or by the second region's argument, one by one.
            pairs = zip(operation.results, after.arguments, strict=True)
            forwarded = [result in live or argument in live for result, argument in pairs]
            return self.drop(operation, initial, forwarded, [initial, forwarded], [[True, *forwarded], initial])
        return operation

    def drop(
        self,
        operation: Operation,
        operands: list[bool],
        results: list[bool],
        arguments: list[list[bool]],
        yields: list[list[bool]],
    ) -> Operation:
        """Without the operands, results, region arguments and yielded values that are marked False."""
        if all(operands) and all(results):
            return operation
        self.changed = True
        regions = []
        for region, kept_arguments, kept_yields in zip(operation.regions, arguments, yields, strict=True):
            end = region.terminator
            terminator = Operation(
                end.opcode, _selected(end.operands, kept_yields), [], end.attributes, [], end.location
            )
            regions.append(Region(_selected(region.arguments, kept_arguments), [*region.operations[:-1], terminator]))
        remaining_results = _selected(operation.results, results)
        return Operation(
            operation.opcode,
            _selected(operation.operands, operands),
            [value.type for value in remaining_results],
            operation.attributes,
            regions,
            operation.location,
            remaining_results,
        )


def _selected(values: list[SSAValue], keep: list[bool]) -> list[SSAValue]:
    return [value for value, wanted in zip(values, keep, strict=True) if wanted]
