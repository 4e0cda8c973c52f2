"""The code that all GPUs share, with warps of 16, 32 and 64 threads: kernels run, and LLVM makes AMD's code of them."""

# mypy: ignore-errors

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.simt_stand_in import AmdIntrinsics, StandIn, lowered, run
from tilewright.ir.core import Parameter
from tilewright.library.candidate import KernelCall
from tilewright.library.matmul.simt_tiles import SimtTile
from tilewright.targets.llvm.optimize import MachineOptions, generate_assembly
from tilewright.targets.nvidia.target import NvidiaTarget

WIDTHS = (16, 32, 64)


@tilewright.jit
def scaled_sum(left, right, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    total = tl.load(left + index, mask=inside, other=1.0) * 2.0 + tl.load(right + index, mask=inside)
    tl.store(result + index, tl.exp(total), mask=inside)


@tilewright.jit
def softmax(source, result, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows, index = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (index < columns) & (rows < ROWS)
    values = tl.load(source + rows * columns + index, mask=inside, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, axis=1)[:, None])
    tl.store(result + rows * columns + index, powers / tl.sum(powers, axis=1)[:, None], mask=inside)


@tilewright.jit
def column_sums(source, result, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(result + tl.arange(0, COLUMNS), tl.sum(tl.load(source + place), axis=0))


@tilewright.jit
def running_sums(source, forward, backward, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    values = tl.load(source + index)
    tl.store(forward + index, tl.cumsum(values, axis=0))
    tl.store(backward + index, tl.cumsum(values, axis=0, reverse=True))


@tilewright.jit
def transposed(source, result, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    block = tl.load(source + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(result + columns[:, None] * ROWS + rows[None, :], block.T)


@tilewright.jit
def carried(source, result, steps, SIZE: tl.constexpr):
    """Blocks of 16 bits through a loop and both sides of a branch in it."""
    place = tl.arange(0, SIZE)
    total, other = tl.load(source + place), tl.load(source + SIZE + place)
    for step in range(steps):
        if step % 3 == 1:
            total, other = other - total, total
        else:
            total += other
    tl.store(result + place, total)
    tl.store(result + SIZE + place, other)


@tilewright.jit
def product(left, right, result, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    place = index[:, None] * SIZE + index[None, :]
    total = tl.dot(tl.load(left + place), tl.load(right + place), input_precision="ieee")
    tl.store(result + place, total)


@tilewright.jit
def histogram(source, counts, BLOCK: tl.constexpr):
    tl.atomic_add(counts + tl.load(source + tl.arange(0, BLOCK)), 1)


def traced(kernel, types, constants):
    parameters = {name: Parameter(name, 16 if kind.startswith("*") else 1, True) for name, kind in types.items()}
    return kernel.trace(types, constants, parameters)


FLOATS = {name: "*f32" for name in ("source", "result")}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("warps", [1, 2])
def test_elementwise(width, warps, rng):
    left, right = rng.standard_normal((2, 700)).astype(np.float32)
    result = np.full(700, np.nan, np.float32)
    types = {"left": "*f32", "right": "*f32", "result": "*f32", "count": "i32"}
    run(traced(scaled_sum, types, {"BLOCK": 512}), [left, right, result, 700], (2, 1, 1), StandIn(width), warps)
    np.testing.assert_allclose(result, np.exp(left.astype(np.float64) * 2 + right), rtol=3e-6)


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("rows", "columns", "warps"), [(1, 500, 2), (4, 50, 1), (8, 33, 4), (1, 3000, 32)])
def test_reductions_along_rows(width, rows, columns, warps, rng):
    """Within threads, between lanes and between warps, with columns that do not exist."""
    source = rng.standard_normal((rows, columns)).astype(np.float32)
    result = np.empty_like(source)
    constants = {"ROWS": rows, "BLOCK": 1 << (columns - 1).bit_length()}
    kernel = traced(softmax, {**FLOATS, "columns": "i32"}, constants)
    run(kernel, [source, result, columns], (1, 1, 1), StandIn(width), warps)
    powers = np.exp(source.astype(np.float64) - source.max(1, keepdims=True))
    np.testing.assert_allclose(result, powers / powers.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
def test_reductions_across_rows(width, rng):
    source = rng.integers(-99, 99, (64, 32)).astype(np.float32)
    result = np.empty(32, np.float32)
    run(traced(column_sums, FLOATS, {"ROWS": 64, "COLUMNS": 32}), [source, result], (1, 1, 1), StandIn(width), 4)
    assert (result == source.sum(0)).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("warps", [1, 4])
def test_scans(width, warps, rng):
    source = rng.integers(-99, 99, 512).astype(np.int32)
    forward, backward = np.zeros_like(source), np.zeros_like(source)
    types = {name: "*i32" for name in ("source", "forward", "backward")}
    run(traced(running_sums, types, {"BLOCK": 512}), [source, forward, backward], (1, 1, 1), StandIn(width), warps)
    assert (forward == np.cumsum(source)).all() and (backward == np.cumsum(source[::-1])[::-1]).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["f16", "i16"])
@pytest.mark.parametrize("steps", [0, 5])
def test_words_of_two_numbers_go_around_loops(width, kind, steps, rng):
    source = rng.integers(-9, 9, 512).astype({"f16": np.float16, "i16": np.int16}[kind])
    result = np.zeros_like(source)
    types = {"source": f"*{kind}", "result": f"*{kind}", "steps": "i32"}
    kernel = traced(carried, types, {"SIZE": 256})
    run(kernel, [source, result, steps], (1, 1, 1), StandIn(width), 2)
    total, other = source[:256], source[256:]
    for step in range(steps):
        total, other = (other - total, total) if step % 3 == 1 else (total + other, other)
    assert (result == np.concatenate((total, other))).all()
    _, text = lowered(kernel, StandIn(width), AmdIntrinsics(), 2)
    phis = set(re.findall(r"= phi (<2 x \w+>|\w+) ", text))
    assert phis & {"half", "i16", "<2 x half>", "<2 x i16>"} == {{"f16": "<2 x half>", "i16": "<2 x i16>"}[kind]}


@pytest.mark.parametrize("width", WIDTHS)
def test_blocks_that_change_hands(width, rng):
    source = rng.standard_normal((32, 64)).astype(np.float32)
    result = np.empty((64, 32), np.float32)
    run(traced(transposed, FLOATS, {"ROWS": 32, "COLUMNS": 64}), [source, result], (1, 1, 1), StandIn(width), 2)
    assert (result == source.T).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_products_by_multiply_add(width, rng):
    left, right = rng.integers(-9, 9, (2, 16, 16)).astype(np.float32)
    result = np.empty((16, 16), np.float32)
    types = {name: "*f32" for name in ("left", "right", "result")}
    run(traced(product, types, {"SIZE": 16}), [left, right, result], (1, 1, 1), StandIn(width), 2)
    assert (result == left @ right).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_atomics(width, rng):
    source, counts = rng.integers(0, 9, 256).astype(np.int32), np.zeros(9, np.int32)
    run(traced(histogram, {"source": "*i32", "counts": "*i32"}, {"BLOCK": 256}), [source, counts], (1, 1, 1),
        StandIn(width), 2)  # fmt: skip
    assert (counts == np.bincount(source, minlength=9)).all()


KERNELS = {
    "elementwise": (scaled_sum, {"left": "*f32", "right": "*f32", "result": "*f32", "count": "i32"}, {"BLOCK": 1024}),
    "softmax": (softmax, {**FLOATS, "columns": "i32"}, {"ROWS": 4, "BLOCK": 512}),
    "scan": (running_sums, {name: "*i32" for name in ("source", "forward", "backward")}, {"BLOCK": 1024}),
    "transpose": (transposed, FLOATS, {"ROWS": 64, "COLUMNS": 64}),
    "product": (product, {name: "*f32" for name in ("left", "right", "result")}, {"SIZE": 32}),
    "atomics": (histogram, {"source": "*i32", "counts": "*i32"}, {"BLOCK": 512}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_gpus_of_amd_take_the_text(name):
    """LLVM makes code for gfx942 of it, whose waves have 64 lanes: the text is complete and verified."""
    target = StandIn(64, architecture="gfx942")
    lowering, text = lowered(traced(*KERNELS[name]), target, AmdIntrinsics(), 4)
    assert {layout.size("lane") for layout in lowering.assignment.layouts.values()} == {64}
    assert '"amdgpu-flat-work-group-size"="256,256"' in text and "nvvm" not in text
    code = generate_assembly(text, MachineOptions("amdgcn-amd-amdhsa", "gfx942", ""))
    assert ".amdhsa_next_free_vgpr" in code.assembly or "s_endpgm" in code.assembly


def test_kernels_of_the_library_have_as_many_threads_whatever_the_width() -> None:
    """A call says threads; a target of wider warps is given fewer of them."""
    call = KernelCall(scaled_sum, {}, {}, {}, (1, 1, 1), options={"num_stages": 2}, threads=256)
    found = {width: call.options_for(StandIn(width))["num_warps"] for width in WIDTHS}
    assert found == {16: 16, 32: 8, 64: 4}
    assert replace(call, threads=32).options_for(StandIn(64))["num_warps"] == 1
    assert replace(call, threads=0).options_for(StandIn(64)) == {"num_stages": 2}
    tile = SimtTile(64, 64, 32, 128)
    narrow, wide = (replace(NvidiaTarget.named("sm_90a").machine(), warp_threads=width) for width in (32, 64))
    assert narrow.warps(tile.threads) == 4 and wide.warps(tile.threads) == 2 and tile.sums == 32
