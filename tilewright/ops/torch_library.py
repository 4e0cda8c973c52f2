"""The operations as PyTorch's custom operators, for torch.compile and torch.export.

    import tilewright.ops.torch_library
    y = torch.ops.tilewright.matmul(x, weight.T, bias, "gelu")

Operators return new tensors and have rules for fake tensors; they have no gradients, and say so.  Plain `ops.matmul`
and the others take an `out` and more, and may be called wherever nothing is traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright import ops
from tilewright.errors import LaunchError, brief
from tilewright.library.activations import ACTIVATIONS
from tilewright.ops import convolutions
from tilewright.ops.paged import RANKS

_DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32,
}  # fmt: skip


def _dtype(name: str | None, like: Tensor) -> torch.dtype:
    if name is not None:
        if name not in _DTYPES:
            raise LaunchError(f"out_dtype={brief(name)}: there are {', '.join(_DTYPES)}")
        return _DTYPES[name]
    if like.dtype in _INTEGERS:
        return torch.int32
    return like.dtype if like.dtype.itemsize > 1 else torch.bfloat16


Fake = Callable[..., Any]


def _operator(name: str, fake: Fake) -> Callable[[Callable[..., Any]], Any]:
    """Register an operator; `fake` makes its empty results from the same arguments (those left out do not arrive)."""

    def refuse(context: Any, *gradients: Any) -> Any:
        raise NotImplementedError(
            f"tilewright::{name} has no gradient: call it under torch.no_grad(), or on tensors that need none"
        )

    def checked(*arguments: Any, **named: Any) -> Any:
        # PyTorch asks this rule as soon as one tensor is on the device "meta", wherever the others are.
        places = {str(value.device) for value in (*arguments, *named.values()) if isinstance(value, Tensor)}
        _require(len(places) < 2, f"{name} got tensors on several devices: {', '.join(sorted(places))}")
        return fake(*arguments, **named)

    def register(function: Callable[..., Any]) -> Any:
        # On CPU tensors the operations run in the interpreter if it is on, and else say themselves what to do.
        devices = ("cuda", "cpu")
        operator = torch.library.custom_op(f"tilewright::{name}", function, mutates_args=(), device_types=devices)
        operator.register_fake(checked)
        operator.register_autograd(refuse)
        return operator

    return register


# The rules refuse what the operations would refuse when they run, as far as shapes and types tell.

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_INTEGERS = (torch.int8, torch.uint8)
_FLOATS_OF_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_MULTIPLIED = (*_FLOATS, *_FLOATS_OF_8_BITS, *_INTEGERS)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise LaunchError(message)


def _require_symbolic(condition: Any, message: str) -> None:
    """As `_require`, for a condition that may be of sizes known only later."""
    if isinstance(condition, torch.SymBool):
        torch._check(condition, lambda: message)
    else:
        _require(condition, message)


def _require_float(name: str, x: Tensor, like: Sequence[torch.dtype] = _FLOATS) -> None:
    kinds = " or ".join(str(kind).removeprefix("torch.") for kind in like)
    _require(x.dtype in like, f"{name} must be {kinds}, got {x.dtype}")


def _fits(name: str, x: Tensor | None, shape: Sequence[Any]) -> None:
    if x is not None:
        _require_float(name, x)
        _require(x.dim() == len(shape), f"{name} must have the shape {list(shape)}, got {list(x.shape)}")
        for extent, expected in zip(x.shape, shape, strict=True):
            torch._check(extent == expected, lambda: f"{name} must have the shape {list(shape)}, got {list(x.shape)}")


def _row_like(x: Tensor, *columns: Tensor | None) -> Tensor:
    _require_float("x", x)
    _require(x.dim() > 0, "x must have an axis")
    for name, row in zip(("weight", "bias"), columns, strict=False):
        _fits(name, row, x.shape[-1:])
    return x.new_empty(x.shape)


def _softmaxed(x: Tensor, log: bool = False) -> Tensor:
    return _row_like(x)


def _layer_normed(x: Tensor, weight: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Tensor:
    return _row_like(x, weight, bias)


def _rms_normed(x: Tensor, weight: Any = None, epsilon: float = 1e-6) -> Tensor:
    return _row_like(x, weight)


def _added_layer_norm(
    x: Tensor, residual: Tensor, weight: Any = None, bias: Any = None, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor]:
    _fits("residual", residual, x.shape)
    return _row_like(x, weight, bias), x.new_empty(x.shape)


def _added_rms_norm(x: Tensor, residual: Tensor, weight: Any = None, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    _fits("residual", residual, x.shape)
    return _row_like(x, weight), x.new_empty(x.shape)


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    lengths: Any = None,
    softcap: float = 0.0,
) -> Tensor:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    _require(q.dim() == k.dim() == v.dim() == 4, f"attention takes [batch, heads, rows, head size], got {shapes}")
    pairs = [*zip(k.shape, v.shape, strict=True), (q.shape[0], k.shape[0]), (q.shape[3], k.shape[3])]
    for one, other in pairs:
        torch._check(one == other, lambda: f"{shapes} do not fit each other")
    torch._check(q.shape[1] % k.shape[1] == 0, lambda: f"{shapes}: query heads are a multiple of key heads")
    fits = q.dtype in _FLOATS[:2] and q.dtype == k.dtype == v.dtype
    _require(fits, f"attention takes bfloat16 or float16, of one kind; got {q.dtype}, {k.dtype}, {v.dtype}")
    _require(window >= 0, f"a window is a number of keys, 0 for all of them, not {window}")
    _require(causal or not window, "a window is of causal attention: pass causal=True")
    torch._check(k.shape[2] != 0, lambda: "attention needs a key")
    if lengths is not None:
        fits = lengths.dim() == 2 and lengths.shape[1] == 2 and lengths.dtype == torch.int32
        _require(fits, f"lengths must be int32 [batch, 2]: queries and keys of each batch; got {list(lengths.shape)}")
        torch._check(lengths.shape[0] == q.shape[0], lambda: f"lengths {list(lengths.shape)} of {q.shape[0]} batches")
    return q.new_empty(q.shape)


def _with_sums(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _attended(q, *rest), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _decoded(q: Tensor, k: Tensor, v: Tensor, bias: Any = None, scale: float | None = None) -> Tensor:
    _require(q.dim() == 3, f"decode_attention takes q [batch, heads, size], got {list(q.shape)}")
    _attended(q.unsqueeze(2), k, v)
    _fits("bias", bias, (q.shape[0], k.shape[2]))
    return q.new_empty(q.shape)


def _over_pages(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, page: int,
    scale: float | None = None, window: int = 0, softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    given = {"q": q, "keys": keys, "values": values, "tables": tables, "starts": starts, "lengths": lengths}
    for name, x in given.items():
        _require(x.dim() == RANKS[name], f"{name} has {RANKS[name]} dimensions, got {list(x.shape)}")
        _require_float(name, x, _FLOATS if x.dim() == 3 else (torch.int32,))
    _require(q.dtype == keys.dtype == values.dtype, "q, keys and values must have one element type")
    _require(page >= 1 and window >= 0, f"page={page} and window={window}: expected whole numbers from 1 and from 0")
    shapes = f"these do not fit each other: {', '.join(f'{name} {list(x.shape)}' for name, x in given.items())}"
    for one, other in ((keys.shape[2], q.shape[2]), (keys.shape[0], values.shape[0]), (keys.shape[1], values.shape[1])):
        _require_symbolic(one == other, shapes)
    _require_symbolic(q.shape[1] % keys.shape[1] == 0, shapes)
    _require_symbolic(tables.shape[0] == lengths.shape[0], shapes)
    _require_symbolic(starts.shape[0] == lengths.shape[0] + 1, shapes)
    return q.new_empty((*q.shape[:2], values.shape[2]))


def _convolved(
    x: Tensor, w: Tensor, bias: Any = None, stride: Sequence[int] | None = None, padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None, groups: int = 1, activation: str | None = None,
) -> Tensor:  # fmt: skip
    given = (stride or (1, 1), padding or (0, 0), dilation or (1, 1))
    window = convolutions.window_of(*(tuple(map(int, numbers)) for numbers in given))
    shape = convolutions.result_shape(x.shape, w.shape, window, int(groups), _require_symbolic)
    integers = x.dtype in _INTEGERS and w.dtype == torch.int8
    _require_float("x", x, (*_FLOATS, *_INTEGERS))
    kinds = f"{x.dtype} and {w.dtype}"
    alike = integers or (x.dtype in _FLOATS and w.dtype == x.dtype)
    _require(alike, f"x and w must be of one type of floats, or 8-bit integers by int8, got {kinds}")
    _fits("bias", bias, w.shape[:1])
    _require(bias is None or integers or bias.dtype == x.dtype, f"bias must be of x's type {x.dtype}")
    known = not activation or activation in ACTIVATIONS
    _require(known, f"activation={brief(activation)}: there are {', '.join(ACTIVATIONS)}")
    sums = torch.int32 if bias is None and not activation else torch.float32
    return x.new_empty(shape, dtype=sums if integers else x.dtype)


def _normed_product(x: Tensor, b: Tensor, epsilon: float = 1e-6) -> Tensor:
    _require(x.dim() == b.dim() == 2, f"rms_norm_matmul takes matrices, got {list(x.shape)} and {list(b.shape)}")
    _factors(x, b)
    _require_float("x", x)
    return x.new_empty((x.shape[0], b.shape[1]))


def _reduced(x: Tensor, kind: str = "sum", axis: int = -1) -> Tensor:
    _require_float("x", x)
    _require(kind in ("sum", "mean", "max", "min"), f"kind={brief(kind)}: there are sum, mean, max, min")
    torch._check(-x.dim() <= axis < x.dim(), lambda: f"axis {axis} of a tensor with {x.dim()} axes")
    torch._check(x.shape[axis] != 0, lambda: "there is nothing along the axis")
    return x.new_empty([*x.shape[: axis % x.dim()], *x.shape[axis % x.dim() + 1 :]])


def _product(
    a: Tensor, b: Tensor, bias: Any = None, activation: Any = None, residual: Any = None, scale_a: Any = None,
    scale_b: Any = None, out_dtype: str | None = None,
) -> Tensor:  # fmt: skip
    _factors(a, b)
    shape = (*a.shape[:-1], b.shape[-1])
    _fits("bias", bias, shape[-1:])
    _fits("residual", residual, shape)
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is not None:
            _require_float(name, scale, (torch.float32,))
    known = not activation or activation in ACTIVATIONS
    _require(known, f"activation={brief(activation)}: there are {', '.join(ACTIVATIONS)}")
    return a.new_empty(shape, dtype=_dtype(out_dtype, a))


def _factors(a: Tensor, b: Tensor) -> None:
    """Raise for what is not multiplied: b has the batches of a, or one."""
    shapes = f"a {list(a.shape)} and b {list(b.shape)}"
    _require(a.dim() > 1 and b.dim() > 1, f"a and b must have two axes or more, got {shapes}")
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"{shapes} do not fit")
    batches = math.prod(b.shape[:-2])
    if not (isinstance(batches, int) and batches == 1):
        torch._check(batches == math.prod(a.shape[:-2]), lambda: f"{shapes} do not fit")
    _require_float("a", a, _MULTIPLIED)
    alike = any(a.dtype in kinds and b.dtype in kinds for kinds in (_INTEGERS, _FLOATS_OF_8_BITS))
    _require(alike or a.dtype == b.dtype, f"a and b must have one element type, got {a.dtype} and {b.dtype}")


def _gated_product(a: Tensor, b: Tensor, gate: str = "silu") -> Tensor:
    _factors(a, b)
    _require(gate in ACTIVATIONS, f"gate={brief(gate)}: there are {', '.join(ACTIVATIONS)}")
    torch._check(b.shape[-1] % 16 == 0, lambda: f"gates take columns in multiples of 16, got {b.shape[-1]}")
    return a.new_empty((*a.shape[:-1], b.shape[-1] // 2))


# Operators take tensors of any strides: what their operations do not read in place is copied.


def _joined(x: Tensor, inner: int) -> Tensor:
    """`x`, or a copy where its axes but the `inner` last ones have no common stride."""
    if x.dim() > inner + 1 and not x.is_contiguous():
        try:
            x.view(-1, *x.shape[x.dim() - inner :])
        except RuntimeError:
            return x.contiguous()
    return x


def _aligned(x: Tensor) -> Tensor:
    """`x`, or a copy where elements of its last axis do not lie side by side."""
    return x.contiguous() if x.dim() and x.stride(-1) != 1 else x


def _rows(x: Tensor) -> Tensor:
    """`x`, or a copy where its rows are not evenly apart."""
    return _joined(_aligned(x), 1)


def _row(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


@_operator("matmul", _product)
def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: str | None = None,
) -> Tensor:
    """`ops.matmul`; `out_dtype` by name."""
    return ops.matmul(
        _joined(a, 2), _joined(b, 2), out_dtype=_dtype(out_dtype, a), bias=_row(bias), activation=activation,
        residual=None if residual is None else _rows(residual), scale_a=_row(scale_a), scale_b=_row(scale_b),
    )  # fmt: skip


@_operator("gated_matmul", _gated_product)
def gated_matmul(a: Tensor, b: Tensor, gate: str = "silu") -> Tensor:
    """`ops.matmul` with `gate`; `b` is ``ops.interleave_gate(gate_weight, up_weight).T``."""
    return ops.matmul(_joined(a, 2), _joined(b, 2), gate=gate)


@_operator("attention", _attended)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    lengths: Tensor | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """`ops.attention`."""
    return ops.attention(
        _aligned(q), _aligned(k), _aligned(v), causal=causal, window=window, scale=scale, lengths=_row(lengths),
        softcap=softcap,
    )  # fmt: skip


@_operator("attention_lse", _with_sums)
def attention_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    lengths: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`ops.attention` with the logarithms of the sums."""
    result: tuple[Tensor, Tensor] = ops.attention(
        _aligned(q), _aligned(k), _aligned(v), causal=causal, window=window, scale=scale, lengths=_row(lengths),
        return_lse=True, softcap=softcap,
    )  # fmt: skip
    return result


@_operator("decode_attention", _decoded)
def decode_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """`ops.decode_attention`."""
    return ops.decode_attention(q.contiguous(), k.contiguous(), v.contiguous(), bias=_row(bias), scale=scale)


@_operator("paged_attention", _over_pages)
def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    starts: Tensor,
    lengths: Tensor,
    page: int,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """`ops.paged_attention`."""
    given = (x.contiguous() for x in (q, keys, values, tables, starts, lengths))
    return ops.paged_attention(*given, page=page, scale=scale, window=window, softcap=softcap)


@_operator("conv2d", _convolved)
def conv2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int = 1,
    activation: str | None = None,
) -> Tensor:
    """`ops.conv2d`, of images whose channels are last; of strides, padding and dilation two numbers each."""
    return ops.conv2d(
        x.contiguous(), w.contiguous(), _row(bias), stride=tuple(stride or (1, 1)), padding=tuple(padding or (0, 0)),
        dilation=tuple(dilation or (1, 1)), groups=groups, activation=activation,
    )  # fmt: skip


@_operator("rms_norm_matmul", _normed_product)
def rms_norm_matmul(x: Tensor, b: Tensor, epsilon: float = 1e-6) -> Tensor:
    """`ops.rms_norm_matmul`."""
    b = b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()
    return ops.rms_norm_matmul(x.contiguous(), b, epsilon=epsilon)


@_operator("softmax", _softmaxed)
def softmax(x: Tensor, log: bool = False) -> Tensor:
    """`ops.softmax`, over the last axis."""
    return ops.softmax(_rows(x), log=log)


@_operator("layer_norm", _layer_normed)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5) -> Tensor:
    """`ops.layer_norm`, over the last axis."""
    return ops.layer_norm(_rows(x), _row(weight), _row(bias), epsilon=epsilon)


@_operator("rms_norm", _rms_normed)
def rms_norm(x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6) -> Tensor:
    """`ops.rms_norm`, over the last axis."""
    return ops.rms_norm(_rows(x), _row(weight), epsilon=epsilon)


@_operator("add_rms_norm", _added_rms_norm)
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The normalised sum, and the sum."""
    result: tuple[Tensor, Tensor] = ops.rms_norm(
        _rows(x), _row(weight), epsilon=epsilon, residual=_rows(residual), return_sum=True
    )
    return result


@_operator("add_layer_norm", _added_layer_norm)
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """The normalised sum, and the sum."""
    result: tuple[Tensor, Tensor] = ops.layer_norm(
        _rows(x), _row(weight), _row(bias), epsilon=epsilon, residual=_rows(residual), return_sum=True
    )
    return result


@_operator("reduce", _reduced)
def reduce(x: Tensor, kind: str = "sum", axis: int = -1) -> Tensor:
    """`ops.reduce`: the sum, mean, max or min along an axis."""
    return ops.reduce(x.contiguous(), kind, axis=axis)
