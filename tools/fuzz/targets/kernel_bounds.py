"""Kernels with random offsets, strides and masks on small arrays that end at a page nobody may touch: machine code with
bounds checks reports what the interpreter reports, and leaves what it leaves."""

from __future__ import annotations

import ctypes
import mmap
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.errors import ExecutionError
from tilewright.settings import settings
from tools.fuzz.target import Base, Failed


@tilewright.jit
def line(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * a + tl.arange(0, BLOCK)
    tl.store(out + i + c, tl.load(x + i * b, mask=i < n, other=0), mask=i < n)


@tilewright.jit
def rows(x, out, a, b, c, n, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, 4)[None, :]
    value = tl.load(x + row * a + column * b, mask=(row < n) & (column < c), other=0)
    tl.store(out + tl.arange(0, BLOCK), tl.sum(value, 1))


@tilewright.jit
def gathered(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    place = tl.load(x + i, mask=i < n, other=0).to(tl.int32) * a + b
    tl.store(out + i, tl.load(x + place, mask=i < c, other=1))


@tilewright.jit
def walking(x, out, a, b, c, n, BLOCK: tl.constexpr):
    pointers = x + tl.arange(0, BLOCK) * b
    total = tl.load(out + tl.arange(0, BLOCK))
    for _step in range(0, n):
        total += tl.load(pointers, mask=tl.arange(0, BLOCK) < c, other=0)
        pointers += a
    tl.store(out + tl.arange(0, BLOCK), total)


@tilewright.jit
def scalars(x, out, a, b, c, n, BLOCK: tl.constexpr):
    for step in range(0, n):
        value = tl.load(x + step * a + b)
        if step > c:
            tl.store(out + step, value)


@tilewright.jit
def scattered(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + (n - 1 - i) * b, tl.load(x + i + a), mask=(i >= c) & (i < n))


@tilewright.jit
def added(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(out + i * a + b, i.to(out.dtype.element_ty), mask=i < n)


@tilewright.jit
def far(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + (i + c) * (a * 536870912) + b, mask=i < n, other=0), mask=i < n)


@tilewright.jit
def wide(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = (tl.program_id(0).to(tl.int64) * b + a).to(tl.int64) * 1073741824 * c + tl.arange(0, BLOCK)
    tl.store(out + tl.arange(0, BLOCK), tl.load(x + i, mask=i < n, other=0))


@tilewright.jit
def between(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    place = tl.minimum(tl.maximum(i * a, b), c) - (i & 3) + i // 2
    source = tl.where(i < n, x + place, out + i)
    tl.store(out + i, tl.load(source))


@tilewright.jit
def seen_as_bytes(x, out, a, b, c, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out.to(tl.pointer_type(tl.int8)) + i * b + a, i.to(tl.int8), mask=i < n)
    tl.store((out.to(tl.pointer_type(tl.int8)) + c).to(tl.pointer_type(tl.int32)), n)


KERNELS = [line, rows, gathered, walking, scalars, scattered, added, far, wide, between, seen_as_bytes]
DTYPES = [np.float32, np.int32]


class Guarded:
    """Elements that end, or begin, at a page that nobody may touch."""

    def __init__(self, dtype: Any) -> None:
        page = mmap.PAGESIZE
        self._pages = mmap.mmap(-1, 3 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        for guard in (start, start + 2 * page):
            ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0)
        self.whole = np.frombuffer(self._pages, dtype, page // 4, page)

    def view(self, draw: random.Random, count: int, values: np.ndarray) -> np.ndarray:
        """An array of `count` of `values` at one of the guards; sometimes with strides."""
        step = draw.choice([1, 1, 1, 2, -1])
        span = count * abs(step)
        array = self.whole[-span:] if draw.random() < 0.7 else self.whole[:span]
        self.whole[:] = np.resize(values, self.whole.size)
        return array[::step]


class Target(Base):
    def prepare(self, folder: Path) -> None:
        self.memory = {dtype: (Guarded(dtype), Guarded(dtype)) for dtype in DTYPES}

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        kernel, dtype, block = draw.choice(KERNELS), draw.choice(DTYPES), draw.choice([4, 16])
        small = [0, 1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, -1, -2, -16]
        numbers = [draw.choice(small) for _ in range(3)] + [draw.choice([0, 1, 3, 4, 8, 15, 16, 17, 40])]
        grid = (draw.choice([1, 1, 2, 3]),)
        values = np.asarray([draw.randrange(0, 24) for _ in range(31)], dtype)
        sizes = [draw.choice([1, 4, 15, 16, 17, 33, 64]) for _ in range(2)]
        x, out = (memory.view(draw, size, values) for memory, size in zip(self.memory[dtype], sizes, strict=True))
        before = [memory.whole.copy() for memory in self.memory[dtype]]
        found = []
        for changes in ({"check_bounds": True, "threads": 1}, {"interpret": True}):
            for memory, saved in zip(self.memory[dtype], before, strict=True):
                memory.whole[:] = saved
            with settings.scope(**changes):
                found.append((_report(kernel, grid, (x, out, *numbers), block), self._bytes(dtype)))
        launch = f"{kernel.__name__}[{grid}] {numbers} of {sizes} {np.dtype(dtype)}, block {block}"
        if found[0][0] != found[1][0]:
            raise Failed("wrong", f"{launch}:\n{found[0][0]}\n{found[1][0]}", f"{kernel.__name__} report")
        if found[0][1] != found[1][1]:
            raise Failed("wrong", f"{launch}: memory differs", f"{kernel.__name__} memory")
        return "outside" if found[0][0] else "inside"

    def _bytes(self, dtype: Any) -> bytes:
        return b"".join(memory.whole.tobytes() for memory in self.memory[dtype])


def _report(kernel: Any, grid: tuple[int], arguments: tuple[Any, ...], block: int) -> str:
    try:
        kernel[grid](*arguments, BLOCK=block)
    except ExecutionError as error:
        # Of lanes that go to several arrays the interpreter counts those of one.
        return re.sub(r" \(\d+ of \d+ lanes are outside\)", "", f"{error}\n{error.element} {error.address}")
    return ""


TARGET = Target()
