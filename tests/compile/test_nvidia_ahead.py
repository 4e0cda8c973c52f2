"""Loops with products: which loads run ahead of them, and what they are read for."""

# mypy: ignore-errors

from __future__ import annotations

import re

import pytest

import tilewright
import tilewright.language as tl
from tests.compile.test_nvidia_plain import built, pointers, traced
from tilewright.passes.pipeline import simplify
from tilewright.targets.gpu.early_loads import load_early


@tilewright.jit
def recurrence(w, u, states, out, steps, WHERE: tl.constexpr, BARRIER: tl.constexpr = False):
    """state = w state + u, each state stored: apart, or where u or w are read."""
    i, j = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    state = tl.zeros((64, 64), tl.float32)
    for step in range(steps):
        tl.store(
            (states if WHERE == "apart" else u if WHERE == "u" else w) + step * 4096 + i * 64 + j, state.to(tl.bfloat16)
        )
        if BARRIER:
            tl.debug_barrier()
        product = tl.dot(tl.load(w + step * 4096 + i * 64 + j), state.to(tl.bfloat16))
        state = tl.load(u + step * 4096 + i * 64 + j) + product
    tl.store(out + i * 64 + j, state)


@tilewright.jit
def both_ways(x, y, b, out, other, steps, BLOCK: tl.constexpr):
    """Each block of b is the right operand of two products, as it is and transposed."""
    i, k, n = tl.arange(0, 64)[:, None], tl.arange(0, 64), tl.arange(0, BLOCK)
    left, right = tl.load(x + i * 64 + k[None, :]), tl.load(y + i * BLOCK + n[None, :])
    first, second = tl.zeros((64, BLOCK), tl.float32), tl.zeros((64, 64), tl.float32)
    for step in range(steps):
        block = tl.load(b + step * 64 * BLOCK + k[:, None] * BLOCK + n[None, :])
        first += tl.dot(left, block)
        second += tl.dot(right, tl.trans(block))
    tl.store(out + i * BLOCK + n[None, :], first)
    tl.store(other + i * 64 + k[None, :], second)


def of_recurrence(where, barrier=False):
    types = {**pointers("bf16", "w", "u", "states"), "out": "*f32", "steps": "i32"}
    return traced(recurrence, types, {"WHERE": where, "BARRIER": barrier})


def copied_ahead(lowered):
    return sum("iterations ahead" in remark.message for remark in lowered.remarks)


def opcodes_of_loop(function):
    (loop,) = [operation for operation in function.walk() if operation.opcode == "for"]
    return [
        operation.opcode for operation in loop.regions[0].operations if operation.opcode in ("load", "dot", "store")
    ]


def test_loads_begin_before_products():
    function = simplify(of_recurrence("apart"))
    assert opcodes_of_loop(function) == ["store", "load", "dot", "load"]
    moved = load_early(function)
    assert opcodes_of_loop(moved) == ["store", "load", "load", "dot"]
    assert load_early(moved) is moved  # nothing is left to move
    stored = simplify(of_recurrence("u"))
    assert load_early(stored) is stored


def test_loads_stay_after_the_authors_barriers():
    function = simplify(of_recurrence("apart", barrier=True))
    assert load_early(function) is function
    lowered, _ = built(of_recurrence("apart", barrier=True))
    assert copied_ahead(lowered) == 0


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_loops_that_store_copy_ahead_what_they_do_not_store(architecture):
    lowered, assembly = built(of_recurrence("apart"), architecture)
    assert copied_ahead(lowered) == 1 and "cp.async.wait_all" in assembly.ptx
    lowered, assembly = built(of_recurrence("w"), architecture)
    assert copied_ahead(lowered) == 0 and "cp.async" not in assembly.ptx


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_blocks_that_products_read_both_ways_are_copied_once(architecture):
    types = {**pointers("bf16", "x", "y", "b"), **pointers("f32", "out", "other"), "steps": "i32"}
    lowered, assembly = built(traced(both_ways, types, {"BLOCK": 64}), architecture)
    assert copied_ahead(lowered) == 1 and "@%p" not in "".join(re.findall(r".*cp\.async.*", assembly.ptx))
    assert ("wgmma" in lowered.text) == (architecture == "sm_90a")


@tilewright.jit
def scaled(a, b, factors, out, depth):
    i, k, n = tl.arange(0, 64)[:, None], tl.arange(0, 64), tl.arange(0, 64)[None, :]
    total = tl.zeros((64, 64), tl.float32)
    for first in range(0, depth, 64):
        right = tl.load(b + (first + k)[:, None] * 64 + n) * tl.load(factors + first + k)[:, None]
        total += tl.dot(tl.load(a + i * depth + first + k[None, :]), right)
    tl.store(out + i * 64 + n, total)


def test_blocks_that_are_computed_with_before_a_product_are_copied_too():
    types = {**pointers("bf16", "a", "b", "factors"), "out": "*f32", "depth": "i32"}
    lowered, _ = built(traced(scaled, types, {}))
    assert copied_ahead(lowered) == 2
