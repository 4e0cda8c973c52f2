"""Complex numbers as pairs of real ones, and Fourier transforms.

A rule here is taken where an argument or a result is complex.  Operations that only move elements have the rule that
they have for real numbers, once for each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.dtypes import DType, int1
from tilewright.graph.core import Value
from tilewright.importers import fourier
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_complex import REAL_TYPES, Complex, divided, joined
from tilewright.importers.torch_fx import COMPLEX, TorchCall, dtype_of
from tilewright.importers.torch_ops import creation, elementwise, indexing, reduction, shape
from tilewright.symbolic import Size, product

TABLE = RuleTable("Complex numbers and Fourier transforms", COMPLEX + "aten.")
rule = TABLE.rule

Operand = Any  # Complex, Value, or a number, complex or not


class _Part(TorchCall):
    """A call on complex tensors, as a call on one of their parts."""

    @property
    def dtype(self) -> DType:
        return part_type(self)

    def promoted(self, *positions: int) -> DType:
        return part_type(self)


def part_type(call: TorchCall) -> DType:
    """The element type of the parts of the first result."""
    first = call.results[0]
    assert first is not None
    return dtype_of(REAL_TYPES.get(first.dtype, first.dtype))


def _for_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for real numbers as one for complex ones, part by part; what is real there has no imaginary part."""

    def apply(call: TorchCall, *args: Any, **kwargs: Any) -> Any:
        part = _Part(call.builder, call.symbols, call.node)
        results = []
        for number in range(2):
            parts = [_part(item, number) for item in args]
            named = {key: _part(item, number) for key, item in kwargs.items()}
            results.append(function(part, *parts, **named))
        if isinstance(results[0], tuple):
            return tuple(Complex(*pair) for pair in zip(*results, strict=True))
        return Complex(*results)

    return apply


def _part(item: Any, number: int) -> Any:
    """The real (0) or imaginary (1) part of an argument; other arguments than tensors as they are."""
    if isinstance(item, (list, tuple)):
        return type(item)(_part(each, number) for each in item)
    if isinstance(item, complex):
        return (item.real, item.imag)[number]
    if isinstance(item, Complex):
        return (item.real, item.imaginary)[number]
    return item


_MOVES: dict[str, Callable[..., Any]] = {
    **{name: rule_ for name, rule_ in shape.TABLE.rules.items() if rule_ not in (shape.concatenate, shape.stack)},
    **{f"aten.{name}": indexing.TABLE.rules[f"aten.{name}"] for name in (
        "index_select.default", "gather.default", "index.Tensor", "_unsafe_index.Tensor", "take_along_dim.default",
    )},
    "aten.nan_to_num.default": elementwise.TABLE.rules["aten.nan_to_num.default"],
    **{f"aten.{name}": reduction.TABLE.rules[f"aten.{name}"] for name in (
        "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default",
    )},
}  # fmt: skip
for _name, _rule in _MOVES.items():
    TABLE.add(_name.removeprefix("aten."), _for_parts(_rule))


def of(call: Emitter, value: Operand, dtype: DType) -> Complex:
    """A real or complex tensor or number as a complex one with parts of `dtype`."""
    if isinstance(value, Complex):
        return Complex(call.cast(value.real, dtype), call.cast(value.imaginary, dtype))
    if isinstance(value, complex):
        return Complex(call.builder.number(value.real, dtype), call.builder.number(value.imag, dtype))
    real = call.value(value, dtype)
    return Complex(real, call.full(real.shape, 0, dtype))


def _pair(call: TorchCall, left: Operand, right: Operand) -> tuple[Complex, Complex]:
    dtype = part_type(call)
    return of(call, left, dtype), of(call, right, dtype)


@rule("cat.default")
def concatenate(call: TorchCall, tensors: Sequence[Operand], dim: int = 0) -> Complex:
    found = [of(call, item, part_type(call)) for item in tensors]
    return _for_parts(shape.concatenate)(call, found, dim)


@rule("stack.default")
def stack(call: TorchCall, tensors: Sequence[Operand], dim: int = 0) -> Complex:
    found = [of(call, item, part_type(call)) for item in tensors]
    return _for_parts(shape.stack)(call, found, dim)


# Between real and complex ----------------------------------------------------------------------------


@rule("view_as_real.default", "view_as_real_copy.default")
def view_as_real(call: TorchCall, x: Complex) -> Value:
    return joined(call, x)


@rule("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(call: TorchCall, x: Value) -> Complex:
    return divided(call, x)


@rule("complex.default")
def complex_of(call: TorchCall, real: Value, imaginary: Value) -> Complex:
    return Complex(*(call.broadcast(part, call.shape) for part in (real, imaginary)))


@rule("polar.default")
def polar(call: TorchCall, size: Value, angle: Value) -> Complex:
    return Complex(*(call.op("multiply", size, call.op(name, angle)) for name in ("cos", "sin")))


@rule("real.default")
def real(call: TorchCall, x: Complex) -> Value:
    return x.real


@rule("imag.default")
def imaginary(call: TorchCall, x: Complex) -> Value:
    return x.imaginary


def larger_part(call: TorchCall, x: Complex) -> tuple[Value, Value]:
    """The size of the larger part, and the ratio of the smaller to it, which is 0 where both are 0 or one infinite."""
    parts = [call.op("absolute", part) for part in (x.real, x.imaginary)]
    large, small = call.op("maximum", *parts), call.op("minimum", *parts)
    zero, one = (call.builder.number(number, large.dtype) for number in (0.0, 1.0))
    ratio = call.op("divide", small, call.op("where", call.op("equal", large, 0.0), one, large))
    return large, call.op("where", call.op("equal", large, math.inf), zero, ratio)


def size(call: TorchCall, x: Complex) -> Value:
    """sqrt(re² + im²), by the ratio of the smaller part to the larger, which does not overflow."""
    large, ratio = larger_part(call, x)
    return call.op("multiply", large, call.op("sqrt", call.op("add", call.op("multiply", ratio, ratio), 1.0)))


TABLE.add("abs.default", size)


@rule("angle.default")
def angle(call: TorchCall, x: Complex) -> Value:
    return call.op("atan2", x.imaginary, x.real)


@rule("_conj.default", "_conj_physical.default", "conj.default", "conj_physical.default", "_conj_copy.default")
def conjugate(call: TorchCall, x: Complex) -> Complex:
    return Complex(x.real, call.op("negate", x.imaginary))


@rule("resolve_conj.default", "resolve_neg.default", "clone.default", "alias.default", "detach.default",
      "contiguous.default", "lift_fresh_copy.default", "_to_copy.default")  # fmt: skip
def copy(call: TorchCall, x: Operand, *_: Any, **__: Any) -> Any:
    first = call.results[0]
    assert first is not None
    if first.dtype not in REAL_TYPES:
        return call.cast(x.real if isinstance(x, Complex) else x, dtype_of(first.dtype))
    return of(call, x, part_type(call))


# Arithmetic ------------------------------------------------------------------------------------------


def _by_parts(op: str) -> Callable[..., Complex]:
    def apply(call: TorchCall, left: Operand, right: Operand, alpha: Any = 1) -> Complex:
        a, b = _pair(call, left, right)
        if alpha != 1:
            b = times(call, b, of(call, alpha, b.real.dtype))
        return Complex(call.op(op, a.real, b.real), call.op(op, a.imaginary, b.imaginary))

    return apply


for _name, _op in (("add", "add"), ("sub", "subtract")):
    TABLE.add(f"{_name}.Tensor", _by_parts(_op))
    TABLE.add(f"{_name}.Scalar", _by_parts(_op))


@rule("neg.default")
def negate(call: TorchCall, x: Complex) -> Complex:
    return Complex(call.op("negate", x.real), call.op("negate", x.imaginary))


def times(call: TorchCall, a: Complex, b: Complex) -> Complex:
    real = call.op("subtract", call.op("multiply", a.real, b.real), call.op("multiply", a.imaginary, b.imaginary))
    other = call.op("add", call.op("multiply", a.real, b.imaginary), call.op("multiply", a.imaginary, b.real))
    return Complex(real, other)


def _scaled(call: TorchCall, op: str, x: Complex, factor: Any) -> Complex:
    """x times, or divided by, something real."""
    number = call.value(factor, x.real.dtype)
    return Complex(call.op(op, x.real, number), call.op(op, x.imaginary, number))


@rule("mul.Tensor", "mul.Scalar")
def multiply(call: TorchCall, left: Operand, right: Operand) -> Complex:
    if not isinstance(right, (Complex, complex)):
        return _scaled(call, "multiply", of(call, left, part_type(call)), right)
    if not isinstance(left, (Complex, complex)):
        return _scaled(call, "multiply", of(call, right, part_type(call)), left)
    return times(call, *_pair(call, left, right))


@rule("div.Tensor", "div.Scalar")
def divide(call: TorchCall, left: Operand, right: Operand) -> Complex:
    """With a complex divisor by Smith's method, which does not overflow."""
    if not isinstance(right, (Complex, complex)):
        return _scaled(call, "divide", of(call, left, part_type(call)), right)
    a, b = _pair(call, left, right)
    steep = call.op("less", call.op("absolute", b.real), call.op("absolute", b.imaginary))
    large, small = call.op("where", steep, b.imaginary, b.real), call.op("where", steep, b.real, b.imaginary)
    ratio = call.op("divide", small, large)
    below = call.op("add", large, call.op("multiply", small, ratio))
    first, second = call.op("where", steep, a.imaginary, a.real), call.op("where", steep, a.real, a.imaginary)
    upper = call.op("divide", call.op("add", first, call.op("multiply", second, ratio)), below)
    lower = call.op("divide", call.op("subtract", second, call.op("multiply", first, ratio)), below)
    return Complex(upper, call.op("where", steep, call.op("negate", lower), lower))


@rule("reciprocal.default")
def reciprocal(call: TorchCall, x: Complex) -> Complex:
    return divide(call, 1.0, x)


@rule("exp.default")
def exponential(call: TorchCall, x: Complex) -> Complex:
    grown = call.op("exp", x.real)
    cosine, sine = (call.op(name, x.imaginary) for name in ("cos", "sin"))
    return Complex(call.op("multiply", grown, cosine), times_sine(call, grown, sine))


def times_sine(call: TorchCall, grown: Value, sine: Value) -> Value:
    """The product, 0 on the real axis also where `grown` is infinite."""
    return call.op("where", call.op("equal", sine, 0.0), sine, call.op("multiply", grown, sine))


@rule("square.default")
def square(call: TorchCall, x: Complex) -> Complex:
    return times(call, x, x)


@rule("linear.default")
def linear(call: TorchCall, x: Operand, weight: Operand, bias: Operand | None = None) -> Complex:
    dtype = part_type(call)
    left, right = of(call, x, dtype), of(call, weight, dtype)
    turned = Complex(*(call.transpose(part, 0, part.rank - 1) for part in (right.real, right.imaginary)))
    found = matmul(call, left, turned)
    return found if bias is None else TABLE.rules[COMPLEX + "aten.add.Tensor"](call, found, bias)


@rule("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def matmul(call: TorchCall, left: Complex, right: Complex) -> Complex:
    def product_of(a: Value, b: Value) -> Value:
        if a.rank == b.rank == 1:
            return call.reshape(call.matmul(call.unsqueeze(a, 0), call.unsqueeze(b, 1)), ())
        return call.matmul(a, b)

    real_part = call.op("subtract", product_of(left.real, right.real), product_of(left.imaginary, right.imaginary))
    other = call.op("add", product_of(left.real, right.imaginary), product_of(left.imaginary, right.real))
    return Complex(real_part, other)


@rule("prod.default")
def product_of_all(call: TorchCall, x: Operand, dtype: Any = None) -> Complex:
    x = of(call, x, part_type(call))
    return _product_along(call, x, range(x.real.rank), False)


@rule("prod.dim_int")
def product_along(call: TorchCall, x: Operand, dim: int, keepdim: bool = False, dtype: Any = None) -> Complex:
    x = of(call, x, part_type(call))
    return _product_along(call, x, [dim % x.real.rank] if x.real.rank else [], keepdim)


def _product_along(call: TorchCall, x: Complex, axes: Sequence[int], keepdim: bool) -> Complex:
    """Products of halves of a dimension, as often as it takes to leave one element; 1 for none."""
    for axis in axes:
        length = x.real.shape[axis]
        if not isinstance(length, int):
            raise Unsupported("a product of a dynamic number of complex numbers", "fix the size")
        if not length:
            shape = [1 if place == axis else size for place, size in enumerate(x.real.shape)]
            x, length = Complex(*(call.full(shape, number, x.real.dtype) for number in (1, 0))), 1
        while length > 1:
            middle = length // 2
            left, right = (sliced(call, x, axis, start, start + middle) for start in (0, middle))
            found = times(call, left, right)
            if length % 2:
                rest = sliced(call, x, axis, length - 1, length)
                joined_parts = zip((found.real, found.imaginary), (rest.real, rest.imaginary), strict=True)
                found = Complex(*(call.op("concat", *pair, axis=axis) for pair in joined_parts))
            x, length = found, middle + length % 2
    if keepdim:
        return x
    sizes = [size for place, size in enumerate(x.real.shape) if place not in axes]
    return Complex(*(call.reshape(part, sizes) for part in (x.real, x.imaginary)))


def sliced(call: TorchCall, x: Complex, axis: int, start: int, stop: int) -> Complex:
    return Complex(*(call.slice(part, axis, start, stop) for part in (x.real, x.imaginary)))


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that writes a part of a tensor as one for complex numbers; real tensors and numbers are of both kinds."""
    apply = _for_parts(function)

    def written(call: TorchCall, x: Operand, *args: Any, **kwargs: Any) -> Any:
        names = ("source", "values", "value", "updates")
        dtype = part_type(call)

        def as_complex(item: Any) -> Any:
            floating = isinstance(item, Value) and item.dtype.is_float
            return of(call, item, dtype) if floating else item

        args = tuple(map(as_complex, args))
        kwargs = {key: as_complex(item) if key in names else item for key, item in kwargs.items()}
        return apply(call, of(call, x, dtype), *args, **kwargs)

    return written


for _name in (
    "scatter.src", "scatter_add.default", "index_put.default", "index_put_.default", "_unsafe_index_put.default",
    "index_copy.default", "index_add.default", "slice_scatter.default", "select_scatter.default",
    "diagonal_scatter.default", "masked_scatter.default",
):  # fmt: skip
    TABLE.add(_name, _written(indexing.TABLE.rules[f"aten.{_name}"]))


@rule("scatter.value")
def scatter_value(call: TorchCall, x: Complex, dim: int, index: Value, value: Any) -> Complex:
    number = of(call, value, part_type(call))
    part = _Part(call.builder, call.symbols, call.node)
    pairs = (x.real, number.real), (x.imaginary, number.imaginary)
    return Complex(*(indexing.scatter_value(part, old, dim, index, new) for old, new in pairs))


@rule("copy.default")
def copied(call: TorchCall, x: Operand, source: Operand, *_: Any) -> Operand:
    """A real tensor takes the real part of a complex one."""
    found = of(call, source, part_type(call))
    real, imaginary = (call.broadcast(part, call.shape) for part in (found.real, found.imaginary))
    return Complex(real, imaginary) if isinstance(x, Complex) else real


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: TorchCall, x: Operand, mask: Value, value: Operand) -> Complex:
    return where(call, mask, value, x)


@rule("where.self")
def where(call: TorchCall, condition: Value, left: Operand, right: Operand) -> Complex:
    a, b = _pair(call, left, right)
    chosen = call.cast(condition, int1)
    return Complex(call.op("where", chosen, a.real, b.real), call.op("where", chosen, a.imaginary, b.imaginary))


@rule("eq.Tensor", "eq.Scalar")
def equal(call: TorchCall, left: Operand, right: Operand) -> Value:
    found = [item for item in (left, right) if isinstance(item, Complex)]
    a, b = (of(call, item, found[0].real.dtype) for item in (left, right))
    return call.op("logical_and", call.op("equal", a.real, b.real), call.op("equal", a.imaginary, b.imaginary))


@rule("ne.Tensor", "ne.Scalar")
def not_equal(call: TorchCall, left: Operand, right: Operand) -> Value:
    return call.op("logical_not", equal(call, left, right))


@rule("logical_not.default")
def logical_not(call: TorchCall, x: Complex) -> Value:
    return equal(call, x, 0.0)


@rule("any.default", "any.dim", "any.dims")
def any_(call: TorchCall, x: Complex, dim: reduction.Axes = None, keepdim: bool = False) -> Value:
    return reduction.any_(call, not_equal(call, x, 0.0), dim, keepdim)


@rule("all.default", "all.dim", "all.dims")
def all_(call: TorchCall, x: Complex, dim: reduction.Axes = None, keepdim: bool = False) -> Value:
    return reduction.all_(call, not_equal(call, x, 0.0), dim, keepdim)


@rule("addmm.default", "baddbmm.default")
def product_and_sum(call: TorchCall, x: Operand, left: Operand, right: Operand, beta: Any = 1, alpha: Any = 1) -> Any:
    dtype = part_type(call)
    found = multiply(call, matmul(call, of(call, left, dtype), of(call, right, dtype)), alpha)
    return found if beta == 0 else _by_parts("add")(call, multiply(call, of(call, x, dtype), beta), found)


@rule("scalar_tensor.default")
def scalar_tensor(call: TorchCall, value: Any, **_: Any) -> Complex:
    return of(call, value, part_type(call))


def _made(function: Callable[..., Value]) -> Callable[..., Complex]:
    """A tensor of one complex number."""

    def apply(call: TorchCall, *args: Any, **_: Any) -> Complex:
        number = complex(next((item for item in reversed(args) if isinstance(item, (int, float, complex))), 0.0))
        if function is not creation.full:
            number = complex(function is creation.ones)
        dtype = part_type(call)
        return Complex(call.full(call.shape, number.real, dtype), call.full(call.shape, number.imag, dtype))

    return apply


for _function in (creation.full, creation.zeros, creation.ones, creation.empty):
    for _name, _rule in creation.TABLE.rules.items():
        if _rule is _function:
            TABLE.add(_name.removeprefix("aten."), _made(_function))


# Fourier transforms ----------------------------------------------------------------------------------


def _normalized(call: TorchCall, x: Value, normalization: int, lengths: list[Size]) -> Value:
    """Divided by the count of numbers (2), its root (1), or not (0)."""
    if normalization == 0:
        return x
    wide = call.wide(x)
    count = call.value(product(lengths), wide.dtype)
    return call.cast(call.op("divide", wide, call.op("sqrt", count) if normalization == 1 else count), x.dtype)


def _along(call: TorchCall, x: Complex, axis: int, inverse: bool) -> Complex:
    """The transform along one dimension, without a factor."""
    last, length = x.rank - 1, x.shape[axis]
    real_part, other = (call.transpose(part, axis, last) for part in (x.real, x.imaginary))
    found = fourier.transform(call, real_part, other, length, length, inverse)
    return Complex(*(call.transpose(part, axis, last) for part in found))


@rule("_fft_c2c.default")
def transform(call: TorchCall, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes = [axis % x.rank for axis in dim]
    lengths = [x.shape[axis] for axis in axes]
    for axis in axes:
        x = _along(call, x, axis, not forward)
    return Complex(*(_normalized(call, part, normalization, lengths) for part in (x.real, x.imaginary)))


@rule("_fft_r2c.default")
def transform_of_real(call: TorchCall, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    """The last of `dim` first; `onesided` keeps the half of its numbers from which the others follow."""
    axes = [axis % x.rank for axis in dim]
    lengths, last = [x.shape[axis] for axis in axes], axes[-1]
    length = x.shape[last]
    turned = call.transpose(x, last, x.rank - 1)
    count = fourier.half(length) if onesided else length
    parts = fourier.transform(call, turned, None, length, count, False)
    found = Complex(*(call.transpose(part, last, x.rank - 1) for part in parts))
    for axis in axes[:-1]:
        found = _along(call, found, axis, False)
    return Complex(*(_normalized(call, part, normalization, lengths) for part in (found.real, found.imaginary)))


@rule("_fft_c2r.default")
def transform_to_real(
    call: TorchCall, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Size
) -> Value:
    """The inverse of a transform of real numbers; the last of `dim` last."""
    axes = [axis % x.rank for axis in dim]
    lengths, last = [*(x.shape[axis] for axis in axes[:-1]), last_dim_size], axes[-1]
    for axis in axes[:-1]:
        x = _along(call, x, axis, True)
    parts = [call.transpose(part, last, x.rank - 1) for part in (x.real, x.imaginary)]
    found = fourier.real_inverse(call, parts[0], parts[1], last_dim_size)
    return _normalized(call, call.transpose(found, last, x.rank - 1), normalization, lengths)
