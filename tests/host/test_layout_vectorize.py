"""Widths of accesses and coalescing, against what the facts and registers say element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.layout import Blocked, Facts, LinearLayout, coalesce, slice_of, wgmma_accumulator, widest_access

POWERS = st.sampled_from([1, 2, 4, 8, 16])


def pointers(rng: np.random.Generator, shape: tuple[int, int], facts: Facts, axis: int, itemsize: int) -> np.ndarray:
    """Byte addresses that keep to the facts along one axis and to no more."""
    run = facts.contiguity[axis]
    unit = facts.divisibility[axis] // np.gcd(facts.divisibility[axis], itemsize) * itemsize
    counts = list(shape)
    counts[axis] //= run
    starts = rng.integers(0, 1 << 20, counts) * unit
    return np.repeat(starts, run, axis) + np.indices(shape)[axis] % run * itemsize


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), POWERS, st.sampled_from([1, 2, 4, 8, 16, 32]), POWERS, st.sampled_from([1, 2, 4, 8]))
def test_accesses_are_aligned_and_contiguous(seed: int, contiguity: int, divisor: int, mask: int, itemsize: int):
    """On random addresses: every group is a run of memory at a multiple of its bytes, under one bit of the mask."""
    rng = np.random.default_rng(seed)
    shape, axis = (32, 64), int(rng.integers(2))
    facts = Facts(
        tuple(contiguity if i == axis else 1 for i in range(2)),
        tuple(max(divisor, itemsize) if i == axis else itemsize for i in range(2)),
        tuple(mask if i == axis else 1 for i in range(2)),
    )
    order = (0, 1) if rng.integers(2) else (1, 0)
    layout = Blocked((2, 4), (8, 4), (1, 2), order).layout(shape)
    address = pointers(rng, shape, facts, axis, itemsize).reshape(-1)
    bit = np.repeat(rng.integers(0, 2, 2048), mask)[: np.prod(shape)].reshape(shape if axis else shape[::-1])
    allowed = (bit if axis else bit.T).reshape(-1)
    access = widest_access(layout, facts, itemsize)
    assert sorted(register for group in access.groups for register in group) == list(range(layout.size("register")))
    for group in access.groups:
        elements = layout.table()[..., list(group)].reshape(-1, access.width)
        start = address[elements[:, 0]]
        assert not (start % (access.width * itemsize)).any() and access.width * itemsize <= max(16, itemsize)
        np.testing.assert_array_equal(address[elements], start[:, None] + np.arange(access.width) * itemsize)
        assert (allowed[elements] == allowed[elements[:, :1]]).all()


@pytest.mark.parametrize(
    ("itemsize", "contiguity", "divisibility", "mask", "width"),
    [
        (2, 64, 16, None, 8),
        (4, 64, 16, None, 4),
        (1, 64, 16, None, 8),  # the registers of a thread end there
        (2, 64, 4, None, 2),
        (2, 4, 16, None, 4),
        (2, 64, 16, 2, 2),
        (8, 64, 16, None, 2),
        (2, 1, 16, None, 1),
    ],
)
def test_widths(itemsize: int, contiguity: int, divisibility: int, mask: int | None, width: int):
    layout = Blocked((1, 8), (4, 8), (4, 1), (1, 0)).layout((32, 64))
    facts = Facts((1, contiguity), (itemsize, divisibility), None if mask is None else (1, mask))
    access = widest_access(layout, facts, itemsize)
    assert (access.axis, access.width) == (1, width)


def test_registers_need_not_be_in_order():
    """A wgmma result has pairs of columns; a layout whose column bits are its highest registers has vectors too."""
    rows = Facts((1, 64), (4, 16))
    assert str(widest_access(wgmma_accumulator((64, 64), 64), rows, 2)) == "16 accesses of 2 elements along dim1"
    layout = LinearLayout.make({"register": [(1, 0), (0, 1)], "lane": [(0, 2)], "warp": [], "block": []}, (2, 4))
    assert widest_access(layout, Facts((1, 4), (4, 16)), 4).groups == ((0, 2), (1, 3))


def test_lanes_that_turn_the_order_of_registers_have_no_vectors():
    """Lane 1 holds elements 3 and 2: the first of its registers is not where a vector could begin."""
    layout = LinearLayout.parse("register (1); lane (3); warp; block -> dim0=4")
    assert widest_access(layout, Facts((4,), (16,)), 4).width == 1


def test_copies_in_registers_are_accessed_once():
    layout = LinearLayout.make({"register": [(0,), (1,)], "lane": [(2,)], "warp": [], "block": []}, (4,))
    assert widest_access(layout, Facts((4,), (16,)), 4).groups == ((0, 2),)


@pytest.mark.parametrize(
    ("shape", "facts", "itemsize", "expected"),
    [
        ((16, 1024), Facts((1, 1024), (16, 16)), 2, Blocked((1, 8), (1, 32), (1, 4), (1, 0))),
        ((128, 64), Facts((1, 64), (16, 16)), 2, Blocked((1, 8), (4, 8), (4, 1), (1, 0))),
        ((1024, 16), Facts((1024, 1), (16, 4)), 4, Blocked((4, 1), (32, 1), (4, 1), (0, 1))),
        ((128,), Facts((128,), (16,)), 4, Blocked((1,), (32,), (4,), (0,))),
        ((1024,), Facts((1024,), (4,)), 4, Blocked((1,), (32,), (4,), (0,))),
        ((64, 64), Facts((1, 1), (4, 4)), 4, Blocked((1, 1), (1, 32), (2, 2), (1, 0))),
        ((4,), Facts((4,), (16,)), 4, Blocked((1,), (32,), (4,), (0,))),
        ((), Facts((), ()), 4, Blocked((), (), (), ())),
    ],
)
def test_coalescing(shape, facts: Facts, itemsize: int, expected: Blocked):
    chosen = coalesce(shape, facts, itemsize, warps=4)
    assert chosen == expected
    layout = chosen.layout(shape)
    assert layout.is_surjective
    if shape:
        assert layout.size("lane") == 32 and layout.size("warp") == 4


def test_a_warp_reads_whole_lines():
    """Sectors of 32 bytes that the warps touch: each exactly once, by neighbouring lanes."""
    shape, itemsize = (64, 256), 2
    layout = coalesce(shape, Facts((1, 256), (16, 16)), itemsize, warps=4).layout(shape)
    access = widest_access(layout, Facts((1, 256), (16, 16)), itemsize)
    for group in access.groups:
        sectors = layout.table()[0, :, :, list(group)] * itemsize // 32
        assert len(np.unique(sectors)) == 4 * 16


def test_scalars_and_slices():
    rows = slice_of(Blocked((1, 4), (8, 4), (4, 1), (1, 0)).layout((32, 16)), 1)
    assert widest_access(rows, Facts((32,), (16,)), 4).groups == ((0,),)
