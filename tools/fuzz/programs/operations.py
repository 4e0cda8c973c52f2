"""The operations of random programs, each with a rule that draws its operands and parameters.

An operation is written so that it means the same for every size of its operands.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional as F

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Values(Protocol):
    """What a rule may ask of the program so far; numbers of values count inputs and results alike."""

    random: random.Random
    gpu: bool

    def pick(self, condition: Callable[[torch.Tensor], bool]) -> int | None:
        """A value for which a condition on its example holds; recent ones more often."""

    def broadcastable(self, value: int, condition: Callable[[torch.Tensor], bool]) -> int | None:
        """A value that broadcasts with another at every size."""

    def example(self, value: int) -> torch.Tensor:
        """The value at the example's sizes."""

    def fixed(self, value: int) -> list[int]:
        """The axes of a value that have one extent at all sizes."""


Drawn = tuple[tuple[int, ...], tuple[Any, ...]] | None  # operands and parameters; None where nothing fits
Rule = Callable[[Values], Drawn]


@dataclass(frozen=True)
class Operation:
    """`function(*operands, *parameters)`."""

    function: Callable[..., Any]
    rule: Rule
    weight: float = 1.0


OPERATIONS: dict[str, Operation] = {}


def _any(value: torch.Tensor) -> bool:
    return value.dtype not in FLOATS8


def _float(value: torch.Tensor) -> bool:
    return value.dtype in FLOATS


def _integer(value: torch.Tensor) -> bool:
    return value.dtype in INTEGERS


def _number(value: torch.Tensor) -> bool:
    return value.dtype in FLOATS or value.dtype in INTEGERS


def _wide(value: torch.Tensor) -> bool:
    return value.dtype in (torch.float32, torch.float64)


def _of_rank(condition: Callable[[torch.Tensor], bool], low: int, high: int = 6) -> Callable[[torch.Tensor], bool]:
    return lambda value: condition(value) and low <= value.dim() <= high


def add(names: str, rule: Rule, function: Callable[..., Any] | None = None, weight: float = 1.0) -> None:
    """Operations that share a rule: functions of `torch` by their names, or one that is given."""
    for name in names.split():
        found = function
        if found is None:
            found = getattr(torch, name, None) or getattr(F, name)
        OPERATIONS[name] = Operation(found, rule, weight)


# Rules -----------------------------------------------------------------------------------------------


def unary(condition: Callable[[torch.Tensor], bool]) -> Rule:
    def rule(values: Values) -> Drawn:
        value = values.pick(condition)
        return None if value is None else ((value,), ())

    return rule


def binary(condition: Callable[[torch.Tensor], bool]) -> Rule:
    """Two tensors that broadcast, or a tensor and a number."""

    def rule(values: Values) -> Drawn:
        left = values.pick(condition)
        if left is None:
            return None
        if values.random.random() < 0.3:
            integer = not values.example(left).is_floating_point()
            number = values.random.choice([1, 2, 3, 7, -1, -2] if integer else [0.5, 2, -1.5, 3, 1e-3, 100])
            return (left,), (number,)
        right = values.broadcastable(left, condition)
        return None if right is None else ((left, right), ())

    return rule


def with_parameters(condition: Callable[[torch.Tensor], bool], *choices: Sequence[Any]) -> Rule:
    """One tensor, and one of each of some choices."""

    def rule(values: Values) -> Drawn:
        value = values.pick(condition)
        return None if value is None else ((value,), tuple(values.random.choice(list(each)) for each in choices))

    return rule


def along_axis(condition: Callable[[torch.Tensor], bool], *choices: Sequence[Any]) -> Rule:
    """A tensor and one of its axes, then one of each of some choices."""

    def rule(values: Values) -> Drawn:
        value = values.pick(_of_rank(condition, 1))
        if value is None:
            return None
        rank = values.example(value).dim()
        return (value,), (values.random.randrange(-rank, rank), *(values.random.choice(list(each)) for each in choices))

    return rule


def along_axes(condition: Callable[[torch.Tensor], bool], *choices: Sequence[Any]) -> Rule:
    """A tensor and some of its axes."""

    def rule(values: Values) -> Drawn:
        value = values.pick(_of_rank(condition, 1))
        if value is None:
            return None
        rank = values.example(value).dim()
        axes = tuple(values.random.sample(range(rank), values.random.randint(1, rank)))
        return (value,), (axes, *(values.random.choice(list(each)) for each in choices))

    return rule


FLAGS = (False, True)


def tensor(number: Any, broadcastable: Any) -> Any:
    """A tensor or number as a tensor of another one's element type."""
    return (
        number.to(broadcastable.dtype) if isinstance(number, torch.Tensor) else torch.full_like(broadcastable, number)
    )


# Elementwise -----------------------------------------------------------------------------------------

add("neg abs relu square", unary(_number))
add("exp sin cos tanh erf sigmoid sqrt rsqrt log log2 log10 log1p expm1 exp2 reciprocal", unary(_float), weight=0.4)
add("atan asinh tan erfc frac", unary(_float), weight=0.2)
# PyTorch's vector code overflows where e^x does, though half of it is in the range of float32.
add("sinh", unary(_float), lambda x: torch.sinh(x.clamp(-88, 88)), 0.2)
add("cosh", unary(_float), lambda x: torch.cosh(x.clamp(-88, 88)), 0.2)
add("floor ceil round trunc", unary(_number), weight=0.4)
add("sign isnan isfinite isinf", unary(_number), weight=0.4)
add("logical_not", unary(_any), weight=0.4)
add("silu softplus elu selu mish hardswish hardsigmoid leaky_relu celu logsigmoid", unary(_float), weight=0.3)
# PyTorch gives NaN for the GELU of infinity on some CPUs, where infinity is right.
add("gelu", unary(_float), lambda x: F.gelu(x.clamp(-1e4, 1e4)), 0.4)
add("relu6", unary(_number), weight=0.3)
add("add sub mul", binary(_number), weight=3.0)
add("maximum", binary(_any), lambda x, y: torch.maximum(x, tensor(y, x)))
add("minimum", binary(_any), lambda x, y: torch.minimum(x, tensor(y, x)))
add("div", binary(_number), weight=1.5)
add("floor_divide remainder fmod", binary(_number), weight=0.8)
add("divide_trunc", binary(_number), lambda x, y: torch.div(x, y, rounding_mode="trunc"), 0.5)
add("eq ne lt le gt ge", binary(_any), weight=0.5)
add("logical_and", binary(_any), lambda x, y: torch.logical_and(x, x == y), 0.3)
add("logical_or", binary(_any), lambda x, y: torch.logical_or(x > 1, x == y), 0.3)
add("logical_xor", binary(_any), lambda x, y: torch.logical_xor(x > 1, x != y), 0.2)
add("bitwise_and bitwise_or bitwise_xor", binary(lambda value: not value.is_floating_point()), weight=0.4)
add("pow", with_parameters(_float, (2, 3, 0.5, -1, 2.5, 0, 1, -2)), torch.pow)
add("whole_pow", with_parameters(_integer, (2, 3, 5, 0, 1)), torch.pow, 0.4)
add("clamp", with_parameters(_number, (-1, 0, 2), (3, 5)), torch.clamp)
add("clamp_min", with_parameters(_number, (-1, 0, 1)), torch.clamp_min, 0.3)
add("hardtanh", with_parameters(_number, (0,), (1, 4)), F.hardtanh, 0.3)
add("nan_to_num", unary(_float), torch.nan_to_num, 0.3)
add("lerp", binary(_wide), lambda x, y: torch.lerp(x, tensor(y, x), 0.3), 0.3)
add("atan2", binary(_float), lambda x, y: torch.atan2(x, tensor(y, x)), 0.2)
add("scale", with_parameters(_number, (2, 3, -1), (1, 0)), lambda x, factor, shift: x * factor + shift)


def _three(values: Values) -> Drawn:
    left = values.pick(_any)
    right = None if left is None else values.broadcastable(left, _any)
    if left is None or right is None:
        return None
    chosen = values.broadcastable(left, lambda value: value.dtype == torch.bool)
    return ((left, right), ()) if chosen is None else ((left, right, chosen), ())


def _where(x: Any, y: Any, condition: Any = None) -> Any:
    return torch.where(x > y if condition is None else condition, x, y)


add("where", _three, _where, 1.5)
add("masked_fill", binary(_number), lambda x, y: x.masked_fill(x > y, 2), 0.5)
add("addcmul", binary(_wide), lambda x, y: torch.addcmul(x, x, tensor(y, x), value=2), 0.3)

# Casts -----------------------------------------------------------------------------------------------


def _cast(values: Values) -> Drawn:
    value = values.pick(_any)
    if value is None:
        return None
    target = values.random.choice([*FLOATS, *INTEGERS, torch.bool])
    return (value,), (target, values.example(value).is_floating_point() and values.gpu)


def cast(x: Any, dtype: Any, bounded: bool) -> Any:
    """To another type; floats that no uint8 holds are left out, as PyTorch's answers for them vary."""
    if x.is_floating_point() and (dtype == torch.uint8 or (bounded and not dtype.is_floating_point)):
        x = torch.nan_to_num(x).clamp(0, 100)
    return x.to(dtype)


add("cast", _cast, cast, 2.0)
add(
    "round_trip",
    with_parameters(_any, (*FLOATS8, torch.float16, torch.bfloat16, torch.int16, torch.bool)),
    lambda x, dtype: cast(x, dtype, True).to(x.dtype),
)
add("to_float", unary(_any), lambda x: x.float())

# Reductions ------------------------------------------------------------------------------------------

add("sum", along_axes(_any, FLAGS), lambda x, axes, keep: x.sum(axes, keepdim=keep), 1.5)
add("mean", along_axes(_float, FLAGS), lambda x, axes, keep: x.mean(axes, keepdim=keep), 1.0)
add("var_of", along_axes(_wide, (0, 1), FLAGS), lambda x, axes, c, keep: x.var(axes, correction=c, keepdim=keep), 0.6)
add("std_of", along_axes(_wide, (0, 1), FLAGS), lambda x, axes, c, keep: x.std(axes, correction=c, keepdim=keep), 0.3)
add("amax", along_axes(_any, FLAGS), lambda x, axes, keep: x.amax(axes, keepdim=keep))
add("amin", along_axes(_any, FLAGS), lambda x, axes, keep: x.amin(axes, keepdim=keep), 0.6)
add("logsumexp", along_axes(_wide, FLAGS), lambda x, axes, keep: x.logsumexp(axes, keepdim=keep), 0.6)
add(
    "norm_of",
    along_axes(_wide, (1, 2, float("inf"))),
    lambda x, axes, order: torch.linalg.vector_norm(x, order, axes),
    0.4,
)
add("prod", along_axis(_number, FLAGS), lambda x, axis, keep: x.prod(axis, keepdim=keep), 0.6)
add("any", along_axis(_any, FLAGS), lambda x, axis, keep: x.bool().any(axis, keepdim=keep), 0.5)
add("all", along_axis(_any, FLAGS), lambda x, axis, keep: x.bool().all(axis, keepdim=keep), 0.5)
add("argmax argmin", along_axis(_number, FLAGS), None, 0.4)
add("max_of", along_axis(_any), lambda x, axis: x.max(axis)[0], 0.5)
add("min_of", along_axis(_any), lambda x, axis: x.min(axis)[0], 0.4)
add("total", unary(_number), lambda x: x.sum(), 0.4)
add("cumsum", along_axis(_any), lambda x, axis: x.cumsum(axis), 0.8)
add("softmax", along_axis(_float), lambda x, axis: F.softmax(x, axis), 0.7)
add("log_softmax", along_axis(_float), lambda x, axis: F.log_softmax(x, axis), 0.5)
add("sort_of", along_axis(_number, FLAGS), lambda x, axis, down: x.sort(axis, down, stable=True)[0], 0.3)
add("argsort_of", along_axis(_number, FLAGS), lambda x, axis, down: x.sort(axis, descending=down, stable=True)[1], 0.2)
add("topk_of", along_axis(_number, (1, 2, 3)), lambda x, axis, count: x.topk(count, axis)[0], 0.3)

# Views and movement ----------------------------------------------------------------------------------


def _permutation(values: Values) -> Drawn:
    value = values.pick(_of_rank(_any, 2))
    if value is None:
        return None
    rank = values.example(value).dim()
    return (value,), (tuple(values.random.sample(range(rank), rank)),)


def _expansion(values: Values) -> Drawn:
    """New leading repeats, or an axis of one repeated, by a number or by the size of another value."""
    value = values.pick(_of_rank(_any, 0, 4))
    if value is None:
        return None
    return (value,), (values.random.choice([2, 3, 5, 32, 33]),)


def _slices(values: Values) -> Drawn:
    value = values.pick(_of_rank(_any, 1))
    if value is None:
        return None
    axis = values.random.randrange(values.example(value).dim())
    begin = values.random.choice([None, 0, 1, 2, -1, -2, -3, -100])
    return (value,), (
        axis,
        begin,
        values.random.choice([None, 1, 3, 100, -1, -2]),
        values.random.choice([1, 1, 1, 2, 3]),
    )


def _slice(x: Any, axis: int, begin: int | None, end: int | None, step: int) -> Any:
    result = x[(slice(None),) * axis + (slice(begin, end, step),)]
    if 0 in result.shape:
        raise ValueError("nothing left")
    return result


BOUNDS: dict[str, Callable[[Any], Any]] = {
    "n - 3": lambda n: n - 3,
    "3 - n": lambda n: 3 - n,
    "(3 - n) // 2": lambda n: (3 - n) // 2,
    "-(n // 3) - 1": lambda n: -(n // 3) - 1,
    "n // 2 - 4": lambda n: n // 2 - 4,
    "-(-n // 4)": lambda n: -(-n // 4),
    "abs(n - 4)": lambda n: abs(n - 4),
    "n * n - 9": lambda n: n * n - 9,
    "round(n * 0.7)": lambda n: round(n * 0.7),
    "int(n * 0.3) - 2": lambda n: int(n * 0.3) - 2,
}  # of slices, by the size of the axis: several are negative for some sizes


def _computed_slices(values: Values) -> Drawn:
    value = values.pick(_of_rank(_any, 1))
    if value is None:
        return None
    axis = values.random.randrange(values.example(value).dim())
    return (value,), (axis, values.random.choice([None, *BOUNDS]), values.random.choice([None, *BOUNDS]))


def _computed_slice(x: Any, axis: int, begin: str | None, end: str | None) -> Any:
    bounds = (BOUNDS[bound](x.shape[axis]) if bound else None for bound in (begin, end))
    return x[(slice(None),) * axis + (slice(*bounds),)]


def _joined(values: Values) -> Drawn:
    first = values.pick(_of_rank(_any, 1))
    second = None if first is None else values.broadcastable(first, _any)
    if first is None or second is None:
        return None
    return (first, second), (values.random.randrange(values.example(first).dim()),)


def _matching(x: Any, y: Any) -> tuple[Any, Any]:
    x, y = torch.broadcast_tensors(x, y)
    return x, y


add("permute", _permutation, lambda x, order: x.permute(order), 1.0)
add("flatten", unary(_of_rank(_any, 2)), lambda x: x.flatten(0, 1), 0.6)
add("flatten_end", unary(_of_rank(_any, 2)), lambda x: x.flatten(-2), 0.6)
add("rows", unary(_of_rank(_any, 2)), lambda x: x.reshape(-1, x.shape[-1]), 0.5)
add(
    "split_axis",
    with_parameters(_of_rank(_any, 1), (2, 3, 4)),
    lambda x, n: x.reshape(*x.shape[:-1], x.shape[-1] // n, n),
    0.6,
)
add("unsqueeze", along_axis(_any), lambda x, axis: x.unsqueeze(axis), 0.8)
add("squeeze_axis", along_axis(_any), lambda x, axis: x.squeeze(axis), 0.4)
add("expand_front", _expansion, lambda x, n: x.expand(n, *x.shape), 1.2)
add("expand_back", _expansion, lambda x, n: x.unsqueeze(-1).expand(*x.shape, n), 0.8)
add("expand_sum", _expansion, lambda x, n: x.expand(n, *x.shape).sum(0), 0.4)
add("repeat_front", _expansion, lambda x, n: x.repeat(n, *[1] * x.dim()), 0.4)
add("repeat_axis", along_axis(_any, (2, 3)), lambda x, axis, n: x.repeat_interleave(n, axis), 0.4)
add("tile_axis", with_parameters(_of_rank(_any, 1), (2, 3)), lambda x, n: torch.cat([x] * n, -1), 0.4)
add(
    "like_other",
    _joined,
    lambda x, y, axis: x.expand_as(x * y) if x.dtype != torch.bool else x.expand_as(x & y.bool()),
    0.6,
)
add("slice", _slices, _slice, 1.5)
add("slice_computed", _computed_slices, _computed_slice, 0.8)
add("select", along_axis(_any, (0, -1, 1)), lambda x, axis, index: x.select(axis, index), 0.6)
add("narrow_end", along_axis(_any, (1, 2)), lambda x, axis, n: x.narrow(axis, x.shape[axis] - n, n), 0.4)
add("flip", along_axes(_any), lambda x, axes: x.flip(axes), 0.5)
add("roll", along_axis(_any, (1, -1, 3, 50, -50, -1000001)), lambda x, axis, shift: x.roll(shift, axis), 0.7)
add("roll_flat", with_parameters(_of_rank(_any, 1), (1, -3, 77)), lambda x, shift: x.roll(shift), 0.2)
add("tril", with_parameters(_of_rank(_any, 2), (-1, 0, 1, 2)), torch.tril, 0.3)
add("triu", with_parameters(_of_rank(_any, 2), (-1, 0, 1, 2)), torch.triu, 0.3)
add("diagonal", with_parameters(_of_rank(_any, 2), (0, 1, -1)), lambda x, k: x.diagonal(k, -2, -1), 0.2)
add("cat", _joined, lambda x, y, axis: torch.cat(_matching(x, y), axis))
add("stack", _joined, lambda x, y, axis: torch.stack(_matching(x, y), axis), 0.6)
add("halves", along_axis(_any), lambda x, axis: torch.cat(x.chunk(2, axis)[::-1], axis), 0.5)
add("unbind", along_axis(_any), lambda x, axis: x.unbind(axis)[-1], 0.2)
add("unfold", along_axis(_any, (1, 2, 3), (1, 2)), lambda x, axis, n, step: x.unfold(axis, n, step), 0.3)
add(
    "pad",
    with_parameters(_of_rank(_any, 1), ((1, 2), (0, 3), (-1, 1), (2, -1)), (0, 1)),
    lambda x, pad, v: F.pad(x, pad, value=v),
    0.7,
)
add("pad_rows", with_parameters(_of_rank(_any, 2), ((1, 0, 0, 2), (0, 0, 1, 1))), lambda x, pad: F.pad(x, pad), 0.4)
add("pad_edges", with_parameters(_of_rank(_float, 2, 3), ((1, 2), (3, 0)), ("replicate", "reflect", "circular")),
    lambda x, pad, mode: F.pad(x, pad, mode=mode), 0.4)  # fmt: skip

# Indexing --------------------------------------------------------------------------------------------


def _rows_of(x: Any, indices: Any) -> Any:
    return x[indices.to(torch.int64).abs() % x.shape[0]]


def _indexed(values: Values) -> Drawn:
    value = values.pick(_of_rank(_any, 1))
    indices = values.pick(lambda value: _integer(value) and value.dim() in (1, 2))
    return None if value is None or indices is None else ((value, indices), ())


add("take_rows", _indexed, _rows_of, 0.6)
add("gather", along_axis(_number), lambda x, axis: x.gather(axis, x.argsort(axis, stable=True)), 0.3)
add("index_last", _indexed, lambda x, i: x.index_select(-1, (i.flatten().to(torch.int64) % x.shape[-1]).abs()), 0.4)
add("positions", along_axis(_number), lambda x, axis: torch.arange(x.shape[axis], device=x.device), 0.4)
add("ones_like zeros_like", unary(_any), weight=0.4)
add("set_first", unary(_of_rank(_number, 1)), lambda x: _set_first(x), 0.6)
add(
    "add_in_place",
    binary(_number),
    lambda x, y: (x * 1).add_(1).mul_(2) if isinstance(y, (int, float)) else (x + y).sub_(1),
    0.4,
)
add("fill_rows", unary(_of_rank(_number, 2)), lambda x: _fill_rows(x), 0.4)
add(
    "scatter",
    along_axis(_number),
    lambda x, axis: torch.zeros_like(x).scatter(axis, x.argsort(axis, stable=True), x),
    0.2,
)
add("one_hot", unary(_of_rank(_integer, 1, 2)), lambda x: F.one_hot(x.to(torch.int64).abs() % 4, 4), 0.2)


def _attend(x: Any) -> Any:
    """Scores below 2**31, from which on those of one kernel for all of attention may be NaN."""
    return F.softmax(x @ x.transpose(-1, -2) * 0.3, -1) @ x


def _set_first(x: Any) -> Any:
    result = x.clone()
    result[0] = 3
    result[..., -1] += 1
    return result


def _fill_rows(x: Any) -> Any:
    result = x.clone()
    result[:, 0] = x[:, -1]
    return result


# Products, norms, windows ----------------------------------------------------------------------------


def _product(values: Values) -> Drawn:
    left = values.pick(_of_rank(_float, 2, 4))
    return None if left is None else ((left,), (values.random.choice([1, 3, 8, 17]),))


def weights(x: Any, *shape: int) -> Any:
    """Fixed numbers between -1 and 1, which are exact in every element type."""
    count = torch.arange(torch.Size(shape).numel(), device=x.device)
    return ((count * 12 % 31) * 2 - 29).to(x.dtype).reshape(shape) * 0.03125


def _two_matrices(values: Values) -> Drawn:
    left = values.pick(_of_rank(_float, 2, 4))
    right = (
        None if left is None else values.broadcastable(left, lambda value: value.dtype == values.example(left).dtype)
    )
    return None if left is None or right is None else ((left, right), ())


add("linear", _product, lambda x, n: F.linear(x, weights(x, n, x.shape[-1]), weights(x, n)), 1.0)
add("matmul", _product, lambda x, n: x @ weights(x, x.shape[-1], n), 0.6)
add("gram", unary(_of_rank(_float, 2, 4)), lambda x: x @ x.transpose(-1, -2), 0.6)
add("outer", unary(_of_rank(_float, 1, 2)), lambda x: x.unsqueeze(-1) @ x.unsqueeze(-2), 0.4)
add("matmul_two", _two_matrices, lambda x, y: x @ y.transpose(-1, -2), 0.6)
add("repeated_product", _product, lambda x, n: x[..., :1].expand(*x.shape[:-1], 5) @ weights(x, 5, n), 0.4)
add("layer_norm", unary(_of_rank(_float, 2)), lambda x: F.layer_norm(x, x.shape[-1:]), 0.6)
add(
    "layer_norm_scaled",
    unary(_of_rank(_float, 2)),
    lambda x: F.layer_norm(x, x.shape[-1:], weights(x, x.shape[-1])),
    0.4,
)
add("rms_norm", unary(_of_rank(_float, 2)), lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-5), 0.4)
add("group_norm", unary(_of_rank(_wide, 3, 4)), lambda x: F.group_norm(x, 1), 0.3)
add("attention", unary(_of_rank(_wide, 3, 4)), lambda x: F.scaled_dot_product_attention(x, x, x), 0.4)
add(
    "attention_causal",
    unary(_of_rank(_wide, 3, 4)),
    lambda x: F.scaled_dot_product_attention(x, x * 2, x, is_causal=True),
    0.3,
)
add("attention_by_hand", unary(_of_rank(_float, 2, 4)), lambda x: _attend(x.clamp(-1e4, 1e4)), 0.4)
add("conv1d", with_parameters(_of_rank(_wide, 3, 3), (1, 3), (1, 2), (0, 1)),
    lambda x, k, stride, pad: F.conv1d(x, weights(x, 4, x.shape[1], k), stride=stride, padding=pad), 0.4)  # fmt: skip
add("conv2d", with_parameters(_of_rank(_wide, 4, 4), (1, 3), (1, 2), (0, 1)),
    lambda x, k, step, pad: F.conv2d(x, weights(x, 4, x.shape[1], k, k), None, step, pad), 0.4)  # fmt: skip
add("max_pool1d", with_parameters(_of_rank(_wide, 3, 3), (2, 3)), lambda x, k: F.max_pool1d(x, k, 1, k // 2), 0.3)
add("avg_pool1d", with_parameters(_of_rank(_wide, 3, 3), (2, 3)), lambda x, k: F.avg_pool1d(x, k, 1), 0.3)
add(
    "max_pool2d",
    with_parameters(_of_rank(_wide, 4, 4), (2, 3), (1, 2)),
    lambda x, k, step: F.max_pool2d(x, k, step),
    0.3,
)
add(
    "avg_pool2d",
    with_parameters(_of_rank(_wide, 4, 4), (2, 3), (1, 2)),
    lambda x, k, step: F.avg_pool2d(x, k, step),
    0.3,
)
add("global_pool", unary(_of_rank(_wide, 4, 4)), lambda x: F.adaptive_avg_pool2d(x, 1), 0.3)
add(
    "batch_norm",
    unary(_of_rank(_wide, 3, 4)),
    lambda x: F.batch_norm(x, weights(x, x.shape[1]), weights(x, x.shape[1]) ** 2 + 1),
    0.3,
)
add("upsample", unary(_of_rank(_wide, 4, 4)), lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), 0.2)
add("glu", unary(_of_rank(_float, 1)), lambda x: F.glu(x, -1), 0.3)
