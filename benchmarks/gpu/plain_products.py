"""Matrix products written plainly, with pointers and with tensor descriptors, the same source compiled by Triton.

Each compiler takes the quickest of the same few blocks, as a tuner would.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

import tilewright
import tilewright.language as tl
from benchmarks.gpu.harness import OURS, Case, family
from tilewright import TensorDescriptor

SIZES = (4096, 8192)
BLOCKS = (  # rows, columns, depth, stages, warps
    (128, 256, 64, 3, 8),
    (128, 256, 64, 4, 8),
    (256, 128, 64, 4, 8),
    (128, 128, 64, 4, 4),
    (128, 128, 64, 3, 8),
)


@tilewright.jit
def place(tile, m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """First row and column of a tile; eight rows of tiles are walked together, column after column."""
    band = GROUP * tl.cdiv(n, COLUMNS)
    top = tile // band * GROUP
    height = tl.minimum(tl.cdiv(m, ROWS) - top, GROUP)
    return (top + tile % band % height) * ROWS, tile % band // height * COLUMNS


@tilewright.jit
def by_pointers(a, b, c, m, n, k, stride_a, stride_b, stride_c, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                DEPTH: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    row, column = place(tl.program_id(0), m, n, ROWS, COLUMNS, GROUP)
    rows, columns, inner = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    lefts = a + (rows % m)[:, None] * stride_a + inner[None, :]
    rights = b + inner[:, None] * stride_b + (columns % n)[None, :]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, tl.cdiv(k, DEPTH)):
        left = tl.load(lefts, mask=inner[None, :] < k - step * DEPTH, other=0.0)
        right = tl.load(rights, mask=inner[:, None] < k - step * DEPTH, other=0.0)
        sums = tl.dot(left, right, sums)
        lefts += DEPTH
        rights += DEPTH * stride_b
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * stride_c + columns[None, :], sums.to(tl.bfloat16), mask=inside)


@tilewright.jit
def by_descriptors(a, b, c, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
                   GROUP: tl.constexpr):  # fmt: skip
    row, column = place(tl.program_id(0), m, n, ROWS, COLUMNS, GROUP)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, tl.cdiv(k, DEPTH)):
        sums = tl.dot(a.load([row, step * DEPTH]), b.load([column, step * DEPTH]).T, sums)
    c.store([row, column], sums.to(tl.bfloat16))


Launch = Callable[[], Any]


def launches(kernels: Any, descriptor: Any, descriptors: bool, a: Any, b: Any, c: Any) -> list[Launch]:
    """A launch for each of the blocks; `b` is [K, N], or for descriptors [N, K]."""
    (m, k), n = a.shape, c.shape[1]
    strides = (a.stride(0), b.stride(0), c.stride(0))
    found = []
    for rows, columns, depth, stages, warps in BLOCKS:
        grid = (-(-m // rows) * -(-n // columns),)
        blocks = {
            "ROWS": rows,
            "COLUMNS": columns,
            "DEPTH": depth,
            "GROUP": 8,
            "num_stages": stages,
            "num_warps": warps,
        }
        if descriptors:
            shapes = (a, [rows, depth]), (b, [columns, depth]), (c, [rows, columns])
            tiles = [descriptor.from_tensor(tensor, shape) for tensor, shape in shapes]
            found.append(lambda g=grid, t=tiles, o=blocks: kernels.by_descriptors[g](*t, m, n, k, **o))
        else:
            found.append(lambda g=grid, o=blocks: kernels.by_pointers[g](a, b, c, m, n, k, *strides, **o))
    return found


def quickest(several: list[Launch]) -> Launch:
    """The launch with the smallest median time; what does not fit the GPU is left out."""
    times: dict[Launch, list[float]] = {}
    for launch in several:
        try:
            launch()
        except Exception as error:
            print(f"  left out: {str(error).splitlines()[0][:100]}")
        else:
            times[launch] = []
    for _ in range(5):
        for launch, own in times.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            launch()
            end.record()
            torch.cuda.synchronize()
            own.append(begin.elapsed_time(end))
    return min(times, key=lambda launch: statistics.median(times[launch]))


@family("plain products", floor=1.0)
def products(quick: bool) -> Iterator[Case]:
    """bfloat16, square, against Triton and, as a ceiling, cuBLAS."""
    from triton.tools.tensor_descriptor import TensorDescriptor as TritonDescriptor

    from benchmarks.gpu import triton_kernels

    own = SimpleNamespace(by_pointers=by_pointers, by_descriptors=by_descriptors)
    for size in SIZES[:1] if quick else SIZES:
        a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        for descriptors in (False, True):
            right = b.T if descriptors else b
            exact = a.float() @ right.float()
            case = Case(f"{size}^3 {'descriptors' if descriptors else 'pointers'}", gflop=2e-9 * size**3)
            for name, kernels, kind in ((OURS, own, TensorDescriptor), ("triton", triton_kernels, TritonDescriptor)):
                out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
                run = quickest(launches(kernels, kind, descriptors, a, b, out))
                case.add(name, lambda copy, run=run: run(), lambda out=out: out)
            out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
            case.add("cuBLAS", lambda copy, a=a, right=right, out=out: torch.mm(a, right, out=out), lambda out=out: out)
            case.ceilings = ("cuBLAS",)
            case.check(exact, 4e-3)
            yield case
