"""Products: every operand dtype, any size, accumulators, result dtypes, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch

RESULTS = {
    np.float16: tl.float16, np.float32: tl.float32, np.int32: tl.int32, np.float64: tl.float64,
}  # fmt: skip
CASES = [
    ("float32", np.float32, np.float32), ("float16", np.float16, np.float32), ("half", np.float16, np.float16),
    ("bfloat16", ml_dtypes.bfloat16, np.float32), ("int8", np.int8, np.int32), ("uint8", np.uint8, np.int32),
    ("float64", np.float64, np.float64), ("float8e5", ml_dtypes.float8_e5m2, np.float32),
    ("float8e4nv", ml_dtypes.float8_e4m3fn, np.float16),
]  # fmt: skip
SIZES = [(1, 1, 1), (1, 16, 1), (2, 1, 64), (16, 16, 16), (64, 4, 8)]


@tilewright.jit
def multiply(
    a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, RESULT: tl.constexpr, ACCUMULATE: tl.constexpr
):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tile = m[:, None] * N + n[None, :]
    if ACCUMULATE:
        product = tl.dot(left, right, tl.load(c + tile))
    else:
        product = tl.dot(left, right, out_dtype=RESULT)
    tl.static_assert(product.dtype == RESULT)
    tl.store(out + tile, product)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("name", "operand", "result"), CASES, ids=[case[0] for case in CASES])
def test_small_whole_numbers_are_exact(
    name: str, operand: Any, result: Any, accumulate: bool, rng: np.random.Generator
) -> None:
    for rows, columns, depth in SIZES:
        low = 0 if name == "uint8" else -2
        a, b = (rng.integers(low, 3, shape).astype(operand) for shape in ((rows, depth), (depth, columns)))
        c, out = rng.integers(-3, 4, (rows, columns)).astype(result), np.zeros((rows, columns), result)
        constants = {"M": rows, "N": columns, "K": depth, "RESULT": RESULTS[result], "ACCUMULATE": accumulate}
        launch(multiply, (1,), a, b, c, out, **constants)
        expected = a.astype(np.float64) @ b.astype(np.float64) + (c if accumulate else 0)
        np.testing.assert_array_equal(out.astype(np.float64), expected)


@tilewright.jit
def mixed(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = i[:, None] * N + i[None, :]
    tl.store(out + tile, tl.dot(tl.load(a + tile), tl.load(b + tile)))


def test_two_kinds_of_8_bit_floats(rng: np.random.Generator) -> None:
    a = rng.integers(-3, 4, (16, 16)).astype(ml_dtypes.float8_e5m2)
    b = rng.integers(-3, 4, (16, 16)).astype(ml_dtypes.float8_e4m3fn)
    out = np.zeros((16, 16), np.float32)
    launch(mixed, (1,), a, b, out, N=16)
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


def test_8_bit_integers_of_two_signs(rng: np.random.Generator) -> None:
    """To the ends of both ranges."""
    a, b = rng.integers(0, 256, (16, 16), np.uint8), rng.integers(-128, 128, (16, 16), np.int8)
    for left, right in ((a, b), (b, a)):
        out = np.zeros((16, 16), np.int32)
        launch(mixed, (1,), left, right, out, N=16)
        np.testing.assert_array_equal(out, left.astype(np.int32) @ right.astype(np.int32))


@tilewright.jit
def batched(a, b, out):
    i, j, k = tl.arange(0, 2), tl.arange(0, 4), tl.arange(0, 8)
    batch = (i[:, None] * 2 + i[None, :])[:, :, None, None]
    left = batch * 128 + (j[:, None] * 8 + k[None, :])[None, None, :, :]
    right = batch * 128 + (k[:, None] * 4 + j[None, :])[None, None, :, :]
    result = batch * 16 + (j[:, None] * 4 + j[None, :])[None, None, :, :]
    tl.store(out + result, tl.dot(tl.load(a + left), tl.load(b + right)))


def test_two_batch_axes(rng: np.random.Generator) -> None:
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 2, 16, 8), (2, 2, 32, 4)))
    out = np.zeros((2, 2, 4, 4), np.float32)
    launch(batched, (1,), a, b, out)
    np.testing.assert_array_equal(out, a[:, :, :4] @ b[:, :, :8])


@tilewright.jit
def refused(out, A: tl.constexpr, B: tl.constexpr, ACC: tl.constexpr, RESULT: tl.constexpr, SHAPE: tl.constexpr):
    left, right = tl.zeros((16, 16), A), tl.zeros(SHAPE, B)
    accumulator = None if ACC is None else tl.zeros((16, 16), ACC)
    tl.store(out, tl.sum(tl.dot(left, right, accumulator, out_dtype=RESULT)))


@pytest.mark.parametrize(
    ("left", "right", "accumulator", "result", "shape", "message"),
    [
        (tl.float16, tl.float32, None, None, (16, 16), "operands of one dtype, got fp16 and fp32"),
        (tl.int8, tl.float16, None, None, (16, 16), "operands of one dtype"),
        (tl.int32, tl.int32, None, None, (16, 16), "does not take int32"),
        (tl.bfloat16, tl.bfloat16, None, tl.bfloat16, (16, 16), "dot of bf16 cannot give bf16"),
        (tl.float32, tl.float32, None, tl.float16, (16, 16), "dot of fp32 cannot give fp16"),
        (tl.int8, tl.int8, tl.float32, None, (16, 16), "accumulates in int32, acc is fp32"),
        (tl.float16, tl.float16, tl.bfloat16, None, (16, 16), "acc is bf16"),
        (tl.float16, tl.float16, tl.float16, tl.float32, (16, 16), "acc is fp16"),
        (tl.float16, tl.float16, None, None, (8, 16), "inner extents differ"),
        (tl.float16, tl.float16, None, None, (2, 16, 16), "equal rank"),
        (tl.float16, tl.float16, tl.float32, None, (16, 8), "acc must have shape [16, 8]"),
    ],
)
def test_what_is_refused(left: Any, right: Any, accumulator: Any, result: Any, shape: Any, message: str) -> None:
    constants = {"A": left, "B": right, "ACC": accumulator, "RESULT": result, "SHAPE": shape}
    text = compile_error(refused, {"out": "*f32"}, **constants)
    assert message in text and "help:" in text
