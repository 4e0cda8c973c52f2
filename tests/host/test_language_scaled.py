"""Block-scaled products against NumPy, interpreted and compiled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, interpret, launch

M, N, K = 4, 8, 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@tilewright.jit
def tile(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return tl.load(pointer + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])


@tilewright.jit
def product(
    a, a_scale, b, b_scale, out, A: tl.constexpr, B: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    GROUP: tl.constexpr, PACK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    left, right = tile(a, A[0], A[1]), tile(b, B[0], B[1])
    left_scale = tile(a_scale, M, K // GROUP)
    right_scale = None if b_scale is None else tile(b_scale, N, K // GROUP)
    acc = tl.full((M, N), 1.0, tl.float32)
    acc = tl.dot_scaled(left, left_scale, LEFT, right, right_scale, RIGHT, acc, lhs_k_pack=PACK, rhs_k_pack=PACK)
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], acc)


def _operand(name: str, shape: tuple[int, int], packed: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random stored values, and what they mean in float64."""
    if name == "e2m1":
        codes = rng.integers(0, 16, shape).astype(np.uint8)
        pairs = np.moveaxis(codes, packed, -1)
        stored = np.moveaxis(pairs[..., ::2] | pairs[..., 1::2] << 4, -1, packed)
        return np.ascontiguousarray(stored), E2M1[codes]
    kinds = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16}
    stored = rng.normal(size=shape).astype(kinds.get(name, np.float16))
    return (stored.view(np.uint8) if name == "e5m2" else stored), stored.astype(np.float64)


FORMATS = [("e2m1", "e2m1"), ("e2m1", "bf16"), ("e4m3", "e5m2"), ("bf16", "e2m1"), ("fp16", "e4m3")]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("k_pack", [True, False])
@pytest.mark.parametrize("group", [32, 16])
@pytest.mark.parametrize(("left", "right"), FORMATS)
def test_scaled_products(left: str, right: str, group: int, k_pack: bool, rng: np.random.Generator) -> None:
    a, a_values = _operand(left, (M, K), 1 if k_pack else 0, rng)
    b, b_values = _operand(right, (K, N), 0 if k_pack else 1, rng)
    if group == 32:
        scale = rng.integers(120, 134, (M, K // group)).astype(np.uint8)
        other = rng.integers(120, 134, (N, K // group)).astype(np.uint8)
        factors = 2.0 ** (scale.astype(float) - 127), 2.0 ** (other.astype(float) - 127)
    else:
        scale = rng.uniform(0.5, 4, (M, K // group)).astype(ml_dtypes.float8_e4m3fn)
        other = None
        factors = scale.astype(float), np.ones((N, K // group))
    sizes = {"LEFT": left, "RIGHT": right, "GROUP": group, "PACK": k_pack, "M": M, "N": N, "K": K}
    wide = a_values * np.repeat(factors[0], group, 1), b_values * np.repeat(factors[1], group, 1).T
    bound = np.abs(wide[0]) @ np.abs(wide[1]) + 1
    # Sums of large terms may cancel: each form is held to the error of its additions, not to the other form.
    for run in (interpret, lambda kernel, grid, *arguments, **keywords: kernel[grid](*arguments, **keywords)):
        out = np.zeros((M, N), np.float32)
        run(product, (1,), a, scale, b, other, out, A=a.shape, B=b.shape, **sizes)
        assert (np.abs(out - (wide[0] @ wide[1] + 1)) <= K * 2.0**-23 * bound).all()


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("kind", ["int8", "uint8", "float8_e4m3fn"])
def test_scales_of_every_dtype_for_16_and_32_elements(kind: str, group: int, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-8, 8, shape).astype(np.float16) for shape in ((M, K), (K, N)))
    exponents = rng.integers(120, 134, (M, K // group)).astype(np.uint8)
    numbers = rng.integers(1, 9, (M, K // group)).astype(ml_dtypes.float8_e4m3fn)
    scale = numbers if kind == "float8_e4m3fn" else exponents.view(kind)
    factors = numbers.astype(np.float64) if kind == "float8_e4m3fn" else 2.0 ** (exponents.astype(float) - 127)
    out = np.zeros((M, N), np.float32)
    sizes = {"LEFT": "fp16", "RIGHT": "fp16", "GROUP": group, "PACK": True, "M": M, "N": N, "K": K}
    product[(1,)](a, scale, b.view(np.uint16), None, out, A=a.shape, B=b.shape, **sizes)
    np.testing.assert_array_equal(out, (a * np.repeat(factors, group, 1)) @ b.astype(np.float64) + 1)


def test_the_ends_of_the_scale() -> None:
    a, b, out = np.ones((M, K), ml_dtypes.bfloat16), np.ones((K, N), ml_dtypes.bfloat16), np.zeros((M, N), np.float32)
    scale = np.full((M, 2), 127, np.uint8)
    scale[1, 0] = 255
    sizes = {"LEFT": "bf16", "RIGHT": "bf16", "GROUP": 32, "PACK": True, "M": M, "N": N, "K": K}
    launch(product, (1,), a, scale, b, None, out, A=a.shape, B=b.shape, **sizes)
    assert np.isnan(out[1]).all() and (out[[0, 2, 3]] == K + 1).all()


def test_mistakes_are_named() -> None:
    types = {"a": "*bf16", "a_scale": "*u8", "b": "*bf16", "b_scale": "*u8", "out": "*f32"}
    sizes = {"A": (M, K), "B": (K, N), "GROUP": 32, "PACK": True, "M": M, "N": N, "K": K}
    assert "formats are e2m1" in compile_error(product, types, LEFT="e3m2", RIGHT="bf16", **sizes)
    assert "'e4m3' is stored as fp8e4nv or uint8" in compile_error(product, types, LEFT="e4m3", RIGHT="bf16", **sizes)
    sizes["GROUP"] = 8
    assert "one number for 32 elements" in compile_error(product, types, LEFT="bf16", RIGHT="bf16", **sizes)


@tilewright.jit
def two_groups(a, b, out):
    left_scale, right_scale = tl.full((4, 4), 127, tl.uint8), tl.full((8, 2), 127, tl.uint8)
    product = tl.dot_scaled(tile(a, 4, 64), left_scale, "bf16", tile(b, 64, 8), right_scale, "bf16")
    tl.store(out + tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :], product)


def test_both_scales_are_for_as_many_elements() -> None:
    assert "for 16 elements along K and the other for 32" in compile_error(
        two_groups, {"a": "*bf16", "b": "*bf16", "out": "*f32"}
    )
