"""Shared layouts against their address formulas, and bank conflicts against counts known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.layout import Blocked, bank_conflicts, nvmma, padded, swizzled, unswizzled, wgmma_accumulator


@pytest.mark.parametrize(("swizzle", "bits"), [(16, 0), (32, 1), (64, 2), (128, 3)])
@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_nvmma_is_the_address_xor(swizzle: int, bits: int, itemsize: int):
    """Boxes of rows of `swizzle` bytes; then address bits 4.. are XORed with bits 7.. (as many as chunks need)."""
    rows, columns = 32, 256 // itemsize
    layout = nvmma((rows, columns), 8 * itemsize, swizzle)
    row, column = np.indices((rows, columns))
    byte = column * itemsize
    plain = byte // swizzle * rows * swizzle + row * swizzle + byte % swizzle
    expected = plain ^ (plain >> 7 & (1 << bits) - 1) << 4
    np.testing.assert_array_equal(layout.offsets(np.arange(rows * columns)).reshape(rows, columns) * itemsize, expected)


def test_nvmma_k_steps_and_row_groups():
    """What descriptors count on: 32 bytes to a k step, 1024 to eight rows; stages follow each other."""
    layout = nvmma((4, 128, 64), 16, 128)
    assert [layout.offset(0, 0, k) * 2 for k in (0, 16, 32, 48)] == [0, 32, 64, 96]
    assert layout.offset(0, 8, 0) * 2 == 1024 and layout.offset(0, 64, 0) * 2 == 8192
    assert layout.offset(1, 0, 0) * 2 == 128 * 64 * 2 and layout.alignment == 1024


def test_nvmma_along_the_other_axis():
    """MN-major: the transposed tile of the same memory."""
    across = nvmma((64, 128), 16, 128, contiguous=0)
    along = nvmma((128, 64), 16, 128)
    for row, column in ((0, 1), (5, 77), (63, 127)):
        assert across.offset(row, column) == along.offset(column, row)


@settings(max_examples=25)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_swizzled_is_the_vector_xor(vector: int, per_phase: int, phases: int, turned: bool):
    shape, order = ((16, 64), (1, 0)) if not turned else ((64, 16), (0, 1))
    layout = swizzled(shape, vector, per_phase, phases, order)
    for row, column in ((0, 5), (3, 17), (9, 40), (15, 63)):
        place = column // vector ^ row // per_phase % phases
        expected = row * 64 + place * vector + column % vector
        assert layout.offset(*((column, row) if turned else (row, column))) == expected


def test_padding_and_sizes():
    layout = padded((32, 32), [(32, 4)])
    assert layout.offset(2, 5) == 2 * 36 + 5
    assert layout.size() == 31 * 36 + 32 and unswizzled((32, 32)).size((16, 32)) == 16 * 32
    assert nvmma((256, 64), 16, 128).size((224, 64)) == 224 * 64


def test_errors():
    with pytest.raises(ValueError, match="less than a row"):
        nvmma((64, 32), 16, 128)
    with pytest.raises(ValueError, match="bytes wide"):
        nvmma((64, 64), 16, 48)
    with pytest.raises(ValueError, match="no vectors of 8"):
        bank_conflicts(wgmma_accumulator((64, 64), 64), nvmma((64, 64), 16, 128), 16, 8)


COLUMN = Blocked((1, 1), (32, 1), (1, 1), (1, 0))  # a warp reads 32 rows of a column


@pytest.mark.parametrize(
    ("layout", "per_access"),
    [
        (unswizzled((32, 32)), 32),
        (unswizzled((32, 32), (0, 1)), 1),
        (padded((32, 32), [(32, 1)]), 1),
        (swizzled((32, 32), 1, 1, 32), 1),
        (swizzled((32, 32), 4, 1, 8), 4),
        (nvmma((32, 32), 32, 128), 4),
    ],
)
def test_conflicts_of_a_column_of_words(layout, per_access: int):
    cost = bank_conflicts(COLUMN.layout((32, 32)), layout, 32, 1)
    assert (cost.accesses, cost.wavefronts, cost.ideal) == (32, 32 * per_access, 32)
    assert cost.conflict_free == (per_access == 1)


def test_conflicts_of_vectors():
    """Rows of 16-byte vectors are free; eight lanes of a phase in one column conflict unless swizzled."""
    rows = Blocked((1, 8), (4, 8), (1, 1), (1, 0)).layout((32, 64))
    columns = Blocked((1, 8), (32, 1), (1, 1), (1, 0)).layout((32, 64))
    for shared, expected in ((unswizzled((32, 64)), 8 * 32), (nvmma((32, 64), 16, 128), 32)):
        assert bank_conflicts(rows, shared, 16, 8).conflict_free
        cost = bank_conflicts(columns, shared, 16, 8)
        assert (cost.accesses, cost.wavefronts, cost.ideal) == (8, expected, 32)


def test_lanes_that_share_a_word_do_not_conflict():
    pairs = Blocked((1,), (32,), (1,), (0,)).layout((32,))
    assert bank_conflicts(pairs, unswizzled((32,)), 16, 1).wavefronts == 1
    assert bank_conflicts(pairs.with_bases("lane", [0, 0, 0, 0, 1]), unswizzled((32,)), 32, 1).wavefronts == 1


def test_accumulator_into_a_swizzled_tile():
    """Pairs of 16-bit columns of a wgmma result enter a 128-byte tile without conflicts."""
    cost = bank_conflicts(wgmma_accumulator((64, 64), 64), nvmma((64, 64), 16, 128), 16, 2)
    assert cost.conflict_free and cost.accesses == 64
