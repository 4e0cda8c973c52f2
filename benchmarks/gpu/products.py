"""Matrix products of the library's Hopper kernel beside cuBLAS (through PyTorch): bf16, fp8, int8, few rows.

Ours are the first of the forms that the estimate ranks (`kernels.hopper.choice`) and that a short run finds fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import tilewright.language as tl
from benchmarks.gpu.harness import OURS, Case, Run, family, fastest, on_hopper
from tilewright.kernels.hopper.choice import Problem, ranked_forms
from tilewright.kernels.hopper.forms import MatmulForm
from tilewright.kernels.hopper.launch import prepare_matmul

LARGE = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (8192, 28672, 8192),
    (8192, 8192, 28672),
    (2048, 4096, 14336),
    (512, 14336, 4096),
)  # rows, columns, depth
FEW_ROWS = (1, 4, 16, 64, 128)
WEIGHTS = ((14336, 4096), (4096, 14336), (28672, 8192))  # columns, depth
FORMS_TIMED = 4
COLD_BYTES = 320 << 20  # of copies of the weights: more than any L2 holds
CHECKED_ROWS = 64


def sizes(quick: bool) -> tuple[tuple[int, int, int], ...]:
    """The problems to run: none where the kernel does not."""
    if not on_hopper():
        return ()
    return LARGE[:1] + LARGE[-1:] if quick else LARGE


def reference(a: Any, b: Any) -> Any:
    """Rows of the product, spread over all, in float64."""
    return rows_of(a).double() @ b.double().t()


def rows_of(x: Any) -> Any:
    return x[:: max(1, x.shape[0] // CHECKED_ROWS)]


def chosen(problem: Problem, run_of: Callable[[MatmulForm], Callable[[], Any]]) -> MatmulForm:
    """The fastest of the forms that are ranked first."""
    form: MatmulForm = fastest([form for form, _ in ranked_forms(problem)[:FORMS_TIMED]], run_of)
    return form


def product(name: str, a: Any, b: Any, kind: Any, peer: tuple[str, Callable[[Any], Any]], tolerance: float) -> Case:
    """One comparison; `peer` is a name and a function that computes into (or returns) its result for a buffer."""
    rows, depth, columns = a.shape[0], a.shape[1], b.shape[0]
    moved = a.nbytes + b.nbytes + 2 * rows * columns
    case = Case(name, gflop=2e-9 * rows * columns * depth, gigabytes=moved / 1e9)
    ours = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
    problem = Problem(rows, columns, depth, input=kind)
    form = chosen(problem, lambda form: prepare_matmul(form, a, b, ours))
    run = prepare_matmul(form, a, b, ours)
    case.notes["form"] = str(form)
    case.add(OURS, lambda copy: run(), lambda: rows_of(ours))
    label, compute = peer
    case.add(label, lambda copy: compute(None))
    case.check(reference(a, b), tolerance)
    return case


@family("bf16", floor=0.99)
def bfloat16(quick: bool) -> Iterator[Case]:
    """C = A B^T in bf16, summed in float32."""
    for rows, columns, depth in sizes(quick):
        a, b = (torch.randn(count, depth, device="cuda").bfloat16() for count in (rows, columns))
        result = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
        peer = ("cuBLAS", lambda _, a=a, b=b, result=result: torch.mm(a, b.t(), out=result))
        yield product(f"{rows}x{columns}x{depth}", a, b, tl.bfloat16, peer, 4e-3)


@family("fp8", floor=0.98)
def fp8(quick: bool) -> Iterator[Case]:
    """C = A B^T of e4m3 with a scale of 1, both with fast accumulation, in bf16."""
    one = torch.ones((), device="cuda")
    for rows, columns, depth in sizes(quick):
        a, b = (torch.randn(count, depth, device="cuda").to(torch.float8_e4m3fn) for count in (rows, columns))

        def scaled(_: Any, a: Any = a, b: Any = b) -> Any:
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

        yield product(f"{rows}x{columns}x{depth}", a, b, tl.float8e4nv, ("cuBLAS", scaled), 2e-2)


@family("int8", floor=1.5)
def int8(quick: bool) -> Iterator[Case]:
    """C = A B^T of int8, summed exactly: ours rounds to bf16, the peer writes int32."""
    for rows, columns, depth in sizes(quick):
        a, b = (torch.randint(-128, 128, (n, depth), device="cuda", dtype=torch.int8) for n in (rows, columns))
        peer = ("cuBLAS (int32)", lambda _, a=a, b=b: torch._int_mm(a, b.t()))
        yield product(f"{rows}x{columns}x{depth}", a, b, tl.int8, peer, 4e-3)


@family("few rows", floor=1.02)
def few_rows(quick: bool) -> Iterator[Case]:
    """Products with few rows, whose weights come from memory: they rotate among copies, or the L2 is flushed."""
    for columns, depth in (WEIGHTS[:1] if quick else WEIGHTS) if on_hopper() else ():
        copies = -(-COLD_BYTES // (2 * columns * depth))
        weights = [torch.randn(columns, depth, device="cuda").bfloat16() for _ in range(copies)]
        for rows in FEW_ROWS:
            yield few(rows, weights)


def few(rows: int, weights: list[Any]) -> Case:
    """One of these; the dependent launch, which cuBLAS has not, is a contestant of its own."""
    columns, depth = weights[0].shape
    a = torch.randn(rows, depth, device="cuda").bfloat16()
    ours, theirs = (torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    moved = weights[0].nbytes + a.nbytes + ours.nbytes
    case = Case(f"{rows}x{columns}x{depth}", gigabytes=moved / 1e9, protocols=("graph", "flush"), copies=len(weights))
    problem = Problem(rows, columns, depth)
    form = chosen(problem, lambda form: prepare_matmul(form, a, weights[0], ours))
    case.notes["form"] = str(form)
    dependent = form._replace(DEPENDENT=True)
    for name, kind in ((OURS, form), (f"{OURS} dependent", dependent)):
        case.add(name, rotating(kind, a, weights, ours), lambda: ours)
    case.add("cuBLAS", lambda copy: torch.mm(a, weights[copy].t(), out=theirs), lambda: theirs)
    case.check(a.double() @ weights[0].double().t(), 4e-3)
    return case


def rotating(form: MatmulForm, a: Any, weights: list[Any], result: Any) -> Run:
    runs = [prepare_matmul(form, a, weight, result) for weight in weights]
    return lambda copy: runs[copy]()
