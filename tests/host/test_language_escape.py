"""Scalar functions mapped over elements, machine text, and what kernels know of their target."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch
from tilewright.errors import CompilationError
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.ir.verifier import verify
from tilewright.language.extra import cuda
from tilewright.language.target_info import compiling_for
from tilewright.settings import settings


@tilewright.jit
def collatz(x, limit):
    """A loop whose length differs from element to element, with a branch inside."""
    steps = 0
    while x != 1 and steps < limit:
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    return steps, x.to(tl.float32) / 2


@tilewright.jit
def power(x, n):
    result = 1.0
    for _ in range(n):
        result *= x
    return result


@tilewright.jit
def quotients(a0, a1, b0, b1):
    return a0 // b0, a1 // b1, a0 % b0, a1 % b1


@tilewright.jit
def select(x):
    if x > 0:
        return x
    elif x == 0:
        return 7
    else:
        return -x * 2


@tilewright.jit
def mapped(x, steps, last, chosen, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    count, end = tl.map_elementwise(collatz, value, 1000)
    tl.store(steps + i, count)
    tl.store(last + i, end + tl.map_elementwise(power, value.to(tl.float32), i % 3))
    tl.store(chosen + i, tl.map_elementwise(select, i - 4))


def test_map_with_branches_and_loops() -> None:
    x = np.arange(1, 33, dtype=np.int32)
    steps, last, chosen = np.zeros(32, np.int32), np.zeros(32, np.float32), np.zeros(32, np.int32)
    launch(mapped, (1,), x, steps, last, chosen, N=32)
    assert steps[:9].tolist() == [0, 1, 7, 2, 5, 8, 16, 3, 19]
    np.testing.assert_allclose(last, 0.5 + x.astype(np.float32) ** (np.arange(32) % 3))
    assert chosen[:7].tolist() == [8, 6, 4, 2, 7, 1, 2]


@tilewright.jit
def packed(x, y, q, r, N: tl.constexpr):
    i = tl.arange(0, N)
    quotient, rest = tl.map_elementwise(quotients, tl.load(x + i), tl.load(y + i), pack=2)
    tl.store(q + i, quotient)
    tl.store(r + i, rest)


def test_map_in_pairs(rng: np.random.Generator) -> None:
    x, y = rng.integers(0, 100, 16).astype(np.int32), rng.integers(1, 9, 16).astype(np.int32)
    q, r = np.zeros_like(x), np.zeros_like(x)
    launch(packed, (1,), x, y, q, r, N=16)
    np.testing.assert_array_equal(q, x // y)
    np.testing.assert_array_equal(r, x % y)


@tilewright.jit
def storing(x):
    tl.device_print("x", x)
    return x


def effects(x, out, n):
    tl.store(out, tl.sum(tl.map_elementwise(storing, tl.arange(0, 8))))


def odd_pack(x, out, n):
    tl.store(out, tl.sum(tl.map_elementwise(select, tl.arange(0, 8), pack=3)))


def too_few_outputs(x, out, n):
    tl.inline_asm_elementwise("mov $0, $1;", "r", [n], tl.int32, True, 1)


def too_few_inputs(x, out, n):
    tl.inline_asm_elementwise("add $0, $1, $2;", "=r,r", [n, n], tl.int32, True, 1)


def no_dtype(x, out, n):
    tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [n], 3, True, 1)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (effects, "does more than compute: print"),
        (odd_pack, "pack must divide the 8 elements"),
        (too_few_outputs, "0 outputs, the results take 1"),
        (too_few_inputs, "1 inputs, the arguments take 2"),
        (no_dtype, "a result dtype"),
    ],
)
def test_mistakes(mistake, message: str) -> None:
    assert message in compile_error(tilewright.jit(mistake), {"x": "*f32", "out": "*i32", "n": "i32"})


# Machine text ------------------------------------------------------------------------------------


@tilewright.jit
def converted(x, out, last, N: tl.constexpr):
    i = tl.arange(0, N)
    whole, part = tl.inline_asm_elementwise(
        asm='{ // four bytes\n    mov $0, "$8";\n}',
        constraints="=r,=r,=r,=r,=f,=f,=f,=f,r,f,f,f,f",
        args=[tl.load(x + i), i.to(tl.float32)],
        dtype=(tl.int32, tl.float32),
        is_pure=True,
        pack=4,
    )
    tl.store(out + i, whole + part.to(tl.int32))
    clock = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], tl.int64, is_pure=False, pack=1)
    tl.inline_asm_elementwise("nanosleep.u32 $1; mov.b32 $0, 0;", "=r, r", [100], tl.int32, is_pure=False, pack=1)
    tl.inline_asm_elementwise("mov.b32 $0, 0;", "=r", [], tl.int32, is_pure=True, pack=1)
    tl.store(last, clock)


def test_machine_text_stays_in_the_ir(golden) -> None:
    from tilewright.passes.pipeline import simplify

    function = converted.trace({"x": "*u8", "out": "*i32", "last": "*i64"}, {"N": 8})
    verify(function)
    text = print_function(function)
    assert print_function(parse_function(text)) == text
    golden(print_function(simplify(function)))  # the impure ones are there, the pure one that nobody uses is not


@pytest.mark.parametrize("interpreted", [False, True])
def test_machine_text_is_refused_where_it_means_nothing(interpreted: bool) -> None:
    x, out, last = np.zeros(8, np.uint8), np.zeros(8, np.int32), np.zeros(1, np.int64)
    with settings.scope(interpret=interpreted), pytest.raises(CompilationError, match="cannot run") as caught:
        converted[(1,)](x, out, last, N=8)
    text = str(caught.value)
    assert "the interpreter" in text if interpreted else "a CPU" in text
    assert "^^^" in text and "help: write it with operations" in text and caught.value.location.line > 0


# Targets -----------------------------------------------------------------------------------------


@tilewright.jit
def asks(out):
    if tl.target_info.is_cuda():
        if tl.target_info.cuda_capability_geq(9, 0):
            tl.store(out, 90)
        else:
            tl.store(out, 80)
    elif tl.target_info.is_hip():
        tl.store(out, 942)
    else:
        cuda.gdc_wait()
        tl.store(out, cuda.num_threads())
    tl.static_assert(tl.target_info.current_target().backend != "tpu")


class Other:
    def __init__(self, name: str, sm: int) -> None:
        self.name, self.generation, self.warp_threads = name, sm, 32


def test_kernels_ask_for_their_target() -> None:
    out = np.zeros(1, np.int32)
    launch(asks, (1,), out)
    assert out[0] == 1
    for name, sm, expected in [("cuda", 90, 90), ("cuda", 86, 80), ("hip", 0, 942)]:
        with compiling_for(Other(name, sm)):
            assert f"constant {expected} :" in str(asks.trace({"out": "*i32"}, {}))


@tilewright.jit
def clock(out):
    tl.store(out, cuda.globaltimer() + cuda.smid())


def test_clocks_belong_to_their_machine() -> None:
    text = str(clock.trace({"out": "*i64"}, {}))
    assert "%globaltimer" in text and "%smid" in text
    with pytest.raises(CompilationError, match="inline assembly"):
        clock[(1,)](np.zeros(1, np.int64))
