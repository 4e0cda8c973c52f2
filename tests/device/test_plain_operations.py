"""Every group of plain operations on the GPU, against the interpreter or float64."""

# mypy: ignore-errors

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.device.plain_support import run_both, run_on_gpu, same_bits, type_text, ulps
from tilewright.dtypes import DTYPES
from tilewright.ir.core import Parameter

FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
INTEGERS = {name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
NUMBERS = {**FLOATS, **INTEGERS}


def draw(rng, shape, dtype, low=-50, high=50):
    """Whole numbers that the type holds."""
    if np.dtype(dtype).kind == "u":
        low = 0
    return rng.integers(low, high, shape).astype(dtype)


# Elementwise -------------------------------------------------------------------------------------

FUNCTIONS = {
    "exp": (np.exp, -80, 80), "exp2": (np.exp2, -120, 120), "log": (np.log, 1e-30, 1e30),
    "log2": (np.log2, 1e-30, 1e30), "sin": (np.sin, -1e4, 1e4), "cos": (np.cos, -1e4, 1e4),
    "sqrt": (np.sqrt, 0, 1e30), "erf": (None, -5, 5), "tanh": (np.tanh, -10, 10),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-30, 1e30),
}  # fmt: skip
BOUNDS = {"exp": 62, "erf": 6, "rsqrt": 2, "exp2": 2, "tanh": 3}


@tilewright.jit
def unary(x, out, BLOCK: tl.constexpr, NAME: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    if NAME == "exp":
        r = tl.exp(v)
    elif NAME == "exp2":
        r = tl.exp2(v)
    elif NAME == "log":
        r = tl.log(v)
    elif NAME == "log2":
        r = tl.log2(v)
    elif NAME == "sin":
        r = tl.sin(v)
    elif NAME == "cos":
        r = tl.cos(v)
    elif NAME == "sqrt":
        r = tl.sqrt(v)
    elif NAME == "erf":
        r = tl.erf(v)
    elif NAME == "rsqrt":
        r = tl.rsqrt(v)
    else:
        r = tl.math.tanh(v)
    tl.store(out + i, r)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_math_functions(name, dtype, rng):
    function, low, high = FUNCTIONS[name]
    x = rng.uniform(low, high, 4096)
    if low > 0:
        x = np.exp(rng.uniform(math.log(low), math.log(high), 4096))
    x = x.astype(dtype)
    x[:4] = [1.0, 0.5, 2.0, 1e-3]
    _, found = run_both(unary, {"x": x, "out": np.zeros_like(x)}, {"BLOCK": 4096, "NAME": name})
    wide = x.astype(np.longdouble if dtype == np.float64 and name != "erf" else np.float64)
    exact = np.vectorize(math.erf)(wide.astype(np.float64)) if function is None else function(wide)
    limit = BOUNDS.get(name, 2) if dtype == np.float32 else {"erf": 8}.get(name, 4)
    assert ulps(exact.astype(np.float64), found["out"]) <= limit + 0.5


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_trigonometric_functions_of_huge_numbers(name, rng):
    x = np.exp(rng.uniform(math.log(1e5), math.log(3e38), 1024)).astype(np.float32) * rng.choice([-1, 1], 1024)
    x = x.astype(np.float32)
    x[:3] = [np.inf, -np.inf, np.nan]
    _, found = run_both(unary, {"x": x, "out": np.zeros_like(x)}, {"BLOCK": 1024, "NAME": name})
    assert np.isnan(found["out"][:3]).all()
    exact = [getattr(math, name)(float(value)) for value in x[3:]]
    assert np.abs(found["out"][3:] - exact).max() < 3e-7


@tilewright.jit
def binary(x, y, out, BLOCK: tl.constexpr, NAME: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if NAME == "add":
        r = a + b
    elif NAME == "subtract":
        r = a - b
    elif NAME == "multiply":
        r = a * b
    elif NAME == "divide":
        r = (a / b).to(a.dtype)
    elif NAME == "remainder":
        r = (a % b).to(a.dtype)
    elif NAME == "minimum":
        r = tl.minimum(a, b)
    elif NAME == "maximum":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        r = tl.where(a < b, a, b)
    tl.store(out + i, r)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "remainder", "minimum", "maximum", "choice"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_arithmetic_is_exact(name, dtype, rng):
    x, y = (draw(rng, 1024, NUMBERS[dtype], -120, 120) for _ in range(2))
    y = np.where(y == 0, np.ones((), y.dtype), y).astype(y.dtype)
    if dtype in FLOATS:
        x = (x.astype(np.float64) * rng.normal(size=1024)).astype(NUMBERS[dtype])
    arguments = {"x": x, "y": y, "out": np.zeros_like(x)}
    expected, found = run_both(binary, arguments, {"BLOCK": 1024, "NAME": name})
    same_bits(expected["out"], found["out"])


@pytest.mark.parametrize("name", ["add", "subtract", "multiply"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bit_sums_and_products_of_all_magnitudes(name, dtype, rng):
    """Done in pairs; subnormal numbers, infinities and NaN among them."""
    x, y = (rng.integers(0, 65536, 1 << 14).astype(np.uint16).view(FLOATS[dtype]) for _ in range(2))
    arguments = {"x": x, "y": y, "out": np.zeros_like(x)}
    expected, found = (
        result["out"] for result in run_both(binary, arguments, {"BLOCK": 1 << 14, "NAME": name}, warps=16)
    )
    nan = np.isnan(expected.astype(np.float32))
    assert np.array_equal(nan, np.isnan(found.astype(np.float32)))
    same_bits(expected[~nan], found[~nan])


@tilewright.jit
def convert(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@pytest.mark.parametrize("source", [dtype.name for dtype in DTYPES])
def test_conversions_are_exact(source, rng):
    by_name = {dtype.name: dtype for dtype in DTYPES}
    for target in by_name.values():
        origin = by_name[source]
        small = any(kind.is_float and kind.bits == 8 for kind in (origin, target))
        if origin == target or (small and not (origin.is_float and target.is_float)):
            continue  # the language has no conversions between integers and fp8
        numbers = rng.integers(0, 2, 512) if origin.is_bool else rng.integers(-100, 100, 512)
        if origin.is_float and target.is_float:
            numbers = rng.normal(size=512) * np.exp2(rng.integers(-20, 20, 512))
            numbers[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-8]
        elif origin.is_float:  # beyond its range an integer type saturates, and NaN becomes 0
            powers = 2.0 ** rng.integers(5, 66, 256) * rng.choice([-1.0, 1.0], 256)
            numbers = np.concatenate([numbers[:248], powers, [np.inf, -np.inf, np.nan, 0.5, -0.5, -1.0, 1e30, -1e30]])
        if not (origin.is_signed or origin.is_float):
            numbers = np.abs(numbers)
        with np.errstate(all="ignore"):
            x = numbers.astype(origin.numpy)
        expected, found = run_both(convert, {"x": x, "out": np.zeros(512, target.numpy)}, {"BLOCK": 512})
        same_bits(expected["out"].view(f"u{target.itemsize}") if target.is_bool else expected["out"],
                  found["out"].view(f"u{target.itemsize}") if target.is_bool else found["out"])  # fmt: skip


# Shapes and memory -------------------------------------------------------------------------------


@tilewright.jit
def transpose(x, out, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    block = tl.load(x + rows[:, None] * N + columns[None, :])
    tl.store(out + columns[:, None] * M + rows[None, :], tl.trans(block))


@pytest.mark.parametrize("dtype", ["int8", "f16", "f32", "int64"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (16, 128), (128, 32), (1, 64), (8, 8)])
@pytest.mark.parametrize("warps", [1, 4])
def test_transposes(dtype, rows, columns, warps, rng):
    x = draw(rng, (rows, columns), NUMBERS[dtype])
    arguments = {"x": x, "out": np.zeros((columns, rows), x.dtype)}
    _, found = run_both(transpose, arguments, {"M": rows, "N": columns}, warps=warps)
    assert np.array_equal(found["out"], x.T)


@tilewright.jit
def masked(x, out, n, other, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=other)
    tl.store(out + i, v + 1, mask=i < n + 3)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("n", [1, 100, 501, 512])
def test_masked_accesses(dtype, n, rng):
    x = draw(rng, 512, NUMBERS[dtype])
    arguments = {"x": x, "out": np.zeros(520, x.dtype), "n": n, "other": 5}
    expected, found = run_both(masked, arguments, {"BLOCK": 128}, (4,))
    same_bits(expected["out"], found["out"])


@tilewright.jit
def shapes(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    pairs = tl.reshape(v, (N // 2, 2))
    left, right = tl.split(pairs)
    swapped = tl.reshape(tl.join(right, left), (N,))
    both = tl.cat(left, right, can_reorder=True)
    picked = tl.gather(v, N - 1 - i, 0)
    tl.store(out + i, swapped)
    tl.store(out + N + i, picked)
    tl.store(out + 2 * N + i, tl.sort(v))
    tl.store(out + 3 * N + i, tl.flip(v))
    tl.store(out + 4 * N, tl.sum(both, axis=0))


@pytest.mark.parametrize("count", [8, 64, 512])
@pytest.mark.parametrize("warps", [1, 4])
def test_shape_operations(count, warps, rng):
    x = draw(rng, count, np.int32)
    arguments = {"x": x, "out": np.zeros(4 * count + 1, np.int32)}
    expected, found = run_both(shapes, arguments, {"N": count}, warps=warps)
    same_bits(expected["out"], found["out"])


@tilewright.jit
def through_memory(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1.0)
    tl.store(out + i, tl.load(out + i) * 2.0)
    tl.store(out + N + i, tl.load(out + N - 1 - i))
    tl.store(out + 2 * N + i, tl.load(out + (i * 7) % (2 * N)))
    tl.store(out, tl.load(out + 2 * N + 5))


@pytest.mark.parametrize("warps", [1, 4, 16])
def test_threads_see_what_others_stored_before(warps, rng):
    x = draw(rng, 1024, np.float32)
    arguments = {"x": x, "out": np.zeros(3 * 1024, np.float32)}
    expected, found = run_both(through_memory, arguments, {"N": 1024}, warps=warps)
    same_bits(expected["out"], found["out"])


# Reductions, scans -------------------------------------------------------------------------------


@tilewright.jit
def reductions(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, E: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + rows[:, None] * N + columns[None, :])
    i = tl.arange(0, E)
    tl.store(out + i, tl.sum(v, axis=AXIS))
    tl.store(out + E + i, tl.max(v, axis=AXIS))
    tl.store(out + 2 * E + i, tl.argmin(v, axis=AXIS).to(v.dtype))
    tl.store(out + 3 * E, tl.sum(v))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "f16", "f32", "f64"])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (4, 128), (128, 4), (1, 16), (64, 1), (16, 16)])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(dtype, rows, columns, axis, rng):
    x = draw(rng, (rows, columns), NUMBERS[dtype], -3, 4)
    extent = (columns, rows)[axis]
    constants = {"M": rows, "N": columns, "AXIS": axis, "E": extent}
    for warps in (1, 4, 8):
        arguments = {"x": x, "out": np.zeros(3 * extent + 1, x.dtype)}
        expected, found = run_both(reductions, arguments, constants, warps=warps)
        same_bits(expected["out"], found["out"])


@tilewright.jit
def first(a, b):
    return a


@tilewright.jit
def scans(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    i = rows[:, None] * N + columns[None, :]
    v = tl.load(x + i)
    tl.store(out + i, tl.cumsum(v, axis=AXIS, reverse=REVERSE))
    tl.store(out + M * N + i, tl.associative_scan(v, AXIS, first, reverse=REVERSE))


@pytest.mark.parametrize("dtype", ["int8", "int32", "f32", "f64"])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (4, 256), (256, 4), (1, 1024), (16, 16)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(dtype, rows, columns, axis, reverse, rng):
    x = draw(rng, (rows, columns), NUMBERS[dtype], -3, 4)
    constants = {"M": rows, "N": columns, "AXIS": axis, "REVERSE": reverse}
    for warps in (1, 4):
        arguments = {"x": x, "out": np.zeros(2 * rows * columns, x.dtype)}
        expected, found = run_both(scans, arguments, constants, warps=warps)
        same_bits(expected["out"], found["out"])


# Atomics -----------------------------------------------------------------------------------------


@tilewright.jit
def atomics(x, out, old, n, BLOCK: tl.constexpr, KIND: tl.constexpr, SPREAD: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    p = out + i % SPREAD
    if KIND == "add":
        before = tl.atomic_add(p, v, mask=i < n)
    elif KIND == "max":
        before = tl.atomic_max(p, v, mask=i < n)
    elif KIND == "min":
        before = tl.atomic_min(p, v, mask=i < n)
    else:
        before = tl.atomic_xchg(p, v, mask=i < n)
    if SPREAD == BLOCK:
        tl.store(old + i, before)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64", "uint64", "f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    "kind, spread",
    # Of several exchanges at one place any may be the last.
    [*((kind, spread) for kind in ("add", "max", "min") for spread in (16, 128)), ("exchange", 128)],
)
def test_atomics(dtype, kind, spread, rng):
    x, out = draw(rng, 128, NUMBERS[dtype], -3, 4), draw(rng, 128, NUMBERS[dtype], -3, 4)
    arguments = {"x": x, "out": out, "old": np.zeros_like(x), "n": 101}
    constants = {"BLOCK": 128, "KIND": kind, "SPREAD": spread}
    expected, found = run_both(atomics, arguments, constants)
    for name in ("out", "old"):
        same_bits(expected[name], found[name])


@tilewright.jit
def counter(out, old, N: tl.constexpr):
    for _ in range(N):
        ticket = tl.atomic_add(out, 1)
        tl.atomic_cas(out + 1, ticket, ticket + 1)
        tl.store(old + ticket, ticket + 1)


def test_scalar_atomics_are_done_once():
    arguments = {"out": np.zeros(2, np.int32), "old": np.zeros(80, np.int32)}
    _, found = run_both(counter, arguments, {"N": 10}, grid=(8,))
    assert found["out"][0] == 80 and np.array_equal(found["old"], np.arange(1, 81))


# Products ----------------------------------------------------------------------------------------


@tilewright.jit
def product(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr
):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    if TRANSPOSED:
        y = tl.trans(tl.load(b + n[:, None] * K + k[None, :]))
    else:
        y = tl.load(b + k[:, None] * N + n[None, :])
    i = m[:, None] * N + n[None, :]
    tl.store(c + i, tl.dot(x, y, tl.load(c + i), input_precision=PRECISION))


KINDS = {
    "f16": (np.float16, np.float32), "bf16": (ml_dtypes.bfloat16, np.float32), "f32": (np.float32, np.float32),
    "f64": (np.float64, np.float64), "int8": (np.int8, np.int32), "e4m3": (ml_dtypes.float8_e4m3fn, np.float32),
    "e5m2": (ml_dtypes.float8_e5m2, np.float32), "f16h": (np.float16, np.float16),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(16, 16, 16), (64, 32, 64), (32, 128, 32), (128, 64, 128), (16, 8, 32), (2, 4, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products(kind, shape, transposed, rng):
    (rows, columns, depth), (inner, outer) = shape, KINDS[kind]
    a = draw(rng, (rows, depth), inner, -4, 5)
    b = draw(rng, (columns, depth) if transposed else (depth, columns), inner, -4, 5)
    c = draw(rng, (rows, columns), outer, -4, 5)
    constants = {"M": rows, "N": columns, "K": depth, "PRECISION": "tf32", "TRANSPOSED": transposed}
    exact = a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64) + c.astype(np.float64)
    for warps in (1, 4, 8):
        _, found = run_both(product, {"a": a, "b": b, "c": c}, constants, warps=warps)
        assert np.array_equal(found["c"].astype(np.float64), exact.astype(outer).astype(np.float64))


ERRORS = {"ieee": 3e-7, "tf32": 1e-3, "tf32x3": 3e-6, "bf16x3": 4e-5, "bf16x6": 1e-6}


@pytest.mark.parametrize("precision", ERRORS)
def test_precision_of_products(precision, rng):
    a, b = rng.normal(size=(64, 128)).astype(np.float32), rng.normal(size=(128, 64)).astype(np.float32)
    constants = {"M": 64, "N": 64, "K": 128, "PRECISION": precision, "TRANSPOSED": False}
    _, found = run_both(product, {"a": a, "b": b, "c": np.zeros((64, 64), np.float32)}, constants)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(found["c"] - exact) / np.linalg.norm(exact)
    assert error < ERRORS[precision]


@tilewright.jit
def looped_product(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANSPOSED: tl.constexpr,
                   STAGES: tl.constexpr, PRECISION: tl.constexpr = "tf32"):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    pa = a + rows[:, None] * k + inner[None, :]
    pb = b + columns[:, None] * k + inner[None, :] if TRANSPOSED else b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK, num_stages=STAGES):
        left = k - start
        x = tl.load(pa, mask=(rows[:, None] < m) & (inner[None, :] < left), other=0.0)
        if TRANSPOSED:
            y = tl.trans(tl.load(pb, mask=(columns[:, None] < n) & (inner[None, :] < left), other=0.0))
        else:
            y = tl.load(pb, mask=(inner[:, None] < left) & (columns[None, :] < n), other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        pa += BK
        pb += BK if TRANSPOSED else BK * n
    place = rows[:, None] * n + columns[None, :]
    tl.store(c + place, total, mask=(rows[:, None] < m) & (columns[None, :] < n))


def check_loop(kind, sizes, constants, warps, rng):
    """A looped product of small integers, which is exact; rows that are multiples of 16 are known as such."""
    (m, n, k), inner = sizes, KINDS[kind][0]
    a = draw(rng, (m, k), inner, -4, 5)
    b = draw(rng, (n, k) if constants["TRANSPOSED"] else (k, n), inner, -4, 5)
    found = run_loop(a, b, sizes, constants, warps)
    exact = a.astype(np.float64) @ (b.T if constants["TRANSPOSED"] else b).astype(np.float64)
    assert np.array_equal(found, exact), (sizes, warps)


def run_loop(a, b, sizes, constants, warps):
    m, n, k = sizes
    arguments = {"a": a, "b": b, "c": np.zeros((m, n), np.float32), "m": m, "n": n, "k": k}
    function = looped_product.trace(
        {name: type_text(argument) for name, argument in arguments.items()},
        constants,
        {name: Parameter(name, 16 if isinstance(value, np.ndarray) or value % 16 == 0 else 1)
         for name, value in arguments.items()},
    )  # fmt: skip
    grid = (-(-m // constants["BM"]), -(-n // constants["BN"]))
    return run_on_gpu(function, list(arguments.values()), grid, warps)[2]


def loop_constants(shape, transposed, stages, **more):
    block_m, block_n, block_k = shape
    return {"BM": block_m, "BN": block_n, "BK": block_k, "TRANSPOSED": transposed, "STAGES": stages, **more}


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "e4m3"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("shape", [(64, 64, 32), (128, 64, 64), (32, 32, 32)])
def test_products_in_loops(kind, transposed, stages, shape, rng):
    """Copied ahead where the rows are aligned; sizes that no block divides."""
    for sizes in ((96, 80, 208), (33, 70, 51), (64, 64, 16)):
        for warps in (4, 8):
            check_loop(kind, sizes, loop_constants(shape, transposed, stages), warps, rng)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(
    ("kind", "shape", "warps"),
    [("f32", (128, 128, 16), 8), ("f32", (64, 128, 32), 4), ("f32", (64, 64, 32), 2), ("f32", (32, 64, 64), 4),
     ("f32", (16, 32, 128), 4), ("f32", (4, 256, 32), 1), ("f32", (128, 4, 16), 8), ("f32", (128, 128, 32), 2),
     ("f16", (8, 64, 32), 4), ("e4m3", (8, 32, 32), 2)],
)  # fmt: skip
def test_products_by_multiply_add_in_loops(kind, shape, warps, transposed, stages, rng):
    for sizes in ((160, 144, 208), (33, 70, 51), (64, 64, 16)):
        check_loop(kind, sizes, loop_constants(shape, transposed, stages, PRECISION="ieee"), warps, rng)


@pytest.mark.parametrize("stages", [1, 3])
def test_sums_of_float32_are_no_single_chain(stages, rng):
    """Over 4,096 results, so that the mean error says how terms were added, and not which they were."""
    depth = 4096
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((64, depth), (depth, 64)))
    found = run_loop(a, b, (64, 64, depth), loop_constants((64, 64, 32), False, stages, PRECISION="ieee"), 4)
    chain = np.zeros((64, 64), np.float32)
    for step in range(depth):
        chain = (chain + np.multiply.outer(a[:, step].astype(np.float64), b[step])).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(found - exact) < 0.4 * np.linalg.norm(chain - exact)


@tilewright.jit
def row_softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + c, mask=c < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * columns + c, (e / tl.sum(e, axis=0)).to(out.dtype.element_ty), mask=c < columns)


@pytest.mark.parametrize("columns", [33, 1000, 4096])
@pytest.mark.parametrize("warps", [1, 4, 16])
def test_softmax_rows(columns, warps, rng):
    x = rng.normal(size=(7, columns)).astype(np.float32)
    constants = {"BLOCK": tilewright.next_power_of_2(columns)}
    expected, found = run_both(
        row_softmax, {"x": x, "out": np.zeros_like(x), "columns": columns}, constants, (7,), warps
    )
    assert np.abs(expected["out"] - found["out"]).max() < 1e-6
