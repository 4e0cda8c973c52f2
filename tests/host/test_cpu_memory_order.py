"""Loads whose memory is written before their values are used: compiled as interpreted, and as NumPy says."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import check, lowered, run_compiled
from tilewright.ir import interpreter
from tilewright.library.matmul.kernel import load_panels
from tilewright.targets.cpu.target import CPUTarget

TYPES = {"x": "*f32", "y": "*f32", "o": "*f32"}


@tilewright.jit
def swapped(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(x + i, b)
    tl.store(y + i, a)


@tilewright.jit
def cleared(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(x + i, 0.0)
    tl.atomic_add(o, tl.sum(value))
    tl.store(o + 1, tl.max(value, 0))


@tilewright.jit
def exchanged(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value, other = tl.load(x + i), tl.load(y + i, mask=i < N - 3, other=7.0)
    tl.atomic_xchg(x + i, 5.0)
    tl.atomic_add(y + i, other)
    tl.store(o + i, value)
    tl.store(o + N + i, other)


@tilewright.jit
def summed(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(x + i, 5.0)
    tl.store(o + i, tl.cumsum(value, 0))
    tl.store(o + N + i, value - tl.sum(value, 0))


@tilewright.jit
def multiplied(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + i)
    tl.store(x + i, tl.zeros((N, N), tl.float32))
    tl.store(o + i, tl.dot(value, tl.trans(value)))


@tilewright.jit
def branched(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(x + i, 5.0)
    if tl.load(x) == 5.0:
        tl.store(y + i, value)
        value = value - 1
    tl.store(o + i, value)


@tilewright.jit
def repeated(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    first, last = tl.load(x + i), tl.load(y + i)
    for step in range(3):
        tl.store(o + step * N + i, first + last)
        last = tl.load(x + i)
        tl.store(x + i, first * 2 + step)
    tl.store(y + i, last)


@tilewright.jit
def transposed(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value, other = tl.load(x + i), tl.load(y + i)
    tl.store(x + i, tl.trans(value) + 1)
    tl.store(o + i, tl.trans(other))
    tl.store(y + i, tl.trans(tl.load(o + i)) * 2)


@tilewright.jit
def shuffled(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    halves = tl.reshape(tl.load(x + i), (2, N // 2))
    tl.store(x + i, tl.reshape(tl.trans(halves), (N,)))
    tl.store(y + i, tl.flip(tl.load(y + i)))


@tilewright.jit
def shared(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i % 8, tl.load(x + i % 8) + 1)
    tl.store(y + i // 4, tl.load(y + i // 4) * 2)
    place = o + tl.minimum(i, 3)
    tl.store(place, tl.load(place) - 1)
    tl.store(o + 8 + i * 0, tl.load(o + 8 + i * 0) + 1)


@tilewright.jit
def shared_by_data(x, y, o, N: tl.constexpr):
    place = tl.load(y + tl.arange(0, N)).to(tl.int32) & 3
    value = tl.load(x + place)
    tl.store(x + place, value * 2)
    tl.store(o + tl.arange(0, N), value)
    tl.atomic_add(x + 8 + place, tl.load(x + 8 + place))


@tilewright.jit
def shared_in_turn(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o + i, tl.load(x + i % 8))
    tl.store(x + i % 8, 5.0)
    tl.store(y + i % 8, 1.0, mask=i < N - 1)
    tl.store(y + i % 8, 2.0, mask=i < 5)


@tilewright.jit
def overlapping(x, y, o, N: tl.constexpr):
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(x + row + column, tl.load(y + row) + column)
    tl.store(o + row * 0 + column * 2, row + tl.load(y + column))
    block = tl.load(y + N + row * N + column)
    tl.store(o + 2 * N + row * 2 + column, block - tl.max(block, 0)[None, :])


def expected_swapped(x, y, o, n):
    x[:n], y[:n] = y[:n].copy(), x[:n].copy()


def expected_cleared(x, y, o, n):
    o[:2] = o[0] + x[:n].sum(), x[:n].max()
    x[:n] = 0


def expected_exchanged(x, y, o, n):
    o[:n] = x[:n]
    o[n : 2 * n] = np.where(np.arange(n) < n - 3, y[:n], 7)
    y[:n] += o[n : 2 * n]
    x[:n] = 5


def expected_summed(x, y, o, n):
    o[:n], o[n : 2 * n] = np.cumsum(x[:n]), x[:n] - x[:n].sum()
    x[:n] = 5


def expected_multiplied(x, y, o, n):
    block = x[: n * n].reshape(n, n)
    o[: n * n] = (block @ block.T).ravel()
    x[: n * n] = 0


def expected_branched(x, y, o, n):
    y[:n], o[:n] = x[:n], x[:n] - 1
    x[:n] = 5


def expected_repeated(x, y, o, n):
    first, last = x[:n].copy(), y[:n].copy()
    for step in range(3):
        o[step * n : (step + 1) * n] = first + last
        last = x[:n].copy()
        x[:n] = first * 2 + step
    y[:n] = last


def expected_transposed(x, y, o, n):
    block, other = (array[: n * n].reshape(n, n).copy() for array in (x, y))
    x[: n * n], o[: n * n], y[: n * n] = block.T.ravel() + 1, other.T.ravel(), other.ravel() * 2


def expected_shuffled(x, y, o, n):
    x[:n], y[:n] = x[:n].reshape(2, n // 2).T.ravel(), y[:n][::-1].copy()


def expected_shared(x, y, o, n):
    x[: min(n, 8)] += 1
    y[: n // 4] *= 2
    o[:4] -= 1
    o[8] += 1


def expected_shared_by_data(x, y, o, n):
    places = y[:n].astype(np.int32) & 3
    o[:n] = x[places]
    x[np.unique(places)] *= 2
    added = x[8 + places]
    np.add.at(x, 8 + places, added)


def expected_shared_in_turn(x, y, o, n):
    o[:n] = x[np.arange(n) % 8]
    x[:8] = 5
    y[: min(n - 1, 8)], y[:5] = 1, 2


def expected_overlapping(x, y, o, n):
    block = y[n : n + n * n].reshape(n, n)
    block = block - block.max(0)
    for row in range(n):
        x[row : row + n] = y[row] + np.arange(n)
        o[: 2 * n : 2] = row + y[:n]
        o[2 * n + 2 * row : 3 * n + 2 * row] = block[row]


CASES = [(globals()[name.removeprefix("expected_")], value) for name, value in list(globals().items())
         if name.startswith("expected_")]  # fmt: skip


@pytest.mark.parametrize("n", [8, 32, 128])
@pytest.mark.parametrize("kernel,reference", CASES, ids=lambda item: item.__name__.removeprefix("expected_"))
def test_what_was_loaded_stays(kernel, reference, n, rng):
    arguments = [rng.integers(-8, 8, n * n + n).astype(np.float32) for _ in range(3)]
    expected = [array.copy() for array in arguments]
    reference(*expected, n)
    found = check(kernel.trace(TYPES, {"N": n}), arguments)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@pytest.mark.parametrize(
    "kernel", [swapped, cleared, exchanged, summed, branched, repeated, transposed, shared, shared_in_turn]
)
def test_what_was_loaded_stays_when_two_parameters_are_one_array(kernel, rng):
    n = 32
    function = kernel.trace(TYPES, {"N": n})
    array, out = (rng.integers(-8, 8, n * n).astype(np.float32) for _ in range(2))
    results = []
    for run in (interpreter.run, run_compiled):
        both, other = array.copy(), out.copy()
        run(function, [both, both, other], (1,))
        results.append((both, other))
    for left, right in zip(*results, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@tilewright.jit
def updated(x, y, o, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + i)
    weights = value - tl.max(value, 1)[:, None]
    tl.store(x + i, weights * tl.load(y + i))


def test_an_update_in_place_needs_no_copy():
    kernel = lowered(updated.trace(TYPES, {"N": 32}))
    assert not [remark for remark in kernel.remarks if "copied first" in remark.message]


@tilewright.jit
def strided(x, rows, columns, stride, R: tl.constexpr, C: tl.constexpr):
    row, column = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    inside = (row < rows) & (column < columns)
    value = tl.load(x + row * stride + column, mask=inside)
    tl.store(x + row * stride + column, value + 1, mask=inside)


@pytest.mark.parametrize("stride", [0, 1, 3, 20, 32])
def test_rows_that_share_memory_are_updated_once(stride, rng):
    types = {"x": "*f32", "rows": "i32", "columns": "i32", "stride": "i32"}
    function = strided.trace(types, {"R": 8, "C": 32})
    array = rng.integers(-8, 8, 300).astype(np.float32)
    expected = array.copy()
    expected[np.unique(np.arange(7)[:, None] * stride + np.arange(20))] += 1
    np.testing.assert_array_equal(check(function, [array, 7, 20, stride])[0], expected)


@tilewright.jit
def updated_rows(x, columns, R: tl.constexpr, C: tl.constexpr):
    row, column = tl.program_id(0) * R + tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside)
    tl.store(x + row * columns + column, tl.exp(value - tl.max(value, 1)[:, None]), mask=inside)


@tilewright.jit
def updated_tiles(x, stride, R: tl.constexpr, C: tl.constexpr):
    row, column = tl.arange(0, R)[:, None], tl.program_id(0) * C + tl.arange(0, C)[None, :]
    place = x + row.to(tl.int64) * 96 * stride + (stride - 1) + column
    tl.store(place, tl.load(place) * 2)


def test_rows_that_lie_apart_need_no_copy():
    function = updated_rows.trace({"x": "*f32", "columns": "i32"}, {"R": 4, "C": 64})
    assert not [remark for remark in lowered(function).remarks if "copied first" in remark.message]
    known = updated_tiles.trace({"x": "*f32"}, {"stride": 1, "R": 4, "C": 64})
    assert not [remark for remark in lowered(known).remarks if "copied first" in remark.message]
    unknown = updated_tiles.trace({"x": "*f32", "stride": "i32"}, {"R": 4, "C": 64})
    assert [remark for remark in lowered(unknown).remarks if "copied first" in remark.message]


@tilewright.jit
def lines_that_change(x, y, o, n):
    window, line, along = tl.arange(0, 16)[:, None, None], tl.arange(0, 2)[None, :, None], tl.arange(0, 64)
    left = tl.reshape(tl.load(x + window * 64 + line * 1024 + along[None, None, :]), (16, 128))
    right = load_panels(y, 0, 0, 128, 1, 1, 128, 16, False, False, 4)
    tl.store(x + along, tl.zeros((64,), tl.uint8) + 9)
    product = tl.dot(left, right, input_precision="ieee")
    tl.store(o + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], product)


@tilewright.jit
def panels_that_change(x, y, o, n):
    window, line, along = tl.arange(0, 16)[:, None, None], tl.arange(0, 2)[None, :, None], tl.arange(0, 64)
    for step in range(n):
        places = x + step * 64 + window * 64 + line * 1024 + along[None, None, :]
        right = load_panels(y, 0, 0, 128, 1, 1, 128, 16, False, False, 4)
        product = tl.dot(tl.reshape(tl.load(places), (16, 128)), right, input_precision="ieee")
        tl.store(o + step * 256 + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], product)


@tilewright.jit
def batches_that_change(x, y, o, n):
    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    left, right = tl.load(x + i), tl.load(y + i)
    tl.store(x + tl.arange(0, 64), tl.zeros((64,), tl.uint8) + 9)
    product = tl.dot(tl.expand_dims(left, 0), tl.expand_dims(right.to(tl.uint8), 0), input_precision="ieee")
    tl.store(o + i[None, :, :], product)


@tilewright.jit
def rows_that_change(x, y, o, n):
    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    left, right = tl.load(x + tl.arange(0, 16)[None, :]), tl.load(y + i)
    tl.store(x + tl.arange(0, 64), tl.zeros((64,), tl.uint8) + 9)
    tl.store(o + i, tl.dot(tl.broadcast_to(left, (16, 16)), right, input_precision="ieee"))


@pytest.mark.parametrize(
    "kernel",
    [lines_that_change, panels_that_change, batches_that_change, rows_that_change],
    ids=lambda kernel: kernel.__name__,
)
def test_products_of_operands_that_are_copied_first(kernel, rng):
    """What a product was to read where it lies has a buffer after all, for what is stored before or in a loop."""
    function = kernel.trace({"x": "*u8", "y": "*i8", "o": "*i32", "n": "i32"}, {})
    remarks = lowered(function, CPUTarget.named("sapphirerapids")).remarks
    assert any("left operand is written to a buffer" in remark.message for remark in remarks)
    left, right = rng.integers(0, 256, 4096).astype(np.uint8), rng.integers(-128, 128, 2048).astype(np.int8)
    check(function, [left, right, np.zeros(512, np.int32), 2])
