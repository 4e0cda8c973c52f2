"""Created tensors: ranges, constants, identity matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import float64, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Number, Scalar
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import Expression

TABLE = RuleTable("Creation", "aten.")
rule = TABLE.rule


@rule("arange.start_step")
def arange(call: TorchCall, start: Scalar, end: Scalar, step: Scalar = 1, dtype: Any = None) -> Value:
    (length,) = call.shape
    if isinstance(start, Value) or isinstance(step, (Value, Expression)):  # computed from sizes
        wide = float64 if call.dtype.is_float else int64
        line = call.op("multiply", call.iota(length, wide), call.value(step, wide))
        return call.cast(call.op("add", line, call.value(start, wide)), call.dtype)
    if isinstance(start, Expression):
        line = call.op("iota", shape=(length,), axis=0, dtype=call.dtype, start=0, step=step)
        return call.op("add", line, call.value(start, call.dtype))
    return call.op("iota", shape=(length,), axis=0, dtype=call.dtype, start=start, step=step)


@rule("arange.start")
def arange_between(call: TorchCall, start: Scalar, end: Scalar, dtype: Any = None) -> Value:
    return arange(call, start, end)


@rule("arange.default")
def arange_to(call: TorchCall, end: Scalar, dtype: Any = None) -> Value:
    return arange(call, 0, end)


@rule("linspace.default")
def linspace(call: TorchCall, start: Number, end: Number, steps: int, dtype: Any = None) -> Value:
    step = (end - start) / max(steps - 1, 1)
    return call.op("iota", shape=(steps,), axis=0, dtype=call.dtype, start=start, step=step)


@rule("full.default", "new_full.default", "full_like.default")
def full(call: TorchCall, first: Any, second: Scalar, third: Scalar | None = None, **_: Any) -> Value:
    """The number is the last argument; the shape is PyTorch's."""
    return call.full(call.shape, second if third is None else third, call.dtype)


@rule("zeros.default", "zeros_like.default", "new_zeros.default")
def zeros(call: TorchCall, *_: Any, **__: Any) -> Value:
    return call.full(call.shape, 0, call.dtype)


@rule("ones.default", "ones_like.default", "new_ones.default")
def ones(call: TorchCall, *_: Any, **__: Any) -> Value:
    return call.full(call.shape, 1, call.dtype)


@rule(
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_strided.default",
    "new_empty_strided.default",
    "empty_permuted.default",
)
def empty(call: TorchCall, *_: Any, **__: Any) -> Value:
    """Undefined contents: zeros."""
    return call.full(call.shape, 0, call.dtype)


@rule("scalar_tensor.default")
def scalar_tensor(call: TorchCall, value: Scalar, dtype: Any = None) -> Value:
    return call.value(value, call.dtype)


@rule("eye.default", "eye.m")
def eye(call: TorchCall, *_: Any, **__: Any) -> Value:
    rows, columns = call.shape
    left, right = call.unsqueeze(call.iota(rows), 1), call.unsqueeze(call.iota(columns), 0)
    return call.cast(call.op("equal", left, right), call.dtype)


def _triangle(below: bool) -> Callable[..., Value]:
    """Rows and columns [2, n] of the places on one side of a diagonal, in the order of memory."""

    def apply(call: TorchCall, rows: int, columns: int, offset: int = 0, **_: Any) -> Value:
        found = np.tril_indices(rows, offset, columns) if below else np.triu_indices(rows, offset, columns)
        return call.constant(np.stack(found).astype(call.dtype.numpy), "triangle")

    return apply


TABLE.add("tril_indices.default", _triangle(below=True))
TABLE.add("triu_indices.default", _triangle(below=False))
