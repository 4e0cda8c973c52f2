"""Quantized tensors in graphs: integers that stand for (integer - zero point) scale, 8-bit floats that stand for number
times scale, and what is known of their scheme.

`quantize` and `dequantize` are nodes of the graph as models have them; which numbers share a scale follows from the
shape of the scale, which broadcasts with the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, float32, from_numpy
from tilewright.graph import semantics
from tilewright.graph.core import Node, Value
from tilewright.graph.inference import Attributes, Inputs, ShapeError, Types, broadcast_shapes, optional, value
from tilewright.graph.semantics import Array, Arrays

SCALE_BLOCK = 128  # depth and columns that share a scale, when scales are of blocks


@dataclass(frozen=True)
class Scheme:
    """How a tensor is quantized: the integers' type, which elements share a scale, whether zero is the integer 0."""

    dtype: DType
    granularity: str  # "tensor", "element of axis 1", "row" (of the last dimension), "block of 1 x 128"
    symmetric: bool

    def __str__(self) -> str:
        return f"{self.dtype.name}, {'' if self.symmetric else 'a zero point and '}a scale for each {self.granularity}"


def scheme_of(node: Node) -> Scheme:
    """The scheme that a `quantize` or `dequantize` node goes by, or the weights of a `dequantized_matmul`."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    if node.op == "dequantized_matmul":
        w, scale, zero = (*node.inputs, None)[1:4]
        assert w is not None and scale is not None
        return Scheme(w.dtype, f"block of 1 x {group_of(w, scale)}", zero is None)
    dtype = node.attributes["dtype"] if node.op == "quantize" else x.dtype
    return Scheme(dtype, granularity(x, scale), zero is None)


def granularity(x: Value, scale: Value) -> str:
    """Which elements of `x` share a scale that broadcasts with it."""
    axes = [axis + x.rank - scale.rank for axis, extent in enumerate(scale.shape) if extent != 1]
    if not axes:
        return "tensor"
    if len(axes) == 1:
        return f"element of axis {axes[0]}"
    return "row" if axes == list(range(x.rank - 1)) else "block of elements"


def group_of(w: Value, scale: Value) -> int:
    """How many steps of the depth share a scale [columns, groups] of weights [columns, depth]."""
    depth, groups = w.shape[1], scale.shape[1]
    assert isinstance(depth, int) and isinstance(groups, int)
    return depth // groups


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    limits = ml_dtypes.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def wider(x: DType, scale: DType) -> DType:
    """The type in which a tensor is divided by its scale: its own, or that of a scale of more bits."""
    return scale if scale.bits > x.bits else x


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
    x, zero = value(inputs, 0), optional(inputs, 2)
    if not x.dtype.is_integer and (x.dtype.bits != 8 or zero is not None):
        raise ShapeError(f"of {x!r}, which are neither integers nor 8-bit floats without a zero point")
    return [(float32, value(inputs, 0).shape)]


def quantize(inputs: Arrays, attributes: Attributes) -> Array:
    """round(x / scale) + zero point, within the range of the type; NaN gives what a cast of NaN gives."""
    x, scale, zero = (*inputs, None)[:3]
    wide = wider(from_numpy(x.dtype), from_numpy(scale.dtype)).numpy
    with np.errstate(all="ignore"):
        whole = np.rint(x.astype(wide) / scale.astype(wide))
        whole = whole if zero is None else whole + zero.astype(wide)
    low, high = integer_range(attributes["dtype"])
    return semantics.cast([semantics.clip([whole], {"low": low, "high": high})], attributes)


def dequantize(inputs: Arrays, attributes: Attributes) -> Array:
    """(x - zero point) scale, the difference exact."""
    x, scale, zero = (*inputs, None)[:3]
    whole = x.astype(np.float64) if zero is None else x.astype(np.float64) - zero.astype(np.float64)
    if scale.dtype != np.float64:  # else the reference works in it
        whole, scale = whole.astype(np.float32), scale.astype(np.float32)
    return whole * scale


def dequantized_matmul_type(inputs: Inputs, attributes: Attributes) -> Types:
    """[..., M, N] in the type of x."""
    x, w, scale, zero = value(inputs, 0), value(inputs, 1), value(inputs, 2), optional(inputs, 3)
    if not x.dtype.is_float or not scale.dtype.is_float:
        raise ShapeError(f"{x!r} and {scale!r} must be floats")
    if x.rank < 2 or w.rank != 2 or scale.rank != 2 or w.shape[1] != x.shape[-1] or w.shape[0] != scale.shape[0]:
        raise ShapeError(f"{x!r}, {w!r} and {scale!r} are no [.., M, K], [N, K] and [N, groups]")
    depth, groups = w.shape[1], scale.shape[1]
    if not isinstance(depth, int) or not isinstance(groups, int) or groups < 1 or depth % groups:
        raise ShapeError(f"the depth of {w!r} is not cut into {groups} equal groups")
    if w.dtype.bits > 8 or (zero is not None and (zero.shape != scale.shape or not w.dtype.is_integer)):
        raise ShapeError(f"{w!r} with the zero point {zero!r} are no weights of at most 8 bits")
    return [(x.dtype, (*x.shape[:-1], w.shape[0]))]


def dequantized_matmul(inputs: Arrays, attributes: Attributes) -> Array:
    """x times the numbers that the weights stand for."""
    x, w, scale, zero = (*inputs, None)[:4]
    return np.asarray(x @ numbers_of(w, scale, zero).T.astype(x.dtype))


def block_scaled_matmul_type(inputs: Inputs, attributes: Attributes) -> Types:
    """f32 [..., M, N]."""
    x, w, left, right = (value(inputs, number) for number in range(4))
    if any(item.dtype.bits != 8 or not item.dtype.is_float for item in (x, w)):
        raise ShapeError(f"{x!r} and {w!r} must be 8-bit floats")
    if left.dtype != float32 or right.dtype != float32:
        raise ShapeError(f"the scales {left!r} and {right!r} must be f32")
    if x.rank < 2 or w.rank != 2 or w.shape[1] != x.shape[-1]:
        raise ShapeError(f"{x!r} and {w!r} are no [.., M, K] and [N, K]")
    columns, depth = w.shape
    if not isinstance(columns, int) or not isinstance(depth, int) or depth % SCALE_BLOCK:
        raise ShapeError(f"the depth of {w!r} is no multiple of {SCALE_BLOCK}")
    groups = depth // SCALE_BLOCK
    if left.shape != (*x.shape[:-1], groups) or right.shape != (-(-columns // SCALE_BLOCK), groups):
        raise ShapeError(f"{left!r} and {right!r} are no scales for blocks of {SCALE_BLOCK} of {x!r} and {w!r}")
    return [(float32, (*x.shape[:-1], columns))]


def block_scaled_matmul(inputs: Arrays, attributes: Attributes) -> Array:
    """The product of the numbers that both operands stand for."""
    x, w, left, right = inputs
    assert x is not None and w is not None and left is not None and right is not None
    rows = np.repeat(left.astype(np.float64), SCALE_BLOCK, axis=-1) * x.astype(np.float64)
    by_column = np.repeat(right.astype(np.float64), SCALE_BLOCK, axis=0)[: len(w)]
    columns = np.repeat(by_column, SCALE_BLOCK, axis=1) * w.astype(np.float64)
    return np.asarray(rows @ columns.T, left.dtype)


def numbers_of(w: Array, scale: Array, zero: Array | None) -> Array:
    """float64 [N, K] of weights [N, K] with scales (and zero points) [N, groups]."""
    whole = w.astype(np.float64).reshape(*scale.shape, -1)
    if zero is not None:
        whole = whole - zero.astype(np.float64)[..., None]
    return (whole * scale.astype(np.float64)[..., None]).reshape(w.shape)
