"""`GraphBuilder`: the builder with which importers and tests make graphs.

    b = GraphBuilder("mlp")
    batch = b.symbol("batch", 1, 64)
    x = b.input("x", float32, (batch, 8))
    w = b.constant(weights, "fc.weight")                     # [4, 8]
    y = b.op("relu", [b.op("matmul", [x, w], transpose_b=True)], source="fc")
    b.output(y, "y")
    graph = b.finish()

Shapes and element types of results are inferred at once; an op that does not fit raises `ShapeError`
naming the op and its source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from tilewright.dtypes import DType, float32, from_numpy, int64
from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.inference import check_shape
from tilewright.graph.ops import OPS, infer_types, normalize
from tilewright.graph.verifier import verify
from tilewright.symbolic import Size, Symbol, simplify, symbol

_ARITHMETIC = ("add", "subtract", "multiply", "divide")
Operand = Union[Value, int, float, bool, None]


def plain_name(name: str) -> str:
    """A name as values have it: characters that they cannot hold become ``_``."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name) or "value"


class GraphBuilder:
    """Builds one graph, node after node, with inferred types and unique names."""

    def __init__(self, name: str, outer: GraphBuilder | None = None) -> None:
        """`outer` builds the graph that this one will be inside of, and whose sizes it knows."""
        self.graph: Graph = Graph(name, {} if outer is None else dict(outer.graph.symbols))
        self.is_inside = outer is not None
        self._sizes: dict[str, int] = {} if outer is None else outer._sizes  # how many of each hint there are
        self.run_time_names: set[str] = set() if outer is None else outer.run_time_names
        self.sizes_read: dict[tuple[Any, ...], Size] = {}  # run-time sizes that importers have read, by what of
        self.made_of: dict[Size, frozenset[Size]] = {}  # run-time sizes to which others broadcast, and these
        self.lists_of_sizes: dict[tuple[Any, ...], Value] = {}  # tensors of sizes, by their elements' texts
        self._streams = 0  # of random bits
        self._names: dict[str, int] = {}  # and how many suffixes of each were tried
        self._numbers: dict[tuple[DType, Any], Value] = {}

    def symbol(self, name: str, low: int = 1, high: int = 2**31 - 1) -> Size:
        """A symbolic size with its inclusive range; the same name gives the same symbol."""
        self.graph.symbols.setdefault(name, Symbol(name, low, high))
        known = self.graph.symbols[name]
        return symbol(name, known.low, known.high)

    def narrow(self, name: str, low: int, high: int) -> Size | None:
        """The symbol of that name, whose range from here on is the part of its own that lies in this one; None where
        no size lies in both.  Shapes must not have it yet."""
        known = self.graph.symbols.get(name, Symbol(name, low, high))
        low, high = max(low, known.low), min(high, known.high)
        if low > high:
            return None
        self.graph.symbols[name] = Symbol(name, low, high)
        return symbol(name, low, high)

    def run_time_symbol(self, hint: str, low: int = 0, high: int = 2**31 - 1) -> Size:
        """A symbol of its own for a size that only the run knows."""
        number = self._sizes.get(hint, 0) + 1
        while f"{hint}_{number}" in self.graph.symbols:
            number += 1
        self._sizes[hint] = number
        self.run_time_names.add(f"{hint}_{number}")
        return self.symbol(f"{hint}_{number}", low, high)

    def input(self, name: str, dtype: DType, shape: Sequence[Size]) -> Value:
        """A graph input; its name is kept as given, since callers use it."""
        value = Value(self._unique(name or "value"), dtype, tuple(map(simplify, shape)))
        self.graph.inputs.append(value)
        return value

    def seed(self) -> Value:
        """The input that random numbers follow from; it is declared when the first ones are drawn."""
        if self.graph.seed is None:
            self.graph.seed = self.input("seed", int64, ()).name
        return next(value for value in self.graph.inputs if value.name == self.graph.seed)

    def next_stream(self) -> int:
        """A number that no other draw of the graph has."""
        self._streams += 1
        return self._streams - 1

    def constant(self, array: np.ndarray | float, name: str = "constant") -> Value:
        """A constant; the array is kept, not copied. Text (an array of strings as objects) is part of the graph."""
        data = np.asarray(array)
        if data.dtype == object:
            return self.op("text", elements=tuple(data.reshape(-1).tolist()), shape=data.shape, result=name)
        value = Value(self._unique(plain_name(name)), from_numpy(data.dtype), data.shape)
        self.graph.constants[value] = data
        return value

    def number(self, value: int | float | bool, dtype: DType) -> Value:
        """A scalar constant; equal ones are shared."""
        key = (dtype, repr(value))
        if key not in self._numbers:
            self._numbers[key] = self.constant(np.array(value, dtype.numpy), f"c_{value}")
        return self._numbers[key]

    def factor(self, value: int | float | bool, dtype: DType) -> Value:
        """A scalar constant for arithmetic with elements of `dtype`: float32 where 16-bit floats do not hold it."""
        if not dtype.is_float or dtype.bits != 16:
            return self.number(value, dtype)
        with np.errstate(over="ignore"):
            exact = not math.isfinite(value) or float(dtype.numpy.type(value)) == value
        return self.number(value, dtype if exact else float32)

    def op(
        self, op: str, inputs: Sequence[Operand] = (), source: str = "", result: str = "", **attributes: Any
    ) -> Value:
        """Append a node of one output and return it.

        Python numbers among `inputs` become scalar constants of the element type of the other inputs.
        `source` says where in the user's model the op came from, `result` suggests the output's name.
        """
        return self.node(op, inputs, source, result, **attributes).output

    def node(
        self, op: str, inputs: Sequence[Operand] = (), source: str = "", result: str = "", **attributes: Any
    ) -> Node:
        """As `op`, for any number of outputs: the node itself."""
        if op not in OPS:
            raise ShapeError(f"unknown graph op {op!r}")
        values = self._operands(op, inputs)
        try:
            attributes = normalize(op, values, attributes)
            types = infer_types(op, values, attributes)
            for _, shape in types:
                check_shape(shape)
        except ShapeError as error:
            where = f" (from {source})" if source else ""
            message = str(error) if str(error).startswith(op) else f"{op}: {error}"
            raise ShapeError(f"{message}; inputs: {', '.join(map(repr, values))}{where}") from None
        outputs = [Value(self._unique(plain_name(result or op)), dtype, shape) for dtype, shape in types]
        self.graph.nodes.append(Node(op, values, outputs, attributes, source))
        return self.graph.nodes[-1]

    def rename(self, value: Value, name: str) -> None:
        """Give a computed value a name that its user knows; characters that names cannot hold become ``_``."""
        value.name = self._unique(plain_name(name))

    def output(self, value: Value, name: str = "") -> None:
        """Declare a graph output."""
        self.graph.outputs.append(value)
        self.graph.output_names.append(name or value.name)

    def mutate(self, input_value: Value, value: Value) -> None:
        """Declare that the caller's buffer of an input holds `value` after the run."""
        if input_value not in self.graph.inputs:
            raise ShapeError(f"{input_value!r} is not an input, so it cannot be mutated")
        if (input_value.dtype, input_value.shape) != (value.dtype, value.shape):
            raise ShapeError(f"{value!r} cannot take the place of {input_value!r}")
        self.graph.mutations[input_value] = value

    def finish(self) -> Graph:
        """The verified graph."""
        verify(self.graph)
        return self.graph

    def _operands(self, op: str, inputs: Sequence[Operand]) -> list[Value | None]:
        typed = [item for item in inputs if isinstance(item, Value)]
        others = [item.dtype for item in typed if op != "where" or item is not inputs[0]]
        result: list[Value | None] = []
        for item in inputs:
            if item is None or isinstance(item, Value):
                result.append(item)
            elif not others:
                raise ShapeError(
                    f"{op}: the number {item!r} has no operand that gives it an element type; use constant()"
                )
            else:
                result.append(self.factor(item, others[0]) if op in _ARITHMETIC else self.number(item, others[0]))
        while result and result[-1] is None:
            result.pop()
        return result

    def _unique(self, base: str) -> str:
        candidate, count = base, self._names.get(base, 0)
        while candidate in self._names:
            count += 1
            candidate = f"{base}_{count}"
        self._names[base] = count
        self._names.setdefault(candidate, 0)
        return candidate
