"""Reads the text form of the Tile IR; `ir.printer` writes it and the two are inverse.

    kernel     = "kernel" NAME "(" [ parameter { "," parameter } ] ")" [ attributes ] "{" { operation } "}"
    parameter  = VALUE ":" type [ attributes ]                 attributes: divisibility, alias_free
    operation  = [ VALUE { "," VALUE } "=" ] OPCODE [ number ] [ VALUE { "," VALUE } ] [ attributes ]
                 [ ":" type { "," type } ] { region } [ location ]
    region     = "{" [ "(" VALUE ":" type { "," VALUE ":" type } ")" ] { operation } "}"
    attributes = "{" NAME "=" attribute { "," NAME "=" attribute } "}"
    attribute  = "true" | "false" | NUMBER | STRING | type | "[" [ attribute { "," attribute } ] "]"
    type       = DTYPE | "*" [ "k " ] DTYPE | "<" EXTENT "x" { EXTENT "x" } ( DTYPE | pointer ) ">" | handle
    handle     = "shared<" EXTENT "x" { EXTENT "x" } DTYPE "," SWIZZLE [ ",t" ] [ ",remote" ] ">"
               | "barriers<" COUNT ">" | "barrier" | ( "tensormap<" | "pending<" ) EXTENT "x" { EXTENT "x" } DTYPE ">"
    location   = "loc" "(" place { "from" place } ")"          from: the call site, outwards
    place      = STRING ":" LINE ":" COLUMN [ "in" STRING ]

VALUE is ``%name`` or ``%12``; a number is a name that the printer gave, and is forgotten.  The number after
the opcode (true, false, NUMBER) is a `constant`'s, whose element type and shape are those of its type.
Attributes that are not written have the defaults of the op table.  Types of results are written for the reader:
they must be what the table infers.  Operands begin on the line of their opcode; otherwise line ends do not
matter.  ``//`` begins a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tilewright.dtypes import BY_TEXT, DType, void
from tilewright.errors import InvalidIRError
from tilewright.ir.builder import Builder
from tilewright.ir.core import Attribute, Function, Location, Operation, Parameter, Region, SSAValue
from tilewright.ir.types import (
    BarrierType,
    Element,
    Handle,
    PendingType,
    PointerType,
    SharedType,
    TensorMapType,
    TensorType,
    scalar,
)

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<block><(?:\d+x)+(?:\*(?:k\ )?)?\w+>)
      | (?P<handle>(?:shared|barriers|tensormap|pending)<[\w,]+>)
      | (?P<pointer>\*(?:k\ )?\w+)
      | (?P<value>%\w+)
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))
      | (?P<word>[A-Za-z_][\w.]*)
      | (?P<mark>[{}()\[\],:=])""",
    re.VERBOSE,
)
_HANDLE = re.compile(
    r"""barriers<(?P<count>\d+)>
      | (?P<kind>shared|tensormap|pending)<(?P<shape>(?:\d+x)+)(?P<element>[a-z]\w*)
        (?:,(?P<swizzle>\d+)(?P<transposed>,t)?(?P<remote>,remote)?)?>""",
    re.VERBOSE,
)
Item = TypeVar("Item")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


def parse_function(text: str) -> Function:
    """The kernel that `text` describes.

    Raises `InvalidIRError` with the line of the text for anything that is not in the grammar or breaks a rule
    of the op table.  The result may still break rules between operations: see `ir.verifier`.
    """
    parser = _Parser(text)
    function = parser.function()
    parser.expect("end")
    return function


def parse_type(text: str) -> TensorType:
    """``f32``, ``*k f16``, ``<8x16xi32>`` as a type; raises `InvalidIRError`."""
    parser = _Parser(text)
    result = parser.type()
    parser.expect("end")
    return result


def _tokens(text: str) -> list[_Token]:
    tokens, position, line = [], 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidIRError(f"line {line}: unexpected character {text[position]!r}")
        kind = match.lastgroup or ""
        if kind != "skip":
            tokens.append(_Token(kind, match.group(), line))
        line += match.group().count("\n")
        position = match.end()
    return [*tokens, _Token("end", "the end of the text", line)]


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.position = 0
        self.scopes: list[dict[str, SSAValue]] = []
        self.names: set[str] = set()

    # Tokens

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def fail(self, message: str) -> InvalidIRError:
        return InvalidIRError(f"line {self.token.line}: {message}")

    def expect(self, kind: str, text: str | None = None) -> str:
        token = self.token
        if token.kind != kind or (text is not None and token.text != text):
            raise self.fail(f"expected {text or kind}, found {token.text!r}")
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token.text

    def at(self, text: str) -> bool:
        return self.token.kind in ("mark", "word") and self.token.text == text

    def accept(self, text: str) -> bool:
        found = self.at(text)
        self.position += found
        return found

    def listed(self, item: Callable[[], Item], end: str) -> list[Item]:
        """Comma-separated items up to the mark `end`, which is consumed."""
        items: list[Item] = []
        while not self.accept(end):
            if items:
                self.expect("mark", ",")
            items.append(item())
        return items

    def integer(self) -> int:
        text = self.expect("number")
        if not text.isdigit():
            raise self.fail(f"expected a whole number, found {text}")
        return int(text)

    # Types and attributes

    def type(self) -> TensorType:
        token = self.token
        if token.kind == "block":
            self.position += 1
            *extents, element = token.text[1:-1].split("x")
            return TensorType(tuple(map(int, extents)), self.element(element))
        if token.kind == "handle":
            self.position += 1
            return scalar(self.handle(token.text))
        if self.accept("barrier"):
            return scalar(BarrierType())
        return TensorType((), self.scalar_element())

    def handle(self, text: str) -> Handle:
        match = _HANDLE.fullmatch(text)
        if match is None:
            raise self.fail(f"'{text}' is not a type")
        parts = match.groupdict()
        if parts["count"] is not None:
            return BarrierType(int(parts["count"]))
        extents = tuple(int(extent) for extent in parts["shape"].split("x")[:-1])
        dtype = self.element(parts["element"])
        if not isinstance(dtype, DType) or (parts["kind"] == "shared") != (parts["swizzle"] is not None):
            raise self.fail(f"'{text}' is not a type")
        if parts["kind"] == "shared":
            swizzle = int(parts["swizzle"])
            return SharedType(extents, dtype, swizzle, bool(parts["transposed"]), bool(parts["remote"]))
        return TensorMapType(extents, dtype) if parts["kind"] == "tensormap" else PendingType(extents, dtype)

    def scalar_element(self) -> Element:
        token = self.token
        if token.kind not in ("word", "pointer"):
            raise self.fail(f"expected a type, found {token.text!r}")
        self.position += 1
        return self.element(token.text)

    def element(self, text: str) -> Element:
        if text.startswith("*"):
            const = text.startswith("*k ")
            pointee = self.element(text[3 if const else 1 :])
            assert isinstance(pointee, DType)
            return PointerType(pointee, const)
        if text == "void":
            return void
        if text not in BY_TEXT:
            raise self.fail(f"unknown element type '{text}'")
        return BY_TEXT[text]

    def number(self, text: str) -> int | float:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)

    def attribute(self) -> Attribute:
        token = self.token
        if token.kind == "mark":
            self.expect("mark", "[")
            return tuple(self.listed(self.attribute, "]"))
        if token.kind == "string":
            return self.string()
        if token.kind == "number":
            return self.number(self.expect("number"))
        if token.text in ("true", "false"):
            return self.expect("word") == "true"
        return self.scalar_element()

    def string(self) -> str:
        text = self.expect("string")
        try:
            return str(json.loads(text))
        except json.JSONDecodeError as error:
            raise self.fail(f"malformed string {text}: {error.msg}") from None

    def attributes(self) -> dict[str, Attribute]:
        """``{name = …}`` when the next tokens begin one (a region begins differently)."""
        begins = self.at("{") and [token.kind for token in self.tokens[self.position + 1 :][:1]] == ["word"]
        if not begins or self.tokens[self.position + 2].text != "=":
            return {}
        self.expect("mark", "{")
        return dict(self.listed(self.named_attribute, "}"))

    def named_attribute(self) -> tuple[str, Attribute]:
        name = self.expect("word")
        self.expect("mark", "=")
        return name, self.attribute()

    # Values

    def define(self, text: str, value: SSAValue) -> SSAValue:
        if text in self.names:
            raise self.fail(f"{text} is defined twice")
        self.names.add(text)
        self.scopes[-1][text] = value
        value.name = "" if text[1:].isdigit() else text[1:]
        return value

    def use(self) -> SSAValue:
        text = self.token.text
        for scope in reversed(self.scopes):
            if text in scope:
                self.expect("value")
                return scope[text]
        raise self.fail(f"{text} is not defined here" if self.token.kind == "value" else f"expected a value: {text!r}")

    def argument(self) -> SSAValue:
        name = self.expect("value")
        self.expect("mark", ":")
        return self.define(name, SSAValue(self.type()))

    # Operations, regions, kernels

    def operation(self, builder: Builder) -> Operation:
        names: list[str] = []
        if self.token.kind == "value":
            names.append(self.expect("value"))
            while self.accept(","):
                names.append(self.expect("value"))
            self.expect("mark", "=")
        line, opcode = self.token.line, self.expect("word")
        number = self.constant_number() if opcode == "constant" else None
        operands = []
        if self.token.kind == "value" and self.token.line == line:
            operands.append(self.use())
            while self.accept(","):
                operands.append(self.use())
        attributes = self.attributes()
        types = self.result_types()
        if number is not None:
            attributes |= self.constant_attributes(number, types)
        regions = []
        while self.at("{"):
            regions.append(self.region())
        builder.location = self.location()
        try:
            operation = builder.create(opcode, operands, attributes, regions)
        except InvalidIRError as error:
            raise InvalidIRError(f"line {line}: {error}") from None
        if operation.result_types != types:
            found = ", ".join(map(str, operation.result_types)) or "none"
            raise InvalidIRError(f"line {line}: {opcode}: the result types are {found}, not as written")
        if len(names) != len(operation.results):
            raise InvalidIRError(f"line {line}: {opcode} has {len(operation.results)} results, not {len(names)}")
        for name, value in zip(names, operation.results, strict=True):
            self.define(name, value)
        return operation

    def result_types(self) -> list[TensorType]:
        types = []
        if self.accept(":"):
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
        return types

    def constant_number(self) -> bool | int | float:
        value = self.attribute()
        if not isinstance(value, (bool, int, float)):
            raise self.fail("a constant is written 'constant NUMBER : type'")
        return value

    def constant_attributes(self, number: bool | int | float, types: list[TensorType]) -> dict[str, Attribute]:
        if len(types) != 1 or types[0].is_pointer:
            raise self.fail("a constant has one type, which is not a pointer")
        return {"value": number, "dtype": types[0].dtype, "shape": types[0].shape}

    def region(self) -> Region:
        self.expect("mark", "{")
        self.scopes.append({})
        region = Region()
        if self.accept("("):
            region.arguments = self.listed(self.argument, ")")
        self.operations(region)
        self.scopes.pop()
        return region

    def operations(self, region: Region) -> None:
        builder = Builder(region)
        while not self.accept("}"):
            self.operation(builder)

    def location(self) -> Location | None:
        if not (self.at("loc") and self.tokens[self.position + 1].text == "("):
            return None
        self.position += 2
        places = [self.place()]
        while self.accept("from"):
            places.append(self.place())
        self.expect("mark", ")")
        location: Location | None = None
        for file, line, column, function in reversed(places):
            location = Location(file, line, column, function, location)
        return location

    def place(self) -> tuple[str, int, int, str]:
        file = self.string()
        self.expect("mark", ":")
        line = self.integer()
        self.expect("mark", ":")
        column = self.integer()
        return file, line, column, self.string() if self.accept("in") else ""

    def function(self) -> Function:
        self.expect("word", "kernel")
        name = self.expect("word")
        self.scopes.append({})
        self.expect("mark", "(")
        region, parameters = Region(), []
        for value, parameter in self.listed(self.parameter, ")"):
            region.arguments.append(value)
            parameters.append(parameter)
        attributes = self.attributes()
        self.expect("mark", "{")
        self.operations(region)
        return Function(name, region, parameters, attributes)

    def parameter(self) -> tuple[SSAValue, Parameter]:
        value = self.argument()
        facts = self.attributes()
        divisibility, alias_free = facts.pop("divisibility", 1), facts.pop("alias_free", False)
        if facts or not isinstance(divisibility, int) or not isinstance(alias_free, bool) or not value.name:
            raise self.fail("a parameter has a name and the attributes divisibility and alias_free")
        return value, Parameter(value.name, divisibility, alias_free)
