"""Loops: unrolled over compile-time ranges and tuples, or traced once into a region with carried values."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.frontend.analysis import (
    assigned_names,
    exposed_names,
    leaves_inside,
    loaded_names,
    returns_inside,
    returns_value,
)
from tilewright.frontend.compile_time import unrolled
from tilewright.frontend.statements import ASSIGN_BEFORE, RETURN_VALUE, RETURNED, Left, Outcome, Statements
from tilewright.frontend.values import Shape, check_same, put_together, take_apart
from tilewright.ir.core import Region, SSAValue
from tilewright.language import core
from tilewright.language.context import LanguageError
from tilewright.language.semantic import arithmetic
from tilewright.language.semantic.convert import cast, constant, is_literal, to_tensor
from tilewright.language.semantic.promotion import literal_with_tensor, promote
from tilewright.language.tensor import tensor, type_text


@dataclass
class CarriedNames:
    """The names that a loop carries, with their structures and the IR values they enter with."""

    names: list[str]
    shapes: list[Shape]
    initial: list[tensor]
    before: list[Any]

    def region(self, leading: Sequence[SSAValue] = ()) -> Region:
        """A region whose arguments are `leading` and one value for each carried tensor."""
        return Region([*leading, *(SSAValue(entry.handle.type) for entry in self.initial)])

    def rebuild(self, handles: Sequence[SSAValue]) -> dict[str, Any]:
        """The carried names' values on new IR values."""
        stream = iter(handles)
        return {name: put_together(shape, stream) for name, shape in zip(self.names, self.shapes, strict=True)}


class Loops(Statements):
    """Runs for and while."""

    def run_For(self, statement: ast.For) -> None:
        if statement.orelse:
            raise LanguageError(
                "'else' of a loop is not part of the tile language", "set a flag in the loop and test it afterwards"
            )
        iterator = self.evaluate(statement.iter)
        if isinstance(iterator, core.range):
            self._range_loop(statement, iterator)
            return
        items = self.static_items(statement.iter, iterator)
        saved = self.loop, self.carried, self.unrolled
        self.loop, self.unrolled = self.loop or statement, True
        self.carried = assigned_names([statement])
        if returns_inside(statement.body):
            self.bind(RETURNED, False)
            self.carried = [*self.carried, RETURNED, *([RETURN_VALUE] if returns_value(statement) else [])]
        self._unrolled_passes(statement, items)
        self.loop, self.carried, self.unrolled = saved

    def _unrolled_passes(self, statement: ast.For, items: list[Any]) -> Outcome:
        """One pass after the other; where a pass ends the loop at run time, the others run in a branch."""
        for position, item in enumerate(items):
            self.assign(statement.target, item, keep=True)
            outcome = self.execute(statement.body)
            running = outcome.running if isinstance(outcome, Left) else True
            if isinstance(running, tensor) and running.constant is None:
                following = functools.partial(self._unrolled_passes, statement, items[position + 1 :])
                location = self.location(statement)
                traced = [
                    self._trace_branch(lambda _: following(), []),  # noqa: B023
                    self._trace_branch(lambda _: None, []),
                ]
                self.session.builder.location = location
                self._merge_passes(running, traced, [True, True])
                return None
            if not (running.constant if isinstance(running, tensor) else running):
                return None
        return None

    def static_items(self, node: ast.expr, value: Any) -> list[Any]:
        """What an unrolled loop or a comprehension runs over."""
        if isinstance(value, core.static_range):
            return unrolled(range(value.start, value.end, value.step))
        if isinstance(value, core.range):
            bounds = [self.known(entry) for entry in (value.start, value.end, value.step)]
            if all(bound is not None for bound in bounds):
                numbers = [bound[0] for bound in bounds if bound is not None]
                if all(isinstance(number, int) for number in numbers) and numbers[2]:
                    return unrolled(range(*numbers))
        if isinstance(value, (tuple, list)):
            return list(value)
        raise self.error(
            node, f"cannot loop over {type_text(value)}", "use range, tl.range, tl.static_range, or a tuple of values"
        )

    # Run-time loops

    def _carried(self, statement: ast.For | ast.While) -> CarriedNames:
        """Names bound before the loop whose new values later passes, or statements after it, read."""
        exposed = exposed_names(statement.body)
        if isinstance(statement, ast.While):
            exposed |= loaded_names(statement.test)
        own_index = (
            statement.target.id if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name) else ""
        )
        carried = CarriedNames([], [], [], [])
        names = [
            name
            for name in assigned_names(statement.body)
            if name in self.names and name != own_index and (name in exposed or self.needed_after(name, statement))
        ]
        if returns_inside(statement.body):
            self.bind(RETURNED, False)
            names.append(RETURNED)
            if RETURN_VALUE in self.names:
                names.append(RETURN_VALUE)
        for name in names:
            value = self.names[name]
            shape, leaves = take_apart(value)
            carried.names.append(name)
            carried.shapes.append(shape)
            carried.initial.extend(leaves)
            carried.before.append(put_together(shape, iter([leaf.handle for leaf in leaves])))
        return carried

    def _trace_body(
        self, statement: ast.For | ast.While, region: Region, carried: CarriedNames, bound: dict[str, Any],
        leading: Callable[[tensor], list[tensor]] | None = None,
    ) -> None:  # fmt: skip
        """The body traced into `region` and ended by the yield of the carried names.

        `leading` gives what is yielded before them, from an int1 scalar: whether the loop runs on.
        """
        saved = dict(self.names), dict(self.unbound), self.loop, self.carried, self.unrolled
        self.loop, self.carried, self.unrolled = self.loop or statement, carried.names, False
        with self.session.builder.at(region):
            for name, value in bound.items():
                self.bind(name, value)
            outcome = self.execute(statement.body)
            self.mark(statement)
            running = outcome.running if isinstance(outcome, Left) else True
            handles = [value.handle for value in leading(to_tensor(running))] if leading is not None else []
            for name, before in zip(carried.names, carried.before, strict=True):
                if name not in self.names:
                    reason = self.unbound[name]
                    raise LanguageError(f"'{name}' may have no value at the end of the loop: {reason}", ASSIGN_BEFORE)
                check_same(f"'{name}'", before, self.names[name], ("before the loop", "after one pass"))
                handles.extend(leaf.handle for leaf in take_apart(self.names[name])[1])
            self.session.builder.create("yield", handles)
        self.names, self.unbound, self.loop, self.carried, self.unrolled = saved

    def _leave(self, statement: ast.For | ast.While, carried: CarriedNames, results: Sequence[SSAValue]) -> None:
        """Bind the carried names to the loop's results; other names assigned inside end with it."""
        for name in assigned_names([statement]):
            self.unbind(name, f"it is assigned inside the loop at line {statement.lineno} only")
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            index = statement.target.id
            reason = f"the loop at line {statement.lineno} has it as its index, which ends with the loop"
            self.unbind(index, f"{reason}; keep it in a name that is assigned before the loop, too")
        for name, value in carried.rebuild(results).items():
            self.bind(name, value)

    def _range_loop(self, statement: ast.For, loop: core.range) -> None:
        if not isinstance(statement.target, ast.Name):
            raise self.error(
                statement.target,
                "the index of a run-time loop is one name",
                "unpack a tuple inside the loop, or loop over a tuple",
            )
        bounds = self._bounds(statement, loop)
        self.indices.append(statement.target.id)
        self._trace_range(statement, statement.target.id, loop, bounds)
        self.indices.pop()

    def _trace_range(
        self, statement: ast.For, index: str, loop: core.range, bounds: tuple[tensor, tensor, tensor, bool]
    ) -> None:
        self._make_room_for_return(statement, {index: bounds[0]})
        if leaves_inside(statement.body, (ast.Break,)) or returns_inside(statement.body):
            self._breaking_range_loop(statement, index, *bounds)
            return
        lower, upper, step, backward = bounds
        carried = self._carried(statement)
        region = carried.region([SSAValue(lower.handle.type)])
        builder = self.session.builder
        with builder.at(region):
            self.mark(statement)
            position = _position(tensor(region.arguments[0]), lower, upper, backward)
        bound = carried.rebuild(region.arguments[1:])
        self._trace_body(statement, region, carried, {**bound, index: position})
        self.mark(statement)
        attributes: dict[str, Any] = {
            "num_stages": self._option(loop.num_stages),
            "unroll": self._option(loop.loop_unroll_factor),
            "flatten": bool(self._option(loop.flatten)),
            "warp_specialize": bool(self._option(loop.warp_specialize)),
            "disallow_acc_multi_buffer": bool(self._option(loop.disallow_acc_multi_buffer)),
            "disable_licm": bool(self._option(loop.disable_licm)),
        }
        operands = [value.handle for value in (lower, upper, step, *carried.initial)]
        self._leave(statement, carried, builder.create("for", operands, attributes, [region]).results)

    def _make_room_for_return(self, statement: ast.For | ast.While, bound: dict[str, Any]) -> None:
        """Before a loop that may return a value: give that value a place, of the type which a trial pass finds."""
        self.names.pop(RETURN_VALUE, None)
        if not returns_inside(statement.body) or not returns_value(statement):
            return
        saved = dict(self.names), dict(self.unbound), self.loop, self.carried, self.unrolled
        self.loop, self.carried, self.unrolled = self.loop or statement, [RETURNED, RETURN_VALUE], True
        for name, value in {**bound, RETURNED: False}.items():
            self.bind(name, value)
        with self.session.builder.at(Region()):
            self.execute(statement.body)
            found = self.names.get(RETURN_VALUE)
        self.names, self.unbound, self.loop, self.carried, self.unrolled = saved
        if found is not None:
            self.bind(RETURN_VALUE, self.filler(found))

    def _breaking_range_loop(
        self, statement: ast.For, target: str, lower: tensor, upper: tensor, step: tensor, backward: bool
    ) -> None:
        """A loop over a range that may be left early: a while over the index and a flag."""
        carried = self._carried(statement)

        def test(index: tensor, running: tensor) -> tensor:
            return arithmetic.logical("and", running, arithmetic.compare("lt", index, upper))

        def bound(index: tensor, running: tensor) -> dict[str, Any]:
            return {target: _position(index, lower, upper, backward)}

        def following(index: tensor, running: tensor, runs_on: tensor) -> list[tensor]:
            return [arithmetic.add(index, step), runs_on]

        self._while_loop(statement, carried, [lower, constant(True, dtypes.int1)], test, bound, following)

    def _while_loop(
        self, statement: ast.For | ast.While, carried: CarriedNames, leading: list[tensor],
        test: Callable[..., tensor], bound: Callable[..., dict[str, Any]], following: Callable[..., list[tensor]],
    ) -> None:  # fmt: skip
        """A `while` over `leading` values of its own and the carried names.

        From the leading values, `test` gives the condition (with the carried names bound), `bound` more names
        for the body, and `following`, given also whether the body lets the loop run on, their next values.
        """
        builder, count = self.session.builder, len(leading)
        before, after = (carried.region([SSAValue(value.handle.type) for value in leading]) for _ in range(2))
        names = dict(self.names)
        with builder.at(before):
            for name, value in carried.rebuild(before.arguments[count:]).items():
                self.bind(name, value)
            self.mark(statement)
            condition = test(*map(tensor, before.arguments[:count]))
            handles = [leaf.handle for name in carried.names for leaf in take_apart(self.names[name])[1]]
            self.mark(statement)
            builder.create("condition", [condition.handle, *before.arguments[:count], *handles])
        self.names = names
        own = [tensor(value) for value in after.arguments[:count]]
        with builder.at(after):
            names_of_body = {**carried.rebuild(after.arguments[count:]), **bound(*own)}
        self._trace_body(statement, after, carried, names_of_body, lambda running: following(*own, running))
        self.mark(statement)
        operands = [value.handle for value in (*leading, *carried.initial)]
        self._leave(statement, carried, builder.create("while", operands, None, [before, after]).results[count:])

    def _option(self, value: Any) -> int:
        known = self.known(value)
        if known is None or not (known[0] is None or isinstance(known[0], int)):
            raise LanguageError(
                f"an option of tl.range must be a compile-time integer, got {type_text(value)}",
                "write a number, or make it a tl.constexpr parameter",
            )
        return known[0] or 0

    def _bounds(self, statement: ast.For, loop: core.range) -> tuple[tensor, tensor, tensor, bool]:
        """Lower bound, upper bound and positive step in one integer dtype; True for a loop that counts down."""
        values = [loop.start, loop.end, loop.step]
        for value in values:
            integer = isinstance(value, int) or (
                isinstance(value, tensor) and not value.is_pointer and value.number.is_integer and not value.shape
            )
            if not integer:
                raise self.error(
                    statement.iter,
                    f"a loop bound must be an integer scalar, got {type_text(value)}",
                    "reduce a block to a scalar, or cast with .to(tl.int32)",
                )
        element = _common_integer(values)
        known_step = self.known(loop.step)
        if known_step is not None and known_step[0] == 0:
            raise self.error(
                statement.iter,
                "the step of a loop must not be zero",
                "count up with a positive step, down with a negative constant",
            )
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
            raise LanguageError(
                "'else' of a loop is not part of the tile language", "set a flag in the loop and test it afterwards"
            )
        self._make_room_for_return(statement, {})
        carried = self._carried(statement)
        if leaves_inside(statement.body, (ast.Break,)) or returns_inside(statement.body):
            leading = [constant(True, dtypes.int1)]
            test = functools.partial(self._condition_if_running, statement)
            self._while_loop(statement, carried, leading, test, lambda running: {}, lambda running, runs_on: [runs_on])
        else:
            test = functools.partial(self._while_condition, statement)
            self._while_loop(statement, carried, [], test, dict, lambda runs_on: [])

    def _condition_if_running(self, statement: ast.While, running: tensor) -> tensor:
        """The condition of a loop that may be left early; it is not evaluated any more after that."""
        region, otherwise = Region(), Region()
        with self.session.builder.at(region):
            condition = self._while_condition(statement, may_be_left=True)
        values = [{"the condition": condition}, {"the condition": constant(False, dtypes.int1)}]
        return self.merge_branches(running, [region, otherwise], values)["the condition"]

    def _while_condition(self, statement: ast.While, may_be_left: bool = False) -> tensor:
        test = self.evaluate(statement.test)
        if isinstance(test, core.condition):
            test = test.condition
        known = self.known(test)
        if known is None:
            return self.branch_condition(statement.test, test)
        if known[0] and not may_be_left:
            message = "this loop never ends: its condition is true at compile time"
            raise self.error(statement.test, message, "loop on a value that changes inside, or use break")
        return constant(bool(known[0]), dtypes.int1)


def _position(index: tensor, lower: tensor, upper: tensor, backward: bool) -> tensor:
    """What the user's index is: a loop that counts down counts up inside."""
    return arithmetic.subtract(arithmetic.add(upper, lower), index) if backward else index


def _common_integer(values: list[Any]) -> DType:
    """The dtype of a loop's index: int32 unless a bound is wider."""
    tensors = [value.number for value in values if isinstance(value, tensor) and not value.number.is_bool]
    literals = [value for value in values if is_literal(value)]
    element = functools.reduce(promote, tensors) if tensors else to_tensor(max(literals, key=abs)).number
    if element.bits < 32:
        element = dtypes.int32
    return functools.reduce(lambda common, value: literal_with_tensor(value, common), [] if not tensors else [
        value for value in literals if value >= 0], element)  # fmt: skip
