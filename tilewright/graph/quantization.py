"""Quantized tensors in graphs: integers that stand for (integer - zero point) scale, and what is known of their scheme.

`quantize` and `dequantize` are nodes of the graph as models have them; which numbers share a scale follows from the
shape of the scale, which broadcasts with the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, float32
from tilewright.graph import semantics
from tilewright.graph.core import Node, Value
from tilewright.graph.inference import Attributes, Inputs, ShapeError, Types, broadcast_shapes, optional, value
from tilewright.graph.semantics import Array, Arrays


@dataclass(frozen=True)
class Scheme:
    """How a tensor is quantized: the integers' type, which elements share a scale, whether zero is the integer 0."""

    dtype: DType
    granularity: str  # "tensor", "axis 1", "rows" (each row of the last dimension), "blocks"
    symmetric: bool

    def __str__(self) -> str:
        return f"{self.dtype.name}, {'' if self.symmetric else 'a zero point and '}a scale for each {self.granularity}"


def scheme_of(node: Node) -> Scheme:
    """The scheme that a `quantize` or `dequantize` node goes by."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    dtype = node.attributes["dtype"] if node.op == "quantize" else x.dtype
    return Scheme(dtype, granularity(x, scale), zero is None)


def granularity(x: Value, scale: Value) -> str:
    """Which elements of `x` share a scale that broadcasts with it."""
    axes = [axis + x.rank - scale.rank for axis, extent in enumerate(scale.shape) if extent != 1]
    if not axes:
        return "tensor"
    if len(axes) == 1:
        return f"element of axis {axes[0]}"
    return "row" if axes == list(range(x.rank - 1)) else "block"


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    limits = ml_dtypes.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


# The rows of the table of ops -------------------------------------------------------------------------


def _check(inputs: Inputs, name: str) -> None:
    x, scale, zero = value(inputs, 0), value(inputs, 1), optional(inputs, 2)
    if not scale.dtype.is_float:
        raise ShapeError(f"the scale {scale!r} is no float")
    for item in (scale, zero):
        if item is not None and broadcast_shapes(x.shape, item.shape) != x.shape:
            raise ShapeError(f"{name} of {x!r}: {item!r} does not broadcast with it")


def quantize_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Integers of the shape of x."""
    _check(inputs, "quantize")
    if not attributes["dtype"].is_integer or not value(inputs, 0).dtype.is_float:
        raise ShapeError(f"from {value(inputs, 0)!r} to {attributes['dtype']}: floats become integers")
    return [(attributes["dtype"], value(inputs, 0).shape)]


def dequantize_type(inputs: Inputs, attributes: Attributes) -> Types:
    """float32 of the shape of x."""
    _check(inputs, "dequantize")
    if not value(inputs, 0).dtype.is_integer:
        raise ShapeError(f"of {value(inputs, 0)!r}, which are no integers")
    return [(float32, value(inputs, 0).shape)]


def quantize(inputs: Arrays, attributes: Attributes) -> Array:
    """round(x / scale) + zero point, within the range of the type; NaN gives what a cast of NaN gives."""
    x, scale, zero = (*inputs, None)[:3]
    with np.errstate(all="ignore"):
        whole = np.rint(x / scale.astype(x.dtype))
        whole = whole if zero is None else whole + zero.astype(x.dtype)
    low, high = integer_range(attributes["dtype"])
    return semantics.cast([semantics.clip([whole], {"low": low, "high": high})], attributes)


def dequantize(inputs: Arrays, attributes: Attributes) -> Array:
    """(x - zero point) scale, the difference exact."""
    x, scale, zero = (*inputs, None)[:3]
    whole = x.astype(np.float64) if zero is None else x.astype(np.float64) - zero.astype(np.float64)
    if scale.dtype != np.float64:  # else the reference works in it
        whole, scale = whole.astype(np.float32), scale.astype(np.float32)
    return whole * scale
