"""Few rows by weights of 4 and 8 bits that come from memory, against cuBLAS on the same weights in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu.harness import OURS, Case, family, on_hopper
from benchmarks.gpu.products import COLD, gflop
from tilewright import ops
from tilewright.runtime.cuda.memory import DeviceArray

SHAPES = [(4096, 4096), (14336, 4096), (4096, 14336), (6144, 4096), (28672, 4096)]  # columns, depth: a Llama of 8B
GROUP = 128


def _codes(N: int, K: int, kind: str) -> Any:
    """Random numbers of a kind, one a byte."""
    if kind == "fp8":
        return torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn)
    most = 8 if kind == "int4" else 128
    return torch.randint(-most, most, (N, K), device="cuda", dtype=torch.int8)


def _copy(packed: Any) -> Any:
    """The same weights in memory of their own."""
    return replace(packed, codes=DeviceArray.from_numpy(packed.codes.numpy(), packed.codes.ordinal))


def _cases(kind: str, quick: bool) -> Iterator[Case]:
    bits = 4 if kind == "int4" else 8
    for N, K in (SHAPES[:1] if quick else SHAPES) if on_hopper() else []:
        codes, scales = _codes(N, K, kind), torch.rand(N, K // GROUP, device="cuda") + 0.5
        copies = max(2, -(-COLD // (N * K * bits // 8)))
        packed = ops.pack_weights(codes, scales, bits=bits)
        weights = [packed, *(_copy(packed) for _ in range(min(copies, 12) - 1))]
        exact = codes.double() * scales.double().repeat_interleave(GROUP, 1)
        wide = [exact.bfloat16() for _ in range(min(len(weights), max(2, -(-COLD // (N * K * 2)))))]
        for M in (1, 64) if quick else (1, 4, 16, 32, 64):
            x = torch.randn(M, K, device="cuda").bfloat16()
            outs = [torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            size = (packed.nbytes + (M * K + M * N) * 2) / 1e9
            case = Case(f"{M}x{N}x{K}", gflop(M, N, K), size, protocols=("graph",), copies=len(weights))

            def ours(copy: int, x: Any = x, weights: Any = weights, out: Any = outs[0]) -> None:
                ops.dequantized_matmul(x, weights[copy], out=out, weights_ready=True)

            def theirs(copy: int, x: Any = x, wide: Any = wide, out: Any = outs[1]) -> None:
                torch.mm(x, wide[copy % len(wide)].T, out=out)

            case.add(OURS, ours, lambda outs=outs: outs[0])
            case.add("cuBLAS, bfloat16", theirs, lambda outs=outs: outs[1])
            case.check(x.double() @ exact.T, 5e-3)
            yield case


@family("int4 weights", floor=1.8)
def int4_weights(quick: bool) -> Iterator[Case]:
    """int4 with a scale for 128 of the depth."""
    yield from _cases("int4", quick)


@family("int8 weights")
def int8_weights(quick: bool) -> Iterator[Case]:
    """int8 with a scale for 128 of the depth."""
    yield from _cases("int8", quick)


@family("fp8 weights")
def fp8_weights(quick: bool) -> Iterator[Case]:
    """float8 e4m3 with a scale for 128 of the depth."""
    yield from _cases("fp8", quick)
