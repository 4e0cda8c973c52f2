"""The CPU lowering against the interpreter on blocks of realistic sizes: masks, reductions, layouts, loops."""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
import tilewright.language as tl
from tests.host.kernel_support import check, lowered
from tilewright.dtypes import BY_TEXT
from tilewright.ir.core import Parameter
from tilewright.runtime.memory import scratch_pool

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64, "i32": np.int32,
         "i8": np.int8, "u8": np.uint8, "i64": np.int64}  # fmt: skip
TOLERANCE = {"f32": 3e-6, "f16": 2e-3, "bf16": 2e-2, "f64": 1e-12}


def draw(shape, text="f32", seed=0):
    """Random numbers of a few magnitudes."""
    generator = np.random.default_rng(seed)
    if text[0] in "iu":
        return generator.integers(0 if text[0] == "u" else -50, 50, shape).astype(NUMPY[text])
    return generator.normal(size=shape).astype(NUMPY[text])


def traced(kernel, types, constants, alias_free=()):
    return kernel.trace(types, constants, {name: Parameter(name, 1, True) for name in alias_free})


# Elementwise ---------------------------------------------------------------------------------------


@tilewright.jit
def chain(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    a = tl.load(x + i, mask=inside)
    b = tl.load(y + i, mask=inside, other=1)
    tl.store(out + i, tl.where(a > b, a + b * 2, a - b), mask=inside)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 700), st.sampled_from([1, 3, 16, 33, 100, 128, 256]), st.sampled_from(sorted(NUMPY)))
def test_masked_chain(n, block, text):
    function = traced(chain, {"x": f"*{text}", "y": f"*{text}", "out": f"*{text}", "n": "i32"}, {"BLOCK": block})
    arguments = [draw(n, text, 1), draw(n, text, 2), np.zeros(n, NUMPY[text]), n]
    check(function, arguments, (-(-n // block),), TOLERANCE.get(text, 0))


@tilewright.jit
def outer(x, y, out, rows, columns, stride, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    a = tl.load(x + r, mask=r < rows)
    b = tl.exp(tl.load(y + c, mask=c < columns))
    value = a[:, None] * b[None, :] + r[:, None]
    tl.store(out + r[:, None] * stride + c[None, :], value, mask=(r[:, None] < rows) & (c[None, :] < columns))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 90), st.sampled_from([1, 4, 7]), st.sampled_from([16, 24, 64]))
def test_broadcast_of_rows_and_columns(rows, columns, r, c):
    types = {"x": "*f32", "y": "*f32", "out": "*f32", "rows": "i32", "columns": "i32", "stride": "i32"}
    function = traced(outer, types, {"R": r, "C": c})
    arguments = [draw(rows), draw(columns, seed=1), np.zeros((rows, columns + 3), np.float32), rows, columns]
    check(function, [*arguments, columns + 3], (-(-rows // r), -(-columns // c)))


@tilewright.jit
def transpose(x, out, rows, columns, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    value = tl.load(x + r * columns + c, mask=(r < rows) & (c < columns))
    moved = tl.trans(value * 2.0)
    across = tl.program_id(0) * R + tl.arange(0, R)[None, :]
    down = tl.program_id(1) * C + tl.arange(0, C)[:, None]
    tl.store(out + down * rows + across, moved, mask=(across < rows) & (down < columns))


@pytest.mark.parametrize("text", ["f32", "u8"])
@pytest.mark.parametrize(
    "rows,columns,r,c", [(64, 64, 32, 32), (50, 37, 32, 16), (5, 100, 8, 64), (33, 18, 16, 16), (32, 45, 16, 64)]
)
def test_transposed_store(rows, columns, r, c, text):
    types = {"x": f"*{text}", "out": f"*{text}", "rows": "i32", "columns": "i32"}
    function = traced(transpose, types, {"R": r, "C": c})
    numbers = draw((rows, columns)) if text == "f32" else np.arange(rows * columns, dtype=np.int32) % 127
    x = numbers.reshape(rows, columns).astype(np.float32 if text == "f32" else np.uint8)
    arguments = [x, np.zeros((columns, rows), x.dtype), rows, columns]
    found = check(function, arguments, (-(-rows // r), -(-columns // c)))
    np.testing.assert_array_equal(found[1], arguments[0].T * 2)


@tilewright.jit
def irregular(x, table, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    where = tl.load(table + i, mask=i < n)
    picked = tl.load(x + where, mask=(i < n) & (where % 3 != 0), other=-1.0)
    backward = tl.load(x + (n - 1 - i), mask=i < n)
    strided = tl.load(x + (i // 4) * 4 + i % 4, mask=i < n)
    halves = tl.load(x + i // 2, mask=i < n)
    tl.store(out + where, picked + backward * strided + halves, mask=i < n)


@pytest.mark.parametrize("n,block", [(128, 128), (77, 128), (16, 16), (3, 64)])
def test_gathers_and_scatters(n, block):
    function = traced(irregular, {"x": "*f32", "table": "*i32", "out": "*f32", "n": "i32"}, {"BLOCK": block})
    table = np.random.default_rng(0).permutation(n).astype(np.int32)
    check(function, [draw(n), table, np.zeros(n, np.float32), n])


@tilewright.jit
def looked_up(x, places, out, TABLE: tl.constexpr, N: tl.constexpr, MASK: tl.constexpr):
    i = tl.arange(0, N)
    index = tl.load(places + i)
    if MASK:
        index = index & MASK
    tl.store(out + i, tl.gather(tl.load(x + tl.arange(0, TABLE)), index, 0))
    tl.store(out + N + i, tl.gather(tl.load(x + tl.arange(0, TABLE)), tl.full((N,), TABLE - 1, tl.int32), 0))


@pytest.mark.parametrize(
    ("table", "count", "types", "mask"),
    [
        (16, 64, ("f32", "u32"), 15), (16, 40, ("f32", "i64"), 15), (5, 3, ("i32", "u8"), 0),
        (8, 33, ("u32", "i16"), 7), (16, 24, ("f32", "i32"), 0), (17, 32, ("f32", "i32"), 0),
        (16, 32, ("f64", "u8"), 31), (16, 16, ("f16", "i8"), 0),
    ],
    ids=str,
)  # fmt: skip
def test_gathers_from_tables(table, count, types, mask, rng):
    """Small ones are in a register with AVX-512, whatever the type of the indices."""
    values, integers = (BY_TEXT[name].numpy for name in types)
    pointers = {"x": f"*{types[0]}", "places": f"*{types[1]}", "out": f"*{types[0]}"}
    function = traced(looked_up, pointers, {"TABLE": table, "N": count, "MASK": mask})
    places = rng.integers(0, table, count).astype(integers)
    if mask == 15:
        places = places + (rng.integers(0, 8, count) * 16).astype(integers)
    check(function, [rng.integers(-99, 99, table).astype(values), places, np.zeros(2 * count, values)])


@tilewright.jit
def rearranged(x, out):
    block = tl.load(x + tl.arange(0, 256))
    square = tl.reshape(block, (4, 8, 8))
    turned = tl.permute(square, (1, 0, 2))
    flat = tl.reshape(turned, (8, 32))
    even, odd = tl.split(tl.reshape(flat, (8, 16, 2)))
    tl.store(out + tl.arange(0, 8)[:, None] * 32 + tl.arange(0, 32)[None, :], flat)
    pair = tl.reshape(tl.join(odd, even), (256,))
    tl.store(out + 256 + tl.arange(0, 256), pair)
    both = tl.cat(block, pair, dim=0)
    tl.store(out + 512 + tl.arange(0, 512), both)


def test_reshape_permute_join_split_cat():
    check(traced(rearranged, {"x": "*f32", "out": "*f32"}, {}), [draw(256), np.zeros(1024, np.float32)])


# Reductions ----------------------------------------------------------------------------------------


@tilewright.jit
def softmax(x, out, rows, columns, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    inside = (r < rows) & (c < columns)
    value = tl.load(x + r * columns + c, mask=inside, other=float("-inf"))
    weights = tl.exp(value - tl.max(value, 1)[:, None])
    tl.store(out + r * columns + c, weights / tl.sum(weights, 1)[:, None], mask=inside)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(1, 300), st.sampled_from([1, 2, 8]))
def test_softmax(rows, columns, r):
    extent = 1 << (columns - 1).bit_length() if columns % 2 else columns
    function = traced(softmax, {"x": "*f32", "out": "*f32", "rows": "i32", "columns": "i32"}, {"R": r, "C": extent})
    check(function, [draw((rows, columns)), np.zeros((rows, columns), np.float32), rows, columns], (-(-rows // r),))


@tilewright.jit
def moments(x, scale, bias, out, mean_out, rows, columns, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    value = tl.load(x + r[:, None] * columns + c[None, :], mask=inside).to(tl.float32)
    mean = tl.sum(value, 1) / columns
    centred = tl.where(inside, value - mean[:, None], 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / columns + 1e-5)
    gain = tl.load(scale + c, mask=c < columns)
    shift = tl.load(bias + c, mask=c < columns)
    result = centred * factor[:, None] * gain[None, :] + shift[None, :]
    tl.store(out + r[:, None] * columns + c[None, :], result, mask=inside)
    tl.store(mean_out + r, mean, mask=r < rows)


@pytest.mark.parametrize("promise", [False, True])
@pytest.mark.parametrize("rows,columns,r,c", [(7, 100, 4, 128), (16, 64, 8, 64), (3, 7, 1, 8), (5, 384, 5, 384)])
def test_layer_norm(rows, columns, r, c, promise):
    pointers = ("x", "scale", "bias", "out", "mean_out")
    types = {name: "*f32" for name in pointers} | {"rows": "i32", "columns": "i32"}
    function = traced(moments, types, {"R": r, "C": c}, pointers if promise else ())
    arguments = [draw((rows, columns)), draw(columns, seed=1), draw(columns, seed=2)]
    arguments += [np.zeros((rows, columns), np.float32), np.zeros(rows, np.float32), rows, columns]
    check(function, arguments, (-(-rows // r),), 1e-5)


@tilewright.jit
def along_axes(x, down, across, largest, where, A: tl.constexpr, B: tl.constexpr):
    a = tl.arange(0, A)
    b = tl.arange(0, B)
    value = tl.load(x + a[:, None] * B + b[None, :])
    tl.store(down + b, tl.sum(value, 0))
    tl.store(across + a, tl.min(value, 1))
    tl.store(largest + b, tl.max(tl.abs(value), 0))
    tl.store(where + a, tl.argmax(value, 1))


@pytest.mark.parametrize("a,b", [(16, 64), (3, 5), (64, 1), (1, 100), (50, 48), (7, 200)])
def test_reductions_along_both_axes(a, b):
    types = {"x": "*f32", "down": "*f32", "across": "*f32", "largest": "*f32", "where": "*i32"}
    arguments = [draw((a, b)), np.zeros(b, np.float32), np.zeros(a, np.float32), np.zeros(b, np.float32)]
    check(traced(along_axes, types, {"A": a, "B": b}), [*arguments, np.zeros(a, np.int32)], tolerance=1e-5)


@tilewright.jit
def running(x, out, A: tl.constexpr, B: tl.constexpr, REVERSE: tl.constexpr):
    offset = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    value = tl.load(x + offset)
    tl.store(out + offset, tl.cumsum(value, 0, reverse=REVERSE) + tl.cumsum(value, 1, reverse=REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("a,b", [(8, 32), (5, 7), (2, 64)])
def test_scans(a, b, reverse):
    function = traced(running, {"x": "*f32", "out": "*f32"}, {"A": a, "B": b, "REVERSE": reverse})
    check(function, [draw((a, b)), np.zeros((a, b), np.float32)], tolerance=1e-5)


@tilewright.jit
def plus(a, b):
    return a + b


@tilewright.jit
def times(a, b):
    return a * b


@tilewright.jit
def larger(a, b):
    return tl.maximum(a, b)


@tilewright.jit
def either(a, b):
    return a | b


@tilewright.jit
def line_of(x, out, step, B: tl.constexpr, COMBINE: tl.constexpr, REVERSE: tl.constexpr):
    place = tl.arange(0, B) * step
    value = tl.load(x + place, mask=place % 5 != 3, other=1)
    tl.store(out + tl.arange(0, B), tl.associative_scan(value, 0, COMBINE, reverse=REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length,step", [(4, 1), (16, 3), (48, 1), (50, 1), (256, 2)])
@pytest.mark.parametrize("kind", ["f32", "f64", "i32", "i16", "i64"])
def test_scans_along_the_last_axis(kind, length, step, reverse):
    """Vectors along the axis, in both directions: exact where the order of combinations cannot matter."""
    kernels = [plus, times, larger] if kind.startswith("f") else [plus, times, larger, either]
    for combine in kernels:
        types = {"x": f"*{kind}", "out": f"*{kind}", "step": "i32"}
        function = traced(line_of, types, {"B": length, "COMBINE": combine, "REVERSE": reverse})
        dtype = {"f": "float", "i": "int"}[kind[0]] + kind[1:]
        x = draw(length * step).astype(dtype) if kind[0] == "f" else (draw(length * step) * 1000).astype(dtype)
        if combine is times and kind[0] == "f":
            x = np.exp(x / 8).astype(dtype)
        check(function, [x, np.zeros(length, dtype), step], tolerance=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_special_numbers(reverse):
    x = np.full(64, -0.0, np.float32)
    x[[7, 30]], x[40] = np.inf, np.nan
    for combine in (plus, larger):
        constants = {"B": 64, "COMBINE": combine, "REVERSE": reverse}
        function = traced(line_of, {"x": "*f32", "out": "*f32", "step": "i32"}, constants)
        check(function, [x, np.zeros(64, np.float32), 1])


@pytest.mark.parametrize("length", [32, 128])
def test_scans_of_narrow_floats_round_every_sum_in_turn(length):
    constants = {"B": length, "COMBINE": plus, "REVERSE": False}
    function = traced(line_of, {"x": "*bf16", "out": "*bf16", "step": "i32"}, constants)
    x = draw(length).astype(ml_dtypes.bfloat16)
    check(function, [x, np.zeros_like(x), 1], tolerance=0)


# Memory order --------------------------------------------------------------------------------------


@tilewright.jit
def shifted(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    before = tl.load(x + i, mask=i < n)
    tl.store(x + i + 1, before, mask=i < n)
    after = tl.load(x + i, mask=i < n)
    tl.store(x + i, after + before, mask=i < n)


@pytest.mark.parametrize("n,block", [(64, 64), (50, 64), (5, 8), (200, 256)])
def test_overlapping_stores_see_what_was_loaded_before(n, block):
    check(traced(shifted, {"x": "*f32", "n": "i32"}, {"BLOCK": block}), [draw(n + 1), n])


@tilewright.jit
def reversed_in_place(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + (N - 1 - i))
    tl.store(y + i, value)
    tl.store(y + (N - 1 - i), value * 2.0, mask=i < N // 4)


def test_permutation_of_memory_that_may_be_the_same():
    data = draw(64)
    check(traced(reversed_in_place, {"x": "*f32", "y": "*f32"}, {"N": 64}), [data, data.copy()])
    function = traced(reversed_in_place, {"x": "*f32", "y": "*f32"}, {"N": 64})
    from tests.host.kernel_support import run_compiled

    run_compiled(function, [data, data])
    reference = draw(64)[::-1].copy()
    reference[48:] = reference[:16][::-1] * 2
    np.testing.assert_array_equal(data, reference)


# Loops ---------------------------------------------------------------------------------------------


@tilewright.jit
def exchanged(x, y, out, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    for step in range(steps):
        a, b = b, a + b * 0.5
        if step % 2 == 1:
            a = a * 1.5
    while tl.sum(a, 0) > 1.0:
        a = a * 0.5
        b = b + a
    tl.store(out + i, a)
    tl.store(out + N + i, b)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("n", [8, 48, 128])
def test_carried_blocks_that_change_places(n, steps):
    function = traced(exchanged, {"x": "*f32", "y": "*f32", "out": "*f32", "steps": "i32"}, {"N": n})
    check(function, [draw(n), draw(n, seed=1), np.zeros(2 * n, np.float32), steps], tolerance=1e-5)


@tilewright.jit
def folded(x, out, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    state = tl.zeros((N,), tl.float32)
    for step in range(steps):
        mixed = tl.load(x + step * N * N + i[:, None] * N + i[None, :])
        state = tl.sum(tl.where((i == step)[:, None], mixed, mixed * state[None, :] - state[:, None]), 0)
    tl.store(out + i, state)


@pytest.mark.parametrize("n", [8, 32])
def test_a_carried_block_that_is_replaced_by_a_reduction_over_it(n):
    function = traced(folded, {"x": "*f32", "out": "*f32", "steps": "i32"}, {"N": n})
    check(function, [draw((3, n, n)), np.zeros(n, np.float32), 3], tolerance=1e-5)


@tilewright.jit
def product(a, b, c, rows, columns, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TRANSPOSED: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    left = a + r[:, None] * depth + k[None, :]
    right = b + n[None, :] * depth + k[:, None] if TRANSPOSED else b + k[:, None] * columns + n[None, :]
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, depth, K):
        here = start + k < depth
        x = tl.load(left, mask=(r[:, None] < rows) & here[None, :], other=0.0)
        y = tl.load(right, mask=here[:, None] & (n[None, :] < columns), other=0.0)
        acc = tl.dot(x, y, acc)
        left += K
        right += K if TRANSPOSED else K * columns
    result = tl.maximum(acc, 0.0).to(c.dtype.element_ty)
    tl.store(c + r[:, None] * columns + n[None, :], result, mask=(r[:, None] < rows) & (n[None, :] < columns))


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.booleans(), st.sampled_from(["f32", "bf16", "f16"])
)
def test_product_with_pointers_that_move(rows, columns, depth, transposed, text):
    types = {"a": f"*{text}", "b": f"*{text}", "c": "*f32", "rows": "i32", "columns": "i32", "depth": "i32"}
    function = traced(product, types, {"M": 32, "N": 32, "K": 16, "TRANSPOSED": transposed})
    arguments = [draw((rows, depth), text), draw((columns, depth) if transposed else (depth, columns), text, 1)]
    arguments += [np.zeros((rows, columns), np.float32), rows, columns, depth]
    check(function, arguments, (-(-rows // 32), -(-columns // 32)), 1e-5)


@tilewright.jit
def attention(q, k, v, out, queries, keys, D: tl.constexpr, S: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):
    s = tl.program_id(0) * S + tl.arange(0, S)
    d = tl.arange(0, D)
    query = tl.load(q + s[:, None] * D + d[None, :], mask=s[:, None] < queries) * 0.25
    largest = tl.full((S,), float("-inf"), tl.float32)
    total = tl.zeros((S,), tl.float32)
    acc = tl.zeros((S, D), tl.float32)
    for start in range(0, keys, T):
        t = start + tl.arange(0, T)
        key = tl.load(k + t[None, :] * D + d[:, None], mask=t[None, :] < keys)
        scores = tl.dot(query, key)
        seen = t[None, :] < keys
        if CAUSAL:
            seen = seen & (t[None, :] <= s[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp(largest - new)
        weights = tl.exp(scores - new[:, None])
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(v + t[:, None] * D + d[None, :], mask=t[:, None] < keys)
        acc = tl.dot(weights, value, acc * shrink[:, None])
        largest = new
    tl.store(out + s[:, None] * D + d[None, :], acc / total[:, None], mask=s[:, None] < queries)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries,keys,d", [(32, 64, 32), (20, 45, 64), (1, 5, 16), (70, 70, 8)])
def test_attention(queries, keys, d, causal):
    types = {"q": "*f32", "k": "*f32", "v": "*f32", "out": "*f32", "queries": "i32", "keys": "i32"}
    function = traced(attention, types, {"D": d, "S": 32, "T": 16, "CAUSAL": causal})
    arguments = [draw((queries, d)), draw((keys, d), seed=1), draw((keys, d), seed=2)]
    arguments += [np.zeros((queries, d), np.float32), queries, keys]
    check(function, arguments, (-(-queries // 32),), 1e-5)


@tilewright.jit
def batched(a, b, c, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, B)[:, None, None]
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    x = tl.load(a + i * (M * K) + m[None, :, None] * K + k[None, None, :])
    y = tl.load(b + i * (K * N) + k[None, :, None] * N + n[None, None, :])
    tl.store(c + i * (M * N) + m[None, :, None] * N + n[None, None, :], tl.dot(x, y + 1.0))


def test_batched_product():
    arguments = [draw((3, 8, 16)), draw((3, 16, 32), seed=1), np.zeros((3, 8, 32), np.float32)]
    check(traced(batched, {"a": "*f32", "b": "*f32", "c": "*f32"}, {"B": 3, "M": 8, "N": 32, "K": 16}), arguments)


@tilewright.jit
def counted(x, counts, total, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.atomic_add(counts + value, 1, mask=value >= 0)
    tl.atomic_max(total, tl.sum(value, 0))
    old = tl.atomic_cas(total + 1, 0, 7)
    tl.store(total + 2, old)


def test_atomics():
    random.seed(0)
    values = np.array([random.randint(-3, 9) for _ in range(64)], np.int32)
    arguments = [values, np.zeros(16, np.int32), np.zeros(4, np.int32)]
    check(traced(counted, {"x": "*i32", "counts": "*i32", "total": "*i32"}, {"N": 64}), arguments)


@tilewright.jit
def stores_again(x, n, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    inside = (r < K)[:, None] & (c < (WIDE if WIDE else n))[None, :]
    for step in range(n):
        at = x + step.to(tl.int64) * (K * C) + r[:, None] * C + c[None, :]
        tl.store(at, tl.zeros((R, C), tl.float32) + step, mask=inside)


@pytest.mark.parametrize("wide", [0, 32, 20])
def test_a_mask_that_a_loop_reads_again_is_whole(wide, rng):
    """The rows that a mask leaves out are false in it, not whatever its buffer held."""
    function = traced(stores_again, {"x": "*f32", "n": "i32"}, {"K": 24, "R": 64, "C": 32, "WIDE": wide})
    with scratch_pool.borrow(1 << 16) as buffer:  # which the kernel gets next
        ctypes.memset(buffer.address, 1, 1 << 16)
    check(function, [rng.normal(size=(3, 24, 32)).astype(np.float32), 3], (1,))


@tilewright.jit
def channels(x, factors, out, length, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    factor = tl.load(factors + i // length + 1, mask=i < n, other=0.0)
    tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


@pytest.mark.parametrize("length", [1, 3, 16, 20, 64, 100, 1000])
def test_factors_of_channels_whose_length_is_known_when_they_run(length):
    """Lanes of one channel, of a few, and each of its own."""
    n = 777
    function = traced(
        channels, {"x": "*f32", "factors": "*f32", "out": "*f32", "length": "i32", "n": "i32"}, {"BLOCK": 256}
    )
    assert "masked.gather" in lowered(function).text and "mostly.together" in lowered(function).text
    check(function, [draw(n), draw(n // length + 2), np.zeros(n, np.float32), length, n], (-(-n // 256),))


@tilewright.jit
def wrapped_rows(x, out, n, stride, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = i // COLUMNS * stride + i % COLUMNS
    tl.store(out + place, tl.load(x + place, mask=i < n) * 2.0, mask=i < n)


@pytest.mark.parametrize("columns", [1, 7, 20, 65, 130])
@pytest.mark.parametrize("gap", [0, 3])
def test_rows_one_after_the_other_or_apart_in_one_block(columns, gap):
    """Vectors inside of a row, over the end of rows that follow each other, and over gaps."""
    rows, stride = 11, columns + gap
    types = {"x": "*f32", "out": "*f32", "n": "i32", "stride": "i32"}
    function = traced(wrapped_rows, types, {"COLUMNS": columns, "BLOCK": 128}, ("x", "out"))
    n = rows * columns
    check(function, [draw((rows, stride)), np.zeros((rows, stride), np.float32), n, stride], (-(-n // 128),))
