"""Products by warpgroups in plain kernels: element types, orders in memory, divisions among warpgroups, and products
that are still under way where their accumulator is carried, used, or joined by others."""

# mypy: ignore-errors

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.device.plain_support import run_on_gpu, type_text
from tilewright.ir.core import Parameter

pytestmark = pytest.mark.capability(9)

KINDS = {
    "f16": (np.float16, np.float32), "bf16": (ml_dtypes.bfloat16, np.float32), "int8": (np.int8, np.int32),
    "uint8": (np.uint8, np.int32), "e4m3": (ml_dtypes.float8_e4m3fn, np.float32),
    "e5m2": (ml_dtypes.float8_e5m2, np.float32), "f16 in f16": (np.float16, np.float16),
}  # fmt: skip


def integers(rng, shape, kind):
    """Small whole numbers, of which no sum is rounded."""
    return rng.integers(0 if kind == np.uint8 else -2, 3, shape).astype(kind)


def launch(kernel, arguments, constants, grid=(1,), warps=4):
    """The arguments after a launch; arrays are aligned, numbers that are multiples of 16 known as such."""
    parameters = {
        name: Parameter(name, 16 if isinstance(value, np.ndarray) or value % 16 == 0 else 1)
        for name, value in arguments.items() if not isinstance(value, float)
    }  # fmt: skip
    function = kernel.trace({name: type_text(value) for name, value in arguments.items()}, constants, parameters)
    return dict(zip(arguments, run_on_gpu(function, list(arguments.values()), grid, warps), strict=True))


@tilewright.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.trans(tl.load(a + k[:, None] * M + m[None, :])) if A_T else tl.load(a + m[:, None] * K + k[None, :])
    y = tl.trans(tl.load(b + n[:, None] * K + k[None, :])) if B_T else tl.load(b + k[:, None] * N + n[None, :])
    place = m[:, None] * N + n[None, :]
    tl.store(c + place, tl.dot(x, y, tl.load(c + place), out_dtype=c.dtype.element_ty))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("shape", "warps"), [((64, 64, 64), 4), ((64, 128, 32), 8), ((256, 32, 16), 8),
                                              ((128, 128, 128), 16), ((64, 512, 64), 8)])  # fmt: skip
def test_products_of_every_type_order_and_division(kind, transposed, shape, warps, rng):
    (rows, columns, depth), (inner, outer) = shape, KINDS[kind]
    depth = max(depth, 32 // np.dtype(inner).itemsize)
    a, b, c = (
        integers(rng, size, kind)
        for size, kind in (((rows, depth), inner), ((depth, columns), inner), ((rows, columns), outer))
    )
    exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    arguments = {"a": np.ascontiguousarray(a.T) if transposed[0] else a,
                 "b": np.ascontiguousarray(b.T) if transposed[1] else b, "c": c}  # fmt: skip
    constants = {"M": rows, "N": columns, "K": depth, "A_T": transposed[0], "B_T": transposed[1]}
    found = launch(product, arguments, constants, warps=warps)["c"]
    assert np.array_equal(found.astype(np.float64), exact.astype(outer).astype(np.float64))


@tilewright.jit
def looped(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, A_T: tl.constexpr,
           B_T: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK, num_stages=STAGES):
        inner = start + tl.arange(0, BK)
        if A_T:
            x = tl.trans(tl.load(a + inner[:, None] * m + rows[None, :],
                                 mask=(inner[:, None] < k) & (rows[None, :] < m), other=0.0))  # fmt: skip
        else:
            x = tl.load(a + rows[:, None] * k + inner[None, :],
                        mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)  # fmt: skip
        if B_T:
            y = tl.trans(tl.load(b + columns[:, None] * k + inner[None, :],
                                 mask=(columns[:, None] < n) & (inner[None, :] < k), other=0.0))  # fmt: skip
        else:
            y = tl.load(b + inner[:, None] * n + columns[None, :],
                        mask=(inner[:, None] < k) & (columns[None, :] < n), other=0.0)  # fmt: skip
        total = tl.dot(x, y, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@pytest.mark.parametrize("kind", ["bf16", "e4m3"])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize(("blocks", "warps"), [((128, 256, 64), 8), ((64, 128, 64), 8), ((128, 64, 32), 4)])
def test_loops_over_aligned_and_odd_sizes(kind, transposed, stages, blocks, warps, rng):
    inner = KINDS[kind][0]
    for m, n, k in ((144, 272, 400), (130, 261, 67), (64, 64, 16)):
        a, b = integers(rng, (m, k), inner), integers(rng, (k, n), inner)
        arguments = {"a": np.ascontiguousarray(a.T) if transposed[0] else a,
                     "b": np.ascontiguousarray(b.T) if transposed[1] else b,
                     "c": np.zeros((m, n), np.float32), "m": m, "n": n, "k": k}  # fmt: skip
        constants = dict(zip(("BM", "BN", "BK"), blocks, strict=True))
        constants |= {"A_T": transposed[0], "B_T": transposed[1], "STAGES": stages}
        grid = (math.ceil(m / blocks[0]), math.ceil(n / blocks[1]))
        found = launch(looped, arguments, constants, grid, warps)["c"]
        assert np.array_equal(found, a.astype(np.float64) @ b.astype(np.float64)), (m, n, k)


@tilewright.jit
def entangled(a, b, out, k, FORM: tl.constexpr, STAGES: tl.constexpr):
    """Blocks of 64 x 64; what is done with the accumulators between products."""
    m, n = tl.arange(0, 64), tl.arange(0, 64)
    first, second = tl.zeros((64, 64), tl.float32), tl.zeros((64, 64), tl.float32)
    for start in tl.range(0, k, 32, num_stages=STAGES):
        inner = start + tl.arange(0, 32)
        x = tl.load(a + m[:, None] * k + inner[None, :])
        y = tl.load(b + inner[:, None] * 64 + n[None, :])
        if FORM == "two":
            first = tl.dot(x, y, first)
            second = tl.dot(x, y + y, second)
        elif FORM == "scaled":
            first = tl.dot(x, y, first * 0.5)
        elif FORM == "kept":
            second += first
            first = tl.dot(x, y, first)
        elif FORM == "replaced":
            first = tl.dot(x, y)
        elif FORM == "twice":
            first = tl.dot(x, y, tl.dot(x, y, first))
        elif FORM == "branch":
            if start % 64 == 0:
                first = tl.dot(x, y, first)
            second = tl.dot(x, y, second)
        else:
            scores = tl.dot(x, y)
            first = tl.dot(scores.to(x.dtype), tl.trans(scores).to(x.dtype), first)
    place = m[:, None] * 64 + n[None, :]
    tl.store(out + place, first)
    tl.store(out + 4096 + place, second)


def entangled_reference(form, a, b):
    first, second = np.zeros((64, 64)), np.zeros((64, 64))
    for start in range(0, a.shape[1], 32):
        product = a[:, start : start + 32] @ b[start : start + 32]
        if form == "two":
            first, second = first + product, second + 2 * product
        elif form == "scaled":
            first = first * 0.5 + product
        elif form == "kept":
            first, second = first + product, second + first
        elif form == "replaced":
            first = product
        elif form == "twice":
            first = first + 2 * product
        elif form == "branch":
            first, second = first + product * (start % 64 == 0), second + product
        else:
            first = first + product @ product.T
    return np.stack([first, second])


@pytest.mark.parametrize("form", ["two", "scaled", "kept", "replaced", "twice", "branch", "chained"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_accumulators_that_are_used_while_products_are_under_way(form, stages, rng):
    a, b = integers(rng, (64, 192), np.float16), integers(rng, (192, 64), np.float16)
    arguments = {"a": a, "b": b, "out": np.zeros((2, 64, 64), np.float32), "k": 192}
    found = launch(entangled, arguments, {"FORM": form, "STAGES": stages})["out"]
    assert np.array_equal(found, entangled_reference(form, a.astype(np.float64), b.astype(np.float64)))


@tilewright.jit
def attention(q, k, v, out, rows, scale, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    query, dim = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, D)
    x = tl.load(q + query[:, None] * D + dim[None, :], mask=query[:, None] < rows, other=0.0)
    largest, total = tl.full((BQ,), float("-inf"), tl.float32), tl.zeros((BQ,), tl.float32)
    acc = tl.zeros((BQ, D), tl.float32)
    for start in tl.range(0, rows, BK, num_stages=STAGES):
        key = start + tl.arange(0, BK)
        y = tl.load(k + key[:, None] * D + dim[None, :], mask=key[:, None] < rows, other=0.0)
        scores = tl.where(key[None, :] < rows, tl.dot(x, tl.trans(y)) * scale, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        weights, correction = tl.exp(scores - new[:, None]), tl.exp(largest - new)
        total = total * correction + tl.sum(weights, axis=1)
        z = tl.load(v + key[:, None] * D + dim[None, :], mask=key[:, None] < rows, other=0.0)
        acc = tl.dot(weights.to(z.dtype), z, acc * correction[:, None])
        largest = new
    tl.store(out + query[:, None] * D + dim[None, :], acc / total[:, None], mask=query[:, None] < rows)


@pytest.mark.parametrize(("blocks", "warps"), [((64, 64, 64), 4), ((128, 128, 64), 8), ((128, 64, 128), 4)])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_attention(blocks, warps, stages, rng):
    block_q, block_k, size = blocks
    q, k, v = (rng.normal(size=(300, size)).astype(np.float16) for _ in range(3))
    arguments = {"q": q, "k": k, "v": v, "out": np.zeros((300, size), np.float32), "rows": 300, "scale": size**-0.5}
    constants = {"D": size, "BQ": block_q, "BK": block_k, "STAGES": stages}
    found = launch(attention, arguments, constants, (math.ceil(300 / block_q),), warps)["out"]
    scores = q.astype(np.float64) @ k.astype(np.float64).T * size**-0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    exact = weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)
    assert np.abs(found - exact).max() < 2e-3
