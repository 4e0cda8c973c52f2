"""Philox: the published test vectors, and the distributions made from it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch


@tilewright.jit
def words(out, seed, c0, c1, c2, c3):
    a, b, c, d = tl.philox(seed, c0, c1, c2, c3)
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, c)
    tl.store(out + 3, d)


# Known answers of Philox-4x32 with ten rounds, from the Random123 distribution.
VECTORS = [
    (0, (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (2**64 - 1, (2**32 - 1,) * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (0x299F31D0_A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("seed", "counters", "expected"), VECTORS)
def test_philox_vectors(seed: int, counters: tuple[int, ...], expected: str) -> None:
    out = np.zeros(4, np.uint32)
    launch(words, (1,), out, seed, *map(np.uint32, counters))
    assert " ".join(f"{word:08x}" for word in out) == expected


@tilewright.jit
def draw(out, seed, offset, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if KIND == "rand":
        tl.store(out + i, tl.rand(seed, offset + i))
    elif KIND == "randn":
        tl.store(out + i, tl.randn(seed, offset + i))
    else:
        tl.store(out + i, tl.randint(seed, offset + i))


@pytest.mark.parametrize("offset", [0, 2**40])
def test_distributions(offset: int) -> None:
    uniform, normal, whole = np.zeros(4096, np.float32), np.zeros(4096, np.float32), np.zeros(4096, np.uint32)
    launch(draw, (1,), uniform, 123, offset, KIND="rand", N=4096)
    launch(draw, (1,), normal, 123, offset, KIND="randn", N=4096)
    launch(draw, (1,), whole, 123, offset, KIND="randint", N=4096)
    signed = whole.view(np.int32).astype(np.int64)
    expected = np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)
    np.testing.assert_array_equal(uniform, expected)
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.03
    assert abs(normal.mean()) < 0.08 and abs(normal.std() - 1) < 0.05


@tilewright.jit
def as_uniform(x, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.random.uint_to_uniform_float(tl.load(x + lanes)))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_the_ends_of_the_integers_stay_below_one(dtype: str) -> None:
    word = np.iinfo(dtype)
    middle = 1 << (word.bits - 1)
    x = np.array([0, middle - 1, middle, 2 * middle - 1], np.uint64).astype(f"uint{word.bits}").view(dtype)
    out = np.zeros(4, np.float32)
    as_uniform[(1,)](x, out, N=4)
    assert out[0] == out[3] == 0 and out[1] == out[2] and 1 - 2.0**-22 < out[1] < 1


@tilewright.jit
def uniform_of(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.uint_to_uniform_float(tl.load(x + i)))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_uniform_numbers_stay_below_one(dtype: str, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, 64, dtype, endpoint=True)
    x[:4] = [info.min, info.max, 0, 1]
    out = np.zeros(64, np.float32)
    launch(uniform_of, (1,), x, out, N=64)
    assert 0 <= out.min() and out.max() < 1
