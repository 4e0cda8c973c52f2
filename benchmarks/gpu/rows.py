"""Row operations, elements and reductions against torch.compile, and against a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import tilewright
import tilewright.language as tl
from benchmarks.gpu.harness import OURS, Case, family
from tilewright import ops

SHAPES = [(16384, 8192), (65536, 1024), (32768, 2048), (16384, 4096), (8192, 16384), (16384, 5120)]
COPY = "torch copy"


@tilewright.jit
def gelu_times(x, bias, y):
    value = x + bias
    return 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476)) * y


def cases(
    quick: bool,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    inputs: str,
    result: Callable[[Any], Any],
    tolerance: float = 3e-3,
) -> Iterator[Case]:
    """A case for each shape: `inputs` names operands by letters, x and y whole, w and b rows; `result` makes out."""
    for shape in SHAPES[:2] if quick else SHAPES:
        operands = [torch.randn(shape if letter in "xy" else shape[1:], device="cuda").bfloat16() for letter in inputs]
        out = result(operands[0])
        results: dict[int, Any] = {}
        torch._dynamo.reset()
        compiled = torch.compile(theirs, dynamic=False)

        def peer(
            copy: int, compiled: Any = compiled, operands: Any = operands, results: dict[int, Any] = results
        ) -> None:
            results[0] = compiled(*operands)

        peer(0)
        moved = sum(operand.nbytes for operand in operands) + out.nbytes
        case = Case(f"{shape[0]} x {shape[1]} bf16", gigabytes=moved / 1e9, ceilings=(COPY,))
        case.add(OURS, lambda copy, operands=operands, out=out: ours(*operands, out), lambda out=out: out)
        case.add("torch.compile", peer, lambda results=results: results[0])
        half = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
        other = torch.empty_like(half)
        case.add(COPY, lambda copy, half=half, other=other: other.copy_(half))
        case.check(theirs(*(operand.double() for operand in operands)), tolerance)
        yield case


@family("softmax", floor=1.0)
def softmax(quick: bool) -> Iterator[Case]:
    """Over the last axis."""
    yield from cases(
        quick, lambda x, out: ops.softmax(x, out=out), lambda x: torch.softmax(x, -1), "x", torch.empty_like
    )


@family("layernorm", floor=1.0)
def layer_norm(quick: bool) -> Iterator[Case]:
    """With weight and bias."""
    yield from cases(
        quick, lambda x, w, b, out: ops.layer_norm(x, w, b, out=out),
        lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), "xwb", torch.empty_like,
    )  # fmt: skip


@family("rmsnorm+x", floor=1.0)
def rms_norm(quick: bool) -> Iterator[Case]:
    """Of a sum with a residual."""
    yield from cases(
        quick, lambda x, y, w, out: ops.rms_norm(x, w, residual=y, out=out),
        lambda x, y, w: F.rms_norm(x + y, w.shape, w, 1e-6), "xyw", torch.empty_like, 5e-3,
    )  # fmt: skip


@family("gelu(x+b)*r", floor=1.0)
def gelu(quick: bool) -> Iterator[Case]:
    """gelu(x + b) * y."""
    yield from cases(
        quick, lambda x, b, y, out: ops.elementwise(gelu_times, x, b, y, out=out),
        lambda x, b, y: F.gelu(x + b) * y, "xby", torch.empty_like, 5e-3,
    )  # fmt: skip


@family("sum rows", floor=1.0)
def sum_rows(quick: bool) -> Iterator[Case]:
    """Over the last axis, to float32."""
    yield from cases(
        quick, lambda x, out: ops.reduce(x, axis=1, out=out), lambda x: x.sum(1, dtype=_wide(x)), "x",
        lambda x: torch.empty(x.shape[0], device="cuda"), 1e-5,
    )  # fmt: skip


@family("sum columns", floor=1.0)
def sum_columns(quick: bool) -> Iterator[Case]:
    """Over the first axis, to float32."""
    yield from cases(
        quick, lambda x, out: ops.reduce(x, axis=0, out=out), lambda x: x.sum(0, dtype=_wide(x)), "x",
        lambda x: torch.empty(x.shape[1], device="cuda"), 1e-5,
    )  # fmt: skip


def _wide(x: Any) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
