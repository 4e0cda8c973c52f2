"""Functions of complex numbers: logarithms, roots, powers, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.graph.core import Value
from tilewright.importers import formulas
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_complex import Complex
from tilewright.importers.torch_fx import COMPLEX, TorchCall
from tilewright.importers.torch_ops.complexes import (
    Operand,
    angle,
    exponential,
    multiply,
    of,
    part_type,
    reciprocal,
    size,
)  # fmt: skip

TABLE = RuleTable("Functions of complex numbers", COMPLEX + "aten.")
rule = TABLE.rule

_MOST_PRODUCTS = 64  # the largest power that is a product
_FLAT = 20.0  # beyond it the hyperbolic tangent is 1 in every format


@rule("log.default")
def logarithm(call: TorchCall, x: Complex) -> Complex:
    return Complex(call.op("log", size(call, x)), angle(call, x))


for _name, _base in (("log2", 2.0), ("log10", 10.0)):
    TABLE.add(f"{_name}.default", lambda call, x, base=_base: multiply(call, logarithm(call, x), 1 / math.log(base)))


@rule("sqrt.default")
def square_root(call: TorchCall, x: Complex) -> Complex:
    """The root in the right half plane: its larger part from |x| + |re x|, the other from that, so none cancels."""
    zero, one = (call.builder.number(number, x.real.dtype) for number in (0.0, 1.0))
    whole = call.op("add", size(call, x), call.op("absolute", x.real))
    large = call.op("sqrt", call.op("multiply", whole, 0.5))
    divisor = call.op("where", call.op("equal", large, 0.0), one, call.op("multiply", large, 2.0))
    small = call.op("divide", x.imaginary, divisor)
    left = call.op("less", x.real, 0.0)
    below = call.op("less", angle(call, x), zero)  # tells -0.0 from 0.0, where the real part is negative
    turned = call.op("where", below, call.op("negate", large), large)
    return Complex(call.op("where", left, call.op("absolute", small), large), call.op("where", left, turned, small))


@rule("rsqrt.default")
def reciprocal_root(call: TorchCall, x: Complex) -> Complex:
    return reciprocal(call, square_root(call, x))


@rule("pow.Tensor_Scalar")
def power(call: TorchCall, x: Complex, exponent: Any) -> Complex:
    """Whole powers as products, others by the logarithm; 0 to a power with a positive real part is 0."""
    zero, one = (call.builder.number(number, x.real.dtype) for number in (0.0, 1.0))
    if not isinstance(exponent, Complex) and exponent == 0:
        return Complex(call.broadcast(one, x.shape), call.broadcast(zero, x.shape))
    if not isinstance(exponent, (Complex, complex)):
        if exponent == 0.5:
            return square_root(call, x)
        if exponent == int(exponent) and abs(exponent) <= _MOST_PRODUCTS:
            found = _product(call, x, abs(int(exponent)))
            return found if exponent > 0 else reciprocal(call, found)
    powers = of(call, exponent, x.real.dtype)
    found = exponential(call, multiply(call, logarithm(call, x), powers))
    at_zero = call.op("logical_and", call.op("equal", x.real, 0.0), call.op("equal", x.imaginary, 0.0))
    at_zero = call.op("logical_and", at_zero, call.op("greater", powers.real, 0.0))
    return Complex(*(call.op("where", at_zero, zero, part) for part in (found.real, found.imaginary)))


def _product(call: TorchCall, x: Complex, exponent: int) -> Complex:
    """By squares."""
    if exponent == 1:
        return x
    half = _product(call, x, exponent // 2)
    found = multiply(call, half, half)
    return multiply(call, found, x) if exponent % 2 else found


@rule("sgn.default")
def direction(call: TorchCall, x: Complex) -> Complex:
    """x / |x|, or 0."""
    length = size(call, x)
    length = call.op("where", call.op("equal", length, 0.0), call.builder.number(1.0, length.dtype), length)
    return Complex(call.op("divide", x.real, length), call.op("divide", x.imaginary, length))


def _waves(call: TorchCall, straight: Value, turned: Value) -> tuple[Value, Value, Value, Value]:
    """sin and cos of one part, sinh and cosh of the other."""
    return (
        call.op("sin", turned), call.op("cos", turned),
        formulas.hyperbolic_sine(call, straight), formulas.hyperbolic_cosine(call, straight),
    )  # fmt: skip


@rule("sinh.default")
def hyperbolic_sine(call: TorchCall, x: Complex) -> Complex:
    sine, cosine, grown, even = _waves(call, x.real, x.imaginary)
    return Complex(call.op("multiply", grown, cosine), call.op("multiply", even, sine))


@rule("cosh.default")
def hyperbolic_cosine(call: TorchCall, x: Complex) -> Complex:
    sine, cosine, grown, even = _waves(call, x.real, x.imaginary)
    return Complex(call.op("multiply", even, cosine), call.op("multiply", grown, sine))


@rule("tanh.default")
def hyperbolic_tangent(call: TorchCall, x: Complex) -> Complex:
    """(sinh 2a + i sin 2b) / (cosh 2a + cos 2b) of a + ib."""
    double = call.op("multiply", call.op("clip", x.real, low=-_FLAT, high=_FLAT), 2.0)
    sine, cosine, grown, even = _waves(call, double, call.op("multiply", x.imaginary, 2.0))
    below = call.op("add", even, cosine)
    return Complex(call.op("divide", grown, below), call.op("divide", sine, below))


def _turned(function: Callable[[TorchCall, Complex], Complex]) -> Callable[[TorchCall, Complex], Complex]:
    """f(ix) / i, which makes sin of sinh, and tan of tanh."""

    def apply(call: TorchCall, x: Complex) -> Complex:
        found = function(call, Complex(call.op("negate", x.imaginary), x.real))
        return Complex(found.imaginary, call.op("negate", found.real))

    return apply


TABLE.add("sin.default", _turned(hyperbolic_sine))
TABLE.add("tan.default", _turned(hyperbolic_tangent))


@rule("cos.default")
def cosine(call: TorchCall, x: Complex) -> Complex:
    return hyperbolic_cosine(call, Complex(call.op("negate", x.imaginary), x.real))


@rule("sigmoid.default")
def sigmoid(call: TorchCall, x: Complex) -> Complex:
    """(1 + tanh(x / 2)) / 2."""
    found = hyperbolic_tangent(call, Complex(*(call.op("multiply", part, 0.5) for part in (x.real, x.imaginary))))
    half = call.op("multiply", found.real, 0.5)
    return Complex(call.op("add", half, 0.5), call.op("multiply", found.imaginary, 0.5))


@rule("pow.Tensor_Tensor", "pow.Scalar")
def power_of_tensors(call: TorchCall, x: Operand, exponent: Operand) -> Complex:
    return power(call, of(call, x, part_type(call)), of(call, exponent, part_type(call)))
