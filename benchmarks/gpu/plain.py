"""Fused elementwise and row kernels as anybody writes them, a row or a block to a program and no hints, against a copy.

Nothing here is the library's: what these kernels reach is what the compiler makes of plain source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

import tilewright
import tilewright.language as tl
from benchmarks.gpu.harness import OURS, Case, family

SHAPES = [(16384, 8192), (65536, 1024), (16384, 5120)]


@tilewright.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + column, powers / tl.sum(powers, axis=0), mask=inside)


@tilewright.jit
def layer_norm(x, weight, bias, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + 1e-5)
    factor, shift = tl.load(weight + column, mask=inside), tl.load(bias + column, mask=inside)
    tl.store(out + row * columns + column, centred * scale * factor + shift, mask=inside)


@tilewright.jit
def rms_norm(x, residual, weight, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(residual + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / columns + 1e-6)
    tl.store(out + row * columns + column, values * scale * tl.load(weight + column, mask=inside), mask=inside)


@tilewright.jit
def row_sums(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + column, mask=column < columns, other=0.0)
    tl.store(out + row, tl.sum(values.to(tl.float32), axis=0))


@tilewright.jit
def gelu_times(x, bias, y, out, count, columns, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    value = tl.load(x + index, mask=inside).to(tl.float32) + tl.load(bias + index % columns, mask=inside)
    value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    tl.store(out + index, value * tl.load(y + index, mask=inside), mask=inside)


@tilewright.jit
def swiglu(gate, up, out, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    value = tl.load(gate + index, mask=inside).to(tl.float32)
    tl.store(out + index, value * tl.sigmoid(value) * tl.load(up + index, mask=inside), mask=inside)


def _rows(kernel: Any, *operands: Any) -> Any:
    """A launch of one program a row, in a block as long as the row; the last operand is the result."""
    rows, columns = operands[0].shape
    warps = 1 << (columns // 1024).bit_length() - 1  # for each about 1024 elements
    return lambda copy: kernel[(rows,)](*operands, columns, BLOCK=columns, num_warps=warps)


def _elements(kernel: Any, *operands: Any, numbers: tuple[int, ...] = ()) -> Any:
    count = operands[0].numel()
    return lambda copy: kernel[(tilewright.cdiv(count, 2048),)](*operands, count, *numbers, BLOCK=2048)


def _case(name: str, run: Any, operands: list[Any], out: Any, exact: Any, tolerance: float = 5e-3) -> Case:
    """Beside a copy that moves as many bytes."""
    moved = sum(operand.nbytes for operand in operands) + out.nbytes
    case = Case(name, gigabytes=moved / 1e9)
    case.add(OURS, run, lambda: out)
    source = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    case.add("torch copy", lambda copy: target.copy_(source))
    case.check(exact, tolerance)
    return case


@family("plain kernels", floor=0.92)
def plain(quick: bool) -> Iterator[Case]:
    """Rows in registers, and flat blocks of 2048 elements."""
    for shape in SHAPES[:1] if quick else SHAPES:
        x, y, out = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))
        w, b = (torch.randn(shape[1], device="cuda").bfloat16() for _ in range(2))
        name = f"{shape[0]} x {shape[1]}"
        exact = x.double()
        yield _case(f"softmax {name}", _rows(softmax, x, out), [x], out, torch.softmax(exact, -1))
        wanted = F.layer_norm(exact, shape[1:], w.double(), b.double(), 1e-5)
        yield _case(f"layer norm {name}", _rows(layer_norm, x, w, b, out), [x, w, b], out, wanted)
        wanted = F.rms_norm(exact + y.double(), shape[1:], w.double(), 1e-6)
        yield _case(f"rms norm + r {name}", _rows(rms_norm, x, y, w, out), [x, y, w], out, wanted)
        sums = torch.empty(shape[0], device="cuda")
        yield _case(f"row sums {name}", _rows(row_sums, x, sums), [x], sums, exact.sum(1), 1e-5)
        wanted = F.gelu(exact + b.double()) * y.double()
        run = _elements(gelu_times, x, b, y, out, numbers=(shape[1],))
        yield _case(f"gelu(x+b)*y {name}", run, [x, b, y], out, wanted)
        wanted = F.silu(exact) * y.double()
        yield _case(f"silu(x)*y {name}", _elements(swiglu, x, y, out), [x, y], out, wanted)
