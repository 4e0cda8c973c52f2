"""The Hopper kernels in the interpreter: right at odd sizes in every config, and clean in any order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tilewright
import tilewright.language as tl
from tests.hopper_products import prepare_matmul
from tests.host.hopper_support import (
    ORDERS,
    attention_reference,
    normed,
    traced_attention,
    traced_matmul,
    unit_rows,
)
from tilewright.errors import LaunchError
from tilewright.ir.interpreter import run
from tilewright.ir.verifier import verify
from tilewright.launch.jit import JITFunction
from tilewright.library.attention.hopper.config import ATTENTION_PARAMETERS, AttentionConfig, attention_schedule
from tilewright.library.attention.hopper.kernel import attention
from tilewright.library.attention.simt_kernel import combine_parts
from tilewright.library.hopper import Parameters
from tilewright.library.matmul.hopper.config import MATMUL_PARAMETERS, MatmulConfig
from tilewright.library.matmul.hopper.dequantized_config import DEQUANTIZED_PARAMETERS
from tilewright.library.matmul.hopper.dequantized_kernel import dequantized_matmul
from tilewright.library.matmul.hopper.kernel import matmul
from tilewright.passes.pipeline import simplify
from tilewright.settings import settings

PROCESSORS = 4
PRODUCT = MatmulConfig(BM=128, BN=64, BK=64, STAGES=2, GROUP=2)
NARROW = PRODUCT._replace(BM=64, CONSUMERS=1)
NORMED = NARROW._replace(A_ROWS=8, NORM=unit_rows)
PING_PONG = PRODUCT._replace(BM=64, PING_PONG=True, STAGES=3)
ATTENTION = AttentionConfig(D=64, BN=32, CONSUMERS=2)


@tilewright.jit
def bias_gelu_residual(value, row, column, mask, extra):
    bias, residual, stride = extra
    value = value + tl.load(bias + column, mask=mask)
    value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    return value + tl.load(residual + row * stride + column, mask=mask)


@tilewright.jit
def scaled(value, row, column, mask, extra):
    return value.to(tl.float32) * extra[0]


@tilewright.jit
def scaled_blocks(partial, row, column, stage, extra):
    """Scales of A per row and stage, of B per stage; what lies outside is not stored."""
    return partial * tl.load(extra[1] + row * extra[3] + stage, mask=row < extra[4]) * tl.load(extra[2] + stage)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    kind = dtype.element.numpy
    if np.issubdtype(kind, np.integer):
        return rng.integers(-100, 100, shape).astype(kind)
    return rng.standard_normal(shape).astype(np.float32).astype(kind)


def operands(config: MatmulConfig, rng: np.random.Generator, M: int, N: int, K: int, batches: int) -> list[np.ndarray]:
    """A and B as the config wants them, and their product in float64."""
    lead = (batches,) if config.BATCHED else ()
    a = numbers(rng, (*lead, *((K, M) if config.A_TRANSPOSED else (M, K))), config.INPUT)
    b = numbers(rng, (*lead, *((K, N) if config.B_TRANSPOSED else (N, K))), config.INPUT)
    left = a.astype(np.float64).swapaxes(-1, -2) if config.A_TRANSPOSED else a.astype(np.float64)
    left = left if config.NORM is None else normed(left)
    right = b.astype(np.float64) if config.B_TRANSPOSED else b.astype(np.float64).swapaxes(-1, -2)
    return [a, b, left @ right]


def multiply(config: MatmulConfig, rng: np.random.Generator, M: int, N: int, K: int, batches: int, orders: int) -> None:
    function = simplify(traced_matmul(config))
    verify(function)
    a, b, expected = operands(config, rng, M, N, K, batches)
    for order in range(orders):
        c = np.zeros(expected.shape, config.OUTPUT.element.numpy)
        run(function, [a, b, c, c, M, N, K, batches], config.grid(M, N, batches, PROCESSORS), order=order)
        # Sums of K products in float32, rounded once to the result's type.
        unit = {1: 0.07, 2: 2**-8 if config.OUTPUT == tl.bfloat16 else 2**-11, 4: 0.0}[c.itemsize]
        tolerance = unit * np.abs(expected) + 2e-6 * K * np.abs(a.astype(np.float64)).max() ** 2
        exact = config.OUTPUT == tl.int32
        assert np.all(np.abs(c.astype(np.float64) - expected) <= (0 if exact else tolerance))


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (PRODUCT, (200, 136, 200)),
        (PRODUCT._replace(BN=80, STAGES=3), (130, 168, 136)),
        (PRODUCT._replace(BN=224, STAGES=3), (130, 230, 72)),
        (NARROW._replace(BN=32), (70, 40, 136)),
        (PRODUCT._replace(BM=192, CONSUMERS=3, BN=32), (200, 40, 136)),
        (PRODUCT._replace(BM=256, BN=32), (300, 40, 136)),
        (PRODUCT._replace(SHARE_B=2), (300, 72, 136)),
        (PRODUCT._replace(SHARE_A=2), (300, 200, 136)),
        (NARROW._replace(SPLIT=2), (64, 72, 264)),
        (NARROW._replace(SPLIT=2, BN=112, STAGES=4), (50, 120, 264)),
        (PRODUCT._replace(SPLIT=2, STAGES=4, SHARE_B=2), (200, 120, 264)),
        (NARROW._replace(SPLIT=4, BN=32), (33, 40, 520)),
        (NARROW._replace(A_ROWS=8), (5, 120, 264)),
        (NARROW._replace(A_ROWS=16, SPLIT=2, STAGES=8, DEPENDENT=True, EVICT_B="evict_first"), (16, 72, 600)),
        (PRODUCT._replace(A_TRANSPOSED=True, B_TRANSPOSED=True), (136, 136, 100)),
        (PRODUCT._replace(A_TRANSPOSED=True, SHARE_B=2), (136, 136, 100)),
        (PRODUCT._replace(DEPENDENT=True), (136, 72, 300)),
        (PRODUCT._replace(LAG=1, STAGES=3), (300, 136, 200)),
        (PRODUCT._replace(LAG=2, STAGES=5, BM=192, CONSUMERS=3, BN=48), (400, 136, 400)),
        (NARROW._replace(SINGLE=True, STAGES=3, BN=112, A_ROWS=16, DEPENDENT=True), (16, 330, 600)),
        (NARROW._replace(BN=112, STAGES=5, A_ROWS=16, DEPENDENT=True, FLIGHT=2), (16, 330, 600)),
        (NARROW._replace(SPLIT=2, STAGES=6, A_ROWS=8, DEPENDENT=True, FLIGHT=2, BN=64), (5, 128, 1000)),
        (NORMED._replace(BN=48, STAGES=3), (1, 200, 264)),
        (NORMED._replace(BN=112, STAGES=4, SINGLE=True, DEPENDENT=True), (8, 330, 600)),
        (NORMED._replace(BN=56, STAGES=6, SINGLE=True, DEPENDENT=True, FLIGHT=2, BK=128), (5, 168, 1000)),
        (NORMED._replace(SPLIT=2, STAGES=6, DEPENDENT=True, FLIGHT=2, BN=96), (7, 200, 1000)),
        (NORMED._replace(SPLIT=4, STAGES=8, BN=40, A_ROWS=16), (13, 80, 1000)),
        (PRODUCT._replace(BN=144, STAGES=6, SPLIT=4, DEPENDENT=True), (128, 300, 600)),
        (PRODUCT._replace(BN=224, STAGES=4, SPLIT=2, DEPENDENT=True), (128, 300, 600)),
        (PRODUCT._replace(SINGLE=True, STAGES=3, SHARE_A=2, BN=112), (128, 330, 300)),
        (PING_PONG._replace(BN=80), (330, 168, 136)),
        (PING_PONG._replace(BN=80, STORED=64), (330, 168, 136)),
        (PING_PONG._replace(BM=128, BN=48, BATCHED=True), (300, 168, 136)),
        (PING_PONG._replace(BM=128, BN=64, WHOLE=True), (330, 168, 136)),
        (PING_PONG._replace(BN=128, WHOLE=True, BUFFERS=2, BATCHED=True), (330, 168, 136)),
        (PRODUCT._replace(BN=128, WHOLE=True), (330, 168, 136)),
        (PING_PONG._replace(SHARE_B=2), (300, 72, 136)),
        (PING_PONG._replace(SHARE_A=2, STAGES=4), (136, 300, 64)),
        (PING_PONG._replace(DEPENDENT=True, A_TRANSPOSED=True, B_TRANSPOSED=True), (136, 136, 104)),
        (PRODUCT._replace(INPUT=tl.float16, OUTPUT=tl.float32), (136, 72, 104)),
        (PRODUCT._replace(INPUT=tl.float32, OUTPUT=tl.float32, BK=32), (136, 72, 100)),
        (PRODUCT._replace(INPUT=tl.int8, OUTPUT=tl.int32, BK=128, SUM=tl.int32), (136, 72, 144)),
        (PRODUCT._replace(INPUT=tl.float8e4nv, BK=128), (136, 72, 144)),
        (PRODUCT._replace(INPUT=tl.float8e5, OUTPUT=tl.float16, BK=128), (136, 72, 144)),
    ],
    ids=str,
)  # fmt: skip
def test_products(config: MatmulConfig, sizes: tuple[int, int, int], rng: np.random.Generator):
    multiply(config, rng, *sizes, 1, orders=2)


def test_batches_of_products(rng: np.random.Generator):
    multiply(PRODUCT._replace(BATCHED=True), rng, 136, 72, 100, 3, orders=2)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    "config",
    [PRODUCT._replace(BN=80), PRODUCT._replace(SHARE_B=2), NARROW._replace(SPLIT=2), PING_PONG._replace(BN=80),
     NARROW._replace(SHARE_A=2, DEPENDENT=True, FLIGHT=1), NARROW._replace(SPLIT=2, DEPENDENT=True, FLIGHT=1),
     NORMED._replace(SPLIT=2, STAGES=4, DEPENDENT=True, FLIGHT=1)],
)  # fmt: skip
def test_products_are_clean_in_any_order(config: MatmulConfig, rng: np.random.Generator):
    multiply(config, rng, config.A_ROWS or 136, 72, 136, 1, orders=ORDERS)


def test_an_epilogue_with_bias_activation_and_residual(rng: np.random.Generator):
    function = traced_matmul(PRODUCT._replace(EPILOGUE=bias_gelu_residual), ("*k f32", "*k bf16", "i32"))
    a, b, product = operands(PRODUCT, rng, 140, 96, 72, 1)
    bias, residual = numbers(rng, (96,), tl.float32), numbers(rng, (140, 96), tl.bfloat16)
    c = np.zeros(product.shape, a.dtype)
    run(function, [a, b, c, c, 140, 96, 72, 1, bias, residual, 96], PRODUCT.grid(140, 96, 1, PROCESSORS), order=1)
    x = product + bias
    erf = np.vectorize(math.erf)
    expected = 0.5 * x * (1 + erf(x / np.sqrt(2))) + residual.astype(np.float64)
    np.testing.assert_allclose(c.astype(np.float64), expected, rtol=2**-8, atol=1e-4)


@tilewright.jit
def stored_too(value, row, column, mask, extra):
    exact, stride = extra
    tl.store(exact + row * stride + column, value, mask=mask)
    return value


@pytest.mark.parametrize(
    "config", [NARROW._replace(A_ROWS=8, BN=40), NARROW._replace(A_ROWS=8, BN=96, SPLIT=2, STAGES=6)]
)
def test_an_epilogue_that_stores_sums_unrounded(config: MatmulConfig, rng: np.random.Generator):
    function = simplify(traced_matmul(config._replace(EPILOGUE=stored_too), ("*f32", "i32")))
    a, b, product = operands(config, rng, 5, 96, 200, 1)
    c, exact = np.zeros(product.shape, a.dtype), np.zeros(product.shape, np.float32)
    run(function, [a, b, c, c, 5, 96, 200, 1, exact, 96], config.grid(5, 96, 1, PROCESSORS), order=1)
    np.testing.assert_allclose(exact, product, rtol=1e-5, atol=1e-4)
    assert np.array_equal(c, exact.astype(c.dtype))


@tilewright.jit
def swish(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


@pytest.mark.parametrize("config", [PRODUCT._replace(BN=160, GATE=swish), NORMED._replace(BN=80, GATE=swish)], ids=str)
def test_a_gate_joins_interleaved_columns(config: MatmulConfig, rng: np.random.Generator):
    M, N, K = config.A_ROWS or 140, 176, 72
    a, b, product = operands(config, rng, M, N, K, 1)
    c = np.zeros((M, N // 2), a.dtype)
    function = simplify(traced_matmul(config))
    run(function, [a, b, c, c, M, N, K, 1], config.grid(M, N, 1, PROCESSORS), order=1)
    gate, up = (product.reshape(M, N // 16, 2, 8)[:, :, part].reshape(M, N // 2) for part in range(2))
    np.testing.assert_allclose(c.astype(np.float64), gate / (1 + np.exp(-gate)) * up, rtol=2**-8, atol=1e-4)


def test_int8_is_scaled_in_the_epilogue(rng: np.random.Generator):
    config = PRODUCT._replace(INPUT=tl.int8, BK=128, SUM=tl.int32, EPILOGUE=scaled)
    a, b, product = operands(config, rng, 130, 80, 256, 1)
    c = np.zeros(product.shape, config.OUTPUT.element.numpy)
    function = traced_matmul(config, ("f32",))
    run(function, [a, b, c, c, 130, 80, 256, 1, 0.125], config.grid(130, 80, 1, PROCESSORS), order=2)
    np.testing.assert_allclose(c.astype(np.float64), product * 0.125, rtol=2**-8)


def test_fp8_with_scales_of_blocks_is_promoted(rng: np.random.Generator):
    config = PRODUCT._replace(INPUT=tl.float8e4nv, BK=128, PROMOTE=scaled_blocks)
    M, N, K = 130, 80, 300
    a, b, _ = operands(config, rng, M, N, K, 1)
    rows, steps = rng.uniform(0.5, 2, (M, 3)).astype(np.float32), rng.uniform(0.5, 2, 3).astype(np.float32)
    c = np.zeros((M, N), config.OUTPUT.element.numpy)
    function = traced_matmul(config, ("f32", "*k f32", "*k f32", "i32", "i32"))
    run(function, [a, b, c, c, M, N, K, 1, 1.0, rows, steps, 3, M], config.grid(M, N, 1, PROCESSORS), order=3)
    parts = (slice(first, first + 128) for first in range(0, K, 128))
    products = (a[:, part].astype(np.float64) @ b[:, part].astype(np.float64).T for part in parts)
    expected = sum(product * rows[:, step, None] * steps[step] for step, product in enumerate(products))
    np.testing.assert_allclose(c.astype(np.float64), expected, rtol=2**-8, atol=1e-3)


def random_product(draw: np.random.Generator) -> tuple[MatmulConfig, tuple[int, int, int], int]:
    """A config that can be built, sizes, and a number of batches."""
    while True:
        dtype = draw.choice(np.array([tl.bfloat16, tl.int8, tl.float8e4nv, tl.float32], object))
        integer = dtype == tl.int8
        consumers, chance = int(draw.integers(1, 4)), draw.random(5)
        config = MatmulConfig(
            BM=64 * consumers * int(draw.integers(1, 3)), BN=8 * int(draw.integers(1, 21)), BK=128 // dtype.itemsize,
            STAGES=int(draw.integers(2, 6)), CONSUMERS=consumers, SHARE_A=1 + int(chance[0] < 0.3),
            SHARE_B=1 + int(chance[0] > 0.7), SPLIT=int(draw.choice([1, 1, 2, 4])), GROUP=int(draw.integers(1, 4)),
            A_ROWS=int(draw.choice([0, 0, 8, 24])), BUFFERS=int(draw.integers(1, 4)), INPUT=dtype,
            OUTPUT=tl.int32 if integer else draw.choice(np.array([tl.bfloat16, tl.float16, tl.float32], object)),
            SUM=tl.int32 if integer else tl.float32, A_TRANSPOSED=bool(chance[1] < 0.2),
            B_TRANSPOSED=bool(chance[2] < 0.2), BATCHED=bool(chance[3] < 0.2), DEPENDENT=bool(chance[4] < 0.3),
        )  # fmt: skip
        try:
            config.check()
        except LaunchError:
            continue
        rows, columns, depth = (
            int(number) for number in draw.integers(1, (config.A_ROWS or 250, 150, 250), endpoint=True)
        )
        depth = max(depth, config.BK * (config.SPLIT - 1) + 1)
        return config, (rows, columns, depth), int(draw.integers(1, 4)) if config.BATCHED else 1


@pytest.mark.parametrize("number", range(6))
def test_random_products(number: int, rng: np.random.Generator):
    config, sizes, batches = random_product(rng)
    print(config, sizes, batches)
    multiply(config, rng, *sizes, batches, orders=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"BN": 100}, "multiple of 8"), ({"BK": 48}, "multiple of 64"), ({"STAGES": 12, "BN": 256}, "shared memory"),
     ({"BM": 96}, "64 rows"), ({"SHARE_A": 2, "SHARE_B": 2}, "not both"), ({"BM": 256, "BN": 256}, "accumulators"),
     ({"BN": 232, "STAGES": 4, "SPLIT": 2}, "as a power of two")],
)  # fmt: skip
def test_impossible_configs_say_why(change: dict[str, int], reason: str):
    with pytest.raises(LaunchError, match=reason):
        PRODUCT._replace(**change).check()


def attend(config: AttentionConfig, rng: np.random.Generator, sizes: tuple[int, ...], window: int = 0, orders: int = 2,
           growth: float = 0.0, lengths: tuple[tuple[int, int], ...] = (), shared: bool = False) -> None:  # fmt: skip
    batches, heads, key_heads, queries, keys = sizes
    function = simplify(traced_attention(config))
    verify(function)
    q = numbers(rng, (batches, heads, queries, config.D), config.TYPE)
    k, v = (numbers(rng, (batches, key_heads, keys, config.D), config.TYPE) for _ in range(2))
    k = (k.astype(np.float32) * (1 + growth * np.linspace(1, 0, keys)[:, None])).astype(k.dtype)
    ends = np.asarray(lengths or [(queries, keys)] * batches, np.int32)
    inside = np.arange(queries)[None, None, :] < ends[:, None, None, 0]
    shape = (1 if shared else batches, 1 if shared or config.BIAS == 1 else heads,
             1 if config.BIAS == 1 else queries, keys)  # fmt: skip
    bias = numbers(rng, shape, config.TYPE)
    bias[rng.random(shape) < 0.2] = -np.inf
    strides = [0 if extent == 1 else stride // bias.itemsize
               for extent, stride in zip(shape[:3], bias.strides, strict=False)]  # fmt: skip
    extra = [bias.reshape(-1), *strides, np.sqrt(config.D)] if config.BIAS else []
    expected, sums = attention_reference(
        q, k, v, ends, config.CAUSAL, window, bias.astype(np.float64) if config.BIAS else 0.0
    )
    table = attention_schedule(config, batches, heads, queries, keys, heads // key_heads, PROCESSORS // 2)
    scale = np.log2(np.e) / np.sqrt(config.D)
    for order in range(orders):
        out, lse = np.zeros_like(q), np.full((batches, heads, queries), 7, np.float32)
        run(
            function,
            [
                q,
                k,
                v,
                out,
                lse,
                ends,
                table,
                table.shape[1],
                queries,
                keys,
                heads,
                heads // key_heads,
                window,
                scale,
                *extra,
            ],
            (len(table),),
            order=order,
        )
        # Exponentials and results are rounded to the operands' type.
        unit = 2**-8 if config.TYPE == tl.bfloat16 else 2**-11
        error = np.where(inside[..., None], np.abs(out.astype(np.float64) - expected), 0.0)
        assert error.max() <= 2 * unit * np.abs(v.astype(np.float64)).max()
        if config.LSE:
            np.testing.assert_allclose(np.where(inside, lse, 0), np.where(inside, sums, 0), rtol=1e-5, atol=1e-4)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (ATTENTION, (1, 2, 1, 200, 136)),
        (ATTENTION._replace(CAUSAL=True), (1, 2, 1, 200, 200)),
        (ATTENTION._replace(CAUSAL=True, LSE=True), (1, 2, 2, 150, 220)),
        (ATTENTION._replace(CAUSAL=True, LSE=True), (1, 1, 1, 250, 120)),
        (ATTENTION._replace(CAUSAL=True, CONSUMERS=3, BN=80), (1, 2, 2, 250, 250)),
        (ATTENTION._replace(CONSUMERS=4, BN=64, STAGES=4, FLAT=False), (1, 2, 1, 300, 200)),
        (ATTENTION._replace(CAUSAL=True, CONSUMERS=4, BN=64, STAGES=4, PING_PONG=False), (1, 1, 1, 300, 300)),
        (ATTENTION._replace(FLAT=False), (1, 2, 1, 200, 136)),
        (ATTENTION._replace(FLAT=False, CAUSAL=True, LAZY=False, PING_PONG=False), (1, 2, 1, 200, 136)),
        (ATTENTION._replace(FLAT=False, CONSUMERS=1, PING_PONG=False), (1, 1, 1, 100, 136)),
        (ATTENTION._replace(FLAT=False, CONSUMERS=1, PING_PONG=False, DEPENDENT=True), (1, 4, 2, 4, 136)),
        (ATTENTION._replace(STAGES=3), (1, 1, 1, 100, 250)),
        (ATTENTION._replace(D=128, BN=48, TYPE=tl.float16), (2, 1, 1, 130, 136)),
        (ATTENTION._replace(D=96, BN=48), (1, 1, 1, 130, 136)),
        (ATTENTION._replace(D=256, BN=80, FLAT=False), (1, 1, 1, 130, 136)),
    ],
    ids=str,
)  # fmt: skip
def test_attention(config: AttentionConfig, sizes: tuple[int, ...], rng: np.random.Generator):
    attend(config, rng, sizes)


def test_attention_in_a_window(rng: np.random.Generator):
    attend(ATTENTION._replace(CAUSAL=True, WINDOW=True), rng, (1, 2, 1, 250, 250), window=70)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_ragged_lengths(causal: bool, rng: np.random.Generator):
    config = ATTENTION._replace(LENGTHS=True, LSE=True, CAUSAL=causal)
    attend(config, rng, (3, 1, 1, 130, 140), lengths=((130, 140), (77, 77), (60, 1)))


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        ATTENTION._replace(BIAS=1, LSE=True),
        ATTENTION._replace(BIAS=2, CONSUMERS=3),
        ATTENTION._replace(BIAS=1, CAUSAL=True, FLAT=False),
        ATTENTION._replace(BIAS=2, TYPE=tl.float16, CONSUMERS=1, PING_PONG=False, FLAT=False),
    ],
    ids=str,
)
def test_attention_with_a_bias(config: AttentionConfig, shared: bool, rng: np.random.Generator):
    attend(config, rng, (2, 2, 1, 150, 136), shared=shared)


@pytest.mark.parametrize("bias", [0, 1, 2])
def test_attention_of_whole_blocks(bias: int, rng: np.random.Generator):
    attend(ATTENTION._replace(WHOLE=True, BIAS=bias, PAIRED=bias > 0, FLAT=bias != 2), rng, (2, 1, 1, 100, 96))


@pytest.mark.parametrize(("splits", "keys"), [(3, 200), (4, 64), (5, 290)])
def test_attention_on_parts_of_the_keys(splits: int, keys: int, rng: np.random.Generator):
    """Parts of whole blocks, the last ones short or empty, and their results put together."""
    config = ATTENTION._replace(
        BN=32,
        CONSUMERS=1,
        PING_PONG=False,
        FLAT=False,
        SPLITS=splits,
        LSE=True,
        BIAS=1,
        TYPE=tl.float16,
        DEPENDENT=True,
    )
    batches, heads, group = 2, 3, 4
    q = numbers(rng, (batches, heads, group, 64), config.TYPE)
    k, v = (numbers(rng, (batches, heads, keys, 64), config.TYPE) for _ in range(2))
    bias = numbers(rng, (batches, 1, 1, keys), config.TYPE)
    parts = np.full((batches, heads * splits, group, 64), 7, q.dtype)
    sums = np.full((batches, heads * splits, group), 7, np.float32)
    table = attention_schedule(config, batches, heads * splits, group, keys, 1, 5)
    numbers_ = (table.shape[1], group, keys, heads * splits, 1, 0, np.log2(np.e) / 8)
    arguments = [q, k, v, parts, sums, table, table, *numbers_, bias.reshape(-1), keys, 0, 0, 8.0]
    run(simplify(traced_attention(config)), arguments, (len(table),), order=3)
    out = np.zeros((batches, heads * group, 64), q.dtype)
    with settings.scope(interpret=True):
        combine_parts[(heads * group, batches)](
            *(torch.from_numpy(array) for array in (parts, sums, out)), heads * group * 64, 64, heads * group,
            GROUP=group, SPLITS=splits, HEAD=64, BLOCK_P=8, BLOCK_D=64,
        )  # fmt: skip
    ends = np.full((batches, 2), (group, keys), np.int32)
    expected, _ = attention_reference(q, k, v, ends, False, 0, bias.astype(np.float64))
    error = np.abs(out.reshape(expected.shape).astype(np.float64) - expected)
    assert error.max() <= 2.0**-10 * np.abs(v.astype(np.float64)).max()


def random_attention(draw: np.random.Generator) -> AttentionConfig:
    """A config that can be built."""
    while True:
        consumers, chance = int(draw.integers(1, 4)), draw.random(7)
        causal = bool(chance[0] < 0.6)
        config = AttentionConfig(
            D=int(draw.choice([16, 32, 64, 96])), BN=16 * int(draw.integers(1, 9)), CONSUMERS=consumers,
            STAGES=int(draw.integers(2, 4)), CAUSAL=causal, WINDOW=causal and bool(chance[1] < 0.4),
            LENGTHS=bool(chance[2] < 0.4), LSE=bool(chance[3] < 0.5), FLAT=bool(chance[4] < 0.6),
            LAZY=bool(chance[5] < 0.6), PING_PONG=consumers > 1 and bool(chance[6] < 0.6),
        )  # fmt: skip
        try:
            return config.check()
        except LaunchError:
            continue


@pytest.mark.parametrize("number", range(6))
def test_random_attention(number: int, rng: np.random.Generator):
    config = random_attention(rng)
    batches, heads, group, queries, keys, window = (int(n) for n in rng.integers(1, (3, 3, 3, 250, 250, 120)))
    ends = tuple((int(rng.integers(queries)) + 1, int(rng.integers(keys)) + 1) for _ in range(batches))
    print(config, batches, heads, group, queries, keys, window, ends)
    sizes = (batches, heads * group, heads, queries, keys)
    attend(config, rng, sizes, window if config.WINDOW else 0, orders=2, lengths=ends if config.LENGTHS else ())


def test_attention_with_growing_maxima(rng: np.random.Generator):
    """Rows outgrow their maxima again and again, so that results are rescaled."""
    attend(ATTENTION, rng, (1, 1, 1, 130, 200), growth=20.0)


@pytest.mark.parametrize(
    "config", [ATTENTION._replace(CAUSAL=True, CONSUMERS=3, BN=64), ATTENTION._replace(FLAT=False)]
)
def test_attention_is_clean_in_any_order(config: AttentionConfig, rng: np.random.Generator):
    attend(config, rng, (1, 1, 1, 200, 130), orders=ORDERS)


def test_a_schedule_holds_every_tile_once():
    for causal in (False, True):
        config = ATTENTION._replace(CAUSAL=causal)
        table = attention_schedule(config, 2, 3, 700, 900, 3, 5)
        assert sorted(table[table >= 0].tolist()) == [pair << 16 | tile for pair in range(6) for tile in range(6)]
        assert (table[:, -1] == -1).all()


def test_prepared_calls_run_on_arrays_and_tensors(rng: np.random.Generator):
    a, b = (torch.from_numpy(rng.standard_normal((rows, 72), np.float32)).bfloat16() for rows in (70, 96))
    c = torch.zeros((70, 96), dtype=torch.bfloat16)
    with settings.scope(interpret=True, interpret_order=3):
        prepare_matmul(NARROW, a, b, c, processors=2)()
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, rtol=2**-8, atol=1e-4)


def test_tensors_that_do_not_fit_are_refused():
    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, tl.bfloat16.element.numpy)

    a, b = zeros(70, 72), zeros(96, 72)
    cases = [
        (lambda: prepare_matmul(NARROW, a, b, zeros(70, 80), processors=2), r"result should be \(70, 96\)"),
        (lambda: prepare_matmul(NARROW._replace(A_ROWS=8), a, b, zeros(70, 96), processors=2), "loads 8 rows"),
        (lambda: prepare_matmul(NARROW._replace(SPLIT=4, BN=16), a, b, zeros(70, 96), processors=2), "fewer stages"),
    ]
    for call, reason in cases:
        with pytest.raises(LaunchError, match=reason):
            call()


@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [(matmul, MATMUL_PARAMETERS), (attention, ATTENTION_PARAMETERS), (dequantized_matmul, DEQUANTIZED_PARAMETERS)],
    ids=["matmul", "attention", "dequantized"],
)
def test_launches_are_described_in_the_order_of_the_parameters(kernel: JITFunction, parameters: Parameters) -> None:
    """`ops` gives what a launch is given by place, engines by name."""
    names = [parameter.name for parameter in kernel.parameters if parameter.kind != "variadic"]
    assert [*parameters.tiled, *parameters.others, "CONFIG"] == names
