"""Reads the text of `graph.printer` back.

The grammar, one line each:

    graph NAME
    symbol NAME LOW..HIGH
    input VALUE                        VALUE := %NAME: DTYPE[SIZE, …], where NAME may be in quotes
    constant VALUE = NUMBER            or: constant VALUE #HASH, with the data given by name
    VALUE = OP(%NAME, none, …) {KEY=ATTRIBUTE, …} from "SOURCE"
    output NAME = %NAME
    mutate %NAME = %NAME

Sizes and attributes are Python expressions of numbers, names, tuples, text, and `[size]`; they are read
with `ast` and never evaluated.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.dtypes import ANY_BY_TEXT
from tilewright.errors import InvalidIRError, ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import OPS, normalize
from tilewright.graph.printer import constant_text
from tilewright.graph.verifier import verify
from tilewright.symbolic import Size, Symbol, apply, lift, simplify, symbol

_NAME = r"(?:\"(?:[^\"\\]|\\.)*\"|[^\s\"\\(){}\[\],=%]+)"
_VALUE = re.compile(rf"%({_NAME}): (\w+)\[(.*?)\](?= |$)")
_NODE = re.compile(r"= (\w+)\(((?:\"(?:[^\"\\]|\\.)*\"|[^\")])*)\)(?: \{(.*)\})?(?: from (\".*\"))?$")
_OPERANDS = re.compile(rf"%{_NAME}|[^\s,]+")
_PAIR = re.compile(rf"(%?{_NAME}) = (%{_NAME})")


def parse_graph(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The verified graph of a text; `constants` gives the data of those that are shown as a hash.

    Raises `InvalidIRError` with the line for text that does not follow the grammar or breaks a rule.
    """
    reader = _GraphReader(constants or {})
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            reader.read(line.strip())
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, IndexError, ShapeError) as error:
            raise InvalidIRError(f"line {number}: {line.strip()!r}: {error}") from error
    verify(reader.graph)
    return reader.graph


def _name(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


class _GraphReader:
    """The graph so far."""

    def __init__(self, constants: Mapping[str, np.ndarray]) -> None:
        self.graph = Graph("")
        self.constants = constants
        self.values: dict[str, Value] = {}

    def read(self, line: str) -> None:
        keyword, _, rest = line.partition(" ")
        if line.startswith("%"):
            self._node(line)
        elif keyword == "graph":
            self.graph.name = rest
        elif keyword == "symbol":
            name, _, bounds = rest.partition(" ")
            low, high = bounds.split("..")
            self.graph.symbols[name] = Symbol(name, int(low), int(high))
        elif keyword == "input":
            self.graph.inputs.append(self._define(rest)[0])
        elif keyword == "constant":
            self._constant(rest)
        elif keyword in ("output", "mutate"):
            pair = _PAIR.fullmatch(rest)
            if pair is None:
                raise ValueError("expected `NAME = %NAME`")
            left, right = pair.groups()
            if keyword == "output":
                self.graph.outputs.append(self._use(right))
                self.graph.output_names.append(_name(left))
            else:
                self.graph.mutations[self._use(left)] = self._use(right)
        else:
            raise ValueError("expected graph, symbol, input, constant, output, mutate or a value")

    def _constant(self, text: str) -> None:
        value, definition = self._define(text)
        if definition.startswith("= "):
            number = self._attribute(ast.parse(definition[2:], mode="eval").body)
            self.graph.constants[value] = np.array(number, value.dtype.numpy)
            return
        if value.name not in self.constants:
            raise ValueError(f"the data of %{value.name} is not given")
        data = self.constants[value.name]
        if constant_text(data) != definition:
            raise ValueError(f"the given data is {constant_text(data)}, the text says {definition}")
        self.graph.constants[value] = data

    def _node(self, line: str) -> None:
        results, rest = [], line
        while rest.startswith("%"):
            value, rest = self._define(rest)
            results.append(value)
            rest = rest.removeprefix(", ")
        match = _NODE.match(rest)
        if match is None:
            raise ValueError('expected `= op(operands) {attributes} from "source"`')
        op, operands, attributes, source = match.groups()
        if op not in OPS:
            raise ValueError(f"unknown op {op!r}")
        names = _OPERANDS.findall(operands)
        inputs = [None if name == "none" else self._use(name) for name in names]
        given = self._attributes(attributes or "")
        node = Node(op, inputs, results, normalize(op, inputs, given), json.loads(source) if source else "")
        self.graph.nodes.append(node)

    def _define(self, text: str) -> tuple[Value, str]:
        match = _VALUE.match(text)
        if match is None:
            raise ValueError("expected `%name: dtype[shape]`")
        name, dtype, shape = _name(match[1]), match[2], match[3]
        if name in self.values:
            raise ValueError(f"%{name} is defined twice")
        sizes = ast.parse(f"({shape},)" if shape else "()", mode="eval").body
        assert isinstance(sizes, ast.Tuple)
        value = Value(name, ANY_BY_TEXT[dtype], tuple(self._size(item) for item in sizes.elts))
        self.values[name] = value
        return value, text[match.end() :].strip()

    def _use(self, text: str) -> Value:
        if not text.startswith("%"):
            raise ValueError(f"expected a value, got {text!r}")
        return self.values[_name(text[1:])]

    def _attributes(self, text: str) -> dict[str, Any]:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return {item.arg or "": self._attribute(item.value) for item in call.keywords}

    def _attribute(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Tuple):
            return tuple(self._attribute(item) for item in tree.elts)
        if isinstance(tree, ast.List):
            return self._size(tree.elts[0])
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return -self._attribute(tree.operand)
        if isinstance(tree, ast.Name):
            numbers = {"inf": float("inf"), "nan": float("nan")}
            return numbers[tree.id] if tree.id in numbers else ANY_BY_TEXT[tree.id]
        if isinstance(tree, ast.Constant):
            return tree.value
        raise ValueError(f"unexpected attribute {ast.unparse(tree)}")

    def _size(self, tree: ast.expr) -> Size:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return tree.value
        if isinstance(tree, ast.Name):
            known = self.graph.symbols[tree.id]
            return symbol(known.name, known.low, known.high)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return simplify(-1 * lift(self._size(tree.operand)))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            return apply(tree.func.id, *(self._size(item) for item in tree.args))
        if isinstance(tree, ast.BinOp):
            left, right = self._size(tree.left), self._size(tree.right)
            if isinstance(tree.op, ast.Add):
                return simplify(lift(left) + right)
            if isinstance(tree.op, ast.Mult):
                return simplify(lift(left) * right)
            functions: dict[type, str] = {ast.FloorDiv: "//", ast.Mod: "%"}
            return apply(functions[type(tree.op)], left, right)
        raise ValueError(f"unexpected size {ast.unparse(tree)}")
