"""Checked runs: lanes that a load masks off without `other` may not decide what a kernel does."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import ExecutionError
from tilewright.launch.jit import JITFunction
from tilewright.settings import settings

N = 6  # elements, in blocks of 8
HEAD = """
import tilewright
import tilewright.language as tl

@tilewright.jit
def first_valid(a, p, b, q):
    return tl.where(p != 0, a, b), p | q

@tilewright.jit
def branching(v):
    if v > 2:
        v = v * 2
    return v

@tilewright.jit
def kernel(px, pi, out, total, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    x = tl.load(px + i, mask=m)
    index = tl.load(pi + i, mask=m)
"""
FIRST = HEAD.count("\n") - 1  # the line of the load of x; that of index comes next


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    with settings.scope(interpret="check"):
        yield


def launch(body: str, folder: Path) -> None:
    """Run a kernel that ends with the given lines, over `N` elements of 8."""
    path = folder / "kernel.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()), encoding="utf-8")
    kernel: JITFunction = runpy.run_path(str(path))["kernel"]
    x, out = np.arange(1, 9, dtype=np.float32), np.zeros(64, np.float32)
    index = np.asarray([3, 1, 2, 0, 5, 4, 7, 6], np.int32)
    kernel[(1,)](x, index, out, np.zeros(1, np.float32), N, BLOCK=8)


WRONG = {
    "stored": ("tl.store(out + i, x)", "value of the store", 0),
    "stored through a shape": ("tl.store(out + i, tl.reshape(tl.trans(tl.reshape(x, (2, 4))), (8,)))", "value", 0),
    "stored under another mask": ("tl.store(out + i, x + 1, mask=i < n + 1)", "value of the store", 0),
    "added up": ("tl.store(total, tl.sum(x, 0))", "value of the store", 0),
    "greatest": ("tl.store(total, tl.max(tl.abs(x), 0))", "value of the store", 0),
    "position": ("tl.store(total, tl.argmax(x, 0))", "value of the store", 0),
    "hidden too late": ("tl.store(out + i, x / tl.sum(tl.exp(x), 0), mask=m)", "value of the store", 0),
    "float times 0": ("tl.store(out + i, x * m.to(tl.float32))", "value of the store", 0),
    "cumulative": ("tl.store(out + i, tl.cumsum(x, 0, reverse=True), mask=m)", "value of the store", 0),
    "product": (
        "w = tl.load(px + i[:, None] + 0 * i[None, :], mask=m[:, None])\n"
        "tl.store(out + i[:, None] * 8 + i[None, :], tl.dot(tl.trans(w), w))", "value of the store", 2,
    ),
    "address of a load": ("tl.store(out + i, tl.load(px + index))", "address of the load", 1),
    "address of a store": ("tl.store(out + index, 1.0)", "address of the store", 1),
    "address of an atomic": ("tl.atomic_add(out + index, 1.0)", "address of the atomic_rmw", 1),
    "atomic": ("tl.atomic_add(out + i, x)", "value of the atomic_rmw", 0),
    "exchange": ("tl.atomic_cas(pi + i, index, index + 1)", "expected value of the atomic_cas", 1),
    "mask": ("tl.store(out + i, 1.0, mask=index < 4)", "mask of the store", 1),
    "mask of a load": ("tl.store(out + i, tl.load(px + i, mask=index < 4, other=0.0))", "mask of the load", 1),
    "other": ("tl.store(out + i, tl.load(px + i, mask=i < n - 1, other=x))", "value of the store", 0),
    "branch": ("if tl.load(px, mask=n > 100) > 0:\n    tl.store(out, 1.0)", "condition of the if", 2),
    "loop": ("k = tl.load(pi, mask=n > 100)\nwhile k > 0:\n    k -= 1", "condition of the while", 2),
    "bound": ("for k in range(tl.load(pi, mask=n > 100)):\n    tl.store(out, 1.0)", "upper bound of the for", 2),
    "assertion": ("tl.device_assert(x >= 0)", "condition of the assert", 0),
    "carried": ("s = 0.0\nfor k in range(2):\n    s += tl.sum(x, 0)\ntl.store(total, s)", "value of the store", 0),
    "chosen by it": ("tl.store(out + i, tl.where(index > 2, 1.0, 2.0))", "value of the store", 1),
    "both sides": ("tl.store(out + i, tl.where(m, 0.0, x))", "value of the store", 0),
    "mapped": ("tl.store(out + i, tl.map_elementwise(branching, x))", "condition of the if", 0),
    "block pointer": (
        "p = tl.make_block_ptr(px, (n,), (1,), (0,), (8,), (0,))\n"
        "tl.store(out + i, tl.load(p, boundary_check=(0,)))", "value of the store", 3,
    ),
    "joined": ("tl.store(total, tl.sum(tl.join(x, x + 1)))", "value of the store", 0),
    "gathered": ("tl.store(out + i, tl.gather(x, 7 - i, 0))", "value of the store", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_depends_on_undefined_lanes_is_reported_at_their_load(name: str, tmp_path: Path) -> None:
    body, use, line = WRONG[name]
    with pytest.raises(ExecutionError, match="lanes that a load has masked off") as caught:
        launch(body, tmp_path)
    assert f"it is the {use}" in str(caught.value) and "other=0.0" in caught.value.advice
    assert caught.value.location.line == FIRST + line and "tl.load(" in str(caught.value)
    assert caught.value.program_id == (0, 0, 0)


RIGHT = {
    "stored under the mask": "tl.store(out + i, x * 2 + 1, mask=m)",
    "stored under a part of it": "tl.store(out + i, x, mask=i < n - 2)",
    "chosen away": "tl.store(out + i, tl.where(m, x, 0.0))",
    "chosen away before a sum": "tl.store(total, tl.sum(tl.where(m, tl.exp(x), 0.0), 0))",
    "infinity": "x = tl.where(m, x, -float('inf'))\ntl.store(out + i, tl.softmax(x), mask=m)",
    "address under the mask": "tl.store(out + i, tl.load(px + index, mask=m), mask=m)",
    "scattered under the mask": "tl.store(out + index, x, mask=m)",
    "and": "tl.store(out + i, 1.0, mask=(index < 4) & m)",
    "and, the other way": "tl.store(out + i, 1.0, mask=m & (index < 4))",
    "or": "tl.store(out + i, 1.0, mask=~((index >= 4) | (i >= n)))",
    "integer times 0": "tl.store(out + i, (index * m.to(tl.int32)).to(tl.float32))",
    "bits": "tl.store(out + i, (index & tl.where(m, -1, 0)).to(tl.float32))",
    "atomic under the mask": "tl.atomic_add(out + index, x, mask=m)",
    "exchange under the mask": "tl.atomic_cas(pi + i, index, index + 1, mask=m)",
    "other": "tl.store(out + i, tl.load(px + i, mask=m, other=0.0))",
    "other is undefined where it is not used": "tl.store(out + i, tl.load(px + i, mask=m, other=x), mask=m)",
    "cumulative, from the front": "tl.store(out + i, tl.cumsum(x, 0), mask=m)",
    "a scan of pairs": "v, f = tl.associative_scan((x, m.to(tl.int32)), 0, first_valid)\ntl.store(out + i, v, mask=m)",
    "a reduction of pairs": "v, f = tl.reduce((x, m.to(tl.int32)), 0, first_valid)\ntl.store(total, v)",
    "columns of a product": (
        "w = tl.load(px + 0 * i[:, None] + i[None, :], mask=m[None, :])\n"
        "tl.store(out + i[:, None] * 8 + i[None, :], tl.dot(tl.full((8, 8), 1.0, tl.float32), w), mask=m[None, :])"
    ),
    "gathered from the others": "tl.store(out + i, tl.gather(x, i % 4, 0))",
    "never used": "tl.store(out + i, 1.0)",
    "a branch on what is known": "if tl.sum(tl.where(m, x, 0.0), 0) > 3:\n    tl.store(total, 1.0)",
    "an assertion under the mask": "tl.device_assert((x >= 0) | (i >= n))",
    "equal sides": "tl.store(out + i, tl.where(index > 2, i, i).to(tl.float32))",
    "zero padding": (
        "p = tl.make_block_ptr(px, (n,), (1,), (0,), (8,), (0,))\n"
        "tl.store(out + i, tl.load(p, boundary_check=(0,), padding_option='zero'))"
    ),
    "a descriptor": "d = tl.make_tensor_descriptor(px, [n], [1], [8])\ntl.store(out + i, d.load([0]))",
    "a mask that holds": "tl.store(out + i, tl.load(px + i, mask=i < 8))",
    "mapped, then masked": "tl.store(out + i, tl.map_elementwise(branching, tl.where(m, x, 0.0)))",
    "printed": "tl.device_print('x', x)",
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_lanes_that_are_masked_off_again_are_not_reported(name: str, tmp_path: Path) -> None:
    launch(RIGHT[name], tmp_path)


@tilewright.jit
def many_passes(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + start + i, mask=start + i < n)
    tl.store(out + i, total, mask=i < n % BLOCK)


def test_the_last_pass_of_a_loop() -> None:
    many_passes[(1,)](np.ones(1003, np.float32), np.zeros(16, np.float32), 1003, BLOCK=16)
    with settings.scope(interpret=True):  # only a checked run says so
        many_passes[(1,)](np.ones(3, np.float32), np.zeros(16, np.float32), 3, BLOCK=2)
