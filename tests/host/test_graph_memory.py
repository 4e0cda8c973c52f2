"""Memory plans: nothing that is alive together overlaps, whatever the symbols are."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilewright.graph.passes.lifetimes import GreatestIndex, OverlapIndex, greatest_sum
from tilewright.graph.passes.memory import TENSOR_ALIGNMENT, LiveInterval, plan_memory
from tilewright.symbolic import evaluate, round_up, symbol

BATCH = symbol("batch", 1, 64)
SEQUENCE = symbol("sequence", 1, 512)


def interval_sizes() -> st.SearchStrategy:
    factor = st.integers(0, 5000)
    return st.one_of(
        factor,
        factor.map(lambda n: n * BATCH),
        factor.map(lambda n: n * BATCH * SEQUENCE),
        factor.map(lambda n: n * BATCH * SEQUENCE * SEQUENCE),
        factor.map(lambda n: (SEQUENCE + n) * BATCH * 4),
        factor.map(lambda n: round_up(n * SEQUENCE + 3, 64)),
    )


@st.composite
def interval_lists(draw: st.DrawFn) -> list[LiveInterval]:
    count = draw(st.integers(1, 12))
    intervals = []
    for index in range(count):
        first = draw(st.integers(0, 8))
        intervals.append(LiveInterval(f"t{index}", draw(interval_sizes()), first, first + draw(st.integers(0, 4))))
    return intervals


@given(interval_lists(), st.integers(1, 64), st.integers(1, 512))
def test_live_tensors_never_overlap(intervals, batch, sequence):
    symbols = {"batch": batch, "sequence": sequence}
    plan = plan_memory(intervals)
    total = evaluate(plan.total, symbols)
    places = {}
    for item in intervals:
        start = evaluate(plan.offsets[item.name], symbols)
        assert start % TENSOR_ALIGNMENT == 0
        places[item.name] = (start, start + evaluate(item.bytes, symbols))
        assert 0 <= start and places[item.name][1] <= total
    for item in intervals:
        for other in intervals:
            if item.name < other.name and item.overlaps(other):
                (a, b), (c, d) = places[item.name], places[other.name]
                assert b <= c or d <= a or a == b or c == d, (item, other, places)
    assert plan.least_bytes(symbols) <= total + TENSOR_ALIGNMENT * len(intervals)


def test_one_family_is_packed_like_integers():
    tokens = BATCH * SEQUENCE
    plan = plan_memory(
        [
            LiveInterval("hidden", 1536 * tokens, 0, 5),
            LiveInterval("projected", 4608 * tokens, 1, 2),
            LiveInterval("context", 1536 * tokens, 2, 3),
            LiveInterval("wide", 6144 * tokens, 3, 4),
            LiveInterval("mask", 4096, 0, 5),
        ]
    )
    symbols = {"batch": 2, "sequence": 128}
    assert evaluate(plan.total, symbols) == plan.least_bytes(symbols)
    assert "100 % of the lower bound" in plan.report(symbols)


def test_slots_are_shared_by_unlike_sizes():
    plan = plan_memory(
        [
            LiveInterval("a", 4 * BATCH + 4, 0, 1),
            LiveInterval("b", 4 * SEQUENCE + 8, 2, 3),
            LiveInterval("c", 4 * BATCH + 4, 4, 5),
        ]
    )
    assert plan.offsets["a"] == plan.offsets["b"] == plan.offsets["c"] == 0


def test_small_multiples_are_packed_like_others():
    """162 bytes a row find a gap of 256; what lies above 66 bytes a row is moved to the next alignment."""
    beside = [LiveInterval("hidden", 256 * BATCH, 0, 2), LiveInterval("pairs", 162 * BATCH, 2, 3)]
    assert evaluate(plan_memory([*beside, LiveInterval("mask", 256 * BATCH, 0, 1)]).total, {"batch": 64}) == 512 * 64
    narrow = [LiveInterval(name, 66 * BATCH, 0, 2) for name in ("first", "second", "third")]
    assert evaluate(plan_memory(narrow).total, {"batch": 64}) <= (3 * 66 + 2) * 64


def test_a_family_of_any_multiples_is_near_the_least():
    """A convolution block of 8 channels, whose rows of 32 bytes are no alignment."""
    pixels = BATCH * SEQUENCE
    sizes = [("x", 32, 0, 4), ("depthwise", 32, 1, 2), ("norm", 32, 2, 3), ("wide", 128, 3, 4), ("narrow", 32, 4, 5)]
    plan = plan_memory([LiveInterval(name, factor * pixels, *life) for name, factor, *life in sizes])
    symbols = {"batch": 3, "sequence": 41}
    assert evaluate(plan.total, symbols) <= plan.least_bytes(symbols) + 2 * TENSOR_ALIGNMENT


def test_an_empty_plan_needs_nothing():
    assert plan_memory([]).total == 0
    assert np.isscalar(plan_memory([]).least_bytes({}))


@given(interval_lists())
def test_overlaps_and_greatest_levels_are_found(intervals):
    overlaps, levels = OverlapIndex(intervals), GreatestIndex(intervals)
    for number, item in enumerate(intervals):
        before = [other for other in range(number) if item.overlaps(intervals[other])]
        assert sorted(overlaps.overlapping(item)) == before
        assert levels.greatest(item) == max((7 * other % 5 for other in before), default=0)
        overlaps.add(number, item)
        levels.add(item, 7 * number % 5)
    sizes = [(item, number) for number, item in enumerate(intervals)]
    alive = (sum(n for item, n in sizes if item.first <= step <= item.last) for step in range(13))
    assert greatest_sum(sizes) == max(alive)


def test_long_chains_are_planned_in_about_linear_time():
    def seconds(count: int) -> float:
        intervals = [
            LiveInterval(f"t{n}", 64 * (n * 37 % 101 + 1) * BATCH, n, n + (1, 2, 1, 9)[n % 4]) for n in range(count)
        ]
        begun = time.process_time()
        plan_memory(intervals)
        return time.process_time() - begun

    seconds(100)
    pairs = [(seconds(700), seconds(5600)) for _ in range(3)]  # alternately: a machine's speed changes
    short, long = map(min, zip(*pairs, strict=True))
    assert long < 30 * short  # 8 times where it is linear, 64 where it is quadratic
