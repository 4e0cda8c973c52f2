"""Kernels of the families that people write, interpreted and compiled, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch


@tilewright.jit
def attention_inner(
    acc, total, maximum, q, k, v, first, scale, keys,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    low, high = 0, keys
    if DIAGONAL:
        low, high = first, tl.minimum(first + BLOCK_M, keys)
        low = tl.multiple_of(low, BLOCK_M)
    elif CAUSAL:
        high = first
    rows = first + tl.arange(0, BLOCK_M)
    dim = tl.arange(0, HEAD)
    for start in tl.range(low, high, BLOCK_N, num_stages=2):
        start = tl.multiple_of(start, BLOCK_N)
        columns = start + tl.arange(0, BLOCK_N)
        key = tl.load(k + dim[:, None] + columns[None, :] * HEAD, mask=columns[None, :] < keys, other=0.0)
        scores = tl.dot(q, key) * scale
        visible = columns[None, :] < keys
        if DIAGONAL:
            visible &= rows[:, None] >= columns[None, :]
        scores = tl.where(visible, scores, -1.0e6)
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new_maximum[:, None])
        correction = tl.math.exp2(maximum - new_maximum)
        total = total * correction + tl.sum(weights, 1)
        value = tl.load(v + columns[:, None] * HEAD + dim[None, :], mask=columns[:, None] < keys, other=0.0)
        acc = acc * correction[:, None]
        acc = tl.dot(weights.to(value.dtype), value, acc)
        maximum = new_maximum
    return acc, total, maximum


@tilewright.jit
def attention(
    q, k, v, out, queries, keys, scale,
    CAUSAL: tl.constexpr, HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_M % BLOCK_N == 0)
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    q += head.to(tl.int64) * queries * HEAD
    k += head.to(tl.int64) * keys * HEAD
    v += head.to(tl.int64) * keys * HEAD
    out += head.to(tl.int64) * queries * HEAD
    rows = first + tl.arange(0, BLOCK_M)
    dim = tl.arange(0, HEAD)
    place = rows[:, None] * HEAD + dim[None, :]
    maximum = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0 - 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    scale *= 1.4426950408889634
    block = tl.load(q + place, mask=rows[:, None] < queries, other=0.0)
    acc, total, maximum = attention_inner(
        acc, total, maximum, block, k, v, first, scale, keys, CAUSAL, BLOCK_M, BLOCK_N, HEAD, False
    )
    if CAUSAL:
        acc, total, maximum = attention_inner(
            acc, total, maximum, block, k, v, first, scale, keys, CAUSAL, BLOCK_M, BLOCK_N, HEAD, True
        )
    tl.store(out + place, (acc / total[:, None]).to(out.dtype.element_ty), mask=rows[:, None] < queries)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_flash_attention(causal: bool, dtype: str, rng: np.random.Generator) -> None:
    heads, rows, size = 2, 50, 16
    q, k, v = rng.normal(size=(3, heads, rows, size)).astype(dtype)
    out = np.zeros_like(q)
    grid = (tilewright.cdiv(rows, 32), heads)
    launch(attention, grid, q, k, v, out, rows, rows, 0.25, CAUSAL=causal, HEAD=size, BLOCK_M=32, BLOCK_N=16)
    scores = 0.25 * np.einsum("hmd,hnd->hmn", q.astype(np.float64), k.astype(np.float64))
    if causal:
        scores = np.where(np.tril(np.ones((rows, rows), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, weights @ v.astype(np.float64), atol=2e-3 if dtype == "float16" else 1e-5)


@tilewright.jit
def grouped_product(
    a_pointers, b_pointers, c_pointers, sizes, groups,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    last_end = 0
    for group in range(groups):
        m = tl.load(sizes + group * 3)
        n = tl.load(sizes + group * 3 + 1)
        k = tl.load(sizes + group * 3 + 2)
        columns = tl.cdiv(n, BLOCK)
        tiles = tl.cdiv(m, BLOCK) * columns
        while tile >= last_end and tile < last_end + tiles:
            a = tl.load(a_pointers + group).to(tl.pointer_type(tl.float32))
            b = tl.load(b_pointers + group).to(tl.pointer_type(tl.float32))
            c = tl.load(c_pointers + group).to(tl.pointer_type(tl.float32))
            inside = tile - last_end
            row = inside // columns * BLOCK + tl.arange(0, BLOCK)
            column = inside % columns * BLOCK + tl.arange(0, BLOCK)
            depth = tl.arange(0, BLOCK)
            acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
            for start in range(0, tl.cdiv(k, BLOCK)):
                left = k - start * BLOCK
                a_mask = (row[:, None] < m) & (depth[None, :] < left)
                b_mask = (depth[:, None] < left) & (column[None, :] < n)
                step = start * BLOCK + depth
                a_tile = tl.load(a + row[:, None] * k + step[None, :], mask=a_mask, other=0.0)
                b_tile = tl.load(b + step[:, None] * n + column[None, :], mask=b_mask, other=0.0)
                acc += tl.dot(a_tile, b_tile)
            tl.store(c + row[:, None] * n + column[None, :], acc, mask=(row[:, None] < m) & (column[None, :] < n))
            tile += PROGRAMS
        last_end = last_end + tiles


def test_grouped_products_through_loaded_pointers(rng: np.random.Generator) -> None:
    sizes = np.array([[20, 24, 10], [16, 16, 40], [5, 50, 7]], np.int32)
    triples = [(rng.normal(size=(m, k)), rng.normal(size=(k, n)), np.zeros((m, n))) for m, n, k in sizes]
    triples = [tuple(part.astype(np.float32) for part in triple) for triple in triples]
    addresses = [np.array([triple[i].ctypes.data for triple in triples], np.int64) for i in range(3)]
    grouped_product[(3,)](*addresses, sizes, len(sizes), PROGRAMS=3, BLOCK=16)
    for a, b, c in triples:
        np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


@tilewright.jit
def cross_entropy(logits, labels, losses, columns, ignored, BLOCK: tl.constexpr, SMOOTHING: tl.constexpr):
    row = tl.program_id(0)
    logits += row * columns
    label = tl.load(labels + row)
    if label == ignored:
        tl.store(losses + row, 0.0)
        return
    maximum, total, every = float("-inf"), 0.0, 0.0
    picked = tl.load(logits + label).to(tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        inside = offsets < columns
        block = tl.load(logits + offsets, mask=inside, other=float("-inf")).to(tl.float32)
        block_maximum = tl.max(block)
        if SMOOTHING > 0:
            every += tl.sum(tl.where(inside, block, 0.0))
        new_maximum = tl.maximum(maximum, block_maximum)
        total = total * tl.exp(maximum - new_maximum) + tl.sum(tl.exp(block - new_maximum))
        maximum = new_maximum
    log_sum = maximum + tl.log(total)
    loss = log_sum - picked
    if SMOOTHING > 0:
        loss = loss * (1 - SMOOTHING) + SMOOTHING * (log_sum - every / columns)
    tl.store(losses + row, loss)
    tl.debug_barrier()
    for start in range(0, columns, BLOCK):  # the gradient replaces the logits
        offsets = start + tl.arange(0, BLOCK)
        inside = offsets < columns
        block = tl.load(logits + offsets, mask=inside, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(block - log_sum) - SMOOTHING / columns
        gradient -= tl.where(offsets == label, 1 - SMOOTHING, 0.0)
        tl.store(logits + offsets, gradient, mask=inside)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cross_entropy_in_place(smoothing: float, dtype: str, rng: np.random.Generator) -> None:
    logits = rng.normal(size=(7, 300)).astype(dtype)
    labels = rng.integers(0, 300, 7)
    labels[3] = -100
    losses, gradients = np.zeros(7, np.float32), logits.copy()
    launch(cross_entropy, (7,), gradients, labels, losses, 300, -100, BLOCK=128, SMOOTHING=smoothing)
    wide = logits.astype(np.float64)
    log_sum = np.log(np.exp(wide).sum(1))
    picked = wide[np.arange(7), labels]
    expected = (log_sum - picked) * (1 - smoothing) + smoothing * (log_sum - wide.mean(1))
    expected[3] = 0
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-4)
    gradient = np.exp(wide - log_sum[:, None]) - smoothing / 300
    gradient[np.arange(7), labels] -= 1 - smoothing
    gradient[3] = wide[3]
    np.testing.assert_allclose(gradients, gradient, atol=2e-3 if dtype == "float16" else 1e-5)


@tilewright.jit
def rope(x, cosines, sines, size, HALF: tl.constexpr, HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * HEADS * size
    half = size // 2
    i, head = tl.arange(0, HALF), tl.arange(0, HEAD_BLOCK)
    mask = (head[:, None] < HEADS) & (i[None, :] < half)
    cosine = tl.load(cosines + row * half + i, mask=i < half)
    sine = tl.load(sines + row * half + i, mask=i < half)
    first = x + head[:, None] * size + i[None, :]
    second = first + half
    left, right = tl.load(first, mask=mask), tl.load(second, mask=mask)
    tl.store(first, left * cosine - right * sine, mask=mask)
    tl.store(second, right * cosine + left * sine, mask=mask)


def test_rotary_embedding_in_place(rng: np.random.Generator) -> None:
    x = rng.normal(size=(5, 3, 24)).astype(np.float32)
    angles = rng.uniform(0, 7, (5, 12))
    cosines, sines, out = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), x.copy()
    launch(rope, (5,), out, cosines, sines, 24, HALF=16, HEADS=3, HEAD_BLOCK=4)
    left, right = x[..., :12].astype(np.float64), x[..., 12:].astype(np.float64)
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    np.testing.assert_allclose(out, np.concatenate([left * c - right * s, right * c + left * s], -1), atol=1e-5)


@tilewright.jit
def gelu(x):
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + tl.math.tanh(inner))


@tilewright.jit
def gated(gate, up, out, columns, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    g = tl.load(gate + row * columns + i, mask=i < columns, other=0).to(tl.float32)
    u = tl.load(up + row * columns + i, mask=i < columns, other=0)
    activated = gelu(g) if ACTIVATION == "gelu" else g * tl.sigmoid(g)
    tl.store(out + row * columns + i, activated.cast(u.dtype) * u, mask=i < columns)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gated_activations(activation: str, dtype: str, rng: np.random.Generator) -> None:
    kind = tl.bfloat16.element.numpy if dtype == "bfloat16" else np.dtype(dtype)
    gate, up = rng.normal(size=(2, 4, 100)).astype(kind)
    out = np.zeros_like(gate)
    launch(gated, (4,), gate, up, out, 100, ACTIVATION=activation, BLOCK=128)
    g, u = gate.astype(np.float64), up.astype(np.float64)
    tanh = np.tanh(0.7978845608028654 * (g + 0.044715 * g**3))
    expected = u * (0.5 * g * (1 + tanh) if activation == "gelu" else g / (1 + np.exp(-g)))
    # bfloat16 has 8 bits, and both the activation and the product are rounded to it.
    tolerance = {"rtol": 2**-7 * 1.01, "atol": 1e-6} if dtype == "bfloat16" else {"atol": 1e-5}
    np.testing.assert_allclose(out.astype(np.float64), expected, **tolerance)


@tilewright.jit
def quantise(x, out, scales, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    block = tl.load(x + row * columns + i, mask=i < columns, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(block), axis=0), 1e-8) / 127.0
    rounded = tl.math.rint(block / scale)
    tl.store(out + row * columns + i, tl.clamp(rounded, -127.0, 127.0).to(tl.int8), mask=i < columns)
    tl.store(scales + row, scale)


def test_quantisation(rng: np.random.Generator) -> None:
    x = rng.normal(size=(6, 50)).astype(np.float32)
    out, scales = np.zeros((6, 50), np.int8), np.zeros(6, np.float32)
    launch(quantise, (6,), x, out, scales, 50, BLOCK=64)
    np.testing.assert_allclose(scales, abs(x).max(1) / 127, rtol=1e-6)
    assert np.abs(out * scales[:, None] - x).max() <= scales.max() * 0.51


@tilewright.jit
def embedding_gradient(indices, gradients, table, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    target = tl.load(indices + row)
    value = tl.load(gradients + row * columns + i, mask=i < columns)
    tl.atomic_add(table + target * columns + i, value, mask=i < columns, sem="relaxed")


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_scattered_addition(dtype: str, rng: np.random.Generator) -> None:
    indices = rng.integers(0, 4, 20)
    gradients = rng.integers(-5, 5, (20, 30)).astype(dtype)
    table = np.zeros((4, 30), dtype)
    launch(embedding_gradient, (20,), indices, gradients, table, 30, BLOCK=32)
    expected = np.zeros((4, 30))
    np.add.at(expected, indices, gradients.astype(np.float64))
    np.testing.assert_array_equal(table, expected)


@tilewright.jit
def first_order(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@tilewright.jit
def recurrence(a, b, out, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    _, result = tl.associative_scan((tl.load(a + i), tl.load(b + i)), 0, first_order, reverse=REVERSE)
    tl.store(out + i, result)


@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrence_by_scan(reverse: bool, rng: np.random.Generator) -> None:
    a, b = rng.uniform(0.5, 1.0, (2, 64)).astype(np.float32)
    out = np.zeros(64, np.float32)
    launch(recurrence, (1,), a, b, out, N=64, REVERSE=reverse)
    state, expected = 0.0, []
    order = range(63, -1, -1) if reverse else range(64)
    for step in order:
        state = float(a[step]) * state + float(b[step])
        expected.append(state)
    np.testing.assert_allclose(out[list(order)], expected, rtol=1e-5)
