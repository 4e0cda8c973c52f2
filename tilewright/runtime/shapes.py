"""What follows from the inputs' shapes: the symbols' values, checked, and the sizes that depend on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.errors import InputError, ShapeError, a_kind, brief
from tilewright.runtime.plan import IndexRange, Plan, TensorSpec
from tilewright.symbolic import Expression, Size, Symbol, evaluate, free_symbols, plain_symbol

_BINDINGS = 1024  # shape combinations whose evaluated sizes are kept


class Shaped(Protocol):
    """Anything with a shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Binding:
    """What follows from the symbols' values."""

    arena_bytes: int
    output_shapes: tuple[tuple[int, ...], ...]
    index_ranges: tuple[tuple[int, int, int, IndexRange], ...]  # input's number, low, high
    nanoseconds: int


class Shapes:
    """The shapes of a plan's inputs and outputs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.input_numbers = {spec.name: number for number, spec in enumerate(plan.inputs)}
        self._bindings: dict[tuple[int, ...], Binding] = {}
        self._symbol_axes = [[plain_symbol(size) for size in spec.shape] for spec in plan.inputs]

    def check_names(self, inputs: Mapping[str, Any]) -> None:
        """Raise `InputError` unless the inputs are those of the plan."""
        if type(inputs) is not dict:
            check_mapping(inputs, "inputs")
        if inputs.keys() != self.input_numbers.keys():
            raise wrong_names(self.input_numbers, inputs)

    def check_out(self, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> None:
        """Raise `InputError` unless `out` gives memory for outputs of the plan that are no updated inputs."""
        outputs = {spec.name: spec for spec in self.plan.outputs}
        for name, given in out.items():
            if name not in outputs:
                raise InputError(f"out: unknown output {brief(name)}; the engine gives {', '.join(outputs)}")
            source = outputs[name].mutates
            if source is not None and given is not None and given is not inputs[source]:
                raise InputError(
                    f"out: output {name!r} is the input {source!r}, which is updated in place: leave it out, and pass "
                    "the memory as that input"
                )

    def updated(self, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> list[Any]:
        """The caller's tensors that a run changes."""
        found = [inputs[spec.name] for spec in self.plan.inputs if spec.mutates is not None]
        return found + [out[spec.name] for spec in self.plan.outputs if spec.mutates is None and spec.name in out]

    def binding(self, values: tuple[int, ...]) -> Binding:
        """What follows from the symbols' values."""
        return self._bindings.get(values) or self._evaluate(values)

    def symbols(self, views: Sequence[Shaped]) -> tuple[int, ...]:
        """The symbols' values from the inputs' shapes, in the plan's order; raises `ShapeError`."""
        values: dict[str, int] = {}
        origins: dict[str, str] = {}
        later: list[tuple[TensorSpec, int, int, Expression]] = []
        for spec, view in zip(self.plan.inputs, views, strict=True):
            if len(view.shape) != len(spec.shape):
                raise ShapeError(
                    f"input {spec.name!r} has {len(view.shape)} dimensions {list(view.shape)}, "
                    f"the engine takes {len(spec.shape)}: {_shape_text(spec)}"
                )
        for spec, view, symbols in zip(self.plan.inputs, views, self._symbol_axes, strict=True):
            for axis, (size, extent, symbol) in enumerate(zip(spec.shape, view.shape, symbols, strict=True)):
                if isinstance(size, int):
                    if size != extent:
                        raise ShapeError(
                            f"input {spec.name!r}: dimension {axis} is {extent}, the engine was built for {size} "
                            f"(shape {_shape_text(spec)})"
                        )
                elif symbol is None:
                    later.append((spec, axis, extent, size))
                elif symbol.name not in values:
                    values[symbol.name] = self._in_range(symbol, extent, spec, axis, extent)
                    origins[symbol.name] = f"dimension {axis} of {spec.name!r}"
                elif values[symbol.name] != extent:
                    raise ShapeError(
                        f"input {spec.name!r}: dimension {axis} is {extent}, but {symbol} is {values[symbol.name]} "
                        f"by {origins[symbol.name]} (shape {_shape_text(spec)})"
                    )
        for spec, axis, extent, size in later:
            self._check_expression(values, spec, axis, extent, size)
        return tuple(values[name] for name in self.plan.symbols)

    def _in_range(self, symbol: Symbol, value: int, spec: TensorSpec, axis: int, extent: int) -> int:
        if not symbol.low <= value <= symbol.high:
            found = f"({symbol}) is {extent}" if extent == value else f"is {extent}, which makes {symbol} {value}"
            raise ShapeError(
                f"input {spec.name!r}: dimension {axis} {found}, outside the engine's range "
                f"{symbol.low}..{symbol.high}; build an engine for a wider range (or, where engine.remarks say "
                f"that the model takes no wider one, for an example of this size), or pad or split the input"
            )
        return value

    def _check_expression(
        self, values: dict[str, int], spec: TensorSpec, axis: int, extent: int, size: Expression
    ) -> None:
        """A dimension that is an expression: it gives its one unknown symbol a value, or must agree."""
        unknown = [symbol for symbol in free_symbols(size) if symbol.name not in values]
        if len(unknown) == 1:
            symbol = unknown[0]
            value = _solve(size, symbol, extent, values)
            if value is not None:
                values[symbol.name] = self._in_range(symbol, value, spec, axis, extent)
        if any(symbol.name not in values for symbol in unknown) or evaluate(size, values) != extent:
            known = ", ".join(f"{symbol} = {values[symbol.name]}" for symbol in free_symbols(size) - set(unknown))
            raise ShapeError(
                f"input {spec.name!r}: dimension {axis} is {extent}, the engine takes {size}"
                + (f" with {known}" if known else "")
                + f" (shape {_shape_text(spec)})"
            )

    def _evaluate(self, values: tuple[int, ...]) -> Binding:
        symbols = dict(zip(self.plan.symbols, values, strict=True))
        check_conditions(self.plan, symbols)
        nanoseconds = evaluate(self.plan.nanoseconds, symbols)
        binding = Binding(
            evaluate(self.plan.arena_bytes, symbols),
            tuple(tuple(evaluate(size, symbols) for size in spec.shape) for spec in self.plan.outputs),
            tuple(
                (self.input_numbers[entry.input], evaluate(entry.low, symbols), evaluate(entry.high, symbols), entry)
                for entry in self.plan.index_ranges
            ),
            nanoseconds,
        )
        if len(self._bindings) >= _BINDINGS:
            self._bindings.clear()
        self._bindings[values] = binding
        return binding


def check_conditions(plan: Plan, symbols: Mapping[str, int]) -> None:
    """Raise `ShapeError` where an operation of the model does not take these sizes."""
    for condition in plan.conditions:
        left, right = evaluate(condition.left, symbols), evaluate(condition.right, symbols)
        if left != right:
            sizes = ", ".join(f"{name} = {symbols[name]}" for name in plan.symbols)
            compared = free_symbols(condition.left) | free_symbols(condition.right)
            raise ShapeError(
                f"the model does not take the sizes {sizes}: {condition.operation}: {left}, not {right}; "
                "give sizes for which these are equal",
                {symbol.name: symbols[symbol.name] for symbol in compared},
            )


def wrong_names(known: Collection[str], inputs: Mapping[str, Any]) -> InputError:
    """The error for inputs that are not those of an engine, which takes `known`."""
    missing = [name for name in known if name not in inputs]
    unknown = [name if isinstance(name, str) else brief(name) for name in inputs if name not in known]
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
    return InputError(f"wrong inputs ({'; '.join(parts)}); the engine takes {', '.join(known)}")


def check_mapping(values: Any, role: str) -> None:
    """Raise `InputError` unless tensors are given by name."""
    if not isinstance(values, Mapping):
        raise InputError(
            f"{role} are given by name, as a dictionary of tensors, got {a_kind(values)}: pass {{name: tensor, …}}; "
            "engine(…) takes inputs in order"
        )


def _solve(size: Expression, symbol: Symbol, extent: int, values: Mapping[str, int]) -> int | None:
    """The symbol's value for which an expression that is linear in it equals `extent`, or None."""
    at_zero = evaluate(size, {**values, symbol.name: 0})
    slope = evaluate(size, {**values, symbol.name: 1}) - at_zero
    if slope == 0 or (extent - at_zero) % slope:
        return None
    return (extent - at_zero) // slope


def _shape_text(spec: TensorSpec) -> str:
    return f"[{', '.join(map(_size_text, spec.shape))}]"


def _size_text(size: Size) -> str:
    symbols = "" if isinstance(size, int) else ", ".join(f"{s} {s.low}..{s.high}" for s in free_symbols(size))
    return f"{size} ({symbols})" if symbols else str(size)
