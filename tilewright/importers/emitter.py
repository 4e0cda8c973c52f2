"""Helpers that every importer uses to write graph nodes: casts, scalars, masks, expanded formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from tilewright.dtypes import NARROW, DType, float32, int1, int64, string
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.importers import narrow_types
from tilewright.importers.report import Unsupported
from tilewright.importers.shapes import place_from_front
from tilewright.symbolic import Expression, Size, lift, lower_bound, maximum, minimum, product, simplify, upper_bound

Number = Union[int, float, bool]
Scalar = Union[Value, Expression, int, float, bool]  # a tensor, a symbolic size or a number


class Emitter:
    """Appends nodes to a graph; `source` (where in the user's model) goes on each of them."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.source = ""

    @property
    def ordered(self) -> bool:
        """Whether updates of equal indices are combined in their order, which on a GPU is slow."""
        return False

    def op(self, name: str, *inputs: Value | Number | None, **attributes: Any) -> Value:
        """One node; returns its output."""
        return self.builder.op(name, inputs, source=self.source, **attributes)

    # Values --------------------------------------------------------------------------------------

    def value(self, scalar: Scalar, dtype: DType) -> Value:
        """A tensor, size or number as a value of element type `dtype`."""
        if isinstance(scalar, Value):
            return self.cast(scalar, dtype)
        if isinstance(scalar, Expression):
            return self.cast(self.op("dimension", expression=scalar), dtype)
        return self.builder.number(scalar, dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        """Convert the element type; nothing where it is right already."""
        if value.dtype == dtype:
            return value
        if value.dtype == string:
            if dtype in NARROW:
                return self.cast(self.cast(value, float32), dtype)
            return self.op("text_to_number", value, to=dtype.name)
        if value.dtype in NARROW:
            return self.cast(narrow_types.decode(self, value), dtype)
        if dtype == string:
            return self.op("number_to_text", value)
        if dtype in NARROW:
            return narrow_types.encode(self, value, dtype)
        return self.op("cast", value, dtype=dtype)

    def wide(self, x: Value) -> Value:
        """In a type that holds counts of elements and sums of squares: float32 in place of 16-bit floats."""
        return self.cast(x, float32) if x.dtype.bits < 32 else x

    def full(self, shape: Sequence[Size], number: Scalar, dtype: DType) -> Value:
        """One number everywhere: a size, one of a tensor without dimensions, or a constant."""
        if isinstance(number, (Value, Expression)):
            return self.broadcast(self.value(number, dtype), shape)
        return self.op("full", shape=tuple(shape), value=number, dtype=dtype)

    def iota(self, length: Size, dtype: DType = int64, start: Number = 0, step: Number = 1) -> Value:
        """``start + step * [0 .. length)``."""
        return self.op("iota", shape=(length,), axis=0, dtype=dtype, start=start, step=step)

    # Shape ---------------------------------------------------------------------------------------

    def reshape(self, value: Value, shape: Sequence[Size]) -> Value:
        """Give another shape (one -1 allowed); nothing where it is right already."""
        return value if value.shape == tuple(shape) else self.op("reshape", value, shape=tuple(shape))

    def flatten(self, value: Value, start: int, stop: int) -> Value:
        """Merge dimensions `start` up to `stop` (not included) into one."""
        shape = value.shape
        return self.reshape(value, (*shape[:start], product(shape[start:stop]), *shape[stop:]))

    def unsqueeze(self, value: Value, *axes: int) -> Value:
        """New dimensions of one at `axes` of the result."""
        rank = value.rank + len(axes)
        places = {axis % rank for axis in axes}
        rest = iter(value.shape)
        return self.reshape(value, [1 if axis in places else next(rest) for axis in range(rank)])

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Drop those of `axes` whose size is one."""
        places = {axis % max(value.rank, 1) for axis in axes}
        sizes = [size for axis, size in enumerate(value.shape) if axis not in places or size != 1]
        return self.reshape(value, sizes)

    def permute(self, value: Value, order: Sequence[int]) -> Value:
        """Reorder dimensions; nothing for the identity."""
        places = [axis % max(value.rank, 1) for axis in order]
        return value if places == list(range(value.rank)) else self.op("permute", value, order=tuple(places))

    def transpose(self, value: Value, first: int, second: int) -> Value:
        """Swap two dimensions."""
        order = list(range(value.rank))
        order[first], order[second] = order[second], order[first]
        return self.permute(value, order)

    def broadcast(self, value: Value, shape: Sequence[Size]) -> Value:
        """Stretch to `shape`; nothing where it is right already."""
        return value if value.shape == tuple(shape) else self.op("broadcast_to", value, shape=tuple(shape))

    def slice(self, value: Value, axis: int, start: Size, stop: Size, step: int = 1) -> Value:
        """Part of one dimension; nothing for the whole of it."""
        if step == 1 and start == 0 and stop == value.shape[axis]:
            return value
        return self.op("slice", value, axis=axis, start=start, stop=stop, step=step)

    def require_extent(self, value: Value, axis: int, least: int) -> None:
        """A condition of every call: a dimension has at least so many elements.

        It stands in the graph as a reshape that nothing reads, which the engine's builder checks and then drops.
        """
        extent = value.shape[axis]
        if lower_bound(extent) < least <= upper_bound(extent):
            self.reshape(value, (*value.shape[:axis], maximum(extent, least), *value.shape[axis + 1 :]))

    def require_equal(self, left: Size, right: Size) -> None:
        """A condition of every call: two sizes are equal."""
        self.reshape(self.full((left,), False, int1), (right,))

    def require_different(self, left: Size, right: Size) -> None:
        """A condition of every call: two sizes differ."""
        apart = lift(left) - right
        # A square, for sizes of 0: parts are built as if there were none, which would drop a side of a maximum.
        self.require_equal(minimum(simplify(apart * apart), 1), 1)

    def equal_parts(self, value: Value, count: int) -> list[Value]:
        """`count` equal parts of the last dimension, which has a fixed size."""
        width = value.shape[-1]
        assert isinstance(width, int)
        size = width // count
        return [self.slice(value, value.rank - 1, size * number, size * (number + 1)) for number in range(count)]

    def select(self, value: Value, axis: int, index: Size) -> Value:
        """One position of a dimension, which goes away; a negative one counts from the end."""
        axis %= value.rank
        index = place_from_front(index, value.shape[axis])
        part = self.slice(value, axis, index, simplify(lift(index) + 1))
        return self.reshape(part, [size for place, size in enumerate(value.shape) if place != axis])

    def from_front(self, index: Value, extent: Size) -> Value:
        """Indices into a dimension, with negative ones counted from its end."""
        shifted = self.op("add", index, self.value(extent, index.dtype))
        return self.op("where", self.op("less", index, 0), shifted, index)

    def flip(self, value: Value, axis: int) -> Value:
        """Reverse one dimension."""
        return self.op("slice", value, axis=axis, start=simplify(lift(value.shape[axis]) - 1), stop=-1, step=-1)

    # Formulas ------------------------------------------------------------------------------------

    def triangle(self, rows: Size, columns: Size, diagonal: Scalar, upper: bool) -> Value:
        """Boolean [rows, columns]: true on and above (`upper`) or on and below the diagonal."""
        row = self.unsqueeze(self.iota(rows), 1)
        column = self.unsqueeze(self.iota(columns), 0)
        by_size = isinstance(diagonal, (Expression, Value))
        edge = self.op("add", row, self.value(diagonal, int64)) if by_size or diagonal else row
        return self.op("greater_equal" if upper else "less_equal", column, edge)

    def keep_triangle(self, x: Value, diagonal: Scalar, upper: bool) -> Value:
        """x with everything on the other side of a diagonal set to zero."""
        mask = self.triangle(x.shape[-2], x.shape[-1], diagonal, upper)
        if x.dtype.is_bool:
            return self.op("logical_and", x, mask)
        return self.op("where", mask, x, self.builder.number(0, x.dtype))

    def additive_mask(self, mask: Value, dtype: DType) -> Value:
        """A boolean mask (true keeps) as zeros and minus infinities; other masks are cast."""
        if not mask.dtype.is_bool:
            return self.cast(mask, dtype)
        zero = self.builder.number(0.0, dtype)
        return self.op("where", mask, zero, self.builder.number(-math.inf, dtype))

    def attention(
        self,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None,
        causal: bool,
        scale: float | None,
    ) -> Value:
        """Scaled dot-product attention [..., S, D]; `causal` lets query i see keys up to i (from the front)."""
        if query.rank != 4:
            lead = query.shape[:-3] if query.rank > 4 else query.shape[:-2]
            own_rank = query.rank - len(lead)
            batch = product(lead)
            query, key, value = (
                self.reshape(item, (batch, *((1, *item.shape[-2:]) if item.rank < 4 else item.shape[-3:])))
                for item in (query, key, value)
            )
            if mask is not None and mask.rank > 2:
                if mask.rank > 4:
                    raise Unsupported("an attention mask of more than four dimensions", "merge the leading dimensions")
                mask = self.unsqueeze(mask, 1) if mask.rank == 3 and len(lead) == 1 else mask
            result = self.attention(query, key, value, mask, causal, scale)
            return self.reshape(result, (*lead, *result.shape[4 - own_rank :]))
        width = query.shape[-1]
        if not isinstance(width, int) or not isinstance(value.shape[-1], int):
            raise Unsupported("attention over a head width that is not a number", "keep the last dimension fixed")
        if scale is None:
            if width < 1:
                raise Unsupported("attention over heads of no width", "give `scale` explicitly")
            scale = 1.0 / math.sqrt(width)
        rows, keys = query.shape[2], key.shape[2]
        bias = None if mask is None else self.additive_mask(mask, query.dtype)
        if causal and rows != keys:
            front = self.additive_mask(self.triangle(rows, keys, 0, upper=False), query.dtype)
            bias = front if bias is None else self.op("add", bias, front)
            causal = False
        batch = query.shape[0]
        key, value = (self.broadcast(item, (batch, *item.shape[1:])) for item in (key, value))
        return self.op("attention", query, key, value, bias, scale=scale, causal=causal)

    def matmul(self, left: Value, right: Value) -> Value:
        """NumPy's matmul: vectors are promoted and the added dimension is dropped again."""
        first, last = left.rank == 1, right.rank == 1
        left = self.unsqueeze(left, 0) if first else left
        right = self.unsqueeze(right, 1) if last else right
        result = self.op("matmul", left, right)
        shape = list(result.shape)
        if last:
            del shape[-1]
        if first:
            del shape[-1 if last else -2]
        return self.reshape(result, shape)

    def constant(self, array: np.ndarray, name: str = "constant") -> Value:
        """A constant tensor."""
        return self.builder.constant(array, name)

    def mean_and_variance(self, x: Value, axes: Sequence[int], correction: float) -> tuple[Value, Value]:
        """Mean and variance over `axes` (kept as ones); `correction` is subtracted from the count.

        Those of 16-bit floats are computed in float32, which holds the count and the sum of squares.
        """
        axes = tuple(axis % x.rank for axis in axes)
        wide = self.wide(x)
        mean = self.op("reduce_mean", wide, axes=axes, keepdims=True)
        centred = self.op("subtract", wide, mean)
        squares = self.op("multiply", centred, centred)
        if correction == 0:
            variance = self.op("reduce_mean", squares, axes=axes, keepdims=True)
        else:
            total = self.op("reduce_sum", squares, axes=axes, keepdims=True)
            count = product([x.shape[axis] for axis in axes])
            variance = self.op("divide", total, self._degrees_of_freedom(count, correction, wide.dtype))
        return self.cast(mean, x.dtype), self.cast(variance, x.dtype)

    def _degrees_of_freedom(self, count: Size, correction: float, dtype: DType) -> Value:
        """The count less the correction, at least 0."""
        if isinstance(count, int):
            return self.builder.number(max(count - correction, 0.0), dtype)
        left = self.op("subtract", self.value(count, dtype), self.builder.number(correction, dtype))
        return self.op("maximum", left, 0.0)
