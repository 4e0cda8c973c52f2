"""MX formats and NVFP4 against their rules, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.quant.microscaling import BLOCK, ELEMENT_TYPES, decode_mx, decode_nvfp4, encode_mx, encode_nvfp4


def codes_of(dtype: np.dtype) -> np.ndarray:
    """All finite numbers of a type, by code."""
    bits = 4 if "float4" in dtype.name else 6 if "float6" in dtype.name else 8
    numbers = np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, np.inf)


def nearest(x: float, dtype: np.dtype) -> float:
    """By search over all codes: of two as near, the one with an even code."""
    numbers = codes_of(dtype)
    distances = np.abs(numbers - x)
    best = np.flatnonzero(distances == distances.min())
    return float(
        numbers[min(best, key=lambda code: (code % 2, math.copysign(1, numbers[code]) != math.copysign(1, x)))]
    )


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_mx_formats(name: str, rng: np.random.Generator) -> None:
    dtype = ELEMENT_TYPES[name]
    numbers = codes_of(dtype)
    most = numbers[np.isfinite(numbers)].max()
    x = (rng.standard_normal((6, BLOCK)) * 2.0 ** rng.integers(-60, 60, (6, 1))).astype(np.float32)
    x[1] = 0
    x[2, :4] = np.array([1.0, 1.0625, 1.125, 1.1875], np.float32)  # ties
    x[3, 0], x[4, 5] = np.inf, np.nan
    found = encode_mx(x, name)
    decoded = decode_mx(found)
    for row in (0, 1, 2, 5):
        largest = float(np.abs(x[row]).max())
        exponent = math.floor(math.log2(largest)) - math.floor(math.log2(most)) if largest else -127
        assert int(found.scales[row, 0:1].view(np.uint8)[0]) == max(exponent, -127) + 127
        for element, got in zip(x[row], found.elements[row], strict=True):
            assert float(got) == nearest(float(element) / 2.0**exponent, dtype) if largest else float(got) == 0
        np.testing.assert_array_equal(
            decoded[row], (found.elements[row].astype(np.float64) * 2.0**exponent).astype("f")
        )
    assert found.scales[3:5].view(np.uint8).tolist() == [[255], [255]] and np.isnan(decoded[3:5]).all()
    again = encode_mx(decoded[[0, 2, 5]], name)
    assert np.array_equal(decode_mx(again), decoded[[0, 2, 5]])


def test_nvfp4(rng: np.random.Generator) -> None:
    x = (rng.standard_normal((4, 64)) * np.exp(rng.standard_normal((4, 1)))).astype(np.float32)
    x[2, :16] = 0
    found = encode_nvfp4(x)
    assert found.whole == np.float32(np.abs(x).max() / (448 * 6)) and found.scales.shape == (4, 4)
    for row, block in np.ndindex(4, 4):
        part = x[row, block * 16 : block * 16 + 16].astype(np.float64)
        scale = nearest(np.abs(part).max() / 6 / float(found.whole), found.scales.dtype)
        assert float(found.scales[row, block]) == scale
        for element, got in zip(part, found.elements[row, block * 16 :], strict=False):
            wanted = (
                nearest(min(6, max(-6, element / (scale * float(found.whole)))), found.elements.dtype) if scale else 0
            )
            assert float(got) == wanted
    assert np.abs(decode_nvfp4(found) - x).max() < np.abs(x).max() / 5
    assert not decode_nvfp4(encode_nvfp4(np.zeros((1, 16)))).any()
    for bad in (np.zeros((1, 15)), np.full((1, 16), np.nan)):
        with pytest.raises(InputError, match="multiple of 16|no NaN"):
            encode_nvfp4(bad)
    with pytest.raises(InputError, match="unknown format 'mxfp5': choose one of mxfp8_e4m3"):
        encode_mx(np.zeros((1, 32)), "mxfp5")


@pytest.mark.parametrize("shape", [(0, 32), (2, 0, 32), (3, 0), (0,)])
def test_arrays_without_elements(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for found, back, size in (
        (encode_nvfp4(x), decode_nvfp4, 16), (encode_mx(x, "mxfp4"), decode_mx, 32)
    ):  # fmt: skip
        assert found.elements.shape == shape and found.scales.shape == (*shape[:-1], shape[-1] // size)
        assert back(found).shape == shape
