"""Barriers between iterations of loops: where one may store what is another thread's in the next, and only there."""

# mypy: ignore-errors

from __future__ import annotations

import re
from itertools import combinations, product

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.simt_stand_in import HostIntrinsics, StandIn, lowered, run
from tilewright.ir import interpreter
from tilewright.ir.core import Parameter
from tilewright.passes.pipeline import run_passes, simplify
from tilewright.passes.uniform_increments import carry_uniform_increments
from tilewright.targets.gpu.layouts import assign
from tilewright.targets.gpu.memory_order import ordering_barriers
from tilewright.targets.nvidia.layout_rules import layout_rules
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")
TYPES = {"x": "*i32", "out": "*i32", "n": "i32", "m": "i32"}


def traced(kernel, constants, divisibility=1):
    types = {parameter.name: TYPES[parameter.name] for parameter in kernel.parameters if parameter.name in TYPES}
    divisors = {"x": 16, "out": 16, "n": 1, "m": divisibility}
    return kernel.trace(types, constants, {name: Parameter(name, divisors[name], True) for name in types})


def waiting(function, warps=4):
    """The opcodes of the operations that get barriers, sorted, in a kernel as the pipeline has it."""
    function = run_passes(function, (simplify, carry_uniform_increments, simplify))
    assigned = assign(function, TARGET, warps, layout_rules(TARGET))
    return sorted(operation.opcode for operation in ordering_barriers(assigned, ()))


@tilewright.jit
def added_windows(x, out, n, WINDOW: tl.constexpr, HOP: tl.constexpr):
    i = tl.arange(0, WINDOW)
    for k in range(n):
        tl.store(out + k * HOP + i, tl.zeros((WINDOW,), tl.int32))
    for k in range(n):
        p = out + k * HOP + i
        tl.store(p, 2 * tl.load(p) + tl.load(x + k * WINDOW + i))


@pytest.mark.parametrize("hop", [16, 48, 64])
def test_windows_that_overlap_are_added_in_order(hop, rng):
    function = traced(added_windows, {"WINDOW": 64, "HOP": hop})
    x, out, expected = rng.integers(0, 9, 256).astype(np.int32), np.zeros(256, np.int32), np.zeros(256, np.int32)
    run(function, [x, out, 4], (1, 1, 1), StandIn(32), 2)
    interpreter.run(function, [x, expected, 4], (1,))
    assert np.array_equal(out, expected)


@tilewright.jit
def stepping(out, n, STEP: tl.constexpr, N: tl.constexpr):
    for k in range(n):
        p = out + k * STEP + tl.arange(0, N)
        tl.store(p, tl.load(p) + 1)


@tilewright.jit
def by_an_argument(out, n, m, STEP: tl.constexpr, N: tl.constexpr):
    for k in range(n):
        p = out + k * m * STEP + tl.arange(0, N)
        tl.store(p, tl.load(p) + 1)


@tilewright.jit
def over_the_grid(out, n, STEP: tl.constexpr, N: tl.constexpr):
    for k in range(tl.program_id(0), n, tl.num_programs(0)):
        p = out + k * STEP + tl.arange(0, N)
        tl.store(p, tl.load(p) + 1)


@tilewright.jit
def carried(out, n, STEP: tl.constexpr, N: tl.constexpr):
    p = out + tl.arange(0, N)
    for _ in range(n):
        tl.store(p, tl.load(p) + 1)
        p += STEP


@tilewright.jit
def carried_through_a_loop(out, n, m, STEP: tl.constexpr, N: tl.constexpr):
    p = out + tl.arange(0, N)
    for _ in range(n):
        for _ in range(m):
            tl.store(p, tl.load(p) + 1)
            p += STEP


@tilewright.jit
def in_pages(x, out, n, STEP: tl.constexpr, N: tl.constexpr):
    for k in range(n):
        p = out + tl.load(x + k) * STEP + tl.arange(0, N)
        tl.store(p, tl.load(p) + 1)


@tilewright.jit
def in_wide_numbers(out, n, STEP: tl.constexpr, N: tl.constexpr):
    for k in range(n):
        p = out + (k.to(tl.int64) * STEP)[None] + tl.arange(0, N)
        tl.store(p, tl.load(p) + 1)


@pytest.mark.parametrize(
    "kernel", [stepping, by_an_argument, over_the_grid, carried, carried_through_a_loop, in_pages, in_wide_numbers]
)
@pytest.mark.parametrize("step", [-256, 16, 127, 128, 384])
def test_loops_wait_where_a_step_does_not_lead_past_the_block(kernel, step):
    assert bool(waiting(traced(kernel, {"STEP": step, "N": 128}))) == (abs(step) < 128)


@pytest.mark.parametrize("kernel", [stepping, by_an_argument, carried, in_pages])
def test_steps_may_be_any_numbers(kernel):
    assert not waiting(traced(kernel, {"STEP": -200, "N": 128}))
    assert waiting(traced(kernel, {"STEP": 200, "N": 256}))


def test_a_step_by_an_argument_leads_past_what_the_argument_is_a_multiple_of():
    assert waiting(traced(by_an_argument, {"STEP": 8, "N": 256}, 16))
    assert not waiting(traced(by_an_argument, {"STEP": 8, "N": 128}, 16))


@tilewright.jit
def of_two_axes(out, n, ROW: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    places = tl.arange(0, ROWS)[:, None] * ROW + tl.arange(0, COLUMNS)[None, :]
    for k in range(n):
        p = out + k * STEP + places
        tl.store(p, tl.load(p) + 1)


def test_blocks_of_two_axes_reach_from_their_first_element_to_their_last():
    assert not waiting(traced(of_two_axes, {"ROW": 32, "STEP": 128, "ROWS": 4, "COLUMNS": 32}))
    assert waiting(traced(of_two_axes, {"ROW": 48, "STEP": 128, "ROWS": 4, "COLUMNS": 32}))


@tilewright.jit
def not_by_steps(x, out, n, m, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    moved = out + i
    for k in range(n):
        if KIND == "turned":
            p = out + (i + k * N) % (4 * N)
        elif KIND == "stretched":
            p = out + i * k
        elif KIND == "gathered":
            p = out + k * N + tl.load(x + i)
        else:
            p = moved
            moved += i
        tl.store(p, tl.load(p) + 1)


@pytest.mark.parametrize("kind", ["turned", "stretched", "gathered", "carried"])
def test_loops_wait_where_elements_move_by_themselves(kind):
    assert waiting(traced(not_by_steps, {"KIND": kind, "N": 128}))


def test_a_scalar_is_stored_by_one_thread():
    @tilewright.jit
    def marked(out, n, m):
        for k in range(n):
            tl.store(out + k * m, k)

    assert not waiting(traced(marked, {}))


@tilewright.jit
def turned_and_summed(x, out, n, m, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.load(x + i)
    tl.store(x + N - 1 - i, total)
    for _ in range(n):
        for _ in range(m):
            total += tl.load(x + i)
    tl.store(out + i, total)


def test_loads_stay_after_the_barriers_that_they_wait_at(rng):
    """LLVM may not take memory that all threads store to for one thread's."""
    function = traced(turned_and_summed, {"N": 64})
    x, out, expected = rng.integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32), np.zeros(64, np.int32)
    copy = x.copy()
    run(function, [x, out, 2, 2], (1, 1, 1), StandIn(16), 4)
    interpreter.run(function, [copy, expected, 2, 2], (1,))
    assert np.array_equal(out, expected) and np.array_equal(x, copy)


@tilewright.jit
def in_place(x, out, n, N: tl.constexpr):
    p = x + tl.arange(0, N)
    for k in range(n):
        tl.store(p, tl.load(p) * 3 + k)
    tl.store(out + tl.arange(0, 128), tl.sum(tl.load(p), axis=0) + tl.arange(0, 128))


COPIED = ["load", "load", "store"]


@pytest.mark.parametrize(("extent", "found"), [(16, COPIED), (64, COPIED), (128, []), (256, [])])
def test_loads_and_stores_of_blocks_that_several_warps_have_wait(extent, found):
    """One warp stores such a block; the others load it after that, and before the next store."""
    assert waiting(traced(in_place, {"N": extent})) == found
    assert not waiting(traced(in_place, {"N": extent}), warps=1)


@tilewright.jit
def accessed_once(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    p = out + i
    tl.store(p, tl.load(x + i))
    tl.store(p, i, mask=i < 5)


def test_blocks_that_several_warps_have_do_not_wait_where_none_loads_what_was_stored():
    assert not waiting(traced(accessed_once, {"N": 16}))


@tilewright.jit
def counted(x, out, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if KIND == "store":
        tl.store(out + i, tl.load(x + i))
    elif KIND == "atomic":
        tl.atomic_add(out + tl.load(x + i), 1)
    else:
        tl.store(tl.where(i < 7, x + i, out + i), i)


@pytest.mark.parametrize(("kind", "alone"), [("store", ["%p0"]), ("atomic", ["%p0"]), ("either", [])])
def test_only_what_is_not_stored_to_has_no_aliases(kind, alone):
    _, text = lowered(traced(counted, {"KIND": kind, "N": 64}), StandIn(32), HostIntrinsics(32), 2)
    (header,) = [line for line in text.splitlines() if line.startswith("define")]
    assert re.findall(r"noalias[^,]*(%\w+)", header) == alone


@tilewright.jit
def nested(out, OUTER: tl.constexpr, INNER: tl.constexpr, START: tl.constexpr, SPREAD: tl.constexpr, N: tl.constexpr):
    for a in range(3):
        for b in range(START, START + 6, 2):
            p = out + 4096 + a * OUTER + b * INNER + tl.arange(0, N) * SPREAD
            tl.store(p, tl.load(p) + 1)


def test_no_barrier_is_left_out_between_blocks_that_meet(rng):
    """Against the places themselves: without barriers, any two iterations share all places or none."""
    quiet = 0
    for _ in range(40):
        outer, inner = (int(rng.choice([0, 1, 4, 16, 24, 32, 64, 96])) for _ in range(2))
        start, spread, extent = int(rng.integers(-2, 3)), int(rng.choice([0, 1, -1, 2])), int(rng.choice([4, 16, 32]))
        constants = {"OUTER": outer, "INNER": inner, "START": start, "SPREAD": spread, "N": extent}
        if waiting(traced(nested, constants), warps=1):
            continue
        quiet += 1
        steps = product(range(3), range(start, start + 6, 2))
        places = [tuple(a * outer + b * inner + i * spread for i in range(extent)) for a, b in steps]
        assert all(one == other or not {*one} & {*other} for one, other in combinations(places, 2)), constants
    assert quiet > 5
