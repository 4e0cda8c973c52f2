"""ldmatrix and stmatrix as the instruction set describes them, run on NumPy memory; descriptors of wgmma operands."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.layout import LinearLayout, SharedLayout, mma_operand, nvmma, padded, unswizzled, wgmma_accumulator
from tilewright.layout.gf2 import combine
from tilewright.layout.matrix import MatrixAccess, matrix_access, wgmma_descriptor
from tilewright.layout.simulate import registers_of


def load_matrices(access: MatrixAccess, memory: np.ndarray, registers: int, warps: int) -> np.ndarray:
    """ldmatrix: row addresses from the lanes; lane l receives its two elements of every matrix."""
    result = np.full((1, warps, 32, registers), -1)
    for warp in range(warps):
        for instruction in access.instructions:
            given = [combine(access.threads, lane | warp << 5) ^ instruction.offset for lane in range(32)]
            for matrix, register in enumerate(instruction.registers):
                rows = [memory[address : address + 8] for address in given[8 * matrix : 8 * matrix + 8]]
                values = np.array(rows).T if access.transposed else np.array(rows)
                for lane in range(32):
                    pair = values[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                    result[0, warp, lane, register : register + 2] = pair
    return result


def check(layout: LinearLayout, shared: SharedLayout, expected: str) -> None:
    access = matrix_access(layout, shared, 16)
    assert access is not None and str(access) == expected
    block = np.random.default_rng(3).permutation(np.prod(layout.shape))
    memory = np.zeros(shared.size(), np.int64)
    memory[shared.offsets(np.arange(block.size))] = block
    loaded = load_matrices(access, memory, layout.size("register"), layout.size("warp"))
    np.testing.assert_array_equal(loaded, registers_of(layout, block))


def test_operands_come_by_ldmatrix():
    check(mma_operand((32, 64), 0, (2, 1), 2), nvmma((32, 64), 16, 128), "4 x4")
    check(mma_operand((64, 32), 1, (1, 2), 2), nvmma((64, 32), 16, 64), "4 x4.trans")
    check(mma_operand((64, 32), 1, (1, 2), 2), nvmma((64, 32), 16, 128, contiguous=0), "4 x4")
    check(mma_operand((16, 16), 0, (1, 1), 2), unswizzled((16, 16)), "1 x4")
    check(mma_operand((16, 8), 1, (1, 1), 2), unswizzled((16, 8)), "1 x2.trans")


def test_results_go_by_stmatrix():
    """The same map read the other way: a wgmma result into a swizzled tile, as the epilogue has it."""
    check(wgmma_accumulator((64, 64), 64), nvmma((64, 64), 16, 128), "4 x4")
    check(wgmma_accumulator((64, 64), 64), nvmma((64, 64), 16, 128, contiguous=0), "4 x4.trans")


def test_layouts_that_do_not_fit():
    result = wgmma_accumulator((64, 64), 64)
    assert matrix_access(result, nvmma((64, 64), 32, 128), 32) is None
    assert matrix_access(mma_operand((16, 32), 0, (1, 1), 4), nvmma((16, 32), 16, 64), 16) is None
    assert matrix_access(result, padded((64, 64), [(64, 4)]), 16) is None


@pytest.mark.parametrize(("swizzle", "code"), [(128, 1), (64, 2), (32, 3)])
@pytest.mark.parametrize("bits", [8, 16])
def test_k_major_descriptors(swizzle: int, code: int, bits: int):
    columns = swizzle * 8 // bits
    found = wgmma_descriptor(nvmma((128, columns), bits, swizzle), bits, swizzle, k_axis=1)
    assert (found.leading, found.stride, found.swizzle) == (0, 8 * swizzle, code)
    assert found.steps == tuple(range(0, swizzle, 32))


def test_descriptor_bits_of_the_usual_tile():
    """128-byte swizzle: eight rows are 1024 bytes apart."""
    found = wgmma_descriptor(nvmma((128, 64), 16, 128), 16, 128, k_axis=1)
    assert found.bits == 1 << 62 | 64 << 32


def test_mn_major_descriptors():
    """k x columns with memory along the columns: boxes of 64 columns are k x 128 bytes apart; k16 steps 2048."""
    tile = nvmma((64, 256), 16, 128)
    found = wgmma_descriptor(tile, 16, 128, k_axis=0)
    assert (found.leading, found.stride, found.steps) == (64 * 128, 1024, (0, 2048, 4096, 6144))
    with pytest.raises(ValueError, match="along k only"):
        wgmma_descriptor(nvmma((64, 256), 8, 128), 8, 128, k_axis=0)


def test_descriptor_without_swizzle():
    """Core matrices of 8 rows x 16 bytes: 128 bytes to the next eight rows, a column of them to the next along k."""
    found = wgmma_descriptor(nvmma((64, 64), 16, 16), 16, 16, k_axis=1)
    assert (found.leading, found.stride, found.swizzle) == (64 * 16, 128, 0)
    assert found.steps == (0, 2048, 4096, 6144)
