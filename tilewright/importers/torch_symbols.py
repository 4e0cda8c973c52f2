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
from tilewright.importers.torch_data_conditions import Assumption
from tilewright.importers.torch_floats import ROUNDING_FUNCTIONS, computed_in_floats, in_whole_numbers, tried_ends
from tilewright.importers.torch_size_conditions import only_value
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
        self, builder: GraphBuilder, ranges: Mapping[Any, Any], squeezed: frozenset[str] = frozenset(),
        run_time: bool = False,
    ) -> None:  # fmt: skip
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
        self._given: dict[Any, Size] = {}  # formulas whose value each call gives
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

    def is_never_one(self, size: Any) -> bool:
        """Whether every call has passed the condition that a size, a SymInt, is not 1."""
        condition = sympy.Ne(size.node.expr, 1) if isinstance(size, torch.SymInt) else None
        return any(each.condition == condition for each in self.assumptions)

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
        high = _end(bounds)
        return (1 if low <= 2 < high else low), high

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

    def name_number(self, value: torch.SymInt, name: str, may_be_zero: bool = True) -> Size | None:
        """Let a number that each call gives be a size by itself, such as ``max(n, 1)``, where it is never negative and
        follows from no other size; None where it is not so. Otherwise the symbol that stands for it, or for one more
        if it is 0 in some calls that the graph takes."""
        expression = value.node.expr
        with suppress(Unsupported):
            self.size(expression)
            return None
        bounds = self._bounds(expression)
        if not bool(bounds.lower >= 0):
            return None
        more = int(may_be_zero and bounds.lower == 0)
        symbol = self.builder.symbol(name, max(1, int(bounds.lower)), min(_end(bounds) + more, LARGEST_SIZE))
        size = simplify(lift(symbol) - more)
        self.sizes[str(expression)] = self._given[expression] = size
        constant, rest = expression.as_coeff_Add()
        self._given[rest] = simplify(lift(size) - int(constant))
        return symbol

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
        if expression in self._given:
            return self._given[expression]
        try:
            return self._formula(expression)
        except Unsupported:
            found = self._of_numbers(expression)
            if found is None:
                raise
        return found

    def _formula(self, expression: Any) -> Size:
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Symbol):
            return self._symbol(str(expression))
        if isinstance(expression, sympy.Add):
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
        if name not in self.sizes and self.run_time and self._is_found_at_run_time(name) and name not in self.truths:
            bounds = self.ranges[name]
            self.sizes[name] = self.builder.run_time_symbol("size", max(0, int(bounds.lower)), _end(bounds))
        if name not in self.sizes:
            raise Unsupported(
                f"a size ({name}) that depends on the data of a tensor",
                "compute it from input shapes, or pass it as the shape of an input",
            )
        return self.sizes[name]

    def _of_numbers(self, expression: Any) -> Size | None:
        """A formula of numbers that may be negative as a size that the run finds, where it never is: ``abs(n) + 1``."""
        names = {str(symbol) for symbol in expression.free_symbols}
        if names.isdisjoint(self.numbers) or not names <= self.numbers.keys() | self.sizes.keys():
            return None
        bounds = self._bounds(expression)
        if not bool(bounds.lower >= 0):
            return None
        if str(expression) not in self.sizes:
            number = computed_in_floats(Emitter(self.builder), self._operand, expression)
            subject = "a size that follows from a number"
            self.sizes[str(expression)] = self._found_by_the_run(number, bounds, subject)
        return self.sizes[str(expression)]

    def is_of_numbers(self, value: torch.SymInt) -> bool:
        """Whether it is a formula of numbers that may be negative, other than one of them and a constant."""
        _, rest = value.node.expr.as_coeff_Add()
        return not rest.is_Symbol and any(str(symbol) in self.numbers for symbol in rest.free_symbols)

    def _operand(self, expression: Any) -> Value | Size:
        """What a formula of numbers has in it: a number, or a size."""
        number = self.numbers.get(str(expression))
        return self._formula(expression) if number is None else number

    def _bounds(self, expression: Any) -> Any:
        """The least and the largest value that a formula of sizes and numbers may have."""
        ranges = {symbol: self._bounds_of(str(symbol)) for symbol in expression.free_symbols}
        return bound_sympy(expression, ranges)

    def _bounds_of(self, name: str) -> Any:
        size = self.sizes.get(name)
        if size is not None:
            return ValueRanges(lower_bound(size), upper_bound(size))
        return self.ranges.get(name, ValueRanges.unknown_int())

    def _found_by_the_run(self, number: Value, bounds: Any, subject: str) -> Size:
        """A size that is a number which the run computes."""
        size = self.builder.run_time_symbol("size", int(bounds.lower), _end(bounds))
        self.builder.op("extent", [number], element=0, size=size, what=subject)
        return size

    def _is_found_at_run_time(self, name: str) -> bool:
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
        return any(map(_is_unbacked, expression.free_symbols))

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
        if kind in ROUNDING_FUNCTIONS:
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
        for symbol in expression.free_symbols:
            self._symbol(str(symbol))
        bounds = self._bounds(expression)
        if not bool(bounds.lower >= 0):
            bounds = self._tried(expression)
        if bounds is None:
            raise Unsupported(f"a size computed by {type(expression).__name__}: {expression}", _USE_WHOLE_NUMBERS)
        number = computed_in_floats(Emitter(self.builder), self.size, expression)
        return self._found_by_the_run(number, bounds, f"a size that is {expression}")

    def _tried(self, expression: Any) -> ValueRanges[Any] | None:
        """The range of a rounded float of one size, by what it is for each; None where that may be negative."""
        if len(expression.free_symbols) != 1:
            return None
        (symbol,) = expression.free_symbols
        size = self._symbol(str(symbol))
        ends = tried_ends(expression, symbol, lower_bound(size), upper_bound(size))
        return ValueRanges(*ends) if ends is not None and ends[0] >= 0 else None


def _end(bounds: Any) -> int:
    """The largest size within bounds."""
    return min(int(bounds.upper), LARGEST_SIZE) if bounds.upper.is_Integer else LARGEST_SIZE


def squeezed_symbols(graph: fx.Graph) -> frozenset[str]:
    """The symbols among the sizes of `squeezed`, by name."""
    return frozenset(str(size) for size in squeezed(graph) if size.is_Symbol)


def squeezed(graph: fx.Graph) -> dict[Any, fx.Node]:
    """The sizes of dimensions that a squeeze would drop if they were 1, with the squeeze: PyTorch takes sizes that vary
    for greater ones, and the result would have another rank."""
    found: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not str(node.target).startswith("aten.squeeze"):
            continue
        shape = node.args[0].meta["val"].shape
        dims = node.args[1] if len(node.args) > 1 else range(len(shape))
        for axis in [dims] if isinstance(dims, int) else dims:
            extent = shape[axis] if shape else 1
            if isinstance(extent, torch.SymInt):
                found.setdefault(extent.node.expr, node)
    return found


def may_be_one(size: Any, ranges: Mapping[Any, Any]) -> bool:
    """Whether a formula of sizes of inputs is 1 for some of them; a range that PyTorch has begin at 2 has 1 too."""
    if not size.free_symbols <= ranges.keys() or any(map(_is_unbacked, size.free_symbols)):
        return False
    known = {symbol: ranges[symbol] for symbol in size.free_symbols}
    whole = {symbol: ValueRanges(1, each.upper) if each.lower == 2 else each for symbol, each in known.items()}
    bounds = bound_sympy(size, whole)
    return bool(bounds.lower <= 1) and bool(bounds.upper >= 1)


def _is_unbacked(symbol: Any) -> bool:
    return symbol_is_type(symbol, SymT.UNBACKED_INT)


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
