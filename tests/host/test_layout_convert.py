"""Conversions: random pairs of layouts, whose plans move real elements; and what plans are chosen."""

from __future__ import annotations

import random as random_module
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.layout import (
    Blocked,
    LinearLayout,
    RegisterMoves,
    SharedExchange,
    Shuffles,
    mma_accumulator,
    mma_operand,
    on_threads,
    plan_conversion,
    slice_of,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.convert import exchange_between, shuffles_between
from tilewright.layout.gf2 import combine, rank
from tilewright.layout.shared import wavefronts
from tilewright.layout.simulate import registers_of, simulate

BITS = st.sampled_from([8, 16, 32, 64])
SEEDS = st.integers(0, 2**32 - 1).map(random_module.Random)


def random_layout(random: random_module.Random, size: int, lanes: int, warps: int, blocks: int) -> LinearLayout:
    """Any map onto 2^size elements: with swizzled vectors and copies anywhere."""
    threads = lanes + warps + blocks
    count = max(size, threads) + random.randrange(3)
    while True:
        vectors = [random.choice([0, random.randrange(1 << size), 1 << random.randrange(size)]) for _ in range(count)]
        if rank(vectors) == size:
            break
    random.shuffle(vectors)
    parts = np.split(np.array(vectors, dtype=object), np.cumsum([count - threads, lanes, warps]))
    names = ("register", "lane", "warp", "block")
    return LinearLayout(
        tuple((name, tuple(part)) for name, part in zip(names, parts, strict=True)), (("dim0", 1 << size),)
    )


def scrambled(random: random_module.Random, source: LinearLayout, level: str) -> LinearLayout:
    """A layout that needs nothing from outside the thread, warp or block: later vectors plus sums of earlier ones."""
    names = {"lane": ["register", "lane"], "warp": ["register", "lane", "warp"]}[level]
    pool = [vector for name in names for vector in source.bases(name)]
    order = random.sample(pool, len(pool))
    mixed = [vector ^ (random.choice([0, reduce(xor, order[:i], 0)])) for i, vector in enumerate(order)]
    target, used = source, 0
    for name in names:
        target = target.with_bases(name, mixed[used : used + len(source.bases(name))])
        used += len(source.bases(name))
    for name in {"warp", "block"} - set(names):
        target = target.with_bases(
            name, [v ^ combine(pool, random.randrange(1 << len(pool))) for v in source.bases(name)]
        )
    return target


def check(plan, source: LinearLayout, target: LinearLayout) -> None:
    block = np.arange(np.prod(source.shape)) + 7
    np.testing.assert_array_equal(simulate(plan, registers_of(source, block)), registers_of(target, block), str(plan))


def warp_suffices(source: LinearLayout, target: LinearLayout) -> bool:
    """By looking: every warp holds all the elements it needs."""
    own_of, needed_of = (
        layout.table().reshape(-1, layout.size("lane") * layout.size("register")) for layout in (source, target)
    )
    pairs = zip(own_of, needed_of, strict=True)
    return all(set(needed) <= set(own) for own, needed in pairs)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(0, 4), st.integers(0, 2), st.integers(1, 7), BITS)
def test_any_pair_of_layouts(random, lanes: int, warps: int, size: int, bits: int):
    source, target = (random_layout(random, size, lanes, warps, 0) for _ in range(2))
    plan = plan_conversion(source, target, bits)
    check(plan, source, target)
    assert (shuffles_between(source, target, bits) is not None) == warp_suffices(source, target)
    if isinstance(plan, SharedExchange):
        assert plan.scope == ("warp" if warp_suffices(source, target) else "block")


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(["lane", "warp"]), st.integers(0, 1), BITS)
def test_pairs_inside_a_warp_or_block(random, level: str, blocks: int, bits: int):
    """Every way that can do it does it right, and loses to none that was not taken."""
    source = random_layout(random, random.randrange(3, 9), random.randrange(1, 4), random.randrange(3), blocks)
    target = scrambled(random, source, level)
    plan = plan_conversion(source, target, bits)
    ways = [exchange_between(source, target, bits), shuffles_between(source, target, bits)]
    check(exchange_between(source, target, bits, random.choice([16, 64, 256])), source, target)
    assert level == "warp" or ways[1] is not None
    for way in ways:
        if way is not None:
            check(way, source, target)
            assert plan.cost <= max(way.cost, 24)
    check(plan, source, target)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(3, 9), BITS)
def test_wavefronts_of_an_exchange_are_those_of_its_addresses(random, size: int, bits: int):
    source, target = (random_layout(random, size, 5, 1, 0) for _ in range(2))
    plan = exchange_between(source, target, bits)
    sides = (plan.store, plan.load)
    for side in sides:
        lanes = np.array([combine(side.threads, lane) for lane in range(32)])
        cost = wavefronts(np.array([lanes ^ access.offset for access in side.accesses]), bits // 8, side.width)
        assert side.wavefronts == cost.wavefronts
        if sides[0].width == sides[1].width:
            assert cost.wavefronts == len(side.accesses) * max(1, 32 * side.width * bits // 8 // 128)


ROWS = Blocked((1, 8), (4, 8), (4, 1), (1, 0)).layout((64, 64))
COLUMNS = Blocked((8, 1), (8, 4), (1, 4), (0, 1)).layout((64, 64))
PAIRS = {
    "rows to columns": (ROWS, COLUMNS),
    "result to rows": (wgmma_accumulator((64, 64), 64), ROWS),
    "rows to A": (ROWS, mma_operand((64, 64), 0, (2, 2), 2)),
    "rows to B": (ROWS, mma_operand((64, 64), 1, (2, 2), 2)),
    "result to A of 8 bits": (mma_accumulator((64, 64), (4, 1)), mma_operand((64, 64), 0, (4, 1), 4)),
    "result to wgmma's A of 8 bits": (wgmma_accumulator((64, 64), 64), wgmma_operand((64, 64), 4)),
    "row sums": (slice_of(ROWS, 1), slice_of(wgmma_accumulator((64, 64), 64), 1)),
    "sums to a row each": (slice_of(ROWS, 1), on_threads(Blocked((1,), (32,), (2,), (0,)).layout((64,)), 32, 4)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_layouts_of_kernels(name: str, bits: int):
    source, target = PAIRS[name]
    check(plan_conversion(source, target, bits), source, target)
    check(plan_conversion(target, source, bits), target, source)


def test_the_simplest_plans():
    assert plan_conversion(ROWS, ROWS, 16) == RegisterMoves(tuple(range(32)), True)
    other = ROWS.with_bases("register", ROWS.bases("register")[::-1])
    plan = plan_conversion(ROWS, other, 16)
    assert isinstance(plan, RegisterMoves) and not plan.in_place and plan.registers[:4] == (0, 16, 8, 24)
    expanded = slice_of(ROWS, 1).expand(1)
    copies = plan_conversion(expanded, expanded.with_bases("register", [0, *expanded.bases("register")]), 32)
    assert isinstance(copies, RegisterMoves) and copies.registers == (0, 0, 1, 1, 2, 2, 3, 3)[: len(copies.registers)]


def test_a_transpose_of_threads_is_butterflies():
    source = LinearLayout.make({"register": [(1,), (2,)], "lane": [(4,), (8,)], "warp": [], "block": []}, (16,))
    target = source.with_bases("register", (4, 8)).with_bases("lane", (1, 2))
    plan = plan_conversion(source, target, 32)
    assert isinstance(plan, Shuffles) and plan.butterfly and plan.shuffles == 3
    assert str(plan) == "3 butterflies, 16 selects: r0 ^0, r1 ^1, r2 ^2, r3 ^3"


def test_neighbours_of_16_bits_travel_together():
    source = LinearLayout.make({"register": [(1,), (2,)], "lane": [(4,), (8,)], "warp": [], "block": []}, (16,))
    target = source.with_bases("lane", (8, 4))
    counts = [plan_conversion(source, target, bits).shuffles for bits in (8, 16, 32, 64)]
    assert counts == [1, 2, 4, 8]


def test_a_register_chosen_by_the_lane_needs_no_shuffle():
    source = LinearLayout.make({"register": [(1,)], "lane": [(2,)], "warp": [], "block": []}, (4,))
    plan = plan_conversion(source, source.with_bases("lane", [3]), 32)
    assert isinstance(plan, Shuffles) and plan.shuffles == 0 and plan.selects > 0


def test_lanes_that_want_different_registers_of_one_lane():
    """The target has one register and no copies of it; still two rounds are needed, of which each lane keeps one."""
    source = LinearLayout.parse("register (8) (13); lane (4) (2); warp (8) (13); block -> dim0=16")
    target = LinearLayout.parse("register; lane (6) (8); warp (1) (4); block -> dim0=16")
    plan = shuffles_between(source, target, 32)
    assert plan is not None and len(plan.rounds) == 2
    check(plan, source, target)


def test_a_wide_transpose_has_no_conflicts():
    """16-byte stores and loads of a block of which each thread has 8 x 8 elements on both sides."""
    source = Blocked((8, 8), (4, 8), (2, 2), (1, 0)).layout((64, 128))
    target = Blocked((8, 8), (8, 4), (1, 4), (0, 1)).layout((64, 128))
    plan = plan_conversion(source, target, 16)
    assert str(plan) == (
        "shared memory of 8192 elements, store 8 x 8 elements in 32 wavefronts, block barrier, "
        "load 8 x 8 elements in 32 wavefronts"
    )


def test_limited_memory_is_used_in_steps():
    """A 128 x 256 block of 32 bits in 32 KB, as wide and without conflicts as in 128 KB."""
    source = wgmma_accumulator((128, 256), 256, (2, 1))
    target = Blocked((1, 4), (2, 16), (8, 1), (1, 0)).layout((128, 256))
    whole, limited = (plan_conversion(source, target, 32, memory) for memory in (None, 32768))
    assert isinstance(whole, SharedExchange) and isinstance(limited, SharedExchange)
    assert (whole.size, limited.size, limited.steps) == (32768, 8192, 4)
    assert [side.wavefronts for side in (whole.store, whole.load)] == [128, 128]
    assert [side.wavefronts for side in (limited.store, limited.load)] == [128, 128]
    check(limited, source, target)


def test_warps_with_copies_take_steps_together():
    """A warp barrier would let one warp store its second step over what another still loads of the first."""
    lanes = [(1 << bit,) for bit in range(4, 9)]
    for warp, scope in (([(512,)], "warp"), ([(0,)], "block")):
        bases = {"register": [(1,), (2,), (4,), (8,)], "lane": lanes, "warp": warp, "block": []}
        source = LinearLayout.make(bases, (1024 if warp[0][0] else 512,))
        registers, target = source.bases("register"), source
        target = target.with_bases("register", (16, 32, *registers[2:]))
        target = target.with_bases("lane", (*registers[:2], *source.bases("lane")[2:]))
        plan = exchange_between(source, target, 32, memory_bytes=4 * source.shape[0] // 2)
        assert plan.steps == 2 and plan.scope == scope
        assert exchange_between(source, target, 32).scope == "warp"
        check(plan, source, target)


def test_errors():
    with pytest.raises(ValueError, match="different blocks"):
        plan_conversion(ROWS, slice_of(ROWS, 1), 16)
    with pytest.raises(ValueError, match="4 warps hold the source, 8 the target"):
        plan_conversion(ROWS, on_threads(COLUMNS, 32, 8), 16)
    across = LinearLayout.make({"register": [(1,)], "lane": [], "warp": [], "block": [(2,)]}, (4,))
    with pytest.raises(ValueError, match="another block of the cluster"):
        plan_conversion(across, across.with_bases("register", [2]).with_bases("block", [1]), 16)


def test_a_simulated_plan_finds_wrong_addresses():
    """The simulator is no rubber stamp: a wrong plan is seen."""
    plan = exchange_between(ROWS, COLUMNS, 16)
    threads = (plan.store.threads[0] ^ 8, *plan.store.threads[1:])
    wrong = SharedExchange(
        plan.memory, type(plan.store)(plan.store.accesses, threads, 0), plan.load, plan.registers, plan.scope
    )
    with pytest.raises(ValueError, match="different values to one place"):
        simulate(wrong, registers_of(ROWS, np.arange(4096)))
