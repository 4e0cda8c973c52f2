"""Kernels compiled with checks of their accesses: what the interpreter reports, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import ExecutionError
from tilewright.settings import settings


def plain(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0))


def before(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i - n))


def gathered(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    place = tl.load(x + i).to(tl.int32)
    tl.store(out + i, tl.load(x + place))


def scalar(x, out, n, BLOCK: tl.constexpr):
    for i in range(n):
        tl.store(out + i, tl.load(x + i) + 1)


def walking(x, out, n, BLOCK: tl.constexpr):
    pointers = x + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(0, n, BLOCK):
        total += tl.load(pointers)
        pointers += BLOCK
    tl.store(out + tl.arange(0, BLOCK), total)


def square(x, out, n, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    value = tl.load(x + rows * n + columns, mask=columns < n, other=0.0)
    tl.store(out + tl.arange(0, BLOCK), tl.sum(value, 1))


def atomic(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(out + i * n, tl.load(x + i), mask=i < 5)


def wrapped(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + (i * 1073741824 + n) * 4))


def chosen(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    source = tl.where(i < n, x + i, out + i)
    tl.store(out + i, tl.load(source))


def branch(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if n > 8:
        tl.store(out + i + n, tl.load(x + i))


def bytes_of(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out.to(tl.pointer_type(tl.int8)) + i + 4 * n - 4, i.to(tl.int8))


def reversed_rows(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + n - 1 - i, tl.load(x + i))


def one_mask_of_two(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)  # rows and columns are one value, and the mask says something of the columns only
    value = tl.load(x + i[:, None] * n + i[None, :], mask=i[None, :] < n - 1, other=0.0)
    tl.store(out + tl.arange(0, BLOCK), tl.sum(value, 1))


def other_way_round(x, out, n, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)[:, None] + tl.arange(0, 2)[None, :] * n
    square = tl.broadcast_to(tl.arange(0, BLOCK)[:, None], (BLOCK, BLOCK))
    value = tl.load(x + square, mask=tl.trans(square) < n - 5, other=0.0)
    tl.store(out + tl.arange(0, BLOCK), tl.sum(value, 0) + tl.sum(index, 1))


def both_borders(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCK)
    mask = (row[:, None] < n) & (n > column)[None, :] & (column >= 1)[None, :]
    value = tl.load(x + row[:, None].to(tl.int64) * n + column[None, :] - 1, mask=mask, other=0.0)
    tl.store(out + row, tl.sum(value, 1), mask=row <= n - 1)


def halo(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK) - n + 6
    tl.store(out + tl.arange(0, BLOCK), tl.load(x + i, mask=(i >= 0) & (i < 8), other=0.0))


def only_one(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i * n, tl.load(x + i), mask=i == n - 3)


def rows_of_a_table(x, out, n, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    row = tl.load(x + i).to(tl.int32) // 4
    value = tl.load(x + row[:, None] * n + j[None, :], mask=j[None, :] < n, other=0.0)
    tl.store(out + i, tl.sum(value, 1))


def remainder(x, out, n, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK) % n, tl.arange(0, BLOCK)
    tl.store(out + j, tl.sum(tl.load(x + i[:, None] * 2 + j[None, :]), 1))


def nothing_left(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK) + n * 1000
    tl.store(out + i - 8900, 1.0, mask=(i < n) | (i == 9003))
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def overflowing(x, out, n, BLOCK: tl.constexpr):
    i = (tl.arange(0, BLOCK) + n) * 268435456
    tl.store(out + tl.arange(0, BLOCK), tl.load(x + i, mask=i < 8, other=0.0))


KERNELS = [
    one_mask_of_two, other_way_round, both_borders, halo, only_one, rows_of_a_table, remainder, nothing_left,
    overflowing,
    plain, before, gathered, scalar, walking, square, atomic, wrapped, chosen, branch, bytes_of, reversed_rows,
]  # fmt: skip


def outcome(kernel, checked, x, out, n, grid=(1,)) -> tuple[str, bytes]:
    """What a launch reports, and what it leaves."""
    changes = {"check_bounds": True, "threads": 1} if checked else {"interpret": True}
    out = out.copy()
    with settings.scope(**changes):
        try:
            tilewright.jit(kernel)[grid](x, out, n, BLOCK=8)
        except ExecutionError as error:
            return f"{error}\n{error.element} {error.address} {error.program_id}", out.tobytes()
    return "", out.tobytes()


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_reports_are_the_interpreters(kernel):
    reports = set()
    for size, n, grid in ((8, 8, (1,)), (64, 3, (1,)), (7, 8, (1,)), (12, 12, (2,)), (64, 9, (3,))):
        x = np.arange(size, dtype=np.float32) * (5 if n == 9 else 1)
        out = np.zeros(size, np.float32)
        found = outcome(kernel, True, x, out, n, grid)
        assert found == outcome(kernel, False, x, out, n, grid)
        reports.add(found[0])
    assert len(reports) > 1  # at least one case is out of bounds


def test_views_reach_what_they_span():
    whole = np.arange(64, dtype=np.float32)
    for view in (whole[8:16], whole[:16:2], whole[15:7:-1]):
        out = np.zeros(8, np.float32)
        assert outcome(plain, True, view, out, 8) == outcome(plain, False, view, out, 8)


def test_no_memory_is_touched_and_other_instances_end():
    x, out = np.ones(24, np.float32), np.zeros(32, np.float32)
    with settings.scope(check_bounds=True, threads=1), pytest.raises(ExecutionError, match="element 24 of x"):
        tilewright.jit(unmasked)[(4,)](x, out[:24], BLOCK=8)
    assert out[:24].all() and not out[24:].any()


def test_a_kernel_that_was_launched_before_is_checked_where_the_settings_say():
    kernel, x, out = tilewright.jit(unmasked), np.ones(24, np.float32), np.zeros(24, np.float32)
    for _ in range(2):
        assert not kernel.warmup(x, out, BLOCK=8, grid=(3,)).binary.records
        kernel[(3,)](x, out, BLOCK=8)
        with settings.scope(check_bounds=True, threads=1):
            assert kernel.warmup(x, out, BLOCK=8, grid=(3,)).binary.records
            with pytest.raises(ExecutionError, match="element 24 of x"):
                kernel[(4,)](x, out, BLOCK=8)


def unmasked(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


def test_numbers_of_assertions_stay():
    @tilewright.jit(debug=True)
    def kernel(x, out, n):
        tl.device_assert(n < 100, "many")
        tl.store(out + n, tl.load(x))

    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    with settings.scope(check_bounds=True):
        with pytest.raises(ExecutionError, match="assertion failed: many"):
            kernel[(1,)](x, out, 100)
        with pytest.raises(ExecutionError, match="element 7 of out, which has 4"):
            kernel[(1,)](x, out, 7)
        kernel[(1,)](x, out, 3)
    assert out[3] == 1


def test_pointers_without_accesses():
    @tilewright.jit
    def unused(x, n):
        if n > 1000:
            tl.device_print("n", n)

    with settings.scope(check_bounds=True):
        for _ in range(3):
            unused[(2,)](np.ones(3, np.float32), 3)


def test_addresses_reach_everything():
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    with settings.scope(check_bounds=True):
        tilewright.jit(plain)[(1,)](tilewright.pointer(x.ctypes.data, tl.float32), out, 8, BLOCK=8)
    assert out.all()


def from_block(x, index, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.gather(tl.load(x + i), tl.load(index + i), 0))


def from_rows(x, index, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + places, tl.gather(tl.load(x + places), tl.load(index + places), 1))


@pytest.mark.parametrize("kernel", [from_block, from_rows])
@pytest.mark.parametrize(
    ("dtype", "place"),
    [(np.int32, 0), (np.int32, 15), (np.int32, 16), (np.int32, -1), (np.int64, 10**9), (np.uint64, 2**63)],
)
def test_indices_of_gathers_stay_in_their_block(kernel, dtype, place):
    count = 16 if kernel is from_block else 256
    x, index = np.arange(count, dtype=np.float32), np.zeros(count, dtype)
    index[5] = place
    found = []
    for options in ({"check_bounds": True}, {"interpret": True}):
        with settings.scope(**options):
            out = np.zeros(count, np.float32)
            try:
                tilewright.jit(kernel)[(2,)](x, index, out, BLOCK=16)
                found.append(out.tolist())
            except ExecutionError as error:
                found.append([str(error)])
    assert found[0] == found[1]
    assert (len(found[0]) == 1) == (not 0 <= place < 16)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_elements_of_an_array_without_any_are_counted_from_its_place(kind):
    x = np.arange(32, dtype=np.float32)[8:8]
    if kind == "tensor":
        x = pytest.importorskip("torch").arange(32.0)[8:8]
    with settings.scope(check_bounds=True), pytest.raises(ExecutionError, match="element 0 of x, which has 0 elements"):
        tilewright.jit(plain)[(1,)](x, np.zeros(16, np.float32), 16, BLOCK=16)
