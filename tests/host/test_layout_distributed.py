"""Distributed layouts against the formulas of the instructions, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.layout import (
    Blocked,
    LinearLayout,
    joined,
    live_registers,
    mma_accumulator,
    mma_operand,
    on_threads,
    plan_conversion,
    slice_of,
    split,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.simulate import registers_of


def coordinates(layout: LinearLayout, lane: int, warp: int = 0) -> list[tuple[int, ...]]:
    """What the registers of one thread hold."""
    return [layout.apply(register=r, lane=lane, warp=warp) for r in range(layout.size("register"))]


def test_blocked_example_of_the_module():
    layout = Blocked((1, 4), (8, 4), (4, 1), (1, 0)).layout((32, 16))
    assert str(layout) == (
        "register (0,1) (0,2); lane (0,4) (0,8) (1,0) (2,0) (4,0); warp (8,0) (16,0); block -> dim0=32 dim1=16"
    )


def test_blocked_counts_as_it_says():
    """Thread coordinates are mixed-radix numbers of lane and warp, fastest axis first."""
    layout = Blocked((2, 2), (4, 8), (2, 2), (0, 1)).layout((32, 64))
    for lane, warp, register in ((5, 3, 0), (17, 1, 3), (30, 2, 13)):
        row = register % 2 + 2 * (lane % 4) + 8 * (warp % 2) + 16 * (register // 4 % 2)
        column = register // 2 % 2 + 2 * (lane // 4) + 16 * (warp // 2) + 32 * (register // 8)
        assert layout.apply(lane=lane, warp=warp, register=register) == (row, column)


def test_blocked_of_a_small_block_holds_copies():
    layout = Blocked((4,), (32,), (4,), (0,)).layout((64,))
    assert layout.size("register") == 4 and layout.is_surjective
    assert layout.free_variables() == {"register": 0, "lane": 16, "warp": 3, "block": 0}


@pytest.mark.parametrize("lane", [0, 3, 13, 31])
def test_mma_accumulator(lane: int):
    group, inside = divmod(lane, 4)
    layout = mma_accumulator((32, 16), (2, 2))
    for warp in range(4):
        row, column = 16 * (warp // 2), 8 * (warp % 2)
        expected = [(group + dr + row, 2 * inside + dc + column) for dr in (0, 8) for dc in (0, 1)]
        assert coordinates(layout, lane, warp) == expected


@pytest.mark.parametrize("lane", [0, 6, 25])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_mma_operands(lane: int, width: int):
    """a0: (row l/4, k width (l mod 4) + i), then rows 8 below, then k 4 width further; b the same with columns l/4."""
    group, inside = divmod(lane, 4)
    steps = [(k, row) for k in (0, 4 * width) for row in (0, 8)]
    a = [(group + row, width * inside + i + k) for k, row in steps for i in range(width)]
    assert coordinates(mma_operand((16, 8 * width), 0, (1, 1), width), lane) == a
    b = [(width * inside + i + k, group) for k in (0, 4 * width) for i in range(width)]
    assert coordinates(mma_operand((8 * width, 8), 1, (1, 1), width), lane) == b


def test_operands_belong_to_the_warps_of_the_accumulator():
    """The rows of A and the columns of B that a warp holds are those of its accumulator."""
    warps = (2, 4)
    result = mma_accumulator((64, 64), warps)
    left, right = mma_operand((64, 32), 0, warps, 2), mma_operand((32, 64), 1, warps, 2)
    for warp in range(8):
        registers_of = result.table()[0, warp].reshape(-1)
        assert set(registers_of // 64) == set(left.table()[0, warp].reshape(-1) // 32)
        assert set(registers_of % 64) == set(right.table()[0, warp].reshape(-1) % 64)


def test_wgmma_accumulator():
    """row = 16 warp + l/4 and + 8; for each n8 block columns 2 (l mod 4) and the next; n / 2 registers."""
    layout = wgmma_accumulator((128, 64), 64, (2, 1))
    assert layout.size("register") == 32
    for lane, warp in ((0, 0), (7, 3), (30, 6)):
        group, inside = divmod(lane, 4)
        expected = [
            (16 * warp + group + dr, 8 * block + 2 * inside + dc)
            for block in range(8)
            for dr in (0, 8)
            for dc in (0, 1)
        ]
        assert coordinates(layout, lane, warp) == expected


def test_accumulator_is_the_next_operand_for_16_bits():
    """A product enters the next one from registers as it is."""
    for columns in (16, 64, 128):
        plan = plan_conversion(wgmma_accumulator((64, columns), columns), wgmma_operand((64, columns), 2), 16)
        assert str(plan) == "nothing to do"
    assert str(plan_conversion(mma_accumulator((64, 32), (4, 1)), mma_operand((64, 32), 0, (4, 1), 2), 16)) == (
        "nothing to do"
    )


@pytest.mark.parametrize("columns", [8, 24, 112, 176, 224, 256])
def test_widths_that_are_no_power_of_two_use_the_first_registers(columns: int):
    extent = 1 << (columns - 1).bit_length()
    layout = wgmma_accumulator((64, extent), columns)
    assert live_registers(layout, (64, columns)) == tuple(range(columns // 2))


def test_wrong_widths():
    with pytest.raises(ValueError, match="steps of 8"):
        wgmma_accumulator((64, 64), 20)
    with pytest.raises(ValueError, match="span its block alone"):
        wgmma_accumulator((64, 512), 224)


def test_slice_and_expansion():
    parent = Blocked((1, 4), (8, 4), (4, 1), (1, 0)).layout((32, 16))
    rows = slice_of(parent, 1)
    assert str(rows) == "register; lane (0) (0) (1) (2) (4); warp (8) (16); block -> dim0=32"
    expanded = rows.expand(1)
    assert expanded.shape == (32, 1)
    np.testing.assert_array_equal(expanded.table()[0, :, :, 0], parent.table()[0, :, :, 0] // 16)


def test_joining_and_splitting_move_nothing():
    """Registers of the two blocks alternate; a split gives them back."""
    layout = mma_accumulator((16, 16), (1, 1))
    left, right = np.arange(256).reshape(16, 16), np.arange(256).reshape(16, 16) + 1000
    both = joined(layout)
    registers = registers_of(both, np.stack([left, right], axis=-1))
    np.testing.assert_array_equal(registers[..., 0::2], registers_of(layout, left))
    np.testing.assert_array_equal(registers[..., 1::2], registers_of(layout, right))
    assert split(both) == (layout, 0)
    assert split(both.with_bases("register", both.bases("register")[::-1])) == (
        layout.with_bases("register", layout.bases("register")[::-1]),
        3,
    )
    assert split(both.with_bases("register", (3, *both.bases("register")[1:]))) is None
    assert split(both.with_bases("lane", (1, *both.bases("lane")[1:]))) is None
    assert split(layout) is None


def test_filling_up_threads():
    layout = on_threads(Blocked((1,), (4,), (1,), (0,)).layout((4,)), 32, 4)
    assert layout.input_sizes == {"register": 1, "lane": 32, "warp": 4, "block": 1}
    with pytest.raises(ValueError, match="needs 32 lanes"):
        on_threads(layout, 16, 4)
