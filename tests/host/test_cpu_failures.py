"""Failed assertions in machine code are Python errors, like those of the interpreter."""

# mypy: ignore-errors

from __future__ import annotations

import threading

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import ExecutionError
from tilewright.ir.diagnostics import source_line
from tilewright.settings import settings
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import lower
from tilewright.targets.cpu.target import CPUTarget


@tilewright.jit(debug=True)
def positive(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=1)
    tl.device_assert(value[:, None] > tl.zeros((1, 2), tl.float32), "100% must be > 0")
    tl.store(x + i, -value, mask=i < n)


@tilewright.jit
def counted(x, limit):
    number = tl.load(x)
    assert number >= 0, "no negative numbers"
    while number > 0:
        number -= 1
        tl.device_assert(number < limit, "too many")
    tl.store(x, number)


def failure(kernel, grid, *arguments, **keywords) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        kernel[grid](*arguments, **keywords)
    return caught.value


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_the_error_tells(interpret: bool, threads: int, rng) -> None:
    x = rng.random(4000).astype(np.float32) + 1
    x[2001] = -3
    with settings.scope(interpret=interpret, threads=threads):
        error = failure(positive, (16,), x, x.size, BLOCK=256)
    assert error.program_id == (7, 0, 0) and error.element == (2001 - 7 * 256, 0)
    assert error.message == "assertion failed: 100% must be > 0"
    assert source_line(error.location).strip().startswith("tl.device_assert(value")
    assert f"{positive.file}:{error.location.line}:" in str(error) and "in program instance (7, 0, 0)" in str(error)
    assert x[2001] == -3  # what follows the assertion has not run


def test_the_process_goes_on_and_so_does_the_kernel(rng) -> None:
    x = rng.random(512).astype(np.float32) + 1
    expected = x.copy()
    for _ in range(3):
        broken = -x
        failure(positive, (2,), broken, x.size, BLOCK=256)
        positive[(2,)](x, x.size, BLOCK=256)
        expected = -expected
        np.testing.assert_array_equal(x, expected)
        x, expected = -x, -expected


def test_each_assertion_has_its_place() -> None:
    for number, text in ((-1, "no negative numbers"), (9, "too many")):
        x = np.array([number])
        error = failure(counted, (1,), x, 5, debug=True)
        assert (
            error.message == f"assertion failed: {text}" and error.element == () and text in source_line(error.location)
        )
    counted[(1,)](np.array([9]), 5)  # without `debug` nothing is checked


def test_code_from_disk_knows_its_places(tmp_path) -> None:
    x = np.array([9])
    with settings.scope(cache_directory=tmp_path):
        places = []
        for _ in range(2):
            counted._forget()
            places.append(failure(counted, (1,), x, 5, debug=True).location)
    assert places[0] == places[1]


def test_compiled_kernels_tell_too() -> None:
    x = np.full(256, -1, np.float32)
    compiled = positive.warmup(x, x.size, BLOCK=256, grid=(1,))
    assert failure(compiled, (1,), x, x.size).program_id == (0, 0, 0)


def test_two_threads_get_their_own_failures() -> None:
    found: dict[int, tuple[int, ...]] = {}

    def work(place: int) -> None:
        x = np.ones(1024, np.float32)
        x[256 * place] = -1
        for _ in range(50):
            found[place] = failure(positive, (4,), x.copy(), x.size, BLOCK=256).program_id

    workers = [threading.Thread(target=work, args=(place,)) for place in (1, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == {1: (1, 0, 0), 3: (3, 0, 0)}


@tilewright.jit
def stepping(x, stop, step):
    for i in range(0, stop, step):
        tl.store(x + i, tl.load(x + i) + 1)


@pytest.mark.parametrize("interpret", [False, True, "eager"])
@pytest.mark.parametrize("step", [0, -2])
def test_a_step_that_does_not_count_up_is_an_error(interpret: bool | str, step: int) -> None:
    x = np.zeros(8, np.float32)
    with settings.scope(interpret=interpret):
        error = failure(stepping, (2,), x, 8, step)
        assert "is not positive" in error.message and "constant" in error.advice
        assert source_line(error.location).strip().startswith("for i in range") and not x.any()
        stepping[(1,)](x, 8, 3)
    assert x.tolist() == [1, 0, 0, 1, 0, 0, 1, 0]


@tilewright.jit
def striding(x, n, BLOCK: tl.constexpr):
    for i in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        tl.store(x + i, 1)


def test_steps_that_must_count_up_are_not_checked() -> None:
    function = striding.trace({"x": "*i32", "n": "i32"}, {"BLOCK": 4})
    assert not lower(function, CPUTarget.host(), CPUOptions()).records
    assert lower(
        stepping.trace({"x": "*f32", "stop": "i32", "step": "i32"}, {}), CPUTarget.host(), CPUOptions()
    ).records


@tilewright.jit(debug=True)
def waiting(x, expected):
    if tl.program_id(0) == 0:
        tl.device_assert(tl.load(x) == expected, "not what was expected")
        tl.atomic_xchg(x + 1, 1)
    else:
        while tl.atomic_add(x + 1, 0) == 0:
            pass
        tl.store(x + 2, 7)


def test_an_instance_that_waits_for_a_failed_one_ends() -> None:
    x = np.zeros(3, np.int32)
    with settings.scope(threads=2):
        error = failure(waiting, (2,), x, 1)
        assert error.program_id == (0, 0, 0) and x.tolist() == [0, 0, 0]
        waiting[(2,)](x, 0)
    assert x.tolist() == [0, 1, 7]
