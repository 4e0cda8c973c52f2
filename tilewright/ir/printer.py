"""Tile IR as text; `ir.parser` reads it back and its docstring holds the grammar.

kernel add(%x: *f32 {divisibility = 16}, %n: i32) {
  %0 = arange {start = 0, end = 8} : <8xi32>
  %1 = splat %x {shape = [8]} : <8x*f32>
  ...
  return
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import numpy as np

from tilewright.dtypes import DType, float64
from tilewright.ir.core import Attribute, Function, Location, Operation, Parameter, Region, SSAValue, prints_functions
from tilewright.ir.ops import OPS, attribute_key

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def print_function(function: Function, locations: bool = False) -> str:
    """The text of a kernel; with `locations`, each operation ends in its ``loc(...)``."""
    return _Printer(locations).function(function)


def print_operation(operation: Operation) -> str:
    """One operation, with its regions; values keep their names, the others are numbered from 0."""
    return "\n".join(_Printer(False).operation(operation, 0))


def attribute_text(value: Attribute) -> str:
    """An attribute as the parser reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(attribute_text, value))}]"
    return repr(value) if isinstance(value, float) else str(value)


def number_text(value: bool | int | float, dtype: DType) -> str:
    """A constant's number with the fewest digits that identify it in `dtype`."""
    if dtype.is_float and dtype != float64:
        return str(np.float32(value))
    return attribute_text(value)


def location_text(location: Location) -> str:
    """``loc("file.py":3:4 in "kernel" from "file.py":9:2)``: a place and its call sites."""
    places = []
    place: Location | None = location
    while place is not None:
        function = f" in {json.dumps(place.function)}" if place.function else ""
        places.append(f"{json.dumps(place.file)}:{place.line}:{place.column}{function}")
        place = place.caller
    return f"loc({' from '.join(places)})"


class _Printer:
    def __init__(self, locations: bool) -> None:
        self.locations = locations
        self.names: dict[SSAValue, str] = {}
        self.used: set[str] = set()
        self.number = 0

    def function(self, function: Function) -> str:
        arguments = zip(function.region.arguments, function.parameters, strict=True)
        parameters = ", ".join(self.parameter(value, parameter) for value, parameter in arguments)
        attributes = _attributes_text(function.attributes)
        lines = [f"kernel {function.name}({parameters}){attributes} {{"]
        for operation in function.region.operations:
            lines += self.operation(operation, 1)
        return "\n".join([*lines, "}"]) + "\n"

    def parameter(self, value: SSAValue, parameter: Parameter) -> str:
        facts: dict[str, Attribute] = {}
        if parameter.divisibility != 1:
            facts["divisibility"] = parameter.divisibility
        if parameter.alias_free:
            facts["alias_free"] = True
        return f"{self.name(value, parameter.name)}: {value.type}{_attributes_text(facts)}"

    def operation(self, operation: Operation, depth: int) -> list[str]:
        indent = "  " * depth
        # Operands first: in a printed fragment, values from outside are numbered where they are met.
        operands = [self.name(value) for value in operation.operands]
        results = [self.name(value) for value in operation.results]
        head = operation.opcode
        if operation.opcode == "constant":
            head += " " + number_text(operation.attributes["value"], operation.attributes["dtype"])  # type: ignore[arg-type]
        if operands:
            head += " " + ", ".join(operands)
        head += _attributes_text(_shown_attributes(operation))
        if results:
            head = f"{', '.join(results)} = {head} : {', '.join(str(value.type) for value in operation.results)}"
        lines = [indent + head]
        for region in operation.regions:
            lines[-1] += " {" + self.arguments(region)
            for inner in region.operations:
                lines += self.operation(inner, depth + 1)
            lines.append(indent + "}")
        if self.locations and operation.location is not None:
            lines[-1] += " " + location_text(operation.location)
        return lines

    def arguments(self, region: Region) -> str:
        if not region.arguments:
            return ""
        return f"({', '.join(f'{self.name(value)}: {value.type}' for value in region.arguments)})"

    def name(self, value: SSAValue, wanted: str | None = None) -> str:
        if value not in self.names:
            self.names[value] = "%" + self.fresh_name(wanted or value.name)
        return self.names[value]

    def fresh_name(self, wanted: str) -> str:
        if not IDENTIFIER.fullmatch(wanted):
            self.number += 1
            return str(self.number - 1)
        name, suffix = wanted, 0
        while name in self.used:
            suffix += 1
            name = f"{wanted}_{suffix}"
        self.used.add(name)
        return name


def _shown_attributes(operation: Operation) -> dict[str, Attribute]:
    """Attributes that differ from the table's defaults; a constant's are in its number and type."""
    rows = OPS[operation.opcode].attributes if operation.opcode in OPS else {}
    printed = {}
    for name, value in operation.attributes.items():
        default = name in rows and attribute_key(rows[name].default) == attribute_key(value)
        if not default and not (operation.opcode == "constant" and name in rows):
            printed[name] = value
    return printed


def _attributes_text(attributes: Mapping[str, Attribute]) -> str:
    if not attributes:
        return ""
    return " {" + ", ".join(f"{name} = {attribute_text(value)}" for name, value in attributes.items()) + "}"


prints_functions(print_function)
