"""Tile-language source text for traced expressions.

`Writer` turns the expressions of one kernel, or of one epilogue, into lines of code.  The loop space
has axes (dimensions of the output, possibly split); neighbouring axes that every access crosses in
step are merged into one loop variable.  Texts are the same for equal computations: values are
numbered in order of use, never named after the model, so that equal layers share one kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, carrier, float8e4nv, float8e5, float32, float64
from tilewright.graph.core import Value
from tilewright.library.candidate import TensorPart
from tilewright.library.generated.expressions import (
    compute_type,
    expression,
    literal,
    narrowed,
    takes_types,
    typed_literal,
)
from tilewright.library.generated.index import Atom, Bounded, Coordinate, Division, Index, Loaded, coordinate
from tilewright.library.generated.intervals import interval
from tilewright.library.generated.trace import (
    Conditional,
    ElementwiseOperation,
    Expression,
    ExpressionTracer,
    Given,
    Guards,
    Literal,
    Load,
    Position,
    walk,
)
from tilewright.symbolic import Size, lift, lower_bound, simplify, upper_bound

_RELAXED = ', sem="relaxed"'
_STORES = {"": ("store", ""), "add": ("atomic_add", _RELAXED), "maximum": ("atomic_max", _RELAXED),
           "minimum": ("atomic_min", _RELAXED)}  # fmt: skip


class References(Protocol):
    """How the code names what it gets from outside; each new one becomes a parameter."""

    def tensor(self, value: Value, start: int = 0) -> str:
        """The text of a pointer to a tensor, or to element `start` of it."""
        ...

    @property
    def parts(self) -> bool:
        """Whether pointers to other elements than the first can be had."""
        ...

    def size(self, size: Size) -> str:
        """The text of a symbolic size."""
        ...


@dataclass
class NamedReferences:
    """Parameters `x0`, `x1`, … for tensors that are read, `out0`, … for results, `n0`, … for sizes."""

    operands: dict[str, Any] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    parts: bool = False
    _names: dict[Any, str] = field(default_factory=dict)

    def tensor(self, value: Value, start: int = 0) -> str:
        return self._name(TensorPart(value, start) if start else value, "x")

    def result(self, value: Value) -> str:
        """The text of a pointer to a tensor that is written."""
        return self._name(value, "out")

    def size(self, size: Size) -> str:
        name = self._name(size, "n")
        self.types[name] = "i64"
        return name

    def _name(self, key: Any, prefix: str) -> str:
        if key not in self._names:
            name = f"{prefix}{sum(other.startswith(prefix) for other in self._names.values())}"
            self._names[key] = name
            self.operands[name] = key
        return self._names[key]


@dataclass
class ExtraReferences:
    """Entries of the `*extra` operands of a library kernel, shared by its prologue and epilogue; the `first` ones are
    the kernel's own."""

    operands: dict[str, Any] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    parts: bool = False
    first: int = 0
    _positions: dict[Any, int] = field(default_factory=dict)

    def tensor(self, value: Value, start: int = 0) -> str:
        return f"extra[{self._position(TensorPart(value, start) if start else value)}]"

    result = tensor

    def size(self, size: Size) -> str:
        return f"extra[{self.place(size)}]"

    def place(self, operand: Value | Size) -> int:
        """The place of a tensor's address, or of a size."""
        position = self._position(operand)
        if not isinstance(operand, Value):
            self.types[f"extra_{position}"] = "i64"
        return position

    def scalar(self, value: Value) -> str:
        """The text of a value of one element that each launch is given as a number."""
        position = self._position(value)
        self.types[f"extra_{position}"] = value.dtype.text
        return f"extra[{position}]"

    def number(self, number: float) -> int:
        """The place of a number that each launch is given, so that kernels do not differ by it."""
        position = self._position(("number", number))
        self.operands[f"extra_{position}"] = number
        self.types[f"extra_{position}"] = "f32"
        return position

    def _position(self, key: Any) -> int:
        if key not in self._positions:
            self._positions[key] = self.first + len(self._positions)
            self.operands[f"extra_{self._positions[key]}"] = key
        return self._positions[key]


@dataclass(frozen=True)
class LoopVariable:
    """Neighbouring axes of the loop space that are walked as one."""

    axes: tuple[int, ...]
    extent: Size


@dataclass(frozen=True)
class Turned:
    """A tile of which some tensors have `inner` columns side by side, then rows."""

    row: LoopVariable
    column: LoopVariable
    inner: int


def merge_axes(
    extents: Sequence[Size], indices: Iterable[Index], fixed: frozenset[int] = frozenset()
) -> list[LoopVariable]:
    """The fewest loop variables through which every index stays linear.

    Axis i merges with the next when every index advances by `extent` steps of the next for one of i.
    Axes in `fixed` do not merge with the one before them.
    """
    everything = [nested for index in indices for nested in index.nested()]
    variables: list[LoopVariable] = []
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        if variables and axis not in fixed:
            previous = variables[-1].axes[-1]
            if all(
                index.coefficient(previous) == simplify(lift(index.coefficient(axis)) * extent) for index in everything
            ):
                merged = variables.pop()
                total = simplify(lift(merged.extent) * extent)
                variables.append(LoopVariable((*merged.axes, axis), total))
                continue
        variables.append(LoopVariable((axis,), extent))
    return variables


def expression_indices(roots: Iterable[Expression], tracer: ExpressionTracer) -> list[Index]:
    """Every index that occurs in expressions, index tensors' own loads included."""
    found: list[Index] = []
    for root in (*roots, *tracer.loaded.values()):
        found += own_indices(root)
    return found


def own_indices(root: Expression) -> list[Index]:
    """Every index that occurs in one expression."""
    found: list[Index] = []
    for item in walk(root):
        if isinstance(item, (Load, Position)):
            found.append(item.index)
        if isinstance(item, (Load, Conditional)):
            found.extend(guard.index for guard in item.guards)
    return found


def first_elements(roots: Iterable[Expression], tracer: ExpressionTracer) -> dict[Value, int]:
    """For each tensor of which expressions read nothing in front of a known element other than the first: that one."""
    found: dict[Value, int] = {}
    for root in (*roots, *tracer.loaded.values()):
        for item in walk(root):
            if isinstance(item, Load) and item.value.dtype.bits >= 8:
                start = item.index.constant
                start = start if isinstance(start, int) and replace(item.index, constant=0).is_non_negative() else 0
                found[item.value] = min(start, found.get(item.value, start))
    return {value: start for value, start in found.items() if start > 0}


class Writer:
    """Writes expressions as lines of tile language, each computed once.

    `names` gives the text of every loop variable; `mask` the text of the mask of existing elements
    ("mask", which may be None at compile time, or "" when nothing is masked); `column_mask` and `row_mask`, where they
    are given, those of what depends on the column alone and of what does not depend on it; `limits`, the numbers of a
    "column" and of a "row", stand for such masks.  `work` counts what is written: loads "by column", "by row" and "by
    element" that nothing else guards, and operations by name.
    """

    def __init__(
        self, tracer: ExpressionTracer, references: References, variables: Sequence[LoopVariable], names: Sequence[str],
        mask: str, column_mask: str | None = None, row_mask: str | None = None,
    ) -> None:  # fmt: skip
        self.tracer = tracer
        self.references = references
        self.mask = mask
        self.column_mask = column_mask
        self.row_mask = row_mask
        self.lines: list[str] = []
        self.work: Counter[str] = Counter()
        self._texts: dict[int, str] = {}
        self._guards: dict[Guards, str] = {}
        self._divisions: dict[Division, str] = {}
        self._loaded: dict[int, str] = {}
        self._variable_of = {
            variable.axes[-1]: (name, variable) for name, variable in zip(names, variables, strict=True)
        }
        self._given: dict[Value, str] = {}
        self._starts: dict[Value, int] = {}
        self._count = 0
        self.rounds_once = False  # what is stored in 16 bits or fewer is not rounded to 16 bits on the way
        self.narrow_rows = False  # some of the kernels that call this have rows in 32 bits
        self.rounds_before_widening = True  # what is stored in more bits than it was computed for
        self.limits: Mapping[str, Size] = {}
        self.turned: Turned | None = None
        self.of_half: frozenset[str] = frozenset()  # activations of which there is a form of half the argument
        self.scaled: frozenset[str] = frozenset()  # those of which there is one with a factor
        self.divides_roughly = False  # float32 within 2 units in the last place

    def give(self, value: Value, text: str) -> None:
        """Name a value that the surrounding kernel computed."""
        self._given[value] = text

    def start_at(self, starts: dict[Value, int]) -> None:
        """Read tensors from these elements on, where the kernel can be given their addresses."""
        self._starts = starts if self.references.parts else {}

    @contextmanager
    def counting(self, axis: int, name: str, count: int) -> Iterator[None]:
        """What is written inside stands in a loop whose counter is a loop variable of its own."""
        outside, self.lines = self.lines, []
        self._variable_of[axis] = (name, LoopVariable((axis,), count))
        yield
        del self._variable_of[axis]
        inside = [f"{name} = {name}.to(tl.int64)", *self.lines]
        self.lines = [*outside, f"for {name} in range({count}):", *(f"    {line}" for line in inside)]

    def size(self, size: Size) -> str:
        """A size as text: a number, or a parameter."""
        size = simplify(size)
        return str(size) if isinstance(size, int) else self.references.size(size)

    def index(self, index: Index) -> str:
        """An index as text."""
        parts: list[str] = []
        narrow, wide = 0, False  # the largest sum of terms of 32 bits so far; whether one of 64 bits is among them
        for atom, coefficient in index.terms:
            extent = atom.extent
            if isinstance(atom, Coordinate):
                if atom.axis not in self._variable_of:
                    continue  # carried by the variable of a later axis
                text, variable = self._variable_of[atom.axis]
                extent = variable.extent
            elif isinstance(atom, Loaded):
                text = self._loaded_text(atom)
            else:
                assert isinstance(atom, Division)
                text = self._division_text(atom)
            if self._may_be_narrow(atom):
                most = max(0, *(upper_bound(sign * lift(coefficient) * extent) for sign in (1, -1)))
                narrow = most if wide else narrow + most
                if narrow > 2**31 - 1:
                    text, wide = f"{text}.to(tl.int64)", True
            else:
                wide = True
            parts.append(text if coefficient == 1 else f"{text} * {self._factor(coefficient)}")
        if index.constant != 0 or not parts:
            parts.append(self._factor(index.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def _may_be_narrow(self, atom: Atom) -> bool:
        """Whether an atom may be a number of 32 bits: columns are, and rows of the slots of some kernels."""
        if isinstance(atom, Division):
            return all(self._may_be_narrow(inner) for inner, _ in atom.index.terms)
        if not isinstance(atom, Coordinate) or atom.axis not in self._variable_of:
            return isinstance(atom, Coordinate)
        name, _ = self._variable_of[atom.axis]
        return name == "column" or self.narrow_rows and name.startswith("row")

    def _offset(self, index: Index) -> str:
        text = self.index(index)
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def _factor(self, size: Size) -> str:
        return self.size(size)

    def _division_text(self, atom: Division) -> str:
        if atom not in self._divisions:
            operator = "%" if atom.remainder else "//"
            text = f"({self.index(atom.index)}) {operator} {self.size(atom.divisor)}"
            self._divisions[atom] = self.define("i", text)
        return self._divisions[atom]

    def _loaded_text(self, atom: Loaded) -> str:
        if atom.identity not in self._loaded:
            source = self.tracer.loaded[atom.identity]
            name = self.define("i", f"{self.typed(source)}.to(tl.int64)")
            extent, (low, high) = self.size(atom.extent), interval(source)
            last = str(int(extent) - 1) if extent.isdigit() else f"{extent} - 1"
            if low < 0:
                self.lines.append(f"{name} = tl.where({name} < 0, {name} + {extent}, {name})")
            if atom.clamped and (low < 0 or high >= lower_bound(atom.extent)):
                self.lines.append(f"{name} = tl.maximum(tl.minimum({name}, {last}), 0)  # nothing else is ever read")
            self._loaded[atom.identity] = name
        return self._loaded[atom.identity]

    def define(self, prefix: str, text: str, comment: str = "") -> str:
        """Give a text a name of its own: a new line."""
        name = f"{prefix}_{self._count}"
        self._count += 1
        self.lines.append(f"{name} = {text}" + (f"  # {comment}" if comment else ""))
        return name

    def guards(self, guards: Guards) -> str:
        """The conjunction of guards as text."""
        if guards not in self._guards:
            conditions = []
            for guard in guards:
                text = self.index(guard.index)
                if not guard.index.is_non_negative():
                    conditions.append(f"({text} >= 0)")
                conditions.append(f"({text} < {self.size(guard.limit)})")
            self._guards[guards] = self.define("inside", " & ".join(conditions))
        return self._guards[guards]

    def load_mask(self, guards: Guards) -> str:
        """The `mask=` argument of a load or store, with a leading comma; empty when nothing is masked."""
        if guards:
            inside = self.guards(guards)
            return f", mask=and_masks({self.mask}, {inside})" if self.mask else f", mask={inside}"
        return f", mask={self.mask}" if self.mask else ""

    def write(self, item: Expression) -> str:
        """The text of an expression; new lines are added for what is not yet computed."""
        if id(item) not in self._texts:
            self._texts[id(item)] = self._write(item)
        return self._texts[id(item)]

    def _write(self, item: Expression) -> str:
        if isinstance(item, Literal):
            return literal(item.value, item.dtype)
        if isinstance(item, Given):
            return self._given[item.value]
        if isinstance(item, Load):
            start = self._starts.get(item.value, 0)
            if start:
                item = replace(item, index=replace(item.index, constant=simplify(lift(item.index.constant) - start)))
            pointer = self.references.tensor(item.value, start)
            text = self._turned(pointer, item) or f"tl.load({pointer} + {self._masked_index(item)})"
            return self.define("v", text + self._widened(item.dtype))
        if isinstance(item, Conditional):
            inside, outside = self.typed(item.inside), self.typed(item.outside)
            return self.define("v", f"tl.where({self.guards(item.guards)}, {inside}, {outside})")
        if isinstance(item, Position):
            return self._position(item)
        return self._operation(item)

    def _turned(self, pointer: str, item: Load) -> str | None:
        """The load of a tensor that has runs of columns, then rows, as a block in that order, which is turned: threads
        side by side read elements side by side."""
        turned = self.turned
        guards = [guard.index for guard in item.guards]
        if turned is None or self._follows(guards, ("row", "column")):
            return None
        steps = dict(item.index.terms)
        row, column = turned.row.axes[-1], turned.column.axes[-1]
        ((along, _),) = coordinate(row, turned.row.extent).terms
        run, within = (part.terms[0][0] for part in coordinate(column, turned.column.extent).divide(turned.inner))
        if steps.pop(within, 0) != 1 or steps.pop(along, 0) != turned.inner or run not in steps:
            return None
        if turned.inner & turned.inner - 1:
            mask = self.load_mask(item.guards).removeprefix(", mask=")
            return f"tl.load(({pointer} + ({self.index(item.index)})).T, mask=({mask}).T).T"
        step = self._factor(steps.pop(run))
        rest = self.index(Index(tuple(steps.items()), item.index.constant))
        mask = f"and_masks(turned_mask, {self.guards(item.guards)})" if guards else "turned_mask"
        load = f"tl.load({pointer} + ({rest} + turned_row * {step} + turned_column), mask={mask})"
        runs = f"(TILE_COLUMNS // {turned.inner}, TILE_ROWS, {turned.inner})"
        return f"tl.reshape(tl.permute(tl.reshape({load}, {runs}), (1, 0, 2)), (TILE_ROWS, TILE_COLUMNS))"

    def _masked_index(self, item: Load) -> str:
        """The offset of a load with its mask.

        The mask is a block of columns.  A number that does not depend on the column is loaded once, and
        is there whatever the mask says; where its guards do depend on it, it becomes a block of copies.
        """
        offset = self.index(item.index)
        if self.follows_columns([item.index]):
            by_element = self._follows([item.index], "row")
            if not item.guards:
                self.work["by element" if by_element else "by column"] += 1
                mask = None if by_element else self._mask_of("column", self.column_mask)
                if mask is not None:
                    return f"({offset}), mask={mask}" if mask else f"({offset})"
            return f"({offset}){self.load_mask(item.guards)}"
        if self.follows_columns([guard.index for guard in item.guards]):
            return f"({offset} + column * 0){self.load_mask(item.guards)}"
        own = "" if not self.mask or not item.index.terms else f"fitting({self.mask}, {offset})"
        row_mask = self._mask_of("row", self.row_mask) if own else None
        own = own if row_mask is None else row_mask
        if not item.guards:
            self.work["by row"] += bool(item.index.terms)
            return f"({offset}), mask={own}" if own else f"({offset})"
        inside = self.guards(item.guards)
        if any(guard.index.terms for guard in item.guards):  # of rows, which may be a block
            offset = f"copies({offset if item.index.terms else f'tl.full((), {offset}, tl.int64)'}, {inside})"
        return f"({offset}), mask=and_masks({own}, {inside})" if own else f"({offset}), mask={inside}"

    def _mask_of(self, name: str, mask: str | None) -> str | None:
        """The mask of what depends on the row or the column alone, where there is one."""
        return f"{name} < {self.size(self.limits[name])}" if name in self.limits else mask

    def follows_columns(self, indices: Iterable[Index]) -> bool:
        """Whether any of the indices depends on the innermost loop variable."""
        return self._follows(indices, "column")

    def _follows(self, indices: Iterable[Index], name: str | tuple[str, ...]) -> bool:
        """Whether any of the indices depends on a loop variable whose name begins so, or in one of these ways."""
        stack = list(indices)
        while stack:
            for atom, _ in stack.pop().terms:
                if isinstance(atom, (Division, Bounded)):
                    stack.append(atom.index)
                elif isinstance(atom, Loaded):
                    stack += own_indices(self.tracer.loaded[atom.identity])
                elif self._variable_of.get(atom.axis, ("",))[0].startswith(name):
                    return True
        return False

    def _operation(self, item: ElementwiseOperation) -> str:
        clipped = _clipped(item) if item.dtype.is_integer else None
        if clipped is not None:  # conversions of the language saturate, and NaN becomes 0 in either way
            return self.define("v", f"{self.typed(clipped)}.to(tl.{item.dtype.name})", "clip, cast")
        if self.rounds_once and item.node.op == "cast" and item.dtype.is_float and item.dtype.bits == 16:
            source = item.operands[0]
            if source.dtype == float32:
                return self.typed(source)
        halved = self._of_half(item)
        if halved is not None:
            return halved
        scaled = self._scaled(item)
        if scaled is not None:
            return scaled
        if self.divides_roughly and item.node.op == "divide" and compute_type(item.dtype) == float32:
            left, right = map(self.typed, item.operands)
            self.work["divide"] += 1
            return self.define("v", f"rough_quotient({left}, {right})", "divide")
        all_literal = all(isinstance(operand, Literal) for operand in item.operands)
        operands = []
        for position, operand in enumerate(item.operands):
            typed = all_literal or takes_types(item.node, position)
            operands.append(self.typed(operand) if typed else self._operand(operand))
        self.work[item.node.op] += 1
        return self.define("v", expression(item.node).format(*operands), item.node.op)

    def _of_half(self, item: ElementwiseOperation) -> str | None:
        """An activation of a sum with what depends on the column alone, by its form of half the argument: that half
        comes with the addition, of which the column's part is computed once for all rows."""
        name = expression(item.node).removesuffix("({0})")
        total = item.operands[0] if name in self.of_half and "column" in self.limits else None
        if not isinstance(total, ElementwiseOperation) or total.node.op != "add" or id(total) in self._texts:
            return None
        for summand, column in (total.operands, total.operands[::-1]):
            if self._is_by_column(column) and not isinstance(summand, Literal):
                half = f"tl.fma({self._operand(summand)}, 0.5, 0.5 * {self._operand(column)})"
                self.work[item.node.op] += 1
                return self.define("v", f"{name}_of_half({half})", f"add, {item.node.op}")
        return None

    def _is_by_column(self, item: Expression) -> bool:
        """Whether an expression depends on the column alone, and on nothing that the kernel computed."""
        indices = expression_indices([item], self.tracer)
        given = any(isinstance(part, Given) for part in walk(item))
        return not given and self._follows(indices, "column") and not self._follows(indices, "row")

    def _scaled(self, item: ElementwiseOperation) -> str | None:
        """An activation times a constant by its form that has the factor."""
        for factor, source in (
            (item.operands, item.operands[::-1]) if self.scaled and item.node.op == "multiply" else ()
        ):
            while isinstance(source, ElementwiseOperation) and source.node.op == "cast" and source.dtype.is_float:
                source = source.operands[0]
            if not (isinstance(factor, Literal) and isinstance(source, ElementwiseOperation)):
                continue
            name = expression(source.node).removesuffix("({0})")
            if name in self.scaled and id(source) not in self._texts:
                self.work[source.node.op] += 1
                text = f"{name}_scaled({self.typed(source.operands[0])}, {self.write(factor)})"
                return self.define("v", text, f"{source.node.op}, multiply")
        return None

    def _operand(self, item: Expression) -> str:
        text = self.write(item)
        return f"({text})" if text.startswith("-") else text

    def typed(self, item: Expression) -> str:
        """The text of an expression; a number with its type."""
        if isinstance(item, Literal):
            return typed_literal(item.value, compute_type(item.dtype))
        return self.write(item)

    def _position(self, item: Position) -> str:
        dtype = compute_type(item.dtype)
        text = self.index(item.index)
        value = f"({text}).to(tl.{dtype.name})" if item.index.terms else f"tl.full((), {text}, tl.{dtype.name})"
        if item.scale != 1:
            value = f"{value} * {literal(item.scale, dtype)}"
        if item.offset != 0:
            value = f"{value} + {literal(item.offset, dtype)}"
        return self.define("v", value)

    @staticmethod
    def _widened(dtype: DType) -> str:
        computed = compute_type(dtype)
        return "" if computed == dtype else f".to(tl.{computed.name})"

    def stored(self, value: Value, item: Expression) -> str:
        """An element in the type in which `value` is stored, where the store's own conversion is another one.

        A cast to more bits stores what a smaller type holds, not the float32 that it was computed in: other kernels
        may read the same number in the smaller type, and the two must be equal.
        """
        dtype = carrier(value.dtype)
        if self.rounds_before_widening and _is_widened(item):
            if isinstance(item, Conditional):
                inside, outside = self.stored(value, item.inside), self.stored(value, item.outside)
                return self.define("v", f"tl.where({self.guards(item.guards)}, {inside}, {outside})")
            return f"{narrowed(self.typed(item), item.operands[0].dtype)}.to(tl.{dtype.name})"
        if not dtype.is_float or dtype.bits > 8:
            return self.typed(item)
        clipped = _clipped(item) if isinstance(item, ElementwiseOperation) and item.dtype == dtype else None
        if clipped is not None:  # conversions of the language saturate
            return f"{self.typed(clipped)}.to(tl.{dtype.name})"
        return narrowed(self.typed(item), dtype)

    def store(
        self, value: Value, index: Index, item: Expression, guards: Guards = (), along: Sequence[str] = (),
        reduction: str = "",
    ) -> None:  # fmt: skip
        """A store of one result; its places have the extents of the variables `along`, though there be one only.  With
        a `reduction` it is combined with what is there, once for every element of the loops: along all variables."""
        pointer = self.references.result(value)  # type: ignore[attr-defined]
        text, offset = self.stored(value, item), self._offset(index)
        along = [name for name, _ in self._variable_of.values()] if reduction else along
        offset += "".join(f" + {name} * 0" for name in along if name not in offset)
        store, order = _STORES[reduction]
        self.lines.append(f"tl.{store}({pointer} + {offset}, {text}{self.load_mask(guards)}{order})")


def _is_widened(item: Expression) -> TypeGuard[ElementwiseOperation | Conditional]:
    """Whether it is a cast of a float of fewer bits that this kernel computes, which may not be rounded to these; in
    some places, if it depends on them."""
    if isinstance(item, Conditional):
        return _is_widened(item.inside) or _is_widened(item.outside)
    if not isinstance(item, ElementwiseOperation) or item.node.op != "cast":
        return False
    source, is_float = item.operands[0], item.dtype.is_float and item.operands[0].dtype.is_float
    return is_float and source.dtype.bits < min(item.dtype.bits, 32) and not isinstance(source, (Load, Literal))


def _clipped(item: ElementwiseOperation) -> Expression | None:
    """What is clipped to the range of an integer type of at most 16 bits, or of a float type of 8, and cast to it; None
    for anything else."""
    target, inner = item.dtype, item.operands[0] if item.operands else None
    fits = 8 <= target.bits <= 16 if target.is_integer else target in (float8e4nv, float8e5)
    if item.node.op != "cast" or not fits:
        return None
    if not isinstance(inner, ElementwiseOperation) or inner.node.op != "clip" or inner.dtype not in (float32, float64):
        return None
    limits = np.iinfo(target.numpy) if target.is_integer else ml_dtypes.finfo(target.numpy)
    bounds = (inner.node.attributes["low"], inner.node.attributes["high"])
    return inner.operands[0] if bounds == (float(limits.min), float(limits.max)) else None
