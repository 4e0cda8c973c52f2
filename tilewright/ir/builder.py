"""Builds Tile IR: one entry point, `create`, and shortcuts for operations with regions.

region = Region(arguments=[Value(parse_type("*f32"), "x")])
builder = Builder(region)
builder.location = Location("add.py", 3)
index = builder.create("arange", attributes={"start": 0, "end": 8}).result
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilewright.dtypes import DType, int32
from tilewright.errors import InvalidIRError
from tilewright.ir.core import Attribute, Function, Location, Operation, Region, SSAValue
from tilewright.ir.ops import complete_attributes, infer_types
from tilewright.ir.types import TensorType


class Builder:
    """Appends operations to the current region; `location` is given to each of them."""

    def __init__(self, target: Function | Region, location: Location | None = None) -> None:
        self.current = target.region if isinstance(target, Function) else target
        self.attributes = target.attributes if isinstance(target, Function) else {}  # of the kernel
        self.location = location

    @contextmanager
    def at(self, region: Region) -> Iterator[Region]:
        """Append to `region` inside the `with` block."""
        saved, self.current = self.current, region
        try:
            yield region
        finally:
            self.current = saved

    def create(
        self, opcode: str, operands: Sequence[SSAValue] = (), attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region] = (),
    ) -> Operation:  # fmt: skip
        """Append an operation, its result types inferred by the op table.

        Raises `InvalidIRError` naming the opcode, the location and the rule that is broken.
        """
        try:
            complete = complete_attributes(opcode, attributes or {})
            results = infer_types(opcode, [value.type for value in operands], complete, regions)
        except InvalidIRError as error:
            message = f"{self.location or '<unknown>'}: {opcode}: {error}"
            raise InvalidIRError(message, error.rule, error.advice) from None
        operation = Operation(opcode, list(operands), results, complete, list(regions), self.location)
        self.current.operations.append(operation)
        return operation

    def emit(self, opcode: str, *operands: SSAValue, **attributes: Attribute) -> SSAValue:
        """`create` for an operation with one result, as that value: ``emit("add", x, y)``."""
        return self.create(opcode, operands, attributes).result

    def constant(self, value: bool | int | float, dtype: DType = int32, shape: Sequence[int] = ()) -> SSAValue:
        """A block (or scalar) full of one number."""
        return self.emit("constant", value=value, dtype=dtype, shape=tuple(shape))

    # Operations with regions; the callbacks build the bodies and return the yielded values.

    def for_loop(
        self,
        lower: SSAValue,
        upper: SSAValue,
        step: SSAValue,
        initial: Sequence[SSAValue],
        body: Callable[[SSAValue, list[SSAValue]], Sequence[SSAValue]],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> list[SSAValue]:
        """`for` with `body(index, carried) -> next`; returns the results."""
        region = self.region([lower.type, *(value.type for value in initial)])
        with self.at(region):
            self.create("yield", body(region.arguments[0], region.arguments[1:]))
        return self.create("for", [lower, upper, step, *initial], attributes, [region]).results

    def while_loop(
        self,
        initial: Sequence[SSAValue],
        before: Callable[[list[SSAValue]], tuple[SSAValue, Sequence[SSAValue]]],
        after: Callable[[list[SSAValue]], Sequence[SSAValue]],
    ) -> list[SSAValue]:
        """`while` with `before(values) -> (condition, forwarded)` and `after(forwarded) -> next values`."""
        first = self.region([value.type for value in initial])
        with self.at(first):
            condition, forwarded = before(first.arguments)
            self.create("condition", [condition, *forwarded])
        second = self.region([value.type for value in forwarded])
        with self.at(second):
            self.create("yield", after(second.arguments))
        return self.create("while", initial, None, [first, second]).results

    def if_branch(
        self, condition: SSAValue, then: Callable[[], Sequence[SSAValue]], otherwise: Callable[[], Sequence[SSAValue]]
    ) -> list[SSAValue]:
        """`if` with two callbacks that return the yielded values."""
        regions = [self.region([]), self.region([])]
        for region, body in zip(regions, (then, otherwise), strict=True):
            with self.at(region):
                self.create("yield", body())
        return self.create("if", [condition], None, regions).results

    def reduce(
        self,
        operands: Sequence[SSAValue],
        axis: int,
        combine: Callable[[list[SSAValue], list[SSAValue]], Sequence[SSAValue]],
    ) -> list[SSAValue]:
        """`reduce` with `combine(left, right) -> combination`, all scalars."""
        return self.create("reduce", operands, {"axis": axis}, [self._combine(operands, combine)]).results

    def scan(
        self,
        operands: Sequence[SSAValue],
        axis: int,
        combine: Callable[[list[SSAValue], list[SSAValue]], Sequence[SSAValue]],
        reverse: bool = False,
    ) -> list[SSAValue]:
        """`scan` with `combine(left, right) -> combination`, all scalars."""
        attributes: dict[str, Attribute] = {"axis": axis, "reverse": reverse}
        return self.create("scan", operands, attributes, [self._combine(operands, combine)]).results

    def region(self, types: Sequence[TensorType], names: Sequence[str] = ()) -> Region:
        """An empty region with arguments of these types."""
        padded = [*names, *[""] * (len(types) - len(names))]
        return Region([SSAValue(type_, name) for type_, name in zip(types, padded, strict=True)])

    def _combine(
        self, operands: Sequence[SSAValue], combine: Callable[[list[SSAValue], list[SSAValue]], Sequence[SSAValue]]
    ) -> Region:
        count = len(operands)
        region = self.region([value.type.with_shape(()) for value in operands] * 2)
        with self.at(region):
            self.create("yield", combine(region.arguments[:count], region.arguments[count:]))
        return region
