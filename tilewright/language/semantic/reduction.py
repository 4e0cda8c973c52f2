"""Reductions and scans with a combine function of the language."""

from __future__ import annotations

from typing import Any

from tilewright.errors import brief
from tilewright.ir.core import Region, SSAValue
from tilewright.language.context import LanguageError, active
from tilewright.language.semantic.convert import broadcast, cast
from tilewright.language.semantic.shape import axis_of, expand_dims, reshape
from tilewright.language.tensor import emit_many, tensor
from tilewright.language.types import unwrap


def _inputs(value: Any, function: str) -> list[tensor]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    for entry in values:
        if not isinstance(entry, tensor):
            raise LanguageError(f"{function} needs blocks, got {brief(entry)}", "pass a block or a tuple of blocks")
    return broadcast(*values)


def _combine_region(inputs: list[tensor], combine: Any, function: str) -> Region:
    """The combine function traced on scalars: left group, then right group."""
    tracer = active()
    types = [value.handle.type.with_shape(()) for value in inputs] * 2
    region = Region([SSAValue(entry) for entry in types])
    with tracer.builder.at(region):
        results = tracer.call(combine, [tensor(argument) for argument in region.arguments], {})
        results = list(results) if isinstance(results, tuple) else [results]
        if len(results) != len(inputs) or not all(isinstance(result, tensor) for result in results):
            raise LanguageError(
                f"the combine function of {function} must return {len(inputs)} values, got {len(results)}",
                "return one value for each block that goes in",
            )
        for result in results:
            if result.shape:
                raise LanguageError(
                    f"the combine function of {function} must return scalars, got {result.type}",
                    "it gets scalars: the left group, then the right one",
                )
        yielded = [cast(result, value.element) for result, value in zip(results, inputs, strict=True)]
        tracer.builder.create("yield", [value.handle for value in yielded])
    return region


def reduce(value: Any, axis: Any, combine: Any, keep_dims: Any = False) -> Any:
    """Combine all elements along an axis, or all of them when `axis` is None."""
    inputs = _inputs(value, "reduce")
    rank, whole = inputs[0].rank, unwrap(axis) is None
    if rank == 0:
        raise LanguageError("reduce needs a block, got a scalar", "a scalar is its own reduction")
    if whole:
        flat = [reshape(entry, (entry.numel,)) for entry in inputs]
        position = 0
    else:
        flat, position = inputs, axis_of(inputs[0], axis)
    results = emit_many("reduce", flat, {"axis": position}, [_combine_region(flat, combine, "reduce")])
    if unwrap(keep_dims):
        results = [_restore(result, rank, None if whole else position) for result in results]
    return tuple(results) if isinstance(value, (tuple, list)) else results[0]


def _restore(value: tensor, rank: int, axis: int | None) -> tensor:
    return expand_dims(value, tuple(range(rank)) if axis is None else axis)


def scan(value: Any, axis: Any, combine: Any, reverse: Any = False) -> Any:
    """Inclusive prefix combination along an axis."""
    inputs = _inputs(value, "associative_scan")
    if inputs[0].rank == 0:
        raise LanguageError("associative_scan needs a block, got a scalar", "a scalar is its own scan")
    position = axis_of(inputs[0], axis)
    region = _combine_region(inputs, combine, "associative_scan")
    results = emit_many("scan", inputs, {"axis": position, "reverse": bool(unwrap(reverse))}, [region])
    return tuple(results) if isinstance(value, (tuple, list)) else results[0]
