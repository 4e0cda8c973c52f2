"""Sums, extremes, positions, variances, norms along axes, softmax, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.dtypes import float32, int1, int32, int64, uint8
from tilewright.graph.core import Value
from tilewright.importers import formulas, sorting
from tilewright.importers.emitter import Number
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import lift, simplify

TABLE = RuleTable("Reductions", "aten.")
rule = TABLE.rule

Axes = int | Sequence[int] | None


def axes_of(x: Value, dim: Axes) -> tuple[int, ...]:
    """PyTorch's `dim` as non-negative axes; None and [] mean all of them."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.rank))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(sorted(axis % max(x.rank, 1) for axis in dims)) if x.rank else ()


def reduce(call: TorchCall, op: str, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """One reduction; a scalar is its own reduction."""
    axes = axes_of(x, dim)
    return call.op(op, x, axes=axes, keepdims=keepdim) if axes else x


@rule("sum.dim_IntList", "sum.default")
def sum_(call: TorchCall, x: Value, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Value:
    op = "reduce_max" if call.dtype == int1 else "reduce_sum"  # truth values are added by "or"
    return reduce(call, op, call.cast(x, call.dtype), dim, keepdim)


@rule("mean.dim", "mean.default")
def mean(call: TorchCall, x: Value, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduce(call, "reduce_mean", call.cast(x, call.dtype), dim, keepdim)


@rule("amax.default", "max.default")
def amax(call: TorchCall, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    return _extreme(call, "reduce_max", x, dim, keepdim)


@rule("amin.default", "min.default")
def amin(call: TorchCall, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    return _extreme(call, "reduce_min", x, dim, keepdim)


def _extreme(call: TorchCall, op: str, x: Value, dim: Axes, keepdim: bool) -> Value:
    if any(x.shape[axis] == 0 for axis in axes_of(x, dim)):
        raise Unsupported(f"the extreme of no elements, of shape {list(x.shape)}", "PyTorch refuses it, too")
    return reduce(call, op, x, dim, keepdim)


@rule("prod.default")
def product_all(call: TorchCall, x: Value, dtype: Any = None) -> Value:
    return reduce(call, "reduce_product", call.cast(x, call.dtype))


@rule("prod.dim_int")
def product(call: TorchCall, x: Value, dim: int, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduce(call, "reduce_product", call.cast(x, call.dtype), dim, keepdim)


@rule("max.dim")
def max_dim(call: TorchCall, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return reduce(call, "reduce_max", x, dim, keepdim), _position(call, "argmax", x, dim, keepdim)


@rule("min.dim")
def min_dim(call: TorchCall, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return reduce(call, "reduce_min", x, dim, keepdim), _position(call, "argmin", x, dim, keepdim)


def _first(call: TorchCall) -> Value:
    """Where a tensor without dimensions has its only element."""
    return call.full((), 0, int64)


def _position(call: TorchCall, op: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    if x.rank == 0:
        return _first(call)
    if dim is None:
        flat = call.op(op, call.reshape(x, (-1,)), axis=0, keepdims=False)
        return call.reshape(flat, (1,) * x.rank) if keepdim else flat
    return call.op(op, x, axis=dim, keepdims=keepdim)


@rule("argmax.default")
def argmax(call: TorchCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _position(call, "argmax", x, dim, keepdim)


@rule("argmin.default")
def argmin(call: TorchCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _position(call, "argmin", x, dim, keepdim)


@rule("_is_all_true.default")
def is_all_true(call: TorchCall, x: Value) -> Value:
    return all_(call, x)


@rule("_is_any_true.default")
def is_any_true(call: TorchCall, x: Value) -> Value:
    return any_(call, x)


@rule("any.default", "any.dim", "any.dims")
def any_(call: TorchCall, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    return _truth(call, "reduce_max", x, dim, keepdim)


@rule("all.default", "all.dim", "all.dims")
def all_(call: TorchCall, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    return _truth(call, "reduce_min", x, dim, keepdim)


def _truth(call: TorchCall, op: str, x: Value, dim: Axes, keepdim: bool) -> Value:
    """Of truth values, 0 or 1; PyTorch gives uint8 for uint8 and boolean for all other types.

    Of nothing, the reduction is the least or the largest integer: false for "any", true for "all".
    """
    found = reduce(call, op, call.cast(call.cast(x, int1), int32), dim, keepdim)
    return call.cast(call.op("greater", found, 0), x.dtype if x.dtype == uint8 else int1)


@rule("sort.default", "sort.stable")
def sort(
    call: TorchCall, x: Value, dim: int = -1, descending: bool = False, stable: bool = False
) -> tuple[Value, Value]:
    return (x, _first(call)) if x.rank == 0 else sorting.sort(call, x, dim % x.rank, descending)


@rule("topk.default")
def topk(
    call: TorchCall, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    return (x, _first(call)) if x.rank == 0 else sorting.top(call, x, k, dim % x.rank, largest)


@rule("histc.default")
def histc(call: TorchCall, x: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    """How many elements lie in each of equal parts of [min, max]; from the least element to the greatest if both are
    equal."""
    x = call.cast(x, x.dtype if x.dtype.is_float else float32)
    limits = _limits(call, x, None if min == max else (float(min), float(max)))
    low, high = _apart(call, *limits, 1.0)
    numbers = call.reshape(x, (-1,))
    # As PyTorch rounds it: this quotient decides in which bin an element next to an edge is counted.
    scaled = call.op("multiply", call.op("subtract", numbers, low), float(bins))
    scaled = call.op("divide", scaled, call.op("subtract", high, low))
    place = call.op("minimum", call.op("floor", scaled), float(bins - 1))
    inside = call.op("logical_and", call.op("greater_equal", numbers, low), call.op("less_equal", numbers, high))
    place = call.op("where", inside, place, call.builder.number(-1.0, place.dtype))
    hit = call.op("equal", call.unsqueeze(place, 0), call.unsqueeze(call.iota(bins, place.dtype), 1))
    return call.cast(call.op("reduce_sum", call.cast(hit, int64), axes=(1,)), call.dtype)


@rule("histogram.bin_ct")
def histogram(
    call: TorchCall,
    x: Value,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:
    """Counts or sums of weights in equal parts of a range, and the parts' edges."""
    edges = _equal_parts(call, bins, *_apart(call, *_limits(call, x, range), 0.5))
    return _shares(call, _counts(call, x, edges, weight), edges, density), edges


@rule("histogram.bins_tensor")
def histogram_of_edges(
    call: TorchCall, x: Value, bins: Value, weight: Value | None = None, density: bool = False
) -> tuple[Value, Value]:
    edges = call.cast(bins, x.dtype)
    return _shares(call, _counts(call, x, edges, weight), edges, density), edges


def _limits(call: TorchCall, x: Value, given: Sequence[float] | None) -> tuple[Value, Value]:
    """Where a histogram begins and ends: as given, or at the least and the greatest element."""
    if given is not None:
        low, high = (call.builder.number(float(limit), x.dtype) for limit in given)
        return low, high
    if 0 in x.shape:
        return call.builder.number(0.0, x.dtype), call.builder.number(0.0, x.dtype)
    return reduce(call, "reduce_min", x), reduce(call, "reduce_max", x)


def _apart(call: TorchCall, low: Value, high: Value, step: float) -> tuple[Value, Value]:
    """Limits that are equal, each moved away from the other by a step."""
    same = call.op("equal", low, high)
    below, above = call.op("subtract", low, step), call.op("add", high, step)
    return call.op("where", same, below, low), call.op("where", same, above, high)


def _equal_parts(call: TorchCall, bins: int, low: Value, high: Value) -> Value:
    """Edges [bins + 1], counted from the nearer end as PyTorch's linspace."""
    step = call.op("divide", call.op("subtract", high, low), float(bins))
    line = call.iota(bins + 1, low.dtype)
    upward = call.op("add", low, call.op("multiply", step, line))
    downward = call.op("subtract", high, call.op("multiply", step, call.op("subtract", float(bins), line)))
    return call.op("where", call.op("less", line, float((bins + 1) // 2)), upward, downward)


def _counts(call: TorchCall, x: Value, edges: Value, weight: Value | None) -> Value:
    """How many elements (or what of their weights) lie between neighbours of ascending edges, the last one included."""
    numbers = call.reshape(x, (-1,))
    last = simplify(lift(edges.shape[0]) - 1)
    begins, end = call.slice(edges, 0, 0, last), call.slice(edges, 0, last, edges.shape[0])
    beyond = call.op("greater_equal", call.unsqueeze(numbers, 0), call.unsqueeze(begins, 1))
    inside = call.op("logical_and", beyond, call.op("less_equal", numbers, end))
    none = call.full((1, numbers.shape[0]), False, int1)
    following = call.op("concat", call.slice(inside, 0, 1, last), none, axis=0)
    member = call.op("logical_and", inside, call.op("logical_not", following))
    terms = call.cast(member, int64)
    if weight is not None:  # not a product: 0 times infinity is NaN
        weights = call.unsqueeze(call.cast(call.reshape(weight, (-1,)), x.dtype), 0)
        terms = call.op("where", member, weights, call.builder.number(0.0, x.dtype))
    return call.cast(call.op("reduce_sum", terms, axes=(1,)), x.dtype)


def _shares(call: TorchCall, counts: Value, edges: Value, density: bool) -> Value:
    """With `density`, counts as shares of all, by the width of their part."""
    if not density:
        return counts
    count = edges.shape[0]
    widths = call.op("subtract", call.slice(edges, 0, 1, count), call.slice(edges, 0, 0, simplify(lift(count) - 1)))
    total = call.op("reduce_sum", counts, axes=(0,))
    return call.op("divide", call.op("divide", counts, total), widths)


# Variance and norms ----------------------------------------------------------------------------------


def _variance(call: TorchCall, x: Value, dim: Axes, correction: Number | None, keepdim: bool) -> tuple[Value, Value]:
    axes = axes_of(x, dim)
    mean, variance = call.mean_and_variance(x, axes, 1.0 if correction is None else float(correction))
    if keepdim:
        return variance, mean
    return _drop(call, variance, axes), _drop(call, mean, axes)


def _drop(call: TorchCall, x: Value, axes: Sequence[int]) -> Value:
    return call.reshape(x, [size for axis, size in enumerate(x.shape) if axis not in axes])


@rule("var.correction", "var.dim")
def variance(
    call: TorchCall,
    x: Value,
    dim: Axes = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: Number | None = None,
) -> Value:
    return _variance(call, x, dim, correction if correction is not None else float(unbiased), keepdim)[0]


@rule("std.correction", "std.dim")
def deviation(
    call: TorchCall,
    x: Value,
    dim: Axes = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: Number | None = None,
) -> Value:
    return call.op("sqrt", variance(call, x, dim, unbiased, keepdim, correction))


@rule("var_mean.correction")
def variance_and_mean(
    call: TorchCall, x: Value, dim: Axes = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return _variance(call, x, dim, correction, keepdim)


@rule("linalg_vector_norm.default")
def vector_norm(
    call: TorchCall, x: Value, ord: Number = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    return call.cast(norm_of(call, call.wide(call.cast(x, call.dtype)), ord, dim, keepdim), call.dtype)


def norm_of(call: TorchCall, x: Value, ord: Number, dim: Axes, keepdim: bool) -> Value:
    """The norm along axes, all without any, of numbers of a type that sums are taken in."""
    if ord == 2:
        return call.op("sqrt", reduce(call, "reduce_sum", call.op("multiply", x, x), dim, keepdim))
    size = call.op("absolute", x)
    if ord == 1:
        return reduce(call, "reduce_sum", size, dim, keepdim)
    if ord in (math.inf, -math.inf):
        return reduce(call, "reduce_max" if ord > 0 else "reduce_min", size, dim, keepdim)
    if ord == 0:
        return reduce(call, "reduce_sum", call.cast(call.op("not_equal", x, 0.0), x.dtype), dim, keepdim)
    total = reduce(call, "reduce_sum", call.op("power", size, float(ord)), dim, keepdim)
    return call.op("power", total, 1 / ord)


@rule("linalg__powsum.default")
def sum_of_powers(
    call: TorchCall, x: Value, ord: Number = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    powers = call.op("power", call.op("absolute", call.wide(call.cast(x, call.dtype))), float(ord))
    return call.cast(reduce(call, "reduce_sum", powers, dim, keepdim), call.dtype)


@rule("dist.default")
def distance(call: TorchCall, x: Value, other: Value, p: Number = 2) -> Value:
    """The norm of a difference."""
    return vector_norm(call, call.op("subtract", *call.pair(x, other)), p)


@rule("logsumexp.default")
def logsumexp(call: TorchCall, x: Value, dim: Axes, keepdim: bool = False) -> Value:
    axes = axes_of(x, dim)
    result = formulas.logsumexp(call, x, axes)
    return result if keepdim else _drop(call, result, axes)


def _cumulative(op: str) -> Callable[..., Value]:
    def apply(call: TorchCall, x: Value, dim: int, dtype: Any = None) -> Value:
        x = call.cast(x, call.dtype)
        return call.op(op, x, axis=dim) if x.rank else x

    return apply


TABLE.add("cumsum.default", _cumulative("cumsum"))
TABLE.add("cumprod.default", _cumulative("cumprod"))


@rule("logcumsumexp.default")
def logarithm_of_running_sum(call: TorchCall, x: Value, dim: int) -> Value:
    """log(sum of e^x up to each element)."""
    return call.op("cumlogsumexp", x, axis=dim) if x.rank else x


# Softmax ---------------------------------------------------------------------------------------------


@rule("softmax.int", "_softmax.default")
def softmax(call: TorchCall, x: Value, dim: int, dtype: Any = None) -> Value:
    return _of_rows(call, "softmax", x, dim)


@rule("log_softmax.int", "_log_softmax.default")
def log_softmax(call: TorchCall, x: Value, dim: int, dtype: Any = None) -> Value:
    return _of_rows(call, "log_softmax", x, dim)


def _of_rows(call: TorchCall, op: str, x: Value, dim: int) -> Value:
    """A softmax; of a tensor without dimensions as of one element."""
    x = call.cast(x, call.dtype)
    return call.op(op, x, axis=dim) if x.rank else call.reshape(call.op(op, call.reshape(x, (1,)), axis=0), ())


@rule("_safe_softmax.default")
def safe_softmax(call: TorchCall, x: Value, dim: int, dtype: Any = None) -> Value:
    """Softmax that gives zeros for rows of minus infinity only."""
    x = call.cast(x, call.dtype)
    if not x.rank:
        return call.op("where", call.op("equal", x, -math.inf), 0.0, _of_rows(call, "softmax", x, 0))
    largest = call.op("reduce_max", x, axes=(dim,), keepdims=True)
    blind = call.op("equal", largest, -math.inf)
    return call.op("where", blind, call.builder.number(0.0, x.dtype), call.op("softmax", x, axis=dim))
