"""Floats as integers of the same order, and back."""

from __future__ import annotations

from tilewright.dtypes import DType, float32, float64, int32, int64
from tilewright.graph.core import Value
from tilewright.graph.rewrite import GraphRewriter


def ordered_bits(rewriter: GraphRewriter, x: Value, equal_zeros: bool = True) -> Value:
    """Floats as integers of the same order, NaN the greatest: a search for the least number would stop at NaN.  Where
    zeros are not equal, -0 is less than +0."""
    wide = float64 if x.dtype == float64 else float32
    integer = int64 if wide == float64 else int32
    x = rewriter.cast(x, wide)
    zero, most = rewriter.number(0.0, wide), rewriter.number(2 ** (wide.bits - 1) - 1, integer)
    one_zero = rewriter.op("where", [rewriter.op("equal", [x, zero]), zero, x]) if equal_zeros else x
    bits = rewriter.op("bitcast", [one_zero], of=wide.name, to=integer.name)
    negative = rewriter.op("less", [bits, rewriter.number(0, integer)])
    bits = rewriter.op("where", [negative, rewriter.op("bitwise_xor", [bits, most]), bits])
    return rewriter.op("where", [rewriter.op("isnan", [x]), most, bits])


def float_of_bits(rewriter: GraphRewriter, bits: Value, dtype: DType) -> Value:
    """The float32 or float64 numbers that `ordered_bits` made integers of."""
    most, zero = rewriter.number(2 ** (dtype.bits - 1) - 1, bits.dtype), rewriter.number(0, bits.dtype)
    plain = rewriter.op("where", [rewriter.op("less", [bits, zero]), rewriter.op("bitwise_xor", [bits, most]), bits])
    return rewriter.op("bitcast", [plain], of=bits.dtype.name, to=dtype.name)
