"""The operations as PyTorch's custom operators, for torch.compile and torch.export.

    import tilewright.ops.torch_library
    y = torch.ops.tilewright.matmul(x, weight.T, bias, "gelu")

Operators return new tensors and have rules for fake tensors; they have no gradients, and say so.  Plain `ops.matmul`
and the others take an `out` and more, and may be called wherever nothing is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewright import ops
from tilewright.errors import LaunchError

_DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32,
}  # fmt: skip


def _dtype(name: str | None, like: Tensor) -> torch.dtype:
    if name is not None:
        if name not in _DTYPES:
            raise LaunchError(f"out_dtype={name!r}: there are {', '.join(_DTYPES)}")
        return _DTYPES[name]
    if like.dtype == torch.int8:
        return torch.int32
    return like.dtype if like.dtype.itemsize > 1 else torch.bfloat16


Fake = Callable[..., Any]


def _operator(name: str, fake: Fake) -> Callable[[Callable[..., Any]], Any]:
    """Register an operator; `fake` makes its empty results from the same arguments (those left out do not arrive)."""

    def refuse(context: Any, *gradients: Any) -> Any:
        raise NotImplementedError(
            f"tilewright::{name} has no gradient: call it under torch.no_grad(), or on tensors that need none"
        )

    def register(function: Callable[..., Any]) -> Any:
        # On CPU tensors the operations run in the interpreter if it is on, and else say themselves what to do.
        devices = ("cuda", "cpu")
        operator = torch.library.custom_op(f"tilewright::{name}", function, mutates_args=(), device_types=devices)
        operator.register_fake(fake)
        operator.register_autograd(refuse)
        return operator

    return register


def _like_first(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _with_sums(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _twice(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _reduced(x: Tensor, kind: str = "sum", axis: int = -1) -> Tensor:
    torch._check(-x.dim() <= axis < x.dim(), lambda: f"axis {axis} of a tensor with {x.dim()} axes")
    return x.new_empty([*x.shape[: axis % x.dim()], *x.shape[axis % x.dim() + 1 :]])


def _product(
    a: Tensor,
    b: Tensor,
    bias: Any = None,
    activation: Any = None,
    residual: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out_dtype: str | None = None,
) -> Tensor:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"a {list(a.shape)} and b {list(b.shape)} do not fit")
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=_dtype(out_dtype, a))


def _gated_product(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"a {list(a.shape)} and b {list(b.shape)} do not fit")
    return a.new_empty((*a.shape[:-1], b.shape[-1] // 2))


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
        a, b, out_dtype=_dtype(out_dtype, a), bias=bias, activation=activation, residual=residual, scale_a=scale_a,
        scale_b=scale_b,
    )  # fmt: skip


@_operator("gated_matmul", _gated_product)
def gated_matmul(a: Tensor, b: Tensor, gate: str = "silu") -> Tensor:
    """`ops.matmul` with `gate`; `b` is ``ops.interleave_gate(gate_weight, up_weight).T``."""
    return ops.matmul(a, b, gate=gate)


@_operator("attention", _like_first)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """`ops.attention`."""
    return ops.attention(q, k, v, causal=causal, window=window, scale=scale, lengths=lengths)


@_operator("attention_lse", _with_sums)
def attention_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`ops.attention` with the logarithms of the sums."""
    result: tuple[Tensor, Tensor] = ops.attention(
        q, k, v, causal=causal, window=window, scale=scale, lengths=lengths, return_lse=True
    )
    return result


@_operator("softmax", _like_first)
def softmax(x: Tensor, log: bool = False) -> Tensor:
    """`ops.softmax`, over the last axis."""
    return ops.softmax(x, log=log)


@_operator("layer_norm", _like_first)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5) -> Tensor:
    """`ops.layer_norm`, over the last axis."""
    return ops.layer_norm(x, weight, bias, epsilon=epsilon)


@_operator("rms_norm", _like_first)
def rms_norm(x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6) -> Tensor:
    """`ops.rms_norm`, over the last axis."""
    return ops.rms_norm(x, weight, epsilon=epsilon)


@_operator("add_rms_norm", _twice)
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The normalised sum, and the sum."""
    result: tuple[Tensor, Tensor] = ops.rms_norm(x, weight, epsilon=epsilon, residual=residual, return_sum=True)
    return result


@_operator("add_layer_norm", _twice)
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """The normalised sum, and the sum."""
    result: tuple[Tensor, Tensor] = ops.layer_norm(x, weight, bias, epsilon=epsilon, residual=residual, return_sum=True)
    return result


@_operator("reduce", _reduced)
def reduce(x: Tensor, kind: str = "sum", axis: int = -1) -> Tensor:
    """`ops.reduce`: the sum, mean, max or min along an axis."""
    return ops.reduce(x.contiguous(), kind, axis=axis)
