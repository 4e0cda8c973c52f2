"""Loops: unrolled over compile-time ranges and tuples, or traced once into a region with carried values."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.frontend.analysis import assigned_names, exposed_names, loaded_names, returns_inside
from tilewright.frontend.statements import RETURN_IN_LOOP, Statements
from tilewright.frontend.values import Shape, check_same, put_together, take_apart
from tilewright.ir.core import Region, Value
from tilewright.language import core
from tilewright.language.context import LanguageError
from tilewright.language.semantic import arithmetic
from tilewright.language.semantic.convert import cast, constant, is_literal, to_tensor
from tilewright.language.semantic.promotion import literal_with_tensor, promote
from tilewright.language.tensor import tensor, type_text


@dataclass
class Carried:
    """The names that a loop carries, with their structures and the IR values they enter with."""

    names: list[str]
    shapes: list[Shape]
    initial: list[tensor]
    before: list[Any]

    def region(self, leading: Sequence[Value] = ()) -> Region:
        """A region whose arguments are `leading` and one value for each carried tensor."""
        return Region([*leading, *(Value(entry.handle.type) for entry in self.initial)])

    def rebuild(self, handles: Sequence[Value]) -> dict[str, Any]:
        """The carried names' values on new IR values."""
        stream = iter(handles)
        return {name: put_together(shape, stream) for name, shape in zip(self.names, self.shapes, strict=True)}


class Loops(Statements):
    """Runs for and while."""

    def run_For(self, statement: ast.For) -> None:
        if statement.orelse:
            raise LanguageError("'else' of a loop is not part of the tile language")
        iterator = self.evaluate(statement.iter)
        if isinstance(iterator, core.range):
            self._check_body(statement)
            self._range_loop(statement, iterator)
            return
        items = self.static_items(statement.iter, iterator)
        self._check_body(statement)
        outer, self.loop = self.loop, self.loop or statement
        for item in items:
            self.assign(statement.target, item, keep=True)
            self.execute(statement.body)
        self.loop = outer

    def static_items(self, node: ast.expr, value: Any) -> list[Any]:
        """What an unrolled loop or a comprehension runs over."""
        if isinstance(value, core.static_range):
            return list(range(value.start, value.end, value.step))
        if isinstance(value, core.range):
            bounds = [self.known(entry) for entry in (value.start, value.end, value.step)]
            if all(bound is not None for bound in bounds):
                return list(range(*(bound[0] for bound in bounds if bound is not None)))
        if isinstance(value, (tuple, list)):
            return list(value)
        raise self.error(
            node, f"cannot loop over {type_text(value)}", "use range, tl.range, tl.static_range, or a tuple of values"
        )

    @staticmethod
    def _check_body(statement: ast.For | ast.While) -> None:
        if returns_inside(statement.body):
            raise LanguageError(*RETURN_IN_LOOP)

    # Run-time loops

    def _carried(self, statement: ast.For | ast.While) -> Carried:
        """Names bound before the loop whose new values later passes, or statements behind it, read."""
        exposed = exposed_names(statement.body)
        if isinstance(statement, ast.While):
            exposed |= loaded_names(statement.test)
        own_index = (
            statement.target.id if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name) else ""
        )
        carried = Carried([], [], [], [])
        for name in assigned_names(statement.body):
            if name not in self.names or name == own_index:
                continue
            if name not in exposed and not self.needed_after(name, statement):
                continue
            value = self.names[name]
            shape, leaves = take_apart(value)
            carried.names.append(name)
            carried.shapes.append(shape)
            carried.initial.extend(leaves)
            carried.before.append(put_together(shape, iter([leaf.handle for leaf in leaves])))
        return carried

    def _trace_body(
        self, statement: ast.For | ast.While, region: Region, carried: Carried, bound: dict[str, Any]
    ) -> None:
        """The body traced into `region` and ended by the yield of the carried names."""
        saved = dict(self.names), dict(self.unbound), self.loop
        self.loop = self.loop or statement
        self.depth += 1
        with self.session.builder.at(region):
            for name, value in bound.items():
                self.bind(name, value)
            self.execute(statement.body)
            handles: list[Value] = []
            for name, before in zip(carried.names, carried.before, strict=True):
                if name not in self.names:
                    raise LanguageError(f"'{name}' may have no value at the end of the loop: {self.unbound[name]}")
                check_same(f"'{name}'", before, self.names[name], ("before the loop", "after one pass"))
                handles.extend(leaf.handle for leaf in take_apart(self.names[name])[1])
            self.mark(statement)
            self.session.builder.create("yield", handles)
        self.depth -= 1
        self.names, self.unbound, self.loop = saved

    def _leave(self, statement: ast.For | ast.While, carried: Carried, results: Sequence[Value]) -> None:
        """Bind the carried names to the loop's results; other names assigned inside end with it."""
        for name in assigned_names([statement]):
            self.unbind(name, f"it is assigned inside the loop at line {statement.lineno} only")
        for name, value in carried.rebuild(results).items():
            self.bind(name, value)

    def _range_loop(self, statement: ast.For, loop: core.range) -> None:
        if not isinstance(statement.target, ast.Name):
            raise self.error(statement.target, "the index of a run-time loop is one name")
        lower, upper, step, backward = self._bounds(statement, loop)
        carried = self._carried(statement)
        index = Value(lower.handle.type)
        region = carried.region([index])
        builder = self.session.builder
        position = tensor(index)
        with builder.at(region):
            self.mark(statement)
            if backward:  # counts up inside, and down for the user
                position = arithmetic.subtract(arithmetic.add(upper, lower), position)
        bound = carried.rebuild(region.arguments[1:])
        self._trace_body(statement, region, carried, {**bound, statement.target.id: position})
        self.mark(statement)
        attributes: dict[str, Any] = {
            "num_stages": self._option(loop.num_stages),
            "unroll": self._option(loop.loop_unroll_factor),
        }
        operands = [value.handle for value in (lower, upper, step, *carried.initial)]
        self._leave(statement, carried, builder.create("for", operands, attributes, [region]).results)

    def _option(self, value: Any) -> int:
        known = self.known(value)
        if known is None or not (known[0] is None or isinstance(known[0], int)):
            raise LanguageError(f"an option of tl.range must be a compile-time integer, got {type_text(value)}")
        return known[0] or 0

    def _bounds(self, statement: ast.For, loop: core.range) -> tuple[tensor, tensor, tensor, bool]:
        """Lower bound, upper bound and positive step in one integer dtype; True for a loop that counts down."""
        values = [loop.start, loop.end, loop.step]
        for value in values:
            integer = isinstance(value, int) or (
                isinstance(value, tensor) and not value.is_pointer and value.number.is_integer and not value.shape
            )
            if not integer:
                raise self.error(statement.iter, f"a loop bound must be an integer scalar, got {type_text(value)}")
        element = _common_integer(values)
        known_step = self.known(loop.step)
        if known_step is not None and known_step[0] == 0:
            raise self.error(statement.iter, "the step of a loop must not be zero")
        backward = known_step is not None and known_step[0] < 0
        if backward:
            assert known_step is not None
            values = [loop.end, loop.start, -known_step[0]]
        self.mark(statement)
        lower, upper, step = (
            constant(int(value), element) if is_literal(value) else cast(to_tensor(value), element) for value in values
        )
        return lower, upper, step, backward

    def run_While(self, statement: ast.While) -> None:
        if statement.orelse:
            raise LanguageError("'else' of a loop is not part of the tile language")
        self._check_body(statement)
        builder = self.session.builder
        carried = self._carried(statement)
        before, after = carried.region(), carried.region()
        names = dict(self.names)
        with builder.at(before):
            for name, value in carried.rebuild(before.arguments).items():
                self.bind(name, value)
            test = self._while_condition(statement)
            handles = [leaf.handle for name in carried.names for leaf in take_apart(self.names[name])[1]]
            self.mark(statement)
            builder.create("condition", [test.handle, *handles])
        self.names = names
        self._trace_body(statement, after, carried, carried.rebuild(after.arguments))
        self.mark(statement)
        operands = [value.handle for value in carried.initial]
        self._leave(statement, carried, builder.create("while", operands, None, [before, after]).results)

    def _while_condition(self, statement: ast.While) -> tensor:
        test = self.evaluate(statement.test)
        if isinstance(test, core.condition):
            test = test.condition
        known = self.known(test)
        if known is not None:
            if known[0]:
                message = "this loop never ends: its condition is true at compile time"
                raise self.error(statement.test, message, "loop on a value that changes inside")
            return constant(False, dtypes.int1)
        return self.branch_condition(statement.test, test)


def _common_integer(values: list[Any]) -> DType:
    """The dtype of a loop's index: int32 unless a bound is wider."""
    tensors = [value.number for value in values if isinstance(value, tensor) and not value.number.is_bool]
    literals = [value for value in values if is_literal(value)]
    element = reduce(promote, tensors) if tensors else to_tensor(max(literals, key=abs)).number
    if element.bits < 32:
        element = dtypes.int32
    return reduce(lambda common, value: literal_with_tensor(value, common), [] if not tensors else [
        value for value in literals if value >= 0], element)  # fmt: skip
