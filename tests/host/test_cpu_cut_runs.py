"""Loops over vectors that are cut where quotients change, and strides of 0, 1 and -1 that only a launch knows."""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import check, lowered
from tests.host.test_cpu_lowering_blocks import draw, traced
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.cut_runs import CutRuns
from tilewright.targets.cpu.target import CPUTarget

SERVER = CPUTarget.named("sapphirerapids")


@tilewright.jit
def padded(x, out, n, rows, columns, width, top, left, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // width - top, i % width - left
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns) & (i < n)
    tl.store(out + i, tl.load(x + row * columns + column, mask=inside, other=0.5), mask=i < n)


PADDED = {"x": "*f32", "out": "*f32", **dict.fromkeys(("n", "rows", "columns", "width", "top", "left"), "i32")}


@pytest.mark.parametrize("alias_free", [("x", "out"), ()], ids=["distinct", "maybe overlapping"])
@pytest.mark.parametrize("columns", [1, 5, 13, 40, 130])
def test_rows_with_a_border(columns, alias_free):
    """Runs shorter than a vector, and as long as several; copies of what is loaded end where the memory does."""
    rows, top, left = 9, 2, 3
    width, height = columns + left + 4, rows + top + 1
    function = traced(padded, PADDED, {"BLOCK": 128}, alias_free)
    x, out = draw((rows, columns)), np.zeros((height, width), np.float32)
    check(function, [x, out, out.size, rows, columns, width, top, left], (-(-out.size // 128),))


def test_vectors_lie_together_between_multiples_of_a_divisor():
    text = lowered(traced(padded, PADDED, {"BLOCK": 128}, ("x", "out")), SERVER).text
    long, short = text.split("cut.long.0:")[1].split("cut.short.0:")
    assert "masked.load" in long and "gather" not in long and "gather" in short


@tilewright.jit
def rolled(x, out, n, outer, inner, size, shift, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rest = i % outer
    source = (rest // inner - shift + size) % size
    value = tl.load(x + i // outer * outer + source * inner + rest % inner, mask=i < n)
    tl.store(out + i, value, mask=i < n)


@pytest.mark.parametrize("inner", [1, 3, 24, 70])
def test_quotients_of_remainders(inner):
    size, count = 11, 5
    types = {"x": "*f32", "out": "*f32", **dict.fromkeys(("n", "outer", "inner", "size", "shift"), "i32")}
    function = traced(rolled, types, {"BLOCK": 256}, ("x", "out"))
    x, n = draw((count, size, inner)), count * size * inner
    check(function, [x, np.zeros_like(x), n, size * inner, inner, size, 4], (-(-n // 256),))


@tilewright.jit
def parts(x, out, quotients, first, step, divisor, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    place = i * 3 - first
    tl.store(out + i, tl.load(x + 500 + i + place // divisor, mask=i < n) + place % divisor, mask=i < n)
    tl.store(quotients + i, (i + step) // divisor, mask=i < n)


@pytest.mark.parametrize("first", [0, 1, 100, 191, 382])
@pytest.mark.parametrize("divisor", [1, 9, 31, 64, 1000])
def test_negative_dividends_and_larger_steps(first, divisor):
    types = {"x": "*f32", "out": "*f32", "quotients": "*i32", **dict.fromkeys(("first", "step", "divisor", "n"), "i32")}
    function = traced(parts, types, {"BLOCK": 128}, ("x", "out", "quotients"))
    x = draw(1200)
    arrays = [x, np.zeros(128, np.float32), np.zeros(128, np.int32)]
    check(function, [*arrays, first, -first, divisor, 127])


@tilewright.jit
def added(x, index, out, columns, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // columns, i % columns
    to = tl.load(index + row * columns + column, mask=i < n, other=0)
    tl.atomic_add(out + row * 7 + to + column % 2, tl.load(x + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("columns", [6, 20, 57])
def test_remainders_in_buffers(columns):
    """What runs start from is computed again: buffers that the same loop writes do not have it yet."""
    rows = 8
    types = {"x": "*f32", "index": "*i32", "out": "*f32", "columns": "i32", "n": "i32"}
    function = traced(added, types, {"BLOCK": 128})
    index = np.random.default_rng(1).integers(0, 6, (rows, columns)).astype(np.int32)
    x = draw((rows, columns)).round(1) * 8
    check(function, [x, index, np.zeros((rows, 7), np.float32), columns, rows * columns], (-(-rows * columns // 128),))


@tilewright.jit
def strided(x, out, rows, columns, row_stride, column_stride, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + 400 + row * row_stride + column * column_stride, mask=column < columns)
    tl.store(out + row * columns + column, value * 2.0, mask=column < columns)


@pytest.mark.parametrize("column_stride", [-3, -1, 0, 1, 2])
@pytest.mark.parametrize("columns", [1, 37, 64])
def test_strides_that_a_launch_knows(columns, column_stride):
    types = {"x": "*f32", "out": "*f32", **dict.fromkeys(("rows", "columns", "row_stride", "column_stride"), "i32")}
    function = traced(strided, types, {"BLOCK": 64}, ("x", "out"))
    x = draw(1000)
    check(function, [x, np.zeros((3, columns), np.float32), 3, columns, 70, column_stride], (3,))


def test_broadcast_and_reversed_rows_are_not_gathered():
    types = {"x": "*f32", "out": "*f32", **dict.fromkeys(("rows", "columns", "row_stride", "column_stride"), "i32")}
    text = lowered(traced(strided, types, {"BLOCK": 64}, ("x", "out")), SERVER).text
    assert "mostly.together.2" in text


@tilewright.jit
def convolution(
    x, weights, out, images, channels, filters, height, width, KERNEL: tl.constexpr, P: tl.constexpr, C: tl.constexpr
):
    place = tl.program_id(0) * P + tl.arange(0, P)
    row, column = place // width % height, place % width
    image = place // width // height
    chosen = tl.arange(0, C)
    total = tl.zeros((P, C), tl.float32)
    for down in range(KERNEL):
        for across in range(KERNEL):
            y, z = row + down - KERNEL // 2, column + across - KERNEL // 2
            inside = (image < images) & (y >= 0) & (y < height) & (z >= 0) & (z < width)
            for first in range(0, channels, C):
                channel = first + tl.arange(0, C)
                left = tl.load(
                    x + ((image * channels * height + y) * width + z)[:, None] + channel[None, :] * height * width,
                    mask=inside[:, None] & (channel < channels)[None, :],
                )
                right = tl.load(
                    weights
                    + (chosen[None, :] * channels + channel[:, None]) * KERNEL * KERNEL
                    + down * KERNEL
                    + across,
                    mask=(channel < channels)[:, None] & (chosen < filters)[None, :],
                )
                total += tl.dot(left, right, input_precision="ieee")
    to = out + ((image * filters * height + row) * width + column)[:, None] + chosen[None, :] * height * width
    tl.store(to, total, mask=(image < images)[:, None] & (chosen < filters)[None, :])


SIZES = ("images", "channels", "filters", "height", "width")


@pytest.mark.parametrize("sizes", [(2, 20, 7, 5, 21), (1, 3, 16, 9, 6), (1, 16, 5, 4, 40), (1, 33, 3, 3, 5)])
def test_convolutions_by_products(sizes):
    """Pixels in runs, columns of the left operand side by side, and depths that are no multiples of a block's."""
    images, channels, filters, height, width = sizes
    types = {"x": "*f32", "weights": "*f32", "out": "*f32", **dict.fromkeys(SIZES, "i32")}
    function = traced(convolution, types, {"KERNEL": 3, "P": 64, "C": 16}, ("x", "weights", "out"))
    x, weights = draw((images, channels, height, width)), draw((filters, channels, 3, 3), seed=1)
    out = np.zeros((images, filters, height, width), np.float32)
    grid = (-(-images * height * width // 64),)
    check(function, [x, weights, out, *sizes], grid, tolerance=1e-4)


def test_left_operands_lie_by_columns_and_products_end_where_both_operands_are_zero():
    types = {"x": "*f32", "weights": "*f32", "out": "*f32", **dict.fromkeys(SIZES, "i32")}
    kernel = lowered(traced(convolution, types, {"KERNEL": 3, "P": 64, "C": 16}, ("x", "weights", "out")), SERVER)
    assert "@dot.f32.f32.f32.64x16x16.rows.1x64x16.16.cdwa(" in kernel.text  # strides of 1 and 64; a limit of the depth


@tilewright.jit
def rows_apart(x, out, n, columns, stride, other_stride, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // columns, i % columns
    value = tl.load(x + row * stride + column, mask=i < n)
    tl.store(out + row * other_stride + column, value, mask=i < n)


ROWS_APART = {"x": "*f32", "out": "*f32", **dict.fromkeys(("n", "columns", "stride", "other_stride"), "i32")}


@pytest.mark.parametrize("columns", [1, 7, 9, 33, 300])
def test_rows_apart_on_both_sides(columns):
    function = traced(rows_apart, ROWS_APART, {"BLOCK": 128}, ("x", "out"))
    rows, n = 7, 7 * columns
    x, out = draw((rows, columns + 2)), np.zeros((rows, columns + 5), np.float32)
    check(function, [x, out, n, columns, columns + 2, columns + 5], (-(-n // 128),))


def test_loops_over_nothing_but_quotients_have_vectors():
    text = lowered(traced(rows_apart, ROWS_APART, {"BLOCK": 128}, ("x", "out")), SERVER).text
    long = text.split("cut.long.0:")[1].split("cut.short.0:")[0]
    assert "masked.store.v16f32" in long and "gather" not in long and "scatter" not in long


@tilewright.jit
def places(x, out, other, divisor, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    i = row * width + column
    tl.store(out + row * COLUMNS + column, tl.load(x + i // divisor * 3 + i % divisor))
    tl.store(other + row * COLUMNS + column, i // divisor)


@pytest.mark.parametrize("divisor", [1, 9, 20, 64, 1000])
def test_places_of_two_axes(divisor):
    """Where runs along one axis end depends on the other."""
    types = {"x": "*f32", "out": "*f32", "other": "*i32", "divisor": "i32", "width": "i32"}
    function = traced(places, types, {"ROWS": 16, "COLUMNS": 64}, ("x", "out", "other"))
    check(function, [draw(3000), np.zeros((16, 64), np.float32), np.zeros((16, 64), np.int32), divisor, 37])


@tilewright.jit
def mirrored(x, out, divisor, SIZE: tl.constexpr):
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    i = row * SIZE + column
    quotient = i // divisor
    tl.store(out + i, tl.load(x + quotient * 2 + i % divisor) + quotient + tl.trans(quotient))


@pytest.mark.parametrize("divisor", [9, 64, 300, 500])
def test_one_quotient_along_two_axes(divisor):
    types = {"x": "*f32", "out": "*f32", "divisor": "i32"}
    check(traced(mirrored, types, {"SIZE": 32}, ("x", "out")), [draw(3000), np.zeros((32, 32), np.float32), divisor])


@tilewright.jit
def joined(x, out, divisor, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i = (tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :])[:, :, None] * 5 + tl.arange(0, C)
    place = tl.reshape(i // divisor * 3 + i % divisor, (A * B, C))
    tl.store(out + tl.arange(0, A * B)[:, None] * C + tl.arange(0, C)[None, :], tl.load(x + place))


@pytest.mark.parametrize("divisor", [9, 20, 33])
def test_quotients_of_axes_that_are_joined(divisor):
    types = {"x": "*f32", "out": "*f32", "divisor": "i32"}
    function = traced(joined, types, {"A": 4, "B": 4, "C": 64}, ("x", "out"))
    check(function, [draw(3000), np.zeros((16, 64), np.float32), divisor])


@tilewright.jit
def below_zero(x, out, n, BLOCK: tl.constexpr, DIVISOR: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + 50 + i // DIVISOR + i % DIVISOR, mask=i < n), mask=i < n)


@pytest.mark.parametrize("divisor", [-20, -7])
def test_divisors_below_zero(divisor):
    types = {"x": "*f32", "out": "*f32", "n": "i32"}
    function = traced(below_zero, types, {"BLOCK": 128, "DIVISOR": divisor}, ("x", "out"))
    check(function, [draw(200), np.zeros(128, np.float32), 120])


@tilewright.jit
def looked_up(x, out, divisor, other, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    quotient = i // divisor
    total = tl.load(x + tl.gather(quotient, (i * 5) % BLOCK, 0))
    tl.store(out + i, tl.load(x + quotient + i // other * 2 + i % other) + total)


@pytest.mark.parametrize("divisor", [9, 20, 33])
def test_quotients_in_buffers(divisor):
    """A buffer of quotients is read in runs of others."""
    types = {"x": "*f32", "out": "*f32", "divisor": "i32", "other": "i32"}
    function = traced(looked_up, types, {"BLOCK": 128}, ("x", "out"))
    check(function, [draw(1000), np.zeros(128, np.float32), divisor, 29])


@tilewright.jit
def bordered(x, out, sums, n, columns, width, left, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // width, i % width - left
    column = tl.where(column < 0, -column, column)
    column = tl.minimum(column, 2 * columns - 2 - column)
    value = tl.load(x + row * columns + column, mask=(i < n) & (column >= 0), other=9.0)
    tl.store(out + i, value, mask=i < n)
    tl.store(sums + tl.where(i % 5 == 4, n - 1 - i, i), value * 2.0, mask=(i < n) & (i % 5 < 4))


BORDERED = {"x": "*f32", "out": "*f32", "sums": "*f32", **dict.fromkeys(("n", "columns", "width", "left"), "i32")}


@pytest.mark.parametrize("left", [0, 1, 3, 20])
@pytest.mark.parametrize("columns", [2, 21, 100])
def test_mirrored_borders(columns, left):
    """Lanes that mostly lie together, with others at either end of a row, and stores of lanes with gaps."""
    rows, width = 6, columns + left + 2
    function = traced(bordered, BORDERED, {"BLOCK": 128}, ("x", "out", "sums"))
    x, out, sums = draw((rows, columns)), np.zeros((rows, width), np.float32), np.zeros(rows * width, np.float32)
    check(function, [x, out, sums, out.size, columns, width, left], (-(-out.size // 128),))


def test_lanes_that_no_memory_places_are_compared():
    text = lowered(traced(bordered, BORDERED, {"BLOCK": 128}, ("x", "out", "sums")), SERVER).text
    together = [part.split("\nmostly.")[0] for part in text.split("\nmostly.together.")[1:]]
    assert any("masked.load.v16f32" in part for part in together)
    assert any("masked.store.v16f32" in part for part in together)


@tilewright.jit
def windows(x, out, images, channels, height, width, P: tl.constexpr, C: tl.constexpr):
    """The image of a pixel is a quotient of a quotient, which two masks and two addresses use."""
    place = tl.program_id(0) * P + tl.arange(0, P)
    line, column = place // width, place % width
    image, row = line // height, line % height
    x += (image * channels * height * width)[:, None]
    out += (image * channels * height * width)[:, None]
    channel = tl.arange(0, C)[None, :]
    to = out + channel * height * width + (row * width + column)[:, None]
    for down in range(3):
        y = row + down - 1
        inside = ((image < images) & (y >= 0) & (y < height))[:, None] & (channel < channels)
        value = tl.load(x + channel * height * width + (y * width + column)[:, None], mask=inside, other=0.0)
        there = (image < images)[:, None] & (channel < channels)
        tl.store(to + down * images * channels * height * width, value, mask=there)


WINDOWS = {"x": "*f32", "out": "*f32", **dict.fromkeys(("images", "channels", "height", "width"), "i32")}


@pytest.mark.parametrize("sizes", [(2, 3, 5, 21), (1, 4, 7, 36), (3, 2, 3, 5), (1, 1, 40, 1)])
def test_quotients_of_quotients(sizes):
    images, channels, height, width = sizes
    function = traced(windows, WINDOWS, {"P": 64, "C": 4}, ("x", "out"))
    x = draw((images, channels, height, width))
    check(function, [x, np.zeros((3, *x.shape), np.float32), *sizes], (-(-images * height * width // 64),))


def test_quotients_that_place_loads_have_no_buffers():
    text = lowered(traced(windows, WINDOWS, {"P": 64, "C": 4}, ("x", "out")), SERVER).text
    long = [part.split("cut.short.")[0] for part in text.split("\ncut.long.")[1:]]
    assert long and all("gather" not in part and "scatter" not in part for part in long)
    assert any("masked.load.v16f32" in part for part in long) and any("masked.store.v16f32" in part for part in long)


def test_loops_whose_vectors_are_short_are_cut():
    """Where 4 divides the columns, vectors of 4 lie together, whole ones where 16 does, and in runs."""
    function = traced(rows_apart, ROWS_APART, {"BLOCK": 128}, ("x", "out"))
    parameters = [
        replace(each, divisibility=4) if value.name in ("columns", "stride", "other_stride") else each
        for each, value in zip(function.parameters, function.region.arguments, strict=True)
    ]
    function = replace(function, parameters=parameters)
    text = lowered(function, SERVER).text
    assert "\nruns.wide." in text and "\ncut.long." in text
    for columns in (4, 12, 36, 64):
        x, out = draw((7, columns + 4)), np.zeros((7, columns + 8), np.float32)
        check(function, [x, out, 7 * columns, columns, columns + 4, columns + 8], (-(-7 * columns // 128),))


@tilewright.jit
def pooled(x, out, n, height, width, P: tl.constexpr):
    """Every second element of every second row: loads stay gathers, in runs too."""
    place = tl.program_id(0) * P + tl.arange(0, P)
    line, column = place // width, place % width
    image, row = line // height, line % height
    total = tl.zeros((P,), tl.float32)
    for down in range(3):
        for across in range(3):
            y, z = row * 2 + down, column * 2 + across
            inside = (place < n) & (y < 2 * height) & (z < 2 * width)
            total += tl.load(x + (image * 2 * height + y) * 2 * width + z, mask=inside, other=0.0)
    tl.store(out + line * (width + 1) + column, total, mask=place < n)


def test_quotients_of_gathers_may_have_buffers():
    types = {"x": "*f32", "out": "*f32", **dict.fromkeys(("n", "height", "width"), "i32")}
    function = traced(pooled, types, {"P": 128}, ("x", "out"))
    for other, known in ((function, False), (traced(windows, WINDOWS, {"P": 64, "C": 4}), True)):
        assert bool(CutRuns(other, 16).known_in_runs(other, AffineAnalysis(other))) is known
    height, width = 3, 21
    x, out = draw((4 * height, 2 * width)), np.zeros((2 * height, width + 1), np.float32)
    check(function, [x, out, 2 * height * width, height, width], (1,), tolerance=1e-5)


@tilewright.jit
def resized(x, out, n, scale, P: tl.constexpr):
    place = tl.program_id(0) * P + tl.arange(0, P)
    source = tl.minimum((place * scale).to(tl.int32), n - 1)
    tl.store(out + place, tl.load(x + source, mask=place < n), mask=place < n)


def test_lanes_that_floats_place_are_not_compared():
    function = traced(resized, {"x": "*f32", "out": "*f32", "n": "i32", "scale": "f32"}, {"P": 128}, ("x", "out"))
    text = lowered(function, SERVER).text
    assert "gather" in text and "mostly." not in text
