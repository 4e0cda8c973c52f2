"""Running a plan: inputs are checked and bound, outputs allocated, and the whole plan is one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InputError, ShapeError
from tilewright.runtime import tensors
from tilewright.runtime.glue import glue
from tilewright.runtime.library import NativeLibrary
from tilewright.runtime.memory import BufferPool
from tilewright.runtime.parallel import run_parallel
from tilewright.runtime.plan import ContextLayout, IndexRange, Plan, TensorSpec
from tilewright.settings import settings
from tilewright.symbolic import Expression, Size, Symbol, evaluate, free_symbols

# A plan shorter than this on one core is run by the caller alone: bringing threads together takes longer.
_SHARE_FROM_NANOSECONDS = 20_000
_BINDINGS = 1024  # shape combinations whose evaluated sizes are kept


@dataclass(frozen=True)
class _Binding:
    """What follows from the symbols' values."""

    arena_bytes: int
    output_shapes: tuple[tuple[int, ...], ...]
    index_ranges: tuple[tuple[int, int, int, IndexRange], ...]  # input's number, low, high
    share: bool


class Session:
    """A loaded plan. Several threads may call `run` at once: each call has memory of its own."""

    def __init__(self, plan: Plan, library: NativeLibrary, symbol: str, weights: int) -> None:
        """`weights` is the address of the weights; the caller keeps that memory alive."""
        self.plan = plan
        self._library = library
        self._entry = library.address(symbol)
        self._weights = weights
        self._layout = ContextLayout.of(plan)
        self._context_type = ctypes.c_int64 * self._layout.size
        self._arenas = BufferPool()
        self._bindings: dict[tuple[int, ...], _Binding] = {}
        self._input_names = {spec.name: number for number, spec in enumerate(plan.inputs)}
        self._output_names = [spec.name for spec in plan.outputs]
        self._symbol_axes = [[_plain_symbol(size) for size in spec.shape] for spec in plan.inputs]
        self._mutated = [number for number, spec in enumerate(plan.inputs) if spec.mutates is not None]

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        threads: int | None = None,
        profile: ctypes.Array[ctypes.c_int64] | None = None,
    ) -> dict[str, Any]:
        """Outputs by name. Raises `ShapeError` and `InputError`.

        `out` gives memory for some or all outputs; other outputs are fresh.  Inputs that the plan
        mutates are updated in place.  `profile` has room for one time more than there are steps.
        """
        views = self._bind_inputs(inputs)
        values = self._bind_symbols(views)
        binding = self._bindings.get(values) or self._evaluate(values)
        if binding.index_ranges:
            _check_indices(binding.index_ranges, views)
        results, addresses, owners = self._bind_outputs(inputs, views, binding, out or {})
        if self._mutated or out:
            self._check_overlaps(views, owners if out else [])
        workers = max(1, settings.threads if threads is None else threads) if binding.share else 1
        arena = self._arenas.take(binding.arena_bytes)
        try:
            context = self._context_type(
                arena.address,
                self._weights,
                0 if profile is None else ctypes.addressof(profile),
                *values,
                *[view.address for view in views],
                *addresses,
            )
            run_parallel(self._entry, ctypes.addressof(context), self.plan.scratch_bytes, workers)
        finally:
            self._arenas.give(arena)
        del owners
        return results

    def symbols(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The symbols' values for these inputs. Raises `ShapeError` and `InputError`."""
        return dict(zip(self.plan.symbols, self._bind_symbols(self._bind_inputs(inputs)), strict=True))

    # -- Inputs ---------------------------------------------------------------------------------

    def _bind_inputs(self, inputs: Mapping[str, Any]) -> list[tensors.TensorView]:
        if inputs.keys() != self._input_names.keys():
            raise self._wrong_names(inputs)
        views = []
        for spec in self.plan.inputs:
            found = tensors.view(inputs[spec.name], spec.name, spec.dtype)
            if len(found.shape) != len(spec.shape):
                raise ShapeError(
                    f"input {spec.name!r} has {len(found.shape)} dimensions {list(found.shape)}, "
                    f"the engine takes {len(spec.shape)}: {_shape_text(spec)}"
                )
            if spec.mutates is not None:
                tensors.check_writable(found, inputs[spec.name], f"input {spec.name!r}")
            views.append(found)
        return views

    def _wrong_names(self, inputs: Mapping[str, Any]) -> InputError:
        missing = [name for name in self._input_names if name not in inputs]
        unknown = [str(name) for name in inputs if name not in self._input_names]
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
        return InputError(f"wrong inputs ({'; '.join(parts)}); the engine takes {', '.join(self._input_names)}")

    def _bind_symbols(self, views: Sequence[tensors.TensorView]) -> tuple[int, ...]:
        """The symbols' values from the inputs' shapes, checked, in the plan's order."""
        values: dict[str, int] = {}
        origins: dict[str, str] = {}
        later: list[tuple[TensorSpec, int, int, Expression]] = []
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
                    values[symbol.name] = self._in_range(symbol, extent, spec, axis)
                    origins[symbol.name] = f"dimension {axis} of {spec.name!r}"
                elif values[symbol.name] != extent:
                    raise ShapeError(
                        f"input {spec.name!r}: dimension {axis} is {extent}, but {symbol} is {values[symbol.name]} "
                        f"by {origins[symbol.name]} (shape {_shape_text(spec)})"
                    )
        for spec, axis, extent, size in later:
            self._check_expression(values, spec, axis, extent, size)
        return tuple(values[name] for name in self.plan.symbols)

    def _in_range(self, symbol: Symbol, extent: int, spec: TensorSpec, axis: int) -> int:
        if not symbol.low <= extent <= symbol.high:
            raise ShapeError(
                f"input {spec.name!r}: dimension {axis} ({symbol}) is {extent}, outside the engine's range "
                f"{symbol.low}..{symbol.high}; rebuild the engine with a wider range, or pad or split the input"
            )
        return extent

    def _check_expression(
        self, values: dict[str, int], spec: TensorSpec, axis: int, extent: int, size: Expression
    ) -> None:
        """A dimension that is an expression: it gives its one unknown symbol a value, or must agree."""
        unknown = [symbol for symbol in free_symbols(size) if symbol.name not in values]
        if len(unknown) == 1:
            symbol = unknown[0]
            value = _solve(size, symbol, extent, values)
            if value is not None:
                values[symbol.name] = self._in_range(symbol, value, spec, axis)
        if any(symbol.name not in values for symbol in unknown) or evaluate(size, values) != extent:
            known = ", ".join(f"{symbol} = {values[symbol.name]}" for symbol in free_symbols(size) - set(unknown))
            raise ShapeError(
                f"input {spec.name!r}: dimension {axis} is {extent}, the engine takes {size}"
                + (f" with {known}" if known else "")
                + f" (shape {_shape_text(spec)})"
            )

    # -- Outputs --------------------------------------------------------------------------------

    def _evaluate(self, values: tuple[int, ...]) -> _Binding:
        symbols = dict(zip(self.plan.symbols, values, strict=True))
        nanoseconds = evaluate(self.plan.nanoseconds, symbols)
        binding = _Binding(
            evaluate(self.plan.arena_bytes, symbols),
            tuple(tuple(evaluate(size, symbols) for size in spec.shape) for spec in self.plan.outputs),
            tuple(
                (self._input_names[entry.input], evaluate(entry.low, symbols), evaluate(entry.high, symbols), entry)
                for entry in self.plan.index_ranges
            ),
            share=nanoseconds == 0 or nanoseconds >= _SHARE_FROM_NANOSECONDS,
        )
        if len(self._bindings) >= _BINDINGS:
            self._bindings.clear()
        self._bindings[values] = binding
        return binding

    def _bind_outputs(
        self,
        inputs: Mapping[str, Any],
        views: Sequence[tensors.TensorView],
        binding: _Binding,
        out: Mapping[str, Any],
    ) -> tuple[dict[str, Any], list[int], list[tensors.TensorView]]:
        """Results by name, their addresses, and the memory that must stay alive during the run."""
        for name in out:
            if name not in self._output_names:
                raise InputError(f"out: unknown output {name!r}; the engine gives {', '.join(self._output_names)}")
        like = next(iter(inputs.values()), None)
        results: dict[str, Any] = {}
        addresses: list[int] = []
        owners: list[tensors.TensorView] = []
        for spec, shape in zip(self.plan.outputs, binding.output_shapes, strict=True):
            if spec.mutates is not None:
                results[spec.name] = inputs[spec.mutates]
                addresses.append(views[self._input_names[spec.mutates]].address)
                continue
            given = out.get(spec.name)
            memory = tensors.allocate(like, spec.dtype, shape) if given is None else given
            found = tensors.view(memory, spec.name, spec.dtype, "out: output")
            if given is not None:
                if found.shape != shape:
                    raise ShapeError(f"out: output {spec.name!r} has shape {list(shape)}, got {list(found.shape)}")
                tensors.check_writable(found, given, f"output {spec.name!r}")
            results[spec.name] = tensors.finish(memory, like) if given is None else given
            addresses.append(found.address)
            owners.append(found)
        return results, addresses, owners

    def _check_overlaps(self, inputs: list[tensors.TensorView], outputs: list[tensors.TensorView]) -> None:
        """Memory that the run writes to must not be that of another input or output."""
        views = [*inputs, *outputs]
        names = [f"input {name!r}" for name in self._input_names]
        names += [f"output {spec.name!r}" for spec in self.plan.outputs if spec.mutates is None]
        for written in (*self._mutated, *range(len(inputs), len(views))):
            for other, view in enumerate(views):
                if other != written and views[written].overlaps(view):
                    raise InputError(
                        f"{names[written]} is written in place and shares memory with {names[other]}: pass a copy"
                    )


def _check_indices(ranges: Sequence[tuple[int, int, int, IndexRange]], views: Sequence[tensors.TensorView]) -> None:
    """Raise `InputError` for an input that holds an index out of its range."""
    extremes: dict[int, tuple[int, int]] = {}
    for number, low, high, allowed in ranges:
        if number not in extremes:
            indices = np.asarray(views[number].owner)
            if indices.size == 0:
                continue
            # The reductions themselves: the methods cost several times as much for a few numbers.
            extremes[number] = int(np.minimum.reduce(indices, None)), int(np.maximum.reduce(indices, None))
        least, most = extremes[number]
        if least < low or most > high:
            raise InputError(
                f"input {allowed.input!r} holds {least if least < low else most}, an index out of range: "
                f"{allowed.operation} takes {low}..{high}"
            )


def profile_buffer(steps: int) -> ctypes.Array[ctypes.c_int64]:
    """Room for the times of one run of so many steps; raises `RuntimeError` where native code has no clock to read."""
    if not glue().has_clock:
        raise RuntimeError("this system has no clock_gettime(): steps cannot be timed")
    return (ctypes.c_int64 * (steps + 1))()


def _plain_symbol(size: Size) -> Symbol | None:
    """The symbol that a size consists of, or None."""
    if isinstance(size, Expression) and len(size.terms) == 1:
        monomial, factor = size.terms[0]
        if factor == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Symbol):
            return monomial[0][0]
    return None


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
