"""Products by multiply-add come out as rectangles of sums, fed by wide loads from tiles that are copied ahead."""

# mypy: ignore-errors

from __future__ import annotations

import re

import pytest

import tilewright
import tilewright.language as tl
from tests.compile.test_nvidia_plain import built, count, integers, pointers, traced
from tilewright.layout import bank_conflicts, swizzled
from tilewright.library.matmul.kernel import matmul
from tilewright.library.matmul.simt_parts_kernel import sum_parts
from tilewright.targets.gpu.dot_scalar_layout import scalar_layout, scalar_operand
from tilewright.targets.nvidia.target import ARCHITECTURES

TILES = [(128, 128, 32, 8), (64, 128, 32, 4), (128, 64, 16, 4), (64, 64, 32, 4), (64, 64, 32, 2), (32, 32, 32, 4)]


def product(tile, a_rows=True, b_rows=True):
    """`library.matmul.kernel` on float32: A by rows or by columns, B too."""
    rows, columns, depth, _ = tile
    sizes = ("rows", "columns", "depth", "a_row", "a_depth", "b_depth", "b_column", "c_row")
    ones = {"a_depth" if a_rows else "a_row": 1, "b_column" if b_rows else "b_depth": 1}
    types = {**pointers("f32", "a", "b", "c"), **integers(*(name for name in sizes if name not in ones))}
    return traced(matmul, types, {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth, **ones})


@pytest.mark.slow(but_every=5)
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("tile", TILES)
def test_sums_are_fed_by_vectors_from_tiles_that_are_copied_ahead(tile, a_rows, b_rows):
    rows, columns, depth, warps = tile
    _, assembly = built(product(tile, a_rows, b_rows), warps=warps)
    ptx, sums = assembly.ptx, rows * columns // (32 * warps)
    assert assembly.resources.spill_stores <= 4  # a register, where the assembler trades it for another CTA
    assert count(r"\bcp\.async\.c[ag]\.", ptx) >= 3  # of the stages in front, and of the loop
    steps = min(sums * depth, 1024)  # that are written one after the other
    assert count(r"\b(fma\.rn|mul\.rn|mul)\.f32", ptx) == steps
    assert count(r"\badd(\.rn)?\.f32", ptx) == sums  # each block of the depth is summed by itself
    loads = re.findall(r"\bld\.shared\S*", ptx)
    assert all(re.search(r"\.v[24]\.", load) for load in loads)
    assert steps >= {64: 16, 32: 10, 8: 4}[sums] * len(loads)


@pytest.mark.parametrize(
    ("tile", "steps", "apart"),
    [((128, 128, 32, 4), 1024, False), ((128, 64, 64, 4), 1024, True), ((32, 32, 128, 4), 512, True)],
)
def test_code_does_not_grow_with_the_tile(tile, steps, apart):
    """More sums than find room twice go on from those before; a long depth is summed in blocks of 64."""
    rows, columns, _, warps = tile
    _, assembly = built(product(tile), warps=warps)
    assert count(r"\b(fma\.rn|mul\.rn|mul)\.f32", assembly.ptx) == steps
    assert count(r"\badd(\.rn)?\.f32", assembly.ptx) == (rows * columns // (32 * warps) if apart else 0)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_copies_them_ahead(architecture):
    lowered, assembly = built(product((64, 64, 32, 4)), architecture)
    assert assembly.resources.spill_stores == 0
    assert "cp.async.cg" in lowered.text


@pytest.mark.parametrize("runs", [(1, 4), (1, 1), (4, 4), (4, 1)])
@pytest.mark.parametrize("tile", [*TILES, (16, 64, 32, 4), (64, 64, 16, 4)])
def test_reads_of_tiles_are_free_of_conflicts(tile, runs):
    """A runs along the depth or (4) along its rows, B along the depth or along its columns."""
    rows, columns, depth, warps = tile
    accumulator = scalar_layout((rows, columns), 32, warps, runs)
    for number, extent in enumerate((rows, columns)):
        along = runs[number] > 1
        if along and not number and rows * columns < 16 * 32 * warps:
            continue  # a thread has no four rows
        shape = (rows, depth) if number == 0 else (depth, columns)
        axis = number if along else 1 - number
        row = 4 * (extent if along else depth)
        tile_of = swizzled(shape, 4, max(1, 128 // row), min(128, row) // 16, (axis, 1 - axis))
        assert bank_conflicts(scalar_operand(accumulator, number, depth, along), tile_of, 32, 4).conflict_free


@tilewright.jit
def steps(a, b, c, depth, STAGES: tl.constexpr, STORED: tl.constexpr):
    i, k = tl.arange(0, 64), tl.arange(0, 32)
    acc = tl.zeros((64, 64), tl.float32)
    for first in tl.range(0, depth, 32, num_stages=STAGES):
        x = tl.load(a + i[:, None] * depth + (first + k)[None, :])
        y = tl.load(b + (first + k)[:, None] * 64 + i[None, :])
        acc = tl.dot(x, y, acc, input_precision="ieee")
        if STORED:
            tl.store((c if STAGES == 4 else a) + first, 1.0)
            tl.store((c if STAGES == 4 else b) + first, 1.0)
    tl.store(c + i[:, None] * 64 + i[None, :], acc)


@pytest.mark.parametrize(("stages", "stored"), [(1, False), (3, True)])
def test_loops_that_copy_nothing_ahead_store_operands_to_scratch(stages, stored):
    function = traced(steps, {**pointers("f32", "a", "b", "c"), "depth": "i32"}, {"STAGES": stages, "STORED": stored})
    lowered, assembly = built(function)
    assert "cp.async" not in lowered.text
    assert assembly.resources.spill_stores == 0
    assert lowered.shared_bytes == 4 * (64 * (32 + 4) + 32 * (64 + 4))
    assert count(r"\badd(\.rn)?\.f32", assembly.ptx) == 32


def test_loops_that_store_elsewhere_copy_ahead():
    function = traced(steps, {**pointers("f32", "a", "b", "c"), "depth": "i32"}, {"STAGES": 4, "STORED": True})
    lowered, _ = built(function)
    assert lowered.text.count("cp.async.commit_group") == 4 and "cp.async.wait_all" in lowered.text


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_sums_of_parts_read_vectors(architecture):
    constants = {"rows": 98, "columns": 512, "PARTS": 8, "BLOCK_M": 8, "BLOCK_N": 128, "MASK_M": True, "MASK_N": False}
    _, assembly = built(traced(sum_parts, pointers("f32", "parts", "out"), constants), architecture)
    loads = re.findall(r"\bld\.global\S*", assembly.ptx)
    assert len(loads) == 8 * 2 and all(".v4." in load for load in loads)
    assert count(r"\bst\.global\S*\.v4\.", assembly.ptx) == 2
