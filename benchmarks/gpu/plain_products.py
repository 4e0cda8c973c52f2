"""Matrix products written plainly, with pointers and with tensor descriptors, the same source compiled by Triton.

Each compiler takes the quickest of the same few blocks, as a tuner would.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu import compilers
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

    kinds = {
        OURS: (compilers.TILEWRIGHT, TensorDescriptor), "triton": (compilers.by_triton(), TritonDescriptor)
    }  # fmt: skip
    for size in SIZES[:1] if quick else SIZES:
        a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        for descriptors in (False, True):
            right = b.T if descriptors else b
            exact = a.float() @ right.float()
            case = Case(f"{size}^3 {'descriptors' if descriptors else 'pointers'}", gflop=2e-9 * size**3)
            for name, (kernels, kind) in kinds.items():
                out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
                run = quickest(launches(kernels, kind, descriptors, a, b, out))
                case.add(name, lambda copy, run=run: run(), lambda out=out: out)
            out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
            case.add("cuBLAS", lambda copy, a=a, right=right, out=out: torch.mm(a, right, out=out), lambda out=out: out)
            case.ceilings = ("cuBLAS",)
            case.check(exact, 4e-3)
            yield case
