"""Functions of complex numbers: logarithms, roots, powers, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.dtypes import int32
from tilewright.graph.core import Value
from tilewright.importers import formulas, matrices
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_complex import Complex, divided, joined
from tilewright.importers.torch_fx import COMPLEX, TorchCall
from tilewright.importers.torch_ops import reduction
from tilewright.importers.torch_ops.complexes import (
    Operand,
    angle,
    conjugate,
    exponential,
    larger_part,
    multiply,
    of,
    part_type,
    reciprocal,
    size,
    sliced,
    times,
    times_sine,
)  # fmt: skip
from tilewright.symbolic import Size, lift

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


@rule("linalg_vector_norm.default")
def vector_norm(
    call: TorchCall, x: Operand, ord: Any = 2, dim: reduction.Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    return reduction.vector_norm(call, size(call, x), ord, dim, keepdim)


def _along_parts(call: TorchCall, x: Complex, function: Callable[..., Value], *args: Any, **kwargs: Any) -> Value:
    """The sum of what a function gives of both parts."""
    return call.op("add", *(function(call, part, *args, **kwargs) for part in (x.real, x.imaginary)))


@rule("var.correction", "var.dim")
def variance(call: TorchCall, x: Complex, *args: Any, **kwargs: Any) -> Value:
    """The mean of |x - mean|²."""
    return _along_parts(call, x, reduction.variance, *args, **kwargs)


@rule("std.correction", "std.dim")
def deviation(call: TorchCall, x: Complex, *args: Any, **kwargs: Any) -> Value:
    return call.op("sqrt", variance(call, x, *args, **kwargs))


@rule("var_mean.correction")
def variance_and_mean(call: TorchCall, x: Complex, *args: Any, **kwargs: Any) -> tuple[Value, Complex]:
    found = [reduction.variance_and_mean(call, part, *args, **kwargs) for part in (x.real, x.imaginary)]
    return call.op("add", found[0][0], found[1][0]), Complex(found[0][1], found[1][1])


def _of_each_part(ask: str, join: str) -> Callable[[TorchCall, Complex], Value]:
    def apply(call: TorchCall, x: Complex) -> Value:
        return call.op(join, *(call.op(ask, part) for part in (x.real, x.imaginary)))

    return apply


TABLE.add("isnan.default", _of_each_part("isnan", "logical_or"))


@rule("cumprod.default")
def running_product(call: TorchCall, x: Operand, dim: int, dtype: Any = None) -> Complex:
    """Of each element and those up to 1, 3, 7, … before it, by products with the line moved as far."""
    x = of(call, x, part_type(call))
    if not x.rank:
        return x
    axis = dim % x.rank
    length, distance = x.shape[axis], 1
    if not isinstance(length, int):
        raise Unsupported("running products of a dynamic number of complex numbers", "fix the size")
    while distance < length:
        earlier, later = sliced(call, x, axis, 0, length - distance), sliced(call, x, axis, distance, length)
        product, start = times(call, earlier, later), sliced(call, x, axis, 0, distance)
        pairs = (start.real, product.real), (start.imaginary, product.imaginary)
        x, distance = Complex(*(call.op("concat", *pair, axis=axis) for pair in pairs)), distance * 2
    return x


# Inverse functions: W. Kahan, Branch Cuts for Complex Elementary Functions (1987) ---------------------


def _roots(call: TorchCall, x: Complex) -> tuple[Complex, Complex]:
    """The roots of 1 - x and 1 + x."""
    below = Complex(call.op("subtract", 1.0, x.real), call.op("negate", x.imaginary))
    return square_root(call, below), square_root(call, Complex(call.op("add", x.real, 1.0), x.imaginary))


@rule("asin.default")
def inverse_sine(call: TorchCall, x: Complex) -> Complex:
    below, above = _roots(call, x)
    across = times(call, below, above).real
    along = times(call, conjugate(call, below), above).imaginary
    return Complex(call.op("atan2", x.real, across), formulas.inverse_hyperbolic_sine(call, along))


@rule("acos.default")
def inverse_cosine(call: TorchCall, x: Complex) -> Complex:
    below, above = _roots(call, x)
    half = call.op("atan2", below.real, above.real)
    along = times(call, conjugate(call, above), below).imaginary
    return Complex(call.op("multiply", half, 2.0), formulas.inverse_hyperbolic_sine(call, along))


@rule("acosh.default")
def inverse_hyperbolic_cosine(call: TorchCall, x: Complex) -> Complex:
    below = square_root(call, Complex(call.op("subtract", x.real, 1.0), x.imaginary))
    above = square_root(call, Complex(call.op("add", x.real, 1.0), x.imaginary))
    along = times(call, conjugate(call, below), above).real
    half = call.op("atan2", below.imaginary, above.real)
    return Complex(formulas.inverse_hyperbolic_sine(call, along), call.op("multiply", half, 2.0))


@rule("atanh.default")
def inverse_hyperbolic_tangent(call: TorchCall, x: Complex) -> Complex:
    """log1p(4a / ((1 - a)² + b²)) / 4 and half the angle of (1 - a)(1 + a) - b² + 2ib, of x = a + ib with a >= 0."""
    size_, square = call.op("absolute", x.real), call.op("multiply", x.imaginary, x.imaginary)
    less, more = call.op("subtract", 1.0, size_), call.op("add", size_, 1.0)
    below = call.op("add", call.op("multiply", less, less), square)
    grown = formulas.log1p(call, call.op("divide", call.op("multiply", size_, 4.0), below))
    real = formulas.with_sign_of(call, call.op("multiply", grown, 0.25), x.real)
    across = call.op("subtract", call.op("multiply", less, more), square)
    turned = call.op("atan2", call.op("multiply", x.imaginary, 2.0), across)
    return Complex(real, call.op("multiply", turned, 0.5))


TABLE.add("asinh.default", _turned(inverse_sine))
TABLE.add("atan.default", _turned(inverse_hyperbolic_tangent))


# Matrices --------------------------------------------------------------------------------------------


@rule("_linalg_solve_ex.default")
def solve(
    call: TorchCall, a: Complex, b: Complex, left: bool = True, check_errors: bool = False
) -> tuple[Complex, None, None, Value]:
    if not left:
        raise Unsupported("a solution of x a = b in complex numbers", "transpose the matrices")
    vector = b.rank == a.rank - 1
    parts = [call.unsqueeze(part, -1) if vector else part for part in (b.real, b.imaginary)]
    right, order = call.op("concat", *parts, axis=parts[0].rank - 2), a.shape[-1]
    found, pivots = matrices.solve(call, _as_real(call, a), right)
    halves = (call.slice(found, found.rank - 2, start, stop) for start, stop in _halves(order))
    return Complex(*(call.reshape(half, call.shape) for half in halves)), None, None, _failed(call, pivots)


@rule("_linalg_svd.default")
def singular_values(
    call: TorchCall, a: Complex, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None
) -> tuple[None, Value, None]:
    """Those of the real matrix of A come twice, and are no vectors of A."""
    if call.is_read(0) or call.is_read(2):
        raise Unsupported("singular vectors of complex matrices", "torch.linalg.svdvals is supported")
    found = call.op("matrix_part", _as_real(call, a), part="s")
    return None, call.slice(found, found.rank - 1, 0, found.shape[-1], 2), None


def _halves(order: Size) -> tuple[tuple[Size, Size], ...]:
    return (0, order), (order, lift(order) * 2)


def _failed(call: TorchCall, pivots: Value) -> Value:
    """0, or 1 where a pivot is 0."""
    failed = call.cast(call.op("equal", pivots, 0.0), int32)
    return call.op("reduce_max", failed, axes=(failed.rank - 1,), keepdims=False)


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
    parts = (call.slice(left, a.rank - 2, start, stop) for start, stop in _halves(order))
    return Complex(*parts), _failed(call, pivots)


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
