"""Functions of complex numbers: logarithms, roots, powers, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.dtypes import int32
from tilewright.graph.core import Value
from tilewright.importers import formulas, matrices
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_complex import Complex, divided, joined
from tilewright.importers.torch_fx import COMPLEX, TorchCall
from tilewright.importers.torch_ops.complexes import (
    Operand,
    angle,
    exponential,
    larger_part,
    multiply,
    of,
    part_type,
    reciprocal,
    size,
    times_sine,
)  # fmt: skip
from tilewright.symbolic import lift

TABLE = RuleTable("Functions of complex numbers", COMPLEX + "aten.")
rule = TABLE.rule

_MOST_PRODUCTS = 64  # the largest power that is a product
_FLAT = 20.0  # beyond it the real part of the hyperbolic tangent is 1 in every format


@rule("log.default")
def logarithm(call: TorchCall, x: Complex) -> Complex:
    """The logarithm of the larger part, and that of 1 + the ratio's square: |x| may overflow, or round to 1."""
    large, ratio = larger_part(call, x)
    rest = call.op("multiply", formulas.log1p(call, call.op("multiply", ratio, ratio)), 0.5)
    return Complex(call.op("add", call.op("log", large), rest), angle(call, x))


for _name, _base in (("log2", 2.0), ("log10", 10.0)):
    TABLE.add(f"{_name}.default", lambda call, x, base=_base: multiply(call, logarithm(call, x), 1 / math.log(base)))


@rule("sqrt.default")
def square_root(call: TorchCall, x: Complex) -> Complex:
    """The root in the right half plane: its larger part from |x| + |re x|, the other from that, so none cancels."""
    zero, one = (call.builder.number(number, x.real.dtype) for number in (0.0, 1.0))
    parts = [call.op("absolute", part) for part in (x.real, x.imaginary)]
    big = call.op("greater", call.op("maximum", *parts), 1.0)  # of a quarter of it |x| + |re x| does not overflow
    quarter = call.op("where", big, call.builder.number(0.25, x.real.dtype), one)
    scaled = Complex(*(call.op("multiply", part, quarter) for part in (x.real, x.imaginary)))
    whole = call.op("add", size(call, scaled), call.op("absolute", scaled.real))
    large = call.op("sqrt", call.op("multiply", whole, 0.5))
    large = call.op("where", big, call.op("multiply", large, 2.0), large)
    divisor = call.op("where", call.op("equal", large, 0.0), one, call.op("multiply", large, 2.0))
    infinite = call.op("equal", parts[1], math.inf)
    small = call.op("where", infinite, x.imaginary, call.op("divide", x.imaginary, divisor))
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
        if abs(exponent) <= _MOST_PRODUCTS and exponent == int(exponent):
            base = x if exponent > 0 else reciprocal(call, x)  # first: a product of large numbers would overflow
            return _product(call, base, abs(int(exponent)))
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
    return Complex(call.op("multiply", grown, cosine), times_sine(call, even, sine))


@rule("cosh.default")
def hyperbolic_cosine(call: TorchCall, x: Complex) -> Complex:
    sine, cosine, grown, even = _waves(call, x.real, x.imaginary)
    return Complex(call.op("multiply", even, cosine), times_sine(call, grown, sine))


def _by_poles(call: TorchCall, x: Complex) -> tuple[Value, Value, Value, Value]:
    """Of a + ib: sinh a cosh a and sin b cos b, divided by sinh²a + cos²b, the square of |cosh(a + ib)|, which does
    not cancel near its zeros; that square; and cos²b.  Where a is infinite, b is taken as 0."""
    endless = call.op("equal", call.op("absolute", x.real), math.inf)
    turned = call.op("where", endless, call.builder.number(0.0, x.real.dtype), x.imaginary)
    sine, cosine, grown, even = _waves(call, x.real, turned)
    square = call.op("multiply", cosine, cosine)
    below = call.op("add", call.op("multiply", grown, grown), square)
    straight = call.op("divide", call.op("multiply", grown, even), below)
    return straight, call.op("divide", call.op("multiply", sine, cosine), below), below, square


@rule("tanh.default")
def hyperbolic_tangent(call: TorchCall, x: Complex) -> Complex:
    near, turned, _, _ = _by_poles(call, x)
    flat = call.op("greater", call.op("absolute", x.real), _FLAT)  # where squares may overflow, too
    return Complex(call.op("where", flat, call.op("clip", x.real, low=-1.0, high=1.0), near), turned)


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
    """((e^a - 1) / 2 + cos²(b/2) + i sin(b) / 2) / (2 |cosh(x/2)|²) of x = a + ib; 1 less that of -x where a > 0."""
    halves = Complex(*(call.op("multiply", part, 0.5) for part in (x.real, x.imaginary)))
    _, turned, below, square = _by_poles(call, halves)
    less = formulas.expm1(call, call.op("negate", call.op("absolute", x.real)))
    upper = call.op("add", call.op("multiply", less, 0.5), square)
    left = call.op("multiply", call.op("divide", upper, below), 0.5)
    right = call.op("greater", x.real, 0.0)
    real = call.op("where", right, call.op("subtract", 1.0, left), left)
    return Complex(real, call.op("multiply", turned, 0.5))


@rule("pow.Tensor_Tensor", "pow.Scalar")
def power_of_tensors(call: TorchCall, x: Operand, exponent: Operand) -> Complex:
    return power(call, of(call, x, part_type(call)), of(call, exponent, part_type(call)))


def _as_real(call: TorchCall, a: Complex) -> Value:
    """[[A, -B], [B, A]] of A + iB, whose inverse has the parts of that of A + iB in the same places."""
    last = a.rank - 1
    upper = call.op("concat", a.real, call.op("negate", a.imaginary), axis=last)
    return call.op("concat", upper, call.op("concat", a.imaginary, a.real, axis=last), axis=last - 1)


@rule("linalg_inv_ex.default")
def inverse_and_info(call: TorchCall, a: Complex, check_errors: bool = False) -> tuple[Complex, Value]:
    """The inverse, and 0 where there is one."""
    order = a.shape[-1]
    found, pivots = matrices.inverse(call, _as_real(call, a))
    left = call.slice(found, a.rank - 1, 0, order)
    parts = (call.slice(left, a.rank - 2, start, stop) for start, stop in ((0, order), (order, lift(order) * 2)))
    failed = call.cast(call.op("equal", pivots, 0.0), int32)
    return Complex(*parts), call.op("reduce_max", failed, axes=(failed.rank - 1,), keepdims=False)


@rule("inverse.default", "linalg_inv.default")
def inverse(call: TorchCall, a: Complex) -> Complex:
    return inverse_and_info(call, a)[0]


@rule("linalg_eig.default")
def eigenvectors(call: TorchCall, a: Operand) -> tuple[Complex, Complex]:
    """Eigenvalues and eigenvectors of a square matrix; of the lengths and signs of vectors, those that LAPACK gives."""
    matrix = joined(call, a) if isinstance(a, Complex) else a
    names = ("values of pairs", "vectors of pairs") if isinstance(a, Complex) else ("complex values", "complex vectors")
    values, vectors = (call.op("matrix_part", matrix, part=part) for part in names)
    return divided(call, values), divided(call, vectors)
