"""What every other number is read against: copy bandwidth, a sum of two tensors, and what a launch costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import tilewright
import tilewright.language as tl
from benchmarks.gpu import compilers
from benchmarks.gpu.harness import OURS, Case, family


@tilewright.jit
def copy(x, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(result + index, tl.load(x + index, mask=mask), mask=mask)


@family("copy")
def copies(quick: bool) -> Iterator[Case]:
    """Bytes read plus bytes written; the copy by PyTorch is the ceiling that other families quote."""
    count = (64 << 20) if quick else (512 << 20)
    x = torch.randn(count // 2, device="cuda").bfloat16()
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    case = Case(f"{count >> 20} MiB bf16", gigabytes=2 * x.nbytes / 1e9)
    for block, warps in ((2048, 4), (4096, 4), (4096, 8)):
        name = OURS if (block, warps) == (2048, 4) else f"{OURS} {block}/{warps}"
        grid = (tilewright.cdiv(x.numel(), block),)
        case.add(name, _copy_run(grid, x, ours, block, warps), lambda: ours)
    case.add("torch", lambda copy: theirs.copy_(x), lambda: theirs)
    case.check(x, 0.0)
    yield case


def _copy_run(grid: tuple[int], x: Any, result: Any, block: int, warps: int) -> Any:
    return lambda number: copy[grid](x, result, x.numel(), BLOCK=block, num_warps=warps)


@family("add", floor=1.0)
def additions(quick: bool) -> Iterator[Case]:
    """x + y."""
    add, peer = compilers.TILEWRIGHT.add, compilers.by_triton()
    for kind in (torch.bfloat16, torch.float32):
        count = (16 << 20) if quick else (128 << 20)
        x, y = (torch.randn(count, device="cuda").to(kind) for _ in range(2))
        ours, theirs, third = (torch.empty_like(x) for _ in range(3))
        case = Case(f"{count >> 20} Mi {str(kind)[6:]}", gigabytes=3 * x.nbytes / 1e9)
        grid = (tilewright.cdiv(count, 2048),)
        case.add(OURS, _add_run(add, grid, x, y, ours), lambda ours=ours: ours)
        case.add("torch", lambda number, x=x, y=y, out=theirs: torch.add(x, y, out=out), lambda theirs=theirs: theirs)
        if peer is not None:
            case.add("triton", _add_run(peer.add, grid, x, y, third), lambda third=third: third)
        case.check(x + y, 0.0)
        yield case


def _add_run(kernel: Any, grid: tuple[int], x: Any, y: Any, result: Any) -> Any:
    return lambda number: kernel[grid](x, y, result, x.numel(), BLOCK=2048, num_warps=4)


@family("launch", floor=1 / 1.2)
def launches(quick: bool) -> Iterator[Case]:
    """What a launch whose code is there costs the caller."""
    x, y, result = (torch.randn(1000, device="cuda") for _ in range(3))
    case = Case("3 tensors, 1 integer", protocols=("host",))
    for name, kernels in ((OURS, compilers.TILEWRIGHT), ("triton", compilers.by_triton())):
        if kernels is not None:
            case.add(name, _add_run(kernels.add, (1,), x, y, result), lambda: result)
    case.check(x + y, 0.0)
    yield case
