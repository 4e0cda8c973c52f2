"""Checks that a kernel obeys the rules of the Tile IR.

* every operation is in the op table, with the attributes, operands, regions and result types of its row
* a value is used only after its definition, in the same region or one inside it
* a region ends in its terminator and has no other: `return` for the kernel, `condition` for a while's first
  region, `yield` for the rest (the table's type rules compare what is yielded)
* parameters are scalars and match their descriptions; combine regions hold pure scalar operations
* no operation, region or value occurs in two places
"""

from __future__ import annotations

from tilewright.errors import InvalidIRError
from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import OPS, attribute_key, complete_attributes, effects_of, infer_types
from tilewright.ir.printer import IDENTIFIER, print_operation


def verify(function: Function) -> None:
    """Raise `InvalidIRError` naming the kernel, the operation and its source location."""
    _Verifier(function).run()


class _Verifier:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.visible: set[SSAValue] = set()
        self.seen: set[int] = set()  # operations, regions and values met, by identity

    def run(self) -> None:
        arguments, parameters = self.function.region.arguments, self.function.parameters
        if len(arguments) != len(parameters):
            raise self.fail(None, f"{len(arguments)} arguments but {len(parameters)} parameter descriptions")
        names = [parameter.name for parameter in parameters]
        if len(set(names)) != len(names) or not all(map(IDENTIFIER.fullmatch, names)):
            raise self.fail(None, f"parameter names are not distinct identifiers: {', '.join(names)}")
        for value, parameter in zip(arguments, parameters, strict=True):
            if not value.type.is_scalar:
                raise self.fail(None, f"parameter {parameter.name} is a block, {value.type}")
            if parameter.divisibility < 1 or parameter.divisibility & (parameter.divisibility - 1):
                raise self.fail(None, f"divisibility {parameter.divisibility} of {parameter.name} is no power of two")
        self.region(self.function.region, "return", None)

    def fail(self, operation: Operation | None, message: str) -> InvalidIRError:
        where = f"kernel {self.function.name}"
        if operation is None:
            return InvalidIRError(f"{where}: {message}")
        text = print_operation(operation).split("\n")[0]
        return InvalidIRError(
            f"{where}: {operation.opcode} at {operation.location or '<unknown>'}: {message}\n  {text}"
        )

    def once(self, item: Operation | Region | SSAValue, owner: Operation | None, kind: str) -> None:
        if id(item) in self.seen:
            raise self.fail(owner, f"the same {kind} occurs twice")
        self.seen.add(id(item))

    def region(self, region: Region, terminator: str, owner: Operation | None) -> None:
        self.once(region, owner, "region")
        outside = set(self.visible)
        for argument in region.arguments:
            self.once(argument, owner, "region argument")
            if argument.definition is not None:
                raise self.fail(owner, "a region argument is also an operation's result")
            self.visible.add(argument)
        if not region.operations or region.terminator.opcode != terminator:
            raise self.fail(owner, f"a region does not end in {terminator}")
        for operation in region.operations:
            ends = operation.opcode in OPS and OPS[operation.opcode].terminator
            if ends and operation is not region.terminator:
                raise self.fail(operation, f"{operation.opcode} stands where no {operation.opcode} belongs")
            self.operation(operation)
        self.visible = outside

    def operation(self, operation: Operation) -> None:
        self.once(operation, operation, "operation")
        for value in operation.operands:
            if value not in self.visible:
                raise self.fail(operation, "an operand is not defined before its use, or not in reach")
        count = OPS[operation.opcode].regions if operation.opcode in OPS else None
        if count is not None and len(operation.regions) != count:
            raise self.fail(operation, f"takes {count} regions, not {len(operation.regions)}")
        for number, region in enumerate(operation.regions):
            terminator = "condition" if operation.opcode == "while" and number == 0 else "yield"
            if operation.opcode in ("reduce", "scan", "map"):
                self.combine(region, operation)
            self.region(region, terminator, operation)
        self.attributes_and_types(operation)
        for result, type_ in zip(operation.results, operation.result_types, strict=True):
            self.once(result, operation, "result")
            if result.definition is not operation or result.type != type_:
                raise self.fail(operation, "a result does not belong to its operation or has another type")
            self.visible.add(result)

    def attributes_and_types(self, operation: Operation) -> None:
        try:
            complete = complete_attributes(operation.opcode, operation.attributes)
            operand_types = [value.type for value in operation.operands]
            types = infer_types(operation.opcode, operand_types, complete, operation.regions)
        except InvalidIRError as error:
            raise self.fail(operation, str(error)) from None
        for name, value in complete.items():
            if name not in operation.attributes or attribute_key(operation.attributes[name]) != attribute_key(value):
                raise self.fail(operation, f"attribute '{name}' should be {value!r}")
        if types != operation.result_types or len(types) != len(operation.results):
            expected = ", ".join(map(str, types)) or "none"
            raise self.fail(operation, f"result types should be {expected}")

    def combine(self, region: Region, owner: Operation) -> None:
        for operation in region.operations:
            values = [*operation.operands, *operation.results]
            if effects_of(operation) or any(not value.type.is_scalar for value in values):
                raise self.fail(owner, f"the combine region holds {operation.opcode}: only pure scalar operations may")
