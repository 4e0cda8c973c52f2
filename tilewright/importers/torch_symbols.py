"""Converts PyTorch's symbolic sizes (SymInt, sympy) to tilewright sizes with the ranges of the export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from tilewright.dtypes import float64, int64
from tilewright.errors import ImportModelError, a_kind
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.importers.shapes import LARGEST_SIZE, Dimension
from tilewright.importers.torch_assumed import Assumption
from tilewright.importers.torch_floats import ROUNDED, computed_in_floats, in_whole_numbers
from tilewright.importers.torch_proved import only_value
from tilewright.symbolic import (
    Size,
    floor_divide,
    lift,
    lower_bound,
    maximum,
    minimum,
    modulo,
    simplify,
    upper_bound,
)

_USE_WHOLE_NUMBERS = "use whole-number arithmetic on sizes"
_LARGEST_FRACTION = 64  # denominator of a factor of sizes


class SymbolTable:
    """The sympy symbols of one program and the graph symbols they became."""

    def __init__(
        self,
        builder: GraphBuilder,
        ranges: Mapping[Any, Any],
        squeezed: frozenset[str] = frozenset(),
        run_time: bool = False,
    ) -> None:
        """`squeezed` names the symbols that are never 1 (`squeezed_symbols`). With `run_time`, sizes that depend on
        data become symbols whose values the run finds; a node must tell each of them. Those that floats of sizes give
        are always such."""
        self.builder = builder
        self.squeezed = squeezed
        self.run_time = run_time
        self.ranges = {str(symbol): bounds for symbol, bounds in ranges.items()}
        self.sizes: dict[str, Size] = {}
        self.assumptions: Sequence[Assumption] = ()  # conditions on sizes that every call has passed
        self._numbers: dict[Any, int | None] = {}  # that expressions are while these hold, where they do not vary
        self.never_one: list[str] = []  # the names of squeezed dimensions
        self.numbers: dict[str, Value] = {}  # numbers that were read and may be negative
        self.truths: dict[str, Value] = {}  # booleans that were read, by the symbol that is 1 where one is true
        self.required: set[str] = set()  # the symbols of those that must be true, or false, in every call

    def name(self, expression: Any, dimension: Dimension | None, default: str) -> None:
        """Give the symbol of a size its name, and the range that the size's own range leaves it.

        The size is the symbol or linear in it (``8*s``); those with several symbols are left alone.
        Raises `ImportModelError` for a dimension whose range has no such size.
        """
        linear = linear_in(expression)
        if linear is None or str(linear[0]) in self.sizes:
            return
        symbol, slope, start = linear
        low, high = self._range(str(symbol))
        name = default
        if dimension is not None:
            name = dimension.name
            factor, offset = slope, start
            exported = f"{factor * low + offset}..{factor * high + offset}"
            low = max(low, -((offset - dimension.low) // factor))
            high = min(high, (dimension.high - offset) // factor)
            if low > high:
                raise ImportModelError(
                    f"dynamic dimension {name!r}: its range {dimension.low}..{dimension.high} has none of the sizes "
                    f"for which the model was exported ({expression}, {exported}); give a range that has some"
                )
        if low < 2 and str(symbol) in self.squeezed:
            low = 2
            self.never_one.append(name)
        self._share(str(symbol), name, low, max(low, high))

    def _share(self, symbol: str, name: str, low: int, high: int) -> None:
        """Several symbols of a program that have one name are one size, with the range that all of them leave it."""
        before = self.builder.symbol(name, low, high)
        size = self.builder.narrow(name, low, high)
        if size is None:
            raise ImportModelError(
                f"dynamic dimension {name!r}: one input takes {low}..{high}, another one none of these sizes; "
                "give these dimensions other names"
            )
        self.sizes = {key: size if known == before else known for key, known in self.sizes.items()} | {symbol: size}

    def is_size(self, symbol: Any) -> bool:
        """Whether a symbol cannot be negative, so that it may be the size of something."""
        bounds = self.ranges.get(str(symbol))
        return bounds is None or bool(bounds.lower >= 0)

    def _range(self, name: str) -> tuple[int, int]:
        """The exported range. PyTorch's default lower bound of 2 stands for "not specialised": 1 is allowed."""
        bounds = self.ranges.get(name)
        if bounds is None:
            return 1, LARGEST_SIZE
        low = int(bounds.lower) if isinstance(bounds.lower, sympy.Integer) else 1
        high = int(bounds.upper) if isinstance(bounds.upper, sympy.Integer) else LARGEST_SIZE
        return (1 if low <= 2 < high else low), min(high, LARGEST_SIZE)

    def size(self, value: Any) -> Size:
        """An int, SymInt or sympy expression as a size; raises `Unsupported` for data-dependent ones."""
        if isinstance(value, int):
            return int(value)
        if isinstance(value, torch.SymInt):
            return self.size(value.node.expr)
        try:
            expression = sympy.sympify(value, strict=True)  # which never evaluates a text of the file
        except sympy.SympifyError:
            raise Unsupported(f"a size that is {a_kind(value)}") from None
        number = self._number(expression)
        return simplify(self._convert(expression)) if number is None else number

    def _number(self, expression: Any) -> int | None:
        """What a size is while these conditions hold, if it does not vary: ``s // (s // 8)`` of a multiple of 8."""
        symbols = sorted(expression.free_symbols, key=str)
        asked_of = {symbol for each in self.assumptions for symbol in each.condition.free_symbols}
        known = all(str(each) in self.sizes for each in symbols)
        if expression.is_Symbol or not known or asked_of.isdisjoint(symbols):
            return None
        if expression not in self._numbers:
            sizes = {symbol: self.sizes[str(symbol)] for symbol in symbols}
            ranges = {symbol: (lower_bound(size), upper_bound(size)) for symbol, size in sizes.items()}
            self._numbers[expression] = only_value(expression, ranges, self.assumptions)
        return self._numbers[expression]

    def number(self, value: torch.SymFloat) -> Value:
        """A float of sizes as a float64 that the run computes; raises `Unsupported` for others."""
        expression = value.node.expr
        if not all(symbol.is_integer for symbol in expression.free_symbols):
            raise Unsupported(f"a number that is {expression}")
        return Emitter(self.builder).cast(computed_in_floats(Emitter(self.builder), self.size, expression), float64)

    def given_number(self, value: Any, name: str) -> Value:
        """A new input of the graph for a Python number that a call gives: an int64 or float64 without dimensions."""
        number = self.builder.input(name, float64 if isinstance(value, torch.SymFloat) else int64, ())
        self.numbers[str(value.node.expr)] = number
        return number

    def always(self, condition: Any) -> bool:
        """Whether a condition on sizes, a sympy relation, holds for all of them, as far as can be told here."""
        if not isinstance(condition, sympy.core.relational.Relational):
            return condition is sympy.true
        try:
            difference = self.size(condition.lhs - condition.rhs)
        except Unsupported:
            return False
        low, high = lower_bound(difference), upper_bound(difference)
        holds = {
            "==": low == high == 0, "!=": low > 0 or high < 0,
            "<=": high <= 0, "<": high < 0, ">=": low >= 0, ">": low > 0,
        }  # fmt: skip
        return holds[condition.rel_op]

    def shape(self, shape: Sequence[Any]) -> tuple[Size, ...]:
        """Every entry of a shape."""
        return tuple(self.size(extent) for extent in shape)

    def _convert(self, expression: Any) -> Size:
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Symbol):
            return self._symbol(str(expression))
        if isinstance(expression, sympy.Add):
            found = self._of_number(expression)
            if found is not None:
                return found
            return sum((lift(self._convert(part)) for part in expression.args), start=lift(0))
        if isinstance(expression, sympy.Mul):
            return self._product(expression)
        if isinstance(expression, sympy.Pow) and isinstance(expression.exp, sympy.Integer) and expression.exp > 0:
            base, total = self._convert(expression.base), lift(1)
            for _ in range(int(expression.exp)):
                total = lift(total * base)
            return total
        return self._function(expression)

    def _symbol(self, name: str) -> Size:
        if name not in self.sizes and self.run_time and self._is_told(name) and name not in self.truths:
            high = self.ranges[name].upper
            self.sizes[name] = self.builder.run_time_symbol(
                "size",
                max(0, int(self.ranges[name].lower)),
                min(int(high), LARGEST_SIZE) if high.is_Integer else LARGEST_SIZE,
            )
        if name not in self.sizes:
            raise Unsupported(
                f"a size ({name}) that depends on the data of a tensor",
                "compute it from input shapes, or pass it as the shape of an input",
            )
        return self.sizes[name]

    def _of_number(self, expression: Any) -> Size | None:
        """A number that was read and may be negative, and a constant, as a size: ``int(x.max()) + 1``."""
        constant, rest = expression.as_coeff_Add()
        number = self.numbers.get(str(rest))
        bounds = self.ranges.get(str(rest))
        if number is None or bounds is None or not bool(bounds.lower + constant >= 0):
            return None
        name = str(expression)
        if name not in self.sizes:
            high = bounds.upper + constant
            self.sizes[name] = self.builder.run_time_symbol(
                "size", int(bounds.lower + constant), min(int(high), LARGEST_SIZE) if high.is_Integer else LARGEST_SIZE
            )
            more = self.builder.op("add", [number, self.builder.number(int(constant), int64)])
            subject = "a size that follows from the number that .item() gives"
            self.builder.op("extent", [more], element=0, size=self.sizes[name], what=subject)
        return self.sizes[name]

    def _is_told(self, name: str) -> bool:
        """Whether a symbol stands for a size that the run finds: never negative."""
        bounds = self.ranges.get(name)
        return symbol_is_type(sympy.Symbol(name), SymT.UNBACKED_INT) and bounds is not None and bool(bounds.lower >= 0)

    def is_untold(self, size: Any) -> bool:
        """Whether a size is a symbol that the run finds and that stands for nothing so far."""
        if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol:
            return False
        return self.run_time and self.is_unbacked(size.node.expr) and str(size.node.expr) not in self.sizes

    def any_count(self, size: Any) -> None:
        """Let a size that the run finds be 0 or 1 too, where the export assumes at least 2 (an operator's default)."""
        if self.is_untold(size):
            self.sizes[str(size.node.expr)] = self.builder.run_time_symbol("size")

    def is_unbacked(self, expression: Any) -> bool:
        """Whether an expression has symbols that depend on data."""
        return any(symbol_is_type(symbol, SymT.UNBACKED_INT) for symbol in expression.free_symbols)

    def _product(self, expression: Any, fractions: bool = False, to_zero: bool = False) -> Size:
        """`fractions`: floats that are fractions of a small power of two are factors too, of what is cut to an integer
        (`to_zero`: also where it is negative); products by others are rounded by PyTorch before that."""
        total, divisor = lift(1), 1
        for part in expression.args:
            if fractions and isinstance(part, sympy.Float):
                top, bottom = float(part).as_integer_ratio()
                if top < 0 or bottom > _LARGEST_FRACTION:
                    raise Unsupported(f"a size that is {part} times another", "use a factor such as 0.5 or 1.25")
                total, divisor = lift(total * top), divisor * bottom
            elif isinstance(part, sympy.Rational) and not isinstance(part, sympy.Integer):
                total, divisor = lift(total * int(part.p)), divisor * int(part.q)
            else:
                total = lift(total * self._convert(part))
        if to_zero and lower_bound(total) < 0:
            above, below = (floor_divide(maximum(side, 0), divisor) for side in (total, lift(0) - total))
            return lift(above) - below
        return floor_divide(total, divisor)

    def _function(self, expression: Any) -> Size:
        kind = type(expression).__name__
        if kind in ROUNDED:
            return self._rounded(expression, kind)
        parts = [self._convert(part) for part in expression.args]
        if kind in ("FloorDiv", "CleanDiv"):
            return floor_divide(*parts)
        if kind in ("Mod", "PythonMod"):
            return modulo(*parts)
        if kind == "ModularIndexing":
            return modulo(floor_divide(parts[0], parts[1]), parts[2])
        if kind in ("Max", "Min"):
            total = parts[0]
            for part in parts[1:]:
                total = maximum(total, part) if kind == "Max" else minimum(total, part)
            return total
        if kind == "Abs":
            return maximum(parts[0], lift(0) - parts[0])
        if kind in ("Identity", "ToFloat"):
            return parts[0]
        raise Unsupported(f"a size computed by {kind}: {expression}", _USE_WHOLE_NUMBERS)

    def _rounded(self, expression: Any, kind: str) -> Size:
        """A float of sizes as a whole number: a formula, or a size that the run finds."""
        (inner,) = expression.args
        if str(expression) in self.sizes:
            return self.sizes[str(expression)]
        with suppress(Unsupported):
            if inner.is_Mul and kind in ("TruncToInt", "FloorToInt"):
                return self._product(inner, fractions=True, to_zero=kind == "TruncToInt")
            return self._convert(inner)
        found = None
        if len(expression.free_symbols) == 1:
            (symbol,) = expression.free_symbols
            size = self._symbol(str(symbol))
            found = in_whole_numbers(expression, symbol, size, lower_bound(size), upper_bound(size))
        self.sizes[str(expression)] = self._of_floats(expression) if found is None else found
        return self.sizes[str(expression)]

    def _of_floats(self, expression: Any) -> Size:
        """A whole number that the run computes in floats as a size, if it is never negative."""
        known = {symbol: self._symbol(str(symbol)) for symbol in expression.free_symbols}
        ranges = {symbol: ValueRanges(lower_bound(size), upper_bound(size)) for symbol, size in known.items()}
        bounds = bound_sympy(expression, ranges)
        if not bool(bounds.lower >= 0):
            raise Unsupported(f"a size computed by {type(expression).__name__}: {expression}", _USE_WHOLE_NUMBERS)
        number = computed_in_floats(Emitter(self.builder), self.size, expression)
        high = min(int(bounds.upper), LARGEST_SIZE) if bounds.upper.is_Integer else LARGEST_SIZE
        size = self.builder.run_time_symbol("size", int(bounds.lower), high)
        self.builder.op("extent", [number], element=0, size=size, what=f"a size that is {expression}")
        return size


def squeezed_symbols(graph: fx.Graph) -> frozenset[str]:
    """The symbols of `squeezed`, by name."""
    return frozenset(map(str, squeezed(graph)))


def squeezed(graph: fx.Graph) -> dict[Any, fx.Node]:
    """The symbols that are the size of a dimension that a squeeze would drop if it were 1, with the squeeze: PyTorch
    takes sizes that vary for greater ones, and the result would have another rank."""
    found: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not str(node.target).startswith("aten.squeeze"):
            continue
        shape = node.args[0].meta["val"].shape
        dims = node.args[1] if len(node.args) > 1 else range(len(shape))
        for axis in [dims] if isinstance(dims, int) else dims:
            extent = shape[axis] if shape else 1
            if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                found.setdefault(extent.node.expr, node)
    return found


def linear_in(expression: Any) -> tuple[Any, int, int] | None:
    """The only symbol of a size that grows linearly with it, the factor and the offset: ``8*s + 1``; else None."""
    (symbol, *others) = sorted(expression.free_symbols, key=str) or [None]
    if symbol is None or others:
        return None
    slope, start = expression.coeff(symbol), expression.subs(symbol, 0)
    if not (slope.is_Integer and slope > 0 and expression - slope * symbol == start):
        return None
    return symbol, int(slope), int(start)


def assertions_hold(program: ExportedProgram) -> bool:
    """Whether all that an exported program asserts of its inputs' sizes holds for the whole of their ranges."""
    symbols = SymbolTable(GraphBuilder("sizes"), program.range_constraints)
    for node in program.graph.find_nodes(op="placeholder"):
        for extent in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(extent, torch.SymInt):
                symbols.name(extent.node.expr, None, f"size_{len(symbols.sizes)}")
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        value = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else node.args[0]
        if not (symbols.always(value.node.expr) if isinstance(value, torch.SymBool) else value):
            return False
    return True
