"""What can be told of an explicit kernel before it runs, at the line of the mistake."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tests.host import asynchrony_support as kernels
from tests.host.hopper_support import traced_attention, traced_matmul
from tests.host.test_asynchrony import traced
from tilewright.errors import CompilationError, ExecutionError, LaunchError
from tilewright.ir.interpreter import run
from tilewright.library.attention.hopper.config import AttentionConfig
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.passes.hazards import CtaLimits, check_hazards
from tilewright.passes.pipeline import simplify

# mypy: ignore-errors

HOPPER = CtaLimits(warp_threads=32, registers=65536, shared_bytes=232448)


@pytest.mark.parametrize(
    ("bug", "line", "reason"),
    [
        ("release of the stage in flight", "ring.release(position)", "early release"),
        ("too many bytes", "full.expect(bytes + 64)", "24640 bytes are expected, the copies to this barrier bring 24"),
        ("too few bytes", "full.expect(rights[0].bytes)", "8192 bytes are expected"),
        ("too few arrivals", "ring = tx.make_ring(STAGES, 3)", "after 3 arrivals, but there come: 'multiply' 8"),
        ("too many arrivals", "ring = tx.make_ring(STAGES, 12)", "after 12 arrivals"),
        ("arrivals of one copy", "ring = tx.make_ring(STAGES, 4)", "after 4 arrivals"),
    ],
)  # fmt: skip
def test_mistakes_of_a_ring(bug: str, line: str, reason: str):
    with pytest.raises(CompilationError) as caught:
        check_hazards(simplify(traced(kernels.product, bug)), HOPPER)
    text = str(caught.value)
    assert reason in text and f"| {line}\n" in text and "help: " in text
    assert caught.value.location.file == kernels.product.file


@pytest.mark.parametrize("kernel", [kernels.product, kernels.turns, kernels.exchange, kernels.in_flight])
def test_correct_kernels_pass(kernel):
    check_hazards(simplify(traced(kernel, "")), HOPPER)
    check_hazards(traced(kernel, ""), HOPPER)


@pytest.mark.parametrize(
    "config",
    [MatmulConfig(), MatmulConfig(BN=224), MatmulConfig(SHARE_B=2), MatmulConfig(DEPENDENT=True, SHARE_A=2),
     MatmulConfig(BM=64, BN=64, BK=128, CONSUMERS=1, SPLIT=2), MatmulConfig(BM=192, CONSUMERS=3, BN=192, STAGES=3)],
    ids=str,
)  # fmt: skip
def test_products_pass(config: MatmulConfig):
    check_hazards(simplify(traced_matmul(config)), HOPPER)


@pytest.mark.parametrize(
    "config", [AttentionConfig(), AttentionConfig(CAUSAL=True), AttentionConfig(D=256, FLAT=False, CONSUMERS=2)]
)
def test_attention_passes(config: AttentionConfig):
    check_hazards(simplify(traced_attention(config)), HOPPER)


@tilewright.jit
def nothing(copy):
    pass


@tilewright.jit
def sync(copy, THREADS: tl.constexpr):
    tx.named_sync(1, THREADS)


@tilewright.jit
def two_numbers(copy):
    tx.named_arrive(2, 256)
    tx.named_sync(2, 128)


@tilewright.jit
def number_of_the_compiler(copy):
    tx.named_sync(9, 128)


@tilewright.jit
def group(copy):
    tx.group_sync()


@tilewright.jit
def goes_on(copy, x):
    tx.cluster_arrive()
    tx.cluster_wait()
    tl.store(x, 1.0)


@tilewright.jit
def in_a_loop(copy, x):
    for _ in range(4):
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def allocates(copy):
    tx.shared((8, 8), tl.float32)


@tilewright.jit
def expects(copy, full):
    full[0].expect(128)
    full[0].wait(0)


@tilewright.jit
def waits_by_vote(copy, x):
    if tx.warp_any(tl.load(x + tl.arange(0, 128)) > 0):
        tx.group_sync()


@tilewright.jit
def wrong(x, CASE: tl.constexpr):
    if CASE == "registers":
        tx.warp_roles(tx.role(nothing, registers=40), tx.role(nothing, copies=2, registers=248))
    elif CASE == "shared memory":
        tx.shared((4, 128, 256), tl.bfloat16, swizzle=128)
    elif CASE == "memory in a role":
        tx.warp_roles(tx.role(allocates))
    elif CASE == "memory in a loop":
        for _ in range(tl.program_id(0)):
            tx.shared((8, 8), tl.float32)
    elif CASE == "roles twice":
        tx.warp_roles(tx.role(nothing))
        tx.warp_roles(tx.role(nothing))
    elif CASE == "elected group":
        tx.warp_roles(tx.role(group, elected=True))
    elif CASE == "elected goes on":
        tx.warp_roles(tx.role(goes_on, (x,), elected=True))
    elif CASE == "elected loop":
        tx.warp_roles(tx.role(in_a_loop, (x,), elected=True))
    elif CASE == "behind a vote":
        tx.warp_roles(tx.role(waits_by_vote, (x,)))
    elif CASE == "threads":
        tx.warp_roles(tx.role(sync, (128,), copies=2))
    elif CASE == "more threads than there are":
        tx.warp_roles(tx.role(sync, (512,), copies=2))
    elif CASE == "two numbers of threads":
        tx.warp_roles(tx.role(two_numbers, copies=2))
    elif CASE == "number of the compiler":
        tx.warp_roles(tx.role(number_of_the_compiler))
    elif CASE == "nothing is copied":
        full = tx.barriers(1, 1)
        tx.warp_roles(tx.role(expects, (full,), elected=True))
    elif CASE == "stage":
        ring = tx.shared((2, 64, 64), tl.float16, swizzle=128)
        ring[2].store(tl.zeros((64, 64), tl.float16))
    elif CASE == "barrier":
        tx.barriers(2, 1)[2].wait(0)
    elif CASE == "parity":
        tx.barriers(2, 1)[0].wait(2)
    elif CASE == "part":
        tile = tx.shared((64, 64), tl.float16, swizzle=128)
        tile.slice(56, 16).store(tl.zeros((16, 64), tl.float16))
    elif CASE == "odd part":
        tile = tx.shared((64, 64), tl.float16, swizzle=128)
        tile.slice(3, 16).store(tl.zeros((16, 64), tl.float16))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("registers", "the roles want 68608 registers, a multiprocessor has 65536"),
        ("shared memory", "262144 bytes of shared memory, a CTA may have 232448"),
        ("memory in a role", "inside a loop, branch or role"),
        ("memory in a loop", "inside a loop, branch or role"),
        ("roles twice", "shared out twice"),
        ("elected group", "'group', an elected role: it is one thread"),
        ("elected goes on", "goes on after its cluster barrier"),
        ("elected loop", "inside a loop or branch of 'in_a_loop'"),
        ("behind a vote", "group_sync depends on a vote that each warp takes for itself"),
        ("threads", "number 1 waits for 128 threads, 'sync' has 256"),
        ("more threads than there are", "a barrier of 512 threads in a CTA of 256"),
        ("two numbers of threads", "used for 128 and for 256 threads"),
        ("number of the compiler", "barrier number 9 is not yours"),
        ("nothing is copied", "128 bytes are expected, but no copy completes"),
        ("stage", "index 2 is outside of 2 tiles"),
        ("barrier", "index 2 is outside of 2 barriers"),
        ("parity", "the parity of a phase is 0 or 1, not 2"),
        ("part", "the slice 56:72 is outside of 64 along axis 0"),
        ("odd part", "the slice starts at 3, which is no multiple of 8"),
    ],
)
def test_mistakes_of_structure_and_budgets(case: str, reason: str):
    function = wrong.trace({"x": "*f32"}, {"CASE": case})
    with pytest.raises(CompilationError, match=reason):
        check_hazards(function, HOPPER)


@tilewright.jit
def meets(x, THREADS: tl.constexpr):
    tx.warp_roles(tx.role(sync, (THREADS,), copies=2))


@pytest.mark.parametrize("width", [32, 64])
def test_a_warp_has_the_threads_of_the_target(width: int) -> None:
    """Two copies of a role of four warps are 256 threads, or 512."""
    limits, x = replace(HOPPER, warp_threads=width), np.zeros(1, np.float32)
    function, other = (meets.trace({"x": "*f32"}, {"THREADS": threads}) for threads in (8 * width, 4 * width))
    check_hazards(function, limits)
    run(function, [x], warp_threads=width)
    with pytest.raises(CompilationError, match=f"waits for {4 * width} threads, 'sync' has {8 * width}"):
        check_hazards(other, limits)
    odd = meets.trace({"x": "*f32"}, {"THREADS": 7 * width + width // 2})
    with pytest.raises(CompilationError, match=f"{width} for each warp"):
        check_hazards(odd, limits)
    with pytest.raises(ExecutionError, match="no whole warps"):
        run(odd, [x], warp_threads=width)


def test_a_cta_has_so_many_threads_at_most() -> None:
    function = meets.trace({"x": "*f32"}, {"THREADS": 1024})
    with pytest.raises(CompilationError, match="2048 threads, a CTA has at most 1024"):
        check_hazards(function, replace(HOPPER, warp_threads=256))
    with pytest.raises(LaunchError, match="2048 threads"):
        run(function, [np.zeros(1, np.float32)], warp_threads=256)
