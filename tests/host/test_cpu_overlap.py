"""Arrays of different parameters that share memory: blocks are loaded whole before what follows writes them."""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import logging
import random
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import lowered, run_compiled
from tests.host.random_kernels import GRID, overlapping_arguments, random_kernel
from tilewright.ir import interpreter
from tilewright.ir.core import Parameter
from tilewright.launch.ahead import build, parse_signature
from tilewright.settings import settings

N = 256  # more lanes than one pass of a vector loop has
TYPES = {"x": "*f32", "y": "*f32", "o": "*f32", "n": "i32"}


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**64), st.integers(1, 10), st.booleans())
def test_random_kernels_bear_overlapping_arrays(seed: int, length: int, rewrites: bool):
    drawn = random.Random(seed)
    function = random_kernel(drawn, length, exact=True, rewrites=rewrites, overlapping=True)
    state, results = drawn.getstate(), []
    for run in (interpreter.run, run_compiled):
        drawn.setstate(state)
        arguments, memories = overlapping_arguments(drawn)
        run(function, arguments, GRID)
        results.append(memories)
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


@tilewright.jit
def copied(x, y, o, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@tilewright.jit
def combined(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, N)
    value, other = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, value * 2 + other)
    tl.store(y + i, value - tl.load(x + i))


@tilewright.jit
def reduced(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    value = tl.load(x + i)
    value = value - tl.max(value, 1)[:, None]
    tl.store(y + i, value)
    tl.store(o + i, value + tl.sum(tl.load(y + i), 0)[None, :])


@tilewright.jit
def rows(x, y, o, n, N: tl.constexpr):
    row, column = tl.arange(0, 4)[:, None], tl.arange(0, N)[None, :]
    i = row * n + column
    tl.store(y + i, tl.load(x + i) * 2 + row)


@tilewright.jit
def accumulated(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for step in range(4):
        value = tl.load(x + step * 8 + i)
        tl.store(y + step * 8 + i, value + step)
        total += value
        tl.atomic_add(o + step * 8 + i, value)
    tl.store(o + 32 + i, total)


@tilewright.jit
def multiplied(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    left, right = tl.load(x + i), tl.load(y + i)
    product = tl.dot(left, right)
    tl.store(o + i, left)
    tl.store(y + i, product + tl.dot(left, tl.load(x + i)) + right)


@tilewright.jit
def carried(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, N)
    source, target = x, y
    for _ in range(3):
        value = tl.load(source + i)
        tl.store(target + i, value + 1)
        source += 16
        target += 16


@tilewright.jit
def described(x, y, o, n, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [8, 16], [16, 1], [8, 16])
    target = tl.make_tensor_descriptor(y, [8, 16], [16, 1], [8, 16])
    block = tl.make_block_ptr(o, (N,), (1,), (0,), (N,), (0,))
    target.store([0, 0], source.load([0, 0]) + 1)
    tl.store(block, tl.load(tl.make_block_ptr(x, (N,), (1,), (0,), (N,), (0,))) * 2)


KERNELS = [copied, combined, reduced, rows, accumulated, multiplied, carried, described]


@pytest.mark.slow(but_every=5)
@pytest.mark.parametrize("starts", [(0, 1, 2), (1, 0, 3), (3, 0, 0), (0, 17, 5), (64, 0, 1), (0, 0, 0), (5, 21, 5)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_arrays_that_overlap_with_a_shift(kernel, starts, rng):
    memory = rng.integers(-8, 8, 5000).astype(np.float32)
    expected = memory.copy()
    function = kernel.trace(TYPES, {"N": N})
    distance = {rows: 40, copied: 190}.get(kernel, N)
    interpreter.run(function, [*(expected[start:] for start in starts), distance], (1,))
    kernel[(1,)](*(memory[start:] for start in starts), distance, N=N)
    np.testing.assert_array_equal(memory, expected)


@tilewright.jit
def moved(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, 256)
    tl.store(y + (i + N), tl.load(x + i) + 1)


@tilewright.jit
def halves(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, 256)
    left, right = tl.load(x + i), tl.load(x + (i + N))
    tl.store(y + i, left + right)
    tl.store(y + (i + N), left - right)


@tilewright.jit
def halves_of_rows(x, y, o, n, N: tl.constexpr):
    i = tl.arange(0, 4)[:, None] * (2 * N) + tl.arange(0, 256)[None, :]
    left, right = tl.load(x + i), tl.load(x + i + N)
    tl.store(y + i + N, left - right)
    tl.store(o + i, right - tl.max(left, 1)[:, None])
    tl.store(y + i, left + right)


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([moved, halves, halves_of_rows]),
    st.sampled_from([N, N + 44]),
    st.lists(st.tuples(st.integers(-1, 1), st.sampled_from([0, 0, 1, -1, 8, 17])), min_size=3, max_size=3),
)
def test_halves_of_arrays_that_overlap(kernel, distance: int, starts: list[tuple[int, int]]):
    """Places a constant distance apart are other elements of one array, and maybe the same of two."""
    memory = np.arange(5000, dtype=np.float32)
    expected = memory.copy()
    views = [500 + count * distance + shift for count, shift in starts]
    interpreter.run(kernel.trace(TYPES, {"N": distance}), [*(expected[start:] for start in views), 0], (1,))
    kernel[(1,)](*(memory[start:] for start in views), 0, N=distance)
    np.testing.assert_array_equal(memory, expected)


@tilewright.jit
def converted(x, y, n, N: tl.constexpr):
    for start in range(0, n, N):
        i = tl.program_id(0) * n + start + tl.arange(0, N)
        value = tl.load(x + i)
        tl.store(y + i, (value & 7).to(y.dtype.element_ty), mask=i < n * 2)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("start", [0, 1, 3, 32, 63])
@pytest.mark.parametrize("source,target", [("i4", "i8"), ("i8", "i4"), ("i2", "f8"), ("i8", "u1"), ("i4", "f4")])
def test_one_array_as_two_element_types(source, target, start, rng):
    memory = rng.integers(0, 2**40, 6 * N)
    expected = memory.copy()
    names = {"i8": "*i64", "i4": "*i32", "i2": "*i16", "u1": "*u8", "f8": "*f64", "f4": "*f32"}
    function = converted.trace({"x": names[source], "y": names[target], "n": "i32"}, {"N": N})

    def views(array):
        return array.view(source), array.view(target)[start:], 2 * N

    interpreter.run(function, views(expected), (2,))
    before, settings.threads = settings.threads, 1  # instances of several threads are in no order
    try:
        converted[(2,)](*views(memory), N=N)
    finally:
        settings.threads = before
    np.testing.assert_array_equal(memory, expected)


def shifted(run, shift):
    """What the kernel `copied` leaves of an array that it is given two views of."""
    memory = np.arange(3 * N, dtype=np.float32)
    run(memory[:N], memory[shift : N + shift], memory, N)
    return memory


def test_only_arrays_that_overlap_with_a_shift_are_copied_first(caplog):
    kernel = tilewright.jit(copied.function)
    before, settings.explain_recompile = settings.explain_recompile, True
    try:
        with caplog.at_level(logging.WARNING, logger="tilewright.jit"):
            run = lambda *arguments: kernel[(1,)](*arguments, N=2 * N)  # noqa: E731
            for shift in (0, N, 2 * N):
                shifted(run, shift)
            assert not caplog.records
            for _ in range(3):
                np.testing.assert_array_equal(shifted(run, 4)[4 : N + 4], np.arange(N))
    finally:
        settings.explain_recompile = before
    assert [record.getMessage() for record in caplog.records if "overlap" in record.getMessage()] == [
        "kernel 'copied' is compiled again: arrays that it reads and writes overlap"
    ]


def test_rows_are_updated_in_place_without_copies_where_their_distance_keeps_them_apart():
    kernel = tilewright.jit(rows.function)
    for distance in (N, N + 3, 3, -N):
        memory, expected = (np.arange(9.0 * N, dtype=np.float32) for _ in range(2))
        place = 4 * N + np.arange(4)[:, None] * distance + np.arange(N)
        values = expected[place] * 2 + np.arange(4)[:, None]
        expected[place] = values
        view = memory[4 * N :]
        compiled = kernel[(1,)](view, view, view, distance, N=N)
        assert ("careful" in vars(compiled)) == (distance == 3)
        if distance != 3:
            np.testing.assert_array_equal(memory, expected)


@tilewright.jit
def halves(left, right, stride, columns, R: tl.constexpr, C: tl.constexpr):
    row, column = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    place = row * stride + column
    inside = column < columns
    first, second = tl.load(left + place, mask=inside), tl.load(right + place, mask=inside)
    tl.store(left + place, first * second, mask=inside)
    tl.store(right + place, first + second, mask=inside)


@tilewright.jit
def advanced(x, y, columns, xs, ys, N: tl.constexpr):
    i = tl.arange(0, N)
    source, target = x, y
    for _ in range(3):
        value = tl.load(source + i, mask=i < columns)
        tl.store(target + i, value - tl.max(value, 0), mask=i < columns)
        source += xs
        target += ys


@pytest.mark.parametrize("shift", [0, 3, 50])
@pytest.mark.parametrize("strides", [(50, 50), (60, 50), (40, 7)])
def test_pointers_that_loops_move(strides, shift, rng):
    memory = rng.integers(-8, 8, 400).astype(np.float32)
    expected = memory.copy()
    function = advanced.trace({"x": "*f32", "y": "*f32", "columns": "i32", "xs": "i32", "ys": "i32"}, {"N": 64})
    interpreter.run(function, [expected, expected[shift:], 50, *strides], (1,))
    run_compiled(function, [memory, memory[shift:], 50, *strides], (1,))
    np.testing.assert_array_equal(memory, expected)
    alike = lowered(carried.trace(TYPES, {"N": N}))  # equal steps: nothing is copied where the arrays are apart
    assert not [remark for remark in alike.remarks if "copied first" in remark.message]
    assert [remark for remark in lowered(function).remarks if "copied first" in remark.message]


@pytest.mark.parametrize("stride,shift,careful", [(80, 40, False), (80, 37, True), (80, 43, True), (120, 80, False)])
def test_columns_of_one_array_lie_between_each_other(stride, shift, careful, rng):
    kernel = tilewright.jit(halves.function)
    memory = rng.integers(-8, 8, 16 * 120).astype(np.float32)
    expected = memory.copy()
    function = halves.trace({"left": "*f32", "right": "*f32", "stride": "i32", "columns": "i32"}, {"R": 16, "C": 64})
    interpreter.run(function, [expected, expected[shift:], stride, 40], (1,))
    compiled = kernel[(1,)](memory, memory[shift:], stride, 40, R=16, C=64)
    np.testing.assert_array_equal(memory, expected)
    assert ("careful" in vars(compiled)) == careful


def test_a_compiled_kernel_takes_overlapping_arrays():
    compiled = copied[(1,)](*(np.zeros(N, np.float32) for _ in range(3)), N, N=N)
    whole = copied.compile(TYPES, {"N": N})
    assert compiled.binary.refuses and not whole.binary.refuses
    for kernel in (compiled, whole):
        np.testing.assert_array_equal(shifted(kernel[(1,)], 16)[16 : N + 16], np.arange(N))


def test_many_threads_ask_before_any_instance_runs():
    before, settings.threads = settings.threads, 2
    try:
        memory = np.arange(4 * N, dtype=np.float32)
        expected = memory.copy()
        interpreter.run(two_halves.trace({"x": "*f32", "y": "*f32"}, {"N": N}), [expected, expected[1:]], (2,))
        two_halves[(2,)](memory, memory[1:], N=N)
    finally:
        settings.threads = before
    np.testing.assert_array_equal(memory, expected)


@tilewright.jit
def two_halves(x, y, N: tl.constexpr):
    i = tl.program_id(0) * 2 * N + tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) + 1)


def test_a_launch_with_assertions_takes_overlapping_arrays():
    @tilewright.jit(debug=True)
    def asserted(x, y, o, n, N: tl.constexpr):
        i = tl.arange(0, N)
        value = tl.load(x + i)
        tl.device_assert(value >= 0, "negative")
        tl.store(y + i, value)

    np.testing.assert_array_equal(shifted(lambda *given: asserted[(1,)](*given, N=N), 2)[2 : N + 2], np.arange(N))
    with pytest.raises(tilewright.errors.ExecutionError, match="negative"):
        memory = np.full(2 * N, -1, np.float32)
        asserted[(1,)](memory[:N], memory[1:], memory, N, N=N)


def test_what_no_launch_can_tell_is_copied_at_once():
    @tilewright.jit
    def chosen(x, y, N: tl.constexpr):
        i = tl.load(x).to(tl.int32) + tl.arange(0, N)
        tl.store(y + i, tl.load(x + i).to(tl.float64))

    found = lowered(chosen.trace({"x": "*f32", "y": "*f64"}, {"N": N}))
    assert [remark for remark in found.remarks if "copied first" in remark.message]
    assert not found.refuses


@tilewright.jit
def rows_in_turn(x, y, rows, columns, N: tl.constexpr):
    i = tl.arange(0, N)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        value = tl.load(x + row * columns + i, mask=i < columns)
        tl.store(y + row * columns + i, value, mask=i < columns)


@tilewright.jit
def tiles(x, y, rows, columns, N: tl.constexpr):
    across = tl.cdiv(columns, N)
    row = (tl.program_id(0) // across) * N + tl.arange(0, N)[:, None]
    column = (tl.program_id(0) % across) * N + tl.arange(0, N)[None, :]
    place, inside = row * columns + column, (row < rows) & (column < columns)
    tl.store(y + place, tl.load(x + place, mask=inside), mask=inside)


@tilewright.jit
def pieces(x, y, rows, columns, N: tl.constexpr):
    place = tl.program_id(0) * N + tl.arange(0, N)
    for _ in range(tl.program_id(0), tl.cdiv(rows * columns, N), tl.num_programs(0)):
        inside = place < rows * columns
        tl.store(y + place, tl.load(x + place, mask=inside), mask=inside)
        place += N * tl.num_programs(0)


@pytest.mark.parametrize("kernel,n", [(rows_in_turn, 64), (tiles, 16), (pieces, 128)])
def test_elements_of_two_sizes_side_by_side_are_no_overlap(kernel, n, rng):
    kernel = tilewright.jit(kernel.function)
    rows, columns = 21, 40
    size, grid = rows * columns, (6,) if kernel.name == "tiles" else (3,)
    for gap, careful in ((0, False), (-4, True)):  # the narrow array just before the wide one, and 4 bytes into it
        memory = np.zeros(4 * size, np.float32)
        narrow = memory.view(np.float16)[size - gap // 2 : 2 * size - gap // 2]
        narrow[:] = rng.integers(-8, 8, size)
        wide = memory[size : 2 * size]
        compiled = kernel[grid](narrow, wide, rows, columns, N=n)
        assert ("careful" in vars(compiled)) == careful, gap
        if not careful:
            np.testing.assert_array_equal(wide, narrow)


def test_promised_parameters_are_not_looked_at():
    free = {name: Parameter(name, alias_free=True) for name in "xyo"}
    kernel = lowered(copied.trace(TYPES, {"N": N}, free))
    assert ".careful" not in kernel.text and ".careful" in lowered(copied.trace(TYPES, {"N": N})).text


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_object_for_c_takes_overlapping_arrays(tmp_path):
    signature = parse_signature(copied, "*f32, *f32, *f32, i32", {"N": N})
    place, _ = build(copied, signature).write(tmp_path)
    library = tmp_path / "copied.so"
    subprocess.run(["cc", "-shared", "-o", library, place, "-lm"], check=True)
    run = ctypes.CDLL(str(library)).copied

    def call(x, y, o, n):
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, o)]
        assert run(*pointers, n, ctypes.c_int64(1), ctypes.c_int64(1), ctypes.c_int64(1), 1) == 0

    for shift in (0, 1, 140):
        expected = np.arange(3 * N, dtype=np.float32)
        expected[shift : N + shift] = np.arange(N)
        np.testing.assert_array_equal(shifted(call, shift), expected)
