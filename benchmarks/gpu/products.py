"""Matrix products: large ones of every type, epilogues, and few rows over weights that come from memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.ahead import compile_ahead
from benchmarks.gpu.harness import OURS, Case, family, on_hopper
from tilewright import ops
from tilewright.ops import products

LARGE = [
    (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (8192, 28672, 8192), (8192, 8192, 28672),
    (2048, 4096, 14336), (512, 14336, 4096),
]  # fmt: skip
SKINNY = [(14336, 4096), (4096, 14336), (28672, 8192)]
COLD = 300 << 20  # bytes of weights that copies rotate over


def shapes(quick: bool) -> list[tuple[int, int, int]]:
    """The shapes of large products; two of them for a quick run; none where only the portable kernel runs."""
    if not on_hopper():
        return []
    return [LARGE[0], LARGE[-1]] if quick else LARGE


def verify(case: Case, reference: Any, tolerance: float) -> None:
    """Ours against the reference, and within twice the error of the most accurate peer."""
    case.check(reference, tolerance)
    peers = [error for name, error in case.errors.items() if not name.startswith(OURS)]
    if peers and case.errors[OURS] > 2 * min(peers) + 1e-9:
        raise AssertionError(f"{case.name}: error {case.errors[OURS]:.2e}, the best peer's is {min(peers):.2e}")


def add_ours(case: Case, name: str, a: Any, b: Any, out: Any, **arguments: Any) -> None:
    """Our product, its choice in the notes."""
    plan = ops.plan_matmul(a, b, out=out, **arguments)
    run = plan.bind(a, b, out=out, **arguments)
    case.add(name, lambda copy: run(), lambda: out)
    case.notes[name] = plan.explain()


def problem_of(a: Any, b: Any, out: Any, **arguments: Any) -> Any:
    """The problem of a product on arrays like these."""
    return products.describe(a, b, out, None, arguments)[0]


def gflop(M: int, N: int, K: int) -> float:
    """Of one product."""
    return 2.0 * M * N * K / 1e9


def small(dtype: Any, *, out: Any = torch.bfloat16, **arguments: Any) -> Any:
    """A function from a shape to its problem, for compiling ahead: operands are not filled."""

    def problem(M: int, N: int, K: int) -> Any:
        a, b = (torch.empty(rows, K, device="cuda", dtype=dtype) for rows in (M, N))
        result = torch.empty(M, N, device="cuda", dtype=out)
        made = {name: value(M, N, K) if callable(value) else value for name, value in arguments.items()}
        return problem_of(a, b.T, result, **made)

    return problem


@family("bf16", floor=0.99)
def bf16(quick: bool) -> Iterator[Case]:
    """bfloat16 against cuBLAS."""
    compile_ahead([small(torch.bfloat16)(*shape) for shape in shapes(quick)])
    for M, N, K in shapes(quick):
        a, b = (torch.randn(rows, K, device="cuda").bfloat16() for rows in (M, N))
        ours, theirs = (torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        case = Case(f"{M}x{N}x{K}", gflop=gflop(M, N, K))
        add_ours(case, OURS, a, b.T, ours)
        case.add("cuBLAS", lambda copy, a=a, b=b, out=theirs: torch.mm(a, b.T, out=out), lambda out=theirs: out)
        verify(case, a.double() @ b.double().T, 3e-3)
        yield case


@family("fp8", floor=0.98)
def fp8(quick: bool) -> Iterator[Case]:
    """float8 e4m3 with a scale for each tensor, fast accumulation on both sides, against cuBLAS."""
    one = torch.ones(1, device="cuda")
    compile_ahead([small(torch.float8_e4m3fn, scale_a=one, scale_b=one)(*shape) for shape in shapes(quick)])
    for M, N, K in shapes(quick):
        a, b = (torch.randn(rows, K, device="cuda").to(torch.float8_e4m3fn) for rows in (M, N))
        ours = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
        theirs: dict[int, Any] = {}
        case = Case(f"{M}x{N}x{K}", gflop=gflop(M, N, K))
        add_ours(case, OURS, a, b.T, ours, scale_a=one, scale_b=one)

        def peer(copy: int, a: Any = a, b: Any = b, theirs: dict[int, Any] = theirs) -> None:
            theirs[0] = torch._scaled_mm(
                a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )

        peer(0)
        case.add("cuBLAS", peer, lambda theirs=theirs: theirs[0])
        # Fast accumulation keeps about 14 bits of a sum, so errors grow with the depth.
        verify(case, a.double() @ b.double().T, 4e-3 * max(1.0, K / 8192) ** 0.5)
        yield case


@family("fp8 blocks")
def fp8_blocks(quick: bool) -> Iterator[Case]:
    """float8 with scales of 1 x 128 and 128 x 128, promoted to float32 at every block of depth."""
    for M, N, K in shapes(quick)[: 1 if quick else 2]:
        a, b = (torch.randn(rows, K, device="cuda").to(torch.float8_e4m3fn) for rows in (M, N))
        left, right = torch.rand(M, K // 128, device="cuda") + 0.5, torch.rand(N // 128, K // 128, device="cuda") + 0.5
        ours = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
        case = Case(f"{M}x{N}x{K}", gflop=gflop(M, N, K))
        add_ours(case, OURS, a, b.T, ours, scale_a=left, scale_b=right)
        whole = a.double() * left.double().repeat_interleave(128, 1)
        weights = b.double() * right.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
        case.check(whole @ weights.T, 3e-3)
        yield case


@family("int8", floor=1.5)
def int8(quick: bool) -> Iterator[Case]:
    """int8 with scales of rows and columns to bfloat16, against torch._int_mm, which leaves int32."""

    def scales(M: int, N: int, K: int) -> tuple[Any, Any]:
        return torch.rand(M, device="cuda") + 0.5, torch.rand(N, device="cuda") + 0.5

    problem = small(torch.int8, scale_a=lambda M, N, K: scales(M, N, K)[0], scale_b=lambda M, N, K: scales(M, N, K)[1])
    compile_ahead([problem(*shape) for shape in shapes(quick)])
    for M, N, K in shapes(quick):
        a, b = (torch.randint(-128, 128, (rows, K), device="cuda", dtype=torch.int8) for rows in (M, N))
        left, right = scales(M, N, K)
        ours = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
        case = Case(f"{M}x{N}x{K}", gflop=gflop(M, N, K))
        add_ours(case, OURS, a, b.T, ours, scale_a=left, scale_b=right)
        case.add("_int_mm", lambda copy, a=a, b=b: torch._int_mm(a, b.T))
        case.vendors["_int_mm, scaled"] = lambda a=a, b=b, left=left, right=right: (
            torch._int_mm(a, b.T).float() * left[:, None] * right
        ).bfloat16()
        verify(case, (a.double() @ b.double().T) * left.double()[:, None] * right.double(), 3e-3)
        yield case


@family("float32", floor=0.8)
def float32(quick: bool) -> Iterator[Case]:
    """float32 with its own accuracy, on Hopper as three bfloat16 numbers each, against cuBLAS without tf32."""
    shapes = [
        (4096, 4096, 4096), (2048, 4096, 1024), (512, 4096, 4096), (1000, 1000, 1000), (4095, 4097, 4093),
        (1024, 1024, 1024), (128, 4096, 4096), (16384, 64, 4096),
    ]  # fmt: skip
    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    try:
        for M, N, K in shapes[:1] if quick else shapes:
            a, b = (torch.randn(rows, K, device="cuda") for rows in (M, N))
            ours, theirs = (torch.empty(M, N, device="cuda") for _ in range(2))
            case = Case(f"{M}x{N}x{K}", gflop=gflop(M, N, K))
            add_ours(case, OURS, a, b.T, ours, precision="ieee")
            case.add("cuBLAS", lambda copy, a=a, b=b, out=theirs: torch.mm(a, b.T, out=out), lambda out=theirs: out)
            verify(case, a.double() @ b.double().T, 5e-7)
            yield case
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


@family("bias gelu", floor=0.97)
def bias_gelu(quick: bool) -> Iterator[Case]:
    """bfloat16 with bias and GELU against the plain product: what the epilogue costs."""
    used = [shape for shape in shapes(quick) if shape in (LARGE[0], LARGE[1], LARGE[3], LARGE[5])]
    bias = {N: torch.randn(N, device="cuda").bfloat16() for _, N, _ in used}
    problem = small(torch.bfloat16, bias=lambda M, N, K: bias[N], activation="gelu")
    compile_ahead([problem(*shape) for shape in used])
    for M, N, K in used:
        a, b = (torch.randn(rows, K, device="cuda").bfloat16() for rows in (M, N))
        b /= K**0.5
        ours, plain = (torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        case = Case(f"{M}x{N}x{K}", gflop=gflop(M, N, K))
        add_ours(case, OURS, a, b.T, ours, bias=bias[N], activation="gelu")
        add_ours(case, "plain product", a, b.T, plain)
        case.results.pop("plain product")
        case.vendors["cuBLAS, then GELU"] = lambda a=a, b=b, N=N: torch.nn.functional.gelu(torch.addmm(bias[N], a, b.T))
        verify(case, torch.nn.functional.gelu(a.double() @ b.double().T + bias[N].double()), 3e-3)
        yield case


@family("few rows", floor=1.02)
def skinny(quick: bool) -> Iterator[Case]:
    """Few rows in bfloat16 over cold weights, against cuBLAS; ours launches early (dependent launch), and not."""
    rows = (1, 64) if quick else (1, 4, 16, 64, 128)
    used = (SKINNY[:1] if quick else SKINNY) if on_hopper() else []
    problems = [
        small(torch.bfloat16, weights_ready=ready)(M, N, K) for N, K in used for M in rows for ready in (True, False)
    ]
    compile_ahead(problems)
    for N, K in used:
        copies = max(2, -(-COLD // (N * K * 2)))
        weights = [torch.randn(N, K, device="cuda").bfloat16() for _ in range(copies)]
        for M in rows:
            a = torch.randn(M, K, device="cuda").bfloat16()
            outs = [torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
            size = (M * K + N * K + M * N) * 2 / 1e9
            case = Case(f"{M}x{N}x{K}", gflop(M, N, K), size, protocols=("graph", "flush"), copies=copies)
            for name, out, ready in ((OURS, outs[0], True), (f"{OURS}, plain launch", outs[1], False)):
                plan = ops.plan_matmul(a, weights[0].T, out=out, weights_ready=ready)
                runs = [plan.bind(a, weight.T, out=out, weights_ready=ready) for weight in weights]
                case.add(name, lambda copy, runs=runs: runs[copy](), lambda out=out: out)
                case.notes[name] = plan.explain()
            case.add("cuBLAS", _mm(a, weights, outs[2]), lambda outs=outs: outs[2])
            verify(case, a.double() @ weights[0].double().T, 3e-3)
            yield case


def _mm(a: Any, weights: list[Any], out: Any) -> Any:
    return lambda copy: torch.mm(a, weights[copy].T, out=out)
