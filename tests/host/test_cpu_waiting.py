"""Compiled kernels that wait for a program that cannot run end with an error; locks that are released keep working."""

# mypy: ignore-errors

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import ExecutionError
from tilewright.ir.diagnostics import source_line
from tilewright.runtime import failure_record
from tilewright.settings import settings
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import lower
from tilewright.targets.cpu.target import CPUTarget

LIMIT = 0.3  # seconds


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    monkeypatch.setattr(failure_record, "WAITING_SECONDS", LIMIT)


@tilewright.jit
def lock_of_nobody(x):
    while tl.atomic_cas(x, 0, 1) == 1:
        pass
    tl.store(x + 1, 1)


@tilewright.jit
def counts_its_tries(x):
    tries = 0
    while tl.atomic_cas(x, 0, 1) != 0:
        tries += 1
    tl.store(x + 1, tries)


@tilewright.jit
def carries_what_it_saw(x):
    seen = tl.atomic_cas(x, 0, 1)
    while seen == 1:
        seen = tl.atomic_cas(x, 0, 1)


@tilewright.jit
def leaves_by_a_flag(x):
    waiting = True
    while waiting:
        if tl.atomic_cas(x, 0, 1) == 0:
            tl.store(x + 1, tl.load(x + 1) + 1)
            tl.atomic_xchg(x, 0)
            waiting = False


@tilewright.jit
def exchanges(x):
    while tl.atomic_xchg(x, 1) == 1:
        pass


@tilewright.jit
def polls_with_an_exchange_of_equals(x):
    while tl.atomic_cas(x, 1, 1) == 1:
        pass


@tilewright.jit
def adds_nothing(x):
    while tl.atomic_add(x, 0) == 1:
        pass


@tilewright.jit
def takes_the_maximum(x):
    while tl.atomic_max(x, 1) > 0:
        pass


@tilewright.jit
def sets_a_bit(x):
    while tl.atomic_or(x, 1) == 1:
        pass


@tilewright.jit
def reads_volatile(x):
    while tl.load(x, volatile=True) == 1:
        pass


@tilewright.jit
def reads_plainly(x):
    while tl.load(x) == 1:
        pass


@tilewright.jit
def reads_a_block(x):
    while tl.sum(tl.load(x + tl.arange(0, 4), volatile=True), axis=0) > 0:
        pass


@tilewright.jit
def waits_for_lanes(x):
    places = x + tl.arange(0, 4)
    free = tl.load(places, volatile=True) == 0
    while tl.min(free.to(tl.int32), axis=0) == 0:
        free = free | (tl.load(places, volatile=True) == 0)


@tilewright.jit
def swaps_a_block(x):
    places = x + tl.arange(0, 4)
    while tl.sum(tl.atomic_cas(places, tl.zeros((4,), tl.int32), tl.full((4,), 1, tl.int32)), axis=0) > 0:
        pass


@tilewright.jit
def backs_off(x):
    delay = 1
    while tl.atomic_cas(x, 0, 1) == 1:
        delay = min(delay * 2, 8)
        for _ in range(delay):
            tl.debug_barrier()


@tilewright.jit
def polls_in_the_language(x):
    tl.atomic_poll(x + tl.arange(0, 4), 5)


@tilewright.jit
def waits_inside_a_loop(x, count):
    for i in range(count):
        while tl.atomic_cas(x, i, i + 1) != i:
            pass


@tilewright.jit
def waits_for_a_later_program(x):
    here = tl.program_id(0)
    while tl.load(x + 1 + here + 1, volatile=True) == 0 and here + 1 < tl.num_programs(0):
        pass
    tl.atomic_xchg(x + 1 + here, 1)


STUCK = [
    lock_of_nobody, counts_its_tries, carries_what_it_saw, leaves_by_a_flag, exchanges,
    polls_with_an_exchange_of_equals, adds_nothing, takes_the_maximum, sets_a_bit, reads_volatile, reads_plainly,
    reads_a_block, waits_for_lanes, swaps_a_block, backs_off, polls_in_the_language,
]  # fmt: skip


def stuck(kernel, grid, threads, *arguments) -> ExecutionError:
    with settings.scope(threads=threads), pytest.raises(ExecutionError) as caught:
        kernel[grid](*arguments)
    return caught.value


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("kernel", STUCK, ids=lambda kernel: kernel.name)
def test_a_loop_that_waits_for_nobody_ends_the_launch(kernel) -> None:
    started = time.monotonic()
    error = stuck(kernel, (3,), 1, np.array([1, 0, 0, 0], np.int32))
    assert LIMIT <= time.monotonic() - started < 30 * LIMIT
    assert f"kernel '{kernel.name}'" in error.message and error.program_id == (0, 0, 0)
    assert source_line(error.location).strip().startswith(("while ", "tl.atomic_poll("))
    assert f"{kernel.file}:{error.location.line}:" in str(error)


@pytest.mark.parametrize("interpret", [True, "check", "eager"])
@pytest.mark.parametrize("kernel", STUCK, ids=lambda kernel: kernel.name)
def test_the_interpreter_sees_it_at_once(kernel, interpret) -> None:
    with settings.scope(interpret=interpret):
        error = stuck(kernel, (3,), 1, np.array([1, 0, 0, 0], np.int32))
    assert "never ends" in error.message and source_line(error.location).strip().startswith(
        ("while ", "tl.atomic_poll(")
    )


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_programs_that_wait_for_later_ones(threads: int) -> None:
    error = stuck(waits_for_a_later_program, (64,), threads, np.zeros(80, np.int32))
    assert "waits for ever" in error.message and "wait only for those before" in error.advice


@pytest.mark.parametrize("threads", [2, 8])
def test_all_threads_must_wait(threads: int) -> None:
    stuck(lock_of_nobody, (40,), threads, np.array([1, 0], np.int32))


def test_the_second_lock_is_not_released() -> None:
    x = np.array([0], np.int32)
    waits_inside_a_loop[(1,)](x, 3)
    assert x[0] == 3
    x[0] = 0
    assert stuck(waits_inside_a_loop, (2,), 1, x, 3).program_id == (1, 0, 0)


@tilewright.jit
def adds_under_a_lock(lock, total, rounds):
    for _ in range(rounds):
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(total, tl.load(total, volatile=True) + 1)
        tl.atomic_xchg(lock, 0)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_lock_that_is_released(threads: int) -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int64)
    with settings.scope(threads=threads):
        adds_under_a_lock[(64,)](lock, total, 10)
    assert total[0] == 640 and lock[0] == 0


@tilewright.jit
def holds_for_long(x, steps):
    if tl.program_id(0) == 0:
        value = 0.5
        for _ in range(steps):
            value = value * 3.7 * (1 - value)
        tl.store(x + 1, (value > 2).to(tl.int32) + 1)
        tl.atomic_xchg(x, 1)
    else:
        while tl.atomic_add(x, 0) == 0:
            pass
        tl.store(x + 1 + tl.program_id(0), tl.load(x + 1, volatile=True))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_program_that_computes_for_longer_than_the_limit(threads: int, monkeypatch) -> None:
    monkeypatch.setattr(failure_record, "WAITING_SECONDS", 0.1)
    x = np.zeros(5, np.int32)
    started = time.monotonic()
    with settings.scope(threads=threads):
        holds_for_long[(4,)](x, 100_000_000)
    assert x.tolist() == [1, 1, 1, 1, 1] and time.monotonic() - started > 0.1


def test_something_else_releases_the_lock(monkeypatch) -> None:
    monkeypatch.setattr(failure_record, "WAITING_SECONDS", 30.0)
    x = np.array([1, 0], np.int32)
    release = threading.Timer(LIMIT / 3, lambda: x.__setitem__(0, 0))
    release.start()
    lock_of_nobody[(1,)](x)
    release.join()
    assert x.tolist() == [1, 1]


@tilewright.jit
def takes_work(x, count):
    place = tl.atomic_add(x, 1)
    while place < count:
        tl.atomic_add(x + 1 + place, 1)
        place = tl.atomic_add(x, 1)


def test_a_queue_of_work_is_progress(monkeypatch) -> None:
    monkeypatch.setattr(failure_record, "WAITING_SECONDS", 0.001)
    x = np.zeros(1 + 300_000, np.int32)
    with settings.scope(threads=2):
        takes_work[(2,)](x, 300_000)
    assert (x[1:] == 1).all()


@tilewright.jit
def sums_while(x, n):
    i = 0
    total = 0
    while i < n:
        total += tl.load(x + i)
        i += 1
    tl.store(x, total)


def test_loops_that_count_are_not_watched() -> None:
    assert not lower(sums_while.trace({"x": "*i32", "n": "i32"}, {}), CPUTarget.host(), CPUOptions()).waits
    assert lower(lock_of_nobody.trace({"x": "*i32"}, {}), CPUTarget.host(), CPUOptions()).waits


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.float32, np.float64])
def test_exchanges_of_other_types(dtype) -> None:
    stuck(exchanges, (1,), 1, np.array([1], dtype))


def test_with_checks_of_bounds(monkeypatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CHECK_BOUNDS", "1")
    with settings.scope(check_bounds=True):
        error = stuck(lock_of_nobody, (1,), 1, np.array([1, 0], np.int32))
    assert "waits for ever" in error.message


def test_compiled_kernels_tell_too() -> None:
    x = np.array([1, 0], np.int32)
    stuck(lock_of_nobody.warmup(x, grid=(1,)), (1,), 1, x)
