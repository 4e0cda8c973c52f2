"""Tensor maps on a GPU: tiles arrive with every swizzle, filled with zeros outside of the tensor."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.device import handmade
from tilewright.dtypes import bfloat16, float32
from tilewright.layout.shared import nvmma
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT
from tilewright.runtime.gpu_program import TensorMapUse

pytestmark = pytest.mark.capability(9)


def unswizzled(words: np.ndarray, swizzle: int) -> np.ndarray:
    """The 64 x 64 tile that lies in 8192 bytes, by the project's own layouts; rows of `swizzle` bytes are panels."""
    layout = nvmma((64, 64), 16, swizzle)
    flat = words.view(np.uint16)
    offsets = np.array([[layout.offset(row, column) for column in range(64)] for row in range(64)])
    return flat[offsets].view(ml_dtypes.bfloat16)


def tile(gpu: Device, x: DeviceArray, use: TensorMapUse, row: int, column: int) -> np.ndarray:
    facts = {"tensor_maps": (use,), "shared_bytes": handmade.TILE_SHARED}
    start = handmade.start(handmade.TILE, "tile", handmade.TILE_PARAMETERS, gpu, **facts)
    y = DeviceArray.from_numpy(np.full(2048, -1, np.int32))
    start(1, 1, 1, LEGACY_DEFAULT, (x.address, x.shape, (x.shape[1], 1)), row, column, y.address)
    return y.numpy()


@pytest.mark.parametrize("promotion", [0, 64, 128, 256])
@pytest.mark.parametrize("swizzle", [0, 128])
def test_tiles_arrive(gpu: Device, rng: np.random.Generator, swizzle: int, promotion: int) -> None:
    values = rng.standard_normal((200, 136)).astype(ml_dtypes.bfloat16)
    x = DeviceArray.from_numpy(values)
    use = TensorMapUse(0, (64, 64), bfloat16, swizzle, promotion)
    found = tile(gpu, x, use, 16, 24)
    expected = values[16:80, 24:88]
    plain = found.view(np.uint16).reshape(64, 64).view(ml_dtypes.bfloat16)
    assert np.array_equal(plain if swizzle == 0 else unswizzled(found, swizzle), expected)


@pytest.mark.parametrize("fill", ["zero", "nan"])
def test_outside_of_the_tensor(gpu: Device, rng: np.random.Generator, fill: str) -> None:
    values = rng.standard_normal((100, 104)).astype(ml_dtypes.bfloat16)
    found = tile(gpu, DeviceArray.from_numpy(values), TensorMapUse(0, (64, 64), bfloat16, fill=fill), 64, 64)
    plain = found.view(np.uint16).reshape(64, 64).view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(plain[:36, :40], values[64:, 64:].astype(np.float32))
    outside = np.concatenate([plain[36:].ravel(), plain[:36, 40:].ravel()])
    assert (outside == 0).all() if fill == "zero" else np.isnan(outside).all()


@pytest.mark.parametrize("rounded", [False, True])
def test_float32_may_be_rounded_to_tf32(gpu: Device, rng: np.random.Generator, rounded: bool) -> None:
    values = rng.standard_normal((64, 32)).astype(np.float32)
    use = TensorMapUse(0, (64, 32), float32)
    facts = {"tensor_maps": (use,), "shared_bytes": handmade.TILE_SHARED}
    start = handmade.start(handmade.TILE, "tile", handmade.TILE_PARAMETERS, gpu, **facts)
    x, y = DeviceArray.from_numpy(values), DeviceArray.from_numpy(np.full(2048, -1, np.int32))
    start(1, 1, 1, LEGACY_DEFAULT, (x.address, x.shape, (32, 1), rounded), 0, 0, y.address)
    found = y.numpy().view(np.float32).reshape(64, 32)
    assert np.array_equal(found, values) == (not rounded)
    assert np.abs(found / values - 1).max() <= 2.0**-11 * (1 + 1e-6)
