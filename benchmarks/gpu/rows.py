"""Kernels that memory bounds, in bf16 with float32 inside: softmax, norms, fused elementwise, sums over each axis.

Ours are written plainly in the tile language; a short run chooses the number of warps (and of rows).  The peer is
torch.compile.  The rate counts every input read and every output written once: compare it with the family `copy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import tilewright
import tilewright.language as tl
from benchmarks.gpu.harness import OURS, Case, family, fastest

SHAPES = ((16384, 8192), (65536, 1024), (32768, 2048), (16384, 4096), (8192, 16384), (16384, 5120))
WARPS = (4, 8, 16)
EPSILON = 1e-5


@tilewright.jit
def softmax_rows(x, result, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row + column, mask=inside, other=float("-inf")).to(tl.float32)
    weight = tl.exp(value - tl.max(value, 0))
    tl.store(result + row + column, weight / tl.sum(weight, 0), mask=inside)


@tilewright.jit
def layer_norm_rows(x, weight, bias, result, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value, 0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    factor = tl.load(weight + column, mask=inside).to(tl.float32)
    shift = tl.load(bias + column, mask=inside).to(tl.float32)
    tl.store(result + row + column, centred * scale * factor + shift, mask=inside)


@tilewright.jit
def rms_norm_rows(x, residual, weight, result, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(residual + row + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / columns + epsilon)
    factor = tl.load(weight + column, mask=inside).to(tl.float32)
    tl.store(result + row + column, value * scale * factor, mask=inside)


@tilewright.jit
def gelu_elements(x, bias, factor, result, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row + column, mask=inside).to(tl.float32) + tl.load(bias + column, mask=inside).to(tl.float32)
    value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    tl.store(result + row + column, value * tl.load(factor + row + column, mask=inside).to(tl.float32), mask=inside)


@tilewright.jit
def sum_rows(x, result, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(result + row, tl.sum(value, 0))


@tilewright.jit
def sum_columns(x, result, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Row `program_id(1)` of `result` is the sum over this program's part of the rows of `x`."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.cdiv(rows, tl.num_programs(1))
    first = tl.program_id(1) * part
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(first, first + part, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = ((row < first + part) & (row < rows))[:, None] & (column < columns)[None, :]
        place = row.to(tl.int64)[:, None] * columns + column[None, :]
        total += tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + tl.program_id(1) * columns + column, tl.sum(total, 0), mask=column < columns)


class Operation:
    """One of them on one shape: how ours runs with a number of warps, what PyTorch computes, the bytes moved."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.x, self.other = (torch.randn(rows, columns, device="cuda").bfloat16() for _ in range(2))
        self.weight, self.bias = (torch.randn(columns, device="cuda").bfloat16() for _ in range(2))
        self.block = tilewright.next_power_of_2(columns)

    def softmax(self) -> tuple[Any, Any, Any, tuple[Any, ...], int]:
        result = torch.empty_like(self.x)

        def ours(warps: int) -> Any:
            return softmax_rows[(self.rows,)](self.x, result, self.columns, BLOCK=self.block, num_warps=warps)

        return ours, result, lambda x: torch.softmax(x, -1), (self.x,), 2

    def layernorm(self) -> tuple[Any, Any, Any, tuple[Any, ...], int]:
        result = torch.empty_like(self.x)

        def ours(warps: int) -> Any:
            return layer_norm_rows[(self.rows,)](
                self.x, self.weight, self.bias, result, self.columns, EPSILON, BLOCK=self.block, num_warps=warps
            )

        def theirs(x: Any, weight: Any, bias: Any) -> Any:
            return torch.nn.functional.layer_norm(x, (self.columns,), weight, bias, EPSILON)

        return ours, result, theirs, (self.x, self.weight, self.bias), 2

    def rmsnorm(self) -> tuple[Any, Any, Any, tuple[Any, ...], int]:
        result = torch.empty_like(self.x)

        def ours(warps: int) -> Any:
            return rms_norm_rows[(self.rows,)](
                self.x, self.other, self.weight, result, self.columns, EPSILON, BLOCK=self.block, num_warps=warps
            )

        def theirs(x: Any, residual: Any, weight: Any) -> Any:
            kind = torch.float64 if x.dtype == torch.float64 else torch.float32
            value = x.to(kind) + residual.to(kind)
            scale = torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + EPSILON)
            return (value * scale * weight.to(kind)).to(x.dtype)

        return ours, result, theirs, (self.x, self.other, self.weight), 3

    def gelu(self) -> tuple[Any, Any, Any, tuple[Any, ...], int]:
        result = torch.empty_like(self.x)
        block = min(2048, self.block)
        grid = (self.rows, tilewright.cdiv(self.columns, block))

        def ours(warps: int) -> Any:
            return gelu_elements[grid](
                self.x, self.bias, self.other, result, self.columns, BLOCK=block, num_warps=min(warps, block // 256)
            )

        def theirs(x: Any, bias: Any, factor: Any) -> Any:
            return torch.nn.functional.gelu(x + bias) * factor

        return ours, result, theirs, (self.x, self.bias, self.other), 3

    def sum_last(self) -> tuple[Any, Any, Any, tuple[Any, ...], int]:
        result = torch.empty(self.rows, device="cuda")

        def ours(warps: int) -> Any:
            return sum_rows[(self.rows,)](self.x, result, self.columns, BLOCK=self.block, num_warps=warps)

        return ours, result, lambda x: x.sum(-1, dtype=_wide(x)), (self.x,), 1

    def sum_first(self) -> tuple[Any, Any, Any, tuple[Any, ...], int]:
        parts = max(1, 1024 * 256 // self.columns)
        partial = torch.empty(parts, self.columns, device="cuda")
        result = torch.empty(self.columns, device="cuda")
        across = tilewright.cdiv(self.columns, 256)

        def ours(warps: int) -> None:
            sum_columns[(across, parts)](
                self.x, partial, self.rows, self.columns, ROWS=4 * warps, BLOCK=256, num_warps=warps
            )
            sum_columns[(across, 1)](partial, result, parts, self.columns, ROWS=16, BLOCK=256, num_warps=4)

        return ours, result, lambda x: x.sum(0, dtype=_wide(x)), (self.x,), 1


def _wide(x: Any) -> Any:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def compare(name: str, rows: int, columns: int) -> Case:
    """One operation on one shape."""
    operation = Operation(rows, columns)
    ours, result, theirs, inputs, passes = getattr(operation, name)()
    case = Case(f"{rows}x{columns}", gigabytes=passes * operation.x.nbytes / 1e9)
    warps = fastest(WARPS, lambda warps: lambda: ours(warps))
    case.notes["warps"] = warps
    case.add(OURS, lambda copy: ours(warps), lambda: result)
    compiled = torch.compile(theirs, dynamic=False)
    case.add("torch.compile", lambda copy: compiled(*inputs))
    # A stretch of rows (all, for the sum over them) is enough to check, in float64.
    some = inputs if name == "sum_first" else tuple(x[:512] if x.shape[0] == rows else x for x in inputs)
    expected = theirs(*(x.double() for x in some))
    case.results[OURS] = lambda: result if name == "sum_first" else result[:512]
    case.check(expected, 4e-3 if result.dtype == torch.bfloat16 else 1e-5)
    return case


def _register(name: str, title: str) -> None:
    def cases(quick: bool) -> Iterator[Case]:
        for rows, columns in SHAPES[:1] if quick else SHAPES:
            yield compare(name, rows, columns)

    family(title, floor=1.0)(cases)


for _name, _title in (
    ("softmax", "softmax"),
    ("layernorm", "layernorm"),
    ("rmsnorm", "rmsnorm+x"),
    ("gelu", "gelu(x+b)*r"),
    ("sum_last", "sum rows"),
    ("sum_first", "sum columns"),
):
    _register(_name, _title)
