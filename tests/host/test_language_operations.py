"""Operations of the language against NumPy, interpreted and compiled."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.elementwise_kernels import unary
from tests.host.language_support import Recorder, launch
from tilewright.settings import settings


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


UNARY = [
    (tl.exp, np.exp),
    (tl.exp2, np.exp2),
    (tl.log, np.log),
    (tl.log2, np.log2),
    (tl.sin, np.sin),
    (tl.cos, np.cos),
    (tl.sqrt, np.sqrt),
    (tl.sqrt_rn, np.sqrt),
    (tl.rsqrt, lambda x: 1 / np.sqrt(x)),
    (tl.erf, _erf),
    (tl.math.tanh, np.tanh),
    (tl.floor, np.floor),
    (tl.ceil, np.ceil),
    (tl.math.rint, np.rint),
    (tl.math.trunc, np.trunc),
    (tl.abs, np.abs),
    (tl.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    (tl.softmax, lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()),
]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("function", "reference"), UNARY, ids=lambda entry: getattr(entry, "__name__", ""))
def test_unary_functions(function, reference, dtype: str, rng: np.random.Generator) -> None:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x = rng.uniform(0.1, 4, 16).astype(kind)
    out = np.zeros_like(x)
    launch(unary, (1,), x, out, FUNCTION=function, N=16)
    expected = reference(x.astype(np.float64))
    tolerance = {"float64": 1e-14, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=tolerance, atol=tolerance * 0.1)


@tilewright.jit
def integer_operators(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    results = (a + b, a - b, a * b, a // b, a % b, a & b, a | b, a ^ b, ~a, -a, a << 3, a >> 2, tl.abs(a),
               tl.minimum(a, b), tl.maximum(a, b), tl.clamp(a, -5, 5), (a < b).to(tl.int32), (a != b).to(tl.int32),
               tl.where(a > b, a, b), tl.umulhi(a, b))  # fmt: skip
    for k in tl.static_range(len(results)):
        tl.store(out + k * N + i, results[k])


def test_integer_operators(rng: np.random.Generator) -> None:
    x, y = rng.integers(-1000, 1000, (2, 32), dtype=np.int32)
    y[y == 0] = 7
    out = np.zeros((20, 32), np.int32)
    launch(integer_operators, (1,), x, y, out, N=32)
    quotient = np.trunc(x / y).astype(np.int32)
    high = (x.view(np.uint32).astype(np.uint64) * y.view(np.uint32).astype(np.uint64)) >> np.uint64(32)
    expected = [x + y, x - y, x * y, quotient, x - y * quotient, x & y, x | y, x ^ y, ~x, -x, x << 3, x >> 2, abs(x),
                np.minimum(x, y), np.maximum(x, y), np.clip(x, -5, 5), x < y, x != y, np.where(x > y, x, y),
                high.astype(np.uint32).view(np.int32)]  # fmt: skip
    np.testing.assert_array_equal(out, np.stack([np.asarray(row, np.int32) for row in expected]))


@tilewright.jit
def float_operators(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    whole = a.to(tl.int32)
    results = (a + b, a - b, a * b, a / b, a % b, -a, tl.fma(a, b, a), tl.fdiv(a, b), tl.div_rn(a, b),
               tl.math.pow(b, a), tl.where(a < b, a, 0.0), 1 / b, 2 - a, whole.to(tl.float32),
               tl.cdiv(whole + 10, 3))  # fmt: skip
    for k in tl.static_range(len(results)):
        tl.store(out + k * N + i, results[k])


def test_float_operators(rng: np.random.Generator) -> None:
    x, y = rng.uniform(-3, 3, (2, 32)).astype(np.float32)
    y = abs(y) + np.float32(0.5)
    out = np.zeros((15, 32), np.float32)
    launch(float_operators, (1,), x, y, out, N=32)
    a, b = x.astype(np.float64), y.astype(np.float64)
    expected = [a + b, a - b, a * b, a / b, np.fmod(a, b), -a, a * b + a, a / b, a / b, b**a, np.where(a < b, a, 0),
                1 / b, 2 - a, np.trunc(a), -(-(np.trunc(a) + 10) // 3)]  # fmt: skip
    np.testing.assert_allclose(out, np.stack(expected), rtol=1e-5, atol=1e-6)


@tilewright.jit
def masked(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    plain = tl.load(x + i, mask=i < n)
    filled = tl.load(x + i, mask=i < n, other=-1.5, cache_modifier=".cg", eviction_policy="evict_last")
    tl.store(out + i, plain + 10 * filled, mask=i < n + 1)
    tl.store(out + N, tl.load(x + 1, mask=n > 100, other=7))


def test_masked_lanes_are_zero_or_other() -> None:
    x, out = np.arange(4, dtype=np.float32), np.full(9, -9, np.float32)
    launch(masked, (1,), x, out, 4, N=8)
    assert out.tolist() == [0, 11, 22, 33, -15, -9, -9, -9, 7]


@tilewright.jit
def shapes(x, out, N: tl.constexpr):
    i = tl.arange(0, 4)
    block = tl.load(x + i[:, None] * 4 + i[None, :])
    tl.store(out + i[:, None] * 4 + i[None, :], block.T + tl.trans(block) - block.trans(1, 0))
    flat = tl.ravel(block)
    even, odd = tl.split(flat.reshape(8, 2))
    k = tl.arange(0, 16)
    tl.store(out + 16 + k, tl.interleave(even, odd))
    tl.store(out + 32 + k, tl.cat(odd, even, dim=0))
    tl.store(out + 48 + k, tl.flip(flat, 0))
    cube = flat.reshape(2, 2, 4).permute(1, 2, 0)
    tl.store(out + 64 + k, cube.ravel())
    tl.store(out + 80 + k, tl.gather(flat, (k * 3) % 16, 0))
    wide = tl.broadcast_to(i[:, None], (4, 4))
    tl.store(out + 96 + k, (wide + tl.expand_dims(i, 0)).reshape([-1]).to(tl.float32))
    pair = tl.join(tl.program_id(0) + 3, tl.program_id(0) + 4)
    first, second = tl.split(pair)
    tl.store(out + 112 + k, tl.where(k == 0, first, second))


def test_shape_operations() -> None:
    x, out = np.arange(16, dtype=np.float32), np.zeros((8, 16), np.float32)
    launch(shapes, (1,), x, out, N=1)
    block = x.reshape(4, 4)
    cube, sums = x.reshape(2, 2, 4).transpose(1, 2, 0), np.add.outer(np.arange(4), np.arange(4))
    expected = [block.T.ravel(), x, np.concatenate([x[1::2], x[::2]]), x[::-1], cube.ravel(),
                x[(np.arange(16) * 3) % 16], sums.ravel(), [3] + [4] * 15]  # fmt: skip
    np.testing.assert_array_equal(out, np.stack([np.asarray(row, np.float32) for row in expected]))


@tilewright.jit
def indexed(x, out, n):
    i, j = tl.arange(0, 4), tl.arange(0, 8)
    block = tl.load(x + i[:, None] * 8 + j[None, :])
    tl.store(out + j, block[1])
    tl.store(out + 8 + j, block[n])
    tl.store(out + 16 + i, block[..., -1])
    tl.store(out + 20 + tl.arange(0, 3), block[2, 1:7:2])
    tl.store(out + 23 + i, block[::-1, 0])
    tl.store(out + 27, block[3, n])
    tl.store(out + 28 + tl.arange(0, 8), block[1:3, None, 2:6].ravel())


def test_elements_and_slices(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=(4, 8)).astype(np.float32), np.zeros(36, np.float32)
    launch(indexed, (1,), x, out, 2)
    parts = [x[1], x[2], x[..., -1], x[2, 1:7:2], x[::-1, 0], x[3, 2:3], x[1:3, 2:6].ravel()]
    np.testing.assert_array_equal(out, np.concatenate(parts))


RECORDER = Recorder()
record = RECORDER.function


@tilewright.jit
def welford(mean1, m2_1, weight1, mean2, m2_2, weight2):
    delta = mean2 - mean1
    weight = weight1 + weight2
    share = tl.where(weight == 0.0, 0.0, weight2 / weight)
    return mean1 + delta * share, m2_1 + m2_2 + delta * delta * weight1 * share, weight


@tilewright.jit
def reductions(x, out, indices, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    block = tl.load(x + i[:, None] * COLUMNS + j[None, :])
    tl.store(out + i, tl.sum(block, axis=1))
    tl.store(out + ROWS + i, block.max(1))
    tl.store(out + 2 * ROWS + i, tl.min(block, -1))
    best, place = tl.max(block, 1, return_indices=True)
    tl.store(out + 3 * ROWS + i, best)
    tl.store(indices + i, place)
    tl.store(indices + ROWS + i, tl.argmin(block, axis=1))
    mean, m2, weight = tl.reduce((block, tl.zeros_like(block), tl.full(block.shape, 1.0, tl.float32)), 1, welford)
    tl.store(out + 4 * ROWS + i, mean)
    tl.store(out + 5 * ROWS + i, m2 / weight)
    tl.store(out + 6 * ROWS + i, tl.sum(block) + tl.max(block) * 2)
    tl.store(out + 7 * ROWS + i, tl.cumsum(tl.sum(block, 1), 0))
    tl.store(indices + 2 * ROWS + i, tl.xor_sum((block * 8).to(tl.int32), 1))
    record(tl.sum(block, 0, keep_dims=True).shape, tl.sum(block, keep_dims=True).shape)
    small = block.to(tl.int8)
    record(
        tl.sum(small, 1).dtype, tl.max(small, 1).dtype, tl.sum(small.to(tl.uint8), 1).dtype, tl.sum(small > 0, 1).dtype
    )
    half = block.to(tl.float16)
    record(tl.sum(half, 1).dtype, tl.max(half, 1).dtype, tl.max(half, 1, return_indices=True)[0].dtype)
    record(tl.sum(half, 1, dtype=tl.float32).dtype)


def test_reductions_and_scans(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 16)).astype(np.float32)
    out, indices = np.zeros((8, 4), np.float32), np.zeros((3, 4), np.int32)
    RECORDER.values.clear()
    launch(reductions, (1,), x, out, indices, ROWS=4, COLUMNS=16)
    wide = x.astype(np.float64)
    total = wide.sum(1)
    expected = [total, wide.max(1), wide.min(1), wide.max(1), wide.mean(1), wide.var(1),
                np.full(4, wide.sum() + 2 * wide.max()), np.cumsum(total)]  # fmt: skip
    np.testing.assert_allclose(out, np.stack(expected), rtol=1e-5, atol=1e-5)
    assert indices[0].tolist() == x.argmax(1).tolist() and indices[1].tolist() == x.argmin(1).tolist()
    assert indices[2].tolist() == np.bitwise_xor.reduce((x * 8).astype(np.int32), axis=1).tolist()
    shapes_seen, dtypes_seen = RECORDER.values[:2], [str(value) for value in RECORDER.values[2:10]]
    assert shapes_seen == [(1, 16), (1, 1)]
    assert dtypes_seen == ["int32", "int32", "uint32", "uint32", "fp16", "fp32", "fp16", "fp32"]


@tilewright.jit
def products(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, DTYPE: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + i[:, None] * K + k[None, :]).to(DTYPE)
    right = tl.load(b + k[:, None] * N + j[None, :]).to(DTYPE)
    acc = tl.dot(left, right)
    acc = tl.dot(left, right, acc)
    acc += tl.dot(left, right)
    record(acc.dtype)
    tl.store(out + i[:, None] * N + j[None, :], acc)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("sizes", [(4, 8, 2), (1, 5, 3)])
def test_dot_of_any_size(dtype: str, sizes: tuple[int, int, int], rng: np.random.Generator) -> None:
    rows, columns, depth = sizes
    a = rng.integers(-4, 5, (rows, depth)).astype(np.float32)
    b = rng.integers(-4, 5, (depth, columns)).astype(np.float32)
    out = np.zeros((rows, columns), np.float32)
    RECORDER.values.clear()
    launch(products, (1,), a, b, out, M=rows, N=columns, K=depth, DTYPE=getattr(tl, dtype))
    np.testing.assert_array_equal(out, 3 * (a @ b))
    assert str(RECORDER.values[0]) == {"float64": "fp64", "int8": "int32"}.get(dtype, "fp32")


def test_added_products_accumulate() -> None:
    types = {"a": "*f32", "b": "*f32", "out": "*f32"}
    function = products.trace(types, {"M": 4, "N": 4, "K": 4, "DTYPE": tl.float32})
    dots = [operation for operation in function.walk() if operation.opcode == "dot"]
    assert len(dots) == 3 and dots[2].operands[2] is dots[1].result


@tilewright.jit
def atomics(counters, old, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(counters + i % 2, i, mask=i < 6)
    tl.atomic_max(counters + 2, tl.program_id(0))
    tl.atomic_min(counters + 3, -tl.program_id(0), sem="relaxed", scope="cta")
    tl.atomic_or(counters + 4, 1 << tl.program_id(0))
    tl.atomic_xchg(counters + 5, tl.program_id(0))
    before = tl.atomic_cas(counters + 6, 0, tl.program_id(0) + 5)
    tl.store(old + tl.program_id(0), before)


def test_atomics() -> None:
    counters, old = np.zeros(8, np.int32), np.zeros(3, np.int32)
    launch(atomics, (3,), counters, old, N=8)
    assert counters.tolist() == [3 * (0 + 2 + 4), 3 * (1 + 3 + 5), 2, -2, 7, 2, 5, 0]
    assert old.tolist() == [0, 5, 5]


@tilewright.jit
def spin_lock(lock, total, GROUP: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    value = tl.load(total)
    tl.store(total, value + tl.program_id(0))
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_spin_lock_traces_and_runs() -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    launch(spin_lock, (10,), lock, total, GROUP=1)
    assert total[0] == 45 and lock[0] == 0


@tilewright.jit
def conversions(x, out, bits, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, a.to(tl.int32))
    tl.store(out + N + i, a.to(tl.int1))
    tl.store(out + 2 * N + i, tl.cast(tl.abs(a) / 2, tl.uint8))
    tl.store(bits + i, a.to(tl.int32, bitcast=True))
    tl.store(bits + N + i, a.to(tl.float16, fp_downcast_rounding="rtz").to(tl.int16, bitcast=True))
    address = (x + 1).to(tl.int64)
    tl.store(out + 3 * N + i, tl.load(address.to(tl.pointer_type(tl.float32))).to(tl.int32))


def test_casts() -> None:
    x = np.array([1.75, -2.5, 0.0, 300.1], np.float32)
    out, bits = np.zeros((4, 4), np.int32), np.zeros((2, 4), np.int32)
    launch(conversions, (1,), x, out, bits, N=4)
    assert out[0].tolist() == [1, -2, 0, 300] and out[1].tolist() == [1, 1, 0, 1]
    assert out[2].tolist() == [0, 1, 0, 150] and out[3].tolist() == [-2] * 4
    assert bits[0].tolist() == x.view(np.int32).tolist()
    assert bits[1].tolist() == [0x3F00, np.int16(np.uint16(0xC100)), 0, 0x5CB0]


@tilewright.jit
def swizzle(out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    row, column = tl.swizzle2d(tl.program_id(0), tl.program_id(1), ROWS, COLUMNS, GROUP)
    tl.store(out + row * COLUMNS + column, tl.program_id(0) * COLUMNS + tl.program_id(1))


def test_swizzle_walks_groups_column_by_column() -> None:
    out = np.full((5, 3), -1, np.int32)
    launch(swizzle, (5, 3), out, ROWS=5, COLUMNS=3, GROUP=2)
    assert out.tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11], [12, 13, 14]]


@tilewright.jit
def running_sum(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.cumsum(tl.load(x + i), 0))


def test_running_sums_of_narrow_floats_are_carried_in_fp32() -> None:
    x, out = np.ones(1024, ml_dtypes.bfloat16), np.zeros(1024, ml_dtypes.bfloat16)
    running_sum[(1,)](x, out, 1024)
    np.testing.assert_array_equal(out, np.arange(1, 1025).astype(ml_dtypes.bfloat16))  # bf16 sums end at 256


@tilewright.jit
def shifted(x, count, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) >> tl.load(count + i))


@pytest.mark.parametrize(("left", "right"), [("int8", "uint8"), ("int16", "uint32"), ("uint8", "int32")])
def test_right_shift_goes_by_the_sign_of_the_left_operand(left: str, right: str, rng: np.random.Generator) -> None:
    x = rng.integers(np.iinfo(left).min, np.iinfo(left).max, 64).astype(left)
    count = rng.integers(0, 8, 64).astype(right)
    out = np.zeros(64, left)
    launch(shifted, (1,), x, count, out, N=64)
    np.testing.assert_array_equal(out, x >> count.astype(left))


@tilewright.jit
def reversed_rows(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    offsets = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + offsets, tl.flip(tl.load(x + offsets)))


def test_flip_takes_the_last_axis_by_default(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 8)).astype(np.float32)
    out = np.zeros_like(x)
    launch(reversed_rows, (1,), x, out, ROWS=4, COLUMNS=8)
    np.testing.assert_array_equal(out, x[:, ::-1])


@tilewright.jit
def product_in_fp16(a, b, out, B: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, N)
    matrix = rows[:, None] * N + rows[None, :]
    offsets = tl.arange(0, B)[:, None, None] * N * N + matrix[None, :, :]
    tl.store(out + offsets, tl.dot(tl.load(a + offsets), tl.load(b + offsets), out_dtype=tl.float16))


@pytest.mark.parametrize("batch", [1, 4])
def test_a_product_in_fp16_is_rounded_once(batch: int, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((batch, 64, 64)).astype(np.float16) for _ in range(2))
    out = np.zeros_like(a)
    product_in_fp16[(1,)](a, b, out, B=batch, N=64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = 2.0**-11 * np.abs(exact) + 64 * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
    assert (np.abs(out - exact) <= 1.01 * error + 2.0**-25).all()


@tilewright.jit
def plus(a, b):
    return a + b


@tilewright.jit
def running(x, out, sums, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(out + i, tl.associative_scan(value, 0, plus, reverse=REVERSE))
    total = tl.cumsum(value, 0, reverse=REVERSE)
    wide: tl.constexpr = tl.float16 if value.dtype == tl.float16 else tl.float32
    tl.static_assert(total.dtype == wide)
    tl.store(sums + i, total)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_scans_of_narrow_floats_round_as_their_function_says(dtype, reverse: bool, rng: np.random.Generator) -> None:
    """Every step of a combine function rounds; running sums are rounded once, and those of bf16 are fp32."""
    x = rng.normal(size=64).astype(dtype)
    total = np.float16 if dtype is np.float16 else np.float32
    out, sums = np.zeros_like(x), np.zeros(64, total)
    order = slice(None, None, -1 if reverse else 1)
    expected, exact = np.zeros_like(x), np.cumsum(x[order].astype(np.float64))[order].astype(total)
    last = dtype(0)
    for place in np.arange(64)[order]:
        expected[place] = last = dtype(np.float32(last) + np.float32(x[place]))
    for interpret in (False, True):
        with settings.scope(interpret=interpret):
            running[(1,)](x, out, sums, N=64, REVERSE=reverse)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_allclose(
            sums.astype(np.float64), exact.astype(np.float64), rtol=2e-3 if total is np.float16 else 1e-5, atol=1e-3
        )
