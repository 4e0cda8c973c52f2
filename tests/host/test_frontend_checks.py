"""Checked runs: each planted mistake is found, with its place, and correct kernels raise nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host import test_language_kernels as families
from tilewright.errors import ExecutionError
from tilewright.ir import unwritten as marks
from tilewright.ir.interpreter import run
from tilewright.ir.parser import parse_function
from tilewright.launch.jit import JITFunction
from tilewright.settings import settings
from tilewright.testing import unwritten


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    with settings.scope(interpret="check"):
        yield


def finding(kernel: JITFunction, grid: tuple[int, ...], *arguments: object, **constants: object) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        kernel[grid](*arguments, **constants)
    return caught.value


def line_of(kernel: JITFunction, error: ExecutionError) -> str:
    """The source line that the error points to, from its caret on; the text must show it."""
    text = Path(kernel.file).read_text(encoding="utf-8").splitlines()[error.location.line - 1]
    assert f"{error.location.line} | {text.strip()}" in str(error) and "^" in str(error)
    return text[error.location.column : error.location.column + error.location.width]


@tilewright.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, value)


def test_out_of_bounds() -> None:
    error = finding(copy, (2,), np.ones(10, np.float32), np.zeros(10, np.float32), 10, BLOCK=8)
    assert line_of(copy, error) == "tl.store(out + i, value)"
    assert (error.program_id, error.element, error.address) == ((1, 0, 0), (2,), "out[10]")
    assert "6 of 8 lanes are outside" in str(error) and "help: let a mask" in str(error)


def test_masked_lanes_are_counted_in_the_block() -> None:
    error = finding(copy, (1,), np.ones(3, np.float32), np.zeros(8, np.float32), 6, BLOCK=8)
    assert (error.element, error.address) == ((3,), "x[3]")


# Unwritten memory


@tilewright.jit
def accumulate(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(out + i, mask=i < n)
    tl.store(out + i, before + tl.load(x + i, mask=i < n), mask=i < n)


@tilewright.jit
def count(out, n):
    tl.atomic_add(out + tl.arange(0, 4), n)


@tilewright.jit
def fill(out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, 1.0, mask=i < n)


def test_reads_of_unwritten_memory() -> None:
    x, out = np.ones(10, np.float32), unwritten(np.empty(10, np.float32))
    error = finding(accumulate, (2,), x, out, 10, BLOCK=8)
    assert line_of(accumulate, error) == "tl.load(out + i, mask=i < n)"
    assert (error.address, error.element) == ("out[0]", (0,))
    error = finding(count, (1,), unwritten(np.empty(4, np.int32)), 2)
    assert error.address == "out[0]" and "nobody has written" in str(error)


def test_kernels_write_from_launch_to_launch() -> None:
    x, out = np.ones(10, np.float32), unwritten(np.empty(10, np.float32))
    fill[(1,)](out, 9, BLOCK=16)
    error = finding(accumulate, (2,), x, out, 10, BLOCK=8)
    assert error.address == "out[9]" and error.program_id == (1, 0, 0) and error.element == (1,)
    fill[(1,)](out, 10, BLOCK=16)
    accumulate[(2,)](x, out, 10, BLOCK=8)


def test_the_host_writes_too() -> None:
    x, out = np.ones(10, np.float32), unwritten(np.empty((2, 10), np.float32))
    out[0] = 0
    accumulate[(2,)](x, out, 10, BLOCK=8)
    error = finding(accumulate, (2,), x, out[1], 10, BLOCK=8)  # only a part of the array has been written
    assert error.address == "out[0]"
    out[1, ::2] = 0
    accumulate[(2,)](x, out[1], 10, BLOCK=8)  # a byte of every eight has changed: all of these count as written


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64, np.complex64])
def test_whatever_the_host_fills_an_array_with_is_written(dtype: type, rng: np.random.Generator) -> None:
    out = unwritten(np.empty(1003, dtype))
    flat = out.view(np.uint8)
    for value in range(256):
        array = unwritten(np.empty(64, dtype))
        array[:] = value
        assert marks.pending(array.view(np.uint8)) is None
    written = np.sort(rng.permutation(1003)[:500])
    out[written] = rng.integers(0, 100, 500)
    mask = marks.pending(flat)
    if out.itemsize < 4:
        assert mask is None
        return
    assert mask is not None and not mask.reshape(1003, -1)[written].any()
    words = np.unique(np.flatnonzero(np.isin(np.arange(flat.size) // out.itemsize, written)) // 8)
    assert np.array_equal(np.flatnonzero(~mask), np.flatnonzero(np.isin(np.arange(flat.size) // 8, words)))


def test_marks_end_with_the_array() -> None:
    gc.collect()
    before = len(marks._declared)
    array = unwritten(np.empty(64, np.float32))
    assert len(marks._declared) == before + 1
    del array
    gc.collect()
    assert len(marks._declared) == before


def test_views_of_a_declared_array() -> None:
    whole = unwritten(np.empty(32, np.float32))
    fill[(1,)](whole[8:16], 8, BLOCK=8)
    accumulate[(1,)](np.ones(8, np.float32), whole[8:16], 8, BLOCK=8)
    assert finding(accumulate, (1,), np.ones(8, np.float32), whole[12:20], 8, BLOCK=8).address == "out[4]"


PROGRAM = """
import numpy as np
import torch
import tilewright
from tests.host.test_frontend_checks import accumulate
made = [np.empty(10, np.float32), torch.empty(10), torch.ones(10).new_empty(10), np.empty_like(np.ones(10, "f"))]
made += [torch.empty_strided((10,), (2,)), torch.ones(10).new_empty_strided((10,), (1,))]
made += [torch.empty_permuted((5, 2), (1, 0))]
for empty in made:
    try:
        accumulate[(2,)](np.ones(10, np.float32), empty, 10, BLOCK=8)
    except tilewright.errors.ExecutionError as error:
        print(error.address)
for written in (np.zeros(10, np.float32), torch.zeros(10), np.full(10, 2, np.float32)):
    accumulate[(2,)](np.ones(10, np.float32), written, 10, BLOCK=8)
"""


def test_what_empty_gives_is_unwritten() -> None:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TILEWRIGHT_INTERPRET": "check", "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["out[0]"] * 7


# Overflow


@tilewright.jit
def far_row(x, out, stride, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * rows
    offset = row * stride + tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < BLOCK)
    tl.store(out + tl.arange(0, BLOCK), value)


def test_overflow_in_an_address() -> None:
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    error = finding(far_row, (2,), x, out, 100000, 40000, BLOCK=8)
    assert line_of(far_row, error) == "row * stride"
    assert "40000 * 100000 = 4000000000, which int32 holds as -294967296" in str(error)
    assert "would use x[4000000000]" in str(error) and error.program_id == (1, 0, 0)
    assert "tl.int64" in error.advice


@tilewright.jit
def harmless(x, out, n, big, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    there_and_back = i + big - big  # wraps twice: the right number again
    mixed = (i * big + 12345) % 8  # a wrapped number is meant here
    masked = tl.where(i < 4, i, i * big)
    value = tl.load(x + there_and_back) + tl.load(x + tl.where(mixed < 0, -mixed, mixed))
    value += tl.load(x + masked, mask=i < 4, other=0.0)
    tl.store(out + i.to(tl.int64) * n, value)


def test_overflow_that_reaches_no_address() -> None:
    harmless[(1,)](np.ones(8, np.float32), np.zeros(64, np.float32), 8, 2**31 - 1, BLOCK=8)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a loop", "%k = for %z, %two, %one, %n : i32 {(%i: i32, %c: i32)\n%d = multiply %c, %n : i32\nyield %d\n}"),
        ("a branch", "%k = if %t : i32 {\n%d = multiply %n, %n : i32\nyield %d\n} {\nyield %n\n}"),
    ],
)
def test_overflow_through_control_flow(name: str, body: str) -> None:
    text = f"""kernel k(%x: *f32, %n: i32) {{
        %z = constant 0 : i32\n%one = constant 1 : i32\n%two = constant 2 : i32\n%t = constant true : i1
        {body}
        %p = offset %x, %k : *f32\n%v = load %p : f32\nreturn\n}}"""
    with pytest.raises(ExecutionError, match=r"int32 overflow in an address: 65536 \* 65536 = 4294967296"):
        run(parse_function(text), [np.zeros(4, np.float32), 65536], check=True)


# Races


@tilewright.jit
def total_plain(x, out, BLOCK: tl.constexpr):
    part = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), 0)
    tl.store(out, tl.load(out) + part)


@tilewright.jit
def total_atomic(x, out, BLOCK: tl.constexpr):
    tl.atomic_add(out, tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), 0))


@tilewright.jit
def total_locked(x, out, lock, BLOCK: tl.constexpr):
    part = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), 0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out, tl.load(out) + part)
    tl.atomic_xchg(lock, 0)


@tilewright.jit
def total_relaxed(x, out, lock, BLOCK: tl.constexpr):
    part = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), 0)
    tl.atomic_add(lock, 1, sem="relaxed")
    tl.store(out, tl.load(out) + part)


@tilewright.jit
def last_sums(x, parts, out, counter, BLOCK: tl.constexpr, N: tl.constexpr):
    """The instance that comes last, by a counter, adds up what all have left."""
    pid = tl.program_id(0)
    tl.store(parts + pid, tl.sum(tl.load(x + pid * BLOCK + tl.arange(0, BLOCK)), 0))
    if tl.atomic_add(counter, 1) == N - 1:
        tl.store(out, tl.sum(tl.load(parts + tl.arange(0, N)), 0))


@tilewright.jit
def overlapping(out, BLOCK: tl.constexpr, SAME: tl.constexpr):
    i = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.store(out + i, 7.0 if SAME else tl.program_id(0).to(tl.float32))


@tilewright.jit
def shifted(x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i + 1))


@tilewright.jit
def mixed_sizes(bytes_, words):
    tl.store(bytes_ + tl.program_id(0), tl.program_id(0).to(tl.int8) + 1)
    if tl.program_id(0) == 3:
        tl.load(words)


@tilewright.jit
def lanes_meet(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i // 2, tl.load(x + i))


def test_races_between_instances() -> None:
    x = np.arange(16, dtype=np.float32)
    error = finding(total_plain, (4,), x, np.zeros(1, np.float32), BLOCK=4)
    assert line_of(total_plain, error) == "tl.load(out)" and error.address == "out[0]"
    assert error.program_id == (1, 0, 0) and "store in program instance (0, 0, 0) at" in str(error)
    error = finding(overlapping, (2,), np.zeros(16, np.float32), BLOCK=4, SAME=False)
    assert (error.address, error.element) == ("out[2]", (0,))
    error = finding(shifted, (2,), np.arange(10, dtype=np.float32), BLOCK=4)
    assert error.address == "x[4]" and "load in program instance (0, 0, 0)" in str(error)
    error = finding(total_relaxed, (2,), x, np.zeros(1, np.float32), np.zeros(1, np.int32), BLOCK=4)
    assert error.address == "out[0]"
    words = np.zeros(1, np.int32)
    assert finding(mixed_sizes, (4,), words.view(np.int8), words).address == "words[0]"


def test_what_is_ordered_or_has_no_effect_is_no_race() -> None:
    x, lock = np.arange(16, dtype=np.float32), np.zeros(1, np.int32)
    for kernel, further in ((total_atomic, ()), (total_locked, (lock,))):
        out = np.zeros(1, np.float32)
        kernel[(4,)](x, out, *further, BLOCK=4)
        assert out[0] == 120
    out, counter = np.zeros(1, np.float32), np.zeros(1, np.int32)
    last_sums[(4,)](x, np.zeros(4, np.float32), out, counter, BLOCK=4, N=4)
    assert out[0] == 120
    overlapping[(2,)](np.zeros(16, np.float32), BLOCK=4, SAME=True)


@tilewright.jit
def counts_and_looks(counter, out, BY: tl.constexpr, VOLATILE: tl.constexpr):
    tl.atomic_add(counter, BY)
    tl.store(out + tl.program_id(0), tl.load(counter, volatile=VOLATILE))


@tilewright.jit
def looks_and_counts(counter, out, BY: tl.constexpr):
    tl.store(out + tl.program_id(0), tl.load(counter))
    tl.atomic_max(counter, tl.program_id(0) * BY)


@tilewright.jit
def looks_after_a_lock(counter, out, lock):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.atomic_add(counter, 1, sem="relaxed")
    tl.store(out + tl.program_id(0), tl.load(counter))
    tl.atomic_xchg(lock, 0)


def test_plain_loads_of_what_atomics_change_are_races() -> None:
    def memory() -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(1, np.int32), np.zeros(4, np.int32)

    error = finding(counts_and_looks, (4,), *memory(), BY=1, VOLATILE=False)
    assert error.address == "counter[0]" and "load in program instance (0, 0, 0)" in str(error)
    assert error.program_id == (1, 0, 0) and "volatile=True" in error.advice
    error = finding(looks_and_counts, (4,), *memory(), BY=1)  # where the atomic came first
    assert line_of(looks_and_counts, error) == "tl.load(counter)" and error.program_id == (2, 0, 0)
    counts_and_looks[(4,)](*memory(), BY=1, VOLATILE=True)
    counts_and_looks[(4,)](*memory(), BY=0, VOLATILE=False)
    looks_and_counts[(4,)](*memory(), BY=0)
    counter, out = memory()
    looks_after_a_lock[(4,)](counter, out, np.zeros(1, np.int32))
    assert out.tolist() == [1, 2, 3, 4]


def test_races_between_lanes() -> None:
    x = np.arange(8, dtype=np.float32)
    error = finding(lanes_meet, (1,), x, np.zeros(8, np.float32), BLOCK=8)
    assert line_of(lanes_meet, error) == "tl.store(out + i // 2, tl.load(x + i))"
    assert "out[0] gets 0.0 and 1.0" in str(error) and error.element == (1,)
    lanes_meet[(1,)](np.ones(8, np.float32), np.zeros(8, np.float32), BLOCK=8)


def test_arguments_that_share_memory_are_one() -> None:
    whole = np.arange(12, dtype=np.float32)
    copy[(2,)](whole[:8], whole[:8], 8, BLOCK=4)
    assert finding(copy, (2,), whole[:8], whole[2:10], 8, BLOCK=4).address == "x[4]"


# Correct kernels


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_clean(causal: bool, rng: np.random.Generator) -> None:
    queries, keys, head = 40, 56, 16
    q, k, v = (rng.normal(size=(2, rows, head)).astype(np.float32) for rows in (queries, keys, keys))
    out = unwritten(np.empty((2, queries, head), np.float32))
    constants = {"CAUSAL": causal, "HEAD": head, "BLOCK_M": 32, "BLOCK_N": 16}
    families.attention[(2, 2)](q, k, v, out, queries, keys, 0.25, **constants)


def test_assertions_are_kept() -> None:
    @tilewright.jit
    def asserts(x, n):
        value = tl.load(x + tl.arange(0, 4))
        tl.device_assert(value > n, "too small")

    error = finding(asserts, (1,), np.asarray([9, 9, 2, 9], np.float32), 3)
    assert "assertion failed: too small" in str(error) and error.element == (2,)
    assert line_of(asserts, error) == 'tl.device_assert(value > n, "too small")'
    assert error.advice.startswith("the kernel asserts this")


@tilewright.jit
def beyond_a_descriptor(tiles, pair, N: tl.constexpr):
    block = tiles.load([0, 0])
    i = tl.arange(0, N)
    tl.store(pair[1][0] + i, tl.load(pair[0] + i) + tl.sum(block))


@pytest.mark.parametrize("way", ["check", "eager"])
@pytest.mark.parametrize(("rows", "count", "name"), [(8, 8, "tiles"), (4, 4, r"pair\[1\]\[0\]")])
def test_memory_is_called_as_the_user_would_write_it(way: str, rows: int, count: int, name: str) -> None:
    x = np.ones((4, 8), np.float32)
    tiles = tilewright.TensorDescriptor(x, [rows, 8], [8, 1], [8, 8])
    with settings.scope(interpret=way):
        pattern = f"(?s)of {name}, which has.*go with {name}"
        with pytest.raises(ExecutionError, match=pattern) as caught:
            beyond_a_descriptor[(1,)](tiles, (np.ones(8, np.float32), (np.ones(count, np.float32),)), N=8)
    assert caught.value.address.startswith(name.replace("\\", ""))
