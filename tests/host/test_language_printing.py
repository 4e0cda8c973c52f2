"""Printing from kernels: one spelling, in the interpreter and in machine code."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.settings import settings


@tilewright.jit
def prints(x, scale, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.device_print("x", value)
    tl.device_print("both: ", value, i)
    tl.device_print("", i[:, None] * i[None, :])
    tl.device_print("100%", scale)
    print("pid:", tl.program_id(1))
    print("N", N)
    print("done")
    tl.device_print("small ", (0 - i).to(tl.int8))
    tl.device_print("unsigned", (0 - i).to(tl.uint16))
    tl.device_print("truth", i > 1)
    tl.device_print("half", value.to(tl.float16))
    tl.device_print("bf", value.to(tl.bfloat16))


def lines_of(program: int) -> list[str]:
    start = f"pid (0, {program}, 0)"
    shown = ["1.500000", "-0.000000", "nan", "-inf"]
    table = [f"{start} idx ({i}, {j}): {i * j}" for i in range(4) for j in range(4)]
    return [
        *(f"{start} idx ({i}) x: {text}" for i, text in enumerate(shown)),
        *(f"{start} idx ({i}) both: (operand 0) {text}" for i, text in enumerate(shown)),
        *(f"{start} idx ({i}) both: (operand 1) {i}" for i in range(4)),
        *table,
        f"{start} idx () 100%: 2.500000",
        f"{start} idx () pid: {program}",
        f"{start} idx () N: 4",
        f"{start} done",
        *(f"{start} idx ({i}) small: {-i}" for i in range(4)),
        *(f"{start} idx ({i}) unsigned: {-i % 65536}" for i in range(4)),
        *(f"{start} idx ({i}) truth: {int(i > 1)}" for i in range(4)),
        *(f"{start} idx ({i}) half: {text}" for i, text in enumerate(shown)),
        *(f"{start} idx ({i}) bf: {text}" for i, text in enumerate(shown)),
    ]


def printed(capfd, kernel, grid, *arguments, interpret, **constants) -> list[str]:
    with settings.scope(interpret=interpret, threads=1):
        kernel[grid](*arguments, **constants)
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize("interpret", [False, True])
def test_lines(interpret: bool, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.array([1.5, -0.0, -np.nan, -np.inf], np.float32)
    assert printed(capfd, prints, (1, 2), x, 2.5, interpret=interpret, N=4) == [*lines_of(0), *lines_of(1)]


@tilewright.jit
def bits(x, N: tl.constexpr):
    tl.device_print("x", tl.load(x + tl.arange(0, N)), hex=True)


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize(
    ("dtype", "numbers", "texts"),
    [
        (np.int8, [-1, 16], ["0xff", "0x10"]),
        (np.int16, [-1, 255], ["0xffff", "0x00ff"]),
        (np.int32, [-2, 7], ["0xfffffffe", "0x00000007"]),
        (np.uint64, [2**63, 1], ["0x8000000000000000", "0x0000000000000001"]),
        (np.float16, [1, -1.5], ["0x1p+0", "-0x1.8p+0"]),
        (np.float32, [0.1, np.inf], ["0x1.99999ap-4", "inf"]),
        (np.float64, [6, 5e-324], ["0x1.8p+2", "0x0.0000000000001p-1022"]),
    ],
)
def test_bits(dtype, numbers, texts, interpret: bool, capfd: pytest.CaptureFixture[str]) -> None:
    shown = printed(capfd, bits, (1,), np.array(numbers, dtype), interpret=interpret, N=2)
    assert shown == [f"pid (0, 0, 0) idx ({i}) x: {text}" for i, text in enumerate(texts)]


@tilewright.jit
def wide(N: tl.constexpr):
    tl.device_print("i", tl.arange(0, N))


@tilewright.jit
def places(x, N: tl.constexpr):
    tl.device_print("at", x + tl.arange(0, N))


@pytest.mark.parametrize("interpret", [False, True])
def test_indices_have_one_width(interpret: bool, capfd: pytest.CaptureFixture[str]) -> None:
    shown = printed(capfd, wide, (1,), interpret=interpret, N=128)
    assert shown == [f"pid (0, 0, 0) idx ({i:3}) i: {i}" for i in range(128)]


@pytest.mark.parametrize("interpret", [False, True])
def test_addresses_are_hexadecimal(interpret: bool, capfd: pytest.CaptureFixture[str]) -> None:
    shown = printed(capfd, places, (1,), np.zeros(2, np.float32), interpret=interpret, N=2)
    heads, numbers = zip(*(line.split(" at: ") for line in shown), strict=True)
    assert heads == ("pid (0, 0, 0) idx (0)", "pid (0, 0, 0) idx (1)")
    assert numbers[0].startswith("0x") and int(numbers[1], 16) - int(numbers[0], 16) == 4
