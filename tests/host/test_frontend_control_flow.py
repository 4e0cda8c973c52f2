"""Control flow, scoping, calls: kernels whose results are computed again in Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch
from tilewright.errors import CompilationError

SCALE = 3
BLOCK = tl.constexpr(8)


def integers(count: int = 8) -> np.ndarray:
    return np.zeros(count, np.int32)


@tilewright.jit
def loops(out, n, STEP: tl.constexpr):
    total = 0
    for i in range(n):
        if i % 2 == 0:
            total += i
        else:
            total -= 1
    tl.store(out, total)
    count = 0
    for i in range(10, 0, -STEP):
        count = count * 10 + i
    tl.store(out + 1, count)
    unrolled = 0
    for i in tl.static_range(4):
        unrolled += i * i
    tl.store(out + 2, unrolled)
    x = n
    steps = 0
    while x > 1:
        x = x // 2 if x % 2 == 0 else 3 * x + 1
        steps += 1
    tl.store(out + 3, steps)
    nested = 0
    for i in tl.range(1, 4, num_stages=2, loop_unroll_factor=2):
        for j in range(i, 5):
            nested += i * j
    tl.store(out + 4, nested)
    sizes = (1, 2, 3)
    sums = 0
    for size in sizes:
        sums += size
    tl.store(out + 5, sums)


def test_loops() -> None:
    out = integers()
    launch(loops, (1,), out, 7, STEP=3)
    expected = [(0 + 2 + 4 + 6) - 3, 10741, 14, 16, sum(i * j for i in range(1, 4) for j in range(i, 5)), 6]
    assert out[:6].tolist() == expected


@tilewright.jit
def carried_blocks(out, n, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    acc = tl.zeros((SIZE,), tl.int32)
    pair = (acc, offsets)
    for _ in range(n):
        pair = (pair[0] + pair[1], pair[1] * 2)
    tl.store(out + offsets, pair[0])


def test_tuples_are_carried_through_loops() -> None:
    out = integers()
    launch(carried_blocks, (1,), out, 3, SIZE=8)
    assert out.tolist() == [7 * i for i in range(8)]


@tilewright.jit
def early_return(out, n):
    pid = tl.program_id(0)
    if pid >= n:
        return
    if pid == 2:
        tl.store(out + pid, -5)
        return
    tl.store(out + pid, pid + 1)


def test_early_return_of_a_kernel() -> None:
    out = integers()
    launch(early_return, (8,), out, 5)
    assert out.tolist() == [1, 2, -5, 4, 5, 0, 0, 0]


@tilewright.jit
def classify(x):
    if x < 3:
        return x, tl.float32(1.0)
    if x < 5:
        return x * 10, tl.float32(2.0)
    else:
        return x * 100, tl.float32(3.0)


@tilewright.jit
def returns(out, weights):
    pid = tl.program_id(0)
    value, weight = classify(pid)
    tl.store(out + pid, value)
    tl.store(weights + pid, weight)


def test_several_returns_of_a_function() -> None:
    out, weights = integers(), np.zeros(8, np.float32)
    launch(returns, (8,), out, weights)
    assert out.tolist() == [0, 1, 2, 30, 40, 500, 600, 700]
    assert weights.tolist() == [1, 1, 1, 2, 2, 3, 3, 3]


class Bounds(NamedTuple):
    low: object
    high: object


@tilewright.jit
def widen(bounds, *extra, by=1):
    low = bounds.low - by
    high = bounds.high + by
    for value in extra:
        high += value
    return Bounds(low, high)


@tilewright.jit
def calls(out, FUNCTION: tl.constexpr, *operands):
    bounds = Bounds(tl.program_id(0) + 5, 7)
    wide = FUNCTION(bounds, *operands, by=2)
    tl.store(out, wide.low)
    tl.store(out + 1, wide.high)
    tl.store(out + 2, len(operands))
    values = [entry * 2 for entry in operands if SCALE == 3]
    tl.store(out + 3, values[-1])
    (a, b), c = (1, 2), 3
    tl.store(out + 4, a + b * c + SCALE)
    name = f"{SCALE}-{BLOCK}"
    tl.static_assert(name == "3-8", "f-strings hold constants")
    tl.static_assert(isinstance(SCALE, int) and not isinstance(wide.low, int))
    tl.store(out + 5, max(min(a, 7), b))
    if (limit := tl.program_id(0) + 4) > 3:
        tl.store(out + 6, limit)


def test_calls_functions_as_constants_and_variadic_operands() -> None:
    out = integers()
    launch(calls, (1,), out, widen, 10, 20)
    assert out.tolist() == [3, 39, 2, 40, 1 + 6 + 3, 2, 4, 0]


@tilewright.jit
def factorial(N: tl.constexpr):
    if N <= 1:
        return 1
    else:
        return N * factorial(N - 1)


@tilewright.jit
def endless(N: tl.constexpr):
    return endless(N + 1)


@tilewright.jit
def recursion(out, F: tl.constexpr):
    tl.store(out, F(5))


def test_recursion_ends_on_constants() -> None:
    out = integers()
    launch(recursion, (1,), out, factorial)
    assert out[0] == 120
    assert "nested more than" in compile_error(recursion, {"out": "*i32"}, F=endless)


@tilewright.jit
def one_as_argument(out, n, flag):
    wide = n.to(tl.int64) * 2 + n.dtype.primitive_bitwidth
    tl.store(out, wide)
    tl.store(out + 1, tl.where(flag, 5, 6) + (n + 1).to(tl.int32))
    tl.store(out + 2, tl.zeros((1,), tl.int32).sum(0) + (n == 1))
    if flag and n > 0:
        tl.store(out + 3, 1)
    if n is not None and not flag:
        tl.store(out + 4, 1)


@pytest.mark.parametrize("n", [1, 2])
def test_an_argument_equal_to_one_still_answers_as_a_tensor(n: int) -> None:
    out = integers()
    launch(one_as_argument, (1,), out, n, True)
    assert out.tolist() == [2 * n + 32, 5 + n + 1, int(n == 1), 1, 0, 0, 0, 0]


@tilewright.jit
def chained(out, n):
    i = tl.arange(0, 8)
    tl.store(out + i, ((2 <= i) & (i < n)).to(tl.int32) + 2 * (1 < n < 9).to(tl.int32))


def test_chained_comparison() -> None:
    out = integers()
    launch(chained, (1,), out, 5)
    assert out.tolist() == [2, 2, 3, 3, 3, 2, 2, 2]


@tilewright.jit
def temporaries(x, out, n, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    for start in range(0, n, SIZE):
        value = tl.load(x + start + offsets)
        total += value
    for start in range(0, n, SIZE):
        value = tl.load(x + start + offsets).to(tl.int32)  # another type than in the first loop
        total += value
    tl.store(out + offsets, total)


def test_names_used_inside_a_loop_only_are_not_carried() -> None:
    x, out = np.arange(16, dtype=np.float32), np.zeros(4, np.float32)
    launch(temporaries, (1,), x, out, 16, SIZE=4)
    assert out.tolist() == (2 * x.reshape(4, 4).sum(0)).tolist()
    loop_operands = [
        len(operation.operands) - 3
        for operation in temporaries.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"SIZE": 4}).walk()
        if operation.opcode == "for"
    ]
    assert loop_operands == [1, 1]


def make_kernel(factor: int):
    @tilewright.jit
    def scaled(out):
        tl.store(out, factor)

    return scaled


def test_closures_are_captured_by_value() -> None:
    for factor in (4, 9):
        out = integers()
        launch(make_kernel(factor), (1,), out)
        assert out[0] == factor


def test_generated_source() -> None:
    source = "def generated(out, N: tl.constexpr):\n    tl.store(out, N + offset)\n"
    kernel = tilewright.JITFunction.from_source(source, "generated", {"tl": tl, "offset": 5})
    out = integers()
    launch(kernel, (1,), out, N=3)
    assert out[0] == 8
    broken = tilewright.JITFunction.from_source("def broken(out):\n    tl.store(oust, 1)\n", "broken", {"tl": tl})
    with pytest.raises(CompilationError, match="2 | tl.store"):
        broken.trace({"out": "*i32"}, {})


@tilewright.jit
def leaving(out, n, limit):
    total, steps, last = 0, 0, -1
    for i in range(n):
        if i % 3 == 0:
            continue
        steps += 1
        if total > limit:
            last = i
            break
        elif i == 4:
            total += 100
            continue
        total += i
    tl.store(out, total)
    tl.store(out + 1, steps)
    tl.store(out + 2, last)
    count = 0
    while True:
        count += 1
        if count * count >= n:
            break
    tl.store(out + 3, count)
    found = -1
    for i in range(n, 0, -1):
        for j in range(1, i):
            if i * j == limit:
                found = i
                break
        if found > 0:
            break
    tl.store(out + 4, found)
    even = 0
    for i in tl.static_range(10):
        if i % 2 == 1:
            continue
        if i > 6:
            break
        even += i
    tl.store(out + 5, even)
    x = n
    while x > 0:
        x -= 1
        if x == 5:
            continue
        even += 1
        if x == 2:
            break
    tl.store(out + 6, even)


def left(n: int, limit: int) -> list[int]:
    """The kernel in Python."""
    out = np.zeros(8, np.int32)
    namespace: dict[str, Any] = {"tl": SimpleNamespace(store=out.__setitem__, static_range=range)}
    exec(leaving.source, namespace)
    namespace["leaving"](0, n, limit)
    return out.tolist()


@pytest.mark.parametrize(("n", "limit"), [(10, 3), (10, 200), (12, 35), (2, 0), (5, 6)])
def test_break_and_continue(n: int, limit: int) -> None:
    out = integers()
    launch(leaving, (1,), out, n, limit)
    assert out.tolist() == left(n, limit)


@tilewright.jit
def branch_on_one_element(x, out):
    if tl.load(x + tl.arange(0, 1)) > 3:
        tl.store(out, 1)


def test_a_block_of_one_element_is_a_condition() -> None:
    for value in (3, 4):
        out = np.zeros(1, np.int32)
        launch(branch_on_one_element, (1,), np.array([value], np.int32), out)
        assert out[0] == (value > 3)


@tilewright.jit
def doubled(value: tl.constexpr):
    return value * 2


@tilewright.jit
def calls_with_a_block(out):
    lanes = tl.arange(0, 8)
    tl.store(out + lanes, doubled(lanes))


def test_an_inlined_function_takes_run_time_values_for_constexpr_parameters() -> None:
    out = np.zeros(8, np.int32)
    launch(calls_with_a_block, (1,), out)
    np.testing.assert_array_equal(out, 2 * np.arange(8))


@tilewright.jit
def leave_inside_a_constant_branch(x, out, EARLY: tl.constexpr):
    if EARLY:
        if tl.load(x) > 0:
            return
    tl.store(out, 1)
    for i in range(4):
        if EARLY:
            if tl.load(x + i) < -1:
                break
        tl.store(out + 1, i)


def test_statements_after_a_constant_branch_that_may_leave_are_run() -> None:
    for early, x, expected in (
        (True, [1, 0, 0, 0], [0, 0]),
        (True, [0, 0, 0, 0], [1, 3]),
        (True, [0, 0, -2, 0], [1, 1]),
        (False, [1, 0, -2, 0], [1, 3]),
    ):
        out = np.zeros(2, np.int32)
        launch(leave_inside_a_constant_branch, (1,), np.array(x, np.int32), out, EARLY=early)
        assert out.tolist() == expected
